"""A private federation: the server adds noise that nobody can compute, and counts what it has told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import resolvent as rs
from engines.fake_grid import FakeGrid
from federation import test_deployment as real
from federation.test_server import NAMES, Dies, Power, grid_of, pooled, settings
from resolvent import runs
from resolvent.engines.flower.node import Node
from resolvent.federation import demo, keys, running, server_app, template
from resolvent.federation.project import Project
from resolvent.federation.recording import RELEASED
from resolvent.federation.up import Federation
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
    assert history["bytes_up"].nunique() == 1  # those that moved tell of answers
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
        assert "noise comes from the operating system's generator" in run.about["explanation"]["words"]
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


@pytest.mark.parametrize("seeds", [(1, 1, 1), (1, 1, 2)])
def test_it_begins_where_all_nodes_do_and_not_at_what_one_of_them_has_trained(tmp_path: Path, seeds: Any) -> None:
    def node(seed: int) -> Node:
        torch.manual_seed(seed)
        return Node(rs.Neural(torch.nn.Linear(2, 2), [(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long))]))

    project = made(tmp_path / "p", NOISY, "fedavg")
    known = {name: key for key, name in keys.public_keys(project).items()}
    grid = FakeGrid([node(seed) for seed in seeds], keys=[known[name] for name in NAMES])
    if len(set(seeds)) > 1:
        with pytest.raises(rs.InputError, match="start is other numbers on node site-2 than on node site-0"):
            server_app.conduct(grid, project, project.runs)
    else:
        assert server_app.conduct(grid, project, project.runs).status == "finished"


def test_a_round_that_is_released_twice_counts_twice(tmp_path: Path) -> None:
    """Where the newest checkpoint is damaged, its round is done again, with other noise; the rest gets more noise."""
    project = made(tmp_path / "p", NOISY)
    dies: Any = grid_of(project, memory=tmp_path / "nodes", kind=Dies)
    with pytest.raises(Power):
        server_app.conduct(dies, project, project.runs)
    killed = runs.find("latest", project.runs)
    newest = max(killed.checkpoints.iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    run = server_app.conduct(grid_of(project, memory=tmp_path / "nodes"), project, project.runs, resume=killed.id)
    state = run.state()
    assert state is not None
    assert (run.status, state.round, state.parts.meet.rounds) == ("finished", 8, 9)
    assert 5.9 < run.history()["epsilon"].iloc[-1] <= 6.0
    assert "first releases count as well" in next(
        event["reason"] for event in run.events if event["kind"] == "recounted"
    )


def test_a_last_round_that_is_released_twice_is_refused_rather_than_drowned_in_noise(tmp_path: Path) -> None:
    project = made(tmp_path / "p", NOISY)
    run = server_app.conduct(grid_of(project), project, project.runs)
    max(run.checkpoints.iterdir()).unlink()
    events = run.path / "events.jsonl"
    events.write_text(events.read_text().split("\n")[0] + "\n")  # killed before it was said that it has ended
    with pytest.raises(rs.InputError, match=r"8 rounds have spent .* and 1 more would need a noise of"):
        server_app.conduct(grid_of(project), project, project.runs, resume=run.id)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(tmp_path: Path) -> None:
    project = made(tmp_path / "p", NOISY)
    with pytest.raises(Power):
        server_app.conduct(grid_of(project, kind=Dies), project, project.runs)
    killed = runs.find("latest", project.runs)
    for path in killed.checkpoints.iterdir():
        path.write_bytes(b"")
    with pytest.raises(rs.InputError, match="has released 4 noisy means, but has no sound checkpoint"):
        server_app.conduct(grid_of(project), project, project.runs, resume=killed.id)


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


@pytest.mark.slow
def test_real_processes_count_on_through_kills_and_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESOLVENT_TEST", str(os.getpid()))
    project = real.made(tmp_path, 6, more=f'[privacy]\nkind = "user"\n{NOISY}\n')
    with Federation(project, demo.NODES) as federation:
        for resume, at in (("", 2), ("latest", 4)):
            with pytest.raises(running.Killed, match="--resume"):
                running.begin(project, project.runs, resume).wait(real.Watching(at, real.kill_serverapp))
        left = running.latest(project.runs)
        state, rounds = left.state(), left.row()["round"]
        assert state is not None
        spent = accountant.epsilon(((state.parts.meet.noise, 1.0, rounds),), 1e-3)
        assert left.history()["epsilon"].iloc[-1] == spent
        newest = max(left.checkpoints.iterdir())
        newest.write_bytes(newest.read_bytes()[:-1])
        told = len((left.path / RELEASED).read_text().splitlines())
        again = told + 1 - int(newest.name[:8])  # 0: it was killed before the newest was told
        done = running.begin(project, project.runs, "latest").wait(check=federation.check)
    history, state = done.history(), done.state()
    assert state is not None
    assert (done.status, state.round, state.parts.meet.rounds) == ("finished", 6, 6 + again)
    assert history["epsilon"].is_monotonic_increasing
    assert 5.9 < history["epsilon"].iloc[-1] <= 6.0
    assert history[["value", "residual", "stationarity", "consensus"]].isna().all(axis=None)
    kinds = [event["kind"] for event in done.events]
    assert (kinds.count("resumed"), kinds.count("damage"), kinds.count("recounted")) == (2, 1, again)
