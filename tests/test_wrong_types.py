"""Arguments of wrong types, over the whole public face: each is taken, or refused in one sentence of our own.

Every argument of every public function and class is replaced in turn by values that nobody means: text for a number,
dictionaries, numbers of 400 digits, NaN, arrays. What is accepted is used for two rounds. Nothing may end in an error
that is not ours: a foreign traceback says nothing about which argument was wrong.
"""

from __future__ import annotations

import inspect
import itertools
import math
import traceback
import warnings
from collections.abc import Callable
from fractions import Fraction
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import resolvent as rs
from resolvent.errors import BadAnswer, InputError
from resolvent.solving.prepare import PartKeywords


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


class Raising(list):  # type: ignore[type-arg]
    """Raises whatever is asked of it."""

    def _raise(self, *given: Any) -> Any:
        raise KeyError("hostile")

    __repr__ = __len__ = __iter__ = __getitem__ = __index__ = __float__ = __array__ = _raise


class Endless:
    """Has items for ever, and says that it has none."""

    def __iter__(self) -> Any:
        return itertools.count()

    def __len__(self) -> int:
        return 0


WRONG: dict[str, Any] = {
    "text": "text", "no text": "", "bytes": b"x", "a dictionary": {"a": 1}, "an empty one": {}, "None": None,
    "400 digits": 10**400, "400 digits below 0": -(10**400), "5,000 digits": 10**5000,
    "a list of 5,000 digits": [-(10**5000)], "5,000 characters": "x" * 5000, "2,500 words": "x " * 2500,
    "NaN": math.nan, "infinity": math.inf, "-1": -1, "0": 0, "2.5": 2.5, "True": True, "an empty list": [],
    "a list": [1, 2], "a list of text": ["a"], "a tuple": (1.0,),
    "a set": {1}, "an object": object(), "a class": int, "a module": math, "a complex number": 1j,
    "an array": np.array([1.0, 2.0]), "an array of text": np.array("x"), "an array of objects": np.array([None, {}]),
    "a fraction": Fraction(1, 3), "the smallest number": 5e-324, "one object in an array": np.array(object()),
    "a list in itself": _endless(), "a function": lambda *given: None, "a sparse tensor": torch.eye(2).to_sparse(),
    "a tensor without data": torch.empty(2, device="meta"), "a tensor with a gradient": torch.ones(2).requires_grad_(),
    "what raises": Raising([1]), "what never ends": Endless(), "a long range": range(10**15),
    "a tensor": torch.ones(2), "a tensor of no axes": torch.tensor(math.nan), "a range": range(3),
}  # fmt: skip
MAX_MESSAGE = 2010
"""Characters of a sentence: whatever came is cut."""
ROWS, LABELS = np.arange(12.0).reshape(2, 3, 2) % 5 - 2, np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, 1.0]])


def squares() -> Any:
    return rs.make_least_squares(users=2, dim=2, rows=4)


def used(scheme: Any = None, problem: Any = None, **more: Any) -> None:
    """Two rounds with what was made."""
    rs.solve(problem or squares(), scheme or rs.fedpi(0.1), **({"rounds": 2, "progress": False} | more))


def used_by_four(**more: Any) -> None:
    used(problem=rs.make_least_squares(users=4, dim=2, rows=4), **more)


def used_locally(operator: Any) -> None:
    used(rs.fedavg(0.1, local=operator) if operator.forward else rs.fedpi(0.1, local=operator))


def used_on(problem: Any) -> None:
    used(problem=problem)


def used_as_set(of: Any) -> None:
    used(problem=rs.Indicators([of, of]))


def user_data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.ones(3, 2), torch.zeros(3, dtype=torch.long))] * 2


