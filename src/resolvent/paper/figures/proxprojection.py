"""Figure proxprojection: the prox of an indicator projects, its reflector reflects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import resolvent as rs
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, Panel, Settings
from resolvent.paper.results import Results, fact, short
from resolvent.paper.settings import BLUE, RED


class Ellipse:
    """{x : x_1^2/16 + x_2^2/4 <= 1}, projected onto by Newton's method on the multiplier."""

    dim = 2
    axes = torch.tensor([16.0, 4.0], dtype=torch.float64)

    def project(self, x: Tensor) -> Tensor:
        t = torch.zeros_like(x[..., :1])
        for _ in range(60):
            y = x * self.axes / (self.axes + t)
            height = (y * y / self.axes).sum(-1, keepdim=True) - 1
            slope = -2 * (y * y / (self.axes * (self.axes + t))).sum(-1, keepdim=True)
            t = (t - height / slope).clamp(min=0)
        return x * self.axes / (self.axes + t)

    def contains(self, x: Tensor, tol: float = 1e-9) -> Tensor:
        return (x * x / self.axes).sum(-1) <= 1 + tol


W, V = (5.5, 1.9), (2.7, 2.6)


def _points(settings: Settings) -> dict[str, Any]:
    problem = rs.Indicators([Ellipse()])
    w, v = (torch.tensor([point], dtype=torch.float64) for point in (W, V))
    P, R = problem.prox(w, 1.0), 2 * problem.prox(v, 1.0) - v
    angle = torch.linspace(0, 2 * torch.pi, 20001, dtype=torch.float64)
    rim = torch.stack([4 * angle.cos(), 2 * angle.sin()], 1)
    far = float((w - P).norm() - (rim - w).norm(dim=1).min())
    normal = P / Ellipse.axes
    turn = float((normal[0, 0] * (w - P)[0, 1] - normal[0, 1] * (w - P)[0, 0]).abs() / normal.norm())
    same = float((problem.prox(w, 1.0) - problem.prox(w, 50.0)).abs().max())
    foot = problem.prox(v, 1.0)
    facts = {"P": P[0].tolist(), "R": R[0].tolist(), "foot": foot[0].tolist(), "far": far, "turn": turn, "same": same}
    return facts | {"middle": float(((R + v) / 2 - foot).norm())}


def _projects(results: Results) -> ClaimVerdict:
    f = results.facts
    numbers = f"of 20,000 points on C's rim none is nearer, and w - P w is normal to C to {short(f['turn'])}"
    return ClaimVerdict.of(f["far"] < 1e-9 and f["turn"] < 1e-9 and f["same"] < 1e-12, f"{numbers}, whatever eta is")


def _draw(axis: Any, results: Results) -> None:
    from matplotlib.patches import Ellipse as Patch

    f = results.facts
    axis.add_patch(Patch((0, 0), 8, 4, facecolor="#dce6f5", edgecolor=RED, lw=1.5))
    axis.text(-1.5, 0, "C", fontsize=13)
    arrow = {"arrowstyle": "->", "lw": 1.5, "color": BLUE, "shrinkA": 0, "shrinkB": 2}
    for start, end in ((W, f["P"]), (V, f["R"])):
        axis.annotate("", xy=end, xytext=start, arrowprops=arrow)
    named = ((W, "w", (8, 0)), (V, "v", (8, 0)), (f["P"], "P w", (12, -8)), (f["R"], "R v", (-34, -4)))
    for point, text, offset in (*named, (f["foot"], "", (0, 0))):
        axis.plot(*point, "o", color="#222222", ms=4)
        axis.annotate(text, point, xytext=offset, textcoords="offset points", fontsize=11)
    for x, y in (f["P"], f["foot"]):  # the tangent: perpendicular to the normal (x/16, y/4)
        tangent = torch.tensor([-y / 4, x / 16])
        a, b = 0.7 * tangent / tangent.norm()
        axis.plot([x - a, x + a], [y - b, y + b], color="#222222", lw=1.2)
    axis.set(xlim=(-4.6, 6.6), ylim=(-2.4, 3.4), aspect="equal")
    axis.set_axis_off()


FIGURE = Figure(
    "fig:proxprojection",
    "Projection and reflection",
    "For the indicator of a set C the prox takes w to the nearest point of C, and the reflector takes v as far to the "
    "other side of C's tangent.",
    (
        Panel("only", "An ellipse, computed", claims=(
            Claim("The prox of an indicator is the projection, whatever eta.", _projects),
            Claim("Its reflector is the reflection.",
                  fact("middle", lambda off: off < 1e-12, "P v is the middle of v and R v to {short}"))),
            facts=_points, draw=_draw),
    ),
)  # fmt: skip
