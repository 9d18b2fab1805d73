"""Your own network over users' data: f_i is the mean loss over user i's rows, and a model is one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from resolvent.errors import InputError, refuse
from resolvent.problems.inputs import as_rows, as_weights
from resolvent.problems.neural.crew import one_thread
from resolvent.problems.neural.fitting import cuts, fits, trains
from resolvent.problems.neural.flat import Layout, copied
from resolvent.problems.neural.judge import Means, judges, measure
from resolvent.problems.neural.silos import Batch, Resident, Silos
from resolvent.problems.neural.streamed import Put
from resolvent.problems.neural.targets import known
from resolvent.problems.neural.users import as_silos
from resolvent.problems.neural.ways import Ways
from resolvent.problems.problem import select

Memory = dict[str, Tensor]
BUFFER = "buffer."
"""How the names of buffers begin in memory."""


class Neural:
    """Any nn.Module over users' own data.

    users: (x, y) arrays, data sets or DataLoaders, one per user. loss: of (output, target), a mean over rows.
    validation, test: as users, or one (x, y) that all are judged by. autocast: torch.bfloat16, say.

    Parameters that require a gradient are the vector, in the order of `model.parameters()`; the module itself is left
    alone. Its buffers (BatchNorm's running means) are kept for each user apart: they are never averaged in training,
    and the global model is judged with their mean.
    """

    convex = False
    closed_form = False
    lipschitz = convexity = minimiser = fstar = None

    def __init__(
        self,
        model: nn.Module,
        users: Any,
        loss: Callable[..., Any] = F.cross_entropy,
        weights: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        validation: Any = None,
        test: Any = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            refuse("model", f"of type {type(model).__name__}", "a torch.nn.Module is needed")
        self._module = copied(model)
        self.layout = Layout.of(model)
        first = next(model.parameters())
        where = _device(first.device if device is None else device)
        kind = first.dtype if dtype is None else dtype
        self.start = self.layout.flatten(model).to(where, kind)
        self.mean = known(loss)
        self.put = Put(where, kind, self.mean is not None and self.mean.classes, self.mean is not None)
        self.silos = as_silos(users, "users", self.put)
        self.weights = as_weights(weights, len(self.silos.sizes), self.start)
        self.ways = Ways(model, loss, where, kind, autocast)
        self.loss = loss
        self._begun = {name: b.clone() for name, b in self.ways.model.named_buffers()}
        self._buffers: Memory | None = None
        self._seeds: Tensor | None = None
        fits(self.ways, self.start, self.silos, loss, self.mean, "users")
        trains(self.ways, self.start, self.silos)
        self.cuts = cuts(self.ways, self.start, self.silos, self.mean)
        judged = {"validation": validation, "test": test}
        self._judges = [judge for name, sets in judged.items() for judge in judges(name, sets, self)]
        _settle(self.ways, self.start, self.silos)

    @property
    def users(self) -> int:
        return len(self.silos.sizes)

    @property
    def dim(self) -> int:
        return self.layout.dim

    @property
    def sizes(self) -> Tensor:
        """The number of rows of each user."""
        return self.silos.sizes

    @property
    def offers(self) -> frozenset[str]:
        some = {"batches"} if self.silos.indexed else set()
        return frozenset({"value", "grad", "training", "inspect"} | some)

    @property
    def still(self) -> bool:
        """Whether a gradient is a function of the parameters alone: no dropout, no buffers, no streams."""
        return (
            isinstance(self.silos, Resident) and not self._begun and not self.ways.random and self.ways.way == "stacked"
        )

    @property
    def way(self) -> str:
        """How gradients are computed here, and why; on a GPU also which method each convolution takes."""
        return "; ".join([f"{self.ways.way}: {self.ways.reason}", *self.ways.choices])

    def working(self) -> AbstractContextManager[object]:
        """To be held over many gradients: where users are shared out among threads, kernels' own threads would wait
        beside them between one gradient and the next, at full speed."""
        shared_out = self.ways.way == "stacked" and self.ways.device.type == "cpu"
        return one_thread() if shared_out else nullcontext()

    def value(self, W: Tensor) -> Tensor:
        """Each user's mean loss as it is used, not as it is trained: no dropout, running means."""
        return measure(self, self.silos, self.cuts.resting, as_rows(W, self), self._buffers, accuracy=False)[0]

    def grad(self, W: Tensor) -> Tensor:
        W = as_rows(W, self)
        slopes = Means(W.new_zeros((self.users, self.dim)))
        for batch in self.silos.batches(self.cuts.training, self._seeds):
            slopes.add(batch, self._slope(W, batch), self.mean)
        return slopes.result()

    def batch_grad(self, W: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """The gradient of the mean loss over chosen rows (users, k) of each user; 0 where none is chosen."""
        W, chosen = as_rows(W, self), mask.bool()
        if not bool(chosen.any()):
            return W.new_zeros((self.users, self.dim))
        batch = self.silos.pick(rows, chosen, self._seeds)
        slope = self._slope(W, batch)
        return slope if batch.who is None else batch.added(W.new_zeros((self.users, self.dim)), slope)

    def _slope(self, W: Tensor, batch: Batch) -> Tensor:
        seeds, buffers = batch.seeds(self._seeds), self._of(batch)
        _, slope, buffers = self.ways.value_and_grad(batch.of(W), batch.x, batch.y, batch.mask, seeds, buffers)
        if self._buffers is not None and buffers:
            for name, rows in buffers.items():
                mine = self._buffers[name]
                self._buffers[name] = rows if batch.who is None else mine.index_copy(0, batch.who, rows)
        return slope

    def _of(self, batch: Batch) -> Memory | None:
        """The buffers of a batch's users; None: those that the module came with."""
        if not self._buffers:
            return None
        return self._buffers if batch.who is None else {name: b[batch.who] for name, b in self._buffers.items()}

    def take(self, who: Tensor) -> Neural:
        part = copy.copy(self)
        part.silos, part.weights = self.silos.take(who), select(self.weights, who)
        part._seeds = part._buffers = None
        return part

    # --- training ----------------------------------------------------------------------------------------------------

    def remembering(self, memory: Memory) -> Neural:
        """A copy to train with, its buffers those in memory, or those that the module came with."""
        part = copy.copy(self)
        part._buffers = {
            name: memory.get(BUFFER + name, b.unsqueeze(0).expand(self.users, *b.shape))
            for name, b in self._begun.items()
        }
        return part

    def memory(self) -> Memory:
        """Each user's buffers, (users, ...)."""
        return {BUFFER + name: rows for name, rows in (self._buffers or {}).items()}

    def draw(self, seeds: NDArray[Any]) -> None:
        """The next gradient is one of training, each user's dropout following its seed."""
        self._seeds = torch.from_numpy((seeds >> 1).astype("int64"))

    # --- what comes out ----------------------------------------------------------------------------------------------

    def inspect(self, w: Tensor, personal: Tensor, memory: Memory) -> dict[str, float]:
        """The training loss, and loss and accuracy on what models are judged by: the global one, and personal ones."""
        buffers = {name.removeprefix(BUFFER): rows for name, rows in memory.items() if name.startswith(BUFFER)}
        common = {name: self._mean(rows) for name, rows in buffers.items()}
        alike = copy.copy(self)
        alike._buffers = {name: b.expand(self.users, *b.shape[1:]) for name, b in common.items()}
        found = {"value": float(self.weights @ alike.value(w)), "gap": float("nan")}
        for judge in self._judges:
            found |= judge(self, w, personal, common, buffers)
        return found

    def _mean(self, rows: Tensor) -> Tensor:
        """Users' buffers as one, (1, ...)."""
        if bool((rows == rows[:1]).all()):
            return rows[:1]
        lam = self.weights.view(-1, *(1,) * (rows.ndim - 1))
        mean = (lam.to(torch.float64) * rows).sum(0, keepdim=True)
        return (mean if rows.is_floating_point() else mean.round()).to(rows.dtype)

    def module(self, w: Tensor, memory: Memory, user: int | None = None) -> nn.Module:
        """A copy of the module with these parameters, and the buffers of one user, or their mean."""
        made = copied(self._module)
        self.layout.load(made, w.detach())
        for name, buffer in made.named_buffers():
            if BUFFER + name in memory:
                rows = memory[BUFFER + name]
                buffer.copy_(self._mean(rows)[0] if user is None else rows[user])
        return made

    def gap(self, W: Tensor) -> Tensor | None:
        return None

    def __repr__(self) -> str:
        return f"Neural({type(self._module).__name__}, {self.users} users, d = {self.dim}, {self.way})"


def _settle(ways: Ways, w: Tensor, silos: Silos) -> None:
    """Choose how gradients are computed, for good: what is fast has to be right, and to take every user."""
    for batch in silos.batches(cut=True):
        ways.check(w.unsqueeze(0), batch.x, batch.y, batch.mask)
        if not isinstance(silos, Resident):  # of a stream the first rows have to do
            return
        ways.settle(batch.x, batch.y)


def _device(device: torch.device | str) -> torch.device:
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f'device is {device}, which is not there ({first}); take device="cpu"') from None
    return where
