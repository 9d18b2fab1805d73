"""Users' data sets and loaders, which are read in every pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.errors import InputError, ResolventWarning, refuse
from resolvent.networks.row_readers import XY, RowReader
from resolvent.networks.userdata import Batch, present, stack


@dataclass(frozen=True)
class Placement:
    """The device and type of users' tensors: floats become `dtype`, and with `classes` integer targets become int64.

    `finite`: whether targets must be finite; a custom loss may handle those that are not.
    """

    device: torch.device
    dtype: torch.dtype
    classes: bool = False
    finite: bool = False

    def __call__(self, pair: XY) -> XY:
        x, y = (t.detach().to(self.device, self._kind(t), non_blocking=True) for t in pair)
        return x, y.to(torch.int64) if self.classes and not y.is_floating_point() else y

    def _kind(self, t: Tensor) -> torch.dtype | None:
        return self.dtype if t.is_floating_point() else None

    def checked(self, pair: XY, name: str) -> XY:
        """The same, but numbers that are not finite are refused."""
        x, y = self(pair)
        for t, what in ((x, "x"), (y, "y")) if self.finite else ((x, "x"),):
            if t.is_floating_point() and not bool(torch.isfinite(t).all()):
                refuse(name, "partly NaN or infinite", f"finite numbers are needed in {what}, in {self.dtype}")
        return x, y


class RowKind(NamedTuple):
    """The shapes and types of a user's rows, which all users share."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    types: tuple[torch.dtype, torch.dtype]

    @staticmethod
    def of(pair: XY) -> RowKind:
        x, y = pair
        return RowKind(tuple(x.shape[1:]), tuple(y.shape[1:]), (x.dtype, y.dtype))


def check_alike(kinds: Sequence[RowKind], names: Sequence[str]) -> None:
    """Refuse users whose rows have other shapes or types than those of the first user."""
    for kind, name in zip(kinds, names, strict=True):
        if kind != kinds[0]:
            refuse(
                name,
                _described(kind),
                f"all users' rows must be alike, and those of {names[0]} are {_described(kinds[0])}",
            )


def _described(kind: RowKind) -> str:
    return f"x {kind.x} of {kind.types[0]} and y {kind.y} of {kind.types[1]} per row"


class Survey(NamedTuple):
    """What one pass over a user's rows shows: their number, their kind, and the distinct integer targets."""

    size: int
    kind: RowKind
    targets: Tensor


def survey(reader: RowReader, placement: Placement, name: str) -> Survey:
    """Read a user's rows once, and refuse before the first round what no round could use."""
    size, kinds, targets = 0, [], torch.empty(0, dtype=torch.int64)
    for pair in reader.chunks(0):
        x, y = placement.checked(pair, name)
        size += len(y)
        kinds.append(RowKind.of((x, y)))
        if kinds[-1] != kinds[0]:
            refuse(name, f"read as {_described(kinds[-1])} after {_described(kinds[0])}", "all rows must be alike")
        if not y.is_floating_point():
            targets = torch.cat([targets, y.cpu().flatten().to(torch.int64)]).unique()
    if not size:
        refuse(name, "empty", "every user needs at least one row")
    if reader.rows is not None and size != len(reader.rows):
        refuse(name, f"read as {size} rows where it has {len(reader.rows)}", "collate_fn must give one for each")
    _check_repeats(reader, name)
    return Survey(size, kinds[0], targets)


def _check_repeats(reader: RowReader, name: str) -> None:
    """Refuse what can be read only once, and warn of rows that change from pass to pass."""
    pairs = [reader.pick([0], 0) if reader.indexed else next(reader.chunks(0), None) for _ in range(2)]
    if pairs[0] is None or pairs[1] is None:
        refuse(name, "an iterable that can be gone through only once", "its __iter__ must begin anew in every pass")
    if not all(a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*pairs, strict=True)):
        warnings.warn(
            f"{name} reads other rows in every pass, by a generator of its own, so that runs are not repeatable: "
            "draw from the global generator of torch, NumPy or random, which follows the seed",
            ResolventWarning,
            stacklevel=2,
        )


@dataclass(frozen=True, eq=False)
class Streamed:
    """One reader per user. Transformations of rows are computed in every pass."""

    readers: tuple[RowReader, ...]
    surveys: tuple[Survey, ...]
    placement: Placement

    @property
    def indexed(self) -> bool:
        return all(reader.indexed for reader in self.readers)

    @property
    def sizes(self) -> Tensor:
        return torch.tensor([survey.size for survey in self.surveys], device=self.placement.device)

    def targets(self) -> list[Tensor]:
        return [survey.targets for survey in self.surveys]

    def batches(self, cut: bool = False, seeds: Tensor | None = None) -> Iterator[Batch]:
        drawn = [0] * len(self.readers) if seeds is None else seeds.tolist()
        for i, (reader, seed) in enumerate(zip(self.readers, drawn, strict=True)):
            who = torch.tensor([i], device=self.placement.device)
            chunks = self._all(i, (self.placement(pair) for pair in reader.chunks(seed)))
            first, second = next(chunks), next(chunks, None) if cut else None
            if second is None:
                rest = list(chunks)
                x, y = first if not rest else map(torch.cat, zip(first, *rest, strict=True))
                yield Batch(who, x.unsqueeze(0), y.unsqueeze(0))
                continue
            for part, (x, y) in enumerate(chain([first, second], chunks)):
                yield Batch(who, x.unsqueeze(0), y.unsqueeze(0), None, part)

    def _all(self, i: int, chunks: Iterator[XY]) -> Iterator[XY]:
        """The chunks of a pass over user i's rows, refused where their number has changed."""
        size = 0
        for pair in chunks:
            size += len(pair[1])
            yield pair
        if size != self.surveys[i].size:
            raise InputError(
                f"a data set gave {size} rows, but {self.surveys[i].size} when the problem was built: "
                "every pass must give all of the user's rows"
            )

    def pick(self, rows: Tensor, mask: Tensor, seeds: Tensor | None = None) -> Batch:
        who, _ = present(mask, self.placement.device)
        users = []
        for i in range(len(rows)) if who is None else who.tolist():
            chosen = rows[i][mask[i].to(rows.device)].tolist()
            users.append(self.placement(self.readers[i].pick(chosen, 0 if seeds is None else int(seeds[i]))))
        return stack(who, users)

    def take(self, who: Tensor) -> Streamed:
        chosen = who.tolist()
        return Streamed(tuple(self.readers[i] for i in chosen), tuple(self.surveys[i] for i in chosen), self.placement)
