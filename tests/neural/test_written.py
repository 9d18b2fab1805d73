"""Modules as people write them: views, in-place writes, hooks, patches. Each is computed exactly, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune, spectral_norm

import resolvent as rs
from neural_reference import chosen, federation, plain_loop
from resolvent.networks import choose_method, plain_autograd
from resolvent.networks.layout import copied
from resolvent.networks.mean_losses import mean_loss
from resolvent.networks.stacked.losses import stacked_loss
from resolvent.networks.stacked.method import Stacked

pytestmark = [
    pytest.mark.usefixtures("convolutions"),
    pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning"),
]
DOUBLE = torch.float64


class Written(nn.Module):
    """A forward as a function of the module and its input."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: Any) -> None:
        super().__init__()
        self.does = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x)


def three() -> dict[str, nn.Module]:
    return {"a": nn.Linear(4, 6), "b": nn.Linear(6, 3), "c": nn.Linear(4, 6)}


def unassigned(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.relu_()
    return m.b(h)


def used_again(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b(F.relu(h, inplace=True)) + m.b(h)


def other_name(m: Any, x: Tensor) -> Tensor:
    h = k = m.a(x)
    h += m.c(x)
    return m.b(h) + m.b(k)


def through_a_view(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.view(-1, 2, 3).tanh_()
    return m.b(h)


def slice_written(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h[:, 0] = 0
    return m.b(h)


def slice_by_name(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h[:, :2].mul_(2)
    return m.b(h)


def scaled(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h *= 2
    return m.b(h)


def gradients_off(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.a(x)
    return m.b(F.relu(h))


def asks_for_its_type(m: Any, x: Tensor) -> Tensor:
    h = m.a(x) if isinstance(x, Tensor) else m.c(x)
    return m.b(torch.relu(h))


def asks_for_its_mode(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.relu(m.a(x) if m.training else m.c(x)))


def reassigned(m: Any, x: Tensor) -> Tensor:
    """In place, but harmless."""
    h = m.a(x)
    h += m.c(x)
    h = F.relu(h, inplace=True)
    return m.b(h)


WRITTEN: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "in place, not assigned": (unassigned, "overwritten in place"),
    "in place, used again": (used_again, "overwritten in place"),
    "in place, by another name": (other_name, "overwritten in place"),
    "in place, through a view": (through_a_view, "overwritten in place"),
    "a slice is written": (slice_written, "cannot trace"),
    "a slice is written in place": (slice_by_name, "no stacked form"),
    "multiplied in place": (scaled, "in place"),
    "gradients off": (gradients_off, "switches gradients off"),
    "asks for its type": (asks_for_its_type, "output was not that of plain autograd"),
    "asks for its mode": (asks_for_its_mode, "output was not that of plain autograd"),
    "in place, but reassigned": (reassigned, "every layer has a stacked form"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_forward_does_is_what_is_computed(name: str) -> None:
    forward, reason = WRITTEN[name]
    right(Written(forward, **three()), (4,), reason)


def right(model: nn.Module, shape: tuple[int, ...], reason: str, loss: Any = F.cross_entropy, y: Any = None) -> None:
    """Gradients are those of plain autograd, and outputs those of the module at rest."""
    fed = federation(model, shape, users=3, n=5, loss=loss)
    fed = fed if y is None else fed.with_targets(y)
    gradients = chosen(fed)
    got = gradients.value_and_grad(fed.W, fed.x, fed.y)
    want_loss, want = plain_loop(type(fed)(copied(fed.model), fed.W, fed.x.clone(), fed.y, fed.loss))
    assert reason in gradients.reason
    torch.testing.assert_close(got.loss, want_loss)
    torch.testing.assert_close(got.grad, want, rtol=1e-9, atol=1e-12)
    at_rest = torch.stack(resting(fed))
    torch.testing.assert_close(gradients.outputs(fed.W, fed.x), at_rest, rtol=1e-9, atol=1e-12)


def resting(fed: Any) -> list[Tensor]:
    model, outs = copied(fed.model).eval(), []
    names = [name for name, p in fed.model.named_parameters() if p.requires_grad]
    for w, x in zip(fed.W, fed.x, strict=True):
        sizes = [dict(fed.model.named_parameters())[name].shape for name in names]
        parts = torch.split(w, [s.numel() for s in sizes])
        state = {n: p.view(s) for n, p, s in zip(names, parts, sizes, strict=True)}
        outs.append(torch.func.functional_call(model, state, (x.clone(),)).detach())
    return outs


@pytest.mark.parametrize("flatten", [lambda h: h.flatten(), torch.flatten, lambda h: h.flatten(0)])
def test_flattening_begins_with_the_rows(flatten: Any) -> None:
    y = torch.randn(3, 5, dtype=DOUBLE)
    model = Written(lambda m, x: flatten(m.b(F.relu(m.a(x)))), a=nn.Linear(4, 6), b=nn.Linear(6, 1))
    fed = federation(nn.Sequential(nn.Linear(4, 6)), (4,), 3, 5)  # for its rows alone
    W = torch.randn(3, 37, dtype=DOUBLE)
    gradients = choose_method(model.to(DOUBLE), W, fed.x, y, None, F.mse_loss, dtype=DOUBLE)
    got = gradients.value_and_grad(W, fed.x, y)
    assert "flattening of other axes" in gradients.reason
    want_loss, want = plain_loop(type(fed)(model, W, fed.x, y, F.mse_loss))
    torch.testing.assert_close(got.loss, want_loss)
    torch.testing.assert_close(got.grad, want, rtol=1e-9, atol=1e-12)


def hooked(kind: str) -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    getattr(net[1], f"register_{kind}")(
        {
            "forward_hook": lambda module, inputs, out: 2 * out,
            "forward_pre_hook": lambda module, inputs: (inputs[0] - 1,),
            "full_backward_hook": lambda module, inward, outward: (3 * inward[0],),
            "full_backward_pre_hook": lambda module, outward: (3 * outward[0],),
        }[kind]
    )
    return net


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_hooks_are_called(kind: str) -> None:
    right(hooked(kind), (4,), "1 has hooks")


def pruned() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    torch.manual_seed(0)
    prune.random_unstructured(net[0], "weight", 0.5)
    return net


def patched() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    net[0].forward = MethodType(lambda self, x: 3 * F.linear(x, self.weight), net[0])
    return net


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 6)), nn.Linear(6, 3)), "0 has hooks"),
        (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 6)), nn.Linear(6, 3)), "ParametrizedLinear"),
        (lambda: nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.Linear(6, 3)).eval(), "0 has hooks"),
        (pruned, "0 has hooks"),
        (patched, "0 has a forward of its own"),
    ],
    ids=["weight_norm", "weight_norm as parametrization", "spectral_norm", "pruned", "patched"],
)
def test_weights_that_are_made_of_others(make: Any, reason: str) -> None:
    right(make(), (4,), reason)


