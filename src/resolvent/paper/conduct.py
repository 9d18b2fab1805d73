"""Runs what panels need through the run store, and judges their claims. Finished runs are not repeated."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent import config as configs
from resolvent import experiment, runs
from resolvent.config import Config
from resolvent.errors import InputError
from resolvent.experiment.tasks import task
from resolvent.networks.stacked.thread_pool import one_thread
from resolvent.paper.figure import HOLDS, NOT_JUDGED, Across, Claim, ClaimVerdict, Figure, Panel, PanelLine, Settings
from resolvent.paper.results import Results
from resolvent.runs import Folder

if TYPE_CHECKING:
    import pandas as pd

QUICK, PAPER = "quick", "paper"
AT_ONCE = 4
"""Problems that are held where seeds are run as one batch."""
PAUSE = 0.5
"""Seconds between two looks at a run of another process."""
Announce = Callable[[str], None]
"""Called before each run, with what it is."""


@dataclass(frozen=True)
class Made:
    """A panel, its results and verdicts; without results where it was not run."""

    figure: Figure
    panel: Panel
    results: Results | None
    verdicts: tuple[tuple[Claim, ClaimVerdict], ...] = ()
    missing: int = 0
    """How many of its runs are not there."""
    first: dict[str, ClaimVerdict] = field(default_factory=dict)
    """The verdicts under first choices, where another one was made after a look, by the claim's words."""


@dataclass
class RunIndex:
    """The runs under a folder by fingerprint, read once."""

    out: Path
    scale: str = QUICK
    device: str = "cpu"
    most: int | None = None
    """How many seeds are run at most; None: as many as there are."""
    together: bool = False
    """Whether the seeds of a network's line are run as one batch."""
    found: dict[str, Folder] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    """A sentence on each damaged run, none of which is used."""

    def __post_init__(self) -> None:
        sound, self.complaints = runs.sound(self.out)
        for folder in sound:
            known = self.found.get(folder.about["fingerprint"])
            if known is None or known.status not in runs.ENDED:
                self.found[folder.about["fingerprint"]] = folder
        self._make = functools.lru_cache(maxsize=AT_ONCE if self.together else 1)(task)

    def plan(self, panel: Panel, line: PanelLine) -> Iterator[Config]:
        """The configurations of a line, one per seed."""
        return itertools.islice(plan(panel, line, self.scale, self.device), self.most)

    def steps(self, chosen: Iterable[tuple[Figure, Panel]]) -> int:
        """How many runs there are in all, those shared by several panels counted each time."""
        panels = (each for _, panel in chosen for each in (panel, *panel.firsts))
        return sum(len(list(self.plan(panel, line))) for panel in panels for line in panel.lines)

    def run(self, config: Config) -> pd.DataFrame:
        """The history of a configuration: read, resumed, or run."""
        built = experiment.build(config, self._make(config.problem, config.run.seed, config.run.threads))
        left = self.found.get(built.fingerprint)
        if left is None or left.status not in runs.ENDED:
            while (outcome := experiment.begin_or_resume(built, self.out, False)) is None:
                time.sleep(PAUSE)  # another process runs it
            if outcome.status == "interrupted":
                raise KeyboardInterrupt
            left = self.found[built.fingerprint] = Folder(outcome.run.path)
        return self.read(left)

    def run_seeds(self, configurations: Iterable[Config]) -> None:
        """Run what is left of configurations that differ in their seed alone as one batch."""
        built = [
            experiment.build(config, self._make(config.problem, config.run.seed, config.run.threads))
            for config in configurations
        ]
        left = [each for each in built if self._status(each) not in runs.ENDED]
        if len(left) > 1:
            for each, outcome in zip(left, experiment.run_together(left, self.out, False), strict=True):
                if outcome is not None and outcome.status == "interrupted":
                    raise KeyboardInterrupt
                if outcome is not None:
                    self.found[each.fingerprint] = Folder(outcome.run.path)

    def _status(self, built: experiment.Experiment) -> str | None:
        known = self.found.get(built.fingerprint)
        return None if known is None else known.status

    def stored(self, config: Config) -> pd.DataFrame | None:
        """The history of a configuration if its run has ended, on any device; nothing is built and nothing run."""
        folder = self.ended.get(asked(config))
        return None if folder is None else self.read(folder)

    @functools.cached_property
    def ended(self) -> dict[str, Folder]:
        """Runs that have ended, by what was asked of them."""
        return {asked(configs.read(run.config)): run for run in self.found.values() if run.status in runs.ENDED}

    def read(self, folder: Folder) -> pd.DataFrame:
        frame = folder.history()
        frame.attrs["status"] = folder.status
        return frame


def plan(panel: Panel, line: PanelLine, scale: str, device: str = "cpu") -> Iterator[Config]:
    """The configurations of a line at a scale, one per seed."""
    settings: Settings = {"store.checkpoint": 10.0} | panel.base
    if scale == QUICK:
        settings |= panel.quick
    settings |= line.settings | (line.quick if scale == QUICK else {})
    if panel.networks:
        settings["problem.device"] = device
    for seed in range(panel.large_seeds if scale == PAPER else panel.seeds):
        yield configs.read(configs.with_values({}, [*settings.items(), ("run.seed", seed)]))


