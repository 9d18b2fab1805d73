"""The typed configuration as a form: sections, what each may name, its fields, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from resolvent import config as configs
from resolvent.config.problem_sections import PROBLEMS
from resolvent.iteration import registry
from resolvent.iteration.registry import KINDS, Field, Registered
from resolvent.iteration.table import TABLE

HIDDEN = {"problem.name", "problem.folder", "problem.sha256", "run.threads", "store.tensorboard"}
"""Keys that the page does not set: files that it does not read, and what depends on the machine."""
FIRST = {
    "problem.users", "problem.dim", "problem.rows", "problem.partition", "scheme.algorithm", "scheme.eta",
    "scheme.schedule", "local.steps", "anderson.memory", "participation.probability", "participation.size",
    "participation.stragglers", "run.rounds", "run.seed",
}  # fmt: skip
"""Keys that are shown without being asked for."""


def form() -> dict[str, Any]:
    """Every section: the key by which it names one of several parts, if it does, which is usual, and their fields."""
    return {"sections": [_section(name) for name in configs.names()]}


def _section(name: str) -> dict[str, Any]:
    by, usual, parts = None, "", [Registered("", object)]
    if name == "problem":
        by, parts = "name", [Registered(problem, kind) for problem, kind in PROBLEMS.items()]
        usual = parts[0].name
    elif name in KINDS:
        by, usual, parts = "kind", KINDS[name].null or "", list(registry.configurable(name).values())
    fields = {each.name: each.fields if by else configs.keys(name).values() for each in parts}
    shown = [{"name": each.name, "words": each.about, "fields": _fields(name, fields[each.name])} for each in parts]
    return {"name": name, "by": by, "usual": usual, "parts": shown}


def _fields(section: str, fields: Iterable[Field]) -> list[dict[str, Any]]:
    choices = {"scheme.algorithm": [*TABLE, "custom"], "scheme.schedule": list(registry.parts("schedule"))}
    shown = []
    for field in fields:
        where = f"{section}.{field.key}"
        if where in HIDDEN or not field.plain:
            continue
        plain = isinstance(field.default, str | bool | int | float) and not field.open
        shown.append({
            "key": field.key,
            "types": [] if where in choices else [t.__name__ for t in (int, float, bool, str) if t in field.options],
            "choices": choices.get(where, list(field.choices)),
            "optional": type(None) in field.options or field.open,
            "default": field.default if plain else None,
            "words": field.about,
            "first": where in FIRST or field.default is registry.REQUIRED,
        })  # fmt: skip
    return shown
