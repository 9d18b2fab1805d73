"""Which way a module goes, and what the plain ways owe: buffers, dropout, any module at all."""

from __future__ import annotations

import gc
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_reference import federation, plain_loop
from resolvent.errors import InputError
from resolvent.models import cifar10_cnn, mnist_cnn
from resolvent.problems.neural import Captured, Layout, Ways
from resolvent.problems.neural.graphs import uncollected


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 5, batch_first=True)
        self.end = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.gru(x)[0][:, -1])


class Branching(nn.Module):
    """What torch.fx cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.end = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x) if float(x.sum()) > 0 else self.end(2 * x)


class Folding(nn.Module):
    """A view that makes other images of the images: fx traces it, but it is not a reshape of each."""

    def __init__(self) -> None:
        super().__init__()
        self.end = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x.view(-1, 2)).view(-1, 2, 3).sum(1)


NORMED = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
NOISY = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 7), nn.Dropout(0.2), nn.Linear(7, 3))


@pytest.mark.parametrize(
    ("model", "shape", "reason"),
    [
        (Recurrent(), (6, 3), "GRU"),
        (Branching(), (4,), "trace"),
        (Folding(), (4,), "sum has no stacked form"),
        (NORMED, (1, 6, 6), "BatchNorm2d"),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3)), (2, 4, 4), "groups"),
        (nn.Sequential(nn.Linear(3, 4), nn.Flatten(), nn.Linear(8, 3)), (2, 3), "features of shape (2, 3)"),
    ],
)
def test_any_module_goes_some_way(model: nn.Module, shape: tuple[int, ...], reason: str) -> None:
    fed = federation(model, shape, users=2, n=5)
    before = deepcopy(fed.model.state_dict())
    ways = Ways(fed.model, dtype=torch.float64)
    got = ways.value_and_grad(fed.W, fed.x, fed.y)
    assert ways.way == "loop"
    assert reason in ways.reason
    want_loss, want = plain_loop(replace_buffers(fed))
    torch.testing.assert_close(got.loss, want_loss)
    torch.testing.assert_close(got.grad, want)
    for name, value in fed.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def replace_buffers(fed):  # type: ignore[no-untyped-def]
    """The reference changes the module's buffers; the one that is looked at must not be it."""
    return type(fed)(deepcopy(fed.model), fed.W, fed.x, fed.y, fed.loss)


def test_buffers_go_in_and_come_out_stacked() -> None:
    fed = federation(NORMED, (1, 6, 6), users=3, n=5)
    ways = Ways(fed.model, dtype=torch.float64)
    first = ways.value_and_grad(fed.W, fed.x, fed.y)
    second = ways.value_and_grad(fed.W, fed.x, fed.y, buffers=first.buffers)
    for i in range(3):
        alone = deepcopy(fed.model)
        ways.layout.load(alone, fed.W[i])
        for got in (first, second):
            alone(fed.x[i])
            for name, buffer in alone.named_buffers():
                torch.testing.assert_close(got.buffers[name][i], buffer)
        at_rest = alone.eval()(fed.x[i])
        torch.testing.assert_close(ways.outputs(fed.W, fed.x, second.buffers)[i], at_rest)


def test_vmap_gives_the_same() -> None:
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=4)
    ways = Ways(fed.model, dtype=torch.float64, way="vmap")
    got = ways.value_and_grad(fed.W, fed.x, fed.y)
    assert ways.way == "vmap"
    torch.testing.assert_close(got.grad, plain_loop(fed)[1])
    torch.testing.assert_close(ways.values(fed.W, fed.x, fed.y), got.loss)


def test_dropout_is_a_function_of_the_seed_and_the_same_in_every_way() -> None:
    fed = federation(NOISY, (6,), users=3, n=50)
    seeds = torch.tensor([5, 6, 5])
    stacked, loop = (Ways(fed.model, dtype=torch.float64, way=way) for way in ("stacked", "loop"))
    a, b = (ways.value_and_grad(fed.W, fed.x, fed.y, seeds=seeds) for ways in (stacked, loop))
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)
    again = stacked.value_and_grad(fed.W[1:], fed.x[1:], fed.y[1:], seeds=seeds[1:])
    torch.testing.assert_close(again.grad, a.grad[1:], rtol=0, atol=0)
    torch.testing.assert_close(stacked.values(fed.W, fed.x, fed.y, seeds=seeds), a.loss)
    other = stacked.value_and_grad(fed.W, fed.x, fed.y, seeds=seeds + 1)
    assert float((other.grad - a.grad).norm()) > 1e-3
    same_seed = stacked.value_and_grad(fed.W[:1], fed.x[:1].repeat(2, 1, 1), fed.y[:1].repeat(2, 1), seeds=seeds[::2])
    torch.testing.assert_close(same_seed.grad[0], same_seed.grad[1], rtol=0, atol=0)


