"""Networks at the paper's size: kept as small files, judged from them, and marked where they were not run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from command_line import resolvent
from resolvent import config as configs
from resolvent import data
from resolvent.cli import reproducing
from resolvent.experiment import tasks
from resolvent.paper import archive, conduct, document, judging
from resolvent.paper.figure import HOLDS, IN_PART, NOT, Figure, Panel
from resolvent.paper.figures.contents import FIGURES
from shrunken import images, small

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORED = DOCS / "paper" / "scale-paper"
NETWORKS = [pair for pair in conduct.choose(FIGURES, "all") if pair[1].networks]
COMP = next(figure for figure in FIGURES if figure.name == "fig-comp")
MIDDLE = next(panel for panel in COMP.panels if panel.key == "bottom-middle")


def frame(last: float, status: str = "finished", rounds: int = 50) -> pd.DataFrame:
    values = np.geomspace(2.3, last, rounds)
    made = pd.DataFrame({"round": np.arange(1, rounds + 1), "value": values, "test_accuracy": values / 10})
    about: dict[Any, Any] = {
        "status": status,
        "rounds": rounds,
        "seconds": 7.5,
        "device": "A GPU",
        "torch": "2.0",
        "date": "2026-01-02",
    }
    made.attrs = about | {"settings": "{}"}
    return made


def stored(panel: Panel, ends: dict[str, float], status: str = "finished", seeds: int = 1) -> archive.Archive:
    """An archive of a panel whose lines end where they are told to; others are not there."""
    found = {}
    for line in panel.lines:
        for config in list(conduct.plan(panel, line, judging.PAPER))[:seeds]:
            if line.label in ends:
                made = frame(ends[line.label], status)
                made.attrs["settings"] = configs_of(config)
                found[conduct.asked(config)] = made
    return found


def configs_of(config: object) -> str:
    return json.dumps(configs.plain(config))  # type: ignore[arg-type]


ENDS = {
    "FedAvg, one step": 2.0,
    "FedAvg, many steps": 0.1,
    "FedProx": 0.2,
    "FedSplit": 0.5,
    "FedPi": 0.4,
    "FedRP": 0.05,
}


def written(found: archive.Archive, quick: judging.JudgedPanel, folder: Path) -> str:
    """What the document says of one panel."""
    archive.write(found, folder / "paper" / document.LARGE)
    return document.write([quick], folder / "paper.md", conduct.RunIndex(folder / "none")).read_text()


def unrun(figure: Figure, panel: Panel) -> judging.JudgedPanel:
    return judging.JudgedPanel(figure, panel, None, missing=1)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    found = stored(MIDDLE, ENDS) | stored(MIDDLE, {"FedSplit, eta = 100": 1e9}, "diverged")
    archive.write(found, tmp_path)
    again = archive.read(tmp_path)
    assert again.keys() == found.keys()
    for key, made in again.items():
        pd.testing.assert_frame_equal(made, found[key], rtol=1e-6, check_flags=False)
        assert made.attrs == found[key].attrs
    first = (tmp_path / archive.CURVES).read_bytes()
    archive.write(dict(reversed(again.items())), tmp_path)
    assert (tmp_path / archive.CURVES).read_bytes() == first, "the order must not matter"
    assert archive.read(tmp_path / "nowhere") == {}


def test_claims_of_the_paper_need_its_lines_and_ours_all(tmp_path: Path) -> None:
    made = archive.panel_of(COMP, MIDDLE, stored(MIDDLE, ENDS))
    assert [(claim.ours, verdict.said) for claim, verdict, _ in made.verdicts] == [(False, HOLDS), (False, HOLDS)]
    assert made.missing == 4 * 8 - 6
    whole = ENDS | {"FedSplit, eta = 100": 3.0, "FedPi, eta = 100": 3.0}
    assert [claim.ours for claim, *_ in archive.panel_of(COMP, MIDDLE, stored(MIDDLE, whole)).verdicts] == [
        False
    ] * 2 + [True]
    assert archive.panel_of(COMP, MIDDLE, stored(MIDDLE, whole, seeds=4)).missing == 0
    most = {label: end for label, end in ENDS.items() if label != "FedRP"}
    assert archive.panel_of(COMP, MIDDLE, stored(MIDDLE, most)).verdicts == ()
    assert archive.panel_of(COMP, MIDDLE, {}).results is None


def test_the_checks_are_those_of_quick_runs_and_can_refute() -> None:
    worse = ENDS | {"FedRP": 1.5, "FedAvg, many steps": 1.9}
    judged = archive.panel_of(COMP, MIDDLE, stored(MIDDLE, worse)).verdicts
    assert [one.claim.check for one in judged] == [claim.check for claim in MIDDLE.claims[:2]]
    assert [one.verdict.said for one in judged] == [NOT, NOT]


def test_unfinished_runs_are_named_and_not_judged(tmp_path: Path) -> None:
    found = stored(MIDDLE, ENDS) | stored(MIDDLE, {"FedPi, eta = 100": 0.5}, archive.UNFINISHED)
    made = archive.panel_of(COMP, MIDDLE, found)
    assert "FedPi, eta = 100" not in (made.results or {})
    words = written(found, unrun(COMP, MIDDLE), tmp_path)
    assert "Left unfinished, and not judged: FedPi, eta = 100 after 50 rounds, at a loss of 0.5." in words
    assert "Not run: FedSplit, eta = 100." in words
    assert archive.panel_of(COMP, MIDDLE, stored(MIDDLE, ENDS, archive.UNFINISHED)).results is None


def test_the_document_shows_marks_and_compares(tmp_path: Path) -> None:
    quick = judging.judge(COMP, judging.results_of(MIDDLE, {line.label: [frame(1.0)] for line in MIDDLE.lines}))
    words = written(stored(MIDDLE, ENDS), quick, tmp_path)
    assert "at most six digits a user, at the paper's size, 1 of 4 seeds.**" in words
    assert words.count(COMP.panels[4].claims[0].text + " | ") == 1, "both sizes in one row"
    assert "| claim | verdict | measured | quick runs |\n|---|---|---|---|\n" in words
    assert "| *does not hold* |\n" in words
    assert (tmp_path / "paper" / document.LARGE / "fig-comp-bottom-middle.png").is_file()
    assert (
        '"FedAvg with k = 1 is far behind FedAvg with many local steps." *does not hold* in quick runs, *holds*'
        in words
    )
    part = written(stored(MIDDLE, {"FedRP": 0.05}), quick, tmp_path / "part")
    assert "at the paper's size: in part only, so not judged.** Run: FedRP (final loss 0.05), 1 of 4 seeds." in part
    left = next(panel for panel in COMP.panels if panel.key == "bottom-left")
    assert "digits spread evenly, at the paper's size: not run.**" in written(
        stored(MIDDLE, ENDS), unrun(COMP, left), tmp_path / "none"
    )
    assert "No network was run at the paper's size." in written({}, unrun(COMP, left), tmp_path / "empty")


def test_across_panels_needs_every_seed(tmp_path: Path) -> None:
    figure = next(figure for figure in FIGURES if figure.name == "fig-extrap-error")
    found: archive.Archive = {}
    for panel in figure.panels:
        found |= stored(panel, {line.label: 0.1 for line in panel.lines})
    quick = [unrun(figure, panel) for panel in figure.panels]
    archive.write(found, tmp_path / "paper" / document.LARGE)
    store = conduct.RunIndex(tmp_path / "none")
    words = document.write(quick, tmp_path / "paper.md", store).read_text()
    assert "**Across panels, at the paper's size: not judged**" in words
    assert "Claims there: 0 hold, 0 hold in part, 5 do not hold;" in words
    for panel in figure.panels:
        found |= stored(panel, {line.label: 0.1 for line in panel.lines}, seeds=4)
    archive.write(found, tmp_path / "paper" / document.LARGE)
    words = document.write(quick, tmp_path / "paper.md", store).read_text()
    assert "**Across panels, at the paper's size.**" in words
    assert "Claims there: 0 hold, 0 hold in part, 6 do not hold;" in words


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Panel:
    """A network's panel whose paper's size is small, too."""
    shrunk = small(MIDDLE)
    steps = enumerate(shrunk.lines[:2], start=1)
    lines = tuple(replace(x, settings=x.settings | x.quick | {"local.steps": k}, quick={}) for k, x in steps)
    panel = replace(shrunk, base=shrunk.base | shrunk.quick, lines=lines, claims=shrunk.claims[1:2])

    made = (images, lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)))
    monkeypatch.setattr(tasks, "LOADERS", {"mnist": made})
    monkeypatch.setattr(data, "normalised", lambda images: replace(images, x_train=images.x_train / 255))
    monkeypatch.setattr(reproducing, "FIGURES", (replace(COMP, panels=(panel,), claims=()),))
    return panel


def test_the_command_keeps_curves_and_the_file_shows_them(tiny: Panel) -> None:
    large = ("--scale", "paper", "--out", "large", "--archive", "docs/paper/scale-paper")
    done = resolvent("reproduce", "all", "--seeds", "2", *large)
    assert done.code == 0, done.err
    found = archive.read(Path("docs/paper/scale-paper"))
    assert len(found) == 4, "two lines of two seeds, not four"
    assert {made.attrs["status"] for made in found.values()} == {"finished"}
    quick = resolvent("reproduce", "all", "--out", "quick", "--verdicts", "docs/paper.md")
    assert quick.code == 0, quick.err
    words = Path("docs/paper.md").read_text()
    assert "at the paper's size, 2 of 4 seeds.**" in words
    for name in re.findall(r"\]\((paper/[^)]+png)\)", words):
        assert (Path("docs") / name).is_file()
    again = resolvent("reproduce", "all", "--kept", *large)
    assert again.code == 0, again.err
    assert archive.read(Path("docs/paper/scale-paper")).keys() == found.keys()


def test_an_ended_run_in_the_archive_is_not_replaced_by_an_unfinished_one(tiny: Panel) -> None:
    large = ("--scale", "paper", "--seeds", "1", "--out", "large", "--archive", "kept")
    assert resolvent("reproduce", "all", *large).code == 0
    for events in Path("large").glob("*/events.jsonl"):
        events.write_text(events.read_text().splitlines()[0] + "\n")
    assert resolvent("reproduce", "all", "--kept", *large).code == 0
    assert {made.attrs["status"] for made in archive.read(Path("kept")).values()} == {"finished"}
    for path in Path("kept").iterdir():
        path.unlink()
    assert resolvent("reproduce", "all", "--kept", *large).code == 0
    assert {made.attrs["status"] for made in archive.read(Path("kept")).values()} == {archive.UNFINISHED}


def test_curves_are_kept_of_the_papers_size_only() -> None:
    refused = resolvent("reproduce", "all", "--archive", "there")
    assert refused.code == 2
    assert "--scale paper" in refused.err


def test_every_run_in_docs_belongs_to_a_panel() -> None:
    found = archive.read(STORED)
    wanted = {conduct.asked(c) for _, p in NETWORKS for line in p.lines for c in conduct.plan(p, line, judging.PAPER)}
    assert found
    assert found.keys() <= wanted, "settings changed: these runs no longer belong to any panel"
    assert {made.attrs["rounds"] for made in found.values() if made.attrs["status"] == "finished"} == {50, 100, 200}
    assert sum(path.stat().st_size for path in STORED.iterdir()) < 2e6


def test_docs_tell_every_networks_panel_at_the_papers_size() -> None:
    words = (DOCS / "paper.md").read_text()
    found = archive.read(STORED)
    for figure, panel in NETWORKS:
        made = archive.panel_of(figure, panel, found)
        assert f"**{panel.key}: {panel.title}, {document.SIZE}" in words
        for claim, verdict, _ in made.verdicts:
            told = claim.text + (" (ours)" if claim.ours else "")
            numbers = verdict.numbers.removesuffix(".")
            again = numbers.replace(claim.why.removesuffix("."), document.AS_ABOVE) if claim.why else numbers
            start = f"| {told} | **{verdict.said}** | "
            assert start + numbers in words or start + again in words


def test_lines_are_compared_on_the_same_seeds() -> None:
    """Medians over other seeds say nothing about each other; a line of this library's does not hold up the paper's."""
    theirs = [line.label for line in MIDDLE.lines if not line.ours]
    ours = [line.label for line in MIDDLE.lines if line.ours]
    assert theirs
    assert ours
    found = stored(MIDDLE, dict.fromkeys(theirs, 0.1), seeds=3) | stored(MIDDLE, dict.fromkeys(ours, 0.2), seeds=1)
    short = next(line for line in MIDDLE.lines if line.label == theirs[0])
    configurations = list(conduct.plan(MIDDLE, short, judging.PAPER))
    del found[conduct.asked(configurations[2])]
    made = archive.panel_of(COMP, MIDDLE, found)
    assert made.results is not None
    assert {label: len(made.results[label]) for label in made.results} == dict.fromkeys(theirs, 2) | dict.fromkeys(
        ours, 1
    )
    assert made.missing == len(theirs) + 1 + 3 * len(ours)
    found[conduct.asked(configurations[2])] = frame(0.1)
    del found[conduct.asked(configurations[1])]  # seeds are counted from 0 on
    made = archive.panel_of(COMP, MIDDLE, found)
    assert made.results is not None
    assert {len(made.results[label]) for label in theirs} == {1}


def test_half_of_the_seeds_is_not_most_of_them() -> None:
    """FedSplit diverges with two seeds of four: that is told, and does not count as running away."""
    large = ("FedSplit, eta = 100", "FedPi, eta = 100")
    found = stored(MIDDLE, ENDS, seeds=4) | stored(MIDDLE, dict.fromkeys(large, 0.9), seeds=4)
    gone = {large[0]: (1, 3), large[1]: (0, 1, 2)}
    for label, seeds in gone.items():
        line = next(line for line in MIDDLE.lines if line.label == label)
        for config in conduct.plan(MIDDLE, line, judging.PAPER):
            if config.run.seed in seeds:
                found[conduct.asked(config)].attrs["status"] = "diverged"
    made = archive.panel_of(COMP, MIDDLE, found)
    (verdict,) = [verdict for claim, verdict, _ in made.verdicts if claim.ours]
    assert verdict.said == IN_PART
    assert "(2 of 4 seeds diverged)" in verdict.numbers
    assert "diverged with 3 of 4 seeds; not for FedSplit, eta = 100" in verdict.numbers
