"""Models in files for other programs: names, classes and scaling go with them, and ONNX predicts what the run does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from command_line import SMALL, resolvent
from resolvent.problems.linear.predictor import CLASSIFIERS, REGRESSIONS, Predictor
from resolvent.solving.description import Description
from runs.test_opening import fitted, images, net, trained

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.ResolventWarning")


def inferred(content: Path | bytes, inputs: dict[str, Any]) -> dict[str, Any]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(content if isinstance(content, bytes) else str(content))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def numbers(values: Any) -> Any:
    return np.array(values.tolist() if hasattr(values, "tolist") else values)


@pytest.mark.parametrize("form", ["safetensors", "pt", "npz", "json"])
def test_a_linear_model_has_its_names_classes_and_scaling(tmp_path: Path, form: str) -> None:
    run, frame = fitted()
    file = run.export(tmp_path / f"model.{form}")
    found: dict[str, Any]
    if form == "safetensors":
        from safetensors import safe_open

        with safe_open(file, framework="np") as opened:
            found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            found |= json.loads(opened.metadata()["resolvent"])
    elif form == "pt":
        found = torch.load(file, weights_only=True)
    elif form == "npz":
        loaded = np.load(file)  # allow_pickle is False
        found = {name: loaded[name] for name in loaded.files}
        found |= json.loads(str(loaded["about"]))
    else:
        found = json.loads(file.read_text())
    assert list(found["features"]) == ["age", "sex=m", "bmi"]
    assert list(found["classes"]) == ["no", "yes"]
    prepared = rs.data.Preparation.from_dict(found["preparation"])
    mean, scale, w, shift = (numbers(found[name]) for name in ("mean", "scale", "coefficients", "intercept"))
    x = replace(prepared, scaling=None).transform(frame)
    scores = (x - mean) / scale @ w + shift
    assert np.array_equal(np.where(scores > 0, "yes", "no"), run.predict(frame))
    assert Predictor.from_dict(found["predictor"]) == run.description.predictor


def test_a_network_is_a_state_dict(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run = trained(3)
    for found in (
        torch.load(run.export(tmp_path / "m.pt"), weights_only=True),
        load_file(run.export(tmp_path / "m.safetensors")),
    ):
        made = net()
        made.load_state_dict(found)
        x, _ = images(11)
        with torch.no_grad():
            assert np.array_equal(made.eval()(x).argmax(1).numpy(), run.predict(x))
    graph = rs.open(run.save(tmp_path / "it")).export(tmp_path / "m.onnx", into=net())
    outputs = inferred(graph, {"X": x.numpy()})["output"]
    with torch.no_grad():
        assert outputs == pytest.approx(run.module().eval()(x).numpy(), rel=1e-4, abs=1e-5)


def test_onnx_takes_raw_rows_of_a_table(tmp_path: Path) -> None:
    run, frame = fitted()
    frame = frame.head(9).copy()
    columns: Any = {name: frame[[name]].to_numpy(float).copy() for name in ("age", "bmi")}
    columns["sex"] = frame[["sex"]].to_numpy(object).copy()
    graph = run.export(tmp_path / "model.onnx")
    found = inferred(graph, columns)
    assert np.array_equal(found["prediction"], run.predict(frame))
    assert found["probabilities"] == pytest.approx(run.probabilities(frame), abs=1e-14)
    columns["sex"][2], columns["bmi"][4] = "unheard of", np.nan  # what the run refuses
    found = inferred(graph, columns)
    assert [found["prediction"][k] for k in (2, 4)] == ["", ""]
    assert np.isnan(found["decision"][[2, 4]]).all()
    assert found["prediction"][0] == run.predict(frame)[0]


def test_onnx_of_odd_columns(tmp_path: Path) -> None:
    """Names like those inside the graph, one category alone, and text that is missing: empty."""
    pd = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"n0": random.choice(["a", "b", "c"], 30), "c0": random.standard_normal(30), "_n1": "only"})
    frame.loc[[3, 7], "n0"] = None
    labelled = frame.assign(user=np.arange(30) % 3, y=random.standard_normal(30))
    made = rs.data.from_frame(labelled, user="user", target="y", impute="most_frequent")
    run = rs.solve(made.problem(), "fedpi", rounds=5)
    columns: Any = {"c0": frame[["c0"]].to_numpy(float)}
    columns |= {name: frame[[name]].fillna("").to_numpy(object).copy() for name in ("n0", "_n1")}
    graph = run.export(tmp_path / "model.onnx")
    assert inferred(graph, columns)["prediction"] == pytest.approx(run.predict(frame), abs=1e-12)
    columns["_n1"][5] = "another"
    assert np.flatnonzero(np.isnan(inferred(graph, columns)["prediction"])).tolist() == [5]
    taken = labelled.rename(columns={"c0": "prediction"})
    run = rs.solve(rs.data.from_frame(taken, user="user", target="y", impute="most_frequent").problem(), "fedpi", 5)
    with pytest.raises(rs.InputError, match="'prediction' has the name of an output"):
        run.export(tmp_path / "model.onnx")


def test_classes_that_nobody_trains_on_do_not_move_the_others(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    random = np.random.default_rng(1)
    kind = random.choice(["a", "b", "c"], 60)
    frame = pd.DataFrame({"x": random.normal(size=60) + (kind == "c"), "z": random.normal(size=60), "kind": kind})
    frame["user"] = np.where(kind == "b", "held", random.choice(["u", "v"], 60))
    made = rs.data.from_frame(frame, "user", "kind", test_users=["held"], kind="softmax")
    run = rs.solve(made.problem(), rs.fedpi("auto"), rounds=10)
    assert set(run.predict(frame)) <= {"a", "c"}
    found = inferred(run.export(tmp_path / "model.onnx"), {"X": frame[["x", "z"]].to_numpy(float)})
    assert np.array_equal(found["prediction"], run.predict(frame))
    assert json.loads(run.export(tmp_path / "model.json").read_text())["classes"] == ["a", "c"]


@pytest.mark.parametrize("loss", [*CLASSIFIERS, *REGRESSIONS])
@pytest.mark.parametrize("intercept", [False, True])
def test_onnx_predicts_what_the_predictor_does(loss: str, intercept: bool) -> None:
    from resolvent.experiment import onnx_graphs

    pytest.importorskip("onnx")
    random = np.random.default_rng(len(loss))
    labels = {"logistic": (-1, 1), "squared-hinge": (-1, 1), "softmax": ("a", "b", "c")}
    p = Predictor(loss, 4, intercept, labels.get(loss), {"q": 0.3} if loss == "quantile" else {})
    model = torch.from_numpy(random.normal(size=p.scores * (4 + intercept)))
    X = random.normal(size=(20, 4))
    found = inferred(onnx_graphs.linear(Description("it", p), model), {"X": X})
    predicted = p.predict(model, X)
    if loss in CLASSIFIERS:
        assert np.array_equal(found["prediction"], predicted)
    else:
        assert found["prediction"] == pytest.approx(predicted, rel=1e-13)
    if loss in ("logistic", "softmax"):
        assert found["probabilities"] == pytest.approx(p.probabilities(model, X), abs=1e-14)


def test_the_command_line_exports_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolvent("run", "logistic", *SMALL, "--eta", "0.1", "--rounds", 3, "--quiet").code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    for form in ("safetensors", "pt", "onnx", "npz", "json"):
        said = resolvent("export", "--to", form)
        assert (said.code, said.err) == (0, f"{folder.name}.{form}: 1 run\n")
    assert len(json.loads((tmp_path / f"{folder.name}.json").read_text())["coefficients"]) == 5
    run = rs.open(folder)
    X = np.random.default_rng(0).normal(size=(9, 5))
    assert np.array_equal(inferred(tmp_path / f"{folder.name}.onnx", {"X": X})["prediction"], run.predict(X))
    resolvent("export", "--to", "metrics.json")
    assert len(json.loads((tmp_path / "metrics.json").read_text())) == 3


TASK = """
import torch, resolvent as rs
from runs.test_opening import images, net

