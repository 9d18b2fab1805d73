"""Ways round the noise that were open once: what is made of users' rows beforehand, runs beside runs, errors."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from command_line import resolvent
from resolvent import runs
from resolvent.engines.in_process import InProcess
from resolvent.engines.private import Private
from resolvent.errors import BadAnswer, InputError
from resolvent.ui import users

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
PRIVACY = rs.UserPrivacy(0.5, noise=5.0, delta=1e-4)


def uneven(rows: int = 20) -> rs.LeastSquares:
    rng = np.random.default_rng(0)
    sizes = [rows, *[20] * 5]
    return rs.LeastSquares([rng.standard_normal((n, 3)) for n in sizes], [rng.standard_normal(n) for n in sizes])


@pytest.mark.parametrize("scheme", [rs.fednova(0.01, steps=1, batch=5), rs.scaffold(0.001, 1, batch=5)], ids=str)
def test_numbers_of_rows_scale_nobodys_contribution(scheme: rs.Scheme) -> None:
    with pytest.raises(InputError):
        rs.solve(uneven(), scheme, rounds=1, privacy=PRIVACY)
    with pytest.raises(InputError):
        rs.solve_seeds(uneven(), scheme, [0], rounds=1, privacy=PRIVACY)


@pytest.mark.parametrize("algorithm", ["fednova", "scaffold"])
def test_nor_on_the_command_line(algorithm: str, tmp_path: Path) -> None:
    rng, lines = np.random.default_rng(0), ["site,a,b,y"]
    for site in range(6):
        lines += [f"s{site},{a:.3f},{b:.3f},{a - b:.3f}" for a, b in rng.standard_normal((20, 2))]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines))
    step = ["--lr", "0.001"] if algorithm == "scaffold" else ["--eta", "0.001"]
    options = ["--no-standardise", "--batch", "5", "--rounds", "1", "--privacy", "user:0.5:4:1e-5"]
    where = ["--user-column", "site", "--target", "y", "--algorithm", algorithm, "--out", str(tmp_path / "runs")]
    ended = resolvent("run", str(table), *where, *step, *options)
    assert ended.code == 2, ended
    assert not (tmp_path / "runs").exists()


def test_inner_products_are_told_of_meeting_points_alone() -> None:
    engine = Private(InProcess(uneven(), rs.GradientSteps(1)), public=False)
    of_points, of_users = (engine.gram(torch.ones(2, rows, 3, dtype=torch.float64)) for rows in (1, 6))
    assert bool(torch.isfinite(of_points).all())
    assert bool(torch.isnan(of_users).all())


def test_the_live_page_tells_nothing_of_single_users(tmp_path: Path) -> None:
    """Who was drawn follows from the seed, and the losses from the rows that the configuration describes."""
    out = ["--out", str(tmp_path / "runs"), "--algorithm", "fedavg", "--eta", "0.001", "--rounds", "3"]
    sampled = ["--participation", "0.5", "--absent", "paper"]
    for more, tells in (([], True), (["--privacy", "user:1:5:1e-4"], False)):
        assert resolvent("run", "least-squares", "--users", "5", *sampled, *out, *more).code == 0
        run = runs.find("latest", tmp_path / "runs")
        assert (users.presence(run, 3)["kind"] == "drawn", bool(users.losses(run)["losses"])) == (tells, tells)


def test_noise_does_not_cancel_between_runs_of_one_seed() -> None:
    """Were it the same but for its size, 2 w_1 - w_2 would be free of it."""
    quiet = rs.UserPrivacy(0.5, noise=1e-9, delta=1e-4)
    problem, scheme = uneven(), rs.fedavg(0.01)
    w0, w1, w2 = (
        rs.solve(problem, scheme, rounds=1, privacy=privacy).model
        for privacy in (quiet, PRIVACY, replace(PRIVACY, noise=10.0))
    )
    assert float((2 * w1 - w2 - w0).norm()) > 0.1 * float((w1 - w0).norm())
    other = rs.fedavg(0.01, steps=5)
    plain = [rs.solve(problem, s, rounds=1, privacy=quiet).model for s in (scheme, other)]
    noisy = [rs.solve(problem, s, rounds=1, privacy=PRIVACY).model for s in (scheme, other)]
    assert float(((noisy[0] - noisy[1]) - (plain[0] - plain[1])).norm()) > 0.1 * float((w1 - w0).norm())


def test_a_prox_that_one_user_spoils_ends_no_private_run() -> None:
    rng = np.random.default_rng(1)
    A, b = rng.standard_normal((6, 9, 3)), np.sign(rng.standard_normal((6, 9)))
    A[3] *= 1e16
    run = rs.solve(rs.Logistic(A, b, reg=0.3), rs.fedpi(0.1), rounds=4, privacy=PRIVACY)
    assert run.status == "finished"
    assert bool(torch.isfinite(run.model).all())


def test_nobody_is_told_that_the_prox_of_one_user_was_not_found() -> None:
    rng = np.random.default_rng(1)
    A, b = rng.standard_normal((4, 8, 3)), rng.standard_normal((4, 8))
    A[2] *= 1e120
    problem, some = rs.Quantile(A, b, reg=0.3), [0, 1, 3]
    with pytest.raises(BadAnswer, match="user 2"):
        rs.solve(problem, rs.fedprox(0.1), rounds=1)
    found = rs.solve(problem, rs.fedprox(0.1), rounds=1, privacy=rs.UserPrivacy(1e3, noise=1e-15, delta=1e-4)).model
    others = rs.solve(rs.Quantile(A[some], b[some], reg=0.3), rs.fedprox(0.1), rounds=1).model
    torch.testing.assert_close(4 * found, 3 * others, rtol=1e-9, atol=1e-9)  # it contributes nothing


def test_nobody_is_warned_that_the_numbers_of_one_user_overflow() -> None:
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((6, 8, 3)), rng.standard_normal((6, 8))
    A[2] *= 1e120
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", rs.ResolventWarning)
        rs.solve(rs.LeastSquares(A, b), rs.fedavg(0.02, steps=3), rounds=6, privacy=PRIVACY)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_diverged_has_spent_what_it_released() -> None:
    """It hands back an earlier state, but its callback and its history have had all rounds."""
    privacy = replace(PRIVACY, clip=1e308)
    run = rs.solve(uneven(), rs.fedavg(0.1), rounds=5, privacy=privacy)
    assert (run.status, run.state.round) == ("diverged", 0)
    assert run.state.parts.meet.stretches == ((5.0, 1.0, 5),)


def logistic_state() -> Any:
    return rs.solve(uneven(), rs.fedavg(0.01), rounds=2, privacy=PRIVACY).state


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"participation": rs.Bernoulli(0.5, absent="paper"), "privacy": replace(PRIVACY, local=True)}, "local noise"),
        ({"start": logistic_state, "privacy": replace(PRIVACY, clip=0.1)}, "clip is 0.1, but 0.5"),
        ({"penalty": rs.L1(0.1), "scheme": rs.fedavg(0.01, local=rs.GradientSteps(1, batch=5))}, "batch is 5, but"),
        ({"problem": rs.LeastSquares(np.ones((2, 3, 3)), np.ones((2, 3)), weights=[1, 3])}, "weights is not equal"),
    ],
    ids=["local samples", "another clip", "penalty and batches", "weights"],
)
def test_what_would_tell_is_refused(more: dict[str, Any], words: str) -> None:
    more = {"problem": uneven(), "scheme": rs.fedavg(0.01), "privacy": PRIVACY} | more
    more = {name: value() if value is logistic_state else value for name, value in more.items()}
    with pytest.raises(InputError, match=words):
        rs.solve(more.pop("problem"), more.pop("scheme"), rounds=2, **more)


def test_a_state_of_no_round_may_hold_rows_of_users() -> None:
    rows = torch.arange(18.0, dtype=torch.float64).reshape(6, 3)
    state = replace(rs.solve(uneven(), rs.fedpi(0.01), rounds=1, start=rows).state, round=0)
    with pytest.raises(InputError, match="a run without privacy"):
        rs.solve(uneven(), rs.fedpi(0.01), rounds=1, start=state, privacy=PRIVACY)
