"""Users' data sets and loaders, which are read in every pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.errors import InputError, ResolventWarning, refuse
from resolvent.networks.packed_inputs import Packing, listed
from resolvent.networks.row_readers import LABELS, XY, InputsY, RowReader
from resolvent.networks.userdata import Batch, present, stack

TOKENS = "input_ids"
"""The input of a model of transformers that has tokens."""

Halves = tuple[XY, list[XY]]
"""A few rows of one user, (1, n, ...), and two parts of them."""


@dataclass(frozen=True)
class Placement:
    """The device and type of users' tensors: floats become `dtype`, and with `classes` integer targets become int64.

    `finite`: whether targets must be finite; a custom loss may handle those that are not. `packing`: of a module's
    several inputs. `labels`: whether the model is given the labels of a batch, to compute its loss.
    """

    device: torch.device
    dtype: torch.dtype
    classes: bool = False
    finite: bool = False
    packing: Packing | None = None
    labels: bool = False
    tokens: int | None = None
    """How many tokens the model knows, where it says so."""
    positions: int | None = None
    """How many of them it takes per row, where it has a table of their places."""

    def for_inputs(self, pair: InputsY, name: str) -> Placement:
        """The same for users whose rows are like these: several inputs are packed."""
        inputs = pair[0]
        if isinstance(inputs, Tensor) or self.packing is not None:
            return self
        if not inputs:
            refuse(name, "without inputs", "a module needs one tensor at least")
        return replace(self, packing=Packing({key: self._placed(t) for key, t in self._given(inputs).items()}))

    def __call__(self, pair: InputsY, name: str = "users") -> XY:
        x, y = pair
        if isinstance(x, Tensor) != (self.packing is None):
            what = "one tensor" if isinstance(x, Tensor) else f"of {listed(x)}"
            refuse(name, what, "all users' inputs must be alike: one tensor, or the same several")
        placed = self._placed(y, self.classes)
        if isinstance(x, Tensor):
            return self._placed(x), placed
        assert self.packing is not None
        return self.packing.pack({key: self._placed(t) for key, t in self._given(x).items()}, name), placed

    def _given(self, inputs: dict[str | int, Tensor]) -> dict[str | int, Tensor]:
        """What the module is given of these inputs: targets only where it computes the loss."""
        return {
            key: t.to(torch.int64) if key == LABELS and not t.is_floating_point() else t
            for key, t in inputs.items()
            if self.labels or key != LABELS
        }

    def _placed(self, t: Tensor, classes: bool = False) -> Tensor:
        t = t.detach().to(self.device, self.dtype if t.is_floating_point() else None, non_blocking=True)
        return t.to(torch.int64) if classes and not t.is_floating_point() else t

    def checked(self, pair: InputsY, name: str) -> XY:
        """The same, but numbers that are not finite are refused."""
        x, y = self(pair, name)
        inputs: dict[str | int, Tensor] = {"x": x} if self.packing is None else self.packing.unpack(x)
        ids = inputs.get(TOKENS)
        if ids is not None and self.tokens is not None and bool(((ids < 0) | (ids >= self.tokens)).any()):
            outside = int(ids[(ids < 0) | (ids >= self.tokens)][0])
            refuse(f"{name}'s {TOKENS}", f"partly {outside}", f"the model knows tokens from 0 to {self.tokens - 1}")
        if ids is not None and ids.ndim > 1 and self.positions is not None and ids.shape[1] > self.positions:
            refuse(
                f"{name}'s {TOKENS}", f"of {ids.shape[1]} tokens per row", f"the model takes {self.positions} at most"
            )
        for what, t in [*inputs.items(), *([("y", y)] if self.finite else [])]:
            if t.is_floating_point() and not bool(torch.isfinite(t).all()):
                refuse(name, "partly NaN or infinite", f"finite numbers are needed in {what}, in {self.dtype}")
        return x, y

    def kind(self, pair: XY) -> RowKind:
        """Of what the rows are."""
        (x, y), packing = pair, self.packing
        inputs = (("x", tuple(x.shape[1:]), x.dtype),) if packing is None else packing.rows(x)
        return RowKind((*inputs, ("y", tuple(y.shape[1:]), y.dtype)))


class RowKind(NamedTuple):
    """The name, shape and type of each input of a user's rows, and of their targets, which all users share."""

    parts: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]

    def __str__(self) -> str:
        *inputs, target = (f"{name} {shape} of {dtype}" for name, shape, dtype in self.parts)
        return f"{', '.join(inputs)} and {target} per row"

    def fits(self, other: RowKind, lengths: bool) -> bool:
        """Whether rows are alike; with `lengths`, those may differ."""
        return self == other or (lengths and self._without_lengths == other._without_lengths)

    @property
    def _without_lengths(self) -> list[tuple[str, int, torch.dtype]]:
        return [(name, len(shape), dtype) for name, shape, dtype in self.parts]


def check_alike(kinds: Sequence[RowKind], names: Sequence[str], lengths: bool = False) -> None:
    """Refuse users whose rows have other shapes or types than those of the first user; `lengths` may differ."""
    for kind, name in zip(kinds, names, strict=True):
        if not kind.fits(kinds[0], lengths):
            pad = "" if len(kind.parts) == 2 else "; pad rows to one length, or pass DataLoaders whose collate_fn does"
            refuse(name, str(kind), f"all users' rows must be alike, and those of {names[0]} are {kinds[0]}{pad}")


