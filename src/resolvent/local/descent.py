"""Inner iterations: gradient descent on full gradients or on shuffled batches of rows, all users at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent import randomness
from resolvent.iteration.engine import Ask, Seed

Gradient = Callable[..., Tensor]
LocalStep = tuple[Gradient, Tensor | None]
"""A gradient, and a mask (users, 1) of the users that it moves; None: all."""


class Pull(NamedTuple):
    """The gradient of |x - u|^2 / (2 eta), which a prox adds to that of f; with eta None that of <u, x>, a tilt."""

    u: Tensor
    eta: float | None

    def __call__(self, x: Tensor) -> Tensor:
        return self.u if self.eta is None else (x - self.u) / self.eta


class Descent:
    """x <- x - lr v with v <- momentum v + gradient + pull. `room`: what else a gradient is called with."""

    def __init__(self, x: Tensor, lr: Tensor | float, momentum: float, pull: Pull | None) -> None:
        self.x, self.lr, self.momentum, self.pull = x, lr, momentum, pull
        self.v: Tensor | float = 0.0
        self.room: dict[str, Tensor] = {}

    def step(self, g: Tensor, moves: Tensor | None) -> None:
        """One step by the gradients g of those who move, a mask (users, 1); None: all."""
        s = g if self.pull is None else g + self.pull(self.x)
        v = self.momentum * self.v + s if self.momentum else s
        x = self.x - self.lr * v
        self.x = x if moves is None else torch.where(moves, x, self.x)
        self.v = v if moves is None else torch.where(moves, v, self.v)


def descend(
    part: Any, x: Tensor, lr: Tensor | float, momentum: float, steps: Iterator[LocalStep], pull: Pull | None = None
) -> Tensor:
    """Where these steps lead from x. Networks have a faster way to take them, to the same bits."""
    momentum = float(momentum)
    faster = part.descent(x, lr, momentum, pull) if "training" in part.offers else None
    descent = Descent(x, lr, momentum, pull) if faster is None else faster
    for gradient, moves in steps:
        descent.step(gradient(descent.x, **descent.room), moves)
    end: Tensor = descent.x
    return end


def optimise(x: Tensor, optimiser: Callable[[list[Tensor]], Any], steps: Iterator[LocalStep], pull: Pull) -> Tensor:
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


def gradients(part: Any, ask: Ask, steps: int | NDArray[np.int64], batch: int | None = None) -> Iterator[LocalStep]:
    """The gradient of each step: the full one, or one per batch of `steps` shuffled passes (Algorithm 2).

    `steps` may be one number per user: who has taken as many stays where it is.
    """
    if not isinstance(steps, int | np.integer):
        if bool((steps != steps.max()).any()):
            yield from _uneven_gradients(part, ask, steps, batch)
            return
        steps = int(steps.max())
    draws = "training" in part.offers and not part.stateless
    if batch is None and not draws:  # a GPU may be recording these steps, and cannot send users' numbers then
        yield from ((part.grad, None) for _ in range(steps))
        return
    if batch is None:
        numbers = _numbers(part, ask)
        yield from ((partial(part.grad, **_seeds(part, ask, numbers, k, 0)), None) for k in range(steps))
        return
    yield from _batch_gradients(part, ask, np.full(part.users, steps), batch)


def _uneven_gradients(part: Any, ask: Ask, steps: NDArray[np.int64], batch: int | None) -> Iterator[LocalStep]:
    """Gradients of users who take different numbers of steps. A network sees no rows of users who are done: its buffers
    would go on changing."""
    if batch is not None or "training" in part.offers:
        yield from _batch_gradients(part, ask, steps, int(part.sizes.max()) if batch is None else batch)
        return
    for k in range(int(steps.max())):
        yield part.grad, torch.from_numpy(steps > k).unsqueeze(1).to(part.weights.device)


def _batch_gradients(part: Any, ask: Ask, passes: NDArray[np.int64], batch: int) -> Iterator[LocalStep]:
    """One gradient per batch of each user's shuffled passes."""
    sizes, numbers = part.sizes.cpu(), _numbers(part, ask)  # once: an accelerator has to be waited for
    for k in range(int(passes.max())):
        going = torch.from_numpy(passes > k).unsqueeze(1)
        shuffled_pass = batches(sizes, batch, ask.seeding, ask.t, numbers, k, part.sizes.device)
        for j, (rows, mask) in enumerate(shuffled_pass):
            mask = mask & going
            some = mask.any(1, keepdim=True)  # a small user has fewer batches in a pass than a large one
            moves = None if bool(some.all()) else some.to(rows.device)
            yield partial(_batch_gradient, part, rows, mask, _seeds(part, ask, numbers, k, j)), moves


