"""torch's mean losses: what each takes the mean of, whether targets are classes, and which of them it ignores.

This is the one place that recognises them, as functions, modules or partials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

IGNORED = -100
"""The target that torch's losses over classes ignore, unless told otherwise."""


@dataclass(frozen=True, eq=False)
class MeanLoss:
    """A loss of the form sum_n c_n l(o_n, y_n) / sum_n c_n over rows n: parts can be averaged by their divisors.

    `function` is the name of torch's function, with settings as `defaults` or not. `classes`: targets may be classes;
    c_n is the weight of the class, and 0 where it is `ignored`. `alike`: output and target must have one shape, since
    torch would broadcast them against each other, across rows.
    """

    function: str
    defaults: bool
    classes: bool = False
    ignored: int | None = None
    weight: Tensor | None = None
    alike: bool = True

    def counted(self, y: Tensor) -> Tensor:
        """Which targets count."""
        return y == y if self.ignored is None or y.is_floating_point() else y != self.ignored

    def splits(self, outputs: Tensor, y: Tensor) -> bool:
        """Whether the loss of these outputs and targets is a mean over rows."""
        return not self.alike or outputs.shape == y.shape

    def divisor(self, y: Tensor) -> float:
        """sum_n c_n, up to a factor that is the same for all parts."""
        if not self.classes or y.is_floating_point():
            return float(len(y))
        real = self.counted(y)
        return float(real.sum() if self.weight is None else self.weight.to(y.device)[y[real]].sum())


LOSS_SETTINGS: dict[str, dict[str, Any]] = {
    "cross_entropy": {"weight": None, "ignore_index": IGNORED, "reduction": "mean", "label_smoothing": 0.0},
    "nll_loss": {"weight": None, "ignore_index": IGNORED, "reduction": "mean"},
    "mse_loss": {"reduction": "mean"},
    "l1_loss": {"reduction": "mean"},
    "smooth_l1_loss": {"reduction": "mean", "beta": 1.0},
    "huber_loss": {"reduction": "mean", "delta": 1.0},
    "soft_margin_loss": {"reduction": "mean"},
    "binary_cross_entropy": {"reduction": "mean"},
    "binary_cross_entropy_with_logits": {"reduction": "mean", "pos_weight": None},
}
"""torch's mean losses by the names of their functions, with the settings under which they stay means over rows."""
LOSS_MODULES: dict[type, str] = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.NLLLoss: "nll_loss",
    nn.MSELoss: "mse_loss",
    nn.L1Loss: "l1_loss",
    nn.SmoothL1Loss: "smooth_l1_loss",
    nn.HuberLoss: "huber_loss",
    nn.SoftMarginLoss: "soft_margin_loss",
    nn.BCELoss: "binary_cross_entropy",
    nn.BCEWithLogitsLoss: "binary_cross_entropy_with_logits",
}
LOSS_FUNCTIONS = {getattr(F, name): name for name in LOSS_SETTINGS}
OVER_CLASSES = frozenset({"cross_entropy", "nll_loss"})


def mean_loss(loss: Callable[..., Any]) -> MeanLoss | None:
    """One of torch's mean losses, given as a function, a module or a functools.partial; None for all other losses."""
    name, settings = _settings(loss)
    if name is None or settings.get("reduction", "mean") != "mean" or not settings.keys() <= LOSS_SETTINGS[name].keys():
        return None
    defaults = not isinstance(loss, partial) and all(settings[key] == LOSS_SETTINGS[name][key] for key in settings)
    settings = LOSS_SETTINGS[name] | settings
    if name in OVER_CLASSES:
        return MeanLoss(name, defaults, True, int(settings["ignore_index"]), settings["weight"], alike=False)
    return MeanLoss(name, defaults)


class TorchLoss(NamedTuple):
    """One of torch's losses, whatever its reduction: the name of its function, and the target that it ignores."""

    function: str
    ignored: int | None

    @property
    def classes(self) -> bool:
        return self.function in OVER_CLASSES


def torch_loss(loss: Callable[..., Any]) -> TorchLoss | None:
    """Which of torch's losses this is; None for all others."""
    name, settings = _settings(loss)
    return None if name is None else TorchLoss(name, (LOSS_SETTINGS[name] | settings).get("ignore_index"))


def is_sum(loss: Callable[..., Any]) -> bool:
    """Whether this is one of torch's losses, as a sum over rows."""
    name, settings = _settings(loss)
    return name is not None and settings.get("reduction") == "sum"


def _settings(loss: Callable[..., Any]) -> tuple[str | None, dict[str, Any]]:
    """The function's name, and the settings that are not None."""
    if isinstance(loss, nn.Module):
        name = LOSS_MODULES.get(type(loss))
        if name is None or loss._forward_hooks or loss._forward_pre_hooks or "forward" in vars(loss):
            return None, {}
        keys = {*LOSS_SETTINGS[name], "weight", "reduction"}
        return name, {key: getattr(loss, key) for key in keys if getattr(loss, key, None) is not None}
    if isinstance(loss, partial):
        name = None if loss.args else _function(loss.func)
        return name, {key: value for key, value in loss.keywords.items() if value is not None}
    return _function(loss), {}


def _function(loss: Any) -> str | None:
    try:
        return LOSS_FUNCTIONS.get(loss)
    except TypeError:  # it cannot be hashed
        return None
