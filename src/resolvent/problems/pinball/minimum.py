"""The minimum of a sum of tilted absolute values, by a linear program."""

from __future__ import annotations

from typing import Any

import numpy as np


def least_deviations(A: Any, b: Any, low: Any, high: Any) -> Any:
    """argmin_w sum_i max(high_i r_i, low_i r_i), r_i = a_i.w - b_i, from NumPy arrays with low <= 0 <= high, or None.

    With rows of length one and bounds in proportion the dual is small,

        max -b.y   subject to   A^T y = 0,  low <= y <= high,

    and the multipliers of its d equations are w. Where y_i is strictly inside its bounds the residual is zero, so w is
    made exact by solving those equations: HiGHS alone stops near 1e-10.
    """
    try:
        from scipy.optimize import linprog
    except ImportError:
        return None
    size = np.linalg.norm(A, axis=1)
    used = np.maximum(high, -low) * size > 0
    if not used.any():
        return np.zeros(A.shape[1])
    A, b = A[used] / size[used, None], b[used] / size[used]
    low, high = (low * size)[used], (high * size)[used]
    # The tolerances of HiGHS are absolute, so let everything be of size one: columns, targets and costs.
    columns = np.linalg.norm(A, axis=0)
    columns[columns == 0] = 1.0
    unit = np.abs(b).max() or 1.0
    most = np.maximum(high, -low).max()
    A, b, low, high = A / columns, b / unit, low / most, high / most
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    bounds = np.stack([low, high], axis=1)
    found = linprog(b, A_eq=A.T, b_eq=np.zeros(A.shape[1]), bounds=bounds, method="highs", options=tight)
    if found.status != 0:
        return None
    w = found.eqlin.marginals
    inside = 1e-8 * (high - low) / 2
    exact = (found.x > low + inside) & (found.x < high - inside)
    polished = w + np.linalg.lstsq(A[exact], b[exact] - A[exact] @ w, rcond=None)[0]

    def total(v: Any) -> float:
        r = A @ v - b
        return float(np.maximum(high * r, low * r).sum())

    return unit / columns * min(w, polished, key=total)
