"""Generated kernels on the CPU: emulated against torch in double precision; their cuts; the cache of machine code."""

from __future__ import annotations

import shutil
from math import ceil
from pathlib import Path

import pytest
import torch

from kernel_emulation import convolve
from kernel_routing import apart, codes, convolved, plainly
from resolvent.networks.stacked.cuda import compiler, source
from resolvent.networks.stacked.cuda.compiler import Code
from resolvent.networks.stacked.cuda.geometry import MIN_CONSTANT_IMAGES, ConvGeometry, ImageGroups
from resolvent.networks.stacked.cuda.launch import divided, shares
from resolvent.networks.stacked.cuda.stripes import stripe
from resolvent.networks.stacked.cuda.tiling import MAX_WARPS, MAX_WEIGHT_BYTES, forward_tile, input_tile

MAX = {"pooling": "max", "pool": (2, 2), "relu": "last"}
CASES = {
    "padded, ragged": (ConvGeometry(3, 7, (9, 10), (3, 3), (1, 1), **MAX), 70),  # type: ignore[arg-type]
    "odd number of images": (ConvGeometry(2, 5, (12, 12), (5, 5), **MAX), 69),  # type: ignore[arg-type]
    "over one axis, few images": (ConvGeometry(2, 3, (1, 30), (1, 5), (0, 0), "max", (1, 2), "last"), 20),
    "ReLU before means": (ConvGeometry(3, 4, (9, 8), (2, 3), (1, 2), "mean", (2, 2), "first"), 33),
    "means before ReLU": (ConvGeometry(3, 4, (9, 8), (2, 3), (0, 1), "mean", (3, 2), "last"), 64),
    "1 x 1": (ConvGeometry(4, 9, (7, 11), (1, 1), relu="last"), 65),
    "7 x 7 without bias": (ConvGeometry(2, 2, (13, 12), (7, 7), (3, 3), bias=False), 40),
    "more padding than kernel": (ConvGeometry(2, 3, (11, 9), (4, 6), (5, 1), "max", (3, 3)), 96),
}
QUICK = ("over one axis, few images", "means before ReLU")
"""The C++ compiler takes some ten seconds for each of the others."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_emulated_kernels_are_torch(name: str, tmp_path: Path) -> None:
    geometry, n = CASES[name]
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    x, w = draw(2, geometry.inputs, *geometry.size, n), draw(2, geometry.outputs, geometry.inputs, *geometry.kernel)
    b, g = draw(2, geometry.outputs) * geometry.bias, draw(2, geometry.outputs, *geometry.cells, n)
    y, code, dx, dw, db = convolve(tmp_path, geometry, x, w, b, g)
    for u in range(2):
        leaves = [t.double().requires_grad_() for t in (x[u].movedim(-1, 0), w[u], b[u])]
        image, kernel, bias = leaves
        want = convolved(geometry, image, kernel, bias, codes(geometry, code[u], n))
        plain = plainly(geometry, image, kernel, bias)
        assert apart(want.detach(), plain.detach()) < 1e-6, "another entry than the maximum"
        slopes = torch.autograd.grad(want, leaves, g[u].movedim(-1, 0).double())
        assert apart(y[u].movedim(-1, 0), plain.detach()) < 1e-6
        assert apart(dx[u].movedim(-1, 0), slopes[0]) < 1e-6
        assert apart(dw[u], slopes[1]) < 1e-6
        assert apart(db[u], slopes[2]) < 2e-6


def test_cuts_cover_the_work_and_fit_the_chip() -> None:
    for channels, kernel, size, pool in [(1, 5, 28, 2), (32, 7, 64, 1), (10, 3, 7, 3), (31, 1, 5, 4), (6, 6, 33, 2)]:
        pooling = "max" if pool > 1 else "none"
        geometry = ConvGeometry(channels, 33 - channels, (size, size), (kernel, kernel), (1, 0), pooling, (pool, pool))  # type: ignore[arg-type]
        for n in (1, 63, 64, 65, 5000):
            for tile, blocks, depth in (
                (forward_tile(geometry, n), geometry.outputs, geometry.inputs),
                (input_tile(geometry, n), geometry.inputs, geometry.outputs),
            ):
                assert tile.block * tile.weight_blocks * tile.parts >= blocks
                assert 4 * depth * kernel * ceil(kernel * tile.block / 4) * 4 * tile.weight_blocks <= MAX_WEIGHT_BYTES
                assert tile.warps <= MAX_WARPS
                assert tile.images.groups(n) * 32 * tile.images.per_lane >= n
                assert tile.images.per_lane == 1 or n >= 64
            cut = stripe(geometry, n)
            across = cut.warps // cut.channel_warps
            assert cut.channels * cut.channel_warps * cut.channel_parts >= geometry.inputs
            assert cut.block * across * (cut.parts // cut.channel_parts) >= geometry.outputs


def test_shares_and_turns() -> None:
    assert divided(8, 3) == 4, "three would leave one of nine turns idle"
    assert divided(5, 9) == 5
    assert shares(75, 500, 396) <= 75
    assert shares(1, 10, 1000) == 1
    assert shares(75, 1, 1000) > 30, "a few blocks leave room for many shares"


def test_only_many_images_are_a_constant() -> None:
    """Runs with batches of every size compile one source, but long ones their own."""
    geometry = ConvGeometry(1, 10, (28, 28), (5, 5))
    texts = {source.forward(geometry, forward_tile(geometry, n)).source for n in (66, 70, 130, MIN_CONSTANT_IMAGES - 2)}
    assert len(texts) == 1
    assert ImageGroups.of(MIN_CONSTANT_IMAGES).count == MIN_CONSTANT_IMAGES
    assert ImageGroups.of(MIN_CONSTANT_IMAGES + 1) != ImageGroups.of(MIN_CONSTANT_IMAGES + 2)


def test_cache_names_follow_source_chip_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [Code("a", "f"), Code("b", "f"), Code("a", "g")]
    names = {compiler.key(code, chip) for code in codes for chip in ("90", "80")}
    assert len(names) == 6
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert compiler.key(codes[0], "90") not in names


def test_machine_code_is_compiled_once_and_damage_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    built = []

    def build(text: str, name: str, chip: str) -> tuple[bytes, str]:
        built.append((text, chip))
        return b"machine code", name

    monkeypatch.setattr(compiler, "_private", lambda name: build)
    code = Code("source", "f")
    assert compiler.compiled(code, 0) == compiler.compiled(code, 0) == b"machine code"
    assert built == [("source", "90")]
    (file,) = compiler.folder().iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert compiler.compiled(code, 0) == b"machine code"
    assert len(built) == 2
    compiler.prepare([code, Code("other", "f")], 0)
    assert len(built) == 3


def test_a_disk_that_cannot_be_written_to_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(compiler, "_private", lambda name: lambda text, kernel, chip: (b"code", kernel))
    assert compiler.compiled(Code("source", "f"), 0) == b"code"


def test_without_torchs_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(compiler, "_private", lambda name: None)
    look = compiler.obstacle.__wrapped__
    assert "does not compile" in look()
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert "NVIDIA" in look()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in look()
