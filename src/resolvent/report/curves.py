"""Runs as curves: those that differ by their seed alone are one curve with a band."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.iteration.metric_names import AVERAGED
from resolvent.iteration.registry import KINDS
from resolvent.iteration.table import TABLE
from resolvent.runs import Folder

if TYPE_CHECKING:
    import pandas as pd

GREY = "#666666"
"""Of schemes that are no row of the table."""
ROUND_OFF = 1e-9
MAX_DRAWN_ROWS = 4000
"""Curves of no more rows are drawn as they are."""
STRETCHES = 250
"""Of equal numbers of rows, and as many whose lengths grow in proportion, for logarithmic axes."""
QUIET = {"run": ("seed", "threads"), "problem": ("seed", "sha256"), "store": None}
"""Settings that do not tell curves apart: sections, or some of their keys."""

UNSAID = {("scheme", "algorithm"), ("scheme", "title"), ("anderson", "on"), ("problem", "name"), ("problem", "data")}
"""Settings that titles tell already."""
MIXING = {("scheme", "alpha"), ("scheme", "beta"), ("scheme", "gamma")}
"""Settings that an algorithm's name tells, unless it is run with several values."""
NAMED_WHOLE = tuple(name for name, kind in KINDS.items() if kind.section and name not in ("participation", "local"))
"""Parts that labels name with all of their values: "send top:0.1"."""


@dataclass(frozen=True)
class Curve:
    """Runs of one configuration, over its seeds."""

    runs: tuple[Folder, ...]
    label: str
    colour: str
    dash: int
    """0: plain; 1, 2, ...: accelerated, by memory."""

    @property
    def first(self) -> Folder:
        return self.runs[0]

    @property
    def seeds(self) -> int:
        return len({run.config["run"]["seed"] for run in self.runs})

    @cached_property
    def frames(self) -> list[pd.DataFrame]:
        """One history per run that has rows, with the bytes so far. Where a run averages, its averages are shown."""
        return [with_bytes(reported(frame)) for frame in (run.history() for run in self.runs) if len(frame)]

    def over(self, x: str, y: str) -> tuple[pd.Series[float], pd.DataFrame]:
        return over_seeds(self.frames, x, y)


def over_seeds(frames: Sequence[pd.DataFrame], x: str, y: str) -> tuple[pd.Series[float], pd.DataFrame]:
    """x in the mean over seeds, and y's median, least and most, at the rounds that all seeds have."""
    import pandas as pd

    by_round = [frame.set_index("round", drop=False) for frame in frames]
    xs = pd.concat([frame[x] for frame in by_round], axis=1, join="inner").mean(axis=1)
    ys = pd.concat([frame[y] for frame in by_round], axis=1, join="inner")
    return xs, pd.DataFrame({"median": ys.median(axis=1), "least": ys.min(axis=1), "most": ys.max(axis=1)})


def with_bytes(frame: pd.DataFrame) -> pd.DataFrame:
    """A history with a column of the bytes so far, up and down together."""
    if "bytes_up" not in frame:
        return frame
    return frame.assign(bytes=(frame["bytes_up"] + frame["bytes_down"]).cumsum())


def reported(frame: pd.DataFrame) -> pd.DataFrame:
    """A history whose value and gap are those of the model that the run hands back."""
    if "average_gap" not in frame:
        return frame
    return frame.drop(columns=list(AVERAGED)).rename(columns={average: name for name, average in AVERAGED.items()})


