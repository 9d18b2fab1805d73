"""What a user adds to a sum that nobody can open, and what the server reads from the sum.

The words of a user are its weight times: p - u, whole multiples of 2^exponent; |p - u|^2; the bound on the error of p;
and the value and the metrics of each model that came with the question.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from resolvent.engines.flower.masking import (
    DIGITS,
    Words,
    from_words,
    number_from_words,
    number_to_words,
    to_words,
)
from resolvent.engines.flower.messages import NUMBER_WORDS, Answer, Question
from resolvent.engines.flower.packets import Malformed

MAX_EXPONENT = 1000


def counted(words: Words, question: Question) -> Tensor:
    """What the server has of p - since once this user's words are in the sum: rounded, and without the weight."""
    d = 0 if question.u is None else question.u.shape[1]
    step = from_words(words[:d], int(question.secure["exponent"])) / (question.secure["weight"] or 1.0)
    return torch.from_numpy(step).unsqueeze(0)


def mixing_of(terms: dict[str, Any]) -> tuple[float, float, float]:
    """alpha, beta and gamma of a scheme whose u_i stay with the users."""
    given = terms["mixing"]
    if not (isinstance(given, list) and len(given) == 3 and all(type(x) is float and 0 <= x <= 2 for x in given)):
        raise Malformed("mixing is not alpha, beta and gamma")
    return tuple(given)


class Sums(NamedTuple):
    """Sums over the users who answered, each weighted."""

    step: Any
    """Of p - u, (d,), in float64."""
    square: float
    """Of |p - u|^2; NaN where it is not known."""
    error: float | None
    means: dict[str, list[float]]
    """By metric, one number per model."""


def exponent_of(u: Tensor) -> int:
    """The resolution of p - u, as a power of two: 44 bits below the largest coordinate of u, or below 1."""
    largest = float(u.abs().max())
    return (math.frexp(largest)[1] if largest > 0 else 0) - DIGITS


def in_words(question: Question, answer: Answer, since: Tensor) -> Words | None:
    """The words of a user; None where one of them has no room in the sum. `since`: what p is counted from."""
    terms = question.secure
    weight, exponent, users, names = (terms.get(name) for name in ("weight", "exponent", "users", "metrics"))
    if type(weight) is not float or not 0 <= weight <= 1 or type(users) is not int or users < 1:
        raise Malformed("a sum needs a weight from 0 to 1, and the number of users")
    if type(exponent) is not int or abs(exponent) > MAX_EXPONENT or not isinstance(names, list):
        raise Malformed("a sum needs an exponent and the names of metrics")
    parts: list[Words] = []
    if answer.p is not None:
        move = (answer.p.double().cpu() - since.double().cpu()).numpy().ravel()
        step = to_words(weight * move, exponent, users)
        if step is None:
            return None
        error = None if answer.error is None else weight * answer.error
        parts += [step, number_to_words(weight * float(move @ move)), number_to_words(error)]
    for k in range(0 if question.models is None else len(question.models)):
        for name in names:
            row = answer.values if name == "value" else answer.metrics.get(name)
            parts.append(number_to_words(None if row is None else weight * row[k]))
    return np.concatenate(parts)


def from_sum(question: Question, words: Words, users: int) -> Sums:
    """What the sum of so many users' words says."""
    d = 0 if question.u is None else question.u.shape[1]
    step = from_words(words[:d], int(question.secure["exponent"]))
    numbers = [number_from_words(row, users) for row in words[d:].reshape(-1, NUMBER_WORDS)]
    square, error = (numbers.pop(0), numbers.pop(0)) if question.verb == "local" else (None, None)
    names: list[str] = question.secure["metrics"]
    table = {name: [math.nan if x is None else x for x in numbers[at :: len(names)]] for at, name in enumerate(names)}
    return Sums(step, math.nan if square is None else square, error, table)
