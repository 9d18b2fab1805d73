"""All users in one vectorised call, compiled or not: right, shared where nothing is trained, or not chosen.

torch.compile takes seconds for the smallest network. What is around it is tested with a stand-in that gives the
function itself, and the compiler once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import resolvent as rs
from bench.networks_of_today import GPT, Encoder, LoRA, Recurrent, next_tokens, resnet
from resolvent.errors import InputError
from resolvent.networks import compiled as compiling
from resolvent.networks import vectorised
from resolvent.networks.compiled import Compiled
from resolvent.networks.gradients import Gradients
from resolvent.networks.method_choice import DROPS, _not_over_users, propose, verified
from resolvent.networks.plain import Examples, Loop
from resolvent.networks.vectorised import Vmap
from resolvent.solving import steps

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DOUBLE = torch.float64
Users = list[tuple[Tensor, Tensor]]


class Places(nn.Module):
    """Positions in a buffer that does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.end = nn.Embedding(9, 4), nn.Linear(4, 10)
        self.register_buffer("places", torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.end(torch.tanh(self.tokens(x) * self.places).sum(1))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int | None, Any]] = {
    "encoder": (lambda: Encoder(8, 1, 9), (5,), 9, F.cross_entropy),
    "gpt with lora": (lambda: GPT(8, 1, 2, 9, 5), (5,), 9, next_tokens),
    "resnet": (lambda: resnet(4), (3, 8, 8), None, F.cross_entropy),
    "a buffer": (Places, (5,), 9, F.cross_entropy),
    "lora": (lambda: nn.Sequential(LoRA(7, 6), nn.Tanh(), LoRA(6, 3)), (7,), None, F.mse_loss),
}


def net(name: str, sizes: tuple[int, ...] = (4, 5, 5)) -> tuple[nn.Module, Users, Any]:
    """A network with random parameters, and users with so many rows."""
    make, shape, tokens, loss = NETS[name]
    torch.manual_seed(0)
    model, users = make().double(), []
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    for n in sizes:
        x = torch.randn(n, *shape, dtype=DOUBLE) if tokens is None else torch.randint(0, tokens, (n, *shape))
        if loss is F.mse_loss:
            y = torch.randn(n, 3, dtype=DOUBLE)
        else:
            y = torch.randint(0, tokens or 10, (n, *shape)) if loss is next_tokens else torch.randint(0, 10, (n,))
        users.append((x, y))
    return model, users, loss


def by_autograd(model: nn.Module, users: Users, loss: Any, W: Tensor) -> Tensor:
    """One user after the other, without the package."""
    grads = []
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for w, (x, y) in zip(W, users, strict=True):
        leaf = w.clone().requires_grad_()
        parts = leaf.split([model.get_parameter(name).numel() for name in names])
        own = {name: part.view_as(model.get_parameter(name)) for name, part in zip(names, parts, strict=True)}
        grads.append(torch.autograd.grad(loss(torch.func.functional_call(model, own, (x,)), y), leaf)[0])
    return torch.stack(grads)