def drawn_rows(table: pd.DataFrame) -> NDArray[np.int64]:
    """Positions of the rows that a picture needs, ascending: all of a short table; of a long one the first, the last,
    and where some column is least or most in a stretch."""
    rows = len(table)
    if rows <= MAX_DRAWN_ROWS:
        return np.arange(rows)
    ends = np.concatenate([np.linspace(0, rows, STRETCHES + 1), np.geomspace(1, rows, STRETCHES + 1)])
    begins = np.unique(ends.astype(np.int64))[:-1]
    numbers = table.to_numpy(dtype=np.float64)
    chosen = [np.array([0, rows - 1])]
    for values in (np.where(np.isnan(numbers), np.inf, numbers), np.where(np.isnan(numbers), np.inf, -numbers)):
        for column in values.T:
            least = np.minimum.reduceat(column, begins)
            at = np.flatnonzero(column == np.repeat(least, np.diff(np.append(begins, rows))))
            chosen.append(at[np.searchsorted(at, begins)])  # of several equal ones, the first of each stretch
    return np.unique(np.concatenate(chosen))


def curves(runs: Iterable[Folder]) -> list[Curve]:
    """The curves of some runs, in the order of the algorithms' table, plain before accelerated."""
    groups: dict[str, list[Folder]] = defaultdict(list)
    for run in runs:
        groups[json.dumps(telling(run.config), sort_keys=True)].append(run)
    ordered = sorted(groups.values(), key=_place)
    first = [group[0] for group in ordered]
    named = labels([run.about["title"] for run in first], [telling(run.config) for run in first])
    memories = [0, *sorted({_memory(run) for run in first} - {0})]
    painted = colours([_algorithm(run) for run in first], [apart_from_anderson(run) for run in first])
    return [
        Curve(tuple(group), label, colour, memories.index(_memory(group[0])))
        for group, label, colour in zip(ordered, named, painted, strict=True)
    ]


def by_problem(runs: Iterable[Folder]) -> dict[str, list[Curve]]:
    """The curves of each problem, under its name and, where others share that, what sets it apart from them."""
    groups: dict[str, list[Folder]] = defaultdict(list)
    for run in runs:
        groups[json.dumps(telling(run.config)["problem"], sort_keys=True)].append(run)
    problems = [json.loads(key) for key in groups]
    names = [_problem_name(problem) for problem in problems]
    headings = []
    for name, problem in zip(names, problems, strict=True):
        alike = [{"problem": other} for other, own in zip(problems, names, strict=True) if own == name]
        headings.append(_label(name, {"problem": problem}, _different(alike)))
    return {heading: curves(group) for heading, group in zip(headings, groups.values(), strict=True)}


def _problem_name(problem: dict[str, Any]) -> str:
    """What a problem is called in headings: logistic, or "logistic on hospitals.csv"."""
    name = str(problem["name"]).rpartition("/")[2]
    return f"{name} on {str(problem['data']).rpartition('/')[2]}" if problem.get("data") else name


def labels(titles: Sequence[str], configs: Sequence[dict[str, Any]]) -> list[str]:
    """Algorithms, each with what sets its configuration apart from the others: "FedPi, eta = 0.01, Anderson 2".

    Of several problems the name is said, and what runs of that one differ in.
    """
    different = _different(configs)
    problems = [config["problem"] for config in configs if config.get("problem", {}).get("name")]
    names = [_problem_name(problem) for problem in problems]
    if len(names) == len(configs) and len(set(names)) > 1:
        alike = [
            [{"problem": other} for other, own in zip(problems, names, strict=True) if own == name]
            for name in set(names)
        ]
        within = {setting for trees in alike for setting in _different(trees)}
        different = [setting for setting in different if setting[0] != "problem" or setting in within]
        titles = [f"{title}, {name}" for title, name in zip(titles, names, strict=True)]
    return [_label(title, config, different) for title, config in zip(titles, configs, strict=True)]


def logarithmic(curves: Iterable[Curve], y: str) -> bool:
    """Whether a logarithmic axis shows all that there is of y, but for round-off below zero."""
    values = [frame[y] for curve in curves for frame in curve.frames if y in frame]
    most = max((value.max() for value in values), default=0.0)
    return bool(most > 0 and min(value.min() for value in values) >= -ROUND_OFF * most)


def apart_from_anderson(run: Folder) -> str:
    """The same for runs that differ in acceleration (and seed) alone."""
    return json.dumps({k: v for k, v in telling(run.config).items() if k != "anderson"}, sort_keys=True)


