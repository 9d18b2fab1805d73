"""The parts that a round is made of, by kind and name, and all that follows from their fields.

    @part("accelerate", "momentum")
    @dataclass(frozen=True)
    class Momentum:
        theta: float
        \"""The share of the last step that is added, in [0, 1).\"""

A part is a frozen dataclass (or a function with typed parameters). Its fields, their types, their defaults and the
sentences below them are all that configurations, the command line, the page, messages of federations and the docs
know of it: there is no other list of parts. Packages of users register theirs with an entry point of the group
`resolvent.parts`, which names the module to import.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from typing import Any, Literal, NamedTuple, TypeVar

from resolvent.errors import InputError, quoted, refuse

Made = TypeVar("Made", bound=Callable[..., Any])
REQUIRED = inspect.Parameter.empty
PLUGINS = "resolvent.parts"
FACE = "resolvent.face"
"""The module that imports all of this package's own parts; a process that needs few of them has not imported it."""
NEEDED = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text",
          tuple[str, ...]: "names, separated by commas or in a list,",
          tuple[int, ...]: "whole numbers, separated by commas or in a list,"}  # fmt: skip
"""The types that a field may have, beside Literal and None, and what is said where a value is of none of them."""
NUMBERS_OR_NAMES = {tuple[str, ...]: str, tuple[int, ...]: int}
WHOLE_NUMBERS = re.compile(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)+")


class Kind(NamedTuple):
    """What parts are for."""

    about: str
    null: str | None = None
    """The part that stands for none, where none is named."""
    usual: str | None = None
    """The part that is meant by values alone: `--participation 0.5`."""
    section: bool = False
    """Whether it has a section, and an option, of the same name."""


class Registered(NamedTuple):
    """A registered part."""

    name: str
    make: Callable[..., Any]
    key: str | None = None
    """What its first field is called in configurations; this key alone then names the part."""

    @property
    def about(self) -> str:
        """The first paragraph of its documentation."""
        return " ".join((inspect.getdoc(self.make) or "").split("\n\n")[0].split())

    @property
    def fields(self) -> tuple[Field, ...]:
        """What it takes, under the keys of configurations."""
        return fields(self.make, self.key)

    @property
    def usage(self) -> str:
        """How it is written in a few words, with what it must be given: "bernoulli:P"."""
        return ":".join([self.name, *(f.name.upper() for f in fields(self.make) if f.default is REQUIRED)])


