"""Everything that is reproduced, in the paper's order, and what others publish."""

from __future__ import annotations

from importlib import import_module

from resolvent.paper.figure import Figure
from resolvent.paper.figures import niid_bench

MODULES = """
proxprojection fixed_pr_stationary eta_effect_fedprox theorems_fedprox theorems_others theorem_rp comp table mixing law
extrap fedrp_eta trade_off cifar10 splitting_usersampling splitting_minibatch extrap_error examples
"""
"""The modules of this folder; each ends in its FIGURE."""
FIGURES: tuple[Figure, ...] = tuple(import_module(f"resolvent.paper.figures.{name}").FIGURE for name in MODULES.split())
BESIDE: tuple[Figure, ...] = (niid_bench.FIGURE, niid_bench.CIFAR10)
"""Tables that others publish: they are run by name, and not by "all"."""
