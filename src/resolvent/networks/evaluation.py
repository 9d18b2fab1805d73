"""How good models are on data that they were not trained on: loss and accuracy, global and personal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import InputError, refuse
from resolvent.iteration.engine import Judge
from resolvent.networks.fitting import check_fits, cuts, divisors, rows_apart
from resolvent.networks.gradients import Gradients
from resolvent.networks.layout import Buffers
from resolvent.networks.mean_losses import MeanLoss, OwnLoss, TorchLoss, torch_loss
from resolvent.networks.stacked.losses import stacked_loss
from resolvent.networks.streamed import Placement
from resolvent.networks.user_inputs import as_user_data, is_pair
from resolvent.networks.userdata import Batch, Resident, UserData, stacked
from resolvent.problems.one_thread import one_thread


class PartialMeans:
    """Each user's loss or gradient, of this shape (users, ...), from all of its rows at once or from parts of them."""

    def __init__(self, like: Tensor, shape: tuple[int, ...]) -> None:
        self._like, self._shape = like, shape
        self._total: Tensor | None = None
        self._shares: Tensor | None = None

    def add(self, batch: Batch, values: Tensor, mean: MeanLoss | None) -> None:
        """Add what a batch's users have; a part of a user's rows is weighed by the loss's divisor there."""
        if batch.part is None:
            self._total = values if batch.who is None else batch.added(self._sum, values)
            return
        assert mean is not None
        share = mean.divisor(batch.y[0])
        if self._shares is None:
            self._shares = self._like.new_zeros((self._shape[0], *(1,) * (len(self._shape) - 1)))
        if share > 0:
            self._total = batch.added(self._sum, values, share)
            ones = torch.ones_like(values[:, :1] if values.ndim > 1 else values)
            self._shares = batch.added(self._shares, ones, share)

    @property
    def _sum(self) -> Tensor:
        """What was added so far. Zeros are not made where one batch has everybody: they are as large as the result."""
        return self._like.new_zeros(self._shape) if self._total is None else self._total

    def result(self) -> Tensor:
        if self._shares is None:
            return self._sum
        return self._sum / torch.where(self._shares > 0, self._shares, 1)


class Seen:
    """A model's outputs and the targets, user by user, on the CPU, in the shapes that they have.

    Where the model computes its loss itself (`own`), they are those of the targets that count, one by one.
    """

    def __init__(self, users: int, own: OwnLoss | None = None) -> None:
        self._parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(users)]
        self._own = own

    def add(self, outputs: Tensor, batch: Batch) -> None:
        who = range(len(outputs)) if batch.who is None else batch.who.tolist()
        for i, user in enumerate(who):
            o, y = outputs[i].detach(), batch.y[i]
            if batch.mask is not None:
                o, y = o[batch.mask[i]], y[batch.mask[i]]
            if self._own is not None:
                o, y = self._own.answers(o, y)
            self._parts[user].append((o.double().cpu().clone(), y.cpu().clone()))

    def result(self) -> list[tuple[Any, Any]]:
        """NumPy arrays (outputs, targets) of each user; empty ones for a user without rows."""
        like = next((part for parts in self._parts for part in parts), None)
        if like is None:
            return []
        nothing = (like[0][:0], like[1][:0])
        if len({(o.shape[1:], y.shape[1:]) for parts in self._parts for o, y in parts}) > 1:
            raise InputError(
                "metrics= needs outputs of one shape per row, and these have different lengths: leave it out"
            )
        joined = ([torch.cat(part) for part in zip(*(parts or [nothing]), strict=True)] for parts in self._parts)
        return [(o.numpy(), y.numpy()) for o, y in joined]


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Losses and accuracies of models on users' data. `cut`: whether a user's rows may come in parts."""

    gradients: Gradients
    mean: MeanLoss | None
    data: UserData
    cut: bool

    def measure(
        self, W: Tensor, buffers: Buffers | None, accuracy: bool = True, seen: Seen | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Each user's loss in eval mode, and accuracy where outputs are known to be scores of classes; buffers
        (users, ...) or (1, ...).

        `seen` is given every batch with the model's outputs.
        """
        users = len(self.data.sizes)
        loss, hits, asked = PartialMeans(W, (users,)), W.new_zeros(users), W.new_zeros(users)
        by = self.own_loss or self.torch_loss
        for outputs, batch in self._outputs(W, buffers or {}):
            if seen is not None:
                seen.add(outputs, batch)
            loss.add(batch, self._losses(outputs, batch), self.mean)
            guesses = _guesses(outputs, batch.y, by) if accuracy and by is not None else None
            if by is not None and guesses is not None:
                right, count = (each.to(outputs.dtype) for each in _hits(guesses, batch, by))
                hits, asked = batch.added(hits, right), batch.added(asked, count)
        return loss.result(), hits / asked if accuracy and bool((asked > 0).all()) else None

    @property
    def own_loss(self) -> OwnLoss | None:
        """The model's own loss, where the model computes it."""
        loss = self.gradients.plain.loss
        return loss if isinstance(loss, OwnLoss) else None

    @property
    def torch_loss(self) -> TorchLoss | None:
        return torch_loss(self.gradients.plain.loss)

    def _losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Each user's loss, (users,): on CUDA of all users at once, where the loss has a stacked form."""
        form = stacked_loss(self.mean) if outputs.is_cuda and not isinstance(self.mean, OwnLoss) else None
        if form is None or not form.takes(tuple(outputs.shape[2:]), batch.y):
            return losses(self.gradients.plain.loss, outputs, batch)
        return form.sums(outputs.movedim(1, -1), batch.y, form.weigh(batch.y, batch.mask, outputs), None)

    def _outputs(self, W: Tensor, buffers: Buffers) -> Iterator[tuple[Tensor, Batch]]:
        """The model's outputs for each batch; parts of a user's rows are joined for a loss that must see them all.

        Users whom the module is called for one by one come so: all users' outputs may be more than memory has, of
        language models above all.
        """
        parts: list[tuple[Tensor, Tensor]] = []
        last: Batch | None = None
        batches = self.data.batches(self.cut)
        for batch in batches if self.gradients.stacked else (one for some in batches for one in some.each()):
            if last is not None and not batch.part:
                yield _joined(parts, last)
                parts, last = [], None
            mine = {name: batch.of(b).expand(len(batch.x), *b.shape[1:]) for name, b in buffers.items()}
            outputs = self.gradients.outputs(batch.of(W), batch.x, mine or None, batch.mask)
            if batch.part is None or (self.mean is not None and self.mean.splits(outputs, batch.y)):
                yield outputs, batch
            else:
                parts.append((outputs, batch.y))
                last = batch
        if last is not None:
            yield _joined(parts, last)


