"""Steps in one pass: the bits of torch's operations, the numbers of torch's own SGD."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kernel_emulation
import resolvent as rs
from resolvent.local.descent import Descent, Pull
from resolvent.networks import one_pass
from resolvent.networks.stacked.cuda.update import THREADS, Update

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = [pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=CUDA)]
RATE, ETA = 0.013, 37.3


def gradients(users: int, d: int, like: Tensor, steps: int = 4) -> list[Tensor]:
    """Of all sizes."""
    draw = torch.randn(steps, 2, users, d, dtype=torch.float64)
    return [(a * 10**b).to(like) for a, b in draw]


def by_sgd(x: Tensor, momentum: float, pull: Pull | None, steps: list[Tensor], moves: list[Tensor]) -> Tensor:
    """torch.optim.SGD, user by user, in double precision."""
    ends = []
    for i, row in enumerate(x.double()):
        p = row.clone().requires_grad_()
        sgd = torch.optim.SGD([p], lr=RATE, momentum=momentum)
        for g, some in zip(steps, moves, strict=True):
            if some[i]:
                p.grad = g[i].double()
                if pull is not None:
                    u = pull.u.expand(len(x), -1)[i].double()
                    p.grad += u if pull.eta is None else (p.detach() - u) / ETA
                sgd.step()
        ends.append(p.detach())
    return torch.stack(ends)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("pulled", ["", "prox", "tilt"])
def test_the_bits_of_operations_and_the_numbers_of_sgd(device: str, momentum: float, pulled: str) -> None:
    if device == "cpu":
        pytest.importorskip("numba")
    torch.manual_seed(0)
    for users, d, masked, shared in itertools.product((1, 3, 17), (1, 7, 65, 1001), (False, True), (False, True)):
        x = torch.randn(users, d, device=device)
        x = x[:1].expand(users, -1) if shared else x
        pull = Pull(x, ETA if pulled == "prox" else None) if pulled else None
        fused, plain = one_pass.one_pass(x, RATE, momentum, pull), Descent(x, RATE, momentum, pull)
        assert fused is not None
        start = x.clone()
        steps = gradients(users, d, x)
        moves = [torch.rand(users, 1) > (0.4 if masked else -1) for _ in steps]
        for g, some in zip(steps, moves, strict=True):
            for descent in (fused, plain):
                descent.step(g, some.to(device) if masked else None)
        assert torch.equal(fused.x, plain.x)
        assert torch.equal(x, start)
        expected = by_sgd(x, momentum, pull, steps, moves)
        assert torch.allclose(fused.x.double(), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("whole", "eta"),
    [(True, ETA), (True, None), (False, 1.0)],
    ids=["momentum, pull and mask", "momentum, tilt and mask", "the step alone"],
)
def test_the_kernel_of_a_gpu_as_a_cpu_runs_it(whole: bool, eta: float | None, tmp_path: Path) -> None:
    torch.manual_seed(4)
    x, g, v = (torch.randn(3, 300) for _ in range(3))
    u, moves = torch.randn(1, 300), torch.tensor([[True], [False], [True]])
    update = Update(x, g, v, u, moves, RATE, 0.9, eta) if whole else Update(x, g, None, None, None, RATE, 0.0, eta)
    plain = Descent(x.clone(), RATE, 0.9 if whole else 0.0, Pull(u, eta) if whole else None)
    plain.v = v.clone()
    plain.step(g, moves if whole else None)
    kernel_emulation.launch(tmp_path, update.code(), update.grid(), THREADS, *update.arguments())
    assert torch.allclose(x, plain.x, rtol=0, atol=1e-6)  # division by eta, and multiplication by its inverse
    if whole:
        assert torch.allclose(v, torch.as_tensor(plain.v), rtol=0, atol=1e-6)


def test_in_double_precision() -> None:
    pytest.importorskip("numba")
    torch.manual_seed(1)
    x = torch.randn(3, 1001, dtype=torch.float64)
    fused, plain = one_pass.one_pass(x, RATE, 0.9, Pull(x, ETA)), Descent(x, RATE, 0.9, Pull(x, ETA))
    assert fused is not None
    for g in gradients(3, 1001, x):
        fused.step(g, None)
        plain.step(g, None)
    assert torch.equal(fused.x, plain.x)
    assert not torch.equal(fused.x, x)


@pytest.mark.parametrize("eta", [1e-60, 1e-40, 1e30, 1e60, float("inf")])
def test_an_eta_beyond_the_range_of_floats_does_what_torch_does(eta: float) -> None:
    """1e-60 is 0 in single precision, 1e60 infinite."""
    pytest.importorskip("numba")
    torch.manual_seed(5)
    x, g = torch.randn(2, 9), torch.randn(2, 9)
    pull = Pull(x + 1, eta)
    fused, plain = one_pass.one_pass(x, RATE, 0.0, pull), Descent(x, RATE, 0.0, pull)
    assert fused is not None
    fused.step(g, None)
    plain.step(g, None)
    assert torch.equal(fused.x.isnan(), plain.x.isnan())
    assert torch.equal(fused.x.nan_to_num(), plain.x.nan_to_num())


def test_many_numbers_are_divided_among_threads_without_a_trace() -> None:
    pytest.importorskip("numba")
    torch.manual_seed(2)
    x = torch.randn(5, one_pass.MIN_SHARE)
    (g,) = gradients(5, one_pass.MIN_SHARE, x, steps=1)
    fused, plain = one_pass.one_pass(x, RATE, 0.0, None), Descent(x, RATE, 0.0, None)
    assert fused is not None
    fused.step(g, None)
    plain.step(g, None)
    assert torch.equal(fused.x, plain.x)


@pytest.mark.parametrize("device", DEVICES)
def test_nobody_takes_a_step(device: str) -> None:
    if device == "cpu":
        pytest.importorskip("numba")
    x = torch.zeros(0, 3, device=device)
    fused = one_pass.one_pass(x, RATE, 0.9, Pull(x, ETA))
    assert fused is not None
    fused.step(x, None)
    assert fused.x.shape == (0, 3)


def test_a_rate_for_each_user_goes_by_operations() -> None:
    assert one_pass.one_pass(torch.zeros(2, 3), torch.tensor([[0.1], [0.2]]), 0.0, None) is None


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
def test_a_run_is_the_same_in_inference_mode() -> None:
    torch.manual_seed(6)
    rows = [(torch.randn(9, 6), torch.randint(0, 3, (9,))) for _ in range(2)]
    problem = rs.Neural(torch.nn.Linear(6, 3), rows)
    scheme = rs.fedprox(0.1, local=rs.GradientProx(2, 0.1, batch=4, momentum=0.5))
    outside = rs.solve(problem, scheme, rounds=3, progress=False).model
    with torch.inference_mode():
        assert torch.equal(rs.solve(problem, scheme, rounds=3, progress=False).model, outside)


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
def test_a_run_is_the_same_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a net whose gradients do not need it: with users of several sizes, so that some rest while others move."""
    pytest.importorskip("numba")
    torch.manual_seed(3)
    rows = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in (5, 9)]
    problem = rs.Neural(torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)), rows)

    def final() -> list[Tensor]:
        steps, prox = rs.GradientSteps(3, batch=4, momentum=0.5), rs.GradientProx(3, 0.1, batch=4)
        schemes = rs.fedavg(0.1, local=steps), rs.fedprox(0.1, local=prox)
        return [rs.solve(problem, scheme, rounds=4, progress=False).model for scheme in schemes]

    with_numba = final()
    asked: list[object] = []
    monkeypatch.setattr(one_pass, "loops_for", lambda *given: asked.append(given))
    for one, other in zip(final(), with_numba, strict=True):
        assert torch.equal(one, other)
    assert asked


