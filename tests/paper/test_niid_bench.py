"""Flower's niid_bench as a figure: its protocol, the choice by validation images, and its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from resolvent import config as configs
from resolvent.experiment import tasks
from resolvent.networks import models
from resolvent.networks.rebuilding import FACTORIES
from resolvent.paper import conduct, document, judging, page
from resolvent.paper.figure import HOLDS, IN_PART, NOT
from resolvent.paper.figures import niid_bench
from resolvent.paper.figures.contents import BESIDE, FIGURES
from resolvent.paper.results import Results
from shrunken import images

PANELS = {panel.key: panel for panel in niid_bench.FIGURE.panels}


@pytest.fixture(autouse=True)
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    named = lambda folder: replace(images(), name="mnist")  # noqa: E731
    monkeypatch.setattr(tasks, "LOADERS", {"mnist": (named, models.mnist_cnn)})


def task(**settings: Any) -> tasks.Task:
    values = {"problem.name": "mnist", "problem.users": 10} | {f"problem.{k}": v for k, v in settings.items()}
    return tasks.task(configs.read(configs.with_values({}, values.items())).problem, 0)


@pytest.mark.parametrize("partition", ["shards:1", "dirichlet:0.5"])
def test_the_protocol(partition: str) -> None:
    made = task(protocol="niid-bench", partition=partition, weights="rows")
    problem = made.problem
    sizes = problem.data.sizes.tolist()
    assert problem.dim == 44_426
    assert made.factory in FACTORIES
    assert sum(sizes) == sum(round(0.9 * rows) for rows in np.sum(made.partition["counts"], axis=1))
    assert problem.weights.tolist() == pytest.approx([size / sum(sizes) for size in sizes])
    pixels = next(iter(problem.data.batches())).x
    assert 0 <= float(pixels.min()) < float(pixels.max()) <= 1
    shared = {each.name: (each.shared, each.evaluator.data.sizes.tolist()) for each in problem._evaluations}
    assert shared == {"validation": (True, [400 - sum(sizes)]), "test": (True, [50])}
    if partition == "shards:1":
        assert all(sum(count > 0 for count in user) == 1 for user in made.partition["counts"])


def test_the_papers_protocol_stays() -> None:
    problem = task(partition="shards:1").problem
    assert problem.dim == 11_910
    assert {each.name: each.shared for each in problem._evaluations} == {"validation": False, "test": False}


def test_its_networks() -> None:
    for make, shape, size in (
        (models.niid_bench_mnist, (1, 28, 28), 44_426),
        (models.niid_bench_cifar10, (3, 32, 32), 62_006),
    ):
        network = make()
        assert sum(p.numel() for p in network.parameters()) == size
        assert network(torch.zeros(2, *shape)).shape == (2, 10)
        assert make.__name__ in FACTORIES


def results(test: dict[str, list[float]], validation: dict[str, list[float]] | None = None) -> Results:
    """Lines of one label per user that are best at these accuracies, by seed; the others at 0.1."""
    panel = PANELS["one-label"]
    frames = {}
    for line in panel.lines:
        best = test.get(line.label, [0.1, 0.1])
        seen = (validation or test).get(line.label, [0.1, 0.1])
        frames[line.label] = [
            pd.DataFrame(
                {"round": [1, 2, 3], "test_accuracy": [0.05, x, x / 2], "validation_accuracy": [y, 0.01, 0.02]}
            )
            for x, y in zip(best, seen, strict=True)
        ]
    return Results(panel, frames)


def test_eta_is_chosen_by_validation_images_and_not_by_test_images() -> None:
    lines = niid_bench.chosen(
        results(
            {"FedPi | eta = 0.1": [0.9, 0.9], "FedPi | eta = 1": [0.3, 0.3]},
            {"FedPi | eta = 0.1": [0.2, 0.2], "FedPi | eta = 1": [0.1, 0.5]},
        )
    )
    assert lines["FedPi"] == "FedPi | eta = 1"
    assert set(lines) == {"FedAvg", "SCAFFOLD", "FedNova", "FedProx", "FedPi", "FedRP"}
    assert lines["FedProx"] == "FedProx | eta = 1"  # the first of equal ones


@pytest.mark.parametrize(
    ("own", "verdict"), [([0.6, 0.6], HOLDS), ([0.6, 0.3], IN_PART), ([0.4, 0.3], NOT), ([0.5, 0.5], NOT)]
)
def test_better_means_on_every_seed(own: list[float], verdict: str) -> None:
    claims = PANELS["one-label"].claims
    made = results({"FedPi | eta = 1": own, "SCAFFOLD": [0.5, 0.5], "FedNova": [0.5, 0.2]})
    assert claims[1].check(made).said == verdict
    assert "FedPi at eta = 1: " in claims[1].check(made).numbers
    learning = {"FedProx | eta = 10": [0.5, 0.5], "FedNova": [0.3, 0.3], "FedAvg": [0.1, 0.3]}
    assert claims[0].check(results(learning)).said == IN_PART


def test_others_tables_have_a_page_of_their_own(tmp_path: Path) -> None:
    assert not {figure.name for figure in FIGURES} & {figure.name for figure in BESIDE}
    figure = BESIDE[0]
    judged = [judging.JudgedPanel(figure, figure.panels[0], None, missing=1)]
    written = page.write(judged, tmp_path, judging.QUICK)
    assert written.name == "beside-others.html"
    text = document.write(judged, tmp_path / "o.md", conduct.RunIndex(tmp_path / "runs")).read_text()
    assert text.startswith("# Beside others\n\nTables that others publish")
    assert "operator splitting view" not in text.lower()


def test_scaffolds_run_is_found_again_though_building_fills_in_its_eta(tmp_path: Path) -> None:
    scaffold = replace(niid_bench.LINES[1], quick={"problem.images": 200, "run.rounds": 1, "local.steps": 2})
    panel = replace(PANELS["one-label"], lines=(scaffold,), seeds=1)
    index = conduct.RunIndex(tmp_path)
    (config,) = index.plan(panel, scaffold)
    assert index.stored(config) is None
    made = index.run(config)
    again = conduct.RunIndex(tmp_path)
    assert len(made) == len(again.stored(config)) == 1  # type: ignore[arg-type]
    other = replace(config, scheme=replace(config.scheme, eta=0.123))
    assert again.stored(other) is None
