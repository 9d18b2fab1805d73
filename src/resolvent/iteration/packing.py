"""Any frozen dataclass as named tensors and plain numbers, and back, without losing a bit: what a checkpoint holds.

A dataclass may hold tensors, numbers, strings, None, tuples, dictionaries with string keys and other such dataclasses.
Its class is found again by the name under which `remembered` registered it, so a file never names code to import.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

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
        return kind(**{f.name: unpack(tensors, tree[f.name]) for f in fields(kind) if f.name in tree})
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "tuple" in tree:
        return tuple(unpack(tensors, part) for part in tree["tuple"])
    return {key: unpack(tensors, part) for key, part in tree["dict"].items()}
