"""Images put innermost: (users, n, size) to (users, size, n)."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

from resolvent.problems.neural.cuda import source
from resolvent.problems.neural.cuda.compiler import kernel

LARGE = 1 << 20
"""Numbers from which on the kernel is faster than torch's copy: it takes longer to start."""


def takes(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and x.numel() >= LARGE


def put(x: Tensor, y: Tensor) -> None:
    """y = x with its last two axes exchanged; y is contiguous."""
    x = x.contiguous()
    users, n, size = x.shape
    with torch.cuda.device(y.device):
        launch = kernel(source.innermost(), y.device.index)
        launch(grid=(ceil(n / 32), ceil(size / 32), users), block=(256, 1, 1), args=(x, y, n, size))
