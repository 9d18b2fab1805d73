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

from resolvent.paper.conduct import Made, across, across_first
from resolvent.paper.drawing import picture
from resolvent.paper.figure import HOLDS, IN_PART, NOT, NOT_JUDGED, Across, Claim, ClaimVerdict, Figure
from resolvent.runs.durable import storing

CLASSES = {HOLDS: "yes", IN_PART: "part", NOT: "no", NOT_JUDGED: "part"}
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
    """How many claims hold, the paper's and this library's own, and how many would under the choices made first."""
    absent = sum(one.results is None for one in made)
    told = [f"Claims of the paper: {_twice(made, ours=False)}."]
    told += [f"Ours: {_twice(made, ours=True)}."] if judged(made, ours=True) else []
    told += [f"Networks at scale {scale}."]
    return " ".join(told + ([f"{absent} panels were not run."] if absent else []))


def _twice(made: Sequence[Made], ours: bool) -> str:
    """Both counts; one where nothing was chosen again."""
    now, first = judged(made, ours), judged(made, ours, first=True)
    changed = sum(bool(claim.first) for claim, _, _ in told(made) if claim.ours == ours)
    return tally(now) + (f"; with what was first chosen for {changed} of them: {tally(first)}" if changed else "")


def tally(verdicts: Iterable[ClaimVerdict]) -> str:
    """How many there are of each kind."""
    said = Counter(verdict.said for verdict in verdicts)
    kinds = [kind for kind in CLASSES if kind != NOT_JUDGED or said[kind]]
    return ", ".join(f"{said[kind]} {kind.replace('holds', 'hold').replace('does not', 'do not')}" for kind in kinds)


def told(made: Sequence[Made]) -> list[tuple[Claim | Across, ClaimVerdict, ClaimVerdict | None]]:
    """Every claim, the verdict on it, and the one under the first choice where that was another."""
    found: list[tuple[Claim | Across, ClaimVerdict, ClaimVerdict | None]] = []
    for one in made:
        found += [(claim, verdict, one.first.get(claim.words)) for claim, verdict in one.verdicts]
    for figure in unique(one.figure for one in made):
        first = across_first(figure, made)
        found += [(claim, verdict, first.get(claim.words)) for claim, verdict in across(figure, made)]
    return found


def judged(made: Sequence[Made], ours: bool = False, first: bool = False) -> list[ClaimVerdict]:
    """All verdicts on the paper's claims, or on this library's own; or those under first choices."""
    return [(before if first else None) or now for claim, now, before in told(made) if claim.ours == ours]


def with_first(claim: Claim | Across, verdict: ClaimVerdict, first: ClaimVerdict | None, bold: str = "{}") -> str:
    """The numbers, and what the first choice said; `bold` is how a verdict is set."""
    if first is None or claim.first is None:
        return verdict.numbers
    return f"{verdict.numbers}. First choice, {claim.first.words}: {bold.format(first.said)} ({first.numbers})"


def _figure(figure: Figure, made: Sequence[Made], out: Path) -> str:
    panels = "".join(_panel(one, out) for one in made if one.figure.label == figure.label)
    first = across_first(figure, made)
    several = [_line(claim, verdict, first.get(claim.words)) for claim, verdict in across(figure, made)]
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
    rows = _verdicts([_line(claim, verdict, one.first.get(claim.words)) for claim, verdict in one.verdicts])
    if one.panel.table is not None:
        return f"<figure class='wide'>{title}{_table(*one.panel.table(one.results))}{rows}</figure>"
    path = picture(one, out / "pictures")
    assert path is not None
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure>{title}<img alt="{html.escape(one.panel.title)}" src="data:image/png;base64,{data}">{rows}</figure>'
    )


def _table(headings: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _line(claim: Claim | Across, verdict: ClaimVerdict, first: ClaimVerdict | None) -> tuple[str, ClaimVerdict, bool]:
    return claim.words, verdict._replace(numbers=with_first(claim, verdict, first)), claim.ours


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
