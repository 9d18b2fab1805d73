"""Small random problems in plain NumPy, all users at once, and the scheme run on them: what limits are judged by.

Nothing here uses the package, but for handing the same data to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]


class Users:
    """m users on R^d with weights lam: `grad(W)` and `prox(U, eta)` of stacked rows."""

    lam: Array
    dim: int
    smooth = True

    def grad(self, W: Array) -> Array:
        raise NotImplementedError

    def prox(self, U: Array, eta: float) -> Array:
        raise NotImplementedError

    def value(self, w: Array) -> float:
        raise NotImplementedError

    def slope(self, w: Array, eta: float) -> tuple[Array, Array]:
        """The gradients at w of the envelopes at eta, or of the f_i for eta = 0: their mean, and all of them."""
        W = np.tile(w, (len(self.lam), 1))
        g = self.grad(W) if eta == 0 else (W - self.prox(W, eta)) / eta
        return self.lam @ g, g


@dataclass
class Squares(Users):
    """|A_i w - b_i|^2 / 2, all users with the same number of rows."""

    A: Array
    b: Array
    lam: Array

    def __post_init__(self) -> None:
        self.dim = self.A.shape[2]
        self.H = np.einsum("ind,ine->ide", self.A, self.A)
        self.h = np.einsum("ind,in->id", self.A, self.b)
        self._inverse: tuple[float, Array] | None = None

    def grad(self, W: Array) -> Array:
        return np.einsum("ide,ie->id", self.H, W) - self.h

    def prox(self, U: Array, eta: float) -> Array:
        if self._inverse is None or self._inverse[0] != eta:
            self._inverse = eta, np.linalg.inv(np.eye(self.dim) + eta * self.H)
        return np.einsum("ide,ie->id", self._inverse[1], U + eta * self.h)

    def value(self, w: Array) -> float:
        return float(self.lam @ ((self.A @ w - self.b) ** 2).sum(1) / 2)


@dataclass
class Logits(Users):
    """sum log(1 + exp(-b a.w)) + reg |w|^2 / 2."""

    A: Array
    b: Array
    reg: float
    lam: Array

    def __post_init__(self) -> None:
        self.dim = self.A.shape[2]
        self._last: Array | None = None

    def grad(self, W: Array) -> Array:
        q = self.b * expit(-self.b * np.einsum("ind,id->in", self.A, W))
        return -np.einsum("ind,in->id", self.A, q) + self.reg * W

    def prox(self, U: Array, eta: float) -> Array:
        """Newton's method; gradient steps where it does not descend."""
        x = U.copy() if self._last is None or self._last.shape != U.shape else self._last.copy()
        for _ in range(200):
            s = x - U + eta * self.grad(x)
            size = np.linalg.norm(s, axis=1)
            if (size <= 1e-13 * (1 + np.linalg.norm(U, axis=1))).all():
                break
            q = expit(np.einsum("ind,id->in", self.A, x))
            H = np.einsum("ind,in,ine->ide", self.A, q * (1 - q), self.A) + self.reg * np.eye(self.dim)
            step = np.linalg.solve(np.eye(self.dim) + eta * H, s[..., None])[..., 0]
            # the gradient of a strongly convex function: halve until its size falls
            length = np.ones(len(x))
            for _ in range(30):
                there = x - length[:, None] * step
                worse = np.linalg.norm(there - U + eta * self.grad(there), axis=1) > size * (1 - 1e-4 * length) + 1e-14
                if not worse.any():
                    break
                length[worse] /= 2
            x = x - length[:, None] * step
        self._last = x
        return x

    def value(self, w: Array) -> float:
        margins = -self.b * (self.A @ w)
        return float(self.lam @ np.logaddexp(0, margins).sum(1) + self.reg / 2 * w @ w)


@dataclass
class Deviations(Users):
    """|a_i.w - b_i|."""

    A: Array
    b: Array
    lam: Array
    smooth = False

    def __post_init__(self) -> None:
        self.dim = self.A.shape[1]

    def prox(self, U: Array, eta: float) -> Array:
        size = (self.A**2).sum(1)
        t = np.clip(((U * self.A).sum(1) - self.b) / size, -eta, eta)
        return U - t[:, None] * self.A

    def value(self, w: Array) -> float:
        return float(self.lam @ np.abs(self.A @ w - self.b))


