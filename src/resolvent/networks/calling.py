"""How a module is called whose inputs are several tensors, or which computes its loss itself.

Two hooks stand at its door while it is trained: one unpacks its inputs, the other turns what it gives into a tensor.
All methods then see a module of one tensor, and its own parameters keep their names.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.errors import refuse
from resolvent.networks.mean_losses import OwnLoss
from resolvent.networks.packed_inputs import Packing, listed
from resolvent.networks.row_readers import LABELS

OWN_LOSS_TOLERANCE = 1e-5
"""Relative, of a mean of means in single precision, which models of transformers compute losses in."""


POSITIONS = r"(wpe|position_embeddings?)(\.|$)"
"""The names of tables of places in models of transformers."""


@dataclass(frozen=True, eq=False)
class Unpacked:
    """Before forward: one packed tensor becomes the arguments of the module."""

    packing: Packing

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        inputs = self.packing.unpack(args[0])
        if any(isinstance(key, int) for key in inputs):
            return tuple(inputs.values()), kwargs
        return (), inputs


@dataclass(frozen=True, eq=False)
class OneTensor:
    """After forward: what the module gives becomes one tensor, its outputs; with `own_loss` they have it beside them.

    While gradients are computed only the loss is there, once per row. Otherwise it is the last of each row's outputs.
    """

    own_loss: bool

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, given: Any) -> Tensor:
        if not self.own_loss:
            return outputs_of(given)
        loss = given.get("loss") if hasattr(given, "get") else getattr(given, "loss", None)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise TypeError(f"it gives no loss for {listed(kwargs)}")
        outputs = outputs_of(given)
        loss = loss.to(torch.promote_types(loss.dtype, outputs.dtype))  # transformers' are of single precision
        if torch.is_grad_enabled():
            return loss.reshape(1).expand(len(kwargs[LABELS]))
        return torch.cat([outputs, loss.reshape((1,) * outputs.ndim).expand(*outputs.shape[:-1], 1)], -1)


DOOR = (Unpacked, OneTensor)
"""The hooks of this module."""


def outputs_of(given: Any) -> Tensor:
    """The outputs in what a module gives: a tensor, or something that has `logits`."""
    logits = given.get("logits") if hasattr(given, "get") else getattr(given, "logits", given)
    if not isinstance(logits, Tensor):
        raise TypeError(f"it gives a {type(given).__name__}, but a tensor is needed, or something that has logits")
    return logits


def call(module: nn.Module, inputs: dict[str | int, Tensor]) -> Tensor:
    """The outputs of a module, called with several inputs."""
    named = all(isinstance(key, str) for key in inputs)
    return outputs_of(module(**inputs) if named else module(*inputs.values()))  # type: ignore[arg-type]


@contextmanager
def called_with(model: nn.Module, packing: Packing | None) -> Iterator[None]:
    """Meanwhile the module, and every copy that is made of it for good, takes one packed tensor."""
    if packing is None and not hasattr(model, "main_input_name"):  # as models of transformers have
        yield
        return
    hooks = []
    if packing is not None:
        _check_keys(model, packing)
        hooks = [model.register_forward_pre_hook(Unpacked(packing), prepend=True, with_kwargs=True)]
    own_loss = packing is not None and LABELS in packing.keys
    hooks.append(model.register_forward_hook(OneTensor(own_loss), with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def check_bare(model: nn.Module) -> None:
    """Refuse modules that stand around another one, or that are made of one, and cannot be trained as a copy."""
    if any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        refuse("model", "compiled by torch.jit", "its parameters cannot be exchanged; pass the module itself")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        refuse("model", f"a {type(model).__name__}", "users are divided among devices here; pass model.module")
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        refuse("model", "compiled by torch.compile", "a copy is trained; pass the module itself, and method='compiled'")
    if hasattr(model, "get_base_model") and hasattr(model.get_base_model(), "get_base_model"):  # type: ignore[operator]
        refuse(
            "model", f"a {type(model).__name__} of another one", "one must have all adapters: model.add_adapter(...)"
        )


def known_positions(model: Any) -> int | None:
    """How many tokens a row of a model of transformers has at most; None where it has no table of their places."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    tables = (m for name, m in model.named_modules() if isinstance(m, nn.Embedding) and re.search(POSITIONS, name))
    return most if any(table.num_embeddings == most for table in tables) else None


def known_tokens(model: Any) -> int | None:
    """How many tokens a model of transformers knows; None where the model does not say."""
    try:
        return int(model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError):
        return None


def packing_of(model: nn.Module) -> Packing | None:
    """How the module's inputs are packed; None where it takes one tensor."""
    return next((h.packing for h in model._forward_pre_hooks.values() if isinstance(h, Unpacked)), None)


def _check_keys(model: nn.Module, packing: Packing) -> None:
    """Refuse inputs that forward does not name. Models of transformers take all others too, and never look at them."""
    base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    parameters = inspect.signature(base.forward).parameters.values()
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    swallows = any(p.kind is p.VAR_KEYWORD for p in parameters) and not hasattr(base, "main_input_name")
    for key in () if swallows else packing.keys:
        if isinstance(key, str) and key not in named:
            refuse("users", f"of inputs with {key!r}", f"{type(base).__name__}.forward takes {', '.join(named)}")


def own_loss(outputs: Callable[[Tensor], Tensor], x: Tensor, packing: Packing) -> OwnLoss | None:
    """What a model's own loss is the mean of, found by trying; None where it is no mean over targets that count.

    outputs: what the model gives for packed rows, with its loss. x: two such rows, or one.
    """
    inputs = {key: t if len(t) > 1 else torch.cat([t, t]) for key, t in packing.unpack(x).items()}
    y, form = inputs[LABELS], OwnLoss()
    classes = not y.is_floating_point()

    def loss(y: Tensor, rows: slice = slice(None)) -> float:
        given = {key: t[rows] for key, t in inputs.items()} | {LABELS: y}
        return float(outputs(packing.pack(given, "users")).flatten()[-1])

    y = y.clamp_min(0) if classes else y.clone()
    if classes and y.ndim > 1:
        first = torch.full_like(y, form.ignored)
        first[:, 0] = y[:, 0]
        alone = loss(first)
        form = OwnLoss(shift=1) if math.isnan(alone) or alone == 0 else form  # a mean over nothing: it does not count
        y[1:, y.shape[1] // 2 + 1 :] = form.ignored  # the rows count differently
    shares = [form.divisor(y[:1]), form.divisor(y[1:])]
    if not all(shares):
        return None
    mean = (shares[0] * loss(y[:1], slice(1)) + shares[1] * loss(y[1:], slice(1, None))) / sum(shares)
    whole = loss(y)
    return form if abs(mean - whole) <= OWN_LOSS_TOLERANCE * abs(whole) else None
