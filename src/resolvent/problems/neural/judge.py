"""How good models are on data that they were not trained on: loss and accuracy, global and personal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.problems.neural.silos import Batch, Silos, as_silos

Buffers = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Judge:
    """Data by the name of `name`, each user's own, or `shared` by all."""

    name: str
    silos: Silos
    shared: bool

    def __call__(self, problem: Any, w: Tensor, personal: Tensor, common: Buffers, own: Buffers) -> dict[str, float]:
        """Figures of the global model; of each user's own on its own data, in the mean and spread over users."""
        lam = problem.weights.new_ones(1) if self.shared else problem.weights
        found = self._figures("", lam, *self._measure(problem, w, common))
        if not self.shared and len(personal) > 1:
            found |= self._figures("personal_", lam, *self._measure(problem, personal, own))
        return found

    def _measure(self, problem: Any, W: Tensor, buffers: Buffers) -> tuple[Tensor, Tensor | None]:
        """Each user's loss, and accuracy where targets are classes."""
        loss = W.new_zeros(len(self.silos.sizes))
        right: Tensor | None = None
        for batch in self.silos.batches():
            mine = {name: batch.of(b).expand(len(batch.x), *b.shape[1:]) for name, b in buffers.items()}
            given = problem.ways.outputs(batch.of(W), batch.x, mine or None, batch.mask)
            loss = batch.added(loss, losses(problem.loss, given, batch))
            if not batch.y.is_floating_point() and given.ndim == batch.y.ndim + 1:
                right = batch.added(torch.zeros_like(loss) if right is None else right, _hits(given, batch))
        return loss, right

    def _figures(self, whose: str, lam: Tensor, losses: Tensor, right: Tensor | None) -> dict[str, float]:
        prefix = f"{whose}{self.name}_"
        found = {f"{prefix}loss": float(lam @ losses)}
        if right is not None:
            mean = float(lam @ right)
            found[f"{prefix}accuracy"] = mean
            if not self.shared:
                found[f"{prefix}accuracy_spread"] = float((lam @ (right - mean).square()).clamp_min(0).sqrt())
        return found


def losses(loss: Callable[..., Any], given: Tensor, batch: Batch) -> Tensor:
    """Each user's mean loss, (users,), of what its model gives."""
    if batch.mask is None:
        return torch.stack([loss(o, y) for o, y in zip(given, batch.y, strict=True)])
    users = zip(given, batch.y, batch.mask, strict=True)
    return torch.stack([loss(o[real], y[real]) for o, y, real in users])


def _hits(given: Tensor, batch: Batch) -> Tensor:
    """The share of rows that each user's model gets right, (users,)."""
    right = (given.argmax(-1) == batch.y).to(given.dtype)
    if batch.mask is None:
        return right.flatten(1).mean(1)
    return (right * batch.mask).sum(1) / batch.mask.sum(1)


def judges(name: str, sets: Any, problem: Any) -> Iterator[Judge]:
    """A judge for what was given: one (x, y) for all, or one a user."""
    if sets is None:
        return
    where, kind = problem.start.device, problem.start.dtype
    shared = isinstance(sets, tuple) and len(sets) == 2 and all(isinstance(part, Tensor) for part in sets)
    silos = as_silos([sets] if shared else sets, name, where, kind)
    if not shared and len(silos.sizes) != problem.users:
        refuse(
            name,
            f"a list of {len(silos.sizes)}",
            f"one for each of the {problem.users} users, or one (x, y), is needed",
        )
    yield Judge(name, silos, shared)
