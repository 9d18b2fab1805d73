"""The command, its page and its file of verdicts; and that what is done is not done again."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from command_line import resolvent
from resolvent import experiment
from resolvent.cli import reproducing
from resolvent.errors import InputError
from resolvent.paper import conduct, document, judging
from resolvent.paper.figure import HOLDS, IN_PART, NOT, NOT_JUDGED, Claim, ClaimVerdict, Figure, First, Panel, PanelLine
from resolvent.paper.figures.contents import BESIDE, FIGURES
from resolvent.paper.results import Results, short
from resolvent.ui.panels import Panels
from shrunken import small

DOCS = Path(__file__).resolve().parents[2] / "docs"


def history(values: object, status: str = "finished") -> pd.DataFrame:
    frame = pd.DataFrame({"round": np.arange(1, len(list(values)) + 1), "gap": list(values)})  # type: ignore[call-overload]
    frame.attrs["status"] = status
    return frame


def results(*frames: pd.DataFrame) -> Results:
    return Results(Panel("p", "P", lines=(PanelLine("a", {}),)), {"a": list(frames)})


def test_questions_to_results() -> None:
    line = results(history([8.0, 4.0, 2.0, 1.0]))
    assert line.final("a") == 1
    assert line.at("a", 2) == 4
    assert line.rounds_to("a", 3.0) == 3
    assert line.rounds_to("a", 0.5) == np.inf
    assert line.slope("a") == pytest.approx(-2)
    assert results(history([4.0, 1.0]), history([4.0, 3.0]), history([4.0, 9.0])).final("a") == 3
    assert results(history([4.0, 1.0], "diverged")).final("a") == np.inf
    assert results(history([4.0, 1.0]), history([4.0, 9.0])).spread("a") == 8


def test_numbers_as_one_says_them() -> None:
    assert [short(x) for x in (0.0, 1.5, 2e-7, 3e5, np.inf)] == ["0", "1.5", "2.0e-7", "3.0e5", "diverged"]


def test_verdicts_of_parts() -> None:
    assert ClaimVerdict.share({"a": True, "b": True}, "n").said == HOLDS
    assert ClaimVerdict.share({"a": True, "b": False}, "n") == (IN_PART, "n; not for b")
    assert ClaimVerdict.share({"a": False}, "n").said == NOT


@pytest.mark.parametrize("label", ["fig-extrap", "extrap", "fig:extrap", "FIG_EXTRAP"])
def test_labels_however_written(label: str) -> None:
    chosen = conduct.choose(FIGURES, label, "left")
    assert [(figure.label, panel.key) for figure, panel in chosen] == [("fig:extrap", "left")]


def test_every_label_of_the_paper_is_there() -> None:
    labels = {figure.label: len(figure.panels) for figure in FIGURES}
    wanted = {"fixed_pr_stationary": 3, "eta_effect_fedprox": 3, "comp": 6, "extrap": 3, "fedrp_eta": 2, "trade_off": 4,
              "cifar10": 1, "splitting_usersampling": 4, "splitting_minibatch": 3, "extrap_error": 5,
              "proxprojection": 1}  # fmt: skip
    assert {name: labels[f"fig:{name}"] for name in wanted} == wanted
    assert {"tab:FL", "theorems:fedprox", "theorems:others", "thm:rp", "examples", "law", "sec:acc"} <= set(labels)
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)


@pytest.mark.parametrize("scale", [judging.QUICK, judging.PAPER])
def test_every_configuration_can_be_read(scale: str, tmp_path: Path) -> None:
    store = conduct.RunIndex(tmp_path, scale)
    for figure, panel in conduct.choose((*FIGURES, *BESIDE), "all"):
        for line in panel.lines:
            assert len(list(store.plan(panel, line))) >= 1, figure.label


def test_bad_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean fig-extrap"):
        conduct.choose(FIGURES, "fig-extrp")
    with pytest.raises(InputError, match="did you mean 'left'"):
        conduct.choose(FIGURES, "fig-extrap", "lef")
    with pytest.raises(InputError, match="has no panel 'left'; there are 'only'"):
        conduct.choose(FIGURES, "figure 1", "left")
    with pytest.raises(InputError, match="the paper has no 'figure 12', but figures 1 to 11"):
        conduct.choose(FIGURES, "figure 12")
    assert resolvent("reproduce", "fig-nothing").code == 2
    assert resolvent("reproduce", "all", "--scale", "huge").code == 2
    assert resolvent("reproduce", "all", "--only", "some").code == 2
    empty = resolvent("reproduce", "fig-cifar10", "--only", "convex")
    assert (empty.code, empty.out) == (2, "")
    assert "fig-cifar10 has no such panel" in empty.err


def test_the_list() -> None:
    listed = resolvent("reproduce", "--format", "json").json
    assert [row["figure"] for row in listed] == [figure.name for figure in (*FIGURES, *BESIDE)]
    assert [row["figure"] for row in listed if row["number"] in (1, 5, 11)] == [
        *("fig-proxprojection", "fig-extrap", "fig-extrap-error")
    ]


def test_the_list_and_the_page_count_the_same_runs(tmp_path: Path) -> None:
    listed = {row["figure"]: row["runs"] for row in resolvent("reproduce", "--format", "json").json}
    alone = [figure for figure in Panels(tmp_path).contents() if len(figure["panels"]) == 1]
    assert {figure["name"]: figure["panels"][0]["runs"] for figure in alone} == {
        figure["name"]: listed[figure["name"]] for figure in alone
    }
    (first,) = (figure for figure in FIGURES if figure.name == "fig-fixed-pr-stationary")
    index = conduct.RunIndex(tmp_path)
    assert listed[first.name] > sum(
        len(list(index.plan(panel, line))) for panel in first.panels for line in panel.lines
    )


@pytest.mark.parametrize("typed", ["5", "figure 5", "Fig. 5", "fig:extrap"])
def test_a_figure_has_the_number_that_it_has_in_the_paper(typed: str) -> None:
    assert {figure.name for figure, _ in conduct.choose(FIGURES, typed)} == {"fig-extrap"}


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two figures of which nothing is large: a panel with runs, and demonstrations."""
    trade = next(figure for figure in FIGURES if figure.name == "fig-trade-off")
    shrunk = replace(trade, panels=tuple(small(panel) for panel in trade.panels[:1]))
    drawn = next(figure for figure in FIGURES if figure.name == "fig-proxprojection")
    monkeypatch.setattr(reproducing, "FIGURES", (drawn, shrunk))