@dataclass
class Halfspaces(Users):
    """Indicators of a_i.w <= b_i, which have a point in common."""

    A: Array
    b: Array
    lam: Array
    smooth = False

    def __post_init__(self) -> None:
        self.dim = self.A.shape[1]

    def prox(self, U: Array, eta: float) -> Array:
        t = np.maximum((U * self.A).sum(1) - self.b, 0) / (self.A**2).sum(1)
        return U - t[:, None] * self.A

    def value(self, w: Array) -> float:
        return float(self.lam @ np.maximum(self.A @ w - self.b, 0) / np.linalg.norm(self.A, axis=1).max())


# --- local operators -------------------------------------------------------------------------------------------------

Local = Callable[[Array, float], Array]


def steps(users: Users, k: int, momentum: float = 0.0) -> Local:
    """k gradient steps of size eta."""

    def local(U: Array, eta: float) -> Array:
        x, v = U, np.zeros_like(U)
        for _ in range(k):
            v = momentum * v + users.grad(x)
            x = x - eta * v
        return x

    return local


def inexact_prox(users: Users, k: int, lr: float | Array, momentum: float = 0.0) -> Local:
    """k gradient steps on f_i + |x - u|^2 / (2 eta), from u; lr may be a column."""

    def local(U: Array, eta: float) -> Array:
        x, v = U, np.zeros_like(U)
        for _ in range(k):
            v = momentum * v + users.grad(x) + (x - U) / eta
            x = x - lr * v
        return x

    return local


# --- the scheme ------------------------------------------------------------------------------------------------------


@dataclass
class End:
    """Where a run ends: the model, each user's answer, |T u - u| at the end and at first, and how far u is from u_0."""

    model: Array
    personal: Array
    residual: float
    first: float
    travelled: float
    values: list[tuple[float, float]]
    """f of the model and of the average, at the rounds looked at."""

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.personal).all() and np.isfinite(self.residual))


def run(
    users: Users, local: Local, numbers: Any, keeps: bool, u: Array, masks: Any, rounds: int, looks: tuple[int, ...]
) -> End:
    """The scheme with absent users held. `numbers(t)` gives alpha, beta, gamma, eta; `keeps`: a new eta keeps p and g.

    A round moves those present who have answered before, asks all who are present, and meets.
    """
    lam, m = users.lam, len(users.lam)
    begun, u, p, seen = u, u.copy(), u.copy(), np.zeros(m, dtype=bool)
    ahead, before, first = u, np.nan, np.nan
    values: list[tuple[float, float]] = []
    model, total, mass = lam @ u, np.zeros(users.dim), 0.0
    for t in range(rounds):
        alpha, beta, gamma, eta = numbers(t)
        present = masks(t)
        if present.any():
            if keeps and t > 0 and eta != before:
                u = p + eta / before * (u - p)
                u[~seen] = ahead[~seen]
                ahead = _next(lam, seen, u, p, alpha, beta, gamma)[1]
            moved = present & seen
            u = np.where(moved[:, None], ahead, u)
            p = np.where(present[:, None], local(u, eta), p)
            seen, before = seen | present, eta
            model, ahead = _next(lam, seen, u, p, alpha, beta, gamma)
            first = _norm(lam, ahead - u) if np.isnan(first) else first
        total, mass = total + eta * model, mass + eta
        if t + 1 in looks:
            values.append((users.value(model), users.value(total / mass)))
        if not np.isfinite(model).all() or np.abs(model).max() > 1e100:
            break
    return End(model, p, _norm(lam, ahead - u), first, _norm(lam, u - begun), values)


def _norm(lam: Array, step: Array) -> float:
    return float(np.sqrt(lam @ (step**2).sum(1)))


def _next(lam: Array, seen: Any, u: Array, p: Array, alpha: float, beta: float, gamma: float) -> tuple[Array, Array]:
    z = (1 - alpha) * u + alpha * p
    weights = lam * seen
    if not weights.sum() > 0:
        weights = seen.astype(float)
    model = weights @ z / weights.sum()
    return model, (1 - gamma) * u + gamma * ((1 - beta) * z + beta * model)
