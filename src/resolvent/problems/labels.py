"""Labels of any kind, as arrays in which different labels stay different, and as numbers of classes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent.errors import bounded, quoted, refuse


def label_array(labels: Any) -> NDArray[Any]:
    """Labels as NumPy reads them; objects where NumPy would change one of them.

    It drops a NUL at the end of a text, writes 1 as "1" beside text, and rounds integers beyond 2^53 beside floats.
    """
    bounded(labels, "labels")
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return labels
    try:
        if not isinstance(labels, Collection) and not hasattr(labels, "tolist"):
            raise TypeError("these may never end")
        items = labels.tolist() if hasattr(labels, "tolist") else list(labels)
        array = np.asarray(labels)
    except Exception:  # lists of unequal lengths; or a class of the caller's, which may raise anything
        refuse("labels", quoted(labels), "a vector of labels is needed")
    if array.ndim != 1 or array.dtype == object or all(map(_same, array.tolist(), items)):
        return array
    objects: NDArray[Any] = np.empty(len(items), dtype=object)
    objects[:] = [plain_label(item) for item in items]
    return objects


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The labels of several arrays in one, of whatever types."""
    if len({part.dtype.kind for part in parts}) == 1:
        return np.concatenate(parts)
    return label_array([label for part in parts for label in part.tolist()])


def _same(read: Any, given: Any) -> bool:
    given = plain_label(given)  # NumPy compares integers and floats as floats
    return bool(read == given) or (read != read and given != given)


def encoded(y: Any, classes: Sequence[Any] | None) -> tuple[list[NDArray[np.float64]], tuple[Any, ...]]:
    """Each user's labels as numbers of classes, and the classes: those given, in this order, or all that users hold."""
    users = [_labels(each, i) for i, each in enumerate(_per_user(bounded(y, "y")))]
    if not users:
        refuse("y", "an empty list", "the labels of at least one user are needed")
    try:
        present = np.unique(joined(users))
    except TypeError:
        refuse("y", "a mixture of types", "labels of one type, all numbers or all text, are needed")
    if present.dtype.kind == "f" and not np.isfinite(present).all():
        refuse("y", "partly NaN or infinite", "a label for every row is needed")
    names = present if classes is None else _labels(classes, None)
    if not all(isinstance(plain_label(name), Hashable) for name in names):
        refuse("classes", quoted(classes), "labels, numbers or text, are needed")
    if len(names) < 2 or len({plain_label(name) for name in names}) < len(names):
        refuse("classes", [plain_label(name) for name in names], "two different labels at least, each once, are needed")
    place = {plain_label(name): k for k, name in enumerate(names)}
    for label in present:
        if plain_label(label) not in place:
            refuse("y", f"{plain_label(label)!r} in some row", f"one of the classes {list(place)} is needed")
    codes = [np.array([place[plain_label(label)] for label in each], np.float64) for each in users]
    return codes, tuple(place)


def _per_user(y: Any) -> Sequence[Any]:
    y = _of_tensor(y, "y") if isinstance(y, Tensor) else y
    if isinstance(y, np.ndarray) and y.ndim != 2 and (y.dtype != object or not y.ndim):
        refuse("y", f"of shape {y.shape}", "(users, rows), or a list with the labels of each user, is needed")
    if not isinstance(y, (list, tuple, np.ndarray)):
        refuse("y", quoted(type(y).__name__), "a list with the labels of each user is needed")
    return list(y)


def _of_tensor(given: Tensor, name: str) -> NDArray[Any]:
    try:
        return given.detach().cpu().numpy()
    except (TypeError, RuntimeError):
        refuse(name, "a sparse tensor, or one without data", "a dense one is needed")


def _labels(given: Any, user: int | None) -> NDArray[Any]:
    name = "classes" if user is None else f"y[{user}]"
    if not isinstance(bounded(given, name), Collection):
        refuse(name, quoted(given), f"a vector of labels is needed{', such as range(3)' if user is None else ''}")
    each: NDArray[Any] = label_array(_of_tensor(given, name) if isinstance(given, Tensor) else given)
    if each.dtype == object:  # text in frames
        each = label_array(each.tolist())
    if each.ndim != 1 or not len(each):
        refuse(name, f"of shape {each.shape}", "a vector of labels is needed")
    return each


def plain_label(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def one_hot(codes: Tensor, classes: int) -> Tensor:
    """(users, classes, rows) of 0 and 1."""
    return (codes.unsqueeze(1) == torch.arange(classes, device=codes.device).unsqueeze(1)).to(codes)
