"""The server's side of a run: the loop, over the Grid that Flower hands in, into the run store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from resolvent import config as configs
from resolvent import runs
from resolvent.config import Config
from resolvent.config.sections import FLOWER
from resolvent.data.preparation import Preparation
from resolvent.engines.flower.asking import Note
from resolvent.engines.flower.claims import show_weights
from resolvent.engines.flower.engine import FlowerEngine
from resolvent.engines.flower.evaluation import NO_VALUE
from resolvent.engines.flower.facts import gather, wait
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.plausibility import left_out
from resolvent.engines.flower.secure import SHARED_U, SecureEngine, shared
from resolvent.errors import BadAnswer, InputError, RoundFailed, quoted, refuse
from resolvent.experiment.build import Experiment, build
from resolvent.experiment.driving import about, rounds
from resolvent.experiment.tasks import Task
from resolvent.federation import keys, settings
from resolvent.federation.agreeing import Agreement
from resolvent.federation.project import Project, opened
from resolvent.federation.recording import Counted, OneBehind
from resolvent.iteration.facts import Facts
from resolvent.iteration.participation import Everyone, Participation
from resolvent.iteration.state import State
from resolvent.local.choice import local_operator
from resolvent.runs import Folder
from resolvent.runs.open_run import OpenRun
from resolvent.theory import closed_forms

if TYPE_CHECKING:
    import pandas as pd

SMALL = 1e-6
"""Certificates of a solution, unless [stop] says otherwise."""
NO_FALL = "they fell less than tenfold in its last quarter, so more rounds would help little"
NETWORK_ETA = 0.1
"""The eta of FedPi and FedSplit on networks, unless one is given."""
UNITS = "units"
"""The event that a column seems to have other units at one site."""
OUTSIDE = "it was stopped from outside"
"""Flower ends the process of a run that was stopped by SystemExit, whose text is 0, or lets a signal interrupt it."""


@dataclass(frozen=True)
class Asked(Participation):
    """Everybody is asked in every round; whoever has not answered when it closes holds its pair (u_i, p_i)."""

    asks_everybody = True

    def present(self, seed: int, t: int, users: int) -> Tensor | None:
        return None

    def __str__(self) -> str:
        return "everyone is asked, and whoever has not answered when a round closes holds"


def main(grid: Any, given: Mapping[str, Any]) -> None:
    """What Flower calls. How it went is written into a file, for whoever began the run."""
    ticket = Path(str(given["ticket"])) if given.get("ticket") else None
    try:
        project, out = opened(Path(str(given["project"]))), Path(str(given["out"]))
        folder = conduct(grid, project, out, str(given["resume"]), ticket)
    except BaseException as error:
        if isinstance(error, Exception) or not _begun(ticket):  # else the run itself says that it stopped
            _write(ticket, {"failed": _why(error)})
        raise
    end = folder.end or {}
    _write(ticket, {"run": str(folder.path), "status": end.get("kind"), "reason": end.get("reason")})


class KnownKeys:
    """The names of the nodes by their keys, as they are now; while a file is half copied, as they were before."""

    def __init__(self, project: Project) -> None:
        self._project, self._last = project, keys.public_keys(project)

    def __call__(self) -> dict[bytes, str]:
        with suppress(InputError, OSError):
            self._last = keys.public_keys(self._project)
        return self._last


def conduct(grid: Any, project: Project, out: Path, resume: str = "", ticket: Path | None = None) -> Folder:
    """Run, or go on with, a federation's run."""
    post = Post(grid, KnownKeys(project))
    with ExitStack() as stack:
        run = stack.enter_context(OpenRun.resume(runs.find(resume, out))) if resume else None
        if run is not None and run.folder.end is not None:
            return run.folder
        config = project.config() if run is None else configs.read(run.folder.config)
        facts, remarks = _gathered(post, config, None if run is None else run.folder.about, _waiting(ticket))
        experiment = prepared(config, facts)
        if run is None:
            description = about(experiment)
            agreed = {"names": list(facts.names), "weights": facts.weights.tolist(), "kind": facts.kind}
            description["problem"] |= agreed
            run = stack.enter_context(OpenRun.begin(out, experiment.name, experiment.config, description))
            section: Any = config.problem
            by_rows = settings.weights_of(section) == "rows"
            secret = experiment.private  # numbers of rows, and means of columns, are then not released
            show_weights(facts.names, facts.weights, None if secret else facts.sizes, run.folder.note, by_rows)
            for remark in () if secret else remarks:
                run.folder.note(UNITS, reason=remark)
        _rounds(run, experiment, facts, post, ticket)
        return run.folder


