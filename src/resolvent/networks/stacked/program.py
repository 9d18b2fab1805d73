"""A net as a program for one number of users and images: tapes of operations on buffers that stay where they are.

Writing a program runs nothing. Each layer records its operations (`write_forward`, `write_backward`); `Tape.replay`
runs them, once per block of images.
"""

from __future__ import annotations

from itertools import chain
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.networks.layout import ParameterLayout
from resolvent.networks.stacked.cuda.compiler import prepare
from resolvent.networks.stacked.cuda.launch import put_innermost, takes_innermost
from resolvent.networks.stacked.fused import FusedConv
from resolvent.networks.stacked.head import Head, LossBuffers, find_head
from resolvent.networks.stacked.layers import Context, Linear, Reshape, Shape
from resolvent.networks.stacked.losses import CrossEntropy, StackedLoss
from resolvent.networks.stacked.net import Net
from resolvent.networks.stacked.parameters import Parameters
from resolvent.networks.stacked.pointwise import Dropout
from resolvent.networks.stacked.workspace import Tape, Workspace


class WholeTape(NamedTuple):
    """A tape from W (users, d) to grad (users, d), which stay where they are; `mask` (users, n) where there is one."""

    tape: Tape
    W: Tensor
    grad: Tensor
    mask: Tensor | None


