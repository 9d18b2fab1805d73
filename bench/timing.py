"""Times as ratios: both sides of a comparison take turns, so that a busy machine slows both."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch


def take_turns(sides: dict[str, Callable[[], int]], turns: int = 5) -> dict[str, float]:
    """Seconds per unit of work of each side: the median over turns. A side returns how many units it did."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()  # caches, allocators, lazy imports
    for _ in range(turns):
        for name, side in sides.items():
            began = time.perf_counter()
            units = side()
            seconds[name].append((time.perf_counter() - began) / units)
    return {name: statistics.median(times) for name, times in seconds.items()}


def machine() -> str:
    """What this was measured on, without naming it."""
    model = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    return (
        f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__} "
        f"({torch.get_num_threads()} threads), numpy {np.__version__}"
    )


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo") as file:
            return file.readlines()
    except OSError:
        return []