def _gathered(post: Post, config: Config, about: dict[str, Any] | None, note: Note) -> tuple[Facts, tuple[str, ...]]:
    """What users say of themselves, and what must be pointed out of their tables.

    It does not change the weights and the schema that were agreed on when a run began.
    """
    section: Any = config.problem
    weights, most = settings.weights_of(section), settings.limits_of(section).weight
    names = wait(post, section.users, section.join, None if about is None else tuple(about["problem"]["names"]), note)
    agreed, terms = None, settings.terms_of(config)
    if terms is not None:
        stored = None if about is None else Preparation.from_dict(about["model"]["preparation"])
        agreed = Agreement(post, names, terms, section.join, most).reach(stored)
    schema = "" if agreed is None else agreed.schema
    facts = gather(
        post,
        "joining",
        section.users,
        weights,
        section.join,
        note,
        names=names,
        max_weight=most,
        schema=schema,
        same_start="privacy" in dict(config.parts),
    )
    facts = replace(facts, penalty=settings.penalty_of(section))
    facts = facts if agreed is None else agreed.known(facts)
    if about is not None:
        facts = replace(facts, weights=torch.tensor(about["problem"]["weights"], dtype=facts.dtype))
    return facts, () if agreed is None else agreed.remarks


def _waiting(ticket: Path | None) -> Note:
    """Writes into the ticket whom the run is waiting for."""

    def note(kind: str, **about: Any) -> None:
        if kind == "waiting":
            _write(ticket, {"waiting": about["reason"]})

    return note


def prepared(config: Config, facts: Facts) -> Experiment:
    """What the configuration describes, for these users."""
    section: Any = config.problem
    facts = replace(facts, sends_hessians=section.curvature)
    L = closed_forms.curvatures(facts)[1] if facts.convex else 0.0
    eta = 1 / L if 0 < L < float("inf") else None
    task = Task(facts, section, eta=eta if facts.convex else 100.0, small=None if facts.convex else NETWORK_ETA)
    experiment = build(replace(config, run=replace(config.run, engine=FLOWER)), task)
    if experiment.private:
        check_private(experiment)
    if section.secure:
        check_secure(experiment)
    elif isinstance(experiment.participation, Everyone):
        experiment = replace(experiment, participation=Asked())
    return experiment


def check_private(experiment: Experiment) -> None:
    """Refuse what a federation does not carry out: there the server clips and adds noise, in every round anew."""
    section: Any = experiment.config.problem
    privacy, store = experiment.parts["privacy"], experiment.config.store
    if section.secure:
        refuse(
            "privacy", quoted(privacy), "with secure sums nobody could clip what users send: leave out one of the two"
        )
    if privacy.local:
        refuse(
            "privacy.local", True, "nodes send their answers as they are, and the server adds the noise: leave it out"
        )
    if privacy.held_out == "public":
        refuse("privacy.held_out", '"public"', "held-out rows of nodes are their users': leave it out")
    if not experiment.participation.full:
        needed = "who is drawn follows from the seed, which is no secret, so that it hides nobody: leave it out"
        refuse("participation", str(experiment.participation), needed)
    if store.checkpoint > 0:
        needed = "each noisy mean must be on disk before anybody is told of it, or a run that goes on would spend more"
        refuse("store.checkpoint", store.checkpoint, f"{needed} than it counts: leave it out")


def check_secure(experiment: Experiment) -> None:
    """Refuse what sums cannot do: users must share u, or keep their own in a scheme that is exact and steady."""
    scheme, stop, acceleration = experiment.scheme, experiment.stop, experiment.anderson
    if not experiment.participation.full:
        refuse("participation", str(experiment.participation), "a secure sum is among all who are there: leave it out")
    if scheme.auto:
        refuse("scheme.eta", '"auto"', "with secure sums nobody's own answer is known to choose it by: give a number")
    if scheme.projects:
        return
    if not (scheme.exact and scheme.steady and scheme.fixed_mixing is not None):
        refuse("scheme", str(scheme), SHARED_U)
    if getattr(acceleration, "on", "mean") == "u" and getattr(acceleration, "memory", 1):
        refuse("acceleration", str(acceleration), 'nobody knows all u_i of a secure sum: take on = "mean"')
    if stop is not None and (stop.residual, stop.certificates, stop.metric) != (None, None, None):
        refuse("stop", str(stop), "with secure sums the u_i, and so residual and certificates, are known to nobody")


def _own_u(experiment: Experiment) -> tuple[float, float, float] | None:
    """alpha, beta and gamma where users keep their u_i; None where they share one, or the server knows them."""
    section: Any = experiment.config.problem
    return None if not section.secure or experiment.scheme.projects else experiment.scheme.fixed_mixing


def engine_of(experiment: Experiment, facts: Facts, post: Post, folder: Folder) -> FlowerEngine:
    """The engine of a run, whose events go into its folder."""
    section: Any = experiment.config.problem
    make = partial(SecureEngine, mixing=_own_u(experiment)) if section.secure else FlowerEngine
    return make(
        post,
        facts,
        local_operator(experiment.scheme, facts),
        folder.about["id"],
        steady=experiment.scheme.steady,
        rule=settings.rule_of(section),
        limits=settings.limits_of(section),
        ride=not experiment.private,
        curvature=section.curvature,
        note=folder.note,
    )


