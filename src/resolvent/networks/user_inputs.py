"""Users' arrays, data sets and loaders, checked and turned into `UserData`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from resolvent.errors import InputError, bounded, quoted, refuse
from resolvent.networks.packed_inputs import as_inputs
from resolvent.networks.row_readers import LABELS, InputsY, check_rows, reader, split_labels
from resolvent.networks.streamed import Placement, Streamed, check_alike, survey
from resolvent.networks.userdata import UserData, stacked


def as_user_data(users: Any, argument: str, placement: Placement) -> tuple[UserData, Placement]:
    """Arrays are copied to the device and stay there; data sets and loaders stream. If one user streams, all do.

    The placement that comes back also says how several inputs are packed.
    """
    if not isinstance(bounded(users, argument), Sequence) or isinstance(users, str) or not users:
        given = "empty" if isinstance(users, list | tuple) else f"of type {type(users).__name__}"
        refuse(argument, given, "a list with (x, y) or a data set for each user is needed")
    names = [f"{argument}[{i}]" for i in range(len(users))]
    arrays = [_arrays(user, name) for user, name in zip(users, names, strict=True)]
    for pair, name in zip(arrays, names, strict=True):
        if pair is not None:
            check_rows(pair, name)
            if len(pair[1]) == 0:
                refuse(name, "empty", "every user needs at least one row")
            placement = placement.for_inputs(pair, name)
    resident = [placement.checked(pair, name) for pair, name in zip(arrays, names, strict=True) if pair is not None]
    if len(resident) == len(users):
        check_alike([placement.kind(pair) for pair in resident], names)
        return stacked(resident), placement
    streams = [user if pair is None else _Rows(pair) for user, pair in zip(users, arrays, strict=True)]
    readers = tuple(map(reader, streams, names))
    surveys = []
    for each, name in zip(readers, names, strict=True):
        surveyed, placement = survey(each, placement, name)
        surveys.append(surveyed)
    check_alike([each.kinds[0] for each in surveys], names, any(each.pads for each in readers))
    streamed = Streamed(readers, tuple(surveys), placement)
    if streamed.ragged and not streamed.indexed:
        needed = "rows of one length are needed there, or data sets that have __getitem__"
        refuse(argument, "partly iterable data sets whose rows have different lengths", needed)
    return streamed, placement


def is_pair(given: Any) -> bool:
    """Whether this is (x, y) of arrays, or one batch with labels, rather than a list of users."""
    if isinstance(given, Mapping):
        return True
    if not isinstance(given, tuple) or len(given) != 2 or not hasattr(given[1], "shape"):
        return False
    x = as_inputs(given[0])
    return all(hasattr(part, "shape") for part in (x.values() if isinstance(x, dict) else [x]))


class _Rows(Dataset[Any]):
    """Arrays among streams: rows (inputs, target)."""

    def __init__(self, pair: InputsY) -> None:
        x, y = pair
        self._x = x.clone() if isinstance(x, Tensor) else {key: t.clone() for key, t in x.items()}
        self._y = y.clone()

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, row: int) -> Any:
        if isinstance(self._x, Tensor):
            return self._x[row], self._y[row]
        inputs = {key: t[row] for key, t in self._x.items()}
        if LABELS in inputs:
            return inputs
        named = all(isinstance(key, str) for key in inputs)
        return (inputs if named else tuple(inputs.values())), self._y[row]


def _arrays(user: Any, name: str) -> InputsY | None:
    """A user's x and y as they came; None where the user is a stream."""
    try:
        tensors = _tensors(user)
    except IndexError as error:
        raise InputError(f"{name} cannot be read: {error}") from error
    if tensors is not None:
        if len(tensors) != 2:
            refuse(name, f"a TensorDataset of {len(tensors)} tensors", "two are needed, x and y")
        return tensors[0], tensors[1]
    if isinstance(user, Mapping):
        batch, labels = split_labels(user, name)
        return _several(batch, name), _tensor(labels, f"{name}'s {LABELS}")
    if isinstance(user, tuple) and len(user) != 2:
        refuse(name, f"a tuple of {len(user)}", "(x, y) is needed")
    if isinstance(user, (tuple, list)) and len(user) == 2:
        if isinstance(user, list) and all(isinstance(part, tuple) for part in user):
            refuse(name, "a list of two tuples", "(x, y) with all rows in each is needed, or a torch data set")
        y = _tensor(user[1], f"{name}'s y")
        if isinstance(user[0], Mapping):
            if LABELS in user[0]:
                needed = f"pass the batch alone if the model computes the loss, or leave {LABELS!r} out"
                refuse(name, f"a pair whose inputs have {LABELS!r}", needed)
            return _several(user[0], name), y
        return (_several(user[0], name) if _are_inputs(user[0], y) else _tensor(user[0], f"{name}'s x")), y
    if isinstance(user, DataLoader | IterableDataset):
        return None
    if isinstance(user, str) or not (hasattr(user, "__getitem__") and hasattr(user, "__len__")):
        refuse(name, f"of type {type(user).__name__}", "(x, y), a data set or a DataLoader is needed")
    return None


def _tensors(user: Any) -> tuple[Tensor, ...] | None:
    """The tensors of a TensorDataset, or of a Subset of one; None where rows are read in any other way."""
    if type(user) is Subset:
        whole = _tensors(user.dataset)
        if whole is None:
            return None
        rows = torch.as_tensor(np.asarray(user.indices, dtype=np.int64).reshape(-1))
        return tuple(t[rows.to(t.device)] for t in whole)
    plain = isinstance(user, TensorDataset) and type(user).__getitem__ is TensorDataset.__getitem__
    return user.tensors if plain else None


def _several(inputs: Any, name: str) -> dict[str | int, Tensor]:
    return {key: _tensor(part, f"{name}'s {key}") for key, part in as_inputs(inputs).items()}


def _are_inputs(x: Any, y: Tensor) -> bool:
    """Whether a tuple has a module's inputs, with all rows in each, rather than one row in each."""
    if not isinstance(x, tuple) or not x or not all(hasattr(part, "shape") and len(part.shape) for part in x):
        return False
    inputs, rows = all(len(part) == len(y) for part in x), len(x) == len(y)
    if inputs and rows and len({tuple(part.shape) for part in x}) == 1:
        needed = "pass a list of rows, or a dict of inputs by name"
        refuse("x", f"a tuple of {len(x)} with {len(y)} numbers each, which may be rows or inputs", needed)
    return inputs


def _tensor(part: Any, name: str) -> Tensor:
    """Numbers as a tensor, of their own type."""
    bounded(part, name)
    if isinstance(part, Tensor):
        return part.detach()
    try:
        if isinstance(part, (list, tuple)) and part and all(isinstance(row, Tensor) for row in part):
            return torch.stack([row.detach() for row in part])
        array = np.asarray(part)
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is of type {type(part).__name__}, but an array of numbers is needed") from error


def as_dtype(dtype: Any) -> torch.dtype:
    """The type of a network's parameters."""
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float16, torch.float32, torch.float64):
        needed = "torch.float32 or torch.float64 is needed; for products in less precision pass precision='bfloat16'"
        refuse("dtype", quoted(dtype), needed)
    kind: torch.dtype = dtype
    return kind


def as_device(device: torch.device | str) -> torch.device:
    """A device that is there."""
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError, ValueError, TypeError, OverflowError) as error:
        first, given = str(error).splitlines()[0], " ".join(quoted(device, str).split())
        raise InputError(f'device is {given}, which is not there ({first}); take device="cpu"') from None
    return where
