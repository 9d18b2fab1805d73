"""Which rows of a data set or DataLoader are a user's, and how they are read.

A user's function is the mean loss over its rows, each of them once. A loader therefore says which rows there are (its
data set and sampler), how they become tensors (its collate_fn) and how they are read (its workers and batch size). Its
order does not matter, and what draws other rows in every pass is refused.

Rows may be transformed at random (augmentation). While rows are read, the global generators of torch, NumPy and
`random` follow a seed, so that a pass is a pure function of it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from resolvent.errors import InputError, bounded, refuse
from resolvent.networks.packed_inputs import Inputs, as_inputs, listed

ROWS_OF_EACH = "as many rows of each are needed"
ROWS_PER_READ = 256
"""How many rows of a data set are read at a time, unless a loader says otherwise."""
SEED_STRIDE = 0x9E3779B97F4A7C15
_END = object()

XY = tuple[Tensor, Tensor]
"""Some rows of a user: x and y."""
InputsY = tuple[Inputs, Tensor]
"""The same as they came: x may be several tensors."""
LABELS = "labels"
"""The key of the targets in a batch whose loss the model computes."""


def seed_of_part(seed: int, part: int) -> int:
    """The seed of a part of a pass; that of part 0 is the seed itself."""
    return (seed + part * SEED_STRIDE) % 2**63


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """The global generators of torch, NumPy and `random` follow the seed meanwhile, and are restored afterwards."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which seeds accelerators too
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@dataclass(frozen=True, eq=False)
class RowReader:
    """Reads a user's rows: all of them, some at a time, or chosen ones.

    `rows` are the numbers or keys of the user's rows in the loader's data set; None where that is iterable.
    """

    name: str
    loader: DataLoader[Any]
    rows: Sequence[Any] | None = None

    @property
    def indexed(self) -> bool:
        return self.rows is not None

    @property
    def pads(self) -> bool:
        """Whether a collate_fn of the user's own may give each batch another length."""
        return self.loader.collate_fn is not default_collate

    def chunks(self, seed: int) -> Iterator[InputsY]:
        with repeatable(seed), _named(self.name):
            given = iter(self.loader)
        part = 0
        while True:
            with repeatable(seed_of_part(seed, part)), _named(self.name):
                batch = next(given, _END)
            if batch is _END:
                return
            yield _pair(batch, self.name)
            part += 1

    def pick(self, rows: Sequence[int], seed: int) -> InputsY:
        if self.rows is None:
            raise InputError(f"{self.name} is an iterable data set, whose rows cannot be picked: leave out batch")
        keys, source = [self.rows[k] for k in rows], self.loader.dataset
        with repeatable(seed), _named(self.name):
            many = getattr(source, "__getitems__", None)  # as torch's own loaders read
            read = many(keys) if many else [source[key] for key in keys]
            pair = _pair(self.loader.collate_fn(read), self.name)
        if len(pair[1]) != len(keys):
            refuse(self.name, f"read as {len(pair[1])} rows where {len(keys)} were asked for", "one for each is needed")
        return pair


def reader(user: Any, name: str) -> RowReader:
    """How a data set or a DataLoader is read; refused where its rows are not the same in every pass."""
    if isinstance(user, DataLoader):
        return _loader(user, name)
    if isinstance(user, IterableDataset):
        return RowReader(name, DataLoader(user, batch_size=ROWS_PER_READ))
    rows = bounded(range(len(user)), name)
    return RowReader(name, DataLoader(user, ROWS_PER_READ, sampler=rows), rows)


def _loader(loader: DataLoader[Any], name: str) -> RowReader:
    dropping = "a DataLoader with drop_last=True", "f_i is a mean over all rows: pass drop_last=False"
    if type(loader).__iter__ is not DataLoader.__iter__:
        refuse(name, f"a {type(loader).__name__}, which reads in its own way", "its data set is needed instead")
    if isinstance(loader.dataset, IterableDataset):
        if loader.drop_last:
            refuse(name, *dropping)
        return RowReader(name, _unshuffled(loader, batch_size=loader.batch_size))
    batches = loader.batch_sampler
    if batches is None:
        refuse(name, "a DataLoader with batch_size=None", "a batch_size is needed, and a data set of single rows")
    if type(batches) is not BatchSampler:
        refuse(
            name,
            f"a DataLoader with a batch_sampler of type {type(batches).__name__}, which may draw any rows",
            "a user's rows are needed: pass torch.utils.data.Subset(data_set, rows)",
        )
    bounded(range(len(loader.dataset)), name)  # type: ignore[arg-type]
    rows = _rows(batches.sampler, len(loader.dataset), name)  # type: ignore[arg-type]
    if batches.drop_last and len(rows) % batches.batch_size:
        refuse(name, *dropping)
    return RowReader(name, _unshuffled(loader, batch_size=batches.batch_size, sampler=rows), rows)


