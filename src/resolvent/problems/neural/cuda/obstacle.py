"""Whether generated kernels serve at all: the device, the numbers' type, and a compiler."""

from __future__ import annotations

import torch


def obstacle(device: torch.device, dtype: torch.dtype, compute: torch.dtype | None) -> str:
    """Why they do not, in a few words; empty: they do."""
    if device.type != "cuda":
        return "it is not on a CUDA device"
    if dtype != torch.float32:
        return "the kernels are for float32"
    if compute is not None:
        return "products go by autocast"
    from resolvent.problems.neural.cuda import compiler

    return compiler.obstacle()
