"""Splitting in a metric: all of the theory holds with <x, M y> in place of <x, y>, M positive definite.

Users then answer prox_M f_i(u) = argmin_x f_i(x) + |x - u|_M^2 / (2 eta), and g_i = M (u_i - p_i) / eta is the
subgradient at p_i. What is solved does not change. With M the mean Hessian, f is as if perfectly conditioned: only how
much users differ from each other still costs rounds.

In coordinates y, x = C y with C^T M C = I, the prox is an ordinary one, of f_i(C y). The largest eigenvalue of a metric
is 1, and eta its scale: M / eta is about the Hessian.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from resolvent.iteration.packing import remembered

LEAST = {torch.float64: 1e-8, torch.float32: 1e-4}
"""The least eigenvalue of a metric whose largest is 1: gradients' rounding errors grow by the root of its inverse."""
CONVERGED = 0.1
"""The relative error up to which an eigenvalue seen through few products is one."""


class Metric:
    """M, by what is done with rows (..., d) of points x, of coordinates y and of gradients g."""

    V: Tensor
    """Some of its eigenvectors, as columns."""
    rest: float = 1.0
    """The eigenvalue of all others, where there are any."""
    since: int
    """The round before which it was chosen."""

    @property
    def least(self) -> float:
        """The least eigenvalue: no vector is lengthened by C by more than the root of its inverse."""
        raise NotImplementedError

    @property
    def numbers(self) -> int:
        """That must be sent to a user for it to know this metric."""
        raise NotImplementedError

    def coordinates(self, x: Tensor) -> Tensor:
        """y with x = C y."""
        raise NotImplementedError

    def back(self, y: Tensor) -> Tensor:
        """C y."""
        raise NotImplementedError

    def pull(self, g: Tensor) -> Tensor:
        """C^T g, the gradient with respect to y."""
        raise NotImplementedError

    def push(self, g: Tensor) -> Tensor:
        """The inverse of `pull`."""
        raise NotImplementedError

    def times(self, x: Tensor) -> Tensor:
        """M x."""
        return self.push(self.coordinates(x))

    def solve(self, g: Tensor) -> Tensor:
        """M^-1 g."""
        return self.back(self.pull(g))

    def beside(self, diagonal: Tensor) -> Callable[[Tensor], Tensor]:
        """A map of rows g (users, d) that is about (M + eta H)^-1, where only the diagonals (users, d) of eta H are
        known, and that eta H is about M."""
        return self.solve

    def curvature(self, H: Tensor) -> Tensor:
        """C^T H C of symmetric matrices (..., d, d)."""
        return self.pull(self.pull(H).mT)


@remembered
@dataclass(frozen=True, eq=False)
class FullMetric(Metric):
    """M = V diag(s) V^T, eigenvectors as columns."""

    V: Tensor
    s: Tensor
    since: int = 0

    @cached_property
    def _into(self) -> Tensor:
        return self.V * self.s.sqrt()  # a tensor of its own: how kernels round depends on where a matrix lies

    @cached_property
    def _out(self) -> Tensor:
        return self.V / self.s.sqrt()

    @property
    def least(self) -> float:
        return float(self.s.min())

    @property
    def numbers(self) -> int:
        return len(self.s) * (len(self.s) + 1)

    def equals(self, other: Metric) -> bool:
        """Whether it is the same matrix, decomposed alike."""
        if not isinstance(other, FullMetric) or self.V.shape != other.V.shape:
            return False
        return self.V is other.V or (
            torch.equal(self.V, other.V.to(self.V)) and torch.equal(self.s, other.s.to(self.s))
        )

    def coordinates(self, x: Tensor) -> Tensor:
        return x @ self._into.to(x)

    def back(self, y: Tensor) -> Tensor:
        return y @ self._out.to(y).T

    def pull(self, g: Tensor) -> Tensor:
        return g @ self._out.to(g)

    def push(self, g: Tensor) -> Tensor:
        return g @ self._into.to(g).T


