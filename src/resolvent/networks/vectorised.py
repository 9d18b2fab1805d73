"""All users in one call, by torch's vectorisation (vmap) of the loss and its gradient.

What is not trained is shared: a product with a frozen weight is one product over the rows of all users. Attention goes
by torch's plain products, since the fused kernels have no form over users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from resolvent.networks.dropout import dropout_off, drops_out
from resolvent.networks.layout import Buffers, attributes_restored, copied, let_go
from resolvent.networks.mean_losses import mean_loss
from resolvent.networks.plain import Examples, Loop, ValueAndGrad
from resolvent.networks.precision import attention_in_one_type, autocast_to, products_in
from resolvent.problems.room import room

MEMORY_SHARE = 0.5
"""The share of a GPU's memory, or of the machine's on a CPU, that one call takes at most, as far as can be foreseen."""
PASSES = 4
"""What a gradient takes, in units of what its forward pass leaves for its backward pass: 3 to 4.2 were measured."""
COUNTED_ROWS = 2
MANY_USERS = 4
SMALL_BYTES = 1 << 20
"""On a CPU, vmap takes 0.3 to 1.06 times as long as the loop for so many users whose forward passes leave no more each,
0.58 in the median; for two users 1.2 to 1.6 times (`python -m bench.networks_of_today --methods 8`)."""

AllUsers = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""W (users, d), x and y (users, n, ...), and a mask (users, n) to losses (users,) and gradients (users, d)."""


