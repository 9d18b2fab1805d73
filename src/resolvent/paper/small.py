"""What small demonstrations share: sections of settings as problems, and runs in memory."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from resolvent import config as configs
from resolvent.errors import ResolventWarning
from resolvent.paper.figure import Settings
from resolvent.run import Run
from resolvent.solve import solve

if TYPE_CHECKING:
    from resolvent.config.sections import Problem


def section(settings: Settings) -> Problem:
    """The problem that settings describe, as a section of a configuration."""
    return configs.read(configs.with_values({}, settings.items())).problem


def quietly(problem: Any, scheme: Any, rounds: int, **more: Any) -> Run:
    """A run in memory, without warnings: what they warn of is what is shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)
        return solve(problem, scheme, rounds=rounds, progress=False, **more)