def _unshuffled(loader: DataLoader[Any], **options: Any) -> DataLoader[Any]:
    """A loader that reads in the same way, in the order of the data set or of the rows given."""
    return DataLoader(
        loader.dataset,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory and torch.cuda.is_available(),
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        **options,
    )


def _rows(sampler: Any, available: int, name: str) -> Sequence[Any]:
    """The rows that a sampler gives once each in every pass."""
    kind, instead = type(sampler), "pass torch.utils.data.Subset(data_set, rows)"
    if kind is SequentialSampler:
        return range(len(sampler.data_source))
    if kind is RandomSampler:
        if sampler.replacement or sampler.num_samples != len(sampler.data_source):
            refuse(name, "a DataLoader that draws other rows in every pass", f"f_i has fixed rows: {instead}")
        return range(len(sampler.data_source))
    if kind is SubsetRandomSampler:
        return list(sampler.indices)
    if isinstance(sampler, WeightedRandomSampler):
        refuse(name, "a DataLoader that draws rows by weights", f"f_i has fixed rows: {instead}, and weigh in the loss")
    if hasattr(sampler, "set_epoch"):
        refuse(
            name,
            f"a DataLoader with a {kind.__name__}, whose rows change with the epoch",
            f"f_i has its own: {instead}",
        )
    return _once_each(sampler, available, name, instead)


def _once_each(sampler: Any, available: int, name: str, instead: str) -> Sequence[Any]:
    """The rows of an unknown sampler, if two passes give the same rows, and none of them twice."""
    passes = []
    for seed in (0, 1):
        with repeatable(seed):
            passes.append(list(islice(iter(sampler), available + 1)))
    first, second = Counter(map(_key, passes[0])), Counter(map(_key, passes[1]))
    if first != second or any(count > 1 for count in first.values()):
        refuse(
            name,
            f"a DataLoader with a {type(sampler).__name__}, which does not give the same rows once each in every pass",
            instead,
        )
    whole = all(isinstance(key, int) for key in first)
    return sorted(first) if whole else passes[0]


def _key(row: Any) -> Any:
    return int(row) if isinstance(row, Tensor | np.integer) else row


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors raised by a data set get the user's name."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        line = (str(error).splitlines() or [""])[0]
        raise InputError(f"{name} cannot be read: {type(error).__name__}: {line}") from error


def split_labels(batch: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], Any]:
    """A batch whose loss the model computes: all of it, and its labels."""
    if LABELS not in batch:
        needed = f"{LABELS!r} must be among them if the model is to compute the loss, or pass (inputs, targets)"
        refuse(name, f"a dict of {listed(batch)}", needed)
    return batch, batch[LABELS]


def check_rows(pair: InputsY, name: str) -> None:
    """Refuse inputs and targets that have not as many rows each."""
    x, y = pair
    if isinstance(x, Tensor):
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            refuse(name, f"x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}", ROWS_OF_EACH)
        return
    for key, t in x.items():
        if t.ndim == 0 or y.ndim == 0 or len(t) != len(y):
            refuse(name, f"{key} of shape {tuple(t.shape)} and targets of shape {tuple(y.shape)}", ROWS_OF_EACH)


def _pair(batch: Any, name: str) -> InputsY:
    if isinstance(batch, Mapping):
        batch = split_labels(batch, name)
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    x: Any = as_inputs(batch[0]) if pair else batch
    y: Any = batch[1] if pair else None
    if not all(isinstance(t, Tensor) for t in (*(x.values() if isinstance(x, dict) else [x]), y)):
        kind = type(batch).__name__
        if isinstance(batch, (tuple, list)):
            kind += " of " + ", ".join(type(t).__name__ for t in batch[:4])
        refuse(name, f"read as a {kind}", "pairs (x, y) that collate to two tensors are needed")
    check_rows((x, y), name)
    return x, y
