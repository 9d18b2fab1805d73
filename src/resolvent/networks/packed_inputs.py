"""Inputs of several tensors, a dict or a tuple, as one tensor whose rows are theirs, and back.

Everything between the door and the module then has one tensor per user: what picks, pads or moves rows does so for all
of a module's inputs at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import refuse

Inputs = Tensor | dict[str | int, Tensor]
"""What a module is called with: one tensor, or several by keyword or position, rows first in each."""
BITS = {torch.float16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}
"""Integers of the size of floats, which can have their bits."""

RowShapes = tuple[tuple[int, ...], ...]


class Packing:
    """Which inputs there are, and of which types. Packed, rows are of their type, or int64 where they have several.

    The width of a packed tensor says which shapes its inputs have: rows of different lengths have different widths.
    Copies are the same object, since they must know the same widths.
    """

    def __init__(self, inputs: Mapping[str | int, Tensor]) -> None:
        self.keys = tuple(inputs)
        self.dtypes = tuple(t.dtype for t in inputs.values())
        self.dtype = self.dtypes[0] if len(set(self.dtypes)) == 1 else torch.int64
        self._shapes: dict[int, RowShapes] = {}

    def __deepcopy__(self, memo: Any) -> Packing:
        return self

    def pack(self, inputs: Mapping[str | int, Tensor], name: str) -> Tensor:
        """The inputs (n, ...) as one tensor (n, width)."""
        if set(inputs) != set(self.keys):
            refuse(
                name, f"of {listed(inputs)}", f"all users' inputs must be alike, and others have {listed(self.keys)}"
            )
        parts = [inputs[key] for key in self.keys]
        for key, t, dtype in zip(self.keys, parts, self.dtypes, strict=True):
            if t.dtype != dtype:
                refuse(f"{name}'s {key}", f"of {t.dtype}", f"all users' inputs must be alike, and others have {dtype}")
        shapes = tuple(tuple(t.shape[1:]) for t in parts)
        taken = width = sum(map(prod, shapes))
        while self._shapes.setdefault(width, shapes) != shapes:
            width += 1  # other shapes have this width already
        codes = [self._coded(t).reshape(len(t), prod(t.shape[1:])) for t in parts]
        return torch.cat([*codes, codes[0].new_zeros(len(codes[0]), width - taken)], 1)

    def unpack(self, x: Tensor) -> dict[str | int, Tensor]:
        """What was packed in rows x (n, width)."""
        shapes = self._shapes[x.shape[-1]]
        parts = x[:, : sum(map(prod, shapes))].split([prod(shape) for shape in shapes], 1)
        return {
            key: self._decoded(part, dtype).reshape(len(x), *shape).contiguous()
            for key, part, dtype, shape in zip(self.keys, parts, self.dtypes, shapes, strict=True)
        }

    def rows(self, x: Tensor) -> tuple[tuple[str, tuple[int, ...], torch.dtype], ...]:
        """The name, the shape of a row, and the type of each input in x (..., width)."""
        return tuple(zip(map(str, self.keys), self._shapes[x.shape[-1]], self.dtypes, strict=True))

    def _coded(self, t: Tensor) -> Tensor:
        if t.dtype == self.dtype:
            return t
        return (t.contiguous().view(BITS[t.dtype]) if t.is_floating_point() else t).to(torch.int64)

    def _decoded(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype == self.dtype:
            return codes
        return codes.to(BITS[dtype]).view(dtype) if dtype in BITS else codes.to(dtype)


def listed(keys: Any) -> str:
    """The names of inputs in a sentence; of a tuple, how many there are."""
    keys = list(keys)
    return ", ".join(keys) if all(isinstance(key, str) for key in keys) else f"{len(keys)} inputs"


def as_inputs(given: Any) -> Any:
    """A dict of tensors by keyword, or a tuple or list of them by position, as Inputs; anything else as it came."""
    if isinstance(given, Mapping):
        return dict(given)
    return dict(enumerate(given)) if isinstance(given, (tuple, list)) else given
