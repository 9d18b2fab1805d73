"""What privacy costs: held-out accuracy against epsilon, and whether members can still be told from others.

    python -m bench.privacy a9a FOLDER          # with a9a.gz and a9a.t.gz: logistic regression, 1,000 users of 32 rows
    python -m bench.privacy mnist FOLDER        # with MNIST's four files: the paper's CNN, 2,000 users of 30 images
    python -m bench.privacy members FOLDER      # with MNIST's four files: softmax regression, 100 users of 2 images
    python -m bench.privacy noise > FILE.json   # their noise multipliers, for `--noise FILE.json`
    python -m bench.privacy draw FILE.csv ...   # what the others printed, as docs/images/privacy.png

Rows on the standard output as CSV, one per run; `--after FILE.csv` goes on from such rows, and `--noise` needs no
dp-accounting. Every method has the same local work. Its step size is the best of `lrs` in held-out accuracy for the
first seed without privacy, and its clip the best of `--clips` for the first seed with it: a budget would have to pay
for both where rows held out are not public. FedAvg, FedProx and FedRP draw a tenth of the users in each round; FedPi
and SCAFFOLD have everybody present, as they must.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

import resolvent as rs
from resolvent.iteration import accountant

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, math.inf)
"""Infinite: without privacy."""
CLIPS = (0.1, 0.3, 1.0, 3.0)
SAMPLED = rs.Bernoulli(0.1, absent="paper")
"""As each algorithm's paper prints it: only those present enter the mean."""


class Task(NamedTuple):
    problem: Any
    test: Any
    lrs: tuple[float, ...]
    """Step sizes of a local gradient step to choose from."""
    rounds: int = 100
    delta: float = 1e-4
    start: Any = None
    others: Any = None
    """The same problem over users who took no part, for `members`."""


def methods(lr: float, steps: int = 5) -> dict[str, tuple[rs.Scheme, Any]]:
    """Schemes of five local steps, and who takes part."""
    eta, local = steps * lr, rs.GradientProx(steps, lr)
    return {
        "FedAvg": (rs.fedavg(lr, steps=steps), SAMPLED),
        "FedProx": (rs.fedprox(eta, local=local), SAMPLED),
        "FedRP": (rs.fedrp(eta, local=local), SAMPLED),
        "FedPi": (rs.fedpi(eta, local=local), None),
        "SCAFFOLD": (rs.scaffold(lr, steps), None),
    }


def a9a(folder: Path, seed: int, device: str) -> Task:
    def read(name: str) -> tuple[np.ndarray, np.ndarray]:
        table = rs.data.read(str(folder / name))
        x = np.asarray(table.x.todense() if hasattr(table.x, "todense") else table.x, dtype=float)
        x = np.pad(x, ((0, 0), (0, 123 - x.shape[1])))
        return np.column_stack([x, np.ones(len(x))]), np.where(np.asarray(table.y) > 0, 1.0, -1.0)

    X, y = read("a9a.gz")
    rows = np.random.default_rng(seed).permutation(len(y))[:32_000].reshape(1_000, 32)
    return Task(rs.Logistic(X[rows], y[rows]), rs.HeldOut(*read("a9a.t.gz")), lrs=(0.05, 0.02, 0.01))


def mnist(folder: Path) -> tuple[torch.Tensor, ...]:
    def read(name: str, head: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(gzip.decompress((folder / name).read_bytes())[head:]), dtype=torch.uint8)

    def images(name: str) -> torch.Tensor:
        return ((read(name, 16).float() / 255 - 0.1307) / 0.3081).view(-1, 1, 28, 28)

    train, test = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"
    labels = [read(name.replace("images-idx3", "labels-idx1"), 8).long() for name in (train, test)]
    return images(train), labels[0], images(test), labels[1]


def cnn(folder: Path, seed: int, device: str) -> Task:
    x, y, test_x, test_y = (t.to(device) for t in mnist(folder))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed)).view(2_000, 30)
    users = [(x[rows], y[rows]) for rows in order]
    torch.manual_seed(seed)
    problem = rs.Neural(rs.models.mnist_cnn(), users, device=device, test=(test_x, test_y))
    return Task(problem, None, lrs=(0.05, 0.02, 0.01))


def members(folder: Path, seed: int, device: str) -> Task:
    x, y, test_x, test_y = mnist(folder)
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:400].view(2, 100, 2)
    pixels = [x[part].flatten(2).double().numpy() for part in rows]
    mine, others = (rs.Softmax(p, y[part].numpy(), classes=range(10)) for p, part in zip(pixels, rows, strict=True))
    test = rs.HeldOut(test_x.flatten(1).double().numpy(), test_y.numpy())
    return Task(mine, test, lrs=(0.02, 0.01, 0.005), rounds=200, delta=1e-3, others=others)


TASKS: dict[str, Callable[[Path, int, str], Task]] = {"a9a": a9a, "mnist": cnn, "members": members}


Noise = dict[tuple[float, float, int, float], float]
"""Multipliers by epsilon, chance of taking part, rounds and delta."""


def multipliers() -> Noise:
    """Of all runs here."""
    runs = [(rate, *length) for rate in (SAMPLED.p, 1.0) for length in ((100, 1e-4), (200, 1e-3))]
    finite = [epsilon for epsilon in EPSILONS if epsilon < math.inf]
    return {(epsilon, *run): accountant.noise_for(epsilon, run[2], *run[:2]) for epsilon in finite for run in runs}


