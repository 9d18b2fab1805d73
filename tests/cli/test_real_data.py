"""From a file of one's own to a report: the split is the file's, and the minimum is what SciPy finds."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from command_line import model, resolvent
from resolvent import data
from resolvent.runs import Folder, folders

RUNS = Path("runs")


class Textbook:
    """(1/m) sum_i [sum_j log(1 + exp(-b_ij a_ij . w)) + |w|^2 / (2 m rows_i)]: the sum over rows knows no users."""

    def __init__(self, x: np.ndarray, y: np.ndarray, sizes: list[int]) -> None:
        self.margins, self.users = y[:, None] * x, len(sizes)
        self.reg = sum(1 / (self.users * rows) for rows in sizes)

    def value(self, w: np.ndarray) -> float:
        return float(np.logaddexp(0, -self.margins @ w).sum() + self.reg * (w @ w) / 2) / self.users

    def grad(self, w: np.ndarray) -> np.ndarray:
        return (-self.margins.T @ expit(-self.margins @ w) + self.reg * w) / self.users

    def hessian(self, w: np.ndarray) -> np.ndarray:
        p = expit(-self.margins @ w)
        return (self.margins.T @ (self.margins * (p * (1 - p))[:, None]) + self.reg * np.eye(len(w))) / self.users

    def minimum(self) -> float:
        start = np.zeros(self.margins.shape[1])
        found = minimize(self.value, start, jac=self.grad, hess=self.hessian, method="trust-exact", tol=1e-8)
        return float(found.fun)


def measures_up(run: Folder, textbook: Textbook) -> None:
    """A run's values and gaps are those of the textbook."""
    last, minimum = run.history().iloc[-1], textbook.minimum()
    assert run.about["problem"]["minimum"] == pytest.approx(minimum, rel=1e-9)
    found = run.model()
    assert found is not None
    assert last["value"] == pytest.approx(textbook.value(found.numpy()), rel=1e-12)
    assert last["gap"] == pytest.approx(textbook.value(found.numpy()) - minimum, abs=1e-8 * minimum)


def held(run: Folder, y: np.ndarray, spec: str, seed: int = 0) -> list[int]:
    """The sizes of the users, once their rows of each class are those of the file."""
    partition = run.about["problem"]["partition"]
    counts = np.array(partition["counts"])
    assert str(partition["classes"]) == "[-1, 1]"
    assert counts.sum(0).tolist() == [(y == -1).sum(), (y == 1).sum()]
    parts = data.split(spec, y, len(counts), seed)
    assert counts.tolist() == [[int((y[rows] == sign).sum()) for sign in (-1, 1)] for rows in parts]
    return [int(n) for n in counts.sum(1)]


# --- small files, everywhere -----------------------------------------------------------------------------------------

ROWS, USERS = 90, 5


@pytest.fixture
def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = np.round(rng.standard_normal((ROWS, 4)), 3)
    y = np.where(rng.random(ROWS) < expit(x @ [2.0, -1.0, 0.5, 0.0]), 1, -1)
    return x, y


def libsvm(x: np.ndarray, y: np.ndarray, path: str) -> None:
    lines = [
        f"{label:+d} " + " ".join(f"{k + 1}:{v}" for k, v in enumerate(row)) for row, label in zip(x, y, strict=True)
    ]
    Path(path).write_bytes(
        gzip.compress("\n".join(lines).encode()) if path.endswith(".gz") else "\n".join(lines).encode()
    )


def frame(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        {"age": x[:, 0], "height": x[:, 1], "vote": np.where(y > 0, "yes", "no"), "c": x[:, 2], "d": x[:, 3]}
    )


WRITE: dict[str, Callable[[np.ndarray, np.ndarray, str], object]] = {
    "people.libsvm": libsvm,
    "people.gz": libsvm,
    "people.csv": lambda x, y, path: frame(x, y).to_csv(path, index=False),
    "people.tsv.gz": lambda x, y, path: frame(x, y).to_csv(path, index=False, sep="\t"),
    "people.parquet": lambda x, y, path: frame(x, y).to_parquet(path),
    "people.npz": lambda x, y, path: np.savez(path, x=x, y=y),
}


