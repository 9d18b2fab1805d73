"""Users' data for networks: the protocol, and tensors that stay on the device. Streams are in `streamed.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from resolvent.networks.row_readers import XY, seed_of_part

SIZE_RATIO = 1.25
"""Within a batch the largest user has at most this many times the rows of the smallest."""


class Batch(NamedTuple):
    """Rows of some users: x (g, n, ...), y (g, n, ...), a mask (g, n) of real rows.

    `who` are the users' numbers; None: all users. `part` is None where these are all rows of a user that were asked
    for, else the number of the part.
    """

    who: Tensor | None
    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    part: int | None = None

    def of(self, W: Tensor) -> Tensor:
        """These users' rows of W, which may be one row that all share."""
        return W if self.who is None or len(W) == 1 else W[self.who]

    def each(self) -> Iterator[Batch]:
        """Its users one by one."""
        who = torch.arange(len(self.x), device=self.x.device) if self.who is None else self.who
        for k in range(len(self.x)):
            one = slice(k, k + 1)
            mask = None if self.mask is None else self.mask[one]
            yield Batch(who[one], self.x[one], self.y[one], mask, self.part)

    def added(self, out: Tensor, part: Tensor, share: float = 1.0) -> Tensor:
        """`share` times what these users' rows give, added to `out` (users, ...), which is overwritten."""
        return part if self.who is None else out.index_add_(0, self.who, part, alpha=share)

    def seeds(self, seeds: Tensor | None) -> Tensor | None:
        """These users' seeds; each part of a user's rows has seeds of its own."""
        if seeds is None or (self.who is None and not self.part):
            return seeds
        mine = seeds if self.who is None else seeds[self.who.to(seeds.device)]
        return mine if not self.part else torch.tensor([seed_of_part(seed, self.part) for seed in mine.tolist()])


class UserData(Protocol):
    """All users' data. `batches` iterates over all rows once; `pick` takes chosen rows of every user that has any, in
    one batch, or in several where rows have different lengths.

    `cut`: whether a user's rows may come in parts. `seeds`: the seeds of random transformations of rows.
    """

    @property
    def sizes(self) -> Tensor: ...
    @property
    def indexed(self) -> bool:
        """Whether rows can be picked."""

    def batches(self, cut: bool = False, seeds: Tensor | None = None) -> Iterator[Batch]: ...
    def pick(self, rows: Tensor, mask: Tensor, seeds: Tensor | None = None) -> Sequence[Batch]: ...
    def take(self, who: Tensor) -> UserData: ...
    def targets(self) -> list[Tensor]:
        """Each user's targets; of a stream, the distinct ones."""


def present(mask: Tensor, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Which users have rows (None: all), and their mask (None: all rows are real), on a device."""
    if bool(mask.all()):
        return None, None
    here = mask.any(1)
    who = None if bool(here.all()) else here.nonzero().flatten()
    return None if who is None else who.to(device), (mask if who is None else mask[who]).to(device)


@dataclass(frozen=True, eq=False)
class Resident:
    """Copies of users' tensors on the device: users of equal size stacked, of similar size stacked and padded."""

    stacks: tuple[Batch, ...]
    sizes: Tensor
    indexed = True

    def batches(self, cut: bool = False, seeds: Tensor | None = None) -> Iterator[Batch]:
        yield from self.stacks

    @cached_property
    def users(self) -> list[XY]:
        """Each user's own rows, as views."""
        rows: dict[int, XY] = {}
        for stack in self.stacks:
            who = range(len(self.sizes)) if stack.who is None else stack.who.tolist()
            for k, i in enumerate(who):
                size = int(self.sizes[i])
                rows[i] = (stack.x[k, :size], stack.y[k, :size])
        return [rows[i] for i in range(len(self.sizes))]

    def pick(self, rows: Tensor, mask: Tensor, seeds: Tensor | None = None) -> Sequence[Batch]:
        who, real = present(mask, rows.device)
        numbers = torch.arange(len(rows), device=rows.device) if who is None else who
        rows = rows if who is None else rows[who]
        if len(self.stacks) == 1:  # of all users, in their order
            each = numbers.unsqueeze(1)
            return (Batch(who, self.stacks[0].x[each, rows], self.stacks[0].y[each, rows], real),)
        users = [self.users[i] for i in numbers.tolist()]
        chosen = [(x[mine], y[mine]) for (x, y), mine in zip(users, rows, strict=True)]
        return (Batch(who, torch.stack([x for x, _ in chosen]), torch.stack([y for _, y in chosen]), real),)

    def targets(self) -> list[Tensor]:
        return [y for _, y in self.users]

    def take(self, who: Tensor) -> Resident:
        return stacked([self.users[i] for i in who.tolist()])


def stacked(users: Sequence[XY]) -> Resident:
    """Users' tensors in a few stacks."""
    counts = np.array([len(y) for _, y in users])
    sizes = torch.tensor(counts, device=users[0][1].device)
    if (counts == counts[0]).all():
        return Resident((stack(None, users),), sizes)
    order, stacks = np.argsort(counts, kind="stable"), []
    while len(order):
        end = int(np.searchsorted(counts[order], SIZE_RATIO * counts[order[0]], side="right"))
        who = np.sort(order[:end])
        stacks.append(stack(torch.as_tensor(who, device=sizes.device), [users[i] for i in who]))
        order = order[end:]
    return Resident(tuple(stacks), sizes)


def stack(who: Tensor | None, users: Sequence[XY]) -> Batch:
    most = max(len(y) for _, y in users)
    if all(len(y) == most for _, y in users):
        return Batch(who, torch.stack([x for x, _ in users]), torch.stack([y for _, y in users]))
    x, y = users[0]
    X, Y = x.new_zeros((len(users), most, *x.shape[1:])), y.new_zeros((len(users), most, *y.shape[1:]))
    mask = torch.zeros((len(users), most), dtype=torch.bool, device=x.device)
    for k, (x, y) in enumerate(users):
        X[k, : len(y)], Y[k, : len(y)], mask[k, : len(y)] = x, y, True
    return Batch(who, X, Y, mask)
