"""The columns of a history, and what a metric of a user's own may be called beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from resolvent.errors import quoted, refuse

FIRST = ("round", "eta", "value", "gap", "residual", "consensus", "stationarity", "average_value", "average_gap")
LAST = ("participants", "metric", "epsilon", "bytes_up", "bytes_down", "clock", "seconds")
COUNTS = ("round", "participants", "metric", "bytes_up", "bytes_down")
"""Columns of whole numbers."""
AVERAGED = {"value": "average_value", "gap": "average_gap"}
"""Columns of the average, where one is handed back, beside those of the round's own model."""
RESERVED = {*FIRST, *LAST, "bytes", "run", "user"}
"""Names that a metric would overwrite, in the history or in what is made of it."""
MAX_NAME_LENGTH = 60
_NAME = re.compile(r"\w[\w.@-]*")


def is_free(name: object) -> bool:
    """Whether a metric may have this name: one word, which is no column's already."""
    return (
        isinstance(name, str) and len(name) <= MAX_NAME_LENGTH and bool(_NAME.fullmatch(name)) and name not in RESERVED
    )


def checked(name: object, argument: str = "metrics") -> str:
    """A metric's name, which becomes a column of the history and of files."""
    if not isinstance(name, str) or not is_free(name):
        taken = f"that is a column of every history: {', '.join(sorted(RESERVED))} are taken"
        needed = f"a name of at most {MAX_NAME_LENGTH} letters, digits, _ . @ and - is needed: it becomes a column"
        refuse(argument, quoted(name)[:80], taken if name in RESERVED else needed)
    return name


def with_average(last: Mapping[str, Any], average: Mapping[str, Any]) -> dict[str, Any]:
    """What is measured where a run averages: everything of the average, the value and gap also of the last model."""
    both = [name for name in AVERAGED if name in average]
    return dict(average) | {AVERAGED[name]: average[name] for name in both} | {name: last[name] for name in both}


def of_reported(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose value and gap are those of the model that is handed back."""
    return dict(row) | {name: row[averaged] for name, averaged in AVERAGED.items() if averaged in row}
