"""In which metric users' proxes are taken: a part that is chosen before a run, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resolvent.errors import InputError, quoted, refuse
from resolvent.iteration import registry
from resolvent.iteration.facts import Facts
from resolvent.iteration.part import Part
from resolvent.iteration.penalties import separable
from resolvent.iteration.registry import part
from resolvent.iteration.scheme import Scheme

MAX_HESSIAN_DIM = 1000
"""The longest model whose mean Hessian is asked for: it has d^2 numbers, and its eigenvalues take d^3 operations."""


class MetricChoice(Part):
    """Whether the metric is that of the mean Hessian; `obstacle` says why it cannot be, where it cannot."""

    def curved(self, obstacle: str | None) -> bool:
        raise NotImplementedError


@part("metric", "best")
@dataclass(frozen=True)
class BestMetric(MetricChoice):
    """The mean Hessian where eta is automatic and users know their Hessians, else the identity."""

    def curved(self, obstacle: str | None) -> bool:
        return obstacle is None


@part("metric", "auto")
@dataclass(frozen=True)
class HessianMetric(MetricChoice):
    """The mean Hessian, found while running with its scale eta; refused where it cannot be had."""

    def curved(self, obstacle: str | None) -> bool:
        if obstacle is not None:
            raise InputError(f'metric is "auto", but {obstacle}; take metric="identity", or leave it out')
        return True


@part("metric", "identity")
@dataclass(frozen=True)
class IdentityMetric(MetricChoice):
    """The identity: the ordinary prox."""

    def curved(self, obstacle: str | None) -> bool:
        return False


def obstacle(scheme: Scheme, facts: Facts, operator: Any) -> str | None:
    """Why the metric of these users' mean Hessian cannot be had; None where it can."""
    if not scheme.exact:
        return f"{scheme.name} solves a problem that depends on the metric, as it does on eta"
    if not scheme.auto:
        return f'eta is {scheme.eta}, and the metric comes with its own scale: it needs eta="auto"'
    if operator.certifies != "p":
        return f"users compute {operator}, which is no exact prox"
    if not facts.convex or not {"grad", "hessian"} <= facts.offers:
        return f"the users' functions ({facts.kind}) have no Hessians, or are not convex"
    if not facts.sends_hessians:
        return "users are not asked for Hessians: set `curvature = true` in the federation's configuration"
    if facts.matrix_free and facts.here < facts.users:
        return "Hessians are known by products only, which ranks do not put together"
    if facts.dim > MAX_HESSIAN_DIM and not facts.matrix_free:
        return f"a Hessian of {facts.dim} x {facts.dim} numbers is more than users are asked for"
    if facts.g is not None and not separable(facts.g):
        return f"the penalty {facts.g} is no sum over coordinates"
    return None


def as_metric(given: MetricChoice | str | None) -> MetricChoice:
    """None: the best that can be had."""
    if given is None:
        return BestMetric()
    if isinstance(given, str):
        given = registry.named("metric", given).make()
    if not isinstance(given, MetricChoice):
        refuse("metric", quoted(given), '"auto" or "identity" is needed')
    return given
