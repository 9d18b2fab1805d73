"""Users' data for networks: tensors that stay on the device, or data sets that stream through in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from resolvent.errors import InputError, refuse

PADDING = 1.25
"""Within a batch the largest user has at most this many times the rows of the smallest."""
STREAM = 256
"""Rows of a data set that are read at a time."""


class Batch(NamedTuple):
    """Rows of some users: x (g, n, ...), y (g, n, ...), a mask (g, n) of real rows, and their share of the user's."""

    who: Tensor | None
    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    share: float = 1.0

    def of(self, W: Tensor) -> Tensor:
        """These users' rows of W, which may be one row that all share."""
        return W if self.who is None or len(W) == 1 else W[self.who]

    def added(self, out: Tensor, part: Tensor) -> Tensor:
        """What all users have, with the share of it that these rows give."""
        return part if self.who is None else out.index_add(0, self.who, part, alpha=self.share)


class Silos(Protocol):
    """All users' data. `batches` goes through it once; `pick` takes chosen rows of every user."""

    @property
    def sizes(self) -> Tensor: ...
    @property
    def indexed(self) -> bool:
        """Whether rows can be picked."""
        ...

    def batches(self) -> Iterator[Batch]: ...
    def pick(self, rows: Tensor, mask: Tensor) -> Batch: ...
    def take(self, who: Tensor) -> Silos: ...


@dataclass(frozen=True, eq=False)
class Resident:
    """Tensors on the device, users of equal size stacked, of similar size stacked and padded."""

    stacks: tuple[Batch, ...]
    sizes: Tensor
    indexed = True

    def batches(self) -> Iterator[Batch]:
        yield from self.stacks

    @cached_property
    def users(self) -> list[tuple[Tensor, Tensor]]:
        """Each user's own rows: views."""
        rows: dict[int, tuple[Tensor, Tensor]] = {}
        for stack in self.stacks:
            who = range(len(self.sizes)) if stack.who is None else stack.who.tolist()
            for k, i in enumerate(who):
                size = int(self.sizes[i])
                rows[i] = (stack.x[k, :size], stack.y[k, :size])
        return [rows[i] for i in range(len(self.sizes))]

    def pick(self, rows: Tensor, mask: Tensor) -> Batch:
        masked = None if bool(mask.all()) else mask
        if self.stacks[0].who is None:
            each = torch.arange(len(rows), device=rows.device).unsqueeze(1)
            return Batch(None, self.stacks[0].x[each, rows], self.stacks[0].y[each, rows], masked)
        chosen = [(x[mine], y[mine]) for (x, y), mine in zip(self.users, rows, strict=True)]
        return Batch(None, torch.stack([x for x, _ in chosen]), torch.stack([y for _, y in chosen]), masked)

    def take(self, who: Tensor) -> Resident:
        return stacked([self.users[i] for i in who.tolist()])


def stacked(users: Sequence[tuple[Tensor, Tensor]]) -> Resident:
    """Users' tensors in a few stacks."""
    counts = np.array([len(y) for _, y in users])
    sizes = torch.tensor(counts, device=users[0][1].device)
    if (counts == counts[0]).all():
        return Resident((_stack(None, users),), sizes)
    order, stacks = np.argsort(counts, kind="stable"), []
    while len(order):
        end = int(np.searchsorted(counts[order], PADDING * counts[order[0]], side="right"))
        who = np.sort(order[:end])
        stacks.append(_stack(torch.as_tensor(who, device=sizes.device), [users[i] for i in who]))
        order = order[end:]
    return Resident(tuple(stacks), sizes)


def _stack(who: Tensor | None, users: Sequence[tuple[Tensor, Tensor]]) -> Batch:
    most = max(len(y) for _, y in users)
    if all(len(y) == most for _, y in users):
        return Batch(who, torch.stack([x for x, _ in users]), torch.stack([y for _, y in users]))
    x, y = users[0]
    X, Y = x.new_zeros((len(users), most, *x.shape[1:])), y.new_zeros((len(users), most, *y.shape[1:]))
    mask = torch.zeros((len(users), most), dtype=torch.bool, device=x.device)
    for k, (x, y) in enumerate(users):
        X[k, : len(y)], Y[k, : len(y)], mask[k, : len(y)] = x, y, True
    return Batch(who, X, Y, mask)


