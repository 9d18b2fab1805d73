"""Your own network over users' data: f_i is the mean loss over user i's rows, and a model is one flat vector."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from resolvent.errors import ResolventWarning, quoted, refuse
from resolvent.iteration.engine import Look
from resolvent.networks.adapters import trained_by
from resolvent.networks.calling import called_with, check_bare, known_positions, known_tokens, own_loss
from resolvent.networks.compiled import Compiled
from resolvent.networks.cuda_graphs import Captured
from resolvent.networks.evaluation import Evaluator, PartialMeans, evaluations
from resolvent.networks.fitting import check_fits, check_trains, cuts, divisors, near
from resolvent.networks.layout import Buffers, ParameterLayout, copied
from resolvent.networks.mean_losses import MeanLoss, OwnLoss, mean_loss, torch_loss
from resolvent.networks.method_choice import propose, verified
from resolvent.networks.one_pass import OnePass, Pull, one_pass
from resolvent.networks.packed_inputs import Packing
from resolvent.networks.precision import Precision, as_precision
from resolvent.networks.rebuilding import (
    as_memory,
    buffers_of,
    checksum,
    described,
    drawn_anew,
    mean_buffer,
    own_buffers,
    untrained,
    with_values,
)
from resolvent.networks.row_readers import LABELS
from resolvent.networks.streamed import Placement
from resolvent.networks.user_inputs import as_device, as_dtype, as_user_data
from resolvent.networks.userdata import Batch, Resident
from resolvent.problems.inputs import as_rows, as_weights
from resolvent.problems.one_thread import one_thread
from resolvent.problems.problem import select

FEW_TARGETS = 3
"""How many targets a row needs to show which of them a model's own loss counts."""