def points(problem: rs.Neural) -> Tensor:
    noise = torch.randn(problem.users, problem.dim, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    return problem.start + 0.1 * noise.to(problem.start)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """torch.compile gives the function itself. The list has what was compiled."""
    asked: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: asked.append(function) or function)
    return asked


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", ["vmap", "compiled"])
def test_gradients_are_those_of_plain_autograd(name: str, method: str, uncompiled: list[Any]) -> None:
    model, users, loss = net(name)
    problem = rs.Neural(model, users, loss, method=method)
    assert problem.method == f"{method}: it was asked for"
    W = points(problem)
    torch.testing.assert_close(problem.grad(W), by_autograd(model, users, loss, W), rtol=1e-10, atol=1e-13)
    rows = torch.tensor([[0, 2, 0], [4, 1, 3], [1, 0, 0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.bool)
    chosen = [(x[r[m]], y[r[m]]) for (x, y), r, m in zip(users[:2], rows[:2], mask[:2], strict=True)]
    want = torch.cat([by_autograd(model, chosen, loss, W[:2]), torch.zeros(1, problem.dim)])
    torch.testing.assert_close(problem.batch_grad(W, rows, mask), want, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("weight", [None, torch.linspace(0.5, 1.5, 10, dtype=DOUBLE)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_padding_counts_nothing_in_a_mean_over_classes(weight: Tensor | None, smoothing: float) -> None:
    model, users, _ = net("encoder")
    loss = nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing, ignore_index=3)
    problem = rs.Neural(model, users, loss, method="vmap")
    assert isinstance(problem.gradients.by, Vmap)
    assert problem.gradients.by.masks
    W = points(problem)
    torch.testing.assert_close(problem.grad(W), by_autograd(model, users, loss, W), rtol=1e-10, atol=1e-13)


def test_a_module_in_which_rows_meet_sees_no_padding() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.a(x - x.mean(0)))

    torch.manual_seed(0)
    users = [(torch.randn(n, 4, dtype=DOUBLE), torch.randint(0, 10, (n,))) for n in (4, 5)]
    model = Centred().double()
    problem = rs.Neural(model, users, method="vmap")
    assert not problem.gradients.by.masks  # type: ignore[attr-defined]
    W = points(problem)
    torch.testing.assert_close(problem.grad(W), by_autograd(model, users, F.cross_entropy, W))


def test_a_user_without_rows_has_no_gradient() -> None:
    model, users, loss = net("encoder", (3, 3))
    problem = rs.Neural(model, users, loss, method="vmap")
    x, y = (torch.stack(each) for each in zip(*users, strict=True))
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]], dtype=torch.bool)
    got = problem.gradients.value_and_grad(points(problem), x, y, mask)
    assert float(got.loss[1]) == 0
    assert not bool(got.grad[1].any())
    assert bool(got.grad[0].any())


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_chunks_of_users_change_nothing_but_rounding(
    most: int, monkeypatch: pytest.MonkeyPatch, uncompiled: list[Any]
) -> None:
    model, users, loss = net("gpt with lora", (3,) * 5)
    want = rs.Neural(model, users, loss, method="loop")
    W = points(want)
    monkeypatch.setattr(vectorised, "memory_of", lambda device: 1)
    problem = rs.Neural(model, users, loss, method="compiled")
    by = problem.gradients.by
    assert isinstance(by, Compiled)
    assert set(by._chunks.values()) == {1}
    by._chunks.update(dict.fromkeys(by._chunks, most))
    by._programs.clear()
    uncompiled.clear()
    torch.testing.assert_close(problem.grad(W), want.grad(W), rtol=1e-10, atol=1e-13)
    assert len(uncompiled) == 1, "all chunks have one shape"


def test_memory_that_runs_out_makes_chunks_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    model, users, loss = net("gpt with lora", (3,) * 5)
    problem = rs.Neural(model, users, loss, method="vmap")
    by, W = problem.gradients.by, points(problem)
    want, sizes, whole = problem.grad(W), [], by._guarded  # type: ignore[attr-defined]

    def small(W: Tensor, *rest: Any) -> Any:
        sizes.append(len(W))
        if len(W) > 2:
            raise torch.OutOfMemoryError("as if")
        return whole(W, *rest)

    monkeypatch.setattr(by, "_guarded", small)
    torch.testing.assert_close(problem.grad(W), want)
    assert sizes == [5, 3, 2, 2, 2]


def test_memory_is_foreseen_where_outputs_are_most_of_it() -> None:
    """As those of a language model with a large vocabulary, whose loss leaves as many numbers for the backward pass."""
    torch.manual_seed(0)
    users = [(torch.randint(0, 500, (3, 5)), torch.randint(0, 500, (3, 5))) for _ in range(2)]
    problem = rs.Neural(GPT(4, 1, 2, 500, 5), users, next_tokens, method="vmap")
    by, data = problem.gradients.by, next(iter(problem.data.batches()))
    assert isinstance(by, Vmap)
    assert by._saved(Examples(data.x, data.y), problem.start.expand(2, -1)) >= 3 * 5 * 500 * 4


