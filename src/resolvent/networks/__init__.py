"""Neural networks: one architecture, every user's own parameters and data, all users at once."""

from resolvent.networks.choice import choose
from resolvent.networks.cuda_graphs import Captured
from resolvent.networks.gradients import Gradients, ValueAndGrad
from resolvent.networks.layout import Layout

__all__ = ["Captured", "Gradients", "Layout", "ValueAndGrad", "choose"]
