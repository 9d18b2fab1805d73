"""The obvious alternative: plain NumPy loops over users, factorising in every round."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def prox_from_data(A: Array, b: Array, u: Array, eta: float) -> Array:
    """Normal equations formed and factorised anew for each user."""
    eye = np.eye(A.shape[2])
    return np.stack([np.linalg.solve(eye + eta * a.T @ a, x + eta * a.T @ y) for a, y, x in zip(A, b, u, strict=True)])


def prox_from_gram(G: Array, c: Array, u: Array, eta: float) -> Array:
    """Normal equations kept, factorised anew for each user."""
    eye = np.eye(G.shape[1])
    return np.stack([np.linalg.solve(eye + eta * g, x + eta * y) for g, y, x in zip(G, c, u, strict=True)])


def steps_from_data(A: Array, b: Array, u: Array, eta: float, steps: int) -> Array:
    """Gradient steps, two passes over the data each."""
    out = []
    for a, y, x in zip(A, b, u, strict=True):
        for _ in range(steps):
            x = x - eta * a.T @ (a @ x - y)
        out.append(x)
    return np.stack(out)


def meet(u: Array, p: Array, alpha: float, beta: float, gamma: float) -> Array:
    """(gFL-1..3) with equal weights."""
    z = (1 - alpha) * u + alpha * p
    w = (1 - beta) * z + beta * z.mean(0)
    after: Array = (1 - gamma) * u + gamma * w
    return after


def logistic_prox(A: Array, b: Array, reg: float, u: Array, eta: float, lr: float, steps: int = 100) -> Array:
    """`steps` gradient steps on f_i + |x - u|^2 / (2 eta) for each user."""
    out = []
    for a, y, start in zip(A, b, u, strict=True):
        x = start
        for _ in range(steps):
            pull = y / (1 + np.exp(y * (a @ x)))
            x = x - lr * (reg * x - a.T @ pull + (x - start) / eta)
        out.append(x)
    return np.stack(out)
