"""Labels as arrays in which different labels stay different."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import refuse


def label_array(labels: Any) -> NDArray[Any]:
    """Labels as NumPy reads them; objects where NumPy would change one of them.

    It drops a NUL at the end of a text, writes 1 as "1" beside text, and rounds integers beyond 2^53 beside floats.
    """
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return labels
    items = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    try:
        array = np.asarray(labels)
    except ValueError:
        refuse("labels", "a list of lists of unequal lengths", "a vector of labels is needed")
    if array.ndim != 1 or array.dtype == object or all(map(_same, array.tolist(), items)):
        return array
    objects: NDArray[Any] = np.empty(len(items), dtype=object)
    objects[:] = [item.item() if isinstance(item, np.generic) else item for item in items]
    return objects


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The labels of several arrays in one, of whatever types."""
    if len({part.dtype.kind for part in parts}) == 1:
        return np.concatenate(parts)
    return label_array([label for part in parts for label in part.tolist()])


def _same(read: Any, given: Any) -> bool:
    given = given.item() if isinstance(given, np.generic) else given  # NumPy compares integers and floats as floats
    return bool(read == given) or (read != read and given != given)
