"""Runs what panels need through the run store, and judges their claims. Finished runs are not repeated."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
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
from resolvent.iteration.table import TABLE
from resolvent.local.law import step_sums
from resolvent.paper.figure import Figure, Panel, PanelLine, Settings
from resolvent.paper.judging import PAPER, QUICK, JudgedPanel, judge, results_of
from resolvent.problems.one_thread import one_thread
from resolvent.runs import Folder

if TYPE_CHECKING:
    import pandas as pd

PROBLEMS_IN_MEMORY = 4
"""Where seeds are run as one batch; else one."""
PAUSE = 0.5
"""Seconds between two looks at a run of another process."""
Announce = Callable[[str], None]
"""Called before each run, with what it is."""


@dataclass
class RunIndex:
    """The runs under a folder by fingerprint, read once."""

    out: Path
    scale: str = QUICK
    device: str = "cpu"
    max_seeds: int | None = None
    """None: as many as there are."""
    together: bool = False
    """Whether the seeds of a network's line are run as one batch."""
    folders: dict[str, Folder] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    """A sentence on each damaged run, none of which is used."""

    def __post_init__(self) -> None:
        sound, self.complaints = runs.sound(self.out)
        for folder in sound:
            if not self._has_ended(folder.about["fingerprint"]):
                self.folders[folder.about["fingerprint"]] = folder
        self._task = functools.lru_cache(maxsize=PROBLEMS_IN_MEMORY if self.together else 1)(task)

    def plan(self, panel: Panel, line: PanelLine) -> Iterator[Config]:
        """The configurations of a line, one per seed."""
        return itertools.islice(plan(panel, line, self.scale, self.device), self.max_seeds)

    def steps(self, chosen: Iterable[tuple[Figure, Panel]]) -> int:
        """How many runs there are in all, those shared by several panels counted each time."""
        panels = (each for _, panel in chosen for each in (panel, *panel.firsts))
        return sum(len(list(self.plan(panel, line))) for panel in panels for line in panel.lines)

    def needed(self, panels: Iterable[Panel]) -> list[str]:
        """What is asked of the runs that panels and their first choices need, each once."""
        every = (each for panel in panels for each in (panel, *panel.firsts))
        configurations = (config for panel in every for line in panel.lines for config in self.plan(panel, line))
        return list(dict.fromkeys(asked(config) for config in configurations))

    def run(self, config: Config) -> pd.DataFrame:
        """The history of a configuration: read, resumed, or run."""
        built = self._build(config)
        if not self._has_ended(built.fingerprint):
            while (outcome := experiment.begin_or_resume(built, self.out, False)) is None:
                time.sleep(PAUSE)  # another process runs it
            self._store(built, outcome.status, outcome.run.path)
        return _history(self.folders[built.fingerprint])

    def run_seeds(self, configurations: Iterable[Config]) -> None:
        """Run what remains of configurations that differ in their seed alone as one batch."""
        built = [self._build(config) for config in configurations]
        remaining = [each for each in built if not self._has_ended(each.fingerprint)]
        if len(remaining) > 1:
            outcomes = experiment.run_together(remaining, self.out, False)
            for each, outcome in zip(remaining, outcomes, strict=True):
                if outcome is not None:
                    self._store(each, outcome.status, outcome.run.path)

    def _build(self, config: Config) -> experiment.Experiment:
        return experiment.build(config, self._task(config.problem, config.run.seed, config.run.threads))

    def _store(self, built: experiment.Experiment, status: str, path: Path) -> None:
        if status == "interrupted":
            raise KeyboardInterrupt
        self.folders[built.fingerprint] = Folder(path)

    def _has_ended(self, fingerprint: str) -> bool:
        return fingerprint in self.folders and self.folders[fingerprint].status in runs.ENDED

    def stored(self, config: Config) -> pd.DataFrame | None:
        """The history of a configuration if its run has ended, on any device; nothing is built and nothing run."""
        folder = self.ended.get(asked(config))
        return None if folder is None else _history(folder)

    @functools.cached_property
    def ended(self) -> dict[str, Folder]:
        """Runs that have ended, by what was asked of them."""
        return {asked(configs.read(run.config)): run for run in self.folders.values() if run.status in runs.ENDED}