def _joined(parts: list[tuple[Tensor, Tensor]], batch: Batch) -> tuple[Tensor, Batch]:
    outputs, y = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    return outputs, Batch(batch.who, batch.x, y)


SHORT = 1 << 17
"""Outputs of a user up to which a loss is computed by one thread: torch divides even a dozen rows among its threads,
which then wait for each other far longer than they compute when other programs run beside."""


def losses(loss: Callable[..., Any], outputs: Tensor, batch: Batch) -> Tensor:
    """Each user's mean loss, (users,), of its model's outputs; of copies, since a loss may write to what it gets."""
    with one_thread() if outputs.is_cpu and outputs[0].numel() <= SHORT else nullcontext():
        if batch.mask is None:
            return torch.stack([loss(o.clone(), y.clone()) for o, y in zip(outputs, batch.y, strict=True)])
        users = zip(outputs, batch.y, batch.mask, strict=True)
        return torch.stack([loss(o[real], y[real]) for o, y, real in users])


def _guesses(outputs: Tensor, y: Tensor, loss: MeanLoss) -> Tensor | None:
    """The likeliest classes (users, n, ...); None where outputs (users, n, classes, ...) are no scores of classes y.

    Where the model computes its loss, classes are the last axis, and after them comes the loss.
    """
    if y.is_floating_point():
        return None
    if isinstance(loss, OwnLoss):
        if outputs.shape[:-1] != y.shape or outputs.shape[-1] <= 2:
            return None
        guesses = outputs[..., :-1].argmax(-1)
        return guesses.roll(loss.shift, 2) if loss.shift and y.ndim > 2 else guesses
    if not loss.classes or y.dtype == torch.bool or outputs.ndim != y.ndim + 1:
        return None
    return outputs.argmax(2) if outputs.shape[2] > 1 and outputs.shape[3:] == y.shape[2:] else None


