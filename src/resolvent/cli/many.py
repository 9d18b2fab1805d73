"""Commands that run many configurations: compare, sweep."""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from resolvent import config as configs
from resolvent import data, experiment, report
from resolvent.cli import output
from resolvent.cli.arguments import CODES, RUNS, Form, Out, Quiet
from resolvent.cli.options import ALGORITHM, FLAGS, Options, configurable, problem_of, tree
from resolvent.cli.output import Format, say
from resolvent.cli.running import ProblemName
from resolvent.config import Config
from resolvent.errors import InputError, quoted, refuse, whole
from resolvent.experiment.build import algorithm as algorithm_of
from resolvent.experiment.driving import Outcome
from resolvent.experiment.tasks import Task, task
from resolvent.iteration.table import TABLE

MEMORY = 2
Make = Callable[[Any, int, int | None], Task]
"""A problem by its section, seed and threads."""
PAUSE = 0.5
"""Seconds between two looks at runs of other processes."""


def _compared() -> list[str]:
    """The algorithms that are compared unless others are named."""
    return [name for name, row in TABLE.items() if row.compared]


@configurable
def compare(
    problem: ProblemName,
    options: Options,
    algorithms: Annotated[
        str | None, typer.Option(help="Names, separated by commas.", show_default=",".join(_compared()))
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:OPTION=VALUE,..", help="Options of one algorithm alone, as fedavg:eta=0.05; repeatable."
        ),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option("--x", metavar="AXES", help="What to draw against: round, seconds, bytes, separated by commas."),
    ] = None,
    out: Out = RUNS,
    form: Form = Format.table,
    quiet: Quiet = False,
) -> int:
    """Run every algorithm, plain and accelerated, on equal footing: a table, a picture, one HTML file."""
    if options["algorithm"] is not None:
        refuse("--algorithm", options["algorithm"], "several are compared here: --algorithms says which")
    xs = [] if x is None else list(dict.fromkeys(word.strip() for word in x.split(",")))
    if set(xs) - set(report.AXES):
        refuse("--x", quoted(x), f"{', '.join(report.AXES)}, or several of them separated by commas, are needed")
    base, make = tree(problem_of(problem), options), _making()
    asked = _compared() if algorithms is None else algorithms.split(",")
    names = list(dict.fromkeys(algorithm_of(name.strip()) for name in asked))
    own = _own_settings(settings or (), names)
    if any("scheme.eta" not in dict(own[name]) for name in names):
        base = configs.with_values(base, _equal_footing(base, make))
    memories = [0, base.get("anderson", {}).get("memory") or MEMORY]
    configurations = [
        configs.read(
            configs.with_values(
                base, [("scheme.algorithm", name), ("anderson.memory", memory), *_steps(base, name), *own[name]]
            )
        )
        for name, memory in itertools.product(names, memories)
    ]
    many = f"{len(names)} {'algorithm' if len(names) == 1 else 'algorithms'}"
    title = f"{_called(problem, base)}: {many}, plain and accelerated"
    path = out / f"compare-{_called(problem, base)}"
    return _many(_settled(configurations, make), make, title, path, form, quiet, xs=xs)


@configurable
def sweep(
    problem: ProblemName,
    options: Options,
    grid: Annotated[list[str], typer.Option(metavar="SECTION.KEY=A,B,..", help="Values of a key; repeatable.")],
    seeds: Annotated[int, typer.Option(help="How many seeds, counted from --seed.")] = 1,
    together: Annotated[bool, typer.Option("--together", help="Run the seeds of a network as one batch.")] = False,
    out: Out = RUNS,
    form: Form = Format.table,
    quiet: Quiet = False,
) -> int:
    """Run a grid of configurations, each with several seeds, and rank them. Finished runs are not repeated."""
    base, axes, make = tree(problem_of(problem), options), _axes(grid), _making()
    first = configs.read(base).run.seed
    axes["run.seed"] = [first + k for k in range(whole(seeds, "seeds"))]
    title = f"{_called(problem, base)}: " + " x ".join(f"{key} ({len(values)})" for key, values in axes.items())
    configurations = _settled(list(_expand(base, axes)), make)
    if together and not _seeds_together(configurations, out, quiet):
        return CODES["interrupted"]
    return _many(configurations, make, title, out / f"sweep-{_called(problem, base)}", form, quiet, ranked=True)


