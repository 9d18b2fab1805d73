"""grad against value, prox against value or grad, hessian against grad, and users' rows against each other."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from resolvent.problems.verify.claims import Subgradient, gradient_at
from resolvent.problems.verify.examiner import Examiner, Place
from resolvent.problems.verify.lines import LineProfile, Tolerance, settle

INEXACT = 1e-4
"""The relative error of a prox that is forgiven: it may be an iteration."""
STEPS = {torch.float64: (1e-2, 1e-3, 1e-4), torch.float32: (0.03, 1e-2, 3e-3)}
"""Steps over which gradients are compared with a hessian, as shares of a place's reach."""
SHORT_STEPS = {torch.float64: (1e-6, 1e-8), torch.float32: (1e-3, 1e-4)}
"""Steps of a second look, before a hessian is refused."""


def check_rows(examiner: Examiner, places: list[Place], eta: float) -> None:
    """Row i of an answer may depend on row i of the argument only: the rows of every second user are exchanged."""
    near, far = places[0].x, places[1].x
    for function in sorted(examiner.problem.stacked) if len(near) > 1 else []:
        args = (eta,) if function == "prox" else ()
        once, other, again = (examiner.ask(function, W, *args).reshape(len(W), -1) for W in (near, far, near))
        for parity in (0, 1):
            moved = (torch.arange(len(near)) % 2 == parity).unsqueeze(1)
            mixed = examiner.ask(function, torch.where(moved, far, near), *args).reshape(len(near), -1)
            before = torch.where(moved, other, once)
            change = (mixed - before).norm(dim=1)
            rounding = 1e3 * torch.finfo(near.dtype).eps * before.norm(dim=1).nan_to_num(0, 0, 0).amax()
            noise = 10 * (again - once).norm(dim=1).nan_to_num(torch.inf) + rounding
            examiner.refuse_first(
                function,
                change > Tolerance.of(near.dtype).change * before.norm(dim=1) + noise,
                "changes by {:.3g} when only other users' rows change, but row i of what it gives may depend on row i "
                "of its argument only",
                "work on each row by itself",
                change,
            )


def check_slopes(examiner: Examiner, places: list[Place], eta: float) -> list[Subgradient]:
    """Gradients and the answers of a prox against values. Returns all of them as subgradients."""
    subgradients: list[Subgradient] = []
    answers: list[Tensor] = []
    for x, reach in places:
        if examiner.offers("value"):
            line = examiner.line(x, reach)
            check_convex(examiner, line)
            if examiner.offers("grad"):
                check_gradient(examiner, line, examiner.ask("grad", x))
        if examiner.offers("grad"):
            subgradients.append(gradient_at(examiner, x))
        if examiner.offers("prox"):
            p = examiner.ask("prox", x, eta)
            subgradients.append(Subgradient("prox", p, *slope(x, p, eta), x.norm(dim=1)))
            if examiner.problem.offers & {"value", "grad"}:
                check_prox(examiner, x, p, eta, reach, answers[-1] if answers else None)
            answers.append(p)
    return subgradients


def check_convex(examiner: Examiner, line: LineProfile) -> None:
    """Values halfway between two points are no higher than their mean."""
    if examiner.problem.convex and (mismatch := line.convex()) is not None:
        examiner.refuse(
            "value",
            mismatch.user,
            f"is higher halfway between two points {2 * mismatch.length:.3g} apart than the mean of its values there, "
            f"by {-mismatch.claimed:.3g}, but a convex function is not",
            "correct value, pass convex=False",
        )


def check_gradient(examiner: Examiner, line: LineProfile, g: Tensor) -> None:
    """A subgradient for convex f; otherwise a gradient almost everywhere."""
    convex = examiner.problem.convex
    mismatch = line.subgradient(g) if convex else line.gradient(g)
    if mismatch is not None:
        examiner.refuse(
            "grad",
            mismatch.user,
            f"is no {'subgradient' if convex else 'gradient'} of value: {mismatch} is what value changes by",
            "correct grad or value",
        )


def check_prox(
    examiner: Examiner, u: Tensor, p: Tensor, eta: float, reach: Tensor, other: Tensor | None = None
) -> None:
    """(u - p) / eta must be a subgradient at p. Without convexity, f must be lower at p than around it.

    Checked along a random direction, or towards another answer, in the coordinates in which p is not zero: answers of a
    prox are often at kinks, and across a kink every slope between two is right. Where only gradients are known, the
    first direction is that in which the one at p differs most from (u - p) / eta.
    """
    g, error = slope(u, p, eta)
    move = (u - p).norm(dim=1)
    way = examiner.directions() if examiner.offers("value") else examiner.ask("grad", p) - g
    aim = p + move.unsqueeze(1) * way / way.norm(dim=1, keepdim=True) if other is None else other
    v, distance = examiner.towards(p, torch.where((p != 0) | (p == 0).all(1, keepdim=True), aim, p))
    line = examiner.line(
        p, distance if other is not None else torch.where(move > 0, move, reach).nan_to_num(1, 1, 1), v
    )
    if examiner.offers("value"):  # near its minimum f is a difference of terms as large as f is at u
        height = examiner.ask("value", u).abs().nan_to_num(0, 0, 0)
        line = replace(line, noise=line.noise + 10 * torch.finfo(u.dtype).eps * height)
    error = error + INEXACT * g.norm(dim=1)
    if examiner.problem.convex:
        mismatch = line.subgradient(g, error)
    elif examiner.offers("value"):
        mismatch = line.subgradient(g, error, bend=1 / eta)
    else:
        mismatch = line.gradient(g) if bool((move > 1e-3 * reach).all()) else None
    if mismatch is not None:
        of = "value" if examiner.offers("value") else "grad"
        examiner.refuse(
            "prox",
            mismatch.user,
            f"at eta = {eta:g} does not minimise f(x) + |x - u|^2 / (2 eta): (u - p) / eta is no gradient of f at its "
            f"answer p, since {mismatch} is what {of} gives",
            f"correct prox or {of}",
        )


