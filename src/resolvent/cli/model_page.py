"""One page of a table's model, to show and to print: how well it predicts, its coefficients, and how sure they are."""

from __future__ import annotations

import html
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.held_out import HeldOut
from resolvent.data.preparation import INTERCEPT, Preparation
from resolvent.report.curves import Curve
from resolvent.report.figures import draw
from resolvent.report.tables import remarks
from resolvent.runs import metrics
from resolvent.runs.durable import storing
from resolvent.solving.description import Description
from resolvent.solving.metrics import NAMED, Judged

if TYPE_CHECKING:
    import pandas as pd

BINS = 10
AUC_OF_ALL = " The AUC of all is the mean of theirs, not that of all rows together: no scores leave a user."
MOST_BARS = 60
"""Coefficients that are shown, the largest first; and columns whose missing values are filled in."""
PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>$title</title><style>
  body { margin: 0 auto; max-width: 860px; padding: 24px; color: #1b1f24; background: #fff;
    font: 15px/1.5 system-ui, sans-serif; }
  h1 { font-size: 24px; } h2 { font-size: 18px; margin-top: 32px; }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
  th, td { text-align: left; padding: 4px 16px 4px 0; border-bottom: 1px solid #d8dde3; }
  th, .faint { color: #59636e; } svg { max-width: 100%; height: auto; }
  .remark { border-left: 4px solid #D55E00; padding-left: 12px; }
  .coefficients td:nth-child(3) { width: 300px; }
  .track { display: block; position: relative; height: 12px; background: #f6f8fa; }
  .track i { position: absolute; height: 100%; background: #0072B2; print-color-adjust: exact; }
  .track i.less { background: #D55E00; }
  @media print { body { max-width: none; padding: 0; font-size: 11pt; }
    h2, tr, svg { break-inside: avoid; } h2 { break-after: avoid; } }
</style></head><body><h1>$title</h1>
$sections
</body></html>
""")


def confusion(truth: NDArray[Any], taken: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """How many rows of each class (down) were taken for each (across)."""
    return np.bincount(truth * classes + taken, minlength=classes * classes).reshape(classes, classes)


def calibration(positive: NDArray[np.bool_], p: NDArray[np.float64]) -> list[tuple[float, float, int]]:
    """Per tenth of the probabilities that occurs: the mean that was said, the share that came true, and its rows."""
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], p)
    return [
        (float(p[place == k].mean()), float(positive[place == k].mean()), int((place == k).sum()))
        for k in range(BINS)
        if (place == k).any()
    ]


def model_page(
    curve: Curve, described: Description, model: Any, test: HeldOut | str, path: Path, title: str, threshold: float
) -> Path:
    """Write the page: one file without scripts. `test` are the rows that were held out, in the problem's terms, or why
    there are none."""
    sections = [f"<p class='remark'>{html.escape(remark)}</p>" for remark in remarks(curve.first)]
    sections += [*_quality(curve, described, model, test, threshold), _coefficients(described, model), _users(curve)]
    sections += [_certificates(curve), f"<h2>How the computation went</h2>{_picture(curve)}"]
    filled = PAGE.substitute(title=html.escape(title), sections="\n".join(sections))
    with storing(path, "name another place for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(filled, encoding="utf-8")
    return path


def _quality(curve: Curve, described: Description, model: Any, test: HeldOut | str, threshold: float) -> list[str]:
    """What is predicted, and how well: all held-out rows together, then user by user."""
    preparation, predictor, labels = described.preparation, described.predictor, described.labels
    assert preparation is not None
    assert predictor is not None
    predicted, many = html.escape(preparation.target.name), len(preparation.columns)
    intro = f"<p>It predicts <b>{predicted}</b> from {many} columns.{_filled(preparation)}</p>"
    if isinstance(test, str):
        if len(own := _reported(curve)):
            heads = ("user", *(name.removeprefix("test_").replace("_", " ") for name in own.columns))
            note = "As each user has measured it on rows of its own, and put together by the numbers of held-out rows."
            note += AUC_OF_ALL * ("test_auc" in own)
            last = curve.first.row()
            rows = [("all", *(float(last.get(name, math.nan)) for name in own.columns))]
            rows += [(str(name), *row) for name, row in zip(own.index, own.to_numpy().tolist(), strict=True)]
            table = _table(heads, rows, "quality")
            return [f"{intro}<h2>How well it predicts</h2>{table}<p class='faint'>{note}</p>"]
        return [f"{intro}<p>How well it predicts is not known: {html.escape(test)}.</p>"]
    names = ["rmse"] if labels is None else ["accuracy", "auc", "log_loss"]
    asked = [column.removeprefix("test_") for column in curve.first.row() if column.startswith("test_")]
    names += [name for name in asked if name in NAMED and name not in names]
    everybody = [_judged(predictor, model, a, b) for a, b in zip(test.A, test.b, strict=True)]
    rows = [(name, len(j.truth), *(NAMED[m](j) for m in names))
            for name, j in zip(test.names, everybody, strict=True) if len(j.truth)]  # fmt: skip
    truth, decision, scores = (np.concatenate(each) for each in zip(*(j[:3] for j in everybody), strict=True))
    pooled = everybody[0]._replace(truth=truth, decision=decision, scores=scores)
    total = ("all", len(pooled.truth), *(NAMED[m](pooled) for m in names))
    heads = ("user", "held-out rows", *(m.replace("_", " ") for m in names))
    made = [intro + "<h2>How well it predicts</h2>" + _table(heads, [total, *rows], "quality")]
    if labels is None:
        return made
    two = len(labels) == 2 and predictor.loss == "logistic"
    taken = (pooled.scores >= threshold).astype(int) if two else _likeliest(pooled)
    counts = confusion(pooled.truth, taken, len(labels))
    condition = f", at the threshold P({html.escape(str(labels[1]))}) &ge; {threshold:g}" if two else ""
    heads = ("in truth", *(f"taken for {label}" for label in labels))
    table = _table(heads, [(str(label), *row) for label, row in zip(labels, counts.tolist(), strict=True)], "confusion")
    made.append(f"<h2>What is taken for what{condition}</h2>{table}")
    if two:
        bins = calibration(pooled.truth == 1, pooled.scores)
        table = _table(("mean probability said", "share that came true", "rows"), bins, "calibration")
        made.append(f"<h2>Whether its probabilities of {html.escape(str(labels[1]))} come true</h2>{table}")
        if weights := curve.first.config["problem"].get("class_weight"):
            said = f"The model was trained with class weights, {html.escape(weights)}. They move its probabilities"
            made.append(f"<p>{said}, which are not meant to be the shares that come true.</p>")
    return made


def _filled(preparation: Preparation) -> str:
    """What replaces missing values, for a sentence."""
    fills = {column.name: column.fill for column in preparation.columns if column.fill is not None}
    said = [f"{name} by {fill:.4g}" if isinstance(fill, float) else f"{name} by {fill}" for name, fill in fills.items()]
    more = f" and {len(said) - MOST_BARS} more" if len(said) > MOST_BARS else ""
    return f" Missing values are filled in: {html.escape(', '.join(said[:MOST_BARS]))}{more}." if said else ""


def _reported(curve: Curve) -> pd.DataFrame:
    """What each user has reported of its held-out rows; empty where nobody has."""
    import pandas as pd

    own = metrics.read_users(curve.first.path)
    return pd.DataFrame() if own is None else own.filter(like="test_").dropna(how="all")


def _judged(predictor: Any, model: Any, features: Any, targets: NDArray[Any]) -> Judged:
    decision = predictor.decision(model, features)
    if predictor.classes is None:
        return Judged(np.asarray(targets), decision, predictor.predict(model, features), None)
    codes = {code: k for k, code in enumerate(predictor.classes)}
    truth = np.array([codes[code] for code in np.asarray(targets).tolist()], dtype=int)
    if predictor.loss == "squared-hinge":
        return Judged(truth, decision, decision, 2, link=None)
    shares = predictor.probabilities(model, features)
    return Judged(truth, decision, shares[:, 1] if decision.ndim == 1 else shares, len(codes))


def _likeliest(judged: Judged) -> NDArray[Any]:
    decision = judged.decision
    return (decision > 0).astype(int) if decision.ndim == 1 else decision.argmax(1)


def _coefficients(described: Description, model: Any) -> str:
    """Names, what one unit of the column adds to the score, and a bar: what one standard deviation adds."""
    preparation = described.preparation
    assert preparation is not None
    named = preparation.unscale(model)
    parts = {"": named} if all(isinstance(value, float) for value in named.values()) else named
    spread = dict(zip(preparation.features, preparation.scaling.scale, strict=True)) if preparation.scaling else {}
    made = []
    for label, own in parts.items():
        effects = {name: value * spread.get(name, 1.0) for name, value in own.items() if name != INTERCEPT}
        most = max(map(abs, effects.values()), default=0.0) or 1.0
        body = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{own[name]:.4g}</td><td>{_bar(effect / most)}</td></tr>"
            for name, effect in sorted(effects.items(), key=lambda pair: -abs(pair[1]))[:MOST_BARS]
        )
        heading = f"<h3>{html.escape(str(label))}</h3>" if label != "" else ""
        unit = "one standard deviation adds" if spread else "one unit adds"
        per = f"per unit of the column, added to {html.escape(described.adds_to)}"
        head = f"<tr><th>column</th><th>{per}</th><th>what {unit}, compared</th></tr>"
        start = f"<p class='faint'>(intercept): {own[INTERCEPT]:.4g}</p>" if INTERCEPT in own else ""
        made.append(f"{heading}<table class='coefficients'><thead>{head}</thead><tbody>{body}</tbody></table>{start}")
    first = [f"{column.name}={column.levels[0]}" for column in preparation.columns if column.levels]
    made += [f"<p class='faint'>Categories are compared with {html.escape(', '.join(first))}.</p>"] * bool(first)
    return "<h2>Coefficients</h2>" + "".join(made)


def _bar(share: float) -> str:
    left = 50.0 if share >= 0 else 50.0 + 50 * share
    return (
        f'<span class="track"><i class="{"more" if share >= 0 else "less"}" '
        f'style="left:{left:.1f}%;width:{50 * abs(share):.1f}%"></i></span>'
    )


def _users(curve: Curve) -> str:
    """How many training rows each user holds."""
    problem = curve.first.about["problem"]
    partition = problem.get("partition") or {}
    if not partition and problem.get("names") and problem.get("weights"):  # of a federation
        weights = zip(problem["names"], problem["weights"], strict=True)
        words = "A weight is that of the sum over a user's rows: where all are equal, every row counts the same."
        note = f"<p class='faint'>{words}</p>"
        return f"<h2>How users differ</h2>{_table(('user', 'weight'), weights, 'users')}{note}"
    counts = partition.get("counts") or [[n] for n in partition.get("users", ())]
    names = partition.get("names") or range(len(counts))
    labels = curve.first.about["model"]["preparation"]["target"]["classes"] or []
    split = len(labels) == len(partition.get("classes") or ()) > 0
    heads = ("user", "training rows", *(f"of them {label}" for label in labels if split))
    rows = [(str(name), sum(own), *(own if split else ())) for name, own in zip(names, counts, strict=True)]
    return f"<h2>How users differ</h2>{_table(heads, rows, 'users')}" if rows else ""


def _certificates(curve: Curve) -> str:
    """What was solved and how surely, in words."""
    row, explanation = curve.first.row(), curve.first.about["explanation"]
    facts = [f"The run is {curve.first.status} after {int(row.get('round', 0))} rounds."]
    for name, words in {
        "gap": "The loss lies {} above the least possible one, which is known from a separate computation.",
        "stationarity": "Stationarity is {}: the size of the users' pulls that are left; zero at a solution.",
        "consensus": "Consensus is {}: how far users are from agreeing on one model; zero at a solution.",
    }.items():
        value = float(row.get(name, math.nan))
        facts += [words.format(f"{value:.2g}")] if math.isfinite(value) else []
    items = "".join(
        f"<li>{html.escape(each.removeprefix('- '))}</li>" for each in [*facts, *explanation["words"].splitlines()]
    )
    return f"<h2>What was solved, and how surely</h2><ul>{items}</ul>"


def _picture(curve: Curve) -> str:
    with tempfile.TemporaryDirectory() as folder:
        text = draw([curve], Path(folder) / "curve.svg").read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]], kind: str) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return "not defined" if math.isnan(value) else f"{value:.3f}"
        return html.escape(str(value))

    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table class='{kind}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
