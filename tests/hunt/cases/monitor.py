"""The monitor against plain loops: what blows up is called divergent, what stays bounded never is, rises are told."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import linprog

import resolvent as rs
import textbook
from hunt.family import Family
from resolvent.iteration.table import named
from textbook import Array, Grand, Squares

TALL, GONE = 1e3, 1e13
"""Times the scale of a problem: u within TALL of them has stayed, beyond GONE of them it has blown up."""
NUDGE, GROWN = 1e-12, 1e-7
"""A start moved by NUDGE of its size may move no later u by more than GROWN, or rounding decides where the run goes."""
ROUNDS = 60


@dataclass(frozen=True)
class Case:
    """A random problem, scheme, participation and start, for the package and for a plain loop."""

    users: list[Squares]
    lam: Array
    scheme: Grand
    forward: int
    who: Any
    start: Array
    scale: float
    seed: int

    @property
    def problem(self) -> rs.LeastSquares:
        return rs.LeastSquares(*textbook.data(self.users), weights=self.lam)

    def solve(self, rounds: int = ROUNDS, **more: Any) -> rs.Run:
        mixing = (self.scheme.alpha, self.scheme.beta, self.scheme.gamma)
        local: dict[str, Any] = {"forward": bool(self.forward), "steps": max(self.forward, 1)}
        scheme = rs.Scheme(*mixing, self.scheme.eta, **local, name="it")
        more = {"start": self.start, "participation": self.who, "seed": self.seed} | more
        return rs.solve(self.problem, scheme, rounds=rounds, **more)

    def loop(self) -> tuple[Array, Array]:
        """Models and u of a plain loop, round by round."""
        u = np.tile(self.start, (len(self.users), 1))
        masks = np.ones((ROUNDS, len(self.users)), dtype=bool)
        if self.who is not None:
            present = [self.who.present(self.seed, t, len(self.users)).numpy() for t in range(ROUNDS)]
            masks = np.array([np.isin(np.arange(len(self.users)), who) for who in present])
        run = textbook.algorithm_1 if self.who is None or self.who.absent == "paper" else textbook.held
        with np.errstate(all="ignore"):
            models, rows = zip(*run(self.users, self.lam, u, self.scheme, masks), strict=True)
        return np.array(models), np.array(rows)

    def value(self, w: Array) -> float:
        with np.errstate(all="ignore"):
            return float(sum(weight * f.value(w) for weight, f in zip(self.lam, self.users, strict=True)))

    def rounding(self, w: Array) -> float:
        """By how much two evaluations of f at w may differ.

        Each entry of r = A w - b is a sum of d + 1 terms, so its error is at most (d + 1) eps (|A| |w| + |b|) entry by
        entry, and |r + e|^2 / 2 differs from |r|^2 / 2 by at most |r| |e| + |e|^2 / 2. Near a solution, where |r| is
        itself such an error, nothing of the value is certain.
        """
        total = 0.0
        for weight, f in zip(self.lam, self.users, strict=True):
            e = (len(w) + 2) * np.finfo(float).eps * np.linalg.norm(np.abs(f.A) @ np.abs(w) + np.abs(f.b))
            total += weight * (np.linalg.norm(f.A @ w - f.b) * e + e**2 / 2)
        return 2 * float(total)

    def determined(self, rows: Array) -> bool:
        """Whether the data decide where the run goes: beside a fixed point that repels, rounding errors do."""
        size = self.scale + float(np.linalg.norm(self.start))
        nudge = NUDGE * size * np.random.default_rng(self.seed).choice([-1.0, 1.0], len(self.start))
        _, others = replace(self, start=self.start + nudge).loop()
        with np.errstate(all="ignore"):
            apart, sizes = (np.sqrt(np.einsum("i,tid->t", self.lam, each**2)) for each in (rows - others, rows))
        return bool((apart <= GROWN * (size + np.fmax.accumulate(sizes)))[sizes < 1e150].all())


def draw(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    m, d, scale = int(rng.integers(1, 6)), int(rng.integers(1, 4)), 10 ** rng.uniform(-8, 8)
    steep = 10 ** rng.uniform(-3, 3)
    users = []
    for _ in range(m):
        A = steep * rng.standard_normal((int(rng.integers(1, 5)), d))
        users.append(Squares(A, A @ (scale * rng.standard_normal(d))))
    L = float(max(np.linalg.norm(f.A, 2) ** 2 for f in users))
    forward = int(rng.choice([0, 0, 1, 3]))
    eta = (10 ** rng.uniform(-2, 1.5) if forward else 10 ** rng.uniform(-4, 4)) / L
    mixing: Any = ([1, 1, 1], [2, 2, 1], [2, 2, 0.5], [2, 1, 1], [1, 2, 1], list(rng.uniform(0.2, [2, 2, 1])))
    scheme = Grand(  # type: ignore[call-arg]
        *mixing[int(rng.integers(len(mixing)))], eta, textbook.descend(forward) if forward else textbook.prox
    )
    absent: Any = str(rng.choice(["hold", "paper"]))
    who = [
        None,
        rs.Bernoulli(float(rng.uniform(0.1, 0.9)), absent),
        rs.FixedSize(int(rng.integers(1, m + 1)), absent),
        rs.Trace(rng.random((int(rng.integers(1, 9)), m)) < 0.4, absent),
    ][int(rng.integers(4))]
    lam = rng.dirichlet(np.ones(m))
    best = np.linalg.lstsq(
        np.concatenate([np.sqrt(w) * f.A for w, f in zip(lam, users, strict=True)]),
        np.concatenate([np.sqrt(w) * f.b for w, f in zip(lam, users, strict=True)]),
        rcond=None,
    )[0]
    starts = (np.zeros(d), best, scale * rng.standard_normal(d), users[0].prox(np.zeros(d), 1e6 / L))
    return Case(users, lam, scheme, forward, who, starts[int(rng.integers(4))], scale, seed)


def verdicts(seed: int) -> str:
    case = draw(seed)
    run, (models, rows) = case.solve(), case.loop()
    table = run.history
    assert table.value.isna().sum() == 0 or run.status == "diverged", "NaN in the history of a run that finished"
    if run.status == "diverged":
        handed_back(case, run)
    if not case.determined(rows):  # two loops go two ways
        return "left to rounding"
    with np.errstate(all="ignore"):
        sizes = np.sqrt(np.einsum("i,tid->t", case.lam, rows**2))
    unit = 1 + case.scale + float(np.linalg.norm(case.start))
    if np.isfinite(sizes).all() and sizes.max() <= TALL * unit:
        assert run.status == "finished", f"u stays within {sizes.max():.3g}, but {run.reason}"
    if not np.isfinite(sizes).all() or sizes[-11:].min() > GONE * unit:
        assert run.status == "diverged", f"u is {sizes[-1]:.3g} in the end, but {run.reason}"
    if run.status == "diverged":
        return "diverged"
    np.testing.assert_allclose(run.model, models[-1], rtol=1e-6, atol=1e-6 * (case.scale + sizes.max()))
    first, last = case.value(case.start), case.value(models[-1])
    rounding = 1e-9 * case.value(0 * case.start)
    if last > 1.001 * first + rounding:
        assert "the value rose from" in run.reason, f"from {first:.6g} to {last:.6g}: {run.reason}"
        return "warned"
    if last < first - rounding:
        assert "rose" not in run.reason, f"from {first:.6g} to {last:.6g}: {run.reason}"
    return "right"


def handed_back(case: Case, run: rs.Run) -> None:
    """What is handed back is no worse than the start and all that was recorded, and its value is the one shown."""
    own, values = case.value(run.model.numpy()), run.history.value
    least, rounding = min([case.value(case.start), *values[np.isfinite(values)]]), case.rounding(run.model.numpy())
    assert own <= least * (1 + 1e-9) + rounding, f"handed back {own:.6g}, but there was {least:.6g}"
    shown = re.search(r"value (\S+),[^;]*$", repr(run))
    assert run.state.round == 0 or (shown and abs(float(shown[1]) - own) <= 0.01 * own + rounding), repr(run)


def residuals(seed: int) -> str:
    """|T u - u| of the u at which users were asked, accelerated or not."""
    case = draw(seed)
    rng = np.random.default_rng(seed)
    faster = [None, 2, rs.Anderson(2, on="mean"), rs.Anderson(2, on="mean", safeguard=False)][int(rng.integers(4))]
    seen: list[tuple[Array, float]] = []
    m = len(case.users)
    run = case.solve(
        20,
        participation=None,
        anderson=faster,
        callback=lambda r: seen.append((r.state.u.expand(m, -1).numpy().copy(), r.residual)),
    )
    for (u, told), row in zip(seen, run.history.residual, strict=True):
        if not np.abs(u).max() < 1e30:
            break
        Tu = case.scheme.step(case.users, case.lam, u, 0)[1]
        plain = np.sqrt(case.lam @ ((Tu - u) ** 2).sum(1))
        noise = 1e-9 * (np.abs(u).max() + case.scale)
        np.testing.assert_allclose([told, row], plain, rtol=1e-6, atol=noise)
    return "right"


def parts(seed: int) -> str:
    """A run in two parts is judged as the whole is, wherever it is left; the end of a part is looked at beside."""
    case = draw(seed)
    whole, cut = case.solve(), int(np.random.default_rng(seed).integers(1, ROUNDS))
    half = case.solve(cut)
    if half.status == "diverged":
        assert whole.status == "diverged", f"{half.reason}, but the whole: {whole.reason}"
        assert half.reason == whole.reason or f"by round {cut}:" in half.reason
        return "diverged"
    rest = case.solve(ROUNDS - cut, start=half.state)
    assert rest.status == whole.status, f"{rest.reason}, but the whole: {whole.reason}"
    until = r"[^;]*" if whole.status == "diverged" else r".*"  # the best state may be one of the first part
    judged = [
        re.search(until, run.reason.replace(f"{ROUNDS - cut} rounds", f"{ROUNDS} rounds")) for run in (rest, whole)
    ]
    assert judged[0][0] == judged[1][0], f"{rest.reason}, but the whole: {whole.reason}"  # type: ignore[index]
    return "diverged" if whole.status == "diverged" else "right"


# --- certificates ----------------------------------------------------------------------------------------------------


def certificates(seed: int) -> str:
    """At no eta are they a false comfort: stationarity is at least what exact arithmetic gives at this u."""
    rng = np.random.default_rng(seed)
    m, d, scale, eta = (
        int(rng.integers(1, 5)),
        int(rng.integers(1, 4)),
        10 ** rng.uniform(-6, 6),
        10 ** rng.uniform(-24, 24),
    )
    c, x, lam = 10 ** rng.uniform(-2, 2, m), scale * rng.standard_normal((m, d)), rng.dirichlet(np.ones(m))
    scheme = named(str(rng.choice(["fedpi", "fedprox", "fedsplit", "fedrp"])), eta)
    run = rs.solve(rs.Quadratics(c, x, weights=lam), scheme, rounds=4, start=scale * rng.standard_normal(d))
    u = run.state.u.expand(m, -1).numpy().astype(np.longdouble)
    h = np.longdouble(eta)
    g = c[:, None] * (u - x) / (1 + h * c[:, None])
    true, told = float(np.linalg.norm(lam @ g)), float(run.history.stationarity.iloc[-1])
    rounding = 1e-13 * float(np.linalg.norm(c[:, None] * (np.abs(u) + np.abs(x)) / (1 + h * c[:, None])))
    assert told >= true * (1 - 1e-9) - rounding, f"eta {eta:.3g}: told {told:.3g}, but it is {true:.3g}"
    unsure = 1e-14 * float(np.abs(u).max() + np.abs(x).max()) / eta
    assert told <= true * (1 + 1e-9) + rounding + unsure, f"eta {eta:.3g}: told {told:.3g}, but it is {true:.3g}"
    return "right"


# --- sets that meet, and sets that do not ----------------------------------------------------------------------------


def sets(seed: int) -> str:
    rng = np.random.default_rng(seed)
    m, d, scale = int(rng.integers(2, 7)), int(rng.integers(1, 3)), 10 ** rng.uniform(-4, 4)
    normals, offsets = rng.standard_normal((m, d)), scale * rng.standard_normal(m)
    if rng.random() < 0.5:  # a common point, and room around it
        offsets = normals @ (scale * rng.standard_normal(d)) + scale * rng.random(m)
    problem = rs.Indicators([rs.Halfspace(a, float(b)) for a, b in zip(normals, offsets, strict=True)])
    which = int(rng.integers(3))
    who = (None, rs.FixedSize(1), rs.Bernoulli(0.5))[which]
    name = str(rng.choice(["fedpi", "fedpi", "fedprox"]))
    start = scale * rng.standard_normal(d)
    rounds = 400 * (1, m, 2)[which]  # in which everybody comes 400 times, on average: only then do users drift apart
    run = rs.solve(problem, named(name, 1.0), rounds=rounds, every=50, participation=who, seed=seed, start=start)
    assert run.status == "finished", run.reason
    # the least r for which the halfspaces, each moved outwards by r, have a common point
    lengths = np.linalg.norm(normals, axis=1, keepdims=True)
    free = [(None, None)] * d
    apart = linprog(np.r_[np.zeros(d), 1], np.c_[normals, -lengths], offsets, bounds=[*free, (0, None)]).x[-1]
    said = re.search(r"do not meet, or only far away.* at least (\S+) away", run.reason)
    if said is not None and apart <= 1e-9 * scale:  # they do meet: where they are said not to?
        middle, room = run.personal.mean(0).numpy(), 0.9 * float(said[1]) / np.sqrt(d)
        nearby = linprog(np.zeros(d), normals, offsets, bounds=[(x - room, x + room) for x in middle])
        assert not nearby.success, f"they meet nearby, at {nearby.x}: {run.reason}"
    if apart > 0.1 * scale and (who is None or name == "fedpi"):
        assert said, f"they are {apart:.3g} apart, scale {scale:.3g}: {run.reason}"
    return "warned" if said else "right"


def sampled_sets_are_not_called_divergent(seed: int) -> str:
    """The first users asked may be content with the start, so that the first rounds move nothing at all."""
    rng = np.random.default_rng(seed)
    m, d, scale = int(rng.integers(2, 9)), int(rng.integers(1, 6)), 10 ** rng.uniform(-8, 8)
    common, start = scale * rng.standard_normal(d), 3 * scale * rng.standard_normal(d)
    kinds = []
    for _ in range(m):
        a = rng.standard_normal(d)
        half = rs.Halfspace(a, float(a @ common) + scale * abs(rng.standard_normal()) / 10)
        ball = rs.Ball(common + scale * rng.standard_normal(d) / d, 2 * scale * np.sqrt(d))
        kinds.append(half if rng.random() < 0.7 else ball)
    who = rs.FixedSize(1) if rng.random() < 0.7 else rs.Trace(np.eye(m))
    run = rs.solve(rs.Indicators(kinds), rs.fedpi(1.0), rounds=100, participation=who, seed=seed, start=start)
    assert run.status == "finished", run.reason
    return "right"


FAMILIES = [
    Family("monitor verdicts", verdicts, few=40, many=1500),
    Family("monitor residuals", residuals, few=20, many=500),
    Family("monitor in two parts", parts, few=20, many=500),
    Family("monitor certificates at any eta", certificates, few=60, many=2000),
    Family("monitor sets", sets, few=12, many=300),
    Family("monitor sampled sets", sampled_sets_are_not_called_divergent, few=12, many=300),
]