class Neural:
    """Any nn.Module over users' own data.

    users: (x, y) arrays, data sets or DataLoaders, one per user; x may be a dict or a tuple of the module's inputs.
    A dict that has "labels", instead of (x, y), is a batch whose loss the module computes, as those of transformers do.
    loss: of (output, target), a mean over rows; without it the module's own for such batches, else cross entropy.
    weights: one number per user, "rows" (every row counts the same), "tokens" (every target that the loss counts does)
    or "users" (every user's mean does, as with None).
    A DataLoader says which rows a user has and how they are read. Its batch size is how many are read at a time and its
    shuffling is ignored: minibatches are the local operator's, as in rs.GradientSteps(steps, batch=32).
    validation, test: as users, or one (x, y) for all.
    lora: "b" freezes A of every low-rank adapter B A, so that averaging what is trained averages the products.
    precision: of products, "float32", or less: "tf32" or "bfloat16".
    method: how gradients are computed, "stacked", "compiled", "vmap" or "loop"; else what suits the module and device.

    The vector holds the parameters that require a gradient, in the order of `model.parameters()`; the module itself is
    never changed. Its buffers (BatchNorm's running means) are each user's own: they are never averaged in training, and
    the global model is evaluated with their mean.
    """

    convex = closed_form = matrix_free = False
    lipschitz = convexity = minimiser = fstar = None

    def __init__(
        self,
        model: nn.Module,
        users: Any,
        loss: Callable[..., Any] | None = None,
        weights: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        validation: Any = None,
        test: Any = None,
        precision: Precision = "float32",
        method: str | None = None,
        lora: str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            refuse("model", f"of type {type(model).__name__}", "a torch.nn.Module is needed")
        check_bare(model)
        if isinstance(weights, str) and weights not in ("rows", "users", "tokens"):
            refuse("weights", quoted(weights), "'rows', 'users' or 'tokens', or one number per user is needed")
        with trained_by(model, lora) as self._frozen_by_lora:
            self._begin(model, users, loss, weights, device, dtype, validation, test, precision, method)

    def _begin(
        self,
        model: nn.Module,
        users: Any,
        loss: Callable[..., Any] | None,
        weights: Any,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        validation: Any,
        test: Any,
        precision: Precision,
        method: str | None,
    ) -> None:
        self._module = copied(model)
        self.layout = ParameterLayout.of(model)
        first = next(model.parameters())
        where = as_device(first.device if device is None else device)
        if dtype is None and first.dtype in (torch.bfloat16, torch.float16):
            numbers = f"of {str(first.dtype).removeprefix('torch.')} numbers"
            refuse("model", numbers, "pass dtype=torch.float32, with precision='bfloat16' for products")
        kind = as_dtype(first.dtype if dtype is None else dtype)
        self.precision = as_precision(precision, where, kind)
        self.start = self.layout.flatten(model).to(where, kind)
        own = loss is None
        loss = F.cross_entropy if loss is None else loss
        self._torch_loss = torch_loss(loss)
        if self._torch_loss is not None and self._torch_loss.settings["reduction"] == "sum":
            message = (
                'loss is a sum over rows (reduction="sum"), but f_i is a mean over rows: step sizes grow with the '
                "number of rows, and minibatches and weights count rows otherwise; pass a loss that is a mean"
            )
            warnings.warn(message, ResolventWarning, stacklevel=3)
        mean: MeanLoss | None = mean_loss(loss)
        classes, tokens = mean is not None and mean.classes, known_tokens(model)
        placement = Placement(where, kind, classes, mean is not None, None, own, tokens, known_positions(model))
        self.data, placement = as_user_data(users, "users", placement)
        batch = next(iter(self.data.batches(cut=True)))
        with called_with(model, placement.packing):
            if placement.packing is not None and LABELS in placement.packing.keys:
                self._torch_loss, loss = None, OwnLoss()
                plain = propose(model, loss, where, kind, self.precision, "loop").plain
                check_fits(plain, self.start, self.data, None, "users")
                W = near(self.start)
                long = (
                    some for some in self.data.batches(cut=True) if some.y.ndim < 3 or some.y.shape[2] >= FEW_TARGETS
                )
                tried = next(long, batch)
                rows = tried.x[0] if tried.mask is None else tried.x[0][tried.mask[0]]
                mean = own_loss(lambda x: plain.outputs(W, x.unsqueeze(0)), rows[:2], placement.packing)
                loss = loss if mean is None else mean
            self.mean, self.loss = mean, loss
            proposed = propose(model, loss, where, kind, self.precision, method, self.users)
            check_fits(proposed.plain, self.start, self.data, self.mean, "users")
            self._input = _described(batch.x, placement.packing)
            start, forced = self.start.unsqueeze(0), method is not None
            self.gradients = verified(proposed, model, start, batch.x, batch.y, batch.mask, forced)
        weights = self._counts() if isinstance(weights, str) and weights == "tokens" else weights
        self.weights = as_weights(weights, self.users, self.start, self.data.sizes, mean=True)
        check_trains(self.gradients, self.start, self.data)
        self.cuts = cuts(self.gradients, self.start, self.data, self.mean)
        self._evaluations = [
            evaluation
            for name, sets in {"validation": validation, "test": test}.items()
            for evaluation in evaluations(name, sets, self.users, self.gradients, self.mean, self.start, placement)
        ]
        self._first_buffers = {name: b.clone() for name, b in self.gradients.model.named_buffers()}
        self._buffers: Buffers | None = None
        self._seeds: Iterator[NDArray[Any]] | None = None

    @property
    def held_out(self) -> tuple[str, ...]:
        """The names of data that models are judged by: "validation", "test"."""
        return tuple(each.name for each in self._evaluations)

    @property
    def running_statistics(self) -> bool:
        """Whether the model needs buffers that are made of users' data, such as batch norm's."""
        return bool(self._first_buffers)

    def _counts(self) -> Tensor:
        """How many targets of each user the loss counts."""
        if self.mean is None:
            refuse(
                "weights", "'tokens'", "the loss must be the model's own or one of torch's means to count its targets"
            )
        return torch.tensor(divisors(self.data, self.mean), dtype=torch.float64)

    @property
    def users(self) -> int:
        return len(self.data.sizes)

    @property
    def dim(self) -> int:
        return self.layout.dim

    @property
    def sizes(self) -> Tensor:
        """The number of rows of each user."""
        return self.data.sizes

    @property
    def offers(self) -> frozenset[str]:
        some = {"batches"} if self.data.indexed else set()
        return frozenset({"value", "grad", "training", "inspect"} | some)

    @property
    def stateless(self) -> bool:
        """Whether a gradient is a function of the parameters alone: no dropout, no buffers, no streams."""
        resident, gradients = isinstance(self.data, Resident), self.gradients
        return resident and not self._first_buffers and not gradients.random and gradients.method == "stacked"

    @property
    def method(self) -> str:
        """How gradients are computed, and why: "stacked: ...", "compiled: ...", "vmap: ..." or "loop: ...".

        On a GPU it also says how each convolution and each linear layer is computed.
        """
        by = self.gradients.by
        some: list[str] = (
            [f"some shapes by vmap, since {why}" for why in by.obstacles] if isinstance(by, Compiled) else []
        )
        less = [] if self.precision == "float32" else [f"in {self.precision}"]
        return "; ".join([f"{by.name}: {self.gradients.reason}", *less, *self.gradients.choices, *some])

    @property
    def compiling(self) -> float:
        """For how many seconds programs have been compiled in this process, or loaded from torch's cache."""
        by = self.gradients.by
        return by.seconds if isinstance(by, Compiled) else 0.0

    def random_start(self, seed: int) -> Tensor:
        """Initial parameters (d,) that a seed draws, by its modules' `reset_parameters`; frozen ones stay."""
        return self.layout.flatten(drawn_anew(self._module, seed)).to(self.start)

    def working(self) -> AbstractContextManager[object]:
        """To be held over many gradients. Where users are divided among threads, the threads of torch's own kernels
        would spin-wait between gradients and slow the worker threads down."""
        divided = self.gradients.method == "stacked" and self.gradients.device.type == "cpu"
        return one_thread() if divided else nullcontext()

    def descent(self, x: Tensor, lr: Tensor | float, momentum: float, pull: Pull | None) -> OnePass | None:
        """Gradient descent whose steps are one pass over rows x each; None where it cannot be compiled."""
        own = type(self).grad is Neural.grad and type(self).batch_grad is Neural.batch_grad  # else they may take no out
        return one_pass(x, lr, momentum, pull, reuse=own)

    def captured(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A function of tensors that is called many times, as one CUDA graph. The next call overwrites its result.

        It may compute gradients of this problem if that is `stateless`.
        """
        return Captured(function)

    def value(self, W: Tensor) -> Tensor:
        """Each user's mean loss in eval mode: without dropout, with running means."""
        training = Evaluator(self.gradients, self.mean, self.data, self.cuts.evaluation)
        return training.measure(as_rows(W, self), self._buffers, accuracy=False)[0]

    def grad(self, W: Tensor, seeds: NDArray[Any] | None = None, out: Tensor | None = None) -> Tensor:
        """Each user's gradient, (users, d). With seeds, one hashed word per user, it is one of training: dropout and
        random transformations of rows follow them. Without, nothing is dropped, but by copies that train
        (`remembering`).

        out: memory (users, d) that the result may take.
        """
        W, drawn = as_rows(W, self), self._drawn(seeds)
        mean = PartialMeans(W, (self.users, self.dim))
        for batch in self.data.batches(self.cuts.training, drawn):
            mean.add(batch, self._batch_gradient(W, batch, drawn, out), self.mean)
        return mean.result()

    def batch_grad(
        self,
        W: Tensor,
        rows: Tensor,
        mask: Tensor,
        seeds: NDArray[Any] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """The gradient of the mean loss over chosen rows (users, k) of each user; 0 where none is chosen."""
        W, chosen, drawn = as_rows(W, self), mask.bool(), self._drawn(seeds)
        if not bool(chosen.any()):
            return W.new_zeros((self.users, self.dim))
        total: Tensor | None = None
        for batch in self.data.pick(rows, chosen, drawn):
            grad = self._batch_gradient(W, batch, drawn, out)
            if batch.who is None:
                return grad
            total = batch.added(W.new_zeros((self.users, self.dim)) if total is None else total, grad)
        assert total is not None
        return total

    def _drawn(self, seeds: NDArray[Any] | None) -> Tensor | None:
        return _as_seeds(next(self._seeds) if seeds is None and self._seeds is not None else seeds)

    def _batch_gradient(self, W: Tensor, batch: Batch, seeds: Tensor | None, out: Tensor | None) -> Tensor:
        room = out if batch.who is None and batch.part is None else None
        before = self._buffers  # None: those that the module came with
        if before and batch.who is not None:
            before = {name: rows[batch.who] for name, rows in before.items()}
        _, grad, after = self.gradients.value_and_grad(
            batch.of(W), batch.x, batch.y, batch.mask, batch.seeds(seeds), before or None, room
        )
        if self._buffers is not None:
            for name, rows in after.items():
                mine = self._buffers[name]
                self._buffers[name] = rows if batch.who is None else mine.index_copy(0, batch.who, rows)
        return grad

    def take(self, who: Tensor) -> Neural:
        part = copy.copy(self)
        part.data, part.weights = self.data.take(who), select(self.weights, who)
        part._buffers = None
        if self._seeds is not None:
            part._seeds = (words[who.cpu().numpy()] for words in self._seeds)
        return part

    def part(self, of: Sequence[Tensor], rank: int) -> Neural:
        """The problem of one rank's users alone, of those `of` every rank, with their validation and test data, which
        `take` leaves as they are. Data that all users share are divided among the ranks."""
        part = self.take(of[rank].to(self.weights.device))
        part._evaluations = [each.divided(self.start, of, rank) for each in self._evaluations]
        return part

    @property
    def shares(self) -> dict[str, float]:
        """By column: which part of all held-out rows this part of the problem has, where that is not its weight."""
        return {name: share for each in self._evaluations for name, share in each.shares.items()}

    # --- training ----------------------------------------------------------------------------------------------------

    def remembering(self, memory: Buffers, seeds: Iterator[NDArray[Any]] | None = None) -> Neural:
        """A copy for one round of training, which updates its own buffers: those in memory, or those of the module.
        Gradients that are given no seeds take the next of these."""
        part, own = copy.copy(self), own_buffers(memory)
        part._seeds = seeds
        part._buffers = {n: own.get(n, b.expand(self.users, *b.shape)) for n, b in self._first_buffers.items()}
        return part

    def memory(self) -> Buffers:
        """Each user's buffers, (users, ...)."""
        return as_memory(self._buffers or {})

    # --- what comes out ----------------------------------------------------------------------------------------------

    def inspect(
        self,
        w: Tensor,
        personal: Tensor,
        memory: Buffers,
        look: Look = Look(),  # noqa: B008 (frozen)
        common: Buffers | None = None,
        several: bool | None = None,
    ) -> dict[str, float]:
        """The training loss, and loss and accuracy of the global and personal models on validation and test data.

        Where some users live elsewhere, `common` has the mean of all users' buffers, and `several` says whether
        personal models are users' own; one row does not tell.
        """
        buffers = own_buffers(memory)
        common = self.common(memory, self._mean) if common is None else common
        several = len(personal) > 1 if several is None else several
        alike = copy.copy(self)
        alike._buffers = {name: b.expand(self.users, *b.shape[1:]) for name, b in common.items()}
        metrics = {"value": float(self.weights @ alike.value(w)), "gap": float("nan")}
        for evaluation in self._evaluations if look.held_out else ():
            metrics |= evaluation(w, personal if several else None, common, buffers, look.judge)
        return metrics

    def common(self, memory: Buffers, mean: Callable[[Tensor], Tensor]) -> Buffers:
        """The buffers that the global model is evaluated with, (1, ...) each."""
        return {name: mean(rows) for name, rows in own_buffers(memory).items()}

    def common_memory(self, memory: Buffers) -> Buffers:
        """What the global model needs of users' memory: the mean of their buffers, (1, ...)."""
        return as_memory(self.common(memory, self._mean))

    def _mean(self, rows: Tensor) -> Tensor:
        return mean_buffer(self.weights, rows)

    def module(self, w: Tensor, memory: Buffers, user: int | None = None) -> nn.Module:
        """A copy of the module with these parameters, and the buffers of one user, or their mean."""
        trained = with_values(self._module, self.layout, w, buffers_of(memory, self.weights, user))
        for name in self._frozen_by_lora:
            trained.get_parameter(name).requires_grad_(True)  # as in the module that was given
        return trained

    @property
    def network(self) -> dict[str, Any]:
        """What the module is made of, in plain values: names, shapes and types, and a row of its input."""
        loss = self._torch_loss
        return described(self._module, self.layout, list(self.fixed())) | {
            "loss": None if loss is None else loss.function,
            "ignored": None if loss is None else loss.ignored,
            "weights": self.weights.tolist(),
            "input": self._input,
            **({"shift": self.loss.shift} if isinstance(self.loss, OwnLoss) else {}),
        }

    def fixed(self) -> Buffers:
        """What is not trained: parameters that require no gradient, and the buffers that training began with."""
        return untrained(self._module) | self._first_buffers

    @property
    def frozen(self) -> str:
        """A checksum of the parameters that are not trained: users whose models are averaged must have the same."""
        return checksum(untrained(self._module))

    def gap(self, W: Tensor) -> Tensor | None:
        return None

    def __repr__(self) -> str:
        return f"Neural({type(self._module).__name__}, {self.users} users, d = {self.dim}, {self.method})"


def _described(x: Tensor, packing: Packing | None) -> dict[str, Any]:
    """A row of the input, in plain values; of several inputs in their order, and the labels beside them."""
    if packing is None:
        return {"shape": list(x.shape[2:]), "dtype": str(x.dtype).removeprefix("torch.")}
    named = {key: _described(x.new_empty((0, 0, *shape), dtype=dtype), None) for key, shape, dtype in packing.rows(x)}
    labels = {"labels": named.pop(LABELS)} if LABELS in named else {}
    return {"shape": [], "dtype": "several", "inputs": named} | labels


def _as_seeds(hashes: NDArray[Any] | None) -> Tensor | None:
    """Hashed words (users,) as seeds of torch's generators."""
    return None if hashes is None else torch.from_numpy((hashes >> 1).astype("int64"))
