"""What every engine promises, whatever lies behind it: tables of engines, of problems and of runs.

A new engine is one more line in ENGINES: a function of (problem, operator, steady) that gives an engine, or a context
manager that opens one and closes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import resolvent as rs
from resolvent.engines.debug import Debug
from resolvent.engines.in_process import InProcess
from resolvent.iteration.engine import Engine
from resolvent.local.choice import local_operator

ENGINES: dict[str, Callable[[Any, Any, bool], Any]] = {
    "in_process": InProcess,
    "debug": Debug,
}

TOLERANCE = 1e-9
ROUNDS = 15


@contextmanager
def opened(name: str, problem: Any, operator: Any, steady: bool = True) -> Iterator[Engine]:
    """The engine of that name for these users, closed again afterwards where it wants to be."""
    made = ENGINES[name](problem, operator, steady)
    with made if hasattr(made, "__enter__") else nullcontext(made) as engine:
        yield engine


def opened_for(name: str, problem: Any, scheme: rs.Scheme) -> Any:
    """The engine that `solve` would build for this scheme."""
    return opened(name, problem, local_operator(scheme, problem), scheme.steady)


# --- problems: few users of unequal sizes and weights, so that every mistake shows -----------------------------------


def _rows(sizes: tuple[int, ...], dim: int, seed: int) -> tuple[list[Any], Any, Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, dim)) for n in sizes], rng.standard_normal(dim), rng


def least_squares() -> rs.LeastSquares:
    """User 1 has fewer rows than unknowns."""
    A, w, rng = _rows((9, 2, 9, 5, 12), dim=3, seed=1)
    b = [a @ (w + 0.5 * rng.standard_normal(3)) + 0.3 * rng.standard_normal(len(a)) for a in A]
    return rs.LeastSquares(A, b, weights=[1, 2, 3, 1, 0.5])


def logistic() -> rs.Logistic:
    A, w, rng = _rows((8, 9, 20, 12, 8), dim=3, seed=2)
    b = [np.where(rng.random(len(a)) < 1 / (1 + np.exp(-a @ w)), 1.0, -1.0) for a in A]
    return rs.Logistic(A, b, reg=0.1, weights=[1, 2, 3, 1, 0.5])


def absolute_deviations() -> rs.AbsoluteDeviations:
    rng = np.random.default_rng(3)
    return rs.AbsoluteDeviations(rng.standard_normal((5, 2)), rng.standard_normal(5), weights=[1, 2, 3, 1, 0.5])


PROBLEMS: dict[str, Callable[[], Any]] = {
    "least_squares": least_squares,
    "logistic": logistic,
    "absolute_deviations": absolute_deviations,
}

SCHEMES: dict[str, rs.Scheme] = {
    "fedavg": rs.fedavg(0.02),
    "fedavg_5": rs.fedavg(0.02, steps=5),
    "fedprox": rs.fedprox(0.1),
    "fedsplit": rs.fedsplit(0.1),
    "fedpi": rs.fedpi(0.1),
    "fedrp": rs.fedrp(0.1),
    "reflect_gradient": rs.reflect_gradient(0.02),
    "reflect_prox": rs.reflect_prox(0.1),
}

PARTICIPATIONS: dict[str, Any] = {
    "everyone": None,
    "bernoulli_hold": rs.Bernoulli(0.6),
    "bernoulli_paper": rs.Bernoulli(0.6, absent="paper"),
    "fixed_size": rs.FixedSize(2),
}


class Case(NamedTuple):
    """A run beyond the plain ones: a problem by name, a scheme and what else `solve` takes."""

    problem: str
    scheme: rs.Scheme
    more: dict[str, Any] = {}  # noqa: RUF012 (never written to)


def _decreasing(t: int) -> float:
    return 0.2 / (1 + 0.1 * t)


CASES: dict[str, Case] = {
    "anderson_on_u": Case("least_squares", rs.fedpi(0.1), {"anderson": 2}),
    "anderson_on_one_u": Case("least_squares", rs.fedprox(0.1), {"anderson": 3}),
    "anderson_on_mean": Case("least_squares", rs.fedpi(0.1), {"anderson": rs.Anderson(3, on="mean")}),
    "anderson_on_u_newton": Case("logistic", rs.fedpi(0.1), {"anderson": 2}),
    "anderson_on_mean_one_u": Case("logistic", rs.fedavg(0.02), {"anderson": rs.Anderson(3, on="mean")}),
    "anderson_sampled": Case("logistic", rs.fedpi(0.1), {"anderson": 2, "participation": rs.Bernoulli(0.6)}),
    "auto": Case("least_squares", rs.fedpi("auto")),
    "auto_newton": Case("logistic", rs.fedsplit("auto")),
    "auto_sampled": Case("least_squares", rs.fedpi("auto"), {"participation": rs.Bernoulli(0.6)}),
    "batches": Case("least_squares", rs.fedavg(0.01, local=rs.GradientSteps(2, batch=3))),
    "batches_momentum": Case("logistic", rs.fedavg(0.01, local=rs.GradientSteps(2, batch=4, momentum=0.5))),
    "batches_prox": Case("logistic", rs.fedpi(0.1, local=rs.GradientProx(3, lr=0.02, batch=5))),
    "batches_prox_sampled": Case(
        "least_squares", rs.fedpi(0.1, local=rs.GradientProx(3, 0.02, batch=4)), {"participation": rs.FixedSize(2)}
    ),
    "gradient_prox": Case("least_squares", rs.fedpi(0.1, local=rs.GradientProx(5))),
    "gradient_prox_anderson": Case("logistic", rs.fedpi(0.1, local=rs.GradientProx(8, anderson=2))),
    "newton_on_quadratics": Case("least_squares", rs.fedpi(0.1, local=rs.NewtonProx())),
    "harmonic": Case("least_squares", rs.fedprox(rs.schedules.harmonic(0.5)), {"average": "ergodic"}),
    "harmonic_one_u_sampled": Case(
        "logistic",
        rs.fedprox(rs.schedules.harmonic(0.5)),
        {"average": "suffix", "participation": rs.Bernoulli(0.6, absent="paper")},
    ),
    "halving": Case("logistic", rs.fedpi(rs.schedules.halving(0.4, period=4)), {"anderson": 2}),
    "own_schedule": Case("absolute_deviations", rs.fedpi(_decreasing), {"participation": rs.Bernoulli(0.6)}),
    "mixing_schedule": Case("least_squares", rs.Scheme(1.5, lambda t: 2 - 1 / (t + 1), 0.7, 0.1)),
}


# --- runs, as numbers ------------------------------------------------------------------------------------------------


def trajectory(problem: Any, scheme: rs.Scheme, **more: Any) -> tuple[list[Tensor], Any]:
    """u, p and w of every round, side by side, and the history without its seconds."""
    seen: list[Tensor] = []
    given = {"rounds": ROUNDS, "seed": 7, **more}
    run = rs.solve(problem, scheme, callback=lambda r: seen.append(_rows_of(r)), **given)
    return seen, run.history.drop(columns="seconds")


def _rows_of(happened: rs.Round) -> Tensor:
    state = happened.state
    return torch.cat([state.u, happened.model if state.w is None else state.w, state.p])


def assert_same_trajectory(one: tuple[list[Tensor], Any], other: tuple[list[Tensor], Any]) -> None:
    """Round by round, so that a failure names the first round that differs."""
    (points, table), (other_points, other_table) = one, other
    assert len(points) == len(other_points)
    for t, (a, b) in enumerate(zip(points, other_points, strict=True)):
        torch.testing.assert_close(a, b, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m, t=t: f"round {t + 1}: {m}")  # type: ignore[misc]
    assert list(table.columns) == list(other_table.columns)
    np.testing.assert_allclose(table.to_numpy(float), other_table.to_numpy(float), rtol=1e-6, atol=TOLERANCE)
