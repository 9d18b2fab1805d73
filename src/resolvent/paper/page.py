"""One self-contained HTML page: every panel, its caption, and its verdicts."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from resolvent.paper.drawing import picture
from resolvent.paper.figure import HOLDS, IN_PART, NOT, NOT_JUDGED, Figure
from resolvent.paper.judging import Judged, JudgedPanel, across, count, unique
from resolvent.runs.durable import storing

CSS_CLASSES = {HOLDS: "yes", IN_PART: "part", NOT: "no", NOT_JUDGED: "part"}
LEAD = (
    "The figures, tables and theorems of “An Operator Splitting View of Federated Learning” (Malekmohammadi, "
    "Shaloudegi, Hu and Yu), run again. Every claim of the text, in our words, has a check that could have refuted it."
)


def heading(figures: Sequence[Figure]) -> tuple[str, str]:
    """A title and its first sentences: the paper's, unless all figures are others'."""
    leads = [figure.lead for figure in figures]
    return ("Beside others", leads[0]) if leads and all(leads) else ("The paper, reproduced", LEAD)


def write(panels: Sequence[JudgedPanel], out: Path, scale: str) -> Path:
    """Draw every panel and write the page beside the runs."""
    template = Template(resources.files("resolvent.paper").joinpath("page.html").read_text(encoding="utf-8"))
    figures = unique(one.figure for one in panels)
    title, lead = heading(figures)
    filled = template.substitute(
        title=html.escape(title),
        lead=html.escape(lead),
        count=html.escape(count(panels, scale)),
        nav="".join(f'<a href="#{figure.name}">{html.escape(figure.title)}</a>' for figure in figures),
        figures="".join(_figure(figure, panels, out) for figure in figures),
    )
    path = out / ("paper.html" if lead == LEAD else "beside-others.html")
    with storing(path, "name another folder with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled, encoding="utf-8")
    return path


def _figure(figure: Figure, panels: Sequence[JudgedPanel], out: Path) -> str:
    shown = "".join(_panel(one, out) for one in panels if one.figure.label == figure.label)
    trained = any(one.panel.networks and one.results is not None for one in panels if one.figure.label == figure.label)
    texts = (figure.settings, figure.network_settings if trained else "")
    settings = "".join(f'<p class="faint">{html.escape(text)}</p>' for text in texts if text)
    return (
        f'<section id="{figure.name}"><h2>{html.escape(figure.title)}<code>{html.escape(figure.label)}</code></h2>'
        f"<p>{html.escape(figure.caption)}</p>{settings}<div class='panels'>{shown}</div>"
        f"{_verdicts(across(figure, panels))}</section>"
    )


def _panel(one: JudgedPanel, out: Path) -> str:
    title = f"<figcaption>{html.escape(one.panel.key)}: {html.escape(one.panel.title)}</figcaption>"
    if one.results is None:
        return f"<figure>{title}<p>Not run: {one.missing} runs are missing.</p></figure>"
    rows = _verdicts(one.verdicts)
    if one.panel.table is not None:
        headings, cells = one.panel.table(one.results)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        return f"<figure class='wide'>{title}{_table(headings, body)}{rows}</figure>"
    path = picture(one, out / "pictures")
    assert path is not None
    data = base64.b64encode(path.read_bytes()).decode()
    image = f'<img alt="{html.escape(one.panel.title)}" src="data:image/png;base64,{data}">'
    return f"<figure>{title}{image}{rows}</figure>"


def _table(headings: Sequence[str], body: str) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in headings)
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _verdicts(judged: Sequence[Judged]) -> str:
    body = ""
    for one in judged:
        mark, said = ' <span class="ours">(ours)</span>' if one.claim.ours else "", one.verdict.said
        body += (
            f'<tr><td>{html.escape(one.claim.text)}{mark}</td><td class="said {CSS_CLASSES[said]}">{said}</td>'
            f"<td>{html.escape(one.measured())}</td></tr>"
        )
    return _table(("claim", "verdict", "measured"), body) if judged else ""
