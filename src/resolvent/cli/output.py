"""Results on the screen: tables for people, JSON and tab-separated lines for machines."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from resolvent.runs.regular import strict


def first_rank() -> bool:
    """Whether this process speaks: it is alone, or rank 0 of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0" or "TORCHELASTIC_RUN_ID" not in os.environ


class Format(StrEnum):
    table = "table"
    json = "json"
    tsv = "tsv"


class ReaderLeft(Exception):
    """Nobody reads the output any more, as in `resolvent ls | head`."""


def write(text: str) -> None:
    """Print a part of the result."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # typer and rich would make it a failure
        raise ReaderLeft from None


def rows(
    rows: Sequence[Mapping[str, Any]],
    form: Format,
    title: str = "",
    columns: Mapping[str, str] | None = None,
    note: str = "",
) -> None:
    """Rows of one shape. `columns` are what people see, by key, with headings; machines get everything."""
    if form is Format.json:
        write(as_json(rows))
    elif form is Format.tsv:
        keys = list(rows[0]) if rows else []
        for line in (keys, *([_machine(row[key]) for key in keys] for row in rows)):
            write("\t".join(line))
    elif rows:
        columns = columns or {key: key.replace("_", " ") for key in rows[0]}
        _table([[_person(row[key]) for key in columns] for row in rows], list(columns.values()), title, note)


def pairs(about: Mapping[str, Any], form: Format, title: str = "") -> None:
    """One thing and what is known of it."""
    if form is Format.json:
        write(as_json(about))
    elif form is Format.tsv:
        for key, value in about.items():
            write(f"{key}\t{_machine(value)}")
    else:
        _table([[key.replace("_", " "), _person(value)] for key, value in about.items()], ["", ""], title)


def as_json(value: Any) -> str:
    """JSON that any reader takes: NaN and infinity become null."""
    return json.dumps(strict(value), indent=2)


def say(*lines: str) -> None:
    """What a person should know, beside the result."""
    for line in lines:
        print(escaped(line), file=sys.stderr)


def escaped(text: str) -> str:
    """Text with control characters spelled out, but for tabs and ends of lines.

    Names and values come from files that others may have written: they must not move the cursor, recolour the screen or
    reverse what is read.
    """
    if text.isprintable():
        return text
    shown = [c if c.isprintable() or c in "\n\t\xa0" else c.encode("unicode_escape").decode() for c in text]
    return "".join(shown)


def _table(cells: Sequence[Sequence[str]], headings: Sequence[str], title: str, note: str = "") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    show = any(headings)
    table = Table(title=escaped(title), box=box.SIMPLE_HEAD if show else None, show_header=show, title_justify="left",
                  title_style="bold", caption=note, caption_justify="left")  # fmt: skip
    for k, heading in enumerate(headings):
        numbers = all(_is_number(line[k]) for line in cells)
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=k == 0 or numbers)
    for line in cells:
        table.add_row(*line)
    console = Console(width=None if sys.stdout.isatty() else 140, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    write(capture.get().removesuffix("\n"))


def _is_number(text: str) -> bool:
    try:
        float(text.lstrip("> ") or "0")
    except ValueError:
        return False
    return True


def _person(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(_person, value)) if isinstance(value, (list, tuple)) else escaped(str(value))


def _machine(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(strict(value))
    return escaped(text.replace("\t", " ").replace("\n", " "))
