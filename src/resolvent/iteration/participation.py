"""Who takes part in a round, and what happens to those who do not.

`absent="hold"` (the default): only present users' rows move, and the meeting point is the mean over the latest z of
everybody seen so far. This is the randomised block Krasnoselskii-Mann iteration: FedPi converges almost surely.
`absent="paper"`: as the algorithm's paper prints it. For the rows of Table 1 that is Algorithm 1: the mean is over
present users; absent users keep their z, and their u moves with it. SCAFFOLD, FedDyn and FedADMM have rules of their
own (`Sampling`), which converge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent import randomness
from resolvent.errors import bounded, number, one_of, quoted, real, refuse, whole
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import Part
from resolvent.iteration.registry import part
from resolvent.iteration.scheme import Scheme, mix

Absent = Literal["hold", "paper"]

PROBED_ROUNDS, PROBED_USERS = 512, 10**7
"""A participation of the user's own making is asked for so many rounds who takes part, fewer where users are many."""


@remembered
@dataclass(frozen=True, eq=False)
class Presence:
    """What is remembered of who has taken part, where not everybody always does."""

    seen: Tensor | None = None
    """Under "hold": which users have answered, (users,). None: everybody counts as seen."""
    complete: bool = True
    """Whether every user has answered, wherever it lives."""
    z: Tensor | None = None
    """As Algorithm 1 is printed: every user's z, which stays while an absent user's u moves on."""
    follows: bool = False
    """As SCAFFOLD, FedDyn and FedADMM are printed: users who have not answered yet count with u_0, and are asked at the
    latest meeting point like everybody else."""

    @property
    def whose(self) -> Tensor | None:
        """The users whose rows count at a meeting, by index; None: everybody's."""
        return None if self.complete or self.follows or self.seen is None else self.seen.nonzero().flatten()

    def asked_at(self, u: Tensor, ahead: Tensor | None, who: Tensor | None) -> tuple[Tensor, Tensor]:
        """Where users stay who do not answer, (users, d), and where those asked are to answer, one row each.

        Under "hold" users move only by answering, and not before their first answer. As Algorithm 1 is printed, all
        move.
        """
        if ahead is None or self.seen is None:
            rest = u if ahead is None else ahead
            return rest, rest if who is None else rest[who]
        some = slice(None) if who is None else who
        if self.complete or self.follows:
            return u, ahead[some]
        return u, torch.where(self.seen[some].unsqueeze(1), ahead[some], u[some])

    def after(self, who: Tensor | None, every: Callable[[Tensor], bool]) -> Presence:
        """Once these users have answered; `every` says whether flags are true for all users, wherever they live."""
        if self.seen is None or self.complete:
            return self
        seen = torch.ones_like(self.seen) if who is None else self.seen.index_fill(0, who, True)
        return replace(self, seen=seen, complete=every(seen))

    def forgotten(self, u: Tensor) -> Presence:
        """Without users' z, where no later round needs them."""
        return self if self.z is None else replace(self, z=u)

    def gathered(self, z: Tensor, who: Tensor | None) -> tuple[Presence, Tensor, Tensor | None]:
        """The rows z that meet, and whose they are, once these users have answered."""
        if self.z is None:
            return self, z, self.whose
        if who is not None:  # Algorithm 1 as printed: absent users keep their z, those present meet
            z = self.z.index_copy(0, who, z[who])
        return replace(self, z=z), z, who


class Sampling(NamedTuple):
    """What a paper prints for rounds that some users miss, for algorithms that are FedPi with everybody present.

    Absent users keep the pair (u_i, p_i), and with it what the papers call the dual or control variate,
    (u_i - p_i) / eta; it is 0 before the first answer. Everybody's next u_i is u_i - p_i plus the meeting point.
    """

    present_models: bool
    """The meeting point is the mean of the models p_i of those present less that of everybody's u_i - p_i: SCAFFOLD,
    whose c moves by |S|/N, and FedDyn. Else it is the mean of everybody's latest z: FedADMM with a server step of
    |S|/N."""
    theory: str
    """Why no theorem is claimed."""

    def meeting(self, w: Tensor, p: Tensor, who: Tensor | None, mean: Callable[..., Tensor]) -> Tensor:
        """The meeting point, from the mean w of everybody's latest z and p."""
        return w + (mean(p, who) - mean(p)) if self.present_models else w


RULES = {
    "scaffold": Sampling(True, "SCAFFOLD's own theorem (Karimireddy et al., 2020) covers users drawn at random, for lr "
                               "small against 1/L, which is not checked here"),
    "feddyn": Sampling(True, "FedDyn's own theorem (Acar et al., 2021) covers users drawn at random where f_i are "
                             "convex and smooth, which is not checked here"),
    "fedadmm": Sampling(False, "FedADMM's own theorem (Gong et al., 2022) bounds gradients, on terms that are not "
                               "checked here"),
}  # fmt: skip
"""By the name that a scheme has for its paper's rule. Other schemes take Algorithm 1."""


