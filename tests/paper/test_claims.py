"""Every claim's check: on a small version of its runs, and on results that were tampered with, where it must change."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from resolvent import data
from resolvent.experiment import tasks
from resolvent.paper import conduct, judging
from resolvent.paper.drawing import picture
from resolvent.paper.figure import HOLDS, IN_PART, NOT, NOT_JUDGED, Figure, Panel
from resolvent.paper.figures.contents import BESIDE, FIGURES
from shrunken import images, small, tampered

DOCUMENT = Path(__file__).parents[2] / "docs" / "paper.md"
PANELS = [(figure, panel) for figure in FIGURES for panel in figure.panels]
OTHERS = [(BESIDE[0], panel) for panel in BESIDE[0].panels] + [(BESIDE[1], BESIDE[1].panels[0])]
"""All panels of the second table have the claims of these."""
NETWORKS = [pytest.param(f, p, id=f"{f.name}-{p.key}") for f, p in PANELS + OTHERS if p.networks]
EXPECTED = {  # what the small versions say: the first words of a claim
    ("fig-extrap", "left"): {"Acceleration speeds up": HOLDS, "It does not change": HOLDS},
    ("fig-comp", "top-left"): {"FedSplit, FedPi and FedAvg": HOLDS},
    ("fig-trade-off", "top-left"): {"At equal eta, more": HOLDS, "And end at a worse": HOLDS},
    ("fig-splitting-usersampling", "top-left"): {"With only some": HOLDS, "FedAvg with k = 1": NOT, "If absent": HOLDS},
    ("fig-fixed-pr-stationary", "left"): {"The product": HOLDS, "With k = 1": HOLDS, "A plain run": HOLDS},
    ("law", "eta-eff"): {"Gaps follow": HOLDS},
    ("law", "fedavg"): {"While eta": HOLDS},
    ("sec-acc", "alpha-beta"): {"The closer both": HOLDS},
    ("sec-acc", "gamma"): {"The closer gamma": HOLDS, "gamma does not": HOLDS},
    ("theorems-fedprox", "fp-erg"): {"Averaging is not": HOLDS, "In the second case": NOT},
    ("theorems-fedprox", "fp-hom"): {"With a common": HOLDS, "Homogeneity": HOLDS},
    ("theorems-others", "sqrt2"): {"By a factor": IN_PART},
    ("thm-rp", "fedrp"): {"With a constant": HOLDS, "Idempotence": HOLDS},
    ("examples", "f+2f-"): {"With steps": HOLDS},
    ("tab-fl", "only"): {"With eta that vanishes": HOLDS, "With constant eta": IN_PART},
}
CONVEX = [
    pytest.param(f, p, id=f"{f.name}-{p.key}", marks=() if (f.name, p.key) in EXPECTED else pytest.mark.slow)
    for f, p in PANELS
    if not p.networks
]


def said(made: judging.JudgedPanel, beginning: str) -> str:
    (verdict,) = [verdict for claim, verdict, _ in made.verdicts if claim.text.startswith(beginning)]
    return verdict.said


def check(figure: Figure, panel: Panel, out: Path) -> judging.JudgedPanel:
    """Run it small, draw it, and see every check come to more than one verdict over results that never were."""
    shrunk = small(panel)
    made = conduct.make(figure, shrunk, conduct.RunIndex(out), lambda words: None)
    assert made.results is not None
    assert len(made.verdicts) == len(panel.claims)
    assert all(verdict.numbers for _, verdict, _ in made.verdicts)
    drawn = picture(made, out / "pictures")
    assert (drawn is None) == (panel.table is not None)
    for claim, verdict, _ in made.verdicts:
        found = {verdict.said}
        for results in tampered(shrunk, made.results.facts):
            with np.errstate(all="ignore"):
                found.add(claim.check(results).said)
            if len(found) > 1:
                break
        assert len(found) > 1, f"{claim.text} is always said to be: {found}"
    for claim, _, before in made.verdicts:
        assert (before is None) == (claim.first is None)
        if before is not None and claim.first is not None:  # judged where it says how
            unjudged = claim.first.check is None and claim.first.panel is None
            assert (before.said == NOT_JUDGED) == unjudged, claim.text
    return made


@pytest.mark.parametrize(("figure", "panel"), CONVEX)
def test_convex_panels_small(figure: Figure, panel: Panel, tmp_path: Path) -> None:
    made = check(figure, panel, tmp_path)
    for beginning, wanted in EXPECTED.get((figure.name, panel.key), {}).items():
        assert said(made, beginning) == wanted, made.verdicts


@pytest.mark.parametrize(("figure", "panel"), NETWORKS)
def test_network_panels_tiny(figure: Figure, panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = torch.nn.Flatten

    def network(features: int) -> torch.nn.Module:
        return torch.nn.Sequential(tiny(), torch.nn.Linear(features, 10))

    made = {
        "mnist": (images, lambda: network(784)),
        "cifar10": (lambda folder: images(shape=(3, 32, 32)), lambda: network(3072)),
    }
    monkeypatch.setattr(tasks, "LOADERS", made)
    monkeypatch.setattr(tasks, "NIID_BENCH", {name: make for name, (_, make) in made.items()})
    scaled = lambda images, *how: replace(images, x_train=images.x_train / 255, x_test=images.x_test / 255)  # noqa: E731
    monkeypatch.setattr(data, "normalised", scaled)
    check(figure, panel, tmp_path)


def test_claims_across_panels_can_fail() -> None:
    for figure in FIGURES:
        for claim in figure.claims:
            shrunk = [panel for panel in figure.panels if panel.key in claim.panels]
            facts = [{"H": 1.0} for _ in shrunk]
            families = zip(*(tampered(panel, fact) for panel, fact in zip(shrunk, facts, strict=True)), strict=True)
            found = set()
            for results in families:
                found.add(claim.check({panel.key: one for panel, one in zip(shrunk, results, strict=True)}).said)
                if len(found) > 1:
                    break
            assert len(found) > 1, claim.text


def written() -> dict[tuple[str, str, str], str]:
    """What docs/paper.md says of each claim, by figure, panel and claim; across panels, the panel is ""."""
    return {key: quick[1] if (quick := re.search(QUICK, line)) else line.split("**")[1] for key, line in rows().items()}


ROW = r"\| (.*?)(?: \(ours\))? \| \*\*(.*?)\*\* \|"
QUICK = r"\| \*([a-z ]+)\*(?:; first choice: \*([a-z ]+)\*)? \|$"
"""The verdicts of quick runs beside those at the paper's size."""


