"""The kinds of [problem], one section each, with their keys, types and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from resolvent.config.defaults import defaults
from resolvent.data import dividing, fitted
from resolvent.engines.flower.rule import MAX_MOVE, MAX_WEIGHT, Rule
from resolvent.problems.generate import make_least_squares, make_logistic
from resolvent.problems.inputs import WEIGHTS

RULE, MAKE_LEAST_SQUARES, MAKE_LOGISTIC = defaults(Rule), defaults(make_least_squares), defaults(make_logistic)
AUTO = "auto"
"""The problem that a file's labels suggest."""
ImageProblem = Literal["mnist", "fashion-mnist", "cifar10"]
NETWORKS: tuple[str, ...] = get_args(ImageProblem)
"""Problems that train a network."""
if TYPE_CHECKING:
    TableProblem = str
    WeightsName = str
else:
    TableProblem = Literal[(AUTO, *fitted.KINDS)]
    WeightsName = Literal[WEIGHTS]


@dataclass(frozen=True)
class LeastSquaresSection:
    """The paper's least squares, made by seed (the run's own where none is given)."""

    name: Literal["least-squares"] = "least-squares"
    users: int = MAKE_LEAST_SQUARES["users"]
    dim: int = MAKE_LEAST_SQUARES["dim"]
    rows: int = MAKE_LEAST_SQUARES["rows"]
    noise: float = MAKE_LEAST_SQUARES["noise"]
    shift: float = MAKE_LEAST_SQUARES["shift"]
    seed: int | None = None
    penalty: str | None = None
    """g beside the f_i, as `--penalty` has it: "l1:0.1"."""


@dataclass(frozen=True)
class LogisticSection:
    """The paper's logistic regression, made by seed."""

    name: Literal["logistic"] = "logistic"
    users: int = MAKE_LOGISTIC["users"]
    dim: int = MAKE_LOGISTIC["dim"]
    rows: int = MAKE_LOGISTIC["rows"]
    seed: int | None = None
    penalty: str | None = None
    """g beside the f_i, as `--penalty` has it: "l1:0.1"."""


@dataclass(frozen=True)
class TableSection:
    """A problem from a file of the user's. A column says whose row it is, or rows are partitioned among users.

    Its keys are the arguments of `rs.data.from_frame`.
    """

    name: TableProblem
    data: str
    users: int | None = None
    partition: str | None = None
    target: str | int | None = None
    positive: float | str | None = None
    """Logistic regression on more than two classes: this one against the rest."""
    intercept: bool | None = None
    standardise: bool | None = None
    """Both are true for a problem that was named by its file alone, else false."""
    reg: float | None = None
    seed: int | None = None
    user_column: str | None = None
    drop: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    impute: str | None = None
    """mean, median or most_frequent, or column=mean,column=most_frequent."""
    test: float | None = None
    test_users: tuple[str, ...] | None = None
    weights: WeightsName | None = None
    """rows: every row counts the same; users: every user's mean does. None: as the problem has it."""
    delta: float | None = None
    """Of Huber's loss: the residual from which on it is linear."""
    quantile: float | None = None
    """Of quantile regression."""
    sha256: str | None = None
    """Of the file; filled in by the first run and checked by every later one."""
    penalty: str | None = None
    """g beside the f_i, as `--penalty` has it: "l1:0.1"."""

    def __post_init__(self) -> None:
        """Fill in what was left open, so that what is written to disk says it all."""
        fill: dict[str, Any] = dict.fromkeys(("intercept", "standardise"), self.name == AUTO)
        if self.user_column is None:
            fill |= {"users": dividing.USERS, "partition": "iid"}
        for key, value in fill.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)


@dataclass(frozen=True)
class ImagesSection:
    """One of the paper's networks on images partitioned among users: 80 % of a user's images are for training, 10 % for
    validation and 10 % for testing."""

    name: ImageProblem
    users: int = 20
    partition: str = "shards:6"
    images: int | None = None
    """How many of the training set's images are used; all of them unless given."""
    folder: str | None = None
    device: str = "cpu"
    autocast: Literal["bfloat16", "float16"] | None = None
    seed: int | None = None
    weights: WeightsName | None = None
    """As for tables."""
    penalty: str | None = None
    """g beside the f_i, as `--penalty` has it: "l1:0.1"."""


@dataclass(frozen=True)
class OwnSection:
    """A problem from a function of the user's: file.py:function."""

    name: str
    sha256: str | None = None
    """Of the file, as above."""
    penalty: str | None = None
    """g beside the f_i, as `--penalty` has it: "l1:0.1"."""


@dataclass(frozen=True)
class FederationSection:
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
    penalty: str | None = None
    """g beside the f_i, as `--penalty` has it: "l1:0.1"."""


ProblemSection = LeastSquaresSection | LogisticSection | TableSection | ImagesSection | OwnSection | FederationSection
PROBLEMS: dict[str, type[LeastSquaresSection] | type[LogisticSection] | type[ImagesSection]] = {
    "least-squares": LeastSquaresSection,
    "logistic": LogisticSection,
    **dict.fromkeys(NETWORKS, ImagesSection),
}
"""By name, as they are without a file; with `data` those of `fitted.KINDS` are a TableSection."""
FITTED = (AUTO, *fitted.KINDS)
"""Problems that `data` makes."""
