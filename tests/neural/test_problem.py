"""Networks through the same loop as everything else, against plain PyTorch loops over users."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import resolvent as rs
from resolvent.engines.rank import combined
from resolvent.iteration.engine import Ask
from resolvent.iteration.table import named
from resolvent.local.descent import batches, gradients

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
DOUBLE = torch.float64


def net(dtype: torch.dtype = DOUBLE) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def people(sizes: Any = (12, 12, 12), dtype: torch.dtype = DOUBLE, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 5, generator=g, dtype=dtype), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def put(model: nn.Module, w: Tensor) -> nn.Module:
    model, at = copy.deepcopy(model), 0
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.copy_(w[at : at + p.numel()].view_as(p))
                at += p.numel()
    return model


def slope(model: nn.Module, w: Tensor, x: Tensor, y: Tensor, loss: Any = F.cross_entropy) -> Tensor:
    model = put(model, w)
    loss(model(x), y).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


def textbook(model: Any, users: Any, row: str, eta: float, rounds: int, local: Any) -> Tensor:
    """(gFL-1..3) with lists of vectors; the mean of z of the last round."""
    a, b, c = (rs.TABLE[row].alpha, rs.TABLE[row].beta, rs.TABLE[row].gamma)
    u = [flat(model) for _ in users]
    for t in range(rounds):
        z = [(1 - a) * ui + a * local(ui, i, t) for i, ui in enumerate(u)]
        w = sum(z) / len(z)
        u = [(1 - c) * ui + c * ((1 - b) * zi + b * w) for ui, zi in zip(u, z, strict=True)]
    return w


def close(a: Tensor, b: Tensor, tol: float = 1e-10) -> bool:
    return float((a - b).norm()) <= tol * float(b.norm())


@pytest.mark.parametrize("sizes", [(12, 12, 12), (5, 12, 30)])
@pytest.mark.parametrize("row", [name for name, row in rs.TABLE.items() if not row.kin])
def test_every_algorithm_is_its_textbook_loop(row: str, sizes: tuple[int, ...]) -> None:
    model, users, eta, lr, steps = net(), people(sizes), 0.7, 0.2, 4
    forward = rs.TABLE[row].forward

    def local(u: Tensor, i: int, t: int) -> Tensor:
        x = u
        for _ in range(steps):
            pull = 0 if forward else (x - u) / eta
            x = x - (eta if forward else lr) * (slope(model, x, *users[i]) + pull)
        return x

    operator = rs.GradientSteps(steps) if forward else rs.GradientProx(steps, lr)
    scheme = named(row, eta, operator)
    run = rs.solve(rs.Neural(model, users), scheme, rounds=4)
    assert close(run.model, textbook(model, users, row, eta, 4, local))


def test_the_proximal_term_is_there() -> None:
    """Without it, or with it taken at the wrong point, a small eta would not hold users back."""
    problem = rs.Neural(net(), people())
    moved = [
        float((rs.solve(problem, rs.fedprox(eta, rs.GradientProx(200, lr)), rounds=1).personal - problem.start).norm())
        for eta, lr in ((1e-3, 5e-4), (1e-2, 5e-3), (1e6, 0.1))
    ]
    assert moved[0] < 0.2 * moved[1] < 0.2 * moved[2]
    near = rs.solve(problem, rs.fedprox(1e-3, rs.GradientProx(200, 5e-4)), rounds=1).personal
    assert close(
        near - problem.start, -1e-3 * problem.grad(problem.start), 1e-2
    )  # prox_eta f(u) = u - eta grad f + ...


def test_a_run_may_begin_at_parameters_that_require_a_gradient() -> None:
    problem, module = rs.Neural(net(), people()), net()
    starts = [parameters_to_vector(module.parameters()), problem.layout.flatten(module)]
    assert starts[0].requires_grad
    first, second = (rs.solve(problem, rs.fedavg(0.1), rounds=2, start=start, progress=False) for start in starts)
    assert torch.equal(first.model, second.model)
    assert not first.model.requires_grad


def test_minibatches_are_algorithm_2() -> None:
    model, users, eta, lr, size = net(), people((9, 14, 14)), 0.5, 0.1, 4
    counts = torch.tensor([len(y) for _, y in users])

    def local(u: Tensor, i: int, t: int) -> Tensor:
        x = u
        for epoch in range(2):
            for rows, mask in batches(counts, size, 3, t, np.arange(3), epoch):
                mine = rows[i][mask[i]]
                if len(mine):
                    x = x - lr * (slope(model, x, users[i][0][mine], users[i][1][mine]) + (x - u) / eta)
        return x

    scheme = rs.fedpi(eta, rs.GradientProx(2, lr, batch=size))
    run = rs.solve(rs.Neural(model, users), scheme, rounds=3, seed=3)
    assert close(run.model, textbook(model, users, "fedpi", eta, 3, local))


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD])
def test_any_optimiser_may_take_the_steps_of_a_prox(make: Any) -> None:
    model, users, eta = net(), people((9, 14)), 0.5

    def local(u: Tensor, i: int, t: int) -> Tensor:
        x = u.clone().requires_grad_()
        optimiser = make([x], lr=0.05)
        for _ in range(6):
            x.grad = slope(model, x.detach(), *users[i]) + (x.detach() - u) / eta
            optimiser.step()
        return x.detach()

    scheme = rs.fedsplit(eta, rs.GradientProx(6, 0.05, optimiser=make))
    run = rs.solve(rs.Neural(model, users), scheme, rounds=3)
    assert close(run.model, textbook(model, users, "fedsplit", eta, 3, local), 1e-8)


class Rows(Dataset[Any]):
    """A data set with a transform, which streams."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        return 2 * self.x[k], self.y[k]