@dataclass(eq=False)
class Vmap(Loop):
    """All users in one vectorised call, or in a few where memory is short; one after the other where dropout is on.

    `masks`: whether rows that only pad others may go through the module, which must then treat each row alone.
    `only_small`: calls of few users, or of much work for each, go by the loop, and so do those that vmap cannot take.
    """

    masks: bool = True
    only_small: bool = False
    name = "vmap"
    _chunks: dict[Any, int] = field(default_factory=dict)
    _sizes: dict[Any, int] = field(default_factory=dict)

    def exact(self) -> Self:
        return replace(self, precision="float32", only_small=False)

    def value_and_grad(
        self, W: Tensor, given: Examples, buffers: Buffers | None = None, out: Tensor | None = None
    ) -> ValueAndGrad:
        noisy = given.seeds is not None and (self.drops or drops_out(self.model))
        if noisy or (given.mask is not None and not self.takes_masks) or not self._suited(given, W):
            return super().value_and_grad(W, given, buffers)
        try:
            return self._together(W, given, buffers, out)
        except RuntimeError as error:
            if not self.only_small:
                raise
            let_go(error)
            return super().value_and_grad(W, given, buffers)

    def _suited(self, given: Examples, W: Tensor) -> bool:
        if not self.only_small:
            return True
        return len(given.x) >= MANY_USERS and self._size(given, W) <= SMALL_BYTES

    def _together(self, W: Tensor, given: Examples, buffers: Buffers | None, out: Tensor | None) -> ValueAndGrad:
        users, mask = len(given.x), None if given.mask is None else given.mask.to(W.device).bool()
        W = W.detach().expand(users, -1)
        loss = W.new_empty(users)
        grad = W.new_empty(users, self.layout.dim) if out is None else out
        first, size = 0, self._chunk(given, W)
        while first < users:
            first = max(0, min(first, users - size))  # all chunks have one shape: the last one goes back a little
            who = slice(first, first + size)
            try:
                x, y = (t[who].to(W.device).clone() for t in (given.x, given.y))
                loss[who], grad[who] = self._guarded(W[who].clone(), x, y, None if mask is None else mask[who])
                first += size
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                size = self._chunks[self._kind(given.x, W)] = ceil(min(size, users) / 2)
        return ValueAndGrad(loss, grad, buffers or {})

    @property
    def takes_masks(self) -> bool:
        return self.masks and mean_loss(self.loss) is not None

    def _guarded(self, W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Losses and gradients of a chunk of users, with dropout off, and the module afterwards as it was."""
        with self._prepared(W.device), torch.no_grad():
            loss, grad = self._of_chunk(W, x, y, mask)
        if mask is not None:
            some = mask.any(1)
            loss, grad = torch.where(some, loss, 0), torch.where(some.unsqueeze(1), grad, 0)
        return loss, grad

    @contextmanager
    def _prepared(self, device: torch.device) -> Iterator[None]:
        """While the module is called: flags, kernels of attention, no dropout."""
        with (
            products_in(device, self.precision),
            sdpa_kernel(SDPBackend.MATH),
            attention_in_one_type(),
            attributes_restored(self._shell),
            dropout_off(self._shell, self.drops),
        ):
            yield

    def _of_chunk(self, W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.all_users(W, x, y, mask)

    @cached_property
    def _shell(self) -> nn.Module:
        """A copy of the module that shares what is not trained. Its own parameters are never read."""
        fixed = [*self.model.buffers(), *(p for p in self.model.parameters() if not p.requires_grad)]
        shell = copied(self.model, shared=fixed)
        for module in shell.modules():  # transformers' other forms of attention look at the values of masks
            if hasattr(module, "set_attn_implementation"):
                with suppress(ValueError):
                    module.set_attn_implementation("eager")  # type: ignore[operator]
        return shell

    @cached_property
    def all_users(self) -> AllUsers:
        """The function that is vectorised, of plain values, so that it can be compiled as well."""
        module, layout, loss, form = self._shell, self.layout, self.loss, mean_loss(self.loss)
        precision = self.precision
        fixed = {name: p.detach() for name, p in self.model.named_parameters() if not p.requires_grad}
        fixed |= dict(self.model.named_buffers())

        def value(leaves: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
            with autocast_to(precision, x.device):  # not around vmap: torch.compile would then leave another type
                out = functional_call(module, {**fixed, **leaves}, (x,))
                result: Tensor = loss(out, y) if mask is None or form is None else form.over(out, y, mask)
            return result

        def all_users(W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            if mask is not None:  # padding repeats a row, which is as finite as that row
                first = mask.to(torch.int8).argmax(1)
                x, y = (_padded(t, mask, first) for t in (x, y))
            dims = (0, 0, 0, None if mask is None else 0)
            grads, losses = vmap(grad_and_value(value), dims)(layout.split(W), x, y, mask)
            return losses, torch.cat([grads[name].flatten(1) for name in layout.names], 1)

        return all_users

    # --- memory ------------------------------------------------------------------------------------------------------

    def _kind(self, x: Tensor, W: Tensor) -> Any:
        return tuple(x.shape[1:]), x.dtype, W.dtype, W.device

    def _chunk(self, given: Examples, W: Tensor) -> int:
        """How many users go together: all, or as few as memory needs in chunks of one size."""
        kind, users = self._kind(given.x, W), len(given.x)
        if kind not in self._chunks:
            each = PASSES * self._size(given, W) + 3 * W[0].numel() * W.element_size()
            self._chunks[kind] = max(1, int(MEMORY_SHARE * memory_of(W.device) / each))
        most = self._chunks[kind]
        return ceil(users / ceil(users / most))

    def _size(self, given: Examples, W: Tensor) -> int:
        """`_saved`, of which rows of one shape have the same."""
        kind = self._kind(given.x, W)
        if kind not in self._sizes:
            self._sizes[kind] = self._saved(given, W)
        return self._sizes[kind]

    def _saved(self, given: Examples, W: Tensor) -> int:
        """How many bytes the forward pass of one user leaves for the backward pass, from that of a few rows."""
        rows, targets = (t[0, :COUNTED_ROWS].to(W.device).clone() for t in (given.x, given.y))
        own = {t.untyped_storage().data_ptr() for t in (*self._shell.parameters(), *self._shell.buffers())}
        sizes: dict[int, int] = {}

        def note(t: Tensor) -> Tensor:
            storage = t.untyped_storage()
            if storage.data_ptr() not in own:
                sizes[storage.data_ptr()] = storage.nbytes()
            return t

        cast, noted = autocast_to(self.precision, W.device), saved_tensors_hooks(note, lambda t: t)
        with self._prepared(W.device), torch.enable_grad(), cast, noted:
            kept = self.loss(self._shell(rows), targets)  # as long as it is there, no address is used twice
        del kept
        return ceil(sum(sizes.values()) / len(rows) * given.x.shape[1])


def memory_of(device: torch.device) -> int:
    """Bytes of memory that the device has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return room()


def _padded(t: Tensor, mask: Tensor, first: Tensor) -> Tensor:
    """Rows (users, n, ...) with each user's row number `first` where the mask leaves one out."""
    shape = (len(t), 1, *t.shape[2:])
    row = t.gather(1, first.view(-1, *(1,) * (t.ndim - 1)).expand(shape))
    return torch.where(mask.view(*mask.shape, *(1,) * (t.ndim - 2)), t, row)