@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 5, 9)])
def test_users_outputs_are_not_all_in_memory_at_once(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model, users, loss = net("encoder", sizes)
    problem = rs.Neural(model, users, loss, test=users)
    W, many, outputs = points(problem), list[int](), Gradients.outputs

    def watched(self: Gradients, W: Tensor, x: Tensor, *rest: Any) -> Tensor:
        many.append(len(x))
        return outputs(self, W, x, *rest)

    monkeypatch.setattr(Gradients, "outputs", watched)
    pairs = zip(W, users, strict=True)
    want = [float(loss(torch.func.functional_call(model, each(problem, w), (x,)), y)) for w, (x, y) in pairs]
    assert problem.value(W).tolist() == pytest.approx(want)
    assert many == [1] * len(users)
    assert problem.gradients.plain is problem.gradients.by, "one working copy of the module for both"


def each(problem: rs.Neural, w: Tensor) -> dict[str, Tensor]:
    return {name: part[0] for name, part in problem.layout.split(w.unsqueeze(0)).items()}


class Products(TorchDispatchMode):
    """The shapes of both factors of each product."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            self.shapes.append((tuple(args[0].shape), tuple(args[1].shape)))
        if func is torch.ops.aten.addmm.default:
            self.shapes.append((tuple(args[1].shape), tuple(args[2].shape)))
        return func(*args, **(kwargs or {}))


def test_frozen_weights_are_shared() -> None:
    """One product over the rows of all users, and no copy of a weight for each user, or for the method."""
    model, users, loss = net("lora", (5, 5, 5))
    problem = rs.Neural(model, users, loss, method="vmap")
    by, W = problem.gradients.by, points(problem)
    with Products() as products:
        problem.grad(W)
    assert ((15, 7), (7, 6)) in products.shapes
    assert not any(len(b) == 3 and b[1:] == (7, 6) for _, b in products.shapes)
    own = dict(by._shell.named_parameters())  # type: ignore[attr-defined]
    for name, p in problem.gradients.model.named_parameters():
        assert (own[name].data_ptr() == p.data_ptr()) == (not p.requires_grad)


def gradients_by(model: nn.Module, users: Users, dtype: torch.dtype = DOUBLE) -> Gradients:
    """What is chosen where the compiled method is proposed, but not forced."""
    model = model.to(dtype)
    x, y = (torch.stack(each) for each in zip(*users, strict=True))
    proposed = propose(model, F.cross_entropy, "cpu", dtype, method="compiled")
    return verified(proposed, model, proposed.layout.flatten(model).unsqueeze(0), x, y)


def test_what_does_not_compile_goes_by_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda function, **_: fails)
    model, users, loss = net("encoder", (3, 3))
    gradients = gradients_by(model, users)
    assert gradients.method == "vmap"
    assert gradients.reason == "it was asked for, and torch.compile gave RuntimeError: no compiler here"
    with pytest.raises(InputError, match=r"method is 'compiled', but .* no compiler here; leave it out"):
        rs.Neural(model, users, loss, method="compiled")


def test_what_compiles_to_something_else_goes_by_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(function: Any, **_: Any) -> Any:
        return lambda *given: tuple(1.1 * t for t in function(*given))

    monkeypatch.setattr(torch, "compile", wrong)
    model, users, _ = net("encoder", (3, 3))
    gradients = gradients_by(model, users)
    assert (gradients.method, gradients.reason[-42:]) == ("vmap", "the compiled loss was not that of the loop")


def test_on_a_cpu_small_work_of_several_users_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of few users, or of much work for each, go by the loop."""
    model, users, loss = net("encoder", (5,) * 4)
    problem, few = rs.Neural(model, users, loss), torch.tensor([0, 2, 3])
    assert problem.method == "vmap: Embedding has no stacked form"
    assert rs.Neural(model, users[:3], loss).method == "loop: Embedding has no stacked form"
    W, loops, loop = points(problem), list[int](), Loop.value_and_grad
    want = by_autograd(model, users, loss, W)

    def watched(self: Loop, W: Tensor, given: Examples, *rest: Any) -> Any:
        loops.append(len(given.x))
        return loop(self, W, given, *rest)

    monkeypatch.setattr(Loop, "value_and_grad", watched)
    torch.testing.assert_close(problem.grad(W), want, rtol=1e-10, atol=1e-13)
    assert not loops
    torch.testing.assert_close(problem.take(few).grad(W[few]), want[few], rtol=1e-10, atol=1e-13)
    assert loops == [3]
    monkeypatch.setattr(vectorised, "SMALL_BYTES", 1)
    torch.testing.assert_close(problem.grad(W), want, rtol=1e-10, atol=1e-13)
    assert loops == [3, 4]


def test_what_vmap_cannot_take_later_goes_by_the_loop() -> None:
    class Picky(nn.Module):
        """Looks at the numbers of a single row."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 10), nn.LayerNorm(10)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)) * (float(x.sum()) if x.shape[0] == 1 else 1.0)

    torch.manual_seed(0)
    users = [(torch.randn(5, 4, dtype=DOUBLE), torch.randint(0, 10, (5,))) for _ in range(4)]
    model = Picky().double()
    problem = rs.Neural(model, users)
    assert problem.method.startswith("vmap"), problem.method
    W, row = points(problem), torch.zeros(4, 1, dtype=torch.int64)
    want = by_autograd(model, [(x[:1], y[:1]) for x, y in users], F.cross_entropy, W)
    torch.testing.assert_close(problem.batch_grad(W, row, torch.ones(4, 1)), want, rtol=1e-10, atol=1e-13)


class Deciding(nn.Module):
    """Looks at the data."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if float(x.sum()) > 0 else self.a(2 * x)


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.a(x), 0.5, self.training)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 10)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.a(x) / self.calls


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Deciding, r"RuntimeError where plain autograd gave a gradient (vmap: "),
        (Drops, DROPS),
        (Counts, "it changes its buffers"),
        (lambda: nn.Sequential(nn.Linear(4, 10), nn.BatchNorm1d(10)), "RuntimeError|it changes its buffers"),
    ],
)
def test_what_cannot_be_vectorised_is_a_loop(make: Any, reason: str, uncompiled: list[Any]) -> None:
    torch.manual_seed(0)
    users = [(torch.randn(4, 4, dtype=DOUBLE), torch.randint(0, 10, (4,))) for _ in range(2)]
    gradients = gradients_by(make(), users)
    assert gradients.method == "loop"
    assert any(part in gradients.reason for part in reason.split("|")), gradients.reason
    assert not uncompiled


