"""Commands about one configuration: run, resume, explain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from resolvent import config as configs
from resolvent import experiment, report, runs
from resolvent.cli import output
from resolvent.cli.arguments import CODES, RUNS, Form, Out, Quiet, RunName, sound
from resolvent.cli.options import ALGORITHMS, Options, Trust, assignments, configurable, configure, problem_of
from resolvent.cli.output import Format, first_rank, say
from resolvent.config.problem_sections import PROBLEMS
from resolvent.config.sections import ALL_REDUCE
from resolvent.errors import InputError, refuse
from resolvent.experiment import opening, ranks
from resolvent.experiment.conduct import check_made_here
from resolvent.experiment.driving import Outcome
from resolvent.iteration.metric_names import of_reported
from resolvent.runs import Folder

ProblemName = Annotated[
    str,
    typer.Argument(
        metavar="PROBLEM",
        help=f"A file of data (CSV, Parquet, LIBSVM, npz), {', '.join(PROBLEMS)}, a TOML file, or file.py:function.",
        autocompletion=lambda incomplete: [name for name in PROBLEMS if name.startswith(incomplete)],
    ),
]
FAR = 1e-6
"""A gap, relative to the value, above which coefficients are not yet what they will be."""
MOST_SHOWN = 30
"""Coefficients that a person is shown."""


@configurable
def run(
    problem: ProblemName,
    options: Options,
    out: Out = RUNS,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard's event files too.")] = False,
    form: Form = Format.table,
    quiet: Quiet = False,
) -> int:
    """Run one algorithm on one problem, and store it on disk as it goes."""
    options["set_"] = [*(options["set_"] or ()), *["store.tensorboard=true"] * tensorboard]
    config = configure(problem_of(problem), options)
    if config.run.engine == ALL_REDUCE:
        return _on_ranks(lambda: ranks.begin(config, out, lambda built: _note(built, quiet), _bar(quiet)), form, quiet)
    built = experiment.build(config)
    _note(built, quiet)
    outcome = experiment.begin(built, out, _bar(quiet))
    code = _tell(outcome, form, quiet, _coefficients(outcome.run, built.task.problem))
    if built.task.partition and not built.private:
        _draw_partition(built.task.partition, outcome.run, quiet)
    return code


def resume(
    name: RunName,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="Go on until so many are done in all.")] = None,
    out: Out = RUNS,
    trust: Trust = False,
    form: Form = Format.table,
    quiet: Quiet = False,
) -> int:
    """Resume a run that was interrupted or killed, or give it more rounds; its result is the same to the last bit."""
    if ranks.started():
        if rounds is not None:
            refuse("--rounds", rounds, "a run on several ranks ends where it was to end: leave it out")
        return _on_ranks(lambda: ranks.resume(name, out, _bar(quiet), trust), form, quiet)
    return _tell(experiment.resume(runs.find(name, out), _bar(quiet), trust, rounds), form, quiet)


@configurable
def fork(
    name: RunName,
    options: Options,
    out: Out = RUNS,
    form: Form = Format.table,
    quiet: Quiet = False,
) -> int:
    """Go on from a run's state with other settings, in a new run; the first one is left as it is."""
    if options["preset"] is not None:
        refuse("--preset", options["preset"], "a fork has the settings of its run: change them with --set")
    source = runs.find(name, out)
    check_made_here(source)
    base = {section: dict(keys) for section, keys in sound(source).config.items()}
    base["problem"].pop("sha256", None)  # the file as it is now
    config = configs.read(configs.with_values(base, assignments(options)))
    return _tell(experiment.fork(source, config, out, False if quiet else None, options["trust"]), form, quiet)


@configurable
def explain(problem: ProblemName, options: Options, form: Form = Format.table) -> None:
    """Say what a configuration solves, by which theorem, what speaks against it, and what to change."""
    built = experiment.build(configure(problem_of(problem), options))
    explanation = built.explanation
    if form is Format.table:
        output.write(str(explanation))
        return
    output.pairs(explanation.facts, form)


# --- what they are made of -------------------------------------------------------------------------------------------


def _bar(quiet: bool) -> bool | None:
    return False if quiet else None


def _note(built: experiment.Experiment, quiet: bool) -> None:
    if not quiet:
        notes = () if built.private else built.task.notes  # which tell of the rows
        say(*(f"note: {finding}" for finding in (*notes, *built.explanation.findings)))


def _on_ranks(run: Callable[[], Outcome], form: Format, quiet: bool) -> int:
    """Print how a run on several ranks ended, on rank 0; the others have nothing to say."""
    outcome = run()
    return _tell(outcome, form, quiet) if first_rank() else CODES.get(outcome.status, 0)


def _coefficients(run: Folder, problem: Any) -> dict[Any, Any]:
    """The coefficients of a table's model by name, in the units of the table; nothing for other problems."""
    model, preparation = run.model(), getattr(problem, "preparation", None)
    return {} if model is None or preparation is None else preparation.unscale(model)


