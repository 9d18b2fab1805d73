"""The API over real runs: what it answers, and what it refuses with a clean 4xx."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest

import resolvent as rs
from command_line import strictly
from resolvent.runs import folders
from resolvent.ui.jobs import Jobs
from resolvent.ui.store import Store, Unknown

from .conftest import TOKEN, connected, make, serving

OUTSIDE = ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "%2fetc%2fpasswd", "a%2f..%2fb", "....%2f%2f",
           ".hidden", "%00", "x%00y", "nothing", "🙂", "%ff%fe", "a" * 500, "CON", "~", "*",
           "%3f"]  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("place", ["runs/{}", "runs/{}/metrics", "runs/{}/participation", "runs/{}/losses"])
def test_ids_that_are_no_run(client: httpx.Client, name: str, place: str) -> None:
    answer = client.get(f"/api/{place.format(name)}")
    assert 400 <= answer.status_code < 500
    assert "root:" not in answer.text


@pytest.mark.parametrize("verb", ["stop", "resume"])
@pytest.mark.parametrize("name", ["..", "nothing", "%2e%2e%2f%2e%2e"])
def test_verbs_on_what_is_no_run(client: httpx.Client, name: str, verb: str) -> None:
    assert 400 <= client.post(f"/api/runs/{name}/{verb}", json={}).status_code < 500


@pytest.mark.parametrize("name", ["../server.py", "..%2fserver.py", "%2e%2e/server.py", "runs.html", "nothing.js", ""])
def test_static_files_are_those_of_the_page(client: httpx.Client, name: str) -> None:
    assert client.get(f"/static/{name}").status_code in (404, 405)


def test_what_a_link_leads_to_is_not_read(stored: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    out.mkdir()
    run = folders(stored)[0]
    shutil.copytree(run.path, tmp_path / "elsewhere")
    (out / "linked").symlink_to(tmp_path / "elsewhere")
    shutil.copytree(run.path, out / run.id)
    secret = tmp_path / "secret.csv"
    secret.write_text("round,secret\n1,42\n")
    (out / run.id / "metrics.csv").unlink()
    (out / run.id / "metrics.csv").symlink_to(secret)
    with serving(out) as place, connected(place) as client:
        (row,) = client.get("/api/runs").json()["runs"]
        assert (row["id"], row["status"]) == (run.id, "damaged")
        assert client.get("/api/runs/linked").status_code == 404
        for part in ("", "/metrics", "/participation", "/losses"):
            answer = client.get(f"/api/runs/{run.id}{part}")
            assert answer.status_code in (200, 400)
            assert "secret" not in answer.text or "symbolic" in answer.text
            assert "42" not in json.dumps(answer.json().get("columns", {}))
        assert client.get("/api/download/csv", params={"run": run.id}).status_code == 400


@pytest.mark.parametrize("file", ["config.toml", "about.json", "checkpoints/*.safetensors"])
def test_no_answer_is_made_of_what_a_link_leads_to(stored: Path, tmp_path: Path, file: str) -> None:
    out, run = tmp_path / "runs", folders(stored)[0]
    shutil.copytree(run.path, out / run.id)
    for number, path in enumerate((out / run.id).glob(file)):
        path.rename(tmp_path / str(number))
        path.symlink_to(tmp_path / str(number))
    with serving(out) as place, connected(place) as client:
        for part in ("metrics", "participation", "losses"):
            answer = client.get(f"/api/runs/{run.id}/{part}")
            assert answer.status_code == 400
            assert "symbolic link" in answer.json()["detail"]


@pytest.mark.parametrize(
    "config",
    [
        {"problem": {"name": "logistic", "data": "/etc/passwd"}},
        {"problem": {"name": "mnist", "folder": "/"}},
        {"problem": {"name": "/tmp/x.py:f"}},
        {"problem": {"name": "nothing"}},
        {"problem": {"users": "many"}},
        {"run": {"rounds": 1.5}},
        {"nothing": {"a": 1}},
        {"scheme": {"eta": 1e999}},
        {"scheme": {"algorithm": "\ud800"}, "run": {"nothing": "\ud800"}},
        {"run": {"rounds": 10**400}},
        {"run": {"threads": 10**6}},
        {"run": {"threads": 0}},
    ],
)
def test_configurations_that_are_not_started(
    client: httpx.Client, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs, "_start", lambda *_: pytest.fail("it was started"))
    body = json.dumps({"config": config})
    answer = client.post("/api/runs", content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.json()["detail"]


def test_a_configuration_becomes_a_command(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[str]] = []
    job = {"id": "a", "run": None, "status": "running", "words": ""}
    monkeypatch.setattr(Jobs, "_start", lambda self, arguments, run=None: (told.append(arguments), job)[1])
    config = {"problem": {"name": "logistic", "users": 3}, "scheme": {"eta": "auto"}, "anderson": {"safeguard": False}}
    assert client.post("/api/runs", json={"config": config}).status_code == 202
    assert told[0][:8] == ["run", "logistic", "--set", "problem.users=3", "--set", 'scheme.eta="auto"', "--set",
                           "anderson.safeguard=false"]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"eta": 1e999}', b'{"eta": NaN}', b'{"rounds": 1' + b"0" * 400 + b"}", b"\xff\xfe",
     b'{"problem": "\\ud800"}', b'{"eta": "' + b"9" * 5000 + b'"}', b"[" * 60_000, b'{"nothing": 1}', b'{"gamma": -1}',
     b'{"problem": "sets", "forward": true}'],
)  # fmt: skip
def test_setups_that_are_not_run(client: httpx.Client, body: bytes) -> None:
    answer = client.post("/api/explore", content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500


def test_bodies_are_bounded(client: httpx.Client) -> None:
    """A body without a length too, though what comes would be taken if it were shorter."""

    def without_length(parts: int) -> Any:
        yield b"{}"
        for _ in range(parts):
            yield b" " * 10_000

    def status(content: Any) -> int:
        return client.post("/api/explore", content=content, headers={"content-type": "application/json"}).status_code

    assert status(b"{}" + b" " * 70_000) == 413
    assert [status(without_length(parts)) for parts in (0, 6, 7, 40)] == [200, 200, 422, 422]


@pytest.mark.parametrize("after", [-1, 2**40, 10**400, "x", ""])
def test_numbers_of_rows_that_are_none(client: httpx.Client, after: Any) -> None:
    run = client.get("/api/runs").json()["runs"][0]["id"]
    assert client.get(f"/api/runs/{run}/metrics?after={after}").status_code == 422


def test_foreign_hosts_and_origins_and_every_header(client: httpx.Client) -> None:
    for path in ("/", "/api/runs", "/static/style.css", "/nothing"):
        assert client.get(path, headers={"host": "evil.example"}).status_code == 421
        assert client.get(path, headers={"origin": "http://evil.example"}).status_code == 403
        answer = client.get(path)
        policy = answer.headers["content-security-policy"].split("; ")
        closed = {"default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"}
        assert closed | {"script-src 'self'", "connect-src 'self'"} <= set(policy)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
    assert "server" not in client.get("/").headers or "uvicorn" in client.get("/").headers["server"]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_is_exchanged_for_a_cookie(host: str, stored: Path) -> None:
    with serving(stored, host) as place, httpx.Client(base_url=place) as client:
        for path in ("/", "/api/runs", "/static/shared.js", "/api/stream"):
            assert client.get(path).status_code == 401
            assert client.get(path, params={"token": "wrong"}).status_code == 401
        answer = client.get("/run", params={"token": TOKEN, "id": "a b"})
        assert answer.status_code == 200
        assert 'content="0; url=/run?id=a+b"' in answer.text
        assert TOKEN not in answer.text + str(answer.headers)
        assert (answer.headers["referrer-policy"], answer.headers["cache-control"]) == ("no-referrer", "no-store")
        assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in answer.headers["set-cookie"].split(";")}
        assert client.get("/api/runs").status_code == 200  # by the cookie
        for path in ("//evil.example/", "/%5Cevil.example/", "/%22%3E%3Cscript%3E/"):
            answer = client.get(place + path, params={"token": TOKEN})
            assert re.search(r'content="0; url=/[a-z%][^"<>/\\]*/"', answer.text)


PLACES = ("runs/{}", "runs/{}/metrics", "runs/{}/participation", "runs/{}/losses", "download/csv?run={}",
          "download/png?run={}")  # fmt: skip


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_run_that_is_deleted_meanwhile(when: str, stored: Path, tmp_path: Path) -> None:
    """Before the request, though nobody has looked since; or once the request has found it."""
    first, found = folders(stored)[0], Store.folder
    with serving(tmp_path) as place, connected(place) as client, pytest.MonkeyPatch.context() as patch:

        def asked(verb: str, path: str, body: Any = None) -> None:
            patch.undo()
            run = Path(shutil.copytree(first.path, tmp_path / first.id))
            assert len(client.get("/api/runs").json()["runs"]) == 1
            if when == "before":
                shutil.rmtree(run)
            else:
                patch.setattr(Store, "folder", lambda *told: (found(*told), shutil.rmtree(run, ignore_errors=True))[0])
            answer = client.request(verb, f"/api/{path.format(first.id)}", json=body)
            shutil.rmtree(run, ignore_errors=True)
            wanted = (404,) if when == "before" else (200, 400, 404, 409)
            assert answer.status_code in wanted, f"{path}: {answer.status_code} {answer.text}"

        for path in PLACES:
            asked("GET", path)
        for verb in ("stop", "resume") if when == "before" else ("stop",):  # the process that resumes would say so
            asked("POST", f"runs/{{}}/{verb}", {})
        asked("POST", "compare", {"runs": [first.id]})


def test_a_run_that_somebody_else_finds_deleted(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, run = Store(tmp_path), folders(stored)[0].id
    shutil.copytree(stored / run, tmp_path / run)
    store.refresh()
    monkeypatch.setattr(store, "_look", lambda *told: store._entries.clear())
    with pytest.raises(Unknown):
        store.row(run)


# --- what it answers -------------------------------------------------------------------------------------------------


def test_rows_of_runs_are_those_on_disk(client: httpx.Client, stored: Path) -> None:
    rows = {row["id"]: row for row in strictly(client.get("/api/runs").text)["runs"]}
    there = folders(stored)
    assert rows.keys() == {run.id for run in there}
    for run in there:
        row, last = rows[run.id], run.row()
        assert (row["status"], row["title"]) == (run.status, run.about["title"])
        assert (row["round"], row["gap"], row["value"]) == (last["round"], last["gap"], last["value"])
        told = strictly(client.get(f"/api/runs/{run.id}").text)
        assert told["explanation"] == run.about["explanation"]["words"]
        assert told["config"] == run.config
        assert told["toml"] == (run.path / "config.toml").read_text()
        history = run.history()
        columns = client.get(f"/api/runs/{run.id}/metrics").json()["columns"]
        assert columns["gap"] == history["gap"].tolist()
        assert columns["bytes"] == (history["bytes_up"] + history["bytes_down"]).cumsum().tolist()
        assert client.get(f"/api/runs/{run.id}/metrics?after=10").json()["columns"]["round"][0] == 11


def test_losses_are_those_of_the_model(client: httpx.Client, stored: Path) -> None:
    from resolvent.experiment.tasks import task

    run = folders(stored)[0]
    from resolvent import config as configs

    problem = task(configs.read(run.config).problem, run.config["run"]["seed"]).problem
    model = run.model()
    assert model is not None
    losses = client.get(f"/api/runs/{run.id}/losses").json()["losses"]
    assert losses == problem.value(model.unsqueeze(0)).tolist()


def test_users_of_a_table_are_told_by_name(tmp_path: Path) -> None:
    patients = rs.data.hospitals()
    patients.to_csv(tmp_path / "patients.csv", index=False)
    told = {"name": "logistic", "data": str(tmp_path / "patients.csv"), "user_column": "hospital", "target": "ill"}
    out = tmp_path / "runs"
    run = make(out, "fedpi", problem=told | {"test": 0.2})
    table = rs.open(run.path).user_metrics
    assert table is not None
    with serving(out) as place, connected(place) as client:
        found = client.get(f"/api/runs/{run.id}/losses").json()
        assert (found["names"], found["losses"]) == (list(table.index), table["test_log_loss"].tolist())
        assert (found["what"], found["round"]) == ("test log loss", 15)
        assert set(found["names"]) == set(patients["hospital"])
        (run.path / "users.csv").rename(tmp_path / "secret.csv")
        (run.path / "users.csv").symlink_to(tmp_path / "secret.csv")
        hidden = client.get(f"/api/runs/{run.id}/losses")
        assert hidden.status_code == 400
        assert "users.csv is a symbolic link" in hidden.json()["detail"]


def test_seeds_are_one_curve_and_differences_are_told(client: httpx.Client, stored: Path) -> None:
    ids = [run.id for run in folders(stored)]
    made = client.post("/api/compare", json={"runs": ids}).json()
    assert sorted(len(curve["runs"]) for curve in made["curves"]) == [1, 1, 1, 3]
    different = {each["key"]: each["values"] for each in made["different"]}
    assert different["scheme.algorithm"] == ["fedavg", "fedprox", "fedpi", "fedpi", "fedpi", "fedpi"]
    assert different["participation.stragglers"] == [None, None, None, None, None, 5.0]
    assert "problem.rows" not in different
    assert client.post("/api/compare", json={"runs": [*ids, "nothing"]}).status_code == 404
    assert client.post("/api/compare", json={"runs": []}).status_code == 422


@pytest.mark.parametrize("kind", ["csv", "parquet", "png", "svg", "html"])
def test_downloads(client: httpx.Client, stored: Path, kind: str) -> None:
    ids = [run.id for run in folders(stored)][:3]
    answer = client.get(f"/api/download/{kind}", params={"run": ids, "x": "bytes", "y": "residual"})
    assert answer.status_code == 200
    assert answer.headers["content-disposition"].startswith("attachment")
    if kind in ("csv", "parquet"):
        frame = (pd.read_csv if kind == "csv" else pd.read_parquet)(io.BytesIO(answer.content))
        assert list(frame["run"].unique()) == ids
        assert len(frame) == 45
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype html>"}
    assert answer.content.startswith(begins.get(kind, b""))
    assert client.get(f"/api/download/{kind}", params={"run": "nothing"}).status_code == 404
    assert client.get(f"/api/download/{kind}").status_code == 422


def test_a_picture_of_a_column_that_is_not_there(client: httpx.Client, stored: Path) -> None:
    run = folders(stored)[0].id
    assert client.get("/api/download/png", params={"run": run, "y": "<b>"}).status_code == 400


def test_the_form_has_every_key_but_those_of_files(client: httpx.Client) -> None:
    told = {part["name"]: part for part in client.get("/api/form").json()["sections"]}
    fields = {
        f"{name}.{each['name']}.{field['key']}": field
        for name, part in told.items() for each in part["parts"] for field in each["fields"]
    }  # fmt: skip
    assert {"scheme..algorithm", "scheme..eta", "anderson..memory", "stop..gap", "run..rounds"} <= fields.keys()
    problems = {each["name"]: {field["key"] for field in each["fields"]} for each in told["problem"]["parts"]}
    assert {"users", "dim", "rows", "shift"} <= problems["least-squares"]
    assert not {"data", "folder", "sha256"} & set().union(*problems.values())
    assert fields["scheme..eta"]["words"].startswith("The step size")
    assert (
        "slower the slowest user" in fields["participation.stragglers.stragglers"]["words"]
    )  # from the class's source
    eta = fields["scheme..eta"]
    assert (eta["types"], eta["choices"], eta["optional"]) == (["float"], ["auto"], True)
    assert (told["accelerate"]["by"], told["accelerate"]["usual"]) == ("kind", "none")
    assert {"none", "anderson", "momentum"} <= {each["name"] for each in told["accelerate"]["parts"]}


def test_a_run_that_has_ended_is_not_resumed_nor_stopped(client: httpx.Client, stored: Path) -> None:
    run = folders(stored)[0].id
    assert client.post(f"/api/runs/{run}/resume", json={}).status_code == 409
    assert client.post(f"/api/runs/{run}/stop", json={}).status_code == 409


def test_a_process_that_does_not_hold_the_lock_is_not_stopped(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from resolvent.runs import lock

    run = make(tmp_path, rounds=2)
    killed: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda *told: killed.append(told))
    with (
        serving(tmp_path) as place, connected(place) as client, lock.held(run.path),
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other,  # holds no lock of ours
    ):  # fmt: skip
        holder = json.loads((run.path / "holder.json").read_text())
        (run.path / "holder.json").write_text(json.dumps(holder | {"pid": other.pid}))
        answer = client.post(f"/api/runs/{run.id}/stop", json={})
        assert answer.status_code == 409
        assert "cannot stop" in answer.json()["detail"]
        (run.path / "holder.json").write_text(json.dumps(holder))
        assert client.post(f"/api/runs/{run.id}/stop", json={}).status_code == 202  # this process does hold it
        other.communicate(b"\n")
    assert [pid for pid, _ in killed] == [os.getpid()]


def test_the_paper_is_listed_and_judged(client: httpx.Client) -> None:
    told = client.get("/api/paper").json()
    panels = {(figure["name"], panel["key"]): panel for figure in told["figures"] for panel in figure["panels"]}
    assert panels["fig-extrap", "left"]["there"] == 0
    assert panels["fig-proxprojection", "only"]["runs"] == 0
    made = client.get("/api/paper/fig-proxprojection/only").json()
    assert [verdict["said"] for verdict in made["verdicts"]] == ["holds", "holds"]
    picture = client.get("/api/paper/fig-proxprojection/only/picture")
    assert picture.content.startswith(b"\x89PNG")
    assert client.get("/api/paper/fig-extrap/left").json()["missing"] > 0
    assert client.get("/api/paper/fig-extrap/left/picture").status_code == 404
    assert client.get("/api/paper/nothing/only").status_code == 404
    assert client.get("/api/paper/..%2f..%2fx/only/picture").status_code == 404
