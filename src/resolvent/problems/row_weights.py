"""How much each row counts: a weight of the caller's, and one of the row's class. It multiplies the row's loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import bounded, quoted, refuse
from resolvent.problems.inputs import as_tensor, finite, refuse_shape, same_length
from resolvent.problems.labels import plain_label
from resolvent.problems.rows import Rows, collected

BALANCED = "balanced"


def weigh(rows: Rows, sample_weight: Any, class_weight: Any = None, classes: Sequence[Any] = ()) -> Rows:
    """The rows with their weights, and without those that count nothing.

    sample_weight: numbers >= 0 in the shape of the targets. class_weight: "balanced", which lets every class count the
    same over all users' rows, a dict by class (1 for those that it leaves out), or a number per class. classes: whose
    k-th one has the target k; of two classes, -1 and +1 are targets too.
    """
    if sample_weight is None and class_weight is None:
        return rows
    targets = [rows.one(i)[1] for i in range(rows.users)]
    weights = [torch.ones_like(b) for b in targets] if sample_weight is None else _given(sample_weight, targets)
    if class_weight is not None:
        codes = [(b == 1).long() if classes == (-1, 1) else b.long() for b in targets]
        factors = _factors(class_weight, classes, codes, weights)
        weights = [weight * factors.to(weight)[code] for weight, code in zip(weights, codes, strict=True)]
    for i, weight in enumerate(weights):
        if not float(weight.sum()) > 0:
            refuse(f"sample_weight[{i}]", "0 for every row", "some row must count: leave this user out")
    if any(bool((weight == 0).any()) for weight in weights):
        counted = [weight > 0 for weight in weights]
        rows = collected([_those(*rows.one(i), some) for i, some in enumerate(counted)], rows.dim)
        weights = [weight[some] for weight, some in zip(weights, counted, strict=True)]
    return replace(rows.weighted(weights), balanced=isinstance(class_weight, str))


def _those(A: Any, b: Tensor, some: Tensor) -> tuple[Any, Tensor]:
    return A[some if isinstance(A, Tensor) else some.numpy()], b[some]


def _given(sample_weight: Any, targets: Sequence[Tensor]) -> list[Tensor]:
    """Each user's weights, checked."""
    same_length("sample_weight", sample_weight, len(targets))
    weights = []
    for i, b in enumerate(targets):
        name = f"sample_weight[{i}]"
        weight = as_tensor(sample_weight[i], name).detach().to(b)
        if weight.shape != b.shape:
            refuse_shape(name, weight, f"({len(b)},), one number for each row of the user, is needed")
        if bool((finite(weight, name, "row") < 0).any()):
            refuse(name, "partly negative", "numbers >= 0 are needed")
        weights.append(weight)
    return weights


def _factors(class_weight: Any, classes: Sequence[Any], codes: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """One per class."""
    if isinstance(class_weight, str):
        if class_weight != BALANCED:
            refuse("class_weight", quoted(class_weight), f"{BALANCED!r}, or a number for each of {classes} is needed")
        each = zip(codes, weights, strict=True)
        counts = sum(np.bincount(c.cpu().numpy(), w.double().cpu().numpy(), len(classes)) for c, w in each)
        there = np.asarray(counts) > 0
        return torch.from_numpy(np.where(there, np.sum(counts) / there.sum() / np.where(there, counts, 1), 1.0))
    if isinstance(class_weight, Mapping):
        own = {plain_label(label): weight for label, weight in bounded(class_weight, "class_weight").items()}
        if unknown := [label for label in own if label not in classes]:
            refuse(
                "class_weight", f"a dict with {quoted(unknown[0])}", f"the classes are {', '.join(map(repr, classes))}"
            )
        class_weight = [own.get(label, 1.0) for label in classes]
    factors = as_tensor(class_weight, "class_weight").detach().double().cpu()
    if factors.shape != (len(classes),) or not bool((torch.isfinite(factors) & (factors >= 0)).all()):
        needed = (
            f"{BALANCED!r}, or a finite number >= 0 for each of the classes {', '.join(map(repr, classes))} is needed"
        )
        refuse("class_weight", quoted(class_weight), needed)
    return factors
