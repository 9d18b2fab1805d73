"""Stacked layers without weights or windows: activations, dropout, normalisation over channels, log-softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from resolvent.networks.stacked.layers import Context, Layer, SameShape, Shape, Unstackable, relu_backward

aten = torch.ops.aten
Derivative = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ReLU(SameShape):
    """max(x, 0), in place where no other layer reads x."""

    needs_output = True

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        y = x if ctx.owns_input else ctx.empty("y", *x.shape[1:])
        ctx.record(torch.clamp_min, x, 0, out=y)
        ctx.saved = y
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        ctx.record(relu_backward, G, ctx.saved, 0, grad_input=G)
        return (G,)


def _separately(ctx: Context, x: Tensor) -> list[Tensor]:
    """On a CPU one tensor per user: some functions give other bits on strided tensors than on contiguous ones."""
    return list(x.split(1)) if ctx.tape.workspace.aligned else [x]


@dataclass(frozen=True)
class Pointwise(SameShape):
    """Any function of each number; `derivative(G, x, y)` is torch's own backward function, so that kinks agree."""

    value: Callable[[Tensor], Tensor]
    derivative: Derivative
    needs_output = True

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        y = ctx.empty("y", *x.shape[1:])
        for xi, yi in zip(_separately(ctx, x), _separately(ctx, y), strict=True):
            ctx.record(lambda xi=xi, yi=yi: yi.copy_(self.value(xi)))
        ctx.saved = x, y
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        G = ctx.contiguous(G)
        for Gi, xi, yi in zip(*(_separately(ctx, each) for each in (G, *ctx.saved)), strict=True):
            ctx.record(lambda Gi=Gi, xi=xi, yi=yi: Gi.copy_(self.derivative(Gi, xi, yi)))
        return (G,)


def _of_x(derivative: Callable[..., Tensor], *args: Any) -> Derivative:
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
class Dropout(SameShape):
    """x times the noise drawn for this layer, 0 or 1 / (1 - p). Without noise it does nothing."""

    p: float
    needs_output = True

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        noise = ctx.saved
        if noise is None:
            return x
        y = ctx.empty("y", *x.shape[1:])
        ctx.record(torch.mul, x, noise, out=y)
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.saved is not None:
            ctx.record(G.mul_, ctx.saved)
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

    def _write_window_sums(self, ctx: Context, name: str, q: Tensor, before: int) -> Tensor:
        """Record the sums of q over the channels from c - before to c - before + size - 1."""
        total = ctx.empty(name, *q.shape[1:])
        ctx.record(total.copy_, q)
        channels = q.shape[1]
        for shift in range(-before, self.size - before):
            length = channels - abs(shift)
            if shift and length > 0:
                ctx.record(total.narrow(1, max(0, -shift), length).add_, q.narrow(1, max(0, shift), length))
        return total

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        y = ctx.empty("y", *x.shape[1:])
        if ctx.kernels is not None and self.beta == 0.75 and x.is_contiguous():
            s = ctx.empty("s", *x.shape[1:])
            ctx.record(ctx.kernels.normalise, x, y, s, self.size, self.alpha, self.k)
            ctx.saved = x, s, None
            return y
        power = ctx.empty("power", *x.shape[1:])
        ctx.record(torch.mul, x, x, out=y)
        s = self._write_window_sums(ctx, "s", y, self.size // 2)
        ctx.record(s.mul_, self.alpha / self.size)
        ctx.record(s.add_, self.k)
        if self.beta == 0.75:  # roots are many times faster than powers
            ctx.record(torch.sqrt, s, out=power)
            ctx.record(power.mul_, s)
            ctx.record(power.rsqrt_)
        else:
            ctx.record(torch.pow, s, -self.beta, out=power)
        ctx.record(torch.mul, x, power, out=y)
        ctx.saved = x, s, power
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        x, s, power = ctx.saved
        if power is None:
            dx = ctx.empty("dx", *x.shape[1:])
            ctx.record(ctx.kernels.unnormalise, ctx.contiguous(G), x, s, dx, self.size, self.alpha)
            return (dx,)
        ctx.record(G.mul_, power)
        q = power  # which is no longer needed
        ctx.record(torch.mul, G, x, out=q)
        ctx.record(q.div_, s)
        around = self._write_window_sums(ctx, "around", q, (self.size - 1) // 2)
        ctx.record(G.addcmul_, x, around, value=-2 * self.alpha * self.beta / self.size)
        return (G,)


@dataclass(frozen=True)
class LogSoftmax(SameShape):
    """x - log sum exp x over the first feature axis."""

    needs_output = True

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        (x,) = xs
        y, e = ctx.empty("y", *x.shape[1:]), ctx.empty("e", *x.shape[1:])
        ctx.record(log_softmax, x, y, e)
        ctx.saved = y, e
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        y, e = ctx.saved
        ctx.record(torch.exp, y, out=e)
        ctx.record(lambda: G.sub_(e.mul_(G.sum(1, keepdim=True))))
        return (G,)


def log_softmax(x: Tensor, y: Tensor, e: Tensor) -> None:
    """y = x - log sum exp x over axis 1; e is scratch memory."""
    torch.sub(x, x.amax(1, keepdim=True), out=y)
    torch.exp(y, out=e)
    y.sub_(e.sum(1, keepdim=True).log_())
