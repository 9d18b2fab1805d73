"""The front door: `solve` runs a scheme on a problem and hands back a Run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

from numpy.typing import ArrayLike
from torch import Tensor

from resolvent.data.held_out import HeldOut
from resolvent.iteration.engine import Engine, Joining
from resolvent.iteration.facts import Facts
from resolvent.iteration.round import Round
from resolvent.iteration.scheme import Number, Scheme
from resolvent.iteration.state import State
from resolvent.problems.problem import Problem
from resolvent.solving.prepare import PartKeywords, check_keywords, prepare
from resolvent.solving.run import Run
from resolvent.solving.stopping import Stop


def solve(
    problem: Problem | Facts | None,
    scheme: Scheme | str,
    rounds: int = 100,
    *,
    engine: str | Engine | Joining = "in_process",
    seed: int = 0,
    start: ArrayLike | Tensor | State | str | None = None,
    stop: Stop | Callable[[Round], bool] | None = None,
    every: int = 1,
    callback: Callable[[Round], Any] | None = None,
    progress: bool | None = None,
    log: str | Path | Callable[[dict[str, Any]], Any] | None = None,
    eta: Number | str | None = None,
    test: HeldOut | None = None,
    validation: HeldOut | None = None,
    metrics: Mapping[str, Callable[[Any, Any], float]] | Iterable[str] | None = None,
    validate_every: int | None = None,
    **parts: Unpack[PartKeywords],
) -> Run:
    """Run `rounds` rounds of a scheme, from `start`: a vector, rows (users, d), or the State of an earlier run.

    start="random": the seed draws the initial weights of a network too; else it begins as the module was given.

    problem: rs.LeastSquares, rs.Logistic, rs.Neural, ...; None where `engine` is ready-made and has its own users.
    scheme: a row of Table 1 such as rs.fedpi(eta=1e-2), an rs.Scheme, or a name with `eta` ("fedpi" finds its own).
    stop: rs.Stop(gap=1e-10, ...) or a function of the round.
    every: one row of the history for every round that it divides, and for the last.
    callback: called with every Round, whose `value` and `metrics` are computed when asked for; rs.STOP ends the run.
    log: a folder for TensorBoard, or a function that is given every row of the history as it comes.
    validation, test: rs.HeldOut(A, b), rows that no user trains on; their metrics become columns such as test_auc.
    metrics: names ("accuracy", "auc", "log_loss", "rmse") or functions of (truth, scores) by name; of a network, of
    (targets, outputs) as they are.
    validate_every: metrics are computed in the first row, in rounds that it divides and in the last, and are NaN in
    other rows.

    What a round consists of comes as parts, by keyword:
    anderson: a memory such as 2, or rs.Anderson. accelerate: any acceleration, such as rs.Momentum(0.9).
    participation: a probability, rs.Bernoulli, rs.FixedSize, rs.Trace, rs.Stragglers.
    penalty: rs.L1(t), rs.Box(low, high), ..., where the problem has none: the objective is sum_i lambda_i f_i + g.
    metric: "auto", "identity", or a positive definite matrix (d, d) in which proxes are taken.
    average: "ergodic" (the paper's) or "suffix". send: what crosses, in place of all of z. meet: where users meet, in
    place of the weighted mean. privacy: rs.UserPrivacy, which clips, adds noise, and counts what is released.

    Warns when the configuration does not solve the original problem or may not converge, in the words of rs.explain.
    Divergence and Ctrl-C end the run early, with a State to go on from; Run.status says so. What code of yours raises
    in a round comes through, with the Run so far as its attribute `run`.
    """
    arguments = {name: given for name, given in locals().items() if name != "parts"}
    check_keywords(parts)
    return prepare(**arguments, **parts).run()
