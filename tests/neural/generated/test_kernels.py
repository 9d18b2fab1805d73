"""Generated kernels on a GPU: nets drawn at random against double precision that makes the same choices."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import resolvent as rs
from kernel_routing import apart, codes, convolved, plainly
from neural_reference import federation, plain_loop
from resolvent.networks.cuda_graphs import Captured
from resolvent.networks.gradients import Gradients
from resolvent.networks.method_choice import propose
from resolvent.networks.models import mnist_cnn
from resolvent.networks.stacked import method
from resolvent.networks.stacked.cuda import compiler
from resolvent.networks.stacked.fused import FusedConv

pytestmark = pytest.mark.skipif(bool(compiler.obstacle()), reason=f"no generated kernels: {compiler.obstacle()}")
TOLERANCE = 2e-6
"""Of a drawn net; 1e-6 where the images are many."""


def drawn(seed: int) -> tuple[nn.Module, tuple[int, ...], int]:
    """A net of one to three convolutions with whatever may follow them, the shape of its images, and their number."""
    random = np.random.default_rng(seed)
    line = seed % 5 == 4
    channels, size = (
        int(random.integers(1, 9)),
        [1 if line else int(random.integers(6, 33)), int(random.integers(6, 33))],
    )
    shape = (channels, size[1]) if line else (channels, *size)
    layers: list[nn.Module] = []
    for _ in range(random.integers(1, 4)):
        kernel = [1 if line else int(random.integers(1, 8)), int(random.integers(1, 8))]
        padding = [0 if line else int(random.integers(0, 3)), int(random.integers(0, 3))]
        after = [s + 2 * p - k + 1 for s, p, k in zip(size, padding, kernel, strict=True)]
        outputs = int(random.integers(1, 33))
        if min(after) < 1:
            continue
        bias = bool(random.integers(0, 4))
        if line:
            layers.append(nn.Conv1d(channels, outputs, kernel[1], padding=padding[1], bias=bias))
        else:
            layers.append(
                nn.Conv2d(channels, outputs, (kernel[0], kernel[1]), padding=(padding[0], padding[1]), bias=bias)
            )
        tile = [1 if line else int(random.integers(1, 4)), int(random.integers(1, 4))]
        pool: list[nn.Module] = []
        if random.integers(0, 3) and all(a >= t for a, t in zip(after, tile, strict=True)):
            mean = bool(random.integers(0, 2))
            if line:
                pool = [(nn.AvgPool1d if mean else nn.MaxPool1d)(tile[1])]
            else:
                pool = [(nn.AvgPool2d if mean else nn.MaxPool2d)((tile[0], tile[1]))]
            after = [a // t for a, t in zip(after, tile, strict=True)]
        relu: list[nn.Module] = [nn.ReLU()] if random.integers(0, 4) else []
        layers += relu + pool if random.integers(0, 2) else pool + relu
        channels, size = outputs, after
    if not layers:
        layers = [nn.Conv2d(channels, 3, 1) if not line else nn.Conv1d(channels, 3, 1)]
        channels = 3
    n = int(random.choice([1, 7, 33, 64, 65, 70, 131, 1024, 1500]))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size[0] * size[1], 5)), shape, n


def in_use(gradients: Gradients, n: int) -> Any:
    """The program that computed gradients for n images."""
    assert gradients.stacked is not None
    workspace = gradients.stacked._workspaces.get_nowait()
    gradients.stacked._workspaces.put(workspace)
    known: dict[Any, Any] = workspace.programs
    return next(p for (shape, with_grad, _), p in known.items() if shape[1] == n and with_grad)


def reference(
    gradients: Gradients,
    program: Any,
    W: Tensor,
    x: Tensor,
    y: Tensor,
    dtype: torch.dtype,
    fixed: dict[str, Tensor] | None = None,
) -> Tensor:
    """Each user's gradient by plain autograd, with the choices of the program's last forward pass."""
    grads = []
    for u in range(len(W)):
        w = W[u : u + 1].to(dtype).requires_grad_()
        parameters = {name: part[0] for name, part in gradients.layout.split(w).items()} | (fixed or {})
        values = [x[u].to(dtype)]
        for stage, ctx in zip(program.net.stages, program.contexts, strict=True):
            value, layer = values[stage.inputs[0]], stage.layer
            if isinstance(layer, FusedConv):
                code = codes(layer.geometry, ctx.saved[1][u].view(torch.uint8), len(x[u]))
                bias = None if stage.bias is None else parameters[stage.bias]
                kernel = parameters[stage.parameter].view(
                    layer.geometry.outputs, layer.geometry.inputs, *layer.geometry.kernel
                )
                plain = plainly(layer.geometry, value, kernel, bias)
                value = convolved(layer.geometry, value, kernel, bias, code)
                assert apart(value.detach(), plain.detach().double()) < 1e-5, "another entry than the maximum"
            elif type(layer).__name__ == "Lift":
                value = value.unsqueeze(2) if layer.put else value.squeeze(2)
            elif type(layer).__name__ == "Reshape":
                value = value.flatten(1)
            elif type(layer).__name__ == "Linear":
                value = value @ parameters[stage.parameter].T
            elif type(layer).__name__ == "Bias":
                value = value + parameters[stage.parameter].view(-1, *(1,) * (value.ndim - 2))
            elif type(layer).__name__ == "AvgPool":  # of tiles too large for a kernel
                value = F.avg_pool2d(value, layer.kernel)
            elif type(layer).__name__ == "ReLU":  # what it let through is what its result has above 0
                value = value * (ctx.saved[u].movedim(-1, 0) > 0)
            else:
                raise AssertionError(f"{layer} is not in the reference")
            values.append(value)
        grads.append(torch.autograd.grad(F.cross_entropy(values[-1], y[u]), w)[0][0])
    return torch.stack(grads)


@pytest.mark.parametrize("seed", range(30))
def test_nets_drawn_at_random(seed: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    model, shape, n = drawn(seed)
    fed = federation(model, shape, users=2, n=n, dtype=torch.float32, seed=seed)
    W, x, y = (part.cuda() for part in (fed.W, fed.x, fed.y))
    gradients = propose(fed.model, fed.loss, "cuda", torch.float32)
    assert gradients.method == "stacked", gradients.reason
    for _ in range(3):  # the second time is captured, and the third replayed
        loss, grad, _ = gradients.value_and_grad(W, x, y)
    program = in_use(gradients, n)
    assert any(isinstance(stage.layer, FusedConv) for stage in program.net.stages)
    want, plain = (reference(gradients, program, W, x, y, dtype) for dtype in (torch.float64, torch.float32))
    for u in range(2):  # where the loss cancels, single precision cannot be better
        limit = max(TOLERANCE, 2 * apart(plain[u], want[u]))
        assert apart(grad[u], want[u]) < limit, f"{model}, {n} images of {shape}"
    torch.testing.assert_close(loss.cpu().double(), plain_loop(fed.to(torch.float64))[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_ends_drawn_at_random(seed: int) -> None:
    """One or two linear layers after a convolution, narrow enough for one kernel or not."""
    torch.backends.cuda.matmul.allow_tf32 = False
    random = np.random.default_rng(seed)
    width, classes, n = (int(random.choice(some)) for some in ([5, 20, 32, 40], [2, 7, 10], [3, 65, 70, 1024, 1100]))
    bias, last_bias = bool(random.integers(0, 3)), bool(random.integers(0, 3))
    deep = [nn.Linear(3 * 16, width, bias=bias), nn.ReLU(), nn.Linear(width, classes, bias=last_bias)]
    layers = deep if seed % 3 else [nn.Linear(3 * 16, classes, bias=bias)]
    first = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*first, *layers)
    if seed == 4:
        model[0].requires_grad_(False)
    if seed == 5:
        model[-1].requires_grad_(False)
    fed = federation(model, (1, 10, 10), users=3, n=n, dtype=torch.float32, seed=seed)
    W, x, y = (part.cuda() for part in (fed.W, fed.x, fed.y % classes))
    gradients = propose(fed.model, fed.loss, "cuda", torch.float32)
    for _ in range(3):
        _, grad, _ = gradients.value_and_grad(W, x, y)
    program = in_use(gradients, n)
    assert program.head is not None
    assert program.head.geometry.deep == (len(layers) == 3 and width <= 32)
    known = {name: p.detach().cuda() for name, p in fed.model.named_parameters() if not p.requires_grad}
    want, plain = (
        reference(gradients, program, W, x, y, dtype, {name: p.to(dtype) for name, p in known.items()})
        for dtype in (torch.float64, torch.float32)
    )
    for u in range(3):
        assert apart(grad[u], want[u]) < max(TOLERANCE, 2 * apart(plain[u], want[u])), f"{model}, {n} images"


def test_the_mnist_cnn_at_its_size() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    fed = federation(mnist_cnn(), (1, 28, 28), users=3, n=2400, dtype=torch.float32)
    grad = (
        propose(fed.model, fed.loss, "cuda", torch.float32)
        .value_and_grad(fed.W.cuda(), fed.x.cuda(), fed.y.cuda())
        .grad
    )
    again = (
        propose(fed.model, fed.loss, "cuda", torch.float32)
        .value_and_grad(fed.W.cuda(), fed.x.cuda(), fed.y.cuda())
        .grad
    )
    assert torch.equal(grad, again), "the same bits every time"
    gradients = propose(fed.model, fed.loss, "cuda", torch.float32)
    data = (fed.W.cuda(), fed.x.cuda(), fed.y.cuda())
    gradients.value_and_grad(*data)
    want = reference(gradients, in_use(gradients, 2400), *data, torch.float64)
    assert all(apart(grad[u], want[u]) < 1e-6 for u in range(3))
    plain = plain_loop(type(fed)(deepcopy(fed.model).cuda(), fed.W.cuda(), fed.x.cuda(), fed.y.cuda(), fed.loss))[1]
    for u in range(3):
        assert apart(grad[u], plain[u].double()) < 1e-3  # where maxima nearly tie, torch may choose another


@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.1), nn.GELU(), nn.Tanh()])
def test_other_activations_go_layer_by_layer(activation: nn.Module) -> None:
    layers = [nn.Conv2d(2, 5, 3), activation, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(5 * 16, 4)]
    fed = federation(nn.Sequential(*layers), (2, 10, 10), users=2, n=40, dtype=torch.float32)
    gradients = propose(fed.model, fed.loss, "cuda", torch.float32)
    grad = gradients.value_and_grad(fed.W.cuda(), fed.x.cuda(), fed.y.cuda()).grad
    assert gradients.method == "stacked"
    want = plain_loop(fed.to(torch.float64))[1]
    assert all(apart(grad[u].cpu(), want[u]) < 1e-5 for u in range(2))


class Mixed(nn.Module):
    """A layer used twice, a frozen one, one with a frozen bias, and a strided one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.same = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.frozen = nn.Conv2d(6, 6, 1).requires_grad_(False)
        self.partly = nn.Conv2d(6, 4, 3)
        self.partly.bias.requires_grad_(False)
        self.strided, self.end = nn.Conv2d(4, 4, 2, stride=2), nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = x + torch.tanh(self.same(x))
        x = self.frozen(torch.tanh(self.same(x)))
        return self.end(torch.tanh(self.strided(torch.tanh(self.partly(x)))).flatten(1))