def _advice(config: Mapping[str, Any]) -> str:
    """What brings a run closer to its minimum, without what it was given already."""
    unaccelerated, raw = not config["anderson"]["memory"], not config["problem"].get("standardise", True)
    *most, last = ["more --rounds", *["--anderson 5"] * unaccelerated, *["--standardise"] * raw]
    return f"{', '.join(most)} or {last}" if most else last


def _leak(figures: Mapping[str, Any], preparation: Any, coefficients: dict[Any, Any]) -> str | None:
    """A note where every held-out row is predicted right, by a column that may say what is to be predicted."""
    if figures.get("test_accuracy") != 1 or figures.get("test_auc") != 1 or preparation.target.scores > 1:
        return None
    scales = preparation.scaling.scale if preparation.scaling else [1.0] * len(preparation.features)
    most = max(zip(preparation.features, scales, strict=True), key=lambda pair: abs(coefficients[pair[0]] * pair[1]))
    name, target = most[0], preparation.target.name
    return f"note: every held-out row is predicted right, most of all by {name!r}: is it known before {target!r} is?"


def _tell(outcome: Outcome, form: Format, quiet: bool, coefficients: dict[Any, Any] | None = None) -> int:
    """Print how a run ended, and what it found."""
    figures = outcome.run.row()
    about: dict[str, Any] = {"run": outcome.run.id, "status": outcome.status, "reason": outcome.reason}
    about |= {"solves": outcome.run.about["explanation"]["solves"]} | figures | {"folder": str(outcome.run.path)}
    if coefficients and form is not Format.table:
        about["coefficients"] = {str(name): value for name, value in coefficients.items()}
    say(*outcome.messages)
    output.pairs(about if form is not Format.table else {k: v for k, v in about.items() if v == v}, form)  # no NaN
    judged = of_reported(figures)
    far, value = judged.get("gap", 0.0), abs(judged.get("value", 0.0))
    if coefficients and about["solves"] == "original" and far > FAR * value:
        above = f"the objective is still {far / value:.2g} of its value above its minimum"
        say(f"note: {above}; give {_advice(outcome.run.config)}")
    if coefficients and (leak := _leak(figures, opening.description(outcome.run).preparation, coefficients)):
        say(leak)
    if coefficients and form is Format.table and not quiet:
        show_coefficients(coefficients, opening.description(outcome.run).adds_to)
    if outcome.status == "interrupted" and not quiet:
        out = outcome.run.path.parent
        say(f"go on with: resolvent resume {outcome.run.id}" + ("" if out == RUNS else f" --out {out}"))
    return CODES.get(outcome.status, 0)


def show_coefficients(coefficients: dict[Any, Any], adds_to: str) -> None:
    """A table of the first of them: one column, or one per class."""
    many = {f"adds to {adds_to}": coefficients}
    if any(isinstance(value, dict) for value in coefficients.values()):
        many = {str(label): own for label, own in coefficients.items()}
    names = list(next(iter(many.values())))
    rows = [{"": name} | {label: own[name] for label, own in many.items()} for name in names[:MOST_SHOWN]]
    left = f"and {len(names) - MOST_SHOWN} more: --format json has them all" if len(names) > MOST_SHOWN else ""
    output.rows(rows, Format.table, "Coefficients", note=left)


def _draw_partition(partition: dict[str, Any], run: Folder, quiet: bool) -> None:
    """The run has ended by now: that a picture cannot be drawn is noted, and is no failure."""
    try:
        words = f"{report.draw_partition(partition, run.path / 'partition.png')}: who holds what"
    except InputError as error:
        words = f"note: {error}"
    if not quiet:
        say(words)


COMMANDS: dict[Callable[..., Any], tuple[str, ...]] = {
    run: (
        "resolvent run least-squares --algorithm fedpi --eta 1e-5 --rounds 200 --anderson 2 --participation 0.5",
        "resolvent run experiment.toml --set scheme.eta=1e-4",
        "resolvent run logistic --data a9a.gz --users 20 --partition dirichlet:0.3",
        "resolvent run mnist --preset quick --algorithm fedavg --batch 20 --local-steps 2 --lr 0.05",
        "The last is FedAvg as it is usually run: --local-steps epochs of minibatches with the step --lr.",
        *ALGORITHMS,
    ),
    resume: (
        "resolvent resume fedpi-least-squares-20260101-120000-1f2e",
        "resolvent resume 1f2e",
        "resolvent resume 1f2e --rounds 400",
    ),
    fork: ("resolvent fork 1f2e --set scheme.eta=1e-3 --rounds 400",),
    explain: (
        "resolvent explain least-squares --algorithm fedprox --eta 1e-5",
        "resolvent explain experiment.toml --format json",
        *ALGORITHMS,
    ),
}
