"""Problems, tables of runs and comparisons that the tests of `solve` share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.iteration.table import named

quietly = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

COLUMNS = ["round", "eta", "value", "gap", "residual", "consensus", "stationarity"]
TRAFFIC = ["participants", "bytes_up", "bytes_down", "seconds"]


@cache
def squares() -> rs.LeastSquares:
    return rs.make_least_squares(users=6, dim=4, rows=20, shift=1.0)


@cache
def logistic() -> rs.Logistic:
    return rs.make_logistic(users=5, dim=3, rows=30)


@cache
def logistic_of(*sizes: int, dim: int) -> rs.Logistic:
    """Users of these sizes."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal(dim)
    A = [rng.standard_normal((n, dim)) for n in sizes]
    b = [np.where(rng.random(len(a)) < 1 / (1 + np.exp(-a @ w)), 1.0, -1.0) for a in A]
    return rs.Logistic(A, b, reg=0.05)


def unequal_logistic() -> rs.Logistic:
    """Users whose sizes fall into several buckets."""
    return logistic_of(20, 21, 40, 45, 5, dim=6)


@cache
def papers_squares() -> rs.LeastSquares:
    return rs.make_least_squares()


@cache
def deviations() -> rs.AbsoluteDeviations:
    rng = np.random.default_rng(1)
    return rs.AbsoluteDeviations(rng.standard_normal((7, 3)), rng.standard_normal(7))


def gap(run: rs.Run) -> float:
    return float(run.history.gap.iloc[-1])


def same_bits(one: Any, other: Any, where: str = "state") -> None:
    """Every tensor and every number of two States, however deep inside; NaN is itself."""
    assert type(one) is type(other), where
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, where
        assert one.shape == other.shape, where
        assert torch.equal(one.isnan(), other.isnan()), where
        assert torch.equal(one[~one.isnan()], other[~other.isnan()]), where
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            same_bits(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            same_bits(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, tuple):
        assert len(one) == len(other), where
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            same_bits(a, b, f"{where}[{k}]")
    else:
        assert one == other or (one != one and other != other), where


def same_history(one: pd.DataFrame, other: pd.DataFrame) -> None:
    without = [frame.drop(columns="seconds").reset_index(drop=True) for frame in (one, other)]
    pd.testing.assert_frame_equal(without[0], without[1], check_exact=True)


def case(problem: Callable[[], Any], scheme: rs.Scheme | str, name: str, **more: Any) -> Any:
    return pytest.param(problem, scheme, more, id=name)


SAMPLED = {
    "bernoulli": rs.Bernoulli(0.5),
    "bernoulli_paper": rs.Bernoulli(0.5, absent="paper"),
    "fixed_size": rs.FixedSize(2),
    "fixed_size_paper": rs.FixedSize(2, absent="paper"),
    "trace": rs.Trace([[True, False, True, False, True, False], [False] * 6, [False, True, True, False, False, True]]),
}
RESUMED = [
    *(case(squares, named(name, 0.02), name) for name in rs.TABLE),
    *(case(deviations, named(name, 0.1), f"deviations_{name}") for name in ("fedpi", "fedprox")),
    case(squares, rs.fedavg(0.01, steps=5), "fedavg_5"),
    case(squares, rs.Scheme(1.5, 1.2, lambda t: 1 / (1 + t % 3), 0.02), "mixing_schedule"),
    *(case(squares, rs.fedpi(0.02), f"fedpi_{name}", participation=who) for name, who in SAMPLED.items()),
    *(case(squares, rs.fedprox(0.02), f"fedprox_{name}", participation=who) for name, who in SAMPLED.items()),
    case(squares, rs.fedpi(0.02), "anderson_on_u", anderson=2),
    case(squares, rs.fedpi(0.02), "anderson_on_mean", anderson=rs.Anderson(3, on="mean")),
    case(squares, rs.fedprox(0.02), "anderson_on_one_u", anderson=3),
    case(squares, rs.fedavg(0.01, steps=2), "anderson_on_mean_one_u", anderson=rs.Anderson(3, on="mean")),
    case(deviations, rs.fedpi(1.0), "anderson_with_rejections", anderson=5),
    case(squares, rs.fedpi(0.02), "anderson_sampled", anderson=2, participation=rs.Bernoulli(0.5)),
    case(logistic, rs.fedpi(0.3), "newton"),
    case(logistic, rs.fedprox(0.3), "newton_one_u"),
    case(logistic, rs.fedpi(0.3), "newton_sampled", participation=rs.Bernoulli(0.5)),
    case(logistic, rs.fedprox(0.3), "newton_one_u_sampled", participation=rs.Bernoulli(0.5, absent="paper")),
    case(logistic, rs.fedpi(0.3), "newton_anderson", anderson=2),
    case(unequal_logistic, rs.fedpi(0.1), "newton_unequal"),
    case(unequal_logistic, rs.fedpi(0.1), "newton_unequal_sampled", participation=rs.Bernoulli(0.5)),
    case(unequal_logistic, rs.fedprox(0.3), "newton_unequal_fixed_size", participation=rs.FixedSize(2)),
    case(squares, rs.fedprox(0.02), "ergodic", average="ergodic"),
    case(squares, rs.fedprox(0.02), "suffix", average="suffix"),
    case(squares, "fedpi", "auto"),
    case(logistic, "fedsplit", "auto_newton"),
    case(squares, "fedpi", "auto_anderson", anderson=2),
    case(squares, "fedpi", "auto_sampled", participation=rs.Bernoulli(0.5)),
    case(squares, rs.fedprox(rs.schedules.harmonic(0.1)), "harmonic"),
    case(squares, rs.fedpi(rs.schedules.inverse_sqrt(0.1)), "inverse_sqrt"),
    case(logistic, rs.fedpi(rs.schedules.halving(0.5, period=3)), "halving_newton", anderson=2),
    case(squares, rs.fedavg(0.005, local=rs.GradientSteps(2, batch=6)), "batches"),
    case(squares, rs.fedavg(0.005, local=rs.GradientSteps(2, batch=6, momentum=0.5)), "batches_momentum"),
    case(logistic, rs.fedpi(0.1, local=rs.GradientProx(3, batch=7)), "batches_prox", participation=rs.FixedSize(3)),
]
