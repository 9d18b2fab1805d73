"""Layers of torch.nn, one family each: gradients of all users against plain autograd, by the method that docs say."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import resolvent as rs

PAGE = (Path(__file__).parents[2] / "docs" / "neural.md").read_text(encoding="utf-8")
DOUBLE = torch.float64
TOLERANCE = 1e-10
"""Relative: sums of a few hundred doubles through a few layers, in another order."""


class Called(nn.Module):
    """Layers by name, a forward that calls them, and scores of three classes from what it gives, row by row."""

    def __init__(self, forward: Callable[..., Tensor], size: int, **layers: nn.Module) -> None:
        super().__init__()
        self.how, self.layers, self.last = forward, nn.ModuleDict(layers), nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.how(x, **self.layers).flatten(1))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grads[0]


TOKENS, SEQUENCE, IMAGES = (6,), (5, 4), (4, 5, 5)
FAMILIES: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "Embedding": (TOKENS, lambda: Called(lambda x, e: e(x), 24, e=nn.Embedding(9, 4))),
    "Embedding(padding_idx)": (TOKENS, lambda: Called(lambda x, e: e(x), 24, e=nn.Embedding(9, 4, padding_idx=2))),
    "EmbeddingBag": (TOKENS, lambda: Called(lambda x, e: e(x), 4, e=nn.EmbeddingBag(9, 4))),
    "LayerNorm": (SEQUENCE, lambda: Called(lambda x, a, n: n(a(x)), 30, a=nn.Linear(4, 6), n=nn.LayerNorm(6))),
    "RMSNorm": (SEQUENCE, lambda: Called(lambda x, a, n: n(a(x)), 30, a=nn.Linear(4, 6), n=nn.RMSNorm(6))),
    "GroupNorm": (IMAGES, lambda: Called(lambda x, c, n: n(c(x)), 54, c=nn.Conv2d(4, 6, 3), n=nn.GroupNorm(3, 6))),
    "InstanceNorm2d": (
        IMAGES,
        lambda: Called(lambda x, c, n: n(c(x)), 54, c=nn.Conv2d(4, 6, 3), n=nn.InstanceNorm2d(6, affine=True)),
    ),
    "MultiheadAttention": (
        SEQUENCE,
        lambda: Called(
            lambda x, h: h(x, x, x, need_weights=False)[0], 20, h=nn.MultiheadAttention(4, 2, batch_first=True)
        ),
    ),
    "TransformerEncoderLayer": (
        SEQUENCE,
        lambda: Called(lambda x, t: t(x), 20, t=nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)),
    ),
    "TransformerDecoderLayer": (
        SEQUENCE,
        lambda: Called(lambda x, t: t(x, 2 * x), 20, t=nn.TransformerDecoderLayer(4, 2, 6, 0.0, batch_first=True)),
    ),
    "RNN": (SEQUENCE, lambda: Called(lambda x, r: r(x)[0], 15, r=nn.RNN(4, 3, batch_first=True))),
    "LSTM": (
        SEQUENCE,
        lambda: Called(lambda x, r: r(x)[0], 30, r=nn.LSTM(4, 3, 2, True, True, bidirectional=True)),
    ),
    "GRU": (SEQUENCE, lambda: Called(lambda x, r: r(x)[1][-1], 3, r=nn.GRU(4, 3, 2, batch_first=True))),
    "Bilinear": (SEQUENCE, lambda: Called(lambda x, b: b(x, x), 15, b=nn.Bilinear(4, 4, 3))),
    "checkpoint": (
        SEQUENCE,
        lambda: Called(
            lambda x, a, b: checkpoint(lambda h: b(h).tanh() * h, a(x), use_reentrant=False),
            20,
            a=nn.Linear(4, 4),
            b=nn.Linear(4, 4),
        ),
    ),
    "autograd.Function": (SEQUENCE, lambda: Called(lambda x, a: Cube.apply(a(x)), 15, a=nn.Linear(4, 3))),
}


def rows(shape: tuple[int, ...], n: int, g: torch.Generator) -> Tensor:
    return torch.randint(0, 9, (n, *shape), generator=g) if shape == TOKENS else torch.randn(n, *shape, generator=g)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_plain_autograd(name: str) -> None:
    torch.manual_seed(0)
    (shape, make), g = FAMILIES[name], torch.Generator().manual_seed(1)
    model = make().to(DOUBLE)
    data = [(rows(shape, n, g), torch.randint(0, 3, (n,), generator=g)) for n in (4, 7, 5, 6)]
    users = [(x.double() if x.is_floating_point() else x, y) for x, y in data]
    problem = rs.Neural(model, users)
    W = problem.start + 0.3 * torch.randn(4, problem.dim, generator=g, dtype=DOUBLE)
    for w, (x, y), grad, value in zip(W, users, problem.grad(W), problem.value(W), strict=True):
        held = copy.deepcopy(model)
        nn.utils.vector_to_parameters(w, held.parameters())
        loss = F.cross_entropy(held(x), y)
        loss.backward()
        want = torch.cat(
            [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in held.parameters()]
        )
        assert float((grad - want).norm() / want.norm()) < TOLERANCE
        assert float(value) == pytest.approx(float(loss.detach()), rel=TOLERANCE)
    stated = re.search(rf"^\| [^|]*`{re.escape(name.partition('(')[0])}`[^|]*\| (\w+)", PAGE, flags=re.MULTILINE)
    assert stated is not None, "docs/neural.md says by which method"
    assert rs.Neural(model, users, dtype=torch.float32).method.startswith(stated[1])