class Flow(IterableDataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Any:
        return iter(zip(2 * self.x, self.y, strict=True))


@pytest.mark.parametrize(
    "kind",
    [Rows, lambda x, y: DataLoader(Rows(x, y), batch_size=5), lambda x, y: DataLoader(Flow(x, y), batch_size=4)],
    ids=["data set", "loader", "stream"],
)
def test_data_that_stream_give_the_same_gradients(kind: Any) -> None:
    users = people((7, 12, 12))
    resident = rs.Neural(net(), [(2 * x, y) for x, y in users])
    streamed = rs.Neural(net(), [kind(x, y) for x, y in users])
    W = resident.start + 0.1 * torch.randn(3, resident.dim, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    assert close(streamed.grad(W), resident.grad(W), 1e-12)
    assert close(streamed.value(W), resident.value(W), 1e-12)
    assert streamed.sizes.tolist() == [7, 12, 12]
    if "batches" in streamed.offers:
        scheme = rs.fedavg(0.1, local=rs.GradientSteps(1, batch=5))
        assert close(rs.solve(streamed, scheme, rounds=2).model, rs.solve(resident, scheme, rounds=2).model, 1e-12)
    else:
        with pytest.raises(rs.InputError, match="needs batches of the problem"):
            rs.solve(streamed, rs.fedavg(0.1, local=rs.GradientSteps(1, batch=5)), rounds=2)


def test_tensor_data_sets_stay_on_the_device() -> None:
    problem = rs.Neural(net(), [TensorDataset(*user) for user in people()])
    assert close(problem.grad(problem.start), rs.Neural(net(), people()).grad(problem.start), 0.0)


def test_the_users_module_is_left_alone() -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    model.train()
    run = rs.solve(rs.Neural(model, people()), rs.fedpi(1.0), rounds=2)
    assert model.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert all(p.grad is None for p in model.parameters())
    trained = run.module()
    assert torch.equal(flat(trained), run.model)
    assert not torch.equal(flat(trained), flat(model))
    assert torch.equal(flat(run.personal_module(1)), run.personal[1])
    with pytest.raises(rs.InputError, match="from 0 to 2"):
        run.personal_module(3)


def test_frozen_parameters_stay_frozen() -> None:
    model: Any = net()
    model[0].weight.requires_grad_(False)
    problem = rs.Neural(model, people())
    assert problem.dim == 7 + 21 + 3
    run = rs.solve(problem, rs.fedavg(0.1, steps=3), rounds=2)
    assert torch.equal(run.module()[0].weight, model[0].weight)  # type: ignore[index]
    assert close(problem.grad(problem.start)[0], slope(model, flat(model), *people()[0]))


def normed() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)).to(DOUBLE)