def solved(task: Task, name: str, epsilon: float, lr: float, clip: float, seed: int, noise: Noise | None) -> rs.Run:
    scheme, who = methods(lr)[name]
    more: dict[str, Any] = {} if task.test is None else {"test": task.test}
    if epsilon < math.inf:
        spent = (epsilon, who.p if who else 1.0, task.rounds, task.delta)
        budget: dict[str, Any] = {"epsilon": epsilon} if noise is None else {"noise": noise[spent]}
        more["privacy"] = rs.UserPrivacy(clip, delta=task.delta, held_out="public", **budget)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rs.ResolventWarning)
        return rs.solve(
            task.problem, scheme, task.rounds, participation=who, seed=seed, every=task.rounds, progress=False, **more
        )


def last_accuracy(run: rs.Run) -> float:
    """NaN: the run diverged."""
    return float(run.history.test_accuracy.iloc[-1]) if run.status == "finished" else math.nan


def told_apart(task: Task, run: rs.Run) -> float:
    """The area under the curve of telling members from others by their loss at the model: 1/2 is chance."""
    w = torch.as_tensor(run.model).unsqueeze(0).expand(task.problem.users, -1)
    from sklearn.metrics import roc_auc_score

    losses = [problem.value(w).numpy() for problem in (task.problem, task.others)]
    return float(roc_auc_score(np.repeat([1, 0], [len(one) for one in losses]), -np.concatenate(losses)))


def rows(given: argparse.Namespace, noise: Noise | None, before: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from before
    done = {(row["method"], float(row["epsilon"]), int(row["seed"])) for row in before}
    best = {(row["method"], float(row["epsilon"])): (float(row["lr"]), float(row["clip"])) for row in before}
    for seed in range(given.seeds):
        task = TASKS[given.task](given.folder, seed, given.device)
        for name in given.methods or list(methods(1.0)):
            for epsilon in sorted(given.epsilons, reverse=True):  # without privacy first
                if (name, epsilon, seed) in done:
                    continue
                lrs = task.lrs if epsilon == math.inf else (best[name, math.inf][0],)
                clips = given.clips if epsilon < math.inf else (math.inf,)
                tried = [best[name, epsilon]] if seed else list(product(lrs, clips))
                runs = {(lr, clip): solved(task, name, epsilon, lr, clip, seed, noise) for lr, clip in tried}
                accuracy = {choice: last_accuracy(run) for choice, run in runs.items()}
                choice = max(accuracy, key=lambda choice: np.nan_to_num(accuracy[choice], nan=-1.0))
                lr, clip = best[name, epsilon] = choice
                row = {"task": given.task, "method": name, "epsilon": epsilon, "seed": seed, "lr": lr, "clip": clip,
                       "test_accuracy": accuracy[choice], "status": runs[choice].status}  # fmt: skip
                yield row | ({} if task.others is None else {"told_apart": told_apart(task, runs[choice])})


PICTURE = Path("docs/images/privacy.png")
TITLES = {"a9a": "a9a, 1,000 users", "mnist": "MNIST, CNN, 2,000 users", "members": "members, of 100 users"}


def draw(files: list[Path]) -> None:
    """One panel per task: the mean over seeds against epsilon, with a band of one deviation; crosses: no privacy."""
    import matplotlib.pyplot as plt
    import pandas as pd

    table = pd.concat([pd.read_csv(file) for file in files])
    tasks = [task for task in TASKS if task in set(table.task)]
    figure, axes = plt.subplots(1, len(tasks), figsize=(4 * len(tasks), 3.2), layout="constrained", squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        y = "told_apart" if task == "members" else "test_accuracy"
        for name, rows in table[table.task == task].groupby("method", sort=False):
            mean, deviation = (
                rows.groupby("epsilon")[y].agg(lambda seeds: seeds.mean(skipna=False)),
                rows.groupby("epsilon")[y].std(),
            )
            private = mean[np.isfinite(mean.index)]
            low, high = (private + sign * deviation[private.index] for sign in (-1, 1))
            colour = f"C{list(methods(1.0)).index(str(name))}"
            axis.semilogx(private.index, private, "o-", ms=3, label=name, color=colour)
            axis.fill_between(private.index, low, high, color=colour, alpha=0.2, linewidth=0)
            if np.inf in mean.index:
                at = 3 * table[np.isfinite(table.epsilon)].epsilon.max()
                axis.errorbar(at, mean[np.inf], deviation[np.inf], fmt="x", color=colour)
        axis.set(title=TITLES[task], xlabel="epsilon", ylabel="told apart (AUC)" if task == "members" else "accuracy")
    axes[0][0].legend(fontsize=7, loc="lower right")
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    if sys.argv[1:2] == ["draw"]:
        return draw([Path(name) for name in sys.argv[2:]])
    if sys.argv[1:2] == ["noise"]:
        print(json.dumps([[*run, noise] for run, noise in multipliers().items()], indent=1))
        return None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="*", default=[], help="some of them; without, all")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--clips", type=float, nargs="+", default=CLIPS)
    parser.add_argument("--noise", type=Path, help="what `noise` printed")
    parser.add_argument("--after", type=Path, help="rows of these methods that are done")
    given = parser.parse_args()
    noise: Noise | None = None
    if given.noise is not None:
        noise = {tuple(run): multiplier for *run, multiplier in json.loads(given.noise.read_text())}
        patch.object(accountant, "epsilon_so_far", lambda *_: math.nan).start()
    before: list[dict[str, Any]] = []
    if given.after is not None and given.after.exists():
        with given.after.open() as file:
            before = list(csv.DictReader(file))
    out: csv.DictWriter[str] | None = None
    for row in rows(given, noise, before):
        if out is None:
            out = csv.DictWriter(sys.stdout, list(row))
            out.writeheader()
        out.writerow(row)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
