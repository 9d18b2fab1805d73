"""What happened to a run: lines of JSON that are only ever added, each with a checksum of its own."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from resolvent.runs import regular, sums

FILE = "events.jsonl"
MARK = ', "sum": "'
DIGITS = 16
MAX_COMPLAINTS = 10
"""Damaged lines that are named, at most; the others are counted."""


def line(kind: str, **about: Any) -> bytes:
    """An event, now."""
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    body = json.dumps({"time": now, "kind": kind} | about)
    return f'{body[:-1]}{MARK}{_sum(body)}"}}'.encode()


def read(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The events, in order, and a few words on each line that was skipped.

    A last line without its end was torn by a kill, and is left out in silence.
    """
    if not path.exists():
        return [], [f"{FILE} is missing"]
    *lines, torn = regular.read(path, regular.MAX_DOCUMENT_BYTES).split(b"\n")
    if torn and _parsed(torn) is not None:
        lines.append(torn)
    parsed = [(number, _parsed(raw)) for number, raw in enumerate(lines, 1) if raw.strip()]
    complaints = [f"line {number} of {FILE} is damaged and was skipped" for number, event in parsed if event is None]
    if more := complaints[MAX_COMPLAINTS:]:
        complaints[MAX_COMPLAINTS:] = [f"{len(more)} more lines of {FILE} are damaged and were skipped"]
    events = [event for _, event in parsed if event is not None]
    if not events and not complaints:
        complaints = [f"{FILE} is empty"]
    return events, complaints


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        text = raw.decode()
        event = json.loads(text)
    except (ValueError, RecursionError):
        return None
    body, mark, rest = text.rpartition(MARK)
    if not isinstance(event, dict) or not all(isinstance(event.get(key), str) for key in ("time", "kind")):
        return None
    return event if mark and rest == f'{_sum(body + "}")}"}}' else None


def _sum(body: str) -> str:
    return sums.of(body.encode())[:DIGITS]
