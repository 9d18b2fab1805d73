"""One self-contained HTML page: every panel, its caption, and its verdicts."""

from __future__ import annotations

import base64
import html
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from resolvent.paper.conduct import Made, across
from resolvent.paper.drawing import picture
from resolvent.paper.figure import HOLDS, IN_PART, NOT, Figure, Verdict
from resolvent.runs.durable import storing

CLASSES = {HOLDS: "yes", IN_PART: "part", NOT: "no"}
LEAD = (
    "The figures, tables and theorems of “An Operator Splitting View of Federated Learning” (Malekmohammadi, "
    "Shaloudegi, Hu and Yu), run again. Every claim of the text, in our words, has a check that could have refuted it."
)


def write(made: Sequence[Made], out: Path, scale: str) -> Path:
    """Draw every panel and write the page beside the runs."""
    template = Template(resources.files("resolvent.paper").joinpath("page.html").read_text(encoding="utf-8"))
    figures = unique(one.figure for one in made)
    filled = template.substitute(
        title="The paper, reproduced",
        lead=html.escape(LEAD),
        count=html.escape(counted(made, scale)),
        nav="".join(f'<a href="#{figure.name}">{html.escape(figure.title)}</a>' for figure in figures),
        figures="".join(_figure(figure, made, out) for figure in figures),
    )
    path = out / "paper.html"
    with storing(path, "name another folder with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled, encoding="utf-8")
    return path


def unique(figures: Iterable[Figure]) -> list[Figure]:
    return list({figure.label: figure for figure in figures}.values())


def counted(made: Sequence[Made], scale: str) -> str:
    """How many claims hold."""
    absent = sum(one.results is None for one in made)
    return f"Claims: {tally(judged(made))}. Networks at scale {scale}." + (
        f" {absent} panels were not run." if absent else ""
    )


def tally(verdicts: Iterable[Verdict]) -> str:
    """How many there are of each kind."""
    said = Counter(verdict.said for verdict in verdicts)
    return ", ".join(f"{said[kind]} {kind.replace('holds', 'hold').replace('does not', 'do not')}" for kind in CLASSES)


def judged(made: Sequence[Made]) -> list[Verdict]:
    """All verdicts on the paper's claims; those on this library's own are not counted."""
    found = [verdict for one in made for claim, verdict in one.verdicts if not claim.ours]
    for figure in unique(one.figure for one in made):
        found += [verdict for _, verdict in across(figure, made)]
    return found


def _figure(figure: Figure, made: Sequence[Made], out: Path) -> str:
    panels = "".join(_panel(one, out) for one in made if one.figure.label == figure.label)
    several = [(claim.words, verdict, False) for claim, verdict in across(figure, made)]
    settings = f'<p class="faint">{html.escape(figure.settings)}</p>' if figure.settings else ""
    return (
        f'<section id="{figure.name}"><h2>{html.escape(figure.title)}<code>{html.escape(figure.label)}</code></h2>'
        f"<p>{html.escape(figure.caption)}</p>{settings}<div class='panels'>{panels}</div>"
        f"{_verdicts(several)}</section>"
    )


def _panel(one: Made, out: Path) -> str:
    title = f"<figcaption>{html.escape(one.panel.key)}: {html.escape(one.panel.title)}</figcaption>"
    if one.results is None:
        return f"<figure>{title}<p>Not run: {one.missing} runs are missing.</p></figure>"
    told = _verdicts([(claim.words, verdict, claim.ours) for claim, verdict in one.verdicts])
    if one.panel.table is not None:
        return f"<figure class='wide'>{title}{_table(*one.panel.table(one.results))}{told}</figure>"
    path = picture(one, out / "pictures")
    assert path is not None
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure>{title}<img alt="{html.escape(one.panel.title)}" src="data:image/png;base64,{data}">{told}</figure>'
    )


def _table(headings: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _verdicts(rows: Sequence[tuple[str, Any, bool]]) -> str:
    if not rows:
        return ""
    body = ""
    for words, verdict, ours in rows:
        mark = ' <span class="ours">(ours)</span>' if ours else ""
        body += (
            f'<tr><td>{html.escape(words)}{mark}</td><td class="said {CLASSES[verdict.said]}">{verdict.said}</td>'
            f"<td>{html.escape(verdict.numbers)}</td></tr>"
        )
    head = "<tr><th>claim</th><th>verdict</th><th>measured</th></tr>"
    return f"<div class='scroll'><table><thead>{head}</thead><tbody>{body}</tbody></table></div>"
