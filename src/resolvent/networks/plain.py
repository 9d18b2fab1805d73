"""What a method that computes gradients is, and the plain ones: a loop over users, or torch's vectorisation (vmap).

The plain methods take any module.
"""

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
from torch.func import functional_call, grad_and_value, vmap

from resolvent.errors import InputError
from resolvent.networks.dropout import dropout_off
from resolvent.networks.layout import Buffers, ParameterLayout
from resolvent.networks.working_copy import WorkingCopy


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
    `uncast` is what is compared: the same without autocast, in memory of its own.
    """

    @property
    def name(self) -> str: ...
    def value_and_grad(
        self, W: Tensor, given: Examples, buffers: Buffers | None = None, out: Tensor | None = None
    ) -> ValueAndGrad:
        """`out` is memory (users, d) that the gradients may take."""
        ...

    def outputs(self, W: Tensor, x: Tensor, buffers: Buffers | None = None, mask: Tensor | None = None) -> Tensor:
        """What the module gives in eval mode, without dropout, (users, n, ...); rows that the mask leaves out are 0."""
        ...

    def uncast(self) -> Self: ...


@contextmanager
def full_precision(device: torch.device, autocast: torch.dtype | None) -> Iterator[None]:
    """Full precision in convolutions as in products, unless `autocast` asks for less."""
    cast = nullcontext() if autocast is None else torch.autocast(device.type, autocast)
    full = torch.backends.cudnn.flags(enabled=True, allow_tf32=False) if device.type == "cuda" else nullcontext()
    with cast, full:
        yield


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


@dataclass(eq=False)
class Loop:
    """One user after the other. The module never sees rows that the mask leaves out.

    `drops`: the module calls dropout functions, which must do nothing where no seeds are given.
    """

    model: nn.Module
    layout: ParameterLayout
    loss: Callable[..., Any]
    autocast: torch.dtype | None = None
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
            with full_precision(x.device, None), seeded(seed, x.device), dropout:
                with torch.enable_grad(), full_precision(x.device, self.autocast):
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
        with torch.no_grad(), full_precision(x.device, self.autocast):
            outs = []
            for i in range(len(x)):
                self._copy.fill(W[i % len(W)], _of_user(buffers, i))
                real = slice(None) if mask is None else mask[i].bool()
                with self._copy.at_rest() as module:
                    out = module(_own(x[i], real))
                if mask is not None:
                    out = out.new_zeros(x.shape[1], *out.shape[1:]).index_put((real,), out)
                outs.append(out)
            return torch.stack(outs)

    def uncast(self) -> Self:
        return replace(self, autocast=None)


def _of_user(buffers: Buffers | None, i: int) -> Buffers | None:
    return None if buffers is None else {name: rows[i] for name, rows in buffers.items()}


@dataclass(eq=False)
class Vmap(Loop):
    """All users in one vectorised call; with a mask, seeds or buffers, one after the other."""

    name = "vmap"

    def value_and_grad(
        self, W: Tensor, given: Examples, buffers: Buffers | None = None, out: Tensor | None = None
    ) -> ValueAndGrad:
        if given.mask is not None or given.seeds is not None or buffers or dict(self.model.named_buffers()):
            return super().value_and_grad(W, given, buffers)
        x, y, module = given.x.clone(), given.y.clone(), self._copy.module

        def value(leaves: Buffers, x: Tensor, y: Tensor) -> Tensor:
            out: Tensor = self.loss(functional_call(module, leaves, (x,)), y)
            return out

        parts = self.layout.split(W.expand(len(x), -1).clone())  # forward may write to its parameters
        with full_precision(x.device, self.autocast), dropout_off(module, self.drops):
            grads, loss = vmap(grad_and_value(value))(parts, x, y)
        return ValueAndGrad(loss, torch.cat([grads[name].flatten(1) for name in self.layout.names], 1), {})
