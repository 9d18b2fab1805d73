"""What a table's column of labels means to a problem: two classes, several classes, or numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.columns import NUMBER, TEXT, Column, as_frame, column, objects, word
from resolvent.errors import quoted, refuse
from resolvent.problems.labels import label_array
from resolvent.problems.row_weights import BALANCED

Label = str | int | float | bool
TWO, MANY, NUMBERS, COUNTS = "two classes", "classes", "numbers", "counts"
"""What a problem needs of its labels."""
MAX_CLASSES = 1000
"""Of a softmax: more of them are a column of numbers or of names."""


@dataclass(frozen=True)
class Target:
    """A column of labels. classes: in the order of the model's, the positive one of two last; None for numbers.

    rest: where one class is told from all others, what these are; together they are classes[0].
    each: whether each of two classes has a score of its own, as in a softmax.
    weights: of the classes, where sites with tables have agreed on some.
    """

    name: str
    classes: tuple[Label, ...] | None = None
    rest: tuple[Label, ...] = ()
    each: bool = False
    weights: tuple[float, ...] | None = None

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
            return column(as_frame(y, "y"), self.name)
        if hasattr(y, "detach"):
            y = y.detach().cpu().numpy()
        values = label_array(y) if not hasattr(y, "tolist") or isinstance(y, np.ndarray) else y
        if np.ndim(values) != 1:
            refuse("y", f"of shape {np.shape(values)}", "one label per row is needed")
        return column(as_frame({self.name: values}, "y"), self.name)

    def encode(self, labels: Column) -> NDArray[np.float64]:
        """-1 and +1 for two classes, numbers from 0 for more, else the numbers themselves."""
        check_present(labels)
        if self.classes is None:
            check_numbers(labels)
            return labels.numbers
        code = self.places
        unknown = sorted(set(labels.texts) - set(code))
        if unknown:
            shown = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
            refuse("target", f"{labels.name!r} with {shown}", f"the classes are {', '.join(sorted(code))}")
        codes = np.array([code[text] for text in labels.texts], np.float64)
        return 2 * codes - 1 if self.two else codes

    @property
    def places(self) -> dict[str, int]:
        """The number of the class that each label belongs to, by its word."""
        return {word(label): k for k, label in enumerate(self.classes or ())} | {word(label): 0 for label in self.rest}

    def by_code(self, by_label: Mapping[Any, Any]) -> dict[int, Any]:
        """What somebody said by label, by the numbers that stand for the classes."""
        codes = {word(label): 2 * k - 1 if self.two else k for k, label in enumerate(self.classes or ())}
        for label in by_label:
            if word(label) not in codes:
                refuse("class_weight", f"a dict with {quoted(label)}", f"the classes are {', '.join(codes) or 'none'}")
        return {codes[word(label)]: value for label, value in by_label.items()}

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
    def from_dict(cls, stored: Mapping[str, Any]) -> Target:
        classes = None if stored["classes"] is None else tuple(stored["classes"])
        weights = None if stored.get("weights") is None else tuple(map(float, stored["weights"]))
        if weights is not None and (len(weights) != len(classes or ()) or not all(0 <= x < math.inf for x in weights)):
            raise ValueError("the weights of classes are none")
        return cls(stored["name"], classes, tuple(stored["rest"]), stored.get("each", False), weights)


def class_weights(asked: str, key: str) -> str | dict[str, float]:
    """`balanced`, or `yes=5,no=1` by class."""
    if asked == BALANCED:
        return asked
    pairs = [pair.rpartition("=") for pair in asked.split(",")]
    try:
        return {label.strip(): float(number) for label, _, number in pairs}
    except ValueError:
        refuse(key, quoted(asked), f"{BALANCED!r}, or CLASS=NUMBER,... is needed")


def target(labels: Column, needs: str | None, positive: Any = None) -> Target:
    """What a column of labels is to a problem that needs this of it; without `needs`, what the column itself suggests.

    Text, booleans and numbers of two values are classes. Other numbers are numbers.
    """
    check_present(labels)
    made = meaning(labels.name, classes_of(labels), labels.kind == NUMBER, needs, positive)
    if made.classes is None:
        check_numbers(labels)
    return made


def classes_of(labels: Column) -> tuple[Label, ...]:
    """The different labels, in order."""
    return tuple(_json_label(value) for value in sorted({word(v) if labels.kind == TEXT else v for v in labels.exact}))


def meaning(name: str, classes: tuple[Label, ...], numbers: bool, needs: str | None, positive: Any = None) -> Target:
    """What labels are to a problem, from the different ones that there are, and whether they are numbers."""
    if needs is None:
        numbers = numbers and len(classes) != 2 and positive is None
        needs = NUMBERS if numbers else TWO if len(classes) == 2 or positive is not None else MANY
    if needs in (NUMBERS, COUNTS):
        if positive is not None:
            refuse("positive", quoted(positive), "only classes have a positive one: leave it out")
        return Target(name)
    if len(classes) < 2:
        refuse("target", f"{name!r}, which is {classes[0]!r} in every row", "at least two classes are needed")
    if needs == MANY and positive is None:
        if len(classes) > MAX_CLASSES:
            refuse("target", f"{name!r} with {len(classes)} classes", f"at most {MAX_CLASSES} are needed")
        return Target(name, classes, each=len(classes) == 2)
    return _two(name, classes, positive)


def _json_label(value: Any) -> Label:
    """A label as JSON has it; a number that no float equals, and that is not whole, is its word."""
    if isinstance(value, str | bool):
        return value
    if value == int(value):
        return int(value)
    return float(value) if float(value) == value else word(value)


def check_present(labels: Column) -> None:
    """Refuse labels that are missing or infinite."""
    missing = labels.missing if labels.kind == TEXT else ~np.isfinite(labels.numbers)
    if missing.any():
        n, row = int(missing.sum()), int(missing.argmax()) + 1
        what = f"missing, NaN or infinite in {n} row{'s' if n > 1 else ''} (the first is row {row})"
        refuse("target", f"{labels.name!r}, {what}", "one label per row is needed: leave those rows out")


def check_numbers(labels: Column) -> None:
    if labels.kind == TEXT:
        what, way = ("categories", "convert it by astype(float), or ") if labels.coded else ("text", "")
        refuse("target", f"{labels.name!r}, a column of {what}", f"numbers are needed: {way}name another one")


def _two(name: str, classes: tuple[Label, ...], positive: Any) -> Target:
    shown = ", ".join(map(str, classes[:10])) + (", ..." if len(classes) > 10 else "")
    if positive is None:
        if len(classes) != 2:
            needed = f"two are needed: positive= (--positive) makes one of {shown} against the rest, softmax takes all"
            refuse("y", f"of {len(classes)} classes", needed)
        return Target(name, classes)
    match = [label for label in classes if word(label).lower() == word(positive).lower()]
    exact = [label for label in match if word(label) == word(positive)]
    if len(exact or match) != 1:
        refuse("positive", quoted(positive), f"one of the classes {shown} is needed")
    yes = (exact or match)[0]
    others = tuple(label for label in classes if label != yes)
    return Target(name, (*others, yes)) if len(others) == 1 else Target(name, (f"not {yes}", yes), others)
