"""The claims `convex`, `lipschitz`, `convexity` and `minimiser` against the functions."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from resolvent.problems.verify.examiner import Examiner, Place
from resolvent.problems.verify.lines import SAFETY, Tolerance

POWER = 5
"""Steps of the power method towards the steepest and the flattest direction."""
LOOSE = 1e-3
"""The relative error of lipschitz and convexity that is forgiven."""
FAR = 1e3
"""Times the first move, or the distance of the start from zero: as far away as convexity is looked at."""
PROBES = (0.3, 1e-2, 1e-4)
"""Distances from a claimed minimiser, in units of its distance from the start."""


class Subgradient(NamedTuple):
    """Points x (users, d), what should be a subgradient g there, a bound on its error (users,), and where it is from:
    "grad" or "prox"."""

    source: str
    x: Tensor
    g: Tensor
    error: Tensor
    size: Tensor
    """The size of what x is computed from, (users,): of x itself or, for the answer of a prox, of the u it answers."""


def gradient_at(examiner: Examiner, x: Tensor) -> Subgradient:
    size = x.norm(dim=1)
    return Subgradient("grad", x, examiner.slopes(x), torch.zeros_like(size), size)


def check_monotone(examiner: Examiner, subgradients: list[Subgradient]) -> None:
    """(g - g') . (x - x') >= 0 for subgradients of a convex f; for two answers of a prox, firm nonexpansiveness."""
    for a, b in combinations(subgradients, 2):
        rise, square, noise = _between(a, b)
        who = "prox" if "prox" in (a.source, b.source) else "grad"
        message = {
            ("grad", "grad"): "is no subgradient of a convex function",
            ("prox", "prox"): "is no prox of a convex function, since it is not firmly nonexpansive",
        }.get((a.source, b.source), "does not belong to grad")
        examiner.refuse_first(
            who,
            rise < -noise,
            f"{message}: between two points {{:.3g}} apart, (g - g') . (x - x') is {{:.3g}}, but must be >= 0",
            f"correct {who}, pass convex=False",
            square.sqrt(),
            rise,
        )


def check_far(examiner: Examiner, places: list[Place], subgradient: Subgradient) -> None:
    """f(y) >= f(x) + g . (y - x) far away as well: what grows less than its slope at x foretells is not convex there.

    So every bounded function is found out, if it is bounded within this distance and g is not tiny.
    """
    if not examiner.problem.offers & {"value", "grad"}:
        return
    reach = FAR * torch.stack([place.reach for place in places]).amax(0)
    mismatch = examiner.line(subgradient.x, reach).subgradient(subgradient.g, subgradient.error)
    if mismatch is not None:
        examiner.refuse(
            "value" if examiner.offers("value") else "grad",
            mismatch.user,
            f"is not of a convex function: {mismatch.length:.3g} away from a point, where its slope there foretells a "
            f"rise of at least {mismatch.claimed:.3g}, f rises by no more than {mismatch.actual:.3g}",
            "pass convex=False, correct it",
        )


def _between(a: Subgradient, b: Subgradient) -> tuple[Tensor, Tensor, Tensor]:
    """(g - g') . (x - x'), |x - x'|^2, and how exact the first is."""
    d, loose = a.x - b.x, Tolerance.of(a.x.dtype)
    change = (a.g - b.g).norm(dim=1)
    error = loose.change * change + 10 * loose.slope * (a.g.norm(dim=1) + b.g.norm(dim=1)) + a.error + b.error
    rounding = 8 * torch.finfo(d.dtype).eps * (a.x.norm(dim=1) + b.x.norm(dim=1) + a.size + b.size)
    return ((a.g - b.g) * d).sum(1), d.square().sum(1), error * d.norm(dim=1) + rounding * change


