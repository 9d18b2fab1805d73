"""The explorer's problems: small enough that a whole run takes a moment, each with the Python that makes it.

A problem is a function of its sizes. The page runs it, and shows its body as the Python to copy: one text for both.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import resolvent as rs


@dataclass(frozen=True)
class Sizes:
    """What the explorer lets one choose of a problem."""

    users: int = 5
    dim: int = 8
    heterogeneity: float = 0.5
    penalty: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Example:
    """A problem: the function of some of the sizes that makes it, and how it is first shown."""

    title: str
    about: str
    function: Callable[..., Any]
    eta: tuple[float, float, float]
    """The least, the usual and the greatest step."""
    rounds: int
    heterogeneity: tuple[float, float] = (0.5, 2.0)
    """The usual one, and the greatest."""
    sized: bool = True
    """Whether users and dim can be chosen."""
    penalised: bool = False
    y: str = "gap"
    picture: Callable[[Sizes], list[dict[str, Any]]] | None = None
    """What its users look like, where it can be drawn."""
    command: Callable[[Sizes], list[str]] | None = None
    """The arguments of `resolvent run` that make it, where it is one of the configuration's own."""

    def make(self, sizes: Sizes) -> Any:
        """The problem."""
        return self.function(**self._given(sizes))

    def lines(self, sizes: Sizes) -> list[str]:
        """The lines of Python that make it elsewhere: the sizes, then the body of the function."""
        source = textwrap.dedent(inspect.getsource(self.function))
        (function,) = ast.parse(source).body
        assert isinstance(function, ast.FunctionDef)
        body = textwrap.dedent("\n".join(source.splitlines()[function.body[0].lineno - 1 :]))
        return [*(f"{name} = {value!r}" for name, value in self._given(sizes).items()), *body.splitlines()]

    def _given(self, sizes: Sizes) -> dict[str, Any]:
        return {name: getattr(sizes, name) for name in inspect.signature(self.function).parameters}


def _least_squares(users: int, dim: int, heterogeneity: float, seed: int) -> Any:
    return rs.make_least_squares(users=users, dim=dim, rows=40, shift=heterogeneity, seed=seed)


def _least_squares_command(s: Sizes) -> list[str]:
    sizes = ["--users", str(s.users), "--dim", str(s.dim), "--rows", "40"]
    return ["least-squares", *sizes, "--set", f"problem.shift={s.heterogeneity!r}", "--seed", str(s.seed)]


def _logistic(users: int, dim: int, heterogeneity: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(dim) + heterogeneity * rng.standard_normal((users, 1, dim))
    A = rng.standard_normal((users, 40, dim))
    chance = 1 / (1 + np.exp(-(A * w).sum(2)))
    return rs.Logistic(A, np.where(rng.random((users, 40)) < chance, 1.0, -1.0), reg=0.01)


def _lasso(users: int, dim: int, heterogeneity: float, penalty: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    w = np.where(np.arange(dim) % 3 == 0, 1.0, 0.0) + heterogeneity * rng.standard_normal((users, 1, dim))
    A = rng.standard_normal((users, 40, dim))
    b = (A * w).sum(2) + 0.5 * rng.standard_normal((users, 40))
    return rs.LeastSquares(A, b, penalty=rs.L1(penalty))


def _line(heterogeneity: float) -> Any:
    return rs.Quadratics([1.0, 3.0], [1.5 - heterogeneity, 1.5 + heterogeneity])


def _line_picture(s: Sizes) -> list[dict[str, Any]]:
    problem = _line(s.heterogeneity)
    pairs = zip(problem.curvature.tolist(), problem.centre.tolist(), strict=True)
    return [{"kind": "axis", "curvature": curvature, "centre": centre} for curvature, centre in pairs]


def _plane(heterogeneity: float) -> Any:
    angle = np.array([0.4, 2.5, 4.6])
    centre = np.array([2.0, 1.2]) + heterogeneity * np.stack([np.cos(angle), np.sin(angle)], 1)
    A = np.array([[[1.2, 0.0], [0.0, 0.4]], [[0.5, 0.3], [-0.2, 1.1]], [[0.8, -0.6], [0.3, 0.5]]])
    return rs.LeastSquares(A, (A @ centre[:, :, None])[:, :, 0])


def _plane_picture(s: Sizes) -> list[dict[str, Any]]:
    problem = _plane(s.heterogeneity)
    origin = problem.weights.new_zeros(1, 2)
    hessians = problem.hessian(origin)
    centres = -torch.linalg.solve(hessians, problem.grad(origin))
    pairs = zip(hessians.tolist(), centres.tolist(), strict=True)
    return [{"kind": "bowl", "hessian": hessian, "centre": centre} for hessian, centre in pairs]


def _sets(heterogeneity: float) -> Any:
    offset = 0.45 * 2.6 + -0.9 * 1.4 - heterogeneity
    return rs.Indicators([rs.Ball([2.6, 1.4], 1.0), rs.Halfspace([0.45, -0.9], offset)])


def _sets_picture(s: Sizes) -> list[dict[str, Any]]:
    ball, half = _sets(s.heterogeneity).sets
    length = math.hypot(*half.normal.tolist())
    plane = {"normal": [n / length for n in half.normal.tolist()], "offset": float(half.offset) / length}
    return [{"kind": "ball", "centre": ball.centre.tolist(), "radius": ball.radius}, {"kind": "halfspace", **plane}]


EXAMPLES: dict[str, Example] = {
    "plane": Example(
        "Three bowls in the plane", "Quadratics in two dimensions. Heterogeneity moves their centres apart.",
        _plane, (0.01, 0.6, 20.0), 60, (1.2, 2.0), sized=False, picture=_plane_picture,
    ),
    "line": Example(
        "Two parabolas on a line", "One number per user, so that u = (u₁, u₂) is a point of the plane. The users agree "
        "on its diagonal H.", _line, (0.01, 0.5, 20.0), 40, (1.0, 2.0), sized=False,
        picture=_line_picture,
    ),
    "sets": Example(
        "Two sets in the plane", "Indicators of a ball and a half-plane: the prox projects, whatever η. Beyond 1 they "
        "have no point in common.", _sets, (0.01, 1.0, 20.0), 40, (0.7, 1.5), sized=False, y="residual",
        picture=_sets_picture,
    ),
    "least-squares": Example(
        "Least squares", "Linear regression. Heterogeneity is how far the users' own solutions lie apart.",
        _least_squares, (1e-4, 0.02, 1.0), 100, command=_least_squares_command,
    ),
    "logistic": Example(
        "Logistic regression", "Two classes, regularised by 0.01/2 |w|². The prox is computed by Newton's method.",
        _logistic, (1e-3, 0.3, 10.0), 30,
    ),
    "lasso": Example(
        "Lasso", "Least squares with an l1 penalty at the meeting point: a sparse model.",
        _lasso, (1e-4, 0.02, 1.0), 100, (0.1, 2.0), penalised=True,
    ),
}  # fmt: skip
"""By name, in the order in which they are offered."""