Given = dict[str, Any]
OVER_ROWS: Given = {"A": ROWS, "b": LABELS}
MODEL: Given = {"weights": None, "intercept": False, "penalty": None, "sample_weight": None}
CLASSIFIER: Given = MODEL | {"class_weight": None, "reg": 0.1}
PUBLIC: dict[str, tuple[Callable[[], Given], Callable[[Any], Any] | None]] = {
    "L1": (lambda: {"t": 0.1}, lambda g: used(penalty=g)),
    "L2": (lambda: {"t": 0.1}, lambda g: used(penalty=g)),
    "ElasticNet": (lambda: {"l1": 0.1, "l2": 0.1}, lambda g: used(penalty=g)),
    "AbsoluteDeviations": (lambda: {"A": ROWS[0], "b": LABELS[0], "weights": None, "penalty": None}, used_on),
    "AffineSet": (lambda: {"matrix": np.ones((1, 2)), "offset": np.ones(1)}, used_as_set),
    "AllReduce": (lambda: {"weights": None, "whole": False, "timeout": 5.0}, None),
    "Anderson": (lambda: {"memory": 2, "on": "u", "ridge": math.nan, "damping": math.nan, "safeguard": True,
                          "largest": 1e4}, lambda a: used(anderson=a)),
    "Ball": (lambda: {"centre": np.zeros(2), "radius": 1.0}, used_as_set),
    "Bernoulli": (lambda: {"p": 0.5, "absent": "hold"}, lambda who: used(participation=who)),
    "Box": (lambda: {"low": np.zeros(2), "high": np.ones(2)}, used_as_set),
    "Custom": (lambda: {"users": 2, "dim": 2, "value": lambda W: (W**2).sum(1) / 2, "grad": lambda W: W,
                        "prox": lambda U, eta: U / (1 + eta), "hessian": None, "weights": None, "minimiser": None,
                        "convex": True, "lipschitz": 1.0, "convexity": 1.0, "dtype": torch.float64, "check": True,
                        "penalty": None}, used_on),
    "Everyone": (lambda: {"absent": "hold"}, lambda who: used(participation=who)),
    "ExactProx": (dict, used_locally),
    "FixedSize": (lambda: {"n": 1, "absent": "hold"}, lambda who: used(participation=who)),
    "GradientProx": (lambda: {"steps": 2, "lr": 0.1, "batch": None, "momentum": 0.0, "anderson": 0,
                              "optimiser": None}, used_locally),
    "GradientSteps": (lambda: {"steps": 2, "batch": None, "momentum": 0.0}, used_locally),
    "HalfSquares": (lambda: {"users": 2, "dim": 2, "shift": None, "weights": None, "penalty": None}, used_on),
    "Halfspace": (lambda: {"normal": np.ones(2), "offset": 1.0}, used_as_set),
    "HeldOut": (lambda: OVER_ROWS | {"names": None}, lambda h: used(problem=rs.LeastSquares(ROWS, LABELS), test=h)),
    "Huber": (lambda: OVER_ROWS | MODEL | {"delta": 1.0, "reg": 0.1}, used_on),
    "Indicators": (lambda: {"sets": [rs.Ball(np.zeros(2), 1.0)] * 2, "weights": None, "minimiser": None, "tol": None,
                            "penalty": None}, used_on),
    "LeastSquares": (lambda: OVER_ROWS | MODEL, used_on),
    "Logistic": (lambda: OVER_ROWS | CLASSIFIER, used_on),
    "Momentum": (lambda: {"theta": 0.5, "on": "u"}, lambda a: used(accelerate=a)),
    "Neural": (lambda: {"model": nn.Linear(2, 2), "users": user_data(), "loss": nn.functional.cross_entropy,
                        "weights": None, "device": None, "dtype": None, "validation": None, "test": None,
                        "precision": "float32", "method": None, "lora": None}, lambda p: used(rs.fedavg(0.1), p)),
    "NewtonProx": (lambda: {"tol": 1e-12}, lambda o: used(rs.fedpi(0.1, local=o), rs.Logistic(ROWS, LABELS, reg=0.1))),
    "ObtuseCone": (lambda: {"axis": np.ones(2), "angle": 1.0}, used_as_set),
    "Orthant": (lambda: {"dim": 2}, used_as_set),
    "Poisson": (lambda: MODEL | {"A": ROWS, "b": LABELS + 1, "reg": 0.1}, used_on),
    "Quadratics": (lambda: {"curvature": np.ones(2), "centre": np.zeros((2, 2)), "weights": None,
                            "penalty": None}, used_on),
    "Quantile": (lambda: OVER_ROWS | MODEL | {"q": 0.5, "reg": 0.1}, used_on),
    "Scheme": (lambda: {"alpha": 1.0, "beta": 1.0, "gamma": 1.0, "eta": 0.1, "local": None, "name": "s",
                        "forward": False, "steps": 1, "beyond": False, "sampling": ""}, used),
    "Simplex": (lambda: {"total": 1.0}, lambda g: used(penalty=g)),
    "Softmax": (lambda: CLASSIFIER | {"A": ROWS, "y": LABELS, "classes": None}, used_on),
    "SquaredHinge": (lambda: OVER_ROWS | CLASSIFIER, used_on),
    "Stop": (lambda: {"gap": 1e-9, "residual": None, "certificates": None, "seconds": None, "metric": None,
                      "patience": 5, "min_delta": 0.0, "mode": None}, lambda stop: used(stop=stop)),
    "Stragglers": (lambda: {"times": 3.0, "close": 0.5, "spread": 0.3}, lambda who: used(participation=who)),
    "Trace": (lambda: {"masks": np.ones((2, 2), dtype=bool), "absent": "hold"}, lambda who: used(participation=who)),
    "explain": (lambda: {"scheme": rs.fedpi(0.1), "problem": squares(), "participation": None, "anderson": None,
                         "send": None, "down": None, "meet": None, "metric": None, "privacy": None}, str),
    "TopK": (lambda: {"share": 0.5}, lambda send: used(send=send)),
    "RandomK": (lambda: {"share": 0.5}, lambda send: used(send=send)),
    "Quantised": (lambda: {"bits": 8}, lambda send: used(send=send)),
    "TrimmedMean": (lambda: {"share": 0.4}, lambda meet: used_by_four(meet=meet)),
    "CoordinateMedian": (dict, lambda meet: used_by_four(meet=meet)),
    "GeometricMedian": (lambda: {"tol": 1e-9}, lambda meet: used_by_four(meet=meet)),
    "UserPrivacy": (lambda: {"clip": 1.0, "epsilon": 2.0, "delta": 1e-3, "noise": None, "quantile": None,
                             "local": False, "held_out": "private"}, lambda it: used(privacy=it)),
    "ServerAdam": (lambda: {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}, lambda it: used(accelerate=it)),
    "ServerYogi": (lambda: {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}, lambda it: used(accelerate=it)),
    "ServerAdagrad": (lambda: {"lr": 0.1, "beta1": 0.0, "tau": 1e-3}, lambda it: used(accelerate=it)),
    **{name: (lambda: {"steps": 2, "lr": 0.01, "batch": None, "momentum": 0.0}, used_locally)
       for name in ("TiltedSteps", "RandomTiltedSteps")},
    "NormalisedSteps": (lambda: {"steps": 2, "batch": None, "momentum": 0.0, "scale": None},
                        used_locally),
    **{name: (lambda: {"lr": 0.01, "steps": 2, "batch": None, "momentum": 0.0, "eta": None}, used)
       for name in ("scaffold", "scaffnew")},
    "fednova": (lambda: {"lr": 0.01, "steps": 2, "batch": None, "momentum": 0.0, "scale": None}, used),
    "fedexprox": (lambda: {"eta": 0.1, "gamma": 1.5, "local": None}, used),
    **{name: (lambda: {"eta": 0.1, "local": None}, used) for name in ("feddyn", "fedadmm", "fedpd")},
    "fedavg": (lambda: {"eta": 0.1, "steps": 1, "local": None}, used),
    **{name: (lambda: {"eta": 0.1, "local": None}, used)
       for name in ("fedpi", "fedprox", "fedrp", "fedsplit", "reflect_prox")},
    "reflect_gradient": (lambda: {"eta": 0.1, "steps": 1, "local": None}, used),
    "make_least_squares": (lambda: {"users": 2, "dim": 2, "rows": 4, "noise": 0.5, "shift": 0.0, "seed": 0}, used_on),
    "make_logistic": (lambda: {"users": 2, "dim": 2, "rows": 4, "seed": 0}, used_on),
    "open": (lambda: {"path": "nowhere"}, None),
    "plot": (lambda: {"runs": rs.solve(squares(), "fedpi", rounds=2), "y": None, "x": "round", "ax": None}, None),
    "plus_minus": (lambda: {"scale": 1.0}, used_on),
    "solve": (lambda: {"problem": squares(), "scheme": rs.fedpi(0.1), "rounds": 2, "anderson": None,
                       "participation": None, "engine": "in_process", "seed": 0, "start": None, "stop": None,
                       "average": None, "every": 1, "callback": None, "progress": False, "log": None, "eta": None,
                       "accelerate": None, "validation": None, "test": None, "metrics": None, "validate_every": None,
                       "penalty": None, "send": None, "down": None, "meet": None, "metric": None,
                       "privacy": None}, None),
    "compare": (lambda: {"problem": squares(), "schemes": [rs.fedpi(0.1)], "seeds": [0, 1], "rounds": 2}, None),
    "solve_seeds": (lambda: {"problems": squares(), "scheme": rs.fedpi(0.1), "seeds": [0, 1], "rounds": 2}, None),
}  # fmt: skip
"""Arguments that fit, and what uses the result."""
FRAME = pd.DataFrame({"who": [0, 0, 1, 1] * 3, "a": np.arange(12.0), "y": [0.0, 1.0] * 6})


