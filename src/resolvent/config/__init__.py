"""A run's configuration: typed sections, from TOML and from `section.key=value`, checked, and written back whole.

An unknown key is an error with the nearest valid name; a value of the wrong type is one with what is needed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from resolvent import toml
from resolvent.config.problem_sections import (
    FITTED,
    PRESETS,
    PROBLEMS,
    FederationSection,
    LeastSquaresSection,
    OwnSection,
    ProblemSection,
    TableSection,
)
from resolvent.config.sections import Config as Config
from resolvent.config.sections import RunSection, SchemeSection, StoreSection
from resolvent.errors import InputError, quoted, refuse
from resolvent.iteration import registry
from resolvent.iteration.anderson import Anderson
from resolvent.iteration.registry import KINDS, Field
from resolvent.iteration.registry import alike as alike
from resolvent.iteration.registry import nearest as nearest
from resolvent.solving.stopping import Stop
from resolvent.toml import fingerprint_of as fingerprint_of

SECTIONS = {"scheme": SchemeSection, "anderson": Anderson, "run": RunSection, "stop": Stop, "store": StoreSection}
"""Sections that are one class each."""
POINTED = re.compile(r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?")


def names() -> list[str]:
    """The sections, in the order in which they are written."""
    fixed = [f.name for f in fields(Config)]
    kinds = [name for name, kind in KINDS.items() if kind.section and name not in fixed]
    at = fixed.index("parts")
    return [*fixed[:at], *kinds, *fixed[at + 1 :]]


def keys(section: str) -> dict[str, Field]:
    """Every key that a section may have, whatever it names."""
    if section == "problem":
        every: list[Any] = [registry.fields(kind) for kind in get_args(ProblemSection)]
    elif section in SECTIONS:
        every = [registry.fields(SECTIONS[section])]
    else:
        every = [part.fields for part in registry.parts(section).values()]
    known: dict[str, Field] = {}
    for field in itertools.chain(*every):
        if field.plain:
            known.setdefault(field.key, field)
    return known


def read(tree: Mapping[str, Any]) -> Config:
    """A configuration from sections of plain values; a part may be named by a few words instead."""
    for name, given in tree.items():
        if name not in names():
            raise InputError(f"there is no section [{name}]{nearest(name, names())}")
        if not isinstance(given, Mapping) and not (isinstance(given, str) and _has_section(name)):
            refuse(name, quoted(given), f"a section [{name}] with keys is needed")
    given = {name: dict(_spelled_out(name, tree.get(name, {}))) for name in names()}
    made: dict[str, Any] = {
        name: registry.section(kind, name, given[name]) for name, kind in SECTIONS.items() if name != "anderson"
    }
    made["problem"] = registry.section(_problem(given["problem"]), "problem", given["problem"])
    chosen = {name: registry.choose(name, given[name]) for name, kind in KINDS.items() if kind.section}
    made |= {name: chosen.pop(name) for name in ("local", "participation")}
    made["anderson"] = _anderson(given["anderson"], chosen)
    made["parts"] = tuple((kind, part) for kind, part in chosen.items() if not _is(kind, part, KINDS[kind].null))
    for name in ("patience", "min_delta"):
        if made["stop"].metric is None and getattr(made["stop"], name) != getattr(Stop, name):
            refuse(f"stop.{name}", getattr(made["stop"], name), "it belongs to stop.metric: give that as well")
    return Config(**made)


def _has_section(name: str) -> bool:
    return name in KINDS and KINDS[name].section


def _is(kind: str, part: Any, name: str | None) -> bool:
    return name is not None and isinstance(part, registry.named(kind, name).make)  # type: ignore[arg-type]


def _spelled_out(name: str, given: Any) -> Mapping[str, Any]:
    return registry.words(name, given, literal) if isinstance(given, str) else given


def _anderson(given: Mapping[str, Any], chosen: dict[str, Any]) -> Anderson:
    """[anderson], or [accelerate] where that names it; its memory is 0 where there is none."""
    anderson: Anderson = registry.section(Anderson, "anderson", {"memory": 0, **given})
    if _is("accelerate", chosen["accelerate"], "none"):
        return anderson
    if anderson.memory:
        raise InputError("anderson.memory and accelerate are both given; give one of them")
    return chosen.pop("accelerate") if isinstance(chosen["accelerate"], Anderson) else anderson


def preset(problem: str, name: str) -> dict[str, Any]:
    """The sections that a preset of a problem begins with."""
    presets = PRESETS.get(problem)
    if presets is None:
        refuse("preset", quoted(name), f"only {', '.join(PRESETS)} have presets, and the problem is {problem!r}")
    if name not in presets:
        raise InputError(f"there is no preset {name!r}{nearest(name, presets)}")
    return with_values(presets[name], [("problem.name", problem)])


def load(path: str | Path) -> dict[str, Any]:
    """The sections of a TOML file."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return toml.parse(file.read(toml.MAX_CHARACTERS + 1))
    except OSError as error:
        raise InputError(f"the configuration {path} cannot be read ({error.strerror}); name a TOML file") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise InputError(f"the configuration {path} is not TOML: {error}") from None
    except RecursionError:
        raise InputError(
            f"the configuration {path} is nested too deeply; sections with plain values are needed"
        ) from None


