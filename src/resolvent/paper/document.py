"""The verdicts as a Markdown file, with pictures in a folder beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.paper import archive as archives
from resolvent.paper.archive import Archive
from resolvent.paper.conduct import PAPER, Made, RunIndex, across, across_first
from resolvent.paper.drawing import picture
from resolvent.paper.figure import Across, Claim, ClaimVerdict, Figure
from resolvent.paper.page import LEAD, counted, tally, unique, with_first
from resolvent.paper.results import short
from resolvent.runs.durable import storing

if TYPE_CHECKING:
    import pandas as pd

LARGE, SIZE = "scale-paper", "at the paper's size"
"""The folder of networks' runs at the paper's size, beside the pictures."""
HEAD = "| claim | verdict | measured |\n|---|---|---|"
MADE = """This file is generated: `resolvent reproduce all --verdicts docs/paper.md` runs what is missing
and writes it again; with `--kept` it is written from the runs that are there. "Ours" marks claims and lines that
this library adds. What networks did at the paper's size is read from small files, so that no GPU is needed for it."""

CHOSEN = """Read the verdicts with this in mind. The paper states no thresholds and leaves settings open; both were
chosen here, and some after a first look at runs. Claims that this concerns have both verdicts, now and under the first
choice ("not judged" where its runs were not made again), and so do the counts below:

- `fig:splitting_usersampling`: FedSplit is called unstable by how high it jumps; first, by where it settles.
- `fig:splitting_minibatch`: with steps of 1e-6 and 120 rounds no prox method had settled on least squares, and
  FedAvg with k = 1 was far ahead of FedSplit and FedPi; it has steps of 1.5e-6 and 400 rounds now. The order
  depends on that step.
- `fig:trade_off`, bottom right: eta = 1e-4 and 3e-4 had not converged in 800 rounds and were left out.
- `fig:fixed_pr_stationary`: a proper range is eta (k-1) L <= 0.35 (first 0.25). In the middle panel products
  below 2e-3 were left out: acceleration did not find their fixed points.
- Networks: FedSplit and FedPi have eta = 0.1, since they run away at 100, 10 and 1 (quick runs); the others
  keep 100. At the paper's size and eta = 100 FedPi diverges in round 8 or 9 with each of four seeds, as it does with
  228 images per user and otherwise the paper's steps; FedSplit does all 50 rounds with seeds 0 and 2, and ends at
  losses of 1.04 and 0.893 (0.916 and 1.61 with 0.1), and diverges in rounds 5 and 7 with seeds 1 and 3.
- Networks of `fig:extrap` and `fig:extrap_error`: with quick runs' 10 steps of 0.1 acceleration as the paper
  prints it made FedAvg three times worse; it has 50 of 0.02 there.
- Networks at the paper's size: lines are compared on the leading seeds that all of the paper's lines have (ours:
  that all of ours have), by now on all four. First every line had all of its seeds, when some had fewer; then FedSplit
  at eta = 100, diverged with seed 1, made the claim that it and FedPi run away hold without the "in part" that it
  has now.
- `theorems:fedprox` fp: on a first problem, with 30 users in 4 dimensions, averages under 1/t^0.6 were still
  above those of the constant step after 2000 rounds; the problem shown is smaller.
- `sec:acc` gamma and `law` fedavg: "the same end" is within 5 % (first 0.1 %), "close" within 10 % (first 5 %).
- `tab:FL`: FedAvg's vanishing steps are taken with k = 5; with k = 1 and a smaller first step it was still at a
  gap of 51. That hold works is said of gaps below 1e-9 of the first one, not of round-off, where FedPi is not yet.
- `thm:rp`: the obtuse cones are halfspaces; with narrower ones, tried first, there was little to see.
- Networks' losses within 5 % of each other count as equal. A suffix average keeps up within a factor of three of
  the last model; first it was compared with the average over all rounds.
- `theorems:fedprox` fp-nvx: the bound is met to 1 %, on a coarser grid; first to 0.1 %.

One seed stands behind every convex panel, and every quick network but those of `fig:extrap` and `fig:extrap_error`; a
panel at the paper's size says how many seeds it has. Reasons that begin with "Likely" were not tested.

Networks in quick runs take long steps, which magnify rounding: on another machine, or with another version of this
library, their numbers differ. Between two versions last losses of FedAvg and FedProx moved by up to 6 %, those of
FedRP, FedSplit and FedPi by up to a factor of two, and in one of them FedSplit diverged."""

