"""The shapes of what one kernel does: a convolution with bias, pooling over tiles and ReLU, or the end of a net."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

Pair = tuple[int, int]
MIN_CONSTANT_IMAGES = 1024
"""From so many images on, their number is a constant of the source: a few per cent faster, for one more compilation."""
MAX_SHARED_BYTES = 48 << 10
"""Bytes of shared memory that a block of threads may have without asking for more."""
MAX_HEAD_OUTPUTS = 32
"""Outputs of a linear layer, at most: a thread keeps one sum for each."""
AHEAD = 8
"""Input features that a warp loads at once."""
MAX_RESIDENT_WARPS = 16
"""Warps that share a multiprocessor."""


def as_constants(shapes: Any) -> dict[str, int]:
    """The whole numbers and flags of a dataclass as constants of the sources."""
    return {name.upper(): int(value) for name, value in vars(shapes).items() if isinstance(value, int)}


@dataclass(frozen=True)
class ConvGeometry:
    """The shapes of a fused convolution.

    `size` is the input's height and width, `pool` the tile over which maxima or means are taken. `relu`: "first" is
    ReLU before a mean; before a maximum it is the same as after it.
    """

    inputs: int
    outputs: int
    size: Pair
    kernel: Pair
    padding: Pair = (0, 0)
    pooling: Literal["none", "max", "mean"] = "none"
    pool: Pair = (1, 1)
    relu: Literal["none", "first", "last"] = "none"
    bias: bool = True

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def cells(self) -> Pair:
        """Height and width of the result."""
        h, w = (
            (size + 2 * p - k + 1) // q
            for size, p, k, q in zip(self.size, self.padding, self.kernel, self.pool, strict=True)
        )
        return h, w

    @property
    def coded(self) -> bool:
        """Whether forward leaves a code per cell for backward."""
        return self.pooling == "max" or self.relu != "none"

    @property
    def parameters(self) -> int:
        """Numbers in the gradient of kernels and biases."""
        return self.outputs * (self.inputs * self.taps + 1)

    def constants(self) -> dict[str, int]:
        """The same, as the sources have it."""
        return as_constants(self) | {
            "HEIGHT": self.size[0],
            "WIDTH": self.size[1],
            "KERNEL_H": self.kernel[0],
            "KERNEL_W": self.kernel[1],
            "PAD_H": self.padding[0],
            "PAD_W": self.padding[1],
            "POOL_H": self.pool[0],
            "POOL_W": self.pool[1],
            "POOLING": ("none", "max", "mean").index(self.pooling),
            "RELU": int(self.relu != "none"),
            "RELU_FIRST": int(self.relu == "first"),
        }

    def __str__(self) -> str:
        """In words: "1 to 10 channels, 5 x 5, bias, max 2 x 2, ReLU"."""
        parts = [f"{self.inputs} to {self.outputs} channels", f"{self.kernel[0]} x {self.kernel[1]}"]
        pool = [] if self.pooling == "none" else [f"{self.pooling} {self.pool[0]} x {self.pool[1]}"]
        relu = [] if self.relu == "none" else ["ReLU"]
        parts += ["bias"] if self.bias else []
        return ", ".join([*parts, *(relu + pool if self.relu == "first" else pool + relu)])


@dataclass(frozen=True)
class ImageGroups:
    """How many images a lane takes, and what is known about their number n when a kernel is compiled; count 0: not n.

    Two images per lane halve the loads of weights, but need 64 images for a warp.
    """

    per_lane: int
    paired: bool
    whole: bool
    count: int = 0

    @staticmethod
    def of(n: int) -> ImageGroups:
        two = n >= 64
        return ImageGroups(2 if two else 1, two and n % 2 == 0, n % 32 == 0, n if n >= MIN_CONSTANT_IMAGES else 0)

    @staticmethod
    def choices(n: int) -> list[ImageGroups]:
        """Ways to share out n images among lanes."""
        widest = ImageGroups.of(n)
        return [widest] if widest.per_lane == 1 else [widest, replace(widest, per_lane=1, paired=False)]

    def constants(self) -> dict[str, int]:
        return {"IMAGES": self.per_lane} | as_constants(self)

    def groups(self, n: int) -> int:
        """Warps that it takes to go through n images."""
        return ceil(n / (32 * self.per_lane))


@dataclass(frozen=True)
class HeadGeometry:
    """The end of a net: linear layers, softmax and cross entropy, forward and backward (head.cu).

    `inputs` to `width` and, where `deep`, by ReLU and a second layer to `classes`, which is `width` if not.

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
        if max(self.width, self.classes) > MAX_HEAD_OUTPUTS:
            return f"it has more than {MAX_HEAD_OUTPUTS} outputs"
        if self.shared(1) > MAX_SHARED_BYTES:
            return f"its weights do not fit into {MAX_SHARED_BYTES >> 10} KiB of shared memory"
        return ""

    def images(self, n: int) -> ImageGroups:
        """Two per lane where that halves the loads of weights and there is room for their sums."""
        return next(images for images in ImageGroups.choices(n) if self.shared(images.per_lane) <= MAX_SHARED_BYTES)

    def warps(self, per_lane: int) -> int:
        return 8 // per_lane

    def shared(self, per_lane: int) -> int:
        weights = self.inputs * ceil(self.width / 4) * 4 + self.classes * (self.width if self.deep else 1)
        sums = self.warps(per_lane) * self.width * 32 * per_lane
        return 4 * (weights + sums + self.width + self.classes)

    def constants(self, n: int) -> dict[str, int]:
        images = self.images(n)
        warps = self.warps(images.per_lane)
        cut = {"WARPS": warps, "AHEAD": AHEAD, "RESIDENT": MAX_RESIDENT_WARPS // warps}
        return images.constants() | as_constants(self) | cut
