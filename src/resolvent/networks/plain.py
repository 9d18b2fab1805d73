"""The plain methods: a loop over users, or torch's own vectorisation (vmap) over users. They take any module."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from resolvent.errors import InputError
from resolvent.networks.layout import ParameterLayout, copied

Buffers = dict[str, Tensor]

DROPOUTS = nn.modules.dropout._DropoutNd
DROPOUT_FUNCTIONS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
    torch.dropout_,
    torch.alpha_dropout,
    torch.feature_dropout,
}
"""Dropout as functions of the tensor, the rate, and whether it is on."""


def drops_out(model: nn.Module) -> bool:
    """Whether a layer of the module drops out at random."""
    return any(isinstance(m, DROPOUTS) and m.p > 0 and m.training for m in model.modules())


def without_dropout(model: nn.Module, functions: bool = False) -> nn.Module:
    """A copy whose dropout layers do nothing; with `functions`, nor do the dropout functions that it calls."""
    copy = copied(model)
    for m in copy.modules():
        if isinstance(m, DROPOUTS):
            m.eval()
    if functions:
        forward = copy.forward

        def quiet(*args: Any) -> Any:
            with NoDropout():
                return forward(*args)

        copy.forward = quiet
    return copy


class NoDropout(TorchFunctionMode):
    """Makes dropout functions do nothing; `met`: one was called that would have done something."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in DROPOUT_FUNCTIONS:
            return func(*args, **kwargs)
        x, p, on = (*args, *(None,) * 3)[:3]
        x = kwargs.get("input", x)
        on = kwargs.get("training", kwargs.get("train", on))
        self.met |= on is not False and kwargs.get("p", p) != 0
        return x


@dataclass(frozen=True, eq=False)
class Examples:
    """Users' rows: x (users, n, ...), y (users, n, ...), a mask of real rows, and seeds for dropout.

    x may be on another device than the parameters: it is copied there block by block.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    seeds: Tensor | None = None


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

    @cached_property
    def _without_dropout(self) -> nn.Module:
        return without_dropout(self.model, self.drops)

    @cached_property
    def _eval_model(self) -> nn.Module:
        return copied(self.model).eval()

    def value_and_grad(
        self, W: Tensor, given: Examples, buffers: Buffers | None = None, with_grad: bool = True
    ) -> tuple[Tensor, Tensor | None, Buffers]:
        """Each user's loss (users,) and gradient (users, d), and the buffers (users, ...) afterwards."""
        x, y, mask, seeds = given.x, given.y, given.mask, given.seeds
        users = len(x)
        loss = W.new_empty(users)
        grad = W.new_empty(users, self.layout.dim) if with_grad else None
        left: list[Buffers] = []
        for i in range(users):
            leaves = {name: part.detach().requires_grad_(with_grad) for name, part in self._parameters(W, i).items()}
            mine = self._buffers(buffers, i)
            real = slice(None) if mask is None else mask[i].bool()
            xi, yi = _own(x[i], real), _own(y[i], real)
            left.append(mine)
            if not len(
                yi
            ):  # a user without rows in this batch: the module is not called, and the buffers do not change
                loss[i] = 0
                if grad is not None:
                    grad[i] = 0
                continue
            value = self._value(leaves, mine, xi, yi, None if seeds is None else int(seeds[i]), with_grad)
            if grad is not None:
                parts_of_grad = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
                torch.cat([part.reshape(-1) for part in parts_of_grad], out=grad[i])
            loss[i] = value.detach()
        return loss, grad, {name: torch.stack([mine[name] for mine in left]) for name in left[0]}

    def _value(self, leaves: Buffers, mine: Buffers, x: Tensor, y: Tensor, seed: int | None, with_grad: bool) -> Tensor:
        model = self._without_dropout if seed is None else self.model
        try:
            with torch.set_grad_enabled(with_grad), full_precision(x.device, self.autocast), seeded(seed, x.device):
                value: Tensor = self.loss(functional_call(model, {**leaves, **mine}, (x,)), y)
        except ValueError as error:
            if len(x) > 1 or isinstance(error, InputError):
                raise
            raise InputError(
                f"a batch has one row, which the model cannot be trained on ({error}): "
                "take a batch size that leaves no single row, or none"
            ) from error
        return value

    def _parameters(self, W: Tensor, i: int) -> Buffers:
        """User i's parameters without gaps: torch's gradient of batch norm is wrong where its weights have some."""
        row = W[i % len(W)].contiguous().unsqueeze(0)
        return {name: part[0] for name, part in self.layout.split(row).items()}

    def _buffers(self, buffers: Buffers | None, i: int) -> Buffers:
        if buffers is not None:
            return {name: stacked[i].clone() for name, stacked in buffers.items()}
        return {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def outputs(self, W: Tensor, x: Tensor, buffers: Buffers | None = None, mask: Tensor | None = None) -> Tensor:
        """What the module gives in eval mode, (users, n, ...); rows that the mask leaves out are 0."""
        with torch.no_grad(), full_precision(x.device, self.autocast):
            outs = []
            for i in range(len(x)):
                state = self._parameters(W, i) | self._buffers(buffers, i)
                real = slice(None) if mask is None else mask[i].bool()
                out = functional_call(self._eval_model, state, (_own(x[i], real),))
                if mask is not None:
                    out = out.new_zeros(x.shape[1], *out.shape[1:]).index_put((real,), out)
                outs.append(out)
            return torch.stack(outs)


@dataclass(eq=False)
class Vmap(Loop):
    """All users in one vectorised call; with a mask, seeds or buffers, one after the other."""

    def value_and_grad(
        self, W: Tensor, given: Examples, buffers: Buffers | None = None, with_grad: bool = True
    ) -> tuple[Tensor, Tensor | None, Buffers]:
        if given.mask is not None or given.seeds is not None or buffers or dict(self.model.named_buffers()):
            return super().value_and_grad(W, given, buffers, with_grad)
        x, y = given.x.clone(), given.y.clone()

        def value(leaves: Buffers, x: Tensor, y: Tensor) -> Tensor:
            out: Tensor = self.loss(functional_call(self._without_dropout, leaves, (x,)), y)
            return out

        parts = self.layout.split(W.expand(len(x), -1))
        with full_precision(x.device, self.autocast):
            if not with_grad:
                with torch.no_grad():
                    return vmap(value)(parts, x, y), None, {}
            grads, loss = vmap(grad_and_value(value))(parts, x, y)
        return loss, torch.cat([grads[name].flatten(1) for name in self.layout.names], 1), {}
