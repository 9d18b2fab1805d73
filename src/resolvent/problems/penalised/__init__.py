"""The minimum of f + g for linear models: found by one central solver, certified, or why it is not known."""

from resolvent.problems.penalised.minimum import Least, Penalised, least

__all__ = ["Least", "Penalised", "least"]
