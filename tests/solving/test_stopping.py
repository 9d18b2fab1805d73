"""Stopping by a metric, the best model that is kept, callbacks that look and stop, and progress in a notebook."""

from __future__ import annotations

import math
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import resolvent as rs
from resolvent import runs
from resolvent.runs.recorder import Recorder
from resolvent.solving import progress
from resolvent.solving.prepare import prepare
from resolvent.solving.recording import Entry
from resolvent.solving.stopping import Stop

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.ResolventWarning")
CURVE = [5.0, 4.0, 4.5, 3.9, math.nan, 4.0, 3.95, 3.8, 7.0, 7.0, 7.0, 1.0, 1.0]


def network(seed: int = 0, users: int = 3) -> rs.Neural:
    """A small net with batch norm, its users' data of different means."""
    draw = torch.Generator().manual_seed(seed)
    x = [torch.randn(12, 4, generator=draw) * (i + 1) + i for i in range(3 * users)]
    y = [(xi.sum(1) > xi.sum(1).median()).long() for xi in x]
    data = list(zip(x, y, strict=True))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    return rs.Neural(net, data[:users], validation=data[users : 2 * users], test=data[2 * users :])


SCHEME: Any = rs.fedavg(eta=0.1, local=rs.GradientSteps(2, batch=6))


def hand_loop(values: list[float], patience: int, min_delta: float, up: bool) -> tuple[int, int]:
    """(the best round, the last round)."""
    best, at, waited = math.nan, 0, 0
    for number, value in enumerate(values, 1):
        gain = (value - best) if up else (best - value)
        if not math.isnan(value) and (math.isnan(best) or gain > min_delta):
            best, at, waited = value, number, 0
        else:
            waited += 1
        if waited == patience:
            return at, number
    return at, len(values)


@pytest.mark.parametrize("patience", [1, 2, 3, 5, 20])
@pytest.mark.parametrize(("min_delta", "mode"), [(0.0, None), (0.15, "min"), (0.0, "max"), (0.6, "max")])
def test_a_run_stops_and_keeps_the_best_as_a_hand_loop_does(patience: int, min_delta: float, mode: Any) -> None:
    problem, models = rs.make_logistic(users=2, dim=3, rows=9), []
    curve = iter(CURVE)
    stop = Stop(metric="test_loss", patience=patience, min_delta=min_delta, mode=mode)
    best, last = hand_loop(CURVE, patience, min_delta, mode == "max")
    run = rs.solve(
        described(problem), rs.fedpi(0.1), rounds=len(CURVE), stop=stop, metrics={"loss": lambda *_: next(curve)},
        test=rs.HeldOut(np.ones((1, 3)), [1]), callback=lambda r: models.append(r.model[0]),
    )  # fmt: skip
    assert (run.best.round, run.state.round) == (best, last)
    assert run.best.model.equal(models[best - 1])
    assert run.best.value == CURVE[best - 1]
    assert (run.status, "was best in round" in run.reason) == (
        ("stopped", True) if last < 13 else (run.status, last < 13)
    )


def described(problem: Any) -> Any:
    from solving.test_metrics import Linear

    if not hasattr(problem, "predictor"):
        problem.predictor = Linear("logistic", problem.dim, (-1, 1), True)
    return problem


def test_the_best_model_of_a_network_has_its_buffers_and_survives_a_kill(tmp_path: Path) -> None:
    stop = Stop(metric="validation_loss", patience=50)
    options: Any = {"stop": stop, "validate_every": 2, "metrics": ["auc"]}
    whole = rs.solve(network(), SCHEME, rounds=9, **options)
    assert whole.best.value == whole.history.validation_loss.min()
    assert whole.history["round"][whole.history.validation_loss.notna()].tolist() == [1, 2, 4, 6, 8, 9]

    folder = runs.create(tmp_path, "it", "", {"problem": {}})
    for rounds in (3, 6):  # left after the third round, and taken up by another recorder
        recorder = Recorder(folder, 9)
        prepare(network(), SCHEME, rounds, start=recorder.state, recorder=Leaving(recorder), **options).run()
        recorder.flush()
        recorder.close()
    left = folder.newest()[0]
    assert left is not None
    kept, best = left.kept, whole.best
    assert (kept.round, kept.value) == (best.round, best.value)
    assert kept.model.equal(best.model)
    assert all(kept.memory[name].equal(tensor) for name, tensor in best.memory.items())
    assert len(best.memory) == 3
    rows = folder.history()
    for name in ("value", "validation_loss", "test_auc", "validation_auc"):
        assert rows[name].equals(whole.history[name]), name