def task():
    torch.manual_seed(1)
    return rs.Neural(net(), [images(k) for k in range(3)], test=[images(k + 10) for k in range(3)])
"""


def test_a_network_of_the_command_line_keeps_its_batch_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("my.py").write_text(TASK)
    training = ("--algorithm", "fedavg", "--eta", "0.1", "--local-steps", 2, "--batch", 8, "--rounds", 6)
    assert resolvent("run", "my.py:task", *training, "--quiet").code == 0
    assert resolvent("export", "--to", "model.pt").code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    opened, made = rs.open(folder), net()
    made.load_state_dict(torch.load("model.pt", weights_only=True))
    right = []
    for k in (10, 11, 12):
        x, y = images(k)
        with torch.no_grad():
            right.append(float((made.eval()(x).argmax(1) == y).float().mean()))
            assert made(x).equal(opened.module().eval()(x))  # this user made the run, so its function is called
    assert np.mean(right) == pytest.approx(opened.history.test_accuracy.iloc[-1])
    (folder / "seal").unlink()
    with pytest.raises(rs.InputError, match="was not made by this user"):
        rs.open(folder).module()
    assert rs.open(folder).module(into=net()).state_dict()["1.running_mean"].equal(made.state_dict()["1.running_mean"])


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    run = rs.solve(rs.plus_minus(), rs.fedpi(0.1), rounds=2)
    with pytest.raises(rs.InputError, match="predicts nothing"):
        run.export(tmp_path / "m.onnx")
    with pytest.raises(rs.InputError, match="cannot be written as exe"):
        run.export(tmp_path / "m.exe")
    assert np.load(run.export(tmp_path / "m.npz"))["model"].shape == (1,)
    network = rs.open(trained(1).save(tmp_path / "it"))
    with pytest.raises(rs.InputError, match="into=MyNetwork"):
        network.export(tmp_path / "m.onnx")
