"""Automatic eta: it settles, it stays finite, and the run never ends above where it began, at any scale of the data."""

from __future__ import annotations

from typing import Any

import numpy as np

import resolvent as rs
from bench.eta import KINDS, MODES, drawn
from hunt.family import Family
from resolvent.iteration.tuning import LOOKS

ROUNDS = 300


def settles(seed: int) -> str:
    """Any problem, any mode, data times 1e-8..1e8, FedPi."""
    rng = np.random.default_rng(seed)
    kind, mode = rng.choice(list(KINDS)), rng.choice(list(MODES))
    problem = drawn(str(kind), seed)
    if problem is None:
        return "no minimiser"
    if kind != "logistic regression":
        problem = scaled(problem, 10.0 ** rng.uniform(-8, 8), 10.0 ** rng.uniform(-8, 8))
    run = rs.solve(problem, rs.fedpi("auto"), rounds=ROUNDS, progress=False, **MODES[str(mode)])
    first = float(problem.gap(problem.weights.new_zeros(1, problem.dim))[0])
    last, eta = float(run.history.gap.iloc[-1]), run.history.eta.dropna().to_numpy()  # NaN until somebody came
    where = f"{kind}, {mode}: gap {first:.3g} -> {last:.3g}, eta {eta[0]:.3g} -> {eta[-1]:.3g}"
    assert run.status == "finished", f"{where}: {run.reason}"
    assert np.isfinite(eta).all(), where
    assert (eta > 0).all(), where
    assert last <= first or "the value rose" in run.reason, where
    assert len(np.unique(eta)) <= LOOKS + 1, where
    changed = np.flatnonzero(np.diff(eta)) + 1
    late = changed[changed > ROUNDS // 2]
    assert len(late) <= 2, f"{where}: changed in rounds {late}"
    return "right" if last <= first else "warned"


def scaled(problem: Any, rows: float, targets: float) -> Any:
    """The same problem in other units."""
    if isinstance(problem, rs.AbsoluteDeviations):
        return rs.AbsoluteDeviations(problem.A * rows, problem.b * targets)
    users = [problem.rows.one(i) for i in range(problem.users)]
    return rs.LeastSquares([a * rows for a, _ in users], [b * targets for _, b in users])


def thin_runs(seed: int) -> str:
    """Two to four users of one row in two dimensions, nearly parallel or not: nothing runs away in flat directions."""
    rng = np.random.default_rng(seed)
    users = rng.integers(2, 5)
    A = rng.standard_normal((users, 1, 2)) * rng.choice([1, 0.1]) + rng.choice([0, 1]) * np.array([1.0, 0.3])
    problem = rs.LeastSquares(A, rng.standard_normal((users, 1)))
    first = float(problem.gap(problem.weights.new_zeros(1, 2))[0])
    run = rs.solve(problem, rs.fedpi("auto"), rounds=2000, progress=False, stop=rs.Stop(gap=1e-9 * first))
    last = float(run.history.gap.iloc[-1])
    assert last <= max(first, 1e-20), f"gap {first:.3g} -> {last:.3g} with eta {run.state.eta:.3g}"
    return "right"


FAMILIES = [
    Family("automatic eta settles", settles, few=12, many=300),
    Family("automatic eta on thin users", thin_runs, few=4, many=100),
]