@remembered
@dataclass(frozen=True, eq=False)
class LowRankMetric(Metric):
    """M = V diag(s) V^T + rest (I - V V^T), with few columns in V: for models too long for a matrix."""

    V: Tensor
    s: Tensor
    rest: float = 1.0
    since: int = 0
    products: int = 0
    """Vectors that users were asked about for it, and so know: the columns of V are combinations of them."""

    @cached_property
    def _vectors(self) -> Tensor:
        return self.V.clone()  # as above

    @property
    def least(self) -> float:
        return min(float(self.s.min()), self.rest)

    @property
    def numbers(self) -> int:
        return (self.products + 1) * len(self.s) + 1

    def _function(self, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """f(M) x."""
        V, rest = self._vectors.to(x), float(f(torch.tensor(self.rest, dtype=torch.float64)))
        return torch.add(((x @ V) * (f(self.s) - rest).to(x)) @ V.T, x, alpha=rest)

    def beside(self, diagonal: Tensor) -> Callable[[Tensor], Tensor]:
        """M + eta H is about 2 V diag(s) V^T, and on the rest a diagonal: what V leaves of that of eta H, plus `rest`.

        The inverse of such a sum is that of the diagonal, corrected along V (Woodbury's identity).
        """
        V, s = self._vectors.to(diagonal), self.s.to(diagonal)
        D = self.rest + (diagonal - V.square() @ s).clamp_min(0)
        inside = torch.diag(1 / (2 * s - self.rest)) + torch.einsum("dk,ud,dl->ukl", V, 1 / D, V)
        root = torch.linalg.cholesky(inside)

        def inverse(g: Tensor) -> Tensor:
            x = g / D
            return x - torch.cholesky_solve((x @ V).unsqueeze(2), root).squeeze(2) @ V.T / D

        return inverse

    def coordinates(self, x: Tensor) -> Tensor:
        return self._function(torch.sqrt, x)

    def back(self, y: Tensor) -> Tensor:
        return self._function(torch.rsqrt, y)

    def pull(self, g: Tensor) -> Tensor:
        return self._function(torch.rsqrt, g)

    def push(self, g: Tensor) -> Tensor:
        return self._function(torch.sqrt, g)


Chosen = tuple[Metric, float]
"""A metric and eta, its scale."""


def of_hessian(hessian: Tensor, dtype: torch.dtype, since: int = 0, penalised: bool = False) -> Chosen | None:
    """The metric of a Hessian (d, d), and its scale. None where the Hessian is zero or not finite.

    A direction in which f is flat is as stiff as the steepest, so that rounding errors move nothing along it. With a
    penalty it is as soft as the softest in which f is not: where f is flat the penalty decides, and has far to go.
    """
    if not bool(torch.isfinite(hessian).all()):
        return None
    H = hessian.double()
    s, V = torch.linalg.eigh((H + H.T) / 2)
    largest = float(s[-1])
    if not largest > 0:
        return None
    s = s / largest
    flat = s <= len(s) * torch.finfo(dtype).eps
    s = s.clamp_min(LEAST[dtype])
    instead = float(s[~flat].min()) if penalised else 1.0
    V = V.contiguous()  # as a file holds it: kernels round according to how a matrix lies
    return FullMetric(V, torch.where(flat, instead, s), since), 1 / largest


def of_products(hessian: Tensor, basis: Tensor, beyond: float, relevant: float, since: int = 0) -> Chosen | None:
    """The metric of a Hessian seen as (k, k) in an orthonormal basis (k, d) of a Krylov space, and its scale.

    beyond: how far the last product led out of that space; relevant: the least curvature along which f still falls.
    Eigenvectors that the space has found become directions of the metric. For the others it is a multiple of the
    identity, balanced between the largest curvature among them and the least that is relevant, as automatic eta is.
    """
    if not bool(torch.isfinite(hessian).all() and torch.isfinite(basis).all()):
        return None
    s, S = torch.linalg.eigh(hessian.double())
    largest, converged = float(s[-1]), beyond * S[-1].abs() <= CONVERGED * s
    if not (largest > 0 and relevant > 0 and bool(converged[-1])):
        return None
    others = s[~converged]
    rest = (relevant * float(others[-1] if len(others) else s[0])) ** 0.5
    kept = converged & (s >= rest)
    V = (basis.double().T @ S[:, kept]).contiguous()
    return LowRankMetric(V, s[kept] / largest, rest / largest, since, len(basis)), 1 / largest


def change(old: Metric, eta: float, new: Metric, new_eta: float) -> float:
    """The largest factor by which new / new_eta and old / eta differ along any direction."""
    Q = new.V if new.V.shape[0] == new.V.shape[1] else torch.linalg.qr(torch.cat([old.V, new.V], 1)).Q
    inside = [Q.T @ metric.times(Q.T).T for metric in (old, new)]
    root = torch.linalg.cholesky(inside[0])
    whitened = torch.linalg.solve_triangular(root, inside[1], upper=False)
    s = torch.linalg.eigvalsh(torch.linalg.solve_triangular(root, whitened.T, upper=False)).tolist()
    ratios = (s[0], s[-1]) if Q.shape[0] == Q.shape[1] else (s[0], s[-1], new.rest / old.rest)
    factors = [x * eta / new_eta for x in ratios]
    return max(*factors, *(1 / x for x in factors if x > 0)) if min(factors) > 0 else math.inf


Step = tuple[float, Metric | None]
"""eta and the metric; None: the identity."""


def subgradients(u: Tensor, p: Tensor, step: Step) -> Tensor:
    """g = M (u - p) / eta, of rows."""
    eta, metric = step
    return (u - p if metric is None else metric.times(u - p)) / eta


def moved(u: Tensor, p: Tensor, old: Step, new: Step) -> Tensor:
    """The point of which p is the prox at a new step, as it is of u at the old one: g stays."""
    eta, metric = new
    if metric is old[1]:
        return torch.lerp(p, u, eta / old[0])
    g = subgradients(u, p, old)
    return torch.add(p, g if metric is None else metric.solve(g), alpha=eta)
