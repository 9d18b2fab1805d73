"""Whether the functions of a Custom problem belong together: checked once, before the first round, at random points.

A wrong gradient or prox has a fixed point too, and every certificate vanishes there. What is compared: grad with value,
prox with value (or with grad), hessian with grad, users' rows with each other, and the claims `convex`, `lipschitz`,
`convexity` and `minimiser` with all of these. Only what rounding and kinks cannot explain is refused. Where a function
fails or is not finite, nothing is refused: the point may be outside its domain. And a few points prove nothing: a claim
that is false elsewhere only is not refused.

The calls are bounded, whatever the functions do: about 90 of value, 60 of grad, 20 of prox and 10 of hessian at most,
and where each user has a function of its own, to at most USERS users.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from resolvent.problems.custom import Custom
from resolvent.problems.verify.claims import check_constants, check_far, check_minimiser, check_monotone
from resolvent.problems.verify.examiner import Examiner
from resolvent.problems.verify.functions import (
    check_every_eta,
    check_gradient,
    check_hessians,
    check_prox,
    check_rows,
    check_slopes,
)

MAX_USERS = 32


def verify(problem: Custom, start: Tensor, eta: float, changes: bool = True) -> None:
    """Refuse functions and claims that contradict each other.

    `start` (1 or users, d) and eta are those of the run. `changes`: whether eta changes during it.
    """
    users = torch.arange(problem.users)
    if problem.per_user and problem.users > MAX_USERS:
        users = torch.from_numpy(np.sort(np.random.default_rng(0).choice(problem.users, MAX_USERS, replace=False)))
    part = problem if len(users) == problem.users else problem.take(users)
    examiner = Examiner(part, users.tolist(), np.random.default_rng(1))
    start = start.to(part.weights).expand(problem.users, -1)
    check_start(part, start[users], eta, examiner)
    places = examiner.places(start[users], eta)
    check_rows(examiner, places, eta)
    subgradients = check_slopes(examiner, places, eta)
    check_hessians(examiner, places)
    if part.convex:
        check_monotone(examiner, subgradients)
        check_far(examiner, places, subgradients[-1])
        if changes:
            check_every_eta(examiner, places[0].x, eta)
    check_constants(examiner, places[0], subgradients)
    check_minimiser(Examiner(problem, list(range(problem.users)), examiner.rng), start)


def check_start(problem: Custom, start: Tensor, eta: float, examiner: Examiner) -> None:
    """Refuse what is not a number in the first round. What fails there is left to that round, with its traceback."""
    name = "prox" if "prox" in problem.offers else "grad"
    try:
        answers = problem.prox(start, eta) if name == "prox" else problem.grad(start)
    except Exception:
        return
    bad = ~torch.isfinite(answers).all(1)
    advice = f"correct {name}, or begin elsewhere with start="
    examiner.refuse_first(name, bad, "is not finite where the run begins, but must be", advice)


def verify_answer(problem: Custom, u: Tensor, p: Tensor | None, eta: float, seed: list[int]) -> None:
    """The same for the answers p to u of one round, and for the gradients at u; p is None where it is not a prox."""
    examiner = Examiner(problem, list(range(problem.users)), np.random.default_rng(seed))
    size = u.norm(dim=1).clamp_min(1)
    if examiner.offers("value", "grad"):
        check_gradient(examiner, examiner.line(u, size), examiner.ask("grad", u))
    if p is not None and problem.offers & {"value", "grad"}:
        check_prox(examiner, u, p, eta, size)