Large = dict[tuple[str, str], Made]
"""Networks' panels at the paper's size, by figure and panel."""


def write(made: Sequence[Made], path: Path, store: RunIndex) -> Path:
    """Write the file and its pictures; at scale quick, networks' panels at the paper's size from the archive too."""
    folder = path.with_suffix("")
    archive = {} if store.scale == PAPER else archives.read(folder / LARGE)
    networks = [one for one in made if one.panel.networks and store.scale != PAPER]
    large = {_place(one): archives.panel_of(one.figure, one.panel, archive) for one in networks}
    parts = ["# The paper, reproduced", LEAD, MADE, CHOSEN, counted(made, store.scale)]
    parts += [_compared(made, large, archive, folder)] if large else []
    for figure in unique(one.figure for one in made):
        panels = [one for one in made if one.figure.label == figure.label]
        parts += _figure(figure, panels, large, archive, folder, store.scale)
    with storing(path, "name another file with --verdicts"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _compared(made: Sequence[Made], large: Large, archive: Archive, folder: Path) -> str:
    """How much was run at the paper's size, what became of the claims there, and where the two sizes disagree."""
    if not archive:
        return "No network was run at the paper's size."
    done = [one for one in large.values() if one.verdicts]
    devices = ", ".join(sorted({frame.attrs["device"] for frame in archive.values()}))
    ended = sum(frame.attrs["status"] != archives.UNFINISHED for frame in archive.values())
    told = (
        f"At the paper's size {len(done)} of {len(large)} network panels were run and judged, by {ended} runs on one "
        f"{devices}; [{folder.name}/{LARGE}]({folder.name}/{LARGE}/README.md) says how. Claims there: "
        f"{tally(_verdicts(large))}; under first choices: {tally(_verdicts(large, first=True))}. "
        "A panel that was not run at that size, or only in part, says so."
    )
    apart = []
    for one in made:
        quick = {claim.words: verdict for claim, verdict in one.verdicts}
        for claim, verdict in large[_place(one)].verdicts if _place(one) in large else ():
            if claim.words in quick and quick[claim.words].said != verdict.said:
                apart.append(
                    f'- `{one.figure.label}` {one.panel.key}: "{claim.words}" *{quick[claim.words].said}* in quick '
                    f"runs, *{verdict.said}* at the paper's size."
                )
    return "\n".join([f"{told} The two sizes disagree here:", "", *apart]) if apart else told


def _place(one: Made) -> tuple[str, str]:
    return one.figure.label, one.panel.key


def _verdicts(large: Large, first: bool = False) -> list[ClaimVerdict]:
    """All verdicts on the paper's claims at the paper's size, or those under first choices."""
    found = []
    for one in large.values():
        before = one.first if first else {}
        found += [before.get(claim.words, verdict) for claim, verdict in one.verdicts if not claim.ours]
    for figure in unique(one.figure for one in large.values()):
        before = across_first(figure, [one for one in large.values() if not one.missing]) if first else {}
        found += [before.get(claim.words, verdict) for claim, verdict in _across(figure, large)]
    return found


def _across(figure: Figure, large: Large) -> list[tuple[Across, ClaimVerdict]]:
    """Claims about several panels at the paper's size, which are about seeds too: judged where none is missing."""
    return across(figure, [one for one in large.values() if not one.missing])


def _figure(
    figure: Figure, made: Sequence[Made], large: Large, archive: Archive, folder: Path, scale: str
) -> list[str]:
    parts = [f"## {figure.title} (`{figure.label}`)", figure.caption]
    parts += [figure.settings] if figure.settings else []
    for one in made:
        parts += _panel(one, folder, scale)
        parts += _large(large[_place(one)], one, archive, folder) if _place(one) in large else []
    parts += _several(across(figure, made), across_first(figure, made), "**Across panels.**")
    several = _across(figure, large)
    there = [one for one in large.values() if not one.missing]
    parts += _several(several, across_first(figure, there), f"**Across panels, {SIZE}.**")
    asked = [claim for claim in figure.claims if all((figure.label, key) in large for key in claim.panels)]
    if len(several) < len(asked):
        parts.append(f"**Across panels, {SIZE}: not judged**, since seeds are missing.")
    return parts


def _several(
    verdicts: Sequence[tuple[Across, ClaimVerdict]], first: dict[str, ClaimVerdict], heading: str
) -> list[str]:
    if not verdicts:
        return []
    return [heading, "\n".join([HEAD, *(row(claim, verdict, first.get(claim.words)) for claim, verdict in verdicts)])]


def _panel(one: Made, folder: Path, scale: str) -> list[str]:
    size = "" if not one.panel.networks else f", {SIZE}" if scale == PAPER else ", quick"
    if one.results is None:
        return [f"**{one.panel.key}: {one.panel.title}.** Not run: runs missing, {one.missing}."]
    return [f"**{one.panel.key}: {one.panel.title}{size}.**", *_shown(one, folder, folder.name)]


def _large(one: Made, quick: Made, archive: Archive, folder: Path) -> list[str]:
    """A network's panel at the paper's size, or that it was not run there."""
    heading = f"**{one.panel.key}: {one.panel.title}, {SIZE}"
    if one.results is None:
        return [f"{heading}: not run.**"]
    counts = {len(frames) for frames in one.results.values()}
    behind = f"{' to '.join(map(str, sorted({min(counts), max(counts)})))} of {quick.panel.large_seeds} seeds"
    left = archives.begun(quick.panel, archive)
    names = {line.name for line in one.panel.lines}
    absent = [line for line in quick.panel.lines if line.label not in one.results and line.label not in left]
    missing = dict.fromkeys(line.label if line.name in names else line.name for line in absent)
    notes = [f"Not run: {'; '.join(missing)}."] if missing else []
    notes += [f"Left unfinished, and not judged: {'; '.join(map(_left, left, left.values()))}."] if left else []
    if one.verdicts:
        shown = _shown(one, folder / LARGE, f"{folder.name}/{LARGE}", SIZE)
        return [" ".join([f"{heading}, {behind}.**", *notes]), *shown]
    ends = [f"{label} (final loss {short(one.results.final(label))})" for label in one.results]
    return [" ".join([f"{heading}: in part only, so not judged.**", f"Run: {'; '.join(ends)}, {behind}.", *notes])]


def _left(label: str, frame: pd.DataFrame) -> str:
    rounds, value = frame.attrs["rounds"], float(frame["value"].iloc[-1])
    return f"{label} after {rounds} rounds, at a loss of {short(value)}"


def _shown(one: Made, folder: Path, link: str, note: str = "") -> list[str]:
    """A table or a picture, and the verdicts."""
    parts = []
    if one.panel.table is not None and one.results is not None:
        headings, rows = one.panel.table(one.results)
        lines = [headings, ["---"] * len(headings), *rows]
        parts.append("\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines))
    drawn = picture(one, folder, note=note)
    if drawn is not None:
        parts.append(f"![{one.panel.title}{note and ', '}{note}]({link}/{drawn.name})")
    if one.verdicts:
        rows_ = [row(claim, verdict, one.first.get(claim.words)) for claim, verdict in one.verdicts]
        parts.append("\n".join([HEAD, *rows_]))
    return parts


def row(claim: Claim | Across, verdict: ClaimVerdict, first: ClaimVerdict | None) -> str:
    """A line of a table of verdicts."""
    words = claim.words + (" (ours)" if claim.ours else "")
    return f"| {_plain(words)} | **{verdict.said}** | {_plain(with_first(claim, verdict, first, '*{}*'))} |"


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
