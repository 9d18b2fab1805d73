"""Who takes part in a round, and what happens to those who do not.

`absent="hold"` (the default): only present users' rows move, and the meeting point is the mean over the latest z of
everybody seen so far. This is the randomised block Krasnoselskii-Mann iteration: FedPi converges almost surely.
`absent="paper"`: Algorithm 1 of the paper as printed. The mean is over present users; absent users keep their z,
and their u moves with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent import randomness
from resolvent.errors import number, one_of, real, refuse, whole
from resolvent.iteration.registry import part

Absent = Literal["hold", "paper"]


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
    needed = 'either "hold" (converges) or "paper" (Algorithm 1 as printed) is needed'
    one_of(absent, "absent", ("hold", "paper"), needed)


@part("participation", "everyone")
@dataclass(frozen=True)
class Everyone:
    """Full participation."""

    absent: Absent = "hold"
    """What absent users do: hold converges, paper is Algorithm 1 as printed."""
    full = True

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        return None

    def check(self, users: int) -> None:
        pass

    def __str__(self) -> str:
        return "everyone"


@part("participation", "bernoulli", key="probability")
@dataclass(frozen=True)
class Bernoulli:
    """Each user is present with probability p, independently of the others and of the past."""

    p: float
    """The probability that a user takes part in a round."""
    absent: Absent = "hold"
    """What absent users do: hold converges, paper is Algorithm 1 as printed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", real(self.p, "p", lambda p: 0 < p <= 1, "a probability in (0, 1] is needed"))
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


@part("participation", "fixed-size", key="size")
@dataclass(frozen=True)
class FixedSize:
    """n users a round, drawn without replacement."""

    n: int
    """The number of users who take part in a round."""
    absent: Absent = "hold"
    """What absent users do: hold converges, paper is Algorithm 1 as printed."""
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


@part("participation", "trace")
@dataclass(frozen=True)
class Trace:
    """A given record of who was present: a (rounds, users) array of booleans, repeated when it ends."""

    masks: Any
    absent: Absent = "hold"
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


LONGEST, WIDEST = 1e100, 10.0
"""Times and spreads of stragglers, at most: with more, simulated seconds overflow."""


@part("participation", "stragglers", key="stragglers")
@dataclass(frozen=True)
class Stragglers:
    """Everyone takes part, but answers take time, and a round closes before the slowest have answered.

    times: the seconds that an answer takes each user, one number per user, or one factor between the slowest and the
    fastest user: speeds are then drawn log-uniformly between 1 and it, once per run, so slow users stay slow. Each
    answer's time is drawn around its user's with a lognormal `spread`. A round closes when the share `close` of those
    at work have answered. Later answers count in the round in which they arrive. close=1 waits for everyone.

    The seconds are simulated: the history's column `clock` has them, and no time is spent waiting.
    """

    times: float | Any
    """Answers take time: how many times slower the slowest user is; rounds do not wait for it."""
    close: float = 0.5
    """The share of those at work after whose answers a round closes."""
    spread: float = 0.3
    """How much the time of an answer varies."""
    absent = "hold"
    full = False

    def __post_init__(self) -> None:
        try:
            times = np.asarray(self.times.detach().cpu() if isinstance(self.times, Tensor) else self.times)
        except (TypeError, ValueError):
            refuse("times", repr(self.times), "a number > 0 per user, or one factor >= 1, is needed")
        if times.dtype.kind not in "iuf" or times.ndim > 1 or not times.size:
            refuse("times", repr(self.times), "a number > 0 per user, or one factor >= 1, is needed")
        times = times.astype(np.float64)
        if not ((times > 0).all() and (times <= LONGEST).all()):
            refuse(
                "times",
                repr(self.times),
                f"a finite number > 0 per user, or one factor >= 1, up to {LONGEST:g} is needed",
            )
        if times.ndim == 0 and not times >= 1:
            refuse("times", self.times, "a factor >= 1 between the slowest and the fastest user is needed")
        if not (isinstance(self.close, int | float) and 0 < self.close <= 1):
            refuse("close", repr(self.close), "a share in (0, 1] is needed")
        if not (isinstance(self.spread, int | float) and 0 <= self.spread <= WIDEST):
            refuse("spread", repr(self.spread), f"a number in [0, {WIDEST:g}] is needed")
        object.__setattr__(self, "times", times if times.ndim else float(times))

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        return None

    def check(self, users: int) -> None:
        if not isinstance(self.times, float) and len(self.times) != users:
            refuse("times", f"of length {len(self.times)}", f"the problem has {users} users")

    def seconds(self, seed: int, t: int, users: int) -> NDArray[np.float64]:
        """How long each user would take to answer a question asked in round t, (users,)."""
        who = np.arange(users)
        times = self.times
        if isinstance(times, float):
            times = times ** randomness.uniforms(seed, randomness.SPEEDS, 0, who)
        first, second = (randomness.uniforms(seed, randomness.DELAYS, t, who, k) for k in (0, 1))
        normal = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)  # Box and Muller
        taken: NDArray[np.float64] = times * np.exp(self.spread * normal)
        return taken

    def __str__(self) -> str:
        factor = f"up to {self.times:g} times slower" if isinstance(self.times, float) else "of given speeds"
        return f"users {factor}, rounds close after {self.close:g} of the answers"


def as_participation(given: Participation | float | Sequence[Sequence[bool]] | None) -> Participation:
    """None is everyone, a number a probability, an array a trace."""
    if given is None:
        return Everyone()
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return Bernoulli(number(given))
    if isinstance(given, (list, tuple, np.ndarray, Tensor)):
        return Trace(given)
    if isinstance(given, Participation):
        return given
    refuse(
        "participation",
        repr(given),
        "None, a probability, rs.Bernoulli, rs.FixedSize, rs.Trace or rs.Stragglers is needed",
    )
