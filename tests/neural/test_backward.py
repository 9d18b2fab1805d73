"""Modules whose backward calls them again, and modules whose forward writes to their parameters.

The reference is `.backward()` on a fresh copy of the module that holds the parameters.
"""

from __future__ import annotations

import gc
import sys
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import resolvent as rs
from hunt.cases.gradients import Adapted, Again, ByItsLayer, backward, holding, quiet
from resolvent.networks import choose_method
from resolvent.networks.models import mnist_cnn
from resolvent.networks.plain_autograd import Reference
from resolvent.networks.stacked.method import Stacked

pytestmark = [
    pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),  # reentrant, and not in training
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]
DOUBLE = torch.float64
KINDS = pytest.mark.parametrize("reentrant", [True, False])


class Written(nn.Module):
    """A forward as a function of the module and its input."""

    def __init__(self, forward: Any, **layers: Any) -> None:
        super().__init__()
        self.does = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.does(self, x)
        return out


def three(*between: nn.Module) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"a": nn.Linear(4, 6), "b": nn.Sequential(nn.Linear(6, 6), *between), "c": nn.Linear(6, 3)}


def users(features: int = 4, sizes: tuple[int, ...] = (5, 7)) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, features, generator=g, dtype=DOUBLE), torch.randint(0, 3, (n,), generator=g)) for n in sizes
    ]


def parameters(problem: rs.Neural) -> Tensor:
    g = torch.Generator().manual_seed(2)
    return problem.start + 0.3 * torch.randn(problem.users, problem.dim, generator=g, dtype=DOUBLE)


