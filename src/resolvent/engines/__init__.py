"""Engines by name, imported when asked for. An engine is built from (problem, operator, steady)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeGuard

from resolvent.errors import refuse
from resolvent.iteration.engine import Engine

ENGINES = {
    "in_process": "resolvent.engines.in_process:InProcess",
    "debug": "resolvent.engines.debug:Debug",
}
SPELLINGS = {"inprocess": "in_process"}


def is_engine(given: Any) -> TypeGuard[Engine]:
    """Whether this is an engine already, not the name of one."""
    return hasattr(given, "local_mean") and not isinstance(given, type)


def build(engine: Any, problem: Any, operator: Any, steady: bool) -> Engine:
    """The engine of that name for these users; anything that already is an engine is returned as it is."""
    if is_engine(engine):
        return engine
    engine = SPELLINGS.get(engine, engine) if isinstance(engine, str) else engine
    if not isinstance(engine, str) or engine not in ENGINES:
        refuse("engine", repr(engine), f"one of {', '.join(ENGINES)} or an engine of your own is needed")
    module, name = ENGINES[engine].split(":")
    return getattr(import_module(module), name)(problem, operator, steady)  # type: ignore[no-any-return]