class Survey(NamedTuple):
    """What one pass over a user's rows shows: their number, the kinds of batches, and the distinct integer targets."""

    size: int
    kinds: tuple[RowKind, ...]
    targets: Tensor


def survey(reader: RowReader, placement: Placement, name: str) -> tuple[Survey, Placement]:
    """Read a user's rows once, and refuse before the first round what no round could use.

    The placement that comes back is for inputs like these.
    """
    size, kinds, targets = 0, [], torch.empty(0, dtype=torch.int64)
    for pair in reader.chunks(0):
        placement = placement.for_inputs(pair, name)
        x, y = placement.checked(pair, name)
        size += len(y)
        kinds.append(placement.kind((x, y)))
        if not kinds[-1].fits(kinds[0], reader.pads):
            refuse(name, f"read as {kinds[-1]} after {kinds[0]}", "all rows must be alike")
        if not y.is_floating_point():
            targets = torch.cat([targets, y.cpu().flatten().to(torch.int64)]).unique()
    if not size:
        refuse(name, "empty", "every user needs at least one row")
    if reader.rows is not None and size != len(reader.rows):
        refuse(name, f"read as {size} rows where it has {len(reader.rows)}", "collate_fn must give one for each")
    _check_repeats(reader, placement, name)
    return Survey(size, tuple(dict.fromkeys(kinds)), targets), placement


def _check_repeats(reader: RowReader, placement: Placement, name: str) -> None:
    """Refuse what can be read only once, and warn of rows that change from pass to pass."""
    given = [reader.pick([0], 0) if reader.indexed else next(reader.chunks(0), None) for _ in range(2)]
    if given[0] is None or given[1] is None:
        refuse(name, "an iterable that can be gone through only once", "its __iter__ must begin anew in every pass")
    pairs = [placement(pair, name) for pair in given if pair is not None]
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

    @property
    def ragged(self) -> bool:
        """Whether batches have different lengths."""
        return len({kind for survey in self.surveys for kind in survey.kinds}) > 1

    def halves(self, most: int) -> Halves | None:
        """A few rows of a user, as batches of one user: all together, and the shorter and the longer half of them,
        each collated by itself; None where no user has two rows that can be picked."""
        reader, size = max(zip(self.readers, (each.size for each in self.surveys), strict=True), key=lambda one: one[1])
        if not reader.indexed or size < 2:
            return None
        rows = sorted({round(k * (size - 1) / (most - 1)) for k in range(most)})
        rows.sort(key=lambda row: self.placement(reader.pick([row], 0))[0].shape[1:])
        parts = rows, rows[: len(rows) // 2], rows[len(rows) // 2 :]
        whole, *halves = (tuple(t.unsqueeze(0) for t in self.placement(reader.pick(part, 0))) for part in parts)
        return whole, halves  # type: ignore[return-value]

    def targets(self) -> list[Tensor]:
        return [survey.targets for survey in self.surveys]

    def batches(self, cut: bool = False, seeds: Tensor | None = None) -> Iterator[Batch]:
        drawn = [0] * len(self.readers) if seeds is None else seeds.tolist()
        for i, (reader, seed) in enumerate(zip(self.readers, drawn, strict=True)):
            who = torch.tensor([i], device=self.placement.device)
            chunks = self._all(i, (self.placement(pair) for pair in reader.chunks(seed)))
            first, second = next(chunks), next(chunks, None) if cut else None
            if second is None:
                x, y = self._whole(i, [first, *chunks], seed)
                yield Batch(who, x.unsqueeze(0), y.unsqueeze(0))
                continue
            for part, (x, y) in enumerate(chain([first, second], chunks)):
                yield Batch(who, x.unsqueeze(0), y.unsqueeze(0), None, part)

    def _whole(self, i: int, chunks: list[XY], seed: int) -> XY:
        """All rows of user i: the chunks joined, or collated together where they have different lengths."""
        if len(chunks) == 1:
            return chunks[0]
        if len({(x.shape[1:], y.shape[1:]) for x, y in chunks}) == 1:
            x, y = map(torch.cat, zip(*chunks, strict=True))
            return x, y
        return self.placement(self.readers[i].pick(range(self.surveys[i].size), seed))

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

    def pick(self, rows: Tensor, mask: Tensor, seeds: Tensor | None = None) -> Sequence[Batch]:
        who, _ = present(mask, self.placement.device)
        users = []
        for i in range(len(rows)) if who is None else who.tolist():
            chosen = rows[i][mask[i].to(rows.device)].tolist()
            users.append(self.placement(self.readers[i].pick(chosen, 0 if seeds is None else int(seeds[i]))))
        shapes = [(x.shape[1:], y.shape[1:]) for x, y in users]
        if len(set(shapes)) == 1:
            return (stack(who, users),)
        numbers = torch.arange(len(rows), device=self.placement.device) if who is None else who
        groups = [[k for k, own in enumerate(shapes) if own == shape] for shape in dict.fromkeys(shapes)]
        return tuple(stack(numbers[group], [users[k] for k in group]) for group in groups)

    def take(self, who: Tensor) -> Streamed:
        chosen = who.tolist()
        return Streamed(tuple(self.readers[i] for i in chosen), tuple(self.surveys[i] for i in chosen), self.placement)
