"""One user alone: every scheme and participation as a plain loop has it, and in two parts as in one."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
import torch

import resolvent as rs
import textbook
from hunt.family import Family
from textbook import Grand, Squares

ROUNDS = 16


def one_user(seed: int) -> str:
    rng = np.random.default_rng(seed)
    d, n = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    A = rng.standard_normal((n, d))
    user = Squares(A, A @ rng.standard_normal(d) + 0.1 * rng.standard_normal(n))
    L = float(np.linalg.norm(A, 2) ** 2)
    forward = int(rng.choice([0, 0, 1, 3]))
    mixing: Any = ([1, 1, 1], [2, 2, 1], [2, 2, 0.5], [2, 1, 1], [1, 2, 1], list(rng.uniform(0.2, [2, 2, 1])))
    eta = (rng.uniform(0.1, 0.9) if forward else 10 ** rng.uniform(-2, 2)) / L
    plain = Grand(*mixing[int(rng.integers(6))], eta, textbook.descend(forward) if forward else textbook.prox)  # type: ignore[call-arg]
    scheme = rs.Scheme(plain.alpha, plain.beta, plain.gamma, eta, forward=bool(forward), steps=max(forward, 1))
    absent: Any = str(rng.choice(["hold", "paper"]))
    masks = rng.random((ROUNDS, 1)) < rng.uniform(0.3, 1)
    who = [None, rs.Trace(masks, absent), rs.FixedSize(1, absent)][int(rng.integers(3))]
    masks = masks if isinstance(who, rs.Trace) else np.ones((ROUNDS, 1), dtype=bool)
    start = rng.standard_normal(d)
    more: dict[str, Any] = {"participation": who, "average": [None, "suffix"][int(rng.integers(2))]}
    faster = [None, 2, rs.Anderson(2, on="mean")][int(rng.integers(3))]
    problem, states = rs.LeastSquares([A], [user.b]), []
    loop = textbook.held if absent == "hold" and who is not None else textbook.algorithm_1
    models = [w for w, _ in loop([user], np.ones(1), start[None], plain, masks)]
    rs.solve(problem, scheme, rounds=ROUNDS, start=start, callback=lambda r: states.append(r.state.w), **more)
    noise = 1e-8 * (1 + np.abs(models).max())
    np.testing.assert_allclose(torch.cat(states), models, rtol=1e-8, atol=noise, err_msg="not the plain loop's models")
    cut = int(rng.integers(1, ROUNDS))
    whole = rs.solve(problem, scheme, rounds=ROUNDS, start=start, anderson=faster, **more)
    half = rs.solve(problem, scheme, rounds=cut, start=start, anderson=faster, **more)
    rest = rs.solve(problem, scheme, rounds=ROUNDS - cut, start=half.state, anderson=faster, **more)
    assert rest.state.round == ROUNDS, f"it went on from round {rest.state.round - ROUNDS + cut}, not from {cut}"
    for name in ("u", "p", "w", "met", "next", "parts.participation.z", "parts.participation.seen"):
        a, b = (attrgetter(name)(run.state) for run in (whole, rest))
        assert (a is None) == (b is None), f"state.{name}"
        assert a is None or torch.equal(a, b), f"state.{name}"
    assert torch.equal(whole.model, rest.model)
    asked = rest.state.parts.participation.seen is not None
    assert asked == (who is not None and absent == "hold"), "hold is not kept to"
    return "right"


FAMILIES = [Family("one user", one_user, few=60, many=1000)]
