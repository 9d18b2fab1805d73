"""Options that set a key of the configuration: rows of a table, added to every command that takes a configuration."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from resolvent import config as configs
from resolvent import data
from resolvent.cli.output import say
from resolvent.config import Config
from resolvent.config.problem_sections import AUTO, FITTED, PROBLEMS
from resolvent.data import reports
from resolvent.errors import InputError
from resolvent.iteration.table import TABLE
from resolvent.problems.inputs import WEIGHTS
from resolvent.runs import trust
from resolvent.solving.metrics import NAMED


class Flag(NamedTuple):
    """An option, the key it sets, and what it says in --help."""

    option: str
    key: str
    metavar: str
    help: str
    panel: str
    text: bool = False
    """Whether the value is text whatever it looks like."""
    choices: Collection[str] = ()
    switch: bool = False
    """Whether it stands alone, for true; with --no- before its name, for false."""


PROBLEM, ALGORITHM, RUN = "Problem", "Algorithm", "Run"
ENGINES = ("in-process", "debug", "all-reduce")
FLAGS = (
    Flag("--algorithm", "scheme.algorithm", "NAME", f"One of {', '.join(TABLE)}, custom.", ALGORITHM, True,
         TABLE),
    Flag("--eta", "scheme.eta", "NUMBER|auto", "The step size.", ALGORITHM),
    Flag("--schedule", "scheme.schedule", "NAME", "How eta falls: harmonic, inverse-sqrt, ...", ALGORITHM,
         True, configs.choices("scheme.schedule")),
    Flag("--local-steps", "local.steps", "K", "Gradient steps per user and round (with --batch: epochs).", ALGORITHM),
    Flag("--lr", "local.lr", "NUMBER", "Step size of gradient steps inside a prox.", ALGORITHM),
    Flag("--batch", "local.batch", "ROWS", "Rows in a minibatch.", ALGORITHM),
    Flag("--momentum", "local.momentum", "NUMBER", "Momentum of gradient steps.", ALGORITHM),
    Flag("--anderson", "anderson.memory", "MEMORY", "Anderson acceleration with this memory; 0 is none.", ALGORITHM),
    Flag("--participation", "participation.probability", "P", "Probability that a user takes part in a round.",
         ALGORITHM),
    Flag("--stragglers", "participation.stragglers", "FACTOR",
         "Answers take time: how many times slower the slowest user is; rounds do not wait for it.", ALGORITHM),
    Flag("--absent", "participation.absent", "hold|paper", "What absent users do.", ALGORITHM, True,
         configs.choices("participation.absent")),
    Flag("--engine", "run.engine", "NAME", "Where users live: in-process (all here), debug (one user at a time, every "
         "answer checked), all-reduce (on several ranks, started by torchrun).", RUN, True, ENGINES),
    Flag("--rounds", "run.rounds", "N", "How many rounds.", RUN),
    Flag("--seed", "run.seed", "N", "The seed of everything random.", RUN),
    Flag("--every", "run.every", "N", "Rounds between two rows of metrics.", RUN),
    Flag("--average", "run.average", "ergodic|suffix", "Report the average of the models.", RUN, True,
         configs.choices("run.average")),
    Flag("--stop-gap", "stop.gap", "NUMBER", "Stop when f(w) - f* is at most this.", RUN),
    Flag("--stop-certificates", "stop.certificates", "NUMBER", "Stop when stationarity and consensus are at most this.",
         RUN),
    Flag("--stop-seconds", "stop.seconds", "NUMBER", "Stop after this many seconds of computing.", RUN),
    Flag("--stop-metric", "stop.metric", "COLUMN", "Stop when this column, validation_loss say, no longer improves.",
         RUN, True),
    Flag("--patience", "stop.patience", "N", "With --stop-metric: evaluations without improvement to wait for.", RUN),
    Flag("--validate-every", "run.validate_every", "N", "Rounds between two evaluations on held-out data.", RUN),
    Flag("--metrics", "run.metrics", "NAME,...",
         f"What is measured on held-out data: {', '.join(NAMED)}; else what is usual.", RUN, True, NAMED),
    Flag("--users", "problem.users", "N", "How many users.", PROBLEM),
    Flag("--dim", "problem.dim", "N", "Dimension of a generated problem.", PROBLEM),
    Flag("--penalty", "problem.penalty", "KIND", "g beside the users' functions: l1:0.1, l2:T, elastic-net:L1:L2, "
         "box:LOW:HIGH, orthant, simplex:TOTAL, ball:RADIUS.", PROBLEM, True),
    Flag("--rows", "problem.rows", "N", "Rows per user of a generated problem.", PROBLEM),
    Flag("--data", "problem.data", "FILE", "Your own data: LIBSVM text, CSV, Parquet or npz.", PROBLEM, True),
    Flag("--device", "problem.device", "cpu|cuda", "Where a network is trained.", PROBLEM, True, ("cpu", "cuda")),
    Flag("--target", "problem.target", "COLUMN", "The column to predict.", PROBLEM),
    Flag("--partition", "problem.partition", "KIND", "iid, dirichlet:0.3, shards:2, sorted:2, contiguous.", PROBLEM,
         True),
    Flag("--user-column", "problem.user_column", "COLUMN", "The column that says whose row it is.", PROBLEM, True),
    Flag("--drop", "problem.drop", "COLUMN,...", "Columns that are no features.", PROBLEM, True),
    Flag("--categories", "problem.categories", "COLUMN,...", "Columns of codes: categories, though they hold numbers.",
         PROBLEM, True),
    Flag("--test", "problem.test", "SHARE", "Hold out this share of every user's rows, 0.2 say.", PROBLEM),
    Flag("--test-users", "problem.test_users", "USER,...", "Hold out these users whole.", PROBLEM, True),
    Flag("--impute", "problem.impute", "KIND", "Fill missing values: mean, median, most_frequent, or COLUMN=KIND,...",
         PROBLEM, True, tuple(reports.FILLS)),
    Flag("--standardise", "problem.standardise", "",
         "Scale features to mean 0 and spread 1, by users' sums; usual for `run FILE`.", PROBLEM, switch=True),
    Flag("--intercept", "problem.intercept", "", "An intercept, which is not regularised; usual for `run FILE`.",
         PROBLEM, switch=True),
    Flag("--weights", "problem.weights", "rows|users",
         "Every row counts the same, or every user's mean does.", PROBLEM, True, WEIGHTS),
    Flag("--delta", "problem.delta", "NUMBER", "Huber's: the residual from which on the loss is linear.", PROBLEM),
    Flag("--quantile", "problem.quantile", "Q", "Which quantile, between 0 and 1.", PROBLEM),
    Flag("--positive", "problem.positive", "CLASS", "The class that is told from the others.", PROBLEM, True),
)  # fmt: skip

ALGORITHMS = "\n\n        ".join(["Algorithms:", *(f"- {name}: {row.about}" for name, row in TABLE.items())])
"""What --help says of each."""

Trust = Annotated[
    bool, typer.Option("--trust", help="Call the file.py:function that a run or file from elsewhere names.")
]
Options = dict[str, Any]
"""Values by option, as they came; None where an option was not given."""


def _complete(choices: Collection[str]) -> Callable[[str], list[str]]:
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def _name(flag: Flag) -> str:
    return flag.option.removeprefix("--").replace("-", "_")


def configurable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command every option of the table, and --set; they reach it together as `options`."""
    own = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = []
    for flag in FLAGS:
        option = typer.Option(
            f"{flag.option}/--no-{flag.option.removeprefix('--')}" if flag.switch else flag.option,
            metavar=flag.metavar or None,
            help=flag.help,
            rich_help_panel=flag.panel,
            autocompletion=_complete(flag.choices) if flag.choices else None,
        )
        kind = bool | None if flag.switch else str | None
        added.append(inspect.Parameter(_name(flag), keyword, default=None, annotation=Annotated[kind, option]))
    any_key = typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Set any key of the configuration; repeatable.")
    added.append(inspect.Parameter("set_", keyword, default=None, annotation=Annotated[list[str] | None, any_key]))
    added.append(inspect.Parameter("trust", keyword, default=False, annotation=Trust))
    preset = typer.Option("--preset", metavar="quick|paper", help="Settings of an image problem to begin with.")
    added.append(inspect.Parameter("preset", keyword, default=None, annotation=Annotated[str | None, preset]))
    mine = [p.replace(kind=keyword) for name, p in own.parameters.items() if name != "options"]

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        options = {p.name: given.pop(p.name) for p in added}
        return command(**given, options=options)

    del wrapped.__wrapped__  # typer must see the signature below
    wrapped.__signature__ = inspect.Signature([*mine, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*mine, *added)}
    return wrapped


