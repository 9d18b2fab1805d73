"""The explorer's problems: small enough that a whole run takes a moment, each with the Python that makes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import resolvent as rs

ROWS, REG = 40, 0.01
BOWLS = [[[1.2, 0.0], [0.0, 0.4]], [[0.5, 0.3], [-0.2, 1.1]], [[0.8, -0.6], [0.3, 0.5]]]
ANGLES, AROUND = [0.4, 2.5, 4.6], [2.0, 1.2]
CURVATURES = [1.0, 3.0]
MIDDLE = 1.5
CENTRE, RADIUS, NORMAL = [2.6, 1.4], 1.0, [0.45, -0.9]


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
    """A problem: how it is made here, the lines of Python that make it elsewhere, and how it is first shown."""

    title: str
    about: str
    make: Callable[[Sizes], Any]
    lines: Callable[[Sizes], list[str]]
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


def _least_squares(s: Sizes) -> Any:
    return rs.make_least_squares(users=s.users, dim=s.dim, rows=ROWS, shift=s.heterogeneity, seed=s.seed)


def _least_squares_lines(s: Sizes) -> list[str]:
    shift = f"shift={s.heterogeneity!r}, seed={s.seed}"
    return [f"return rs.make_least_squares(users={s.users}, dim={s.dim}, rows={ROWS}, {shift})"]


def _least_squares_command(s: Sizes) -> list[str]:
    sizes = ["--users", str(s.users), "--dim", str(s.dim), "--rows", str(ROWS)]
    return ["least-squares", *sizes, "--set", f"problem.shift={s.heterogeneity!r}", "--seed", str(s.seed)]


def _logistic(s: Sizes) -> Any:
    rng = np.random.default_rng(s.seed)
    w = rng.standard_normal(s.dim) + s.heterogeneity * rng.standard_normal((s.users, 1, s.dim))
    A = rng.standard_normal((s.users, ROWS, s.dim))
    chance = 1 / (1 + np.exp(-(A * w).sum(2)))
    return rs.Logistic(A, np.where(rng.random((s.users, ROWS)) < chance, 1.0, -1.0), reg=REG)


def _logistic_lines(s: Sizes) -> list[str]:
    return [
        f"rng = np.random.default_rng({s.seed})",
        f"w = rng.standard_normal({s.dim}) + {s.heterogeneity!r} * rng.standard_normal(({s.users}, 1, {s.dim}))",
        f"A = rng.standard_normal(({s.users}, {ROWS}, {s.dim}))",
        "chance = 1 / (1 + np.exp(-(A * w).sum(2)))",
        f"return rs.Logistic(A, np.where(rng.random(({s.users}, {ROWS})) < chance, 1.0, -1.0), reg={REG})",
    ]


def _lasso(s: Sizes) -> Any:
    rng = np.random.default_rng(s.seed)
    w = np.where(np.arange(s.dim) % 3 == 0, 1.0, 0.0) + s.heterogeneity * rng.standard_normal((s.users, 1, s.dim))
    A = rng.standard_normal((s.users, ROWS, s.dim))
    b = (A * w).sum(2) + 0.5 * rng.standard_normal((s.users, ROWS))
    return rs.LeastSquares(A, b, penalty=rs.L1(s.penalty))


def _lasso_lines(s: Sizes) -> list[str]:
    shift = f"{s.heterogeneity!r} * rng.standard_normal(({s.users}, 1, {s.dim}))"
    return [
        f"rng = np.random.default_rng({s.seed})",
        f"w = np.where(np.arange({s.dim}) % 3 == 0, 1.0, 0.0) + {shift}",
        f"A = rng.standard_normal(({s.users}, {ROWS}, {s.dim}))",
        f"b = (A * w).sum(2) + 0.5 * rng.standard_normal(({s.users}, {ROWS}))",
        f"return rs.LeastSquares(A, b, penalty=rs.L1({s.penalty!r}))",
    ]


def _line(s: Sizes) -> Any:
    return rs.Quadratics(CURVATURES, [MIDDLE - s.heterogeneity, MIDDLE + s.heterogeneity])


def _line_lines(s: Sizes) -> list[str]:
    centres = f"[{MIDDLE} - {s.heterogeneity!r}, {MIDDLE} + {s.heterogeneity!r}]"
    return [f"return rs.Quadratics({CURVATURES}, {centres})"]


def _line_picture(s: Sizes) -> list[dict[str, Any]]:
    centres = (MIDDLE - s.heterogeneity, MIDDLE + s.heterogeneity)
    return [{"kind": "axis", "curvature": c, "centre": [x]} for c, x in zip(CURVATURES, centres, strict=True)]


def _centres(s: Sizes) -> Any:
    angle = np.array(ANGLES)
    return np.array(AROUND) + s.heterogeneity * np.stack([np.cos(angle), np.sin(angle)], 1)


def _plane(s: Sizes) -> Any:
    A = np.array(BOWLS)
    return rs.LeastSquares(A, (A @ _centres(s)[:, :, None])[:, :, 0])


def _plane_lines(s: Sizes) -> list[str]:
    return [
        f"angle = np.array({ANGLES})",
        f"centre = np.array({AROUND}) + {s.heterogeneity!r} * np.stack([np.cos(angle), np.sin(angle)], 1)",
        f"A = np.array({BOWLS})",
        "return rs.LeastSquares(A, (A @ centre[:, :, None])[:, :, 0])",
    ]


def _plane_picture(s: Sizes) -> list[dict[str, Any]]:
    made = []
    for A, centre in zip(np.array(BOWLS), _centres(s), strict=True):
        made.append({"kind": "bowl", "hessian": (A.T @ A).tolist(), "centre": centre.tolist()})
    return made


def _offset(s: Sizes) -> float:
    return NORMAL[0] * CENTRE[0] + NORMAL[1] * CENTRE[1] - s.heterogeneity


def _sets(s: Sizes) -> Any:
    return rs.Indicators([rs.Ball(CENTRE, RADIUS), rs.Halfspace(NORMAL, _offset(s))])


def _sets_lines(s: Sizes) -> list[str]:
    offset = f"{NORMAL[0]} * {CENTRE[0]} + {NORMAL[1]} * {CENTRE[1]} - {s.heterogeneity!r}"
    return [f"return rs.Indicators([rs.Ball({CENTRE}, {RADIUS}), rs.Halfspace({NORMAL}, {offset})])"]


def _sets_picture(s: Sizes) -> list[dict[str, Any]]:
    length = math.hypot(*NORMAL)
    half = {"normal": [n / length for n in NORMAL], "offset": _offset(s) / length}
    return [{"kind": "ball", "centre": CENTRE, "radius": RADIUS}, {"kind": "halfspace", **half}]


EXAMPLES: dict[str, Example] = {
    "plane": Example(
        "Three bowls in the plane", "Quadratics in two dimensions. Heterogeneity moves their centres apart.",
        _plane, _plane_lines, (0.01, 0.6, 20.0), 60, (1.2, 2.0), sized=False, picture=_plane_picture,
    ),
    "line": Example(
        "Two parabolas on a line", "One number per user, so that u = (u₁, u₂) is a point of the plane. The users agree "
        "on its diagonal H.", _line, _line_lines, (0.01, 0.5, 20.0), 40, (1.0, 2.0), sized=False,
        picture=_line_picture,
    ),
    "sets": Example(
        "Two sets in the plane", "Indicators of a ball and a half-plane: the prox projects, whatever η. Beyond 1 they "
        "have no point in common.", _sets, _sets_lines, (0.01, 1.0, 20.0), 40, (0.7, 1.5), sized=False, y="residual",
        picture=_sets_picture,
    ),
    "least-squares": Example(
        "Least squares", "Linear regression. Heterogeneity is how far the users' own solutions lie apart.",
        _least_squares, _least_squares_lines, (1e-4, 0.02, 1.0), 100, command=_least_squares_command,
    ),
    "logistic": Example(
        "Logistic regression", "Two classes, regularised by 0.01/2 |w|². The prox is computed by Newton's method.",
        _logistic, _logistic_lines, (1e-3, 0.3, 10.0), 30,
    ),
}  # fmt: skip
"""By name, in the order in which they are offered."""

if hasattr(rs, "L1"):
    EXAMPLES["lasso"] = Example(
        "Lasso", "Least squares with an l1 penalty at the meeting point: a sparse model.",
        _lasso, _lasso_lines, (1e-4, 0.02, 1.0), 100, (0.1, 2.0), penalised=True,
    )  # fmt: skip
