"""What a run reports of networks and of its messages: metrics by scikit-learn on what the module itself answers,
averages by a plain loop of training, and bytes by a tally of every question and answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics as theirs
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters

import resolvent as rs
from hunt.family import Family
from resolvent.engines.in_process import InProcess
from resolvent.local.choice import local_operator
from resolvent.networks.mean_losses import mean_loss

Rng = np.random.Generator
Array = NDArray[Any]
Metrics = dict[str, Any]
DOUBLE = torch.float64
CLOSE = 1e-9
"""A few layers and a mean of less than a hundred rows in float64, with a margin for outputs far from zero."""


# --- metrics of networks ---------------------------------------------------------------------------------------------


class Shaped(nn.Module):
    """A small network whose outputs have a shape of their own."""

    def __init__(self, shape: tuple[int, ...], last: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4, dtype=DOUBLE), nn.Linear(4, int(np.prod(shape)), dtype=DOUBLE)
        self.shape, self.last = shape, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(torch.tanh(self.first(x))).reshape(len(x), *self.shape))


@dataclass(frozen=True)
class Kind:
    """A network's outputs, how its targets are drawn, its loss, and the named metrics of (targets, outputs)."""

    shape: tuple[int, ...]
    target: Callable[[int], Tensor]
    loss: Any
    named: Callable[[Array, Array], Metrics]
    right: Callable[[Array, Array], Array] | None = None
    """Which of the targets that count are predicted, where the network classifies."""
    shown: bool = False
    """Whether accuracy is shown unasked."""
    last: Callable[[Tensor], Tensor] = torch.clone


def of_classes(y: Array, scores: Array, p: Array | None) -> Metrics:
    """Targets (k,) and scores (k, classes), with probabilities where the loss has them."""
    many = scores.shape[1]
    found: Metrics = {"accuracy": theirs.accuracy_score(y, scores.argmax(1)) if len(y) else np.nan}
    areas = [_area(y == c, (scores if p is None else p)[:, c]) for c in range(many)]
    found["auc"] = _area(y == 1, scores[:, 1] - scores[:, 0]) if many == 2 else float(np.mean(areas))
    if p is not None:
        found["log_loss"] = theirs.log_loss(y, p, labels=range(many)) if len(y) else np.nan
    return found


def _area(positive: Array, scores: Array) -> float:
    return float(theirs.roc_auc_score(positive, scores)) if len(set(positive.tolist())) == 2 else np.nan


