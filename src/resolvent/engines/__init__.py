"""Engines by name, imported when asked for. An engine is built from (problem, operator, steady)."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, TypeGuard

from resolvent.errors import quoted, refuse
from resolvent.iteration.engine import Engine, Joining
from resolvent.iteration.facts import Facts

ENGINES = {
    "in_process": "resolvent.engines.in_process:InProcess",
    "debug": "resolvent.engines.debug:Debug",
}
JOINED = {"all_reduce": "resolvent.engines.all_reduce:AllReduce"}
"""Engines of which this process is one part: all parts must meet before anything is known of the users."""
SPELLINGS = {"in-process": "in_process", "inprocess": "in_process", "all-reduce": "all_reduce"}


def is_engine(given: Any) -> TypeGuard[Engine]:
    """Whether this is an engine already, not the name of one."""
    return hasattr(given, "local_mean") and not isinstance(given, type)


def joined(
    engine: str | Engine | Joining, problem: Any, operator: Callable[[], Any], steady: bool
) -> tuple[str | Engine, Any]:
    """(engine, problem): a ready-made engine and the problem of the users here where others live elsewhere, else both
    as they are."""
    name = SPELLINGS.get(engine, engine) if isinstance(engine, str) else ""
    maker: Any = resolve_name(JOINED[name])() if name in JOINED else engine
    if is_engine(maker) or isinstance(maker, str | bytes | bytearray) or not hasattr(maker, "join"):
        return maker, problem
    ready = maker.join(problem, operator(), steady)
    return ready, ready.facts.problem


def build(engine: Any, problem: Any, operator: Any, steady: bool) -> Engine:
    """The engine of that name for these users; anything that already is an engine is returned as it is."""
    if is_engine(engine):
        return engine
    engine = SPELLINGS.get(engine, engine) if isinstance(engine, str) else engine
    if not isinstance(engine, str) or engine not in ENGINES:
        refuse("engine", quoted(engine), f"one of {', '.join((*ENGINES, *JOINED))} or an engine of your own is needed")
    users = problem.problem if isinstance(problem, Facts) else problem
    return resolve_name(ENGINES[engine])(users, operator, steady)  # type: ignore[no-any-return]
