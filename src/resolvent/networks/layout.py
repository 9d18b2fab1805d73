"""A module's trainable parameters as one vector of length d, and rows of such vectors as stacked parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from traceback import clear_frames

import torch
from torch import Tensor, nn

from resolvent.errors import InputError, refuse

Buffers = dict[str, Tensor]
"""A module's buffers, such as running means, or other tensors of it, by name."""


def copied(model: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """A copy that shares nothing but these tensors. Computed tensors among its attributes (weights made by weight_norm
    or pruning, results stored by forward) are copied without their autograd history, which torch refuses to copy."""
    computed = [t for m in model.modules() for t in vars(m).values() if isinstance(t, Tensor) and not t.is_leaf]
    try:
        return deepcopy(model, {id(t): t.detach().clone() for t in computed} | {id(t): t for t in shared})
    except Exception as error:  # whatever a module's own attributes raise
        line = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"model is a module that cannot be copied ({type(error).__name__}: {line}), but a copy is trained; "
            "take from it what cannot be copied"
        ) from error


@contextmanager
def attributes_restored(model: nn.Module) -> Iterator[None]:
    """The modules' attributes and modes are afterwards what they were: forward may set some, and eval() does."""
    before = [(m, dict(vars(m))) for m in model.modules()]
    try:
        yield
    finally:
        for m, attributes in before:
            vars(m).clear()
            vars(m).update(attributes)


def let_go(error: BaseException) -> None:
    """End what a module's code was in the middle of when it failed, for those who go on without it.

    The frames of an exception keep it alive. So torch.utils.checkpoint before torch 2.13 leaves its hooks on, and the
    next backward, of whatever module, would run through them.
    """
    clear_frames(error.__traceback__)


@dataclass(frozen=True)
class ParameterLayout:
    """Where each trainable parameter lies in the vector: names, shapes and offsets in the order of `parameters()`."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    dim: int

    @staticmethod
    def of(model: nn.Module) -> ParameterLayout:
        """The layout of the parameters that require a gradient; one that several modules share counts once."""
        named = [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            refuse("model", "without a parameter that requires a gradient", "there must be something to train")
        offsets = [0]
        for _, shape in named:
            offsets.append(offsets[-1] + prod(shape))
        names, shapes = zip(*named, strict=True)
        return ParameterLayout(names, shapes, tuple(offsets[:-1]), offsets[-1])

    def split(self, W: Tensor) -> dict[str, Tensor]:
        """Rows (rows, d) as parameters of shape (rows, ...) by name: views, no copies."""
        parts = zip(self.names, self.shapes, self.offsets, strict=True)
        return {name: W[:, a : a + prod(shape)].view(len(W), *shape) for name, shape, a in parts}

    def flatten(self, model: nn.Module) -> Tensor:
        """A module's parameters as a new vector (d,)."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def load(self, model: nn.Module, w: Tensor) -> None:
        """Write the vector w (d,) into a module of the same architecture."""
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, part in self.split(w.reshape(1, -1)).items():
                parameters[name].copy_(part[0])
