"""What a configuration solves, and how fast: closed forms, and `explain`, which puts them into words."""

from resolvent.local.law import effective_eta, left_after, step_sums
from resolvent.theory.closed_forms import (
    best_eta,
    curvatures,
    fedavg_fixed_point,
    heterogeneity,
    reflector_norm,
    regularised_minimiser,
)

__all__ = [
    "best_eta",
    "curvatures",
    "effective_eta",
    "fedavg_fixed_point",
    "heterogeneity",
    "left_after",
    "reflector_norm",
    "regularised_minimiser",
    "step_sums",
]
