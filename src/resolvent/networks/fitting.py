"""Whether a model, a loss and users' data fit each other: what does not is refused before the first round."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from resolvent.errors import InputError, refuse
from resolvent.networks.calling import packing_of
from resolvent.networks.gradients import Gradients
from resolvent.networks.mean_losses import MeanLoss, OwnLoss, TorchLoss
from resolvent.networks.plain import Loop, preserve_rng
from resolvent.networks.row_readers import XY
from resolvent.networks.streamed import Halves, Streamed
from resolvent.networks.userdata import Batch, Resident, UserData

TRIED_ROWS = 8
"""How many rows are tried."""


def check_fits(plain: Loop, w: Tensor, data: UserData, mean: MeanLoss | None, name: str) -> None:
    """Refuse rows that the model cannot take, outputs that the loss cannot take, and labels without an output."""
    loss: Any = plain.loss
    batch = next(iter(data.batches(cut=True)))
    x, y = batch.x[:1, :2], batch.y[:1, :2]
    who = (
        name if len(data.sizes) == 1 and name != "users" else f"{name}[{0 if batch.who is None else int(batch.who[0])}]"
    )
    try:
        with torch.inference_mode(False), preserve_rng(w.device):
            out = plain.outputs(w.unsqueeze(0), x)
    except Exception as error:
        if label := re.search(r"Target (-?\d+) is out of bounds", _line(error)):
            refuse(f"{who}'s labels", f"partly {label[1]}", "the model has no such class")
        message = f"the model cannot take rows of {_rows(plain, x)}, those of {who}: {_line(error)}"
        raise InputError(message) from error
    own = isinstance(loss, OwnLoss) and not y.is_floating_point() and y.ndim == out.ndim
    if own and not bool(out[..., -1].isfinite().all()):
        given = f"of shape {tuple(y.shape[2:])} per row, with a loss that is not finite"
        refuse(f"{who}'s labels", given, f"the model gives outputs for labels of shape {tuple(out.shape[2:-1])}")
    if isinstance(mean, OwnLoss) and not y.is_floating_point():
        _check_labels(data, out.shape[-1] - 1, mean, name)
    elif isinstance(mean, TorchLoss) and mean.classes:
        if y.is_floating_point() and y.ndim == out.ndim - 1:
            refuse(
                f"{name}'s y", f"of {y.dtype}", "labels are whole numbers: pass y.long(), or a probability per class"
            )
        if not y.is_floating_point() and out.ndim > 2:
            _check_labels(data, out.shape[2], mean, name)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            value = loss(out[0].clone().requires_grad_().clone(), y[0].clone())  # a loss may write to what it gets
    except Exception as error:
        shapes = f"{tuple(out.shape[2:])} and targets of shape {tuple(y.shape[2:])} and type {y.dtype}"
        raise InputError(f"the loss cannot take outputs of shape {shapes}: {_line(error)}") from error
    if not isinstance(value, Tensor) or value.ndim:
        refuse("loss", f"a function that gives {_kind(value)}", "one number, the mean over rows, is needed")
    if not value.requires_grad:
        needed = "it must be computed from them by torch, without detach() or torch.no_grad()"
        refuse("loss", "a function whose result has no gradient at the outputs", needed)
    if mean is None and not y.is_floating_point() and not y.is_cuda and isinstance(data, Resident):
        _try_targets(data, out[0, :1], loss, name)


def _rows(plain: Loop, x: Tensor) -> str:
    """What the model is given for a row."""
    packing = packing_of(plain.model)
    if packing is not None:
        return ", ".join(f"{key} {shape} of {dtype}" for key, shape, dtype in packing.rows(x))
    return f"shape {tuple(x.shape[2:])}" + ("" if x.is_floating_point() else f" of {x.dtype}")


def _check_labels(data: UserData, classes: int, mean: MeanLoss, name: str) -> None:
    for i, y in enumerate(data.targets()):
        outside = y[mean.counted(y) & ((y < 0) | (y >= classes))]
        if len(outside):
            needed = f"the model has {classes} outputs, so labels from 0 to {classes - 1} are needed"
            refuse(f"{name}[{i}]'s label", int(outside[0]), needed)
    own = isinstance(mean, OwnLoss)
    for i, count in enumerate(divisors(data, mean) if own else map(mean.divisor, data.targets())):
        if not count > 0:
            refuse(f"{name}[{i}]", "without a row that the loss counts", "its mean needs one at least")


def divisors(data: UserData, mean: MeanLoss, weighted: bool = True) -> list[float]:
    """The divisor of the loss over all rows of each user: how many targets count, by the weights of their classes."""
    counts = [0.0] * len(data.sizes)
    for batch in data.batches(cut=True):
        for k, i in enumerate(range(len(counts)) if batch.who is None else batch.who.tolist()):
            y = batch.y[k] if batch.mask is None else batch.y[k][batch.mask[k]]
            counts[i] += mean.divisor(y) if weighted else float(mean.counted(y).sum())
    return counts


def _try_targets(data: Resident, out: Tensor, loss: Any, name: str) -> None:
    """Call an unknown loss on outputs of the right shape, so that targets that it cannot take name their user."""
    for i, y in enumerate(data.targets()):
        try:
            with torch.no_grad():
                loss(out.expand(len(y), *out.shape[1:]).clone(), y.clone())
        except Exception as error:
            raise InputError(f"the loss cannot take the targets of {name}[{i}]: {_line(error)}") from error


def check_trains(gradients: Gradients, w: Tensor, data: UserData) -> None:
    """Refuse a user of one row where the model cannot be trained on one, as with batch norm."""
    single = (data.sizes == 1).nonzero().flatten()
    if not len(single):
        return
    batch = next(iter(data.take(single[:1]).batches()))
    try:
        gradients.value_and_grad(w.unsqueeze(0), batch.x, batch.y)
    except Exception as error:
        needed = f"the model cannot be trained on one: {_line(error)}"
        raise InputError(f"users[{int(single[0])}] is of one row, but {needed}") from error


class Cuts(NamedTuple):
    """Whether taking a user's rows in parts changes neither the gradient (training) nor the outputs (evaluation)."""

    training: bool
    evaluation: bool