def test_what_torch_computes_one_by_one_is_a_loop(uncompiled: list[Any]) -> None:
    torch.manual_seed(0)
    users = [(torch.randn(4, 3, 8), torch.randint(0, 10, (4,))) for _ in range(2)]
    gradients = gradients_by(Recurrent(8, 4), users, torch.float32)
    assert gradients.method == "loop"
    assert gradients.reason == "torch does not vectorise aten::mkldnn_rnn_layer"
    assert not uncompiled


def test_dropout_and_hooks_are_not_proposed() -> None:
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    assert _not_over_users(nn.TransformerEncoderLayer(4, 2, 6)) == DROPS
    assert _not_over_users(nn.TransformerEncoderLayer(4, 2, 6).eval()) == ""
    assert _not_over_users(nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)) == ""
    assert _not_over_users(hooked) == "it has hooks"


def test_shapes_are_bounded_and_fewer_users_take_a_program_that_is_there(uncompiled: list[Any]) -> None:
    model, users, loss = net("encoder", (12,) * 4)
    problem = rs.Neural(model, users, loss, method="compiled")
    W, seen = points(problem), len(uncompiled)
    assert seen == 1
    part = problem.take(torch.tensor([0, 2, 3]))
    want = by_autograd(model, [users[i] for i in (0, 2, 3)], loss, W[[0, 2, 3]])
    torch.testing.assert_close(part.grad(W[[0, 2, 3]]), want, rtol=1e-10, atol=1e-13)
    assert len(uncompiled) == seen
    for n in range(1, 12):
        rows, mask = torch.arange(n).expand(4, -1), torch.ones(4, n, dtype=torch.bool)
        want = by_autograd(model, [(x[:n], y[:n]) for x, y in users], loss, W)
        torch.testing.assert_close(problem.batch_grad(W, rows, mask), want, rtol=1e-10, atol=1e-13)
    assert len(uncompiled) == compiling.MAX_PROGRAMS


