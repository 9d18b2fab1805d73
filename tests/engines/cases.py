"""Problems and runs that every engine computes alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import resolvent as rs

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


@cache
def built(name: str) -> Any:
    """A problem of the table, made once."""
    return PROBLEMS[name]()


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
    """A run: a problem by name, a scheme and what else `solve` takes."""

    problem: str
    scheme: rs.Scheme
    more: dict[str, Any] = {}  # noqa: RUF012 (never written to)


def _decreasing(t: int) -> float:
    return 0.2 / (1 + 0.1 * t)


COMES = [[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0], [1, 0, 1, 1, 1]]
"""Who is present in which round: users come late, one comes alone, and once nobody comes."""
TIMES = [1.0, 2.0, 3.0, 5.0, 10.0]
"""Seconds that users take to answer: the slowest is ten times slower than the fastest."""


def _rows_of_the_table() -> Iterator[tuple[str, Case]]:
    """Every row of Table 1: with everybody there, accelerated, sampled and late."""
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "anderson_on_u": {"anderson": 2},
        "anderson_on_mean": {"anderson": rs.Anderson(3, on="mean")},
        "trace_hold": {"participation": rs.Trace(COMES)},
        "trace_paper": {"participation": rs.Trace(COMES, absent="paper")},
        "stragglers": {"participation": rs.Stragglers(TIMES, close=0.5)},
    }
    for row, scheme in SCHEMES.items():
        for way, more in ways.items():
            yield f"{row}-{way}", Case("least_squares", scheme, more)
        yield f"{row}-logistic", Case("logistic", scheme)


CASES: dict[str, Case] = dict(_rows_of_the_table()) | {
    "one_gradient_step-k": Case("logistic", rs.fedavg(0.02, steps=5), {"participation": rs.Trace(COMES)}),
    "anderson_on_u_newton": Case("logistic", rs.fedpi(0.1), {"anderson": 2}),
    "anderson_on_mean_newton": Case("logistic", rs.fedavg(0.02), {"anderson": rs.Anderson(3, on="mean")}),
    "anderson_sampled": Case("logistic", rs.fedpi(0.1), {"anderson": 2, "participation": rs.Bernoulli(0.6)}),
    "momentum": Case("least_squares", rs.fedavg(0.02), {"accelerate": rs.Momentum(0.5)}),
    "auto": Case("least_squares", rs.fedpi("auto")),
    "auto_newton": Case("logistic", rs.fedsplit("auto")),
    "auto_sampled": Case("least_squares", rs.fedpi("auto"), {"participation": rs.Bernoulli(0.6)}),
    "auto_stragglers": Case("logistic", rs.fedpi("auto"), {"participation": rs.Stragglers(TIMES, close=0.5)}),
    "auto_without_curvature": Case("absolute_deviations", rs.fedpi("auto")),
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
        {"average": "suffix", "participation": rs.Trace(COMES, absent="paper")},
    ),
    "halving": Case("logistic", rs.fedpi(rs.schedules.halving(0.4, period=4)), {"anderson": 2}),
    "halving_stragglers": Case(
        "logistic", rs.fedpi(rs.schedules.halving(0.4, period=4)), {"participation": rs.Stragglers(TIMES, close=0.6)}
    ),
    "own_schedule": Case("absolute_deviations", rs.fedpi(_decreasing), {"participation": rs.Trace(COMES)}),
    "mixing_schedule": Case("least_squares", rs.Scheme(1.5, lambda t: 2 - 1 / (t + 1), 0.7, 0.1)),
    "average_ergodic": Case("logistic", rs.fedrp(0.1), {"average": "ergodic", "participation": rs.Trace(COMES)}),
    "average_suffix": Case("absolute_deviations", rs.fedpi(0.1), {"average": "suffix"}),
    "every_fourth": Case("logistic", rs.fedpi(0.1), {"every": 4}),
    "from_elsewhere": Case("logistic", rs.fedsplit(0.1), {"start": [1.0, -2.0, 0.5]}),
    "send_top": Case("least_squares", rs.fedpi(0.1), {"send": rs.TopK(0.3), "start": [1.0, -2.0, 0.5]}),
    "send_random": Case("logistic", rs.fedprox(0.1), {"send": rs.RandomK(0.6), "participation": rs.Trace(COMES)}),
    "send_quantised": Case("logistic", rs.fedpi("auto"), {"send": rs.Quantised(4), "anderson": 2}),
    "send_top_paper": Case(
        "least_squares", rs.fedrp(0.1), {"send": rs.TopK(0.6), "participation": rs.Trace(COMES, absent="paper")}
    ),
    "send_random_stragglers": Case(
        "least_squares", rs.fedpi(0.1), {"send": rs.RandomK(0.3), "participation": rs.Stragglers(TIMES, close=0.5)}
    ),
}
"""What every engine computes alike, round by round. All problems have unequal weights and users of unequal sizes."""

CURVATURE = ("auto", "auto_newton", "auto_sampled", "auto_stragglers")
"""Cases whose eta comes from users' Hessians: an engine whose users do not send them finds another one."""

COMPRESSED = tuple(name for name in CASES if name.startswith("send_"))
"""Cases that take another way where answers really cross: the server goes on with what was sent."""