def cuts(gradients: Gradients, w: Tensor, data: UserData, mean: MeanLoss | None, training: bool = True) -> Cuts:
    """Rows may be taken in parts where the module treats each row alone, tried on a few, and the loss is known."""
    if isinstance(data, Resident):
        return Cuts(False, False)
    ragged = isinstance(data, Streamed) and data.ragged
    batches = (_halves(batch) for batch in data.batches(cut=True) if batch.x.shape[1] > 1)
    tried = data.halves(TRIED_ROWS) if isinstance(data, Streamed) and ragged else next(batches, None)
    if tried is None:
        return Cuts(False, False)
    if ragged or isinstance(mean, OwnLoss):  # outputs have other lengths, or the loss beside them
        alone = mean is not None and _gradients_in_parts(gradients, w, tried, mean, by_loss=True)
        return Cuts(alone, alone)
    return Cuts(
        mean is not None and training and _gradients_in_parts(gradients, w, tried, mean),
        _outputs_in_parts(gradients, w, tried),
    )


def rows_apart(gradients: Gradients, w: Tensor, rows: XY, mean: MeanLoss) -> bool:
    """Whether a model's answers to rows (n, ...) do not depend on which of them come together, tried on a few."""
    x, y = rows
    tried = _halves(Batch(None, x.unsqueeze(0), y.unsqueeze(0)))
    if not isinstance(mean, OwnLoss):
        return len(rows[1]) > 1 and _outputs_in_parts(gradients, w, tried)
    return len(rows[1]) > 1 and _gradients_in_parts(gradients, w, tried, mean, by_loss=True)


def _halves(batch: Batch) -> Halves:
    x, y = batch.x[:, :TRIED_ROWS], batch.y[:, :TRIED_ROWS]
    half = x.shape[1] // 2
    return (x, y), [(x[:, :half], y[:, :half]), (x[:, half:], y[:, half:])]


def near(w: Tensor) -> Tensor:
    """A point near w, where nothing is zero by construction."""
    generator = torch.Generator().manual_seed(0)
    return (w + 0.1 * torch.randn(len(w), generator=generator, dtype=torch.float64).to(w)).unsqueeze(0)


def _outputs_in_parts(gradients: Gradients, w: Tensor, tried: Halves) -> bool:
    (x, _), halves = tried
    W = near(w)
    try:
        return _close(torch.cat([gradients.outputs(W, part) for part, _ in halves], 1), gradients.outputs(W, x))
    except Exception:
        return False


def _gradients_in_parts(gradients: Gradients, w: Tensor, tried: Halves, mean: MeanLoss, by_loss: bool = False) -> bool:
    """By the loss and, unless `by_loss`, by the mean square of the outputs, since the loss may hide that rows meet:
    where all residuals have one sign, the mean of their absolute values stays the same if each part is centred."""
    whole, halves = tried
    x, y = whole
    W, begun = near(w), dict(gradients.model.named_buffers())
    squares = replace(gradients, by=replace(gradients.plain, loss=_mean_square))
    try:
        if not mean.splits(gradients.outputs(W, x), y):
            return False
        after = gradients.value_and_grad(W, x, y).buffers
        if any(not torch.equal(rows[0], begun[name]) for name, rows in after.items()):
            return False
        rows = [len(part[0]) for _, part in halves]
        divisors = [mean.divisor(part[0]) for _, part in halves]
        return (by_loss or _adds_up(squares, W, whole, halves, rows)) and _adds_up(
            gradients, W, whole, halves, divisors
        )
    except Exception:
        return False


def _mean_square(outputs: Tensor, _: Tensor) -> Tensor:
    return (outputs + 1).square().mean()  # normalised outputs have all the same square


def _adds_up(gradients: Gradients, W: Tensor, whole: XY, parts: list[XY], shares: Sequence[float]) -> bool:
    """Whether the gradient over all rows is the mean of those over parts of them, which count in these shares."""
    if not sum(shares) > 0:
        return False
    means = [
        share / sum(shares) * gradients.value_and_grad(W, *part).grad
        for part, share in zip(parts, shares, strict=True)
        if share
    ]
    return _close(sum(means, torch.zeros_like(W)), gradients.value_and_grad(W, *whole).grad)


def _close(a: Tensor, b: Tensor) -> bool:
    tol = torch.finfo(a.dtype).eps ** 0.5
    return a.shape == b.shape and float((a - b).norm()) <= tol * float(b.norm())


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