def _history(folder: Folder) -> pd.DataFrame:
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
    if _own_eta(tree["scheme"], tree.get("local") or {}):
        tree["scheme"].pop("eta", None)
    return json.dumps({name: section for name, section in tree.items() if name != "store"}, sort_keys=True)


def _own_eta(scheme: dict[str, Any], local: dict[str, Any]) -> bool:
    """Whether SCAFFOLD's eta is the one that building fills in: lr times what some number of its passes amounts to."""
    row, eta, lr = TABLE.get(scheme.get("algorithm", "")), scheme.get("eta"), local.get("lr")
    if row is None or row.local is None or row.forward or lr is None:
        return False
    if not isinstance(eta, float):
        return eta is None
    steps, momentum = local.get("steps") or row.steps, local.get("momentum") or 0.0
    most = int(eta / lr + 1 / (1 - momentum)) + steps
    return any(math.isclose(lr * step_sums(k, momentum)[0], eta) for k in range(steps, most, steps))


def make(figure: Figure, panel: Panel, index: RunIndex, step: Announce, only_stored: bool = False) -> JudgedPanel:
    """Run one panel and judge what the text claims of it; with `only_stored`, from stored runs or not at all.

    On one thread, but for networks, whose runs take as many as there are: short products gain little from a second
    one, and wait for it whenever something else holds a core.
    """

    def histories(of: Panel) -> tuple[dict[str, list[pd.DataFrame]], int]:
        """By line, and how many are missing."""
        frames: dict[str, list[pd.DataFrame]] = {}
        missing = 0
        for line in of.lines:
            name = f"{figure.name} {of.key}: {line.label}"
            if index.together and of.networks and not only_stored:
                step(f"{name}, all seeds")
                index.run_seeds(index.plan(of, line))
            frames[line.label] = []
            for config in index.plan(of, line):
                step(name)
                frame = index.stored(config) if only_stored else index.run(config)
                missing += frame is None
                frames[line.label] += [] if frame is None else [frame]
        return frames, missing

    with one_thread():
        frames, missing = histories(panel)
        if missing:
            return JudgedPanel(figure, panel, None, missing=missing)
        firsts = [(first, *histories(first)) for first in panel.firsts]
        others = {id(first): results_of(first, those, index.scale) for first, those, absent in firsts if not absent}
        return judge(figure, results_of(panel, frames, index.scale), others)


def numbered(figures: Iterable[Figure]) -> dict[str, int]:
    """The numbers that figures have in the paper, by name."""
    return {name: k for k, name in enumerate((each.name for each in figures if each.label.startswith("fig:")), 1)}


def choose(figures: Iterable[Figure], label: str, key: str | None = None) -> list[tuple[Figure, Panel]]:
    """The panels of a figure, of all of them, or one panel."""
    figures = list(figures)
    plain = configs.alike(label.replace(":", "-")).lower()
    numbers = {f"{number}": name for name, number in numbered(figures).items()}
    plain = numbers.get(re.sub(r"^fig(ure)?[-. ]*(?=\d)", "", plain), plain)
    those = [figure for figure in figures if plain in ("all", figure.name, figure.name.removeprefix("fig-"))]
    if not those:
        if re.fullmatch(r"(fig(ure)?)?[-. ]*\d+", plain):
            raise InputError(f"the paper has no {label!r}, but figures 1 to {len(numbers)}")
        names = ["all", *(figure.name for figure in figures)]
        raise InputError(f"there is no figure {label!r}{configs.nearest(plain, names)}")
    chosen = [(figure, panel) for figure in those for panel in figure.panels if key in (None, panel.key)]
    if not chosen:
        keys = [repr(panel.key) for figure in those for panel in figure.panels]
        raise InputError(f"{label} has no panel {key!r}{configs.nearest(str(key), keys)}")
    return chosen
