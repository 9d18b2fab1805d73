"""User-level differential privacy: what is asked for. `private_mean` is the meeting that it makes.

What is exactly private. In every round each user present contributes one vector, c_i = z_i - x, cut to length `clip`,
where x is public: what mean(u) would be if what was released were all there is. Where users share one u, x is that u;
else it follows (gFL-3) with the released meeting point in place of mean(z). The contributions are summed with equal
weights, Gaussian noise of standard deviation noise * clip is added to every coordinate of the sum, and

    w = x + (the noisy sum) / (the expected number of users present)

is released. The divisor is a constant, which is public. c_i is made of user i's own rows and of what was released
before, so that one user more or less changes one sum by a vector no longer than `clip`, and the rounds compose as
Gaussian mechanisms (of Poisson samples, where users are drawn). Two federations are neighbours if they differ by one
user, with all of its rows, whose contributions are there or are zero.

All contributions are fresh, never added to sums of earlier ones: so noise does not pile up. With everybody present
mean(u) is the mean of the users' answers plus this round's noise, whatever noise came before.

Everything else that is computed from users' rows stays inside (`engines/private.py`), or is refused
(`solving/private.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from resolvent.errors import InputError, flag, one_of, quoted, real, refuse
from resolvent.iteration.part import Part
from resolvent.iteration.registry import part

POSITIVE = "a finite number > 0 is needed"


class Privacy(Part):
    """Which privacy is asked for. `asked`: whether any is."""

    asked = False


@part("privacy", "none")
@dataclass(frozen=True)
class NoPrivacy(Privacy):
    """None: whoever sees the run may learn of the users' rows."""


@part("privacy", "user")
@dataclass(frozen=True)
class UserPrivacy(Privacy):
    """User-level differential privacy: contributions are clipped and noise is added, so that one user more or less
    hardly changes what is released.

    Give epsilon and delta, and the noise follows for the number of rounds asked; or noise and delta, and the history
    says which epsilon that is.
    """

    clip: float
    """The length to which each user's contribution is cut; with a quantile, the first one."""
    epsilon: float | None = None
    """The budget of the whole run, which also a run that goes on must not pass; the noise follows from it."""
    delta: float | None = None
    """The chance that epsilon does not hold, below 1 / users."""
    noise: float | None = None
    """In place of epsilon: the standard deviation of the noise, as a multiple of clip."""
    quantile: float | None = None
    """The share of users who are to be within clip, which then follows them, at a part of the same budget."""
    local: bool = False
    """Whether every user adds noise of its own, so that nobody need be trusted; it takes far more of it."""
    held_out: Literal["private", "public"] = "private"
    """Whether held-out rows are public: metrics on them are then shown, and are not counted."""
    asked = True

    def __post_init__(self) -> None:
        for name in ("clip", "epsilon", "noise"):
            value = getattr(self, name)
            if name == "clip" or value is not None:
                object.__setattr__(self, name, real(value, name, lambda x: 0 < x < math.inf, POSITIVE))
        for name in ("delta", "quantile"):
            if getattr(self, name) is not None:
                needed = "a number in (0, 1) is needed"
                object.__setattr__(self, name, real(getattr(self, name), name, lambda x: 0 < x < 1, needed))
        if self.epsilon is not None and self.noise is not None:
            refuse(
                "noise", self.noise, f"epsilon = {self.epsilon:g} is given as well: give one of them, the other follows"
            )
        if self.epsilon is None and self.noise is None:
            raise InputError("neither epsilon nor noise is given: give epsilon and delta, or noise and delta")
        if self.delta is None:
            raise InputError("delta is missing: the chance that epsilon does not hold, below 1 / users, is needed")
        flag(self.local, "local")
        one_of(self.held_out, "held_out", ("private", "public"), 'either "private" or "public" is needed')
        if self.local and self.quantile is not None:
            refuse(
                "quantile",
                self.quantile,
                "users who trust nobody do not tell whether they are within clip: leave it out",
            )

    def words(self, secret: bool = False) -> str:
        """What is promised, what is released, and what stays inside; `secret`: whether users are real."""
        if self.epsilon is None:
            budget = f"with noise of {self.noise:g} clip, delta = {self.delta:g}; epsilon is in the history"
        else:
            budget = f"epsilon = {self.epsilon:g} and delta = {self.delta:g} for the whole run"
        whom = "every user adds noise of its own, so that nobody need be trusted with its contributions"
        whom = whom if self.local else "whoever sums up the contributions is trusted, and adds noise to the sum"
        shown = "; metrics on public held-out rows are shown" if self.held_out == "public" else ""
        drawn = (
            "comes from the operating system's generator"
            if secret
            else "is hashed from the seed, and so hides nothing from whoever knows the seed"
        )
        follows = ", which then follows a noisy quantile" if self.quantile is not None else ""
        return (
            f"user-level, {budget}, and runs on the same users add up; {whom}; contributions are cut to length "
            f"{self.clip:g}{follows}; released are the meeting points and what is made of them alone, so that values, "
            "gaps, residuals, certificates, metrics on held-out rows, personal models and who took part are left out"
            f"{shown}; noise {drawn}"
        )


def as_privacy(given: Any) -> Privacy:
    """None: no privacy."""
    if given is not None and not isinstance(given, Privacy):
        refuse("privacy", quoted(given), "None or rs.UserPrivacy(clip, epsilon=..., delta=...) is needed")
    return NoPrivacy() if given is None else given
