"""Any frozen dataclass as named tensors and plain numbers, and back, without losing a bit: what a checkpoint holds.

A dataclass may hold tensors, numbers, strings, None, tuples, dictionaries with string keys and other such dataclasses.
Its class is found again by the name under which `remembered` registered it, so a file never names code to import.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from torch import Tensor

from resolvent.iteration import registry

Kind = TypeVar("Kind", bound=type)

CLASSES: dict[str, type] = {}


def remembered(kind: Kind) -> Kind:
    """Register a frozen dataclass whose objects a State may hold."""
    if CLASSES.setdefault(kind.__name__, kind).__module__ != kind.__module__:
        raise TypeError(f"another class named {kind.__name__} is remembered already: give this one its own name")
    CLASSES[kind.__name__] = kind
    return kind


def pack(value: Any) -> tuple[dict[str, Tensor], Any]:
    """(tensors, tree): the tree is JSON, whose floats keep every bit, and names the tensors."""
    tensors: dict[str, Tensor] = {}
    return tensors, _pack(value, "", tensors)


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if value is None or isinstance(value, bool | int | float | str):
        return value

    def inside(items: Any) -> dict[str, Any]:
        return {str(key): _pack(part, f"{name}.{key}".lstrip("."), tensors) for key, part in items}

    if isinstance(value, tuple):
        return {"tuple": list(inside(enumerate(value)).values())}
    if isinstance(value, dict):
        return {"dict": inside(value.items())}
    if is_dataclass(value) and CLASSES.get(type(value).__name__) is type(value):
        return {"class": type(value).__name__} | inside((f.name, getattr(value, f.name)) for f in fields(value))
    raise TypeError(
        f"{name or 'the value'} is a {type(value).__name__}, which cannot be stored: use @remembered dataclasses"
    )


def unpack(tensors: dict[str, Tensor], tree: Any) -> Any:
    """The value that was packed; ValueError where no part that is installed here has a memory of that name."""
    if not isinstance(tree, dict):
        return tree
    if "class" in tree:
        if tree["class"] not in CLASSES:
            registry.load_plugins()
        kind = CLASSES.get(tree["class"])
        if kind is None:
            raise ValueError(
                f"no part that is installed here remembers {tree['class']}: install the package it came from"
            )
        given = {f.name: unpack(tensors, tree[f.name]) for f in fields(kind) if f.name in tree}
        for name, hint in _hints(kind).items():
            if name in given and not _is(given[name], hint):
                raise ValueError(f"{name} of {tree['class']} is a {type(given[name]).__name__}")
        return kind(**given)
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "tuple" in tree:
        return tuple(unpack(tensors, part) for part in tree["tuple"])
    return {key: unpack(tensors, part) for key, part in tree["dict"].items()}


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a class's fields; of those that others wrote nothing is known."""
    return get_type_hints(kind) if kind.__module__.startswith("resolvent.") else {}


def _is(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as annotations say it; a whole number is a float as well."""
    within = get_args(hint)
    if hint is Any or not isinstance(get_origin(hint) or hint, type):
        return True
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is(item, within[0]) for item in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_is(item, within[1]) for item in value.values())
    if get_origin(hint) is UnionType:
        return any(_is(value, each) for each in within)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint)
