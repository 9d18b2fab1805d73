"""How good models are on data that they were not trained on: loss and accuracy, global and personal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.networks.fitting import cuts, fits
from resolvent.networks.inputs import as_silos, is_pair
from resolvent.networks.targets import Mean
from resolvent.networks.userdata import Batch, Silos

Buffers = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Judge:
    """Data by the name of `name`, each user's own, or `shared` by all; `cut`: whether rows may come in parts."""

    name: str
    silos: Silos
    shared: bool
    cut: bool

    def __call__(self, problem: Any, w: Tensor, personal: Tensor, common: Buffers, own: Buffers) -> dict[str, float]:
        """Figures of the global model; of each user's own on its own data, in the mean and spread over users."""
        lam = problem.weights.new_ones(1) if self.shared else problem.weights
        found = self._figures("", lam, *measure(problem, self.silos, self.cut, w, common))
        if not self.shared and len(personal) > 1:
            found |= self._figures("personal_", lam, *measure(problem, self.silos, self.cut, personal, own))
        return found

    def _figures(self, whose: str, lam: Tensor, losses: Tensor, right: Tensor | None) -> dict[str, float]:
        prefix = f"{whose}{self.name}_"
        found = {f"{prefix}loss": float(lam @ losses)}
        if right is not None:
            mean = float(lam @ right)
            found[f"{prefix}accuracy"] = mean
            if not self.shared:
                found[f"{prefix}accuracy_spread"] = float((lam @ (right - mean).square()).clamp_min(0).sqrt())
        return found


class Means:
    """Each user's loss or gradient, (users, ...), from its rows at once or from parts of them."""

    def __init__(self, zeros: Tensor) -> None:
        self._sum = zeros
        self._shares: Tensor | None = None

    def add(self, batch: Batch, found: Tensor, mean: Mean | None) -> None:
        """What a batch's users have; a part counts by what the loss divides by there."""
        if batch.part is None:
            self._sum = batch.added(self._sum, found)
            return
        assert mean is not None
        share = mean.divisor(batch.y[0])
        if self._shares is None:
            self._shares = torch.zeros_like(self._sum[(slice(None), *(slice(1),) * (self._sum.ndim - 1))])
        if share > 0:
            self._sum = batch.added(self._sum, found, share)
            self._shares = batch.added(self._shares, torch.ones_like(found[:, :1] if found.ndim > 1 else found), share)

    def result(self) -> Tensor:
        if self._shares is None:
            return self._sum
        return self._sum / torch.where(self._shares > 0, self._shares, 1)


def measure(
    problem: Any, silos: Silos, cut: bool, W: Tensor, buffers: Buffers | None, accuracy: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Each user's loss at rest, and accuracy where targets are classes; buffers are (users, ...) or (1, ...)."""
    users = len(silos.sizes)
    loss, hits, asked = Means(W.new_zeros(users)), W.new_zeros(users), W.new_zeros(users)
    for given, batch in _outputs(problem, silos.batches(cut), W, buffers or {}):
        loss.add(batch, losses(problem.loss, given, batch), problem.mean)
        if accuracy and _are_classes(given, batch.y, problem.mean):
            right, count = _hits(given, batch, problem.mean)
            hits, asked = batch.added(hits, right), batch.added(asked, count)
    return loss.result(), hits / asked if accuracy and bool((asked > 0).all()) else None


def _outputs(problem: Any, batches: Iterator[Batch], W: Tensor, buffers: Buffers) -> Iterator[tuple[Tensor, Batch]]:
    """What the model gives for each batch; parts of a user's rows are joined for a loss that must see all of them."""
    parts: list[tuple[Tensor, Tensor]] = []
    last: Batch | None = None
    for batch in batches:
        if parts and last is not None and not batch.part:
            yield _joined(parts, last)
            parts = []
        mine = {name: batch.of(b).expand(len(batch.x), *b.shape[1:]) for name, b in buffers.items()}
        given = problem.ways.outputs(batch.of(W), batch.x, mine or None, batch.mask)
        mean: Mean | None = problem.mean
        if batch.part is None or (mean is not None and mean.splits(given, batch.y)):
            yield given, batch
        else:
            parts.append((given, batch.y))
            last = batch
    if parts and last is not None:
        yield _joined(parts, last)


def _joined(parts: list[tuple[Tensor, Tensor]], batch: Batch) -> tuple[Tensor, Batch]:
    given, y = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    return given, Batch(batch.who, batch.x, y)


def losses(loss: Callable[..., Any], given: Tensor, batch: Batch) -> Tensor:
    """Each user's mean loss, (users,), of what its model gives; of copies, since a loss may write to what it gets."""
    if batch.mask is None:
        return torch.stack([loss(o.clone(), y.clone()) for o, y in zip(given, batch.y, strict=True)])
    users = zip(given, batch.y, batch.mask, strict=True)
    return torch.stack([loss(o[real], y[real]) for o, y, real in users])


def _are_classes(given: Tensor, y: Tensor, mean: Mean | None) -> bool:
    """Whether outputs (users, n, classes, ...) are scores of classes and y (users, n, ...) the right ones."""
    if y.is_floating_point() or y.dtype == torch.bool or given.ndim != y.ndim + 1 or given.shape[2] == 1:
        return False
    return y.ndim == 2 or (mean is not None and mean.classes and given.shape[3:] == y.shape[2:])


def _hits(given: Tensor, batch: Batch, mean: Mean | None) -> tuple[Tensor, Tensor]:
    """How many targets each user's model gets right, and how many there are, (users,); ignored ones are not."""
    y = batch.y
    real = torch.ones_like(y, dtype=torch.bool) if mean is None else mean.counted(y)
    if batch.mask is not None:
        real = real & batch.mask.view(*batch.mask.shape, *(1,) * (y.ndim - 2))
    right = (given.argmax(2) == y) & real
    return right.flatten(1).sum(1).to(given.dtype), real.flatten(1).sum(1).to(given.dtype)


def judges(name: str, sets: Any, problem: Any) -> Iterator[Judge]:
    """A judge for what was given: one (x, y) for all, or one per user."""
    if sets is None:
        return
    shared = is_pair(sets)
    silos = as_silos([sets] if shared else sets, name, problem.put)
    if not shared and len(silos.sizes) != problem.users:
        refuse(
            name,
            f"a list of {len(silos.sizes)}",
            f"one for each of the {problem.users} users, or one (x, y), is needed",
        )
    fits(problem.ways, problem.start, silos, problem.loss, problem.mean, name)
    yield Judge(name, silos, shared, cuts(problem.ways, problem.start, silos, None).resting)
