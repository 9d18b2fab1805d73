"""Users' data for networks: any container, loss and module against plain autograd over the rows that are the user's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

import resolvent as rs
from hunt.family import Family
from resolvent.local.descent import batches

DOUBLE = torch.float64
FEATURES, CLASSES = 4, 3


# --- modules ---------------------------------------------------------------------------------------------------------


class Writing(nn.Module):
    """Writes to its input, in a way that no tracer follows."""

    def __init__(self) -> None:
        super().__init__()
        self.end = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if len(x):
            x /= 2
            x.sub_(0.1)
            x[:, 0] = 0.5
        return self.end(x)


class Coupling(nn.Module):
    """Rows meet in the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.end = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x - x.mean(0)) if len(x) else self.end(x)


def stacked() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


def averaging() -> nn.Module:
    """Batch norm with cumulative means, which count batches."""
    return nn.Sequential(nn.BatchNorm1d(FEATURES, momentum=None), nn.Linear(FEATURES, CLASSES))


MODULES: tuple[Callable[[], nn.Module], ...] = (stacked, stacked, Writing, Coupling, normed, averaging)


# --- losses ----------------------------------------------------------------------------------------------------------


def smoothed(o: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(o, y, label_smoothing=0.1)


def spreading(o: Tensor, y: Tensor) -> Tensor:
    """Not a mean over rows."""
    return F.cross_entropy(o, y) + o.var(0, unbiased=False).sum()


def total(o: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(o, y, reduction="sum")


def scribbling(o: Tensor, y: Tensor) -> Tensor:
    """Writes to output and target."""
    y += 1
    y %= CLASSES
    o *= 2
    return F.cross_entropy(o, y)


class Aim(NamedTuple):
    """A loss and the targets that it takes: "classes", some of which may be `ignored`, "numbers" or "shares"."""

    loss: Any
    targets: str = "classes"
    ignored: int | None = None


WEIGHT = torch.tensor([0.2, 1.0, 5.0], dtype=DOUBLE)
AIMS = (
    Aim(F.cross_entropy),
    Aim(F.cross_entropy, ignored=-100),
    Aim(F.cross_entropy, "probabilities"),
    Aim(nn.CrossEntropyLoss(weight=WEIGHT)),
    Aim(nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1, label_smoothing=0.2), ignored=1),
    Aim(nn.CrossEntropyLoss(ignore_index=-1), ignored=-1),
    Aim(nn.CrossEntropyLoss(weight=WEIGHT), "probabilities"),
    Aim(nn.CrossEntropyLoss(reduction="sum")),
    Aim(nn.NLLLoss(weight=WEIGHT, ignore_index=2), ignored=2),
    Aim(partial(F.cross_entropy, weight=WEIGHT, ignore_index=0), ignored=0),
    Aim(smoothed),
    Aim(spreading),
    Aim(total),
    Aim(scribbling),
    Aim(F.mse_loss, "numbers"),
    Aim(nn.L1Loss(), "numbers"),
    Aim(nn.SmoothL1Loss(beta=0.5), "numbers"),
    Aim(nn.MSELoss(reduction="sum"), "numbers"),
    Aim(F.binary_cross_entropy_with_logits, "shares"),
    Aim(nn.BCEWithLogitsLoss(pos_weight=WEIGHT), "shares"),
    Aim(nn.BCEWithLogitsLoss(weight=WEIGHT), "shares"),
)


def targets(aim: Aim, n: int, rng: np.random.Generator) -> Tensor:
    if aim.targets == "numbers":
        return torch.from_numpy(rng.normal(size=(n, CLASSES)))
    if aim.targets == "shares":
        return torch.from_numpy(rng.integers(0, 2, (n, CLASSES)).astype(float))
    if aim.targets == "probabilities":
        return torch.from_numpy(rng.dirichlet(np.ones(CLASSES), n))
    y = rng.integers(0, CLASSES, n)
    if aim.ignored is not None:
        y = np.where(rng.random(n) < 0.4, aim.ignored, y)
        y[0] = next(k for k in range(CLASSES) if k != aim.ignored)  # a row that counts
    return torch.from_numpy(y)


# --- containers ------------------------------------------------------------------------------------------------------


class Rows(Dataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        return self.x[k], self.y[k]


class Doubled(TensorDataset):
    """Its tensors are not its rows."""

    def __getitem__(self, k: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(k)
        return 2 * x, y


class Flow(IterableDataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(self.x, self.y, strict=True))


class Own(Sampler[int]):
    """A sampler of one's own, over fixed rows in any order."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[int]:
        return iter(torch.tensor(self.rows)[torch.randperm(len(self.rows))].tolist())

    def __len__(self) -> int:
        return len(self.rows)


def hidden(x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Any, list[int]]:
    """A data set with the user's rows among those of others, in order, and where they are."""
    n, more = len(y), int(rng.integers(1, 12))
    where = sorted(rng.choice(n + more, n, replace=False).tolist())
    X, Y = torch.full((n + more, *x.shape[1:]), 1e3, dtype=x.dtype), y[:1].expand(n + more, *y.shape[1:]).clone()
    X[where], Y[where] = x, y
    return Rows(X, Y), where


def copying(rows: list[Any]) -> Any:
    """A collate function of one's own."""
    x, y = default_collate(rows)
    return [x.clone(), y.clone()]


def container(x: Tensor, y: Tensor, rng: np.random.Generator) -> tuple[Any, bool]:
    """The rows x and y in some container, and whether rows can be picked from it."""
    size, kind = int(rng.integers(2, 12)), int(rng.integers(0, 18))
    data, where = hidden(x, y, rng)
    shuffled = torch.Generator().manual_seed(3)
    if kind == 0:
        return (x.numpy(), y.numpy()[::-1][::-1]), True
    if kind == 1:
        return (pd.DataFrame(x.numpy()), pd.Series(y) if y.ndim == 1 else pd.DataFrame(y.numpy())), True
    if kind == 2:
        return TensorDataset(x, y), True
    if kind == 3:
        return Subset(Subset(TensorDataset(data.x, data.y), range(len(data.x))), where), True
    if kind == 4:
        return Subset(data, where), True
    if kind == 5:
        return DataLoader(data, size, sampler=SubsetRandomSampler(where)), True
    if kind == 6:
        return DataLoader(data, size, sampler=where), True
    if kind == 7:
        return DataLoader(data, size, sampler=Own(where)), True
    if kind == 8:
        return DataLoader(data, batch_sampler=BatchSampler(SubsetRandomSampler(where), size, drop_last=False)), True
    if kind == 9:
        return DataLoader(Rows(x, y), size, shuffle=True), True
    if kind == 10:
        return DataLoader(Rows(x, y), size, shuffle=True, generator=shuffled), True
    if kind == 11:
        return DataLoader(Rows(x, y), size, collate_fn=copying), True
    if kind == 12:
        return DataLoader(TensorDataset(x, y), len(y), drop_last=True), True
    if kind == 13:
        return Flow(x, y), False
    if kind == 14:
        return DataLoader(Flow(x, y), size), False
    if kind == 15:
        return Doubled(x / 2, y), True
    if kind == 16:
        longer = Rows(torch.cat([x, 1e3 + x]), torch.cat([y, y]))
        return DataLoader(longer, size, sampler=SequentialSampler(range(len(y)))), True
    return (x, y), True


# --- plain autograd --------------------------------------------------------------------------------------------------


def put(model: nn.Module, w: Tensor) -> nn.Module:
    model, at = copy.deepcopy(model), 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(w[at : at + p.numel()].view_as(p))
            at += p.numel()
    return model


def slope(model: nn.Module, w: Tensor, x: Tensor, y: Tensor, loss: Any) -> Tensor:
    model = put(model, w)
    loss(model(x.clone()), y.clone()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def value(model: nn.Module, w: Tensor, x: Tensor, y: Tensor, loss: Any) -> Tensor:
    with torch.no_grad():
        return loss(put(model, w).eval()(x.clone()), y.clone())


def check_close(found: Tensor, wanted: Tensor, what: str) -> None:
    off = float((found - wanted).abs().max()) / (1e-9 + float(wanted.abs().max()))
    assert off < 1e-9, f"{what} off by {off:.1e}"


# --- the families ----------------------------------------------------------------------------------------------------


def federation(seed: int, fewest: int = 1) -> tuple[nn.Module, Aim, list[tuple[Tensor, Tensor]], np.random.Generator]:
    rng = np.random.default_rng(seed)
    aim = AIMS[int(rng.integers(len(AIMS)))]
    torch.manual_seed(seed)
    model = MODULES[int(rng.integers(len(MODULES)))]().to(DOUBLE)
    if aim.targets == "probabilities" and not isinstance(model, Writing):
        model = Coupling().to(DOUBLE)
    if isinstance(aim.loss, nn.NLLLoss):
        model = nn.Sequential(model, nn.LogSoftmax(1))
    alike, users = bool(rng.integers(2)), int(rng.integers(1, 5))
    sizes = [int(rng.integers(fewest, 30))] * users if alike else rng.integers(fewest, 30, users).tolist()
    people = [(torch.from_numpy(rng.normal(size=(n, FEATURES))), targets(aim, n, rng)) for n in sizes]
    return model, aim, people, rng


def own_rows(seed: int) -> str:
    """Values, gradients and gradients of batches of every container, over and over, and the data as they were."""
    model, aim, people, rng = federation(seed)
    before = [(x.clone(), y.clone()) for x, y in people]
    held = [container(x, y, rng) for x, y in people]
    single = any(len(y) == 1 for _, y in people) and any(isinstance(m, nn.BatchNorm1d) for m in model.modules())
    try:
        problem = rs.Neural(model, [each for each, _ in held], loss=aim.loss)
    except rs.InputError as error:
        if not single or "of one row" not in str(error):
            raise AssertionError(str(error)) from error
        return "refused"
    assert not single, "one row went into batch norm"
    assert problem.sizes.tolist() == [len(y) for _, y in people], f"sizes {problem.sizes.tolist()}"
    W = problem.start + 0.1 * torch.from_numpy(rng.normal(size=(len(people), problem.dim)))
    wanted = torch.stack([slope(model, w, x, y, aim.loss) for w, (x, y) in zip(W, before, strict=True)])
    losses = torch.stack([value(model, w, x, y, aim.loss) for w, (x, y) in zip(W, before, strict=True)])
    for k in range(3):
        check_close(problem.grad(W), wanted, f"gradient {k} ({problem.method}, {aim})")
        check_close(problem.value(W), losses, f"value {k} ({problem.method}, {aim})")
        if "batches" in problem.offers:
            check_batches(problem, model, aim, W, before, rng)
    assert ("batches" in problem.offers) == all(picks for _, picks in held)
    for (x, y), (X, Y) in zip(people, before, strict=True):
        assert torch.equal(x, X), "x was written to"
        assert torch.equal(y, Y), "y was written to"
    return "right"


def check_batches(problem: Any, model: nn.Module, aim: Aim, W: Tensor, people: Any, rng: np.random.Generator) -> None:
    """Chosen rows; some users may have none."""
    k = int(rng.integers(2, 7))
    rows = torch.stack([torch.from_numpy(rng.integers(0, len(y), k)) for _, y in people])
    count = rng.integers(0, k + 1, len(people))
    count = np.where(count == 1, 2, count)
    mask = torch.from_numpy(np.arange(k) < count[:, None])
    found = problem.batch_grad(W, torch.where(mask, rows, 0), mask)
    for i, (x, y) in enumerate(people):
        mine = rows[i][mask[i]]
        if not len(mine):
            assert not bool(found[i].any()), "a gradient of no rows"
            continue
        if aim.ignored is not None and bool((y[mine] == aim.ignored).all()):
            assert not bool(found[i].any()), "a gradient of ignored rows"
            continue
        check_close(found[i], slope(model, W[i], x[mine], y[mine], aim.loss), f"batch of user {i} ({problem.method})")


def drawing_loaders(seed: int) -> str:
    """A loader that draws other rows in each pass, or leaves some out, is refused, and the user is named."""
    rng = np.random.default_rng(seed)
    n, size, kind = int(rng.integers(4, 30)), int(rng.integers(2, 4)), int(rng.integers(0, 10))
    people = [(torch.randn(n, FEATURES), torch.zeros(n).long()) for _ in range(2)]
    data = Rows(*people[1])

    class Shifting(Own):
        def __iter__(self) -> Iterator[int]:
            return iter(torch.randint(0, n, (n,)).tolist())

    class Batches(BatchSampler):
        pass

    class Reading(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter([])

    odd = Subset(data, range(n - 1 + (n % size == 1)))  # never a whole number of batches of two or three
    if len(odd) % size == 0:
        odd = Subset(data, range(len(odd) - 1))
    loaders: list[Callable[[], Any]] = [
        lambda: DataLoader(data, size, sampler=WeightedRandomSampler([1.0] * n, n)),
        lambda: DataLoader(data, size, sampler=WeightedRandomSampler([1.0] * n, n, replacement=False)),
        lambda: DataLoader(data, size, sampler=RandomSampler(data, replacement=True)),
        lambda: DataLoader(data, size, sampler=RandomSampler(data, num_samples=n - 1)),
        lambda: DataLoader(data, size, sampler=DistributedSampler(data, 2, int(rng.integers(2)))),
        lambda: DataLoader(data, size, sampler=Shifting(list(range(n)))),
        lambda: DataLoader(data, batch_sampler=Batches(SequentialSampler(data), size, drop_last=False)),
        lambda: DataLoader(odd, size, shuffle=bool(rng.integers(2)), drop_last=True),
        lambda: DataLoader(data, batch_size=None),
        lambda: Reading(data, size),
    ]
    try:
        rs.Neural(nn.Linear(FEATURES, 2), [people[0], loaders[kind]()])
    except rs.InputError as error:
        if not str(error).startswith("users[1] is a "):
            raise AssertionError(str(error)) from error
        return "refused"
    raise AssertionError(f"loader {kind} was taken")


def buffers_of_a_loop(seed: int) -> str:
    """Batches of users of any size: models and batch norm's buffers as a plain training loop leaves them."""
    _, _, people, rng = federation(seed, fewest=3)
    people = [(x, torch.from_numpy(rng.integers(0, CLASSES, len(x)))) for x, _ in people]
    size = int(rng.integers(2, 9))
    if any(len(y) % size == 1 for _, y in people):
        size = max(len(y) for _, y in people)
    if any(len(y) % size == 1 for _, y in people):
        return "right"
    model = (normed if rng.integers(2) else averaging)().to(DOUBLE)
    streams = bool(rng.integers(2))
    problem = rs.Neural(model, [Rows(x, y) if streams else (x, y) for x, y in people])
    epochs, rounds = int(rng.integers(1, 3)), 2
    run = rs.solve(problem, rs.fedavg(0.1, local=rs.GradientSteps(epochs, batch=size)), rounds=rounds, seed=seed)
    w, own = problem.start, [copy.deepcopy(model).train() for _ in people]
    counts = torch.tensor([len(y) for _, y in people])
    for t in range(rounds):
        ends = [w] * len(people)
        for epoch in range(epochs):
            for rows, mask in batches(counts, size, seed, t, np.arange(len(people)), epoch):
                for i, (x, y) in enumerate(people):
                    mine = rows[i][mask[i]]
                    if len(mine):
                        own[i] = put(own[i], ends[i])
                        own[i].zero_grad()
                        F.cross_entropy(own[i](x[mine]), y[mine]).backward()
                        ends[i] = ends[i] - 0.1 * torch.cat([p.grad.flatten() for p in own[i].parameters()])
        w = sum(ends) / len(ends)  # type: ignore[assignment]
    check_close(run.model, w, "model")
    for i, module in enumerate(own):
        for (name, found), (_, wanted) in zip(
            run.personal_module(i).named_buffers(), module.named_buffers(), strict=True
        ):
            check_close(found.to(DOUBLE), wanted.to(DOUBLE), f"user {i}'s {name}")
    return "right"


class Tagging(nn.Module):
    """Scores (n, classes, places)."""

    def __init__(self) -> None:
        super().__init__()
        self.end = nn.Linear(FEATURES, CLASSES * 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x).view(len(x), CLASSES, 3)


def figures(seed: int) -> str:
    """Loss and accuracy on data that models are judged by, in any container, users of unequal size."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    tags, ignores = bool(rng.integers(2)), bool(rng.integers(2))
    model = (Tagging() if tags else normed()).to(DOUBLE)
    loss = nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1 if ignores else -100)

    def some(n: int) -> tuple[Tensor, Tensor]:
        y = rng.integers(0, CLASSES, (n, 3) if tags else n)
        y[0] = 0
        return torch.from_numpy(rng.normal(size=(n, FEATURES))), torch.from_numpy(y)

    users, judged = [some(6), some(9)], [some(int(n)) for n in rng.integers(2, 30, 2)]
    problem = rs.Neural(model, users, loss=loss, weights=[1, 3], test=[container(x, y, rng)[0] for x, y in judged])
    last = rs.solve(problem, rs.fedavg(0.1), rounds=1)
    shown, module = last.history.iloc[-1], last.module().eval()
    with torch.no_grad():
        out, y = (torch.cat(part) for part in zip(*((module(x), y) for x, y in judged), strict=True))
        real = y != 1 if ignores else y == y
        right = float((out.argmax(1) == y)[real].double().mean())
    for name, mean in (("test_loss", float(loss(out, y))), ("test_accuracy", right)):
        assert abs(shown[name] - mean) < 1e-9 * (1 + abs(mean)), f"{name} {shown[name]} where {mean} is right"
    return "right"


FAMILIES = [
    Family("users' own rows", own_rows, few=12, many=200),
    Family("loaders that draw rows", drawing_loaders, few=20, many=300),
    Family("users' own buffers", buffers_of_a_loop, few=6, many=120),
    Family("users' own figures", figures, few=10, many=200),
]