def tree(problem: str, options: Options) -> dict[str, Any]:
    """The sections that a problem (or a TOML file) and options ask for. Options win over the file, --set over both."""
    base: dict[str, Any] = configs.load(problem) if problem.endswith(".toml") else {"problem": {"name": problem}}
    if _is_data(problem):
        base = {"problem": {"name": AUTO, "data": problem}}
    if options["preset"] is not None:
        base = configs.preset(problem, options["preset"])
    asked = configs.with_values(base, assignments(options))
    if problem.endswith(".toml"):
        _consent(Path(problem), asked.get("problem", {}), options["trust"])
    return asked


def _consent(path: Path, section: Any, trusted: bool) -> None:
    """Say that a configuration's file calls code; one that another user or run made must be trusted first."""
    code = section.get("name") if isinstance(section, dict) else None
    if not isinstance(code, str) or ".py:" not in code:
        return
    say(f"note: {path} calls code, {code}")
    foreign = (path.parent / "about.json").exists() and not trust.sealed(path.parent)
    mine = getattr(os, "getuid", lambda: 0)()
    if not trusted and (foreign or path.stat().st_uid not in (mine, 0)):
        raise InputError(
            f"{path} calls code, {code}, and was not made by this user on this machine; "
            "read that file first, then say so with --trust"
        )


def assignments(options: Options) -> list[tuple[str, Any]]:
    """What options and --set ask for, as keys and values."""
    given = [(flag, options[_name(flag)]) for flag in FLAGS if options[_name(flag)] is not None]
    flags = [(flag.key, value if flag.text or flag.switch else configs.literal(value)) for flag, value in given]
    return flags + [configs.parse(assignment) for assignment in options["set_"] or ()]


def _is_data(name: str) -> bool:
    """Whether a problem was named by its file: one of the user's, with labels that say what to fit."""
    if configs.alike(name) in (*PROBLEMS, *FITTED) or ".py:" in name or name.endswith(".toml"):
        return False
    return data.is_table(name) or Path(name).is_file()


def configure(problem: str, options: Options) -> Config:
    """The configuration that was asked for, checked."""
    return configs.read(tree(problem, options))


def problem_of(name: str) -> str:
    """The positional argument: a problem, a file of data, a TOML file or file.py:function."""
    if configs.alike(name) in (*PROBLEMS, *FITTED) or ".py:" in name:
        return name
    if _is_data(name):
        if not Path(name).is_file():
            raise InputError(f"there is no file {name}; name a CSV, Parquet, LIBSVM or npz file that is there")
        return name
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise InputError(f"there is no configuration {name}; name a TOML file, or one of {', '.join(PROBLEMS)}")
        return name
    raise InputError(f"there is no problem {name!r}{configs.nearest(name, PROBLEMS)}")
