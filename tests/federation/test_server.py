"""The server's side of a run, into the run store; projects, keys and what is refused. No network is needed."""

from __future__ import annotations

import json
import math
import resource
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch

import resolvent as rs
from command_line import resolvent
from engines.fake_grid import FakeGrid
from engines.test_flower_claims import Claiming
from resolvent import runs
from resolvent.engines.flower import packets
from resolvent.engines.flower.node import Node
from resolvent.errors import InputError, RoundFailed, StorageError
from resolvent.federation import control, demo, doctor, export, keys, running, server_app, template, up
from resolvent.federation.project import Project, Server, opened
from resolvent.federation.recording import OneBehind
from resolvent.solving.recording import Entry, MonitorState
from siege.forge import files_of

pytest.importorskip("flwr")

NAMES = ("site-0", "site-1", "site-2")
SIZES = (12, 20, 16)


def rows(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    X = rng.standard_normal((SIZES[number], 3)) + 0.3 * number
    return X, np.where(X @ [1.0, -1.0, 0.5] + rng.standard_normal(len(X)) > 0, 1.0, -1.0)


def user(number: int) -> rs.Logistic:
    X, y = rows(number)
    return rs.Logistic([X], [y], reg=0.1)


def pooled() -> rs.Logistic:
    X, y = zip(*(rows(k) for k in range(3)), strict=True)
    return rs.Logistic(list(X), list(y), reg=0.1)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = template.write(tmp_path / "project")
    template.fix(made, eta=0.3, rounds=8)
    for name in NAMES:
        keys.make_node(made, name)
    return made


def settings(project: Project, old: str, new: str) -> None:
    path = project.path / "federation.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def grid_of(
    project: Project, metrics: bool = False, memory: Path | None = None, kind: type[FakeGrid] = FakeGrid
) -> Any:
    known = {name: key for key, name in keys.public_keys(project).items()}
    figures = (lambda w: {"positive": float((w > 0).double().mean())}) if metrics else None
    nodes = [Node(user(k), None if memory is None else memory / str(k), figures) for k in range(3)]
    return kind(nodes, keys=[known[name] for name in NAMES])


def test_a_run_lands_in_the_run_store_with_values_that_rode_on_later_questions(project: Project) -> None:
    grid = grid_of(project, metrics=True)
    run = server_app.conduct(grid, project, project.runs)
    expected = rs.solve(pooled(), rs.fedpi(0.3), rounds=8)
    assert (run.status, run.end and run.end["reason"]) == ("finished", "8 rounds")
    noted = {event["kind"]: event.get("reason", "") for event in run.events}
    row = run.row()
    assert f"stationarity is {row['stationarity']:.2g} and consensus is {row['consensus']:.2g} (0" in noted["unsolved"]
    assert all(what in noted["time"] for what in ("sending", "fetching", "looking who is online", "storing here"))
    history = run.history()
    np.testing.assert_allclose(history["value"], expected.history["value"], rtol=1e-9)
    np.testing.assert_allclose(history["residual"], expected.history["residual"], rtol=1e-7, atol=1e-12)
    assert history["positive"].between(0, 1).all()
    assert (history["bytes_up"] > 0).all()
    torch.testing.assert_close(run.model(), expected.model, rtol=1e-9, atol=1e-10)
    assert run.about["problem"]["names"] == list(NAMES)
    assert "original problem" in run.about["explanation"]["words"]
    assert run.config["run"]["engine"] == "flower"
    assert not run.damage()
    # three descriptions, eight rounds, and one message each for the value of the last model
    assert grid.pushed == 3 * (1 + 8 + 1)


@pytest.mark.parametrize(
    ("stop", "size", "remarks"), [("", 9e-7, 0), ("", 2e-6, 1), ("1e-3", 2e-6, 0), ("1e-9", 1e-8, 1)]
)
def test_how_far_a_run_is_from_a_solution_is_told_by_what_stop_asks_for(
    project: Project, stop: str, size: float, remarks: int
) -> None:
    if stop:
        settings(project, "[run]", f"[stop]\ncertificates = {stop}\n\n[run]")
    falling = pd.DataFrame({"stationarity": [1.0, 0.1, 1e-3, size], "consensus": 0.0})
    found = list(server_app.far_from_zero(project.config(), falling))
    assert len(found) == remarks
    assert all("more rounds" in words for words in found)
    assert not list(server_app.far_from_zero(project.config(), falling[[]]))  # nobody knows them: secure sums


