"""Products of each user's vector with its own matrix: where nearly all the arithmetic is.

On a CPU and for matrices that fit a cache, NumPy's loop over matrix-vector products beats a batched product by a factor
of two on one core and equals it on two, and no thread waits for another. Elsewhere it is one batched product, of row
vectors with matrices: the other way round is several times slower.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MAX_CACHED = 1 << 21
"""Numbers in all matrices together, about."""


def rows_times(U: Tensor, M: Tensor) -> Tensor:
    """u_i M_i for rows U (users, a) and matrices M (users, a, b): (users, b)."""
    if _cached(M):
        return torch.from_numpy(np.matmul(U.numpy()[:, None, :], M.numpy())[:, 0])
    return torch.bmm(U.unsqueeze(1), M).squeeze(1)


def times_rows(M: Tensor, U: Tensor) -> Tensor:
    """M_i u_i for matrices M (users, b, a) and rows U (users, a): (users, b)."""
    if _cached(M):
        return torch.from_numpy(np.matmul(M.numpy(), U.numpy()[:, :, None])[:, :, 0])
    return torch.bmm(U.unsqueeze(1), M.mT).squeeze(1)


def squared(M: Tensor) -> Tensor:
    """M_i M_i^T for matrices M (users, a, b): (users, a, a). On a CPU by NumPy, which computes one triangle only."""
    if M.device.type == "cpu":
        return torch.from_numpy(np.matmul(M.numpy(), M.mT.numpy()))
    return M @ M.mT


def _cached(M: Tensor) -> bool:
    return M.device.type == "cpu" and M.numel() <= MAX_CACHED
