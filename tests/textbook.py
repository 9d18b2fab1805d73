"""The algorithms as the paper prints them: plain NumPy, a loop over users, everything computed anew in every round.

Nothing here knows the package under test. A user is an object with `value`, `grad` and `prox`; an algorithm is a
generator that yields, round after round, the model mean(z) and the rows u of all users: those that the round leaves,
or, where a docstring says so, those at which users were asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]
Rounds = Iterator[tuple[Array, Array]]
Local = Callable[["User", Array, float], Array]
"""What a user makes of its u at a step size."""
Number = float | Callable[[int], float]


# --- users -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Squares:
    """f(w) = |A w - b|^2 / 2."""

    A: Array
    b: Array

    def value(self, w: Array) -> float:
        return float(np.sum((self.A @ w - self.b) ** 2) / 2)

    def grad(self, w: Array) -> Array:
        return self.A.T @ (self.A @ w - self.b)

    def prox(self, u: Array, eta: float) -> Array:
        return np.linalg.solve(np.eye(len(u)) + eta * self.A.T @ self.A, u + eta * self.A.T @ self.b)  # type: ignore[return-value]

    def envelope_grad(self, w: Array, eta: float) -> Array:
        """Of the Moreau envelope (A w - b)^T (I + eta A A^T)^-1 (A w - b) / 2, without a prox."""
        n = len(self.b)
        return self.A.T @ np.linalg.solve(np.eye(n) + eta * self.A @ self.A.T, self.A @ w - self.b)


@dataclass(frozen=True)
class Logit:
    """f(w) = sum_j log(1 + exp(-b_j a_j . w)) + reg |w|^2 / 2."""

    A: Array
    b: Array
    reg: float

    def value(self, w: Array) -> float:
        return float(np.logaddexp(0, -self.b * (self.A @ w)).sum() + self.reg / 2 * w @ w)

    def grad(self, w: Array) -> Array:
        return -self.A.T @ (self.b * expit(-self.b * (self.A @ w))) + self.reg * w

    def hessian(self, w: Array) -> Array:
        q = expit(self.A @ w)
        return (self.A.T * (q * (1 - q))) @ self.A + self.reg * np.eye(len(w))

    def prox(self, u: Array, eta: float) -> Array:
        """Newton's method with halved steps, to round-off."""

        def height(x: Array) -> float:
            return eta * self.value(x) + float((x - u) @ (x - u)) / 2

        x = u
        for _ in range(100):
            slope = x - u + eta * self.grad(x)
            if np.linalg.norm(slope) <= 1e-14 * (1 + np.linalg.norm(u)):
                break
            step = np.linalg.solve(np.eye(len(u)) + eta * self.hessian(x), slope)
            length = 1.0
            while length > 1e-4 and height(x - length * step) > height(x) * (1 + 1e-12):
                length /= 2
            x = x - length * step
        return x


User = Squares | Logit


def envelope(f: User, w: Array, eta: float) -> float:
    """min_x f(x) + |x - w|^2 / (2 eta) (eq:prox)."""
    x = f.prox(w, eta)
    return f.value(x) + float((x - w) @ (x - w)) / (2 * eta)


# --- problems: unequal sizes, skewed weights, a user with fewer rows than columns ------------------------------------

SIZES = (3, 9, 10, 11, 30)
WEIGHTS = np.array([0.5, 0.3, 0.15, 0.04, 0.01])
DIM = 4


def squares(seed: int, sizes: Sequence[int] = SIZES, dim: int = DIM, shift: float = 1.0) -> list[Squares]:
    """Users whose data come from models `shift` apart."""
    rng = np.random.default_rng(seed)
    users = []
    for n in sizes:
        A, w = rng.standard_normal((n, dim)), 1 + shift * rng.standard_normal(dim)
        users.append(Squares(A, A @ w + 0.1 * rng.standard_normal(n)))
    return users


def logits(seed: int, sizes: Sequence[int] = SIZES, dim: int = DIM) -> list[Logit]:
    """Users with random labels, and the paper's regulariser 1 / (m n_i)."""
    rng = np.random.default_rng(seed)
    signs = np.array([-1.0, 1.0])
    return [Logit(rng.standard_normal((n, dim)), rng.choice(signs, n), 1 / (len(sizes) * n)) for n in sizes]


def data(users: Sequence[User]) -> tuple[list[Array], list[Array]]:
    """A and b of all users, as lists."""
    return [f.A for f in users], [f.b for f in users]


# --- operators -------------------------------------------------------------------------------------------------------


def prox(f: User, u: Array, eta: float) -> Array:
    return f.prox(u, eta)


def descend(steps: int) -> Local:
    """G^k: k gradient steps."""

    def local(f: User, u: Array, eta: float) -> Array:
        for _ in range(steps):
            u = u - eta * f.grad(u)
        return u

    return local


def each(local: Local, users: Sequence[User], u: Array, eta: float) -> Array:
    return np.stack([local(f, x, eta) for f, x in zip(users, u, strict=True)])