def test_a_module_that_overwrites_its_input_changes_no_data(uncompiled: list[Any]) -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x.mul_(2))

    torch.manual_seed(0)
    users = [(torch.randn(4, 4, dtype=DOUBLE), torch.randint(0, 10, (4,))) for _ in range(2)]
    gradients = gradients_by(Overwrites(), users)
    x, y = (torch.stack(each) for each in zip(*users, strict=True))
    before, W = x.clone(), torch.randn(2, 50, dtype=DOUBLE)
    first = gradients.value_and_grad(W, x, y).grad
    torch.testing.assert_close(gradients.value_and_grad(W, x, y).grad, first)
    assert torch.equal(x, before)


def test_seeds_change_nothing_without_dropout(uncompiled: list[Any]) -> None:
    """Training gives every gradient seeds: without dropout users still go together."""
    model, users, loss = net("encoder", (3, 3))
    problem = rs.Neural(model, users, loss, method="vmap")
    by, W = problem.gradients.by, points(problem)
    x, y = (torch.stack(each) for each in zip(*users, strict=True))
    by._copy = None  # type: ignore[attr-defined]  # the loop would need it
    got = by.value_and_grad(W, Examples(x, y, None, torch.tensor([1, 2]))).grad
    torch.testing.assert_close(got, by_autograd(model, users, loss, W), rtol=1e-10, atol=1e-13)


def test_what_fails_in_less_precision_is_a_loop() -> None:
    """torch's attention within vmap refuses types that autocast has mixed."""
    model, users, loss = net("encoder", (3, 3))
    proposed = propose(model.float(), loss, "cpu", torch.float32, "bfloat16", "vmap")
    x, y = (torch.stack(each) for each in zip(*users, strict=True))
    W = proposed.layout.flatten(model).unsqueeze(0)
    gradients = verified(proposed, model, W, x, y)
    assert gradients.value_and_grad(W, x, y).grad.dtype == torch.float32
    if gradients.method == "loop":
        assert "vmap gave" in gradients.reason


