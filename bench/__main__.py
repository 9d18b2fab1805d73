"""`make bench`: the tables of docs/benchmarks.md. `python -m bench rounds logistic` runs some of them only."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable

import numpy as np

import resolvent as rs
from bench import textbook
from bench.timing import machine, take_turns

ETA = 1e-5


def table(title: str, heads: list[str], rows: list[list[str]]) -> None:
    """A Markdown table."""
    print(f"\n### {title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def data(users: int, rows: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((users, rows, dim))
    return A, A @ rng.standard_normal(dim) + 0.5 * rng.standard_normal((users, rows))


def ours(problem: object, scheme: rs.Scheme, rounds: int, every: int | None = None) -> Callable[[], int]:
    """Rounds of solve, set-up included, with a row of history every so many (one at the end, unless said otherwise)."""

    def run() -> int:
        rs.solve(problem, scheme, rounds=rounds, every=every or rounds)  # type: ignore[arg-type]
        return rounds

    return run


def with_history(problem: object, schemes: dict[str, rs.Scheme], rounds: int) -> dict[str, Callable[[], int]]:
    """Each scheme without and with a row of history every round."""
    plain = {name: ours(problem, scheme, rounds) for name, scheme in schemes.items()}
    return plain | {f"{name} +": ours(problem, scheme, rounds, every=1) for name, scheme in schemes.items()}


def bench_rounds() -> None:
    """A round of least squares at the paper's size, history included."""
    A, b = data(25, 5000, 100)
    problem = rs.LeastSquares(A, b)
    G, c = A.transpose(0, 2, 1) @ A, np.einsum("mnd,mn->md", A, b)
    u = np.zeros((25, 100))

    def from_data() -> int:
        textbook.meet(u, textbook.prox_from_data(A, b, u, ETA), 2, 2, 0.5)
        return 1

    def from_gram() -> int:
        for _ in range(20):
            textbook.meet(u, textbook.prox_from_gram(G, c, u, ETA), 2, 2, 0.5)
        return 20

    def five_steps() -> int:
        textbook.meet(u, textbook.steps_from_data(A, b, u, ETA, 5), 1, 1, 1)
        return 1

    schemes = {"FedAvg, k=5": rs.fedavg(ETA, steps=5), "FedProx": rs.fedprox(ETA), "FedRP": rs.fedrp(ETA)}
    schemes |= {"FedSplit": rs.fedsplit(ETA), "FedPi": rs.fedpi(ETA)}
    sides = {"data": from_data, "gram": from_gram, "steps": five_steps} | with_history(problem, schemes, 1000)
    times = take_turns(sides)
    rows = []
    for name in schemes:
        ours_, base = times[name], times["steps" if name.startswith("FedAvg") else "data"]
        gram = "" if name.startswith("FedAvg") else f"{times['gram'] / ours_:.0f}x"
        cells = [f"{ours_ * 1e6:.0f} us", f"{times[f'{name} +'] * 1e6:.0f} us", f"{base * 1e3:.0f} ms"]
        rows.append([name, *cells, f"{base / ours_:.0f}x", gram])
    heads = ["algorithm", "resolvent", "with history", "textbook", "ratio"]
    heads.append(f"ratio to a textbook that stores A^T A ({times['gram'] * 1e3:.1f} ms)")
    table("One round of least squares, m = 25, n = 5000, d = 100", heads, rows)


def bench_end_to_end() -> None:
    """200 rounds of FedPi, from NumPy arrays to the model."""
    A, b = data(25, 5000, 100)
    u = np.zeros((25, 100))

    def resolvent() -> int:
        rs.solve(rs.LeastSquares(A, b), rs.fedpi(ETA), rounds=200)
        return 1

    def from_data() -> float:  # every round costs the same: five stand for 200
        for _ in range(5):
            textbook.meet(u, textbook.prox_from_data(A, b, u, ETA), 2, 2, 0.5)
        return 5 / 200

    def from_gram() -> int:
        G, c = A.transpose(0, 2, 1) @ A, np.einsum("mnd,mn->md", A, b)
        for _ in range(200):
            textbook.meet(u, textbook.prox_from_gram(G, c, u, ETA), 2, 2, 0.5)
        return 1

    times = take_turns({"resolvent": resolvent, "data": from_data, "gram": from_gram}, turns=3)  # type: ignore[dict-item]
    rows = [
        ["resolvent", f"{times['resolvent'] * 1e3:.0f} ms", ""],
        ["textbook, factorises from the data", f"{times['data']:.1f} s", f"{times['data'] / times['resolvent']:.0f}x"],
        ["textbook that stores A^T A", f"{times['gram']:.2f} s", f"{times['gram'] / times['resolvent']:.1f}x"],
    ]
    table("200 rounds of FedPi, from arrays to the model", ["implementation", "time", "ratio"], rows)


