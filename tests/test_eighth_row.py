"""A new algorithm is one row of the table: everything else follows from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import resolvent as rs
from command_line import SMALL, resolvent
from resolvent import report
from resolvent.cli.options import FLAGS
from resolvent.iteration.table import TABLE, Row
from resolvent.runs import folders

NAME, COLOUR, ABOUT = "midpoint", "#8C564B", "half-way between prox and reflection, on both sides"
MIDPOINT = Row("Midpoint", 1.5, 1.5, 1, forward=False, colour=COLOUR, about=ABOUT)
RUNS = Path("runs")

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


@pytest.fixture(autouse=True)
def row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setitem(TABLE, NAME, MIDPOINT)


def test_it_is_solved_and_explained() -> None:
    problem = rs.make_least_squares(users=4, dim=5, rows=12)
    run = rs.solve(problem, "midpoint", rounds=10, eta=0.02)
    same = rs.solve(problem, rs.Scheme(1.5, 1.5, 1, 0.02), rounds=10)
    assert run.history.gap.tolist() == same.history.gap.tolist()
    assert rs.solve(problem, rs.midpoint(0.02), rounds=10).model.tolist() == run.model.tolist()
    assert rs.explain(rs.midpoint(eta=0.02)).eta_eff == 0.01
    with pytest.raises(rs.InputError, match=r"Midpoint cannot find one by itself; write rs.midpoint\(eta=...\)"):
        rs.solve(problem, "midpoint")


def test_a_row_that_is_exact_finds_its_eta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, NAME, MIDPOINT._replace(alpha=2, beta=2, gamma=0.7))
    run = rs.solve(rs.make_least_squares(users=4, dim=5, rows=12), "midpoint", rounds=200)
    assert float(run.history.gap.iloc[-1]) < 1e-20
    told = resolvent("run", "least-squares", *SMALL, "--algorithm", NAME, "--rounds", 3, "--quiet", "--format", "json")
    assert told.code == 0
    (made,) = folders(RUNS)
    assert made.config["scheme"]["eta"] == "auto"


def test_it_is_run_and_reported_in_its_own_colour() -> None:
    told = resolvent("run", "least-squares", *SMALL, "--algorithm", "Midpoint", "--rounds", 5, "--format", "json")
    assert (told.code, told.json["solves"]) == (0, "regularised")
    (run,) = folders(RUNS)
    assert run.about["title"] == "Midpoint"
    assert run.config["scheme"]["eta"] == 1e-5  # what is customary for the problem, as for FedProx
    (curve,) = report.curves([run])
    assert (curve.label, curve.colour) == ("Midpoint", COLOUR)
    assert resolvent("report", "--to", "report.html").code == 0
    assert COLOUR in Path("report.html").read_text(encoding="utf-8")
    assert resolvent("explain", "least-squares", *SMALL, "--algorithm", NAME).out.startswith("Midpoint(alpha=1.5")


def test_it_is_compared_without_being_named() -> None:
    told = resolvent("compare", "least-squares", *SMALL, "--rounds", 4, "--quiet", "--format", "json")
    assert told.code == 0
    titles = [line["algorithm"] for line in told.json]
    assert titles == [t for t in ("FedAvg", "FedProx", "FedSplit", "FedPi", "FedRP", "Midpoint") for _ in range(2)]
    assert COLOUR in Path("runs/compare-least-squares.html").read_text(encoding="utf-8")


def test_it_is_swept() -> None:
    grid = "scheme.algorithm=fedpi,midpoint"
    told = resolvent("sweep", "least-squares", *SMALL, "--grid", grid, "--eta", 0.01, "--rounds", 4, "--format", "json")
    assert told.code == 0
    assert {line["algorithm"] for line in told.json} == {"FedPi", "Midpoint"}


(ALGORITHM,) = (flag for flag in FLAGS if flag.option == "--algorithm")


def test_help_and_completion_name_it() -> None:
    """In a process whose table has had the row from the start, as an edited one would."""
    code = f"""
import contextlib, sys
from resolvent.iteration.table import TABLE, Row
TABLE[{NAME!r}] = Row(*{tuple(MIDPOINT)!r})
from resolvent.cli import main
for command in ("run", "compare"):
    sys.argv = ["resolvent", command, "--help"]
    with contextlib.suppress(SystemExit):
        main()
    print("=====")
"""
    wide = os.environ | {"COLUMNS": "400", "TERMINAL_WIDTH": "400"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=wide)
    run, compare, _ = done.stdout.split("=====")
    assert f"{NAME}: {ABOUT}" in run
    assert f"{NAME}, custom." in run
    assert f"fedrp,{NAME}" in compare
    assert "midpoint" in ALGORITHM.choices