class Leaving:
    """A recorder of a run that goes on: no round is the last of it before the ninth."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __call__(self, entry: Entry) -> None:
        row, done = entry.row, entry.number == 9
        due = done or entry.number in (1, 2, 4, 6, 8)
        if row is not None and not due:  # what the last round of a shorter run has beside
            row = {name: math.nan if name.startswith(("test", "vali", "pers")) else v for name, v in row.items()}
        self.recorder(entry._replace(row=row, ending=entry.ending if done else None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.recorder, name)


def test_metrics_of_a_network_are_those_of_its_module() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")

    def area(targets: Any, outputs: Any) -> float:  # what the module gave
        return float(sklearn.roc_auc_score(targets, outputs[:, 1] - outputs[:, 0]))

    run = rs.solve(network(), SCHEME, rounds=3, metrics={"auc": "auc", "area": area, "ll": "log_loss"})
    data = network_test()
    with torch.no_grad():
        scores = [torch.softmax(run.module().eval()(x), 1)[:, 1].double().numpy() for x, _ in data]
    truth = [y.numpy() for _, y in data]
    pooled = sklearn.roc_auc_score(np.concatenate(truth), np.concatenate(scores))
    last, own = run.history.iloc[-1], run.user_metrics
    assert last.test_auc == pytest.approx(pooled)
    assert last.test_area == pytest.approx(pooled)
    assert last.test_ll == pytest.approx(sklearn.log_loss(np.concatenate(truth), np.concatenate(scores)), rel=1e-5)
    assert own.test_auc.tolist() == pytest.approx([sklearn.roc_auc_score(*t) for t in zip(truth, scores, strict=True)])
    plain = rs.solve(network(), SCHEME, rounds=3)
    assert plain.model.equal(run.model)
    assert plain.history.equals(run.history[plain.history.columns].assign(seconds=plain.history.seconds))


def network_test() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    x = [torch.randn(12, 4, generator=draw) * (i + 1) + i for i in range(9)]
    return [(xi, (xi.sum(1) > xi.sum(1).median()).long()) for xi in x][6:]


def test_a_metric_that_a_network_cannot_have_is_refused() -> None:
    with pytest.raises(rs.InputError, match="the network predicts classes"):
        rs.solve(network(), SCHEME, rounds=1, metrics=["rmse"])


# --- callbacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
def test_a_callback_sees_values_and_metrics_and_may_stop(every: int) -> None:
    seen: dict[int, tuple[float, dict[str, float]]] = {}

    def look(happened: rs.Round) -> Any:
        seen[happened.number] = happened.value, happened.metrics
        return rs.STOP if happened.number == 4 else None

    problem = described(rs.make_logistic(users=2, dim=3, rows=9))
    test = rs.HeldOut(np.eye(3), [1, -1, 1])
    run = rs.solve(problem, rs.fedpi(0.1), rounds=20, every=every, test=test, callback=look)
    assert (run.status, run.reason, run.state.round) == ("stopped", "as the callback said", 4)
    plain = rs.solve(problem, rs.fedpi(0.1), rounds=4, test=test)
    assert [value for value, _ in seen.values()] == pytest.approx(plain.history.value.tolist(), rel=1e-12)
    assert [more["test_log_loss"] for _, more in seen.values()] == pytest.approx(plain.history.test_log_loss.tolist())
    assert run.history["round"].tolist() == [1, 2, 3, 4][every - 1 :: every] + ([4] if every == 3 else [])
    assert run.model.equal(plain.model)


def test_a_round_of_the_bare_loop_has_a_value_too() -> None:
    from resolvent.iteration.parts import Parts
    from resolvent.iteration.rounds import rounds
    from resolvent.iteration.state import begin

    problem, scheme = rs.make_least_squares(users=2, dim=3, rows=9), rs.fedpi(0.1)
    from resolvent import engines
    from resolvent.local import choice

    engine = engines.build("in_process", problem, choice.local_operator(scheme, problem), True)
    zero = torch.zeros((1, 3), dtype=torch.float64)
    happened = next(rounds(engine, scheme, begin(zero, zero, 2, scheme, Parts())))
    assert happened.value == pytest.approx(float(problem.weights @ problem.value(happened.model)))
    assert set(happened.metrics) == {"value", "gap"}


@pytest.mark.parametrize("seed", range(6))  # names of checkpoints end in checksums, which differ
def test_what_a_callback_stops_is_stored_as_stopped(tmp_path: Path, seed: int) -> None:
    folder = runs.create(tmp_path, "it", "", {"problem": {}})
    recorder = Recorder(folder, 9)
    problem = rs.make_least_squares(users=2, dim=3, rows=9, seed=seed)
    ends: dict[str, Any] = {"recorder": recorder, "callback": lambda r: stop_at(r, 3 + seed % 2)}
    run = prepare(problem, rs.fedpi(0.1), 9, every=2, **ends).run()
    assert folder.history()["round"].tolist() == run.history["round"].tolist() == [2, 3 + seed % 2]
    assert Recorder(folder, 9).ending == ("stopped", "as the callback said")


def stop_at(happened: rs.Round, number: int) -> Any:
    return rs.STOP if happened.number == number else True  # only rs.STOP stops


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metric": "test_apples"}, "whether more of it is better"),
        ({"metric": "test_loss", "mode": "least"}, "stop.mode"),
        ({"mode": "min"}, "give stop.metric"),
        ({"metric": "value", "patience": 0}, "stop.patience"),
        ({"metric": "value", "min_delta": -1}, "stop.min_delta"),
    ],
)
def test_a_stop_that_makes_no_sense_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(rs.InputError, match=words):
        rs.Stop(**given)


def test_a_metric_that_the_history_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(rs.InputError, match=r"stop.metric is 'test_loss', but the history has value, gap"):
        rs.solve(rs.make_least_squares(users=2, dim=3, rows=9), rs.fedpi(0.1), stop=rs.Stop(metric="test_loss"))


# --- notebooks -------------------------------------------------------------------------------------------------------


def test_a_notebook_has_a_line_of_text_without_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    line = types.SimpleNamespace(update=lambda text: shown.append(repr(text)))
    display: Any = types.ModuleType("IPython.display")
    display.display = lambda text, display_id: line
    notebook: Any = types.ModuleType("IPython")
    notebook.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    for name, module in {"IPython": notebook, "IPython.display": display, "ipykernel": notebook}.items():
        monkeypatch.setitem(sys.modules, name, module)
    for wait in ("PATIENCE", "REFRESH"):
        monkeypatch.setattr(progress, wait, 0.0)
    rs.solve(rs.make_least_squares(users=2, dim=3, rows=9), rs.fedpi(0.1), rounds=3)
    assert [text.split("  ")[1] for text in shown[:-1]] == ["1/3 rounds", "2/3 rounds", "3/3 rounds"]
    assert "residual" in shown[0]
    assert shown[-1] == ""


def test_limits_that_can_never_be_met_are_named() -> None:
    own = rs.Custom(2, 3, value=lambda W: (W**2).sum(1))
    for stop, words in (
        (rs.Stop(certificates=1e-8), r"never met: GradientProx\(\) certifies nothing; give Custom prox= or hessian="),
        (rs.Stop(gap=1e-8), "stop.gap is never met: the minimum is not known; give Custom minimiser="),
    ):
        with pytest.warns(rs.MayNotConverge, match=words):
            rs.solve(own, rs.fedpi(0.1), rounds=2, stop=stop)
    certified = rs.Custom(2, 3, value=lambda W: (W**2).sum(1), hessian=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rs.solve(certified, rs.fedpi(0.1), rounds=99, stop=rs.Stop(certificates=1e-8)).status == "stopped"


def test_every_row_is_logged_as_it_comes(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows: list[dict[str, Any]] = []
    problem = rs.make_least_squares(users=3, dim=2, rows=9)
    run = rs.solve(problem, rs.fedpi(0.01), rounds=6, every=2, log=rows.append)
    assert [row["value"] for row in rows] == run.history["value"].tolist()
    rs.solve(problem, rs.fedpi(0.01), rounds=6, every=2, log=tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board")).Reload().Scalars("value")
    assert [event.step for event in events] == [2, 4, 6]
    with pytest.raises(rs.InputError, match="log is 3, but a folder"):
        rs.solve(problem, rs.fedpi(0.01), rounds=2, log=3)  # type: ignore[arg-type]