class Field(NamedTuple):
    """A field of a part or of a section, as configurations have it."""

    key: str
    name: str
    hint: Any
    default: Any
    about: str

    @property
    def options(self) -> tuple[Any, ...]:
        """The types that it may have."""
        return _options(self.hint)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be; none where it is not a choice."""
        return _choices(self.hint)

    @property
    def plain(self) -> bool:
        """Whether text and numbers can say its value; code and arrays cannot be configured."""
        return bool(self.choices) or any(option in NEEDED for option in self.options)

    @property
    def needed(self) -> str:
        """What a value must be, in words."""
        return " or ".join([NEEDED[o] for o in self.options if o in NEEDED] + [f'"{word}"' for word in self.choices])

    @property
    def open(self) -> bool:
        """Whether its default leaves the value to the part."""
        return self.default is None or (isinstance(self.default, float) and math.isnan(self.default))


@cache
def _options(hint: Any) -> tuple[Any, ...]:
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


@cache
def _choices(hint: Any) -> tuple[str, ...]:
    return tuple(word for o in _options(hint) if typing.get_origin(o) is Literal for word in typing.get_args(o))


KINDS: dict[str, Kind] = {
    "participation": Kind("Who takes part in a round.", "everyone", "bernoulli", section=True),
    "local": Kind("What users compute in a round.", "best", section=True),
    "send": Kind("What crosses from users to the meeting.", "everything", section=True),
    "down": Kind("What crosses from the meeting to users.", "everything", section=True),
    "meet": Kind("Where users meet.", "mean", section=True),
    "privacy": Kind("What one user may change in what is released.", "none", section=True),
    "accelerate": Kind("Where u, or the meeting point, moves after a round.", "none", "anderson", section=True),
    "metric": Kind("In which metric users' proxes are taken.", "best", section=True),
    "penalty": Kind("g beside the users' functions."),
    "schedule": Kind("How eta changes over the rounds."),
}
"""Every kind of part. A new one is a line here."""
PARTS: dict[str, dict[str, Registered]] = {}


# --- registering and finding -----------------------------------------------------------------------------------------


def part(kind: str, name: str, key: str | None = None) -> Callable[[Made], Made]:
    """Register a class, or a function, as a part of this kind."""

    def register(make: Made) -> Made:
        PARTS.setdefault(kind, {})[name] = Registered(name, make, key)
        return make

    return register


@cache
def load_plugins() -> str:
    """Import the modules in which this package and installed ones register parts; a sentence on those that fail."""
    importlib.import_module(FACE)
    broken = []
    for point in metadata.entry_points(group=PLUGINS):
        try:
            point.load()
        except Exception as error:
            broken.append(f"; the parts of {point.value} cannot be imported ({type(error).__name__}: {error})")
    return "".join(broken)


def parts(kind: str) -> dict[str, Registered]:
    """All parts of a kind, by name."""
    load_plugins()
    return PARTS.get(kind, {})


def configurable(kind: str) -> dict[str, Registered]:
    """Those that text and numbers can describe."""
    return {
        name: each for name, each in parts(kind).items() if all(f.plain for f in each.fields if f.default is REQUIRED)
    }


def named(kind: str, name: Any) -> Registered:
    """The part of that name."""
    spelled = alike(name) if isinstance(name, str) else ""
    registered = PARTS.get(kind, {}).get(spelled) or parts(kind).get(spelled)
    if registered is None:
        raise InputError(f"there is no {kind} {quoted(name)}{nearest(spelled, parts(kind))}{load_plugins()}")
    return registered


def alike(name: str) -> str:
    """A name with hyphens, however it was written."""
    return name.replace("_", "-")


def nearest(name: str, valid: Iterable[str]) -> str:
    """How a sentence about an unknown name goes on."""
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"


# --- fields ----------------------------------------------------------------------------------------------------------


def fields(make: Callable[..., Any], key: str | None = None) -> tuple[Field, ...]:
    """What a part or section takes, in order; its first field is called `key` where that is given."""
    made = _fields(make)
    return made if key is None else (made[0]._replace(key=key), *made[1:])


@cache
def _fields(make: Callable[..., Any]) -> tuple[Field, ...]:
    documented: dict[str, str] = {}
    for kind in reversed(make.__mro__ if isinstance(make, type) else ()):
        if kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
            documented |= _documented(kind)
    params = getattr(make, "__dataclass_params__", None)
    typed = make.__init__ if isinstance(make, type) and not (params and params.init) else make  # type: ignore[misc]
    hints = typing.get_type_hints(typed)
    taken = inspect.signature(make).parameters
    return tuple(Field(n, n, hints.get(n, Any), p.default, documented.get(n, "")) for n, p in taken.items())


def _documented(kind: type) -> dict[str, str]:
    """What stands under the fields of a class in its source."""
    sentences, last = {}, ""
    for node in _classes(sys.modules.get(kind.__module__)).get(kind.__qualname__, ()):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last:
            sentences[last] = " ".join(str(node.value.value).split())
    return sentences


@cache
def _classes(module: types.ModuleType | None) -> dict[str, list[ast.stmt]]:
    """The bodies of the classes of a module, by qualified name: parsed once, not once for every class."""
    found: dict[str, list[ast.stmt]] = {}

    def look(nodes: Iterable[ast.AST], within: str) -> None:
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                found.setdefault(within + node.name, node.body)
                look(node.body, f"{within}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                look(node.body, f"{within}{node.name}.<locals>.")
            elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
                look(ast.iter_child_nodes(node), within)

    with suppress(OSError, TypeError, ValueError, SyntaxError):  # no source: classes made by code
        look(ast.parse(inspect.getsource(module)).body, "")  # type: ignore[arg-type]
    return found


def checked(where: str, value: Any, field: Field) -> Any:
    """The value, if it is of the type that the field says; whole numbers do for floats."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    for option in field.options:
        if typing.get_origin(option) is Literal and isinstance(value, str):
            fitting = [word for word in (value, alike(value)) if word in typing.get_args(option)]
            if fitting:
                return fitting[0]
        elif option is float and number and abs(value) <= sys.float_info.max:
            return float(value)
        elif option == tuple[str, ...] and (number or isinstance(value, str)):
            return tuple(word.strip() for word in str(value).split(",") if word.strip())
        elif option in NUMBERS_OR_NAMES and isinstance(value, list | tuple):
            if all(type(one) is NUMBERS_OR_NAMES[option] for one in value):
                return tuple(value)
        elif option == tuple[int, ...] and isinstance(value, str) and WHOLE_NUMBERS.fullmatch(value):
            return tuple(map(int, value.split(",")))
        elif option in (int, str, bool, type(None)) and type(value) is option:
            return value
    if not field.plain:
        refuse(where, quoted(value), "it is code or an array, which Python alone can give: leave it out")
    refuse(where, quoted(value), f"{field.needed} is needed")