def _hits(guesses: Tensor, batch: Batch, loss: MeanLoss) -> tuple[Tensor, Tensor]:
    """How many targets each user's model gets right, and how many the loss counts, (users,)."""
    y = batch.y
    real = loss.counted(y.flatten(0, 1)).view_as(y)
    if batch.mask is not None:
        real = real & batch.mask.view(*batch.mask.shape, *(1,) * (y.ndim - 2))
    return ((guesses == y) & real).flatten(1).sum(1), real.flatten(1).sum(1)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Models are evaluated on data called `name`, each user's own, or `shared` by all users."""

    name: str
    evaluator: Evaluator
    shared: bool
    shares: Mapping[str, float] = field(default_factory=dict)
    """By column: which part of all rows a rank has. Where a column is missing, that of its users' weights."""

    @cached_property
    def counts(self) -> Tensor:
        """How much each user's rows count in the loss and in the accuracy, (2, users)."""
        by, rows = self.evaluator, self.evaluator.data.sizes.tolist()
        if self.shared:
            return torch.ones(2, 1, dtype=torch.float64)
        losses = rows if by.mean is None else divisors(by.data, by.mean)
        kind = by.own_loss or by.torch_loss
        hits = rows if kind is None else divisors(by.data, kind, weighted=False)
        return torch.tensor([losses, hits], dtype=torch.float64)

    def divided(self, w: Tensor, of: Sequence[Tensor], rank: int) -> Evaluation:
        """This rank's part, where the users `of` each rank are known: of its users' rows, or of those that all share.

        Metrics of the ranks, weighed by their shares, add up to those of all rows."""
        by, mean, who = self.evaluator, self.evaluator.mean, of[rank].cpu()
        if not self.shared:
            part = self.counts[:, who].sum(1) / self.counts.sum(1)
            return self._sharing(by.data.take(of[rank]), *part.tolist())
        if not (isinstance(by.data, Resident) and mean is not None):
            return self
        x, y = by.data.users[0]
        parts = [(x[a], y[a]) for a in torch.arange(len(y), device=y.device).tensor_split(len(of))]
        losses = [mean.divisor(part) for _, part in parts]
        hits = [float(mean.counted(part).sum()) for _, part in parts]
        if not all(count > 0 for count in (*losses, *hits)) or not rows_apart(by.gradients, w, (x, y), mean):
            return self
        return self._sharing(stacked([parts[rank]]), losses[rank] / sum(losses), hits[rank] / sum(hits))

    def _sharing(self, data: UserData, loss: float, right: float) -> Evaluation:
        columns = {"loss": loss, "accuracy": right, "accuracy_spread": right}
        shares = {f"{whose}{self.name}_{key}": share for whose in ("", "personal_") for key, share in columns.items()}
        return replace(self, evaluator=replace(self.evaluator, data=data), shares=shares)

    def __call__(
        self,
        w: Tensor,
        personal: Tensor | None,
        common: Buffers,
        own: Buffers,
        judge: Judge | None = None,
    ) -> dict[str, float]:
        """Metrics of the global model, and of each user's own model on its own data, over all users' rows together; and
        the spread of accuracies over users.

        `judge` has further metrics of the global model, from what it answers to each user's rows. A function of the
        user's own takes the place of a metric of the same name.
        """
        by_model = self.evaluator.own_loss
        seen = None if judge is None else Seen(len(self.evaluator.data.sizes), by_model)
        metrics = self._metrics("", *self.evaluator.measure(w, common, seen=seen))
        if judge is not None and seen is not None:
            loss, answers = self.evaluator.torch_loss, seen.result()
            about = (None, None) if loss is None else (loss.function, loss.ignored)
            if by_model is not None and answers and answers[0][1].dtype.kind in "iu":
                about = ("cross_entropy", None)  # of scores and classes; what the loss ignores is left out already
            named, own_metrics = judge(self.name, answers, *about)
            metrics = named | metrics | own_metrics
        if not self.shared and personal is not None:
            metrics |= self._metrics("personal_", *self.evaluator.measure(personal, own))
        return metrics

    def _metrics(self, whose: str, losses: Tensor, right: Tensor | None) -> dict[str, float]:
        prefix = f"{whose}{self.name}_"
        of_loss, of_right = (self.counts / self.counts.sum(1, keepdim=True)).to(losses)
        metrics = {f"{prefix}loss": float(of_loss @ losses)}
        if right is not None:
            mean = metrics[f"{prefix}accuracy"] = float(of_right @ right)
            if not self.shared:
                spread = (of_right @ (right - mean).square()).clamp_min(0).sqrt()
                metrics[f"{prefix}accuracy_spread"] = float(spread)
        return metrics


def evaluations(
    name: str, sets: Any, users: int, gradients: Gradients, mean: MeanLoss | None, w: Tensor, placement: Placement
) -> Iterator[Evaluation]:
    """An evaluation on one (x, y) that all users share, or on one set per user; none where `sets` is None."""
    if sets is None:
        return
    shared = is_pair(sets)
    data, _ = as_user_data([sets] if shared else sets, name, placement)
    if not shared and len(data.sizes) != users:
        refuse(name, f"a list of {len(data.sizes)}", f"one for each of the {users} users, or one (x, y), is needed")
    check_fits(gradients.plain, w, data, mean, name)
    rows = next(iter(data.batches(cut=True))).x
    suited = gradients.for_features(tuple(rows.shape[2:]))
    yield Evaluation(
        name, Evaluator(suited, mean, data, cuts(suited, w, data, mean, training=False).evaluation), shared
    )
