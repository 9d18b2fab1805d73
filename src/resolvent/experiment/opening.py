"""Runs from disk, whoever wrote them: the run store, `Run.save`, and the first versions of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent import config as configs
from resolvent import engines
from resolvent.errors import InputError, StorageError, refuse, whole
from resolvent.experiment import admission, conduct
from resolvent.experiment.build import build
from resolvent.iteration import checkpoint
from resolvent.iteration.engine import Engine
from resolvent.local import choice
from resolvent.runs import Folder, damaged
from resolvent.runs import users as user_rows
from resolvent.runs.recorder import monitored
from resolvent.runs.saving import PERSONAL
from resolvent.solving.description import Description
from resolvent.solving.recording import Entry, MonitorState
from resolvent.solving.run import Run
from resolvent.solving.solve import solve

if TYPE_CHECKING:
    import pandas as pd

COUNTS = ("round", "participants", "bytes_up", "bytes_down")


def open_run(path: str | Path) -> Run:
    """A run of the run store, or one that `Run.save` wrote: its model, history, settings and what it predicts with."""
    folder = Path(path)
    if (folder / "state.safetensors").is_file() and not (folder / "about.json").is_file():
        return _first_edition(folder)
    if not ((folder / "about.json").is_file() or (folder / "checkpoints").is_dir()):
        refuse("folder", str(folder), "the folder of a run is needed, as `resolvent run` or Run.save wrote it")
    found = Folder(folder)
    if wrong := found.damage():
        raise damaged(found, wrong)
    held, complaints = found.newest()
    if held is None:
        why = f": {complaints[0]}" if complaints else ""
        raise InputError(f"run {found.id} has no model yet{why}; `resolvent resume {found.id}` goes on with it")
    if complaints and found.end is not None:
        raise damaged(found, complaints)
    about = found.about
    return Run(
        held.state,
        found.history(),
        found.status,
        str((found.end or {}).get("reason", "")) or (held.numbers.get("verdict") or ["", f"round {held.round}"])[1],
        about["explanation"]["words"],
        seed=_seed(found),
        user_metrics=_user_metrics(found),
        best=held.kept,
        description=description(found),
        config=found.config,
        folder=folder,
        personal=held.tensors.get(PERSONAL),
        remembered=monitored(found, held.numbers)[0],
    )


def users(path: Path) -> Engine | None:
    """The users of a run of the command line, as its configuration makes them; None where it was saved from Python."""
    folder = Folder(path)
    if not (path / "about.json").is_file() or folder.about.get("made") == "python":
        return None
    admission.consent(folder, trusted=False)
    made = build(configs.read(folder.config))
    operator = choice.local_operator(made.scheme, made.task.problem)
    return engines.build(made.config.run.engine, made.task.problem, operator, made.scheme.steady)


def resume(run: Run, problem: Any, scheme: Any, rounds: int, more: dict[str, Any]) -> Run:
    """Go on with a run until so many rounds are done in all."""
    whole(rounds, "rounds")
    stored = None if run.folder is None else Folder(run.folder)
    if stored is not None and (run.folder / "about.json").is_file() and stored.about.get("made") != "python":  # type: ignore[operator]
        if problem is not None or scheme is not None or set(more) - {"progress", "trust"}:
            refuse("resume", "given a problem or settings", "a run of the command line has its own: give rounds alone")
        conduct.resume(stored, more.get("progress"), bool(more.get("trust")), rounds)
        return open_run(stored.path)
    left = rounds - run.state.round
    if left <= 0:
        refuse("rounds", rounds, f"the run has done {run.state.round}: give more")
    if run.status not in ("finished", "interrupted"):
        raise InputError(
            f"the run cannot go on, since it {run.status} ({run.reason}); rs.solve(start=run.state) begins anew"
        )
    given = dict(run._arguments or {})
    if problem is None and "problem" not in given:
        refuse("problem", None, "a run that was saved does not hold it: resume(problem, scheme, rounds=...) is needed")
    if scheme is None and "scheme" not in given:
        refuse("scheme", None, "a run that was saved does not hold it: resume(problem, scheme, rounds=...) is needed")
    given = given | {"seed": run.seed} | more
    problem = given.pop("problem", None) if problem is None else problem
    scheme = given.pop("scheme", None) if scheme is None else scheme
    given.pop("problem", None), given.pop("scheme", None)
    if getattr(given.get("stop"), "metric", None) is not None:
        given["recorder"] = _Continued(run)
    made = solve(problem, scheme, rounds=left, start=run.state, **given)
    made.history = _joined(run.history, made.history, made.state.round, given.get("every", 1))
    return made


class _Continued:
    """What a run that stops by a metric remembers of its first part. It stores nothing."""

    def __init__(self, run: Run) -> None:
        waited = run._remembered.waited if run._remembered else 0
        self.remembered, self.best, self.kept = MonitorState(waited=waited), None, run.best
        self.columns = tuple(map(str, run.history))

    def __call__(self, entry: Entry) -> None:
        pass

    give_up = __call__


def _joined(before: pd.DataFrame, after: pd.DataFrame, rounds: int, every: int) -> pd.DataFrame:
    """Two parts of a history; a row that the first one has only because it ended there is left out."""
    import pandas as pd

    shown = before[(before["round"] % every == 0) | (before["round"] == rounds)]
    spent = float(before["seconds"].iloc[-1]) if len(before) else 0.0
    return pd.concat([shown, after.assign(seconds=after["seconds"] + spent)], ignore_index=True)


def _seed(found: Folder) -> int:
    seed = found.about.get("seed", found.config.get("run", {}).get("seed", 0))
    return seed if isinstance(seed, int) else 0


def description(found: Folder) -> Description:
    """What a run's model needs to predict; nothing is known of runs of earlier versions."""
    told = found.about.get("model")
    if told is None:  # an earlier version's
        return Description()
    try:
        return Description.from_dict(told, found.fixed())
    except ValueError as error:
        raise (error if isinstance(error, InputError) else damaged(found, [f"about.json: {error}"])) from error


def _user_metrics(found: Folder) -> pd.DataFrame | None:
    """Each user's metrics on held-out data; an earlier version's `Run.save` put them into about.json."""
    import pandas as pd

    told = found.about.get("user_metrics")
    try:
        return (
            user_rows.read(found.path) if told is None else pd.DataFrame(told["metrics"], list(map(str, told["users"])))
        )
    except (LookupError, TypeError, ValueError) as error:
        raise damaged(found, [f"{user_rows.FILE} cannot be read ({type(error).__name__})"]) from error


def _first_edition(folder: Path) -> Run:
    """What `save` wrote before runs saved from Python were folders of the store."""
    import pandas as pd
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / "state.safetensors", framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            numbers = json.loads(file.metadata()["numbers"])
        about = json.loads((folder / "run.json").read_text())
        history = pd.read_csv(folder / "history.csv", dtype=str).astype(float)  # Python's floats keep every bit
        history = history.astype({name: "int64" for name in COUNTS if name in history})
        state = checkpoint.unpack(tensors, numbers)
        return Run(state, history, about["status"], about["reason"], about["explanation"], seed=about["seed"])
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(
            f"{folder} cannot be read ({type(error).__name__}: {error}); bring it back from a copy"
        ) from error
