"""The end of a net as one kernel: emulated against autograd in double precision; which ends it takes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernel_emulation import launch
from kernel_routing import apart
from resolvent.networks.layout import ParameterLayout
from resolvent.networks.stacked.cuda import source
from resolvent.networks.stacked.cuda.geometry import HeadGeometry
from resolvent.networks.stacked.head import Head, find_head
from resolvent.networks.stacked.losses import CrossEntropy
from resolvent.networks.stacked.program import Program
from resolvent.networks.stacked.trace import trace
from resolvent.networks.stacked.workspace import Workspace

CASES = {
    "two layers": (HeadGeometry(13, 6, 3, True, True, True, True), 70),
    "one layer, odd number of images": (HeadGeometry(9, 5, 5, False, True, True, True), 67),
    "few images, no bias, nothing before it": (HeadGeometry(8, 4, 3, True, False, False, False), 5),
}
QUICK = ("two layers",)
USERS, IGNORED = 2, -100


def emulated(folder: Path, geometry: HeadGeometry, n: int, given: list[Tensor]) -> dict[str, Tensor]:
    """What the kernel writes, by name; all begins as NaN."""
    sizes = {"hidden": geometry.width, "g_hidden": geometry.width, "g_out": geometry.classes, "loss": 1}
    out = {name: torch.full((USERS, size, n), torch.nan) for name, size in sizes.items()}
    out["dx"] = torch.full((USERS, geometry.inputs, n), torch.nan)
    images = geometry.images(n)
    grid = (images.groups(n), USERS, 1)
    launch(folder, source.head(geometry, n), grid, 32 * geometry.warps(images.per_lane), *given, *out.values(), n)
    return out


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_the_emulated_head_is_autograd(name: str, tmp_path: Path) -> None:
    geometry, n = CASES[name]
    torch.manual_seed(0)
    x, width, classes = torch.randn(USERS, geometry.inputs, n), geometry.width, geometry.classes
    first, last = torch.randn(USERS, width, geometry.inputs), torch.randn(USERS, classes, width)
    b, c = torch.randn(USERS, width) * geometry.bias, torch.randn(USERS, classes) * geometry.last_bias
    y, share = torch.randint(0, classes, (USERS, n)), torch.rand(USERS, n)
    y[0, 2], share[0, 2], share[1, 1] = IGNORED, 0, 0
    out = emulated(tmp_path, geometry, n, [x, first, b, last, c, y, share])
    for u in range(USERS):
        inputs = x[u].double().requires_grad_()
        before = first[u].double() @ inputs + b[u].double()[:, None]
        hidden = before.relu()
        z = last[u].double() @ hidden + c[u].double()[:, None] if geometry.deep else before
        loss = F.cross_entropy(z.T, y[u], reduction="none", ignore_index=IGNORED) * share[u].double()
        dx, g_before, g_out = torch.autograd.grad(loss.sum(), (inputs, before, z))
        assert apart(out["loss"][u, 0], loss.detach()) < 1e-6
        assert apart(out["g_out"][u], g_out) < 1e-6
        if geometry.deep:
            assert apart(out["hidden"][u], hidden.detach()) < 1e-6
            assert apart(out["g_hidden"][u], g_before) < 1e-6
        assert apart(out["dx"][u], dx) < 1e-6 if geometry.to_input else bool(out["dx"].isnan().all())


def head_of(model: nn.Module, shape: tuple[int, ...]) -> Head | None:
    """What the rule finds at the end of a module, with all of its parameters trained."""
    W, net = torch.zeros(2, ParameterLayout.of(model).dim), trace(model)
    program = Program(
        Workspace(W), net, ParameterLayout.of(model), {}, 2, shape, 3, True, False, CrossEntropy(logits=True)
    )
    return find_head(net, program.contexts)


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        ([nn.ReLU(), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3)], HeadGeometry(20, 8, 3, True, True, True, False)),
        ([nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3)], HeadGeometry(8, 3, 3, False, True, True, True)),
        ([nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)], HeadGeometry(64, 3, 3, False, True, True, True)),
        ([nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3)], HeadGeometry(8, 3, 3, False, True, True, True)),
        ([nn.ReLU(), nn.Linear(20, 3, bias=False)], HeadGeometry(20, 3, 3, False, False, False, False)),
        ([nn.Linear(20, 3)], None),
        ([nn.ReLU(), nn.Linear(20, 33)], None),
        ([nn.Linear(20, 2000), nn.Linear(2000, 10)], None),
        ([nn.ReLU(), nn.Linear(20, 3), nn.ReLU()], None),
    ],
)
def test_which_ends_go_by_one_kernel(layers: list[nn.Module], found: HeadGeometry | None) -> None:
    head = head_of(nn.Sequential(*layers), (20,))
    assert (head and head.geometry) == found


def test_a_layer_that_is_used_twice_or_read_elsewhere_does_not() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.relu(self.layer(x)))

    class Residual(Twice):
        def __init__(self) -> None:
            super().__init__()
            self.end = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.layer(x))
            return self.end(h) + h

    class Read(Residual):
        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            return self.end(torch.relu(h + torch.relu(h)))

    assert head_of(Twice(), (4,)) is None
    assert head_of(Residual(), (4,)) is None
    head = head_of(Read(), (4,))
    assert head is not None
    assert not head.geometry.deep