# --- what they share -------------------------------------------------------------------------------------------------


def _making() -> Make:
    """Makes problems; the last one is cached, since most configurations in a row share it."""
    return functools.lru_cache(maxsize=1)(task)


def _called(problem: str, base: dict[str, Any]) -> str:
    """A problem and its data in titles and names of files: logistic-a9a; of a file alone, patients."""
    if base.get("problem", {}).get("data") == problem:
        return data.stem(problem)
    name, file = Path(problem.replace(".py:", "-")).stem, base.get("problem", {}).get("data")
    return f"{name}-{data.stem(file)}" if isinstance(file, str) else name


def _own_settings(given: Sequence[str], names: Sequence[str]) -> dict[str, list[tuple[str, Any]]]:
    """The keys and values that each algorithm has for itself."""
    own: dict[str, list[tuple[str, Any]]] = {name: [] for name in names}
    keys = {flag.option.removeprefix("--"): flag for flag in FLAGS if flag.panel == ALGORITHM}
    for text in given:
        name, colon, pairs = text.partition(":")
        if not colon or not pairs:
            refuse("--settings", quoted(text), "NAME:OPTION=VALUE is needed, fedavg:eta=0.05 say")
        if algorithm_of(name.strip()) not in own:
            refuse("--settings", quoted(text), f"{name} is not compared: --algorithms has {','.join(names)}")
        for pair in pairs.split(","):
            option, equals, value = (part.strip() for part in pair.partition("="))
            if not equals or option not in keys or option == "algorithm":
                which = ", ".join(name for name in keys if name != "algorithm")
                refuse("--settings", quoted(text), f"OPTION=VALUE with one of {which} is needed")
            flag = keys[option]
            own[algorithm_of(name.strip())].append((flag.key, value if flag.text else configs.literal(value)))
    return own


def _equal_footing(base: dict[str, Any], make: Make) -> Iterator[tuple[str, Any]]:
    """One eta for all."""
    if "eta" not in base.get("scheme", {}):
        config = configs.read(base)
        made = make(config.problem, config.run.seed, config.run.threads)
        if made.eta is None:
            raise InputError(
                "scheme.eta is missing, and algorithms are compared at the same one; give --eta, "
                "or each its own with --settings NAME:eta=NUMBER"
            )
        yield "scheme.eta", made.eta


def _steps(base: dict[str, Any], algorithm: str) -> list[tuple[str, Any]]:
    """FedAvg takes two local steps, as in the paper's figure on acceleration, unless something else was asked for."""
    steps = TABLE[algorithm].compared_steps if algorithm in TABLE else 1
    return [("local.steps", steps)] if steps > 1 and "steps" not in base.get("local", {}) else []


def _axes(grid: Sequence[str]) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for key, values in map(_axis, grid):
        if key == "run.seed":
            refuse("--grid", key, "seeds are counted by --seeds, from --seed on")
        if key in axes:
            refuse("--grid", f"{key} twice", "give all values of a key in one --grid")
        axes[key] = values
    return axes


