"""The sections of a configuration and their keys, with types and defaults.

A default that the library has already is read from there, so that a configuration and a call agree. What a section
holds is part of every run's fingerprint: renaming a key, or changing a default, makes earlier runs others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from resolvent import engines
from resolvent.data import dividing, fitted
from resolvent.engines.flower.rule import Rule
from resolvent.errors import refuse
from resolvent.iteration import averaging, schedules
from resolvent.iteration.anderson import Anderson
from resolvent.iteration.participation import Bernoulli
from resolvent.local.operators import GradientSteps, NewtonProx
from resolvent.problems.generate import make_least_squares, make_logistic
from resolvent.problems.inputs import WEIGHTS
from resolvent.solving.solve import solve
from resolvent.solving.stopping import Stop


def _defaults(of: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of the arguments of a function or class of the library."""
    return {name: parameter.default for name, parameter in inspect.signature(of).parameters.items()}


SOLVE, ANDERSON, BERNOULLI = _defaults(solve), _defaults(Anderson), _defaults(Bernoulli)
GRADIENT_STEPS, NEWTON_PROX = _defaults(GradientSteps), _defaults(NewtonProx)
RULE = _defaults(Rule)
MAKE_LEAST_SQUARES, MAKE_LOGISTIC = _defaults(make_least_squares), _defaults(make_logistic)
SCHEDULES: dict[str, Callable[..., Any]] = {
    "constant": lambda eta, period: eta,
    "harmonic": lambda eta, period: schedules.harmonic(eta),
    "inverse-sqrt": lambda eta, period: schedules.inverse_sqrt(eta),
    "inverse-log": lambda eta, period: schedules.inverse_log(eta),
    "inverse-ln": lambda eta, period: schedules.inverse_log(eta, natural=True),
    "halving": schedules.halving,
}
"""Schedules by name, made from eta and a period."""
WRITTEN = {name: old for old, name in engines.SPELLINGS.items()}
"""Engines that configurations spell as the first ones did: fingerprints depend on it. Either spelling is read."""
FLOWER = "flower"
"""The engine of `resolvent federate`, which other commands cannot build."""
ENGINE = WRITTEN.get(SOLVE["engine"], SOLVE["engine"])
ALL_REDUCE = WRITTEN["all_reduce"]
"""The engine that several processes run together."""
SPELLINGS = {"run.engine": WRITTEN | {old: WRITTEN[name] for old, name in engines.SPELLINGS.items()}}
"""Other spellings of values, by key."""

AUTO = "auto"
"""The problem that a file's labels suggest."""
ImageProblem = Literal["mnist", "fashion-mnist", "cifar10"]
NETWORKS: tuple[str, ...] = get_args(ImageProblem)
"""Problems that train a network."""
if TYPE_CHECKING:
    ScheduleName = str
    EngineName = str
    AverageKind = str
    TableProblem = str
    WeightsName = str
else:
    ScheduleName = Literal[tuple(SCHEDULES)]
    EngineName = Literal[(*(WRITTEN.get(name, name) for name in (*engines.ENGINES, *engines.JOINED)), FLOWER)]
    AverageKind = Literal[averaging.KINDS]
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

    def __post_init__(self) -> None:
        """Fill in what was left open, so that what is written to disk says it all."""
        fill: dict[str, Any] = dict.fromkeys(("intercept", "standardise"), self.name == AUTO)
        if self.user_column is None:
            fill |= {"users": dividing.USERS, "partition": "iid"}
        for key, value in fill.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)

    sha256: str | None = None
    """Of the file; filled in by the first run and checked by every later one."""
    penalty: str | None = None
    """g beside the f_i, as `--penalty` has it: "l1:0.1"."""


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
    curvature: bool = False
    """Whether an automatic eta may ask for users' gradients and Hessians."""
    penalty: str | None = None
    """g beside the f_i, as `--penalty` has it: "l1:0.1"."""


ProblemSection = LeastSquaresSection | LogisticSection | TableSection | ImagesSection | OwnSection | FederationSection


