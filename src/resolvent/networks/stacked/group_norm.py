"""Stacked group normalisation, with its affine map and a ReLU behind it in one stage."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from types import ModuleType

import torch
from torch import Tensor

from resolvent.networks.stacked.layers import Context, Shape, Unstackable, relu_backward, write_row_sums


@dataclass(frozen=True)
class GroupNorm:
    """y = w h + b with h = (x - mean) / sqrt(var + eps), over the channels and places of each group of each image.

    The weight and the bias, one number per channel, are the stage's, where it has them. `relu`: y is max(y, 0).
    The gradient at x is (g - mean g - h mean(g h)) / sqrt(var + eps), where g = G w and means are over the group.
    """

    groups: int
    eps: float
    channels: int | None = None
    relu: bool = False
    needs_output = True

    def shape(self, *shapes: Shape) -> Shape:
        channels = shapes[0][0]
        if channels % self.groups or channels != (self.channels or channels):
            raise Unstackable(f"a normalisation in {self.groups} groups, over features of shape {shapes[0]}")
        if prod(shapes[0]) == self.groups or self.eps <= 0:
            raise Unstackable("a normalisation of single numbers, or without eps")
        return shapes[0]

    def write_forward(self, ctx: Context, *xs: Tensor) -> Tensor:
        x = ctx.contiguous(xs[0], "x")
        y = ctx.empty("y", *x.shape[1:])
        mean, scale = (ctx.empty(name, self.groups, 1, x.shape[-1]) for name in ("mean", "scale"))
        if kernels := _kernels(ctx):
            chunks = kernels.chunks(x, self.groups)
            parts = [ctx.empty(name, self.groups * chunks, x.shape[-1]) for name in ("means", "squares")]
            ctx.record(kernels.moments, x, *parts, mean, scale, self.eps)
            ctx.record(kernels.standardise, x, mean, scale, ctx.weight, ctx.bias, y, self.relu)
            ctx.saved = x, mean, scale
            return y
        h = ctx.empty("h", *x.shape[1:])
        each, hs, squares = (self._grouped(t) for t in (x, h, y))
        ctx.record(torch.mean, each, 2, keepdim=True, out=mean)
        ctx.record(torch.sub, each, mean, out=hs)
        ctx.record(torch.mul, hs, hs, out=squares)
        ctx.record(torch.mean, squares, 2, keepdim=True, out=scale)
        ctx.record(scale.add_, self.eps)
        ctx.record(scale.rsqrt_)
        ctx.record(hs.mul_, scale)
        w, b = (_per_channel(each, h) for each in (ctx.weight, ctx.bias))
        if w is None:
            ctx.record(y.copy_, h)
        else:
            ctx.record(torch.mul, h, w, out=y)
        if b is not None:
            ctx.record(y.add_, b)
        if self.relu:
            ctx.record(y.clamp_min_, 0)
        ctx.saved = h, y, scale
        return y

    def write_backward(self, ctx: Context, G: Tensor) -> tuple[Tensor | None, ...]:
        G = ctx.contiguous(G)
        if kernels := _kernels(ctx):
            return (self._write_backward_kernels(ctx, G, kernels),)
        h, y, scale = ctx.saved
        if self.relu:
            ctx.record(relu_backward, G, y, 0, grad_input=G)
        product = ctx.empty("product", *h.shape[1:])
        if ctx.bias_grad is not None:
            write_row_sums(ctx, "bias", G, ctx.bias_grad, ctx.add_bias)
        if ctx.weight_grad is not None:
            ctx.record(torch.mul, G, h, out=product)
            write_row_sums(ctx, "weight", product, ctx.weight_grad, ctx.add)
        if not ctx.needs_input_grad:
            return (None,)
        if ctx.weight is not None:
            ctx.record(G.mul_, _per_channel(ctx.weight, G))
        g, hs, products = (self._grouped(t) for t in (G, h, product))
        mean, slope = (ctx.empty(name, *scale.shape[1:]) for name in ("mean", "slope"))
        ctx.record(torch.mul, G, h, out=product)
        ctx.record(torch.mean, products, 2, keepdim=True, out=slope)
        ctx.record(torch.mean, g, 2, keepdim=True, out=mean)
        ctx.record(g.sub_, mean)
        ctx.record(g.addcmul_, hs, slope, value=-1)
        ctx.record(g.mul_, scale)
        return (G,)

    def _write_backward_kernels(self, ctx: Context, G: Tensor, kernels: ModuleType) -> Tensor | None:
        (x, mean, scale), (channels, n) = ctx.saved, (G.shape[1], G.shape[-1])
        how = x, mean, scale, ctx.weight, ctx.bias
        chunks = kernels.chunks(x, channels)
        sums, products = (ctx.empty(name, channels, chunks, n) for name in ("sums", "products"))
        ctx.record(kernels.slopes, G, *how, sums, products, self.relu)
        if ctx.bias_grad is not None:
            write_row_sums(ctx, "bias", sums, ctx.bias_grad, ctx.add_bias)
        if ctx.weight_grad is not None:
            write_row_sums(ctx, "weight", products, ctx.weight_grad, ctx.add)
        if not ctx.needs_input_grad:
            return None
        means = [ctx.empty(name, *scale.shape[1:]) for name in ("g mean", "slope")]
        ctx.record(kernels.group_means, sums, products, ctx.weight, *means, G[0].numel() // self.groups // n)
        ctx.record(kernels.unstandardise, G, *how, *means, self.relu)
        return G

    def _grouped(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.groups, -1, x.shape[-1])


def _kernels(ctx: Context) -> ModuleType | None:
    """The module `triton_group_norm`, or None where Triton does not apply."""
    if ctx.kernels is None:
        return None
    from resolvent.networks.stacked import triton_group_norm as kernels

    return kernels


def _per_channel(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """Numbers (users, channels, 1) as factors of x (users, channels, ..., n)."""
    return None if parameter is None else parameter.view(len(x), -1, *(1,) * (x.ndim - 2))
