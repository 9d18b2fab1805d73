"""The kinds of [problem], one section each, with their keys, types and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from resolvent.data import dividing, fitted
from resolvent.engines.flower.rule import MAX_MOVE, MAX_WEIGHT, Rule
from resolvent.problems.generate import make_least_squares, make_logistic
from resolvent.problems.inputs import WEIGHTS

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


def defaults(of: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a function or class of the library, so that a configuration and a call agree."""
    return {name: parameter.default for name, parameter in inspect.signature(of).parameters.items()}


RULE, MAKE_LEAST_SQUARES, MAKE_LOGISTIC = defaults(Rule), defaults(make_least_squares), defaults(make_logistic)
AUTO = "auto"
"""The problem that a file's labels suggest."""
ImageProblem = Literal["mnist", "fashion-mnist", "cifar10"]
Protocol = Literal["paper", "niid-bench"]
PAPER, NIID_BENCH = get_args(Protocol)
NETWORKS: tuple[str, ...] = get_args(ImageProblem)
"""Problems that train a network."""
if TYPE_CHECKING:
    TableProblem = str
    WeightsName = str
else:
    TableProblem = Literal[(AUTO, *fitted.KINDS)]
    WeightsName = Literal[WEIGHTS]


@dataclass(frozen=True, kw_only=True)
class Penalised:
    """What every problem may have."""

    penalty: str | None = None
    """g beside the users' functions: l1:0.1, l2:T, elastic-net:L1:L2, box:LOW:HIGH, orthant, simplex:TOTAL,
    ball:RADIUS."""


@dataclass(frozen=True)
class LeastSquaresSection(Penalised):
    """The paper's least squares, made by seed (the run's own where none is given)."""

    name: Literal["least-squares"] = "least-squares"
    users: int = MAKE_LEAST_SQUARES["users"]
    """How many users."""
    dim: int = MAKE_LEAST_SQUARES["dim"]
    """The dimension of a generated problem."""
    rows: int = MAKE_LEAST_SQUARES["rows"]
    """Rows per user of a generated problem."""
    noise: float = MAKE_LEAST_SQUARES["noise"]
    """The standard deviation of the noise."""
    shift: float = MAKE_LEAST_SQUARES["shift"]
    """How far apart the users' own solutions are."""
    seed: int | None = None
    """The seed of the data; the run's own unless given."""


@dataclass(frozen=True)
class LogisticSection(Penalised):
    """The paper's logistic regression, made by seed."""

    name: Literal["logistic"] = "logistic"
    users: int = MAKE_LOGISTIC["users"]
    """How many users."""
    dim: int = MAKE_LOGISTIC["dim"]
    """The dimension of a generated problem."""
    rows: int = MAKE_LOGISTIC["rows"]
    """Rows per user of a generated problem."""
    seed: int | None = None
    """The seed of the data; the run's own unless given."""


@dataclass(frozen=True)
class TableSection(Penalised):
    """A problem from a file of the user's. A column says whose row it is, or rows are partitioned among users.

    Its keys are the arguments of `rs.data.from_frame`.
    """

    name: TableProblem
    data: str
    """Your own data: LIBSVM text, CSV, Parquet or npz."""
    users: int | None = None
    """How many users."""
    partition: str | None = None
    """iid, dirichlet:0.3, shards:2, sorted:2, contiguous."""
    target: str | int | None = None
    """The column to predict."""
    positive: float | str | None = None
    """The class that is told from the others."""
    intercept: bool | None = None
    """An intercept, which is not regularised; usual for `run FILE`."""
    standardise: bool | None = None
    """Scale features to mean 0 and spread 1, by users' sums; usual for `run FILE`."""
    reg: float | None = None
    """The ridge of logistic regression."""
    seed: int | None = None
    """The seed of the data; the run's own unless given."""
    user_column: str | None = None
    """The column that says whose row it is."""
    drop: tuple[str, ...] | None = None
    """Columns that are no features."""
    categories: tuple[str, ...] | None = None
    """Columns of codes: categories, though they hold numbers."""
    impute: str | None = None
    """Fill missing values: mean, median, most_frequent, or COLUMN=KIND,..."""
    test: float | None = None
    """Hold out this share of every user's rows, 0.2 say."""
    test_users: tuple[str, ...] | None = None
    """Hold out these users whole."""
    weights: WeightsName | None = None
    """Every row counts the same, or every user's mean does; else as the problem has it."""
    class_weight: str | None = None
    """Rows count by their class: balanced, every class the same, or CLASS=NUMBER,..."""
    sample_weight: str | None = None
    """The column that says how much each row counts."""
    delta: float | None = None
    """Huber's: the residual from which on the loss is linear."""
    quantile: float | None = None
    """Which quantile, between 0 and 1."""
    sha256: str | None = None
    """Of the file; filled in by the first run and checked by every later one."""

    def __post_init__(self) -> None:
        """Fill in what was left open, so that what is written to disk says it all."""
        fill: dict[str, Any] = dict.fromkeys(("intercept", "standardise"), self.name == AUTO)
        if self.user_column is None:
            fill |= {"users": dividing.USERS, "partition": "iid"}
        for key, value in fill.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)