# --- sections --------------------------------------------------------------------------------------------------------


@contextmanager
def within(section: str) -> Iterator[None]:
    """Say which section of the configuration a refusal is about, unless it says so itself."""
    try:
        yield
    except InputError as error:
        raise error if section in str(error) else InputError(f"{section}: {error}") from None


def section(make: Callable[..., Any], where: str, given: Mapping[str, Any], key: str | None = None) -> Any:
    """What a section of plain values describes, every key and type checked."""
    takes = {field.key: field for field in fields(make, key) if field.plain}
    for name in given:
        if name not in takes:
            raise InputError(f"there is no key {where}.{name}{nearest(name, takes)}")
    values = {takes[name].name: checked(f"{where}.{name}", value, takes[name]) for name, value in given.items()}
    for field in takes.values():
        if field.default is REQUIRED and field.name not in values:
            raise InputError(f"{where}.{field.key} is missing, but {field.needed} is needed")
    with within(where):
        return make(**values)


def written(made: Any, where: str, key: str | None = None) -> dict[str, Any]:
    """The section that describes a part again. What the part fills in by itself is left to it."""
    every = fields(type(made), key)
    values = {field.name: getattr(made, field.name) for field in every}
    for field in every:
        if not field.plain and values[field.name] is not field.default:
            came = quoted(values[field.name])
            refuse(f"{where}.{field.name}", came, "it is code or an array, which is not stored or sent: leave it out")
        fewer = {name: value for name, value in values.items() if name != field.name}
        filled_in = field.open and field.default is not None and type(made)(**fewer) == made
        if not field.plain or values[field.name] is None or filled_in:
            values = fewer
    return {field.key: values[field.name] for field in every if field.name in values}


def choose(kind: str, given: Mapping[str, Any]) -> Any:
    """The part that a section names: by `kind`, by a key that one part alone has, else what stands for none."""
    every, chosen = configurable(kind), named_by(kind, given)
    renamed = {fields(chosen.make)[0].name: chosen.key} if chosen.key else {}
    values = {renamed.get(key, key): value for key, value in given.items() if key != "kind"}
    own = {field.key for field in chosen.fields}
    foreign = {f.key: (name, f) for name, each in every.items() for f in each.fields if f.plain and f.key not in own}
    for key in [key for key in values if key not in own]:
        if key not in foreign:
            raise InputError(f"there is no key {kind}.{key}{nearest(key, ['kind', *own, *foreign])}")
        owner, field = foreign[key]
        value = checked(f"{kind}.{key}", values.pop(key), field)
        if value != getattr(chosen.make, key, REQUIRED):  # a class may have no choice, and say so
            raise InputError(f"{kind}.{key} is given, but {chosen.name} has none; it belongs to {owner}")
    return section(chosen.make, kind, values, chosen.key)


