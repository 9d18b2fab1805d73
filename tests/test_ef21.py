"""EF21 and DIANA in the splitting's variable: one gradient step, then the mean, sending only what is new.

Write z_i = x - eta grad f_i(x), which is what FedAvg's users with one step send, and zhat_i = x - eta g_i for what the
meeting has. EF21 compresses grad f_i(x) - g_i, so that what is new is counted from a zhat_i that has moved with x:

    zhat_i += x_t - x_(t-1),    zhat_i += C(z_i - zhat_i),    x_(t+1) = mean(zhat).

`send=` has no first line: its zhat_i stays where it is. That is the whole difference. DIANA with random k coordinates
remembers what EF21 remembers with them, but x takes d/k times the change of zhat, an unbiased estimate of all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from bench.compression import Array, Compress, Gradients, compressor, diana, diana_step, ef21, ef21_step

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
USERS, DIM, ROUNDS = 6, 10, 80
KINDS = ("least squares", "logistic", "softly robust")
SENDS = [rs.TopK(0.3), rs.RandomK(0.3), rs.Quantised(4)]


def problem_of(kind: str) -> tuple[Any, Gradients, float]:
    """A problem, the same users' gradients as a plain function, and a step size."""
    rng = np.random.default_rng(KINDS.index(kind))
    A = rng.standard_normal((USERS, 15, DIM))
    b = np.einsum("urd,ud->ur", A, rng.standard_normal((USERS, DIM)))
    if kind == "logistic":
        b = np.sign(b)
        problem: Any = rs.Logistic(A, b, reg=0.5)
        slope = lambda r: -b / (1 + np.exp(b * r))  # noqa: E731
    elif kind == "least squares":
        problem, slope = rs.LeastSquares(A, b), lambda r: r - b
    else:
        problem, slope = rs.Huber(A, b, delta=0.7), lambda r: np.clip(r - b, -0.7, 0.7)
    ridge = 0.5 if kind == "logistic" else 0.0
    grad = lambda x: np.einsum("urd,ur->ud", A, slope(A @ x)) + ridge * x  # noqa: E731
    return problem, grad, 0.3 / float(problem.lipschitz.max())


def splitting(grad: Gradients, eta: float, compress: Compress, moved: bool, factor: float = 1.0) -> Iterator[Array]:
    """The loop above; `moved`: with its first line; x goes `factor` times as far as the mean of zhat does."""
    x = before = np.zeros(DIM)
    zhat = np.zeros((USERS, DIM))
    t = 0
    while True:
        zhat = zhat + (x - before if moved else 0)
        new = compress(x - eta * grad(x) - zhat, t)
        before, x = x, (zhat + factor * new).mean(0)
        zhat, t = zhat + new, t + 1
        yield x


def first(iterates: Iterator[Array]) -> Array:
    return np.stack(list(islice(iterates, ROUNDS)))


def same(one: Array, other: Array) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-11 * np.abs(other).max())


@pytest.mark.parametrize("send", SENDS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_send_does_is_the_loop_without_its_first_line(kind: str, send: Any) -> None:
    problem, grad, eta = problem_of(kind)
    seen: list[Array] = []
    rs.solve(problem, rs.fedavg(eta), rounds=ROUNDS, send=send, progress=False,
             callback=lambda r: seen.append(r.state.met[0].numpy().copy()))  # fmt: skip
    same(np.stack(seen), first(splitting(grad, eta, compressor(send), moved=False)))


@pytest.mark.parametrize("send", SENDS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_ef21_is_the_loop_whose_copies_move_with_the_model(kind: str, send: Any) -> None:
    _, grad, eta = problem_of(kind)
    printed = first(ef21(grad, np.zeros(DIM), eta, compressor(send)))
    same(printed, first(splitting(grad, eta, compressor(send), moved=True)))
    still = first(splitting(grad, eta, compressor(send), moved=False))
    same(still[:1], printed[:1])
    assert np.abs(still[:3] - printed[:3]).max() > 1e-4 * np.abs(printed).max()


@pytest.mark.parametrize("kind", KINDS)
def test_diana_goes_further_than_its_memory(kind: str) -> None:
    _, grad, eta = problem_of(kind)
    send = rs.RandomK(0.3)
    factor = DIM / send.count(DIM)
    printed = first(diana(grad, np.zeros(DIM), eta / 10, 1 / factor, compressor(send, factor)))
    same(printed, first(splitting(grad, eta / 10, compressor(send), moved=True, factor=factor)))
    same_memory = first(ef21(grad, np.zeros(DIM), eta / 10, compressor(send)))
    assert np.abs(same_memory[0] * factor - printed[0]).max() < 1e-12 * np.abs(printed).max()


@pytest.mark.parametrize("kind", KINDS)
def test_where_everything_crosses_all_are_gradient_descent(kind: str) -> None:
    problem, grad, eta = problem_of(kind)
    every = rs.TopK(1.0)
    plain = first(ef21(grad, np.zeros(DIM), eta, compressor(every)))
    same(plain, first(diana(grad, np.zeros(DIM), eta, 1.0, compressor(every))))
    run = rs.solve(problem, rs.fedavg(eta), rounds=ROUNDS, send=every, progress=False)
    same(plain[-1], run.state.met[0].numpy())


@pytest.mark.parametrize("kind", KINDS[:2])
def test_at_their_theorems_steps_they_arrive(kind: str) -> None:
    problem, grad, _ = problem_of(kind)
    each = problem.lipschitz.numpy()
    far = [float(np.linalg.norm(x - problem.minimiser.numpy())) for x in (np.zeros(DIM), *ends(grad, each))]
    assert max(far[1:]) < 1e-3 * far[0]


def ends(grad: Gradients, each: Array) -> Iterator[Array]:
    """Where EF21 and DIANA are after many rounds."""
    send = rs.TopK(0.3), rs.RandomK(0.3)
    step = ef21_step(float(each.mean()), each, 0.5, 0.3)
    yield next(islice(ef21(grad, np.zeros(DIM), step, compressor(send[0])), 8000, None))
    unbiased = compressor(send[1], 1 / 0.3)
    yield next(islice(diana(grad, np.zeros(DIM), diana_step(each, 0.3), 0.3, unbiased), 3000, None))


def test_the_theorems_steps() -> None:
    """EF21, Theorem 2, at k = d is gradient descent's 1/L; both shrink with the share."""
    each = np.array([1.0, 3.0])
    assert ef21_step(2.0, each, 1e-9, 1.0) == pytest.approx(0.5)
    assert diana_step(each, 1.0) == pytest.approx(1 / 3)
    theta = 1 - 0.5**0.5
    assert ef21_step(2.0, each, 1e-9, 0.5) == pytest.approx(1 / (2 + (5 * 2 * 0.5 / theta**2) ** 0.5))
    assert torch.tensor(ef21_step(2.0, each, 1e-9, 0.1)) < ef21_step(2.0, each, 1e-9, 0.5)
