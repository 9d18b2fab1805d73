"""Commands that look at runs: ls, show, report, export, doctor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from resolvent import runs
from resolvent.cli import output
from resolvent.cli.arguments import RUNS, Form, Out, RunName, run_names, sound
from resolvent.cli.output import Format, say
from resolvent.errors import DamagedRun, InputError, StorageError
from resolvent.installed import install
from resolvent.iteration.metric_names import of_reported
from resolvent.runs import Folder, checkpoints, regular
from resolvent.runs.environment import environment
from resolvent.runs.folder import Made, model_of, reading, together

RunNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]...", help="Runs; without any, all under --out.", autocompletion=run_names),
]


NOT_HELD_OUT = "no rows were held out; add --test 0.2 to the command that made the run"


def ls(out: Out = RUNS, form: Form = Format.table) -> None:
    """List the runs; those whose files were damaged or changed are listed as damaged."""
    there = [line for run in runs.folders(out) if (line := _listed(run)) is not None]
    if not there and form is Format.table:
        say(f"there are no runs in {out}/; begin one with `resolvent run least-squares`")
    columns = {key: key for key in (there[0] if there else {}) if key != "damage"}
    output.rows(there, form, columns=columns)
    if form is Format.table:
        say(*(line["damage"] for line in there if line["damage"]))


def show(name: RunName, out: Out = RUNS, form: Form = Format.table) -> None:
    """Show one run: its configuration, how far it came, what it solves, what happened."""
    run = sound(runs.find(name, out))
    say(*run.log[1])
    with reading(run):
        _show(run, form)


def _show(run: Folder, form: Format) -> None:
    if form is not Format.table:
        about = {"status": run.status, "last": run.row() or None, "config": run.config, "events": run.events}
        output.pairs(run.about | about, form)
        return
    output.pairs(_line(run), form)
    output.write("\n" + output.escaped(run.about["explanation"]["words"]) + "\n")
    output.write(output.escaped(run.toml))
    output.rows([{"time": e["time"], "event": e["kind"], "about": _about(e)} for e in run.events], form)


def report(
    names: RunNames = None,
    out: Out = RUNS,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help=".html, .png or .svg.")] = None,
    title: Annotated[str, typer.Option(help="What the page is called.")] = "Runs",
    threshold: Annotated[
        float,
        typer.Option(
            metavar="P", help="Of a table's model: the probability from which on a row is taken for the second class."
        ),
    ] = 0.5,
    form: Form = Format.table,
) -> None:
    """Draw runs: a table, and one self-contained HTML page (or a picture, by the file's suffix).

    The page of one run on a table is about its model: how well it predicts, its coefficients, how surely it was solved.
    """

    if not 0 < threshold < 1:
        raise InputError(f"--threshold is {threshold}, but a probability above 0 and below 1 is needed")

    chosen = _chosen(names, out)
    path = to or out / "report.html"
    if path.suffix not in (".html", ".png", ".svg"):
        raise InputError(f"--to is {path}, but a file that ends in .html, .png or .svg is needed")

    def made(chosen: Sequence[Folder]) -> Path:
        return _report(chosen, path, title, threshold, form)

    say(f"{_of_those_that_fit(chosen, made, bool(names))[0]}: the report")


def _report(chosen: Sequence[Folder], path: Path, title: str, threshold: float, form: Format) -> Path:
    from resolvent import report as reports

    problems = reports.by_problem(chosen)
    tables = {name: reports.summary(curves) for name, curves in problems.items()}
    if path.suffix != ".html" and len(problems) > 1:
        raise InputError(
            f"--to is {path}, but a picture shows one problem and these are {len(problems)}: {'; '.join(problems)}; "
            "name runs of one of them, or a file that ends in .html"
        )
    if path.suffix == ".html":
        alone = _model_page(chosen[0], path, title, threshold) if len(chosen) == 1 else None
        made = alone or reports.page(problems, path, title)
    else:
        made = reports.draw(next(iter(problems.values())), path, title)
    if form is Format.table:
        for name, rows in tables.items():
            output.rows(rows, form, title if len(problems) == 1 else name, reports.columns(rows), reports.NOTE)
    else:
        output.rows([row for rows in tables.values() for row in rows], form)
    return made


def export(
    names: RunNames = None,
    to: Annotated[Path, typer.Option("--to", metavar="FILE|FORM", help=".csv, .tsv, .parquet, .json: metrics; "
                                     ".safetensors, .pt, .onnx, .npz: a run's model; or safetensors, pt, onnx, npz, "
                                     "json alone: the model in a file named after its run.")] = Path("metrics.csv"),
    out: Out = RUNS,
    form: Form = Format.table,
) -> None:  # fmt: skip
    """Write the metrics of runs, or a run's model with all that it needs to predict, into one file."""
    from resolvent.experiment.exporting import FORMS

    chosen = _chosen(names, out)
    model = to.suffix.removeprefix(".") in {*FORMS} - {"json"}  # a .json file holds metrics
    if str(to) in FORMS:
        _one(chosen, to)
        to, model = Path(f"{chosen[0].id}.{to}"), True
    part = to.with_name(f".{to.name}.part{to.suffix}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        content, chosen = _of_those_that_fit(
            chosen, lambda these: (_model if model else _metrics)(these, to), bool(names)
        )
        part.write_bytes(content)
        part.replace(to)
    except OSError as error:
        raise StorageError(f"{to} cannot be written ({error.strerror or error}); name another file with --to") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    if form is Format.table:
        say(f"{to}: {len(chosen)} {'run' if len(chosen) == 1 else 'runs'}")
    else:
        output.pairs({"file": str(to), "runs": [run.id for run in chosen]}, form)


def doctor(out: Out = RUNS, form: Form = Format.table) -> int:
    """Check this machine: versions, optional packages, whether runs can be written, and a small problem's answer."""
    checks = [*_packages(), _writable(out), _answer()]
    about = environment()
    rows = [{"what": key, "found": str(about[key]), "fine": True} for key in ("python", "processor", "cores", "gpu")]
    output.rows(rows + checks, form)
    bad = [row for row in checks if not row["fine"]]
    if bad:
        say(*(f"{row['what']}: {row['found']}" for row in bad))
    return 1 if bad else 0


# --- what they are made of -------------------------------------------------------------------------------------------


def _listed(run: Folder) -> dict[str, Any] | None:
    """A run's line, damaged or not; None if another process has deleted it just now."""
    wrong = run.damage()
    if not wrong:
        try:
            return _line(run)
        except (InputError, OSError, *regular.UNFIT) as error:
            wrong = [str(error)]
    if not run.path.is_dir():
        return None
    line: dict[str, Any] = dict.fromkeys(("run", "status", "round", "eta", "anderson", "gap", "value", "created"))
    about = {"run": run.id, "status": "damaged", "damage": str(runs.damaged(run, wrong))}
    return line | about


def _line(run: Folder) -> dict[str, Any]:
    last, config = of_reported(run.row()), run.config
    return {
        "run": run.id,
        "status": run.status,
        "round": f"{int(last.get('round', 0))}/{config['run']['rounds']}",
        "eta": config["scheme"].get("eta"),
        "anderson": config["anderson"]["memory"],
        "gap": float(last.get("gap", float("nan"))),
        "value": float(last.get("value", float("nan"))),
        "created": run.about["created"][:19].replace("T", " "),
        "damage": None,
    }


def _chosen(names: list[str] | None, out: Path) -> list[Folder]:
    """The runs that were named, each of which must be sound, or all sound ones."""
    if names:
        return [sound(runs.find(name, out)) for name in names]
    chosen, complaints = runs.sound(out)
    say(*(f"left out: {words}" for words in complaints))
    if not chosen:
        raise InputError(
            f"there are no runs in {out}/; begin one with `resolvent run`, or name their folder with --out"
        )
    return chosen


def _of_those_that_fit(
    chosen: list[Folder], read: Callable[[Sequence[Folder]], Made], named: bool
) -> tuple[Made, list[Folder]]:
    """What is made of some runs, and of which: one whose files do not fit together is left out, unless it was named."""
    while True:
        try:
            return together(chosen, read), chosen
        except DamagedRun as error:
            chosen = [run for run in chosen if run.path != error.run]
            if named or not chosen:
                raise
            say(f"left out: {error}")


def _about(event: Mapping[str, Any]) -> str | None:
    """To whom it happened, and why."""
    said = [event.get("user"), event.get("reason", event.get("words"))]
    return ": ".join(part for part in said if part) or None


def _model_page(run: Folder, path: Path, title: str, threshold: float) -> Path | None:
    """The page about a table's model, whose held-out rows are read again if they are here; None where it has none."""
    from resolvent import config as configs
    from resolvent import report as reports
    from resolvent.cli.model_page import model_page
    from resolvent.config.problem_sections import TableSection
    from resolvent.experiment import opening, tasks

    described, newest = opening.description(run), run.newest()[0]
    if newest is None or described.preparation is None or described.predictor is None:
        return None
    section = None if run.from_python else configs.read(run.config).problem
    test: Any = "the rows that were held out are not here"
    file = ""
    if isinstance(section, TableSection):
        file = f" from {Path(section.data).name}"
        try:
            test = tasks.task(section, run.config["run"]["seed"]).test or NOT_HELD_OUT
        except InputError as error:  # the table is elsewhere, or another one
            test = f"the rows that were held out cannot be read again ({error})"
    title = f"{described.preparation.target.name}{file}" if title == "Runs" else title
    (curve,) = reports.curves([run])
    return model_page(curve, described, model_of(newest.state), test, path, title, threshold)


def _metrics(chosen: Sequence[Folder], to: Path) -> bytes:
    """The rows of runs, as a file of this suffix."""
    from resolvent.report import tables

    if to.suffix == ".json":
        return output.as_json(tables.rows(chosen).to_dict("records")).encode()
    if to.suffix in (".csv", ".tsv", ".parquet"):
        return tables.encoded(tables.rows(chosen), to.suffix[1:])
    raise InputError(f"--to is {to}, but .csv, .tsv, .json, .parquet, .npz, .safetensors, .pt or .onnx is needed")


def _one(chosen: Sequence[Folder], to: Path) -> Folder:
    if len(chosen) != 1:
        raise InputError(f"--to {to} takes one run's model, but {len(chosen)} runs were named; name one")
    return chosen[0]


def _model(chosen: Sequence[Folder], to: Path) -> bytes:
    """A run's model, as a file of this suffix; where the last checkpoint is damaged, that is said."""
    from resolvent.experiment import exporting, opening

    run = _one(chosen, to)
    newest, complaints = run.newest()
    if newest is None:
        damaged = f": {complaints[0]}" if complaints else ""
        raise InputError(f"run {run.id} has no model yet{damaged}; `{run.resuming}` goes on with it")
    say(*(f"{words}: the model is that of round {newest.round}" for words in complaints))
    end = run.end
    if (
        not complaints
        and end is not None
        and end.get("checkpoint") not in (None, checkpoints.newest_name(run.checkpoints))
    ):
        say(f"checkpoint {end['checkpoint']} is missing: the model is that of round {newest.round}")
    described, state = opening.description(run), newest.state
    return exporting.encode(to.suffix.removeprefix("."), described, model_of(state), state.memory)


def _packages() -> list[dict[str, Any]]:
    from importlib import metadata

    rows = []
    for name, why in (("torch", ""), ("numpy", ""), ("scipy", ""), ("pandas", ""), ("safetensors", ""),
                      ("matplotlib", "plot"), ("plotly", "plot"), ("pyarrow", "parquet"),
                      ("tensorboard", "tensorboard")):  # fmt: skip
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = f"not installed; {install(why)}" if why else "missing"
        rows.append({"what": name, "found": version, "fine": bool(why) or version != "missing"})
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


COMMANDS: dict[Callable[..., Any], tuple[str, ...]] = {
    ls: (
        "resolvent ls",
        "resolvent ls --format json",
    ),
    show: (
        "resolvent show 1f2e",
        "resolvent show runs/fedpi-least-squares-20260101-120000-1f2e --format json",
    ),
    report: (
        "resolvent report",
        "resolvent report 1f2e 77ab --to picture.svg",
    ),
    export: (
        "resolvent export --to metrics.parquet",
        "resolvent export 1f2e --to model.safetensors",
        "resolvent export 1f2e --to onnx",
    ),
    doctor: ("resolvent doctor --format json",),
}
