"""A net written down for so many users and images: two tapes, forward and back, over buffers that stay."""

from __future__ import annotations

from itertools import chain
from math import prod

import torch
from torch import Tensor

from resolvent.problems.neural.cuda import innermost
from resolvent.problems.neural.cuda.compiler import prepare
from resolvent.problems.neural.cuda.layer import FusedConv
from resolvent.problems.neural.desk import Desk, Tape
from resolvent.problems.neural.flat import Layout
from resolvent.problems.neural.layers import Here, Linear, Reshape, Shape
from resolvent.problems.neural.losses import MeanLoss
from resolvent.problems.neural.net import Net
from resolvent.problems.neural.pointwise import Dropout


class Program:
    """`out` is the net's output for the block that went forward last, and `G` is where the gradient at it belongs.

    Weights and their gradients are the desk's: programs for the same number of users share them, so that blocks of
    unlike size can follow each other.
    """

    def __init__(
        self,
        desk: Desk,
        net: Net,
        layout: Layout,
        fixed: dict[str, Tensor],
        users: int,
        features: Shape,
        n: int,
        slope: bool,
        noisy: bool,
        mean: MeanLoss | None,
    ) -> None:
        self.desk, self.net, self.layout, self.fixed, self.users = desk, net, layout, fixed, users
        self.ahead, self.before, self.after = Tape(desk), Tape(desk), Tape(desk)
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        self.weights: dict[str, Tensor] = {}
        self.slopes: dict[str, Tensor] = {}
        for name in dict.fromkeys(name for step in net.steps for name in step.parameters):
            shape = shapes[name] if name in shapes else tuple(fixed[name].shape)
            matrix = (shape[0], prod(shape[1:]))
            self.weights[name] = desk.empty(("weight", users, name), users, matrix)
            if name in shapes and slope:
                self.slopes[name] = desk.empty(("slope", users, name), users, matrix)
        self.noise = {
            k: desk.empty(("noise", users, k), users, (*net.shapes(features)[step.inputs[0]], n))
            for k, step in enumerate(net.steps)
            if noisy and isinstance(step.layer, Dropout)
        }
        self.heres = self._heres()
        if desk.generated:
            codes = [step.layer.codes(n, slope) for step in net.steps if isinstance(step.layer, FusedConv)]
            prepare(chain.from_iterable(codes), desk.like.device.index)
        self.features = features
        values = [self._data(n)]
        for here, step in zip(self.heres, net.steps, strict=True):
            values.append(step.layer.forward(here, *(values[i] for i in step.inputs)))
        self.out = values[-1]
        self.G = desk.empty(("G", users), users, tuple(self.out.shape[1:])) if slope else None
        self.loss = desk.like.new_zeros(users)
        self.weight = desk.like.new_zeros(users, n)
        self.y: Tensor | None = None
        self.mean = mean
        self._backs: dict[bool, tuple[Tape, Tape]] = {}

    def _data(self, n: int) -> Tensor:
        """Value 0, images last; where only linear layers look at it, a view of rows as they come."""
        takers = [step.layer for step in self.net.steps if 0 in step.inputs]
        size = prod(self.features)
        self.rows = all(isinstance(layer, Linear) or layer == Reshape(None) for layer in takers)
        if self.rows:
            self.x = self.desk.empty(("x", self.users), self.users, (n, size))
            return self.x.mT
        self.x = self.desk.empty(("x", self.users), self.users, (size, n))
        return self.x.view(self.users, *self.features, n)

    def back(self, add: bool) -> tuple[Tape, Tape]:
        """Backward alone, and forward, loss and backward in one; `add` to the gradients of earlier blocks or not."""
        if add not in self._backs:
            back, both = Tape(self.desk), Tape(self.desk)
            if self.G is not None:
                self._write_back(self.G, back, add)
            both.calls = [*self.ahead.calls, self._mean_loss, *back.calls]
            self._backs[add] = back, both
        return self._backs[add]

    def _heres(self) -> list[Here]:
        """Each step's place; a gradient is wanted at inputs that depend on a trained parameter."""
        depends, heres = [False], []
        for k, step in enumerate(self.net.steps):
            name, bias = step.parameter or "", step.bias or ""
            wanted = any(depends[i] for i in step.inputs)
            depends.append(wanted or name in self.slopes or bias in self.slopes)
            weight, slope = self.weights.get(name), self.slopes.get(name)
            here = Here(self.ahead, k, self.users, step.owns, wanted, weight, slope, self.before, self.after)
            here.kept = self.noise.get(k)
            here.bias, here.bias_slope = self.weights.get(bias), self.slopes.get(bias)
            heres.append(here)
        return heres

    def _write_back(self, G: Tensor, tape: Tape, add: bool) -> None:
        grads = {len(self.heres): G}
        self.after.calls.clear()
        written = self.written = set[str]()  # a parameter that several layers share is added to by all but the first
        for k in reversed(range(len(self.heres))):
            if k + 1 not in grads:  # nothing before it is trained
                continue
            step, here = self.net.steps[k], self.heres[k]
            here.tape, here.add = tape, add or step.parameter in written
            here.add_bias = add or step.bias in written
            written.update(step.parameters)
            for i, part in zip(step.inputs, step.layer.backward(here, grads.pop(k + 1)), strict=True):
                last = self.heres[i - 1] if i else None
                if part is None or last is None or not _trains(last):
                    continue
                if i in grads:
                    tape.do(grads[i].add_, part)
                else:
                    grads[i] = part

    def lay(self, rows: Tensor) -> None:
        """Take the users' parameters, (users, d) or (1, d) for all."""
        split = self.layout.split(rows)
        for name, weight in self.weights.items():
            value = split[name] if name in split else self.fixed[name].to(rows).unsqueeze(0)
            weight.copy_(value.reshape(len(value), *weight.shape[1:]))
        self.before.play()

    def _mean_loss(self) -> None:
        assert self.mean is not None
        assert self.y is not None
        self.loss.copy_(self.mean.sums(self.out, self.y, self.weight, self.G, self.desk.loops))

    def mean_loss(self, x: Tensor, y: Tensor, weight: Tensor, noise: dict[int, Tensor], add: bool) -> Tensor:
        """Forward, the mean loss of each user (users,), and backward, for a block of images."""
        self._take(x, noise)
        if self.y is None:
            self.y = torch.empty_like(y, device=self.x.device)
        self.y.copy_(y)
        self.weight.copy_(weight)
        self.back(add)[1].play()
        return self.loss

    def forward(self, x: Tensor, noise: dict[int, Tensor]) -> Tensor:
        """The output for a block of images x (users, n, ...), (users, ...features, n)."""
        self._take(x, noise)
        self.ahead.play()
        return self.out

    def _take(self, x: Tensor, noise: dict[int, Tensor]) -> None:
        x = x.flatten(2)
        if self.desk.holds(self.x, x):
            pass
        elif self.rows:
            self.x.copy_(x)
        elif self.desk.generated and innermost.takes(x):
            innermost.put(x, self.x)
        elif self.x.is_cuda:
            self.x.copy_(x.to(self.x.device, non_blocking=True).mT)
        else:
            for mine, theirs in zip(self.x, x, strict=True):  # one by one: torch transposes matrices fast
                mine.copy_(theirs.T)
        for k, buffer in self.noise.items():
            buffer.copy_(noise[k])

    def gradient(self, out: Tensor) -> None:
        """Write what the blocks have added up to into rows `out` (users, d)."""
        self.after.play()
        for name, part in self.layout.split(out).items():
            if name in self.written:
                part.copy_(self.slopes[name].view_as(part))
            else:
                part.zero_()


def _trains(here: Here) -> bool:
    """Whether a gradient at the step's result is of use."""
    return here.wanted or here.slope is not None or here.bias_slope is not None


def draw(net: Net, features: Shape, n: int, seeds: list[int], like: Tensor) -> dict[int, Tensor]:
    """Each dropout's noise for n images of some users, (users, ...features, n): what torch draws after manual_seed."""
    shapes = net.shapes(features)
    drawn: dict[int, list[Tensor]] = {}
    for seed in seeds:
        generator = torch.Generator(like.device)
        generator.manual_seed(seed)
        for k, step in enumerate(net.steps):
            if isinstance(step.layer, Dropout):
                keep = 1 - step.layer.p
                noise = like.new_empty((n, *shapes[step.inputs[0]])).bernoulli_(keep, generator=generator)
                drawn.setdefault(k, []).append(noise.div_(keep))
    return {k: torch.stack(parts).movedim(1, -1) for k, parts in drawn.items()}
