"""Runs from disk, opened and resumed in Python: those of the command line, and those that `Run.save` wrote."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from resolvent import config as configs
from resolvent import engines
from resolvent.engines.in_process import InProcess
from resolvent.errors import InputError, ResolventWarning, quoted, refuse, whole
from resolvent.experiment import conduct
from resolvent.experiment.build import build
from resolvent.iteration.checkpoint import moved
from resolvent.iteration.engine import Engine, Look
from resolvent.iteration.metric import FullMetric
from resolvent.iteration.metric_choice import GivenMetric
from resolvent.local import choice
from resolvent.runs import Folder, damaged, metrics, regular, trust
from resolvent.runs.folder import reading
from resolvent.runs.recorder import check_readable, remembered_in
from resolvent.runs.saving import PERSONAL
from resolvent.solving.description import Description, settings
from resolvent.solving.objective import Objective
from resolvent.solving.prepare import Prepared, prepare
from resolvent.solving.recording import Continued, MonitorState
from resolvent.solving.run import Run

if TYPE_CHECKING:
    import pandas as pd

HELD_OUT = ("validation_", "test_", "personal_")
"""How the names of columns begin that are measured on held-out data."""
BYTES = ("bytes_up", "bytes_down")


def open_run(path: str | Path) -> Run:
    """A run of the run store, or one that `Run.save` wrote: its model, history, settings and what it predicts with."""
    if not isinstance(path, str | os.PathLike):
        refuse("folder", quoted(path), "the path of a run's folder is needed")
    folder = Path(path)
    if not (os.path.isfile(folder / "about.json") or os.path.isdir(folder / "checkpoints")):  # of a name too long: no
        refuse("folder", str(folder), "the folder of a run is needed, as `resolvent run` or Run.save wrote it")
    with reading(Folder(folder)):
        return _opened(Folder(folder))


def _opened(stored: Folder) -> Run:
    if wrong := stored.damage():
        raise damaged(stored, wrong)
    newest, complaints = stored.newest()
    if newest is None:
        why = f": {complaints[0]}" if complaints else ""
        raise InputError(f"run {stored.id} has no model yet{why}; `{stored.resuming}` goes on with it")
    if complaints and stored.end is not None:
        raise damaged(stored, complaints)
    check_readable(stored, newest)
    remembered, ending = remembered_in(newest.numbers)
    end = stored.end or {}
    return Run(
        newest.state,
        stored.history(),
        stored.status,
        str(end.get("reason") or (ending.reason if ending else f"round {newest.round}")),
        stored.about["explanation"]["words"],
        seed=_seed(stored),
        user_metrics=_user_metrics(stored),
        best=newest.kept,
        description=description(stored),
        config=stored.config,
        folder=stored.path,
        personal=newest.tensors.get(PERSONAL),
        remembered=remembered,
    )


def users(path: Path) -> Engine | None:
    """The users of a run of the command line, as its configuration makes them; None where it was saved from Python."""
    folder = Folder(path)
    if not (path / "about.json").is_file() or folder.from_python:
        return None
    trust.consent(folder, trusted=False)
    experiment = build(configs.read(folder.config))
    operator = choice.local_operator(experiment.scheme, experiment.task.problem)
    return engines.build(experiment.config.run.engine, experiment.task.problem, operator, experiment.scheme.steady)


def resume(run: Run, problem: Any, scheme: Any, rounds: int, more: dict[str, Any]) -> Run:
    """Go on with a run until so many rounds are done in all."""
    import pandas as pd

    whole(rounds, "rounds")
    stored = None if run.folder is None else Folder(run.folder)
    if stored is not None and (run.folder / "about.json").is_file() and not stored.from_python:  # type: ignore[operator]
        if problem is not None or scheme is not None or set(more) - {"progress", "trust"}:
            refuse("resume", "given a problem or settings", "a run of the command line has its own: give rounds alone")
        conduct.resume(stored, more.get("progress"), bool(more.get("trust")), rounds)
        return open_run(stored.path)
    remaining = rounds - run.state.round
    if remaining <= 0:
        refuse("rounds", rounds, f"the run has done {run.state.round}: give more")
    if run.status not in ("finished", "interrupted"):
        raise InputError(
            f"the run cannot go on, since it {run.status} ({run.reason}); rs.solve(start=run.state) begins anew"
        )
    given = {**_stored_arguments(run), **(run._arguments or {}), "seed": run.seed, **more}
    for name, value in {"problem": problem, "scheme": scheme}.items():
        if value is not None:
            given[name] = value
        elif name not in given:
            refuse(name, None, "a run that was saved does not hold it: resume(problem, scheme, rounds=...) is needed")
    before, given["recorder"] = _first_part(run, given.get("every", 1), given.get("validate_every"))
    prepared = prepare(rounds=remaining, start=run.state, **given)
    if others := [*_others(run, prepared), *([] if problem is None else _other_values(run, prepared))]:
        warnings.warn(f"the run goes on as another one: {'; '.join(others)}", ResolventWarning, stacklevel=3)
    longer = prepared.run()
    longer.history = pd.concat([before, longer.history], ignore_index=True)
    return longer


def _others(run: Run, prepared: Prepared) -> Iterator[str]:
    """Where the scheme is not the one that the run had."""
    then, now = run.config.get("scheme", {}), settings(prepared.facts, prepared.scheme, {}, 0, 0)["scheme"]
    for name in ("title", "eta", "alpha", "beta", "gamma"):
        if name in then and name in now and then[name] != now[name]:
            yield f"{'its scheme' if name == 'title' else name} is {now[name]}, and was {then[name]}"


def _other_values(run: Run, prepared: Prepared) -> Iterator[str]:
    """Where the value of its last model on these data is not the one that its history has, up to rounding."""
    facts, rows, engine = prepared.facts, run.history, prepared.engine
    alike = (run.state.users, run.state.w.shape[1]) == (facts.users, facts.dim)
    if not (alike and isinstance(engine, InProcess) and len(rows) and rows["round"].iloc[-1] == run.state.round):
        return
    state = moved(run.state, facts.device)
    objective = Objective(engine, facts)
    metrics = objective.inspect(state.w, state.p, state.memory, Look(held_out=False)) or {
        name: float(values[0]) for name, values in objective.measure(state.w).items()
    }
    then, now = float(rows["value"].iloc[-1]), metrics.get("value", math.nan)
    if abs(now - then) > math.sqrt(torch.finfo(state.w.dtype).eps) * max(abs(now), abs(then)):
        yield f"its objective is {now:g} at the last model on these data, and was {then:g}"


def _stored_arguments(run: Run) -> dict[str, Any]:
    """What `solve` was given and a State holds: a metric of one's own."""
    own = run.config.get("metric", {}).get("kind") == GivenMetric.__name__
    return {"metric": GivenMetric(run.state.metric)} if own and isinstance(run.state.metric, FullMetric) else {}


