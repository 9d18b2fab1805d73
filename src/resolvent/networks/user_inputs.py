"""Users' arrays, data sets and loaders, checked and turned into `UserData`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from resolvent.errors import InputError, quoted, refuse
from resolvent.networks.row_readers import XY, reader
from resolvent.networks.streamed import Placement, RowKind, Streamed, check_alike, survey
from resolvent.networks.userdata import UserData, stacked


def as_user_data(users: Any, argument: str, placement: Placement) -> UserData:
    """Arrays are copied to the device and stay there; data sets and loaders stream. If one user streams, all do."""
    if not isinstance(users, Sequence) or isinstance(users, str) or not users:
        refuse(argument, f"of type {type(users).__name__}", "a list with (x, y) or a data set for each user is needed")
    names = [f"{argument}[{i}]" for i in range(len(users))]
    arrays = [_arrays(user, name) for user, name in zip(users, names, strict=True)]
    pairs = [
        None if pair is None else _checked(pair, name, placement) for pair, name in zip(arrays, names, strict=True)
    ]
    resident = [pair for pair in pairs if pair is not None]
    if len(resident) == len(users):
        check_alike([RowKind.of(pair) for pair in resident], names)
        return stacked(resident)
    streams = [
        user if pair is None else TensorDataset(*(t.detach().clone() for t in pair))
        for user, pair in zip(users, arrays, strict=True)
    ]
    readers = tuple(map(reader, streams, names))
    surveys = tuple(survey(each, placement, name) for each, name in zip(readers, names, strict=True))
    check_alike([each.kind for each in surveys], names)
    return Streamed(readers, surveys, placement)


def is_pair(given: Any) -> bool:
    """Whether this is (x, y) of arrays, rather than a list of users."""
    return isinstance(given, tuple) and len(given) == 2 and all(hasattr(part, "shape") for part in given)


def _arrays(user: Any, name: str) -> XY | None:
    """A user's x and y as they came; None where the user is a stream."""
    try:
        tensors = _tensors(user)
    except IndexError as error:
        raise InputError(f"{name} cannot be read: {error}") from error
    if tensors is not None:
        if len(tensors) != 2:
            refuse(name, f"a TensorDataset of {len(tensors)} tensors", "two are needed, x and y")
        return tensors[0], tensors[1]
    if isinstance(user, tuple) and len(user) != 2:
        refuse(name, f"a tuple of {len(user)}", "(x, y) is needed")
    if isinstance(user, (tuple, list)) and len(user) == 2:
        if isinstance(user, list) and all(isinstance(part, tuple) for part in user):
            refuse(name, "a list of two tuples", "(x, y) with all rows in each is needed, or a torch data set")
        return _tensor(user[0], f"{name}'s x"), _tensor(user[1], f"{name}'s y")
    if isinstance(user, DataLoader | IterableDataset):
        return None
    if isinstance(user, str | dict) or not (hasattr(user, "__getitem__") and hasattr(user, "__len__")):
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


def _tensor(part: Any, name: str) -> Tensor:
    """Numbers as a tensor, of their own type."""
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


def _checked(pair: XY, name: str, placement: Placement) -> XY:
    x, y = pair
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        refuse(name, f"x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}", "as many rows of each are needed")
    if len(x) == 0:
        refuse(name, "empty", "every user needs at least one row")
    return placement.checked(pair, name)


def as_dtype(dtype: Any) -> torch.dtype:
    """The type of a network's parameters."""
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float16, torch.float32, torch.float64):
        needed = "torch.float32 or torch.float64 is needed; for products in less precision pass autocast=torch.bfloat16"
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
