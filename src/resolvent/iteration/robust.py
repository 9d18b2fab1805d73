"""Robust meetings: where users meet, if some of them may send anything.

The mean follows a single bad user anywhere. The meetings here do not, while the weight of the bad users stays below the
trimmed share, or below one half for the medians. What they cost: they are no means, so that fixed points solve another
problem even if everybody is honest, unless users are alike. The bound is about how far the model can be carried away,
not about where it converges.

All of them count users by their weights lambda, as if a user of twice the weight were two users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from resolvent.errors import ResolventWarning, quoted, real, refuse
from resolvent.iteration.meeting import Gathering, Meet, Met
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import Effect, Finding
from resolvent.iteration.registry import part

LEAST_USERS = 3
"""Of two users nobody can say which is the bad one."""
MAX_STEPS, PLAIN_STEPS, MANY_USERS = 1000, 50, 2000
"""Of Weiszfeld's iteration; after so many plain ones it is slow, and Newton's method helps, but for so many users."""
HALF = 0.5


@remembered
@dataclass(frozen=True, eq=False)
class RobustPoint:
    """Where users met last, (1, d): the meeting point of rounds in which too few of them meet."""

    w: Tensor


class RobustMeeting(Meet):
    """A point amid the rows z that no small group of users can carry away.

    Where fewer than three users meet it stays where it was.
    """

    needs_rows = central = True
    name = ""
    """What it is called in a sentence."""

    def point(self, z: Tensor, weights: Tensor) -> Tensor:
        """The meeting point (d,) of rows z (users, d), whose weights are positive and sum to one."""
        raise NotImplementedError

    def begin(self, u: Tensor) -> RobustPoint:
        return RobustPoint(u.mean(0, keepdim=True))

    def fits(self, past: Any, rows: int) -> bool:
        return isinstance(past, RobustPoint)

    def centre(self, at: Gathering, memory: RobustPoint) -> Tensor:
        """The mean of u would be carried away by what one user has sent."""
        return self(at, memory)[0].w

    def __call__(self, at: Gathering, memory: RobustPoint) -> tuple[Met, RobustPoint]:
        who = slice(None) if at.who is None else at.who
        z, weights = at.z[who], at.weights[who]
        z, weights = z[weights > 0], weights[weights > 0]
        if len(z) >= LEAST_USERS:
            memory = RobustPoint(self.point(z, weights / weights.sum()).unsqueeze(0))
        return Met(memory.w), memory

    def check(self, weights: Tensor, present: int) -> None:
        users = min(present, int((weights > 0).sum()))
        if users < LEAST_USERS:
            needed = f"{self.name} needs {LEAST_USERS} users who meet, and at most {users} do"
            refuse("meet", quoted(self), f'{needed}: let more take part, or take absent="hold"')

    def law(self, setting: Any) -> Effect:
        findings = []
        if setting.scheme.auto:
            what = 'eta="auto" follows a mean over all users, so that a bad one can set eta'
            findings.append(Finding(ResolventWarning, what, "give eta a number"))
        title = setting.parts.accelerate.title
        if title.startswith("Anderson"):
            what = f"the weights of {title} come from sums over all users, so that a bad one can set them"
            findings.append(Finding(ResolventWarning, what, "leave it out"))
        return Effect(
            solves="neither",
            why=f"users meet at {self.name}, which is not the mean unless users agree",
            advice="leave meet out if every user can be trusted",
            uncovered=f"no theorem here covers {self.name}",
            findings=tuple(findings),
        )


@part("meet", "trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(RobustMeeting):
    """In every coordinate, the mean without the smallest and the largest values, a share of all weight at each end."""

    share: float
    """The share of the weight that is cut off at each end, in (0, 1/2)."""
    name = "the trimmed mean"

    def __post_init__(self) -> None:
        share = real(self.share, "share", lambda x: 0 < x < HALF, "a share of the weight in (0, 1/2) is needed")
        object.__setattr__(self, "share", float(share))

    def check(self, weights: Tensor, present: int) -> None:
        super().check(weights, present)
        counting = weights[weights > 0].double().sort(descending=True).values
        lightest = float(counting[-1] / (counting[-1] + counting[: min(present, len(counting)) - 1].sum()))
        if self.share < lightest * (1 - 1e-6):
            needed = f"it trims nobody: the lightest of {min(present, len(counting))} users who meet has the weight"
            refuse("share", self.share, f"{needed} {lightest:.3g}, and at least that is needed")

    def point(self, z: Tensor, weights: Tensor) -> Tensor:
        """Where so few meet that the share would trim none of them, the lightest is trimmed at each end."""
        share = max(self.share, float(weights.min()))
        values, order = z.sort(dim=0)
        mass = weights[order]
        above = mass.cumsum(0)
        inside = (above.clamp_max(1 - share) - (above - mass).clamp_min(share)).clamp_min(0)
        inside = torch.where(inside > 1e3 * torch.finfo(z.dtype).eps * mass, inside, 0)
        return torch.where(inside > 0, inside * values, 0).sum(0) / inside.sum(0)


@part("meet", "coordinate-median")
@dataclass(frozen=True)
class CoordinateMedian(RobustMeeting):
    """In every coordinate, the weighted median of the users' values."""

    name = "the coordinatewise median"

    def point(self, z: Tensor, weights: Tensor) -> Tensor:
        return weighted_median(z, weights)