def test_what_is_done_is_not_done_again(one: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolvent("reproduce", "all", "--format", "json", "--out", "here")
    assert first.code == 0, first.err
    monkeypatch.setattr(experiment, "begin", lambda *arguments: pytest.fail("begun again"))
    again = resolvent("reproduce", "all", "--format", "json", "--out", "here")
    kept = resolvent("reproduce", "all", "--format", "json", "--out", "here", "--kept")
    assert first.json == again.json == kept.json


def test_the_page_stands_alone_and_the_file_tells_the_same(one: None) -> None:
    done = resolvent("reproduce", "all", "--out", "here", "--verdicts", "docs/paper.md", "--format", "json")
    text = Path("here/paper.html").read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    assert text.count("<img") == 2
    assert "prefers-color-scheme: dark" in text
    words = Path("docs/paper.md").read_text()
    for row in done.json:
        assert row["claim"] in words
        assert row["verdict"] in words
    for name in re.findall(r"\]\((paper/[^)]+)\)", words):
        assert (Path("docs") / name).stat().st_size > 5000


def test_what_was_not_run_is_said_to_be_so(one: None) -> None:
    said = resolvent("reproduce", "all", "--kept", "--out", "empty", "--verdicts", "paper.md")
    assert "not run" in said.out
    assert "Not run" in Path("paper.md").read_text()
    assert "Not run" in Path("empty/paper.html").read_text()


def test_the_file_in_docs_names_every_figure_and_its_pictures_are_there() -> None:
    words = (DOCS / "paper.md").read_text()
    for figure in FIGURES:
        assert f"`{figure.label}`" in words
    named = re.findall(r"\]\((paper/[^)]+)\)", words)
    assert named
    assert all((DOCS / name).is_file() for name in named)
    assert sum(path.stat().st_size for path in (DOCS / "paper").iterdir()) < 5e6


def test_claims_of_ours_are_counted_apart_and_marked() -> None:
    figure = next(f for f in FIGURES if f.name == "law")
    made = [judging.judge(figure, judging.results_of(small(figure.panels[1]), {}))]
    assert [(one.claim.ours, one.verdict.said) for one in judging.judgements(made)] == [(True, HOLDS)]
    counted = judging.count(made, judging.QUICK)
    assert "Claims of the paper: 0 hold, 0 hold in part, 0 do not hold." in counted
    assert "Ours: 1 hold, 0 hold in part, 0 do not hold; with what was first chosen for 1 of them: " in counted
    assert [row["claim"].endswith("(ours)") for row in reproducing._verdict_rows(made)] == [True]


def test_first_choices_are_judged_beside_the_present_ones() -> None:
    """A threshold by its own check, a setting by its own results, and what was not run is not judged."""

    def below(level: float) -> Any:
        return lambda results: ClaimVerdict.of(results.final("a") < level, f"below {level:g}")

    other = Panel("q", "Q", lines=(PanelLine("a", {}),))
    claims = (
        Claim("One.", below(2), first=First("below 0.5", below(0.5))),
        Claim("Two.", below(2), first=First("another start", panel=other)),
        Claim("Three.", below(2), first=First("lost")),
        Claim("Four.", below(2)),
    )
    panel = Panel("p", "P", lines=(PanelLine("a", {}),), claims=claims)
    figure = Figure("fig:f", "F", "", (panel,))
    found = {id(other): Results(other, {"a": [history([9.0, 8.0])]})}
    made = judging.judge(figure, judging.results_of(panel, {"a": [history([9.0, 1.0])]}), others=found)
    assert [verdict.said for _, verdict, _ in made.verdicts] == [HOLDS] * 4
    assert [first and first.said for _, _, first in made.verdicts] == [NOT, NOT, NOT_JUDGED, None]
    assert judging.count([made], judging.QUICK).startswith(
        "Claims of the paper: 4 hold, 0 hold in part, 0 do not hold; with what was first chosen for 3 of them: "
        "1 hold, 0 hold in part, 2 do not hold, 1 not judged."
    )
    row = document.row(made.verdicts[0])
    assert row == ["One.", "**holds**", "below 2. First choice, below 0.5: *does not hold*"]
    assert made.verdicts[0].measured() == "below 2. First choice, below 0.5: does not hold (below 0.5)"
