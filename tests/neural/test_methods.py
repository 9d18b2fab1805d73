"""Which method a module gets, and what the plain methods must do: buffers, dropout, any module at all."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import resolvent as rs
from neural_reference import chosen, federation, plain_loop
from resolvent.errors import InputError
from resolvent.networks import Captured, ParameterLayout, choose_method
from resolvent.networks.cuda_graphs import capturing, uncollected
from resolvent.networks.models import cifar10_cnn, mnist_cnn


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
def test_any_module_has_a_method(model: nn.Module, shape: tuple[int, ...], reason: str) -> None:
    fed = federation(model, shape, users=2, n=5)
    before = deepcopy(fed.model.state_dict())
    gradients = chosen(fed)
    got = gradients.value_and_grad(fed.W, fed.x, fed.y)
    assert gradients.method == "loop"
    assert reason in gradients.reason
    want_loss, want = plain_loop(replace_buffers(fed))
    torch.testing.assert_close(got.loss, want_loss)
    torch.testing.assert_close(got.grad, want)
    for name, value in fed.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.parametrize(("width", "method"), [(31, "stacked"), (32, "vmap")])
def test_norms_beside_wide_convolutions_are_not_stacked_on_a_cpu(width: int, method: str) -> None:
    layers = [nn.Conv2d(1, width, 3), nn.GroupNorm(1, width), nn.ReLU(), nn.Flatten(), nn.Linear(4 * width, 3)]
    fed = federation(nn.Sequential(*layers), (1, 4, 4), users=4, n=5)
    assert chosen(fed).method == method
    assert chosen(fed, method="stacked").method == "stacked"
    got, want = (chosen(fed, method=m).value_and_grad(fed.W, fed.x, fed.y).grad for m in (None, "stacked"))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def replace_buffers(fed):  # type: ignore[no-untyped-def]
    """The reference changes the module's buffers; the one that is looked at must not be it."""
    return type(fed)(deepcopy(fed.model), fed.W, fed.x, fed.y, fed.loss)


def test_buffers_go_in_and_come_out_stacked() -> None:
    fed = federation(NORMED, (1, 6, 6), users=3, n=5)
    gradients = chosen(fed)
    first = gradients.value_and_grad(fed.W, fed.x, fed.y)
    second = gradients.value_and_grad(fed.W, fed.x, fed.y, buffers=first.buffers)
    for i in range(3):
        alone = deepcopy(fed.model)
        gradients.layout.load(alone, fed.W[i])
        for got in (first, second):
            alone(fed.x[i])
            for name, buffer in alone.named_buffers():
                torch.testing.assert_close(got.buffers[name][i], buffer)
        at_rest = alone.eval()(fed.x[i])
        torch.testing.assert_close(gradients.outputs(fed.W, fed.x, second.buffers)[i], at_rest)


def test_parameters_with_gaps_between_them() -> None:
    """Columns of a wider tensor, say. torch's gradient of batch norm takes every weight for the next in memory."""
    fed = federation(NORMED, (1, 6, 6), users=3, n=5)
    wide = torch.zeros(3, 2 * fed.W.shape[1], dtype=fed.W.dtype)
    wide[:, ::2] = fed.W
    gradients = chosen(fed)
    dense, gaps = (gradients.value_and_grad(W, fed.x, fed.y).grad for W in (fed.W, wide[:, ::2]))
    assert torch.equal(dense, gaps)


def test_vmap_gives_the_same() -> None:
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=4)
    gradients = chosen(fed, method="vmap")
    got = gradients.value_and_grad(fed.W, fed.x, fed.y)
    assert gradients.method == "vmap"
    torch.testing.assert_close(got.grad, plain_loop(fed)[1])


def test_dropout_is_a_function_of_the_seed_and_the_same_by_every_method() -> None:
    fed = federation(NOISY, (6,), users=3, n=50)
    seeds = torch.tensor([5, 6, 5])
    stacked, loop = (chosen(fed, method=method) for method in ("stacked", "loop"))
    a, b = (gradients.value_and_grad(fed.W, fed.x, fed.y, seeds=seeds) for gradients in (stacked, loop))
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)
    again = stacked.value_and_grad(fed.W[1:], fed.x[1:], fed.y[1:], seeds=seeds[1:])
    torch.testing.assert_close(again.grad, a.grad[1:], rtol=0, atol=0)
    other = stacked.value_and_grad(fed.W, fed.x, fed.y, seeds=seeds + 1)
    assert float((other.grad - a.grad).norm()) > 1e-3
    same_seed = stacked.value_and_grad(fed.W[:1], fed.x[:1].repeat(2, 1, 1), fed.y[:1].repeat(2, 1), seeds=seeds[::2])
    torch.testing.assert_close(same_seed.grad[0], same_seed.grad[1], rtol=0, atol=0)


