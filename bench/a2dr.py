"""A2DR for consensus, the plain published algorithm (Fu, Zhang and Boyd, "Anderson accelerated Douglas-Rachford
splitting", SIAM Journal on Scientific Computing, 2020), with its default parameters.

Douglas-Rachford splitting moves v (users, d) by the projection of 2 x - v onto consensus, which is the mean, less
x = prox_t f(v). Anderson acceleration of type II extrapolates v, with the paper's regularisation and safeguard. Its
preconditioning has nothing to do here: the equations of consensus are balanced as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MEMORY, RIDGE = 10, 1e-8
SLACK, EPS, REST = 1e6, 1e-6, 10
"""D, epsilon and R of its safeguard."""


def a2dr(prox: Callable[[Floats], Floats], v: Floats) -> Iterator[Floats]:
    """The consensus (d,) after every round; `prox` takes the rows of v to the users' answers."""
    past: list[tuple[Floats, Floats]] = []
    first, taken, since, checked = np.nan, 0, 0, False
    while True:
        x = prox(v)
        mean = (2 * x - v).mean(0)
        plain = v + mean - x
        yield mean
        past = [*past, (v, plain)][-MEMORY - 1 :]
        size = float(np.linalg.norm(v - plain))
        first = size if np.isnan(first) else first
        v = plain
        if len(past) == 1:
            continue
        if checked and since < REST:
            v, taken, since = _extrapolated(past), taken + 1, since + 1
        elif size <= SLACK * first * (taken / REST + 1) ** -(1 + EPS):
            v, taken, since, checked = _extrapolated(past), taken + 1, 1, True
        else:
            checked = False


def _extrapolated(past: list[tuple[Floats, Floats]]) -> Floats:
    """sum_j alpha_j T v_j, with the weights that make sum_j alpha_j (v_j - T v_j) small."""
    points = np.stack([v.ravel() for v, _ in past])
    residuals = np.stack([(v - Tv).ravel() for v, Tv in past])
    S, Y = np.diff(points, axis=0), np.diff(residuals, axis=0)
    ridge = RIDGE * (np.square(S).sum() + np.square(Y).sum())
    gamma = np.linalg.solve(Y @ Y.T + ridge * np.eye(len(Y)), Y @ residuals[-1])
    alpha = np.diff(np.concatenate([[0.0], gamma, [1.0]]))
    return np.asarray(np.tensordot(alpha, np.stack([Tv for _, Tv in past]), 1))