def bench_logistic() -> None:
    """A round with an exact prox at the paper's size, against a prox by 100 gradient steps."""
    problem = rs.make_logistic()
    bucket = problem.rows.buckets[0]
    A, b, reg = bucket.A.numpy(), bucket.b.numpy(), float(problem.reg[0])
    lr = float(1 / (problem.lipschitz.max() + 100))
    u = np.zeros((10, 100))
    problem.fstar  # noqa: B018 (found once, by Newton's method, for the gaps in the history)

    def gradient_descent() -> int:
        textbook.meet(u, textbook.logistic_prox(A, b, reg, u, 1e-2, lr), 2, 2, 0.5)
        return 1

    schemes = {"FedPi": rs.fedpi(1e-2), "FedProx": rs.fedprox(1e-2)}
    times = take_turns({"gd": gradient_descent} | with_history(problem, schemes, 800), turns=3)
    rows = []
    for name in schemes:
        cells = [f"{times[name] * 1e3:.2f} ms", f"{times[f'{name} +'] * 1e3:.2f} ms", f"{times['gd'] * 1e3:.0f} ms"]
        rows.append([name, *cells, f"{times['gd'] / times[name]:.0f}x"])
    heads = ["algorithm", "resolvent, relative error 5e-13", "with history", "textbook, 100 gradient steps", "ratio"]
    table("One round of logistic regression, m = 10, n = 1000, d = 100, over 800 rounds", heads, rows)


def bench_growth() -> None:
    """How a round grows with users, dimension and rows."""
    rows = []
    for m, d, n in (
        (25, 100, 1000),
        (100, 100, 1000),
        (400, 100, 200),
        (25, 20, 1000),
        (25, 400, 1000),
        (25, 100, 5000),
    ):
        problem = rs.LeastSquares(*data(m, n, d))
        eta = 1 / float(problem.lipschitz.max())
        times = take_turns(
            {name: ours(problem, f(eta), 300) for name, f in (("FedProx", rs.fedprox), ("FedPi", rs.fedpi))}, 3
        )
        rows.append([str(m), str(d), str(n), f"{times['FedProx'] * 1e6:.0f} us", f"{times['FedPi'] * 1e6:.0f} us"])
    table("How the time per round grows", ["users m", "dimension d", "rows n", "FedProx", "FedPi"], rows)


MILLION = """
import json, resource, sys, time, warnings
import torch
import resolvent as rs
warnings.simplefilter("ignore")
users, rows, d = int(sys.argv[1]), int(sys.argv[2]), 20
A = torch.randn(users, rows, d, dtype=torch.float64)
b = torch.randn(users, rows, dtype=torch.float64)
began = time.perf_counter()
problem = rs.LeastSquares(A, b)
built = time.perf_counter()
run = rs.solve(problem, rs.fedprox(0.1), rounds=100)
print(json.dumps({
    "build": built - began, "run": time.perf_counter() - built, "state": list(run.state.u.shape),
    "data": A.numel() * 8 / 2**30, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
}))
"""


def bench_million() -> None:
    """FedProx over many small users in one process: memory against data."""
    rows = []
    for users, count in ((250_000, 5), (500_000, 5), (1_000_000, 5), (250_000, 20)):
        done = subprocess.run(
            [sys.executable, "-c", MILLION, str(users), str(count)], capture_output=True, text=True, check=True
        )
        m = json.loads(done.stdout)
        rows.append(
            [
                f"{users:,}",
                str(count),
                f"{m['data']:.2f} GiB",
                f"{m['peak']:.2f} GiB",
                f"{m['build']:.1f} s",
                f"{m['run'] * 1e3:.0f} ms",
            ]
        )
    heads = ["users", "rows each", "data", "peak memory", "factorisation, once", "100 rounds of FedProx"]
    table("Many users with d = 20 in one process", heads, rows)


BENCHES = {name.removeprefix("bench_"): f for name, f in list(globals().items()) if name.startswith("bench_")}


def main(names: list[str]) -> None:
    """Run the named tables, or all."""
    unknown = set(names) - set(BENCHES)
    if unknown:
        sys.exit(f"bench: {', '.join(unknown)} is unknown, but one of {', '.join(BENCHES)} is needed")
    warnings.simplefilter("ignore", rs.ResolventWarning)
    print(f"Measured on {machine()}.")
    for name in names or BENCHES:
        BENCHES[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