def test_without_seeds_nothing_is_dropped() -> None:
    fed = federation(NOISY, (6,), users=2, n=9)
    still = type(fed)(deepcopy(fed.model).eval(), fed.W, fed.x, fed.y, fed.loss)
    state = torch.get_rng_state()
    for method in ("stacked", "loop"):
        gradients = chosen(fed, method=method)
        assert gradients.random
        torch.testing.assert_close(gradients.value_and_grad(fed.W, fed.x, fed.y).grad, plain_loop(still)[1])
        gradients.value_and_grad(fed.W, fed.x, fed.y, seeds=torch.tensor([1, 2]))
    assert torch.equal(state, torch.get_rng_state()), "torch's own randomness was touched"


def test_bfloat16_is_near() -> None:
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=32, dtype=torch.float32)
    want = plain_loop(fed)[1]
    for method in ("stacked", "loop"):
        got = chosen(fed, method=method, precision="bfloat16").value_and_grad(fed.W, fed.x, fed.y).grad
        apart = float((got - want).norm() / want.norm())
        assert 1e-5 < apart < 0.1


@pytest.mark.parametrize("method", ["stacked", "loop"])
def test_inference_mode_changes_nothing(method: str) -> None:
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=4)
    gradients = chosen(fed, method=method)
    want = chosen(fed, method=method).value_and_grad(fed.W, fed.x, fed.y).grad
    with torch.inference_mode():
        W, x = fed.W.clone(), fed.x.clone()
        assert torch.equal(gradients.value_and_grad(W, x, fed.y).grad, want)
        gradients.outputs(W, x)
    assert torch.equal(gradients.value_and_grad(W, x, fed.y).grad, want)


def test_layout_flattens_splits_and_loads() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    layout = ParameterLayout.of(model)
    assert layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert layout.dim == 11
    w = layout.flatten(model)
    rows = torch.stack([w, 2 * w])
    split = layout.split(rows)
    assert split["0.weight"].data_ptr() == rows.data_ptr(), "views, no copies"
    torch.testing.assert_close(split["2.weight"][1], 2 * model[2].weight)  # type: ignore[operator]
    layout.load(model, 2 * w)
    torch.testing.assert_close(layout.flatten(model), 2 * w)


def test_the_papers_networks_have_the_papers_parameters() -> None:
    assert ParameterLayout.of(mnist_cnn()).dim == 11_910
    assert ParameterLayout.of(cifar10_cnn()).dim == 797_962
    sizes = [p.numel() for p in cifar10_cnn().parameters()]
    assert [a + b for a, b in zip(sizes[::2], sizes[1::2], strict=True)] == [4864, 102_464, 614_784, 73_920, 1930]
    assert mnist_cnn()(torch.zeros(2, 1, 28, 28)).shape == cifar10_cnn()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_bad_input_is_refused_in_a_sentence() -> None:
    W, x, y = torch.randn(1, 15), torch.randn(2, 5, 4), torch.zeros(2, 5, dtype=torch.long)
    gradients = choose_method(nn.Linear(4, 3), W, x, y)
    with pytest.raises(InputError, match=r"W is of shape \(3, 15\), but \(2, 15\) or \(1, 15\) is needed"):
        gradients.value_and_grad(torch.zeros(3, 15), x, y)
    with pytest.raises(InputError, match="a target for each"):
        gradients.value_and_grad(torch.zeros(2, 15), x, y[:, :4])
    with pytest.raises(InputError, match="cannot be stacked: GRU"):
        choose_method(Recurrent(), W, x, y, method="stacked")
    with pytest.raises(InputError, match="'stacked', 'compiled', 'vmap', 'loop'"):
        choose_method(nn.Linear(4, 3), W, x, y, method="fast")
    with pytest.raises(InputError, match="something to train"):
        choose_method(nn.ReLU(), W, x, y)