def named_by(kind: str, given: Mapping[str, Any]) -> Registered:
    """The part that a section names."""
    every = configurable(kind)
    by_key = {each.key: name for name, each in every.items() if each.key in given}
    if len(by_key) > 1:
        first, second, *_ = by_key
        raise InputError(f"{kind}.{first} and {kind}.{second} are both given; give one of them")
    name = given.get("kind")
    if name is None:
        name = next(iter(by_key.values()), KINDS[kind].null)
    if not isinstance(name, str) or alike(name) not in every:
        refuse(f"{kind}.kind", quoted(name), f"one of {', '.join(every)} is needed{load_plugins()}")
    return every[alike(name)]


def described(kind: str, made: Any) -> dict[str, Any]:
    """The section that names this part, with its values."""
    chosen = next((each for each in parts(kind).values() if each.make is type(made)), None)
    if chosen is None:
        classes = ", ".join(each.make.__name__ for each in parts(kind).values())
        refuse(kind, quoted(made), f"one of {classes}, or a class registered with @part({kind!r}, name), is needed")
    implied = chosen.key is not None or chosen.name == KINDS[kind].null
    return ({} if implied else {"kind": chosen.name}) | written(made, kind, chosen.key)


def named_values(kind: str, made: Any) -> dict[str, Any]:
    """The section that names a part, for labels: of one that plain values cannot say, the name of its class."""
    try:
        values = described(kind, made)
    except InputError:
        return {"kind": type(made).__name__}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def words(kind: str, text: str, literal: Callable[[str], Any]) -> dict[str, Any]:
    """The section that a few words stand for: "momentum:0.9", or "0.5" alone for the usual part."""
    name, *values = (word.strip() for word in text.split(":"))
    chosen, usual = parts(kind).get(alike(name.lower())), KINDS[kind].usual
    if chosen is None and usual is not None and not isinstance(literal(name), str):
        chosen, values = named(kind, usual), [name, *values]
    if chosen is None:
        refuse(kind, quoted(text), f"{usages(kind)} is needed{load_plugins()}")
    required = sum(field.default is REQUIRED for field in chosen.fields)
    if not required <= len(values) <= len(chosen.fields):
        refuse(kind, f"{quoted(text)}, with {_counted(len(values))}", f"{chosen.name} takes {_taken(chosen, required)}")
    given = {field.key: literal(value) for field, value in zip(chosen.fields, values, strict=False)}
    return given if chosen.key in given else {"kind": chosen.name} | given


def _counted(values: int) -> str:
    return "1 value" if values == 1 else f"{values or 'no'} values"


def _taken(part: Registered, required: int) -> str:
    """How many values a part takes in a few words, and which."""
    most = len(part.fields)
    if not most:
        return "none"
    many = _counted(most) if required == most else f"{required} to {_counted(most)}"
    return f"{many} ({', '.join(field.key for field in part.fields)})"


def usages(kind: str) -> str:
    """How the parts of a kind are written in a few words."""
    *most, last = [each.usage for each in configurable(kind).values()]
    return f"{', '.join(most)} or {last}" if most else last


def table(kind: str) -> list[str]:
    """The rows of a table in the docs: a part's name, its keys with their defaults, and what it is."""
    rows = []
    for each in configurable(kind).values():
        plain = [field for field in each.fields if field.plain]
        keys = [f.key if f.default is REQUIRED or f.open else f"{f.key} = {f.default!r}" for f in plain]
        rows.append(
            f"| `{each.name}` | {', '.join(f'`{key}`' for key in keys)} | {each.about.replace('|', chr(92) + '|')} |"
        )
    return rows
