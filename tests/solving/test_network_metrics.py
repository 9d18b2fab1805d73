"""Metrics of networks against scikit-learn on what the module itself answers, and what is refused or left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import resolvent as rs

sklearn = pytest.importorskip("sklearn.metrics")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
Rows = tuple[Tensor, Tensor]


class Sequences(nn.Module):
    """Scores of V classes at each of T places, (n, T, V), or with `second` (n, V, T)."""

    def __init__(self, T: int, V: int, second: bool = False) -> None:
        super().__init__()
        torch.manual_seed(T * V)
        self.scores, self.shape, self.second = nn.Linear(3, T * V).double(), (T, V), second

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(x).unflatten(1, self.shape)
        return scores.transpose(1, 2) if self.second else scores


def last_axis(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def features(seed: int, n: int = 20) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def solved(module: nn.Module, target: Callable[[Tensor], Tensor], loss: Any, rounds: int = 3, **more: Any) -> Any:
    """A run on three users with test data of their own, and the rows of those."""
    users, test = ([(x, target(x)) for x in map(features, seeds)] for seeds in ((0, 1, 2), (7, 8, 9)))
    problem = rs.Neural(module, users, loss=loss, test=test)
    return rs.solve(problem, rs.fedavg(0.5, steps=5), rounds=rounds, **more), test


def answers(run: rs.Run, test: list[Rows]) -> tuple[Any, Any]:
    with torch.no_grad():
        outputs = torch.cat([run.module().eval()(x) for x, _ in test]).numpy()
    return torch.cat([y for _, y in test]).numpy(), outputs


def right(targets: Any, outputs: Any) -> float:
    """As one writes it for scores in the last axis."""
    return float((outputs.argmax(-1) == targets).mean())


# --- axes of classes -------------------------------------------------------------------------------------------------


def places(T: int, V: int) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.stack([(x[:, t % 3] > t / 5 - 0.3).long() * (t % V) for t in range(T)], 1)


@pytest.mark.parametrize(("T", "V"), [(4, 4), (5, 3)])
def test_a_metric_of_ones_own_gets_what_the_module_gave(T: int, V: int) -> None:
    def perplexity(targets: Any, outputs: Any) -> float:
        assert outputs.shape == (*targets.shape, V)
        return math.exp(float(last_axis(torch.from_numpy(outputs), torch.from_numpy(targets))))

    run, test = solved(Sequences(T, V), places(T, V), last_axis, metrics={"perplexity": perplexity, "right": right})
    last = run.history.iloc[-1]
    assert last.test_perplexity == pytest.approx(math.exp(last.test_loss), rel=1e-12)
    assert last.test_right == pytest.approx(right(*answers(run, test)), rel=1e-12)
    assert "test_accuracy" not in run.history  # what a loss of one's own takes as a class is not known
    assert run.user_metrics.test_right.tolist() == pytest.approx([right(*answers(run, [rows])) for rows in test])


@pytest.mark.parametrize("second", [False, True])
def test_named_metrics_find_the_axis_that_has_the_classes(second: bool) -> None:
    T, V = 5, 3
    loss = (lambda o, y: 2 * F.cross_entropy(o, y)) if second else last_axis
    run, test = solved(Sequences(T, V, second), places(T, V), loss, metrics=["accuracy"])
    y, o = answers(run, test)
    best = o.argmax(1 if second else 2)
    assert run.history.test_accuracy.iloc[-1] == pytest.approx(sklearn.accuracy_score(y.ravel(), best.ravel()))


def test_an_axis_that_cannot_be_told_is_refused() -> None:
    with pytest.raises(rs.InputError, match=r"do not tell where the classes are: give a function of \(targets, outp"):
        solved(Sequences(4, 4), places(4, 4), last_axis, metrics=["accuracy"])
    with pytest.raises(rs.InputError, match="what a loss of your own takes as probabilities is not known"):
        solved(Sequences(5, 3), places(5, 3), last_axis, metrics=["log_loss"])


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)])
def test_torchs_loss_has_its_classes_in_the_second_axis_and_ignores_targets(weight: Tensor | None) -> None:
    ignore = 1
    loss = partial(F.cross_entropy, ignore_index=ignore, weight=weight)
    module = Sequences(4, 4, second=True)
    run, test = solved(module, places(4, 4), loss, metrics={"log_loss": "log_loss", "rows": lambda y, o: y.size})
    y, o = answers(run, test)
    real, p = y != ignore, np.moveaxis(np.exp(o) / np.exp(o).sum(1, keepdims=True), 1, -1)
    last = run.history.iloc[-1]
    assert last.test_log_loss == pytest.approx(sklearn.log_loss(y[real], p[real], labels=range(4)), rel=1e-9)
    assert last.test_rows == y.size  # one's own see ignored targets too
    assert last.test_accuracy == pytest.approx(sklearn.accuracy_score(y[real], o.argmax(1)[real]))
    whole = loss(torch.from_numpy(o), torch.from_numpy(y))
    assert last.test_loss == pytest.approx(float(whole))
    y, o = answers(run, test[:1])
    assert run.score(*test[0]) == pytest.approx(np.mean(o.argmax(1)[y != ignore] == y[y != ignore]))


@pytest.mark.parametrize("weights", [None, [1.0, 5.0, 2.0]])
@pytest.mark.parametrize("convex", [False, True])
def test_all_columns_are_of_the_rows_of_all_users_together(convex: bool, weights: Any) -> None:
    """Users have 4, 30 and 11 test rows, and other weights in the objective."""
    rows = [(features(7 + n, n), features(8 + n, n)) for n in (4, 30, 11)]
    test = [(x, (x[:, 0] + noise[:, 0] > 0).long()) for x, noise in rows]
    x, y = (torch.cat(part) for part in zip(*test, strict=True))
    names = ["accuracy", "log_loss", "auc", "f1"]
    own = dict(zip(names, names, strict=True)) | {"size": lambda truth, scores: truth.size}
    if convex:
        A, b = [x for x, _ in test[::-1]], [2.0 * y - 1 for _, y in test[::-1]]
        problem: Any = rs.Logistic(A, b, weights=weights)
        held_out = rs.HeldOut([x for x, _ in test], [2.0 * y - 1 for _, y in test])
        run = rs.solve(problem, rs.fedavg(0.1), rounds=2, test=held_out, metrics=own)
        p = torch.sigmoid(x @ run.model).numpy()
    else:
        problem = rs.Neural(nn.Linear(3, 2).double(), test[::-1], weights=weights, test=test)
        run = rs.solve(problem, rs.fedavg(0.1), rounds=2, metrics=own)
        p = answers(run, test)[1]
        p = np.exp(p[:, 1]) / np.exp(p).sum(1)
    last, truth = run.history.iloc[-1], y.numpy()
    assert last.test_accuracy == pytest.approx(sklearn.accuracy_score(truth, p > 0.5))
    assert last.test_log_loss == pytest.approx(sklearn.log_loss(truth, p))
    assert last.test_auc == pytest.approx(sklearn.roc_auc_score(truth, p))
    assert last.test_f1 == pytest.approx(sklearn.f1_score(truth, p > 0.5))
    assert last.test_size == len(truth)
    if not convex:
        assert last.test_loss == pytest.approx(last.test_log_loss, rel=1e-12)
        plain = rs.solve(problem, rs.fedavg(0.1), rounds=2).history.iloc[-1]
        assert plain.test_accuracy == last.test_accuracy
        assert plain.test_loss == last.test_loss


def test_metrics_without_held_out_rows_are_refused() -> None:
    x = features(0)
    problem = rs.Neural(nn.Linear(3, 2).double(), [(x, (x[:, 0] > 0).long())])
    for metrics in (["accuracy"], {"mine": lambda y, o: 1.0}):
        with pytest.raises(rs.InputError, match=r"metrics is .*held-out data are needed .*rs.Neural\(\.\.\., test"):
            rs.solve(problem, rs.fedavg(0.1), rounds=1, metrics=metrics)


def test_a_function_takes_the_place_of_the_figure_of_its_name() -> None:
    run, _ = solved(nn.Linear(3, 2).double(), lambda x: (x[:, 0] > 0).long(), F.cross_entropy,
                    metrics={"accuracy": lambda y, o: 7.0})  # fmt: skip
    assert run.history.test_accuracy.tolist() == [7.0] * 3


# --- two classes -----------------------------------------------------------------------------------------------------


def one_output(shape: str) -> nn.Module:
    torch.manual_seed(3)
    layers: list[nn.Module] = [nn.Linear(3, 1)]
    return nn.Sequential(*layers, *[nn.Flatten(0)] * (shape == "(n,)")).double()


@pytest.mark.parametrize("shape", ["(n,)", "(n, 1)"])
@pytest.mark.parametrize("soft", [0.0, 0.05])
@pytest.mark.parametrize("name", ["logits", "probabilities", "margin"])
def test_metrics_and_scores_of_two_classes(name: str, soft: float, shape: str, tmp_path: Path) -> None:
    def target(x: Tensor) -> Tensor:
        hard = (x.sum(1) + 0.3 * x[:, 0] ** 3 > 0).double()
        y = 2 * hard - 1 if name == "margin" else hard * (1 - 2 * soft) + soft
        return y if shape == "(n,)" else y[:, None]

    module = one_output(shape)
    if name == "probabilities":
        module.append(nn.Sigmoid())  # type: ignore[operator]
    losses = {"logits": nn.BCEWithLogitsLoss(), "probabilities": nn.BCELoss(), "margin": nn.SoftMarginLoss()}
    run, test = solved(module, target, losses[name], metrics=["accuracy", "auc", "log_loss"])
    y, o = (part.ravel() for part in answers(run, test))
    p = o if name == "probabilities" else 1 / (1 + np.exp(-o))
    truth, last = y > 0 if name == "margin" else y > 0.5, run.history.iloc[-1]
    accuracy = sklearn.accuracy_score(truth, p > 0.5)
    assert 0.5 < accuracy < 1
    assert last.test_accuracy == pytest.approx(accuracy)
    assert last.test_auc == pytest.approx(sklearn.roc_auc_score(truth, p))
    assert last.test_log_loss == pytest.approx(sklearn.log_loss(truth, p), rel=1e-9)
    x, own = test[1]
    hits = np.mean((run.predict(x).ravel() > 0) == (own.numpy().ravel() > (0 if name == "margin" else 0.5)))
    assert run.score(x, own) == pytest.approx(hits)
    assert set(np.unique(run.predict(x))) <= ({-1, 1} if name == "margin" else {0, 1})
    assert run.predict(x).shape == tuple(own.shape)
    assert run.probabilities(x)[:, 1] == pytest.approx(p[20:40])
    back = rs.open(run.save(tmp_path / "it"))
    assert back.module(into=module) is module
    assert "test_accuracy" not in solved(one_output(shape), target, losses["logits"] if name != "margin" else
                                         losses[name], rounds=1)[0].history  # fmt: skip


def test_certain_probabilities_are_no_reason_for_nan() -> None:
    def saturated(o: Tensor) -> Tensor:
        return torch.sigmoid(1e4 * o)

    class Sure(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = one_output("(n,)")

        def forward(self, x: Tensor) -> Tensor:
            return saturated(self.logits(x))

    run, test = solved(Sure(), lambda x: (x[:, 0] > 0).double(), nn.BCELoss(), rounds=1, metrics=["accuracy", "auc"])
    y, o = answers(run, test)
    assert set(np.unique(o)) >= {0.0, 1.0}
    assert run.history.test_accuracy.iloc[-1] == pytest.approx(sklearn.accuracy_score(y, o > 0.5))
    assert run.history.test_auc.iloc[-1] == pytest.approx(sklearn.roc_auc_score(y, o))


# --- losses of one's own ---------------------------------------------------------------------------------------------


def nearest(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose classes are those of the smallest output."""
    return F.cross_entropy(-outputs, targets)


