"""Commands that look at runs: ls, show, report, export, doctor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from resolvent import report as reports
from resolvent import runs
from resolvent.cli import output
from resolvent.cli.output import Format, say
from resolvent.cli.running import RUNS, Form, Out, RunName, run_names
from resolvent.errors import InputError, StorageError
from resolvent.runs import Folder
from resolvent.runs.environment import environment

RunNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]...", help="Runs; without any, all under --out.", autocompletion=run_names),
]


def ls(out: Out = RUNS, form: Form = Format.table) -> None:
    """List the runs."""
    there = runs.folders(out)
    if not there and form is Format.table:
        say(f"there are no runs in {out}/; begin one with `resolvent run least-squares`")
    output.rows([_line(run) for run in there], form)


def show(name: RunName, out: Out = RUNS, form: Form = Format.table) -> None:
    """Show one run: its configuration, how far it came, what it solves, what happened."""
    run = runs.find(name, out)
    if form is not Format.table:
        about = {"status": run.status, "last": run.row() or None, "config": run.config, "events": run.events}
        output.pairs(run.about | about, form)
        return
    output.pairs(_line(run), form)
    output.write("\n" + run.about["explanation"]["words"] + "\n")
    output.write((run.path / "config.toml").read_text(encoding="utf-8"))
    output.rows(
        [{"time": e["time"], "event": e["kind"], "about": e.get("reason", e.get("words"))} for e in run.events], form
    )


def report(
    names: RunNames = None,
    out: Out = RUNS,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help=".html, .png or .svg.")] = None,
    title: Annotated[str, typer.Option(help="What the page is called.")] = "Runs",
    form: Form = Format.table,
) -> None:
    """Draw runs: a table, and one self-contained HTML page (or a picture, by the file's suffix)."""
    chosen = _chosen(names, out)
    path = to or out / "report.html"
    if path.suffix not in (".html", ".png", ".svg"):
        raise InputError(f"--to is {path}, but a file that ends in .html, .png or .svg is needed")
    curves = reports.curves(chosen)
    rows = reports.summary(curves)
    output.rows(rows, form, title, reports.columns(rows), reports.NOTE)
    made = reports.page(curves, path, title) if path.suffix == ".html" else reports.draw(curves, path, title)
    say(f"{made}: the report")


def export(
    names: RunNames = None,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help=".csv, .tsv, .parquet, .json: metrics; .npz, "
                                     ".safetensors: a run's model.")] = Path("metrics.csv"),
    out: Out = RUNS,
    form: Form = Format.table,
) -> None:  # fmt: skip
    """Write the metrics of runs, or a run's model, into one file."""
    chosen = _chosen(names, out)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if to.suffix in (".npz", ".safetensors"):
            _export_model(chosen, to)
        else:
            _export_metrics(chosen, to)
    except OSError as error:
        raise StorageError(f"{to} cannot be written ({error.strerror or error}); name another file with --to") from None
    if form is Format.table:
        say(f"{to}: {len(chosen)} {'run' if len(chosen) == 1 else 'runs'}")
    else:
        output.pairs({"file": str(to), "runs": [run.id for run in chosen]}, form)


def doctor(out: Out = RUNS, form: Form = Format.table) -> int:
    """Check this machine: versions, optional packages, whether runs can be written, and a small problem's answer."""
    found = [*_packages(), _writable(out), _answer()]
    about = environment()
    rows = [{"what": key, "found": str(about[key]), "fine": True} for key in ("python", "processor", "cores", "gpu")]
    output.rows(rows + found, form)
    bad = [row for row in found if not row["fine"]]
    if bad:
        say(*(f"{row['what']}: {row['found']}" for row in bad))
    return 1 if bad else 0


# --- what they are made of -------------------------------------------------------------------------------------------


