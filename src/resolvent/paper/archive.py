"""Networks' runs at the paper's size as small files: they took a GPU, but their curves can be read and judged anywhere.

Two tables. `runs.tsv` has one row per run: what was asked, how it ended, how long it took, and on what. `curves.tsv`
has one row per recorded round.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent import config as configs
from resolvent.config import Config
from resolvent.paper.conduct import RunIndex, asked, plan
from resolvent.paper.figure import Figure, Panel
from resolvent.paper.judging import PAPER, JudgedPanel, judge, results_of
from resolvent.runs import ENDED, Folder, durable

if TYPE_CHECKING:
    import pandas as pd

RUNS, CURVES = "runs.tsv", "curves.tsv"
STORED_COLUMNS = ("value", "average_value", "validation_accuracy", "test_accuracy", "personal_test_accuracy")
"""The columns of a history that are stored, where it has them."""
ABOUT = ("status", "rounds", "seconds", "device", "torch", "date")
"""What is known of a run beside its settings: `rounds` that were done; `seconds`, more where runs shared a device."""
UNFINISHED = "unfinished"
Archive = dict[str, "pd.DataFrame"]
"""Histories by what was asked."""


def read(folder: Path) -> Archive:
    """The histories in a folder; none where there are no files."""
    import pandas as pd

    if not (folder / RUNS).is_file():
        return {}
    runs = pd.read_csv(folder / RUNS, sep="\t", quoting=csv.QUOTE_NONE, dtype={"torch": str})
    curves = dict(iter(pd.read_csv(folder / CURVES, sep="\t").groupby("run")))
    archive = {}
    for row in runs.to_dict("records"):
        frame = curves[row["run"]].drop(columns="run").dropna(axis=1, how="all").reset_index(drop=True)
        frame.attrs.update({name: row[name] for name in ABOUT}, settings=row["settings"])
        archive[asked(configs.read(json.loads(row["settings"])))] = frame
    return archive


def write(archive: Mapping[str, pd.DataFrame], folder: Path) -> Path:
    """Both tables, in an order that does not depend on when a run was made."""
    import pandas as pd

    columns = ["run", *ABOUT, "settings"]
    rows, curves = [], []
    for n, (_, frame) in enumerate(sorted(archive.items()), start=1):
        rows.append({"run": n} | {name: frame.attrs[name] for name in (*ABOUT, "settings")})
        curve = frame[["round", *(name for name in STORED_COLUMNS if name in frame)]].copy()
        curve.attrs = {}
        curve.insert(0, "run", n)
        curves.append(curve)
    with durable.storing(folder, "name another folder with --archive"):
        folder.mkdir(parents=True, exist_ok=True)
        drawn = pd.concat(curves) if curves else pd.DataFrame(columns=["run", "round", "value"])
        for name, table in ((RUNS, pd.DataFrame(rows, columns=columns)), (CURVES, drawn)):
            text = table.to_csv(sep="\t", index=False, float_format="%.7g", quoting=csv.QUOTE_NONE)
            durable.write(folder / name, text.encode(), durable.SHARED_FILE)
    return folder


def add(chosen: Iterable[tuple[Figure, Panel]], index: RunIndex, folder: Path) -> Path:
    """Put these panels' runs into the archive, unfinished ones marked so; what is there already stays."""
    archive = read(folder)
    stored = {asked(configs.read(run.config)): run for run in index.folders.values() if len(run.history())}
    for _, panel in chosen:
        for config in (config for line in panel.lines if panel.networks for config in index.plan(panel, line)):
            run = stored.get(asked(config))
            if run is not None and (run.status in ENDED or asked(config) not in archive):
                archive[asked(config)] = _shortened(run)
    return write(archive, folder)


def _shortened(run: Folder) -> pd.DataFrame:
    """A run's curve, with what is to be known of it."""
    frame, events = run.history(), run.events
    tree: dict[str, Any] = {name: part for name, part in run.config.items() if name != "store" and part}
    environment, device = run.about["environment"], tree["problem"]["device"]
    frame.attrs = {
        "status": run.status if run.status in ENDED else UNFINISHED,
        "rounds": int(frame["round"].iloc[-1]),
        "seconds": round(float(frame["seconds"].iloc[-1]), 1),
        "device": environment["gpu"] if device.startswith("cuda") else device,
        "torch": environment["packages"]["torch"],
        "date": datetime.fromisoformat(events[-1]["time"]).date().isoformat(),
        "settings": json.dumps(tree, sort_keys=True),
    }
    return frame


def panel_of(figure: Figure, panel: Panel, archive: Archive) -> JudgedPanel:
    """A panel at the paper's size, from as many seeds as there are.

    The paper's claims are judged where every line of the paper's is there, this library's where every line is. Runs
    that were not finished count as missing. Lines are compared on the same seeds, counted from 0 on.
    """
    seeds = {line.label: [_ended(archive, config) for config in plan(panel, line, PAPER)] for line in panel.lines}
    missing = sum(frame is None for frames in seeds.values() for frame in frames)
    leading = {  # the runs of seeds 0, 1, ... up to the first that is missing
        label: [frame for frame in takewhile(lambda frame: frame is not None, frames) if frame is not None]
        for label, frames in seeds.items()
    }
    for ours in (False, True):
        labels = [line.label for line in panel.lines if line.ours == ours]
        begun = [label for label in labels if any(frame is not None for frame in seeds[label])]
        shared = min((len(leading[x]) for x in begun if len(leading[x]) < len(seeds[x])), default=None)
        leading |= {label: leading[label][:shared] for label in begun}
    present = {label: frames for label, frames in leading.items() if frames}
    absent = [line for line in panel.lines if line.label not in present]
    claims = () if any(not line.ours for line in absent) else panel.claims
    part = replace(
        panel,
        lines=tuple(line for line in panel.lines if line.label in present),
        claims=tuple(claim for claim in claims if not (claim.ours and absent)),
    )
    if not present:
        return JudgedPanel(figure, part, None, missing=missing)
    return replace(judge(figure, results_of(part, present, PAPER)), missing=missing)


def _ended(archive: Archive, config: Config) -> pd.DataFrame | None:
    frame = archive.get(asked(config))
    return None if frame is None or frame.attrs["status"] == UNFINISHED else frame


def begun(panel: Panel, archive: Archive) -> dict[str, pd.DataFrame]:
    """The histories of lines whose run, of the first seed, was not finished."""
    first = {line.label: archive.get(asked(next(plan(panel, line, PAPER)))) for line in panel.lines}
    return {label: frame for label, frame in first.items() if frame is not None and frame.attrs["status"] == UNFINISHED}
