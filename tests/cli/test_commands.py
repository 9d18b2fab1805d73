"""Every command does what the library does, says it to people and to machines, and ends with the right code."""

import csv
import importlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from safetensors.torch import load_file

import resolvent as rs
from command_line import SMALL, Process, Said, beside, main, model, resolvent, rows, strictly
from resolvent import experiment
from resolvent.cli import commands, looking, many, running
from resolvent.config import Config
from resolvent.experiment.tasks import task
from resolvent.installed import install
from resolvent.runs import Folder, folders, lock
from resolvent.runs.recorder import Recorder

RUNS = Path("runs")
FEDPI = ("run", "least-squares", *SMALL, "--eta", "0.02", "--rounds", "12")
OWN = """
import numpy as np
import resolvent as rs

def squares():
    return rs.make_least_squares(users=3, dim=4, rows=10)

def blind():
    return rs.Custom(2, 2, prox=lambda U, eta: U / (1 + eta), value=lambda W: W.square().sum(-1) / 2 - 3)
"""


def squares(seed: int = 0) -> rs.LeastSquares:
    return rs.make_least_squares(users=4, dim=5, rows=12, seed=seed)


def only() -> Folder:
    (run,) = folders(RUNS)
    return run


def interrupt(monkeypatch: pytest.MonkeyPatch, at: Callable[[Any], bool]) -> None:
    """Ctrl-C as soon as `at` a round is true."""
    keep = Recorder.__call__

    def press(recorder: Any, happened: Any, *rest: Any) -> None:
        if at(happened):
            raise KeyboardInterrupt
        keep(recorder, happened, *rest)

    monkeypatch.setattr(Recorder, "__call__", press)


# --- run -------------------------------------------------------------------------------------------------------------

SAME: dict[str, tuple[str, Callable[[], rs.Run]]] = {
    "FedPi, sampled, accelerated": (
        "--algorithm fedpi --eta 1e-2 --rounds 20 --anderson 2 --participation 0.5",
        lambda: rs.solve(squares(), rs.fedpi(1e-2), 20, anderson=2, participation=0.5),
    ),
    "automatic eta": ("--rounds 15 --every 4", lambda: rs.solve(squares(), rs.fedpi("auto"), 15, every=4)),
    "FedAvg": (
        "--algorithm FedAvg --eta 1e-3 --local-steps 3 --batch 4 --rounds 9 --seed 5",
        lambda: rs.solve(squares(5), rs.fedavg(1e-3, local=rs.GradientSteps(3, batch=4)), 9, seed=5),
    ),
    "FedProx, a schedule": (
        "--algorithm fedprox --eta 0.1 --schedule inverse_sqrt --rounds 9 --average suffix",
        lambda: rs.solve(squares(), rs.fedprox(rs.schedules.inverse_sqrt(0.1)), 9, average="suffix"),
    ),
    "halving": (
        "--algorithm fedrp --eta 0.1 --schedule halving --set scheme.period=3 --rounds 9",
        lambda: rs.solve(squares(), rs.fedrp(rs.schedules.halving(0.1, 3)), 9),
    ),
    "FedSplit by gradients": (
        "--algorithm fedsplit --eta 0.02 --local-steps 4 --lr 1e-3 --rounds 9",
        lambda: rs.solve(squares(), rs.fedsplit(0.02, local=rs.GradientProx(4, lr=1e-3)), 9),
    ),
    "reflected gradient": (
        "--algorithm reflect-gradient --eta 1e-3 --rounds 9",
        lambda: rs.solve(squares(), rs.reflect_gradient(1e-3), 9),
    ),
    "reflected prox": (
        "--algorithm reflect_prox --eta 1e-3 --rounds 9",
        lambda: rs.solve(squares(), rs.reflect_prox(1e-3), 9),
    ),
    "custom": (
        "--algorithm custom --eta 0.02 --rounds 9 --set scheme.alpha=1.5 --set scheme.beta=1.2 --set scheme.gamma=0.7",
        lambda: rs.solve(squares(), rs.Scheme(1.5, 1.2, 0.7, 0.02), 9),
    ),
    "a fixed number, as in the paper": (
        "--eta 0.02 --rounds 9 --set participation.size=2 --absent paper --seed 3",
        lambda: rs.solve(squares(3), rs.fedpi(0.02), 9, participation=rs.FixedSize(2, absent="paper"), seed=3),
    ),
    "stops": (
        "--eta 0.02 --anderson 2 --rounds 90 --stop-gap 1e-8",
        lambda: rs.solve(squares(), rs.fedpi(0.02), 90, anderson=2, stop=rs.Stop(gap=1e-8)),
    ),
    "Anderson on the mean": (
        "--algorithm fedprox --eta 0.02 --rounds 9 --set anderson.memory=3 --set anderson.on=mean",
        lambda: rs.solve(squares(), rs.fedprox(0.02), 9, anderson=rs.Anderson(3, on="mean")),
    ),
}


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
@pytest.mark.parametrize("name", SAME)
def test_a_run_is_solve_bit_for_bit(name: str) -> None:
    options, solve = SAME[name]
    assert resolvent("run", "least-squares", *SMALL, *shlex.split(options)).code == 0
    expected, run = solve(), only()
    assert resolvent("export", "--to", "model.npz").code == 0
    assert np.load("model.npz")["model"].tobytes() == expected.model.numpy().tobytes()
    assert rows(run) == expected.history.drop(columns="seconds").map(repr).to_csv()
    assert run.status == expected.status
    assert run.events[-1]["reason"] == expected.reason


