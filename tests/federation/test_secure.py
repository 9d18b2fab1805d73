"""A federation with secure sums: from its configuration to a run on disk, and over real processes."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from engines.fake_grid import FakeGrid
from federation.test_deployment import Watching, kill
from federation.test_server import NAMES, Dies, Power, pooled, settings, user
from resolvent import runs
from resolvent.engines.flower.node import Node
from resolvent.errors import InputError
from resolvent.federation import keys, running, server_app, template
from resolvent.federation.project import Project
from resolvent.federation.up import Federation

pytest.importorskip("flwr")


def made(folder: Path, more: str = "rounds = 8", users: int = 3) -> Project:
    project = template.write(folder, users=users, secure=True)
    settings(project, "rounds = 100", more)
    settings(project, "eta = 1.0", "eta = 0.3")
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made_ = made(tmp_path / "project")
    for name in NAMES:
        keys.make_node(made_, name)
    return made_


def grid_of(project: Project, memory: Path | None = None, kind: type[FakeGrid] = FakeGrid) -> FakeGrid:
    known = {name: key for key, name in keys.public_keys(project).items()}
    nodes = [Node(user(k), None if memory is None else memory / str(k), secure=True) for k in range(3)]
    return kind(nodes, keys=[known[name] for name in NAMES])


@pytest.mark.parametrize("algorithm", ["fedpi", "fedprox"])
def test_a_secure_run_lands_in_the_run_store(project: Project, algorithm: str) -> None:
    settings(project, '"fedpi"', f'"{algorithm}"')
    run = server_app.conduct(grid_of(project), project, project.runs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rs.ResolventWarning)
        expected = rs.solve(pooled(), algorithm, eta=0.3, rounds=8)
    assert run.status == "finished"
    torch.testing.assert_close(run.model(), expected.model, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(run.history()["value"], expected.history["value"], rtol=1e-9)
    assert ("original problem" if algorithm == "fedpi" else "regularised") in run.about["explanation"]["words"]


def test_a_killed_server_goes_on_with_new_keys_and_the_same_bits(project: Project, tmp_path: Path) -> None:
    unbroken = server_app.conduct(grid_of(project, tmp_path / "a"), project, tmp_path / "whole")
    with pytest.raises(Power):
        server_app.conduct(grid_of(project, tmp_path / "b", Dies), project, project.runs)
    (left,) = runs.folders(project.runs)
    done = server_app.conduct(grid_of(project, tmp_path / "b"), project, project.runs, resume=left.id)
    assert torch.equal(unbroken.model(), done.model())  # type: ignore[arg-type]
    np.testing.assert_array_equal(unbroken.history()["value"], done.history()["value"])


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("eta = 0.3", 'eta = "auto"', "scheme.eta is"),
        ("secure = true", "secure = true\ncurvature = true", "federation.curvature is True"),
        ("users = 3", "users = 2", "federation.users is 2, but a secure sum needs 3"),
        ('"fedpi"', '"reflect_prox"', "only the mean of all answers is known"),
        ("[run]", "[stop]\ncertificates = 1e-6\n\n[run]", "are known to nobody"),
        ("[run]", "[anderson]\nmemory = 3\n\n[run]", 'take on = "mean"'),
        ("[run]", '[participation]\nkind = "bernoulli"\np = 0.5\n\n[run]', "a secure sum is among all"),
    ],
)
def test_what_sums_cannot_do_is_refused(project: Project, old: str, new: str, match: str) -> None:
    settings(project, old, new)
    with pytest.raises(InputError, match=match):
        server_app.conduct(grid_of(project), project, project.runs)


USER = """
import numpy as np
import resolvent as rs


def problem(node_config):
    rng = np.random.default_rng(sum(node_config["name"].encode()))
    A = rng.standard_normal((20, 4))
    return rs.LeastSquares([A], [A @ np.ones(4) + rng.standard_normal(20)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("users", [3, 4])
def test_secure_sums_over_real_processes(tmp_path: Path, users: int) -> None:
    """With three users nobody may drop out; of four, one is killed in the middle, and its z_i holds."""
    names = [f"site-{i}" for i in range(users)]
    project = made(tmp_path / "project", "rounds = 6", users)
    (project.path / "user.py").write_text(USER)
    settings(project, "timeout = 120.0", "timeout = 25.0")
    settings(project, "eta = 0.3", "eta = 0.1")
    began = time.monotonic()
    with Federation(project, names) as federation:
        run = running.begin(project, project.runs)
        node = federation.nodes[names[-1]]
        act = (lambda: kill(node.supernode, node.worker)) if users == 4 else (lambda: None)
        done = run.wait(Watching(2, act), federation.check)
    print(f"{users} users: {time.monotonic() - began:.1f} s for 6 rounds and the start")
    assert done.status == "finished"
    came = done.history()["participants"].tolist()
    problem = rs.LeastSquares(*(list(part) for part in zip(*(rows_of(name) for name in names), strict=True)))
    trace = [[i < came[t] for i in range(users)] for t in range(6)] if users == 4 else None
    expected = rs.solve(problem, rs.fedpi(0.1), rounds=6, participation=None if trace is None else rs.Trace(trace))
    assert came[:2] == [users, users]
    if users == 4:
        assert 3 in came
    torch.testing.assert_close(done.model(), expected.model, rtol=1e-8, atol=1e-9)


def rows_of(name: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(sum(name.encode()))
    A = rng.standard_normal((20, 4))
    return A, A @ np.ones(4) + rng.standard_normal(20)
