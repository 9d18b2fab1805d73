"""All users' losses and gradients of one network at once, in the fastest way that its layers allow.

The way follows from the device and from what the module is made of, never from a measurement, so that results are the
same bits in every process:

stacked   every layer has a stacked form (`layers.py`)
vmap      on an accelerator, where all layers are products and pointwise: many small users in few launches
loop      everything else, one user after the other
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from resolvent.errors import refuse
from resolvent.problems.neural.desk import loops_for
from resolvent.problems.neural.flat import Layout
from resolvent.problems.neural.layers import Unstackable
from resolvent.problems.neural.losses import known
from resolvent.problems.neural.plain import Buffers, Given, Loop, Vmap, drops_out
from resolvent.problems.neural.pointwise import Dropout
from resolvent.problems.neural.stacked import Stacked
from resolvent.problems.neural.trace import trace

VECTORISED = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Flatten, nn.Identity, nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid)
"""Layers that torch vectorises over users into batched kernels; a convolution becomes a grouped one, which is slow."""


class Slopes(NamedTuple):
    """Each user's loss (users,) and gradient (users, d), and the module's buffers (users, ...) as it left them."""

    loss: Tensor
    grad: Tensor
    buffers: Buffers


class Ways:
    """One architecture for all users. The module is copied, and never changed.

    `loss(output, target)` gives the mean over a user's rows. Layers are in the mode in which they come: training, as a
    rule. Dropout is on where `seeds` are given, whole numbers (users,) of which each user's noise is a pure function,
    and off without. `way` forces one of "stacked", "vmap" and "loop".
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] = nn.functional.cross_entropy,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        autocast: torch.dtype | None = None,
        way: str | None = None,
    ) -> None:
        if way not in (None, "stacked", "vmap", "loop"):
            refuse("way", repr(way), "'stacked', 'vmap', 'loop' or None is needed")
        self.model = deepcopy(model).to(device=device, dtype=dtype)
        self.layout = Layout.of(self.model)
        self.device, self.dtype = torch.device(device), dtype
        self._plain: Loop = Loop(self.model, self.layout, loss, autocast)
        self._stacked: Stacked | None = None
        self._fits: dict[tuple[int, ...], bool] = {}
        self.way, self.reason = "loop", "it was asked for"
        if way in (None, "stacked"):
            self._try_stacked(loss, autocast, must=way is not None)
        if way == "vmap" or (way is None and self._stacked is None and self._vectorises()):
            self._plain = Vmap(self.model, self.layout, loss, autocast)
            self.way = "vmap"
            if way is None:
                self.reason = f"{self.reason}, but torch vectorises all of its layers"

    def _try_stacked(self, loss: Callable[..., Any], autocast: torch.dtype | None, must: bool) -> None:
        try:
            columns = loops_for(self.device, self.dtype, autocast) is None
            net = trace(self.model, join=columns)
            fixed = {name: p.detach() for name, p in self.model.named_parameters() if not p.requires_grad}
            self._stacked = Stacked(net, self.layout, fixed, known(loss), loss, autocast, columns)
            self.way, self.reason = "stacked", "every layer has a stacked form"
        except Unstackable as obstacle:
            self.reason = str(obstacle)
            if must:
                refuse("way", "'stacked'", f"the module cannot be stacked: {obstacle}; leave it out")

    def _vectorises(self) -> bool:
        leaves = [m for m in self.model.modules() if not list(m.children())]
        return self.device.type != "cpu" and all(isinstance(m, VECTORISED) for m in leaves)

    @property
    def dim(self) -> int:
        """d, the number of trained parameters."""
        return self.layout.dim

    @property
    def random(self) -> bool:
        """Whether a layer drops out at random, for which seeds are wanted."""
        traced = () if self._stacked is None else self._stacked.net.steps
        return drops_out(self.model) or any(isinstance(step.layer, Dropout) for step in traced)

    def value_and_grad(
        self,
        W: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        seeds: Tensor | None = None,
        buffers: Buffers | None = None,
    ) -> Slopes:
        """Losses and gradients at rows W, (users, d) or (1, d), on x (users, n, ...) and y (users, n, ...).

        `mask` (users, n) is 0 for rows that only fill up a user's share.
        """
        self._check(W, x, y)
        with torch.inference_mode(False):  # which would forbid gradients, and taint what is kept between calls
            return self._slopes(_usable(W), Given(_usable(x), _usable(y), mask, seeds), buffers)

    def _slopes(self, W: Tensor, given: Given, buffers: Buffers | None) -> Slopes:
        stacked = self._stacks(given.x)
        if stacked is not None:
            loss, grad = stacked.slopes(W, given)
            left = buffers or {}
        else:
            loss, grad, left = self._plain.slopes(W, given, buffers)
        assert grad is not None
        return Slopes(loss, grad, left)

    def values(
        self,
        W: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        seeds: Tensor | None = None,
        buffers: Buffers | None = None,
    ) -> Tensor:
        """The losses alone, (users,): the function whose gradient `value_and_grad` gives."""
        self._check(W, x, y)
        stacked, given = self._stacks(x), Given(x, y, mask, seeds)
        with torch.inference_mode(False):
            if stacked is not None:
                return stacked.slopes(W, given, slope=False)[0]
            return self._plain.slopes(W, given, buffers, slope=False)[0]

    def outputs(self, W: Tensor, x: Tensor, buffers: Buffers | None = None) -> Tensor:
        """What the module gives at rest (`eval`, without dropout), (users, n, ...)."""
        self._check(W, x, None)
        stacked = self._stacks(x)
        with torch.inference_mode(False):
            return self._plain.outputs(W, x, buffers) if stacked is None else stacked.outputs(W, x)

    def _stacks(self, x: Tensor) -> Stacked | None:
        """The stacked way, if it takes images of this shape and number."""
        if self._stacked is None:
            return None
        n, *features = x.shape[1:]
        key = (n, *features)
        if key not in self._fits:
            try:
                self._fits[key] = self._stacked.fits(tuple(features), n)
                obstacle = "" if self._fits[key] else "the loss needs all images at once, and they are too many"
            except Unstackable as error:
                self._fits[key], obstacle = False, str(error)
            if obstacle:
                self.way, self.reason = "loop", obstacle
        return self._stacked if self._fits[key] else None

    def _check(self, W: Tensor, x: Tensor, y: Tensor | None) -> None:
        if W.ndim != 2 or W.shape[1] != self.dim or len(W) not in (1, len(x)):
            refuse("W", f"of shape {tuple(W.shape)}", f"({len(x)}, {self.dim}) or (1, {self.dim}) is needed")
        if y is not None and y.shape[:2] != x.shape[:2]:
            refuse("y", f"of shape {tuple(y.shape)}", f"a target for each of the {tuple(x.shape[:2])} rows is needed")


def _usable(x: Tensor) -> Tensor:
    """x, or a copy where it comes from inference mode: autograd refuses such tensors."""
    return x.clone() if x.is_inference() else x
