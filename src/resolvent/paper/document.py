"""The verdicts as a Markdown file, with pictures in a folder beside it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.paper import archive as archives
from resolvent.paper.archive import Archive
from resolvent.paper.conduct import RunIndex
from resolvent.paper.drawing import picture
from resolvent.paper.figure import Figure
from resolvent.paper.judging import PAPER, Judged, JudgedPanel, across, count, tally, unique
from resolvent.paper.networks import QUICK_TEXT
from resolvent.paper.page import LEAD, heading
from resolvent.paper.results import short
from resolvent.runs.durable import storing

if TYPE_CHECKING:
    import pandas as pd

LARGE, SIZE = "scale-paper", "at the paper's size"
"""The folder of networks' runs at the paper's size, beside the pictures."""
HEADINGS = "claim", "verdict", "measured"
AS_ABOVE = "The reason is as above."
LargePanels = dict[tuple[str, str], JudgedPanel]
"""Networks' panels at the paper's size, by figure and panel."""


def write(panels: Sequence[JudgedPanel], path: Path, index: RunIndex) -> Path:
    """Write the file and its pictures; at scale quick, networks' panels at the paper's size from the archive too."""
    folder = path.with_suffix("")
    archive = {} if index.scale == PAPER else archives.read(folder / LARGE)
    networks = [one for one in panels if one.panel.networks and index.scale != PAPER]
    large = {_place(one): archives.panel_of(one.figure, one.panel, archive) for one in networks}
    title, lead = heading(unique(one.figure for one in panels))
    preamble = resources.files("resolvent.paper").joinpath("preamble.md").read_text(encoding="utf-8").strip()
    parts = [f"# {title}", lead, count(panels, index.scale)]
    parts += [_comparison(panels, large, archive, folder)] if large else []
    parts += [preamble] if lead == LEAD else []
    for figure in unique(one.figure for one in panels):
        parts += [f"## {figure.title} (`{figure.label}`)", figure.caption]
        settings = f"{figure.settings} {figure.network_settings}".strip()
        parts += [settings] if settings else []
        of_figure: list[str] = []
        for one in (one for one in panels if one.figure.label == figure.label):
            paper = large.get(_place(one))
            of_figure += [] if paper is not None and paper.verdicts else _panel(one, folder, index.scale)
            of_figure += [] if paper is None else _large(paper, one, archive, folder)
        of_figure += _across(figure, panels, large)
        parts.append(_each_reason_once("\n\n".join(of_figure), figure))
    with storing(path, "name another file with --verdicts"):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = _once(QUICK_TEXT, "Quick runs: as said above.", "\n\n".join(parts))
        path.write_text(text + "\n", encoding="utf-8")
    return path


def _place(one: JudgedPanel) -> tuple[str, str]:
    return one.figure.label, one.panel.key


def _complete(large: LargePanels) -> list[JudgedPanel]:
    """Claims about several panels are about seeds too: they are judged where none is missing."""
    return [one for one in large.values() if not one.missing]


def _comparison(panels: Sequence[JudgedPanel], large: LargePanels, archive: Archive, folder: Path) -> str:
    """How much was run at the paper's size, what became of the claims there, and where the two sizes disagree."""
    if not archive:
        return "No network was run at the paper's size."
    done = sum(bool(one.verdicts) for one in large.values())
    devices = ", ".join(sorted({frame.attrs["device"] for frame in archive.values()}))
    ended = sum(frame.attrs["status"] != archives.UNFINISHED for frame in archive.values())
    verdicts = [x for one in large.values() for x in one.verdicts if not x.claim.ours]
    for figure in unique(one.figure for one in large.values()):
        verdicts += across(figure, _complete(large))
    summary = (
        f"At the paper's size {done} of {len(large)} network panels were run and judged, by {ended} runs on one "
        f"{devices}; [{folder.name}/{LARGE}]({folder.name}/{LARGE}/README.md) says how. Claims there: "
        f"{tally(verdicts)}; under first choices: {tally(verdicts, first=True)}. "
        "A panel that was not run at that size, or only in part, says so."
    )
    apart = []
    for one in (one for one in panels if _place(one) in large):
        quick = {x.claim.text: x.verdict.said for x in one.verdicts}
        for text, said in ((x.claim.text, x.verdict.said) for x in large[_place(one)].verdicts):
            if quick.get(text, said) != said:
                place = f"`{one.figure.label}` {one.panel.key}"
                apart.append(f'- {place}: "{text}" *{quick[text]}* in quick runs, *{said}* at the paper\'s size.')
    return "\n".join([f"{summary} The two sizes disagree here:", "", *apart]) if apart else summary


