"""A run's configuration: sections with typed keys, and the parts of a round themselves.

The parts (who takes part, the acceleration, when to stop) are objects of the library, made from their sections by
`iteration/registry.py`. What a configuration holds is part of every run's fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from resolvent import engines
from resolvent.config.problem_sections import LeastSquaresSection, ProblemSection, defaults
from resolvent.errors import refuse
from resolvent.iteration import averaging, registry
from resolvent.iteration.anderson import Anderson
from resolvent.iteration.participation import Everyone, Participation
from resolvent.iteration.registry import alike, part
from resolvent.local.operators import GradientProx, GradientSteps
from resolvent.solving.solve import solve
from resolvent.solving.stopping import Stop

SOLVE = defaults(solve)
FLOWER = "flower"
"""The engine of `resolvent federate`, which other commands cannot build."""
ALL_REDUCE = "all-reduce"
"""The engine that several processes run together."""
ENGINES = tuple(map(alike, (*engines.ENGINES, *engines.JOINED)))
MAX_THREADS = 1024
"""More than any machine here has cores; each takes memory of its own."""
if TYPE_CHECKING:
    EngineName = str
    AverageKind = str
else:
    EngineName = Literal[(*ENGINES, FLOWER)]
    AverageKind = Literal[averaging.KINDS]


@dataclass(frozen=True)
class SchemeSection:
    """A row of Table 1 by name, or "custom" with alpha, beta and gamma."""

    algorithm: str = "fedpi"
    """A row of the paper's Table 1, or custom with alpha, beta and gamma."""
    eta: float | Literal["auto"] | None = None
    """The step size: a number or auto; else what suits the problem."""
    schedule: str = "constant"
    """How eta falls: harmonic, inverse-sqrt, ..."""
    period: int = 500
    """Rounds between two halvings, for the schedule halving."""
    alpha: float | None = None
    """Of (gFL-1), for custom: 1 is the prox, 2 reflects."""
    beta: float | None = None
    """Of (gFL-2), for custom: 1 is the mean, 2 reflects."""
    gamma: float | None = None
    """Of (gFL-3), for custom: 1/2 averages with the old u."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", registry.named("schedule", self.schedule).name)


@part("local", "gradient")
@dataclass(frozen=True)
class Gradient:
    """Gradient steps: on f_i where the algorithm takes them, else on the objective of the prox."""

    steps: int | tuple[int, ...] | None = None
    """Gradient steps per user and round (with batch: epochs), of FedNova also one number per user; else as many as the
    operator takes by itself."""
    lr: float | None = None
    """Step size of gradient steps inside a prox, or of SCAFFOLD's."""
    batch: int | None = None
    """Rows in a minibatch."""
    momentum: float = 0.0
    """Momentum of gradient steps."""

    def operator(self, forward: bool) -> GradientSteps | GradientProx | None:
        """The local operator that is meant for a scheme of gradient steps, or for one of a prox."""
        return GradientSteps(**self.given(True)) if forward else GradientProx(**self.given(False))

    def given(self, forward: bool) -> dict[str, Any]:
        """The arguments of such an operator; gradient steps of size eta take no lr."""
        given: dict[str, Any] = {"batch": self.batch, "momentum": self.momentum}
        given |= {} if self.steps is None else {"steps": self.steps}
        return given if forward else given | {"lr": self.lr}


@part("local", "best")
@dataclass(frozen=True)
class Best(Gradient):
    """The best prox that the problem offers; gradient steps where the algorithm, or one of these settings, asks."""

    def operator(self, forward: bool) -> GradientSteps | GradientProx | None:
        return super().operator(forward) if forward or self != Best() else None


@dataclass(frozen=True)
class RunSection:
    """The arguments of `solve` that concern the run as a whole."""

    rounds: int = 200  # twice as many as `solve` has by default: a run on disk can be interrupted and resumed
    """How many rounds."""
    seed: int = SOLVE["seed"]
    """The seed of everything random."""
    every: int = SOLVE["every"]
    """Rounds between two rows of metrics."""
    average: AverageKind | None = None
    """Report the average of the models."""
    engine: EngineName = ENGINES[0]
    """Where users live: in-process (all here), debug (one user at a time, every answer checked), all-reduce (on several
    ranks, started by torchrun)."""
    threads: int | None = None
    """Of torch; the bits of a run may depend on it. Else as many as suit the problem."""
    validate_every: int | None = SOLVE["validate_every"]
    """Rounds between two evaluations on held-out data."""
    metrics: tuple[str, ...] | None = SOLVE["metrics"]
    """What is measured on held-out data, by name; else what is usual."""

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            refuse("run.threads", self.threads, f"a number from 1 to {MAX_THREADS} is needed")


@dataclass(frozen=True)
class StoreSection:
    """How the run is stored; what it computes does not depend on it."""

    checkpoint: float = 0.0
    """Seconds between two checkpoints; 0: after every round."""
    tensorboard: bool = False
    """Write TensorBoard's event files too."""


@dataclass(frozen=True)
class Config:
    """A run's whole configuration."""

    problem: ProblemSection = field(default_factory=LeastSquaresSection)
    scheme: SchemeSection = SchemeSection()
    local: Any = Best()
    """A local operator, or Best or Gradient, which leave it to the algorithm and the problem."""
    anderson: Anderson = field(default_factory=lambda: Anderson(0))
    participation: Participation = field(default_factory=Everyone)
    parts: tuple[tuple[str, Any], ...] = ()
    """Other parts of the round, by kind; without those that stand for none."""
    run: RunSection = RunSection()
    stop: Stop = field(default_factory=Stop)
    store: StoreSection = StoreSection()
