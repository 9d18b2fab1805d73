"""Runs saved from Python are folders of the run store: opened again, also in a fresh process, they predict the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import resolvent as rs
from command_line import resolvent
from resolvent.runs import Folder, sums

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.ResolventWarning")
SCHEME: Any = rs.fedavg(eta=0.1, local=rs.GradientSteps(2, batch=8))


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3)
    )


def images(seed: int, n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Bars in one of three places, brighter for each further user."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=draw)
    x = torch.randn(n, 1, 8, 8, generator=draw)
    for k, label in enumerate(y.tolist()):
        x[k, 0, 2 * label + 1] += 3
    return x * (seed + 1) + 4 * seed, y


def trained(rounds: int = 6, **more: Any) -> rs.Run:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = net()
    problem = rs.Neural(model, [images(k) for k in range(3)], test=[images(k + 10) for k in range(3)])
    return rs.solve(problem, SCHEME, rounds=rounds, **more)


def table() -> Any:
    pd = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    n = 120
    age, sex = random.normal(50, 10, n), random.choice(["f", "m"], n)
    ill = np.where(random.random(n) < 1 / (1 + np.exp(-(age - 50) / 5)), "yes", "no")
    age[3] = np.nan
    return pd.DataFrame({"age": age, "sex": sex, "bmi": random.normal(25, 4, n), "ward": random.choice(list("uvw"), n),
                         "ill": ill})  # fmt: skip


def fitted(kind: str = "auto") -> tuple[rs.Run, Any]:
    frame = table()
    made = rs.data.from_frame(frame, "ward", "ill", impute={"age": "mean"}, standardise=True, test=0.2)
    run = rs.solve(made.problem(kind), rs.fedpi("auto"), rounds=20, test=made.held_out)
    return run, frame


# --- the same run ----------------------------------------------------------------------------------------------------


def test_a_saved_run_is_opened_as_it_was(tmp_path: Path) -> None:
    run, frame = fitted()
    assert run.save(tmp_path / "it") == tmp_path / "it"
    for back in (rs.open(tmp_path / "it"), rs.Run.load(str(tmp_path / "it"))):
        assert (repr(back), back.status, back.reason, back.seed) == (repr(run), run.status, run.reason, run.seed)
        assert back.model.equal(run.model)
        assert back.personal.equal(run.personal)
        assert back.history.equals(run.history)
        assert run.user_metrics is not None
        assert back.user_metrics is not None
        assert run.user_metrics.equals(back.user_metrics)
        assert back.config == run.config
        assert (back.predict(frame) == run.predict(frame)).all()
        assert back.score(frame, frame["ill"]) == run.score(frame, frame["ill"]) > 0.6
        assert back.probabilities(frame).tobytes() == run.probabilities(frame).tobytes()
        assert set(back.predict(frame)) == {"yes", "no"}
    assert not Folder(tmp_path / "it").verify()
    said = resolvent("show", tmp_path / "it", "--format", "json")
    assert (said.code, said.json["status"]) == (0, "finished")
    assert resolvent("ls", "--out", tmp_path).code == 0


def test_personal_models_of_users_who_share_a_vector_are_saved(tmp_path: Path) -> None:
    run = rs.solve(rs.make_logistic(users=3, dim=4, rows=9), rs.fedprox(0.1), rounds=5)
    assert run.state.together
    assert rs.open(run.save(tmp_path / "it")).personal.equal(run.personal)


@pytest.mark.filterwarnings("error::resolvent.ResolventWarning")
@pytest.mark.parametrize("network", [False, True])
def test_a_run_that_goes_on_with_another_scheme_or_other_data_says_so(network: bool, tmp_path: Path) -> None:
    def made(seed: int, users: int = 3) -> Any:
        if not network:
            return rs.make_logistic(users=users, dim=4, rows=9, seed=seed)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return rs.Neural(net(), [images(seed + k) for k in range(users)])

    def quietly(ask: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ask()

    scheme, other = rs.fedprox(0.01), rs.fedprox(0.02)
    run = quietly(lambda: rs.solve(made(0), scheme, rounds=2))
    back = rs.open(run.save(tmp_path / "it"))
    whole = quietly(lambda: rs.solve(made(0), scheme, rounds=3))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert back.resume(made(0), scheme, rounds=3).model.equal(whole.model)
        assert run.resume(rounds=3).model.equal(whole.model)
    assert not [each for each in said if "another one" in str(each.message)]
    for problem, its, sentence in (
        (made(0), other, "goes on as another one: eta is 0.02, and was 0.01"),
        (made(0), rs.fedavg(0.01), "goes on as another one: its scheme is FedAvg, and was FedProx"),
        (made(7), scheme, "goes on as another one: its objective is .* on these data, and was"),
    ):
        with pytest.warns(rs.ResolventWarning, match=sentence):
            back.resume(problem, its, rounds=3)
    with pytest.raises(rs.InputError, match="a State of 3 users, but the problem has 2"):
        quietly(lambda: back.resume(made(0, users=2), scheme, rounds=3))


def test_saving_replaces_a_run_and_nothing_else(tmp_path: Path) -> None:
    run = rs.solve(rs.make_least_squares(users=2, dim=3, rows=9), rs.fedpi(0.02), rounds=3)
    run.save(tmp_path / "it")
    run.resume(rounds=5).save(tmp_path / "it")
    assert rs.open(tmp_path / "it").state.round == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(rs.InputError, match="holds other files than a run's"):
        run.save(tmp_path / "mine")
    with pytest.raises(rs.InputError, match="is a file"):
        run.save(tmp_path / "mine" / "thesis.tex")
    (tmp_path / "empty").mkdir()
    assert rs.open(run.save(tmp_path / "empty")).model.equal(run.model)


# --- networks --------------------------------------------------------------------------------------------------------


def test_a_network_is_rebuilt_with_its_buffers(tmp_path: Path) -> None:
    run = trained(stop=rs.Stop(metric="test_loss", patience=99))
    back = rs.open(run.save(tmp_path / "it"))
    x, y = images(11)
    made = back.module(into=net())
    for name, tensor in run.module().state_dict().items():
        assert made.state_dict()[name].equal(tensor), name
    assert run.history.test_accuracy.iloc[-1] == pytest.approx(
        np.mean([float((made.eval()(a).argmax(1) == b).float().mean()) for a, b in map(images, (10, 11, 12))])
    )
    own = back.personal_module(1, into=net())
    for name, tensor in run.personal_module(1).state_dict().items():
        assert own.state_dict()[name].equal(tensor), name
    best = back.module(into=net(), best=True)
    for name, tensor in run.module(best=True).state_dict().items():
        assert best.state_dict()[name].equal(tensor), name
    with pytest.raises(rs.InputError, match=r"run\.module\(into=MyNetwork\(\)\)"):
        back.module()
    with pytest.raises(rs.InputError, match="another network"):
        back.module(into=nn.Linear(27, 3))
    assert run.score(x, y) == pytest.approx(float((run.predict(x) == y.numpy()).mean()))
    assert run.probabilities(x).sum(1) == pytest.approx(np.ones(len(x)))
    with pytest.raises(rs.InputError, match="rows of shape"):
        run.predict(x[:, :, :4])


def test_what_was_not_trained_is_stored_too(tmp_path: Path) -> None:
    model = net()
    for p in model[0].parameters():
        p.requires_grad_(False)
    run = rs.solve(rs.Neural(model, [images(k) for k in range(2)]), SCHEME, rounds=2)
    back = rs.open(run.save(tmp_path / "it")).module(into=net())
    for name, tensor in run.module().state_dict().items():
        assert back.state_dict()[name].equal(tensor), name


FRESH = """
import sys, numpy as np, pandas as pd, torch, resolvent as rs
from torch import nn
table, network, frame, x = sys.argv[1:]
sys.path.insert(0, "")
from runs.test_opening import net
opened = rs.open(table)
print(",".join(opened.predict(pd.read_pickle(frame))))
images = torch.from_numpy(np.load(x))
print(rs.open(network).module(into=net()).eval()(images).argmax(1).tolist())
"""


def test_a_fresh_process_predicts_the_same(tmp_path: Path) -> None:
    run, frame = fitted()
    network, (x, _) = trained(), images(11)
    frame.to_pickle(tmp_path / "frame.pickle")
    np.save(tmp_path / "x.npy", x.numpy())
    arguments = [run.save(tmp_path / "a"), network.save(tmp_path / "b"), tmp_path / "frame.pickle", tmp_path / "x.npy"]
    said = subprocess.run(
        [sys.executable, "-c", FRESH, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert said.returncode == 0, said.stderr
    labels, classes = said.stdout.splitlines()
    assert labels.split(",") == run.predict(frame).tolist()
    assert json.loads(classes) == network.predict(x).tolist()


# --- going on --------------------------------------------------------------------------------------------------------


def test_a_saved_run_goes_on_to_the_bits_of_a_longer_one(tmp_path: Path) -> None:
    options: Any = {"participation": 0.5, "anderson": 2, "seed": 3, "every": 2}
    problem, scheme = rs.make_logistic(users=4, dim=3, rows=9), rs.fedpi(0.1)
    run, whole = (rs.solve(problem, scheme, rounds=n, **options) for n in (7, 15))
    back = rs.open(run.save(tmp_path / "it"))
    for more in (run.resume(rounds=15), back.resume(problem, scheme, rounds=15, **options)):
        assert more.state.u.equal(whole.state.u)
        assert more.model.equal(whole.model)
        columns = [name for name in whole.history if name != "seconds"]
        assert more.history[columns].equals(whole.history[columns])
    refused: dict[str, dict[str, Any]] = {
        "problem is None": {},
        "scheme is None": {"problem": problem},
        "has done 7": {"problem": problem, "scheme": scheme, "rounds": 7},
    }
    for words, given in refused.items():
        with pytest.raises(rs.InputError, match=words):
            back.resume(**{"rounds": 15} | given)
    for command in ("resume", "fork"):
        said = resolvent(command, tmp_path / "it", "--rounds", 15)
        assert (said.code, "saved from Python" in said.err) == (2, True)


def test_a_run_that_stops_by_a_metric_goes_on_waiting(tmp_path: Path) -> None:
    stop = rs.Stop(metric="test_loss", patience=3)
    whole = trained(40, stop=stop)
    assert whole.status == "stopped"
    first = trained(whole.state.round - 1, stop=stop)
    more = first.resume(rounds=40)
    assert (more.state.round, more.status, more.reason) == (whole.state.round, whole.status, whole.reason)
    assert (more.best.round, more.best.value) == (whole.best.round, whole.best.value)
    assert more.best.model.equal(whole.best.model)


@pytest.mark.parametrize("patience", [None, 3])
def test_metrics_of_the_last_round_of_a_first_part_do_not_count_in_a_longer_run(
    tmp_path: Path, patience: int | None
) -> None:
    """They were computed only because the run ended there: the row, the best model and the wait are as if not."""
    draw = np.random.default_rng(1)
    problem, scheme = rs.make_logistic(users=4, dim=3, rows=9), rs.fedpi(0.3)
    options: Any = {"test": rs.HeldOut(draw.normal(size=(40, 3)), np.sign(draw.normal(size=40))), "every": 2}
    options |= {"validate_every": 3, "metrics": ["log_loss"], "seed": 1, "participation": 0.5}
    options["stop"] = None if patience is None else rs.Stop(metric="test_log_loss", patience=patience)
    whole = rs.solve(problem, scheme, rounds=16, **options)
    columns = [name for name in whole.history if name != "seconds"]
    for rounds in (1, 5, 6, 8):
        run = rs.solve(problem, scheme, rounds=rounds, **options)
        if run.status == "stopped":  # by its last evaluation
            continue
        back = rs.open(run.save(tmp_path / str(rounds)))
        for more in (run.resume(rounds=16), back.resume(problem, scheme, rounds=16, **options)):
            assert more.history[columns].equals(whole.history[columns])
            assert (more.status, more.reason) == (whole.status, whole.reason)
            assert more.model.equal(whole.model)
            assert patience is None or more.best.model.equal(whole.best.model)


# --- damage and malice -----------------------------------------------------------------------------------------------


def rewritten(folder: Path, change: Any) -> Path:
    """The folder with about.json changed, and checksums to match."""
    about = json.loads((folder / "about.json").read_text())
    change(about)
    content = {"config.toml": (folder / "config.toml").read_bytes(), "about.json": json.dumps(about).encode()}
    (folder / "about.json").write_bytes(content["about.json"])
    (folder / sums.FILE).write_bytes(sums.listing(content))
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a["model"].update(predictor=3), "the predictor cannot be read"),
        (lambda a: a["model"].update(predictor={}), "the predictor cannot be read"),
        (lambda a: a["model"]["predictor"].update(loss="rm -rf"), "the predictor cannot be read"),
        (lambda a: a["model"]["predictor"].update(features="many"), "the predictor cannot be read"),
        (lambda a: a["model"]["predictor"].update(features=7), "do not have the same features"),
        (lambda a: a["model"].update(preparation=[]), "the preparation cannot be read"),
        (lambda a: a["model"]["preparation"].update(columns=[{"name": "age"}]), "the preparation cannot be read"),
        (lambda a: a["model"]["preparation"].pop("target"), "the preparation cannot be read"),
        (lambda a: a.update(model="m"), "the model is no object"),
        (lambda a: a["model"].update(kind=[1]), "kind is no text"),
        (lambda a: a["model"].update(network={"parameters": [["w", [-1]]]}), "the network cannot be read"),
        (lambda a: a["model"].update(network=[]), "the network cannot be read"),
    ],
)
def test_a_damaged_description_is_refused_in_a_sentence(tmp_path: Path, change: Any, words: str) -> None:
    run, _ = saved()
    folder = rewritten(run.save(tmp_path / "it"), change)
    with pytest.raises(rs.InputError, match=words) as caught:
        rs.open(folder)
    assert "\n" not in str(caught.value)
    said = resolvent("export", folder, "--to", tmp_path / "model.npz")
    assert (said.code, words in said.err, "Traceback" in said.err) == (2, True, False)


@cache
def saved() -> tuple[rs.Run, Any]:
    return fitted()


@pytest.mark.parametrize("file", ["about.json", "config.toml", "metrics.csv"])
def test_a_file_that_was_changed_is_named(tmp_path: Path, file: str) -> None:
    folder = saved()[0].save(tmp_path / "it")
    (folder / file).write_text((folder / file).read_text() + "\n")
    with pytest.raises(rs.InputError, match=file):
        rs.open(folder)


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a field without end"])
def test_metrics_of_users_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    """A run without held-out data has no such file, and no checksum of it."""
    rs.solve(rs.make_least_squares(users=2, dim=2, rows=3), rs.fedpi(0.1), rounds=2).save(tmp_path / "run")
    path = tmp_path / "run" / "users.csv"
    path.mkdir() if kind == "a folder" else os.mkfifo(path) if kind == "a pipe" else path.write_text("x" * 200_000)
    with pytest.raises(rs.errors.DamagedRun, match=r"users\.csv cannot be read"):
        rs.open(tmp_path / "run")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", __file__):
        with pytest.raises(rs.InputError, match="the folder of a run is needed"):
            rs.open(path)
