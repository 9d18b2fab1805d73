"""The sections of a configuration and their keys, with types and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class LeastSquares:
    """The paper's least squares, made by seed (the run's own where none is given)."""

    name: Literal["least-squares"] = "least-squares"
    users: int = 25
    dim: int = 100
    rows: int = 5000
    noise: float = 0.5
    shift: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Logistic:
    """The paper's logistic regression, made by seed."""

    name: Literal["logistic"] = "logistic"
    users: int = 10
    dim: int = 100
    rows: int = 1000
    seed: int | None = None


@dataclass(frozen=True)
class Table:
    """A problem from a file of the user's, parted among users."""

    name: Literal["least-squares", "logistic"]
    data: str
    users: int = 10
    partition: str = "iid"
    target: str | int | None = None
    positive: float | str | None = None
    """Logistic regression on more than two classes: this one against the rest."""
    intercept: bool = False
    standardise: bool = False
    reg: float | None = None
    seed: int | None = None
    sha256: str | None = None
    """Of the file; filled in by the first run and checked by every later one."""


@dataclass(frozen=True)
class Images:
    """A network of the paper's on images parted among users, 80 % of each user's for training, 10 % for either test."""

    name: Literal["mnist", "fashion-mnist", "cifar10"]
    users: int = 20
    partition: str = "shards:6"
    images: int | None = None
    """How many of the training set's images are parted; all of them unless given."""
    folder: str | None = None
    device: str = "cpu"
    autocast: Literal["bfloat16", "float16"] | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Own:
    """A problem from a function of the user's: file.py:function."""

    name: str
    sha256: str | None = None
    """Of the file, as above."""


Problem = LeastSquares | Logistic | Table | Images | Own


@dataclass(frozen=True)
class Scheme:
    """A row of Table 1 by name, or "custom" with alpha, beta and gamma."""

    algorithm: str = "fedpi"
    eta: float | Literal["auto"] | None = None
    schedule: Literal["constant", "harmonic", "inverse-sqrt", "inverse-log", "inverse-ln", "halving"] = "constant"
    period: int = 500
    alpha: float | None = None
    beta: float | None = None
    gamma: float | None = None


@dataclass(frozen=True)
class Local:
    """What users compute. "best" is the best that the problem offers, unless `steps` asks for gradient steps."""

    kind: Literal["best", "exact", "newton", "gradient"] = "best"
    steps: int | None = None
    lr: float | None = None
    batch: int | None = None
    momentum: float = 0.0
    tol: float = 5e-13


@dataclass(frozen=True)
class Anderson:
    memory: int = 0
    on: Literal["u", "mean"] = "u"
    safeguard: bool = True
    """Without it: raw Anderson, as the paper prints it."""


@dataclass(frozen=True)
class Participation:
    """Everyone, each with a probability, or a fixed number of users."""

    probability: float | None = None
    size: int | None = None
    absent: Literal["hold", "paper"] = "hold"


@dataclass(frozen=True)
class Run:
    rounds: int = 200
    seed: int = 0
    every: int = 1
    average: Literal["ergodic", "suffix"] | None = None
    engine: Literal["inprocess", "debug"] = "inprocess"
    threads: int | None = None
    """Of torch; the bits of a run may depend on it. Without it what suits the problem."""


@dataclass(frozen=True)
class Stop:
    gap: float | None = None
    residual: float | None = None
    certificates: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Store:
    """How the run is kept; what it computes does not depend on it."""

    checkpoint: float = 0.0
    """Seconds between two checkpoints; 0: after every round."""
    tensorboard: bool = False


@dataclass(frozen=True)
class Config:
    problem: Problem = field(default_factory=LeastSquares)
    scheme: Scheme = Scheme()
    local: Local = Local()
    anderson: Anderson = Anderson()
    participation: Participation = Participation()
    run: Run = Run()
    stop: Stop = Stop()
    store: Store = Store()


PROBLEMS: dict[str, type[LeastSquares] | type[Logistic] | type[Images]] = {
    "least-squares": LeastSquares,
    "logistic": Logistic,
    "mnist": Images,
    "fashion-mnist": Images,
    "cifar10": Images,
}
"""By name; with `data` the first two are a Table."""

Preset = dict[str, dict[str, Any]]
MNIST: dict[str, Preset] = {
    "quick": {
        "problem": {"users": 20, "partition": "shards:6", "images": 3000},
        "local": {"steps": 20, "lr": 0.05},
        "run": {"rounds": 20},
    },
    "paper": {
        "problem": {"users": 20, "partition": "shards:6"},
        "local": {"steps": 100, "lr": 0.01},
        "run": {"rounds": 200},
    },
}
CIFAR10: dict[str, Preset] = {
    "quick": {
        "problem": {"users": 10, "partition": "sorted:10", "images": 1000},
        "local": {"steps": 1, "batch": 20, "lr": 0.1},
        "run": {"rounds": 10},
    },
    "paper": {
        "problem": {"users": 10, "partition": "sorted:10", "images": 10000},
        "local": {"steps": 5, "batch": 20, "lr": 0.1},
        "run": {"rounds": 200},
    },
}
PRESETS: dict[str, dict[str, Preset]] = {
    "mnist": MNIST,
    "fashion-mnist": MNIST,
    "cifar10": CIFAR10,
}
"""Settings to begin with, by problem and name: some minutes on two cores, or the paper's size."""