def test_buffers_are_kept_for_each_user_apart() -> None:
    model, users, eta = normed(), people((9, 14)), 0.2
    problem = rs.Neural(model, users)
    run = rs.solve(problem, rs.fedavg(eta, steps=3), rounds=2)
    own = [copy.deepcopy(model).train() for _ in users]
    w = flat(model)
    for _ in range(2):
        answers = []
        for module, (x, y) in zip(own, users, strict=True):
            v = w
            for _ in range(3):
                module.load_state_dict(put(module, v).state_dict() | dict(module.named_buffers()))
                module.zero_grad()
                F.cross_entropy(module(x), y).backward()
                v = v - eta * torch.cat([p.grad.flatten() for p in module.parameters()])
            answers.append(v)
        w = sum(answers) / 2  # type: ignore[assignment]
    assert close(run.model, w)
    for i, module in enumerate(own):
        kept = run.personal_module(i)[1]  # type: ignore[index]
        assert torch.allclose(kept.running_mean, module[1].running_mean, rtol=1e-12)
        assert torch.allclose(kept.running_var, module[1].running_var, rtol=1e-12)
        assert int(kept.num_batches_tracked) == 6
    mean = sum(module[1].running_mean for module in own) / 2
    assert torch.allclose(run.module()[1].running_mean, mean, rtol=1e-12)  # type: ignore[index]


def test_buffers_survive_sampling_and_resume() -> None:
    problem = rs.Neural(normed(), people((9, 14, 11)), test=people((4, 4, 4), seed=5))
    whole = rs.solve(problem, rs.fedpi(1.0), rounds=9, participation=0.5, seed=2)
    half = rs.solve(problem, rs.fedpi(1.0), rounds=4, participation=0.5, seed=2)
    rest = rs.solve(problem, rs.fedpi(1.0), rounds=5, participation=0.5, seed=2, start=half.state)
    assert torch.equal(whole.model, rest.model)
    assert whole.state.memory.keys() == rest.state.memory.keys()
    assert all(torch.equal(whole.state.memory[k], rest.state.memory[k]) for k in whole.state.memory)
    assert whole.history.test_loss.iloc[4:].tolist() == rest.history.test_loss.tolist()


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 3)).to(DOUBLE)


def test_dropout_follows_seed_round_and_user() -> None:
    problem = rs.Neural(dropping(), [people((12,))[0]] * 3)  # the same data three times
    run = rs.solve(problem, rs.fedavg(0.1), rounds=1, seed=1)
    a, b, c = run.personal
    assert not torch.equal(a, b)
    assert not torch.equal(b, c)
    assert torch.equal(run.personal, rs.solve(problem, rs.fedavg(0.1), rounds=1, seed=1).personal)
    assert not torch.equal(run.personal, rs.solve(problem, rs.fedavg(0.1), rounds=1, seed=2).personal)
    again = rs.solve(problem, rs.fedavg(0.1), rounds=1, start=problem.start, seed=1)
    assert torch.equal(again.model, run.model)
    alone = rs.solve(problem, rs.fedavg(0.1), rounds=1, seed=1, participation=rs.Trace([[False, True, False]]))
    assert torch.equal(alone.model, b)  # whoever else is there


def test_values_are_those_of_use_not_of_training() -> None:
    problem = rs.Neural(dropping(), people())
    model = dropping().eval()
    expected = torch.stack([F.cross_entropy(model(x), y) for x, y in people()]).detach()
    assert close(problem.value(problem.start), expected, 1e-12)


