"""A private federation: the server adds noise that nobody can compute, and counts what it has told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import resolvent as rs
from federation.test_server import NAMES, Dies, Power, grid_of, pooled, settings
from resolvent import runs
from resolvent.federation import keys, server_app, template
from resolvent.federation.project import Project
from resolvent.iteration import accountant

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

QUIET = "clip = 1e3\nnoise = 1e-15\ndelta = 1e-3"
NOISY = "clip = 0.5\nepsilon = 6.0\ndelta = 1e-3"


def made(folder: Path, privacy: str, algorithm: str = "fedpi") -> Project:
    project = template.write(folder)
    template.fix(project, eta=0.3, rounds=8)
    for name in NAMES:
        keys.make_node(project, name)
    path = project.path / "federation.toml"
    text = path.read_text().replace('algorithm = "fedpi"', f'algorithm = "{algorithm}"')
    text = text.replace("[run]", f'[privacy]\nkind = "user"\n{privacy}\n\n[run]')
    path.write_text(text)
    return project


@pytest.mark.parametrize("algorithm", ["fedpi", "fedprox"])
def test_without_noise_and_with_nothing_cut_it_is_the_run_of_one_process(tmp_path: Path, algorithm: str) -> None:
    project = made(tmp_path / "p", QUIET, algorithm)
    run = server_app.conduct(grid_of(project), project, project.runs)
    expected = rs.solve(pooled(), algorithm, eta=0.3, rounds=8)
    torch.testing.assert_close(run.model(), expected.model, rtol=1e-8, atol=1e-9)
    history = run.history()
    for name in ("value", "residual", "stationarity", "consensus"):
        assert history[name].isna().all(), name
    assert run.status == "finished"
    assert not run.damage()


def test_its_noise_follows_from_no_seed_and_epsilon_is_counted(tmp_path: Path) -> None:
    models = []
    for name in ("one", "other"):
        project = made(tmp_path / name, NOISY)
        run = server_app.conduct(grid_of(project), project, project.runs)
        model = run.model()
        assert model is not None
        models.append(model)
        assert 5.9 < run.history()["epsilon"].iloc[-1] <= 6.0
        assert not any(event["kind"] in ("no_value", "implausible", "unsolved") for event in run.events)
    assert float((models[0] - models[1]).norm()) > 1e-3


@pytest.mark.parametrize("at", [3, 5])
def test_a_killed_server_goes_on_counting(tmp_path: Path, at: int) -> None:
    """Each noisy mean is on disk before anybody is told of it, so that no round is spent twice."""
    project = made(tmp_path / "p", NOISY)
    dies: Any = grid_of(project, memory=tmp_path / "nodes", kind=Dies)
    dies.at = at
    with pytest.raises(Power):
        server_app.conduct(dies, project, project.runs)
    killed = runs.find("latest", project.runs)
    newest, _ = killed.newest()
    assert newest is not None
    memory = newest.state.parts.meet
    assert memory.rounds == newest.round
    run = server_app.conduct(grid_of(project, memory=tmp_path / "nodes"), project, project.runs, resume=killed.id)
    assert run.status == "finished"
    assert run.history()["epsilon"].iloc[-1] == accountant.epsilon(((memory.noise, 1.0, 8),), 1e-3)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("", ""), ""),
        (("users = 3", "users = 3\nsecure = true"), "leave out one of the two"),
        (("clip = 0.5", "clip = 0.5\nlocal = true"), "the server adds the noise"),
        (("clip = 0.5", 'clip = 0.5\nheld_out = "public"'), "held-out rows of nodes are their users'"),
        (("[run]", "[store]\ncheckpoint = 60\n\n[run]"), "on disk before anybody is told"),
        (("[run]", '[participation]\nprobability = 0.5\nabsent = "paper"\n\n[run]'), "u_i of their own"),
        (("epsilon = 6.0", "epsilon = -1"), "epsilon is -1"),
        (('weights = "rows"', 'weights = "site-0=1, site-1=2, site-2=1"'), "have equal weights"),
    ],
)
def test_what_it_does_not_carry_out_is_refused(tmp_path: Path, more: tuple[str, str], words: str) -> None:
    project = made(tmp_path / "p", NOISY)
    if not words:
        assert server_app.conduct(grid_of(project), project, project.runs).status == "finished"
        return
    settings(project, *more)
    with pytest.raises(rs.InputError, match=words):
        server_app.conduct(grid_of(project), project, project.runs)
    assert not runs.folders(project.runs)
