"""Sending only what is new: compressors with memory.

The meeting remembers zhat_i, what it has of user i so far, and user i sends C(z_i - zhat_i):

    zhat_i += C(z_i - zhat_i),    w = mean(zhat)

Users go on with their own z_i in (gFL-2). C(0) = 0, so no fixed point moves, whatever C is; without the memory the same
compressors stall. zhat begins at the start of u, which the meeting has told users itself.

Each C below is a contraction, |x - C(x)| < |x| for x != 0 (of random coordinates: on average). Convergence of such
iterations is known for other schemes: EF21 (Richtarik, Sokolov and Fatkhullin, 2021), DIANA (Mishchenko et al., 2019),
fixed-point methods with compressed iterates (Chraibi et al., 2019, arXiv 1912.09925), ECO-FedSplit (2022). No theorem
here covers the schemes of this package, and `law` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent import randomness
from resolvent.errors import ResolventWarning, real, refuse, whole
from resolvent.iteration.engine import Ask
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import Cost, Effect, Finding
from resolvent.iteration.registry import part
from resolvent.iteration.sending import Send

INDEX_BYTES = 4
"""Of a coordinate's place in a vector."""
MAX_BITS = 16


@remembered
@dataclass(frozen=True, eq=False)
class MeetingCopy:
    """What compressors remember: zhat, the meeting's copy of every user's z, (users here, d)."""

    zhat: Tensor


class Compressor(Send):
    """zhat_i += C(z_i - zhat_i) for every user who has answered; the others' rows stay as they are."""

    compresses = True
    lossless = False
    """Whether everything crosses after all."""

    def begin(self, u: Tensor) -> MeetingCopy:
        return MeetingCopy(u)

    def fits(self, past: Any, rows: int) -> bool:
        return isinstance(past, MeetingCopy) and len(past.zhat) == rows

    def unchanged(self, z: Tensor, memory: MeetingCopy) -> Tensor:
        return z if self.lossless else memory.zhat

    def __call__(self, z: Tensor, memory: MeetingCopy, ask: Ask) -> tuple[Tensor, MeetingCopy]:
        before = memory.zhat
        if ask.who is None:
            zhat = z if self.lossless else self.receive(z, before, ask)
        elif self.lossless:
            zhat = before.index_copy(0, ask.who, z[ask.who])
        else:
            zhat = before.index_copy(0, ask.who, self.receive(z[ask.who], before[ask.who], ask))
        return zhat, MeetingCopy(zhat)

    def receive(self, z: Tensor, zhat: Tensor, ask: Ask) -> Tensor:
        """zhat + C(z - zhat), row by row, of those who have answered."""
        raise NotImplementedError

    def law(self, setting: Any) -> Effect:
        if self.lossless:
            return Effect()
        findings = []
        if setting.parts.accelerate.title:
            words = f"{setting.parts.accelerate.title} assumes one map, and what the meeting lacks changes every round"
            findings.append(Finding(ResolventWarning, f"{words}: it can hurt", "leave it out, or compare both"))
        lag = "no theorem here covers a meeting that lags behind z (fixed points stay: what is new is zero there)"
        return Effect(uncovered=lag, findings=tuple(findings))


@dataclass(frozen=True)
class _Coordinates(Compressor):
    """Some coordinates of z cross as they are, the others stay as the meeting has them."""

    share: float
    """The share of the coordinates that cross, in (0, 1]; at least one does."""

    def __post_init__(self) -> None:
        share = real(self.share, "share", lambda x: 0 < x <= 1, "a share of the coordinates in (0, 1] is needed")
        object.__setattr__(self, "share", float(share))

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        return self.share == 1

    def count(self, dim: int) -> int:
        """k, the number of coordinates that cross of d."""
        return max(1, round(self.share * dim))

    def receive(self, z: Tensor, zhat: Tensor, ask: Ask) -> Tensor:
        if not len(z):
            return zhat
        places = self.places(z - zhat, ask)
        return zhat.scatter(1, places, z.gather(1, places))

    def places(self, new: Tensor, ask: Ask) -> Tensor:
        """Which coordinates of what is new cross, (rows, k)."""
        raise NotImplementedError


@part("send", "top")
@dataclass(frozen=True)
class TopK(_Coordinates):
    """The largest coordinates of what is new in z, with their places."""

    def places(self, new: Tensor, ask: Ask) -> Tensor:
        return new.abs().topk(self.count(new.shape[1]), dim=1, sorted=False).indices

    def cost(self, dim: int) -> Cost:
        if self.lossless:
            return Cost(up=dim)
        return Cost(up=self.count(dim), bytes_up=INDEX_BYTES * self.count(dim))


@part("send", "random")
@dataclass(frozen=True)
class RandomK(_Coordinates):
    """Coordinates drawn at random, for each user and round anew; their places follow from the seed and do not cross."""

    def places(self, new: Tensor, ask: Ask) -> Tensor:
        dim = new.shape[1]
        k, coordinates = self.count(dim), np.arange(dim)
        drawn = np.empty((len(new), k), dtype=np.int64)
        for row, user in enumerate(_numbers(ask, len(new))):
            draws = randomness.words(ask.seed, randomness.COMPRESSION, ask.t, int(user), coordinates)
            drawn[row] = np.argpartition(draws, k - 1)[:k]
        return torch.from_numpy(drawn).to(new.device)

    def cost(self, dim: int) -> Cost:
        return Cost(up=self.count(dim))


def _numbers(ask: Ask, rows: int) -> Any:
    """The numbers in the federation of those who have answered, one for each row."""
    if ask.who is None:
        return np.arange(rows) if ask.names is None else ask.names.cpu().numpy()
    who = ask.who.cpu()
    return (who if ask.names is None else ask.names.cpu()[who]).numpy()


@part("send", "quantised")
@dataclass(frozen=True)
class Quantised(Compressor):
    """What is new in z, each coordinate rounded to a few bits, and one scale per user."""

    bits: int = 8
    """Bits per coordinate, 1 to 16; with 1, signs times the mean size."""

    def __post_init__(self) -> None:
        if whole(self.bits, "bits") > MAX_BITS:
            refuse("bits", self.bits, f"a whole number from 1 to {MAX_BITS} is needed")

    def receive(self, z: Tensor, zhat: Tensor, ask: Ask) -> Tensor:
        """Rounding to the nearest of the levels -L..L times max|x| / L errs by at most |x_j| in every coordinate."""
        new = z - zhat
        if self.bits == 1:
            return zhat + new.sign() * new.abs().mean(1, keepdim=True)
        largest, levels = new.abs().amax(1, keepdim=True), float(2 ** (self.bits - 1) - 1)
        code: Tensor = (new / largest.where(largest > 0, 1) * levels).round()
        return zhat + code / levels * largest

    def cost(self, dim: int) -> Cost:
        return Cost(up=1, bytes_up=(dim * self.bits + 7) // 8)