def table() -> Any:
    return rs.data.from_frame(FRAME, user="who", target="y")


def images() -> Any:
    x, y = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
    return rs.data.Images(x, y, x, y, ("a",), "mine")


def done(problem: Any) -> Given:
    return {"self": rs.solve(problem, "fedpi", rounds=2, progress=False)}


MORE: dict[str, tuple[Callable[[], Given], Callable[[Any], Any] | None]] = {
    **{f"data.{name}": (lambda: {"path": "nowhere.csv"}, None)
       for name in ("columns", "frame", "inputs", "is_table", "read", "stem")},
    "data.cifar10": (lambda: {"folder": "nowhere", "offline": True}, None),
    "data.counts": (lambda: {"parts": [[0], [1]], "y": [0, 1]}, None),
    "data.from_frame": (lambda: {"frame": FRAME, "user": "who", "target": "y", "drop": (), "test": 0.2, "impute": None,
                                 "categories": (), "test_users": (), "positive": None, "seed": 0, "kind": "auto",
                                 "sample_weight": None}, None),
    "data.hospitals": (lambda: {"seed": 0}, None),
    "data.normalised": (lambda: {"images": images(), "mean": 0.5, "std": 0.5}, None),
    "data.signs": (lambda: {"y": [0, 1], "positive": None}, None),
    "data.split": (lambda: {"y": [0, 1, 0, 1], "users": 2, "spec": "iid", "seed": 0}, None),
    "data.splits": (lambda: {"indices": [0, 1], "fractions": (0.8, 0.1, 0.1), "seed": 0}, None),
    "schedules.inverse_log": (lambda: {"eta0": 0.1, "natural": False}, None),
    "Run.module": (lambda: {**done(squares()), "best": False}, None),
    "Run.export": (lambda: {**done(table().problem()), "file": "nowhere/x.txt"}, None),
    **{f"Run.{name}": (lambda: {**done(table().problem()), "X": FRAME}, None) for name in ("predict", "predict_proba")},
    "Run.score": (lambda: {**done(squares()), "X": ROWS[0], "y": LABELS[0]}, None),
}  # fmt: skip
"""The same of functions and methods of other modules. Of runs `self` is given as it is."""
NOT_MADE_BY_USERS = {"Explanation", "Round", "Run", "State", "STOP", "TABLE"}
CALLED = {
    ("solve", "stop"),
    ("solve", "callback"),
    ("solve", "log"),
    ("GradientProx", "optimiser"),
    *(("Custom", f) for f in ("value", "grad", "prox", "hessian")),
}
"""Functions of a user's own: what they raise comes through, and a class may be called like one."""


