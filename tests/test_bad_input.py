# mypy: disable-error-code="arg-type"
"""Whatever cannot work is refused before the first round, in one sentence that names the argument; what may not work
is warned of, in the words of `explain`."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from command_line import resolvent
from resolvent.errors import MAX_SENTENCE
from resolvent.solving.metrics import NAMED

ONES = np.ones((3, 4, 2))
LABELS = np.ones((3, 4))


@cache
def squares() -> rs.LeastSquares:
    return rs.make_least_squares(users=3, dim=2, rows=8, shift=1.0)


@cache
def blind() -> rs.Custom:
    """A problem with a prox and nothing else."""
    return rs.Custom(3, 2, prox=lambda U, eta: U / (1 + eta))


@cache
def steep() -> rs.Custom:
    """A problem with a gradient and nothing else."""
    return rs.Custom(3, 2, grad=lambda W: W)


def solve(scheme: Any = "fedpi", problem: Any = None, **more: Any) -> Callable[[], Any]:
    """A short run, to be tried."""
    return lambda: rs.solve(problem or squares(), scheme, **({"rounds": 3} | more))


def spoiled(shape: tuple[int, ...], at: tuple[int, ...], value: float = math.nan) -> Any:
    array = np.random.default_rng(0).standard_normal(shape)
    array[at] = value
    return array


def unequal(user: int, in_b: bool = False) -> tuple[list[Any], list[Any]]:
    """Users of unequal sizes, one of whom has a NaN."""
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((n, 2)) for n in (30, 4, 30, 31, 5)]
    b = [np.ones(len(a)) for a in A]
    (b if in_b else A)[user][0] = math.nan
    return A, b


REFUSED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    # data
    "A flat": (lambda: rs.LeastSquares(ONES[0], LABELS[0]), ["A is", "(4, 2)", "(users, rows, d)"]),
    "A without users": (lambda: rs.LeastSquares(ONES[:0], LABELS[:0]), ["A is", "(0, 4, 2)"]),
    "A without rows": (lambda: rs.LeastSquares(ONES[:, :0], LABELS[:, :0]), ["A is", "(3, 0, 2)"]),
    "A without columns": (lambda: rs.LeastSquares(ONES[:, :, :0], LABELS), ["A is", "(3, 4, 0)"]),
    "A text": (lambda: rs.LeastSquares("data.csv", LABELS), ["A ", "numbers"]),
    "A ragged": (lambda: rs.LeastSquares([[[1.0, 2.0], [3.0]]], [[1.0, 2.0]]), ["A[0]", "equal lengths"]),
    "b too short": (lambda: rs.LeastSquares(ONES, LABELS[:, :3]), ["b is", "(3, 3)", "(3, 4)"]),
    "b missing": (lambda: rs.LeastSquares(ONES, None), ["b "]),
    "no users": (lambda: rs.LeastSquares([], []), ["A is", "empty", "one user"]),
    "more A than b": (lambda: rs.LeastSquares(list(ONES), list(LABELS[:2])), ["b is", "2", "3"]),
    "a list and a number": (lambda: rs.LeastSquares(list(ONES), 3.0), ["b is"]),
    "a list and nothing": (lambda: rs.LeastSquares(list(ONES), None), ["b is"]),
    "columns differ": (
        lambda: rs.LeastSquares([np.ones((4, 2)), np.ones((4, 3))], list(LABELS[:2])),
        ["A[1]", "(4, 3)", "2 columns"],
    ),
    "a user without rows": (lambda: rs.LeastSquares([ONES[0], ONES[0, :0]], [LABELS[0], []]), ["A[1]", "(0, 2)"]),
    "rows differ": (
        lambda: rs.LeastSquares(list(ONES), [LABELS[0], LABELS[0], LABELS[0, :2]]),
        ["b[2]", "(2,)", "(4,)"],
    ),
    "NaN in A": (lambda: rs.LeastSquares(spoiled((3, 4, 2), (1, 2, 0)), LABELS), ["A", "user 1", "NaN"]),
    "infinity in A": (lambda: rs.LeastSquares(spoiled((3, 4, 2), (2, 2, 0), math.inf), LABELS), ["A", "user 2"]),
    "NaN in b": (lambda: rs.LeastSquares(ONES, spoiled((3, 4), (2, 0))), ["b", "user 2", "NaN"]),
    "NaN in A of thin users": (lambda: rs.LeastSquares(spoiled((3, 2, 4), (1, 0, 0)), LABELS[:, :2]), ["A", "user 1"]),
    "NaN in A of unequal users": (lambda: rs.LeastSquares(*unequal(3)), ["A", "user 3", "NaN"]),
    "NaN in A of the smallest user": (lambda: rs.LeastSquares(*unequal(4)), ["A", "user 4", "NaN"]),
    "NaN in b of unequal users": (lambda: rs.LeastSquares(*unequal(1, in_b=True)), ["b", "user 1", "NaN"]),
    "NaN in A of Logistic": (lambda: rs.Logistic(spoiled((3, 4, 2), (1, 2, 0)), LABELS), ["A", "user 1", "NaN"]),
    "NaN in A of unequal Logistic": (lambda: rs.Logistic(*unequal(3)), ["A", "user 3", "NaN"]),
    "NaN in b of Logistic": (lambda: rs.Logistic(ONES, spoiled((3, 4), (2, 0))), ["b", "-1 and +1"]),
    "labels 0 and 1": (lambda: rs.Logistic(ONES, np.zeros((3, 4))), ["b ", "-1 and +1"]),
    "labels of unequal users": (
        lambda: rs.Logistic([ONES[0], ONES[0, :2]], [LABELS[0], [2.0, 1.0]]),
        ["b ", "-1 and +1"],
    ),
    "reg negative": (lambda: rs.Logistic(ONES, LABELS, reg=-0.1), ["reg is", "-0.1", ">= 0"]),
    "reg NaN": (lambda: rs.Logistic(ONES, LABELS, reg=math.nan), ["reg is", "nan"]),
    "reg for other users": (lambda: rs.Logistic(ONES, LABELS, reg=[1.0, 2.0]), ["reg is", "3 users"]),
    "deviations with rows": (lambda: rs.AbsoluteDeviations(ONES, LABELS), ["A is", "(3, 4, 2)", "(users, d)"]),
    "deviations b": (lambda: rs.AbsoluteDeviations(ONES[0], LABELS[0, :2]), ["b is", "(2,)", "4 rows"]),
    "deviations NaN": (lambda: rs.AbsoluteDeviations(spoiled((3, 2), (2, 1)), [1, 2, 3]), ["A is", "user 2"]),
    "deviations NaN in b": (lambda: rs.AbsoluteDeviations(ONES[0], spoiled((4,), (3,))), ["b is", "user 3"]),
    "quadratics": (lambda: rs.Quadratics([1.0, -1.0], [0.0, 1.0]), ["curvature is", "user 1", "> 0"]),
    # weights
    "weights negative": (lambda: rs.LeastSquares(ONES, LABELS, weights=[1, -1, 1]), ["weights", "negative", ">= 0"]),
    "weights NaN": (lambda: rs.Logistic(ONES, LABELS, weights=[1, math.nan, 1]), ["weights", "finite"]),
    "weights too few": (lambda: rs.LeastSquares(ONES, LABELS, weights=[1, 1]), ["weights", "(2,)", "3 users"]),
    "weights all zero": (lambda: rs.LeastSquares(ONES, LABELS, weights=[0, 0, 0]), ["weights", "zero", "positive"]),
    "weights text": (lambda: rs.LeastSquares(ONES, LABELS, weights=["a", "b", "c"]), ["weights", "numbers"]),
    "weights of Custom": (lambda: rs.Custom(2, 1, grad=lambda W: W, weights=[1, -1]), ["weights", "negative"]),
    # generators
    "users 0": (lambda: rs.make_least_squares(users=0), ["users is", "0", ">= 1"]),
    "dim 1.5": (lambda: rs.make_logistic(dim=1.5), ["dim is", "1.5"]),
    # eta and schedules
    "eta zero": (lambda: rs.fedpi(0.0), ["eta is", "0", "> 0"]),
    "eta negative": (lambda: rs.fedavg(-0.1), ["eta is", "-0.1", "> 0"]),
    "eta NaN": (lambda: rs.fedprox(math.nan), ["eta is", "nan"]),
    "eta infinite": (lambda: rs.fedprox(math.inf), ["eta is", "inf"]),
    "eta True": (lambda: rs.fedprox(True), ["eta is", "True"]),
    "eta a word": (lambda: rs.fedpi("fast"), ["eta is", "'fast'", '"auto"']),
    "eta None": (lambda: rs.fedpi(None), ["eta is", "None"]),
    "eta falls to zero": (solve(rs.fedpi(lambda t: 0.1 - 0.1 * t)), ["eta is", "round", "> 0"]),
    "eta turns NaN": (solve(rs.fedpi(lambda t: 0.1 if t < 2 else math.nan)), ["eta is", "nan", "round"]),
    "harmonic": (lambda: rs.schedules.harmonic(0.0), ["eta0 is", "0", "> 0"]),
    "inverse_sqrt": (lambda: rs.schedules.inverse_sqrt(-1.0), ["eta0 is", "-1"]),
    "inverse_log": (lambda: rs.schedules.inverse_log(math.nan), ["eta0 is", "nan"]),
    "halving": (lambda: rs.schedules.halving(1.0, period=0), ["period is", "0", ">= 1"]),
    "halving text": (lambda: rs.schedules.halving("1", period=2), ["eta0 is"]),
    "constant text": (lambda: rs.schedules.constant("x"), ["eta0 is", "x"]),
    # alpha, beta, gamma
    "alpha above": (lambda: rs.Scheme(2.5, 1, 1, 0.1), ["alpha is", "2.5", "[0, 2]", "beyond=True"]),
    "alpha below": (lambda: rs.Scheme(-0.1, 1, 1, 0.1), ["alpha is", "-0.1", "[0, 2]"]),
    "beta above": (lambda: rs.Scheme(1, 2.1, 1, 0.1), ["beta is", "2.1", "[0, 2]"]),
    "gamma above": (lambda: rs.Scheme(1, 1, 1.5, 0.1), ["gamma is", "1.5", "[0, 1]"]),
    "alpha NaN": (lambda: rs.Scheme(math.nan, 1, 1, 0.1), ["alpha is", "nan"]),
    "alpha infinite on purpose": (lambda: rs.Scheme(math.inf, 1, 1, 0.1, beyond=True), ["alpha is", "inf"]),
    "alpha a word": (lambda: rs.Scheme("two", 1, 1, 0.1), ["alpha is", "'two'"]),
    "alpha leaves later": (solve(rs.Scheme(lambda t: 1.0 + t, 1, 1, 0.01)), ["alpha is", "[0, 2]", "round"]),
    "gamma turns NaN": (solve(rs.Scheme(1, 1, lambda t: 1.0 if t < 2 else math.nan, 0.01)), ["gamma is", "nan"]),
    "steps 0": (lambda: rs.fedavg(0.1, steps=0), ["steps is", "0", "1"]),
    "steps 1.5": (lambda: rs.fedavg(0.1, steps=1.5), ["steps is", "1.5"]),
    # schemes by name
    "unknown scheme": (solve("fedsgd"), ["scheme is", "'fedsgd'", "fedpi"]),
    "scheme a number": (solve(3), ["scheme is", "3", "fedpi"]),
    "no eta": (solve("fedprox"), ["scheme is", "'fedprox'", "eta"]),
    "no eta for gradients": (solve("fedavg"), ["scheme is", "'fedavg'", "eta"]),
    "explain unknown": (lambda: rs.explain("fedsgd"), ["scheme is", "'fedsgd'"]),
    # automatic eta
    "auto FedProx": (lambda: rs.fedprox("auto"), ["eta is", '"auto"', "FedProx", "FedPi"]),
    "auto FedAvg": (lambda: rs.fedavg("auto"), ["eta is", '"auto"', "FedAvg"]),
    "auto FedRP": (lambda: rs.fedrp("auto"), ["eta is", '"auto"', "FedRP"]),
    "auto R_H P": (lambda: rs.reflect_prox("auto"), ["eta is", '"auto"', "R_H P"]),
    "auto gradient steps": (lambda: rs.fedpi("auto", local=rs.GradientSteps(1)), ["eta is", '"auto"']),
    "auto changing alpha": (lambda: rs.Scheme(lambda t: 2.0, 2, 0.5, "auto"), ["eta is", '"auto"']),
    "auto as the paper samples": (solve(participation=rs.Bernoulli(0.5, absent="paper")), ["eta is", '"auto"', "hold"]),
    # participation
    "p 0": (lambda: rs.Bernoulli(0), ["p is", "0", "(0, 1]"]),
    "p above 1": (lambda: rs.Bernoulli(1.5), ["p is", "1.5", "(0, 1]"]),
    "p NaN": (lambda: rs.Bernoulli(math.nan), ["p is", "nan"]),
    "p a word": (lambda: rs.Bernoulli("half"), ["p is", "half"]),
    "participation 0": (solve(participation=0.0), ["p is", "0", "(0, 1]"]),
    "participation a word": (solve(participation="half"), ["participation is", "'half'"]),
    "absent": (lambda: rs.Bernoulli(0.5, absent="drop"), ["absent is", "'drop'", "hold", "paper"]),
    "n 0": (lambda: rs.FixedSize(0), ["n is", "0", ">= 1"]),
    "n 1.5": (lambda: rs.FixedSize(1.5), ["n is", "1.5"]),
    "n above users": (solve(participation=rs.FixedSize(4)), ["n is", "4", "3"]),
    "trace too wide": (solve(participation=rs.Trace([[True] * 4])), ["masks", "4", "3"]),
    "trace flat": (lambda: rs.Trace([True, False]), ["masks is", "(2,)", "(rounds, users)"]),
    "trace empty": (lambda: rs.Trace(np.zeros((0, 3))), ["masks is", "(0, 3)"]),
    "trace of numbers": (lambda: rs.Trace([[0.5, 1.0]]), ["masks is", "booleans"]),
    "trace ragged": (lambda: rs.Trace([[True], [True, False]]), ["masks", "(rounds, users)"]),
    # Anderson
    "memory negative": (lambda: rs.Anderson(-1), ["memory is", "-1", ">= 0"]),
    "memory 2.5": (lambda: rs.Anderson(2.5), ["memory is", "2.5"]),
    "on": (lambda: rs.Anderson(2, on="z"), ["on is", "'z'", '"mean"']),
    "ridge": (lambda: rs.Anderson(2, ridge=-1e-3), ["ridge is", "-0.001", ">= 0"]),
    "damping": (lambda: rs.Anderson(2, damping=0.0), ["damping is", "0", "(0, 1]"]),
    "anderson a word": (solve(anderson="yes"), ["anderson is", "'yes'", "rs.Anderson"]),
    "anderson True": (solve(anderson=True), ["anderson is", "True"]),
    "accelerate a word": (solve(accelerate="yes"), ["accelerate is", "'yes'", "rs.Anderson"]),
    "anderson -1": (solve(anderson=-1), ["memory is", "-1"]),
    # local operators
    "batch 0": (lambda: rs.GradientSteps(1, batch=0), ["batch is", "0", "1"]),
    "batch 1.5": (lambda: rs.GradientSteps(1, batch=1.5), ["batch is", "1.5"]),
    "prox steps 0": (lambda: rs.GradientProx(0), ["steps is", "0", "1"]),
    "lr 0": (lambda: rs.GradientProx(5, lr=0.0), ["lr is", "0", "> 0"]),
    "lr NaN": (lambda: rs.GradientProx(5, lr=math.nan), ["lr is", "nan"]),
    "momentum 1": (lambda: rs.GradientSteps(5, momentum=1.0), ["momentum is", "1", "[0, 1)"]),
    "inner anderson with batches": (lambda: rs.GradientProx(5, batch=2, anderson=2), ["anderson is", "batch"]),
    "inner anderson negative": (lambda: rs.GradientProx(5, anderson=-2), ["anderson is", "-2"]),
    "tol 1": (lambda: rs.NewtonProx(tol=1.0), ["tol is", "1", "[0, 1)"]),
    "tol negative": (lambda: rs.NewtonProx(tol=-1e-3), ["tol is", "-0.001"]),
    "local a word": (solve(rs.fedpi(0.1, local="newton")), ["local is", "'newton'"]),
    "gradients of a prox": (solve(rs.fedavg(0.1), blind()), ["local is", "GradientSteps", "grad", "Custom"]),
    "prox of gradients": (solve(rs.fedpi(0.1, local=rs.ExactProx()), steep()), ["local is", "ExactProx", "prox"]),
    "Newton without a Hessian": (
        solve(rs.fedpi(0.1, local=rs.NewtonProx()), blind()),
        ["local is", "NewtonProx", "hessian"],
    ),
    "batches of no rows": (
        solve(rs.fedavg(0.1, local=rs.GradientSteps(1, batch=2)), steep()),
        ["local is", "GradientSteps", "batches"],
    ),
    "gradients of indicators": (
        solve(rs.fedavg(0.1), rs.Indicators([rs.Orthant(2)])),
        ["local is", "grad", "Indicators"],
    ),
    # solve
    "problem missing": (lambda: rs.solve(None, "fedpi"), ["problem is", "NoneType"]),
    "problem a number": (lambda: rs.solve(3, rs.fedpi(0.1)), ["problem is", "int"]),
    "problem an array": (lambda: rs.solve(ONES, rs.fedavg(0.1)), ["problem is", "ndarray"]),
    "rounds 0": (solve(rounds=0), ["rounds is", "0", ">= 1"]),
    "rounds negative": (solve(rounds=-3), ["rounds is", "-3"]),
    "rounds 2.5": (solve(rounds=2.5), ["rounds is", "2.5", "whole"]),
    "every 0": (solve(every=0), ["every is", "0", ">= 1"]),
    "every 1.5": (solve(every=1.5), ["every is", "1.5", "whole"]),
    "engine": (solve(engine="gpu"), ["engine is", "'gpu'", "in_process", "debug"]),
    "engine None": (solve(engine=None), ["engine is", "None"]),
    "average": (solve(average="mean"), ["average is", "'mean'", "ergodic", "suffix"]),
    "average True": (solve(average=True), ["average is", "True"]),
    "seed a word": (solve(seed="a", participation=0.5), ["seed is", "'a'"]),
    "seed 1.5": (solve(seed=1.5, participation=0.5), ["seed is", "1.5"]),
    "seed too large": (solve(seed=2**64, participation=0.5), ["seed is"]),
    "start too short": (solve(start=[1.0]), ["start is", "(2,)", "(3, 2)"]),
    "start of other users": (solve(start=np.ones((4, 2))), ["start is", "(4, 2)", "(3, 2)"]),
    "start a cube": (solve(start=np.ones((3, 2, 1))), ["start is", "(3, 2, 1)"]),
    "start NaN": (solve(start=[1.0, math.nan]), ["start is", "NaN", "finite"]),
    "start text": (solve(start="zero"), ["start ", "numbers"]),
    "start another State": (
        lambda: rs.solve(squares(), "fedpi", start=rs.State(0, *[torch.zeros(4, 5)] * 2, *[torch.zeros(1, 5)] * 2)),
        ["start is", "(4, 5)", "(3, 2)"],
    ),
    "stop a number": (solve(stop=1e-6), ["stop is", "1e-06", "rs.Stop"]),
    "stop negative": (lambda: rs.Stop(gap=-1.0), ["stop.gap is", "-1", ">= 0"]),
    "stop NaN": (lambda: rs.Stop(residual=math.nan), ["stop.residual is", "nan"]),
    "stop seconds": (lambda: rs.Stop(seconds=-1), ["stop.seconds is", "-1"]),
    "stop certificates": (lambda: rs.Stop(certificates=-1), ["stop.certificates is", "-1"]),
    "callback a number": (solve(callback=3), ["callback is", "3"]),
    # theory and runs
    "best eta": (lambda: rs.theory.best_eta(blind()), ["best_eta", "strongly convex", '"auto"']),
    "heterogeneity": (lambda: rs.theory.heterogeneity(blind()), ["heterogeneity", "minimiser"]),
    "closed form": (
        lambda: rs.theory.regularised_minimiser(blind(), 0.1),
        ["closed form", "Custom", "rs.LeastSquares"],
    ),
    "effective eta": (lambda: rs.theory.effective_eta(1, 0, 0.1), ["beta is", "0"]),
    "load": (lambda: rs.Run.load(Path("/nowhere")), ["folder is", "/nowhere", "Run.save"]),
}


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
@pytest.mark.parametrize(("attempt", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused_in_one_sentence(attempt: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(rs.InputError) as caught:
        attempt()
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert not re.search(r"\. [A-Z]", message), "more than one sentence"
    assert len(message) < 300


@pytest.mark.parametrize("name", ["x" * 5000, "x y " * 1250])
def test_a_long_name_is_cut_and_what_is_needed_is_not(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[scheme]\nalgorithm = "{name}"\n')
    for command in (("run", "logistic", "--algorithm", name), ("run", "logistic", "--set", f"scheme.{name}=1"),
                    ("run", name), ("run", file), ("show", name), ("data", name), ("reproduce", name),
                    ("run", "logistic", "--metrics", name)):  # fmt: skip
        said = resolvent(*command, *(("--out", tmp_path) if command[0] in ("run", "show") else ()))
        assert said.code == 2, command
        assert len(said.err) < MAX_SENTENCE + 100, command
    assert "there is no metric" in said.err
    assert said.err.endswith(f"there are {', '.join(NAMED)}\n")


def test_every_refusal_is_a_value_error() -> None:
    assert issubclass(rs.InputError, ValueError)


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
@pytest.mark.parametrize(
    "attempt",
    [
        solve(rs.fedavg(0.01), participation=rs.FixedSize(3)),
        solve(rs.Scheme(3, 1.5, 0.25, 0.01, beyond=True)),
        solve(rs.Scheme(0, 0, 0, 0.01)),
        solve(rs.fedpi(np.float64(0.1)), rounds=1, every=5),
        solve("FedPi"),
        solve(rs.fedpi("auto"), participation=rs.Bernoulli(1, absent="paper")),
        lambda: rs.LeastSquares(ONES.tolist(), LABELS.tolist(), weights=[1, 0, 0]),
        lambda: rs.Logistic(ONES, LABELS.astype(int), reg=0),
    ],
    ids=["all users", "beyond", "nothing moves", "numpy", "a name", "auto with everyone", "lists", "integers"],
)
def test_what_looks_odd_but_is_right_is_not_refused(attempt: Callable[[], Any]) -> None:
    attempt()


# --- warnings --------------------------------------------------------------------------------------------------------


@cache
def thin() -> rs.LeastSquares:
    """Fewer rows than unknowns: convex, not strongly."""
    return rs.make_least_squares(users=3, dim=4, rows=2)


@cache
def uneven() -> rs.LeastSquares:
    """Curvatures 10, 0.1, 0.1."""
    return rs.LeastSquares([np.eye(2) * math.sqrt(c) for c in (10.0, 0.1, 0.1)], LABELS[:, :2])


def above(factor: float, problem: Any = None, largest: bool = False) -> float:
    """So many times the step 1/L, for the curvature of the mean, or for the largest of all users."""
    L = (problem or squares()).lipschitz
    return factor / float(L.max() if largest else L.mean())


OTHER, MAYBE, PLAIN = rs.SolvesAnotherProblem, rs.MayNotConverge, rs.ResolventWarning
WARNED: dict[str, tuple[Any, Any, dict[str, Any], list[tuple[type, str]]]] = {
    "gradient step above 2/L": (squares, rs.fedavg(above(2.1)), {}, [(MAYBE, r"eta = .* is above 2/L")]),
    "steps above 2/L": (
        squares,
        rs.fedavg(above(2.1, largest=True), steps=3),
        {},
        [(OTHER, "solve neither.*local steps"), (MAYBE, "is above 2/L")],
    ),
    "reflected gradient above 2/L": (
        squares,
        rs.reflect_gradient(above(2.1, largest=True)),
        {},
        [(OTHER, "solve neither"), (MAYBE, "is above 2/L")],
    ),
    "twice a step is above 2/L": (
        squares,
        rs.Scheme(2, 1, 1, above(1.5), forward=True),
        {},
        [(MAYBE, "is above")],
    ),
    "above 2/L for one user, who may come alone": (
        uneven,
        rs.fedavg(above(1.8, uneven())),
        {"participation": rs.Bernoulli(0.5)},
        [(MAYBE, "is above 2/L")],
    ),
    "lr above 2/(L + 1/eta)": (
        squares,
        rs.fedpi(0.1, local=rs.GradientProx(5, lr=1.0)),
        {},
        [(OTHER, "solve neither.*local steps"), (MAYBE, r"lr = 1 is above 2/\(L \+ 1/eta\)")],
    ),
    "a schedule that resets Anderson": (
        squares,
        rs.fedpi(rs.schedules.inverse_sqrt(0.1)),
        {"anderson": 2},
        [(PLAIN, "changes every round.*Anderson.*does nothing")],
    ),
    "FedSplit on thin data": (thin, rs.fedsplit(0.1), {}, [(MAYBE, "FedSplit needs strongly convex and smooth")]),
    "FedSplit on deviations": (
        lambda: rs.AbsoluteDeviations(ONES[0], LABELS[0]),
        rs.fedsplit(0.1),
        {},
        [(MAYBE, "FedSplit needs strongly convex and smooth")],
    ),
    "Anderson and sampling": (
        squares,
        rs.fedpi(0.1),
        {"anderson": 2, "participation": 0.5},
        [(PLAIN, "Anderson.*sampling.*can hurt")],
    ),
    "sampling as in the paper": (
        squares,
        rs.fedpi(0.1),
        {"participation": rs.Bernoulli(0.5, absent="paper")},
        [(OTHER, "Algorithm 1's sampling")],
    ),
    "FedProx": (squares, rs.fedprox(0.1), {}, [(OTHER, "FedProx at eta = 0.1 does not solve.*eta_eff = 0.1")]),
    "FedRP": (squares, rs.fedrp(0.1), {}, [(OTHER, "FedRP at eta = 0.1 does not solve.*eta_eff = 0.1")]),
    "R_H P": (squares, rs.reflect_prox(0.1), {}, [(OTHER, "does not solve.*eta_eff = 0.05")]),
    "FedAvg with several steps": (squares, rs.fedavg(0.001, steps=5), {}, [(OTHER, r"eta \(k-1\)/2 = 0.002")]),
    "R_H G": (squares, rs.reflect_gradient(0.001), {}, [(OTHER, "solve neither")]),
    "an inexact prox": (
        squares,
        rs.fedpi(0.1, local=rs.GradientProx(5)),
        {},
        [(OTHER, "only as well as its local operator")],
    ),
    "a schedule that stops short": (
        squares,
        rs.fedprox(rs.schedules.halving(0.1, 5)),
        {},
        [(MAYBE, "vanishes so fast")],
    ),
    "FedPi with a schedule that stops short": (
        squares,
        rs.fedpi(rs.schedules.halving(0.1, 2)),
        {},
        [(MAYBE, "vanishes so fast")],
    ),
    "leaving the theory": (
        squares,
        rs.Scheme(3, 1.5, 0.25, 0.01, beyond=True),
        {},
        [(MAYBE, "leaves the theory")],
    ),
    "not convex": (
        lambda: rs.Custom(2, 1, grad=lambda W: torch.sin(W), convex=False),
        rs.fedavg(0.1),
        {},
        [(MAYBE, "not convex")],
    ),
}


@pytest.mark.parametrize(("problem", "scheme", "more", "expected"), WARNED.values(), ids=WARNED.keys())
def test_is_warned_of_in_the_words_of_explain(
    problem: Callable[[], Any], scheme: rs.Scheme, more: dict[str, Any], expected: list[tuple[type, str]]
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rs.solve(problem(), scheme, rounds=2, **more)
    of_the_end = (rs.DoubtfulResult, rs.DivergenceWarning)  # what the rounds themselves showed, said after them
    before = [w for w in caught if issubclass(w.category, rs.ResolventWarning) and w.category not in of_the_end]
    said = [(w.category, str(w.message)) for w in before]
    explained = rs.explain(scheme, problem(), **more).findings
    assert [text for _, text in said] == [" Also: ".join(map(str, explained))][: len(explained)]
    assert all(issubclass(kind, finding.about) for kind, _ in said for finding in explained)
    for category, words in expected:
        assert any(f.about is category and re.search(words, str(f)) for f in explained), (category, words, said)
    assert all("\n" not in text for _, text in said)
    assert all(w.filename == __file__ for w in caught), "a warning points at the caller's line"


RESTING = rs.schedules.Schedule(lambda t: 0.1 if t < 9 else 0.05, "two values", changes="sometimes")
SOUND = {
    "FedPi": (squares, rs.fedpi(0.1), {}),
    "FedPi on thin data": (thin, rs.fedpi(0.1), {}),
    "FedPi by name": (squares, "fedpi", {}),
    "FedSplit": (squares, rs.fedsplit(0.1), {}),
    "FedAvg": (squares, rs.fedavg(above(1.9)), {}),
    "FedAvg under its own largest curvature": (uneven, rs.fedavg(above(1.8, uneven())), {}),
    "FedProx with a schedule that arrives": (squares, rs.fedprox(rs.schedules.harmonic(0.1)), {}),
    "Anderson": (squares, rs.fedpi(0.1), {"anderson": 2}),
    "Anderson and a schedule that rests": (squares, rs.fedpi(RESTING), {"anderson": 2}),
    "hold": (squares, rs.fedpi(0.1), {"participation": 0.5}),
}


@pytest.mark.parametrize(("problem", "scheme", "more"), SOUND.values(), ids=SOUND.keys())
def test_nothing_is_said_against_what_is_right(problem: Any, scheme: Any, more: dict[str, Any]) -> None:
    rs.solve(problem(), scheme, rounds=2, **more)
    assert rs.explain(scheme, problem(), **more).findings == ()
