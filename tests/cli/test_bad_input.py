"""Whatever is asked for wrongly is answered by one line that says what to change, exit code 2, and nothing on disk."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from command_line import SMALL, Process, Said, resolvent
from resolvent.runs import Folder, folders

ON = ("run", "least-squares", *SMALL)
LOGISTIC = ("run", "logistic")
TWO = (*LOGISTIC, "--data", "two.csv")
SWEEP = ("sweep", "least-squares", *SMALL)
FILES = {
    "broken.toml": "[scheme\neta = 1",
    "section.toml": "[scheem]\neta = 1",
    "key.toml": "[scheme]\netta = 1",
    "type.toml": '[scheme]\neta = "large"',
    "whole.toml": "[run]\nrounds = 2.5",
    "yes.toml": "[problem]\nname = 'logistic'\ndata = 'two.csv'\nintercept = 1",
    "bare.toml": "scheme = 3",
    "huge.toml": f"[run]\nrounds = {'9' * 5000}",
    "hexadecimal.toml": f"[run]\nrounds = 0x{'f' * 5000}",
    "empty.csv": "",
    "two.csv": "a,b,y\n" + "\n".join(f"{k},{k * k % 7},{k % 2}" for k in range(30)),
    "three.csv": "a,b,y\n" + "\n".join(f"{k},{k * k % 7},{k % 3}" for k in range(30)),
    "text.csv": "a,b,y\n1,2,no\n3,4,yes\n5,6,no\n",
    "hole.csv": "a,b,y\n1,2,0\n3,,1\n5,6,1\n",
    "bad.libsvm": "1 1:2\nwhat is this\n",
    "picture.jpg": "what is this\n",
    "own.py": "import sys\nx = 3\ndef three(): return 3\ndef boom(): raise KeyError('first\\nsecond')\n"
    "def leave(): sys.exit('bye')\ndef needs(argument): pass\n",
    "wrong.py": "def (",
    "file": "",
}

REFUSED: dict[str, tuple[tuple[object, ...], list[str]]] = {
    # commands and options
    "unknown command": (("rnu", "least-squares"), ["No such command 'rnu'", "'run'"]),
    "unknown option": ((*ON, "--etta", "1"), ["No such option", "--etta", "--eta"]),
    "no problem": (("run",), ["Missing argument 'PROBLEM'"]),
    "one argument too many": (("run", "least-squares", "logistic"), ["unexpected", "logistic"]),
    "an option without its value": ((*ON, "--eta"), ["--eta"]),
    "unknown format": ((*ON, "--format", "xml"), ["--format", "'xml'", "json"]),
    # the problem and the file
    "unknown problem": (("run", "least-square"), ["no problem 'least-square'", "did you mean least-squares?"]),
    "problem unlike any": (("run", "quux"), ["no problem 'quux'", "there are least-squares, logistic"]),
    "no such TOML": (("run", "nothing.toml"), ["no configuration nothing.toml", "least-squares, logistic"]),
    "a folder called TOML": (("run", "folder.toml"), ["no configuration folder.toml"]),
    "broken TOML": (("run", "broken.toml"), ["broken.toml is not TOML", "line 1"]),
    "TOML of bytes": (("run", "bytes.toml"), ["bytes.toml is not TOML"]),
    "a number of 5000 digits": (("run", "huge.toml"), ["huge.toml is not TOML"]),
    "5000 hexadecimal digits": (("run", "hexadecimal.toml"), ["hexadecimal.toml is not TOML"]),
    "unknown section": (("run", "section.toml"), ["no section [scheem]", "did you mean scheme?"]),
    "unknown key": (("run", "key.toml"), ["no key scheme.etta", "did you mean eta?"]),
    "a key for a section": (("run", "bare.toml"), ["scheme is 3", "[scheme]"]),
    "text for a number": (("run", "type.toml"), ["scheme.eta is 'large'", "a finite number", '"auto"']),
    "2.5 for a whole number": (("run", "whole.toml"), ["run.rounds is 2.5", "a whole number"]),
    "1 for true": (("run", "yes.toml"), ["problem.intercept is 1", "true or false"]),
    # --set
    "set without =": ((*ON, "--set", "scheme.eta"), ["'scheme.eta'", "section.key=value"]),
    "set without a section": ((*ON, "--set", "eta=3"), ["'eta'", "section.key=value"]),
    "set of an unknown key": ((*ON, "--set", "run.round=3"), ["no key run.round", "did you mean rounds?"]),
    "set of 5000 hexadecimal digits": ((*ON, "--set", f"run.rounds=0x{'f' * 5000}"), ["run.rounds is '0xff"]),
    "set of a list": ((*ON, "--set", "run.rounds=[1,2]"), ["run.rounds is [1, 2]", "a whole number"]),
    # numbers
    "eta 0": ((*ON, "--eta", "0"), ["eta is 0.0", "> 0"]),
    "eta negative": ((*ON, "--eta", "-1"), ["eta is -1.0", "> 0"]),
    "eta text": ((*ON, "--eta", "large"), ["scheme.eta is 'large'"]),
    "eta infinite": ((*ON, "--eta", "inf"), ["scheme.eta is inf", "a finite number"]),
    "eta of 400 digits": ((*ON, "--eta", "1" * 400), ["scheme.eta is 111", "a finite number"]),
    "rounds 0": ((*ON, "--rounds", "0"), ["rounds is 0", ">= 1"]),
    "rounds negative": ((*ON, "--rounds", "-5"), ["rounds is -5", ">= 1"]),
    "every 0": ((*ON, "--every", "0"), ["every is 0", ">= 1"]),
    "seed negative": ((*ON, "--seed", "-1"), ["seed is -1", ">= 0"]),
    "seed of the problem negative": ((*ON, "--set", "problem.seed=-1"), ["seed is -1", ">= 0"]),
    "seed too large": ((*ON, "--seed", 2**63), ["seed is", "2^63"]),
    "threads 0": ((*ON, "--set", "run.threads=0"), ["run.threads is 0", "1 to 1024"]),
    "users 0": (("run", "least-squares", "--users", "0"), ["users is 0", ">= 1"]),
    "memory negative": ((*ON, "--anderson", "-1"), ["anderson: memory is -1", ">= 0"]),
    "stop negative": ((*ON, "--stop-gap", "-1"), ["stop.gap is -1.0", ">= 0"]),
    "participation 0": ((*ON, "--participation", "0"), ["participation: p is 0.0", "(0, 1]"]),
    "participation 1.5": ((*ON, "--participation", "1.5"), ["participation: p is 1.5", "(0, 1]"]),
    "more users than there are": ((*ON, "--set", "participation.size=9"), ["n is 9", "at most 4"]),
    "probability and size": ((*ON, "--participation", "0.5", "--set", "participation.size=2"), ["both given"]),
    # the algorithm
    "unknown algorithm": ((*ON, "--algorithm", "fedpie"), ["no algorithm 'fedpie'", "did you mean fedpi?"]),
    "unknown schedule": ((*ON, "--schedule", "sinus"), ["there is no schedule 'sinus'", "harmonic"]),
    "automatic with a schedule": ((*ON, "--eta", "auto", "--schedule", "harmonic"), ["scheme.schedule", "its own"]),
    "automatic for FedProx": ((*ON, "--algorithm", "fedprox", "--eta", "auto"), ['eta is "auto"', "FedPi"]),
    "automatic with stale answers": (
        (*ON, "--eta", "auto", "--participation", "0.5", "--absent", "paper"),
        ['eta is "auto"', '"hold"'],
    ),
    "period 0": ((*ON, "--eta", "1", "--schedule", "halving", "--set", "scheme.period=0"), ["period is 0"]),
    "alpha without custom": ((*ON, "--set", "scheme.alpha=1"), ["scheme.alpha", '"custom" only', "'fedpi'"]),
    "custom without alpha": (
        (*ON, "--algorithm", "custom", "--set", "scheme.beta=1"),
        ["needs scheme.alpha, scheme.gamma", "--set"],
    ),
    "steps 0": ((*ON, "--algorithm", "fedavg", "--local-steps", "0"), ["local: steps is 0", ">= 1"]),
    "prox steps 0": ((*ON, "--local-steps", "0"), ["local: steps is 0", ">= 1"]),
    "batch 0": ((*ON, "--batch", "0"), ["local: batch is 0"]),
    "momentum 1": ((*ON, "--set", "local.momentum=1"), ["local: momentum is 1", "[0, 1)"]),
    "lr of FedAvg": ((*ON, "--algorithm", "fedavg", "--eta", "0.2", "--lr", "0.1"), ["local.lr is 0.1", "--eta"]),
    "Newton for FedAvg": ((*ON, "--algorithm", "fedavg", "--set", "local.kind=newton"), ["local.kind", "gradient"]),
    # data
    "no such data": ((*LOGISTIC, "--data", "nothing.csv"), ["nothing.csv cannot be read", "No such file"]),
    "data a folder": ((*LOGISTIC, "--data", "folder.toml"), ["folder.toml cannot be read"]),
    "empty data": ((*LOGISTIC, "--data", "empty.csv"), ["empty.csv, which is empty"]),
    "malformed data": ((*LOGISTIC, "--data", "bad.libsvm"), ["bad.libsvm, whose line 2 is 'what is this'"]),
    "torn gzip": ((*LOGISTIC, "--data", "torn.libsvm.gz"), ["torn.libsvm.gz", "cannot be read"]),
    "data of unknown format": ((*LOGISTIC, "--data", "picture.jpg"), ["picture.jpg", ".csv", ".parquet", ".npz"]),
    "data with a hole": (
        (*LOGISTIC, "--data", "hole.csv"),
        ["hole.csv, to predict 'y': column is 'b' with 1 missing value (the first in row 2)", "impute"],
    ),
    "npz without labels": ((*LOGISTIC, "--data", "bare.npz"), ["bare.npz, which holds x", "labels"]),
    "three classes": (
        (*LOGISTIC, "--data", "three.csv"),
        ["problem: three.csv, to predict 'y': y is of 3 classes", "positive= (--positive)"],
    ),
    "no such class": (
        (*LOGISTIC, "--data", "three.csv", "--set", "problem.positive=7"),
        ["positive is 7", "0, 1, 2"],
    ),
    "text for least squares": (
        ("run", "least-squares", "--data", "text.csv"),
        ["target is 'y', a column of text", "numbers"],
    ),
    "no such column": ((*TWO, "--target", "z"), ["target is 'z'", "two.csv"]),
    "unknown partition": ((*TWO, "--partition", "dirichlt:1"), ["'dirichlt:1'", "nearest: dirichlet"]),
    "partition without its number": ((*TWO, "--partition", "shards"), ["'shards'", "shards:2"]),
    "more users than rows": ((*TWO, "--users", "31"), ["users is 31", "30 rows"]),
    "dim of data": ((*TWO, "--dim", "3"), ["no key problem.dim", "partition"]),
    "partition of no data": ((*LOGISTIC, "--partition", "iid"), ["no key problem.partition"]),
    # own problems
    "no such task": (("run", "nothing.py:f"), ["no file nothing.py", "file.py:function"]),
    "no such function": (("run", "own.py:f"), ["own.py has no function f"]),
    "not a function": (("run", "own.py:x"), ["own.py has no function x"]),
    "a function that fails": (("run", "own.py:boom"), ["own.py:boom failed with KeyError"]),
    "a function that leaves": (("run", "own.py:leave"), ["own.py:leave failed with SystemExit: bye"]),
    "a function with arguments": (("run", "own.py:needs"), ["own.py:needs failed with TypeError", "argument"]),
    "a function of no problem": (("run", "own.py:three"), ["own.py:three is a function that returns int"]),
    "not Python": (("run", "wrong.py:f"), ["wrong.py:f failed with SyntaxError"]),
    # compare and sweep
    "compare one algorithm": (("compare", *ON[1:], "--algorithm", "fedpi"), ["--algorithm is fedpi", "--algorithms"]),
    "compare an unknown algorithm": (("compare", *ON[1:], "--algorithms", "fedpi,fedfoo"), ["no algorithm 'fedfoo'"]),
    "compare with an automatic eta": (("compare", *ON[1:], "--eta", "auto"), ['eta is "auto"']),
    "no grid": (SWEEP, ["Missing option '--grid'"]),
    "grid without =": ((*SWEEP, "--grid", "scheme.eta"), ["--grid is 'scheme.eta'", "section.key=a,b,c"]),
    "grid without values": ((*SWEEP, "--grid", "scheme.eta="), ["--grid is 'scheme.eta='"]),
    "grid of an unknown key": ((*SWEEP, "--grid", "scheme.etta=1,2"), ["no key scheme.etta", "did you mean eta?"]),
    "grid of the same key": ((*SWEEP, "--grid", "scheme.eta=1", "--grid", "scheme.eta=2"), ["scheme.eta twice"]),
    "grid of seeds": ((*SWEEP, "--grid", "run.seed=1,2"), ["--seeds"]),
    "grid with one bad value": ((*SWEEP, "--grid", "scheme.eta=1e-3,0"), ["eta is 0.0", "> 0"]),
    "seeds 0": ((*SWEEP, "--grid", "scheme.eta=1", "--seeds", "0"), ["seeds is 0", ">= 1"]),
    "seeds text": ((*SWEEP, "--grid", "scheme.eta=1", "--seeds", "few"), ["--seeds"]),
    # runs that are not there
    "resume of nothing": (("resume", "1f2e"), ["no run '1f2e'", "no runs in runs/", "`resolvent run`"]),
    "show of nothing": (("show", ""), ["no run ''"]),
    "report of nothing": (("report",), ["no runs in runs/"]),
    "export of nothing": (("export",), ["no runs in runs/"]),
}


@pytest.fixture
def files() -> None:
    for name, content in FILES.items():
        Path(name).write_text(content)
    Path("folder.toml").mkdir()
    Path("bytes.toml").write_bytes(b"a = '\xff\xfe'")
    Path("torn.libsvm.gz").write_bytes(gzip.compress(b"1 1:2\n-1 1:3\n" * 50)[:-12])
    np.savez("bare.npz", x=np.ones((3, 2)))


def refused(said: Said, words: list[str]) -> None:
    assert said.code == 2, said
    assert said.err.startswith("resolvent: ")
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1, said.err
    assert said.out == ""
    for word in words:
        assert word in said.err, (word, said.err)
    assert len(said.err) < 600


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", REFUSED)
def test_is_one_line_and_exit_code_2(name: str) -> None:
    command, words = REFUSED[name]
    before = set(Path().rglob("*"))
    refused(resolvent(*command), words)
    assert {path for path in Path().rglob("*") if "__pycache__" not in path.parts} == before


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "command",
    [ON, ("compare", *ON[1:], "--quiet"), (*SWEEP, "--grid", "scheme.eta=1", "--quiet")],
    ids=["run", "compare", "sweep"],
)
@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_folder_that_cannot_be_written(command: tuple[str, ...], out: str) -> None:
    refused(resolvent(*command, "--rounds", "2", "--out", out), [f"{out} cannot be written", "--out"])
    assert Path("file").read_text() == ""


@pytest.fixture
def many() -> list[Folder]:
    for _ in range(5):
        assert resolvent(*ON, "--rounds", "2").code == 0
    return folders(Path("runs"))


def test_what_runs_there_are_matters(many: list[Folder]) -> None:
    latest = f"the latest is {many[-1].id}"
    refused(resolvent("resume", "1x2y"), ["no run '1x2y'", "`resolvent ls --out runs`", latest])
    ambiguous = ["'fedpi' may be any of", many[0].id, "and 2 more", latest]
    refused(resolvent("show", "fedpi"), ambiguous)
    refused(resolvent("report", many[0].id, "fedpi"), ambiguous)
    refused(resolvent("export", "--to", "model.npz"), ["--to model.npz takes one run's model", "5 runs"])
    refused(resolvent("export", "--to", "metrics.xls"), ["--to is metrics.xls", ".csv", ".safetensors"])
    refused(resolvent("export", "--to", "metrics"), ["--to is metrics"])
    Path("file").write_text("")
    for to in ("file/x.csv", "file/x.npz"):
        refused(resolvent("export", many[0].id, "--to", to), [f"{to} cannot be written", "--to"])
    for checkpoint in many[0].checkpoints.iterdir():
        checkpoint.unlink()
    refused(resolvent("export", many[0].id, "--to", "model.npz"), ["has no model yet"])
    assert not list(Path().glob("m*"))


def test_a_report_that_cannot_be_written(many: list[Folder]) -> None:
    refused(resolvent("report", "--to", "picture.pdf"), ["--to is picture.pdf", ".html, .png or .svg"])
    Path("file").write_text("")
    for to in ("file/x.html", "file/x.png"):
        said = resolvent("report", "--to", to, "--format", "json")
        assert said.code == 2
        assert said.err == f"resolvent: {to} cannot be written (File exists); name another place for it\n"


def test_a_process_says_the_same() -> None:
    process = Process(*ON, "--eta", "0")
    code = process.wait(300)
    assert code is not None
    refused(Said(code, process.out, process.err), ["eta is 0.0"])