@dataclass(frozen=True)
class ImagesSection(Penalised):
    """A network on images partitioned among users; by the paper's protocol 80 % of a user's images are for training,
    10 % for validation and 10 % for testing."""

    name: ImageProblem
    users: int = 20
    """How many users."""
    partition: str = "shards:6"
    """iid, dirichlet:0.3, shards:2, sorted:2, contiguous."""
    images: int | None = None
    """How many of the training set's images are used; all of them unless given."""
    protocol: Protocol = PAPER
    """The network and the split: paper, or niid-bench, Flower's baseline, with 6 and 16 channels, users of any size,
    10 % of their images for validation, and the set's own test images."""
    folder: str | None = None
    """Where the images lie; the cache unless given."""
    device: str = "cpu"
    """Where a network is trained: cpu or cuda."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Of products: float32 is exact."""
    seed: int | None = None
    """The seed of the data; the run's own unless given."""
    weights: WeightsName | None = None
    """Every row counts the same, or every user's mean does; else as the problem has it."""


@dataclass(frozen=True)
class OwnSection(Penalised):
    """A problem from a function of the user's: file.py:function."""

    name: str
    sha256: str | None = None
    """Of the file, as above."""


@dataclass(frozen=True)
class FederationSection(Penalised):
    """Users on machines of their own, and when their rounds close: the section [federation] of `resolvent federate`."""

    name: Literal["federation"] = "federation"
    users: int = 3
    weights: str = "rows"
    """"rows": every row counts the same, as if all lay in one place; "users": every user does; or numbers by name,
    "site-0=1, site-1=2"."""
    close: float = RULE["close"]
    """The share of those asked after whose answers a round closes."""
    timeout: float = RULE["timeout"]
    min_users: int = RULE["min_users"]
    patience: float = RULE["patience"]
    """Seconds to wait for `min_users` before the run stops, to be resumed."""
    join: float = 600.0
    """Seconds to wait for the users before the first round."""
    max_norm: float | None = None
    """The longest |p_i| that is believed; any finite one unless given."""
    max_move: float = MAX_MOVE
    """How many times farther than the others' answers one may lead before it is withheld; 1e300: any."""
    max_weight: float = MAX_WEIGHT
    """How many times the median of the others' weights one may be that follows from a user's own number of rows."""
    curvature: bool = False
    """Whether an automatic eta may ask for users' gradients and Hessians."""
    secure: bool = False
    """Whether the server learns sums alone; nodes whose own file says so answer nothing else."""
    table: TableProblem | None = None
    """The problem that the sites' tables become, by the section [data] of federation.toml; else user.py makes it."""
    target: str | None = None
    user_column: str | None = None
    drop: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    impute: str | None = None
    test: float | None = None
    positive: float | str | None = None
    standardise: bool = True
    intercept: bool = True
    reg: float | None = None
    class_weight: str | None = None


ProblemSection = LeastSquaresSection | LogisticSection | TableSection | ImagesSection | OwnSection | FederationSection
PROBLEMS: dict[str, type[LeastSquaresSection] | type[LogisticSection] | type[ImagesSection]] = {
    "least-squares": LeastSquaresSection,
    "logistic": LogisticSection,
    **dict.fromkeys(NETWORKS, ImagesSection),
}
"""By name, as they are without a file; with `data` those of `fitted.KINDS` are a TableSection."""
FITTED = (AUTO, *fitted.KINDS)
"""Problems that `data` makes."""
