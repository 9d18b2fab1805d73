"""What can go wrong, by name. Every message is one sentence: what came, what is needed, what to do."""

from __future__ import annotations

import math
import operator
from typing import NoReturn


class InputError(ValueError):
    """An argument cannot be used; the message names it, says what came and what is needed."""


class StorageError(InputError):
    """A run cannot be written or read; what was written before is intact."""


class DamagedRun(StorageError):
    """A file of a run is not what was written; the message names it and says what can be done."""

    words = ""
    """What is wrong, in short."""


class RoundFailed(RuntimeError):
    """Code that a round called raised; the cause is what it raised. What was done before is on disk."""


class BadAnswer(RuntimeError):
    """A user's answer is not what it must be, or computing it failed; the message names the user and the round."""


class BlewUp(BadAnswer):
    """A user's answer is not finite; the run ends, and the best state so far is handed back."""


class RankLost(RuntimeError):
    """Another process of a run has failed or is gone; the message says which, and why where it has said so."""


class NotJoined(RankLost):
    """The processes of a run have not met: one of them failed before, or cannot be reached."""


class ResolventWarning(UserWarning):
    """Something runs, but not the way one might think."""


class SolvesAnotherProblem(ResolventWarning):
    """The configuration converges to something else than the minimiser of sum_i lambda_i f_i."""


class MayNotConverge(ResolventWarning):
    """No theorem promises convergence of the configuration."""


class DivergenceWarning(ResolventWarning):
    """The iteration blew up; the run ends, and the best state so far is handed back."""


class DoubtfulResult(ResolventWarning):
    """All rounds were run, but the result deserves a second look: the value rose, say, or the sets do not meet."""


def whole(number: object, argument: str, least: int = 1) -> int:
    """A whole number of at least `least`, of any integer type; a boolean is none."""
    try:
        n = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        n = least - 1
    if n < least or isinstance(number, bool):
        refuse(argument, repr(number), f"a whole number >= {least} is needed")
    return n


def number(given: object) -> float:
    """A number of any type as a float; NaN where it is none, which no range contains."""
    try:
        return math.nan if isinstance(given, str) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # the last by torch, of several numbers
        return math.nan


def refuse(argument: str, came: object, needed: str) -> NoReturn:
    """Raise the one sentence that every bad argument gets."""
    raise InputError(f"{argument} is {came}, but {needed}")
