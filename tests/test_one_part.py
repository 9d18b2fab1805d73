"""A part is one class: registered with one line, it runs from everywhere, and over every engine.

The three parts below are in no list of the library. Processes beside this one (a run that is killed, the page's runs,
ranks) find them as those of any installed package: by an entry point that names this module.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from command_line import beside, model, resolvent, rows
from guarded import guarded, outcomes
from resolvent import runs
from resolvent.cli.options import PART_OPTIONS
from resolvent.iteration import registry
from resolvent.iteration.acceleration import Acceleration
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import Cost, Effect
from resolvent.iteration.registry import part
from resolvent.iteration.sending import Send
from resolvent.local.bound import Plain
from resolvent.runs import Folder

ROUNDS, KILLED_AT = 9, 6
TESTS = Path(__file__).parent
SMALL = {"users": 4, "dim": 5, "rows": 12}
OPTIONS = tuple(word for key, value in SMALL.items() for word in (f"--{key}", str(value)))


def dies(t: int) -> None:
    """End this process without a word, in the round in which the environment says so."""
    if os.environ.get("DIES_IN_ROUND") == str(t):
        os.kill(os.getpid(), signal.SIGKILL)


# --- three parts ----------------------------------------------------------------------------------------------------


@remembered
@dataclass(frozen=True, eq=False)
class StepsSoFar:
    count: int = 0
    accepted: bool = True


@part("accelerate", "overstep")
@dataclass(frozen=True)
class Overstep(Acceleration):
    """Goes beyond T u, by a share that shrinks with the rounds."""

    share: float
    """How far beyond T u the first step goes, as a share of it."""
    title = "overstepping"

    def begin(self, u: Tensor) -> StepsSoFar:
        return StepsSoFar()

    def fits(self, past: Any, rows: int) -> bool:
        return isinstance(past, StepsSoFar)

    def on_u(self, past: StepsSoFar, u: Tensor, Tu: Tensor, gram: Any) -> tuple[Tensor, StepsSoFar]:
        dies(past.count)
        return Tu + self.share / (1 + past.count) * (Tu - u), StepsSoFar(past.count + 1)


@part("local", "damped")
@dataclass(frozen=True)
class Damped:
    """A share of the way to the prox."""

    share: float
    """The share."""
    needs = frozenset({"prox"})
    forward = False
    certifies = None

    def bind(self, problem: Any, steady: bool) -> Plain:
        def answer(users: Any, ask: Any, u: Tensor) -> Tensor:
            dies(ask.t)
            return u + self.share * (users.prox(u, ask.eta) - u)

        return Plain(problem, answer)


@remembered
@dataclass(frozen=True, eq=False)
class SentSoFar:
    zhat: Tensor
    rounds: int = 0


@part("send", "towards")
@dataclass(frozen=True)
class Towards(Send):
    """A share of what the meeting does not have yet of z."""

    share: float
    """The share."""

    def begin(self, u: Tensor) -> SentSoFar:
        return SentSoFar(torch.zeros_like(u))

    def fits(self, past: Any, rows: int) -> bool:
        return isinstance(past, SentSoFar) and len(past.zhat) == rows

    def __call__(self, z: Tensor, memory: SentSoFar, ask: Any) -> tuple[Tensor, SentSoFar]:
        dies(memory.rounds)
        zhat = torch.lerp(memory.zhat, z, self.share)
        if ask.who is not None:
            zhat = memory.zhat.index_copy(0, ask.who, zhat[ask.who])
        return zhat, SentSoFar(zhat, memory.rounds + 1)

    def law(self, setting: Any) -> Effect:
        return Effect(uncovered="no theorem covers a share of z")

    def cost(self, dim: int) -> Cost:
        return Cost(up=dim)


class Case(NamedTuple):
    kind: str
    made: Any
    option: str
    said: str
    """What `explain` must say of it."""

    @property
    def flag(self) -> str:
        return PART_OPTIONS.get(self.kind, f"--{self.kind}")

    @property
    def toml(self) -> str:
        return f'[{self.kind}]\nkind = "{self.option.partition(":")[0]}"\nshare = {self.made.share}\n'

    def solved(self, problem: Any, **more: Any) -> rs.Run:
        if self.kind == "local":
            return rs.solve(problem, rs.fedpi(0.01, local=self.made), rounds=ROUNDS, progress=False, **more)
        return rs.solve(problem, rs.fedpi(0.01), rounds=ROUNDS, progress=False, **{self.kind: self.made}, **more)


CASES = [Case("accelerate", Overstep(0.25), "overstep:0.25", "overstepping"),
         Case("local", Damped(0.5), "damped:0.5", "its local operator computes"),
         Case("send", Towards(0.5), "towards:0.5", "no theorem covers a share of z")]  # fmt: skip
"""A part of another kind is one more line."""
pytestmark = [
    pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind),
    pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning"),
]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes see a package that registers this module's parts."""
    folder = tmp_path / "site" / "own_parts-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{registry.PLUGINS}]\nown = test_one_part\n")
    path = [str(folder.parent), str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.chdir(tmp_path)


def problem() -> rs.LeastSquares:
    return rs.make_least_squares(**SMALL)


def asked(case: Case, *more: object) -> tuple[object, ...]:
    scheme = ("--algorithm", "fedpi", "--eta", 0.01, "--rounds", ROUNDS)
    return ("least-squares", *OPTIONS, *scheme, case.flag, case.option, *more)


def only_run() -> Folder:
    (run,) = runs.folders(Path("runs"))
    return run


def same_model(run: Folder, python: rs.Run) -> None:
    assert model(run) == python.model.numpy().tobytes()


# --- one process -----------------------------------------------------------------------------------------------------


def test_it_is_run_from_python_and_differs_from_none(case: Case) -> None:
    plain = rs.solve(problem(), rs.fedpi(0.01), rounds=ROUNDS, progress=False)
    assert not np.array_equal(case.solved(problem()).model, plain.model)


def test_it_is_run_from_the_command_line_and_from_its_own_file(case: Case) -> None:
    assert resolvent("run", *asked(case), "--quiet").code == 0
    same_model(only_run(), case.solved(problem()))
    stored = Path("stored.toml")
    stored.write_text(only_run().toml)
    assert case.toml.splitlines()[1] in only_run().toml
    assert resolvent("run", stored, "--out", "again", "--quiet").code == 0
    (again,) = runs.folders(Path("again"))
    assert model(again) == model(only_run())
    assert again.about["fingerprint"] == only_run().about["fingerprint"]
    assert case.said in only_run().about["explanation"]["words"]


def test_it_is_run_from_toml_and_explained(case: Case) -> None:
    keys = "".join(f"{key} = {value}\n" for key, value in SMALL.items())
    Path("mine.toml").write_text(
        f'[problem]\nname = "least-squares"\n{keys}[scheme]\neta = 0.01\n[run]\nrounds = {ROUNDS}\n{case.toml}'
    )
    assert resolvent("run", "mine.toml", "--quiet").code == 0
    same_model(only_run(), case.solved(problem()))
    explained = resolvent("explain", "mine.toml")
    assert explained.code == 0
    assert case.said in explained.out


def test_what_is_wrong_with_it_is_one_sentence(case: Case) -> None:
    name = case.option.partition(":")[0]
    for value, sentence in (
        ("much", f"{case.kind}.share is 'much', but a finite number is needed"),
        ("", "takes 1 value (share)"),
    ):
        refused = resolvent("run", "least-squares", case.flag, f"{name}:{value}" if value else name)
        assert refused.code == 2
        assert sentence in refused.err


def test_forms_help_and_docs_have_it(case: Case) -> None:
    from resolvent.ui.form import form

    (section,) = (each for each in form()["sections"] if each["name"] == case.kind)
    name = case.option.partition(":")[0]
    (shown,) = (each for each in section["parts"] if each["name"] == name)
    assert [(field["key"], field["types"]) for field in shown["fields"]] == [("share", ["float"])]
    assert "share" in shown["fields"][0]["words"]
    assert f"{name}:SHARE" in registry.usages(case.kind)
    assert any(line.startswith(f"| `{name}` | `share` |") for line in registry.table(case.kind))


def test_it_runs_over_a_grid(case: Case) -> None:
    pytest.importorskip("flwr")
    from engines.fake_grid import engine_over
    from resolvent.local.choice import local_operator

    users = problem()
    operator = case.made if case.kind == "local" else local_operator(rs.fedpi(0.01), users)
    there = rs.solve(
        None, rs.fedpi(0.01, local=operator), rounds=ROUNDS, progress=False, engine=engine_over(users, operator),
        **({} if case.kind == "local" else {case.kind: case.made}),
    )  # fmt: skip
    np.testing.assert_allclose(there.model, case.solved(users).model, rtol=1e-9)


# --- several processes -----------------------------------------------------------------------------------------------


def test_it_is_killed_and_resumed_to_the_bit(case: Case) -> None:
    killed = subprocess.run(
        beside("run", *asked(case)), env=os.environ | {"DIES_IN_ROUND": str(KILLED_AT)}, capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run = only_run()
    assert run.status == "killed"
    assert len(run.history()) < ROUNDS
    assert resolvent("resume", run.id, "--quiet").code == 0
    same_model(only_run(), case.solved(problem()))
    assert resolvent("run", *asked(case), "--out", "whole", "--quiet").code == 0
    (whole,) = runs.folders(Path("whole"))
    assert rows(only_run()) == rows(whole)


def test_it_is_run_from_the_page(case: Case) -> None:
    pytest.importorskip("fastapi")
    from ui.conftest import connected, serving

    name = case.option.partition(":")[0]
    config = {
        "problem": {"name": "least-squares", **SMALL}, "scheme": {"eta": 0.01}, "run": {"rounds": ROUNDS},
        case.kind: {"kind": name, "share": case.made.share},
    }  # fmt: skip
    with serving(Path("runs").absolute()) as place, connected(place) as client:
        job = client.post("/api/runs", json={"config": config})
        assert job.status_code < 300, job.text
        deadline = time.monotonic() + 300
        while (row := client.get("/api/jobs").json()[-1])["status"] == "running" and time.monotonic() < deadline:
            time.sleep(0.1)
        assert row["status"] == "ended", row
    same_model(only_run(), case.solved(problem()))


ONE_AFTER_THE_OTHER = """\
import shlex, sys
from resolvent.cli import main

codes = []
for command in open("commands").readlines():
    sys.argv[1:] = shlex.split(command)
    try:
        main()
    except SystemExit as end:
        codes.append(end.code)
        print(f"code {end.code}", file=sys.stderr)
sys.exit(max(codes))
"""


def one_after_the_other(*commands: tuple[object, ...]) -> str:
    """A script that runs these commands in one process, since importing torch takes seconds."""
    Path("commands").write_text("".join(shlex.join(map(str, command)) + "\n" for command in commands))
    Path("all.py").write_text(ONE_AFTER_THE_OTHER)
    return "all.py"


@cache
def on_two_ranks() -> dict[str, Tensor | None]:
    """The models by kind: torchrun and its ranks take seconds to start, so all parts share them."""
    runs_of = {case.kind: Path.cwd() / case.kind for case in CASES}
    more = ("--engine", "all-reduce", "--quiet", "--out")
    script = one_after_the_other(*(("run", *asked(case, *more, runs_of[case.kind])) for case in CASES))
    starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with guarded(starter, each=[own], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        ((_, said, code),) = outcomes(started, 200.0)
    assert code == 0, said
    return {kind: run.model() for kind, out in runs_of.items() for run in runs.folders(out)}


def test_it_runs_on_two_ranks(case: Case) -> None:
    found = on_two_ranks()[case.kind]
    assert found is not None
    np.testing.assert_allclose(found, case.solved(problem()).model, rtol=1e-9)


@cache
def said_without_the_package() -> dict[str, list[str]]:
    """What each kind's command says, line by line, where the package with the parts cannot be imported."""
    broken = f"[{registry.PLUGINS}]\nown = not_there_at_all\n"
    Path("site/own_parts-1.0.dist-info/entry_points.txt").write_text(broken)
    script = one_after_the_other(*(("run", *asked(case)) for case in CASES))
    said = subprocess.run([sys.executable, script], capture_output=True, text=True).stderr
    each = said.split("code 2\n")
    return {case.kind: lines.splitlines() for case, lines in zip(CASES, each[:-1], strict=True)}


def test_a_package_that_cannot_be_imported_is_named_where_its_part_is_missed(case: Case) -> None:
    (sentence,) = said_without_the_package()[case.kind]
    assert "the parts of not_there_at_all cannot be imported (ModuleNotFoundError" in sentence
