"""The summary of some runs: a row a curve."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resolvent.report.curves import Curve, apart_from_anderson

if TYPE_CHECKING:
    import pandas as pd

CLOSE = 1e-6


def summary(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """A row a curve: what it solves, how far it came (median, least and most over seeds) and how fast.

    `rounds_to_limit` counts until the distance to the limit is, and stays, within 1e-6 of the first one. The limit is
    that of the curve or of its accelerated sibling, whichever came further.
    """
    limits: dict[str, float] = {}
    for curve in curves:
        key = apart_from_anderson(curve.first)
        final = _middle([_last(frame, measure(frame)) for frame in curve.frames])
        limits[key] = min(final, limits.get(key, math.inf))
    return [_row(curve, limits[apart_from_anderson(curve.first)]) for curve in curves]


def measure(frame: pd.DataFrame) -> str:
    """The gap where it is known, else the value."""
    return "gap" if "gap" in frame and frame["gap"].notna().any() else "value"


def _row(curve: Curve, limit: float) -> dict[str, Any]:
    about, frames = curve.first.about, curve.frames
    said, name = about["explanation"], measure(frames[0])
    finals = [_last(frame, name) for frame in frames]
    rounds = [rounds_to(frame[name].tolist(), frame["round"].tolist(), limit) for frame in frames if len(frame)]
    reached = [n for n in rounds if n is not None]
    return {
        "curve": curve.label,
        "algorithm": about["title"],
        "anderson": curve.first.config["anderson"]["memory"],
        "eta": curve.first.config["scheme"].get("eta"),
        "solves": f"{'' if said['exactly'] else 'about '}{said['solves']}",
        "seeds": len(curve.runs),
        "rounds": max((int(frame["round"].max()) for frame in frames if len(frame)), default=0),
        "measure": name,
        "final": _middle(finals),
        "least": min(finals),
        "most": max(finals),
        "rounds_to_limit": statistics.median(reached) if len(reached) == len(frames) else None,
        "seconds": _middle([_last(frame, "seconds") for frame in frames]),
        "status": ", ".join(sorted({run.status for run in curve.runs})),
        "runs": [run.id for run in curve.runs],
    }


def rounds_to(values: Sequence[float], rounds: Sequence[int], limit: float) -> int | None:
    """The first round from which on the distance to the limit stays within 1e-6 of the first; None if it never does."""
    distances = [abs(value - limit) for value in values]
    far = [k for k, distance in enumerate(distances) if not distance <= CLOSE * distances[0]]
    if far and far[-1] + 1 == len(rounds):
        return None
    return rounds[far[-1] + 1] if far else rounds[0]


def _last(frame: pd.DataFrame, name: str) -> float:
    return float(frame[name].iloc[-1]) if len(frame) and name in frame else math.nan


def _middle(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan
