"""SCAFFOLD and its kin from configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import resolvent as rs
from command_line import resolvent
from resolvent import config as configs
from resolvent import experiment

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

SMALL = {"name": "least-squares", "users": 4, "dim": 5, "rows": 12}
LR = 1e-3


def built(algorithm: str, local: dict[str, Any] | None = None, **scheme: Any) -> rs.Scheme:
    tree = {"problem": SMALL, "scheme": {"algorithm": algorithm, **scheme}, "local": local or {}}
    return experiment.build(configs.read(tree)).scheme


@pytest.mark.parametrize(
    ("ours", "python"),
    [
        (("scaffold", {"steps": 3, "lr": LR}), rs.scaffold(LR, 3)),
        (("scaffnew", {"steps": 3, "lr": LR}), rs.scaffnew(LR, 3)),
        (("scaffold", {"steps": 3, "lr": LR, "batch": 5, "momentum": 0.5}), rs.scaffold(LR, 3, 5, 0.5)),
        (("fednova", {"steps": 3, "lr": LR, "batch": 5}), rs.fednova(LR, 3, 5)),
    ],
)
def test_local_steps_and_lr_are_those_of_python(ours: Any, python: rs.Scheme) -> None:
    scheme, problem = built(*ours), rs.make_least_squares(users=4, dim=5, rows=12)
    runs = [rs.solve(problem, each, rounds=4, seed=0, progress=False) for each in (scheme, python)]
    assert torch.equal(runs[0].model, runs[1].model)
    assert runs[0].state.eta == runs[1].state.eta


def test_eta_alone_is_k_lr_and_gamma_is_free_where_the_row_says_so() -> None:
    assert built("scaffold", {"steps": 4}, eta=0.02).local == rs.TiltedSteps(4)
    assert built("fedexprox", eta=0.02, gamma=1.7).mixing(0) == (1, 1, 1.7)
    assert built("feddyn").auto
    with pytest.raises(rs.InputError, match="gamma is 1"):
        built("fedexprox", eta=0.02, gamma=1.0)
    with pytest.raises(rs.InputError, match='can be set for the algorithm "custom" only'):
        built("scaffold", eta=0.02, gamma=0.7)


def test_the_command_line_runs_and_explains_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("least-squares", "--users", 4, "--dim", 5, "--rows", 12, "--algorithm", "scaffold", "--lr", LR)
    told = resolvent("run", *small, "--local-steps", 3, "--rounds", 4, "--quiet", "--format", "json")
    assert (told.code, told.json["solves"]) == (0, "original")
    assert "SCAFFOLD is FedPi with k tilted gradient steps" in resolvent("explain", *small).out
    adam = resolvent("run", *small, "--rounds", 3, "--accelerate", "server-adam:0.1", "--quiet")
    assert adam.code == 0
