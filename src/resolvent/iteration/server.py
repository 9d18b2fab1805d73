"""Server optimisers (FedOpt, Reddi et al., 2021): the meeting point moves by an adaptive step along mean(z) - itself.

With d = w - at, where w = mean(z) came out of the meeting point `at`, all of them are

    m <- beta1 m + (1 - beta1) d,    next = at + lr m / (sqrt(v) + tau),

and differ in v. This is the arithmetic of Flower's FedAdam, FedYogi and FedAdagrad; as there, FedAdam's lr is corrected
for the zeros that m and v start from. Where nothing moves any more, m = d = 0, so that w = at: no fixed point is
moved. But near one a step is lr/tau times as long as d: with a constant lr above about 2 tau they do not come to rest,
only near. FedAvgM is `Momentum(theta, on="mean")`, at a server step of 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.errors import real
from resolvent.iteration.acceleration import Acceleration, Gram
from resolvent.iteration.packing import remembered
from resolvent.iteration.registry import part

POSITIVE, SHARE = "a finite number > 0 is needed", "a number in [0, 1) is needed"


@remembered
@dataclass(frozen=True, eq=False)
class Moments:
    """What a server optimiser remembers: its means of steps and of their squares, and how many there were."""

    m: Tensor | None = None
    v: Tensor | None = None
    count: int = 0
    accepted: bool = True


class ServerOptimiser(Acceleration):
    """What they have in common."""

    lr: float
    beta1: float
    tau: float

    def __post_init__(self) -> None:
        rules = {"lr": POSITIVE, "tau": POSITIVE, "beta1": SHARE, "beta2": SHARE}
        for name, needed in rules.items():
            if name in self.__dataclass_fields__:  # type: ignore[attr-defined]
                fits = (lambda x: 0 < x < math.inf) if needed == POSITIVE else (lambda x: 0 <= x < 1)
                object.__setattr__(self, name, real(getattr(self, name), name, fits, needed))

    def begin(self, u: Tensor) -> Moments:
        return Moments()

    def fits(self, past: object, rows: int) -> bool:
        return isinstance(past, Moments)

    def on_mean(self, past: Moments, at: Tensor, w: Tensor, gram: Gram) -> tuple[Tensor, Moments]:
        step = w - at
        m, v = (torch.zeros_like(step) if each is None else each for each in (past.m, past.v))
        m = self.beta1 * m + (1 - self.beta1) * step
        v = self.squares(v, step.square())
        now = replace(past, m=m, v=v, count=past.count + 1)
        return at + self.rate(now.count) * m / (v.sqrt() + self.tau), now

    def squares(self, v: Tensor, new: Tensor) -> Tensor:
        """v after a step whose squares are `new`."""
        raise NotImplementedError

    def rate(self, count: int) -> float:
        """lr in the step of this number, counted from 1."""
        return self.lr


@dataclass(frozen=True)
class Forgetting(ServerOptimiser):
    """Those in which v forgets as well."""

    lr: float
    """How far a step goes."""
    beta1: float = 0.9
    """What the mean of steps keeps of its past, in [0, 1)."""
    beta2: float = 0.99
    """What v keeps of its past, in [0, 1)."""
    tau: float = 1e-3
    """What is added to sqrt(v): small steps are adapted the less, the larger it is."""


@part("accelerate", "server-adam")
@dataclass(frozen=True)
class ServerAdam(Forgetting):
    """FedAdam: v is a mean of squared steps that forgets."""

    title = "the server's Adam"

    def squares(self, v: Tensor, new: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * new

    def rate(self, count: int) -> float:
        """Corrected for the zeros that m and v start from; as in Flower, whose rounds begin at 1, by one round more."""
        return self.lr * float((1 - self.beta2 ** (count + 1)) ** 0.5 / (1 - self.beta1 ** (count + 1)))


@part("accelerate", "server-yogi")
@dataclass(frozen=True)
class ServerYogi(Forgetting):
    """FedYogi: v moves towards the squared steps by an amount that does not depend on how far it is from them."""

    title = "the server's Yogi"

    def squares(self, v: Tensor, new: Tensor) -> Tensor:
        return v - (1 - self.beta2) * new * torch.sign(v - new)


@part("accelerate", "server-adagrad")
@dataclass(frozen=True)
class ServerAdagrad(ServerOptimiser):
    """FedAdagrad: v is the sum of all squared steps."""

    lr: float
    """How far a step goes."""
    beta1: float = 0.0
    """What the mean of steps keeps of its past, in [0, 1); Flower has none."""
    tau: float = 1e-3
    """What is added to sqrt(v): small steps are adapted the less, the larger it is."""
    title = "the server's Adagrad"

    def squares(self, v: Tensor, new: Tensor) -> Tensor:
        return v + new
