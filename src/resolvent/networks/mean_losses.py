"""torch's losses: what each takes the mean of, whether targets are classes, and which of them it ignores.

This is the one place that recognises them, as functions, modules or partials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORED = -100
"""The target that torch's losses over classes ignore, unless told otherwise."""

LOSSES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "cross_entropy": (nn.CrossEntropyLoss, {"weight": None, "ignore_index": IGNORED, "label_smoothing": 0.0}),
    "nll_loss": (nn.NLLLoss, {"weight": None, "ignore_index": IGNORED}),
    "mse_loss": (nn.MSELoss, {}),
    "l1_loss": (nn.L1Loss, {}),
    "smooth_l1_loss": (nn.SmoothL1Loss, {"beta": 1.0}),
    "huber_loss": (nn.HuberLoss, {"delta": 1.0}),
    "soft_margin_loss": (nn.SoftMarginLoss, {}),
    "binary_cross_entropy": (nn.BCELoss, {}),
    "binary_cross_entropy_with_logits": (nn.BCEWithLogitsLoss, {"pos_weight": None}),
}
"""By the names of their functions: the module, and the settings under which the loss stays a mean over rows."""
FUNCTIONS = {getattr(F, name): name for name in LOSSES}
MODULES = {module: name for name, (module, _) in LOSSES.items()}
OVER_CLASSES = frozenset({"cross_entropy", "nll_loss"})


@dataclass(frozen=True, eq=False)
class TorchLoss:
    """One of torch's losses: the name of its function, and the settings that it was given.

    Where `is_mean`, it is sum_n c_n l(o_n, y_n) / sum_n c_n over rows n, so that parts can be averaged by their
    divisors: c_n is the weight of the class, and 0 where that is ignored.
    """

    function: str
    given: dict[str, Any]
    written: bool = False
    """Whether its settings are written in a partial."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"reduction": "mean"} | LOSSES[self.function][1] | self.given

    @property
    def is_mean(self) -> bool:
        usual = {"reduction", *LOSSES[self.function][1]}
        return self.settings["reduction"] == "mean" and self.given.keys() <= usual

    @property
    def is_default(self) -> bool:
        """Whether all settings are torch's own."""
        default = {"reduction": "mean"} | LOSSES[self.function][1]
        return not self.written and all(value == default[key] for key, value in self.given.items())

    @property
    def classes(self) -> bool:
        """Whether targets may be classes."""
        return self.function in OVER_CLASSES

    @property
    def ignored(self) -> int | None:
        return int(self.settings["ignore_index"]) if self.classes else None

    def counted(self, y: Tensor) -> Tensor:
        """Which targets count."""
        return y == y if self.ignored is None or y.is_floating_point() else y != self.ignored

    def splits(self, outputs: Tensor, y: Tensor) -> bool:
        """Whether the loss of these is a mean over rows: torch would broadcast other shapes against each other."""
        return self.classes or outputs.shape == y.shape

    def over(self, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """The loss of the rows (n,) that the mask has; NaN of none. All of it is torch's own arithmetic."""
        function = getattr(F, self.function)
        settings = {key: value for key, value in self.settings.items() if key != "reduction"}
        real = mask.view(-1, *(1,) * (y.ndim - 1))
        if self.ignored is not None and not y.is_floating_point():
            whole: Tensor = function(outputs, torch.where(real, y, self.ignored), **settings)
            return whole
        each = function(outputs, y, reduction="none", **settings).reshape(len(mask), -1).mean(1)
        return torch.where(mask, each, 0).sum() / mask.sum()

    def divisor(self, y: Tensor) -> float:
        """sum_n c_n, up to a factor that is the same for all parts."""
        if not self.classes or y.is_floating_point():
            return float(len(y))
        real, weight = self.counted(y), self.settings["weight"]
        return float(real.sum() if weight is None else weight.to(y.device)[y[real]].sum())


@dataclass(frozen=True)
class OwnLoss:
    """The loss that a model computes itself, as the last number of its outputs: a mean over the targets that count.

    The targets that count are all that are not IGNORED, without the first `shift` of each row: a language model is
    given one token and asked for the next.
    """

    shift: int = 0
    function = None
    classes = True
    ignored = IGNORED

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.flatten()[-1]

    def counted(self, y: Tensor) -> Tensor:
        """Which targets count, (n, ...); of a row's targets in no order, which are not ignored."""
        counts = y == y if y.is_floating_point() else y != self.ignored
        if self.shift and y.ndim > 1:
            counts[:, : self.shift] = False
        return counts

    def splits(self, outputs: Tensor, y: Tensor) -> bool:
        return True

    def divisor(self, y: Tensor) -> float:
        return float(len(y) if y.is_floating_point() else self.counted(y).sum())

    def answers(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (targets, ...) and the targets (targets,) that count, one by one; whole rows where these are numbers.

        The loss beside the outputs is left out.
        """
        outputs = outputs[..., :-1]
        if y.is_floating_point():
            return outputs, y
        if outputs.ndim != y.ndim + 1 or outputs.shape[:-1] != y.shape:
            return outputs, y
        real = self.counted(y)
        return (outputs.roll(self.shift, 1) if self.shift else outputs)[real], y[real]


MeanLoss = TorchLoss | OwnLoss
"""A loss that is a mean over the targets that count, so that parts can be averaged."""


def mean_loss(loss: Callable[..., Any]) -> TorchLoss | None:
    """One of torch's mean losses, given as a function, a module or a functools.partial; None for all other losses."""
    form = torch_loss(loss)
    return form if form is not None and form.is_mean else None


def torch_loss(loss: Callable[..., Any]) -> TorchLoss | None:
    """Which of torch's losses this is, whatever its reduction; None for all others."""
    if isinstance(loss, nn.Module):
        name = MODULES.get(type(loss))
        if name is None or loss._forward_hooks or loss._forward_pre_hooks or "forward" in vars(loss):
            return None
        keys = {*LOSSES[name][1], "weight", "reduction"}
        return TorchLoss(name, {key: value for key in keys if (value := getattr(loss, key, None)) is not None})
    written = isinstance(loss, partial)
    name = _function(loss.func if isinstance(loss, partial) and not loss.args else loss)
    given = loss.keywords if isinstance(loss, partial) else {}
    return None if name is None else TorchLoss(name, {k: v for k, v in given.items() if v is not None}, written)


def _function(loss: Any) -> str | None:
    try:
        return FUNCTIONS.get(loss)
    except TypeError:  # it cannot be hashed
        return None