@dataclass(frozen=True, eq=False)
class Streamed:
    """Data sets or loaders, one a user: read a batch at a time, whatever they do to their rows on the way."""

    users: tuple[Any, ...]
    device: torch.device
    dtype: torch.dtype

    @property
    def indexed(self) -> bool:
        return all(_rows_of(user) is not None for user in self.users)

    @cached_property
    def sizes(self) -> Tensor:
        counts = []
        for user in self.users:
            rows = _rows_of(user)
            counts.append(len(rows) if rows is not None else sum(len(y) for _, y in user))
        return torch.tensor(counts, device=self.device)

    def batches(self) -> Iterator[Batch]:
        for i, user in enumerate(self.users):
            size = int(self.sizes[i])
            for x, y in _stream(user):
                one = torch.tensor([i], device=self.device)
                yield Batch(one, self._put(x).unsqueeze(0), self._put(y).unsqueeze(0), None, len(y) / size)

    def pick(self, rows: Tensor, mask: Tensor) -> Batch:
        users = []
        for user, mine, real in zip(self.users, rows, mask, strict=True):
            source, chosen = _rows_of(user), mine[real].tolist() or [0]
            x, y = _pair(default_collate([source[j] for j in chosen]))
            users.append((self._put(x), self._put(y)))
        return _stack(None, users)._replace(mask=None if bool(mask.all()) else mask)

    def take(self, who: Tensor) -> Streamed:
        return Streamed(tuple(self.users[i] for i in who.tolist()), self.device, self.dtype)

    def _put(self, t: Tensor) -> Tensor:
        return t.to(self.device, self.dtype if t.is_floating_point() else None, non_blocking=True)


def as_silos(users: Any, argument: str, device: torch.device, dtype: torch.dtype) -> Silos:
    """Pairs of tensors stay; data sets and loaders stream. If one of them streams, all do."""
    if not isinstance(users, Sequence) or not users:
        refuse(argument, f"of type {type(users).__name__}", "a list with (x, y) tensors or a data set a user is needed")
    resident = []
    for i, user in enumerate(users):
        user = user.tensors if isinstance(user, TensorDataset) else user
        if isinstance(user, (tuple, list)) and len(user) == 2:
            resident.append(_checked(user, f"{argument}[{i}]", device, dtype))
        elif not isinstance(user, DataLoader) and not (hasattr(user, "__getitem__") and hasattr(user, "__len__")):
            refuse(f"{argument}[{i}]", f"of type {type(user).__name__}", "(x, y), a data set or a DataLoader is needed")
    if len(resident) == len(users):
        shapes = {(x.shape[1:], y.shape[1:]) for x, y in resident}
        if len(shapes) > 1:
            refuse(argument, f"of {len(shapes)} different shapes of rows", "all users' rows must have one shape")
        return stacked(resident)
    streams = [
        TensorDataset(*map(torch.as_tensor, user)) if isinstance(user, (tuple, list)) else user for user in users
    ]
    silos = Streamed(tuple(streams), device, dtype)
    empty = (silos.sizes == 0).nonzero().flatten()
    if len(empty):
        refuse(f"{argument}[{int(empty[0])}]", "empty", "every user needs at least one row")
    return silos


def _checked(user: Any, argument: str, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x, y = (torch.as_tensor(part) for part in user)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        refuse(
            argument, f"x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}", "as many rows of each are needed"
        )
    if len(x) == 0:
        refuse(argument, "empty", "every user needs at least one row")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        refuse(argument, "partly NaN or infinite", "finite numbers are needed")
    return tuple(t.to(device, dtype) if t.is_floating_point() else t.to(device) for t in (x, y))  # type: ignore[return-value]


def _rows_of(user: Any) -> Any:
    """A map-style data set whose rows can be picked; None for a stream that cannot."""
    source = user.dataset if isinstance(user, DataLoader) else user
    return source if hasattr(source, "__getitem__") and hasattr(source, "__len__") else None


def _stream(user: Any) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in user if isinstance(user, DataLoader) else DataLoader(user, batch_size=STREAM):
        yield _pair(batch)


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputError(f"a user's data set gave a {type(batch).__name__}, but pairs (x, y) of tensors are needed")
    return batch[0], batch[1]
