"""Step sizes (and alpha, beta, gamma) as plain functions of the round t = 0, 1, ..., with what each guarantees.

FedProx with eta_t solves the original problem when sum eta_t diverges and sum eta_t^2 converges (Theorem thm:fp).
A schedule says whether that holds, so that `explain` can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from resolvent.errors import flag, number, quoted, real, refuse, whole
from resolvent.iteration.registry import named, part


@dataclass(frozen=True)
class Schedule:
    """A number for each round. `sum_diverges` and `squares_converge` are None where nobody knows."""

    at: Callable[[int], float] = field(repr=False)
    name: str
    sum_diverges: bool | None = None
    squares_converge: bool | None = None
    vanishes: bool | None = None
    changes: str = "always"
    """How often the value changes: "never", "sometimes" or "always" (every round)."""

    def __call__(self, t: int) -> float:
        return self.at(t)

    def __str__(self) -> str:
        return self.name


def _positive(eta0: float, argument: str = "eta0") -> float:
    return float(real(eta0, argument, lambda x: 0 < x < math.inf, "a finite number > 0 is needed"))


@part("schedule", "constant")
def constant(eta0: float) -> Schedule:
    """eta_t = eta0."""
    if not isinstance(eta0, (int, float)) or isinstance(eta0, bool):
        refuse("eta0", quoted(eta0), "a number is needed")
    value = number(eta0)
    return Schedule(lambda t: value, f"{value:g}", True, False, False, "never")


@part("schedule", "harmonic")
def harmonic(eta0: float) -> Schedule:
    """eta_t = eta0 / (t + 1): the one that meets both conditions of Theorem thm:fp."""
    eta0 = _positive(eta0)
    return Schedule(lambda t: eta0 / (t + 1), f"{eta0:g} / (t+1)", True, True, True)


@part("schedule", "inverse-sqrt")
def inverse_sqrt(eta0: float) -> Schedule:
    """eta_t = eta0 / sqrt(t + 1)."""
    eta0 = _positive(eta0)
    return Schedule(lambda t: eta0 / math.sqrt(t + 1), f"{eta0:g} / sqrt(t+1)", True, False, True)


@part("schedule", "inverse-log")
def inverse_log(eta0: float, natural: bool = False) -> Schedule:
    """eta_t = eta0 / (log10(t + 1) + 1); with `natural`, eta0 / ln(t + e), as for the paper's network."""
    eta0 = _positive(eta0)
    if flag(natural, "natural"):
        return Schedule(lambda t: eta0 / math.log(t + math.e), f"{eta0:g} / ln(t+e)", True, False, True)
    return Schedule(lambda t: eta0 / (math.log10(t + 1) + 1), f"{eta0:g} / (log10(t+1)+1)", True, False, True)


@part("schedule", "inverse-ln")
def inverse_ln(eta0: float) -> Schedule:
    """eta_t = eta0 / ln(t + e), as for the paper's network."""
    return inverse_log(eta0, natural=True)


@part("schedule", "halving")
def halving(eta0: float, period: int) -> Schedule:
    """eta_t = eta0 / 2^floor(t / period): vanishes too fast, its sum is finite."""
    eta0 = _positive(eta0)
    period = whole(period, "period")
    changes = "always" if period == 1 else "sometimes"
    return Schedule(lambda t: eta0 * 2.0 ** -(t // period), f"{eta0:g} / 2^(t//{period})", False, True, True, changes)


def by_name(name: str, eta: float | None, period: int) -> Schedule:
    """eta as the schedule of this name changes it; `period` is for those that have one."""
    chosen = named("schedule", name)
    own = {"period": period} if any(field.name == "period" for field in chosen.fields) else {}
    schedule: Schedule = chosen.make(eta, **own)
    return schedule


def _number(given: Any, what: str) -> float:
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        refuse(what, quoted(given), "the function must return a number")


def as_schedule(value: float | Schedule | Callable[[int], float], argument: str) -> Schedule:
    """A number, a schedule or any function of the round, as a schedule."""
    if isinstance(value, Schedule):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return constant(value)
    if callable(value):
        name = f"{argument}({getattr(value, '__name__', 'custom')})"
        return Schedule(lambda t: _number(value(t), f"{argument} of round {t}"), name)
    refuse(argument, quoted(value), "a number, one of rs.schedules or a function of the round is needed")