class Attendance(NamedTuple):
    """What is known beforehand of who takes part."""

    partial: bool
    """Whether some users are absent at times, while others are present."""
    random: bool = False
    """Whether those present are drawn at random, everybody with the same chance in every round."""
    late: bool = False
    """Whether answers may come rounds after their questions."""
    ever: NDArray[np.bool_] | None = None
    """Who takes part at all, (users,), as far as can be seen; None: everybody, or it is not known."""


class Participation(Part):
    """Who takes part in a round. `full`: everyone always does. `absent`: what becomes of others, "hold" or "paper"."""

    absent = "hold"
    full = False
    asks_everybody = False
    """Whether nobody is drawn, and only those are absent who do not answer."""

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        """Who is present in round t, by index and sorted; None means everyone."""
        raise NotImplementedError

    def check(self, users: int) -> None:
        """Refuse what cannot work with this many users; called before round 0."""

    def most_present(self, users: int) -> int:
        """How many take part in a round at most, as far as that is known."""
        return users

    def attendance(self, users: int | None) -> Attendance:
        """Its law: what `explain` needs to know of it; users: None where there is no problem yet."""
        if self.full or self.asks_everybody or users == 1:
            return Attendance(False)
        if users is None:
            return Attendance(True)
        ever = np.zeros(users, dtype=bool)
        for t in range(min(PROBED_ROUNDS, 1 + PROBED_USERS // users)):
            who = self.present(0, t, users)
            ever[slice(None) if who is None else who.cpu().numpy()] = True
        return Attendance(True, ever=ever)

    def sampling(self, scheme: Scheme) -> Sampling | None:
        """The rule of the algorithm's own paper for absent users; None: "hold", Algorithm 1, or nobody is absent."""
        return None if self.full or self.absent == "hold" else RULES.get(scheme.sampling)

    def _holds(self, scheme: Scheme) -> bool:
        """Whether absent users keep their u and their answer."""
        return self.absent == "hold" or self.sampling(scheme) is not None

    def remember(self, u: Tensor, together: bool, scheme: Scheme) -> Presence:
        """Before the first round, at rows u."""
        if self.full or together:
            return Presence()
        if not self._holds(scheme):
            return Presence(z=u)
        nobody = torch.zeros(len(u), dtype=torch.bool, device=u.device)
        return Presence(nobody, False, follows=self.sampling(scheme) is not None)

    def go_on(self, past: Presence, state: Any, scheme: Scheme) -> Presence:
        """What it remembers where another participation has remembered `past`, from that run's State."""
        if self.full or state.together:
            return Presence()
        if not self._holds(scheme):
            alpha = scheme.mixing(max(state.round - 1, 0))[0]
            return Presence(z=mix(state.u, state.p, alpha) if past.z is None else past.z)
        seen, complete = past.seen, past.complete
        if seen is None:
            complete = state.next is not None
            seen = torch.full((len(state.u),), complete, device=state.u.device)
        return Presence(seen, complete, follows=self.sampling(scheme) is not None)


def _absent(absent: str) -> None:
    needed = 'either "hold" (converges) or "paper" (as printed: Algorithm 1, or SCAFFOLD\'s own) is needed'
    one_of(absent, "absent", ("hold", "paper"), needed)


@part("participation", "everyone")
@dataclass(frozen=True)
class Everyone(Participation):
    """Full participation."""

    absent: Absent = "hold"
    """What absent users do: hold converges, paper is as printed, Algorithm 1 for Table 1."""
    full = True

    def __post_init__(self) -> None:
        _absent(self.absent)

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        return None

    def __str__(self) -> str:
        return "everyone"


@part("participation", "bernoulli", key="probability")
@dataclass(frozen=True)
class Bernoulli(Participation):
    """Each user is present with probability p, independently of the others and of the past."""

    p: float
    """The probability that a user takes part in a round."""
    absent: Absent = "hold"
    """What absent users do: hold converges, paper is as printed, Algorithm 1 for Table 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", real(self.p, "p", lambda p: 0 < p <= 1, "a probability in (0, 1] is needed"))
        _absent(self.absent)

    @property
    def full(self) -> bool:  # type: ignore[override]
        return self.p == 1

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        draws = randomness.uniforms(seed, randomness.PRESENCE, t, np.arange(users))
        return None if self.full else torch.from_numpy(np.flatnonzero(draws < self.p))

    def attendance(self, users: int | None) -> Attendance:
        return Attendance(not self.full and users != 1, random=True)

    def __str__(self) -> str:
        return f"each user with probability {self.p:g}, absent users {self.absent}"


@part("participation", "fixed-size", key="size")
@dataclass(frozen=True)
class FixedSize(Participation):
    """n users a round, drawn without replacement."""

    n: int
    """The number of users who take part in a round."""
    absent: Absent = "hold"
    """What absent users do: hold converges, paper is as printed, Algorithm 1 for Table 1."""

    def __post_init__(self) -> None:
        whole(self.n, "n")
        _absent(self.absent)

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        draws = randomness.words(seed, randomness.PRESENCE, t, np.arange(users))
        return torch.from_numpy(np.sort(np.argpartition(draws, self.n - 1)[: self.n]))

    def check(self, users: int) -> None:
        if self.n > users:
            refuse("n", self.n, f"at most {users}, the number of users, can be drawn a round")

    def most_present(self, users: int) -> int:
        return self.n

    def attendance(self, users: int | None) -> Attendance:
        return Attendance(users is None or self.n < users, random=True)

    def __str__(self) -> str:
        return f"{self.n} users a round, absent users {self.absent}"


@part("participation", "trace")
@dataclass(frozen=True)
class Trace(Participation):
    """A given record of who was present: a (rounds, users) array of booleans, repeated when it ends."""

    masks: Any
    absent: Absent = "hold"

    def __post_init__(self) -> None:
        _absent(self.absent)
        bounded(self.masks, "masks")
        try:
            masks = np.asarray(self.masks.cpu() if isinstance(self.masks, Tensor) else self.masks)
        except Exception:
            refuse("masks", "no array of rows of equal lengths", "a (rounds, users) array of booleans is needed")
        if masks.ndim != 2 or not masks.size or not np.isin(masks, (0, 1)).all():
            refuse("masks", f"of shape {masks.shape}", "a (rounds, users) array of booleans is needed")
        object.__setattr__(self, "masks", masks.astype(bool))

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        return torch.from_numpy(np.flatnonzero(self.masks[t % len(self.masks)]))

    def check(self, users: int) -> None:
        if self.masks.shape[1] != users:
            refuse("masks", f"a trace of {self.masks.shape[1]} users", f"the problem has {users}")

    def most_present(self, users: int) -> int:
        return int(self.masks.sum(1).max())

    def attendance(self, users: int | None) -> Attendance:
        return Attendance(not bool(self.masks.all()), ever=self.masks.any(0))

    def __str__(self) -> str:
        return f"a trace of {len(self.masks)} rounds, absent users {self.absent}"


MAX_SECONDS, MAX_SPREAD = 1e100, 10.0
"""Times and spreads of stragglers, at most: with more, simulated seconds overflow."""


@part("participation", "stragglers", key="stragglers")
@dataclass(frozen=True)
class Stragglers(Participation):
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

    def __post_init__(self) -> None:
        bounded(self.times, "times")
        try:
            times = np.asarray(self.times.detach().cpu() if isinstance(self.times, Tensor) else self.times)
        except Exception:
            refuse("times", quoted(self.times), "a number > 0 per user, or one factor >= 1, is needed")
        if times.dtype.kind not in "iuf" or times.ndim > 1 or not times.size:
            refuse("times", quoted(self.times), "a number > 0 per user, or one factor >= 1, is needed")
        times = times.astype(np.float64)
        if not ((times > 0).all() and (times <= MAX_SECONDS).all()):
            refuse(
                "times",
                quoted(self.times),
                f"a finite number > 0 per user, or one factor >= 1, up to {MAX_SECONDS:g} is needed",
            )
        if times.ndim == 0 and not times >= 1:
            refuse("times", self.times, "a factor >= 1 between the slowest and the fastest user is needed")
        if not (isinstance(self.close, int | float) and 0 < self.close <= 1):
            refuse("close", quoted(self.close), "a share in (0, 1] is needed")
        if not (isinstance(self.spread, int | float) and 0 <= self.spread <= MAX_SPREAD):
            refuse("spread", quoted(self.spread), f"a number in [0, {MAX_SPREAD:g}] is needed")
        object.__setattr__(self, "times", times if times.ndim else float(times))

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        return None

    def check(self, users: int) -> None:
        if not isinstance(self.times, float) and len(self.times) != users:
            refuse("times", f"of length {len(self.times)}", f"the problem has {users} users")

    def attendance(self, users: int | None) -> Attendance:
        late = self.close < 1 and users != 1  # else every round waits for everybody
        return Attendance(late, late=late)

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
        quoted(given),
        "None, a probability, rs.Bernoulli, rs.FixedSize, rs.Trace or rs.Stragglers is needed",
    )
