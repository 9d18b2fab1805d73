"""When a round closes, never by waiting for the slowest, and what users' answers and claims must keep to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from resolvent.errors import number, quoted, refuse, whole

MAX_MOVE = 1e4
"""How many times the others' median reach (plausibility.py) an answer may lead away: units may differ by a thousand, as
grams and kilograms do, and ten is added for good measure."""
MAX_WEIGHT = 100.0
"""How many times the median of the others' weights the weight may be that follows from a user's own numbers."""


@dataclass(frozen=True)
class Limits:
    """What users must keep to: how long |p_i| may be (None: any finite length), how far an answer may lead, and how
    large a weight may be that follows from a user's own numbers; both are multiples of the others' median."""

    norm: float | None = None
    move: float = MAX_MOVE
    weight: float = MAX_WEIGHT

    def __post_init__(self) -> None:
        if self.norm is not None and not number(self.norm) > 0:
            refuse("max_norm", quoted(self.norm), "a number > 0 is needed; leave it out for no limit")
        for name in ("move", "weight"):
            if not number(getattr(self, name)) >= 1:
                refuse(f"max_{name}", quoted(getattr(self, name)), "a number >= 1 is needed, and 1e300 is no limit")


@dataclass(frozen=True)
class Rule:
    """A round closes once `min_users` have answered, and the share `close` of those asked, or `timeout` is over.

    A user who takes longer than `timeout` is not waited for any more, until an answer takes it less; its late answers
    are taken when they come. patience: seconds to wait for `min_users`, after which the run stops, to be resumed.
    poll: seconds between two looks for answers.
    """

    close: float = 1.0
    timeout: float = 120.0
    min_users: int = 1
    patience: float = 3600.0
    poll: float = 0.2

    def __post_init__(self) -> None:
        if not (isinstance(self.close, int | float) and 0 < self.close <= 1):
            refuse("close", quoted(self.close), "a share in (0, 1] is needed")
        for name in ("timeout", "patience", "poll"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and value > 0):
                refuse(name, quoted(value), "a number of seconds > 0 is needed")
        whole(self.min_users, "min_users")

    def closed(self, expected: int, done: int, taken: int, needed: int, outstanding: int, seconds: float) -> bool:
        """Whether a round is over.

        expected: users who were asked and are waited for. done: those of them who have replied, whether or not their
        answers were taken. taken: answers taken, late ones too. needed: how many must be. outstanding: questions open.
        """
        if taken < needed:
            return False
        if expected == 0:  # only users who are known to be late were asked
            return taken > 0 or outstanding == 0 or seconds >= self.timeout
        return done >= math.ceil(self.close * expected) or seconds >= self.timeout
