"""What a table's column of labels means to a problem: two classes, several classes, or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.columns import BOOLEAN, NUMBER, TEXT, Column, objects, source, word
from resolvent.errors import refuse
from resolvent.problems.labels import label_array

Label = str | int | float | bool
TWO, MANY, NUMBERS, COUNTS = "two classes", "classes", "numbers", "counts"
"""What a problem needs of its labels."""
MOST = 1000
"""Classes of a softmax: more of them are a column of numbers or of names."""


@dataclass(frozen=True)
class Target:
    """A column of labels. classes: in the order of the model's, the positive one of two last; None for numbers.

    rest: where one class is told from all others, what these are; together they are classes[0].
    each: whether each of two classes has a score of its own, as in a softmax.
    """

    name: str
    classes: tuple[Label, ...] | None = None
    rest: tuple[Label, ...] = ()
    each: bool = False

    @property
    def scores(self) -> int:
        """How many scores the model has."""
        return len(self.classes) if self.classes is not None and (self.each or not self.two) else 1

    @property
    def two(self) -> bool:
        return self.classes is not None and len(self.classes) == 2

    def column(self, y: Any) -> Column:
        """Raw labels as a column: a list, an array, a series, or a frame that has the column."""
        if hasattr(y, "columns") and self.name in [str(name) for name in y.columns]:
            return source(y, "y").column(self.name)
        if hasattr(y, "detach"):
            y = y.detach().cpu().numpy()
        values = label_array(y) if not hasattr(y, "tolist") or isinstance(y, np.ndarray) else y
        if np.ndim(values) != 1:
            refuse("y", f"of shape {np.shape(values)}", "one label per row is needed")
        return source({self.name: values}, "y").column(self.name)

    def encode(self, column: Column) -> NDArray[np.float64]:
        """-1 and +1 for two classes, numbers from 0 for more, else the numbers themselves."""
        check_present(column)
        if self.classes is None:
            _check_numbers(column)
            return np.asarray(column.values, np.float64)
        code = {word(label): k for k, label in enumerate(self.classes)} | {word(label): 0 for label in self.rest}
        words = column.texts
        unknown = sorted({w for w in words if w not in code})
        if unknown:
            shown = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
            refuse("target", f"{column.name!r} with {shown}", f"the classes are {', '.join(sorted(code))}")
        codes = np.array([code[w] for w in words], np.float64)
        return 2 * codes - 1 if self.two else codes

    def decode(self, predictions: NDArray[Any]) -> NDArray[Any]:
        """Labels from what the problem predicts."""
        if self.classes is None:
            return predictions
        at = (predictions > 0).astype(np.int64) if self.two else np.rint(predictions).astype(np.int64)
        if at.size and (at.min() < 0 or at.max() >= len(self.classes)):
            refuse("predictions", f"from {at.min()} to {at.max()}", f"there are {len(self.classes)} classes")
        kinds = {type(label) for label in self.classes}
        alike = len(kinds) == 1 or kinds == {int, float}
        labels = label_array(self.classes) if alike else objects(self.classes)
        return np.asarray(labels[at])

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Target:
        classes = told["classes"]
        return cls(
            told["name"], None if classes is None else tuple(classes), tuple(told["rest"]), told.get("each", False)
        )


def target(column: Column, needs: str | None, positive: Any = None) -> Target:
    """What a column of labels is to a problem that needs this of it; without `needs`, what the column itself suggests.

    Text, booleans and numbers of two values are classes. Other numbers are numbers.
    """
    check_present(column)
    labels = values(column)
    if needs is None:
        needs = suggested(column, labels, positive)
    if needs in (NUMBERS, COUNTS):
        if positive is not None:
            refuse("positive", repr(positive), "only classes have a positive one: leave it out")
        _check_numbers(column)
        return Target(column.name)
    if len(labels) < 2:
        refuse("target", f"{column.name!r}, which is {labels[0]!r} in every row", "at least two classes are needed")
    if needs == MANY and positive is None:
        if len(labels) > MOST:
            refuse("target", f"{column.name!r} with {len(labels)} classes", f"at most {MOST} are needed")
        return Target(column.name, labels, each=len(labels) == 2)
    return _two(column.name, labels, positive)


def suggested(column: Column, labels: tuple[Label, ...], positive: Any) -> str:
    """What is needed of a problem for this column."""
    if positive is not None or len(labels) == 2:
        return TWO
    return NUMBERS if column.kind == NUMBER else MANY


def values(column: Column) -> tuple[Label, ...]:
    """The different labels, sorted, as plain values."""
    if column.kind == TEXT:
        return tuple(sorted({str(v) for v in column.values}))
    if column.kind == BOOLEAN:
        return tuple(bool(v) for v in np.unique(column.values))
    if column.exact is not None:
        return tuple(_json_label(v) for v in sorted(set(column.exact)))
    return tuple(int(v) if float(v).is_integer() else float(v) for v in np.unique(column.values))


def _json_label(value: Any) -> Label:
    """A number as JSON has it; one that no float equals, and that is not whole, is its word."""
    if value == int(value):
        return int(value)
    return float(value) if float(value) == value else word(value)


def check_present(column: Column) -> None:
    """Refuse labels that are missing or infinite."""
    missing = column.missing if column.kind == TEXT else ~np.isfinite(column.values)
    if missing.any():
        n, row = int(missing.sum()), int(missing.argmax()) + 1
        what = f"missing, NaN or infinite in {n} row{'s' if n > 1 else ''} (the first is row {row})"
        refuse("target", f"{column.name!r}, {what}", "one label per row is needed: leave those rows out")


def _check_numbers(column: Column) -> None:
    if column.kind == TEXT:
        what, way = ("categories", "convert it by astype(float), or ") if column.coded else ("text", "")
        refuse("target", f"{column.name!r}, a column of {what}", f"numbers are needed: {way}name another one")


def _two(name: str, labels: tuple[Label, ...], positive: Any) -> Target:
    shown = ", ".join(map(str, labels[:10])) + (", ..." if len(labels) > 10 else "")
    if positive is None:
        if len(labels) != 2:
            came = f"of {len(labels)} classes"
            refuse("y", came, f"two are needed: positive= makes one of {shown} against the rest, softmax takes all")
        return Target(name, labels)
    match = [label for label in labels if word(label).lower() == word(positive).lower()]
    exact = [label for label in match if word(label) == word(positive)]
    if len(exact or match) != 1:
        refuse("positive", repr(positive), f"one of the classes {shown} is needed")
    yes = (exact or match)[0]
    others = tuple(label for label in labels if label != yes)
    return Target(name, (*others, yes)) if len(others) == 1 else Target(name, (f"not {yes}", yes), others)
