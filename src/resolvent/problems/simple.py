"""Small problems whose every answer is a formula: the paper's examples."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import real, refuse, whole
from resolvent.problems.inputs import FLOAT, as_rows, as_tensor, as_weights, finite, points, refuse_shape
from resolvent.problems.problem import ProblemDefaults, select


class Quadratics(ProblemDefaults):
    """f_i(w) = curvature_i/2 |w - centre_i|^2, curvature (users,) > 0 and centre (users, d), or (users,) if d = 1."""

    curvature: Tensor
    centre: Tensor

    offers = frozenset({"value", "grad", "prox", "hessian"})
    convex = True
    closed_form = True

    def __init__(self, curvature: Any, centre: Any, weights: Any = None, *, penalty: Any = None) -> None:
        self.penalty = penalty
        centre = as_tensor(centre, "centre")
        centre = finite(centre.unsqueeze(1) if centre.ndim == 1 else centre, "centre")
        if centre.ndim != 2:
            refuse_shape("centre", centre, "(users, d) is needed, or (users,) for d = 1")
        self.users, self.dim = centre.shape
        curvature = finite(as_tensor(curvature, "curvature").to(centre), "curvature")
        if curvature.shape != (self.users,):
            needed = f"one number for each of the {self.users} centres is needed"
            refuse_shape("curvature", curvature, needed)
        if bool((curvature <= 0).any()):
            user = int((curvature <= 0).nonzero()[0])
            refuse("curvature", f"{float(curvature[user])} for user {user}", "it must be > 0")
        self.curvature, self.centre = curvature, centre
        self.weights = as_weights(weights, self.users, centre)

    def value(self, W: Tensor) -> Tensor:
        return self.curvature / 2 * (as_rows(W, self) - self.centre).square().sum(1)

    def grad(self, W: Tensor) -> Tensor:
        return self.curvature[:, None] * (as_rows(W, self) - self.centre)

    def hessian(self, W: Tensor) -> Tensor:
        as_rows(W, self)
        return self.curvature[:, None, None] * torch.eye(self.dim).to(self.centre)

    def prox(self, U: Tensor, eta: float) -> Tensor:
        step = eta * self.curvature[:, None]
        return (as_rows(U, self) + step * self.centre) / (1 + step)

    def take(self, who: Tensor) -> Quadratics:
        return Quadratics(self.curvature[who], self.centre[who], select(self.weights, who), penalty=self.penalty)

    @property
    def lipschitz(self) -> Tensor:
        return self.curvature

    @property
    def convexity(self) -> Tensor:
        return self.curvature

    @property
    def minimiser(self) -> Any:
        """None with a penalty."""
        pull = self.weights * self.curvature
        return pull @ self.centre / pull.sum() if self.penalty is None else None

    @property
    def fstar(self) -> Any:
        return None if self.minimiser is None else float(self.weights @ self.value(self.minimiser))

    def gap(self, W: Tensor) -> Any:
        """f(w) - f* = sum_i lambda_i curvature_i / 2 |w - w*|^2: a square, so that nothing cancels near w*."""
        if self.minimiser is None:
            return None
        return self.weights @ self.curvature / 2 * (points(W, self) - self.minimiser).square().sum(1)


def plus_minus(scale: float = 1.0) -> Quadratics:
    """The paper's f_+(w) = (w+1)^2/2 and scale * f_-(w) = scale * (w-1)^2/2; their minimiser is (scale-1)/(scale+1)."""
    scale = real(scale, "scale", lambda x: 0 < x < math.inf, "a finite number > 0 is needed")
    return Quadratics([1.0, scale], [-1.0, 1.0])


class HalfSquares(ProblemDefaults):
    """f_i(w) = |(shift_i - w)_+|^2 / 2, with shift 0 where not given, else (users,) or (users, d).

    Without shift, users are homogeneous and the reflector 2 prox - id is idempotent exactly when eta >= 1, although f_i
    is the indicator of no cone: the example after the proof of Theorem thm:rp, where it is (w)_+ at eta = 1.
    """

    shift: Tensor

    offers = frozenset({"value", "grad", "prox", "hessian"})
    convex = True
    closed_form = True

    def __init__(
        self, users: int, dim: int = 1, shift: Any = None, weights: Any = None, *, penalty: Any = None
    ) -> None:
        self.penalty = penalty
        self.users, self.dim = whole(users, "users"), whole(dim, "dim")
        shift = torch.zeros(users, dim, dtype=FLOAT) if shift is None else finite(as_tensor(shift, "shift"), "shift")
        if shift.shape not in ((users,), (users, dim)):
            refuse_shape("shift", shift, f"({users},) or ({users}, {dim}) is needed")
        self.shift = shift.unsqueeze(1).expand(users, dim) if shift.ndim == 1 else shift
        self.weights = as_weights(weights, users, self.shift)

    def _below(self, W: Tensor) -> Tensor:
        return (self.shift - as_rows(W, self)).clamp(min=0)

    def value(self, W: Tensor) -> Tensor:
        return self._below(W).square().sum(1) / 2

    def grad(self, W: Tensor) -> Tensor:
        return -self._below(W)

    def hessian(self, W: Tensor) -> Tensor:
        """A generalised Hessian: f_i bends once, at shift_i, where the flat side's is taken."""
        return torch.diag_embed((self._below(W) > 0).to(self.shift))

    def prox(self, U: Tensor, eta: float) -> Tensor:
        return as_rows(U, self) + eta / (1 + eta) * self._below(U)

    def take(self, who: Tensor) -> HalfSquares:
        shift = self.shift[who]
        return HalfSquares(len(shift), self.dim, shift, select(self.weights, who), penalty=self.penalty)

    @property
    def lipschitz(self) -> Tensor:
        return torch.ones_like(self.weights)

    @property
    def minimiser(self) -> Any:
        """The smallest point, in every coordinate, that is not below any user's shift; None with a penalty."""
        return self.shift.amax(0) if self.penalty is None else None

    @property
    def fstar(self) -> Any:
        return 0.0 if self.penalty is None else None

    def gap(self, W: Tensor) -> Any:
        """f itself, since f* = 0."""
        if self.penalty is not None:
            return None
        return torch.stack([self.weights @ self.value(w) for w in points(W, self)])
