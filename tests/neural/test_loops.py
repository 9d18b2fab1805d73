"""Compiled loops against torch: convolutions and pools of every geometry, cross-entropy."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from resolvent.networks import stacked
from resolvent.networks.stacked import workspace
from resolvent.networks.stacked.layers import windows

pytest.importorskip("numba")
from resolvent.networks.stacked import cpu_loops as loops

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))
SIZES = st.tuples(st.integers(3, 9), st.integers(3, 9))


def counts(sizes: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Any:
    assume(all(size > d * (k - 1) for size, k, d in zip(sizes, kernel, dilation, strict=True)))
    return tuple(windows(*along) for along in zip(sizes, kernel, stride, dilation, strict=True))


def inner(x: Tensor) -> Tensor:
    """(users, n, ...) with the images innermost."""
    return x.movedim(1, -1).contiguous()


@settings(deadline=None)  # the first call compiles
@given(
    users=st.integers(1, 2),
    channels=st.integers(1, 4),
    outputs=st.integers(1, 7),
    n=st.sampled_from([1, 3, 16, 21, 300]),
    sizes=SIZES,
    kernel=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
)
def test_convolutions(
    users: int,
    channels: int,
    outputs: int,
    n: int,
    sizes: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    """Odd and even numbers of outputs and rows, fives and what is left of them, rows longer than a run."""
    h, w = counts(sizes, kernel, stride, dilation)
    generator = torch.Generator().manual_seed(n)
    A = torch.randn(users, outputs, channels, *kernel, generator=generator, dtype=torch.float64)
    x = torch.randn(users, n, channels, *sizes, generator=generator, dtype=torch.float64)
    G = torch.randn(users, n, outputs, h, w, generator=generator, dtype=torch.float64)
    A.requires_grad_()
    x.requires_grad_()
    y = torch.stack([F.conv2d(xi, Ai, None, stride, 0, dilation) for xi, Ai in zip(x, A, strict=True)])
    dA, dx = torch.autograd.grad(y, (A, x), G)

    geometry = loops.Geometry.of((channels, *sizes, n), kernel, (h, w), stride, dilation, rows=True)
    flat, data, back = A.detach().flatten(2), inner(x.detach()), inner(G)
    got, slope, down = torch.full_like(back, torch.nan), torch.ones_like(flat), torch.ones_like(data)
    loops.forward(flat, data, got, geometry)()
    loops.weight_gradient(slope, data, back, geometry)()
    loops.input_gradient(flat, down, back, geometry)()
    torch.testing.assert_close(got, inner(y.detach()), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope - 1, dA.flatten(2), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(down - 1, inner(dx), rtol=1e-12, atol=1e-12)


@settings(deadline=None)  # the first call compiles
@given(
    channels=st.integers(1, 3),
    n=st.sampled_from([1, 5, 16, 33]),
    sizes=SIZES,
    kernel=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    ties=st.booleans(),
)
def test_pools(
    channels: int,
    n: int,
    sizes: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    ties: bool,
) -> None:
    """Whole numbers tie often: the first in reading order has the maximum."""
    h, w = counts(sizes, kernel, stride, dilation)
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(2, n, channels, *sizes, generator=generator, dtype=torch.float64)
    x = (x.round() if ties else x).requires_grad_()
    y = F.max_pool2d(x.flatten(0, 1), kernel, stride, 0, dilation).unflatten(0, (2, n))
    G = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    (dx,) = torch.autograd.grad(y, x, G)

    geometry = loops.Geometry.of((1, *sizes, n), kernel, (h, w), stride, dilation, rows=False)
    data, back = inner(x.detach()), inner(G)
    got, first, down = torch.empty_like(back), torch.empty_like(back), torch.zeros_like(data)
    loops.pool(data, got, first, geometry)()
    loops.unpool(back, first, down, geometry, tiles=False)()
    assert torch.equal(got, inner(y.detach()))
    torch.testing.assert_close(down, inner(dx), rtol=1e-14, atol=1e-14)
    if kernel == stride and dilation == (1, 1) and all(s % k == 0 for s, k in zip(sizes, kernel, strict=True)):
        loops.unpool(back, first, data, geometry, tiles=True)()  # over what was there
        assert torch.equal(data, down)


@pytest.mark.parametrize("place", range(9))
def test_a_pool_hides_no_nan(place: int) -> None:
    x = torch.arange(9.0, dtype=torch.float64).view(1, 1, 3, 3, 1).clone()
    x.view(-1)[place] = torch.nan
    geometry = loops.Geometry.of((1, 3, 3, 1), (3, 3), (1, 1), (3, 3), (1, 1), rows=False)
    y, first = torch.zeros(1, 1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 1, 1, 1, dtype=torch.float64)
    loops.pool(x, y, first, geometry)()
    assert bool(y.isnan())
    assert int(first) == place


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_cross_entropy(scale: float) -> None:
    """Also where exponentials would overflow; weight 0 does not count, even if the loss is infinite."""
    generator = torch.Generator().manual_seed(0)
    o = (scale * torch.randn(3, 4, 7, generator=generator, dtype=torch.float64)).requires_grad_()
    y = torch.randint(0, 4, (3, 7), generator=generator)
    weight = torch.rand(3, 7, generator=generator, dtype=torch.float64)
    want = (F.cross_entropy(o, y, reduction="none") * weight).sum(1)
    (dG,) = torch.autograd.grad(want.sum(), o)
    G = torch.full_like(dG, torch.nan)
    torch.testing.assert_close(loops.cross_entropy(o.detach(), y, weight, G), want.detach(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(G, dG, rtol=1e-13, atol=1e-13)

    off = o.detach().clone()
    off[:, :, 0], weight[:, 0] = torch.inf, 0
    assert bool(loops.cross_entropy(off, y, weight, G).isfinite().all())
    with pytest.raises(IndexError, match="not among the classes"):
        loops.cross_entropy(o.detach(), y + 4, weight, G)


def test_nan_in_the_output_is_nan_in_the_loss() -> None:
    for k in range(3):
        o = torch.zeros(1, 3, 1, dtype=torch.float64)
        o[0, k] = torch.nan
        loss = loops.cross_entropy(
            o, torch.zeros(1, 1, dtype=torch.int64), torch.ones_like(o[:, 0]), torch.empty_like(o)
        )
        assert bool(loss.isnan())


def test_a_numba_that_cannot_be_imported_is_no_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba refuses a NumPy that is newer than itself."""
    kind = (torch.device("cpu"), torch.float32)
    assert workspace.loops_for(*kind) is loops
    monkeypatch.delattr(stacked, "cpu_loops")
    monkeypatch.delitem(sys.modules, loops.__name__)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(workspace, "find_spec", lambda name: name)
    assert workspace.loops_for(*kind) is None


def test_without_a_place_on_disk_code_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    real = loops.njit  # type: ignore[attr-defined]

    def nowhere(cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(loops, "njit", nowhere)
    twice = loops.compiled("contract")(lambda x: x + x)
    assert twice(2.0) == 4.0