def foreign(name: str, argument: str, wrong: Any) -> str | None:
    """What is not ours of the error that this wrong argument ends in; None where it is taken, or refused by us."""
    given, use = (PUBLIC | MORE)[name]
    arguments = given()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = attrgetter(name)(rs)(**(arguments | {argument: wrong}))
            if use is not None:
                use(made)
    except (InputError, BadAnswer) as error:
        return (
            None
            if "\n" not in str(error).strip() and len(str(error)) <= MAX_MESSAGE
            else f"no sentence: {str(error)[:200]}"
        )
    except Exception as error:
        where = [f for f in traceback.extract_tb(error.__traceback__) if "/resolvent/" in f.filename][-1:]
        place = f"{where[0].filename.rpartition('/resolvent/')[2]}:{where[0].lineno}" if where else "?"
        return f"{type(error).__name__}: {str(error)[:90]} ({place})"
    return None


@pytest.mark.parametrize("name", PUBLIC | MORE)
def test_wrong_types_are_refused_by_us(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [argument for argument in (PUBLIC | MORE)[name][0]() if argument != "self"]
    ends = {
        (argument, what): foreign(name, argument, wrong)
        for argument in arguments
        for what, wrong in WRONG.items()
        if (name, argument) not in CALLED or not callable(wrong)
    }
    assert {key: end for key, end in ends.items() if end is not None} == {}


def test_every_public_name_is_tried_with_every_argument() -> None:
    public = {name for name in rs.__all__ if not isinstance(getattr(rs, name), ModuleType) and not _is_error(name)}
    assert public - NOT_MADE_BY_USERS == set(PUBLIC)
    for name, (given, _) in PUBLIC.items():
        accepted = inspect.signature(getattr(rs, name)).parameters.values()
        named = {one.name for one in accepted if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
        assert named <= set(given()), name
    assert PartKeywords.__annotations__.keys() <= PUBLIC["solve"][0]().keys()


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "open"])
def test_arguments_that_fit_are_taken(name: str) -> None:
    """Else what is refused above might be refused for another reason."""
    given, use = PUBLIC[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(rs, name)(**given())
        if use is not None:
            use(made)


def _is_error(name: str) -> bool:
    public = getattr(rs, name)
    return isinstance(public, type) and issubclass(public, Exception)