def _line(run: Folder) -> dict[str, Any]:
    last, config = run.row(), run.config
    return {
        "run": run.id,
        "status": run.status,
        "round": f"{int(last.get('round', 0))}/{config['run']['rounds']}",
        "eta": config["scheme"].get("eta"),
        "anderson": config["anderson"]["memory"],
        "gap": float(last.get("gap", float("nan"))),
        "value": float(last.get("value", float("nan"))),
        "created": run.about["created"][:19].replace("T", " "),
    }


def _chosen(names: list[str] | None, out: Path) -> list[Folder]:
    chosen = [runs.find(name, out) for name in names] if names else runs.folders(out)
    if not chosen:
        raise InputError(
            f"there are no runs in {out}/; begin one with `resolvent run`, or name their folder with --out"
        )
    return chosen


def _export_metrics(chosen: list[Folder], to: Path) -> None:
    import pandas as pd

    frames = [run.history().assign(run=run.id) for run in chosen]
    frame = pd.concat(frames, ignore_index=True)
    frame = frame[["run", *(name for name in frame if name != "run")]]
    if to.suffix == ".csv":
        frame.to_csv(to, index=False)
    elif to.suffix == ".tsv":
        frame.to_csv(to, index=False, sep="\t")
    elif to.suffix == ".json":
        to.write_text(output.as_json(frame.to_dict("records")))
    elif to.suffix == ".parquet":
        try:
            frame.to_parquet(to, index=False)
        except ImportError:
            raise InputError(
                "Parquet needs pyarrow, which is not installed; pip install 'resolvent[parquet]'"
            ) from None
    else:
        raise InputError(f"--to is {to}, but .csv, .tsv, .json, .parquet, .npz or .safetensors is needed")


def _export_model(chosen: list[Folder], to: Path) -> None:
    import numpy as np

    if len(chosen) != 1:
        raise InputError(f"--to {to} takes one run's model, but {len(chosen)} runs were named; name one")
    model = chosen[0].model()
    if model is None:
        raise InputError(f"run {chosen[0].id} has no model yet; `resolvent resume {chosen[0].id}` goes on with it")
    if to.suffix == ".npz":
        np.savez(to, model=model.numpy())
        return
    from safetensors.torch import save_file

    save_file({"model": model.clone()}, to)


def _packages() -> list[dict[str, Any]]:
    from importlib import metadata

    rows = []
    for name, why in (("torch", ""), ("numpy", ""), ("scipy", ""), ("pandas", ""), ("safetensors", ""),
                      ("matplotlib", "plot"), ("plotly", "plot"), ("pyarrow", "parquet"),
                      ("tensorboard", "tensorboard")):  # fmt: skip
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = f"not installed; pip install 'resolvent[{why}]'" if why else "missing"
        rows.append({"what": name, "found": found, "fine": bool(why) or found != "missing"})
    return rows


def _writable(out: Path) -> dict[str, Any]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".doctor").write_text("")
        (out / ".doctor").unlink()
        return {"what": "runs", "found": f"{out}/ can be written", "fine": True}
    except OSError as error:
        return {"what": "runs", "found": f"{out}/ cannot be written ({error.strerror})", "fine": False}


def _answer() -> dict[str, Any]:
    import resolvent as rs

    run = rs.solve(rs.make_least_squares(users=3, dim=5, rows=20), rs.fedpi(eta="auto"), rounds=60, progress=False)
    gap = float(run.history["gap"].iloc[-1])
    return {"what": "a small problem", "found": f"gap {gap:.1e}, less than 1e-20 is right", "fine": gap < 1e-20}


COMMANDS: dict[Callable[..., Any], str] = {
    ls: """Examples:

        resolvent ls

        resolvent ls --format json""",
    show: """Examples:

        resolvent show 1f2e

        resolvent show runs/fedpi-least-squares-20260101-120000-1f2e --format json""",
    report: """Examples:

        resolvent report

        resolvent report 1f2e 77ab --to picture.svg""",
    export: """Examples:

        resolvent export --to metrics.parquet

        resolvent export 1f2e --to model.safetensors""",
    doctor: """Examples:

        resolvent doctor --format json""",
}
