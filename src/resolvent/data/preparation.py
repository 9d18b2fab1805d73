"""From a raw row to features: what a model needs to know of the table that it was trained on, and takes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.columns import TEXT, Column, Source, array_source, source
from resolvent.data.scaling import Floats, Scaling
from resolvent.data.target import Target
from resolvent.errors import InputError, refuse

INTERCEPT = "(intercept)"
"""What the intercept is called among named coefficients."""


@dataclass(frozen=True)
class Feature:
    """A column of the raw table: numbers, or categories whose first level is the one that the others differ from."""

    name: str
    levels: tuple[str, ...] | None = None
    """Of categories, sorted; None for numbers and booleans."""
    fill: float | str | None = None
    """What replaces a missing value; None: it is refused."""

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of numbers that it becomes."""
        return (self.name,) if self.levels is None else tuple(f"{self.name}={level}" for level in self.levels[1:])

    def numbers(self, column: Column) -> Floats:
        """(rows, features) of a column."""
        missing = column.missing
        if missing.any() and self.fill is None:
            n, row = int(missing.sum()), int(missing.argmax()) + 1
            came = f"{self.name!r} with {n} missing value{'s' if n > 1 else ''} (the first in row {row})"
            refuse("column", came, "the model was trained without imputing it: fill it in, or train with impute=")
        if self.levels is None:
            return self._plain(column, missing)
        words = column.texts
        if missing.any():
            words = words.copy()
            words[missing] = self.fill
        known = set(self.levels)
        unseen = sorted({w for w in words if w not in known})
        if unseen:
            shown = ", ".join(map(repr, unseen[:3])) + (", ..." if len(unseen) > 3 else "")
            levels = ", ".join(self.levels[:10]) + (", ..." if len(self.levels) > 10 else "")
            refuse("column", f"{self.name!r} with {shown}", f"the training rows hold only {levels} there")
        return np.column_stack([np.zeros((len(words), 0)), *(words == level for level in self.levels[1:])]).astype(
            float
        )

    def _plain(self, column: Column, missing: NDArray[np.bool_]) -> Floats:
        if column.kind == TEXT and not missing.all():
            first = next(value for value in column.values if value is not None)
            refuse("column", f"{self.name!r} with {first!r}", "numbers are needed there")
        values = column.values.astype(np.float64) if column.kind != TEXT else np.full(len(missing), np.nan)
        if np.isinf(values).any():
            row = int(np.isinf(values).argmax()) + 1
            refuse("column", f"{self.name!r}, infinite in row {row}", "finite numbers are needed")
        return (np.where(missing, np.float64(self.fill or 0.0), values) if missing.any() else values)[:, None]


@dataclass(frozen=True)
class Preparation:
    """What turns a raw row or frame into features, and predictions into labels.

    columns: the raw columns that are features, in order. target: what is predicted, and its classes. scaling: of the
    features. dropped, user: columns that are no features.
    """

    columns: tuple[Feature, ...]
    target: Target
    scaling: Scaling | None = None
    dropped: tuple[str, ...] = ()
    user: str | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """The name of every feature: a column's own, or column=level."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The labels that are predicted; None for numbers."""
        return self.target.classes

    def transform(self, X: Any) -> Floats:
        """Features (rows, d) of a frame, of rows as mappings, or of an array whose columns are the raw ones in order.

        Columns that are no features are ignored. A missing value is imputed or refused as in training, and a category
        that no training row held is refused by name.
        """
        found = self._source(X)
        return self.scaled(self.matrix([found.column(column.name) for column in self.columns]))

    def matrix(self, columns: Sequence[Column]) -> Floats:
        """Features in the units of the table, of the raw columns in order."""
        return np.column_stack([own.numbers(column) for own, column in zip(self.columns, columns, strict=True)])

    def scaled(self, x: Floats) -> Floats:
        return x if self.scaling is None else self.scaling(x)

    def encode(self, y: Any) -> NDArray[Any]:
        """Raw labels as the problem has them: -1 and +1, whole numbers from 0, or the numbers themselves."""
        return self.target.encode(self.target.column(y))

    def labels(self, predictions: Any) -> NDArray[Any]:
        """What the problem predicts as labels of the table: the inverse of `encode`."""
        return self.target.decode(np.asarray(predictions))

    def unscale(self, model: Any) -> dict[Any, Any]:
        """The coefficients by name, in the units of the table; one dict per class of a softmax.

        Where the model has an intercept, or where centring makes one, it is called "(intercept)".
        """
        w, d = np.asarray(model, dtype=np.float64).reshape(-1), len(self.features)
        many = self.target.scores
        if len(w) not in (many * d, many * (d + 1)):
            needed = f"{many * d} numbers, or {many * (d + 1)} with an intercept, are needed"
            refuse("model", f"of length {len(w)}", needed)
        weights = w[: many * d].reshape(many, d)
        shift = w[many * d :] if len(w) > many * d else None
        if self.scaling is not None:
            weights = weights / np.array(self.scaling.scale)
            shift = (0.0 if shift is None else shift) - weights @ np.array(self.scaling.mean)
        named = []
        for k in range(many):
            own: dict[str, float] = dict(zip(self.features, weights[k].tolist(), strict=True))
            named.append(own if shift is None else {INTERCEPT: float(shift[k]), **own})
        return named[0] if many == 1 else dict(zip(self.classes or (), named, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Preparation:
        """What `as_dict` wrote, after any journey through JSON."""
        try:
            columns = tuple(
                Feature(c["name"], None if c["levels"] is None else tuple(c["levels"]), c["fill"])
                for c in told["columns"]
            )
            scaling = told["scaling"] and Scaling(tuple(told["scaling"]["mean"]), tuple(told["scaling"]["scale"]))
            target = Target.from_dict(told["target"])
            return cls(columns, target, scaling, tuple(told["dropped"]), told["user"])
        except (KeyError, TypeError) as error:
            raise InputError(
                f"the preparation cannot be read ({type(error).__name__}: {error}); what as_dict wrote is needed"
            ) from None

    def _source(self, X: Any) -> Source:
        names = [column.name for column in self.columns]
        found = _as_array(X, names)
        if found is not None:
            text = next((c.name for c in self.columns if c.levels is not None), None)
            if text is not None:
                refuse("X", "an array of numbers", f"column {text!r} holds categories: a frame with names is needed")
            return array_source(found, names)
        frame = source(X, "X")
        for name in names:
            if name not in frame.names:
                near = get_close_matches(name, frame.names, n=1)
                hint = f" (nearest: {near[0]!r})" if near else ""
                refuse("X", f"without a column {name!r}{hint}", f"the model needs {', '.join(names[:12])}")
        return frame


def _as_array(X: Any, names: Sequence[str]) -> Floats | None:
    """A matrix of numbers where X is one (a tensor, too), or one row of it; None where it is something else."""
    if hasattr(X, "columns") or isinstance(X, Mapping) or type(X).__module__.partition(".")[0] in ("pandas", "polars"):
        return None
    if isinstance(X, Sequence) and any(isinstance(row, Mapping) for row in X):
        return None
    x = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)
    if x.dtype.kind not in "biuf":
        refuse(
            "X",
            f"an array of type {x.dtype}",
            f"numbers, or a frame with the columns {', '.join(names[:12])}, are needed",
        )
    x = np.atleast_2d(x).astype(np.float64)
    if x.ndim != 2 or x.shape[1] != len(names):
        refuse("X", f"of shape {x.shape}", f"{len(names)} columns are needed: {', '.join(names[:12])}")
    return x