def test_a_convolution_used_twice_around_a_pool() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.end(m.conv(F.max_pool2d(m.conv(x), 2)).flatten(1))

    model = Written(forward, conv=nn.Conv2d(2, 2, 5, padding=2), end=nn.Linear(32, 3))
    right(model, (2, 8, 8), "every layer has a stacked form")


def test_tied_layers_used_in_another_order() -> None:
    model = Written(lambda m, x: m.c(m.b(torch.relu(m.a(x)))), c=nn.Linear(6, 6), b=nn.Linear(6, 6), a=nn.Linear(4, 6))
    model.b.weight = model.c.weight
    right(model, (4,), "every layer has a stacked form")


def test_names_do_not_decide() -> None:
    """A function of one's own may be called as torch's are; torch.fx does not look into it."""
    right(Written(lambda m, x: m.b(relu(m.a(x))), a=nn.Linear(4, 6), b=nn.Linear(6, 3)), (4,), "relu has no stacked")


@torch.fx.wrap
def relu(x: Tensor) -> Tensor:
    return torch.exp(x)


TARGETS = {
    "soft labels": (nn.Linear(4, 3), (4,), F.cross_entropy, lambda: torch.rand(3, 5, 3, dtype=DOUBLE).softmax(-1)),
    "a class for each place": (
        nn.Conv2d(2, 3, 1),
        (2, 4, 3),
        F.cross_entropy,
        lambda: torch.randint(0, 3, (3, 5, 4, 3)),
    ),
    "a class for each time": (
        nn.Conv1d(2, 3, 1),
        (2, 6),
        nn.CrossEntropyLoss(),
        lambda: torch.randint(0, 3, (3, 5, 6)),
    ),
    "log classes for each time": (
        nn.Sequential(nn.Conv1d(2, 3, 1), nn.LogSoftmax(1)),
        (2, 6),
        F.nll_loss,
        lambda: torch.randint(0, 3, (3, 5, 6)),
    ),
    "some ignored": (
        nn.Conv1d(2, 3, 1),
        (2, 6),
        F.cross_entropy,
        lambda: torch.randint(0, 3, (3, 5, 6)).where(torch.rand(3, 5, 6) > 0.3, -100),
    ),
    "class weights": (
        nn.Linear(4, 3),
        (4,),
        nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5], dtype=DOUBLE)),
        lambda: torch.randint(0, 3, (3, 5)),
    ),
    "several numbers": (nn.Linear(4, 3), (4,), F.mse_loss, lambda: torch.randn(3, 5, 3, dtype=DOUBLE)),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_of_every_kind(name: str) -> None:
    layer, shape, loss, targets = TARGETS[name]
    right(nn.Sequential(layer), shape, "every layer has a stacked form", loss, targets())


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [F.mse_loss, nn.L1Loss(), F.smooth_l1_loss, nn.HuberLoss()])
def test_targets_without_the_outputs_axis_are_refused(loss: Any) -> None:
    """torch would compare each output with each target of the user, and warn."""
    model, x, y = nn.Sequential(nn.Linear(4, 1)), torch.randn(3, 5, 4), torch.randn(3, 5)
    with pytest.raises(rs.InputError, match=r"outputs of shape \(1,\) and targets of shape \(\) .* same shape"):
        rs.Neural(model, list(zip(x, y, strict=True)), loss=loss)
    assert "stacked" in rs.Neural(model, list(zip(x, y.unsqueeze(-1), strict=True)), loss=loss).method