def right(model: nn.Module, data: list[tuple[Tensor, Tensor]], method: str = "loop") -> rs.Neural:
    """Gradients with and without dropout and values are plain torch's, twice, and nothing that was given is changed."""
    model = model.to(DOUBLE)
    first = deepcopy(model.state_dict())
    problem = rs.Neural(model, data)
    W = parameters(problem)
    given, start, seeds = W.clone(), problem.start.clone(), np.arange(len(data), dtype=np.uint64)
    assert problem.gradients.method == method
    for _ in range(2):
        grad, noisy, value = problem.grad(W), problem.grad(W, seeds=2 * seeds), problem.value(W)
        for i, (w, (x, y)) in enumerate(zip(given, data, strict=True)):
            close(grad[i], backward(quiet(holding(model, w)), F.cross_entropy, x, y)[1])
            torch.manual_seed(i)
            close(noisy[i], backward(holding(model, w), F.cross_entropy, x, y)[1])
            close(value[i], F.cross_entropy(holding(model, w).eval()(x), y).detach())
    assert torch.equal(W, given)
    assert torch.equal(problem.start, start)
    assert all(torch.equal(t, first[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    return problem


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


# --- backward calls the module again ----------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("between", [nn.Tanh, nn.Dropout, lambda: nn.BatchNorm1d(6)], ids=["tanh", "dropout", "norm"])
def test_a_checkpoint_recomputes_with_the_users_parameters(between: Any, reentrant: bool) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = torch.exp(0.1 * m.a(x))
        return m.c(h + checkpoint(m.b, h, use_reentrant=reentrant))

    right(Written(forward, **three(between(), nn.Tanh())), users())


@KINDS
def test_a_checkpoint_by_a_method_and_keywords_with_dropout_that_is_a_function(reentrant: bool) -> None:
    """As Hugging Face's layers; attention drops out inside of torch's own functions."""

    def layer(m: Any, h: Tensor, scale: float) -> Tensor:
        h = h.unsqueeze(1).expand(-1, 3, -1)
        a = F.scaled_dot_product_attention(h, m.b(h), h, None, m.rate if m.training else 0.0)
        return scale * F.dropout(a.mean(1), m.rate, m.training)

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.c(checkpoint(partial(layer, m, scale=0.5), m.a(x), use_reentrant=reentrant))

    model = Written(forward, **three()).to(DOUBLE)
    model.rate = 0.4  # type: ignore[assignment]
    still = deepcopy(model)
    still.rate = 0.0  # type: ignore[assignment]
    data = users()
    problem = rs.Neural(model, data)
    W = parameters(problem)
    got = problem.grad(W)
    assert problem.gradients.random
    for i, (x, y) in enumerate(data):
        close(got[i], backward(holding(still, W[i]), F.cross_entropy, x, y)[1])


def test_checkpoints_inside_of_checkpoints() -> None:
    keep = partial(checkpoint, use_reentrant=False)

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.c(keep(lambda h: torch.tanh(keep(m.b, torch.sin(h))), m.a(x)))

    right(Written(forward, **three(nn.Tanh())), users())


@KINDS
def test_a_checkpointed_network_that_has_a_stacked_form_is_stacked(reentrant: bool) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.c(checkpoint(m.b, m.a(x), use_reentrant=reentrant))

    fast = reentrant is False  # torch.fx follows it; a reentrant one is a function of its own
    right(Written(forward, **three(nn.Tanh())), users(), "stacked" if fast else "loop")


@pytest.mark.parametrize("unstackable", [False, True])
def test_a_forward_that_cannot_be_traced_leaves_no_hooks_behind(unstackable: bool) -> None:
    """torch.utils.checkpoint enters a generator before it calls a module, and before torch 2.13 left it so."""

    def doubling() -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 2 * t):
            yield

    def forward(m: Any, x: Tensor) -> Tensor:
        context = None if isinstance(x, Tensor) else doubling()
        frame = sys._getframe()  # a cycle, so that nothing is freed before it is collected
        if context and frame is not None:
            next(context)
        h = m.a(x)
        if unstackable:
            with torch.no_grad():
                h = h + 0 * m.a(x)
        for row in h:  # torch.fx cannot
            assert len(row)
        return m.b(torch.tanh(h))

    gc.disable()
    try:
        problem = rs.Neural(Written(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)).to(DOUBLE), users())
        x = torch.tensor(3.0, requires_grad=True)
        (x * x).backward()
    finally:
        gc.enable()
    assert x.grad == 6
    assert problem.gradients.method == "loop"


def test_autograd_functions_that_call_the_module_again() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = Again.apply(lambda x: torch.tanh(m.b(x)), m.a(x), *m.b.parameters())
        return m.c(ByItsLayer.apply(m.b[0], h, m.b[0].weight))

    right(Written(forward, **three()), users())


@KINDS
def test_rounds_of_training_with_checkpoints_are_those_of_a_plain_loop(reentrant: bool) -> None:
    """Batch norm inside of a checkpoint counts each batch twice, as in plain torch."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.c(h + checkpoint(m.b, h, use_reentrant=reentrant))

    model, data = Written(forward, **three(nn.BatchNorm1d(6), nn.Tanh())).to(DOUBLE), users()
    run = rs.solve(rs.Neural(model, data), rs.fedavg(0.1, steps=3), rounds=2, progress=False)
    theirs, mean = [deepcopy(model) for _ in data], torch.cat([p.detach().flatten() for p in model.parameters()])
    for _ in range(2):
        for mine, (x, y) in zip(theirs, data, strict=True):
            torch.nn.utils.vector_to_parameters(mean.clone(), mine.parameters())
            optimiser = torch.optim.SGD(mine.parameters(), lr=0.1)
            for _ in range(3):
                optimiser.zero_grad()
                F.cross_entropy(mine(x), y).backward()
                optimiser.step()
        mean = torch.stack([torch.cat([p.detach().flatten() for p in mine.parameters()]) for mine in theirs]).mean(0)
    close(run.model.flatten(), mean)
    norms = [mine.b[1] for mine in theirs]  # type: ignore[index]
    assert int(norms[0].num_batches_tracked) == 12
    close(run.module().get_buffer("b.1.running_var"), torch.stack([norm.running_var for norm in norms]).mean(0))


def test_users_in_one_autocast_do_not_share_weights_in_half_precision() -> None:
    """torch caches them by parameter, until the outermost autocast ends."""
    model, data = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), users()
    data = [(x.float(), y) for x, y in data]
    problem = rs.Neural(model, data)
    W = parameters(problem).float()
    want = torch.cat([problem.take(torch.tensor([i])).grad(W[i : i + 1]) for i in range(2)])
    with torch.autocast("cpu", torch.bfloat16):
        got = problem.grad(W)
    assert problem.gradients.method == "loop"
    assert float((got - want).norm() / want.norm()) < 0.05


# --- dropout inside of layers -----------------------------------------------------------------------------------------


class Attending(nn.Module):
    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.heads, self.weights = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True), weights
        self.end = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.unsqueeze(1) * torch.arange(1.0, 4.0, dtype=x.dtype).view(1, 3, 1)
        out: Tensor = self.end(self.heads(h, h, h, need_weights=self.weights)[0].mean(1))
        return out


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.end = nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.end(self.cells(x.unsqueeze(1).expand(-1, 3, -1))[0][:, -1])
        return out


@pytest.mark.parametrize("make", [lambda: Attending(True), lambda: Attending(False), Reading])
def test_dropout_inside_of_attention_and_recurrent_layers_is_off_without_seeds(make: Any) -> None:
    torch.manual_seed(0)
    assert right(make(), users()).gradients.random


# --- forward writes to parameters -------------------------------------------------------------------------------------


def tokens() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randint(0, 7, (n, 5), generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (6, 6)]


@pytest.mark.parametrize("sparse", [False, True])
def test_an_embedding_with_max_norm_leaves_the_parameters_alone(sparse: bool) -> None:
    """Its rows are scaled inside of the call, and the gradient is what torch gives at the scaled rows."""
    torch.manual_seed(0)
    embedding = nn.Embedding(7, 4, max_norm=0.5, sparse=sparse)
    problem = right(Written(lambda m, x: m.c(m.a(x).mean(1)), a=embedding, c=nn.Linear(4, 3)), tokens())
    runs = [rs.solve(problem, rs.fedavg(0.1, steps=2), rounds=2, progress=False) for _ in range(2)]
    assert torch.equal(runs[0].model, runs[1].model)
    assert torch.equal(problem.start.view(-1)[:28], embedding.weight.detach().flatten())


def clamped(m: Any, x: Tensor) -> Tensor:
    m.a.weight.data.clamp_(-0.2, 0.2)
    return m.c(torch.tanh(m.b(m.a(x))))


def shared_in_forward(m: Any, x: Tensor) -> Tensor:
    """The second layer's weight is the first one's from now on."""
    m.a.weight.data = m.b[0].weight.data[:, :4]
    return m.c(torch.tanh(m.b(m.a(x))))


def frozen(m: Any, x: Tensor) -> Tensor:
    m.fixed.data.mul_(0.5)
    return m.c(torch.tanh(m.b(m.a(x))) * m.fixed)


@pytest.mark.parametrize("forward", [clamped, shared_in_forward, frozen])
def test_what_forward_writes_to_parameters_is_gone_after_the_call(forward: Any) -> None:
    fixed = nn.Parameter(torch.ones(6), requires_grad=False)
    right(Written(forward, **three(), fixed=fixed), users(sizes=(6, 6)))


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_weights_made_by_parametrizations(norm: Any) -> None:
    layers = three(nn.Tanh())
    norm(layers["a"])
    right(Written(lambda m, x: m.c(m.b(m.a(x))), **layers), users())


def test_an_adapter_that_eval_adds_to_its_weight_is_evaluated_with_the_parameters_that_are_asked_for() -> None:
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    layers = [Adapted(rng, 4, 6), Adapted(rng, 6, 3)]
    for layer in layers:
        layer.merges = True
    right(nn.Sequential(layers[0], nn.Tanh(), layers[1]), users())


def test_a_module_whose_loss_has_no_gradient_is_refused_before_the_first_round() -> None:
    """A reentrant checkpoint gives none where none of its inputs has one."""
    model = Written(lambda m, x: checkpoint(m.a, x, use_reentrant=True), a=nn.Linear(4, 3)).to(DOUBLE)
    with pytest.raises(rs.InputError, match=r"loss has no gradient.*take use_reentrant=False"):
        rs.Neural(model, users())


def test_a_compiled_module_is_refused() -> None:
    with pytest.raises(rs.InputError, match=r"compiled by torch.jit.*pass the module itself"):
        rs.Neural(torch.jit.script(nn.Linear(4, 3)), users())


# --- the comparison ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_stacked_gradient_must_be_the_slope_of_the_outputs(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if plain autograd made the same mistake: here both give twice the gradient."""
    model, x, y = mnist_cnn().to(dtype), torch.randn(2, 4, 1, 28, 28, dtype=dtype), torch.randint(0, 10, (2, 4))
    W = torch.cat([p.detach().flatten() for p in model.parameters()]).expand(2, -1)
    assert choose_method(model, W, x, y, dtype=dtype).method == "stacked"
    fast, plain = Stacked.value_and_grad, Reference._trained

    def doubled(found: Any) -> Any:
        return found[0], 2 * found[1], *found[2:]

    monkeypatch.setattr(Stacked, "value_and_grad", lambda self, *args, **options: doubled(fast(self, *args, **options)))
    monkeypatch.setattr(Reference, "_trained", lambda self, *args: doubled(plain(self, *args)))
    with pytest.raises(rs.InputError, match="was not that of plain autograd"):
        choose_method(model, W, x, y, dtype=dtype, method="stacked")


def test_losses_with_a_gradient_of_their_own_do_not_send_a_network_to_the_loop() -> None:
    """A focal loss whose weights count as constants: its gradient is not its slope."""

    def focal(o: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(o, y, reduction="none")
        return ((1 - torch.exp(-each.detach())) ** 2 * each).mean()

    problem = rs.Neural(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(DOUBLE), users(), loss=focal)
    assert problem.gradients.method == "stacked"
    W = parameters(problem)
    x, y = users()[0]
    close(problem.grad(W)[0], backward(holding(problem.module(problem.start, {}), W[0]), focal, x, y)[1])
