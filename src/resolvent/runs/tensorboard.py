"""Rows of the metrics for TensorBoard."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any

from resolvent.errors import InputError
from resolvent.installed import install
from resolvent.runs.recorder import Sink


def needed() -> None:
    """Refuse, before anything is made, what could not be written afterwards."""
    try:
        import_module("torch.utils.tensorboard.writer")
    except ImportError:
        raise InputError(f"TensorBoard is not installed; {install('tensorboard')}, or leave it out") from None


def sink(folder: Path) -> Sink:
    """Write every number of a row as a scalar at its round. A round done again replaces what stood there."""
    needed()
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: list[SummaryWriter] = []

    def take(row: dict[str, Any]) -> None:
        if not writer:
            writer.append(SummaryWriter(str(folder), purge_step=row["round"]))
        for name, value in row.items():
            if name != "round" and math.isfinite(value):
                writer[0].add_scalar(name, value, row["round"])
        writer[0].flush()

    return take