def test_the_progress_bar_says_for_how_long_it_compiled(uncompiled: list[Any]) -> None:
    model, users, loss = net("gpt with lora", (3, 3))
    problem = rs.Neural(model, users, loss, method="compiled")
    assert problem.compiling == problem.gradients.by.seconds > 0  # type: ignore[attr-defined]
    problem.gradients.by.seconds = 31.2  # type: ignore[attr-defined]
    bar, told, passed = mock.Mock(), [], [mock.Mock(), mock.Mock()]
    bar.advance = lambda now, words: told.append(words())
    assert list(steps.shown(iter(passed), bar, mock.Mock(residual=1.0), problem)) == passed
    assert told == ["residual 1.00e+00, 31 s of compiling"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_compiled_for_this_machine(name: str) -> None:
    model, users, loss = net(name)
    problem = rs.Neural(model, users, loss, method="compiled")
    assert problem.method == "compiled: it was asked for"
    W = points(problem)
    torch.testing.assert_close(problem.grad(W), by_autograd(model, users, loss, W), rtol=1e-9, atol=1e-12)


@CUDA
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "dtype"), [("encoder", torch.float32), ("gpt with lora", DOUBLE), ("a buffer", DOUBLE)]
)
def test_on_cuda_it_is_chosen_and_right(name: str, dtype: torch.dtype) -> None:
    model, users, loss = net(name)
    problem = rs.Neural(model, users, loss, device="cuda", dtype=dtype)
    assert problem.method == "compiled: Embedding has no stacked form"
    W = points(problem)
    rtol, atol = (1e-9, 1e-11) if dtype == DOUBLE else (1e-3, 1e-5)
    for step in range(3):
        want = by_autograd(model, users, loss, W.double().cpu() + 0.1 * step)
        torch.testing.assert_close(problem.grad(W + 0.1 * step).double().cpu(), want, rtol=rtol, atol=atol)
    run = rs.solve(problem, rs.fedavg(0.01, steps=2), rounds=2, progress=False)
    assert bool(torch.isfinite(run.model).all())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_a_hundred_users_go_in_chunks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorised, "memory_of", lambda device: 1 << 20)
    model, users, loss = net("gpt with lora", (3,) * 100)
    problem = rs.Neural(model, users, loss, device=device, method="vmap" if device == "cpu" else None)
    (size,) = set(problem.gradients.by._chunks.values())  # type: ignore[attr-defined]
    assert 1 <= size < 100
    W = points(problem)
    want = by_autograd(model, users, loss, W.cpu())
    torch.testing.assert_close(problem.grad(W).cpu(), want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("device", "method"), [("cpu", "vmap"), pytest.param("cuda", None, marks=CUDA)])
def test_attention_in_bfloat16(device: str, method: str | None) -> None:
    model, users, loss = net("gpt with lora", (5, 5))
    problem = rs.Neural(model, users, loss, device=device, dtype=torch.float32, precision="bfloat16", method=method)
    assert problem.method.startswith(method or "compiled"), problem.method
    W = points(problem)
    want = by_autograd(model, users, loss, W.double().cpu())
    assert 1e-4 < float((problem.grad(W).double().cpu() - want).norm() / want.norm()) < 0.05


@CUDA
def test_dropout_and_lstm_on_cuda_are_a_loop() -> None:
    torch.manual_seed(0)
    sequences = [(torch.randn(4, 3, 8), torch.randint(0, 10, (4,))) for _ in range(2)]
    assert rs.Neural(Recurrent(8, 4), sequences, device="cuda").method.startswith("loop")
    rows = [(torch.randn(4, 6, 4), torch.randint(0, 4, (4, 6))) for _ in range(2)]
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
    problem = rs.Neural(layer, rows, next_tokens, device="cuda")
    assert problem.method.startswith("loop")
    assert DROPS in problem.method


class Alias(nn.Module):
    """Reads its weight by a name that is no parameter's, where nobody who exchanges parameters finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.LayerNorm(4)
        self.alias = [self.a.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.b(nn.functional.linear(x, self.alias[0], self.a.bias))


@pytest.mark.parametrize(
    "loss", [None, lambda out, y: nn.functional.cross_entropy(out, y)], ids=["torch's", "a lambda"]
)
def test_vmap_is_compared_whatever_the_loss(loss: Any) -> None:
    users = [(torch.randn(5, 3), torch.randint(4, (5,))) for _ in range(3)]
    with pytest.raises(InputError):
        rs.Neural(Alias(), users, loss, method="vmap")


def test_a_user_without_finite_gradient_vouches_for_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda f, **_: lambda *given: tuple(1.1 * t for t in f(*given)))
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).double()
    by = propose(model, nn.functional.cross_entropy, "cpu", torch.float64, method="compiled").by
    assert isinstance(by, Compiled)
    x, y = torch.randn(2, 5, 3, dtype=torch.float64), torch.randint(4, (2, 5))
    x[0] = torch.nan
    W = torch.randn(2, by.layout.dim, dtype=torch.float64)
    got = by.value_and_grad(W, Examples(x, y))
    assert by.obstacles == ["the compiled loss was not that of the loop"]
    want = by.eager().value_and_grad(W, Examples(x, y))
    torch.testing.assert_close(got.grad[1], want.grad[1])