@part("meet", "geometric-median")
@dataclass(frozen=True)
class GeometricMedian(RobustMeeting):
    """The point with the least weighted sum of distances to the users' z, by Weiszfeld's iteration."""

    tol: float = 1e-10
    """The iteration ends when a step is so short, as a share of the users' median distance."""
    name = "the geometric median"

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "tol", float(real(self.tol, "tol", lambda x: 0 < x < 1, "a number in (0, 1) is needed"))
        )

    def point(self, z: Tensor, weights: Tensor) -> Tensor:
        """From the coordinatewise median on. A user's row that is itself the solution is recognised as such: there the
        iteration is not defined, and near it slow."""
        y, tol = weighted_median(z, weights), max(self.tol, 4 * torch.finfo(z.dtype).eps)
        tried = set[int]()
        for k in range(MAX_STEPS):
            distances = torch.linalg.vector_norm(z - y, dim=1)
            nearest = int(distances.argmin())
            if nearest not in tried:
                tried.add(nearest)
                moved = _leaving(z, weights, nearest)
                if moved is None:
                    return z[nearest]
                if not float(distances[nearest]) > 0:
                    y = moved
                    continue
            pulls = weights / distances.clamp_min(torch.finfo(z.dtype).tiny)
            step = pulls @ (z - y) / pulls.sum()
            if k >= PLAIN_STEPS and len(z) < MANY_USERS:
                step = _longer(z - y, weights, pulls, step)
            y = y + step
            if not float(step.norm()) > tol * float(distances.median()):
                break
        return y


def _longer(away: Tensor, weights: Tensor, pulls: Tensor, step: Tensor) -> Tensor:
    """Weiszfeld's step or a share of Newton's, whichever leaves the least sum of distances. The Hessian is c - V^T V,
    where c is the sum of the pulls and V has the rows `away`, times the roots of w / distance^3. Newton's step goes no
    further than to the next row, since a row may be the solution."""
    V = away * (pulls.sqrt() * pulls / weights).unsqueeze(1)
    inner = pulls.sum() * torch.eye(len(V)).to(V) - V @ V.T
    newton = step + torch.linalg.solve_ex(inner, V @ step).result @ V
    newton = newton * (torch.linalg.vector_norm(away, dim=1).min() / newton.norm()).clamp_max(1)
    steps: list[Tensor] = [step] + [newton / 4**k for k in range(5)]
    return min(steps, key=lambda s: float(weights @ torch.linalg.vector_norm(away - s, dim=1)))


def _leaving(z: Tensor, weights: Tensor, k: int) -> Tensor | None:
    """A better point than the row z_k, (d,), by the step of Vardi and Zhang (2000); None where z_k alone is the
    solution: between two users of equal weight every point is one, and neither of them is preferred."""
    away = z - z[k]
    distances = torch.linalg.vector_norm(away, dim=1)
    other = distances > 0
    pulls = torch.where(other, weights / distances.where(other, 1), 0)
    force, own = pulls @ away, float(weights[~other].sum())
    size = float(force.norm())
    if size < own * (1 - 16 * torch.finfo(z.dtype).eps):
        return None
    moved: Tensor = z[k] + max(0.0, 1 - own / size) * force / pulls.sum()
    return moved


def weighted_median(z: Tensor, weights: Tensor) -> Tensor:
    """Of every column of z (users, d): half of the weight lies on either side; in the middle of an interval of such."""
    values, order = z.sort(dim=0)
    above = weights[order].cumsum(0)
    slack = 8 * torch.finfo(z.dtype).eps * len(z)
    low = (above < HALF - slack).sum(0, keepdim=True).clamp_max(len(z) - 1)
    high = (above <= HALF + slack).sum(0, keepdim=True).clamp_max(len(z) - 1)
    return torch.lerp(values.gather(0, low), values.gather(0, high), HALF)[0]