def _numbers(part: Any, ask: Ask) -> NDArray[np.int64]:
    """The users' numbers, which their randomness depends on."""
    return np.arange(part.users) if ask.names is None else ask.names.cpu().numpy()


def _seeds(part: Any, ask: Ask, numbers: NDArray[np.int64], k: int, j: int) -> dict[str, Any]:
    """What a training gradient takes besides the parameters: a seed per user, for dropout and other noise."""
    if "training" not in part.offers or part.stateless:
        return {}
    return {"seeds": randomness.words(ask.seeding, randomness.STEPS, ask.t, k, j, numbers)}


def seeds_in_turn(part: Any, ask: Ask) -> Iterator[NDArray[Any]] | None:
    """Those of one full gradient after another, for operators that give none; None where nothing is drawn."""
    if part.stateless:
        return None
    numbers = _numbers(part, ask)
    return (randomness.words(ask.seeding, randomness.STEPS, ask.t, k, 0, numbers) for k in count())


def _batch_gradient(part: Any, rows: Tensor, mask: Tensor, seeds: dict[str, Any], x: Tensor, **room: Tensor) -> Tensor:
    """Networks take the mask where it is, on the CPU: they can look at it without waiting for an accelerator."""
    gradient: Tensor = part.batch_grad(x, rows, mask if "training" in part.offers else mask.to(x), **seeds, **room)
    return gradient


def batches(
    sizes: Tensor, batch: int, seed: Seed, t: int, who: Any, epoch: int, device: torch.device | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """A shuffled pass over every user's rows: (rows, mask), (users, batch) each; the last batch may be short.

    A user's shuffle sorts one hash per row, so that it depends on (seed, round, user, epoch) alone. The rows are on
    `device`, or where the sizes are, and the mask on the CPU.
    """
    count = sizes.cpu().numpy()[:, None]
    most = int(count.max())
    real = np.arange(most) < count
    column = seed if np.ndim(seed) == 0 else np.asarray(seed)[:, None]
    begun = randomness.folded(column, randomness.BATCHES, t, epoch, np.asarray(who)[:, None])
    where = sizes.device if device is None else device
    rows = shuffled(begun, real) if where.type == "cpu" else shuffled_on(where, begun, real)
    for start in range(0, most, batch):
        yield rows[:, start : start + batch], torch.from_numpy(real[:, start : start + batch])


def shuffled(begun: randomness.Words, real: NDArray[np.bool_]) -> Tensor:
    """Each user's rows in the order of their hashes, (users, most), 0 where there are no more."""
    keys = randomness.finished(begun, np.arange(real.shape[1])) >> np.uint64(1)
    order = np.argsort(np.where(real, keys, np.uint64(2**64 - 1)), axis=1)  # no two hashes of a user are equal
    return torch.from_numpy(np.where(real, order, 0))


def shuffled_on(device: torch.device, begun: randomness.Words, real: NDArray[np.bool_]) -> Tensor:
    """The same, computed on a device: nothing is waited for, and only one number per user is sent there.

    torch's integers are signed, but wrap around and shift as unsigned ones do if the sign is masked out.
    """
    most = real.shape[1]
    state = torch.from_numpy(begun.view(np.int64)).to(device, non_blocking=True)
    rows = torch.arange(most, device=device)
    keys = _mixed(_mixed((state ^ rows) + _signed(randomness.GOLDEN)))
    keys = _shifted(keys, 1)
    if real.all():
        return keys.argsort(1)
    mine = torch.from_numpy(real.sum(1, keepdims=True)).to(device, non_blocking=True)
    order = torch.where(rows < mine, keys, torch.iinfo(torch.int64).max).argsort(1)
    return torch.where(rows < mine, order, 0)


def _mixed(x: Tensor) -> Tensor:
    """`randomness._mix` of signed integers."""
    for shift, factor in randomness.ROUNDS:
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x ^ _shifted(x, randomness.LAST_SHIFT)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits with zeros coming in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


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
