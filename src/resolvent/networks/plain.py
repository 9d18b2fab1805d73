"""What a method that computes gradients is, and the plain one, a loop over users, which takes any module."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from resolvent.errors import InputError
from resolvent.networks.dropout import dropout_off
from resolvent.networks.layout import Buffers, ParameterLayout, attributes_restored, copied
from resolvent.networks.precision import Precision, computing_in, products_in


@dataclass(frozen=True, eq=False)
class Examples:
    """Users' rows: x (users, n, ...), y (users, n, ...), a mask of real rows, and seeds for dropout.

    x may be on another device than the parameters: it is copied there block by block.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    seeds: Tensor | None = None


class ValueAndGrad(NamedTuple):
    """Each user's loss (users,) and gradient (users, d), and the module's buffers (users, ...) afterwards."""

    loss: Tensor
    grad: Tensor
    buffers: Buffers


class Method(Protocol):
    """One way to compute all users' losses and gradients at rows of parameters W, (users, d) or (1, d).

    A new one is a class like this, which `method_choice.propose` proposes; it is then compared with plain autograd.
    `exact` is what is compared: the same in full precision, in memory of its own.
    """

    @property
    def name(self) -> str: ...
    def value_and_grad(
        self, W: Tensor, given: Examples, buffers: Buffers | None = None, out: Tensor | None = None
    ) -> ValueAndGrad:
        """`out` is memory (users, d) that the gradients may take."""

    def outputs(self, W: Tensor, x: Tensor, buffers: Buffers | None = None, mask: Tensor | None = None) -> Tensor:
        """What the module gives in eval mode, without dropout, (users, n, ...); rows that the mask leaves out are 0."""

    def exact(self) -> Self: ...


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """torch's global generators follow the seed meanwhile; afterwards they are as they were."""
    seed = 0 if seed is None else seed
    if device.type != "cpu":
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield
        return
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every accelerator too
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def _own(rows: Tensor, real: slice | Tensor) -> Tensor:
    """A copy of the real rows: a module may write to its input, and the user's data must not change."""
    return rows.clone() if isinstance(real, slice) else rows[real]


@contextmanager
def preserve_rng(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Leave all global generators as they were; gives a function that says whether torch's were used."""

    def states() -> list[Tensor]:
        return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])

    python, numpy = random.getstate(), np.random.get_state()
    try:
        with seeded(None, device):
            before = states()
            yield lambda: any(not torch.equal(a, b) for a, b in zip(before, states(), strict=True))
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


