"""What `explain` claims, against limits of the scheme run in plain NumPy, and against runs of the package."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog

import plain_limits as plain
import resolvent as rs
from hunt.family import Family
from resolvent.iteration.table import named
from resolvent.theory.trends import judge

ORIGINAL, REGULARISED = "original", "regularised"
ROUNDS = 600
LOOKS = (50, ROUNDS // 4, ROUNDS)


@dataclass
class Case:
    """A configuration for the package, and the same for plain NumPy."""

    problem: Any
    users: plain.Users
    scheme: rs.Scheme
    participation: Any
    local: plain.Local
    numbers: Any
    masks: Any
    words: str


# --- drawing ---------------------------------------------------------------------------------------------------------


def draw(rng: np.random.Generator) -> Case:
    problem, users, L = draw_problem(rng)
    m = len(users.lam)
    rows = [row for row in rs.TABLE.values() if not row.kin]
    row = rows[rng.integers(len(rows))]
    alpha, beta, gamma, forward = row.alpha, row.beta, row.gamma, row.forward and users.smooth
    if rng.random() < 0.5:
        alpha, beta = rng.choice([0, 0.3, 0.7, 1, 1, 1.5, 2, 2], 2).tolist()
        gamma = float(rng.choice([0, 0.3, 0.5, 0.8, 1, 1]))
        forward = bool(rng.random() < 0.4) and users.smooth
    operator, local, stepping = draw_operator(rng, users, L, forward)
    size = 10 ** rng.uniform(-1.5, 1) / L if not forward else rng.uniform(0.05, 1.3) / L / stepping
    eta = draw_schedule(rng, float(size))
    numbers: list[Any] = [alpha, beta, gamma]
    if rng.random() < 0.15:
        k = int(rng.integers(3))
        numbers[k] = draw_change(rng, numbers[k])
    scheme = rs.Scheme(*numbers, eta, operator, forward=forward)  # type: ignore[call-arg, misc]

    def at(t: int) -> tuple[float, ...]:
        return tuple(n(t) if callable(n) else n for n in (*numbers, eta))

    participation, masks = draw_participation(rng, m)
    words = f"{scheme} {operator} {participation} {type(problem).__name__} weights {users.lam}"
    return Case(problem, users, scheme, participation, local, at, masks, words)


def draw_problem(rng: np.random.Generator) -> tuple[Any, plain.Users, float]:
    m, d = int(rng.choice([1, 2, 3, 5])), int(rng.integers(1, 4))
    lam = rng.dirichlet(np.ones(m))
    if m > 2 and rng.random() < 0.15:
        lam[0] = 0
    lam = lam / lam.sum()
    kind = rng.choice(["strong", "strong", "strong", "thin", "thin", "logistic", "deviations", "halfspaces", "custom"])
    if kind in ("deviations", "halfspaces"):
        A = rng.standard_normal((m, d))
        b = rng.standard_normal(m) if kind == "deviations" else A @ rng.standard_normal(d) + rng.exponential(1, m)
        if kind == "deviations":
            return rs.AbsoluteDeviations(A, b, weights=lam), plain.Deviations(A, b, lam), 1.0
        sets = [rs.Halfspace(a, float(c)) for a, c in zip(A, b, strict=True)]
        return rs.Indicators(sets, weights=lam), plain.Halfspaces(A, b, lam), 1.0
    rows = max(d - 1, 1) if kind == "thin" else d + int(rng.integers(2, 6))
    A = rng.standard_normal((m, rows, d)) * np.exp(rng.uniform(-1, 1, (m, 1, 1)))
    b = np.einsum("ind,id->in", A, rng.standard_normal((m, d))) + 0.1 * rng.standard_normal((m, rows))
    if kind == "logistic":
        b, reg = np.where(rng.random((m, rows)) < 0.5, -1.0, 1.0), float(rng.choice([0.01, 0.3]))
        L = np.linalg.eigvalsh(np.einsum("ind,ine->ide", A, A)).max() / 4 + reg
        return rs.Logistic(A, b, reg=reg, weights=lam), plain.Logits(A, b, reg, lam), float(L)
    users = plain.Squares(A, b, lam)
    L = float(np.linalg.eigvalsh(users.H).max())
    if kind != "custom":
        return rs.LeastSquares(A, b, weights=lam), users, L
    known: dict[str, Any] = {"lipschitz": L} if rng.random() < 0.5 else {}

    def both(function: Any) -> Any:
        return lambda *given: torch.from_numpy(function(given[0].expand(m, -1).numpy(), *given[1:]))

    functions = {"grad": both(users.grad), "prox": both(users.prox)}
    return rs.Custom(m, d, **functions, weights=lam, convex=bool(rng.random() < 0.8), **known), users, L


def draw_operator(
    rng: np.random.Generator, users: plain.Users, L: float, forward: bool
) -> tuple[Any, plain.Local, float]:
    """The operator, the same in NumPy, and by how much its steps exceed one gradient step."""
    k, momentum = int(rng.choice([1, 2, 3, 8, 15])), float(rng.choice([0, 0, 0.5, 0.9]))
    if forward:
        k = 1 if rng.random() < 0.4 else k
        return rs.GradientSteps(k, momentum=momentum), plain.steps(users, k, momentum), min(k, 4) / (1 - momentum)
    if not users.smooth or rng.random() < 0.7:
        return None, users.prox, 1.0
    lr = float(10 ** rng.uniform(-1.5, 0.5) / L)
    return rs.GradientProx(k, lr=lr, momentum=momentum), plain.inexact_prox(users, k, lr, momentum), 1.0


def draw_schedule(rng: np.random.Generator, eta: float) -> Any:
    """A number three times out of four, else a function of the round that `explain` knows nothing about."""
    if rng.random() < 0.7:
        return eta
    power, when = float(rng.choice([0.4, 0.7, 1.0])), int(rng.integers(1, 300))
    ratio, period = float(rng.uniform(0.1, 0.9)), int(rng.integers(2, 40))
    return [
        lambda t: eta,
        lambda t: eta if t < when else ratio * eta,
        lambda t: eta * (ratio if t % period == 0 else 1.0),
        lambda t: 5 * eta / (t + 1) ** power,
        lambda t: eta * (0.1 + ratio ** min(t, 200)),
        lambda t: eta / (t + 1) ** 2,
        lambda t: eta * (1 + ratio * math.sin(t)),
        rs.schedules.harmonic(5 * eta),
        rs.schedules.inverse_sqrt(5 * eta),
        rs.schedules.halving(eta, period),
    ][rng.integers(10)]


def draw_change(rng: np.random.Generator, number: float) -> Any:
    """alpha, beta or gamma as a function of the round."""
    other, when = float(rng.uniform(0, 1)), int(rng.integers(1, 300))
    return [
        lambda t: float(number),
        lambda t: number if t >= when else other,
        lambda t: number if t % 3 else other,
        lambda t: number / (t + 1) ** 2,
        lambda t: number / (t + 1) ** 0.7,
    ][rng.integers(5)]


def draw_participation(rng: np.random.Generator, m: int) -> tuple[Any, Any]:
    everyone = np.ones(m, dtype=bool)
    kind = rng.random()
    if kind < 0.55:
        return None, lambda t: everyone
    if kind < 0.8:
        drawn = np.random.default_rng(rng.integers(2**32))
        if rng.random() < 0.6:
            return rs.Bernoulli(0.5), lambda t: drawn.random(m) < 0.5
        n = int(rng.integers(1, m + 1))
        return rs.FixedSize(n), lambda t: np.argsort(np.argsort(drawn.random(m))) < n
    if kind < 0.86:
        return rs.Bernoulli(0.5, absent="paper"), None if m > 1 else lambda t: everyone
    masks = rng.random((int(rng.integers(1, 6)), m)) < 0.5
    masks[0, rng.integers(m)] = True
    return rs.Trace(masks), lambda t: masks[t % len(masks)]


# --- judging ---------------------------------------------------------------------------------------------------------


def words_against_limits(seed: int) -> str:
    """Where something is claimed, the scheme is run in plain NumPy and its end held against the claim."""
    rng = np.random.default_rng(seed)
    case = draw(rng)
    said = rs.explain(case.scheme, case.problem, case.participation)
    if said.theorem is None and said.solves not in (ORIGINAL, REGULARISED):
        return "nothing claimed"
    assert case.masks is not None, f"something is claimed of Algorithm 1's sampling: {said}\n{case.words}"
    start = rng.standard_normal((len(case.users.lam), case.users.dim))
    with np.errstate(all="ignore"):
        args = case.numbers, case.scheme.exact, start, case.masks, ROUNDS, LOOKS
        end = plain.run(case.users, case.local, *args)
    try:
        return hold(case, said, end)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{said}\n{case.words}\n{end}") from None


def hold(case: Case, said: Any, end: plain.End) -> str:
    vanishing = case.numbers(10**6)[3] < 1e-2 * case.numbers(0)[3] or case.numbers(10**6)[2] < 1e-2
    if said.theorem is not None:
        assert end.finite, "a theorem is named, and the run is not finite"
        if not vanishing:
            falls = max(0.1 * end.first, 3 * end.travelled / math.sqrt(ROUNDS), 1e-9)
            falls = max(falls, linearly(case) * end.first if "linear" in said.theorem else 0.0)
            assert end.residual <= falls, "a theorem is named, and the residual does not fall"
    if not end.finite:
        return "diverged"
    if vanishing:
        return falling(case, said, end)
    scale = 1 + float(np.abs(end.personal).max())
    if said.solves not in (ORIGINAL, REGULARISED) or end.residual > 1e-9 * scale:
        return "still on its way" if said.theorem is None else "right"
    at_limit(case, said, end, scale)
    return "right"


def linearly(case: Case) -> float:
    """What a contraction may leave of the first residual: ten times its factor to the power of half the rounds."""
    alpha, _, gamma, eta = case.numbers(10**6)
    curvatures = (
        np.linalg.eigvalsh(case.users.H) if isinstance(case.users, plain.Squares) else np.array([case.users.reg])  # type: ignore[attr-defined]
    )
    s = np.array([curvatures.min(), curvatures.max()])
    answers = 1 - eta * s if case.scheme.forward else 1 / (1 + eta * s)
    factor = 1 - gamma + gamma * float(np.abs(1 - alpha + alpha * answers).max())
    present = float(np.mean([case.masks(t).mean() for t in range(100)]))
    return 10 * math.exp(-(1 - factor) * present * ROUNDS / 2)


def at_limit(case: Case, said: Any, end: plain.End, scale: float) -> None:
    """The limit solves what is said, and users' own models are what is said."""
    users, eta = case.users, case.numbers(ROUNDS - 1)[3]
    tol = 1e-5 * scale * max(1.0, 1 / eta)
    if said.solves == ORIGINAL and not users.smooth:
        assert users.value(end.model) - least(users) < tol, "the limit does not minimise f"
    else:
        mean, all_of_them = users.slope(end.model, said.eta_eff)
        size = float(users.lam @ np.linalg.norm(all_of_them, axis=1))
        slack = 1.05 if isinstance(users, plain.Squares) else 3.0
        allowed = tol if said.exactly else tol + slack * said.error * size
        assert not np.linalg.norm(mean) > allowed, f"slope {np.linalg.norm(mean):.3g} where {allowed:.3g} is allowed"
    if not said.exactly or "nothing more" in said.personal:
        return
    W = np.tile(end.model, (len(users.lam), 1))
    if "agrees with the model" in said.personal:
        expected = W
    elif "prox_eta" in said.personal:
        expected = users.prox(W, said.eta_eff)
        expected = case.local(expected, eta) if "local steps" in said.personal else expected
    else:
        expected = case.local(W, eta)
    counting = users.lam > 0
    assert np.abs(end.personal - expected)[counting].max() < tol, f"personal models are not {said.personal}"


