"""Penalties at the meeting point: certified minima against a plain accelerated method, and rounds against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import resolvent as rs
from hunt.family import Family
from resolvent.iteration.penalties import penalty_of

Array = Any


def drawn_penalty(rng: np.random.Generator, d: int) -> Any:
    """Any kind, of any strength."""
    t = 10 ** rng.uniform(-2, 0.5)
    kinds: list[Callable[[], Any]] = [
        lambda: rs.L1(t),
        lambda: rs.L1(t * rng.uniform(0, 1, d) * (rng.random(d) < 0.7)),
        lambda: rs.ElasticNet(t, 0.3 * t),
        lambda: rs.L2(t),
        lambda: rs.Box(-t, 2 * t),
        lambda: rs.Box(-rng.uniform(0, 1, d), np.where(rng.random(d) < 0.3, np.inf, rng.uniform(0, 1, d))),
        rs.Orthant,
        lambda: rs.Simplex(t),
        lambda: rs.Ball(0.0, t),
        lambda: rs.Ball(rng.standard_normal(d), t),
    ]
    return kinds[int(rng.integers(len(kinds)))]()


def drawn_problem(rng: np.random.Generator) -> tuple[Any, Callable[[Any], float]]:
    """Least squares or logistic regression: dense, ill-scaled, with equal columns, or with few rows. And f from these
    rows alone, one sum after the other."""
    users, d, logistic = int(rng.integers(1, 5)), int(rng.integers(1, 12)), bool(rng.random() < 0.5)
    columns = np.geomspace(1, 10 ** rng.uniform(0, 2), d) if rng.random() < 0.3 else np.ones(d)
    w, alike, A, b = rng.standard_normal(d) * (rng.random(d) < 0.5) / columns, bool(rng.random() < 0.3), [], []
    for _ in range(users):
        X = rng.standard_normal((int(rng.integers(1, 25)), d)) * columns
        if alike and d > 2:
            X[:, 1] = X[:, 0]
        y = X @ w + 0.5 * rng.standard_normal(len(X))
        A.append(X)
        b.append(np.where(y > 0, 1.0, -1.0) if logistic else y)
    more = {"weights": rng.uniform(0.1, 1, users), "penalty": drawn_penalty(rng, d)}
    more |= {"intercept": bool(rng.random() < 0.3)}
    problem: Any = (
        rs.Logistic(A, b, reg=rng.choice(np.array([0.0, 0.01, None])), **more)
        if logistic
        else rs.LeastSquares(A, b, **more)
    )
    ridge = problem.reg.numpy() if logistic else np.zeros(users)

    def f(w: Any) -> float:
        coefficients, intercept = w.numpy()[:d], float(w[d:].sum())
        total = 0.0
        for X, y, weight, kappa in zip(A, b, problem.weights.tolist(), ridge, strict=True):
            t = X @ coefficients + intercept
            losses = np.logaddexp(0, -y * t) if logistic else 0.5 * (t - y) ** 2
            total += weight * (math.fsum(losses) + 0.5 * kappa * coefficients @ coefficients)
        return float(total)

    return problem, f


def minima(seed: int) -> str:
    """Nobody finds a lower point than a certified minimum, and gaps are differences of values."""
    rng = np.random.default_rng(seed)
    problem, f = drawn_problem(rng)
    star, g = problem.minimiser, penalty_of(problem)
    assert g is not None
    if star is None:
        assert problem.fstar is None
        assert problem.without_minimum
        assert problem.gap(problem.weights.new_zeros(1, problem.dim)) is None
        return "unknown"

    def F(w: Any) -> float:
        return f(w) + float(g.value(w))

    assert np.isclose(F(star), problem.fstar, rtol=1e-12, atol=1e-13), f"{F(star)} is not f* = {problem.fstar}"
    slope, size = problem.weights @ problem.grad(star[None]), float(problem.weights @ problem.lipschitz)
    # what rounding of the minimiser does to the slope, and of the slope itself
    assert float(g.distance(star, -slope)[()]) <= 1e-7 * (1 + float(slope.norm()) + size * float(star.norm()))
    w = y = g.prox(star + 0.1 * torch.from_numpy(rng.standard_normal(problem.dim)), 1.0)
    for k in range(600):
        new = g.prox(y - problem.weights @ problem.grad(y[None]) / size, 1 / size)
        onward = float((y - new) @ (new - w)) <= 0
        y, w = new + (k % 60) / (k % 60 + 3) * (new - w) * onward, new
        if k % 100 == 99:
            gap = float(problem.gap(w[None])[0])
            assert gap >= -1e-14 * (1 + abs(problem.fstar)), f"a gap of {gap}"
            assert abs(gap - (F(w) - problem.fstar)) <= 1e-11 * (1 + abs(problem.fstar)), (
                f"{gap}, not {F(w) - problem.fstar}"
            )
    return "right"


def plain_prox(penalty: Any, w: Array, s: float) -> Array:
    """By hand, for the penalties that a line of NumPy can do."""
    if isinstance(penalty, rs.Box):
        return np.clip(w, penalty.low.numpy(), penalty.high.numpy())
    l1, l2 = penalty.l1.numpy(), penalty.l2.numpy()
    return np.sign(w) * np.maximum(np.abs(w) - s * l1, 0) / (1 + s * l2)


def rounds(seed: int) -> str:
    """Rounds of a random scheme with a penalty, against the three equations in NumPy."""
    rng = np.random.default_rng(seed)
    m, d, forward = int(rng.integers(1, 4)), int(rng.integers(1, 5)), bool(rng.random() < 0.4)
    curvature, centre, lam = 10 ** rng.uniform(-1, 1, m), rng.standard_normal((m, d)), rng.uniform(0.1, 1, m)
    lam /= lam.sum()
    penalty = drawn_penalty(rng, d)
    if not isinstance(penalty, (rs.Box, rs.ElasticNet)):
        penalty = rs.L1(0.2)
    alpha, beta, gamma = rng.uniform(0.2, 2), float(rng.choice([1.0, 2.0, rng.uniform(0.2, 2)])), rng.uniform(0.2, 1)
    k, eta = (int(rng.integers(1, 4)) if forward else 1), 10 ** rng.uniform(-2, -1)
    schedule = rs.schedules.harmonic(eta) if rng.random() < 0.5 else rs.schedules.constant(eta)
    exact = not forward and alpha + beta == alpha * beta
    scheme = rs.Scheme(alpha, beta, gamma, schedule, forward=forward, steps=k)
    problem = rs.Quadratics(curvature, centre, weights=lam, penalty=penalty)
    models: list[Array] = []
    who = (
        rng.random((8, m)) < 0.6 if rng.random() < 0.5 and schedule.changes == "never" else np.ones((8, m), dtype=bool)
    )
    taking = rs.Everyone() if who.all() else rs.Trace(who)
    rs.solve(
        problem,
        scheme,
        rounds=8,
        start=np.ones(d),
        participation=taking,
        callback=lambda r: models.append(r.model[0].numpy()),
    )
    c, u = curvature[:, None], np.ones((m, d))
    p, ahead, seen = u.copy(), u.copy(), np.zeros(m, dtype=bool)
    model = u[0]
    for t in range(8):
        here, step = who[t], schedule(t)
        if here.any():
            u = np.where((here & seen)[:, None], ahead, u)
            answer = u + 0
            if forward:
                for _ in range(k):
                    answer = answer - step * c * (answer - centre)
            else:
                answer = (u + step * c * centre) / (1 + step * c)
            p, seen = np.where(here[:, None], answer, p), seen | here
            z = (1 - alpha) * u + alpha * p
            mean = lam[seen] @ z[seen] / lam[seen].sum()
            model = plain_prox(penalty, mean, k * alpha * step / beta)
            ahead = (1 - gamma) * u + gamma * ((1 - beta) * z + beta * model)
        assert np.allclose(models[t], model, rtol=1e-10, atol=1e-12), f"round {t + 1} of {scheme} with {penalty}"
        assert np.array_equal(models[t] == 0, model == 0)
    return "exact" if exact else "right"


def limits(seed: int) -> str:
    """Schemes made of gradient steps beside an l2 penalty: limits against the system of equations that explain names.

    Their pulls on the model may be off by the error that it gives, and so may the model, times a condition number.
    """
    rng = np.random.default_rng(seed)
    m, d, t = int(rng.integers(1, 5)), int(rng.integers(1, 4)), 10 ** rng.uniform(-1, 1)
    curvature, centre, lam = 10 ** rng.uniform(-1, 0.5, m), rng.standard_normal((m, d)), rng.uniform(0.1, 1, m)
    lam, k, lr = lam / lam.sum(), int(rng.integers(1, 5)), rng.uniform(0.05, 0.4) / curvature.max()
    steps, scale = [int(n) for n in rng.integers(1, 5, m)], float(rng.uniform(0.5, 2))
    schemes = [
        rs.scaffold(lr, k),
        rs.scaffold(lr, k, momentum=0.4),
        rs.scaffnew(lr, k),
        rs.fednova(lr, steps),
        rs.fednova(lr, steps, scale=scale),
        rs.fedavg(lr, steps=k),
        rs.fedavg(lr, local=rs.GradientSteps(k, momentum=0.5)),
    ]
    scheme = schemes[int(rng.integers(len(schemes)))]
    problem = rs.Quadratics(curvature, centre, weights=lam, penalty=rs.L2(t))
    claim = rs.explain(scheme, problem)
    run = rs.solve(problem, scheme, rounds=4000, every=4000, stop=rs.Stop(residual=1e-14))
    if run.status != "stopped" or claim.solves in ("neither", "unknown"):
        return "nothing claimed" if run.status == "stopped" else "unsettled"
    pull = lam * curvature / (1 + claim.eta_eff * curvature)
    limit = pull @ centre / (pull.sum() + t)
    error = 0.0 if claim.exactly else claim.error
    farthest = np.abs(np.vstack([centre, limit])).max()
    # with pulls (1 + e_i) pull_i, |e_i| <= error, the limit moves by
    # sum e_i pull_i (centre_i - limit) / (sum (1 + e_i) pull_i + t)
    allowed = 2 * error / (1 - error) * farthest + 1e-9 * (1 + farthest)
    off = float(np.abs(run.model.numpy() - limit).max())
    assert off <= allowed, f"{scheme} with {scheme.local}: {off} from what explain says, of which {allowed} is allowed"
    return "exact" if claim.exactly else "about"


FAMILIES = [
    Family("penalised limits", limits, few=16, many=400),
    Family("penalised minima", minima, few=12, many=600),
    Family("penalised rounds", rounds, few=40, many=2000),
]