def slope(u: Tensor, p: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    """(u - p) / eta, and how much of it the rounding of u, p and what p is computed from leaves unknown."""
    rounding = torch.finfo(u.dtype).eps ** 0.5 / 3
    return (u - p) / eta, rounding * (u.norm(dim=1) + p.norm(dim=1)) / eta


def check_every_eta(examiner: Examiner, u: Tensor, eta: float) -> None:
    """From halfway between u and p = prox(u, eta), prox(., eta/2) must give p again: the f behind it is one f."""
    if not examiner.offers("prox"):
        return
    p = examiner.ask("prox", u, eta)
    q = examiner.ask("prox", (u + p) / 2, eta / 2)
    rounding = 1e3 * torch.finfo(u.dtype).eps * (u.norm(dim=1) + p.norm(dim=1))
    off = (p - q).norm(dim=1)
    examiner.refuse_first(
        "prox",
        off > 10 * INEXACT * (u - p).norm(dim=1) + rounding,
        f"at eta = {eta / 2:g} is not of the function that it is of at eta = {eta:g}: from halfway between u and its "
        "answer it must give the same answer, but gives one {:.3g} away",
        "correct how prox uses eta",
        off,
    )


def check_hessians(examiner: Examiner, places: list[Place]) -> None:
    """H v against differences of the gradient over two steps, symmetry, and no curvature below zero for convex f."""
    if not examiner.offers("grad", "hessian"):
        return
    hessians = [examiner.ask("hessian", place.x) for place in places]
    largest = torch.stack([H.flatten(1).abs().amax(1).nan_to_num(0, 0, 0) for H in hessians]).amax(0)
    for place, H in zip(places, hessians, strict=True):
        _check_hessian(examiner, place, H, largest)


def _check_hessian(examiner: Examiner, place: Place, H: Tensor, largest: Tensor) -> None:
    """The same at one place. largest: (users,), of a hessian's entries anywhere, beside which others are rounded: that
    of a logistic loss is 0 where 1 - sigmoid(t) is, and its gradient is not yet."""
    x = place.x
    v, loose = examiner.directions(), Tolerance.of(x.dtype).change
    size, skew = (M.flatten(1).abs().amax(1) for M in (H, H - H.mT))
    size = size + torch.finfo(x.dtype).tiny / loose
    message = "is not symmetric, but differs from its transpose by {:.3g}"
    examiner.refuse_first("hessian", skew > loose * size, message, "correct hessian", skew)
    Hv = (H @ v.unsqueeze(2)).squeeze(2)
    rounding = 10 * torch.finfo(x.dtype).eps * x.shape[1] * largest
    off, allowed, differences = _mismatch(examiner, place, v, Hv, STEPS[x.dtype])
    settled, spread = settle(differences)
    allowed = allowed + rounding
    bad = (settled & (off > allowed + 3 * spread)).any(0)
    if bool(bad.any()):  # f may bend over lengths far below these steps: shorter ones decide, where rounding lets them
        newton = (examiner.slopes(x).norm(dim=1) / Hv.norm(dim=1)).nan_to_num(0, 0, 0)
        reach = torch.where(newton > 0, torch.minimum(place.reach, newton), place.reach)
        near, certain, _ = _mismatch(examiner, place._replace(reach=reach), v, Hv, SHORT_STEPS[x.dtype])
        certain = certain + rounding
        bad = bad & ~((near <= certain) & (certain < off[1] / 10)).any(0)
    message = "is not the derivative of grad: along a unit vector it gives {:.6g}, but differences of grad {:.6g}"
    along = [(side * v).sum(1) for side in (Hv, differences[1])]
    examiner.refuse_first("hessian", bad, message, "correct hessian or grad", *along)
    if examiner.problem.convex and x.shape[1] <= 100 and bool(torch.isfinite(H).all()):
        lowest = torch.linalg.eigvalsh((H + H.mT) / 2)[:, 0]
        message = "has an eigenvalue of {:.3g}, but those of a convex function are >= 0"
        examiner.refuse_first("hessian", lowest < -loose * size, message, "correct hessian, pass convex=False", lowest)


def _mismatch(
    examiner: Examiner, place: Place, v: Tensor, Hv: Tensor, steps: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """How far H v is from differences of grad along unit vectors v, how far it may be, both (steps, users), and the
    differences (steps, users, d).

    Two sides, since the hessian may jump close to x, as that of a Huber loss does: to one side of x it is then as at x.
    """
    x, sides, noise = place.x, [], []
    here = examiner.slopes(x)
    for h in steps:
        points = [x + s * h * place.reach.unsqueeze(1) * v for s in (1, -1)]
        slopes = [examiner.slopes(point) for point in points]
        lengths = [(point - x).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny) for point in points]
        sides.append(
            torch.stack([s * (g - here) / n.unsqueeze(1) for s, g, n in zip((1, -1), slopes, lengths, strict=True)])
        )
        size = torch.stack([here, *slopes]).norm(dim=2).amax(0)
        noise.append(200 * torch.finfo(x.dtype).eps * size / torch.minimum(*lengths))
    ahead, behind = torch.stack(sides, 1)
    differences = (ahead + behind) / 2
    between = torch.minimum(torch.maximum(Hv, torch.minimum(ahead, behind)), torch.maximum(ahead, behind))
    loose = 10 * Tolerance.of(x.dtype).change * (Hv.norm(dim=1) + differences.norm(dim=2))
    return (Hv - between).norm(dim=2), loose + torch.stack(noise), differences