def telling(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that tell curves apart."""
    tree = {}
    for name, section in config.items():
        quiet = QUIET.get(name, ())
        if quiet is not None:
            tree[name] = {key: value for key, value in section.items() if key not in quiet}
    return tree


def colour_of(algorithm: str) -> str:
    """An algorithm's own colour."""
    return TABLE[algorithm].colour if algorithm in TABLE else GREY


def palette() -> list[str]:
    """Colours that can be told apart: those of the rows of the paper's table, and grey."""
    return [*(row.colour for row in TABLE.values() if not row.kin), GREY]


def colours(algorithms: Sequence[str], settings: Sequence[str]) -> list[str]:
    """An algorithm's own colour, lighter for each further setting of it; settings of a single one share the palette."""
    numbered: dict[str, dict[str, int]] = defaultdict(dict)  # settings, by algorithm
    places = []
    for algorithm, setting in zip(algorithms, settings, strict=True):
        own = numbered[algorithm]
        places.append(own.setdefault(setting, len(own)))
    if len(numbered) == 1 and max(places) > 0:
        every = palette()
        return [every[k % len(every)] for k in places]
    return [lighter(colour_of(algorithm), k) for algorithm, k in zip(algorithms, places, strict=True)]


def lighter(colour: str, steps: int) -> str:
    """A colour mixed with white, by a quarter per step."""
    channels = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    for _ in range(min(steps, 5)):
        channels = [round(c + 0.25 * (255 - c)) for c in channels]
    return "#" + "".join(f"{c:02X}" for c in channels)


def _algorithm(run: Folder) -> str:
    return str(run.config["scheme"]["algorithm"])


def _memory(run: Folder) -> int:
    return int(run.config["anderson"]["memory"])


def _place(group: Sequence[Folder]) -> tuple[int, str, int]:
    run, order = group[0], list(TABLE)
    place = order.index(_algorithm(run)) if _algorithm(run) in order else len(order)
    return place, apart_from_anderson(run), _memory(run)


def _different(trees: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The settings in which some of these configurations differ, beside the algorithm and what follows from it."""
    keys = [
        (name, key)
        for name in dict.fromkeys(n for tree in trees for n in tree)
        for key in {k: None for tree in trees for k in tree.get(name, {})}
    ]
    shown = []
    for name, key in keys:
        values = {json.dumps(tree.get(name, {}).get(key)) for tree in trees}
        if len(values) > 1 and (name, key) not in UNSAID and not _follows((name, key), trees):
            shown.append((name, key))
    return shown


def _follows(setting: tuple[str, str], trees: Sequence[dict[str, Any]]) -> bool:
    """Whether a setting has one value for each algorithm, as alpha, beta and gamma of the table's rows do."""
    if setting not in MIXING or any(tree["scheme"].get("algorithm") not in TABLE for tree in trees):
        return False
    values = {(tree["scheme"]["algorithm"], tree["scheme"].get(setting[1])) for tree in trees}
    return len(values) == len({algorithm for algorithm, _ in values})


def in_brief(part: str, section: dict[str, Any]) -> str:
    """A part with its values, as options of the command line say it: "send top:0.1"."""
    return f"{part} " + ":".join(_short(value) for value in section.values())


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _label(title: str, config: dict[str, Any], different: Iterable[tuple[str, str]]) -> str:
    parts = [title]
    for name, key in different:
        value = config.get(name, {}).get(key)
        if (name, key) == ("local", "momentum") and value == 0:  # none
            continue
        if (name, key) == ("anderson", "memory"):
            parts += [f"Anderson {value}"] if value else []
        elif name in NAMED_WHOLE:
            parts += [in_brief(name, config[name])] if config.get(name) else []
        elif value is not None:
            parts.append(_short(value) if key == "kind" else f"{key} = {_short(value)}")
    return ", ".join(dict.fromkeys(parts))