@pytest.mark.parametrize(
    ("sizes", "memory", "words"),
    [
        ([1.0, 1e-4, 2e-12, 8e-12], 5, "not as near a solution as [stop] asks (1e-13): stationarity is 8e-12"),
        ([1.0, 1e-4, 2e-12, 8e-12, 7e-12, 3e-12, 9e-12, 8e-12], 5, server_app.NO_FALL),
        ([1.0, 1e-4, 2e-12, 8e-12, 7e-12, 3e-12, 9e-12, 8e-12], 0, server_app.NO_FALL),
        ([1.0, 0.1, 0.01, 1e-3], 5, "not at a solution yet: stationarity is 0.001 and consensus is 0 (0 at one); more"),
        ([1.0, 0.1, 0.01, 1e-3], 5, "; more rounds bring it closer"),
        ([1.0, 0.9, 0.8, 0.7], 5, "; more rounds bring it closer"),
        ([1.0, 0.9, 0.8, 0.7], 0, "; more rounds, or [anderson], bring it closer"),
        ([1.0, 1e-4, 1e-7, 1e-9], 5, "; more rounds bring it closer"),
    ],
)
def test_only_what_may_help_is_advised(project: Project, sizes: list[float], memory: int, words: str) -> None:
    """Nothing, at the size of rounding errors: there certificates no longer fall."""
    settings(project, "[run]", f"[anderson]\nmemory = {memory}\n[stop]\ncertificates = 1e-13\n\n[run]")
    history = pd.DataFrame({"stationarity": sizes, "consensus": 0.0})
    (said,) = server_app.far_from_zero(project.config(), history)
    assert words in said


def test_keys_are_looked_up_as_they_are_now(project: Project) -> None:
    known = server_app.KnownKeys(project)
    old = known()
    keys.make_node(project, "site-0")
    assert known() == old  # a key that is there is left alone
    keys.make_node(project, "site-0", renew=True)
    renewed = known()
    assert list(renewed.values()) == list(old.values())
    assert len(renewed.keys() & old.keys()) == 2
    whole = (project.nodes / "site-1.pub").read_bytes()
    (project.nodes / "site-1.pub").write_bytes(whole[:20])
    assert known() == renewed  # half copied: as before
    (project.nodes / "site-1.pub").unlink()
    assert sorted(known().values()) == ["site-0", "site-2"]


class Dies(FakeGrid):
    """The server's process is killed when the questions of a certain round are to be sent."""

    at = 5
    by: type[BaseException] = SystemExit

    def push_messages(self, messages: Any) -> list[str]:
        messages = list(messages)
        about = messages[0].metadata
        if about.message_type == "train" and int(about.group_id) == self.at:
            raise Power("cut")
        return super().push_messages(messages)


class Forgets(FakeGrid):
    """The superlink was killed while it took messages, and refuses the rest of them."""

    at = 4
    times = 1

    def push_messages(self, messages: Any) -> list[str]:
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

        messages = list(messages)
        about = messages[0].metadata
        if about.message_type == "train" and int(about.group_id) == self.at and self.times:
            self.times -= 1
            raise ObjectPushError("an object", 1, "a session")
        return super().push_messages(messages)


def test_questions_that_a_killed_superlink_lost_are_sent_again(project: Project, tmp_path: Path) -> None:
    unbroken = server_app.conduct(grid_of(project), project, tmp_path / "whole")
    grid = grid_of(project, kind=Forgets)
    run = server_app.conduct(grid, project, project.runs)
    assert (run.status, grid.times) == ("finished", 0)
    assert grid.pushed == 3 * (1 + 8 + 1)
    assert (run.history()["participants"] == 3).all()
    torch.testing.assert_close(run.model(), unbroken.model(), rtol=0, atol=0)
    grid = grid_of(project, kind=Forgets)
    grid.times = 3
    with pytest.raises(Exception, match="Failed to push object"):
        server_app.conduct(grid, project, project.runs)


class Power(BaseException):
    """Not an Exception: nothing is tidied up, as little as by SIGKILL."""


@pytest.mark.parametrize("at", [1, 2, 5, 8])
def test_a_killed_server_goes_on_as_if_it_had_never_stopped(project: Project, tmp_path: Path, at: int) -> None:
    unbroken = server_app.conduct(grid_of(project, memory=tmp_path / "a"), project, tmp_path / "whole")
    grid = grid_of(project, memory=tmp_path / "b", kind=Dies)
    grid.at = at
    with pytest.raises(Power):
        server_app.conduct(grid, project, project.runs)
    (left,) = runs.folders(project.runs)
    assert left.end is None
    done = server_app.conduct(grid_of(project, memory=tmp_path / "b"), project, project.runs, resume=left.id)
    assert done.path == left.path
    a, b = unbroken.state(), done.state()
    assert a is not None
    assert b is not None
    assert torch.equal(a.u, b.u)
    assert torch.equal(a.p, b.p)
    same = [name for name in unbroken.history() if name not in ("seconds", "bytes_up", "bytes_down")]
    np.testing.assert_array_equal(unbroken.history()[same], done.history()[same])
    # one that has ended is left alone
    assert server_app.conduct(grid_of(project), project, project.runs, resume=left.id).path == left.path


