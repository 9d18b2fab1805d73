"""Stacked layers without weights or windows: activations, dropout, normalisation over channels, log-softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from resolvent.networks.stacked.layers import Here, Layer, Shape, Unstackable, relu_backward

aten = torch.ops.aten
Slope = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ReLU:
    """max(x, 0), in place where nobody needs x."""

    needs_output = True

    def shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        y = x if here.owns else here.empty("y", *x.shape[1:])
        here.do(torch.clamp_min, x, 0, out=y)
        here.kept = y
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        here.do(relu_backward, G, here.kept, 0, grad_input=G)
        return (G,)


def _separately(here: Here, x: Tensor) -> list[Tensor]:
    """On a CPU user by user: torch takes some functions of one run of numbers in another way than of several runs."""
    return list(x.split(1)) if here.tape.desk.apart else [x]


@dataclass(frozen=True)
class Pointwise:
    """Any function of each number, with torch's own derivative `slope(G, x, y)`, so that kinks fall the same way."""

    value: Callable[[Tensor], Tensor]
    slope: Slope
    needs_output = True

    def shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        y = here.empty("y", *x.shape[1:])
        for xi, yi in zip(_separately(here, x), _separately(here, y), strict=True):
            here.do(lambda xi=xi, yi=yi: yi.copy_(self.value(xi)))
        here.kept = x, y
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        G = here.whole(G)
        for Gi, xi, yi in zip(*(_separately(here, each) for each in (G, *here.kept)), strict=True):
            here.do(lambda Gi=Gi, xi=xi, yi=yi: Gi.copy_(self.slope(Gi, xi, yi)))
        return (G,)


def _of_x(derivative: Callable[..., Tensor], *args: Any) -> Slope:
    return lambda G, x, y: derivative(G, x, *args)


def _gelu(approximate: str = "none") -> Layer:
    return Pointwise(
        lambda x: F.gelu(x, approximate=approximate), lambda G, x, y: aten.gelu_backward(G, x, approximate=approximate)
    )


def _elu(alpha: float = 1.0) -> Layer:
    return Pointwise(lambda x: F.elu(x, alpha), lambda G, x, y: aten.elu_backward(G, alpha, 1.0, 1.0, False, x))


def _leaky(negative_slope: float = 0.01) -> Layer:
    return Pointwise(lambda x: F.leaky_relu(x, negative_slope), _of_x(aten.leaky_relu_backward, negative_slope, False))


def _softplus(beta: float = 1.0, threshold: float = 20.0) -> Layer:
    return Pointwise(lambda x: F.softplus(x, beta, threshold), _of_x(aten.softplus_backward, beta, threshold))


ACTIVATIONS: dict[str, Callable[..., Layer]] = {
    "relu": ReLU,
    "tanh": lambda: Pointwise(torch.tanh, lambda G, x, y: aten.tanh_backward(G, y)),
    "sigmoid": lambda: Pointwise(torch.sigmoid, lambda G, x, y: aten.sigmoid_backward(G, y)),
    "silu": lambda: Pointwise(F.silu, _of_x(aten.silu_backward)),
    "gelu": _gelu,
    "elu": _elu,
    "leaky_relu": _leaky,
    "softplus": _softplus,
}


@dataclass(frozen=True)
class Dropout:
    """x times the noise that is drawn for this layer: 0, or 1 / (1 - p). Without noise it does nothing."""

    p: float
    needs_output = True

    def shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        noise = here.kept
        if noise is None:
            return x
        y = here.empty("y", *x.shape[1:])
        here.do(torch.mul, x, noise, out=y)
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        if here.kept is not None:
            here.do(G.mul_, here.kept)
        return (G,)


@dataclass(frozen=True)
class LocalResponseNorm:
    """y = x s^-beta with s = k + alpha / size * (the sum of x^2 over `size` channels around)."""

    size: int
    alpha: float
    beta: float
    k: float
    needs_output = True

    def shape(self, *shapes: Shape) -> Shape:
        if len(shapes[0]) < 2:
            raise Unstackable("a normalisation over channels that are not there")
        return shapes[0]

    def _around(self, here: Here, name: str, q: Tensor, before: int) -> Tensor:
        """Sums of q over the channels from c - before to c - before + size - 1."""
        total = here.empty(name, *q.shape[1:])
        here.do(total.copy_, q)
        channels = q.shape[1]
        for shift in range(-before, self.size - before):
            length = channels - abs(shift)
            if shift and length > 0:
                here.do(total.narrow(1, max(0, -shift), length).add_, q.narrow(1, max(0, shift), length))
        return total

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        y, power = here.empty("y", *x.shape[1:]), here.empty("power", *x.shape[1:])
        here.do(torch.mul, x, x, out=y)
        s = self._around(here, "s", y, self.size // 2)
        here.do(s.mul_, self.alpha / self.size)
        here.do(s.add_, self.k)
        if self.beta == 0.75:  # roots are many times faster than powers
            here.do(torch.sqrt, s, out=power)
            here.do(power.mul_, s)
            here.do(power.rsqrt_)
        else:
            here.do(torch.pow, s, -self.beta, out=power)
        here.do(torch.mul, x, power, out=y)
        here.kept = x, s, power
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        x, s, power = here.kept
        here.do(G.mul_, power)
        q = power  # which has done its work
        here.do(torch.mul, G, x, out=q)
        here.do(q.div_, s)
        around = self._around(here, "around", q, (self.size - 1) // 2)
        here.do(G.addcmul_, x, around, value=-2 * self.alpha * self.beta / self.size)
        return (G,)


@dataclass(frozen=True)
class LogSoftmax:
    """x - log sum exp x over the first feature axis."""

    needs_output = True

    def shape(self, *shapes: Shape) -> Shape:
        return shapes[0]

    def forward(self, here: Here, *xs: Tensor) -> Tensor:
        (x,) = xs
        y, e = here.empty("y", *x.shape[1:]), here.empty("e", *x.shape[1:])
        here.do(log_softmax, x, y, e)
        here.kept = y, e
        return y

    def backward(self, here: Here, G: Tensor) -> tuple[Tensor | None, ...]:
        y, e = here.kept
        here.do(torch.exp, y, out=e)
        here.do(lambda: G.sub_(e.mul_(G.sum(1, keepdim=True))))
        return (G,)


def log_softmax(x: Tensor, y: Tensor, e: Tensor) -> None:
    """y = x - log sum exp x over axis 1; e is room to work in."""
    torch.sub(x, x.amax(1, keepdim=True), out=y)
    torch.exp(y, out=e)
    y.sub_(e.sum(1, keepdim=True).log_())