def test_shared_frozen_and_other_layers_in_one_net(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation(Mixed(), (1, 8, 8), users=3, n=150, dtype=torch.float32)
    want = plain_loop(fed.to(torch.float64))[1]
    for room in (1 << 30, 1 << 14):  # in one block, and in several that add up
        monkeypatch.setattr(method, "CUDA_BLOCK_NUMBERS", room)
        gradients = propose(fed.model, fed.loss, "cuda", torch.float32)
        for _ in range(3):
            grad = gradients.value_and_grad(fed.W.cuda(), fed.x.cuda(), fed.y.cuda()).grad
        assert gradients.method == "stacked"
        assert all(apart(grad[u].cpu(), want[u]) < 1e-5 for u in range(3))


def test_steps_in_one_graph_are_the_steps_also_when_data_changes_place() -> None:
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=70, dtype=torch.float32)
    gradients = propose(fed.model, fed.loss, "cuda", torch.float32)
    W, x, y = (part.cuda() for part in (fed.W, fed.x, fed.y))
    other = torch.randn_like(x)

    def steps(W: Tensor) -> Tensor:
        for data in (x, x, other, x):
            W = W - 0.1 * gradients.value_and_grad(W, data, y).grad
        return W

    captured, want = Captured(steps), steps(W)
    for _ in range(3):
        assert torch.equal(captured(W), want)
        gradients.value_and_grad(W, other, y)  # leaves other data behind