def _first_part(run: Run, every: int, validate_every: int | None) -> tuple[pd.DataFrame, Continued]:
    """The rows of a run and what it remembers as they would be, had it not ended there.

    Its last row may be there, or have metrics, only because it was the last. A longer run would not have counted it.
    """
    often = every if validate_every is None else validate_every
    number, remembered = run.history["round"], run._remembered or MonitorState()
    stay = ((number % every == 0) | (number % often == 0)).to_numpy()
    rows = run.history[stay].reset_index(drop=True)
    unreported = dict.fromkeys(BYTES, 0)
    for name in BYTES:  # those of a row that is left out are reported by the next one
        so_far = run.history[name].to_numpy().cumsum()
        rows[name] = np.diff(so_far[stay], prepend=0)
        unreported[name] = int(so_far[-1] - rows[name].sum()) if len(so_far) else 0
    looked_at = (rows["round"] % often == 0) | (rows.index == 0)
    held_out = [name for name in map(str, rows) if name.startswith(HELD_OUT)]
    rows[held_out] = rows[held_out].where(looked_at, math.nan)
    waited, best = remembered.waited, run.best
    counted = len(rows) and rows["round"].iloc[-1] == run.state.round and looked_at.iloc[-1]
    if run.status == "finished" and not counted:
        ended_best = best is not None and best.round == run.state.round
        waited, best = (best.waited, best.beaten) if ended_best else (max(0, waited - 1), best)  # type: ignore[union-attr]
    spent = float(run.history["seconds"].iloc[-1]) if len(run.history) else 0.0
    up, down = (unreported[name] + before for name, before in zip(BYTES, remembered.unreported, strict=True))
    state = MonitorState(spent, waited=waited, up=up, down=down)
    return rows, Continued(state, best, tuple(map(str, rows)) if len(rows) else ())


def _seed(stored: Folder) -> int:
    seed = stored.about.get("seed", stored.config.get("run", {}).get("seed", 0))
    return seed if isinstance(seed, int) else 0


def description(stored: Folder) -> Description:
    """What a run's model needs to predict."""
    try:
        return Description.from_dict(stored.about["model"], stored.fixed())
    except (LookupError, ValueError) as error:
        raise (error if isinstance(error, InputError) else damaged(stored, [f"about.json: {error}"])) from error


def _user_metrics(stored: Folder) -> pd.DataFrame | None:
    """Each user's metrics on held-out data."""
    try:
        return metrics.read_users(stored.path)
    except (OSError, *regular.UNFIT) as error:
        raise damaged(stored, [f"{metrics.USERS} cannot be read ({type(error).__name__})"]) from error
