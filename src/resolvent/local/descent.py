"""Inner iterations: gradient descent on full gradients or on shuffled batches of rows, all users at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent import randomness

Gradient = Callable[[Tensor], Tensor]
LocalStep = tuple[Gradient, Tensor | None]
"""A gradient, and a mask (users, 1) of the users that it moves; None: all."""


def descend(
    x: Tensor, lr: Tensor | float, momentum: float, steps: Iterator[LocalStep], pull: Gradient | None = None
) -> Tensor:
    """x <- x - lr v with v <- momentum v + gradient; `pull` is a second, full gradient added to each."""
    v = torch.zeros_like(x)
    for gradient, moves in steps:
        g = gradient(x) if pull is None else gradient(x) + pull(x)
        ahead = torch.add(g, v, alpha=momentum) if momentum else g
        v = ahead if moves is None else torch.where(moves, ahead, v)
        x = x - lr * v if moves is None else torch.where(moves, x - lr * v, x)
    return x


def optimise(x: Tensor, optimiser: Callable[[list[Tensor]], Any], steps: Iterator[LocalStep], pull: Gradient) -> Tensor:
    """The same by any torch optimiser, each user's row a parameter of its own."""
    rows = [row.clone().requires_grad_() for row in x]
    update = optimiser(rows)
    for gradient, moves in steps:
        x = torch.stack([row.detach() for row in rows])
        slopes = gradient(x) + pull(x)
        for i, (row, slope) in enumerate(zip(rows, slopes, strict=True)):
            row.grad = slope if moves is None or bool(moves[i]) else None
        update.step()
    return torch.stack([row.detach() for row in rows])


def gradients(part: Any, steps: int, batch: int | None, seed: int, t: int, names: Tensor | None) -> Iterator[LocalStep]:
    """The gradient of each step: the full one, or one per batch of `steps` shuffled passes (Algorithm 2)."""
    numbers = np.arange(part.users) if names is None else names.cpu().numpy()
    for k in range(steps):
        if batch is None:
            yield partial(part.grad, **_seeds(part, seed, t, k, 0, numbers)), None
            continue
        for j, (rows, mask) in enumerate(batches(part.sizes, batch, seed, t, numbers, k)):
            moves = mask.any(1, keepdim=True)  # a small user has fewer batches in a pass than a large one
            seeds = _seeds(part, seed, t, k, j, numbers)
            yield partial(_batch_gradient, part, rows, mask, seeds), moves


def _seeds(part: Any, seed: int, t: int, k: int, j: int, numbers: Any) -> dict[str, Any]:
    """What a training gradient takes besides the parameters: a seed per user, for dropout and other noise."""
    if "training" not in part.offers or part.stateless:
        return {}
    return {"seeds": randomness.words(seed, randomness.STEPS, t, k, j, numbers)}


def _batch_gradient(part: Any, rows: Tensor, mask: Tensor, seeds: dict[str, Any], x: Tensor) -> Tensor:
    gradient: Tensor = part.batch_grad(x, rows, mask.to(x), **seeds)
    return gradient


def batches(sizes: Tensor, batch: int, seed: int, t: int, who: Any, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A shuffled pass over every user's rows: (rows, mask), (users, batch) each; the last batch may be short.

    A user's shuffle sorts one hash per row, so that it depends on (seed, round, user, epoch) alone.
    """
    count = sizes.cpu().numpy()[:, None]
    most = int(count.max())
    keys = randomness.words(seed, randomness.BATCHES, t, epoch, np.asarray(who)[:, None], np.arange(most))
    last = np.uint64(2**64 - 1)
    order = np.argsort(np.where(np.arange(most) < count, keys >> np.uint64(1), last), axis=1, kind="stable")
    for start in range(0, most, batch):
        rows = torch.from_numpy(order[:, start : start + batch])
        mask = torch.from_numpy(np.arange(start, start + rows.shape[1]) < count)
        yield torch.where(mask, rows, 0).to(sizes.device), mask.to(sizes.device)


def accelerated(step: Gradient, x: Tensor, steps: int, memory: int) -> Tensor:
    """Anderson acceleration of each user's own inner iteration x <- step(x), all users at once."""
    points: list[Tensor] = []
    residuals: list[Tensor] = []
    for _ in range(steps):
        Tx = step(x)
        points, residuals = [*points, Tx][-memory - 1 :], [*residuals, Tx - x][-memory - 1 :]
        x = Tx
        if len(points) > 1:
            Y = torch.stack([residuals[-1] - r for r in residuals[:-1]], 1)
            D = torch.stack([points[-1] - p for p in points[:-1]], 1)
            G = Y @ Y.mT
            kind = torch.finfo(G.dtype)
            ridge = (4096 * kind.eps * G.diagonal(dim1=1, dim2=2).sum(1)).clamp_min(kind.tiny)
            G = G + torch.diag_embed(ridge.unsqueeze(1).expand(-1, G.shape[-1]))
            x = Tx - (torch.linalg.solve(G, Y @ residuals[-1].unsqueeze(-1)) * D).sum(1)
    return points[-1]