def test_without_seeds_nothing_is_dropped() -> None:
    fed = federation(NOISY, (6,), users=2, n=9)
    still = type(fed)(deepcopy(fed.model).eval(), fed.W, fed.x, fed.y, fed.loss)
    state = torch.get_rng_state()
    for way in ("stacked", "loop"):
        ways = Ways(fed.model, dtype=torch.float64, way=way)
        assert ways.random
        torch.testing.assert_close(ways.value_and_grad(fed.W, fed.x, fed.y).grad, plain_loop(still)[1])
        ways.value_and_grad(fed.W, fed.x, fed.y, seeds=torch.tensor([1, 2]))
    assert torch.equal(state, torch.get_rng_state()), "torch's own randomness was touched"


def test_autocast_is_near() -> None:
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=32, dtype=torch.float32)
    want = plain_loop(fed)[1]
    for way in ("stacked", "loop"):
        got = Ways(fed.model, way=way, autocast=torch.bfloat16).value_and_grad(fed.W, fed.x, fed.y).grad
        apart = float((got - want).norm() / want.norm())
        assert 1e-5 < apart < 0.1


@pytest.mark.parametrize("way", ["stacked", "loop"])
def test_inference_mode_changes_nothing(way: str) -> None:
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=4)
    ways = Ways(fed.model, dtype=torch.float64, way=way)
    want = Ways(fed.model, dtype=torch.float64, way=way).value_and_grad(fed.W, fed.x, fed.y).grad
    with torch.inference_mode():
        W, x = fed.W.clone(), fed.x.clone()
        assert torch.equal(ways.value_and_grad(W, x, fed.y).grad, want)
        ways.values(W, x, fed.y)
        ways.outputs(W, x)
    assert torch.equal(ways.value_and_grad(W, x, fed.y).grad, want)


def test_layout_flattens_splits_and_loads() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    layout = Layout.of(model)
    assert layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert layout.dim == 11
    w = layout.flatten(model)
    rows = torch.stack([w, 2 * w])
    split = layout.split(rows)
    assert split["0.weight"].data_ptr() == rows.data_ptr(), "views, no copies"
    torch.testing.assert_close(split["2.weight"][1], 2 * model[2].weight)
    layout.load(model, 2 * w)
    torch.testing.assert_close(layout.flatten(model), 2 * w)


def test_the_papers_networks_have_the_papers_parameters() -> None:
    assert Layout.of(mnist_cnn()).dim == 11_910
    assert Layout.of(cifar10_cnn()).dim == 797_962
    sizes = [p.numel() for p in cifar10_cnn().parameters()]
    assert [a + b for a, b in zip(sizes[::2], sizes[1::2], strict=True)] == [4864, 102_464, 614_784, 73_920, 1930]
    assert mnist_cnn()(torch.zeros(2, 1, 28, 28)).shape == cifar10_cnn()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_bad_input_is_refused_in_a_sentence() -> None:
    ways = Ways(nn.Linear(4, 3))
    x, y = torch.zeros(2, 5, 4), torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(InputError, match=r"W is of shape \(3, 15\), but \(2, 15\) or \(1, 15\) is needed"):
        ways.value_and_grad(torch.zeros(3, 15), x, y)
    with pytest.raises(InputError, match="a target for each"):
        ways.values(torch.zeros(2, 15), x, y[:, :4])
    with pytest.raises(InputError, match="cannot be stacked: GRU"):
        Ways(Recurrent(), way="stacked")
    with pytest.raises(InputError, match="'stacked', 'vmap', 'loop'"):
        Ways(nn.Linear(4, 3), way="fast")
    with pytest.raises(InputError, match="something to train"):
        Ways(nn.ReLU())


def test_off_cuda_a_captured_function_is_the_function() -> None:
    double = Captured(lambda W: 2 * W)
    torch.testing.assert_close(double(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def test_nothing_is_collected_while_a_graph_is_captured() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled(), "who has switched it off keeps it off"
    finally:
        gc.enable()


def test_functions_and_modules_read_the_same() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 2), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            n = x.shape[0]
            x = F.leaky_relu(F.max_pool2d(self.a(x), kernel_size=2, stride=1), 0.1)
            x = F.local_response_norm(F.elu(self.b(x), alpha=0.5), 2, k=1.5)
            x = F.avg_pool2d(F.dropout(x, 0.3, training=False), kernel_size=2)
            return F.gelu(self.c(torch.flatten(x, start_dim=1)).reshape(n, 5), approximate="tanh")

    fed = federation(Written(), (1, 8, 8), users=2, n=4)
    ways = Ways(fed.model, dtype=torch.float64)
    assert ways.way == "stacked", ways.reason
    torch.testing.assert_close(ways.value_and_grad(fed.W, fed.x, fed.y).grad, plain_loop(fed)[1])
