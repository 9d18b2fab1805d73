"""Everything that is reproduced, in the paper's order."""

from __future__ import annotations

from resolvent.paper.figure import Figure
from resolvent.paper.figures import (
    cifar10,
    comp,
    eta_effect_fedprox,
    examples,
    extrap,
    extrap_error,
    fedrp_eta,
    fixed_pr_stationary,
    law,
    mixing,
    proxprojection,
    splitting_minibatch,
    splitting_usersampling,
    table,
    theorem_rp,
    theorems_fedprox,
    theorems_others,
    trade_off,
)

FIGURES: tuple[Figure, ...] = (
    proxprojection.FIGURE,
    fixed_pr_stationary.FIGURE,
    eta_effect_fedprox.FIGURE,
    theorems_fedprox.FIGURE,
    theorems_others.FIGURE,
    theorem_rp.FIGURE,
    comp.FIGURE,
    table.FIGURE,
    mixing.FIGURE,
    law.FIGURE,
    extrap.FIGURE,
    fedrp_eta.FIGURE,
    trade_off.FIGURE,
    cifar10.FIGURE,
    splitting_usersampling.FIGURE,
    splitting_minibatch.FIGURE,
    extrap_error.FIGURE,
    examples.FIGURE,
)
