"""Labels as arrays in which different labels stay different."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def label_array(labels: Any) -> NDArray[Any]:
    """Labels as NumPy reads them. Text that ends with a NUL stays objects: NumPy's own text would drop the NUL."""
    if isinstance(labels, np.ndarray) and labels.dtype != object:
        return labels
    items = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if not any(isinstance(item, str) and item.endswith("\0") for item in items):
        return np.asarray(labels)
    kept: NDArray[Any] = np.empty(len(items), dtype=object)
    kept[:] = items
    return kept