def test_figures_on_validation_and_test() -> None:
    model, users = net(), people()
    test, shared = people((6, 9, 5), seed=7), people((20,), seed=8)[0]
    problem = rs.Neural(model, users, weights=[1, 2, 3], validation=shared, test=test)
    run = rs.solve(problem, rs.fedpi(1.0), rounds=3)
    with torch.no_grad():
        check_figures(run, users, test, shared)


def check_figures(run: rs.Run, users: Any, test: Any, shared: Any) -> None:
    last, lam = run.history.iloc[-1], [1 / 6, 2 / 6, 3 / 6]
    module = run.module()
    accuracy = [float((module(x).argmax(1) == y).double().mean()) for x, y in test]
    counts = [len(y) for _, y in test]
    pooled = [n / sum(counts) for n in counts]
    mean = sum(a * b for a, b in zip(pooled, accuracy, strict=True))
    assert last.test_accuracy == pytest.approx(mean)
    spread = math.sqrt(sum(a * (b - mean) ** 2 for a, b in zip(pooled, accuracy, strict=True)))
    assert last.test_accuracy_spread == pytest.approx(spread)
    assert last.test_loss == pytest.approx(
        sum(a * float(F.cross_entropy(module(x), y)) for a, (x, y) in zip(pooled, test, strict=True))
    )
    own = [run.personal_module(i) for i in range(3)]
    hits = [float((own[i](x).argmax(1) == y).double().mean()) for i, (x, y) in enumerate(test)]
    assert last.personal_test_accuracy == pytest.approx(sum(a * b for a, b in zip(pooled, hits, strict=True)))
    assert last.validation_loss == pytest.approx(float(F.cross_entropy(module(shared[0]), shared[1])))
    assert last.value == pytest.approx(
        sum(a * float(F.cross_entropy(module(x), y)) for a, (x, y) in zip(lam, users, strict=True))
    )
    assert "personal_validation_loss" not in run.history


def test_figures_come_at_the_cadence() -> None:
    problem = rs.Neural(net(), people(), test=people((6, 9, 5), seed=7))
    run = rs.solve(problem, rs.fedprox(1.0), rounds=7, every=3)
    assert run.history["round"].tolist() == [3, 6, 7]
    assert run.history.test_accuracy.notna().all()


def test_regression_has_no_accuracy() -> None:
    users = [(x, x[:, :3].sum(1, keepdim=True).expand(-1, 3).contiguous()) for x, _ in people()]
    problem = rs.Neural(net(), users, loss=F.mse_loss, test=users)
    run = rs.solve(problem, rs.fedavg(0.1, steps=5), rounds=20)
    assert "test_accuracy" not in run.history
    assert run.history.value.iloc[-1] < run.history.value.iloc[0]


def test_acceleration_on_the_mean_and_averages() -> None:
    problem = rs.Neural(net(), people())
    run = rs.solve(problem, rs.fedprox(1.0), rounds=12, anderson=rs.Anderson(5, on="mean"), average="suffix")
    assert run.history.value.iloc[-1] < run.history.value.iloc[0]
    assert run.history.average_value.notna().all()


@pytest.mark.parametrize("participation", [None, 0.6])
@pytest.mark.parametrize("row", ["fedavg", "fedrp", "fedpi"])
def test_going_on_equals_never_having_stopped(row: str, participation: float | None, tmp_path: Path) -> None:
    problem = rs.Neural(net(torch.float32), people((9, 14, 11), torch.float32))
    scheme = named(row, 0.5, rs.GradientSteps(3) if row == "fedavg" else rs.GradientProx(3, 0.1, batch=5))
    arguments: dict[str, Any] = {"participation": participation, "seed": 4}
    whole = rs.solve(problem, scheme, rounds=8, **arguments)
    half = rs.solve(problem, scheme, rounds=5, **arguments)
    half.save(tmp_path)
    rest = rs.solve(problem, scheme, rounds=3, start=rs.Run.load(tmp_path).state, **arguments)
    assert torch.equal(whole.model, rest.model)
    assert torch.equal(whole.personal, rest.personal)


