"""Verdicts on the claims of panels, now and under first choices, and how many there are of each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from resolvent.paper.figure import HOLDS, IN_PART, NOT, NOT_JUDGED, Claim, ClaimVerdict, Figure, Panel
from resolvent.paper.results import Results

if TYPE_CHECKING:
    import pandas as pd

QUICK, PAPER = "quick", "paper"
"""The sizes of networks' panels."""


class Judged(NamedTuple):
    """A claim, the verdict on it, and the one under its first choice, where it has one."""

    claim: Claim
    verdict: ClaimVerdict
    first: ClaimVerdict | None = None

    @property
    def text(self) -> str:
        """What is claimed, and by whom."""
        return self.claim.text + (" (ours)" if self.claim.ours else "")

    def measured(self, emphasis: str = "{}", numbers: bool = True) -> str:
        """The numbers, and what the first choice said, with its own; `emphasis` is how that verdict is set."""
        if self.first is None or self.claim.first is None:
            return self.verdict.numbers
        first = emphasis.format(self.first.said) + (f" ({self.first.numbers})" if numbers else "")
        return f"{self.verdict.numbers.removesuffix('.')}. First choice, {self.claim.first.text}: {first}"


@dataclass(frozen=True)
class JudgedPanel:
    """A panel, its results and verdicts; without results where it was not run."""

    figure: Figure
    panel: Panel
    results: Results | None
    verdicts: tuple[Judged, ...] = ()
    missing: int = 0
    """How many of its runs are not there."""


def results_of(panel: Panel, frames: dict[str, list[pd.DataFrame]], scale: str = QUICK) -> Results:
    """The histories, with the facts that the panel computes beside them."""
    settings = panel.base | (panel.quick if scale == QUICK else {})
    return Results(panel, frames, {} if panel.facts is None else panel.facts(settings))


def judge(figure: Figure, results: Results, others: dict[int, Results] | None = None) -> JudgedPanel:
    """The verdicts on a panel; `others` are the results of the panels that first choices call for, by their id."""
    verdicts = tuple(_judged(claim, results, others or {}) for claim in results.panel.claims)
    return JudgedPanel(figure, results.panel, results, verdicts)


def across(figure: Figure, panels: Iterable[JudgedPanel]) -> list[Judged]:
    """The verdicts on claims about several panels, where all of these were run."""
    results = {one.panel.key: one.results for one in panels if one.figure.label == figure.label and one.results}
    claims = [claim for claim in figure.claims if all(key in results for key in claim.panels)]
    return [_judged(claim, {key: results[key] for key in claim.panels}, {}) for claim in claims]


def _judged(claim: Claim, results: Any, others: dict[int, Results]) -> Judged:
    """The verdicts now, with the reason unless the claim holds, and under the first choice."""
    verdict = claim.check(results)
    if verdict.said != HOLDS and claim.why:
        verdict = verdict._replace(numbers=f"{verdict.numbers}. {claim.why}")
    first = claim.first
    if first is None:
        return Judged(claim, verdict)
    if first.panel is not None:
        results = others.get(id(first.panel))
    if results is None or (first.panel is None and first.check is None):
        return Judged(claim, verdict, ClaimVerdict(NOT_JUDGED, "its runs are not there"))
    return Judged(claim, verdict, (first.check or claim.check)(results))


def unique(figures: Iterable[Figure]) -> list[Figure]:
    return list({figure.label: figure for figure in figures}.values())


def judgements(panels: Sequence[JudgedPanel]) -> list[Judged]:
    """Every verdict: on panels, then across them."""
    figures = unique(one.figure for one in panels)
    return [x for one in panels for x in one.verdicts] + [x for figure in figures for x in across(figure, panels)]


def count(panels: Sequence[JudgedPanel], scale: str) -> str:
    """How many claims hold, the paper's and this library's own, and how many would under the choices made first."""
    absent = sum(one.results is None for one in panels)
    theirs, ours = ([x for x in judgements(panels) if x.claim.ours == ours] for ours in (False, True))
    parts = [f"Claims of the paper: {_both_tallies(theirs)}."]
    parts += [f"Ours: {_both_tallies(ours)}."] if ours else []
    parts += [f"Networks at scale {scale}."]
    return " ".join(parts + ([f"{absent} panels were not run."] if absent else []))


def _both_tallies(judged: Sequence[Judged]) -> str:
    """Now and under first choices; one of them where nothing was chosen again."""
    changed = sum(x.first is not None for x in judged)
    first = f"; with what was first chosen for {changed} of them: {tally(judged, first=True)}" if changed else ""
    return tally(judged) + first


def tally(judged: Iterable[Judged], first: bool = False) -> str:
    """How many verdicts there are of each kind, now or under first choices."""
    said = Counter(((x.first if first else None) or x.verdict).said for x in judged)
    kinds = [kind for kind in (HOLDS, IN_PART, NOT, NOT_JUDGED) if kind != NOT_JUDGED or said[kind]]
    return ", ".join(f"{said[kind]} {kind.replace('holds', 'hold').replace('does not', 'do not')}" for kind in kinds)