class Fills(FakeGrid):
    """The disk is full when the questions of the fourth round are to be sent."""

    def push_messages(self, messages: Any) -> list[str]:
        if self.round == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return super().push_messages(messages)


def test_a_full_disk_ends_a_run_with_what_goes_on_with_it(project: Project) -> None:
    grid = grid_of(project, kind=Fills)
    words = r"make room, then `resolvent federate run --resume fedpi-"
    with files_of(None), pytest.raises(StorageError, match=words):
        server_app.conduct(grid, project, project.runs)
    (left,) = runs.folders(project.runs)
    again = FakeGrid(grid.nodes, keys=grid.keys)
    assert server_app.conduct(again, project, project.runs, resume=left.id).status == "finished"


def test_a_value_that_is_not_known_yet_is_no_divergence(project: Project, tmp_path: Path) -> None:
    settings(project, '"fedpi"', '"fedavg"')  # gradient steps, which need f to be finite
    with pytest.raises(Power):
        server_app.conduct(grid_of(project, memory=tmp_path, kind=Dies), project, project.runs)
    (left,) = runs.folders(project.runs)
    done = server_app.conduct(grid_of(project, memory=tmp_path), project, project.runs, resume=left.id)
    assert done.status == "finished", done.events
    assert "rose" not in str(done.events)
    assert np.isfinite(done.history()["value"]).all()


def test_what_went_wrong_is_in_the_run_s_events(project: Project) -> None:
    grid = grid_of(project)

    def forge(who: int, reply: Any) -> list[Any]:
        from flwr.app import RecordDict

        if who == 1 and reply.metadata.message_type == "train":
            reply.content = RecordDict()
        return [reply]

    grid.forge = forge
    run = server_app.conduct(grid, project, project.runs)
    refused = [event for event in run.events if event["kind"] == "refused"]
    assert {event["user"] for event in refused} == {"site-1"}
    assert [event["round"] for event in refused] == list(range(1, 9))
    assert set(run.history()["participants"]) == {2}
    assert run.history()["value"][:-1].isna().all()  # nobody but site-1 knows its f; the last one was asked for
    assert run.end is not None
    assert run.end["reason"] == "8 rounds; site-1 never answered, so the model is that of the others alone"
    said: list[str] = []
    demo.Progress(said.append)(run)
    assert sum(words.startswith("an answer of site-1 was refused: ") for words in said) == 8
    assert "round 1: 2 answers, f unknown" in "\n".join(said)
    shown = resolvent("show", run.id, "--out", project.runs).out
    assert shown.count("site-1: ") == 8


def poison(who: int, reply: Any, after: int = 0, by: float = 1e6) -> list[Any]:
    """site-1 sends p + 1e6, after so many rounds."""
    packet = packets.from_records(reply.content)
    if who == 1 and packet.header["verb"] == "local" and packet.header["t"] >= after:
        reply.content = packets.to_records(packet._replace(arrays={"p": packet.arrays["p"] + by}))
    return [reply]


def test_a_run_without_a_poisoned_user_says_so_when_it_ends(project: Project) -> None:
    grid = grid_of(project)
    grid.forge = poison
    run = server_app.conduct(grid, project, project.runs)
    kinds = [(event["kind"], event["round"]) for event in run.events if event.get("user") == "site-1"]
    assert kinds == [("implausible", 1), ("implausible", 2), ("implausible", 3), ("left_out", 3)]
    assert run.end is not None
    assert run.end["reason"].startswith("8 rounds; without site-1, whose answers led too far away")
    assert float(run.model().abs().max()) < 10