def _softmax(o: Array) -> Array:
    shares: Array = np.exp(o - o.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def classes(rng: Rng) -> Kind:
    """torch's cross entropy over (n, C), or (n, V, T) and (n, V, H, W) with one target per place; some are ignored."""
    many, rest = int(rng.integers(2, 6)), tuple(int(n) for n in rng.integers(1, 5, rng.integers(0, 3)))
    ignored = int(rng.choice([-100, 1, 77]))
    options: dict[str, Any] = {"ignore_index": ignored}
    if rng.integers(3) == 0:
        options["weight"] = torch.from_numpy(rng.uniform(0.5, 2, many))
    logs = bool(rng.integers(2))
    if not logs and rng.integers(3) == 0:
        options["label_smoothing"] = 0.1
    module, function = (nn.NLLLoss, F.nll_loss) if logs else (nn.CrossEntropyLoss, F.cross_entropy)

    def flat(y: Array, o: Array) -> tuple[Array, Array]:
        scores, y = np.moveaxis(o, 1, -1).reshape(-1, many), y.reshape(-1)
        return y[y != ignored], scores[y != ignored]

    def target(n: int) -> Tensor:
        y = rng.integers(0, many, (n, *rest))
        y[rng.random(y.shape) < 0.2] = ignored if ignored not in range(many) or rng.integers(2) else 0
        y[0] = 0  # every user has a target that counts
        return torch.from_numpy(y)

    return Kind(
        (many, *rest),
        target,
        module(**options) if rng.integers(2) else partial(function, **options),
        lambda y, o: of_classes(*(f := flat(y, o)), _softmax(f[1])),
        lambda y, o: (f := flat(y, o))[1].argmax(1) == f[0],
        shown=True,
        last=partial(F.log_softmax, dim=1) if logs else torch.clone,
    )


def likely_classes(rng: Rng) -> Kind:
    """Cross entropy against probabilities of classes: the likeliest one is the right one."""
    many = int(rng.integers(2, 5))
    return Kind(
        (many,),
        lambda n: torch.from_numpy(rng.dirichlet(np.ones(many), n)),
        F.cross_entropy,
        lambda y, o: of_classes(y.argmax(1), o, _softmax(o)),
        lambda y, o: y.argmax(1) == o.argmax(1),
    )


def two_classes(rng: Rng) -> Kind:
    """One output per row: logits, probabilities or margins, of shape (n,), (n, 1) or several; targets may be soft."""
    shape = [(), (1,), (3,)][rng.integers(3)]
    name, soft = str(rng.choice(["logits", "probabilities", "margin"])), float(rng.choice([0.0, 0.05, 0.3]))
    losses = {
        "logits": [F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss(torch.tensor(2.0, dtype=DOUBLE))],
        "probabilities": [F.binary_cross_entropy, nn.BCELoss()],
        "margin": [F.soft_margin_loss, nn.SoftMarginLoss()],
    }

    def target(n: int) -> Tensor:
        hard = rng.integers(0, 2, (n, *shape))
        return torch.from_numpy(2.0 * hard - 1 if name == "margin" else soft + (1 - 2 * soft) * hard)

    def truth(y: Array) -> Array:
        return (y.reshape(-1) > (0 if name == "margin" else 0.5)).astype(int)

    def named(y: Array, o: Array) -> Metrics:
        p = o.reshape(-1) if name == "probabilities" else 1 / (1 + np.exp(-o.reshape(-1)))
        return {
            "accuracy": theirs.accuracy_score(truth(y), p > 0.5),
            "auc": _area(truth(y) == 1, o.reshape(-1)),
            "log_loss": theirs.log_loss(truth(y), p, labels=[0, 1]),
        }

    def right(y: Array, o: Array) -> Array:
        return (o.reshape(-1) > (0.5 if name == "probabilities" else 0)) == truth(y)

    last = torch.sigmoid if name == "probabilities" else torch.clone
    return Kind(shape, target, losses[name][rng.integers(2)], named, right, last=last)


def own_loss(rng: Rng) -> Kind:
    """A loss of one's own over scores in the last axis, (n, V) or (n, T, V), or in the second, (n, V, T)."""
    V, T = int(rng.integers(2, 5)), int(rng.integers(2, 5))
    places = [(), (T,)][rng.integers(2)]
    second = bool(places) and bool(rng.integers(2))

    def loss(o: Tensor, y: Tensor) -> Tensor:
        scores = o.movedim(1, -1) if second else o
        return F.cross_entropy(-scores.reshape(-1, V), y.reshape(-1))

    def named(y: Array, o: Array) -> Metrics:
        if places and T == V:
            return {}
        scores = (np.moveaxis(o, 1, -1) if second else o).reshape(-1, V)
        return of_classes(y.reshape(-1), scores, None)

    shape = (V, *places) if second else (*places, V)
    return Kind(shape, lambda n: torch.from_numpy(rng.integers(0, V, (n, *places))), loss, named)


def numbers(rng: Rng) -> Kind:
    """A regression, of one number per row or several."""
    shape = [(), (1,), (2,), (2, 3)][rng.integers(4)]
    losses = [F.mse_loss, nn.L1Loss(), nn.HuberLoss(delta=0.5), partial(F.smooth_l1_loss, beta=0.3),
              lambda o, y: (o - y).pow(4).mean()]  # fmt: skip
    return Kind(
        shape,
        lambda n: torch.from_numpy(rng.standard_normal((n, *shape))),
        losses[rng.integers(len(losses))],
        lambda y, o: {"rmse": np.sqrt(theirs.mean_squared_error(y.reshape(-1), o.reshape(-1)))},
    )


KINDS = [classes, classes, likely_classes, two_classes, two_classes, own_loss, numbers]


def network_metrics(seed: int) -> str:
    """Columns, users' metrics, predictions and scores are those of the outputs that plain torch computes."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    kind = KINDS[rng.integers(len(KINDS))](rng)
    m, shared = int(rng.integers(1, 4)), bool(rng.integers(2))

    def rows(n: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(2 * rng.standard_normal((n, 3))), kind.target(n)

    users = [rows(int(rng.integers(1, 9))) for _ in range(m)]
    test = [rows(int(rng.integers(1, 12))) for _ in range(1 if shared else m)]
    weights = rng.uniform(0.5, 2, m)
    module = Shaped(kind.shape, kind.last)
    problem = rs.Neural(module, users, loss=kind.loss, weights=weights, test=test[0] if shared else test)
    seen: list[tuple[Array, Array]] = []

    def own(targets: Array, outputs: Array) -> float:
        seen.append((targets, outputs))
        return float(np.abs(outputs).mean())

    names = list(kind.named(*_answers(module, test)))
    asked: Any = {name: name for name in names} | {"size": own}
    penalty = rs.L2(0.01) if rng.integers(3) == 0 else None
    more: dict[str, Any] = {"average": "ergodic"} if rng.integers(3) == 0 else {}
    run = rs.solve(problem, rs.fedavg(0.3), rounds=int(rng.integers(1, 4)), metrics=asked, penalty=penalty, **more)
    if run.status == "diverged":  # the state that is handed back is not that of the last row
        return "diverged"
    vector_to_parameters(run.model.clone(), module.parameters())
    y, o = _answers(module, test)
    last: Any = run.history.iloc[-1]
    _check_columns(kind, last, names, y, o, [_answers(module, [pair]) for pair in test])
    pooled = seen[-1] if len(test) == 1 else seen[-1 - len(test)]
    assert pooled[0].shape == y.shape, "a metric of one's own sees targets of another shape"
    assert (pooled[0] == y).all(), "a metric of one's own sees other targets"
    assert _same(pooled[1], o), "a metric of one's own does not see what the module gave"
    own_rows: Any = run.user_metrics
    for k, pair in enumerate(test):
        for name, value in kind.named(*_answers(module, [pair])).items():
            assert _same(own_rows[f"test_{name}"].iloc[k], value), f"{name} of user {k}"
    _check_scores(kind, run, test[0], module)
    return "right"


def _answers(module: nn.Module, data: list[tuple[Tensor, Tensor]]) -> tuple[Array, Array]:
    with torch.no_grad():
        return torch.cat([y for _, y in data]).numpy(), torch.cat([module(x) for x, _ in data]).numpy()


def _same(a: Any, b: Any) -> bool:
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=CLOSE, atol=CLOSE, equal_nan=True))


def _check_columns(
    kind: Kind, last: Any, names: list[str], y: Array, o: Array, each: list[tuple[Array, Array]]
) -> None:
    losses = np.array([float(kind.loss(torch.from_numpy(o), torch.from_numpy(y))) for y, o in each])
    rows = np.array([len(y) for y, _ in each])
    torchs = mean_loss(kind.loss) is not None
    loss = float(kind.loss(torch.from_numpy(o), torch.from_numpy(y))) if torchs else rows @ losses / rows.sum()
    assert _same(last.test_loss, loss), f"test_loss {last.test_loss}, not {loss}"
    expected = kind.named(y, o)
    if kind.shown and kind.right is not None:
        expected["accuracy"] = kind.right(y, o).mean()
    elif "accuracy" not in names:
        assert "test_accuracy" not in last, "accuracy is shown unasked"
    for name, value in expected.items():
        assert _same(last[f"test_{name}"], value), f"test_{name} is {last[f'test_{name}']}, not {value}"


def _check_scores(kind: Kind, run: rs.Run, rows: tuple[Tensor, Tensor], module: nn.Module) -> None:
    y, o = _answers(module, [rows])
    if kind.right is not None:
        assert _same(run.score(*rows), kind.right(y, o).mean()), f"a score of {run.score(*rows)}"
    elif "rmse" in kind.named(y, o) and y.size > 1:
        assert _same(run.score(*rows), theirs.r2_score(y.reshape(-1), o.reshape(-1))), f"a score of {run.score(*rows)}"


# --- averages of networks --------------------------------------------------------------------------------------------


def _normed(rng: Rng) -> nn.Module:
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=float(rng.uniform(0.1, 0.9))), nn.Tanh(), nn.Linear(4, 3)]
    return nn.Sequential(*layers[: 1 if rng.integers(2) else 4]).to(DOUBLE)


def _trained(
    module: nn.Module, users: list[tuple[Tensor, Tensor]], lam: Array, eta: float, steps: int
) -> Iterator[tuple[Tensor, nn.Module]]:
    """Federated averaging as one writes it: each user's module has buffers of its own. The model after each round, and
    a module with the weighted mean of the users' buffers."""
    own = [deepcopy(module).train() for _ in users]
    w = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    while True:
        answers = []
        for user, (x, y) in zip(own, users, strict=True):
            vector_to_parameters(w.clone(), user.parameters())
            descent = torch.optim.SGD(user.parameters(), lr=eta)
            for _ in range(steps):
                descent.zero_grad()
                F.cross_entropy(user(x), y).backward()
                descent.step()
            answers.append(torch.cat([p.detach().reshape(-1) for p in user.parameters()]))
        w = sum((a * answer for a, answer in zip(lam, answers, strict=True)), torch.zeros_like(w))
        met = deepcopy(module).eval()
        for name, buffer in met.named_buffers():
            if buffer.is_floating_point():
                buffer.copy_(sum(a * user.get_buffer(name) for a, user in zip(lam, own, strict=True)))
        yield w, met


def averaged_networks(seed: int) -> str:
    """Losses, the best model and the module of a run with an average are those of a loop that averages."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    m, rounds, steps, every = (int(rng.integers(1, high)) for high in (4, 9, 4, 4))
    kind, eta = str(rng.choice(["ergodic", "suffix"])), float(rng.uniform(0.05, 0.5))
    module, weights = _normed(rng), rng.uniform(0.5, 2, m)
    lam = weights / weights.sum()

    def rows(n: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(rng.standard_normal((n, 3)) + 1), torch.from_numpy(rng.integers(0, 3, n))

    users, test = [[rows(int(rng.integers(2, 9))) for _ in range(m)] for _ in range(2)]
    problem = rs.Neural(module, users, weights=weights, test=test)
    stop = rs.Stop(metric=str(rng.choice(["test_loss", "value"])), patience=99)
    run = rs.solve(
        problem, rs.fedavg(eta, steps=steps), rounds=rounds, average=kind, every=every, stop=stop,
        metrics=["accuracy"],
    )  # fmt: skip

    def losses(met: nn.Module, w: Tensor, data: list[tuple[Tensor, Tensor]]) -> float:
        vector_to_parameters(w.clone(), met.parameters())
        with torch.no_grad():
            each = [float(F.cross_entropy(met(x), y)) for x, y in data]
        return float(np.average(each, weights=[len(y) for _, y in test] if data is test else weights))

    models: list[Tensor] = []
    best, table = (np.inf, 0), run.history
    for t, (w, met) in zip(range(rounds), _trained(module, users, lam, eta, steps), strict=False):
        begun = 0 if kind == "ergodic" else 2 ** int(np.log2(t + 1)) - 1
        models.append(w)
        mean = torch.stack(models[begun:]).mean(0)
        expected = {
            "value": losses(met, w, users),
            "average_value": losses(met, mean, users),
            "test_loss": losses(met, mean, test),
        }
        row = table[table["round"] == t + 1]
        if not len(row):
            continue
        for name, value in expected.items():
            found = row[name].iloc[0]
            assert np.isclose(found, value, rtol=1e-7, atol=1e-9), f"{name} of round {t + 1} is {found}, not {value}"
        metric = expected["test_loss" if stop.metric == "test_loss" else "average_value"]
        best = min(best, (metric, t + 1), key=lambda pair: pair[0])
    kept: Any = run.best
    assert np.isclose(kept.value, best[0], rtol=1e-7), f"the best is {kept}, not {best}"
    at_best = losses(run.module(best=True).eval(), kept.model, test if stop.metric == "test_loss" else users)
    assert np.isclose(at_best, best[0], rtol=1e-7), f"the best module has {at_best}, not {best[0]}"
    last = losses(run.module().eval(), run.model, test)
    assert np.isclose(last, expected["test_loss"], rtol=1e-7), f"the module has {last}"
    return "right"


# --- bytes -----------------------------------------------------------------------------------------------------------


class Counting(InProcess):
    """Notes how many users each round asks, and in which rounds for their curvature or in a new metric."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: dict[int, int] = {}
        self.curved: list[int] = []
        self.metrics: list[tuple[int, Any]] = []
        self._curved = False

    def _note(self, t: int, users: int) -> None:
        self.asked[t] = users
        self.curved += [t] * self._curved
        self._curved = False

    def local(self, ask: Any, u: Tensor, memory: Any) -> Any:
        self._note(ask.t, len(u))
        if ask.metric is not None and not (self.metrics and self.metrics[-1][1] is ask.metric):
            self.metrics.append((ask.t, ask.metric))
        return super().local(ask, u, memory)

    def local_mean(self, ask: Any, u: Tensor, memory: Any) -> Any:
        self._note(ask.t, self.facts.users if ask.who is None else len(ask.who))
        return super().local_mean(ask, u, memory)

    def curvature(self, w: Tensor) -> Any:
        self._curved = True
        return super().curvature(w)


def _arrivals(who: rs.Stragglers, seed: int, users: int, rounds: int) -> list[int]:
    """How many answers come in each round, by a clock of our own."""
    clock, due, counts = 0.0, {}, []  # type: float, dict[int, float], list[int]
    for t in range(rounds):
        takes = who.seconds(seed, t, users)
        due |= {i: clock + takes[i] for i in range(users) if i not in due}
        clock = sorted(due.values())[max(int(np.ceil(who.close * users)), 1) - 1]
        arrived = [i for i, when in due.items() if when <= clock]
        for i in arrived:
            del due[i]
        counts.append(len(arrived))
    return counts


def message_bytes(seed: int) -> str:
    """Each row has the bytes of all messages since the row before it, whoever takes part, and wherever a run is cut."""
    rng = np.random.default_rng(seed)
    m, d, rounds = int(rng.integers(1, 7)), int(rng.integers(1, 5)), int(rng.integers(1, 25))
    problem = rs.Quadratics(10 ** rng.uniform(-1, 1, m), rng.standard_normal((m, d)))
    absent: Any = str(rng.choice(["hold", "paper"]))
    who: Any = [
        None,
        rs.Bernoulli(float(rng.uniform(0.1, 0.9)), absent),
        rs.FixedSize(int(rng.integers(1, m + 1))),
        rs.Trace(rng.random((rounds, m)) < 0.4),
        rs.Stragglers(float(rng.uniform(1, 9)), close=float(rng.uniform(0.1, 1))),
    ][rng.integers(5)]
    paper = getattr(who, "absent", "hold") == "paper"
    auto = bool(rng.integers(2)) and not paper
    scheme: Any = rs.fedpi("auto") if auto else [rs.fedpi(0.3), rs.fedavg(0.05), rs.fedprox(0.5)][rng.integers(3)]
    options: dict[str, Any] = {"every": int(rng.integers(1, 7)), "participation": who, "seed": int(rng.integers(99))}
    if rng.integers(3) == 0:
        options["validate_every"] = int(rng.integers(1, 5))
    if rng.integers(3) == 0:
        options["stop"] = rs.Stop(residual=0.0)
    if rng.integers(3) == 0:
        options["average"] = "suffix"
    engine = Counting(problem, local_operator(scheme, problem))
    run = rs.solve(None, scheme, rounds=rounds, engine=engine, **options)
    done = run.state.round
    down = np.array([engine.asked.get(t, 0) for t in range(done)])
    up = np.array(_arrivals(who, options["seed"], m, done)) if isinstance(who, rs.Stragglers) else down.copy()
    for t in engine.curved:  # a gradient and half of a Hessian from each user, asked at one model
        down[t] += m
        up[t] += m * (d + 3) / 2
    for t, _ in engine.metrics:  # d eigenvectors and d eigenvalues to each user
        down[t] += m * (d + 1)
    table: Any = run.history
    for name, vectors in (("bytes_up", up), ("bytes_down", down)):
        so_far = np.cumsum(vectors * 8.0 * d)[table["round"].to_numpy() - 1]
        found = table[name].cumsum().to_numpy()
        assert (found == so_far).all(), f"{name} so far {found.tolist()}, not {so_far.tolist()}"
    if run.status == "finished" and done > 1:
        cut = int(rng.integers(1, done))
        whole, part = (rs.solve(problem, scheme, rounds=n, **options) for n in (done, cut))
        if part.status == "finished" and whole.status == "finished":
            again = part.resume(rounds=done).history.drop(columns="seconds")
            assert again.equals(whole.history.drop(columns="seconds")), f"another history when resumed after {cut}"
    return "right"


FAMILIES = [
    Family("network_metrics", network_metrics, few=12, many=350),
    Family("averaged_networks", averaged_networks, few=6, many=180),
    Family("message_bytes", message_bytes, few=12, many=400),
]
