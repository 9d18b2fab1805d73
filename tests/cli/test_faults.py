"""What once was a traceback is one sentence, or simply works."""

import os
import resource
import signal
from importlib import metadata
from pathlib import Path

import pytest

from command_line import SMALL, Said, resolvent
from resolvent import config, installed
from resolvent.runs import folders

ON = ("run", "least-squares", *SMALL, "--rounds", 3)


def refused(said: Said, *words: str) -> None:
    assert said.code == 2, said
    assert said.err.count("\n") == 1, said.err
    assert said.err.startswith("resolvent: ")
    for word in words:
        assert word in said.err


@pytest.mark.parametrize(
    ("text", "value"),
    [(".02", 0.02), ("-.5", -0.5), ("+.5", 0.5), ("5.", 5.0), ("1.e-3", 1e-3), (".5e2", 50.0), ("007", "007"),
     (".", "."), ("1.2.3", "1.2.3"), ("auto", "auto"), ("2", 2), ("1e-5", 1e-5)],
)  # fmt: skip
def test_numbers_as_people_write_them(text: str, value: object) -> None:
    assert config.literal(text) == value
    assert type(config.literal(text)) is type(value)


def test_eta_without_a_zero_is_a_number() -> None:
    assert resolvent(*ON, "--eta", ".02").code == 0
    assert folders(Path("runs"))[0].config["scheme"]["eta"] == 0.02


def test_deep_nesting() -> None:
    Path("deep.toml").write_text("[scheme]\neta = " + "[" * 5000 + "]" * 5000)
    refused(resolvent("run", "deep.toml"), "nested too deeply")
    refused(resolvent(*ON, "--set", "scheme.eta=" + "[" * 5000 + "]" * 5000), "scheme.eta")


@pytest.mark.parametrize("command", ["resume", "show", "fork", "export", "report"])
def test_names_of_thousands_of_characters(command: str) -> None:
    assert resolvent(*ON, "--quiet").code == 0
    refused(resolvent(command, "x" * 5000), "there is no run 'xxx")
    refused(resolvent(command, "x" * 5000, "--out", "y" * 5000))


def test_links_that_lead_to_themselves() -> None:
    Path("loop").symlink_to("loop")
    refused(resolvent("federate", "stop", "--project", "loop"), "loop has no federation.toml")
    refused(resolvent("show", "loop"), "there is no run 'loop'")
    refused(resolvent("run", "loop"))


def test_other_names_of_thousands_of_characters() -> None:
    long = "x" * 5000
    refused(resolvent(*ON, "--out", long))
    refused(resolvent("run", f"{long}.toml"))
    refused(resolvent("run", f"{long}.py:f"))
    refused(resolvent("run", "logistic", "--data", f"{long}.csv"))
    assert resolvent("ls", "--out", long).code == 0
    stem = "y" * 200
    Path(f"{stem}.py").write_text("import resolvent as rs\ndef f(): return rs.make_least_squares(3, 3, 6)\n")
    assert resolvent("run", f"{stem}.py:f", "--rounds", 2, "--eta", 0.1, "--quiet").code == 0


def test_nul_in_a_configuration() -> None:
    Path("nul.toml").write_text('[problem]\nname = "logistic"\ndata = "a\\u0000b"\n')
    refused(resolvent("run", "nul.toml"), "problem.data", "NUL")


@pytest.mark.parametrize("title", ["$", "$x", "a $ b $ c", r"\frac{", "$\\undefined$", "100 % & <b>"])
@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_titles_are_shown_as_they_are(title: str, suffix: str) -> None:
    assert resolvent(*ON, "--quiet").code == 0
    said = resolvent("report", "--title", title, "--to", f"x.{suffix}")
    assert said.code == 0, said


def test_labels_with_dollars() -> None:
    Path("a$b$.csv").write_text("a,b,y\n" + "\n".join(f"{k},{k * k % 7},{k % 2}" for k in range(30)))
    sweep = ("sweep", "logistic", "--data", "a$b$.csv", "--users", 3, "--rounds", 2, "--grid", "scheme.eta=0.1")
    assert resolvent(*sweep, "--quiet").code == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [1e60, 1e100, 1e153, 1e200, 1e300])