def test_stacked_losses_take_what_they_know() -> None:
    """All else is asked of torch's own loss, user by user."""
    entropy, square = stacked_loss(mean_loss(F.cross_entropy)), stacked_loss(mean_loss(F.mse_loss))
    assert entropy is not None
    assert square is not None
    labels, numbers = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 5)
    assert entropy.takes((3,), labels)
    assert not entropy.takes((3,), numbers.unsqueeze(-1).expand(2, 5, 3))
    assert not entropy.takes((3, 4), labels)
    assert not entropy.takes((3,), labels.int())
    assert square.takes((1,), numbers.unsqueeze(-1))
    assert not square.takes((1,), numbers)
    assert not square.takes((), labels)
    loss = nn.MSELoss()
    loss.register_forward_hook(lambda module, inputs, out: 2 * out)
    assert mean_loss(loss) is None


def test_a_loss_of_ones_own_may_repeat_what_it_gets() -> None:
    """As torch does for one user: each output with each of that user's targets."""
    right(
        nn.Sequential(nn.Linear(4, 1)),
        (4,),
        "every layer has a stacked form",
        lambda o, y: (o - y).square().mean(),
        torch.randn(3, 5, dtype=DOUBLE),
    )


def test_a_batch_without_rows_is_not_shown_to_the_module() -> None:
    """Many modules refuse it: x.view(x.size(0), -1) of nothing has no meaning."""
    model = Written(lambda m, x: m.b(torch.exp(m.a(x)).view(x.size(0), -1)), a=nn.Linear(4, 6), b=nn.Linear(6, 3))
    fed = federation(model, (4,), users=2, n=5)
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    for loss in (F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)):
        for model in (fed.model, nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).to(DOUBLE)):  # type: ignore[assignment]
            gradients = choose_method(model, fed.W, fed.x, fed.y, mask, loss, dtype=DOUBLE)
            got = gradients.value_and_grad(fed.W, fed.x, fed.y, mask)
            assert bool(got.grad[0].any())
            assert torch.equal(got.grad[1], torch.zeros_like(got.grad[1]))