def falling(case: Case, said: Any, end: plain.End) -> str:
    """With a vanishing eta or gamma limits are far off: f goes down, of the averages where the theorem is of those."""
    if said.theorem is None or said.solves != ORIGINAL:
        return "still on its way"
    best = least(case.users)
    _, middle, last = ((value - best) for _, value in end.values)
    assert last <= middle * 1.001 + 1e-9, f"f rises from {middle:.3g} to {last:.3g} above its minimum"
    return "right"


def least(users: plain.Users) -> float:
    """min f, by other means."""
    if isinstance(users, plain.Halfspaces):
        return 0.0
    if isinstance(users, plain.Deviations):
        m, d = users.A.shape
        one = np.eye(m)
        found = linprog(
            np.r_[np.zeros(d), users.lam],
            A_ub=np.block([[users.A, -one], [-users.A, -one]]),
            b_ub=np.r_[users.b, -users.b],
            bounds=[(None, None)] * d + [(0, None)] * m,
        )
        return float(found.fun)
    w: Any = np.zeros(users.dim)
    if isinstance(users, plain.Squares):
        root = np.sqrt(users.lam)[:, None]
        w = np.linalg.lstsq((users.A * root[..., None]).reshape(-1, users.dim), (users.b * root).ravel(), rcond=None)[0]
    else:
        step = 1 / (1 + float((users.A**2).sum()))  # type: ignore[attr-defined]
        for _ in range(20000):
            w = w - step * users.slope(w, 0)[0]
    return users.value(w)