def asked(config: Config) -> str:
    """What tells configurations apart before their problem is built: not what building fills in, nor the device."""
    tree = configs.plain(config)
    tree["run"].pop("threads", None)
    tree["problem"].pop("device", None)
    return json.dumps({name: section for name, section in tree.items() if name != "store"}, sort_keys=True)


def make(figure: Figure, panel: Panel, store: RunIndex, step: Announce, only_stored: bool = False) -> Made:
    """Run one panel and judge what the text claims of it; with `only_stored`, from stored runs or not at all.

    On one thread, but for networks, whose runs take as many as there are: short products gain little from a second
    one, and wait for it whenever something else holds a core.
    """
    with one_thread():
        return _make(figure, panel, store, step, only_stored)


def _make(figure: Figure, panel: Panel, store: RunIndex, step: Announce, only_stored: bool) -> Made:
    frames, missing = _histories(figure, panel, store, step, only_stored)
    if missing:
        return Made(figure, panel, None, missing=missing)
    others = {}
    for first in panel.firsts:
        found, lost = _histories(figure, first, store, step, only_stored)
        if not lost:
            others[id(first)] = _results(first, found, store.scale)
    return judge(figure, panel, frames, store.scale, others)


def _histories(
    figure: Figure, panel: Panel, store: RunIndex, step: Announce, only_stored: bool
) -> tuple[dict[str, list[pd.DataFrame]], int]:
    """The histories of a panel by line, and how many are missing."""
    frames: dict[str, list[pd.DataFrame]] = {}
    missing = 0
    for line in panel.lines:
        frames[line.label] = []
        if store.together and panel.networks and not only_stored:
            step(f"{figure.name} {panel.key}: {line.label}, all seeds")
            store.run_seeds(store.plan(panel, line))
        for config in store.plan(panel, line):
            step(f"{figure.name} {panel.key}: {line.label}")
            frame = store.stored(config) if only_stored else store.run(config)
            missing += frame is None
            frames[line.label] += [] if frame is None else [frame]
    return frames, missing


def _told(claim: Claim | Across, verdict: ClaimVerdict) -> ClaimVerdict:
    """The verdict, with the reason where it is not that the claim holds."""
    if verdict.said == HOLDS or not claim.why:
        return verdict
    return verdict._replace(numbers=f"{verdict.numbers}. {claim.why}")


def judge(
    figure: Figure,
    panel: Panel,
    frames: dict[str, list[pd.DataFrame]],
    scale: str = QUICK,
    others: dict[int, Results] | None = None,
) -> Made:
    """A panel's facts and verdicts; `others` are the results of the panels that first choices call for."""
    results = _results(panel, frames, scale)
    verdicts = tuple((claim, _told(claim, claim.check(results))) for claim in panel.claims)
    first = {claim.words: _first(claim, results, others or {}) for claim in panel.claims if claim.first is not None}
    return Made(figure, panel, results, verdicts, first=first)


def _results(panel: Panel, frames: dict[str, list[pd.DataFrame]], scale: str) -> Results:
    settings = panel.base | (panel.quick if scale == QUICK else {})
    return Results(panel, frames, {} if panel.facts is None else panel.facts(settings))


def _first(claim: Claim | Across, results: Any, others: dict[int, Results]) -> ClaimVerdict:
    """The verdict under the first choice: another check, or other runs, or none."""
    first = claim.first
    assert first is not None
    if first.panel is not None:
        results = others.get(id(first.panel))
    elif first.check is None:
        results = None
    return (
        ClaimVerdict(NOT_JUDGED, "its runs are not there") if results is None else (first.check or claim.check)(results)
    )


def across(figure: Figure, made: Iterable[Made]) -> list[tuple[Across, ClaimVerdict]]:
    """The verdicts on claims about several panels, where all of these were run."""
    return [(claim, _told(claim, claim.check(results))) for claim, results in _several(figure, made)]


def across_first(figure: Figure, made: Iterable[Made]) -> dict[str, ClaimVerdict]:
    """Those under first choices, by the claim's words."""
    return {claim.words: _first(claim, results, {}) for claim, results in _several(figure, made) if claim.first}


def _several(figure: Figure, made: Iterable[Made]) -> list[tuple[Across, dict[str, Results]]]:
    results = {one.panel.key: one.results for one in made if one.figure.label == figure.label and one.results}
    there = [claim for claim in figure.claims if all(key in results for key in claim.panels)]
    return [(claim, {key: results[key] for key in claim.panels}) for claim in there]


def choose(figures: Iterable[Figure], label: str, key: str | None = None) -> list[tuple[Figure, Panel]]:
    """The panels of a figure, of all of them, or one panel."""
    figures = list(figures)
    plain = configs.alike(label.replace(":", "-")).lower()
    those = [figure for figure in figures if plain in ("all", figure.name, figure.name.removeprefix("fig-"))]
    if not those:
        raise InputError(
            f"there is no figure {label!r}{configs.nearest(plain, ['all', *(figure.name for figure in figures)])}"
        )
    chosen = [(figure, panel) for figure in those for panel in figure.panels if key in (None, panel.key)]
    if not chosen:
        keys = [panel.key for figure in those for panel in figure.panels]
        raise InputError(f"{label} has no panel {key!r}{configs.nearest(str(key), keys)}")
    return chosen