def test_rows_that_fill_up_are_kept_from_a_module_that_looks_at_all_rows() -> None:
    """At rest as in training: batch norm without running means."""
    model = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)).to(DOUBLE)
    users = [(torch.randn(n, 4, dtype=DOUBLE), torch.randint(0, 3, (n,))) for n in (9, 10, 11)]
    problem = rs.Neural(model, users, test=users)
    want = torch.stack([F.cross_entropy(model.eval()(x), y) for x, y in users]).detach()
    torch.testing.assert_close(problem.value(problem.start), want)
    found = problem.inspect(problem.start.unsqueeze(0), problem.start.expand(3, -1), {})
    assert found["test_loss"] == pytest.approx(float(torch.tensor([9, 10, 11], dtype=DOUBLE) @ want) / 30)


# --- the comparison ---------------------------------------------------------------------------------------------------


def test_a_copy_that_still_calls_the_module_itself_is_refused() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
            self.end = lambda x: self.b(x)

        def forward(self, x: Tensor) -> Tensor:
            return self.end(F.relu(self.a(x)))

    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    with pytest.raises(rs.InputError, match=r"copy computes something else .*lambda x: self.layer"):
        rs.Neural(Lazy(), [(x, y)])


def test_buffers_that_forward_writes_or_assigns_are_kept() -> None:
    def assigns(m: Any, x: Tensor) -> Tensor:
        m.mean = 0.9 * m.mean + 0.1 * x.detach().mean(0)
        return m.a(x - m.mean)

    def writes(m: Any, x: Tensor) -> Tensor:
        m.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return m.a(x - m.mean)

    def counts(m: Any, x: Tensor) -> Tensor:
        m.mean.add_(1)
        return m.a(x)

    x, y = torch.randn(2, 6, 4), torch.randint(0, 3, (2, 6))
    models = {}
    for forward in (assigns, writes, counts):
        models[forward] = Written(forward, a=nn.Linear(4, 3))
        models[forward].register_buffer("mean", torch.zeros(4))
    W, means = torch.randn(2, 15), {}
    for forward in (assigns, writes, counts):
        gradients = choose_method(models[forward], W, x, y)
        first = gradients.value_and_grad(W, x, y)
        means[forward] = gradients.value_and_grad(W, x, y, buffers=first.buffers).buffers["mean"]
        assert gradients.method == "loop"
        assert not bool(models[forward].mean.any()), "the module itself was changed"  # type: ignore[operator]
    torch.testing.assert_close(means[assigns], 0.19 * x.mean(1))
    torch.testing.assert_close(means[writes], 0.19 * x.mean(1))
    torch.testing.assert_close(means[counts], torch.full((2, 4), 2.0))


def test_gradient_hooks_of_parameters_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].weight.register_hook(lambda g: 0 * g)  # type: ignore[operator]
    with pytest.raises(rs.InputError, match=r"model.0.weight is a parameter with gradient hooks"):
        rs.Neural(model, [(torch.randn(6, 4), torch.randint(0, 3, (6,)))])


def test_the_comparison_leaves_no_trace() -> None:
    """Neither in random numbers, nor in the module: its mode, buffers, attributes, gradients."""

    def forward(m: Any, x: Tensor) -> Tensor:
        m.calls += 1
        m.last = m.norm(m.a(x))
        return m.b(F.dropout(m.last, 0.5, m.training)) + random.random() * 0 + torch.rand(1) * 0

    model = Written(forward, **three(), norm=nn.BatchNorm1d(6))
    model.calls = 7  # type: ignore[assignment]
    model.norm.eval()
    x, y, dim = torch.randn(1, 6, 4), torch.zeros(1, 6).long(), sum(p.numel() for p in model.parameters())
    before, attributes = deepcopy(model.state_dict()), set(vars(model))
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    choose_method(model, torch.randn(1, dim, generator=torch.Generator()), x, y)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()  # type: ignore[index]
    assert model.calls == 7
    assert set(vars(model)) == attributes
    assert model.training
    assert not model.norm.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert all(p.grad is None for p in model.parameters())


