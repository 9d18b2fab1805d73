"""Divergence: whether a run has diverged, which of its states is the best, and what must be said of its end.

"diverged" is said where it is certain: numbers that are not finite, or a u so far out that no step of the opening leads
there while f is no smaller than it was. All else that looks bad is said as a fact, and the run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.iteration.engine import Look
from resolvent.iteration.round import Round
from resolvent.iteration.state import State
from resolvent.iteration.yardstick import PATIENCE, VISITS, Yardstick
from resolvent.solving.objective import Objective

BLOWN_UP = 1e8
"""Times the first value, or one, that count as blown up; the square of it where u is not that far out."""
GROWN = 2.0
"""Times the size when f was last evaluated after which f is evaluated again: what does not grow costs nothing."""
RISEN = 1e-6
"""The part of itself by which a value must have risen for it to be said."""


class Score(NamedTuple):
    """How good a state is, the less the better: by its value, by its residual where values are unknown or infinite."""

    value: float = math.inf
    residual: float = math.inf

    @classmethod
    def of(cls, value: float, residual: float, state: State) -> Score:
        """A residual counts once everybody has answered; numbers that are not finite count as the worst."""
        value = value if math.isfinite(value) else math.inf
        counts = math.isfinite(residual) and (value < math.inf or state.complete)
        return cls(value, residual if counts else math.inf)

    def __str__(self) -> str:
        if self.value < math.inf:
            return f", of value {self.value:.6g},"
        return f", of residual {self.residual:.3g}," if self.residual < math.inf else ""


class Divergence:
    """Checks rounds. `best` is the best state that was considered, `score` how good it is."""

    def __init__(
        self, objective: Objective, scheme: str, begun: State, best: State | None, score: Score | None
    ) -> None:
        self.yardstick = begun.yardstick or Yardstick(begun.w)
        self.best, self._score = begun if best is None else best, score
        self.residual = math.nan
        self._first: float | None = None
        self._objective, self._engine, self._scheme = objective, objective.engine, scheme

    # --- the best state so far ---------------------------------------------------------------------------------------

    @property
    def score(self) -> Score:
        if self._score is None:  # nothing was considered yet: the best state is the one before the first round
            self._score = Score.of(self._value_of(self.best), math.nan, self.best)
        return self._score

    def consider(self, state: State, value: float, residual: float) -> None:
        """A state whose value and residual are known."""
        score = Score.of(value, residual, state)
        if score < self.score:
            self.best, self._score = state, score

    def measure(self, happened: Round) -> None:
        """Consider the state of a round which nobody recorded."""
        self.consider(happened.state, self._value_of(happened.state), happened.residual)

    def _value_of(self, state: State) -> float:
        """As the history has it: of the average where there is one, as users see it with what they remember."""
        if state.w is self.yardstick.origin and state.parts.average is None:
            return self.first
        look = Look(held_out=False)
        more = self._objective.inspect(state.reported, state.p, state.memory, look) if state.memory else None
        return self._value(state.reported) if more is None else more["value"]

    def _value(self, w: Tensor) -> float:
        return float(self._objective.measure(w)["value"])

    @property
    def first(self) -> float:
        """f of the model before the first round."""
        if self._first is None:  # no cached_property: its lock would make ranks in one process wait for each other
            self._first = self._value(self.yardstick.origin)
        return self._first

    # --- divergence --------------------------------------------------------------------------------------------------

    def check(self, happened: Round, scheduled: bool) -> str | None:
        """In what way this round shows that the run has diverged, if it does; where nobody came, the u of the last one.

        A check beside the schedule, at the end of a run, leaves no mark: a run that goes on knows nothing of it.
        """
        state, step = happened.state, happened.step
        if state.next is None:  # nobody has come yet
            return None
        if self._engine.facts.private:  # only what was released decides
            return None if bool(torch.isfinite(state.w).all()) else "its numbers are no longer finite"
        rows = [state.u] if step is None else [step[1] - step[0], state.u]
        squares = self._engine.gram(torch.stack(rows)).diagonal().tolist()
        *residual, size = (math.sqrt(x) if x >= 0 else math.nan for x in squares)
        model = float(state.w.norm())
        if not all(map(math.isfinite, (size, model, *residual))):
            return "its numbers are no longer finite"
        if residual:
            self.residual = residual[0]
            lasts = (VISITS if state.complete else PATIENCE) * self._engine.facts.users
            self.yardstick = self.yardstick.after(self.residual, size, happened.eta, happened.participants, lasts)
        before = self.yardstick
        how = self._thrown_out(state, max(size, model))
        self.yardstick = self.yardstick if scheduled else before
        return how

    def _thrown_out(self, state: State, size: float) -> str | None:
        """Far out, and f no smaller than it was: the farther out, the less f must have risen."""
        out, near, far = self.yardstick.reach(state.round)
        if size <= out or size <= GROWN * self.yardstick.judged:
            return None
        self.yardstick = replace(self.yardstick, judged=size)
        first, value = self.first, self._value(state.w)
        rise = (value - first) / (1 + abs(first))
        if not math.isfinite(first):
            gone, rose = not value < math.inf and size > far, ""
        else:
            least = 0.0 if size > far else BLOWN_UP if size > near else BLOWN_UP**2
            gone, rose = not rise <= least, f" and the value rose from {first:.3g} to {value:.3g}"
        return f"u has the norm {size:.3g} after beginning at {self.yardstick.size:.3g}{rose}" if gone else None

    def describe(self, number: int, how: str) -> str:
        """What is said of a run that diverged."""
        best = f"the state after round {self.best.round}" if self.best.round else "the start (round 0)"
        return (
            f"{self._scheme} diverged by round {number}: {how}; {best}{self.score} is handed back; "
            "take a smaller eta, or what rs.explain advises"
        )

    # --- the end -----------------------------------------------------------------------------------------------------

    def overflowed(self, value: float) -> bool:
        """Whether f is not finite at the end of a run that takes gradients, and so needs f to be finite everywhere."""
        if self._unknown(value):
            return False
        certifies = self._engine.facts.operator.certifies
        return certifies != "p" and math.isfinite(self.first) and not math.isfinite(value)

    def _unknown(self, value: float) -> bool:
        """Users on other machines say a model's value with their next answer, which the last one has not got."""
        return self._engine.facts.values_lag and math.isnan(value)

    def remarks(self, state: State, value: float) -> Iterator[str]:
        """What must be said of a run that ends with this value."""
        first, y, fstar = self.first, self.yardstick, self._engine.facts.fstar
        eps = torch.finfo(state.w.dtype).eps
        rounding = 1e3 * eps * y.pull * (y.size + float(state.w.norm()))
        if fstar is not None and self._engine.facts.kind == "Custom":
            below, best = fstar - value, self._engine.facts.minimiser
            apart = best is None or float((state.w[0] - best).norm()) > math.sqrt(eps) * float(best.norm())
            if apart and below > rounding + 1e3 * eps * max(abs(fstar), abs(value)):
                yield f"f is lower than at the minimiser that Custom was given, by {below:.3g}, so that gaps are wrong"
        if math.isfinite(first) and not self._unknown(value):
            least = max(RISEN, 100 * eps) * max(abs(first), min(abs(value), 1e300))
            if not value - first <= max(least, rounding):
                yield f"the value rose from {first:.6g} to {value:.6g}"
            elif first - value > BLOWN_UP**2 * (1 + abs(first)):
                yield f"the value fell from {first:.3g} to {value:.3g}, as if it were not bounded below"
        yield from self._engine.facts.remarks(state.u, y.origin)