# --- batches, acceleration and automatic eta: runs of the package -----------------------------------------------------


def runs_of_the_package(seed: int) -> str:
    """Where a run comes to rest, its model is what `explain` says, also with Anderson, batches and eta="auto"."""
    rng = np.random.default_rng(seed)
    m, d, rows = int(rng.integers(2, 6)), int(rng.integers(1, 4)), int(rng.integers(6, 12))
    A = rng.standard_normal((m, rows, d))
    b = np.einsum("ind,id->in", A, rng.standard_normal((m, d)))
    problem, users = rs.LeastSquares(A, b), plain.Squares(A, b, np.full(m, 1 / m))
    L = float(problem.lipschitz.max())
    more: dict[str, Any] = {"anderson": rs.Anderson(int(rng.integers(1, 4)), safeguard=bool(rng.random() < 0.7))}
    kind = int(rng.integers(4))
    scheme = [
        lambda: rs.fedpi("auto"),
        lambda: named(str(rng.choice(["fedpi", "fedprox", "fedrp", "fedsplit"])), float(rng.uniform(0.1, 3) / L)),
        lambda: rs.fedavg(float(rng.uniform(0.1, 0.9) / L / 5), local=rs.GradientSteps(int(rng.integers(1, 6)))),
        lambda: rs.fedavg(float(rng.uniform(0.02, 0.1) / L), local=rs.GradientSteps(2, batch=3)),
    ][kind]()
    if kind == 3:
        more = {"average": "suffix"}
    run = rs.solve(problem, scheme, rounds=200, every=200, **more)
    said = run.explanation
    assert said.theorem is None or kind == 0 or "anderson" not in more, f"a theorem is named: {said}"
    rest = float(run.history.residual.iloc[-1])
    if kind != 3 and not rest < 1e-10:
        return "still on its way"
    w = run.model.numpy()
    mean, slopes = users.slope(w, said.eta_eff)
    size = float(users.lam @ np.linalg.norm(slopes, axis=1))
    allowed = 0.3 * size if math.isnan(said.error) else 1e-6 + 1.05 * said.error * size
    assert np.linalg.norm(mean) <= allowed, f"{np.linalg.norm(mean):.3g} > {allowed:.3g}: {said}"
    return "right"