def test_a_module_that_draws_goes_to_the_loop() -> None:
    """Stochastic depth: torch.fx would write down one outcome for good."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.b(h + m.c(x) if not m.training or float(torch.rand(1)) < 2 else h)

    fed = federation(Written(forward, **three()), (4,), users=2, n=5)
    gradients = chosen(fed)
    gradients.value_and_grad(fed.W, fed.x, fed.y)
    assert (gradients.method, gradients.reason) == ("loop", "it draws random numbers")


def test_dropout_by_a_function_is_off_without_seeds() -> None:
    model = Written(lambda m, x: m.b(F.dropout(torch.exp(m.a(x)), 0.5, m.training)), **three())
    still = Written(lambda m, x: m.b(torch.exp(m.a(x))), **three())
    fed = federation(model, (4,), users=2, n=5)
    gradients = chosen(fed)
    got = gradients.value_and_grad(fed.W, fed.x, fed.y)
    assert gradients.method == "loop"
    assert gradients.random
    torch.testing.assert_close(got.grad, plain_loop(type(fed)(still.to(DOUBLE), fed.W, fed.x, fed.y, fed.loss))[1])
    noisy = gradients.value_and_grad(fed.W, fed.x, fed.y, seeds=torch.tensor([1, 2]))
    assert float((noisy.grad - got.grad).norm()) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("broken", ["value_and_grad", "outputs"])
def test_a_method_that_is_wrong_is_not_taken(broken: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong in one layer by a hundredth, where everything begins at zero: the loop is taken, and the reason kept."""
    honest = getattr(Stacked, broken)

    def wrong(self: Stacked, W: Tensor, *args: Any, **options: Any) -> Any:
        found = honest(self, W, *args, **options)
        if broken == "outputs":
            return found * 1.01
        found.grad[:, :24] *= 1.01
        return found

    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    users = [(torch.zeros(n, 4, dtype=dtype), torch.zeros(n).long()) for n in (4, 5)]
    assert rs.Neural(model, users).method.startswith("stacked")
    monkeypatch.setattr(Stacked, broken, wrong)
    kind = "gradient" if broken == "value_and_grad" else "output"
    assert rs.Neural(model, users).method == f"loop: its {kind} was not that of plain autograd"
    W = rs.Neural(model, users).start.unsqueeze(0)
    with pytest.raises(rs.InputError, match="method is 'stacked', but its"):
        choose_method(model, W, users[0][0][None], users[0][1][None], dtype=dtype, method="stacked")


def test_the_comparison_sees_users_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything right for one user, or for users who agree."""
    honest = Stacked.value_and_grad

    def wrong(self: Stacked, W: Tensor, *args: Any, **options: Any) -> Any:
        return honest(self, W[:1], *args, **options)

    monkeypatch.setattr(Stacked, "value_and_grad", wrong)
    problem = rs.Neural(nn.Sequential(nn.Linear(4, 3)), [(torch.randn(4, 4), torch.zeros(4).long())])
    assert problem.method.startswith("loop: its loss")


def test_maxima_of_equal_numbers_do_not_send_a_network_to_the_loop() -> None:
    """Black images tie in every window, in single precision too."""
    from resolvent.networks.models import mnist_cnn

    x = torch.zeros(20, 1, 28, 28)
    x[:, :, 5:20, 5:20] = 1.0
    torch.manual_seed(0)
    assert rs.Neural(mnist_cnn(), [(x, torch.arange(20) % 10)] * 2).method.startswith("stacked")


def test_the_comparison_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    honest = plain_autograd.Reference.__call__
    monkeypatch.setattr(plain_autograd.Reference, "__call__", lambda self, q: asked.append(q) or honest(self, q))
    problem = rs.Neural(nn.Sequential(nn.Linear(4, 3)), [(torch.randn(n, 4), torch.zeros(n).long()) for n in (3, 9)])
    count = len(asked)
    rs.solve(problem, rs.fedavg(0.1), rounds=2)
    assert len(asked) == count
    assert count <= 2  # outputs alone, then outputs and gradients