def rows() -> dict[tuple[str, str, str], str]:
    """The line of each claim's verdict in docs/paper.md."""
    found: dict[tuple[str, str, str], str] = {}
    figure = panel = ""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## .*\(`(.*)`\)$", line):
            figure = heading[1].replace(":", "-").replace("_", "-").lower()
        elif line.startswith("**Across panels"):
            panel = ""
        elif heading := re.match(r"\*\*([^:*]+): ", line):
            panel = heading[1]
        elif row := re.match(ROW, line):
            assert (figure, panel, row[1].replace("\\|", "|")) not in found
            found[figure, panel, row[1].replace("\\|", "|")] = line
    return found


def test_the_document_has_a_verdict_on_every_claim() -> None:
    claims = {(f.name, p.key, claim.text) for f, p in PANELS for claim in p.claims}
    claims |= {(figure.name, "", claim.text) for figure in FIGURES for claim in figure.claims}
    assert set(written()) == claims


def test_the_document_has_the_verdict_under_every_first_choice() -> None:
    """Both verdicts stand in the table, and the counts at the top are those of the tables."""
    text, said = DOCUMENT.read_text(encoding="utf-8"), written()
    counts = {(ours, when): Counter[str]() for ours in (False, True) for when in ("now", "first")}
    claims: list[tuple[str, str, Any]] = [
        (figure.name, panel.key, claim) for figure, panel in PANELS for claim in panel.claims
    ]
    claims += [(figure.name, "", claim) for figure in FIGURES for claim in figure.claims]
    for figure, panel, claim in claims:
        counts[claim.ours, "now"][said[figure, panel, claim.text]] += 1
        first = firsts().get((figure, panel, claim.text))
        assert (first is None) == (claim.first is None), claim.text
        counts[claim.ours, "first"][first or said[figure, panel, claim.text]] += 1
    (line,) = re.findall("^Claims of the paper: .*$", text, re.MULTILINE)
    told = {
        kind.replace("holds", "hold").replace("does not", "do not"): kind for kind in (HOLDS, IN_PART, NOT, NOT_JUDGED)
    }
    stated = [
        Counter(
            {told[word]: int(number) for number, word in re.findall(r"(\d+) ([a-z ]+?)(?=,|$)", part) if int(number)}
        )
        for sentence in line.split(". ")[:2]
        for part in re.split(r"; with what was first chosen for \d+ of them: ", sentence.split(": ", 1)[1])
    ]
    assert stated == list(counts.values())


def firsts() -> dict[tuple[str, str, str], str]:
    """What docs/paper.md says of each claim under its first choice."""
    found: dict[tuple[str, str, str], str] = {}
    for key, line in rows().items():
        if quick := re.search(QUICK, line):
            choice = quick[2]
        else:
            choice = (re.search(r"First choice, .*?: \*([a-z ]+)\* \|$", line) or [None, None])[1]
        if choice is not None:
            found[key] = choice
    return found


@pytest.mark.slow
def test_the_convex_reproduction_at_full_size(tmp_path: Path) -> None:
    """Everything that trains no network, as the paper has it, comes to what docs/paper.md says of it."""
    store, wanted = conduct.RunIndex(tmp_path), written()
    made = [conduct.make(f, p, store, lambda words: None) for f, p in PANELS if not p.networks]
    judged = {(m.figure.name, m.panel.key, one.claim.text): one for m in made for one in m.verdicts}
    for figure in FIGURES:
        judged |= {(figure.name, "", one.claim.text): one for one in judging.across(figure, made)}
    other = {key: one.verdict for key, one in judged.items() if one.verdict.said != wanted[key]}
    assert not other
    assert len(judged) > 80
    before = {key: one.first.said for key, one in judged.items() if one.first is not None}
    assert before == {key: firsts()[key] for key in before}
