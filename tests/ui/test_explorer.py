"""The explorer: its numbers are those of the copied Python and of the copied command, and predictions come true."""

from __future__ import annotations

import math
import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import resolvent
from resolvent.errors import ResolventWarning
from resolvent.iteration import registry
from resolvent.iteration.table import TABLE
from resolvent.runs import folders
from resolvent.ui import recipes
from resolvent.ui.examples import EXAMPLES, Sizes
from resolvent.ui.explorer import Setup, explore, problem_of
from resolvent.ui.models import Explore


def drawn(seed: int) -> Setup:
    """A setup as somebody might leave it."""
    rng = np.random.default_rng(seed)
    name = list(EXAMPLES)[seed % len(EXAMPLES)]
    example = EXAMPLES[name]
    chosen = str(rng.choice(list(TABLE)))
    row = TABLE[chosen]
    smooth = name not in ("sets", "lasso")
    forward = row.forward and smooth
    mixing = (float(row.alpha), float(row.beta), float(row.gamma)) if rng.random() < 0.7 else (1.3, 1.1, 0.8)
    presence: Any = [{}, {"participation": 0.5, "absent": "hold"}, {"participation": 0.5, "absent": "paper"},
                {"delays": 5.0}][rng.integers(4)]  # fmt: skip
    if row.sampling and presence.get("absent") == "paper":  # rules of their own, which not every schedule goes with
        presence = presence | {"absent": "hold"}
    sizes = Sizes(
        int(rng.integers(2, 5)), int(rng.integers(2, 5)), round(float(rng.random()), 2), 0.5, int(rng.integers(3))
    )
    return Setup(name, sizes, *mixing, eta=round(example.eta[1] / (4 if forward else 1), 4), forward=forward,
                 schedule=str(rng.choice(list(registry.parts("schedule")))),
                 steps=int(rng.integers(1, 4)) if forward else 1,
                 anderson=int(rng.integers(0, 3)), rounds=12, algorithm=chosen if smooth or row.local is None else "",
                 **presence)  # fmt: skip


def columns(history: Any) -> dict[str, list[float | None]]:
    names = [
        name for name in ("round", "eta", "value", "gap", "residual", "consensus", "stationarity") if name in history
    ]
    return {name: [v if math.isfinite(v) else None for v in history[name]] for name in names}


@pytest.mark.parametrize("seed", range(18))
def test_the_copied_python_computes_the_same_numbers(seed: int) -> None:
    setup = drawn(seed)
    made: dict[str, Any] = {"__name__": "__main__", "print": lambda *_: None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResolventWarning)
        exec(recipes.python(setup), made)
    told = explore(setup)["columns"]
    assert columns(made["run"].history) == {name: told[name] for name in columns(made["run"].history)}
    assert len(told["round"]) == 12 or made["run"].status == "diverged"


