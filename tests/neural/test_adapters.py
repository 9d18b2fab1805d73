"""lora="b": A of each adapter B A is frozen, so that the mean of what is trained gives the mean of the products."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import resolvent as rs
from resolvent.networks.adapters import pairs

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
DOUBLE = torch.float64
EXACT = 1e-13
"""Relative, of sums of three doubles."""


class Adapted(nn.Module):
    """A frozen weight W and an adapter, W + B A, with parameters of its own or in layers, as peft has them."""

    def __init__(self, inputs: int, outputs: int, layers: bool) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        if layers:
            self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, 2, bias=False)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(2, outputs, bias=False)})
        else:
            self.lora_a = nn.Parameter(torch.randn(2, inputs))
            self.lora_b = nn.Parameter(torch.randn(outputs, 2) / 4)

    def matrices(self) -> tuple[Tensor, Tensor]:
        a, b = (p for name, p in self.named_parameters() if "lora" in name)
        return a, b

    def product(self) -> Tensor:
        a, b = self.matrices()
        return b.detach() @ a.detach()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.matrices()
        out: Tensor = self.base(x) + F.linear(F.linear(x, a), b)
        return out


def network(layers: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Adapted(4, 6, layers), nn.Tanh(), Adapted(6, 3, layers)).to(DOUBLE)


def users() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 4, generator=g, dtype=DOUBLE), torch.randint(0, 3, (n,), generator=g)) for n in (8, 5, 6)]


def products(module: nn.Module) -> Tensor:
    return torch.cat([m.product().flatten() for m in module.modules() if isinstance(m, Adapted)])


def apart(lora: str | None, layers: bool) -> float:
    """How far the product of the means is from the mean of the products after a round of ten steps by each user."""
    problem = rs.Neural(network(layers), users(), weights=[1, 2, 3], lora=lora)
    run = rs.solve(problem, rs.fedavg(0.5, steps=10), rounds=1, progress=False)
    mean = sum(float(w) * products(run.personal_module(i)) for i, w in enumerate(problem.weights))
    return float((products(run.module()) - mean).norm() / mean.norm())


@pytest.mark.parametrize("layers", [False, True])
def test_the_product_of_means_is_the_mean_of_products_where_a_is_frozen_and_only_there(layers: bool) -> None:
    assert apart("b", layers) < EXACT
    assert apart(None, layers) > 0.01


@pytest.mark.parametrize("layers", [False, True])
def test_b_alone_is_the_vector_and_its_gradient_that_of_plain_autograd(layers: bool) -> None:
    model, data = network(layers), users()
    before = [(p.detach().clone(), p.requires_grad) for p in model.parameters()]
    problem = rs.Neural(model, data, lora="b")
    assert problem.dim == sum(b.numel() for _, b in pairs(model)) == 6 * 2 + 3 * 2
    for p, (values, trained) in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, values)  # the module is left as it was
        assert p.requires_grad == trained
    W = problem.start + torch.randn(3, problem.dim, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    for w, (x, y), grad in zip(W, data, problem.grad(W), strict=True):
        held = copy.deepcopy(model)
        b = [b for _, b in pairs(held)]
        nn.utils.vector_to_parameters(w, b)
        want = torch.autograd.grad(F.cross_entropy(held(x), y), b)
        torch.testing.assert_close(grad, torch.cat([g.flatten() for g in want]), rtol=1e-10, atol=1e-12)


def test_the_same_as_freezing_by_hand() -> None:
    model = network(True)
    problem = rs.Neural(model, users(), lora="b")
    for a, _ in pairs(model):
        a.requires_grad_(False)
    by_hand = rs.Neural(model, users())
    scheme = rs.fedavg(0.3, local=rs.GradientSteps(2, batch=4))
    one, other = (rs.solve(p, scheme, rounds=3, progress=False).model for p in (problem, by_hand))
    assert torch.equal(one, other)


class Words(nn.Module):
    """peft's names for an adapter of an Embedding, beside a name that only looks like one."""

    def __init__(self) -> None:
        super().__init__()
        self.lora_embedding_A = nn.ParameterDict({"default": nn.Parameter(torch.randn(2, 9))})
        self.lora_embedding_B = nn.ParameterDict({"default": nn.Parameter(torch.randn(3, 2))})
        self.lora_Alpha, self.explora_A = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        rows = F.embedding(x, self.lora_embedding_A["default"].T) @ self.lora_embedding_B["default"].T
        out: Tensor = rows.mean(1) * self.lora_Alpha * self.explora_A
        return out


def test_pairs_are_known_by_their_names() -> None:
    torch.manual_seed(0)
    problem = rs.Neural(Words(), [(torch.randint(0, 9, (4, 5)), torch.tensor([0, 1, 2, 0]))] * 2, lora="b")
    assert problem.layout.names == ("lora_Alpha", "explora_A", "lora_embedding_B.default")


def frozen_b() -> nn.Module:
    model = network(False)
    for _, b in pairs(model):
        b.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "lora", "sentence"),
    [
        (lambda: network(False), "a", "lora is 'a', but 'b', which freezes A of every adapter B A, or None is needed"),
        (lambda: network(False), True, "lora is True, but"),
        (lambda: nn.Linear(4, 3).double(), "b", "the Linear has no trained parameter lora_B beside a lora_A"),
        (frozen_b, "b", "the Sequential has no trained parameter lora_B"),
    ],
)
def test_bad_input(make: Callable[[], nn.Module], lora: str, sentence: str) -> None:
    model = make()
    before = [p.requires_grad for p in model.parameters()]
    with pytest.raises(rs.InputError, match=sentence):
        rs.Neural(model, users(), lora=lora)
    assert [p.requires_grad for p in model.parameters()] == before


def test_a_problem_that_is_refused_leaves_the_module_as_it_was() -> None:
    model = network(False)
    with pytest.raises(rs.InputError, match="the model cannot take rows"):
        rs.Neural(model, [(torch.ones(3, 5, dtype=DOUBLE), torch.zeros(3, dtype=torch.long))], lora="b")
    assert all(a.requires_grad for a, _ in pairs(model))


def test_an_adapter_whose_a_is_zero_would_never_train() -> None:
    net = network(layers=False)
    with torch.no_grad():
        net.get_submodule("0").lora_a.zero_()  # type: ignore[operator]
    with pytest.raises(rs.InputError, match="A is zero"):
        rs.Neural(net, users(), F.mse_loss, lora="b")
    assert all(a.requires_grad for a, _ in pairs(net))


def test_a_trained_module_may_be_trained_as_the_one_that_was_given() -> None:
    run = rs.solve(rs.Neural(network(True), users(), lora="b"), rs.fedavg(0.1), rounds=1)
    for module in (run.module(), run.personal_module(1)):
        assert [p.requires_grad for p in module.parameters()] == [p.requires_grad for p in network(True).parameters()]