def _across(figure: Figure, panels: Sequence[JudgedPanel], large: LargePanels) -> list[str]:
    """Claims about several panels: at the paper's size where all of these were run there, else as they were run."""
    quick, judged = across(figure, panels), across(figure, _complete(large))
    asked = [claim for claim in figure.claims if all((figure.label, key) in large for key in claim.panels)]
    absent = [f"**Across panels, {SIZE}: not judged**, since seeds are missing."] if len(judged) < len(asked) else []
    there = [one.claim for one in judged]
    parts = _verdicts([one for one in quick if one.claim not in there], "**Across panels.**")
    return parts + _verdicts(judged, f"**Across panels, {SIZE}.**", quick) + absent


def _each_reason_once(text: str, figure: Figure) -> str:
    """Panels of a figure share claims: the second time a reason is only referred to."""
    claims = [*figure.claims, *(claim for panel in figure.panels for claim in panel.claims)]
    for reason in {_plain(claim.why) for claim in claims if claim.why}:
        text = _once(reason, AS_ABOVE, text)
    return text


def _once(words: str, then: str, text: str) -> str:
    head, found, tail = text.partition(words)
    return head + found + tail.replace(words, then)


def _panel(one: JudgedPanel, folder: Path, scale: str) -> list[str]:
    size = "" if not one.panel.networks else f", {SIZE}" if scale == PAPER else ", quick"
    if one.results is None:
        return [f"**{one.panel.key}: {one.panel.title}.** Not run: runs missing, {one.missing}."]
    return [f"**{one.panel.key}: {one.panel.title}{size}.**", *_shown(one, folder, folder.name)]


def _large(one: JudgedPanel, quick: JudgedPanel, archive: Archive, folder: Path) -> list[str]:
    """A network's panel at the paper's size, or that it was not run there."""
    heading = f"**{one.panel.key}: {one.panel.title}, {SIZE}"
    if one.results is None:
        return [f"{heading}: not run.**"]
    counts = {len(frames) for frames in one.results.values()}
    behind = f"{' to '.join(map(str, sorted({min(counts), max(counts)})))} of {quick.panel.large_seeds} seeds"
    unfinished = archives.begun(quick.panel, archive)
    names = {line.name for line in one.panel.lines}
    absent = [line for line in quick.panel.lines if line.label not in {*one.results, *unfinished}]
    missing = dict.fromkeys(line.label if line.name in names else line.name for line in absent)
    notes = [f"Not run: {'; '.join(missing)}."] if missing else []
    if unfinished:
        where = "; ".join(map(_where_left, unfinished, unfinished.values()))
        notes.append(f"Left unfinished, and not judged: {where}.")
    if one.verdicts:
        shown = _shown(one, folder / LARGE, f"{folder.name}/{LARGE}", SIZE, quick.verdicts)
        return [" ".join([f"{heading}, {behind}.**", *notes]), *shown]
    ends = [f"{label} (final loss {short(one.results.final(label))})" for label in one.results]
    return [" ".join([f"{heading}: in part only, so not judged.**", f"Run: {'; '.join(ends)}, {behind}.", *notes])]


def _where_left(label: str, frame: pd.DataFrame) -> str:
    rounds, value = frame.attrs["rounds"], float(frame["value"].iloc[-1])
    return f"{label} after {rounds} rounds, at a loss of {short(value)}"


def _shown(
    one: JudgedPanel, folder: Path, link: str, note: str = "", quick: Sequence[Judged] | None = None
) -> list[str]:
    """A table or a picture, and the verdicts, beside those of quick runs where they are given."""
    parts = []
    if one.panel.table is not None and one.results is not None:
        parts.append(_table(*one.panel.table(one.results)))
    drawn = picture(one, folder, note=note)
    if drawn is not None:
        parts.append(f"![{one.panel.title}{note and ', '}{note}]({link}/{drawn.name})")
    return parts + _verdicts(one.verdicts, quick=quick)


def _verdicts(judged: Sequence[Judged], heading: str = "", quick: Sequence[Judged] | None = None) -> list[str]:
    """A table of verdicts, under a heading."""
    if not judged:
        return []
    headings = HEADINGS if quick is None else (*HEADINGS, "quick runs")
    small = {} if quick is None else {id(one.claim): _in_brief(one) for one in quick}
    last = [[] if quick is None else [small.get(id(one.claim), "not run")] for one in judged]
    table = _table(headings, [[*row(one), *more] for one, more in zip(judged, last, strict=True)])
    return [heading, table] if heading else [table]


def row(one: Judged) -> list[str]:
    """The cells of a verdict."""
    return [one.text, f"**{one.verdict.said}**", one.measured("*{}*", numbers=False)]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(map(_plain, line)) + " |" for line in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])


def _in_brief(one: Judged) -> str:
    """The verdicts alone."""
    return f"*{one.verdict.said}*" + ("" if one.first is None else f"; first choice: *{one.first.said}*")


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