def test_logistic_regression_too() -> None:
    resolvent("run", "logistic", *SMALL, "--algorithm", "fedprox", "--eta", "0.1", "--rounds", "8", "--seed", "2")
    with pytest.warns(rs.SolvesAnotherProblem):
        expected = rs.solve(rs.make_logistic(4, 5, 12, seed=2), rs.fedprox(0.1), 8, seed=2)
    assert model(only()) == expected.model.numpy().tobytes()


def test_a_seed_of_the_problem_is_another_than_the_run_s() -> None:
    resolvent(*FEDPI, "--seed", "7", "--set", "problem.seed=1", "--participation", "0.5")
    expected = rs.solve(squares(1), rs.fedpi(0.02), 12, participation=0.5, seed=7)
    assert model(only()) == expected.model.numpy().tobytes()


def test_json_has_what_people_see() -> None:
    seen = resolvent(*FEDPI, "--participation", "0.5").out
    told = resolvent(*FEDPI, "--participation", "0.5", "--format", "json").json
    for line in seen.splitlines():
        key, value = re.split(r"\s{2,}", line.strip(), maxsplit=1) if "  " in line.strip() else (line.strip(), "")
        known = told[key.replace(" ", "_")]
        if key not in ("run", "folder", "seconds"):
            assert (f"{known:.3g}" if isinstance(known, float) else "" if known is None else str(known)) == value
    last = only_last(folders(RUNS)[-1])
    assert {key: told[key] for key in last} == last


def only_last(run: Folder) -> dict[str, Any]:
    return {str(k): None if v != v else v for k, v in run.history().iloc[-1:].to_dict("records")[0].items()}


def test_json_has_no_nan() -> None:
    """In its first round a sampled run has no certificates, and this problem no minimum."""
    Path("own.py").write_text(OWN)
    said = resolvent(
        "run", "own.py:blind", "--eta", "0.5", "--rounds", "1", "--participation", "0.4", "--format", "json"
    )
    assert said.json["gap"] is None
    assert said.json["value"] == float(only().history()["value"].iloc[0])
    for command in (("ls",), ("show", only().id), ("report",)):
        assert "NaN" not in json.dumps(resolvent(*command, "--format", "json").json)


def test_options_beat_the_file_and_set_beats_both() -> None:
    Path("experiment.toml").write_text(
        '[problem]\nname = "least-squares"\nusers = 4\ndim = 5\nrows = 12\n'
        "[scheme]\neta = 0.5\n[run]\nrounds = 3\nevery = 3\n[anderson]\nmemory = 1\n"
    )
    assert resolvent("run", "experiment.toml", "--rounds", "4", "--eta", "0.3", "--set", "scheme.eta=0.2").code == 0
    config = only().config
    assert config["scheme"]["eta"] == 0.2
    assert config["run"]["rounds"] == 4
    assert config["run"]["every"] == 3
    assert config["anderson"]["memory"] == 1


def test_a_run_s_own_configuration_computes_it_again() -> None:
    for more in (("--eta", "auto"), ("--algorithm", "fedprox", "--participation", "0.5", "--anderson", "2")):
        shutil.rmtree(RUNS, ignore_errors=True)
        resolvent("run", "least-squares", *SMALL, "--rounds", "10", "--seed", "3", *more)
        first = only()
        assert resolvent("run", first.path / "config.toml").code == 0
        second = folders(RUNS)[-1]
        assert second.id != first.id
        assert second.config == first.config
        assert second.about["fingerprint"] == first.about["fingerprint"]
        assert (rows(second), model(second)) == (rows(first), model(first))


def test_notes_are_the_findings_of_explain_and_quiet_is_quiet() -> None:
    asked = ("run", "least-squares", *SMALL, "--rounds", "3", "--algorithm", "fedprox", "--eta", "0.1")
    findings = rs.explain(rs.fedprox(0.1), squares()).findings
    assert resolvent(*asked).err == "".join(f"note: {finding}\n" for finding in findings)
    assert resolvent(*asked, "--quiet").err == ""