@pytest.mark.parametrize("values", [[math.nan], [math.inf], None], ids=str)
@pytest.mark.parametrize("only_first", [False, True])
def test_whoever_reports_no_finite_value_is_named(project: Project, values: Any, only_first: bool) -> None:
    """Or a run that was led away would end as if nothing had happened: with it, no value is known to have risen."""
    settings(project, "min_users = 1", "max_move = 1e300\nmin_users = 1")
    grid, models = grid_of(project), 0

    def forge(who: int, reply: Any) -> list[Any]:
        nonlocal models
        (reply,) = poison(who, reply, by=1e3)
        packet = packets.from_records(reply.content)
        if who == 1 and packet.header["values"] and not (only_first and models):
            models = len(packet.header["values"])
            given = values and values * models
            reply.content = packets.to_records(packet._replace(header=packet.header | {"values": given}))
        return [reply]

    grid.forge = forge
    run = server_app.conduct(grid, project, project.runs)
    (event,) = [event for event in run.events if event["kind"] == "no_value"]
    assert (event["user"], event["round"]) == ("site-1", 2)
    assert run.end is not None
    assert run.end["kind"] == "finished"
    assert "; site-1 reported no finite value (see the events), so whether the value fell" in run.end["reason"]


@pytest.mark.parametrize(("after", "by", "risen"), [(0, 1e6, ["value"]), (4, 1e3, ["value", "stationarity"])])
def test_a_finished_run_whose_certificates_say_otherwise_says_so(
    project: Project, after: int, by: float, risen: list[str]
) -> None:
    """Any answer is accepted here. Values tell all the same, and stationarity too after an honest start."""
    settings(project, "min_users = 1", "max_move = 1e300\nmin_users = 1")
    grid = grid_of(project)
    grid.forge = lambda who, reply: poison(who, reply, after, by)
    run = server_app.conduct(grid, project, project.runs)
    assert run.end is not None
    first, *remarks = run.end["reason"].split("; ")
    assert (run.status, first) == ("finished", "8 rounds")
    assert [remark.split(" from ")[0] for remark in remarks] == [f"the {name} rose" for name in risen]
    assert remarks[0].startswith("the value rose from 11.1 to ")
    assert run.history()["value"].iloc[-1] > by


@pytest.mark.parametrize("algorithm", ["fedpi", "fedprox"])
def test_values_of_one_user_hide_no_rise(project: Project, algorithm: str) -> None:
    """site-1 leads the model away, and reports values that make the mean fall."""
    settings(project, '"fedpi"', f'"{algorithm}"')

    def forge(who: int, reply: Any) -> list[Any]:
        poison(who, reply, by=100.0)
        packet = packets.from_records(reply.content)
        if who == 1 and (values := packet.header.get("values")):
            after = 100 if packet.header["verb"] == "measure" else packet.header["t"]
            packet.header["values"] = [-1e9 * (1 + after)] * len(values)
            reply.content = packets.to_records(packet)
        return [reply]

    grid = grid_of(project)
    grid.forge = forge
    run = server_app.conduct(grid, project, project.runs)
    assert run.end is not None
    assert run.history()["value"].iloc[1:].is_monotonic_decreasing
    assert run.end["reason"].startswith("8 rounds; the median of the users' values rose from ")


