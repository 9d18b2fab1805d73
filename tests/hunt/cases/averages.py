"""Averages of models against sums by hand, with rounds in which nobody comes."""

from __future__ import annotations

from typing import Any

import numpy as np

import resolvent as rs
from hunt.family import Family
from resolvent.iteration.table import named


def averages(seed: int) -> str:
    """sum eta_t w_t / sum eta_t over the rounds somebody came to; "suffix": from the last round 1, 2, 4, 8, ... on."""
    rng = np.random.default_rng(seed)
    m, d, rounds = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 40))
    problem = rs.Quadratics(10 ** rng.uniform(-1, 1, m), rng.standard_normal((m, d)))
    masks = rng.random((rounds, m)) < rng.uniform(0.1, 0.9)
    absent: Any = str(rng.choice(["hold", "paper"]))
    who = rs.Trace(masks, absent)
    eta = [rs.schedules.constant(0.3), rs.schedules.harmonic(2.0)][int(rng.integers(2))]
    kind = str(rng.choice(["ergodic", "suffix"]))
    models: list[np.ndarray] = []
    scheme = named(str(rng.choice(["fedprox", "fedpi", "fedrp"])), eta)
    run = rs.solve(
        problem,
        scheme,
        rounds=rounds,
        average=kind,
        participation=who,
        start=rng.standard_normal(d),
        callback=lambda r: models.append(r.model[0].numpy()),
    )
    table: Any = run.history
    for row, last in zip(table.itertuples(), range(1, rounds + 1), strict=True):
        came = [t for t in range(last) if masks[t].any()]
        begun = 0 if kind == "ergodic" else 2 ** int(np.log2(last)) - 1
        counted = [t for t in came if t >= begun] or _before(came, begun)
        if not counted:
            continue
        weights = np.array([eta(t) for t in counted])
        mean = weights @ np.array([models[t] for t in counted]) / weights.sum()
        value = sum(
            c / 2 * ((mean - x) ** 2).sum() / m
            for c, x in zip(problem.curvature.numpy(), problem.centre.numpy(), strict=True)
        )
        assert np.isclose(row.average_value, value, rtol=1e-9, atol=1e-12), (
            f"{kind}, round {last}: {masks.any(1)[:last]}"  # type: ignore[index]
        )
    return "right"


def _before(came: list[int], begun: int) -> list[int]:
    """Nobody has come since the restart: the average is still that of before it."""
    while begun > 0:
        begun = (begun + 1) // 2 - 1
        counted = [t for t in came if t >= begun]
        if counted:
            return counted
    return came


FAMILIES = [Family("averages", averages, few=30, many=600)]
