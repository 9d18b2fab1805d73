"""Tables of some runs: the summary, one row per curve, and their histories as files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resolvent.errors import InputError
from resolvent.installed import install
from resolvent.report.curves import Curve, apart_from_anderson
from resolvent.runs import Folder
from resolvent.runs.regular import strict as strict

if TYPE_CHECKING:
    import pandas as pd

CLOSE = 1e-6
NOTE = (
    "rounds to limit: until the gap to the run's own limit stays below 1e-6 of its initial value; "
    "empty where that was not reached or the run's end has not settled"
)


def summary(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """One row per curve: what it solves, how far it came (median, least and most over seeds) and how fast.

    `rounds_to_limit` counts until the distance to the limit is, and stays, within 1e-6 of the first one. The limit is
    zero for gaps of what solves the original problem, else where the curve or its accelerated sibling ended, whichever
    had come to rest more: the smaller residual decides, since a gap may lie below its limit on the way there. An end
    that has not settled is no limit, and there is no count.
    """
    siblings: dict[str, list[Curve]] = {}
    for curve in curves:
        siblings.setdefault(apart_from_anderson(curve.first), []).append(curve)
    limits = {key: _limit(min(those, key=_unrest)) for key, those in siblings.items()}
    return [_row(curve, limits[apart_from_anderson(curve.first)]) for curve in curves]


def remarks(run: Folder) -> list[str]:
    """What must be said of a federation's run beside why it ended: other units at a site, who never answered."""
    remark = str((run.end or {}).get("reason", "")).partition("; ")[2]
    return [remark] if run.federated and remark else []


def rows(runs: Sequence[Folder]) -> pd.DataFrame:
    """The rows of runs below each other, the run's id first."""
    import pandas as pd

    frame = pd.concat([run.history().assign(run=run.id) for run in runs], ignore_index=True)
    return frame[["run", *(name for name in frame if name != "run")]]


def encoded(frame: pd.DataFrame, kind: str) -> bytes:
    """The content of a file of this kind: csv, tsv or parquet."""
    if kind != "parquet":
        return frame.to_csv(index=False, sep="\t" if kind == "tsv" else ",").encode()
    try:
        return frame.to_parquet(index=False)
    except ImportError:
        raise InputError(f"Parquet needs pyarrow, which is not installed; {install('parquet')}") from None


def ranked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best first: by the final measure, in the median over seeds; what diverged or measured nothing comes last."""

    def place(row: dict[str, Any]) -> tuple[bool, float]:
        failed = "diverged" in row["status"] or math.isnan(row["final"])
        return failed, math.inf if math.isnan(row["final"]) else row["final"]

    return sorted(rows, key=place)


def best(rows: Sequence[dict[str, Any]]) -> str | None:
    """The first of ranked rows in words; None where none has a result, or they measure different things."""
    first = rows[0]
    if len({row["measure"] for row in rows}) > 1 or "diverged" in first["status"] or math.isnan(first["final"]):
        return None
    return f"{first['curve']} (final {first['measure']} {first['final']:.3g})"


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What people see of a summary: keys and headings. The spread is left out where there is none."""
    measures = {row["measure"] for row in rows}
    shown = {
        "curve": "curve",
        "solves": "solves",
        "rounds": "rounds",
        "seeds": "seeds",
        "final": f"final {measures.pop()}" if len(measures) == 1 else "final",
        "least": "least",
        "most": "most",
        "rounds_to_limit": "rounds to limit",
        "seconds": "seconds",
        "status": "status",
    }
    spread = any(row["seeds"] > 1 for row in rows)
    return {key: words for key, words in shown.items() if spread or key not in ("seeds", "least", "most")}


def measure(frame: pd.DataFrame) -> str:
    """The gap where it is known, else the value."""
    return "gap" if "gap" in frame and frame["gap"].notna().any() else "value"


def _row(curve: Curve, limit: float) -> dict[str, Any]:
    about, frames = curve.first.about, curve.frames
    explained, name = about["explanation"], measure(frames[0]) if frames else "value"
    finals = [_last(frame, name) for frame in frames] or [math.nan]
    rounds = [rounds_to(frame[name].tolist(), frame["round"].tolist(), limit) for frame in frames]
    reached = [n for n in rounds if n is not None]
    return {
        "curve": curve.label,
        "algorithm": about["title"],
        "anderson": curve.first.config["anderson"]["memory"],
        "eta": curve.first.config["scheme"].get("eta"),
        "solves": f"{'' if explained['exactly'] else 'about '}{explained['solves']}",
        "seeds": curve.seeds,
        "rounds": max((int(frame["round"].max()) for frame in frames), default=0),
        "measure": name,
        "final": _middle(finals),
        "least": min(finals),
        "most": max(finals),
        "rounds_to_limit": statistics.median(reached) if reached and len(reached) == len(frames) else None,
        "seconds": _middle([_last(frame, "seconds") for frame in frames]),
        "status": ", ".join(sorted({run.status for run in curve.runs})),
        "runs": [run.id for run in curve.runs],
    }


def rounds_to(values: Sequence[float], rounds: Sequence[int], limit: float) -> int | None:
    """The first round from which on the distance to the limit stays within 1e-6 of the first; None if it never does.

    A last round alone does not count: where the limit is taken from it, its distance is zero whatever came before.
    """
    distances = [abs(value - limit) for value in values]
    far = [k for k, distance in enumerate(distances) if not distance <= CLOSE * distances[0]]
    first = far[-1] + 1 if far else 0
    return rounds[first] if first + 1 < len(rounds) and math.isfinite(limit) else None


def _limit(curve: Curve) -> float:
    """Where a curve ends, as far as one can tell; infinity where one cannot."""
    explained = curve.first.about["explanation"]
    if (
        explained["solves"] == "original"
        and explained["exactly"]
        and all(measure(frame) == "gap" for frame in curve.frames)
    ):
        return 0.0
    final = _middle([_last(frame, measure(frame)) for frame in curve.frames])
    return final if all(_settled(frame[measure(frame)].tolist()) for frame in curve.frames) else math.inf


def _settled(values: Sequence[float]) -> bool:
    """Whether the last tenth moves by less than 1e-7 of the way from the first value to the last.

    What falls to 1e-6 at a steady rate in ten tenths falls to a quarter in each, and is then closer than that to its
    limit: the distances to the last value are those to the limit, to a tenth of 1e-6.
    """
    end = values[-1 - max(1, len(values) // 10) :]
    return max(end) - min(end) <= CLOSE / 10 * abs(values[0] - values[-1])


def _unrest(curve: Curve) -> float:
    """The residual at the end; infinity where there is none."""
    last = _middle([_last(frame, "residual") for frame in curve.frames])
    return math.inf if math.isnan(last) else last


def _last(frame: pd.DataFrame, name: str) -> float:
    return float(frame[name].iloc[-1]) if name in frame else math.nan


def _middle(values: Sequence[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median(numbers) if numbers else math.nan