def test_weights_are_shown_and_last_as_long_as_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that claims other rows when a run goes on does not get another weight in it."""
    settings(project, 'weights = "rows"', 'weights = "users"')
    grid = grid_of(project, kind=Dies)
    with pytest.raises(Power):
        server_app.conduct(grid, project, project.runs)
    (left,) = runs.folders(project.runs)
    expected = torch.tensor([1 / n for n in SIZES], dtype=torch.float64)
    expected /= expected.sum()
    assert left.about["problem"]["weights"] == expected.tolist()
    shown = next(event["reason"] for event in left.events if event["kind"] == "weights")
    assert shown == ", ".join(
        f"{name} {w:.4g} ({n} rows)" for name, w, n in zip(NAMES, expected.tolist(), SIZES, strict=True)
    )
    more = grid_of(project)
    claim = Claiming(user(1))
    claim.claims = {"samples": 2, "rows": 2}
    more.nodes[1] = claim
    used, engine_of = [], server_app.engine_of
    monkeypatch.setattr(server_app, "engine_of", lambda *given: used.append(given[1].weights) or engine_of(*given))
    server_app.conduct(more, project, project.runs, resume=left.id)
    assert torch.equal(used[0], expected)


def test_a_run_that_fails_says_why_and_whoever_began_it_is_told(project: Project, tmp_path: Path) -> None:
    settings(project, "timeout = 120.0", "timeout = 120.0\npatience = 0.2")
    grid = grid_of(project)
    grid.late = lambda t, who: 1000
    ticket = tmp_path / "ticket"
    told = {"project": str(project.path), "out": str(project.runs), "resume": "", "ticket": str(ticket)}
    with pytest.raises(RoundFailed, match="in round 1 only 0 of the 1 users"):
        server_app.main(grid, told)
    (left,) = runs.folders(project.runs)
    said = json.loads(ticket.read_text())["failed"]
    assert "in round 1 only 0 of the 1 users" in said
    assert f"`resolvent federate run --resume {left.id}` tries again" in said
    assert left.status == "failed"


class Stopped(FakeGrid):
    """Flower ends the process of a run that was stopped: in a certain round, or before the first."""

    at = 5
    by: type[BaseException] = SystemExit

    def push_messages(self, messages: Any) -> list[str]:
        messages = list(messages)
        about = messages[0].metadata
        if (int(about.group_id) if about.message_type == "train" else 0) == self.at:
            raise self.by(0)
        return super().push_messages(messages)


def follow(project: Project, ticket: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(running, "ASK_FLOWER", 0.0)
    return running.Following(project, project.server(), 0, ticket).wait()


@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize("by", [SystemExit, KeyboardInterrupt])
def test_a_run_that_was_stopped_from_outside_says_so(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, by: type[BaseException]
) -> None:
    grid, ticket = grid_of(project, kind=Stopped), tmp_path / "ticket"
    grid.at, grid.by = at, by
    given = {"project": str(project.path), "out": str(project.runs), "resume": "", "ticket": str(ticket)}
    with suppress(by):
        server_app.main(grid, given)
    with pytest.raises((InputError, running.Killed), match="it was stopped from outside") as error:
        follow(project, ticket, monkeypatch)
    if at:
        (left,) = runs.folders(project.runs)
        assert f"`resolvent federate run --resume {left.id}` goes on" in str(error.value)
        assert left.status == "interrupted"
        assert server_app.conduct(grid_of(project), project, project.runs, resume=left.id).status == "finished"


@pytest.mark.parametrize(("begun", "resumed"), [(False, False), (False, True), (True, False)])
def test_a_run_that_is_interrupted_names_what_goes_on(
    project: Project, monkeypatch: pytest.MonkeyPatch, begun: bool, resumed: bool
) -> None:
    """Not the latest run, which may be another one; one that waits for its nodes has stored nothing to go on with."""
    older = server_app.conduct(grid_of(project), project, project.runs)
    ticket = project.path / "ticket"
    if begun:
        ticket.write_text(json.dumps({"run": str(older.path)}))

    def begin(*given: Any) -> running.Following:
        return running.Following(project, project.server(), 0, ticket, older.id if resumed else "")

    def interrupted(*given: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "begin", begin)
    monkeypatch.setattr(running.Following, "wait", interrupted)
    monkeypatch.setattr(running.Following, "stop", lambda self: None)
    said = resolvent("federate", "run", "--project", project.path)
    assert said.code == 130
    words = f"--resume {older.id}" if begun or resumed else "it had not begun, so begin it again"
    assert words in said.err
    assert ("--resume" in said.err) == (begun or resumed)


@pytest.mark.parametrize("under_way", [False, True])
def test_nobody_is_told_to_take_away_the_key_of_a_node_that_was_there(
    project: Project, monkeypatch: pytest.MonkeyPatch, under_way: bool
) -> None:
    gone = datetime.now().astimezone().replace(microsecond=0)
    nodes = [
        SimpleNamespace(status="online", last_deactivated_at=""),
        SimpleNamespace(status="offline", last_deactivated_at=gone.astimezone(UTC).isoformat()),
        SimpleNamespace(status="registered", last_deactivated_at=""),
    ]
    known = {name: key for key, name in keys.public_keys(project).items()}
    monkeypatch.setattr(running, "server_here", lambda project: project.server())
    listed = {known[name]: node for name, node in zip(NAMES, nodes, strict=True)}
    monkeypatch.setattr(control, "_nodes", lambda client: listed)
    runs_there = {1: SimpleNamespace(status=SimpleNamespace(status="running" if under_way else "finished"))}
    client = SimpleNamespace(ListRuns=lambda request: SimpleNamespace(run_dict=runs_there))
    monkeypatch.setattr(control, "_client", lambda *given: nullcontext(client))
    rows = resolvent("federate", "status", "--project", project.path, "--format", "json").json
    online, offline, never = ({row["what"]: row for row in rows}[f"node {name}"] for name in NAMES)
    assert (online["stands"], online["about"]) == ("online", "")
    assert offline["stands"].startswith("gone since ")
    assert offline["stands"].endswith(f"{gone:%H:%M}")
    assert offline["about"] == ""
    assert never["stands"] == "never came"
    assert never["about"].startswith("not started yet, or with another key than this?")
    assert ("take keys/nodes/site-2.pub away" in never["about"]) == (not under_way)


def test_a_run_that_has_ended_is_not_gone_on_with(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "server_here", lambda project: project.server())
    done = server_app.conduct(grid_of(project), project, project.runs)
    for name in ([], [done.id]):
        said = resolvent("federate", "run", "--resume", *name, "--project", project.path)
        assert (said.code, said.out) == (2, "")
        assert f"run {done.id} has ended (finished: 8 rounds), so that there is nothing to go on with" in said.err


def test_a_run_that_goes_on_says_from_where_and_repeats_nothing(project: Project, tmp_path: Path) -> None:
    def conduct(kind: type[FakeGrid], at: int, resume: str = "") -> None:
        grid = grid_of(project, memory=tmp_path / "nodes", kind=kind)
        grid.at = at
        with suppress(Power):
            server_app.conduct(grid, project, project.runs, resume)

    conduct(Dies, 5)
    (left,) = runs.folders(project.runs)
    conduct(Dies, 7, left.id)
    conduct(FakeGrid, 0, left.id)
    said: list[str] = []
    demo.Progress(said.append)(left)
    begun = next(event["round"] for event in reversed(left.events) if event["kind"] == "resumed")
    assert begun > 0
    assert said[0] == f"goes on from round {begun + 1}"
    assert [words.split(":")[0] for words in said[1:]] == [f"round {k}" for k in range(begun + 1, 9)]


def test_every_end_of_a_run_ends_the_wait(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process of the run could not tell whoever began it."""
    ticket = tmp_path / "ticket"
    with pytest.raises(running.Killed, match="the server ended before the run began"):
        follow(project, ticket, monkeypatch)
    monkeypatch.setattr(running, "server_here", lambda project: project.server())
    for status in ("finished:failed", "unknown"):
        monkeypatch.setattr(control, "status", lambda *given, status=status: status)
        with pytest.raises(running.Killed, match=rf"ended \({status}\); see .federation/superexec.log"):
            follow(project, ticket, monkeypatch)
    done = server_app.conduct(grid_of(project), project, project.runs)
    ticket.write_text(json.dumps({"run": str(done.path)}))
    assert follow(project, ticket, monkeypatch).path == done.path
    events = done.path / "events.jsonl"
    events.write_text(events.read_text().splitlines(keepends=True)[0])  # as if it were killed before its end
    with pytest.raises(
        running.Killed, match=r"ended \(killed: its process ended without a word\); `resolvent federate"
    ):
        follow(project, ticket, monkeypatch)
    monkeypatch.setattr(control, "status", lambda *given: running.STOPPED)
    with pytest.raises(running.Killed, match="it was stopped from outside"):
        follow(project, ticket, monkeypatch)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("close = 1.0 ", "close = 1.5 ", r"close is 1.5, but a share in \(0, 1\] is needed"),
        ('weights = "rows"', 'weights = "site-0=1"', "weights is .* a number for each of site-0, site-1, site-2"),
        ('weights = "rows"', 'weights = "site-0=x"', "federation.weights is"),
        ('"fedpi"', '"fedpie"', "there is no algorithm 'fedpie'; did you mean fedpi"),
        ("min_users = 1", "min_user = 1", "there is no key problem.min_user; did you mean min_users"),
        ("port = 9443", "port = 99999", "server.port is 99999"),
        ("[scheme]", "[schema]", r"there is no section \[schema\]"),
        ("[run]", '[stop]\nmetric = "value"\n[run]', r"stop.metric is 'value', but users report metrics .* too late"),
        ("[run]", "[stop]\ngap = 1e-9\n[run]", "stop.gap is 1e-09, but nobody in a federation knows"),
        ("[run]", '[run]\nmetrics = ["auc"]', r"run.metrics is .*, but a federation's metrics are those of metrics"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(project: Project, old: str, new: str, words: str) -> None:
    settings(project, old, new)
    with pytest.raises(InputError, match=words):
        _ = project.server(), server_app.conduct(grid_of(project), project, project.runs)


def test_a_run_needs_the_keys_of_its_users(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "server_here", lambda project: project.server())
    (project.nodes / "site-1.pub").unlink()
    with pytest.raises(InputError, match=r"federation.users is 3, but 2 public keys of nodes are in .*; copy the file"):
        running.begin(project, project.runs)


def test_keys_that_are_copied_later_are_made_known(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    seen: list[list[str]] = []
    monkeypatch.setattr(control, "register", lambda project, server: seen.append(project.names()))
    serving = up.ServerProcesses(project, project.server())
    serving.superlink = serving.superexec = SimpleNamespace(running=True)  # type: ignore[assignment]
    serving.check()
    serving.check()
    keys.make_node(project, "site-9")
    serving.check()
    assert seen == [list(NAMES), [*NAMES, "site-9"]]


def test_such_a_run_is_resumed_by_federate_alone(project: Project) -> None:
    from resolvent import experiment

    run = server_app.conduct(grid_of(project), project, project.runs)
    with pytest.raises(InputError, match="`resolvent federate run` begins such runs"):
        experiment.build(experiment.build.__globals__["configs"].read(run.config))


def test_the_last_rounds_of_a_run_are_shown_too(project: Project, tmp_path: Path) -> None:
    """However many of them were done since the last look."""
    run, ticket = server_app.conduct(grid_of(project), project, project.runs), tmp_path / "ticket.json"
    ticket.write_text(json.dumps({"run": str(run.path), "status": run.status}))
    said: list[str] = []
    running.Following(project, project.server(), 0, ticket).wait(demo.Progress(said.append))
    assert [words.split(":")[0] for words in said] == [f"round {k}" for k in range(1, 9)]


@pytest.mark.parametrize(("bind", "listens"), [("", "server.example"), ('bind = "0.0.0.0"', "0.0.0.0")])
def test_the_server_says_where_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bind: str, listens: str
) -> None:
    """Not where its own machine reaches it: who can reach the port must be trusted."""
    made = template.write(tmp_path / "new", host="server.example")
    settings(made, "port = 9443", f"port = 9443\n{bind}")
    monkeypatch.setattr(up.ServerProcesses, "open", lambda self: self)  # nothing was started, so it ends at once
    said = resolvent("federate", "server", "--project", made.path)
    assert f"the server listens at {listens}, port 9443;" in said.err


# --- projects, keys, doctor ------------------------------------------------------------------------------------------


def test_a_project_is_made_once(tmp_path: Path) -> None:
    made = template.write(tmp_path / "new", host="server.example", port=1234, users=7)
    assert opened(tmp_path / "new").server() == Server("server.example", 1234)
    assert made.config().problem.users == 7
    with pytest.raises(InputError, match=r"has a federation.toml already"):
        template.write(tmp_path / "new")
    with pytest.raises(InputError, match="`resolvent federate init"):
        opened(tmp_path)


def test_secrets_are_this_user_s_alone_and_certificates_are_for_their_server(project: Project) -> None:
    keys.make_server(project, ["server.example", "10.0.0.7"])
    secret = [project.keys / name for name in (keys.CA_KEY, keys.SERVER_KEY, keys.SECRET)]
    for path in (*secret, *(project.nodes / name for name in NAMES)):
        assert path.stat().st_mode & 0o077 == 0, path
    _, _, names = keys.valid_until(project.keys / keys.CERTIFICATE)
    assert {"server.example", "10.0.0.7", "localhost", "127.0.0.1"} == set(names)
    before = (project.keys / keys.CA).read_bytes()
    keys.make_server(project, ["other.example"])
    assert (project.keys / keys.CA).read_bytes() == before  # nodes' copies stay good
    key = (project.nodes / "site-0").read_bytes()
    keys.make_node(project, "site-0")
    assert (project.nodes / "site-0").read_bytes() == key
    for wrong in ("", "../up", "a b", "x" * 61, "é"):
        with pytest.raises(InputError, match="the node's name is"):
            keys.make_node(project, wrong)


def test_the_doctor_says_what_is_wrong(project: Project) -> None:
    def found() -> dict[str, Any]:
        return {row["what"]: row for row in doctor.examine(project.path, "site-0")}

    assert not found()["keys/ca.crt"]["fine"]
    keys.make_server(project, ["127.0.0.1"])
    settings(project, "port = 9443", f"port = {_free()}")
    assert all(row["fine"] for row in found().values()), found()
    assert found()["user.py"]["found"] == "Logistic, d = 5, 80 samples, float64"
    settings(project, '"127.0.0.1"', '"server.example"')
    assert "but server.host is server.example" in found()["keys/server.crt"]["found"]
    (project.nodes / "site-0").chmod(0o644)
    assert "site-0 can be read by others" in found()["private keys"]["found"]
    (project.path / "user.py").write_text("def problem(node_config):\n    return 1 / 0\n")
    assert found()["user.py"]["found"] == "ZeroDivisionError: division by zero"
    (project.path / "federation.toml").write_text('[federation]\n[data]\ntarget = "y"\n')
    (project.path / "none.csv").write_text("a,y\n")
    told = doctor.examine(project.path, "site-0", {"data": "none.csv"})[-1]
    assert (told["what"], told["found"]) == (
        "table",
        "path is none.csv, which has no rows, but a file with rows is needed",
    )
    (project.path / "federation.toml").write_text("[federation")
    assert "is not TOML" in found()["federation.toml"]["found"]


@pytest.mark.parametrize(("days", "fine"), [(31, True), (29, False)])
def test_the_doctor_warns_a_month_before_a_certificate_ends(
    project: Project, days: int, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "DAYS", days)
    keys.make_server(project, ["127.0.0.1"])
    rows = {row["what"]: row for row in doctor._certificates(project)}
    assert [(name, row["fine"]) for name, row in rows.items()] == [("keys/ca.crt", fine), ("keys/server.crt", fine)]
    assert all(row["found"].startswith("valid until" if fine else "ends on") for row in rows.values())


def test_a_clock_that_is_behind_is_pointed_out(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "EARLY", -timedelta(hours=1))
    keys.make_server(project, ["127.0.0.1"])
    for row in doctor._certificates(project):
        assert not row["fine"]
        assert "is this machine's clock right?" in row["found"]


def test_the_server_s_certificate_can_sign_no_others(project: Project) -> None:
    """Whoever gets at the server's key could otherwise pass for any other server."""
    from cryptography import x509

    keys.make_server(project, ["127.0.0.1"])

    def extension(name: str, kind: Any) -> Any:
        read = x509.load_pem_x509_certificate((project.keys / name).read_bytes()).extensions
        return read.get_extension_for_class(kind)

    for name, ca, length in ((keys.CERTIFICATE, False, None), (keys.CA, True, 0)):
        constraints = extension(name, x509.BasicConstraints)
        assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, ca, length)
    assert list(extension(keys.CERTIFICATE, x509.ExtendedKeyUsage).value) == [x509.OID_SERVER_AUTH]
    usage = extension(keys.CA, x509.KeyUsage)
    assert usage.critical
    assert (usage.value.key_cert_sign, usage.value.digital_signature) == (True, False)


