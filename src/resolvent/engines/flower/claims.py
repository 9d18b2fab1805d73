"""What nodes say of themselves, beside what the others say: a claim out of proportion is refused by name."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from torch import Tensor

from resolvent.engines.flower.asking import Note
from resolvent.errors import InputError

MAJORITY = 0.5
"""The weight above which one user decides more than all others together, which is pointed out."""


def check_constants(
    what: str,
    names: Sequence[str],
    constants: Sequence[float | None],
    most: float,
    small: bool = False,
    power: int = 4,
) -> None:
    """Refuse a number of more than `most`^power times the median of the others', or that many times `small`er.

    Constants of f_i follow from the number of rows, the scale of the targets and the square of that of the features:
    each of the three may differ by `most`, so that other units are no reason to refuse anybody.
    """
    given = {user: float(x) for user, x in zip(names, constants, strict=True) if x is not None and x > 0}
    for user, own, low, high in _beside(given):
        if (own / high) ** (1 / power) > most or (small and (low / own) ** (1 / power) > most):
            times = f"{most:g}^{power}" if power > 1 else f"{most:g}"
            raise InputError(
                f"{what} is {own:.3g} on node {user}, but the median of the other users is {high:.3g}, more than "
                f"{times} times apart; correct that node's problem, or raise federation.max_weight"
            )


def check_weights(names: Sequence[str], samples: Sequence[int], weights: Tensor, most: float) -> None:
    """Refuse a weight, as it follows from users' own numbers of rows, that is out of proportion to the others'."""
    rows = dict(zip(names, samples, strict=True))
    for user, own, _, median in _beside(dict(zip(names, weights.tolist(), strict=True))):
        if own > most * median:
            raise InputError(
                f"node {user} says that it has {rows[user]} rows, which gives it {own / median:.3g} times the weight "
                f"of the other users (their median), but at most {most:g} times is accepted; agree on the weights in "
                'federation.weights, such as "site-0=2, site-1=1", or raise federation.max_weight'
            )


def _beside(numbers: dict[str, float]) -> Iterator[tuple[str, float, float, float]]:
    """Each user's number and the two medians of the others': of an even number of them, one alone shifts no median."""
    for user, own in numbers.items():
        others = [number for name, number in numbers.items() if name != user]
        if others:
            yield user, own, statistics.median_low(others), statistics.median_high(others)


def show_weights(
    names: Sequence[str], weights: Tensor, sizes: Tensor | None, note: Note, by_rows: bool = False
) -> None:
    """An event with everybody's weight, and another where one user decides more than all others together.

    by_rows: whether every row counts the same, by equal weights where f_i is a sum over its rows.
    """
    lam = weights.tolist()
    rows = ["" if sizes is None else f" ({n} rows)" for n in (lam if sizes is None else sizes.tolist())]
    shown = ", ".join(f"{u} {w:.4g}{n}" for u, w, n in zip(names, lam, rows, strict=True))
    sums = by_rows and sizes is not None and len(set(lam)) == 1 < len(set(sizes.tolist()))
    note("weights", reason=shown + ": each f_i is a sum over its rows, so every row counts the same" * sums)
    for user, weight in zip(names, lam, strict=True):
        if weight > MAJORITY and len(names) > 1:
            note("majority", user=user, reason=f"{user} has {weight:.1%} of the weight, more than all others together")
