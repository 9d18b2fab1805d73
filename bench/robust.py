"""One user of nine sends garbage: where the mean and the robust meetings take the model.

    python -m bench.robust                            # a table
    python -m bench.robust docs/images/robust.png     # and the picture of docs/participation.md

FedPi on least squares over users whose own solutions differ. Distances are to the solution of the eight honest users,
relative to its length. Solid: user 0 answers 1e6 in every coordinate. Dashed: everybody is honest, so that a robust
meeting shows what it costs.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import resolvent as rs
from resolvent.local.bound import Plain
from resolvent.report.figures import save, sheet

GARBAGE, ROUNDS, ETA = 1e6, 60, 0.05
MEETINGS: dict[str, tuple[Any, str]] = {
    "the mean": (None, "#D55E00"),
    "TrimmedMean(0.2)": (rs.TrimmedMean(0.2), "#0072B2"),
    "CoordinateMedian()": (rs.CoordinateMedian(), "#009E73"),
    "GeometricMedian()": (rs.GeometricMedian(), "#CC79A7"),
}


@dataclass(frozen=True)
class OneSendsGarbage:
    """The prox; but user 0 answers garbage."""

    needs = frozenset({"prox"})
    forward, certifies = False, None

    def bind(self, problem: Any, steady: bool) -> Any:
        def answer(part: Any, ask: Any, u: Tensor) -> Tensor:
            p: Tensor = part.prox(u, ask.eta)
            users = range(len(p)) if ask.names is None else ask.names.tolist()
            p[[i for i, user in enumerate(users) if user == 0]] = GARBAGE
            return p

        return Plain(problem, answer)


def squares(seed: int, users: int = 9, dim: int = 4, dtype: Any = np.float64, shift: float = 0.0) -> rs.LeastSquares:
    """Users with the same solution but for noise, or each with one of its own, so far from the common one."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((users, 12, dim))
    b = A @ rng.standard_normal(dim) + 0.3 * rng.standard_normal((users, 12))
    if shift:
        b = b + np.einsum("urd,ud->ur", A, shift * rng.standard_normal((users, dim)))
    return rs.LeastSquares(A.astype(dtype), b.astype(dtype))


def distances() -> dict[tuple[str, bool], list[float]]:
    """By meeting, and whether user 0 sends garbage: relative distances to what the honest users want, by round."""
    problem = squares(0, shift=0.3)
    honest = problem.take(torch.arange(1, 9)).minimiser
    found = {}
    for name, (meet, _) in MEETINGS.items():
        for bad in (True, False):
            seen: list[float] = []

            def look(happened: rs.Round, to: list[float] = seen) -> None:
                to.append(float((happened.model[0] - honest).norm() / honest.norm()))

            scheme = rs.fedpi(ETA, local=OneSendsGarbage()) if bad else rs.fedpi(ETA)
            at = problem if bad else problem.take(torch.arange(1, 9))
            rs.solve(at, scheme, ROUNDS, meet=meet, callback=look, progress=False)
            found[name, bad] = seen
    return found


def draw(found: dict[tuple[str, bool], list[float]], path: Path) -> Path:
    figure, (axis,) = sheet(size=(7.6, 3.6))
    for name, (_, colour) in MEETINGS.items():
        for bad, style in ((True, "-"), (False, "--")):
            label = name if bad else None
            axis.semilogy(range(1, ROUNDS + 1), found[name, bad], style, color=colour, lw=1.7, label=label)
    axis.set(xlabel="round", ylabel="distance to the honest solution", ylim=(1e-6, None))
    axis.grid(alpha=0.25)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return save(figure, path)


def main(path: str | None = None) -> None:
    """Print the last distances, and draw all."""
    warnings.simplefilter("ignore", rs.ResolventWarning)
    found = distances()
    for name in MEETINGS:
        print(f"{name:20} one sends garbage {found[name, True][-1]:9.3g}    all honest {found[name, False][-1]:9.3g}")
    if path is not None:
        draw(found, Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:2])