@pytest.mark.parametrize("name", WRITE)
def test_a_file_in_any_format(name: str, table: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = table
    WRITE[name](x, y, name)
    more = ("--target", "vote") if Path(name).suffix in (".csv", ".parquet") or "tsv" in name else ()
    asked = ("--users", USERS, "--partition", "dirichlet:0.3", "--rounds", "60", "--anderson", "4", *more)
    said = resolvent("run", "logistic", "--data", name, *asked, "--format", "json")
    assert said.code == 0, said.err
    (run,) = folders(RUNS)
    column = "; --user-column names whose they are" if more else ""
    became = f"logistic of 2 classes, {USERS} users who are dealt rows (dirichlet:0.3{column}), {len(x)} training rows"
    assert said.err == f"note: {became}\n{run.path}/partition.png: who holds what\n"
    assert (run.path / "partition.png").read_bytes().startswith(b"\x89PNG")
    sizes = held(run, y, "dirichlet:0.3")
    assert len(set(sizes)) > 1
    measures_up(run, Textbook(x, y, sizes))
    assert said.json["gap"] < 1e-10
    np.savez("again.npz", x=x, y=y)
    resolvent("run", "logistic", "--data", "again.npz", *asked[: len(asked) - len(more)], "--quiet")
    assert model(run) == model(folders(RUNS)[-1])  # whatever the format, the same bits


def test_least_squares_of_one_s_own(table: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = table
    y = x @ [1.0, 2.0, 3.0, 4.0] + 0.7
    frame(x, x[:, 0]).assign(price=y).drop(columns="vote").to_csv("houses.csv", index=False)
    asked = ("--data", "houses.csv", "--target", "price", "--users", 3, "--set", "problem.intercept=true")
    assert resolvent("run", "least-squares", *asked, "--rounds", "80", "--anderson", "5").code == 0
    (run,) = folders(RUNS)
    found = run.model()
    assert found is not None
    assert np.allclose(found.numpy(), [1, 2, 3, 4, 0.7], atol=1e-8)
    assert run.about["problem"]["partition"] == {"users": [30, 30, 30]}


def test_compare_and_sweep_are_called_after_the_file(table: tuple[np.ndarray, np.ndarray]) -> None:
    libsvm(*table, "people.gz")
    on = ("logistic", "--data", "people.gz", "--users", USERS, "--rounds", "2", "--quiet")
    said = resolvent("compare", *on, "--algorithms", "fedpi")
    assert said.out.startswith("logistic-people: 1 algorithm, plain and accelerated")
    resolvent("sweep", *on, "--grid", "scheme.eta=0.1")
    made = {path.name for path in RUNS.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert made == {f"{name}-logistic-people.{suffix}" for name in ("compare", "sweep") for suffix in ("html", "png")}


def test_one_class_against_the_rest(table: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = table
    colours = np.array(["red", "green", "blue"] * (ROWS // 3))
    np.savez("colours.npz", x=x, y=colours)
    asked = ("--data", "colours.npz", "--users", 3, "--set", "problem.positive=green", "--rounds", "3", "--quiet")
    assert resolvent("run", "logistic", *asked).code == 0
    counts = folders(RUNS)[0].about["problem"]["partition"]["counts"]
    assert np.sum(counts, axis=0).tolist() == [60, 30]


# --- a9a -------------------------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """a9a by the simplest of parsers."""
    lines = [line.split() for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    x = np.zeros((len(lines), 123))
    for row, (_, *pairs) in enumerate(lines):
        for index, _, value in (pair.partition(":") for pair in pairs):
            x[row, int(index) - 1] = float(value)
    return x, np.array([float(label) for label, *_ in lines])


def test_a9a_from_the_file_to_the_report(real_data: Callable[[str], Path]) -> None:
    """20 users with skewed labels; FedPi and FedAvg, plain and accelerated."""
    path = real_data("libsvm/a9a.gz")
    on = ("logistic", "--data", path, "--users", "20", "--partition", "dirichlet:0.3", "--rounds", "20")
    said = resolvent("compare", *on, "--algorithms", "fedavg,fedpi", "--format", "json")
    assert said.code == 0
    assert [row["curve"] for row in said.json] == [
        "FedAvg, steps = 2",
        "FedAvg, steps = 2, Anderson 2",
        "FedPi",
        "FedPi, Anderson 2",
    ]
    x, y = read(path)
    assert x.shape == (32561, 123)
    for row in said.json:
        run = Folder(RUNS / row["runs"][0])
        sizes = held(run, y, "dirichlet:0.3")
        history = run.history()
        assert row["final"] == history["gap"].iloc[-1] < history["gap"].iloc[0] / 1.5
        assert row["status"] == "finished"
    assert max(sizes) > 50 * min(sizes)
    measures_up(run, Textbook(x, y, sizes))
    plain, fast = said.json[2:]
    assert fast["final"] < plain["final"] / 2
    page = (RUNS / "compare-logistic-a9a.html").read_text()
    assert "Who holds what" in page
    assert f"<i>{sizes[0]}</i>" in page
    assert (RUNS / "compare-logistic-a9a.png").stat().st_size > 10_000
