"""Rows that no user trains on, by user: what a model is judged by while it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import InputError, bounded, listed, quoted, refuse
from resolvent.problems.labels import label_array


class HeldOut:
    """Features A and targets b that were held out, one matrix and one vector per user.

    A: a list of matrices (NumPy, torch, pandas or SciPy sparse), an array (users, rows, d), or one matrix for all.
    b: targets in the terms of the problem's own b. names: of the users; they need not be those who train.
    """

    def __init__(self, A: Any, b: Any, names: Sequence[Any] | None = None) -> None:
        if getattr(A, "ndim", None) == 2 and not isinstance(A, list | tuple):
            A, b = [A], [b]
        bounded(A, "A")
        bounded(b, "b")
        try:
            self.A: tuple[Any, ...] = tuple(_matrix(a, i) for i, a in enumerate(A))
            self.b: tuple[NDArray[Any], ...] = tuple(_targets(y, i) for i, y in enumerate(b))
        except InputError:
            raise
        except Exception:
            refuse(
                "HeldOut", f"of type {type(A).__name__}", "one matrix, or one matrix and one vector per user, is needed"
            )
        if len(self.A) != len(self.b):
            refuse("b", f"a list of {len(self.b)}", f"one vector for each of the {len(self.A)} matrices is needed")
        for i, (a, y) in enumerate(zip(self.A, self.b, strict=True)):
            if a.shape[0] != len(y):
                refuse(
                    f"b[{i}]",
                    f"of length {len(y)}",
                    f"one target for each of the {a.shape[0]} rows of A[{i}] is needed",
                )
        if not sum(self.sizes):
            refuse("HeldOut", "empty", "at least one row is needed")
        if len({a.shape[1] for a in self.A}) > 1:
            refuse("A", "of matrices with different numbers of columns", "every user has the same features")
        needed = f"one name for each of the {len(self.A)} users is needed"
        given = listed(range(len(self.A)) if names is None else names, "names", needed)
        if len(given) != len(self.A):
            refuse("names", f"a list of {len(given)}", needed)
        self.names = tuple(quoted(name, str) for name in given)

    @property
    def users(self) -> int:
        return len(self.A)

    @property
    def features(self) -> int:
        return int(self.A[0].shape[1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of each user; a user may have none."""
        return tuple(len(y) for y in self.b)

    def __repr__(self) -> str:
        return f"HeldOut({sum(self.sizes)} rows of {self.users} {'user' if self.users == 1 else 'users'})"


def _matrix(A: Any, user: int) -> Any:
    """A matrix of finite numbers, sparse where it is sparse."""
    if hasattr(A, "tocsr"):
        A = A.tocsr()
        values = A.data
    else:
        A = values = _array(A)
    if A.ndim != 2:
        refuse(f"A[{user}]", f"of shape {A.shape}", "a matrix, one row per target, is needed")
    if values.dtype.kind not in "fiub" or not np.isfinite(values).all():
        refuse(f"A[{user}]", "partly NaN, infinite or no number", "finite numbers are needed")
    return A


def _targets(given: Any, user: int) -> NDArray[Any]:
    y = label_array(given) if isinstance(given, list | tuple) else _array(given)
    if y.ndim != 1:
        refuse(f"b[{user}]", f"of shape {y.shape}", "a vector, one target per row, is needed")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        refuse(f"b[{user}]", "partly NaN or infinite", "finite numbers are needed")
    return y


def _array(values: Any) -> NDArray[Any]:
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu().numpy()
        array: NDArray[Any] = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except (TypeError, ValueError, RuntimeError, MemoryError):
        refuse("HeldOut", "made of something else than arrays", "matrices and vectors of numbers are needed")
    return array
