"""A whole net through fused layers without a GPU: every launch runs the generated kernel, compiled as C++."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernel_emulation
from kernel_routing import apart
from neural_reference import federation, plain_loop
from resolvent.networks.method_choice import propose
from resolvent.networks.precision import Precision
from resolvent.networks.stacked import fused, method, program, workspace
from resolvent.networks.stacked.cuda import launch


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """CUDA's place is taken by the CPU. Gives the names of the kernels that ran."""
    ran: list[str] = []

    def kernel(code: Any, device: object) -> Any:
        def run(grid: tuple[int, int, int], block: tuple[int, int, int], args: tuple[Tensor | int, ...]) -> None:
            ran.append(code.name)
            folder = tmp_path / str(len(ran))
            folder.mkdir()
            kernel_emulation.launch(folder, code, grid, block[0], *args)

        return run

    class OnCpu(workspace.Workspace):
        def __init__(self, like: Tensor, precision: Precision = "float32") -> None:
            super().__init__(like, precision)
            self.aligned, self.loops, self.generated = False, None, True

    def arranged(self: method.Stacked, features: tuple[int, ...], like: Tensor) -> fused.Arranged:
        return fused.arrange(self.net, features, "")

    monkeypatch.setattr(launch, "kernel", kernel)
    monkeypatch.setattr(fused, "multiprocessors", lambda device: 2)
    monkeypatch.setattr(launch, "multiprocessors", lambda device: 2)
    monkeypatch.setattr(program, "prepare", lambda codes, device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(method, "Workspace", OnCpu)
    monkeypatch.setattr(method.Stacked, "arranged", arranged)
    return ran


NETS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "max": (nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)), (1, 6, 6)),
    "means, two layers": (
        nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(3, 2, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8, 3),
        ),
        (2, 6, 6),
    ),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", ["max", pytest.param("means, two layers", marks=pytest.mark.slow)])
def test_a_net_by_fused_layers_is_the_net(name: str, emulated: list[str]) -> None:
    model, shape = NETS[name]
    fed = federation(model, shape, users=2, n=5, dtype=torch.float32)
    gradients = propose(fed.model, fed.loss, "cpu", torch.float32)
    assert gradients.stacked is not None
    gradients.stacked.columns = True
    loss, grad, _ = gradients.value_and_grad(fed.W, fed.x, fed.y)
    expected, want = plain_loop(fed.to(torch.float64))
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    assert all(apart(grad[u], want[u]) < 1e-5 for u in range(2))
    assert {"forward", "weight_gradient", "add_shares", "head", "split", "join"} <= set(emulated)
    assert ("input_gradient" in emulated) == ("two" in name)