@pytest.mark.parametrize("seed", range(6))
def test_the_copied_command_computes_the_same_numbers(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    setup = drawn(seed)
    (tmp_path / recipes.FILE).write_text(recipes.python(setup))
    line, _ = recipes.command(setup)
    if line is None:
        assert setup.forward
        assert setup.row is None
        return
    words = shlex.split(line)
    assert words[0] == "resolvent"
    assert resolvent(*words[1:], "--quiet").code in (0, 3)
    (run,) = folders(tmp_path / "runs")
    assert columns(run.history()) == {name: explore(setup)["columns"][name] for name in columns(run.history())}


def test_gradient_steps_with_numbers_of_their_own_have_no_command() -> None:
    setup = Setup("least-squares", alpha=1.5, beta=1.0, gamma=1.0, forward=True)
    assert recipes.command(setup)[0] is None
    assert "forward=True" in recipes.python(setup)


@pytest.mark.parametrize("name", ["plane", "line", "least-squares", "logistic", "lasso"])
@pytest.mark.parametrize(
    "mixing",
    [(2.0, 2.0, 0.5, False, 1), (1.0, 1.0, 1.0, False, 1), (2.0, 1.0, 1.0, False, 1), (1.0, 2.0, 1.0, False, 1),
     (1.4, 1.2, 0.9, False, 1), (1.0, 1.0, 1.0, True, 1), (1.0, 1.0, 1.0, True, 4), (1.5, 1.0, 0.5, True, 3)],
)  # fmt: skip
def test_runs_end_at_the_predicted_fixed_point(name: str, mixing: tuple[float, float, float, bool, int]) -> None:
    alpha, beta, gamma, forward, steps = mixing
    eta = EXAMPLES[name].eta[1] / (3 if forward else 1)
    setup = Setup(name, Sizes(3, 3, 0.7), alpha, beta, gamma, eta, forward=forward, steps=steps, anderson=4, rounds=80)
    told = explore(setup)
    if told["limit"] is None:
        assert name in ("logistic", "lasso")
        assert steps > 1
        return
    last = told["columns"]["value"][-1]
    assert last == pytest.approx(told["limit"]["value"], rel=1e-7)
    assert (told["limit"]["gap"] < 1e-12) == (told["solves"] == "original" and told["limit"]["exactly"])


@pytest.mark.parametrize("name", ["plane", "line", "sets"])
@pytest.mark.parametrize("scheme", ["fedpi", "fedprox", "fedavg", "reflect_prox"])
def test_every_step_in_the_plane_is_the_schemes(name: str, scheme: str) -> None:
    row = TABLE[scheme]
    if name == "sets" and row.forward:
        return
    setup = Setup(name, Sizes(), row.alpha, row.beta, row.gamma, 0.2, forward=row.forward, rounds=6)
    problem = problem_of(name, setup.sizes)
    path = explore(setup)["path"]
    assert len(path) == 6
    for step, after in zip(path, [*path[1:], None], strict=True):
        u, p, z, ahead = (torch.tensor(step[key], dtype=torch.float64) for key in ("u", "p", "z", "next"))
        wanted = u - 0.2 * problem.grad(u) if row.forward else problem.prox(u, 0.2)
        assert torch.allclose(p, wanted, atol=1e-12)
        assert torch.allclose(z, (1 - row.alpha) * u + row.alpha * p, atol=1e-12)
        mean = problem.weights @ z
        assert torch.allclose(torch.tensor(step["mean"], dtype=torch.float64), mean, atol=1e-12)
        w = (1 - row.beta) * z + row.beta * mean
        assert torch.allclose(ahead, (1 - row.gamma) * u + row.gamma * w, atol=1e-12)
        if after is not None:
            assert torch.allclose(torch.tensor(after["u"], dtype=torch.float64), ahead, atol=1e-12)


def test_what_is_drawn_is_the_problem() -> None:
    sizes = Sizes(heterogeneity=0.8)
    for user, f in zip(EXAMPLES["plane"].picture(sizes), range(3), strict=True):  # type: ignore[misc]
        w = torch.tensor([[0.3, -0.4]], dtype=torch.float64)
        away = w[0] - torch.tensor(user["centre"], dtype=torch.float64)
        value = float(away @ torch.tensor(user["hessian"], dtype=torch.float64) @ away) / 2
        assert float(problem_of("plane", sizes).value(w)[f]) == pytest.approx(value, rel=1e-9)
    ball, half = EXAMPLES["sets"].picture(sizes)  # type: ignore[misc]
    sets = problem_of("sets", sizes).sets
    assert (sets[0].centre.tolist(), sets[0].radius) == (ball["centre"], ball["radius"])
    assert (*sets[1].normal.tolist(), sets[1].offset) == pytest.approx((*half["normal"], half["offset"]))


def test_bounds_admit_what_the_page_offers() -> None:
    for name, example in EXAMPLES.items():
        for eta in example.eta:
            asked = Explore(problem=name, eta=eta, rounds=example.rounds, heterogeneity=example.heterogeneity[1])
            assert asked.setup() == replace(Setup(name), sizes=asked.setup().sizes, eta=eta, rounds=example.rounds)
