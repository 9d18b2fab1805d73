"""The meeting that `privacy` makes: clipped contributions, one noisy sum, and the books of what was spent."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent import randomness
from resolvent.errors import InputError
from resolvent.iteration import accountant
from resolvent.iteration.accountant import Stretches
from resolvent.iteration.meeting import Gathering, Meet, Met
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import Effect
from resolvent.iteration.privacy import UserPrivacy
from resolvent.iteration.scheme import mix

QUANTILE_RATE = 0.2
"""How fast `clip` follows the quantile (Andrew et al., 2021)."""
QUANTILE_SHARE = 20
"""The noise of the count of users within `clip` is the number expected over this, as they have it."""
COUNTED_UNIT = 0.5
"""By so much one user changes that count, of +1/2 and -1/2."""


@remembered
@dataclass(frozen=True, eq=False)
class Spent:
    """What a private meeting remembers; all of it may be known to everybody."""

    centre: Tensor
    """x, (1, d): what mean(u) would be if what was released were all there is."""
    mean: Tensor
    """The last noisy mean, (1, d)."""
    clip: float
    noise: float
    """As a multiple of clip."""
    epsilon: float | None
    """The budget; None where noise was given, NaN where rounds were released twice and noise must be found anew."""
    delta: float
    stretches: Stretches = ()
    """The rounds done, as the accountant has them."""

    @property
    def rounds(self) -> int:
        return sum(rounds for _, _, rounds in self.stretches)


@dataclass(frozen=True)
class PrivateMean(Meet):
    """The mean of clipped contributions with noise."""

    privacy: UserPrivacy
    noise: float
    """As a multiple of clip."""
    rate: float
    """The chance of a user to take part in a round."""
    users: int
    planned: int = 0
    """Rounds asked for, with those done before at this noise."""
    needs_rows = releases = True

    @property
    def expected(self) -> float:
        """The number of users who are expected in a round: the divisor."""
        return self.rate * self.users

    def shown(self, came: int) -> int:
        return round(self.expected)

    def centre(self, at: Gathering, memory: Spent) -> Tensor:
        return memory.centre

    def begin(self, u: Tensor) -> Spent:
        start, own = u[:1].clone(), self.privacy
        assert own.delta is not None
        return Spent(start, start, own.clip, self.noise, own.epsilon, own.delta)

    def fits(self, past: Any, rows: int) -> bool:
        return isinstance(past, Spent)

    def __call__(self, at: Gathering, memory: Spent) -> tuple[Met, Spent]:
        who = torch.arange(len(at.z), device=at.z.device) if at.who is None else at.who
        new, within = clipped(at.z[who] - memory.centre, memory.clip)
        spread, counted = self.noise, None
        if self.privacy.quantile is not None:
            counted = self.expected / QUANTILE_SHARE
            spread = beside_count(self.noise, counted)
        total, size = new.sum(0, keepdim=True, dtype=torch.float64), spread * memory.clip
        if self.privacy.local:
            each = (drawn(at, tied(row, size), len(row), user) for user, row in zip(who.tolist(), new, strict=True))
            draws = sum(each, np.zeros(new.shape[1]))
        else:
            draws = drawn(at, tied(total, size), new.shape[1])
        noisy = total + torch.from_numpy(size * draws).to(total)
        mean = (memory.centre + noisy / self.expected).to(memory.centre)
        clip = memory.clip if counted is None else self._followed(memory.clip, within, counted, at)
        stretches = accountant.longer(
            memory.stretches, self.noise * self.unit, 1.0 if self.privacy.local else self.rate
        )
        own = self.privacy
        assert own.delta is not None
        return Met(mean), Spent(memory.centre, mean, clip, self.noise, own.epsilon, own.delta, stretches)

    def _followed(self, clip: float, within: Tensor, counted: float, at: Gathering) -> float:
        """The next clip: a noisy share of those present are within this one."""
        assert self.privacy.quantile is not None
        count = (within.double() - COUNTED_UNIT).sum()
        noisy = float(count) + counted * float(drawn(at, tied(count, counted), 1, COUNT)[0])
        share = noisy / self.expected + COUNTED_UNIT
        return clip * math.exp(-QUANTILE_RATE * (share - self.privacy.quantile))

    @property
    def unit(self) -> float:
        """What a unit of noise counts as: of one user's own report any two values may have to be told apart, which are
        up to 2 clip from each other."""
        return 0.5 if self.privacy.local else 1.0

    def moved(self, memory: Spent, met: Tensor, beta: float, gamma: float) -> Spent:
        return replace(memory, centre=mix(memory.centre, mix(memory.mean, met, beta), gamma))

    def law(self, setting: Any) -> Effect:
        cut = f"contributions are cut to length {self.privacy.clip:g} and noise is added"
        return Effect(
            solves="unknown",
            why=f"{cut}: where they are cut, fixed points are others, and with noise nothing comes to rest",
            advice="judge the model by public data, and compare with a run without privacy where that may be made",
            uncovered=f"no theorem here covers it, since {cut}",
        )


# --- the mechanism ---------------------------------------------------------------------------------------------------

COUNT = -1
"""In place of a user's number where the noise of the count is drawn."""
SUM = -2
"""The same where that of the sum is."""


def clipped(rows: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Rows no longer than clip, and which were so before; rows that have no finite length count as zero."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    finite = torch.isfinite(lengths)
    cut = torch.where(lengths > clip, rows * (clip / lengths).to(rows), rows)
    return torch.where(finite, cut, torch.zeros_like(rows)), (finite & (lengths <= clip))[:, 0]


def beside_count(noise: float, counted: float) -> float:
    """The noise of the sum with which both, the sum and the count, spend no more than a sum alone at `noise`."""
    rest = noise**-2 - (COUNTED_UNIT / counted) ** 2
    if not rest > 0:
        raise InputError(
            f"privacy.quantile is given, but with about {QUANTILE_SHARE * counted:g} users in a round the count of "
            f"those within clip is too noisy for a noise of {noise:.3g}: leave it out"
        )
    return float(rest**-0.5)


def tied(hidden: Tensor, size: float) -> int:
    """A number made of what the noise hides and of its size. Two runs of one seed that differ in either have different
    noise, which would else cancel in the difference of what they release."""
    raw = hidden.detach().double().cpu().numpy().tobytes() + struct.pack("<d", size)
    return int.from_bytes(hashlib.blake2b(raw, digest_size=7).digest(), "little")


def drawn(at: Gathering, tie: int, numbers: int, whose: int = SUM) -> NDArray[np.float64]:
    """Standard normal numbers: those of a cryptographic generator where users are real, else hashed ones."""
    if at.secret:
        bits = np.frombuffer(os.urandom(16 * numbers), np.uint64).reshape(2, numbers)
        first, second = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    else:
        place = (at.seed, randomness.NOISE, at.t, tie, np.full(numbers, whose), np.arange(numbers))
        first, second = (randomness.uniforms(*place, k) for k in (0, 1))
    normal: NDArray[np.float64] = np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second)
    return normal
