"""Sending only what is new: compressors with memory.

The meeting remembers zhat_i, what it has of user i so far, and user i sends C(z_i - zhat_i):

    zhat_i += C(z_i - zhat_i),    w = mean(zhat)

Users go on with their own z_i in (gFL-2); where answers cross a network (`Facts.encodes`) the server, which has nothing
else, goes on with zhat_i for them. C(0) = 0, so no fixed point moves, whatever C is; without the memory the same
compressors stall. zhat begins at the start of u, which the meeting has told users itself.

What the meeting sends to users is compressed in the same way (`down`): user i is asked at uhat_i += C(u_i - uhat_i), so
that the iteration is u += C(T u - u), and pairs (uhat_i, p_i) are what everything is computed from.

Each C below is a contraction, |x - C(x)| < |x| for x != 0 (of random coordinates: on average). Convergence of such
iterations is known for other schemes: EF21 (Richtarik, Sokolov and Fatkhullin, 2021), which is FedAvg with one gradient
step and copies zhat_i that move with the model before what is new is counted, DIANA (Mishchenko et al., 2019),
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

    lossless = False
    """Whether everything crosses after all."""

    @property
    def compresses(self) -> bool:  # type: ignore[override]
        return not self.lossless

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
            what = f"{setting.parts.accelerate.title} assumes one map, and what the meeting lacks changes every round"
            findings.append(Finding(ResolventWarning, f"{what}: it can hurt", "leave it out, or compare both"))
        if setting.parts.down is self:
            behind = "no theorem here covers users who lag behind u (fixed points stay: what is new is zero there)"
            return Effect(uncovered=behind, findings=tuple(findings))
        lag = "no theorem here covers a meeting that lags behind z (fixed points stay: what is new is zero there)"
        return Effect(uncovered=lag, findings=tuple(findings))


@dataclass(frozen=True)
class _Coordinates(Compressor):
    """Some coordinates of z cross as they are, the others stay as the meeting has them."""

    share: float
    """The share of the coordinates that cross, in (0, 1]; at least one does."""
    sparse = True

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

    def encode(self, new: Tensor, old: Tensor, ask: Ask) -> dict[str, Tensor]:
        places = self.places(new - old, ask)
        return {"values": new.gather(1, places)[0], "places": places[0].int()}

    def decode(self, arrays: dict[str, Tensor], old: Tensor, ask: Ask) -> Tensor:
        dim = old.shape[1]
        count = (self.count(dim),)
        values = expected(arrays, values=(old.dtype, count), places=(torch.int32, count))
        places = values["places"].long()
        if not bool(((places >= 0) & (places < dim)).all()) or len(places.unique()) < len(places):
            raise ValueError("its places are not coordinates, each once")
        return old.scatter(1, places.unsqueeze(0), values["values"].unsqueeze(0))


@part("down", "top")
@part("send", "top")
@dataclass(frozen=True)
class TopK(_Coordinates):
    """The largest coordinates of what is new, with their places."""

    def places(self, new: Tensor, ask: Ask) -> Tensor:
        return new.abs().topk(self.count(new.shape[1]), dim=1, sorted=False).indices

    def cost(self, dim: int) -> Cost:
        if self.lossless:
            return Cost(up=dim)
        return Cost(up=self.count(dim), bytes_up=INDEX_BYTES * self.count(dim))


@part("down", "random")
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

    def encode(self, new: Tensor, old: Tensor, ask: Ask) -> dict[str, Tensor]:
        return {"values": new.gather(1, self.places(old, ask))[0]}

    def decode(self, arrays: dict[str, Tensor], old: Tensor, ask: Ask) -> Tensor:
        values = expected(arrays, values=(old.dtype, (self.count(old.shape[1]),)))["values"]
        return old.scatter(1, self.places(old, ask), values.unsqueeze(0))

    def cost(self, dim: int) -> Cost:
        return Cost(up=self.count(dim))


def expected(arrays: dict[str, Tensor], **wanted: tuple[torch.dtype, tuple[int, ...]]) -> dict[str, Tensor]:
    """The arrays, if they are those wanted, of these types and shapes."""
    if {name: (a.dtype, tuple(a.shape)) for name, a in arrays.items()} != wanted:
        raise ValueError(f"its arrays are not {' and '.join(wanted)} as they were asked for")
    return arrays


def _numbers(ask: Ask, rows: int) -> Any:
    """The numbers in the federation of those who have answered, one for each row."""
    if ask.who is None:
        return np.arange(rows) if ask.names is None else ask.names.cpu().numpy()
    who = ask.who.cpu()
    return (who if ask.names is None else ask.names.cpu()[who]).numpy()


@part("down", "quantised")
@part("send", "quantised")
@dataclass(frozen=True)
class Quantised(Compressor):
    """What is new, each coordinate rounded to a few bits, and one scale per user."""

    bits: int = 8
    """Bits per coordinate, 1 to 16; with 1, signs times the mean size."""

    def __post_init__(self) -> None:
        if whole(self.bits, "bits") > MAX_BITS:
            refuse("bits", self.bits, f"a whole number from 1 to {MAX_BITS} is needed")

    def receive(self, z: Tensor, zhat: Tensor, ask: Ask) -> Tensor:
        """Rounding to the nearest of the levels -L..L times max|x| / L errs by at most |x_j| in every coordinate."""
        return self._back(*self._codes(z - zhat), zhat)

    @property
    def _levels(self) -> int:
        return 2 ** (self.bits - 1) - 1 if self.bits > 1 else 1

    def _codes(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """Whole numbers in -L..L, (rows, d), with one bit -1 or 1, and what L stands for, (rows, 1)."""
        if self.bits == 1:
            return torch.where(new < 0, -1.0, 1.0).to(new), new.abs().mean(1, keepdim=True)
        largest = new.abs().amax(1, keepdim=True)
        return (new / largest.where(largest > 0, 1) * float(self._levels)).round(), largest

    def _back(self, codes: Tensor, scale: Tensor, old: Tensor) -> Tensor:
        return old + codes / float(self._levels) * scale

    def encode(self, new: Tensor, old: Tensor, ask: Ask) -> dict[str, Tensor]:
        codes, scale = self._codes(new - old)
        whole = (codes[0].cpu().numpy().astype(np.int64) + self._levels) // (2 if self.bits == 1 else 1)
        bits = (whole[:, None] >> np.arange(self.bits)) & 1
        return {"codes": torch.from_numpy(np.packbits(bits.astype(np.uint8))), "scale": scale[0]}

    def decode(self, arrays: dict[str, Tensor], old: Tensor, ask: Ask) -> Tensor:
        dim = old.shape[1]
        size = ((dim * self.bits + 7) // 8,)
        given = expected(arrays, codes=(torch.uint8, size), scale=(old.dtype, (1,)))
        bits = np.unpackbits(given["codes"].numpy(), count=dim * self.bits).reshape(dim, self.bits).astype(np.int64)
        whole = (bits << np.arange(self.bits)).sum(1) * (2 if self.bits == 1 else 1) - self._levels
        if whole.max() > self._levels or not float(given["scale"]) >= 0:
            raise ValueError("its codes are none of these bits")
        return self._back(torch.from_numpy(whole).to(old).unsqueeze(0), given["scale"].to(old).unsqueeze(0), old)

    def cost(self, dim: int) -> Cost:
        return Cost(up=1, bytes_up=(dim * self.bits + 7) // 8)
