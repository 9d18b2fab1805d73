"""Rounds of FedPi in the metric of the mean Hessian over those in the identity, both with automatic eta, over the
random problems of `bench.eta`.

    python -m bench.metric                         # 64 problems of every kind, with Anderson 5: a minute
    python -m bench.metric 64 1000                 # those of the seeds 1000..1063
    python -m bench.metric 64 0 lasso              # of the kinds with this word in their names
    python -m bench.metric 64 0 lasso plain sampled

Until f - f* is 1e-6 of what it was at the start: for the first time, which may be by chance while models still move,
and for good, as far as twice as many rounds show.
"""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import numpy as np
import torch

import resolvent as rs
from bench.eta import KINDS, MODES, MOST, TARGET, drawn


def rounds(problem: Any, mode: str, metric: str) -> tuple[float, float]:
    """Until the target is reached for the first time, and for good."""
    target = TARGET * float(problem.gap(problem.weights.new_zeros(1, problem.dim))[0])
    first = settled = math.inf

    def seen(r: Any) -> bool:
        nonlocal first, settled
        below = bool(problem.gap(r.model)[0] <= target)
        first = min(first, r.number) if below else first
        settled = min(settled, r.number) if below else math.inf
        return bool(r.number >= 2 * settled + 5)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rs.solve(problem, rs.fedpi("auto"), MOST, stop=seen, metric=metric, every=MOST, progress=False, **MODES[mode])
    return first, settled


def ratio(ours: float, theirs: float) -> float:
    return ours / theirs if theirs < math.inf else 1.0 if ours == theirs else 0.0


def main(count: int, start: int, word: str, modes: list[str]) -> None:
    torch.set_num_threads(1)
    for kind in (name for name in KINDS if word in name and "deviations" not in name):
        problems = {seed: drawn(kind, seed) for seed in range(start, start + count)}
        for mode in modes:
            pairs = {
                seed: list(zip(rounds(problem, mode, "auto"), rounds(problem, mode, "identity"), strict=True))
                for seed, problem in problems.items()
                if problem is not None
            }
            print(f"{kind}, {mode}, {len(pairs)} problems", flush=True)
            for k, when in enumerate(("for the first time", "for good")):
                ratios = np.array([ratio(*pair[k]) for pair in pairs.values()])
                beyond = [f"{seed}: {p[k][0]:g} / {p[k][1]:g}" for seed, p in pairs.items() if ratio(*p[k]) > 1.5]
                print(
                    f"    {when:18} median {np.median(ratios):.2f}, worst {ratios.max():.2f}, "
                    f"more rounds in {np.sum(ratios > 1)}, over 1.5x in {len(beyond)}  {'  '.join(beyond)}",
                    flush=True,
                )


if __name__ == "__main__":
    given = [*sys.argv[1:], *["64", "0", "", "anderson"][len(sys.argv) - 1 :]]
    main(int(given[0]), int(given[1]), given[2], given[3:])
