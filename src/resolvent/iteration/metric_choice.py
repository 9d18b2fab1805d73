"""In which metric users' proxes are taken: a part that is chosen before a run, by name or as a matrix."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError, bounded, quoted, refuse
from resolvent.iteration import registry
from resolvent.iteration.facts import Facts
from resolvent.iteration.metric import LEAST, FullMetric
from resolvent.iteration.part import Part
from resolvent.iteration.penalties import separable
from resolvent.iteration.registry import part
from resolvent.iteration.scheme import Scheme

MAX_HESSIAN_DIM = 1000
"""The longest model whose mean Hessian is asked for: it has d^2 numbers, and its eigenvalues take d^3 operations."""


class MetricChoice(Part):
    """Whether the metric is that of the mean Hessian; `obstacle` says why it cannot be, where it cannot."""

    matrix: FullMetric | None = None
    """The metric that was given, as a matrix."""

    def check(self, scheme: Scheme, facts: Facts, operator: Any) -> None:
        """Refuse what cannot be had where it is demanded."""
        self.curved(obstacle(scheme, facts, operator))

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


@dataclass(frozen=True, eq=False)
class GivenMetric(MetricChoice):
    """A matrix of one's own, up to a factor: its largest eigenvalue becomes 1, so that eta is its scale."""

    matrix: FullMetric

    def __str__(self) -> str:
        return "a matrix of {0} x {0} numbers".format(len(self.matrix.s))

    def __repr__(self) -> str:
        """With a checksum of all numbers, by which ranks see that they have the same."""
        numbers = torch.cat([self.matrix.V, self.matrix.s[None]]).numpy()
        return f"GivenMetric({hashlib.sha256(numbers.tobytes()).hexdigest()})"

    def curved(self, obstacle: str | None) -> bool:
        return False

    def check(self, scheme: Scheme, facts: Facts, operator: Any) -> None:
        why = no_metric(scheme, facts, operator)
        if why is None and scheme.auto and facts.matrix_free:
            why = 'Hessians are known by products only, and eta is "auto": give eta a number'
        if why is not None:
            raise InputError(f"metric is {self}, but {why}")
        if facts.dim != len(self.matrix.s):
            refuse("metric", str(self), f"{facts.dim} x {facts.dim} are needed, one row per parameter of the model")
        if self.matrix.least < LEAST[facts.dtype]:
            refuse("metric", str(self), f"its least eigenvalue is {self.matrix.least:.1g} of its largest; at least "
                   f"{LEAST[facts.dtype]:g} of it is needed")  # fmt: skip


def as_matrix(given: Any) -> GivenMetric:
    """A symmetric positive definite matrix, or a sentence."""
    needed = "a symmetric positive definite matrix (d, d) is needed"
    bounded(given, "metric")
    try:
        M = torch.as_tensor(given).detach().cpu()
        dense = M.layout is torch.strided
    except (TypeError, ValueError, RuntimeError):
        dense = False
    if not dense:
        refuse("metric", quoted(given), needed)
    if M.is_complex():
        refuse("metric", f"of {M.dtype}", "real numbers are needed")
    M = M.double()
    if M.ndim != 2 or M.shape[0] != M.shape[1] or not M.numel():
        refuse("metric", f"of shape {tuple(M.shape)}", needed)
    if not bool(torch.isfinite(M).all()):
        refuse("metric", "partly NaN or infinite", needed)
    if float((M - M.T).abs().max()) > 1e-6 * float(M.abs().max()):
        refuse("metric", "a matrix that is not symmetric", needed)
    s, V = torch.linalg.eigh(M / 2 + M.T / 2)  # in this order nothing overflows
    if not float(s[0]) > 0:
        refuse("metric", "a matrix that is not positive definite", needed)
    return GivenMetric(FullMetric(V.contiguous(), s / s[-1]))


def no_metric(scheme: Scheme, facts: Facts, operator: Any) -> str | None:
    """Why these users' proxes can be taken in no metric but the identity; None where they can."""
    if not scheme.exact:
        return f"{scheme.name} solves a problem that depends on the metric, as it does on eta"
    if operator.certifies != "p":
        return f"users compute {operator}, which is no exact prox"
    if not facts.convex or not {"grad", "hessian"} <= facts.offers:
        return f"the users' functions ({facts.kind}) have no Hessians, or are not convex"
    if facts.g is not None and not separable(facts.g):
        return f"the penalty {facts.g} is no sum over coordinates"
    return None


def obstacle(scheme: Scheme, facts: Facts, operator: Any) -> str | None:
    """Why the metric of these users' mean Hessian cannot be had; None where it can."""
    if scheme.exact and not scheme.auto:
        return f'eta is {scheme.eta}, and the metric comes with its own scale: it needs eta="auto"'
    why = no_metric(scheme, facts, operator)
    if why is not None:
        return why
    if not facts.sends_hessians:
        return "users are not asked for Hessians: set `curvature = true` in the federation's configuration"
    if facts.matrix_free and facts.here < facts.users:
        return "Hessians are known by products only, which ranks do not put together"
    if facts.dim > MAX_HESSIAN_DIM and not facts.matrix_free:
        return f"a Hessian of {facts.dim} x {facts.dim} numbers is more than users are asked for"
    return None


def as_metric(given: MetricChoice | str | Any | None) -> MetricChoice:
    """None: the best that can be had."""
    if given is None:
        return BestMetric()
    if isinstance(given, str):
        given = registry.named("metric", given).make()
    if isinstance(given, Tensor | np.ndarray):
        given = as_matrix(given)
    if not isinstance(given, MetricChoice):
        refuse("metric", quoted(given), '"auto", "identity" or a matrix (a NumPy array or a torch tensor) is needed')
    return given