def check_constants(examiner: Examiner, place: Place, subgradients: list[Subgradient]) -> None:
    """|g - g'| <= L |x - x'| and (g - g') . (x - x') >= mu |x - x'|^2, in the steepest and flattest directions too."""
    L, mu = examiner.problem.lipschitz, examiner.problem.convexity
    for a, b in combinations(subgradients, 2) if L is not None or mu is not None else []:
        _check_constants(examiner, a, b)
    if not examiner.offers("grad") or (L is None and mu is None):
        return
    here = gradient_at(examiner, place.x)
    shift = torch.zeros_like(place.reach)
    for claim in (L, mu):  # towards the steepest direction, and then, on shift - H, towards the flattest
        v = examiner.directions()
        for _ in range(POWER if claim is not None else 0):
            x = place.x + 1e-2 * place.reach.unsqueeze(1) * v
            there = gradient_at(examiner, x)
            _check_constants(examiner, there, here)
            length = (x - place.x).norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
            Hv = ((there.g - here.g) / length).nan_to_num(0, 0, 0)
            if claim is L:
                shift, ahead = torch.maximum(shift, Hv.norm(dim=1)), Hv
            else:
                ahead = torch.maximum(shift, Hv.norm(dim=1)).unsqueeze(1) * v - Hv
            size = ahead.norm(dim=1, keepdim=True)
            v = torch.where(size > 0, ahead / size.clamp_min(torch.finfo(x.dtype).tiny), v)


def _check_constants(examiner: Examiner, a: Subgradient, b: Subgradient) -> None:
    L, mu = examiner.problem.lipschitz, examiner.problem.convexity
    rise, square, noise = _between(a, b)
    distance = square.sqrt()
    change = (a.g - b.g).norm(dim=1)
    if L is not None:
        examiner.refuse_first(
            "lipschitz",
            change * distance > L * square * (1 + LOOSE) + noise,
            "is {:.6g}, but two gradients differ by {:.6g} times the distance of their points",
            "give a larger one or leave it out",
            L,
            change / distance,
        )
    if mu is not None:
        examiner.refuse_first(
            "convexity",
            rise < mu * square * (1 - LOOSE) - noise,
            "is {:.6g}, but (g - g') . (x - x') is {:.6g} |x - x'|^2 for two points",
            "give a smaller one or leave it out",
            mu,
            rise / square,
        )


def check_minimiser(examiner: Examiner, start: Tensor) -> None:
    """No point may be lower than the claimed minimiser: the start, and points around it, also down the gradient."""
    problem = examiner.problem
    if problem.minimiser is None or not examiner.offers("value"):
        return
    best, begun = problem.minimiser, (problem.weights @ start)
    distance = torch.maximum((best - begun).norm(), torch.finfo(best.dtype).eps ** 0.25 * best.norm())
    size = distance if float(distance) > 0 else best.norm().clamp_min(1)
    ways = [examiner.directions()[0], -examiner.directions()[0]]
    if examiner.offers("grad"):
        down = -_mean(problem.weights, examiner.ask("grad", best.unsqueeze(0)))
        ways.append((down / down.norm().clamp_min(torch.finfo(down.dtype).tiny)).nan_to_num(0, 0, 0))
    points = [begun] + [best + h * size * v for v in ways for h in PROBES]
    values = torch.stack([_mean(problem.weights, examiner.ask("value", x.unsqueeze(0))) for x in points])
    each = examiner.ask("value", best.unsqueeze(0))
    lowest = _mean(problem.weights, each)
    values = values.nan_to_num(torch.inf)
    rises = (values - lowest)[torch.isfinite(values)]
    loose = LOOSE * rises.clamp_min(0).amax() if len(rises) else 0.0
    rounding = SAFETY * 50 * torch.finfo(each.dtype).eps * _mean(problem.weights, each.abs())
    if bool(values.amin() < lowest - loose - rounding):
        k = int(values.argmin())
        examiner.refuse_claim(
            "minimiser",
            f"a point with f = {float(lowest):.9g}, but f is {float(values[k]):.9g} at a point "
            f"{float((points[k] - best).norm()):.3g} away",
            "give the right one or leave it out",
        )


def _mean(weights: Tensor, answers: Tensor) -> Tensor:
    """sum_i lambda_i a_i; users of weight zero do not count, whatever they answer."""
    return weights[weights > 0] @ answers[weights > 0]
