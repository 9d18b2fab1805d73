"""Neural networks: one architecture, every user's own parameters and data, all users at once."""

from resolvent.problems.neural.flat import Layout
from resolvent.problems.neural.graphs import Captured
from resolvent.problems.neural.ways import Slopes, Ways

__all__ = ["Captured", "Layout", "Slopes", "Ways"]