def test_not_a_number_comes_through() -> None:
    """A run that diverges must be seen to: neither maxima nor ReLU may hide it."""
    fed = federation(mnist_cnn(), (1, 28, 28), users=2, n=40, dtype=torch.float32)
    W, x, y = (part.cuda() for part in (fed.W, fed.x, fed.y))
    gradients = propose(fed.model, fed.loss, "cuda", torch.float32)
    W[1, 3] = torch.nan
    loss, grad, _ = gradients.value_and_grad(W, x, y)
    assert torch.isfinite(loss[0])
    assert torch.isfinite(grad[0]).all()
    assert torch.isnan(loss[1])


def neural(**options: Any) -> rs.Neural:
    fed = federation(mnist_cnn(), (1, 28, 28), users=3, n=70, dtype=torch.float32)
    users = [(fed.x[u], fed.y[u]) for u in range(3)]
    return rs.Neural(fed.model, users, device="cuda", **options)


def test_repr_says_which_layer_goes_how() -> None:
    text = repr(neural())
    assert "0.weight: a CUDA kernel (1 to 10 channels, 5 x 5, bias, max 2 x 2, ReLU)" in text
    assert "3.weight: matrix products, since the kernels are for float32" in repr(neural(dtype=torch.float64))
    assert "3.weight: matrix products, since products are in bfloat16" in repr(neural(precision="bfloat16"))


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
def test_a_resumed_run_is_the_run_to_the_bit() -> None:
    scheme = rs.fedrp(eta=1.0, local=rs.GradientProx(steps=3, lr=0.05))
    whole = rs.solve(neural(), scheme, rounds=6)
    half = rs.solve(neural(), scheme, rounds=3)
    rest = rs.solve(neural(), scheme, rounds=3, start=half.state)
    assert torch.equal(whole.model, rest.model)