def _axis(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    if not equals or not values:
        refuse("--grid", quoted(text), "section.key=a,b,c is needed, scheme.eta=1e-3,1e-2 say")
    return key.strip(), [configs.literal(value.strip()) for value in values.split(",")]


def _expand(base: dict[str, Any], axes: dict[str, list[Any]]) -> Iterator[Config]:
    """The grid's configurations."""
    for values in itertools.product(*axes.values()):
        yield configs.read(configs.with_values(base, zip(axes, values, strict=True)))


def _settled(configurations: Sequence[Config], make: Make) -> dict[Config, str]:
    """Configurations, each once, with its algorithm's title: all are built before the first one runs.

    So what cannot be run is said at once. An eta that depends on the problem is settled here too: seeds share it.
    """
    first = {config.problem: (config.run.seed, config.run.threads) for config in reversed(configurations)}
    settled = {}
    for problem, (
        seed,
        threads,
    ) in first.items():  # the first run's problem comes last, and is still there when it begins
        for config in configurations:
            if config.problem == problem:
                built = experiment.build(config, make(problem, seed, threads))
                settled[config] = (replace(config, scheme=built.config.scheme), built.scheme.name)
    return dict(settled[config] for config in configurations)


def _many(
    settled: dict[Config, str],
    make: Make,
    title: str,
    path: Path,
    form: Format,
    quiet: bool,
    ranked: bool = False,
    xs: Sequence[str] = (),
) -> int:
    """Run all of them under the folder of `path`, then print, draw and write what came out; ranked: the best first."""
    report.needed("matplotlib", "plotly")
    folders, worst = [], 0
    for outcome in _each(settled, make, path.parent, quiet):
        if outcome.status == "interrupted":
            say("interrupted: the same command goes on where it was left")
            return CODES["interrupted"]
        folders.append(outcome.run)
        worst = max(worst, CODES.get(outcome.status, 0))
    curves = report.curves(folders)
    rows = report.ranked(report.summary(curves)) if ranked else report.summary(curves)
    output.rows(rows, form, title, report.columns(rows), report.NOTE)
    if ranked and form is Format.table and (best := report.best(rows)):
        say(f"best: {best}")
    picture = report.draw(curves, path.with_name(f"{path.name}.png"), title, xs=xs)
    page = report.page(curves, path.with_name(f"{path.name}.html"), title, xs)
    say(f"{picture}: the picture", f"{page}: the report")
    return worst


def _seeds_together(settled: dict[Config, str], out: Path, quiet: bool) -> bool:
    """Run what is left of configurations that differ in their seed alone, one batch after the other."""
    batches: dict[Any, list[Config]] = {}
    for config in settled:
        batches.setdefault(experiment.but_for_seed(config), []).append(config)
    for batch in batches.values():
        built = [experiment.build(config) for config in batch]
        stored = [experiment.find(each.fingerprint, out) for each in built]
        rest = [each for each, run in zip(built, stored, strict=True) if run is None or run.end is None]
        if len(rest) < 2:
            continue
        if not quiet:
            say(f"{rest[0].name}: seeds {', '.join(str(each.config.run.seed) for each in rest)} as one batch")
        outcomes = experiment.run_together(rest, out, False if quiet else None)
        if any(outcome is not None and outcome.status == "interrupted" for outcome in outcomes):
            say("interrupted: the same command goes on where it was left")
            return False
    return True


def _each(settled: dict[Config, str], make: Make, out: Path, quiet: bool) -> Iterator[Outcome]:
    """Run what is not done yet and resume what was interrupted; runs of other processes come last, once they end."""
    labels = report.labels(list(settled.values()), [configs.plain(config) for config in settled])
    waiting = deque((k, config, label) for k, (config, label) in enumerate(zip(settled, labels, strict=True), 1))
    busy = 0
    while waiting:
        k, config, label = waiting.popleft()
        built = experiment.build(config, make(config.problem, config.run.seed, config.run.threads))
        stored = experiment.find(built.fingerprint, out)
        how = (
            ""
            if stored is None
            else "done already"
            if stored.end
            else "being run"
            if stored.status == "running"
            else "going on"
        )
        if not quiet and not busy > len(waiting):
            say(f"[{k}/{len(settled)}] {label}" + (how and f": {how}"))
        outcome = None if how == "being run" else experiment.begin_or_resume(built, out, False if quiet else None)
        if outcome is None:
            waiting.append((k, config, label))
            busy += 1
            if busy >= len(waiting):
                time.sleep(PAUSE)  # only runs of other processes are left
            continue
        busy = 0
        say(*(() if how == "done already" else outcome.messages))
        yield outcome


COMMANDS: dict[Callable[..., Any], tuple[str, ...]] = {
    compare: (
        "resolvent compare least-squares",
        "resolvent compare logistic --data a9a.gz --users 20 --partition dirichlet:0.3 --rounds 100",
        "resolvent compare my_task.py:task --settings fedavg:eta=0.05 --settings fedprox:eta=10,lr=0.1",
    ),
    sweep: (
        "resolvent sweep logistic --grid scheme.eta=1e-3,1e-2,1e-1 --grid anderson.memory=0,2,10 --seeds 4",
        "resolvent sweep mnist --grid scheme.eta=10,100 --seeds 4 --together",
    ),
}
