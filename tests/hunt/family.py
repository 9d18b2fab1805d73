"""A family of random cases: how one is drawn and checked, and how many are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Check = Callable[[int], str]
"""Draws the case of a seed and checks it against independent code. Raises AssertionError where the package is wrong;
otherwise says in a word how the case ended: "right", "refused", "warned", "diverged"."""


@dataclass(frozen=True)
class Family:
    """Half of `few` cases are tried by `make test`, `many` by `make hunt`. A case is a pure function of its seed."""

    name: str
    check: Check
    few: int
    many: int
