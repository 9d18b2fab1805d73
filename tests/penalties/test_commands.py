"""Penalties in configurations and on the command line."""

from pathlib import Path

import pytest

import resolvent as rs
from resolvent import config as configs
from resolvent import experiment, runs
from resolvent.experiment.conduct import begin

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {"name": "least-squares", "users": 3, "dim": 4, "rows": 6}


def config(rounds: int = 12, **problem: object) -> configs.Config:
    return configs.read({"problem": SMALL | problem, "run": {"rounds": rounds}, "anderson": {"memory": 3}})


def test_runs_without_a_penalty_keep_their_fingerprint() -> None:
    assert "penalty" not in configs.plain(config())["problem"]
    assert configs.fingerprint(config()) != configs.fingerprint(config(penalty="l1:0.5"))


def test_a_run_on_disk_has_its_penalty(tmp_path: Path) -> None:
    built = experiment.build(config(penalty="l1:0.5"))
    problem = built.task.problem
    assert "L1(0.5)" in str(built.explanation)
    outcome = begin(built, tmp_path, False)
    stored = outcome.run.row()
    direct = rs.solve(problem, "fedpi", rounds=12, anderson=3)
    assert stored["gap"] == direct.history.gap.iloc[-1]
    assert outcome.run.about["problem"]["minimum"] == problem.fstar
    again = experiment.build(configs.read(runs.find(outcome.run.id, tmp_path).config))
    assert again.fingerprint == built.fingerprint
    assert str(again.task.problem.penalty) == "L1(0.5)"


def test_bad_words_are_refused() -> None:
    with pytest.raises(rs.InputError, match="l1:T"):
        experiment.build(config(penalty="lasso"))
