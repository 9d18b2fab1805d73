"""What is known of a loss: what it takes the mean of, whether targets are classes, and which of them it ignores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from resolvent.networks.stacked.losses import IGNORED


@dataclass(frozen=True, eq=False)
class Mean:
    """The loss is sum_n c_n l(o_n, y_n) / sum_n c_n over rows n: the mean of parts is known if the divisors are.

    `classes`: targets may be classes, c_n the weight of the class and 0 where it is `ignored`. `alike`: output and
    target must have one shape, or torch broadcasts them against each other and rows meet.
    """

    classes: bool = False
    ignored: int | None = None
    weight: Tensor | None = None
    alike: bool = True

    def counted(self, y: Tensor) -> Tensor:
        """Which targets count."""
        return y == y if self.ignored is None or y.is_floating_point() else y != self.ignored

    def splits(self, given: Tensor, y: Tensor) -> bool:
        """Whether the loss of these outputs and targets is a mean over rows."""
        return not self.alike or given.shape == y.shape

    def divisor(self, y: Tensor) -> float:
        """sum_n c_n, up to a factor that is the same for all parts."""
        if not self.classes or y.is_floating_point():
            return float(len(y))
        real = self.counted(y)
        return float(real.sum() if self.weight is None else self.weight.to(y.device)[y[real]].sum())


SETTINGS: dict[str, dict[str, Any]] = {
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
"""torch's means over rows by the names of their functions, with the settings that keep them means over rows."""
MODULES: dict[type, str] = {
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
FUNCTIONS = {getattr(F, name): name for name in SETTINGS}
CLASSES = frozenset({"cross_entropy", "nll_loss"})


def known(loss: Callable[..., Any]) -> Mean | None:
    """What is known of one of torch's losses, as a function, a module or a functools.partial; None of all others."""
    name, settings = _settings(loss)
    if name is None or settings.get("reduction", "mean") != "mean" or not settings.keys() <= SETTINGS[name].keys():
        return None
    settings = SETTINGS[name] | settings
    if name in CLASSES:
        return Mean(True, int(settings["ignore_index"]), settings["weight"], alike=False)
    return Mean()


def _settings(loss: Callable[..., Any]) -> tuple[str | None, dict[str, Any]]:
    """The function's name, and the settings that are not None."""
    if isinstance(loss, nn.Module):
        name = MODULES.get(type(loss))
        hooked = bool(loss._forward_hooks or loss._forward_pre_hooks)
        keys = () if name is None or hooked else {*SETTINGS[name], "weight", "reduction"}
        found = {key: getattr(loss, key) for key in keys if getattr(loss, key, None) is not None}
        return (None if hooked else name), found
    if isinstance(loss, partial):
        name = None if loss.args else _function(loss.func)
        return name, {key: value for key, value in loss.keywords.items() if value is not None}
    return _function(loss), {}


def _function(loss: Any) -> str | None:
    try:
        return FUNCTIONS.get(loss)
    except TypeError:  # one that cannot be hashed
        return None
