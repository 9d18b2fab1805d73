"""The sections of a configuration and their keys, with types and defaults.

A default that the library has already is read from there, so that a configuration and a call agree. What a section
holds is part of every run's fingerprint: renaming a key, or changing a default, makes earlier runs others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from resolvent import engines
from resolvent.config.defaults import defaults
from resolvent.config.problem_sections import LeastSquaresSection, ProblemSection
from resolvent.errors import refuse
from resolvent.iteration import averaging, schedules
from resolvent.iteration.anderson import Anderson
from resolvent.iteration.participation import Bernoulli
from resolvent.local.operators import GradientSteps, NewtonProx
from resolvent.solving.solve import solve
from resolvent.solving.stopping import Stop

SOLVE, ANDERSON, BERNOULLI = defaults(solve), defaults(Anderson), defaults(Bernoulli)
GRADIENT_STEPS, NEWTON_PROX = defaults(GradientSteps), defaults(NewtonProx)
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
MOST_THREADS = 1024
"""More than any machine here has cores; each takes memory of its own."""
SPELLINGS = {"run.engine": WRITTEN | {old: WRITTEN[name] for old, name in engines.SPELLINGS.items()}}
"""Other spellings of values, by key."""
if TYPE_CHECKING:
    ScheduleName = str
    EngineName = str
    AverageKind = str
else:
    ScheduleName = Literal[tuple(SCHEDULES)]
    EngineName = Literal[(*(WRITTEN.get(name, name) for name in (*engines.ENGINES, *engines.JOINED)), FLOWER)]
    AverageKind = Literal[averaging.KINDS]


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
    average: AverageKind | None = None
    engine: EngineName = ENGINE
    threads: int | None = None
    """Of torch; the bits of a run may depend on it. None: as many as suit the problem."""
    validate_every: int | None = SOLVE["validate_every"]
    metrics: tuple[str, ...] | None = SOLVE["metrics"]
    """What is measured on held-out data, by name; None: the usual ones of the problem."""

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            refuse("run.threads", self.threads, f"a number from 1 to {MOST_THREADS} is needed")


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