def project(lam: Array, z: Array) -> Array:
    """P_H: everybody gets the weighted mean."""
    return np.tile(sum(weight * row for weight, row in zip(lam, z, strict=True)), (len(z), 1))


def at(number: Number, t: int) -> float:
    return number(t) if callable(number) else number


# --- the named algorithms, each from its own equation ----------------------------------------------------------------


def fedavg(users: Sequence[User], lam: Array, u: Array, eta: Number, steps: int = 1) -> Rounds:
    """(eq:FB)  w <- P_H G^k w"""
    t = 0
    while True:
        u = project(lam, each(descend(steps), users, u, at(eta, t)))
        t += 1
        yield u[0], u


def fedprox(users: Sequence[User], lam: Array, u: Array, eta: Number) -> Rounds:
    """(eq:BB)  w <- P_H P w"""
    t = 0
    while True:
        u = project(lam, each(prox, users, u, at(eta, t)))
        t += 1
        yield u[0], u


def fedsplit(users: Sequence[User], lam: Array, u: Array, eta: float) -> Rounds:
    """(eq:PR)  w <- R_H R w"""
    while True:
        z = 2 * each(prox, users, u, eta) - u
        u = 2 * project(lam, z) - z
        yield lam @ z, u


def fedpi(users: Sequence[User], lam: Array, u: Array, eta: float) -> Rounds:
    """(eq:DR)  w <- (w + R_H R w) / 2"""
    while True:
        z = 2 * each(prox, users, u, eta) - u
        u = (u + 2 * project(lam, z) - z) / 2
        yield lam @ z, u


def fedrp(users: Sequence[User], lam: Array, u: Array, eta: Number) -> Rounds:
    """(eq:rp)  w <- P_H R w"""
    t = 0
    while True:
        u = project(lam, 2 * each(prox, users, u, at(eta, t)) - u)
        t += 1
        yield u[0], u


def reflect_gradient(users: Sequence[User], lam: Array, u: Array, eta: float) -> Rounds:
    """(eq:rg)  w <- R_H G w"""
    while True:
        z = each(descend(1), users, u, eta)
        u = 2 * project(lam, z) - z
        yield lam @ z, u


def reflect_prox(users: Sequence[User], lam: Array, u: Array, eta: float) -> Rounds:
    """(eq:rpp)  w <- R_H P w"""
    while True:
        z = each(prox, users, u, eta)
        u = 2 * project(lam, z) - z
        yield lam @ z, u


def admm(users: Sequence[User], lam: Array, u: Array, eta: float) -> Iterator[tuple[Array, Array]]:
    """(eq:pi-1..3), from w = u and a dual of zero; yields w and the dual."""
    w, dual = project(lam, u), u - project(lam, u)
    while True:
        z = each(prox, users, w + dual, eta)
        w = project(lam, z - dual)
        dual = dual + w - z
        yield w, dual


# --- the grand scheme ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grand:
    """alpha, beta, gamma, eta as functions of the round, and what users compute."""

    alpha: Number
    beta: Number
    gamma: Number
    eta: Number
    local: Local = prox

    def mixing(self, t: int) -> tuple[float, float, float]:
        return at(self.alpha, t), at(self.beta, t), at(self.gamma, t)

    def step(self, users: Sequence[User], lam: Array, u: Array, t: int) -> tuple[Array, Array]:
        """(eq:gFL-1..3)"""
        alpha, beta, gamma = self.mixing(t)
        z = (1 - alpha) * u + alpha * each(self.local, users, u, at(self.eta, t))
        w = (1 - beta) * z + beta * project(lam, z)
        return lam @ z, (1 - gamma) * u + gamma * w


def grand(users: Sequence[User], lam: Array, u: Array, scheme: Grand) -> Rounds:
    t = 0
    while True:
        model, u = scheme.step(users, lam, u, t)
        t += 1
        yield model, u


def rescaled(users: Sequence[User], lam: Array, u: Array, eta: Callable[[int], float], gamma: float) -> Rounds:
    """alpha = beta = 2 with a step size that changes: each p and each g = (u - p) / eta outlive the change.

    Yields the u at which users were asked.
    """
    t = 0
    while True:
        p = each(prox, users, u, eta(t))
        g = (u - p) / eta(t)
        yield lam @ (2 * p - u), u
        t += 1
        u = p + eta(t) * g
        z = 2 * p - u
        u = (1 - gamma) * u + gamma * (2 * project(lam, z) - z)


# --- who takes part --------------------------------------------------------------------------------------------------


def among(lam: Array, those: NDArray[np.bool_]) -> Array:
    """The weights of some users, made to sum to one; equal where all of theirs are zero."""
    total = lam[those].sum()
    return lam[those] / total if total > 0 else np.full(those.sum(), 1 / those.sum())


