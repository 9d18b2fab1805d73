"""Runs of several names over several seeds as a table: means and standard deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resolvent.report.curves import reported, with_bytes
from resolvent.report.plotting import columns_shown, image

if TYPE_CHECKING:
    import pandas as pd


def table(runs: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """One row per name: mean and standard deviation over its runs of what the last rows of their histories say."""
    import pandas as pd

    frames = {name: [with_bytes(reported(run.history)) for run in those] for name, those in runs.items()}
    columns = columns_shown([frame for those in frames.values() for frame in those], every=True)
    columns += ["bytes", "seconds"]
    rows = {}
    for name, those in frames.items():
        last = pd.DataFrame([dict(frame.iloc[-1]) if len(frame) else {} for frame in those])
        last = last.reindex(columns=columns).astype(float)
        spread = {"mean": last.mean(skipna=False), "std": last.std(skipna=False)}
        row = {(column, kind): spread[kind][column] for column in columns for kind in spread}
        rows[name] = {("seeds", ""): len(those), **row, ("status", ""): _status([run.status for run in runs[name]])}
    return pd.DataFrame.from_dict(rows, orient="index")


def html(compared: Any) -> str:
    """What a notebook shows of a comparison: its table, and its curves."""
    numbers = compared.table.to_html(float_format="{:.3g}".format, border=0)
    return f"<div>{numbers}{image(compared.runs, 'curves of the runs')}</div>"


def _status(ended: Sequence[str]) -> str:
    """How runs ended: "finished", or "2 finished, 1 diverged"."""
    counted = {status: ended.count(status) for status in ended}
    return ended[0] if len(counted) == 1 else ", ".join(f"{many} {status}" for status, many in counted.items())