# --- functions of the round ------------------------------------------------------------------------------------------


def trends_of_functions(seed: int) -> str:
    """Of functions whose behaviour is known, nothing wrong is concluded from their values."""
    rng = np.random.default_rng(seed)
    c, s = float(10 ** rng.uniform(-6, 6)), float(rng.uniform(0.05, 2.5))
    r, period, shift = float(rng.uniform(0.01, 0.99)), int(rng.integers(2, 3000)), float(rng.uniform(0, 1000))
    truths: list[tuple[Any, str, bool]] = [
        (lambda t: c, "constant", True),
        (lambda t: c if t < period else r * c, "settles", True),
        (lambda t: c / (t + 1 + shift) ** s, "vanishes", s <= 1),
        (lambda t: c * (1 + r * math.sin(t * r)), "varies", True),
        (lambda t: c * (r if t % period == 0 else 1), "varies", True),
        (lambda t: c * (r + (t + 1) ** -s), "varies", True),
        (lambda t: c * r**t, "vanishes", False),
        (lambda t: c / math.log(t + 2 + shift), "vanishes", True),
        (lambda t: c / ((t + 2) * math.log(t + 2) ** 2), "vanishes", False),
        (lambda t: c * (t + 1) ** s, "grows", True),
        (lambda t: [c, r * c][t], "ends", True),
        (lambda t: c * math.sin(t), "changes sign", True),
        (lambda t: c * (1 + math.sin(math.log(t + 1) * s)) + r * c, "varies", True),
    ]
    return judged_rightly(*truths[rng.integers(len(truths))], near=1 < s < 1.002)


