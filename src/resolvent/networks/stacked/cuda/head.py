"""The end of a net as one kernel: linear layers, softmax and cross entropy, forward and backward (head.cu)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from resolvent.networks.stacked.cuda.geometry import ImageGroups

SHARED = 48 << 10
"""Bytes of shared memory that a block of threads may have without asking for more."""
WIDEST = 32
"""Outputs of a linear layer, at most: a thread keeps one sum for each."""
AHEAD = 8
"""Input features that a warp loads at once."""
MOST_WARPS = 16
"""Warps that share a multiprocessor."""


@dataclass(frozen=True)
class HeadGeometry:
    """`inputs` to `width` and, where `deep`, by ReLU and a second layer to `classes`, which is `width` if not.

    `to_input`: whether the gradient at the input is needed.
    """

    inputs: int
    width: int
    classes: int
    deep: bool
    bias: bool
    last_bias: bool
    to_input: bool

    @property
    def misfit(self) -> str:
        """Why it does not fit one kernel; empty: it does."""
        if max(self.width, self.classes) > WIDEST:
            return f"it has more than {WIDEST} outputs"
        if self.shared(1) > SHARED:
            return f"its weights do not fit into {SHARED >> 10} KiB of shared memory"
        return ""

    def images(self, n: int) -> ImageGroups:
        """Two per lane where that halves the loads of weights and there is room for their sums."""
        return next(images for images in ImageGroups.choices(n) if self.shared(images.per_lane) <= SHARED)

    def warps(self, per_lane: int) -> int:
        return 8 // per_lane

    def shared(self, per_lane: int) -> int:
        weights = self.inputs * ceil(self.width / 4) * 4 + self.classes * (self.width if self.deep else 1)
        sums = self.warps(per_lane) * self.width * 32 * per_lane
        return 4 * (weights + sums + self.width + self.classes)

    def constants(self, n: int) -> dict[str, int]:
        images = self.images(n)
        return images.constants() | {
            "INPUTS": self.inputs,
            "WIDTH": self.width,
            "CLASSES": self.classes,
            "DEEP": int(self.deep),
            "BIAS": int(self.bias),
            "LAST_BIAS": int(self.last_bias),
            "TO_INPUT": int(self.to_input),
            "WARPS": self.warps(images.per_lane),
            "AHEAD": AHEAD,
            "RESIDENT": MOST_WARPS // self.warps(images.per_lane),
        }