def test_accuracy_is_shown_unasked_only_where_the_loss_is_known_to_be_of_class_scores() -> None:
    def target(x: Tensor) -> Tensor:
        return (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

    torch.manual_seed(0)
    module = nn.Linear(3, 3).double()
    own, _ = solved(module, target, nearest, rounds=6)
    assert "test_accuracy" not in own.history
    assert "test_loss" in own.history
    asked, test = solved(module, target, nearest, rounds=6, metrics={"accuracy": lambda y, o: right(y, -o)})
    y, o = answers(asked, test)
    assert asked.history.test_accuracy.iloc[-1] == right(y, -o) > right(y, o)
    for loss in (F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1), partial(F.cross_entropy)):
        assert "test_accuracy" in solved(module, target, loss, rounds=1)[0].history
    with pytest.warns(rs.ResolventWarning, match="a sum over rows"):
        summed = solved(module, target, nn.CrossEntropyLoss(reduction="sum"), rounds=1)[0]
    assert "test_accuracy" in summed.history


def test_a_score_that_would_mean_nothing_is_refused() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets)

    run, test = solved(one_output("(n,)"), lambda x: (x[:, 0] > 0).double(), loss)
    with pytest.raises(rs.InputError, match="trained by a loss of your own"):
        run.score(*test[0])
    line, test = solved(one_output("(n,)"), lambda x: x[:, 0] + 0.1 * x[:, 1] ** 2, lambda o, y: ((o - y) ** 2).mean())
    y, o = answers(line, test[:1])
    assert line.score(*test[0]) == pytest.approx(sklearn.r2_score(y, o))
    with pytest.raises(rs.InputError, match="the network predicts numbers"):
        solved(one_output("(n,)"), lambda x: x[:, 0], F.mse_loss, metrics=["accuracy"])


