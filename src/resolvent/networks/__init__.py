"""Neural networks: one architecture, every user's own parameters and data, all users at once."""

from resolvent.networks.cuda_graphs import Captured
from resolvent.networks.gradients import Gradients
from resolvent.networks.layout import ParameterLayout
from resolvent.networks.method_choice import choose_method
from resolvent.networks.plain import ValueAndGrad

__all__ = ["Captured", "Gradients", "ParameterLayout", "ValueAndGrad", "choose_method"]
