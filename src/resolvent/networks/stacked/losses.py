"""Losses over stacked users: o (users, ...features, n) and targets, to each user's loss and the gradient at o.

A loss with a stacked form is a weighted sum over images, so that images may come in any number of blocks. Any other
loss is called user by user, on all of a user's outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from resolvent.networks.mean_losses import IGNORED, TorchLoss
from resolvent.networks.stacked.layers import Shape
from resolvent.networks.stacked.pointwise import log_softmax


class StackedLoss(Protocol):
    """`takes`: whether outputs with features of this shape and targets y (users, n, ...) have this form.

    `weigh` gives each image's weight, (users, n), 0 where masked. `sums` gives each user's loss over a block, and
    writes its gradient into G. `loops` is the module `cpu_loops`,
    or `triton_kernels`, or None.
    """

    def takes(self, features: Shape, y: Tensor) -> bool: ...
    def weigh(self, y: Tensor, mask: Tensor | None, like: Tensor) -> Tensor: ...
    def sums(
        self, o: Tensor, y: Tensor, weight: Tensor, G: Tensor | None, loops: ModuleType | None = None
    ) -> Tensor: ...


def _shares(real: Tensor | None, y: Tensor, like: Tensor) -> Tensor:
    if real is None:
        return like.new_full(y.shape[:2], 1 / y.shape[1])
    real = real.to(like)  # type and device
    return real / real.sum(1, keepdim=True).clamp_min(1)  # where none is real the gradient is 0, as torch has it


@dataclass(frozen=True)
class CrossEntropy:
    """The mean of -log softmax(o)[y], or of -o[y] where o is a log softmax already."""

    logits: bool

    def takes(self, features: Shape, y: Tensor) -> bool:
        """One class per image: neither probabilities, nor a class for each place of an image."""
        return len(features) == 1 and y.ndim == 2 and y.dtype == torch.long

    def weigh(self, y: Tensor, mask: Tensor | None, like: Tensor) -> Tensor:
        if y.device.type == "cpu" and int(y.min()) != IGNORED:
            return _shares(mask, y, like)
        real = y != IGNORED  # without reading a number back, for which an accelerator would have to be synchronised
        return _shares(real if mask is None else real & mask.to(y.device).bool(), y, like)

    def sums(self, o: Tensor, y: Tensor, weight: Tensor, G: Tensor | None, loops: ModuleType | None = None) -> Tensor:
        if loops is not None and self.logits and G is not None and o.ndim == 3:
            return loops.cross_entropy(o, y, weight, G)  # type: ignore[no-any-return]
        at, w = y.clamp_min(0).unsqueeze(1), weight.unsqueeze(1)
        log, work = o, torch.empty_like(o) if G is None else G
        if self.logits:
            log = torch.empty_like(o)
            log_softmax(o, log, work)
        if G is not None:
            if self.logits:
                torch.exp(log, out=G).mul_(w)
            else:
                G.zero_()
            G.scatter_add_(1, at, -w)
        # Where the weight is 0 the loss may be infinite, and must not count.
        return torch.where(weight > 0, -log.gather(1, at).squeeze(1) * weight, 0).sum(1)


@dataclass(frozen=True)
class SquaredError:
    """The mean of (o - y)^2 over images and outputs."""

    def takes(self, features: Shape, y: Tensor) -> bool:
        """A target for each output: torch would repeat one that is smaller."""
        return y.is_floating_point() and tuple(y.shape[2:]) == features

    def weigh(self, y: Tensor, mask: Tensor | None, like: Tensor) -> Tensor:
        return _shares(mask, y, like)

    def sums(self, o: Tensor, y: Tensor, weight: Tensor, G: Tensor | None, loops: ModuleType | None = None) -> Tensor:
        w = (weight / prod(o.shape[1:-1])).view(len(o), *(1,) * (o.ndim - 2), o.shape[-1])
        error = o - y.movedim(1, -1)
        weighted = error * w
        if G is not None:
            torch.mul(weighted, 2, out=G)
        return weighted.mul_(error).flatten(1).sum(1)


def stacked_loss(mean: TorchLoss | None) -> StackedLoss | None:
    """The stacked form of a mean loss with torch's default settings, if it has one."""
    if mean is None or not mean.is_default:
        return None
    return STACKED_LOSSES.get(mean.function)


STACKED_LOSSES: dict[str, StackedLoss] = {
    "cross_entropy": CrossEntropy(logits=True),
    "nll_loss": CrossEntropy(logits=False),
    "mse_loss": SquaredError(),
}
