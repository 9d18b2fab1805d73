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
from resolvent.config.sections import ENGINES
from resolvent.data import reports
from resolvent.errors import InputError
from resolvent.iteration import registry
from resolvent.iteration.table import TABLE
from resolvent.runs import trust
from resolvent.solving.metrics import NAMED


class Flag(NamedTuple):
    """An option, the key of the configuration that it sets, and what it says in --help."""

    option: str
    key: str
    """section.key, or a kind of part."""
    metavar: str
    help: str
    panel: str
    text: bool
    """Whether the value is text whatever it looks like."""
    choices: Collection[str]
    switch: bool
    """Whether it stands alone, for true; with --no- before its name, for false."""


PROBLEM, ALGORITHM, RUN = "Problem", "Algorithm", "Run"
PANELS = {"problem": PROBLEM, "run": RUN, "stop": RUN}
PART_OPTIONS = {"local": "--local-operator"}
"""Options that are not called as their kind: torchrun takes --local for an abbreviation of its own."""


def _flag(option: str, key: str, metavar: str = "", choices: Collection[str] = (), help: str = "") -> Flag:
    """The option for a key, by the type and the sentence that the key's field has."""
    section, _, name = key.partition(".")
    field = configs.keys(section)[name]
    text = (str in field.options and int not in field.options) or tuple[str, ...] in field.options
    choices, panel = choices or field.choices, PANELS.get(section, ALGORITHM)
    shown = metavar or "|".join(choices)
    return Flag(option, key, shown, help or field.about, panel, text, choices, bool in field.options)


def _part(kind: str) -> Flag:
    """The option that names a part of the round."""
    names = registry.parts(kind)
    usual = registry.KINDS[kind].usual
    alone = f"; a number alone is that of {usual}" if usual else ""
    help = f"{registry.KINDS[kind].about[:-1]}: {registry.usages(kind)}{alone}."
    return Flag(PART_OPTIONS.get(kind, f"--{kind}"), kind, "NAME:VALUE", help, ALGORITHM, True, names, False)


FLAGS = (
    _flag("--algorithm", "scheme.algorithm", "NAME", TABLE, f"One of {', '.join(TABLE)}, custom."),
    _flag("--eta", "scheme.eta", "NUMBER|auto"),
    _flag("--schedule", "scheme.schedule", "NAME", registry.parts("schedule")),
    _flag("--local-steps", "local.steps", "K"),
    _flag("--lr", "local.lr", "NUMBER"),
    _flag("--batch", "local.batch", "ROWS"),
    _flag("--momentum", "local.momentum", "NUMBER"),
    _flag("--anderson", "anderson.memory", "MEMORY"),
    *(_part(name) for name, kind in registry.KINDS.items() if kind.section),
    _flag("--stragglers", "participation.stragglers", "FACTOR"),
    _flag("--absent", "participation.absent"),
    _flag("--engine", "run.engine", "NAME", ENGINES),
    _flag("--rounds", "run.rounds", "N"),
    _flag("--seed", "run.seed", "N"),
    _flag("--every", "run.every", "N"),
    _flag("--average", "run.average"),
    _flag("--stop-gap", "stop.gap", "NUMBER"),
    _flag("--stop-certificates", "stop.certificates", "NUMBER"),
    _flag("--stop-seconds", "stop.seconds", "NUMBER"),
    _flag("--stop-metric", "stop.metric", "COLUMN"),
    _flag("--patience", "stop.patience", "N"),
    _flag("--validate-every", "run.validate_every", "N"),
    _flag("--metrics", "run.metrics", "NAME,...", NAMED,
          f"What is measured on held-out data: {', '.join(NAMED)}; else what is usual."),
    _flag("--users", "problem.users", "N"),
    _flag("--dim", "problem.dim", "N"),
    _flag("--penalty", "problem.penalty", "KIND"),
    _flag("--rows", "problem.rows", "N"),
    _flag("--data", "problem.data", "FILE"),
    _flag("--device", "problem.device", choices=("cpu", "cuda")),
    _flag("--precision", "problem.precision"),
    _flag("--target", "problem.target", "COLUMN"),
    _flag("--partition", "problem.partition", "KIND"),
    _flag("--user-column", "problem.user_column", "COLUMN"),
    _flag("--drop", "problem.drop", "COLUMN,..."),
    _flag("--categories", "problem.categories", "COLUMN,..."),
    _flag("--test", "problem.test", "SHARE"),
    _flag("--test-users", "problem.test_users", "USER,..."),
    _flag("--impute", "problem.impute", "KIND", tuple(reports.FILLS)),
    _flag("--standardise", "problem.standardise"),
    _flag("--intercept", "problem.intercept"),
    _flag("--weights", "problem.weights"),
    _flag("--class-weight", "problem.class_weight", "balanced|CLASS=NUMBER,...", ("balanced",)),
    _flag("--sample-weight", "problem.sample_weight", "COLUMN"),
    _flag("--delta", "problem.delta", "NUMBER"),
    _flag("--quantile", "problem.quantile", "Q"),
    _flag("--positive", "problem.positive", "CLASS"),
)  # fmt: skip

ALGORITHMS = ("Algorithms:", *(f"- {name}: {row.about}" for name, row in TABLE.items()))
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