class Halved(rs.Neural):
    """A gradient of one's own, which takes no memory for its result."""

    def grad(self, W: Tensor, seeds: Any = None) -> Tensor:  # type: ignore[override]
        return super().grad(W) / 2


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
@pytest.mark.parametrize("sizes", [(6, 6, 6), (2, 6, 40)], ids=["one stack", "several"])
@pytest.mark.parametrize("batch", [None, 4])
def test_gradients_of_a_descent_share_memory(
    sizes: tuple[int, ...], batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    torch.manual_seed(6)
    rows = [(torch.randn(n, 5), torch.randint(0, 3, (n,))) for n in sizes]
    problem = rs.Neural(torch.nn.Linear(5, 3), rows)
    local, seen = rs.GradientSteps(6, batch=batch, momentum=0.5), list[int]()
    step = one_pass.OnePass.step

    def watched(self: one_pass.OnePass, g: Tensor, moves: Tensor | None) -> None:
        seen.append(g.data_ptr() == self.room["out"].data_ptr())
        step(self, g, moves)

    monkeypatch.setattr(one_pass.OnePass, "step", watched)
    together = rs.solve(problem, rs.fedavg(0.1, local=local), rounds=3, progress=False)
    assert any(seen) == (len(set(sizes)) == 1 or batch is not None)
    monkeypatch.setattr(one_pass, "loops_for", lambda *given: None)
    apart = rs.solve(problem, rs.fedavg(0.1, local=local), rounds=3, progress=False)
    assert torch.equal(together.model, apart.model)


@pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
def test_a_gradient_of_ones_own_is_called_as_it_was_written() -> None:
    torch.manual_seed(7)
    rows = [(torch.randn(6, 5), torch.randint(0, 3, (6,))) for _ in range(3)]
    model = torch.nn.Linear(5, 3)
    half = rs.solve(Halved(model, rows), rs.fedavg(0.1, steps=4), rounds=3, progress=False)
    whole = rs.solve(rs.Neural(model, rows), rs.fedavg(0.05, steps=4), rounds=3, progress=False)
    assert torch.allclose(half.model, whole.model, rtol=0, atol=1e-6)