def _rounds(run: OpenRun, experiment: Experiment, facts: Facts, post: Post, ticket: Path | None) -> None:
    recorder = run.record(experiment.config)
    _write(ticket, {"run": str(run.folder.path)})
    engine = engine_of(experiment, facts, post, run.folder)
    private = experiment.private  # whose rows wait for no values
    recording = Counted(recorder, run.folder) if private else OneBehind(recorder, engine)
    began = time.monotonic()
    try:
        scheme = experiment.scheme if _own_u(experiment) is None else shared(experiment.scheme)
        status, reason = rounds(experiment, recording, False, engine, scheme)
    except (SystemExit, KeyboardInterrupt):
        run.leave("interrupted", OUTSIDE)
        raise
    reason = OUTSIDE if status == "interrupted" else reason
    remarks = [*missing(facts, recording.state), *without_value(run.folder), *units(run.folder)]
    remarks += getattr(recording, "remarks", ())
    run.folder.note("time", reason=time_spent(time.monotonic() - began, engine.spent))
    exact = experiment.explanation.facts["solves"] == "original" and facts.convex
    for remark in far_from_zero(experiment.config, run.folder.history()) if status == "finished" and exact else ():
        run.folder.note("unsolved", reason=remark)
    run.end(status, "; ".join([reason, *remarks]))


def time_spent(seconds: float, spent: Mapping[str, float]) -> str:
    """What the seconds of a run went to, the most first; the rest is the loop's own, and storing."""
    parts = dict(spent) | {"computing and storing here": max(0.0, seconds - sum(spent.values()))}
    most = sorted(parts.items(), key=lambda part: -part[1])
    return f"{seconds:.1f} s: " + ", ".join(f"{what} {part:.1f} s" for what, part in most)


def far_from_zero(config: Config, history: pd.DataFrame) -> Iterator[str]:
    """How far the certificates of a run are that ended before they were as small as [stop] has it.

    Of small ones its rounds tell whether more rounds help: at the size of rounding errors they no longer fall.
    """
    wanted = SMALL if config.stop.certificates is None else config.stop.certificates
    found = {name: float(history[name].iloc[-1]) for name in ("stationarity", "consensus") if name in history}
    worst = max((size for size in found.values() if size > wanted), default=None)
    if worst is None:
        return
    sizes = " and ".join(f"{name} is {size:.2g}" for name, size in found.items() if size == size)
    far = "not at a solution yet" if worst > SMALL else f"not as near a solution as [stop] asks ({wanted:g})"
    large, quarter = [name for name, size in found.items() if size > wanted], max(1, len(history) // 4)
    last, before = history[large][-quarter:].min(), history[large][:-quarter].min()
    falls = bool((~(last >= 0.1 * before)).any())
    or_anderson = ", or [anderson]," * (worst > SMALL and not config.anderson.memory)
    advice = f"more rounds{or_anderson} bring it closer" if worst > SMALL or falls else NO_FALL
    yield f"{far}: {sizes} (0 at one); {advice}"


def _why(error: BaseException) -> str:
    """What ended a run, in words."""
    if not isinstance(error, Exception):
        return OUTSIDE
    return str(error) if isinstance(error, InputError | BadAnswer | RoundFailed) else f"{type(error).__name__}: {error}"


def missing(facts: Facts, state: State | None) -> Iterator[str]:
    """What must be said of a run in which not everybody has ever answered, or somebody's answers were implausible."""
    out = set() if state is None else left_out(state.memory)
    seen = None if state is None or state.complete else state.parts.participation.seen
    if unheard := [name for i, name in enumerate(facts.names) if seen is not None and not seen[i] and i not in out]:
        yield f"{', '.join(unheard)} never answered, so the model is that of the others alone"
    if out:
        names = ", ".join(facts.names[i] for i in sorted(out))
        yield (
            f"without {names}, whose answers led too far away (see the events): the model is that of the others, and "
            "of what it sent before"
        )


def without_value(folder: Folder) -> Iterator[str]:
    """What must be said of a run in which somebody reported no finite value, before it was resumed or after."""
    if names := sorted({event["user"] for event in folder.events if event["kind"] == NO_VALUE}):
        yield f"{', '.join(names)} reported no finite value (see the events), so whether the value fell is not known"


def _begun(ticket: Path | None) -> bool:
    """Whether whoever began the run was told its folder."""
    return ticket is not None and ticket.exists() and "run" in json.loads(ticket.read_text())


def units(folder: Folder) -> Iterator[str]:
    """What must be said of a run whose tables seem to have columns in different units."""
    yield from dict.fromkeys(event["reason"] for event in folder.events if event["kind"] == UNITS)


def _write(ticket: Path | None, message: dict[str, Any]) -> None:
    if ticket is not None:
        part = ticket.with_suffix(".part")
        part.write_text(json.dumps(message))
        part.replace(ticket)
