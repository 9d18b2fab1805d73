"""Kernels for CUDA by Triton, on nets drawn at random, in double precision against plain autograd on the CPU."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neural_reference import federation, plain_loop
from resolvent.networks.method_choice import propose

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("triton") is None, reason="there is no CUDA device, or no Triton"
)


def drawn(seed: int) -> tuple[nn.Module, tuple[int, int, int], int]:
    """A net of strided and padded convolutions, norms, and pools that overlap or not; images' shape and number."""
    random = np.random.default_rng(seed)
    channels, size = int(random.integers(1, 5)), [int(random.integers(9, 30)) for _ in range(2)]
    shape, layers = (channels, size[0], size[1]), list[nn.Module]()
    for _ in range(2):
        outputs, kernel, stride = int(random.integers(1, 12)), int(random.integers(1, 4)), int(random.integers(1, 3))
        padding = int(random.integers(0, 2))
        norm = nn.GroupNorm(int(random.choice([k for k in (1, 2, 3, outputs) if outputs % k == 0])), outputs)
        layers += [nn.Conv2d(channels, outputs, kernel, stride, padding), norm, nn.ReLU()]
        channels = outputs
        size = [(s + 2 * padding - kernel) // stride + 1 for s in size]
        if random.integers(0, 3):
            layers.append(nn.LocalResponseNorm(int(random.integers(1, 6)), alpha=float(random.choice([1e-4, 0.5]))))
        tile, step = int(random.integers(1, 4)), int(random.integers(1, 4))
        if random.integers(0, 3) and min(size) >= max(tile, step) + 2:
            layers.append(nn.MaxPool2d(tile, step))
            size = [(s - tile) // step + 1 for s in size]
    n = int(random.choice([1, 3, 20, 33, 70, 130, 600]))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size[0] * size[1], 7)), shape, n


@pytest.mark.parametrize("seed", range(24))
def test_nets_drawn_at_random(seed: int) -> None:
    torch.manual_seed(seed)
    model, shape, n = drawn(seed)
    fed = federation(model.double(), shape, users=3, n=n, dtype=torch.float64)
    gradients = propose(fed.model, fed.loss, "cuda", torch.float64)
    assert gradients.method == "stacked"
    loss, grad = plain_loop(fed)
    for _ in range(3):  # recorded, captured, replayed
        found = gradients.value_and_grad(fed.W.cuda(), fed.x.cuda(), fed.y.cuda())
        assert float((found.grad.cpu() - grad).norm() / grad.norm()) < 1e-12
        assert torch.allclose(found.loss.cpu(), loss, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("classes", "n"), [(2, 1), (10, 129), (100, 20), (10, 2400)])
def test_cross_entropy(classes: int, n: int, dtype: torch.dtype) -> None:
    from resolvent.networks.stacked.triton_kernels import cross_entropy

    generator = torch.Generator().manual_seed(n)
    o = 5 * torch.randn(3, classes, n, generator=generator, dtype=torch.float64)
    y = torch.randint(0, classes, (3, n), generator=generator)
    weight = torch.rand(3, n, generator=generator, dtype=torch.float64)
    weight[0, 0], y[0, 0] = 0, -100
    o[1, 0, 0] = 1e4  # no overflow
    leaf = o.clone().requires_grad_()
    each = F.cross_entropy(leaf, y.clamp_min(0), reduction="none") * weight
    want = torch.autograd.grad(each.sum(), leaf)[0]
    G = torch.full_like(o, torch.nan).to("cuda", dtype)
    loss = cross_entropy(o.to("cuda", dtype), y.cuda(), weight.to("cuda", dtype), G)
    tolerance = 1e-13 if dtype == torch.float64 else 3e-6
    assert torch.allclose(loss.cpu().double(), each.sum(1), rtol=tolerance)
    assert float((G.cpu().double() - want).norm() / want.norm()) < tolerance