def test_nan_in_the_loss_ends_the_run_and_the_best_state_is_handed_back() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        value = F.cross_entropy(output, target)
        return value / torch.zeros_like(value) * 0 if float(value.detach()) < 0.8 and len(target) == 13 else value

    problem = rs.Neural(net(), people((12, 13, 12)), loss=loss)
    with pytest.warns(rs.DivergenceWarning, match=r"user 1 answered NaN or infinity in round (\d+)"):
        run = rs.solve(problem, rs.fedavg(0.5, steps=3), rounds=60)
    assert run.status == "diverged"
    assert 0 < run.state.round < 60
    assert bool(torch.isfinite(run.model).all())
    assert run.state.round == run.history["round"][run.history.value.idxmin()]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rs.Neural("net", people()), "model is of type str"),  # type: ignore[arg-type]
        (lambda: rs.Neural(nn.ReLU(), people()), "without a parameter"),
        (lambda: rs.Neural(net(), []), "users is empty, but a list"),
        (lambda: rs.Neural(net(), [*people(), (torch.empty(0, 5), torch.empty(0))]), r"users\[3\] is empty"),
        (lambda: rs.Neural(net(), [3]), r"users\[0\] is of type int"),
        (lambda: rs.Neural(net(), [(torch.randn(4, 5), torch.zeros(3).long())]), "as many rows of each"),
        (lambda: rs.Neural(net(), [(torch.randn(4, 6), torch.zeros(4).long())]), "cannot take rows of shape"),
        (lambda: rs.Neural(net(), [(torch.randn(4, 5), torch.full((4,), 3))]), "label is 3, .* 3 outputs"),
        (lambda: rs.Neural(net(), [(torch.randn(4, 5), torch.full((4,), -1))]), "label is -1"),
        (lambda: rs.Neural(net(), [(torch.full((4, 5), math.nan), torch.zeros(4).long())]), "NaN"),
        (lambda: rs.Neural(net(), people(), loss=F.mse_loss), "loss cannot take|a mean"),
        (lambda: rs.Neural(net(), people(), loss=lambda o, y: o), "one number, the mean over rows"),
        (lambda: rs.Neural(net(), people(), device="cuda:77"), "device is cuda:77, which is not there"),
        (lambda: rs.Neural(net(), people(), device="moon"), "device is moon"),
        (lambda: rs.Neural(net(), people(), weights=[1, 2]), "weights"),
        (lambda: rs.Neural(net(), people(), test=people((4, 4))), "test is a list of 2"),
        (lambda: rs.solve(rs.Neural(net(), people()), rs.fedpi(1.0, rs.ExactProx()), rounds=1), "needs prox"),
        (lambda: rs.Neural(net().bfloat16(), people()), "model is of bfloat16 numbers, but pass dtype="),
        (lambda: rs.Neural(net(), people(), dtype="float64"), "dtype is 'float64'"),  # type: ignore[arg-type]
        (lambda: rs.Neural(net(), people(), loss=lambda o, y: o.detach().mean()), "loss is a function .* no gradient"),
        (lambda: rs.Neural(net(), people()).grad(torch.zeros(1, 99) + 1j), "W is of torch.complex64"),
        (lambda: rs.GradientSteps(3, momentum="0.5"), "momentum is '0.5'"),  # type: ignore[arg-type]
        (lambda: rs.GradientProx(3, lr=torch.ones(2)), r"lr is tensor\("),  # type: ignore[arg-type]
        (lambda: rs.GradientProx(3, optimiser=torch.optim.LBFGS), "LBFGS"),
        (lambda: rs.GradientProx(3, optimiser=torch.optim.Adam, momentum=0.5), "leave out momentum"),
        (lambda: rs.GradientProx(3, optimiser="adam"), "optimiser is 'adam'"),  # type: ignore[arg-type]
        (lambda: rs.solve(rs.make_least_squares(2, 3, 4), "fedpi", rounds=1).module(), "no network to hand back"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_bad_input(make: Any, sentence: str) -> None:
    with pytest.raises(rs.InputError, match=sentence):
        make()


class Functional(nn.Module):
    """Dropout as a function, which no list of modules shows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 40), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.dropout(self.a(x), 0.5, training=self.training))


def test_dropout_as_a_function_is_dropout() -> None:
    torch.manual_seed(0)
    problem = rs.Neural(Functional().to(DOUBLE), [people((12,))[0]] * 2)
    a, b = rs.solve(problem, rs.fedavg(0.1), rounds=1).personal
    assert not torch.equal(a, b)


def test_users_numbers_are_not_looked_at_where_nothing_is_drawn() -> None:
    """On a GPU full gradient steps are recorded once, and numbers cannot be copied to the CPU meanwhile."""
    numbers = torch.arange(3, device="meta")  # any look at them is an error
    plain = rs.Neural(net(), people())
    steps = list(gradients(plain, Ask(0, 0.1, names=numbers), 2))
    assert len(steps) == 2
    assert all(torch.equal(step(plain.start), plain.grad(plain.start)) and moves is None for step, moves in steps)
    dropping = rs.Neural(nn.Sequential(net(), nn.Dropout(0.5)), people())
    with pytest.raises(NotImplementedError):
        list(gradients(dropping, Ask(0, 0.1, names=numbers), 2))


def test_a_network_is_warned_of_once() -> None:
    problem = rs.Neural(nn.Linear(2, 2), [(x, torch.tensor([0, 1, 1])) for x in torch.randn(2, 3, 2)])
    said = rs.explain(rs.fedavg(0.1, steps=2), problem)
    assert [f.about for f in said.findings] == [rs.SolvesAnotherProblem]
    assert "not convex" in said.why


class Centred(nn.Module):
    """Rows meet: what one gives depends on which others are there."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x - x.mean(0))
        return out


@pytest.mark.parametrize("alone", [True, False])
def test_rows_that_all_users_share_are_divided_among_ranks(alone: bool) -> None:
    torch.manual_seed(0)
    data = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (4, 6, 5, 3, 8)]
    x, y = torch.randn(11, 4), torch.randint(0, 3, (11,)).index_fill(0, torch.tensor([1, 9]), -100)
    whole = rs.Neural(nn.Linear(4, 3) if alone else Centred(), data, weights="rows", test=(x, y))
    of, w = torch.arange(5).tensor_split(3), whole.start.unsqueeze(0)
    parts = [whole.part(of, rank)._evaluations[0] for rank in range(3)]
    assert [int(each.evaluator.data.sizes[0]) for each in parts] == ([4, 4, 3] if alone else [11] * 3)
    assert joined(whole, of, w) == pytest.approx(whole._evaluations[0](w, None, {}, {}), rel=1e-5)


def joined(whole: rs.Neural, of: Any, w: Tensor) -> dict[str, float]:
    """The figures of all ranks' users and rows."""
    parts = []
    for rank, who in enumerate(of):
        part = whole.part(of, rank)
        figures = part._evaluations[0](w, None, {}, {})
        parts.append((dict.fromkeys(figures, float(whole.weights[who].sum())) | part.shares, figures))
    return combined(parts)


def test_ranks_with_unlike_numbers_of_test_rows_add_up() -> None:
    torch.manual_seed(0)
    data, test = ([(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in sizes] for sizes in ((4, 6, 5), (9, 2, 30)))
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]))
    whole = rs.Neural(nn.Linear(4, 3), data, loss=loss, weights=[1, 2, 3], test=test)
    w = whole.start.unsqueeze(0)
    assert joined(whole, torch.arange(3).tensor_split(2), w) == pytest.approx(
        whole._evaluations[0](w, None, {}, {}), rel=1e-5
    )