def algorithm_1(users: Sequence[User], lam: Array, u: Array, scheme: Grand, masks: Any) -> Rounds:
    """Algorithm 1 as printed, with z_0 = u_0 and a mean over those present; an empty round changes nothing."""
    z, u, model = u.copy(), u.copy(), lam @ u
    for t, present in enumerate(np.asarray(masks, dtype=bool)):
        if present.any():
            alpha, beta, gamma = scheme.mixing(t)
            for i in np.flatnonzero(present):
                z[i] = (1 - alpha) * u[i] + alpha * scheme.local(users[i], u[i], at(scheme.eta, t))  # type: ignore[call-overload]
            model = among(lam, present) @ z[present]
            w = (1 - beta) * z + beta * model
            u = (1 - gamma) * u + gamma * w
        yield model, u.copy()


def held(users: Sequence[User], lam: Array, u: Array, scheme: Grand, masks: Any) -> Rounds:
    """Random blocks: those present who have answered before move by the last meeting point, then all present answer.

    The meeting point is the mean over the latest z of everybody seen. Yields it and the u at which users were asked.
    """
    u, p, model = u.copy(), np.full_like(u, np.nan), lam @ u
    seen = np.zeros(len(users), dtype=bool)
    alpha, beta, gamma = scheme.mixing(0)
    for t, present in enumerate(np.asarray(masks, dtype=bool)):
        for i in np.flatnonzero(present & seen):
            z = (1 - alpha) * u[i] + alpha * p[i]
            u[i] = (1 - gamma) * u[i] + gamma * ((1 - beta) * z + beta * model)
        for i in np.flatnonzero(present):
            p[i] = scheme.local(users[i], u[i], at(scheme.eta, t))  # type: ignore[call-overload]
        seen |= present
        if present.any():
            z = (1 - alpha) * u[seen] + alpha * p[seen]
            model = among(lam, seen) @ z
        yield model, u.copy()


def held_fedpi(users: Sequence[User], lam: Array, u: Array, eta: float, masks: Any) -> Rounds:
    """FedPi where the server keeps one vector, rbar, and users send how their reflection changed.

    Everybody answers in the first round, whatever the first mask says. Yields the u at which users were asked.
    """
    u = u.copy()
    p = each(prox, users, u, eta)
    r = 2 * p - u
    rbar = lam @ r
    yield rbar, u.copy()
    for present in np.asarray(masks, dtype=bool)[1:]:
        change = np.zeros_like(rbar)
        for i in np.flatnonzero(present):
            u[i] += rbar - p[i]
            p[i] = users[i].prox(u[i], eta)  # type: ignore[call-overload]
            change += lam[i] * (2 * p[i] - u[i] - r[i])
            r[i] = 2 * p[i] - u[i]
        rbar = rbar + change
        yield rbar, u.copy()


# --- Anderson acceleration -------------------------------------------------------------------------------------------


def anderson_weights(residuals: Array, lam: Array) -> Array:
    """pi = G^+ 1 / (1^T G^+ 1) with G the Gram matrix of residuals (k, users, d) in the lambda inner product."""
    G = np.einsum("i,sid,tid->st", lam, residuals, residuals)
    pi = np.linalg.pinv(G, rcond=1e-14) @ np.ones(len(G))
    return pi / pi.sum()


def anderson(
    users: Sequence[User], lam: Array, u: Array, scheme: Grand, memory: int, seen: list[Array] | None = None
) -> Rounds:
    """u <- T pi with the last memory + 1 columns. Yields the u at which users were asked.

    `seen` takes what the weights of every round are found from: residuals (k, users, d), times the roots of lambda.
    """
    U: list[Array] = []
    T: list[Array] = []
    t = 0
    while True:
        model, Tu = scheme.step(users, lam, u, t)
        yield model, u
        t += 1
        U, T = [*U, u][-memory - 1 :], [*T, Tu][-memory - 1 :]
        residuals = np.stack(U) - np.stack(T)
        pi = anderson_weights(residuals, lam)
        if seen is not None:
            seen.append(residuals * np.sqrt(lam)[:, None])
        u = np.einsum("s,sid->id", pi, np.stack(T))


def anderson_on_mean(
    users: Sequence[User], lam: Array, u: Array, scheme: Grand, memory: int, seen: list[Array] | None = None
) -> Rounds:
    """The meeting point mean(z) is extrapolated, w and u formed from it. Yields the u at which users were asked.

    `seen` takes the residuals (k, 1, d) of every round.
    """
    came: list[Array] = []
    left: list[Array] = []
    met, t = lam @ u, 0
    while True:
        alpha, beta, gamma = scheme.mixing(t)
        z = (1 - alpha) * u + alpha * each(scheme.local, users, u, at(scheme.eta, t))
        model = lam @ z
        yield model, u
        t += 1
        came, left = [*came, met][-memory - 1 :], [*left, model][-memory - 1 :]
        residuals = (np.stack(came) - np.stack(left))[:, None]
        pi = anderson_weights(residuals, np.ones(1))
        if seen is not None:
            seen.append(residuals)
        met = pi @ np.stack(left)
        w = (1 - beta) * z + beta * met
        u = (1 - gamma) * u + gamma * w