# --- beside a penalty ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", [None, rs.Stragglers(3.0)])
@pytest.mark.parametrize("engine", ["in_process", "debug"])
def test_metrics_and_a_cadence_beside_a_penalty(engine: str, participation: Any) -> None:
    run, test = solved(
        nn.Linear(3, 2).double(), lambda x: (x[:, 0] > 0).long(), F.cross_entropy, rounds=5, penalty=rs.L2(0.1),
        metrics={"right": right}, validate_every=2, engine=engine, participation=participation,
    )  # fmt: skip
    assert run.history["round"][run.history.test_right.notna()].tolist() == [1, 2, 4, 5]
    assert run.history.test_right.iloc[-1] == pytest.approx(right(*answers(run, test)))


def test_a_run_that_goes_on_has_the_same_metrics_at_its_cadence() -> None:
    def target(x: Tensor) -> Tensor:
        return (x[:, 0] > 0).long()

    torch.manual_seed(0)
    module, more = nn.Linear(3, 2).double(), {"validate_every": 3, "metrics": {"right": right}}
    whole, part = (solved(module, target, F.cross_entropy, rounds=n, **more)[0] for n in (8, 4))
    assert whole.history.personal_test_loss.isna().tolist() == [False, True, False, True, True, False, True, False]
    again = part.resume(rounds=8)
    assert again.history.drop(columns="seconds").equals(whole.history.drop(columns="seconds"))
