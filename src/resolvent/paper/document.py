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
from resolvent.paper.page import LEAD, heading
from resolvent.paper.results import short
from resolvent.runs.durable import storing

if TYPE_CHECKING:
    import pandas as pd

LARGE, SIZE = "scale-paper", "at the paper's size"
"""The folder of networks' runs at the paper's size, beside the pictures."""
HEAD = "| claim | verdict | measured |\n|---|---|---|"
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
        for one in (one for one in panels if one.figure.label == figure.label):
            parts += _panel(one, folder, index.scale)
            parts += _large(large[_place(one)], one, archive, folder) if _place(one) in large else []
        parts += _verdicts(across(figure, panels), "**Across panels.**")
        parts += _large_across(figure, large)
    with storing(path, "name another file with --verdicts"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
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


def _large_across(figure: Figure, large: LargePanels) -> list[str]:
    judged = across(figure, _complete(large))
    asked = [claim for claim in figure.claims if all((figure.label, key) in large for key in claim.panels)]
    absent = [f"**Across panels, {SIZE}: not judged**, since seeds are missing."] if len(judged) < len(asked) else []
    return _verdicts(judged, f"**Across panels, {SIZE}.**") + absent


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
        shown = _shown(one, folder / LARGE, f"{folder.name}/{LARGE}", SIZE)
        return [" ".join([f"{heading}, {behind}.**", *notes]), *shown]
    ends = [f"{label} (final loss {short(one.results.final(label))})" for label in one.results]
    return [" ".join([f"{heading}: in part only, so not judged.**", f"Run: {'; '.join(ends)}, {behind}.", *notes])]


def _where_left(label: str, frame: pd.DataFrame) -> str:
    rounds, value = frame.attrs["rounds"], float(frame["value"].iloc[-1])
    return f"{label} after {rounds} rounds, at a loss of {short(value)}"


def _shown(one: JudgedPanel, folder: Path, link: str, note: str = "") -> list[str]:
    """A table or a picture, and the verdicts."""
    parts = []
    if one.panel.table is not None and one.results is not None:
        headings, rows = one.panel.table(one.results)
        lines = [headings, ["---"] * len(headings), *rows]
        parts.append("\n".join("| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines))
    drawn = picture(one, folder, note=note)
    if drawn is not None:
        parts.append(f"![{one.panel.title}{note and ', '}{note}]({link}/{drawn.name})")
    return parts + _verdicts(one.verdicts)


def _verdicts(judged: Sequence[Judged], heading: str = "") -> list[str]:
    """A table of verdicts, under a heading."""
    if not judged:
        return []
    return ([heading] if heading else []) + ["\n".join([HEAD, *map(row, judged)])]


def row(one: Judged) -> str:
    """A line of a table of verdicts."""
    return f"| {_plain(one.text)} | **{one.verdict.said}** | {_plain(one.measured('*{}*'))} |"


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