@pytest.mark.parametrize("masked", [False, True])
def test_repeated_calls_read_what_they_are_given(masked: bool) -> None:
    """From the third call on a gradient is one graph over buffers of its own: everything must be copied into them."""
    fed = federation(mnist_cnn(), (1, 28, 28), users=3, n=70, dtype=torch.float32)
    gradients, fresh = (propose(fed.model, fed.loss, "cuda", torch.float32) for _ in range(2))
    for k in range(5):
        generator = torch.Generator().manual_seed(k)
        W = (fed.W[:1] if k == 3 else fed.W + 0.1 * torch.randn(fed.W.shape, generator=generator)).cuda()
        x, y = torch.randn(fed.x.shape, generator=generator).cuda(), fed.y.roll(k, 1).cuda()
        mask = (torch.rand(fed.y.shape, generator=generator) < 0.7).cuda() if masked else None
        y[0, k] = -100  # ignored
        found = gradients.value_and_grad(W, x, y, mask)
        for u in range(3):
            real = slice(None) if mask is None else mask[u]
            w = (W if len(W) == 1 else W[u : u + 1]).clone()
            alone = fresh.value_and_grad(w, x[u, real].unsqueeze(0), y[u, real].unsqueeze(0))
            assert apart(found.grad[u].cpu(), alone.grad[0].cpu().double()) < 1e-5
            assert torch.allclose(found.loss[u], alone.loss[0], rtol=1e-5)


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
@pytest.mark.parametrize("batch", [None, 32])
def test_several_seeds_at_once_are_the_runs_alone_to_rounding(batch: int | None) -> None:
    scheme = rs.fedprox(eta=1.0, local=rs.GradientProx(steps=2, lr=0.05, batch=batch))
    problems = []
    for seed in range(3):
        torch.manual_seed(seed)
        data = [(torch.randn(70 + seed, 1, 28, 28), torch.randint(0, 10, (70 + seed,))) for _ in range(3)]
        problems.append(rs.Neural(mnist_cnn(), data, device="cuda", test=data))
    runs = rs.solve_seeds(problems, scheme, [4, 5, 6], rounds=4)
    for run, problem, seed in zip(runs, problems, [4, 5, 6], strict=True):
        alone = rs.solve(problem, scheme, rounds=4, seed=seed, progress=False)
        moved = (alone.model - problem.start).norm()
        assert float((run.model - alone.model).norm() / moved) < 1e-3
        assert np.allclose(run.history["value"], alone.history["value"], rtol=1e-4)


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
def test_losses_on_the_gpu_are_those_of_the_cpu() -> None:
    """There all users' losses are computed at once; here, one by one."""
    fed = federation(mnist_cnn(), (1, 28, 28), users=3, n=40, dtype=torch.float64)
    users = [(fed.x[u, : 40 - 5 * u], fed.y[u, : 40 - 5 * u]) for u in range(3)]
    here, there = (rs.Neural(fed.model, users, device=device, test=users) for device in ("cpu", "cuda"))
    found = there.inspect(fed.W[:1].cuda(), fed.W.cuda(), {})
    for name, value in here.inspect(fed.W[:1], fed.W, {}).items():
        assert found[name] == pytest.approx(value, rel=1e-12, nan_ok=True)