class Program:
    """`out` is the net's output for the last block that went forward; `G` is the buffer for the gradient at it.

    Parameters and their gradients are buffers of the workspace. Programs for the same number of users share them, so
    that blocks of different sizes can follow each other.
    """

    def __init__(
        self,
        workspace: Workspace,
        net: Net,
        layout: ParameterLayout,
        fixed: dict[str, Tensor],
        users: int,
        features: Shape,
        n: int,
        with_grad: bool,
        with_dropout: bool,
        loss_form: StackedLoss | None,
    ) -> None:
        self.workspace, self.net, self.layout, self.users = workspace, net, layout, users
        self.forward_tape, self.prologue, self.epilogue = Tape(workspace), Tape(workspace), Tape(workspace)
        self.parameters = Parameters(workspace, net, layout, fixed, users, with_grad)
        self.weights, self.weight_grads = self.parameters.weights, self.parameters.grads
        self.noise = {
            k: workspace.empty(("noise", users, k), users, (*net.shapes(features)[stage.inputs[0]], n))
            for k, stage in enumerate(net.stages)
            if with_dropout and isinstance(stage.layer, Dropout)
        }
        self.contexts = self._contexts()
        fuses = workspace.generated and with_grad and loss_form == CrossEntropy(logits=True)
        self.head = find_head(net, self.contexts) if fuses else None
        if workspace.generated:
            codes = [stage.layer.codes(n, with_grad) for stage in net.stages if isinstance(stage.layer, FusedConv)]
            codes += [] if self.head is None else [[self.head.code(n)]]
            prepare(chain.from_iterable(codes), workspace.like.device.index)
        self.features = features
        self.out = self._write_forward(n)
        self.G = workspace.empty(("G", users), users, tuple(self.out.shape[1:])) if with_grad else None
        self.loss = workspace.like.new_zeros(users)
        self.weight = workspace.like.new_zeros(users, n)
        self.y: Tensor | None = None
        self.loss_form = loss_form
        self._backward_tapes: dict[bool, tuple[Tape, Tape]] = {}
        self._whole_tapes: dict[bool, WholeTape] = {}

    # --- writing -----------------------------------------------------------------------------------------------------

    def _contexts(self) -> list[Context]:
        """One context per stage. An input needs a gradient if it depends on a trained parameter."""
        depends, contexts = [False], []
        for k, stage in enumerate(self.net.stages):
            name, bias = stage.parameter or "", stage.bias or ""
            needs_input_grad = any(depends[i] for i in stage.inputs)
            depends.append(needs_input_grad or name in self.weight_grads or bias in self.weight_grads)
            ctx = Context(
                self.forward_tape,
                k,
                self.users,
                stage.owns_input,
                needs_input_grad,
                self.weights.get(name),
                self.weight_grads.get(name),
                self.prologue,
                self.epilogue,
            )
            ctx.saved = self.noise.get(k)
            ctx.bias, ctx.bias_grad = self.weights.get(bias), self.weight_grads.get(bias)
            contexts.append(ctx)
        return contexts

    def _write_forward(self, n: int) -> Tensor:
        """Record the forward pass for n images per user; gives the output's buffer."""
        values = [self._data(n)]
        for ctx, stage in zip(self.contexts, self.net.stages, strict=True):
            if self.head is not None and ctx.stage == self.head.first:
                self.body, self.head_input = list(self.forward_tape.calls), values[stage.inputs[0]]
            values.append(stage.layer.write_forward(ctx, *(values[i] for i in stage.inputs)))
        if self.head is not None and not self.head_input.is_contiguous():
            self.head = None
        return values[-1]

    def _data(self, n: int) -> Tensor:
        """Value 0, images last. Where only linear layers read it, it is a view of the rows as they come."""
        consumers = [stage.layer for stage in self.net.stages if 0 in stage.inputs]
        size = prod(self.features)
        self.rows_first = all(isinstance(layer, Linear) or layer == Reshape(None) for layer in consumers)
        if self.rows_first:
            self.x = self.workspace.empty(("x", self.users), self.users, (n, size))
            return self.x.mT
        self.x = self.workspace.empty(("x", self.users), self.users, (size, n))
        return self.x.view(self.users, *self.features, n)

    def backward(self, add: bool) -> tuple[Tape, Tape]:
        """Two tapes: the backward pass alone, and forward, loss and backward in one.

        `add`: gradients are added to those of earlier blocks.
        """
        if add not in self._backward_tapes:
            alone, together = Tape(self.workspace), Tape(self.workspace)
            if self.G is not None:
                self._write_backward({len(self.contexts): self.G}, alone, add)
            together.calls = [*self.forward_tape.calls, self._loss_and_output_grad, *alone.calls]
            if self.head is not None and self.y is not None:
                together.calls = list(self.body)
                self._write_with_head(self.head, together, add)
            self._backward_tapes[add] = alone, together
        return self._backward_tapes[add]

    def _write_with_head(self, head: Head, tape: Tape, add: bool) -> None:
        """Loss and gradients where one kernel does the end of the net."""
        assert self.y is not None
        assert self.G is not None
        buffers = LossBuffers(self.y, self.weight, self.loss, self.G)
        dx = head.write(tape, self.contexts, self.head_input, buffers, add)
        (value,) = self.net.stages[head.first].inputs
        self._write_backward({} if dx is None else {value: dx}, tape, add)
        self.written.update(name for stage in self.net.stages[head.first :] for name in stage.parameters)

    def _write_backward(self, grads: dict[int, Tensor], tape: Tape, add: bool) -> None:
        """Record the backward pass from gradients at some values; each is that of a value of its number."""
        self.epilogue.calls.clear()
        # Of layers that share a parameter, all but the first one add to its gradient.
        written = self.written = set[str]()
        for k in reversed(range(len(self.contexts))):
            if k + 1 not in grads:  # nothing before it is trained
                continue
            stage, ctx = self.net.stages[k], self.contexts[k]
            ctx.tape, ctx.add = tape, add or stage.parameter in written
            ctx.add_bias = add or stage.bias in written
            written.update(stage.parameters)
            for i, part in zip(stage.inputs, stage.layer.write_backward(ctx, grads.pop(k + 1)), strict=True):
                last = self.contexts[i - 1] if i else None
                if part is None or last is None or not _trains(last):
                    continue
                if i in grads:
                    tape.record(grads[i].add_, part)
                else:
                    grads[i] = part

    def _write_whole(self, masked: bool, y: Tensor) -> WholeTape:
        """Everything between W and the gradients as one tape, where a block has all images of its users."""
        assert self.loss_form is not None
        like, tape = self.workspace.like, Tape(self.workspace)
        whole = WholeTape(
            tape,
            W=like.new_zeros(self.users, self.layout.dim),
            grad=like.new_empty(self.users, self.layout.dim),
            mask=like.new_zeros(self.weight.shape, dtype=torch.bool) if masked else None,
        )
        if self.y is None:
            self.y = y.new_zeros((self.users, *y.shape[1:]), device=like.device)
        together = self.backward(add=False)[1]
        tape.record(self.parameters.load, whole.W)
        tape.record(self._weigh, whole.mask)
        tape.calls += [*self.prologue.calls, *together.calls, *self.epilogue.calls]
        tape.record(self.parameters.store, whole.grad, self.written)
        return whole

    # --- running -----------------------------------------------------------------------------------------------------

    def load_parameters(self, rows: Tensor) -> None:
        """Copy in the users' parameters, (users, d), or (1, d) for all of them."""
        self.parameters.load(rows)
        self.prologue.replay()

    def _load_block(self, x: Tensor, noise: dict[int, Tensor]) -> None:
        x, own = x.flatten(2), self.x[: len(x)]
        if self.workspace.holds(own, x):
            pass
        elif self.rows_first:
            own.copy_(x)
        elif self.workspace.generated and takes_innermost(x):
            put_innermost(x, own)
        elif own.is_cuda:
            own.copy_(x.to(own.device, non_blocking=True).mT)
        else:
            for mine, theirs in zip(own, x, strict=True):  # one by one: torch transposes matrices fast
                mine.copy_(theirs.T)
        for k, buffer in self.noise.items():
            buffer.copy_(noise[k])

    def forward(self, x: Tensor, noise: dict[int, Tensor]) -> Tensor:
        """The output (users, ...features, n) for a block of images x (users, n, ...)."""
        self._load_block(x, noise)
        self.forward_tape.replay()
        return self.out

    def loss_and_backward(self, x: Tensor, y: Tensor, weight: Tensor, noise: dict[int, Tensor], add: bool) -> Tensor:
        """Forward, each user's mean loss (users,), and backward, for a block of images."""
        self._load_block(x, noise)
        if self.y is None:
            self.y = y.new_empty(y.shape, device=self.x.device)
        self.y.copy_(y)
        self.weight.copy_(weight)
        self.backward(add)[1].replay()
        return self.loss

    def whole(self, W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Losses (users,) and gradients (users, d) of a block that has all of its users' images: one launch on CUDA.

        They may be fewer users than the program has: what stands in the other rows changes nothing.
        """
        who, masked = slice(len(x)), mask is not None
        if masked not in self._whole_tapes:
            self._whole_tapes[masked] = self._write_whole(masked, y)
        whole = self._whole_tapes[masked]
        whole.W[who].copy_(W)
        self._load_block(x, {})
        assert self.y is not None
        self.y[who].copy_(y)
        if whole.mask is not None and mask is not None:
            whole.mask[who].copy_(mask)
        whole.tape.replay()
        return self.loss[who].clone(), whole.grad[who].clone()

    def _weigh(self, mask: Tensor | None) -> None:
        assert self.loss_form is not None
        assert self.y is not None
        self.weight.copy_(self.loss_form.weigh(self.y, mask, self.workspace.like))

    def _loss_and_output_grad(self) -> None:
        assert self.loss_form is not None
        assert self.y is not None
        compiled = self.workspace.loops
        if self.workspace.kernels is not None and self.out.is_contiguous():
            compiled = self.workspace.kernels
        self.loss.copy_(self.loss_form.sums(self.out, self.y, self.weight, self.G, compiled))

    def copy_gradient(self, out: Tensor) -> None:
        """Write the sum of all blocks' gradients into rows `out` (users, d)."""
        self.epilogue.replay()
        self.parameters.store(out, self.written)


def _trains(ctx: Context) -> bool:
    """Whether a gradient at the stage's result is needed."""
    return ctx.needs_input_grad or ctx.weight_grad is not None or ctx.bias_grad is not None