def with_values(tree: Mapping[str, Any], assignments: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The tree with `section.key` set to values."""
    new: dict[str, Any] = {
        name: dict(section) if isinstance(section, Mapping) else section for name, section in tree.items()
    }
    for dotted, value in assignments:
        section, dot, key = dotted.partition(".")
        if not dot and _has_section(section) and isinstance(value, str | int | float):
            words = registry.words(section, str(value), literal)  # another part keeps what it shares with the last
            shared = {field.key for field in registry.named_by(section, words).fields}
            new[section] = {k: v for k, v in new.get(section, {}).items() if k in shared} | words
            continue
        if not dot or not section or not key:
            refuse("a setting", quoted(dotted), "section.key=value is needed, scheme.eta=1e-4 say")
        if not isinstance(new.setdefault(section, {}), dict):
            refuse(section, quoted(new[section]), f"a section [{section}] with keys is needed")
        new[section][key] = value
    return new


def parse(assignment: str) -> tuple[str, Any]:
    """section.key=value as (section.key, value): the value is TOML, or else text."""
    key, equals, text = assignment.partition("=")
    if not equals:
        refuse("a setting", quoted(assignment), "section.key=value is needed, scheme.eta=1e-4 say")
    return key.strip(), literal(text.strip())


def literal(text: str) -> Any:
    """A number, true, false or text. Numbers may begin or end with their point, as TOML's do not: .02 and 5."""
    try:
        return toml.parse(f"x = {text}")["x"]
    except (ValueError, RecursionError):
        return float(text) if POINTED.fullmatch(text) else text


def fingerprint(config: Config) -> str:
    """The same for two configurations that compute the same. A data file counts by its content, not its place."""
    return fingerprint_of(plain(config))


def plain(config: Config) -> dict[str, dict[str, Any]]:
    """Sections of plain values, every default filled in, without those that are not set."""
    parts = {"local": config.local, "participation": config.participation, **dict(config.parts)}
    tree = {}
    for name in names():
        if name in parts:
            tree[name] = registry.described(name, parts[name])
        elif name not in KINDS:
            tree[name] = registry.written(getattr(config, name), name)
    return tree


def dumps(config: Config) -> str:
    """The configuration as TOML, every default filled in."""
    return text(plain(config))


def text(tree: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of plain values as TOML."""
    blocks = []
    for name, section in tree.items():
        lines = [f"{key} = {_toml(value)}" for key, value in section.items()]
        blocks.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _toml(value: Any) -> str:
    """Numbers, booleans and text are written as in JSON, but that TOML wants DEL escaped too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _problem(section: Mapping[str, Any]) -> type[Any]:
    name = section.get("name", LeastSquaresSection.name)
    if not isinstance(name, str):
        refuse("problem.name", quoted(name), f"one of {', '.join(PROBLEMS)} is needed")
    if ".py:" in name:
        return OwnSection
    if "data" in section and alike(name) in FITTED:
        return TableSection
    if alike(name) in FITTED and alike(name) not in PROBLEMS:
        refuse("problem.name", quoted(name), "it is fitted to data of your own: name the file with --data")
    if name == FederationSection.name:
        return FederationSection
    if alike(name) not in PROBLEMS:
        raise InputError(f"there is no problem {name!r}{nearest(name, PROBLEMS)}")
    return PROBLEMS[alike(name)]