def test_off_cuda_a_captured_function_is_the_function() -> None:
    double = Captured(lambda W: 2 * W)
    torch.testing.assert_close(double(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def test_nothing_is_collected_while_a_graph_is_captured() -> None:
    assert gc.isenabled()

    def fails() -> None:
        with uncollected():
            assert not gc.isenabled()
            raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"):
        fails()
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
    gradients = chosen(fed)
    assert gradients.method == "stacked", gradients.reason
    torch.testing.assert_close(gradients.value_and_grad(fed.W, fed.x, fed.y).grad, plain_loop(fed)[1])


def test_a_seed_belongs_to_one_gradient() -> None:
    """Nothing is drawn for the next one."""
    fed = federation(NOISY, (6,), users=2, n=9)
    problem = rs.Neural(fed.model, list(zip(fed.x, fed.y, strict=True)))
    still, rows, mask = problem.grad(fed.W), torch.arange(4).expand(2, -1), torch.ones(2, 4)
    batch = problem.batch_grad(fed.W, rows, mask)
    seeds = np.array([3, 4], dtype=np.uint64)
    noisy = problem.grad(fed.W, seeds=seeds), problem.batch_grad(fed.W, rows, mask, seeds=seeds)
    assert all(float((a - b).norm()) > 1e-3 for a, b in zip(noisy, (still, batch), strict=True))
    assert torch.equal(problem.grad(fed.W), still)
    assert torch.equal(problem.batch_grad(fed.W, rows, mask), batch)
    assert torch.equal(problem.grad(fed.W, seeds=seeds), noisy[0])


def test_data_of_another_shape_is_evaluated_by_the_loop_and_changes_nothing_else() -> None:
    """Seven places do not divide into two: the stacked form of the pooling cannot take these images."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 4))
    fed = federation(model, (1, 8, 8), users=2, n=6)
    x, y = torch.randn(5, 1, 9, 9, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    users = list(zip(fed.x, fed.y, strict=True))
    problem = rs.Neural(fed.model, users, test=(x, y), validation=users)
    assert problem.method.startswith("stacked")
    w = problem.start.unsqueeze(0)
    found = problem.inspect(w, w.expand(2, -1), {})
    assert found["test_loss"] == pytest.approx(float(F.cross_entropy(fed.model(x), y).detach()))
    assert found["validation_loss"] == pytest.approx(found["value"])
    torch.testing.assert_close(problem.grad(fed.W), plain_loop(fed)[1])


def test_way_is_a_name_of_method() -> None:
    fed = federation(NOISY, (6,), users=2, n=9)
    problem = rs.Neural(fed.model, list(zip(fed.x, fed.y, strict=True)))
    assert problem.method == "stacked: every layer has a stacked form"


def test_off_cuda_a_problem_captures_nothing() -> None:
    fed = federation(NOISY, (6,), users=2, n=9)
    problem = rs.Neural(fed.model, list(zip(fed.x, fed.y, strict=True)))
    calls = []
    double = problem.captured(lambda W: calls.append(W) or 2 * W)
    assert torch.equal(double(fed.W), 2 * fed.W)
    assert len(calls) == 1


@pytest.mark.parametrize("room", [3, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_a_whole_program_is_its_parts(masked: bool, room: int) -> None:
    """From W to the gradients on one tape, as it is captured on CUDA, and step by step: the same bits, also where the
    program has room for more users."""
    layers = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4)]
    fed = federation(nn.Sequential(*layers), (1, 8, 8), users=3, n=6)
    gradients = choose_method(fed.model, fed.W, fed.x, fed.y, loss=fed.loss, dtype=torch.float64)
    assert gradients.stacked is not None
    for k in range(3):
        W, x, y = fed.W + 0.1 * k, fed.x.flip(k % 2), fed.y.roll(k, 1)
        mask = (torch.arange(6) < 4 + k).expand(3, 6) if masked else None
        want = gradients.value_and_grad(W, x, y, mask)
        with gradients.stacked._workspace(W) as workspace, torch.no_grad():
            program = gradients.stacked._program(workspace, x, with_grad=True, users=room)
            loss, grad = program.whole(W, x, y, mask)
        assert torch.equal(loss, want.loss)
        assert torch.equal(grad, want.grad)


def test_what_a_graph_reads_stays_while_the_graph_does() -> None:
    """Dropped programs would leave their memory to others, and a captured graph goes on writing there."""
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=4)
    stacked = chosen(fed).stacked
    assert stacked is not None
    with stacked._workspace(fed.W) as workspace, capturing() as capture:
        buffer = weakref.ref(stacked._program(workspace, fed.x, with_grad=True).x)
        workspace.clear()
    gc.collect()
    assert buffer() is not None
    capture.kept.clear()
    gc.collect()
    assert buffer() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_minibatches_of_users_of_many_sizes_take_few_programs() -> None:
    """As many users take a step as have images left: one program for each number of them would fill the memory."""
    torch.manual_seed(0)
    data = [(torch.randn(n, 1, 28, 28), torch.randint(0, 10, (n,))) for n in range(40, 680, 32)]
    problem = rs.Neural(mnist_cnn(), data, device="cuda")
    rs.solve(problem, rs.fedavg(0.01, local=rs.GradientSteps(2, batch=64)), rounds=2, progress=False)
    stacked = problem.gradients.stacked
    workspace = stacked._workspaces.get_nowait()
    sizes = {program.users for program in workspace.programs.values() if program._whole_tapes}
    assert sizes <= {1, 2, 4, 8, 16, 20}
    alone = rs.Neural(mnist_cnn(), data, method="loop")
    W = problem.start.to("cuda").expand(20, -1)
    got, want = problem.grad(W).cpu(), alone.grad(W.cpu())
    assert float(((got - want).norm(dim=1) / want.norm(dim=1)).max()) < 1e-3, "near ties of pools"