def test_divergence_is_exit_code_3() -> None:
    said = resolvent("run", "least-squares", *SMALL, "--algorithm", "fedavg", "--eta", "0.2", "--format", "json")
    assert said.code == 3
    assert said.json["status"] == "diverged"
    assert "take a smaller eta" in said.json["reason"]
    assert said.json == strictly(said.out)
    assert resolvent("resume", only().id).code == 3


def test_ctrl_c_is_exit_code_130_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = resolvent(*FEDPI, "--out", "whole", "--participation", "0.5")
    assert whole.code == 0
    with monkeypatch.context() as patch:
        interrupt(patch, lambda happened: happened.number == 8)
        said = resolvent(*FEDPI, "--out", "torn", "--participation", "0.5")
    assert said.code == 130
    (torn,), (run,) = folders(Path("torn")), folders(Path("whole"))
    assert said.err.splitlines()[-1] == f"go on with: resolvent resume {torn.id} --out torn"
    again = resolvent(*shlex.split(said.err.splitlines()[-1])[4:], "--format", "json")
    assert again.code == 0
    assert again.json["round"] == 12
    assert (rows(torn), model(torn)) == (rows(run), model(run))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_run_that_can_go_on(number: signal.Signals) -> None:
    asked = ["run", "least-squares", *SMALL, "--eta", "0.02", "--rounds", "1000000", "--every", "50", "--quiet"]
    process = Process(*asked, "--format", "json")
    deadline = time.monotonic() + 300
    while not list(RUNS.glob("*/checkpoints/[0-9]*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, number)
    assert process.wait(300) == 130
    assert strictly(process.out)["status"] == "interrupted"
    run = only()
    assert run.status == "interrupted"
    assert run.state().round == run.events[-1]["round"] >= 1
    assert not list(run.checkpoints.glob(".*"))


def test_a_reader_who_leaves_is_no_failure() -> None:
    resolvent(*FEDPI)
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(beside("show", only().id), stdout=write, stderr=subprocess.PIPE, text=True, timeout=300)
    os.close(write)
    assert (process.returncode, process.stderr) == (0, "")


# --- own problems ----------------------------------------------------------------------------------------------------


def test_a_function_of_one_s_own() -> None:
    Path("own.py").write_text(OWN)
    assert resolvent("run", "own.py:squares", "--eta", "0.02", "--rounds", "9").code == 0
    expected = rs.solve(rs.make_least_squares(users=3, dim=4, rows=10), rs.fedpi(0.02), 9)
    assert model(only()) == expected.model.numpy().tobytes()
    assert only().id.startswith("fedpi-own-")
    said = resolvent("compare", "own.py:squares", "--eta", "0.02", "--rounds", "2", "--algorithms", "fedpi")
    assert "runs/compare-own-squares.html: the report" in said.err


def test_a_function_that_changed_since_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own.py").write_text(OWN)
    sweep = ("sweep", "own.py:squares", "--grid", "scheme.eta=0.01", "--rounds", "5", "--quiet")
    assert resolvent(*sweep).code == 0
    Path("own.py").write_text(OWN.replace("rows=10", "rows=11"))
    with monkeypatch.context() as patch:
        interrupt(patch, lambda happened: happened.number == 3)
        assert resolvent(*sweep).code == 130  # another problem: it is run, not taken for done
    Path("own.py").write_text(OWN)
    said = resolvent("resume", folders(RUNS)[-1].id)
    assert said.code == 2
    assert "own.py is not the file that this run began with" in said.err


# --- compare and sweep -----------------------------------------------------------------------------------------------


def test_compare_has_ten_curves_a_picture_and_a_page() -> None:
    said = resolvent("compare", "least-squares", *SMALL, "--eta", "0.01", "--rounds", "30", "--format", "json")
    assert said.code == 0
    names = ["FedAvg, steps = 2", "FedProx", "FedSplit", "FedPi", "FedRP"]
    assert [row["curve"] for row in said.json] == [name + more for name in names for more in ("", ", Anderson 2")]
    assert Path("runs/compare-least-squares.png").read_bytes().startswith(b"\x89PNG")
    assert "Plotly.react" in Path("runs/compare-least-squares.html").read_text()
    assert len(folders(RUNS)) == 10
    by_curve = {row["curve"]: row for row in said.json}
    for scheme, memory, curve in (
        (rs.fedsplit(0.01), 0, "FedSplit"),
        (rs.fedpi(0.01), 2, "FedPi, Anderson 2"),
    ):
        history = rs.solve(squares(), scheme, 30, anderson=memory).history
        assert by_curve[curve]["final"] == history["gap"].iloc[-1]
        reached = history["gap"] <= 1e-6 * history["gap"].iloc[0]
        assert by_curve[curve]["rounds_to_limit"] == (history["round"][reached].min() if reached.any() else None)
        assert by_curve[curve]["solves"] == "original"
    assert by_curve["FedProx"]["solves"] == "regularised"
    assert by_curve["FedPi"]["rounds_to_limit"] is None
    table = resolvent("compare", "least-squares", *SMALL, "--eta", "0.01", "--rounds", "30")
    for row in said.json:
        assert re.search(rf"{re.escape(row['curve'])} .*{row['final']:.3g} .*finished", table.out)
    assert table.err.count("done already") == 10


def test_progress_says_what_sets_runs_apart() -> None:
    sweep = ("sweep", "least-squares", *SMALL, "--rounds", "2", "--grid", "scheme.eta=1e-3,0.01")
    said = resolvent(*sweep, "--grid", "anderson.memory=0,2", "--seeds", "2")
    assert said.err.splitlines()[:4] == [
        "[1/8] FedPi, eta = 0.001, seed = 0",
        "[2/8] FedPi, eta = 0.001, seed = 1",
        "[3/8] FedPi, eta = 0.001, Anderson 2, seed = 0",
        "[4/8] FedPi, eta = 0.001, Anderson 2, seed = 1",
    ]
    said = resolvent("compare", "least-squares", *SMALL, "--rounds", "2", "--algorithms", "fedpi,reflect-prox")
    assert said.err.splitlines()[:4] == [
        "[1/4] FedPi",
        "[2/4] FedPi, Anderson 2",
        "[3/4] R_H P",
        "[4/4] R_H P, Anderson 2",
    ]


def everything(out: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for run in folders(out)
        for path in run.path.rglob("*")
        if path.is_file()
    }


NET = """
import resolvent as rs
import torch
import typer


def net():
    torch.manual_seed(0)
    users = [(torch.randn(8, 5), torch.randint(0, 3, (8,))) for _ in range(3)]
    return rs.Neural(torch.nn.Linear(5, 3), users, test=users)
"""


def test_seeds_of_a_network_as_one_batch_are_the_runs_one_by_one() -> None:
    Path("net.py").write_text(NET)
    local = ("--set", "local.batch=4", "--set", "local.steps=2", "--set", "local.lr=0.1")
    fedprox = ("--algorithm", "fedprox", "--grid", "scheme.eta=1.0", "--rounds", "3", "--seeds", "3")
    sweep = ("sweep", "net.py:net", *fedprox, *local)
    assert resolvent(*sweep, "--out", "apart").code == 0
    said = resolvent(*sweep, "--out", "together", "--together")
    assert said.code == 0
    assert "fedprox-net: seeds 0, 1, 2 as one batch" in said.err
    assert said.err.count("done already") == 3
    apart, together = ({run.about["fingerprint"]: run for run in folders(Path(out))} for out in ("apart", "together"))
    assert len(apart) == 3
    assert apart.keys() == together.keys()
    assert len({model(run) for run in apart.values()}) == 3
    for fingerprint, run in apart.items():
        assert model(together[fingerprint]) == model(run)
        assert not together[fingerprint].damage()
    assert "as one batch" not in resolvent(*sweep, "--out", "together", "--together").err


def test_seeds_as_one_batch_are_interrupted_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("net.py").write_text(NET)
    sweep = (
        "sweep",
        "net.py:net",
        "--algorithm",
        "fedavg",
        "--grid",
        "scheme.eta=0.1",
        "--rounds",
        "4",
        "--seeds",
        "2",
    )
    assert resolvent(*sweep, "--out", "whole").code == 0
    with monkeypatch.context() as patch:
        interrupt(patch, lambda happened: happened.number == 2)
        assert resolvent(*sweep, "--together").code == 130
    assert resolvent(*sweep, "--together").code == 0
    whole, resumed = ({model(run) for run in folders(Path(out))} for out in ("whole", "runs"))
    assert whole == resumed


SWEEP = ("sweep", "logistic", *SMALL, "--rounds", "6", "--algorithm", "fedprox", "--participation", "0.6",
         "--grid", "scheme.eta=1e-2,0.1", "--grid", "anderson.memory=0,2", "--seeds", "3")  # fmt: skip


def test_what_a_sweep_has_done_is_not_done_again() -> None:
    first = resolvent(*SWEEP, "--format", "json")
    before = everything(RUNS)
    assert len(folders(RUNS)) == 12
    again = resolvent(*SWEEP, "--format", "json")
    assert again.code == 0
    assert again.err.count("done already") == 12
    assert again.json == first.json
    held = {path for path in before if path.name == "lock"}  # taken to look
    assert {p: c for p, c in everything(RUNS).items() if p not in held} == {
        p: c for p, c in before.items() if p not in held
    }
    longer = (*SWEEP[:-1], "4")
    assert resolvent(*longer).err.count("done already") == 12
    assert len(folders(RUNS)) == 16


def test_an_interrupted_sweep_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolvent(*SWEEP, "--out", "whole").code == 0
    with monkeypatch.context() as patch:
        rounds = iter(range(1000))
        interrupt(patch, lambda _: next(rounds) == 4 * 6 + 3)  # in the fifth run
        said = resolvent(*SWEEP, "--out", "torn")
    assert said.code == 130
    assert said.err.splitlines()[-1] == "interrupted: the same command goes on where it was left"
    assert [run.status for run in folders(Path("torn"))] == ["finished"] * 4 + ["interrupted"]
    again = resolvent(*SWEEP, "--out", "torn")
    assert again.code == 0
    assert (again.err.count("done already"), again.err.count("going on")) == (4, 1)
    pairs = list(zip(folders(Path("whole")), folders(Path("torn")), strict=True))
    assert len(pairs) == 12
    for whole, torn in pairs:
        assert whole.about["fingerprint"] == torn.about["fingerprint"]
        assert (rows(whole), model(whole)) == (rows(torn), model(torn))


def test_seeds_have_a_spread() -> None:
    told = resolvent(*SWEEP, "--format", "json").json
    assert {row["curve"] for row in told} == {
        f"FedProx, eta = {eta}{more}" for eta in ("0.01", "0.1") for more in ("", ", Anderson 2")
    }
    assert [row["final"] for row in told] == sorted(row["final"] for row in told)
    for row in told:
        finals = [float(Folder(RUNS / name).history()["gap"].iloc[-1]) for name in row["runs"]]
        assert row["seeds"] == len(set(finals)) == 3
        assert (row["least"], row["final"], row["most"]) == tuple(sorted(finals))
    assert [run.config["run"]["seed"] for run in folders(RUNS)][:3] == [0, 1, 2]
    assert " seeds " in resolvent(*SWEEP).out


def test_seeds_share_an_eta_that_the_problem_suggests() -> None:
    rng = np.random.default_rng(0)
    np.savez("data.npz", x=rng.standard_normal((40, 3)), y=rng.standard_normal(40))
    sweep = ("sweep", "least-squares", "--data", "data.npz", "--users", "4", "--algorithm", "fedavg", "--rounds", "3")
    (row,) = resolvent(*sweep, "--grid", "anderson.memory=0", "--seeds", "3", "--format", "json").json
    assert row["seeds"] == 3
    assert Path("runs/sweep-least-squares-data.png").is_file()


def test_a_grid_with_one_bad_value_runs_nothing() -> None:
    for grid in ("scheme.eta=1e-3,0", "participation.size=2,9", "run.rounds=3,0", "scheme.algorithm=fedpi,fedpie"):
        said = resolvent("sweep", "least-squares", *SMALL, "--grid", grid)
        assert said.code == 2
        assert said.err.count("\n") == 1
    assert not RUNS.exists()


def test_the_same_twice_is_run_once() -> None:
    sweep = ("sweep", "least-squares", *SMALL, "--rounds", "2", "--grid", "scheme.eta=0.1,1e-1")
    assert [row["seeds"] for row in resolvent(*sweep, "--format", "json").json] == [1]
    assert resolvent("compare", "least-squares", *SMALL, "--rounds", "2", "--algorithms", "FedPi,fedpi").code == 0
    assert len(folders(RUNS)) == 3


def test_without_the_packages_that_draw_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resolvent.report.figures.find_spec", lambda name: None)
    said = resolvent("compare", "least-squares", *SMALL, "--rounds", "2")
    assert said.code == 2
    assert f"not installed; {install('plot')}" in said.err
    assert not RUNS.exists()
    Path("data.csv").write_text("a,y\n" + "\n".join(f"{k},{k % 2}" for k in range(12)))
    said = resolvent("run", "logistic", "--data", "data.csv", "--users", "3", "--rounds", "3")
    assert said.code == 0  # it has run: that its picture is missing is a note
    assert said.err.splitlines()[-1].startswith("note: matplotlib")


# --- explain, ls, show, report, doctor -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "scheme", "more"),
    [
        ("--algorithm fedprox --eta 1e-5", rs.fedprox(1e-5), {}),
        ("--algorithm fedavg --eta 1e-3 --local-steps 4", rs.fedavg(1e-3, steps=4), {}),
        ("--eta auto --anderson 2 --participation 0.5", rs.fedpi("auto"), {"anderson": 2, "participation": 0.5}),
    ],
)
def test_explain_is_rs_explain(options: str, scheme: rs.Scheme, more: dict[str, Any]) -> None:
    expected = rs.explain(scheme, squares(), **more)
    said = resolvent("explain", "least-squares", *SMALL, *options.split())
    assert said.out == f"{expected}\n"
    told = resolvent("explain", "least-squares", *SMALL, *options.split(), "--format", "json").json
    assert told["solves"] == expected.solves
    assert told["eta_eff"] == expected.eta_eff
    assert told["findings"] == [str(finding) for finding in expected.findings]
    assert (told["error"], told["why"]) == (expected.error, expected.why)
    assert not RUNS.exists()


def test_a_run_is_checked_and_explained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **more: (calls.append(name), function(*given, **more))[1]

    for module in (experiment.build.__module__, "resolvent.solving.prepare"):
        for name in ("check", "explain"):
            there = importlib.import_module(module)
            monkeypatch.setattr(there, name, counted(name, getattr(there, name)))
    assert resolvent(*FEDPI, "--algorithm", "fedprox", "--local-steps", "3").code == 0
    assert sorted(calls) == ["check", "explain"]
    expected = rs.explain(rs.fedprox(0.02, local=rs.GradientProx(3)), squares())
    assert only().about["explanation"]["error"] == expected.error > 0
    assert only().about["explanation"]["why"] == expected.why == "no theorem covers an inexact prox"


def test_ls_and_show_know_how_runs_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolvent("ls").err == "there are no runs in runs/; begin one with `resolvent run least-squares`\n"
    assert resolvent("ls", "--format", "json").json == []
    resolvent(*FEDPI)
    resolvent(*FEDPI, "--stop-gap", "10")
    resolvent("run", "least-squares", *SMALL, "--algorithm", "fedavg", "--eta", "0.2")
    with monkeypatch.context() as patch:
        interrupt(patch, lambda happened: happened.number == 5)
        resolvent(*FEDPI)
    resolvent(*FEDPI)
    killed = folders(RUNS)[-1]
    events = killed.path / "events.jsonl"
    events.write_text(events.read_text().splitlines(keepends=True)[0])
    statuses = ["finished", "stopped", "diverged", "interrupted", "killed"]
    told = resolvent("ls", "--format", "json").json
    assert [line["status"] for line in told] == statuses
    assert [line["round"] for line in told][:2] == ["12/12", "1/12"]
    table = list(csv.reader(io.StringIO(resolvent("ls", "--format", "tsv").out), delimiter="\t"))
    assert [line[:2] for line in table[1:]] == [[line["run"], line["status"]] for line in told]
    assert {len(line) for line in table} == {len(told[0])}
    seen = resolvent("ls").out
    assert all(line["run"] in seen for line in told)
    with lock.held(killed.path):
        assert resolvent("show", killed.id, "--format", "json").json["status"] == "running"
    for run, status in zip(folders(RUNS), statuses, strict=True):
        about = resolvent("show", run.id, "--format", "json").json
        assert about["status"] == status
        assert about["config"] == run.config
        assert about["last"] == (None if status == "diverged" else only_last(run))  # the start is handed back
        words = resolvent("show", run.id[-4:]).out
        assert run.about["explanation"]["words"] in words
        assert (run.path / "config.toml").read_text() in words
        assert status in words


def test_tab_separated_lines_are_well_formed() -> None:
    said = resolvent(*FEDPI, "--format", "tsv")
    pairs = [line.split("\t") for line in said.out.splitlines()]
    assert {len(pair) for pair in pairs} == {2}
    assert float(dict(pairs)["gap"]) == only().history()["gap"].iloc[-1]
    for command in (("show", only().id), ("explain", "least-squares", *SMALL), ("doctor",), ("report",)):
        lines = [line.split("\t") for line in resolvent(*command, "--format", "tsv").out.splitlines()]
        assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("suffix", [".html", ".png", ".svg"])
def test_report_writes_what_its_file_is_called(suffix: str) -> None:
    resolvent(*FEDPI)
    resolvent(*FEDPI, "--anderson", "2")
    first, second = folders(RUNS)
    said = resolvent("report", second.id, first.id, "--to", f"new/picture{suffix}", "--format", "json")
    assert said.code == 0
    assert said.err == f"new/picture{suffix}: the report\n"
    assert [row["curve"] for row in said.json] == ["FedPi", "FedPi, Anderson 2"]
    assert [row["final"] for row in said.json] == [float(run.history()["gap"].iloc[-1]) for run in (first, second)]
    assert Path(f"new/picture{suffix}").stat().st_size > 10_000


def test_a_run_that_was_saved_from_python_has_a_report_too() -> None:
    rs.solve(rs.make_least_squares(users=2, dim=3, rows=9), "fedpi", rounds=5, metric=np.eye(3), eta=0.1).save("mine")
    said = resolvent("report", "mine", "--to", "mine.html")
    assert said.err == "mine.html: the report\n"
    assert said.code == 0


def test_doctor() -> None:
    said = resolvent("doctor", "--format", "json")
    assert said.code == 0
    found = {row["what"]: row for row in said.json}
    assert found["torch"]["found"] == torch.__version__
    assert found["a small problem"]["fine"]
    assert all(row["what"] in resolvent("doctor").out for row in said.json)
    Path("file").write_text("")
    said = resolvent("doctor", "--out", "file/below")
    assert said.code == 1
    assert said.err == "runs: file/below/ cannot be written (Not a directory)\n"


# --- export ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two_runs() -> tuple[Folder, Folder]:
    resolvent(*FEDPI, "--participation", "0.5")  # its first rows have NaN
    resolvent(*FEDPI, "--average", "ergodic")  # and this one two more columns
    first, second = folders(RUNS)
    return first, second


READ: dict[str, Callable[[str], pd.DataFrame]] = {
    "csv": lambda path: pd.read_csv(path, dtype=str),
    "tsv": lambda path: pd.read_csv(path, sep="\t", dtype=str),
    "parquet": pd.read_parquet,
    "json": lambda path: pd.DataFrame(strictly(Path(path).read_text())),
}


@pytest.mark.parametrize("form", READ)
def test_metrics_come_back_with_every_bit(form: str, two_runs: tuple[Folder, Folder]) -> None:
    assert resolvent("export", "--to", f"metrics.{form}").err == f"metrics.{form}: 2 runs\n"
    frame = READ[form](f"metrics.{form}")
    for run in two_runs:
        mine = frame[frame["run"] == run.id]
        history = run.history()
        assert len(mine) == len(history) == 12
        for name in history:
            assert mine[name].to_numpy(float).tobytes() == history[name].to_numpy(float).tobytes(), name
    assert frame[frame["run"] == two_runs[0].id]["average_gap"].isna().all()


def test_models_come_back_with_every_bit(two_runs: tuple[Folder, Folder]) -> None:
    averaged = two_runs[1]
    said = resolvent("export", averaged.id, "--to", "below/model.safetensors", "--format", "json")
    assert said.json == {"file": "below/model.safetensors", "runs": [averaged.id]}
    expected = rs.solve(squares(), rs.fedpi(0.02), 12, average="ergodic").model
    assert torch.equal(load_file("below/model.safetensors")["model"], expected)
    resolvent("export", averaged.id, "--to", "model.npz")
    assert np.array_equal(np.load("model.npz")["model"], expected.numpy())


# --- TensorBoard -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_tensorboard_reads_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with monkeypatch.context() as patch:
        interrupt(patch, lambda happened: happened.number == 8)
        assert resolvent(*FEDPI, "--tensorboard").code == 130
    run = only()
    max(run.checkpoints.iterdir()).unlink()  # rounds 6 and 7 are done again, and replace what stood there
    assert run.state().round == 6
    resolvent("resume", run.id)
    events = EventAccumulator(str(run.path / "tensorboard"), purge_orphaned_data=True).Reload()
    history = run.history()
    assert set(events.Tags()["scalars"]) == set(history.columns) - {"round"}
    for name in ("gap", "residual", "stationarity", "seconds"):
        known = history[history[name].notna()]
        assert [event.step for event in events.Scalars(name)] == known["round"].tolist()
        values = [event.value for event in events.Scalars(name)]
        assert np.array_equal(np.float32(values), known[name].to_numpy(np.float32))  # type: ignore[arg-type]


# --- help, version, completion ---------------------------------------------------------------------------------------

TABLES = (running.COMMANDS, many.COMMANDS, looking.COMMANDS)
EPILOGS = {command.__name__: lines for table in TABLES for command, lines in table.items()}
EXAMPLES = [
    line.strip()
    for lines in (*EPILOGS.values(), main.app.info.epilog.splitlines())
    for line in lines
    if "resolvent " in line
]


def test_version() -> None:
    assert resolvent("--version") == Said(0, f"{rs.__version__}\n", "")


def test_what_computes_nothing_imports_neither_torch_nor_pandas() -> None:
    """Their imports take two seconds; a person who asks for help or for the list of runs should not wait for them."""
    resolvent(*FEDPI)
    for words in (["--help"], ["--version"], ["ls"], ["show", only().id]):
        code = (
            f"import sys; sys.argv[1:] = {words!r}; from resolvent.cli.main import _run; assert _run() == 0; "
            "assert not {'torch', 'pandas', 'numpy', 'scipy'} & set(sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_help_lists_every_command_with_its_own_first_sentence() -> None:
    group = typer.main.get_command(main.app)
    context = typer.Context(group)
    for name, (_, sentence) in commands.sentences().items():
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        assert " ".join(command.help.split()).startswith(" ".join(sentence.split()))
    assert group.get_command(context, "nothing") is None  # type: ignore[attr-defined]


def test_without_a_command_the_help_is_shown() -> None:
    said = resolvent()
    assert said.code == 2
    assert "compare" in said.out
    assert said.err == ""


@pytest.mark.parametrize("command", ["", *EPILOGS])
def test_help_has_an_example_and_every_option_in_words(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = resolvent(*filter(None, [command]), "--help")
    assert said.code == 0
    assert f"resolvent {command or 'compare'} " in said.out or f"resolvent {command}\n" in re.sub(
        " +\n", "\n", said.out
    )
    assert "Examples:" in said.out


class Reached(BaseException):
    """A command has a configuration and would begin to compute."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_valid(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that look at runs are run on two; the others get as far as a checked configuration."""
    resolvent(*FEDPI)
    for end in ("1f2e", "77ab"):
        copy = RUNS / f"fedpi-least-squares-20260101-120000-{end}"
        shutil.copytree(only().path if end == "1f2e" else RUNS / copy.name.replace(end, "1f2e"), copy)
        if end == "1f2e":
            shutil.rmtree(next(run.path for run in folders(RUNS) if run.path != copy))
    Path("experiment.toml").write_text("[scheme]\nalgorithm = 'fedpi'\n")
    Path("a9a.gz").write_bytes(b"")
    reached = []

    def build(config: Any, made: Any = None) -> None:
        reached.append(config)
        raise Reached

    monkeypatch.setattr(experiment, "build", build)
    small = task(replace(Config().problem, users=2, dim=2, rows=2), 0)  # type: ignore[arg-type]
    monkeypatch.setattr(many, "task", lambda section, seed, threads: small)
    command, *rest = shlex.split(example)[1:]
    try:
        said = resolvent(command, *rest)
    except Reached:
        assert command in ("run", "compare", "sweep", "explain", "fork")
        assert reached
    else:
        assert command in ("resume", "fork", "ls", "show", "report", "export", "doctor")
        assert said.code == 0, said.err


def test_there_is_an_example_for_every_command() -> None:
    assert {shlex.split(example)[1] for example in EXAMPLES} == set(EPILOGS)
    assert set(EPILOGS) == {
        "run",
        "compare",
        "sweep",
        "explain",
        "resume",
        "fork",
        "ls",
        "show",
        "report",
        "export",
        "doctor",
    }


def complete(words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("_RESOLVENT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    return resolvent().out.split()


def test_the_shell_completes_names(monkeypatch: pytest.MonkeyPatch) -> None:
    resolvent(*FEDPI)
    run = only()
    cases = {
        "resolvent run least-squares --algorithm fed": [name for name in rs.TABLE if name.startswith("fed")],
        "resolvent run l": ["least-squares", "logistic"],
        "resolvent explain logistic --schedule inv": ["inverse-sqrt", "inverse-log", "inverse-ln"],
        "resolvent show fed": [run.id],
        "resolvent re": ["resume", "report", "reproduce"],
    }
    for words, expected in cases.items():
        assert complete(words, monkeypatch) == expected


def test_there_is_a_completion_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_RESOLVENT_COMPLETE", "source_bash")
    script = resolvent().out
    assert "complete -o default -F _resolvent_completion resolvent" in script
    assert "_RESOLVENT_COMPLETE=complete_bash" in script


def test_compare_takes_options_of_one_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = ("--settings", "fedavg:eta=0.01,local-steps=3", "--settings", "fedpi:eta=0.2")
    said = resolvent("compare", "least-squares", *SMALL, "--algorithms", "fedavg,fedpi", *own, "--rounds", "3",
                     "--quiet", "--format", "json")  # fmt: skip
    assert said.code == 0, said.err
    assert [row["eta"] for row in said.json] == [0.01, 0.01, 0.2, 0.2]
    settings = {run.config["scheme"]["algorithm"]: run.config["local"].get("steps") for run in folders(RUNS)}
    assert settings == {"fedavg": 3, "fedpi": None}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("fedpi", "NAME:OPTION=VALUE is needed"),
        ("fedrp:eta=1", "fedrp is not compared"),
        ("fedpi:users=3", "OPTION=VALUE with one of eta"),
        ("fedpi:eta", "OPTION=VALUE with one of eta"),
        ("fedpie:eta=1", "there is no algorithm 'fedpie'"),
    ],
)
def test_settings_that_cannot_be_meant(given: str, words: str) -> None:
    said = resolvent("compare", "least-squares", "--algorithms", "fedpi", "--settings", given)
    assert said.code == 2
    assert words in said.err


def test_a_sweep_names_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = resolvent("sweep", "least-squares", *SMALL, "--grid", "scheme.eta=1e-4,0.1", "--rounds", "20", "--quiet")
    assert said.code == 0, said.err
    assert "best: FedPi, eta = 0.1 (final gap" in said.err
    first, second = (said.out.index(f"eta = {eta}") for eta in ("0.1", "0.0001"))
    assert first < second
