"""What can go wrong, by name. Every message is one sentence: what came, what is needed, what to do."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

LONGEST = 300
"""Characters of what came, or of a name, at most."""
MAX_SENTENCE = 2000
"""Characters of a sentence, at most: what is longer quotes a name or a list without end."""


class InputError(ValueError):
    """An argument cannot be used; the message names it, says what came and what is needed."""

    def __init__(self, message: object = "") -> None:
        words = re.sub(rf"\S{{{LONGEST + 6},}}", lambda word: f"{word[0][:LONGEST]}...{word[0][-2:]}", str(message))
        half = MAX_SENTENCE // 2
        super().__init__(words if len(words) <= MAX_SENTENCE else f"{words[:half]} ... {words[-half:]}")


class StorageError(InputError):
    """A run cannot be written or read; what was written before is intact."""


class DamagedRun(StorageError):
    """A file of a run is not what was written; the message names it and says what can be done."""

    words = ""
    """What is wrong, in short."""
    run: Path | None = None
    """The run's folder."""


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


LARGEST_WHOLE = 2**63 - 1
MAX_LISTED = 1_000_000
"""Names or numbers in a list, at most."""


def whole(number: object, argument: str, least: int = 1) -> int:
    """A whole number of at least `least`, of any integer type, that 64 bits hold; a boolean is none."""
    try:
        n = operator.index(number)  # type: ignore[arg-type]
    except Exception:  # a class of the caller's may raise anything, here and below
        n = least - 1
    if n < least or isinstance(number, bool):
        refuse(argument, quoted(number), f"a whole number >= {least} is needed")
    if n > LARGEST_WHOLE:
        refuse(argument, f"a number of {n.bit_length()} bits", "a whole number below 2^63 is needed")
    return n


def number(given: object) -> float:
    """A number of any type as a float; NaN where it is none, which no range contains."""
    try:
        return math.nan if isinstance(given, str | bytes) else float(given)  # type: ignore[arg-type]
    except Exception:
        return math.nan


def real(given: Any, argument: str, fits: Callable[[float], bool], needed: str) -> float:
    """A number of any type for which `fits` holds, as Python's."""
    value = number(given)
    if math.isnan(value) or not fits(value):
        refuse(argument, quoted(given), needed)
    return given if type(given) in (int, float) else value  # a boolean is a number, but does not compute like one


def flag(given: object, argument: str) -> bool:
    """True or False, NumPy's too, or 1 or 0."""
    with suppress(Exception):
        if type(given).__name__ in ("bool", "bool_") or operator.index(given) in (0, 1):  # type: ignore[arg-type]
            return bool(given)
    refuse(argument, quoted(given), "True or False is needed")


def _numbers_in_memory() -> int:
    """How many numbers of eight bytes this machine's memory holds."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    except (AttributeError, ValueError, OSError):  # not on every system
        return 1 << 40


MAX_NUMBERS = _numbers_in_memory()


def bounded(given: Any, argument: str) -> Any:
    """What was given, refused where it says to have more numbers than memory holds.

    A range, an expanded tensor, or a sequence that makes its items when they are asked for takes no memory until it is
    read. To be asked before it is. Refused, too, where looking at it raises: a class of the caller's may do anything.
    """
    try:
        many = count(given)
    except Exception as error:
        what = f"of type {type(given).__name__}, which raises {type(error).__name__} where it is read"
        refuse(argument, what, "something that can be read is needed")
    if many > MAX_NUMBERS:
        needed = f"this machine's memory holds {MAX_NUMBERS:.2g} numbers at most"
        shape = getattr(given, "shape", None)
        refuse(argument, f"of length {many:.3g}" if shape is None else f"of shape {tuple(shape)}", needed)
    return given


def count(given: Any, depth: int = 3) -> float:
    """How many items there are in an array, or in a sequence of such: rows of a sparse one; 0 for what does not say."""
    try:
        shape = getattr(given, "shape", None)
        if isinstance(shape, tuple):
            sparse = hasattr(given, "nnz") or getattr(given, "is_sparse", False)
            return math.prod(shape[:1] if sparse else shape)
        if isinstance(given, list | tuple):
            plain = depth == 0 or {*map(type, given)} <= {int, float, bool, str}
            return len(given) if plain else sum(max(1, count(item, depth - 1)) for item in given)
        return len(given) if hasattr(type(given), "__len__") else 0
    except OverflowError:
        return math.inf
    except (TypeError, NotImplementedError):  # of a class that is no container
        return 0


def listed(given: Any, argument: str, needed: str) -> list[Any]:
    """The items of anything that has some, but for text; what never ends is refused."""
    bounded(given, argument)
    try:
        items = [] if isinstance(given, str | bytes) else list(islice(given, MAX_LISTED + 1))
        fits = not isinstance(given, str | bytes) and len(items) <= MAX_LISTED
    except Exception:
        fits = False
    if not fits:
        refuse(argument, quoted(given), needed)
    return items


def file_path(given: object, argument: str) -> Path:
    """A path of any type, with a name that a file can have."""
    try:
        path = os.fspath(given)  # type: ignore[call-overload]
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except Exception:  # no path, or a name that no file can have
        path = b""
    if not isinstance(path, str):
        refuse(argument, quoted(given), "the path of a file or folder is needed")
    return Path(path)


def one_of(given: object, argument: str, words: Iterable[str], needed: str) -> str:
    """One of some words; an array, which compares with each of them number by number, is none."""
    if not isinstance(given, str) or given not in words:
        refuse(argument, quoted(given), needed)
    return given


def quoted(given: object, form: Callable[[object], str] = repr) -> str:
    """A value as a sentence shows it; some have no such form, as a whole number of 5,000 digits has none."""
    try:
        return form(given)
    except Exception:
        return f"of type {type(given).__name__}, and cannot be shown"


def titled(given: object) -> str:
    """As an object prints itself; the name of its class where it would print its address."""
    plain = type(given).__str__ is object.__str__ and type(given).__repr__ is object.__repr__
    return type(given).__name__ if plain else str(given)


def refuse(argument: str, came: object, needed: str) -> NoReturn:
    """Raise the one sentence that every bad argument gets."""
    shown = quoted(came, str)
    shown = " ".join(shown.split()) if "\n" in shown else shown
    raise InputError(f"{argument} is {shown if len(shown) <= LONGEST else shown[:LONGEST] + '...'}, but {needed}")
