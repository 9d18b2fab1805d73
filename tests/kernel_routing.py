"""The reference of fused convolutions: plain torch in double precision, with the choices that the kernels made.

Where entries of a pooling tile nearly tie, single and double precision choose differently, and the gradient jumps. So
the reference takes the entry that the kernel took, and cuts off what its ReLU cut off.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from resolvent.networks.stacked.cuda.geometry import ConvGeometry

DEAD = 255


def convolved(geometry: ConvGeometry, x: Tensor, w: Tensor, b: Tensor | None, code: Tensor) -> Tensor:
    """The result for x (n, channels, height, width); code (n, channels, cells, cells)."""
    z = F.conv2d(x, w, b, padding=geometry.padding)
    (h, v), (p, q) = geometry.cells, geometry.pool
    cells = z[:, :, : h * p, : v * q].reshape(*z.shape[:2], h, p, v, q).transpose(3, 4).flatten(4)
    code = code.long()
    if geometry.pooling == "max":
        chosen = cells.gather(4, code.clamp(max=p * q - 1).unsqueeze(4)).squeeze(4)
        return chosen * (code != DEAD)
    if geometry.relu == "first":
        return (cells * (code.unsqueeze(4) >> torch.arange(p * q, device=code.device) & 1)).mean(4)
    return cells.mean(4) * (code == 1) if geometry.relu == "last" else cells.mean(4)


def plainly(geometry: ConvGeometry, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """The same as torch has it."""
    z = F.conv2d(x, w, b, padding=geometry.padding)
    z = z.relu() if geometry.relu == "first" else z
    if geometry.pooling != "none":
        z = (F.max_pool2d if geometry.pooling == "max" else F.avg_pool2d)(z, geometry.pool)
    return z.relu() if geometry.relu == "last" else z


def codes(geometry: ConvGeometry, code: Tensor, n: int) -> Tensor:
    """A user's codes (n, channels, cells, cells), from the bytes that forward left."""
    h, v = geometry.cells
    if not geometry.coded:
        return torch.zeros(n, geometry.outputs, h, v, dtype=torch.uint8, device=code.device)
    return code[: geometry.outputs * h * v * n].view(geometry.outputs, h, v, n).movedim(-1, 0)


def apart(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b).norm() / b.norm().clamp_min(1e-30))