@dataclass(frozen=True)
class SchemeSection:
    """A row of Table 1 by name, or "custom" with alpha, beta and gamma."""

    algorithm: str = "fedpi"
    eta: float | Literal["auto"] | None = None
    schedule: ScheduleName = "constant"
    period: int = 500
    alpha: float | None = None
    beta: float | None = None
    gamma: float | None = None


@dataclass(frozen=True)
class LocalSection:
    """What users compute. "best" is the best that the problem offers, unless `steps` asks for gradient steps."""

    kind: Literal["best", "exact", "newton", "gradient"] = "best"
    steps: int | None = None
    """None: as many as the operator takes by itself."""
    lr: float | None = None
    batch: int | None = None
    momentum: float = GRADIENT_STEPS["momentum"]
    tol: float = NEWTON_PROX["tol"]


@dataclass(frozen=True)
class AndersonSection:
    """Anderson acceleration; a memory of 0 is none."""

    memory: int = 0
    on: Literal["u", "mean"] = ANDERSON["on"]
    safeguard: bool = ANDERSON["safeguard"]
    """Without it: raw Anderson, as the paper prints it."""


@dataclass(frozen=True)
class ParticipationSection:
    """Everyone, each with a probability, a fixed number of users, or everyone with answers that take time."""

    probability: float | None = None
    size: int | None = None
    stragglers: float | None = None
    """How many times slower the slowest user is than the fastest, in simulated seconds."""
    close: float | None = None
    """The share of those at work after whose answers a round closes; None: as rs.Stragglers has it, like `spread`."""
    spread: float | None = None
    absent: Literal["hold", "paper"] = BERNOULLI["absent"]


@dataclass(frozen=True)
class RunSection:
    """The arguments of `solve` that concern the run as a whole."""

    rounds: int = 200
    """Twice as many as `solve` has by default: a run on disk can be interrupted and resumed."""
    seed: int = SOLVE["seed"]
    every: int = SOLVE["every"]
    average: AverageKind | None = SOLVE["average"]
    engine: EngineName = ENGINE
    threads: int | None = None
    """Of torch; the bits of a run may depend on it. None: as many as suit the problem."""
    validate_every: int | None = SOLVE["validate_every"]
    metrics: tuple[str, ...] | None = SOLVE["metrics"]
    """What is measured on held-out data, by name; None: the usual ones of the problem."""


@dataclass(frozen=True)
class StopSection:
    """The arguments of rs.Stop; those that are not given are as it has them."""

    gap: float | None = None
    residual: float | None = None
    certificates: float | None = None
    seconds: float | None = None
    metric: str | None = None
    patience: int | None = None
    min_delta: float | None = None
    mode: Literal["min", "max"] | None = None

    @property
    def made(self) -> Stop | None:
        """What the run stops by; None where nothing was asked for."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        alone = [name for name in ("patience", "min_delta", "mode") if name in given and self.metric is None]
        if alone:
            refuse(f"stop.{alone[0]}", repr(given[alone[0]]), "it belongs to stop.metric: give that as well")
        return Stop(**given) if given else None


@dataclass(frozen=True)
class StoreSection:
    """How the run is stored; what it computes does not depend on it."""

    checkpoint: float = 0.0
    """Seconds between two checkpoints; 0: after every round."""
    tensorboard: bool = False


@dataclass(frozen=True)
class Config:
    """A run's whole configuration."""

    problem: ProblemSection = field(default_factory=LeastSquaresSection)
    scheme: SchemeSection = SchemeSection()
    local: LocalSection = LocalSection()
    anderson: AndersonSection = AndersonSection()
    participation: ParticipationSection = ParticipationSection()
    run: RunSection = RunSection()
    stop: StopSection = StopSection()
    store: StoreSection = StoreSection()


PROBLEMS: dict[str, type[LeastSquaresSection] | type[LogisticSection] | type[ImagesSection]] = {
    "least-squares": LeastSquaresSection,
    "logistic": LogisticSection,
    **dict.fromkeys(NETWORKS, ImagesSection),
}
"""By name, as they are without a file; with `data` those of `fitted.KINDS` are a TableSection."""
FITTED = (AUTO, *fitted.KINDS)
"""Problems that `data` makes."""