def trends_that_show_late(seed: int) -> str:
    """The same where the first million values hardly differ from those of a function that does something else."""
    rng = np.random.default_rng(seed)
    c, s = float(10 ** rng.uniform(-6, 6)), float(rng.uniform(0.05, 2.5))
    late, shift = float(10 ** rng.uniform(4, 10)), float(rng.uniform(0, 100))
    little = float(10 ** rng.uniform(-1.5, 2) * 10 ** (-6 * s))  # beside what is left of t^-s in round 10^6
    truths: list[tuple[Any, str, bool]] = [
        (lambda t: c / (t + late), "vanishes", True),
        (lambda t: c * (1 - 1 / late) ** t, "vanishes", False),
        (lambda t: c * (t + late), "grows", True),
        (lambda t: c * (little + (t + 1 + shift) ** -s), "varies", True),
        (lambda t: c * (little + (1 + math.sin(t)) * (t + 1) ** -s), "varies", True),
        (lambda t: c * (t % 2) / (t + 1 + shift) ** s, "vanishes", s <= 1),
    ]
    return judged_rightly(*truths[rng.integers(len(truths))], near=1 < s < 1.002)


def judged_rightly(function: Any, kind: str, diverges: bool, near: bool) -> str:
    """near: whether the sum converges so slowly that values up to round 10^6 cannot tell."""
    trend = judge(function)
    if trend.kind == "unclear":
        return "unclear"
    if kind == "varies" and trend.kind == "settles":  # to round-off it may
        tail = [function(int(t)) for t in np.geomspace(1e5, 9e5, 50)]
        assert np.ptp(tail) <= 1e-11 * max(tail)
    else:
        assert trend.kind == kind, f"{kind} counts as {trend.kind}"
    if trend.sum_diverges is not None:
        near = near and kind == "vanishes"
        assert trend.sum_diverges == diverges or near, f"its sum is taken to diverge: {trend.sum_diverges}"
    return "right"


FAMILIES = [
    Family("explain against limits", words_against_limits, few=20, many=400),
    Family("explain against the package's runs", runs_of_the_package, few=5, many=60),
    Family("explain functions of the round", trends_of_functions, few=50, many=1500),
    Family("explain what shows late", trends_that_show_late, few=50, many=1500),
]
