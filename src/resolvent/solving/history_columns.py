"""Which columns of a history are of the model that a run reports: the average where it averages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AVERAGED = {"value": "average_value", "gap": "average_gap"}
"""Columns of the average, where one is handed back, beside those of the round's own model."""


def with_average(last: Mapping[str, Any], average: Mapping[str, Any]) -> dict[str, Any]:
    """What is measured where a run averages: everything of the average, the value and gap also of the last model."""
    both = [name for name in AVERAGED if name in average]
    return dict(average) | {AVERAGED[name]: average[name] for name in both} | {name: last[name] for name in both}


def of_reported(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose value and gap are those of the model that is handed back."""
    return dict(row) | {name: row[averaged] for name, averaged in AVERAGED.items() if averaged in row}
