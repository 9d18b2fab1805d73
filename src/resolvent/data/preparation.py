"""From a raw row to features: what a model needs to know of the table that it was trained on, and takes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.columns import TEXT, Column, as_frame, column, is_number
from resolvent.data.scaling import Floats, Scaling
from resolvent.data.target import Target
from resolvent.errors import InputError, bounded, quoted, refuse

if TYPE_CHECKING:
    import pandas as pd

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

    def matrix(self, raw: Column) -> Floats:
        """(rows, features) of a column."""
        missing = raw.missing
        if missing.any() and self.fill is None:
            way = "fill it in, or train with impute= (--impute)"
            refuse("column", raw.holes, f"the model was trained without imputing it: {way}")
        if self.levels is None:
            return self._numbers(raw)[:, None]
        texts = raw.texts.copy()
        texts[missing] = self.fill
        unseen = sorted(set(texts) - set(self.levels))
        if unseen:
            rows = [f"{level!r} (the first in row {int((texts == level).argmax()) + 1})" for level in unseen[:3]]
            shown = ", ".join(rows) + (", ..." if len(unseen) > 3 else "")
            levels = ", ".join(self.levels[:10]) + (", ..." if len(self.levels) > 10 else "")
            way = "leave such rows out, or put one of these in their place"
            if self.fill is not None:
                way = f"leave such rows out, or their cells empty, which counts as {self.fill!r}"
            refuse("column", f"{self.name!r} with {shown}", f"the training rows hold only {levels} there: {way}")
        return np.asarray(texts[:, None] == np.array(self.levels[1:], object), np.float64)

    def _numbers(self, raw: Column) -> Floats:
        if raw.kind == TEXT and not raw.missing.all():
            wrong = [text is not None and not is_number(text) for text in raw.texts]
            row = wrong.index(True) if any(wrong) else int((~raw.missing).argmax())
            what = f"{self.name!r} with {raw.texts[row]!r} in row {row + 1}"
            refuse("column", what, "numbers are needed there, with a decimal point")
        if np.isinf(raw.numbers).any():
            row = int(np.isinf(raw.numbers).argmax()) + 1
            refuse("column", f"{self.name!r}, infinite in row {row}", "finite numbers are needed")
        return np.where(raw.missing, np.float64(self.fill or 0.0), raw.numbers)


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
        return tuple(name for feature in self.columns for name in feature.features)

    @property
    def computed(self) -> bool:
        """Whether it has more of the training rows than the names of columns and of classes: means, spreads,
        categories, what replaces missing values, or how common classes are."""
        columns = any(feature.levels is not None or feature.fill is not None for feature in self.columns)
        return columns or self.scaling is not None or self.target.weights is not None

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The labels that are predicted; None for numbers."""
        return self.target.classes

    def transform(self, X: Any) -> Floats:
        """Features (rows, d) of a frame, of rows as mappings, or of an array whose columns are the raw ones in order.

        Columns that are no features are ignored. A missing value is imputed or refused as in training, and a category
        that no training row held is refused by name.
        """
        frame = self._frame(X)
        return self.scaled(self.matrix([column(frame, feature.name) for feature in self.columns]))

    def matrix(self, columns: Sequence[Column]) -> Floats:
        """Features in the units of the table, of the raw columns in order."""
        return np.column_stack([feature.matrix(raw) for feature, raw in zip(self.columns, columns, strict=True)])

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
        w, d, scores = np.asarray(model, dtype=np.float64).reshape(-1), len(self.features), self.target.scores
        if len(w) not in (scores * d, scores * (d + 1)):
            needed = f"{scores * d} numbers, or {scores * (d + 1)} with an intercept, are needed"
            refuse("model", f"of length {len(w)}", needed)
        weights = w[: scores * d].reshape(scores, d)
        shift = w[scores * d :] if len(w) > scores * d else None
        if self.scaling is not None:
            weights = weights / np.array(self.scaling.scale)
            shift = (0.0 if shift is None else shift) - weights @ np.array(self.scaling.mean)
        named = []
        for k in range(scores):
            own: dict[str, float] = dict(zip(self.features, weights[k].tolist(), strict=True))
            named.append(own if shift is None else {INTERCEPT: float(shift[k]), **own})
        return named[0] if scores == 1 else dict(zip(self.classes or (), named, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Preparation:
        """What `as_dict` wrote, after any journey through JSON."""
        try:
            columns = tuple(
                Feature(c["name"], None if c["levels"] is None else tuple(c["levels"]), c["fill"])
                for c in stored["columns"]
            )
            scaling = stored["scaling"] and Scaling(tuple(stored["scaling"]["mean"]), tuple(stored["scaling"]["scale"]))
            made = cls(columns, Target.from_dict(stored["target"]), scaling, tuple(stored["dropped"]), stored["user"])
            if scaling and not len(scaling.mean) == len(scaling.scale) == len(made.features):
                raise TypeError(f"its scaling is not of {len(made.features)} features")
            return made
        except (KeyError, TypeError) as error:
            raise InputError(
                f"the preparation cannot be read ({type(error).__name__}: {error}); what as_dict wrote is needed"
            ) from None

    def _frame(self, X: Any) -> pd.DataFrame:
        """X as a frame that has every column that the model needs."""
        names = [feature.name for feature in self.columns]
        shown = ", ".join(names[:12])
        bounded(X, "X")
        try:
            x = np.asarray(X.detach().cpu() if hasattr(X, "detach") else X) if _is_array(X) else None
        except Exception:  # lists of unequal lengths; or a class of the caller's, which may raise anything
            refuse("X", quoted(X), f"rows with the columns {shown} are needed")
        if x is not None:
            import pandas as pd

            if x.dtype.kind not in "biuf":
                needed = f"numbers, or a frame with the columns {shown}, are needed"
                refuse("X", f"an array of type {x.dtype}", needed)
            x = np.atleast_2d(x).astype(np.float64)
            if x.ndim != 2 or x.shape[1] != len(names):
                refuse("X", f"of shape {x.shape}", f"{len(names)} columns are needed: {shown}")
            text = next((feature.name for feature in self.columns if feature.levels is not None), None)
            if text is not None:
                refuse("X", "an array of numbers", f"column {text!r} holds categories: a frame with names is needed")
            return pd.DataFrame(x, columns=names)
        frame = as_frame(X, "X")
        for name in names:
            if name not in frame.columns:
                near = get_close_matches(name, list(frame.columns), n=1)
                hint = f" (nearest: {near[0]!r})" if near else ""
                refuse("the table", f"without a column {name!r}{hint}", f"the model needs {shown}")
        return frame


def _is_array(X: Any) -> bool:
    """Whether X is an array of rows, a tensor or lists of numbers, and no frame, row or list of rows with names."""
    if hasattr(X, "columns") or isinstance(X, Mapping) or type(X).__module__.partition(".")[0] in ("pandas", "polars"):
        return False
    return not (isinstance(X, Sequence) and any(isinstance(row, Mapping) for row in X))
