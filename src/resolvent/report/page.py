"""One self-contained HTML page of some runs: curves to explore, a table, and how the runs were made."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from resolvent.report.curves import Curve, drawn_rows, logarithmic
from resolvent.report.figures import AXES, MAX_LEGEND_CLASSES, needed
from resolvent.report.tables import NOTE, columns, measure, remarks, strict, summary
from resolvent.runs.durable import storing

NOT_Y = {"round", "seconds", "bytes", "bytes_up", "bytes_down", "participants"}
DASHES = ("solid", "dash", "dashdot", "dot")
SECTION = Template("""<section>
$heading
<div>
  <label>show <select class="y"></select></label>
  <label>against <select class="x"></select></label>
  <label><input type="checkbox" class="logx"> logarithmic</label>
</div>
<div class="plot"></div>
<div class="scroll">$table</div>
<p>$note</p>
$partition
<h2>What each solves</h2>
$explanations
</section>
""")


def page(
    sections: Sequence[Curve] | Mapping[str, Sequence[Curve]], path: Path, title: str, xs: Sequence[str] = ()
) -> Path:
    """Write the page, of some curves or of several sections under headings; it needs no network and no other file."""
    needed("plotly")
    from plotly.offline import get_plotlyjs

    template = Template(resources.files("resolvent.report").joinpath("page.html").read_text(encoding="utf-8"))
    parts = sections if isinstance(sections, Mapping) else {"": sections}
    curves = [curve for those in parts.values() for curve in those]
    filled = template.substitute(
        title=html.escape(title),
        plotly=get_plotlyjs(),
        data=json.dumps([_data(those, xs) for those in parts.values()]).replace("<", "\\u003c"),
        sections="".join(_section(name if len(parts) > 1 else "", those) for name, those in parts.items()),
        configs="".join(_fold(curve.label, curve.first.toml) for curve in curves),
        environment=html.escape(json.dumps(curves[0].first.about["environment"], indent=2)),
    )
    with storing(path, "name another place for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled, encoding="utf-8")
    return path


def _section(heading: str, curves: Sequence[Curve]) -> str:
    """Curves, table and words of one problem; without a heading where there is only one."""
    partition = curves[0].first.about["problem"]["partition"]
    return SECTION.substitute(
        heading=f"<h2>{html.escape(heading)}</h2>" if heading else "",
        table=_table(summary(curves)),
        note="<br>".join(html.escape(words) for words in [NOTE, *_remarks(curves)]),
        partition=_partition(partition) if partition else "",
        explanations=_explanations(curves),
    )


def _remarks(curves: Sequence[Curve]) -> list[str]:
    return [f"{run.id}: {remark}" for curve in curves for run in curve.runs for remark in remarks(run)]


def _data(curves: Sequence[Curve], first: Sequence[str]) -> dict[str, Any]:
    frames = [frame for curve in curves for frame in curve.frames]
    names = dict.fromkeys(str(name) for frame in frames for name in frame if name not in NOT_Y)
    ys = [name for name in names if any(frame[name].notna().any() for frame in frames if name in frame)]
    preferred = measure(frames[0]) if frames else "value"
    return {
        "xs": {x: AXES[x] for x in [*first, *AXES]},  # the page begins with the first of them
        "ys": sorted(ys, key=lambda name: name != preferred),
        "log": {name: logarithmic(curves, name) for name in ys},
        "curves": [_trace(curve, ys) for curve in curves if curve.frames],
    }


def _trace(curve: Curve, ys: Iterable[str]) -> dict[str, Any]:
    """What the page draws of a curve: of a long one, the rows that can be told apart."""
    import pandas as pd

    bands = {name: curve.over("round", name)[1] for name in ys if all(name in frame for frame in curve.frames)}
    rows = drawn_rows(pd.concat(list(bands.values()), axis=1))
    lines = {name: {key: strict(band[key].iloc[rows].tolist()) for key in band} for name, band in bands.items()}
    xs = {name: strict(curve.over(name, "round")[0].iloc[rows].tolist()) for name in AXES}
    return {
        "label": curve.label,
        "colour": curve.colour,
        "dash": DASHES[curve.dash % len(DASHES)],
        "band": len(curve.frames) > 1,
        "x": xs,
        "y": lines,
    }


def _table(rows: Sequence[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return "" if math.isnan(value) else f"{value:.3g}"
        return html.escape("" if value is None else str(value))

    shown = columns(rows)
    head = "".join(f"<th>{name}</th>" for name in shown.values())
    body = "".join("<tr>" + "".join(f"<td>{cell(row[key])}</td>" for key in shown) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _partition(partition: dict[str, Any]) -> str:
    """Who holds what, as stacked bars of plain HTML."""
    counts = partition.get("counts") or [[n] for n in partition["users"]]
    most = max(sum(user) for user in counts)
    classes = [html.escape(f"class {name}") for name in partition.get("classes", ())] or ["all"]
    key = "".join(
        f'<i><span class="c{k % 10}"></span>{name}</i>' for k, name in enumerate(classes[:MAX_LEGEND_CLASSES])
    )
    bars = []
    for i, user in enumerate(counts):
        parts = "".join(
            f'<span class="c{k % 10}" style="width:{100 * n / most:.2f}%" title="{classes[k]}: {n} rows"></span>'
            for k, n in enumerate(user)
            if n
        )
        bars.append(f'<div class="bar"><b>{i}</b>{parts}<i>{sum(user)}</i></div>')
    key = f'<div class="key">{key}</div>' if "counts" in partition else ""
    return f"<h2>Who holds what</h2>{key}<div class='bars'>{''.join(bars)}</div>"


def _explanations(curves: Sequence[Curve]) -> str:
    """What each curve solves; curves with the same explanation share one entry."""
    labels: dict[str, list[str]] = {}
    for curve in curves:
        labels.setdefault(curve.first.about["explanation"]["words"], []).append(curve.label)
    return "".join(
        f"<h3>{html.escape('; '.join(those))}</h3><pre>{html.escape(words)}</pre>" for words, those in labels.items()
    )


def _fold(label: str, text: str) -> str:
    return f"<details><summary>{html.escape(label)}</summary><pre>{html.escape(text)}</pre></details>"