def test_a_run_that_is_given_up_keeps_the_row_that_waited_for_its_values() -> None:
    facts = mock.Mock(beside=None)
    recorder, engine = mock.Mock(), mock.Mock(measure=lambda w: {"value": [float(w)]}, facts=facts)
    behind = OneBehind(recorder, engine)
    for number in range(3):
        give: Any = behind if number < 2 else behind.give_up
        state: Any = SimpleNamespace(w=number, parts=SimpleNamespace(average=None), yardstick=None)
        give(Entry(state, {"round": number, "value": math.nan}, MonitorState(), None))
    assert [name for name, _, _ in recorder.mock_calls] == ["", "", "give_up"]
    rows = [entry.row for _, (entry,), _ in recorder.mock_calls]
    assert rows[:2] == [{"round": 0, "value": 0.0}, {"round": 1, "value": 1.0}]
    assert rows[2]["round"] == 2


def _free() -> int:
    from resolvent.federation.processes import free_port

    return free_port()


def test_the_doctor_sees_what_else_listens_and_a_certificate_that_is_not_ours(project: Project, tmp_path: Path) -> None:
    import socket

    keys.make_server(project, ["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong, _ = doctor.greet(project.keys / keys.CA, Server("127.0.0.1", taken.getsockname()[1]), 0.3)
    assert wrong is not None


def test_personal_models_are_written_on_the_node(project: Project, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    memory = project.state / "nodes"
    nodes = [Node(user(k), memory / name / "memory") for k, name in enumerate(NAMES)]
    known = {name: key for key, name in keys.public_keys(project).items()}
    run = server_app.conduct(FakeGrid(nodes, keys=[known[n] for n in NAMES]), project, project.runs)
    state = run.state()
    assert state is not None
    assert export.personal(project, "site-1", tmp_path / "m.safetensors") == (run.id, 8)
    torch.testing.assert_close(load_file(tmp_path / "m.safetensors")["model"], state.p[1])
    export.personal(project, "site-2", tmp_path / "m.npz", run.id)
    np.testing.assert_array_equal(np.load(tmp_path / "m.npz")["model"], state.p[2])
    with pytest.raises(InputError, match="has no answers of this node for run other"):
        export.personal(project, "site-2", tmp_path / "m.npz", "other")
    with pytest.raises(InputError, match=r"ends in .safetensors or .npz"):
        export.personal(project, "site-2", tmp_path / "m.txt")
