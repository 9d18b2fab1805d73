"""Everything that is reproduced, in the paper's order."""

from __future__ import annotations

from resolvent.paper import (
    cifar10,
    comp,
    eta_effect_fedprox,
    extrap,
    extrap_error,
    fedrp_eta,
    fixed_pr_stationary,
    splitting_minibatch,
    splitting_usersampling,
    trade_off,
)
from resolvent.paper.figure import Figure

FIGURES: tuple[Figure, ...] = (
    fixed_pr_stationary.FIGURE,
    eta_effect_fedprox.FIGURE,
    comp.FIGURE,
    extrap.FIGURE,
    fedrp_eta.FIGURE,
    trade_off.FIGURE,
    cifar10.FIGURE,
    splitting_usersampling.FIGURE,
    splitting_minibatch.FIGURE,
    extrap_error.FIGURE,
)
