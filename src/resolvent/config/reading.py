"""Configurations from TOML and from `section.key=value`, checked against the sections, and back.

An unknown key is an error with the nearest valid name; a value of the wrong kind is one with what is needed.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from resolvent.config import toml
from resolvent.config.presets import PRESETS
from resolvent.config.problem_sections import (
    FITTED,
    PROBLEMS,
    FederationSection,
    LeastSquaresSection,
    OwnSection,
    TableSection,
)
from resolvent.config.sections import SPELLINGS, Config
from resolvent.errors import InputError, refuse

SECTIONS = {f.name: f for f in fields(Config)}
T = TypeVar("T")
MOST = sys.float_info.max
POINTED = re.compile(r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?")


def read(tree: Mapping[str, Any]) -> Config:
    """A configuration from sections of plain values."""
    for name, section in tree.items():
        if name not in SECTIONS:
            raise InputError(f"there is no section [{name}]{nearest(name, SECTIONS)}")
        if not isinstance(section, Mapping):
            refuse(name, repr(section), f"a section [{name}] with keys is needed")
    made: dict[str, Any] = {}
    for name in SECTIONS:
        kind = _problem(tree.get(name, {})) if name == "problem" else type(getattr(Config(), name))
        made[name] = _section(kind, name, tree.get(name, {}))
    return Config(**made)


def preset(problem: str, name: str) -> dict[str, Any]:
    """The sections that a preset of a problem begins with."""
    known = PRESETS.get(problem)
    if known is None:
        refuse("preset", repr(name), f"only {', '.join(PRESETS)} have presets, and the problem is {problem!r}")
    if name not in known:
        raise InputError(f"there is no preset {name!r}{nearest(name, known)}")
    return with_values(known[name], [("problem.name", problem)])


def load(path: str | Path) -> dict[str, Any]:
    """The sections of a TOML file."""
    try:
        return toml.parse(Path(path).read_text(encoding="utf-8"))
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
        if not dot or not section or not key:
            refuse("a setting", repr(dotted), "section.key=value is needed, scheme.eta=1e-4 say")
        if not isinstance(new.setdefault(section, {}), dict):
            refuse(section, repr(new[section]), f"a section [{section}] with keys is needed")
        new[section][key] = value
    return new


def parse(assignment: str) -> tuple[str, Any]:
    """section.key=value as (section.key, value): the value is TOML, or else text."""
    key, equals, text = assignment.partition("=")
    if not equals:
        refuse("a setting", repr(assignment), "section.key=value is needed, scheme.eta=1e-4 say")
    return key.strip(), literal(text.strip())


def literal(text: str) -> Any:
    """A number, true, false or text. Numbers may begin or end with their point, as TOML's do not: .02 and 5."""
    try:
        return toml.parse(f"x = {text}")["x"]
    except (ValueError, RecursionError):
        return float(text) if POINTED.fullmatch(text) else text


def fingerprint(config: Config) -> str:
    """The same for two configurations that compute the same. A data file counts by its content, not its place."""
    return _digest(_computed(plain(config)))


def fingerprints(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The fingerprint of a configuration as it was written, and the one by which earlier versions knew it."""
    return _digest(_computed(tree)), _digest({name: section for name, section in tree.items() if name != "store"})


def _computed(tree: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: section for name, section in tree.items() if name != "store"}
    problem = told.get("problem")
    if isinstance(problem, Mapping) and "sha256" in problem:
        told["problem"] = {key: value for key, value in problem.items() if key != "data"}
    return told


def _digest(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def plain(config: Config) -> dict[str, dict[str, Any]]:
    """Plain values, without those that are not set."""
    tree = dataclasses.asdict(config)
    return {name: {k: v for k, v in section.items() if v is not None} for name, section in tree.items()}


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


def choices(key: str) -> tuple[str, ...]:
    """The words that `section.key` may be; none where it is not a choice."""
    section, _, name = key.partition(".")
    hint = typing.get_type_hints(type(getattr(Config(), section)))[name]
    options = (hint, *typing.get_args(hint))
    return next((typing.get_args(option) for option in options if typing.get_origin(option) is Literal), ())


def nearest(name: str, valid: Iterable[str]) -> str:
    """How a sentence about an unknown name goes on."""
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"


def _problem(section: Mapping[str, Any]) -> type[Any]:
    name = section.get("name", LeastSquaresSection.name)
    if not isinstance(name, str):
        refuse("problem.name", repr(name), f"one of {', '.join(PROBLEMS)} is needed")
    if ".py:" in name:
        return OwnSection
    if "data" in section and alike(name) in FITTED:
        return TableSection
    if alike(name) in FITTED and alike(name) not in PROBLEMS:
        refuse("problem.name", repr(name), "it is fitted to data of your own: name the file with --data")
    if name == FederationSection.name:
        return FederationSection
    if alike(name) not in PROBLEMS:
        raise InputError(f"there is no problem {name!r}{nearest(name, PROBLEMS)}")
    return PROBLEMS[alike(name)]


def alike(name: str) -> str:
    """A name with hyphens, however it was written."""
    return name.replace("_", "-")


def _section(kind: type[T], where: str, given: Mapping[str, Any]) -> T:
    hints, names = typing.get_type_hints(kind), [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in names:
            raise InputError(f"there is no key {where}.{key}{nearest(key, names)}")
    return kind(**{key: _value(f"{where}.{key}", value, hints[key]) for key, value in given.items()})


def _value(where: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the kind that the annotation says; whole numbers do for floats."""
    options = (
        typing.get_args(hint)
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        else (hint,)
    )
    if isinstance(value, str):
        value = SPELLINGS.get(where, {}).get(value, value)
    for option in options:
        if typing.get_origin(option) is Literal:
            if isinstance(value, str) and alike(value) in typing.get_args(option):
                return alike(value)
        elif option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            if abs(value) <= MOST:
                return float(value)
        elif option == tuple[str, ...]:
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return tuple(word.strip() for word in str(value).split(",") if word.strip())
            if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
                return tuple(value)
        elif isinstance(value, option) and (option is bool or not isinstance(value, bool)):
            return value
    wanted = " or ".join(_words(option) for option in options if option is not type(None))
    refuse(where, repr(value), f"{wanted} is needed")


def _words(option: Any) -> str:
    if typing.get_origin(option) is Literal:
        return " or ".join(f'"{choice}"' for choice in typing.get_args(option))
    if option == tuple[str, ...]:
        return "names, separated by commas or in a list,"
    return {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}[option]