@pytest.mark.parametrize("problem", ["least-squares", "logistic"])
@pytest.mark.parametrize("eta", [(), ("--eta", "auto")], ids=["default", "auto"])
def test_huge_values(size: float, problem: str, eta: tuple[str, ...]) -> None:
    Path("huge.csv").write_text("a,b,y\n" + "\n".join(f"{k * size},{k * k % 7},{k % 2}" for k in range(30)))
    said = resolvent("run", problem, "--data", "huge.csv", "--users", 3, "--rounds", 5, *eta, "--quiet")
    assert said.code in (0, 2, 3), said
    if said.code == 2:
        refused(said)


@pytest.mark.parametrize("to", ["x.csv", "x.json", "x.parquet", "x.npz", "x.safetensors"])
def test_export_to_a_full_disk(to: str) -> None:
    assert resolvent(*ON, "--quiet").code == 0
    (run,) = folders(Path("runs"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, limits[1]))
    try:
        said = resolvent("export", run.id, "--to", to)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    refused(said, f"{to} cannot be written (File too large)")
    assert not list(Path().glob("*x.*"))
    assert not list(Path().glob(".*x.*"))


def test_a_run_with_a_relative_path_resumes_from_any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("data.csv").write_text("a,b,y\n" + "\n".join(f"{k},{k * k % 7},{k % 2}" for k in range(30)))
    asked = ("logistic", "--data", "data.csv", "--users", 3, "--rounds", 4, "--quiet")
    assert resolvent("run", *asked).code == 0
    (run,) = folders(Path("runs").absolute())
    events = run.path / "events.jsonl"
    events.write_bytes(events.read_bytes().splitlines(keepends=True)[0])
    for path in run.checkpoints.iterdir():
        path.unlink()
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert resolvent("resume", run.path, "--quiet").code == 0
    os.symlink("../data.csv", "data.csv")  # the same content at another place: done already
    sweep = ("sweep", *asked, "--grid", "anderson.memory=0", "--out", run.path.parent)
    assert resolvent(*sweep).code == 0
    assert len(folders(run.path.parent)) == 1


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (None, "pip install 'resolvent[plot]'"),
        ('{"url": "file:///a%20b/c", "dir_info": {"editable": true}}', "pip install -e '/a b/c[plot]'"),
        ('{"url": "file:///a/c", "dir_info": {}}', "pip install '/a/c[plot]'"),
        ('{"url": "https://x/r.git", "vcs_info": {"vcs": "git"}}', "pip install 'resolvent[plot] @ git+https://x/r.git'"),
        ("{", "pip install matplotlib plotly"),
    ],
)  # fmt: skip
def test_hints_name_how_the_package_is_installed(
    source: str | None, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Found:
        def read_text(self, name: str) -> str | None:
            return source

    monkeypatch.setattr(metadata, "distribution", lambda name: Found())
    assert installed.install("plot") == hint


def test_too_large_a_problem_is_refused() -> None:
    refused(resolvent("run", "least-squares", "--users", 10**9, "--dim", 10**6), "GiB: take fewer")
    refused(resolvent("run", "logistic", "--users", 10**18, "--dim", 10**9))


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.npz", "rows.libsvm", "rows"])
@pytest.mark.parametrize("device", [None, "/dev/zero"])
def test_pipes_and_devices_as_data_files(name: str, device: str | None) -> None:
    """Neither ends: whoever reads one waits, or fills the memory."""
    if device is None:
        os.mkfifo(name)
    else:
        Path(name).symlink_to(device)
    refused(_within(20, "run", "least-squares", "--data", name, "--users", 2), name, "it is not a regular file")


def test_a_configuration_of_gigabytes() -> None:
    with open("long.toml", "wb") as file:
        file.truncate(1 << 40)
    refused(_within(20, "run", "long.toml"), "more than 4194304 characters")


def _within(seconds: int, *command: object) -> Said:
    """A command that is ended, by an error, where it takes too long."""

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        return resolvent(*command)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
