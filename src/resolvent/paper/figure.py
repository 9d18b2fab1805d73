"""What a figure of the paper is, as data: panels, the runs behind each line, and what the text claims of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from resolvent.config.problem_sections import NETWORKS

if TYPE_CHECKING:
    from resolvent.paper.results import Results

Settings = dict[str, Any]
"""Values by section.key."""

HOLDS, IN_PART, NOT = "holds", "holds in part", "does not hold"
NOT_JUDGED = "not judged"
"""Of a first choice whose runs are not there."""


class ClaimVerdict(NamedTuple):
    """What became of a claim, and the numbers that say so."""

    said: str
    numbers: str

    @staticmethod
    def of(holds: bool, numbers: str) -> ClaimVerdict:
        return ClaimVerdict(HOLDS if holds else NOT, numbers)

    @staticmethod
    def share(parts: Mapping[str, bool], numbers: str) -> ClaimVerdict:
        """Of several parts: it holds if all do, in part if some do; those that do not are named."""
        failed = [name for name, holds in parts.items() if not holds]
        if not failed:
            return ClaimVerdict(HOLDS, numbers)
        said = NOT if len(failed) == len(parts) else IN_PART
        return ClaimVerdict(said, f"{numbers}; not for {', '.join(failed)}" if said == IN_PART else numbers)


@dataclass(frozen=True)
class PanelLine:
    """A line of a panel: a configuration, and the column of its history that is drawn."""

    label: str
    settings: Settings
    column: str | None = None
    """None: the panel's."""
    style: str = "-"
    colour: str | None = None
    """None: its algorithm's own."""
    quick: Settings = field(default_factory=dict)
    """What the scale "quick" changes in this line."""
    ours: bool = False
    """Whether this library adds it to what the paper shows."""
    hidden: bool = False
    """Whether it is run for a claim, or to confirm a closed form, but not drawn."""

    @property
    def name(self) -> str:
        """What a legend says of its colour: the label up to what the style says already."""
        return self.label.split(" | ")[0]


@dataclass(frozen=True)
class First:
    """A threshold or setting as it was before runs were looked at; the claim is judged under it as well.

    A threshold is another `check` of the same results. A setting is another `panel`, run and computed like any other,
    with `check` or else the claim's own. Without either its runs were not made again, and it is not judged.
    """

    text: str
    check: Callable[[Any], ClaimVerdict] | None = None
    panel: Panel | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in our words, and the check that can refute it."""

    text: str
    check: Callable[[Any], ClaimVerdict]
    """Of the panel's results; of results by panel where it is about several."""
    ours: bool = False
    """Whether it is this library's claim and not the paper's."""
    why: str = ""
    """Why it does not hold, or not everywhere, where that is known."""
    first: First | None = None
    """The first choice, where the present one was made after a look at runs."""
    panels: tuple[str, ...] = ()
    """The panels of a figure that it is about, where it is not about one of them."""


@dataclass(frozen=True)
class Panel:
    """A panel: settings that all of its lines share, the lines, and the claims."""

    key: str
    title: str
    base: Settings = field(default_factory=dict)
    lines: tuple[PanelLine, ...] = ()
    claims: tuple[Claim, ...] = ()
    column: str = "gap"
    ylabel: str = "f(w) - f*"
    seeds: int = 1
    paper_seeds: int | None = None
    """At the paper's size, where that differs."""
    quick: Settings = field(default_factory=dict)
    """What the scale "quick" changes."""
    facts: Callable[[Settings], dict[str, Any]] | None = None
    """What is computed here and now, in seconds, without runs on disk: closed forms and small demonstrations."""
    draw: Callable[[Any, Results], None] | None = None
    """Draws on an axis what is not a value against rounds."""
    styles: Mapping[str, str] = field(default_factory=dict)
    """What line styles mean; the legend then has one entry per colour and one per style."""
    table: Callable[[Results], tuple[list[str], list[list[str]]]] | None = None
    """A table instead of a picture: headings and rows."""
    bands: bool = True
    """Whether seeds are shown as a band around their median."""
    logx: bool = False
    bottom: float | None = None
    """The least y shown."""

    @property
    def large_seeds(self) -> int:
        """Seeds of most lines at the paper's size."""
        return self.paper_seeds or self.seeds

    @property
    def firsts(self) -> list[Panel]:
        """The panels that settings first chosen call for."""
        panels = (claim.first.panel for claim in self.claims if claim.first is not None)
        return list({id(panel): panel for panel in panels if panel is not None}.values())

    @property
    def networks(self) -> bool:
        """Whether a network is trained."""
        return self.base.get("problem.name") in NETWORKS


@dataclass(frozen=True)
class Figure:
    """A figure by the paper's label, with a caption in our words."""

    label: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    claims: tuple[Claim, ...] = ()
    """Those about several panels."""
    settings: str = ""
    """What the paper leaves open, and how it is settled here; what "quick" reduces."""
    network_settings: str = ""
    """The same of the panels that train networks, and shown with those alone."""
    lead: str = ""
    """What a page of such figures begins with, where it is no figure of the paper."""

    @property
    def name(self) -> str:
        """The label as one types it."""
        return self.label.replace(":", "-").replace("_", "-").lower()
