"""Neural networks: one architecture, every user's own parameters and data, all users at once."""

from resolvent.networks.cuda_graphs import Captured
from resolvent.networks.gradients import Slopes, Ways
from resolvent.networks.layout import Layout

__all__ = ["Captured", "Layout", "Slopes", "Ways"]
