"""Who takes part in a round, and what happens to those who do not.

`absent="hold"` (the default): only present users' rows move, and the meeting point is the mean over the latest z of
everybody seen so far. This is the randomised block Krasnoselskii-Mann iteration: FedPi converges almost surely.
`absent="paper"`: Algorithm 1 of the paper as printed. The mean is over present users; absent users keep their z,
and their u moves with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from resolvent import randomness
from resolvent.errors import refuse, whole


@runtime_checkable
class Participation(Protocol):
    """Who is present, by index and sorted; None means everyone."""

    @property
    def absent(self) -> str: ...
    @property
    def full(self) -> bool: ...
    def present(self, seed: int, t: int, users: int) -> Tensor | None: ...
    def check(self, users: int) -> None:
        """Refuse what cannot work with this many users; called before round 0."""
        ...


def _absent(absent: str) -> None:
    if absent not in ("hold", "paper"):
        refuse("absent", repr(absent), 'either "hold" (converges) or "paper" (Algorithm 1 as printed) is needed')


@dataclass(frozen=True)
class Everyone:
    """Full participation."""

    absent: str = "hold"
    full = True

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        return None

    def check(self, users: int) -> None:
        pass

    def __str__(self) -> str:
        return "everyone"


@dataclass(frozen=True)
class Bernoulli:
    """Each user is present with probability p, independently of the others and of the past."""

    p: float
    absent: str = "hold"

    def __post_init__(self) -> None:
        if not (isinstance(self.p, (int, float)) and math.isfinite(self.p) and 0 < self.p <= 1):
            refuse("p", self.p, "a probability in (0, 1] is needed")
        _absent(self.absent)

    @property
    def full(self) -> bool:
        return self.p == 1

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        draws = randomness.uniforms(seed, randomness.PRESENCE, t, np.arange(users))
        return None if self.full else torch.from_numpy(np.flatnonzero(draws < self.p))

    def check(self, users: int) -> None:
        pass

    def __str__(self) -> str:
        return f"each user with probability {self.p:g}, absent users {self.absent}"


@dataclass(frozen=True)
class FixedSize:
    """n users a round, drawn without replacement."""

    n: int
    absent: str = "hold"
    full = False

    def __post_init__(self) -> None:
        whole(self.n, "n")
        _absent(self.absent)

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        draws = randomness.words(seed, randomness.PRESENCE, t, np.arange(users))
        return torch.from_numpy(np.sort(np.argpartition(draws, self.n - 1)[: self.n]))

    def check(self, users: int) -> None:
        if self.n > users:
            refuse("n", self.n, f"at most {users}, the number of users, can be drawn a round")

    def __str__(self) -> str:
        return f"{self.n} users a round, absent users {self.absent}"


@dataclass(frozen=True)
class Trace:
    """A given record of who was present: a (rounds, users) array of booleans, repeated when it ends."""

    masks: Any
    absent: str = "hold"
    full = False

    def __post_init__(self) -> None:
        _absent(self.absent)
        try:
            masks = np.asarray(self.masks.cpu() if isinstance(self.masks, Tensor) else self.masks)
        except ValueError:
            refuse("masks", "a list of rows of unequal lengths", "a (rounds, users) array of booleans is needed")
        if masks.ndim != 2 or not masks.size or not np.isin(masks, (0, 1)).all():
            refuse("masks", f"of shape {masks.shape}", "a (rounds, users) array of booleans is needed")
        object.__setattr__(self, "masks", masks.astype(bool))

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        return torch.from_numpy(np.flatnonzero(self.masks[t % len(self.masks)]))

    def check(self, users: int) -> None:
        if self.masks.shape[1] != users:
            refuse("masks", f"a trace of {self.masks.shape[1]} users", f"the problem has {users}")

    def __str__(self) -> str:
        return f"a trace of {len(self.masks)} rounds, absent users {self.absent}"


def as_participation(given: Participation | float | Sequence[Sequence[bool]] | None) -> Participation:
    """None is everyone, a number a probability, an array a trace."""
    if given is None:
        return Everyone()
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return Bernoulli(float(given))
    if isinstance(given, (list, tuple, np.ndarray, Tensor)):
        return Trace(given)
    if isinstance(given, Participation):
        return given
    refuse("participation", repr(given), "None, a probability, rs.Bernoulli, rs.FixedSize or rs.Trace is needed")
