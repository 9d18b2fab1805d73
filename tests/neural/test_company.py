"""A user's result is the same bits in any company, in any order, in any chunk, on any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import resolvent as rs
from neural_reference import Federation, chosen, federation
from resolvent.networks import Gradients, ValueAndGrad
from resolvent.networks.models import cifar10_cnn, mnist_cnn
from resolvent.networks.stacked import method as stacked
from resolvent.problems.one_thread import one_thread, threads_there

pytestmark = pytest.mark.usefixtures("convolutions")
SMALL = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 9), nn.Sigmoid(), nn.Linear(9, 1 + 2))
THIN = nn.Sequential(nn.Linear(320, 20), nn.GELU(), nn.Linear(20, 2))
SMOOTH = nn.Sequential(
    nn.Conv2d(1, 5, 3), nn.ELU(), nn.AvgPool2d(2), nn.Conv2d(5, 7, 2), nn.SiLU(), nn.Flatten(), nn.Linear(28, 4)
)
NORMED = nn.Sequential(
    nn.Conv2d(1, 6, 3),
    nn.GroupNorm(2, 6),
    nn.ReLU(),
    nn.Conv2d(6, 3, 3),
    nn.GroupNorm(3, 3),
    nn.Flatten(),
    nn.Linear(75, 4),
)
CASES = {
    "normed": (NORMED, (1, 9, 9), 19),
    "mnist": (mnist_cnn(), (1, 28, 28), 40),
    "cifar": (cifar10_cnn(), (3, 32, 32), 6),
    "small": (SMALL, (7,), 11),
    "one image": (THIN, (320,), 1),
    "thin": (THIN, (320,), 5),
    "smooth": (SMOOTH, (1, 8, 8), 19),
    "mlp": (nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)), (784,), 20),
}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def ask(gradients: Gradients, fed: Federation, who: list[int]) -> ValueAndGrad:
    return gradients.value_and_grad(fed.W[who], fed.x[who], fed.y[who])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_company_does_not_change_a_bit(name: str, dtype: torch.dtype) -> None:
    model, shape, n = CASES[name]
    fed = federation(model, shape, users=7, n=n, dtype=dtype)
    gradients = chosen(fed)
    everyone = ask(gradients, fed, list(range(7)))
    for who in ([0], [3], [6], [5, 2], [6, 5, 4, 3, 2, 1, 0], [1, 2, 3]):
        some = ask(gradients, fed, who)
        assert torch.equal(some.grad, everyone.grad[who])
        assert torch.equal(some.loss, everyone.loss[who])
        assert torch.equal(gradients.outputs(fed.W[who], fed.x[who]), gradients.outputs(fed.W, fed.x)[who])


@pytest.mark.parametrize("name", ["mnist", "small", "mlp"])
def test_threads_and_blocks_do_not_change_a_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape, _ = CASES[name]
    fed = federation(model, shape, users=5, n=150, dtype=torch.float32)
    for numbers in (1 << 12, 1 << 19):  # several jobs per user, and one
        monkeypatch.setattr(stacked, "BLOCK_NUMBERS", numbers)
        one = ask(chosen(fed), fed, list(range(5)))
        with threads(3):
            three = ask(chosen(fed), fed, list(range(5)))
            assert torch.get_num_threads() == 3
            alone = ask(chosen(fed), fed, [2])
        assert torch.equal(one.grad, three.grad)
        assert torch.equal(one.loss, three.loss)
        assert torch.equal(one.grad[2:3], alone.grad)


def test_one_thread_nests_and_gives_back_what_it_found() -> None:
    with threads(3):
        with one_thread() as outer, one_thread() as inner:
            assert (outer, inner, torch.get_num_threads()) == (3, 3, 1)
        assert torch.get_num_threads() == 3
    with threads(1), one_thread() as alone:
        assert alone == 1


def test_threads_that_leave_in_turn_leave_nothing_behind() -> None:
    """Each has threads of its own: the last to leave must not restore what it found of the first."""
    first_left, second_entered = threading.Event(), threading.Event()
    found: list[int] = []

    def second() -> None:
        with threads(3):
            with one_thread():
                second_entered.set()
                first_left.wait()
            torch.set_num_threads(1)
            found.append(threads_there())

    other = threading.Thread(target=second)
    with threads(3):
        with one_thread():
            other.start()
            second_entered.wait()
        first_left.set()
        other.join()
    with threads(1):
        assert [*found, threads_there()] == [1, 1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("method", "there"), [("stacked", 1), ("loop", 2)])
def test_local_steps_leave_one_thread_to_kernels(method: str, there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where users are shared out among threads; a module that goes user by user keeps torch's own threads."""
    fed = federation(SMALL, (7,), users=2, n=5, dtype=torch.float32)
    normed = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    problem = rs.Neural(fed.model if method == "stacked" else normed, list(zip(fed.x, fed.y, strict=True)))
    assert problem.method.startswith(method)
    seen, gradient = set(), Gradients.value_and_grad

    def watched(*args: Any) -> ValueAndGrad:
        seen.add(torch.get_num_threads())
        return gradient(*args)

    monkeypatch.setattr(Gradients, "value_and_grad", watched)
    with threads(2):
        rs.solve(problem, rs.fedprox(0.1, rs.GradientProx(2, 0.1)), rounds=1, every=5)
        assert torch.get_num_threads() == 2
    assert seen == {there}


def test_where_the_data_lie_does_not_change_a_bit() -> None:
    """Slices of larger tensors, at addresses of any alignment."""
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=20, dtype=torch.float32)
    want = ask(chosen(fed), fed, [0, 1])
    for shift in (1, 3, 8):
        W = torch.zeros(2, fed.W.shape[1] + 9)[:, shift : shift + fed.W.shape[1]].copy_(fed.W)
        x = torch.zeros(fed.x.numel() + shift)[shift:].view_as(fed.x).copy_(fed.x)
        got = chosen(fed).value_and_grad(W, x, fed.y)
        assert torch.equal(got.grad, want.grad)


def test_asking_again_does_not_change_a_bit() -> None:
    """Nothing of an earlier question is left in the buffers: other users, shapes and kinds of question in between."""
    fed = federation(mnist_cnn(), (1, 28, 28), users=3, n=20, dtype=torch.float32)
    gradients = chosen(fed)
    want = ask(gradients, fed, [0, 1, 2])
    for k in range(3):
        ask(gradients, fed, [2])
        gradients.outputs(fed.W[:, :], fed.x[:, : 5 + k])
        assert torch.equal(ask(gradients, fed, [0, 1, 2]).grad, want.grad)
