# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""A local step of some users on a CPU, in one pass.

This module needs Numba, as `cpu_loops` does. Code that is cached on disk is used until this file changes: after a
change of `compiled`, delete it (`__pycache__/step_loop*.nb*`).
"""

from __future__ import annotations

from resolvent.networks.stacked.cpu_loops import compiled


@compiled()  # no product is fused with a sum: the same bits as by torch's operations
def step(x, g, v, u, lr, momentum, eta, moves, first, last):
    """x <- x - lr v with v <- momentum v + g + (x - u) / eta, in place, for users first to last that move.

    v, u and moves may be None; u has a row for each user, or one for all of them.
    """
    for i in range(first, last):
        if moves is not None and not moves[i]:
            continue
        for j in range(x.shape[1]):
            s = g[i, j]
            if u is not None:
                s = s + (x[i, j] - u[i if len(u) > 1 else 0, j]) / eta
            if v is not None:
                s = momentum * v[i, j] + s
                v[i, j] = s
            x[i, j] = x[i, j] - lr * s
