"""The public names of the package, all in one place: `import resolvent as rs` has them."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from resolvent import data, theory
from resolvent.data.held_out import HeldOut
from resolvent.errors import (
    DivergenceWarning,
    DoubtfulResult,
    InputError,
    MayNotConverge,
    ResolventWarning,
    SolvesAnotherProblem,
)
from resolvent.iteration import schedules
from resolvent.iteration.acceleration import Momentum
from resolvent.iteration.anderson import Anderson
from resolvent.iteration.compression import Quantised, RandomK, TopK
from resolvent.iteration.participation import Bernoulli, Everyone, FixedSize, Stragglers, Trace
from resolvent.iteration.penalties import L1, L2, ElasticNet
from resolvent.iteration.privacy import UserPrivacy
from resolvent.iteration.robust import CoordinateMedian, GeometricMedian, TrimmedMean
from resolvent.iteration.round import Round
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.server import ServerAdagrad, ServerAdam, ServerYogi
from resolvent.iteration.state import State
from resolvent.iteration.table import (
    TABLE,
    fedadmm,
    fedavg,
    feddyn,
    fedexprox,
    fednova,
    fedpd,
    fedpi,
    fedprox,
    fedrp,
    fedsplit,
    reflect_gradient,
    reflect_prox,
    scaffnew,
    scaffold,
)
from resolvent.local.normalised import NormalisedSteps
from resolvent.local.operators import ExactProx, GradientProx, GradientSteps, NewtonProx
from resolvent.local.tilted import RandomTiltedSteps, TiltedSteps
from resolvent.problems.custom import Custom
from resolvent.problems.generate import make_least_squares, make_logistic
from resolvent.problems.indicators import Indicators
from resolvent.problems.least_squares import LeastSquares
from resolvent.problems.linear.losses import Huber, Poisson, SquaredHinge
from resolvent.problems.linear_sets import AffineSet, Halfspace, ObtuseCone
from resolvent.problems.logistic import Logistic
from resolvent.problems.quantile import AbsoluteDeviations, Quantile
from resolvent.problems.sets import Ball, Box, Orthant, Simplex
from resolvent.problems.simple import HalfSquares, Quadratics, plus_minus
from resolvent.problems.softmax import Softmax
from resolvent.solving.run import Run
from resolvent.solving.solve import solve
from resolvent.solving.stopping import STOP, Stop
from resolvent.theory.explain import Explanation, explain

if TYPE_CHECKING:
    from resolvent.engines.all_reduce import AllReduce
    from resolvent.experiment.opening import open_run as open
    from resolvent.networks import models
    from resolvent.networks.problem import Neural
    from resolvent.report.plotting import plot
    from resolvent.solving.comparing import compare
    from resolvent.solving.seeds import solve_seeds

__all__ = [
    "L1",
    "L2",
    "STOP",
    "TABLE",
    "AbsoluteDeviations",
    "AffineSet",
    "AllReduce",
    "Anderson",
    "Ball",
    "Bernoulli",
    "Box",
    "CoordinateMedian",
    "Custom",
    "DivergenceWarning",
    "DoubtfulResult",
    "ElasticNet",
    "Everyone",
    "ExactProx",
    "Explanation",
    "FixedSize",
    "GeometricMedian",
    "GradientProx",
    "GradientSteps",
    "HalfSquares",
    "Halfspace",
    "HeldOut",
    "Huber",
    "Indicators",
    "InputError",
    "LeastSquares",
    "Logistic",
    "MayNotConverge",
    "Momentum",
    "Neural",
    "NewtonProx",
    "NormalisedSteps",
    "ObtuseCone",
    "Orthant",
    "Poisson",
    "Quadratics",
    "Quantile",
    "Quantised",
    "RandomK",
    "RandomTiltedSteps",
    "ResolventWarning",
    "Round",
    "Run",
    "Scheme",
    "ServerAdagrad",
    "ServerAdam",
    "ServerYogi",
    "Simplex",
    "Softmax",
    "SolvesAnotherProblem",
    "SquaredHinge",
    "State",
    "Stop",
    "Stragglers",
    "TiltedSteps",
    "TopK",
    "Trace",
    "TrimmedMean",
    "UserPrivacy",
    "compare",
    "data",
    "explain",
    "fedadmm",
    "fedavg",
    "feddyn",
    "fedexprox",
    "fednova",
    "fedpd",
    "fedpi",
    "fedprox",
    "fedrp",
    "fedsplit",
    "make_least_squares",
    "make_logistic",
    "models",
    "open",
    "plot",
    "plus_minus",
    "reflect_gradient",
    "reflect_prox",
    "scaffnew",
    "scaffold",
    "schedules",
    "solve",
    "solve_seeds",
    "theory",
]

LATER = {
    "AllReduce": "resolvent.engines.all_reduce:AllReduce",
    "Neural": "resolvent.networks.problem:Neural",
    "compare": "resolvent.solving.comparing:compare",
    "models": "resolvent.networks.models",
    "open": "resolvent.experiment.opening:open_run",
    "plot": "resolvent.report.plotting:plot",
    "solve_seeds": "resolvent.solving.seeds:solve_seeds",
}
"""What is imported when it is first asked for."""


def __getattr__(name: str) -> Any:
    """Constructors of rows added to TABLE; and what few need, when it is first asked for: network code, ranks."""
    if name in TABLE:
        return TABLE[name].scheme
    if name in LATER:
        return resolve_name(LATER[name])
    raise AttributeError(f"module 'resolvent' has no attribute {name!r}")
