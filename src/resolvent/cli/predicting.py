"""The command that uses a model: what a stored run says of new rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resolvent import data, runs
from resolvent.cli import output
from resolvent.cli.arguments import RUNS, Form, RunName
from resolvent.cli.output import Format, say
from resolvent.errors import InputError, StorageError
from resolvent.runs.folder import reading

if TYPE_CHECKING:
    import pandas as pd

ENCODED = ("csv", "tsv", "parquet")


def predict(
    name: RunName,
    file: Annotated[Path, typer.Argument(metavar="NEW", help="Rows as in training, by the names of their columns; for "
                                         "a network an .npz file with an array x.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help=".csv, .tsv, .parquet or .json; else they "
                                             "are printed.")] = None,
    folder: Annotated[Path, typer.Option("--runs", metavar="DIR", help="The folder of runs.")] = RUNS,
    form: Form = Format.table,
) -> None:  # fmt: skip
    """Predict new rows by a run's model: a label or number per row, and the probability of each class."""
    import resolvent as rs

    if out is not None and out.suffix[1:] not in (*ENCODED, "json"):
        raise InputError(f"--out is {out}, but a file that ends in .csv, .tsv, .parquet or .json is needed")
    stored = runs.find(name, folder)
    run = rs.open(stored.path)
    rows = _rows(file, run.description)
    with reading(stored):
        frame = _predicted(run, rows)
        _score(run, rows)
    if out is None:
        lines: list[Any] = frame.to_dict("records")
        output.rows(lines, form)
        return
    _write(frame, out)
    if form is Format.table:
        say(f"{out}: {len(frame)} predictions")
    else:
        output.pairs({"file": str(out), "rows": len(frame)}, form)


# --- what they are made of -------------------------------------------------------------------------------------------


def _rows(file: Path, description: Any) -> Any:
    """The rows of a file, as the model takes them: a frame with names, or an array."""
    if description.network is not None:
        return data.inputs(file)
    frame = data.frame(file)
    return frame if description.preparation is not None else frame.to_numpy()


def _predicted(run: Any, rows: Any) -> pd.DataFrame:
    """A line per row, numbered from 1."""
    import pandas as pd

    predicted = run.predict(rows)
    columns: dict[str, Any] = {"row": range(1, len(predicted) + 1)}
    if predicted.ndim == 1:
        columns["prediction"] = predicted
    else:
        columns |= {f"output {k}": column for k, column in enumerate(predicted.reshape(len(predicted), -1).T)}
    try:
        shares = run.probabilities(rows)
    except InputError:  # a regression, or a loss without probabilities
        return pd.DataFrame(columns)
    labels = run.description.labels or list(range(shares.shape[1]))
    return pd.DataFrame(columns | {f"P({label})": shares[:, k] for k, label in enumerate(labels)})


def _score(run: Any, rows: Any) -> None:
    """Say how good the predictions are, where the file has the right answers too."""
    preparation = run.description.preparation
    if preparation is None or preparation.target.name not in rows.columns or rows[preparation.target.name].isna().any():
        return
    what = "R^2, or the share of the deviance," if preparation.classes is None else "accuracy"
    target = preparation.target.name
    say(f"note: the file has {target!r} too: {what} {run.score(rows, rows[target]):.4g}")


def _write(frame: pd.DataFrame, to: Path) -> None:
    from resolvent.report import tables

    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if to.suffix == ".json":
            to.write_text(output.as_json(frame.to_dict("records")) + "\n", encoding="utf-8")
        else:
            to.write_bytes(tables.encoded(frame, to.suffix[1:]))
    except OSError as error:
        raise StorageError(
            f"{to} cannot be written ({error.strerror or error}); name another file with --out"
        ) from None


COMMANDS: dict[Callable[..., Any], tuple[str, ...]] = {
    predict: (
        "resolvent predict 1f2e new.csv --out predictions.csv",
        "resolvent predict 1f2e new.csv --format json",
    ),
}