class WorkingCopy:
    """A copy of a module, filled with parameters and buffers before each call.

    They stay in it until the next `fill`: backward may call the module again, as gradient checkpointing does, and must
    meet the parameters that forward met. They are in memory of their own, since forward may write to them: an
    nn.Embedding with max_norm scales rows of its weight, and some modules set p.data.
    """

    def __init__(self, model: nn.Module, layout: ParameterLayout) -> None:
        self.module = copied(model)
        self._layout = layout
        trained = dict(self.module.named_parameters())
        self._trained = [trained[name] for name in layout.names]
        pairs = zip(self.module.parameters(), model.parameters(), strict=True)
        self._fixed = [(p, p.data, first) for p, first in pairs if not p.requires_grad]
        self._first = dict(model.named_buffers())
        self._buffers = dict(self.module.named_buffers())
        self._owners = [(m, key, b) for m in self.module.modules() for key, b in m.named_buffers(recurse=False)]

    def fill(self, w: Tensor, buffers: Buffers | None = None) -> None:
        """Take in the parameters w (d,), these buffers, and all else as the module came; no gradient."""
        torch.clear_autocast_cache()  # it would give the parameters that were here before
        row = w.detach().clone(memory_format=torch.contiguous_format).unsqueeze(0)
        for p, part in zip(self._trained, self._layout.split(row).values(), strict=True):
            p.grad, p.data = None, part[0]
        for p, memory, first in self._fixed:
            p.data = memory.copy_(first)
        for m, key, buffer in self._owners:  # forward may have put another one in its place
            setattr(m, key, buffer)
        for name, value in (self._first if buffers is None else buffers).items():
            buffer = self._buffers[name]
            if buffer.grad_fn is not None:  # forward wrote into it what has a gradient
                buffer.detach_()
            buffer.data = value.clone()

    def gradient(self, out: Tensor) -> None:
        """Write the parameters' gradients to `out` (d,); 0 for those that the loss does not depend on."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self._trained]
        torch.cat([part.reshape(-1) for part in parts], out=out)
        for p in self._trained:
            p.grad = None

    def buffers(self) -> Buffers:
        """What the calls since `fill` have left in the buffers."""
        after = dict(self.module.named_buffers())
        return {name: after[name].detach() for name in self._buffers}

    @contextmanager
    def at_rest(self) -> Iterator[nn.Module]:
        """The module in eval mode; afterwards it is in its own mode again.

        It is put there with its parameters in it: layers of low-rank adaption add their product to a weight then.
        """
        with attributes_restored(self.module):
            yield self.module.eval()


@dataclass(eq=False)
class Loop:
    """One user after the other. The module never sees rows that the mask leaves out.

    `drops`: the module calls dropout functions, which must do nothing where no seeds are given.
    """

    model: nn.Module
    layout: ParameterLayout
    loss: Callable[..., Any]
    precision: Precision = "float32"
    drops: bool = False
    name = "loop"

    @cached_property
    def _copy(self) -> WorkingCopy:
        return WorkingCopy(self.model, self.layout)

    def value_and_grad(
        self, W: Tensor, given: Examples, buffers: Buffers | None = None, out: Tensor | None = None
    ) -> ValueAndGrad:
        users = len(given.x)
        loss, grad = W.new_zeros(users), W.new_empty(users, self.layout.dim)
        after: list[Buffers] = []
        for i in range(users):
            self._copy.fill(W[i % len(W)], _of_user(buffers, i))
            real = slice(None) if given.mask is None else given.mask[i].bool()
            x, y = _own(given.x[i], real), _own(given.y[i], real)
            if len(y):
                loss[i] = self._value(x, y, None if given.seeds is None else int(given.seeds[i]), grad[i])
            else:  # without rows the module is not called, and the buffers do not change
                grad[i] = 0
            after.append(self._copy.buffers())
        return ValueAndGrad(loss, grad, {name: torch.stack([mine[name] for mine in after]) for name in after[0]})

    def _value(self, x: Tensor, y: Tensor, seed: int | None, grad: Tensor) -> Tensor:
        """The loss; its gradient is written to `grad`. Backward may call the module again, so it has forward's seed,
        dropout and parameters. It is not torch.autograd.grad, which reentrant checkpoints refuse."""
        module = self._copy.module
        dropout = dropout_off(module, self.drops) if seed is None else nullcontext()
        try:
            with products_in(x.device, self.precision), seeded(seed, x.device), dropout:
                with torch.enable_grad(), computing_in(x.device, self.precision):
                    value: Tensor = self.loss(module(x), y)
                torch.autograd.backward(value)  # which, unlike value.backward(), leaves NoDropout on
                self._copy.gradient(grad)
        except ValueError as error:
            if len(x) > 1 or isinstance(error, InputError):
                raise
            raise InputError(
                f"a batch has one row, which the model cannot be trained on ({error}): "
                "take a batch size that leaves no single row, or none"
            ) from error
        return value.detach()

    def outputs(self, W: Tensor, x: Tensor, buffers: Buffers | None = None, mask: Tensor | None = None) -> Tensor:
        with torch.no_grad(), computing_in(x.device, self.precision):
            outs = []
            for i in range(len(x)):
                self._copy.fill(W[i % len(W)], _of_user(buffers, i))
                real = slice(None) if mask is None else mask[i].bool()
                with self._copy.at_rest() as module:
                    out = module(_own(x[i], real))
                out = out.to(W.dtype) if out.is_floating_point() else out  # autocast gives fewer digits
                if mask is not None:
                    out = out.new_zeros(x.shape[1], *out.shape[1:]).index_put((real,), out)
                outs.append(out)
            return torch.stack(outs)

    def exact(self) -> Self:
        return replace(self, precision="float32")


def _of_user(buffers: Buffers | None, i: int) -> Buffers | None:
    return None if buffers is None else {name: rows[i] for name, rows in buffers.items()}
