"""Real Flower on this machine: processes, sockets, TLS and keys. Short in CI; faults by SIGKILL where there is time."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import resolvent as rs
from federation import insider
from federation.attack import OTHER, InTheDemo, assert_refused, marking_app, own_address
from resolvent import runs
from resolvent.errors import InputError
from resolvent.federation import control, demo, deployment, keys, processes, running, template
from resolvent.federation.nodes import NodeProcesses
from resolvent.federation.project import Project, Server
from resolvent.federation.up import Federation, ServerProcesses
from resolvent.runs import Folder

pytest.importorskip("flwr")

CENTRES = [[0.0, 0.1], [0.05, 0.0], [-0.1, 0.05]]
SLOW_USER = f"""\
import time

import torch

import resolvent as rs


def problem(node_config):
    centre = torch.tensor({CENTRES}[node_config["number"]], dtype=torch.float64)

    def prox(U, eta):
        time.sleep(node_config.get("seconds", 0))
        return (U + eta * centre) / (1 + eta)

    return rs.Custom(1, 2, value=lambda W: (W - centre).square().sum(1) / 2, prox=prox)
"""


def flower_processes() -> list[str]:
    """Whatever of Flower, or of this package's nodes, runs under this test."""
    mine = str(os.getpid())
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            env = (path / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        programs = ("flower-", "flwr-", "federation.worker", "superlink.py", "superexec.py", "supernode.py")
        if f"RESOLVENT_TEST={mine}" in env and any(program in words for program in programs):
            found.append(words)
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RESOLVENT_TEST", str(os.getpid()))
    yield
    until = time.monotonic() + 20
    while (left := flower_processes()) and time.monotonic() < until:
        time.sleep(0.2)
    assert not left


def made(tmp_path: Path, rounds: int, user: str = demo.USER, eta: float = 0.25, more: str = "") -> Project:
    project = template.write(tmp_path / "project")
    (project.path / "user.py").write_text(user)
    template.fix(project, eta, rounds, more)
    return project


def settings(project: Project, old: str, new: str) -> None:
    path = project.path / "federation.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def in_process(rounds: int, eta: float = 0.25) -> rs.Run:
    return rs.solve(demo.pooled(), rs.fedpi(eta), rounds=rounds, progress=False)


class Watching:
    """Does something once a run has come to a certain round."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at, self.act, self.done = at, act, False

    def __call__(self, run: Folder) -> None:
        if not self.done and int(run.row().get("round", 0)) >= self.at:
            self.done = True
            self.act()


def kill(*given: processes.Process | None) -> None:
    """As a machine that loses its power: every process of the group, at once."""
    for process in given:
        assert process is not None
        os.killpg(process.popen.pid, signal.SIGKILL)
        process.popen.wait()


# --- what CI tries ---------------------------------------------------------------------------------------------------


def test_a_real_federation_computes_what_one_process_does(tmp_path: Path) -> None:
    """Three nodes, TLS, keys, three rounds; another account of the machine is refused; nothing is left behind."""
    rounds, stranger = 3, InTheDemo(tmp_path)
    done, gap = demo.demo(rounds, tmp_path / "runs", stranger)
    assert stranger.tried
    expected = in_process(rounds)
    model = done.model()
    assert model is not None
    torch.testing.assert_close(model, expected.model, rtol=1e-9, atol=1e-10)
    assert gap == pytest.approx(float(expected.history.gap.iloc[-1]), rel=1e-6)
    np.testing.assert_allclose(done.history()["value"], expected.history["value"], rtol=1e-10)
    assert done.status == "finished"
    assert (done.history()["participants"] == 3).all()


# --- who is let in ---------------------------------------------------------------------------------------------------


@contextmanager
def server_of(project: Project) -> Iterator[Federation]:
    with Federation(project, []) as federation:
        yield federation


def log_of(node: processes.Process, words: tuple[str, ...], seconds: float = 60.0) -> str:
    """What a supernode says until it ends, or says one of these words."""
    until = time.monotonic() + seconds
    while node.running and time.monotonic() < until and not any(word in node.log.read_text() for word in words):
        time.sleep(0.2)
    processes.stop(node)
    text = node.log.read_text()
    print(text[-1500:])
    return text


def command_lines() -> str:
    """What every account of the machine can read of the processes of this test."""
    mine, lines = f"RESOLVENT_TEST={os.getpid()}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mine in (path / "environ").read_bytes():
                lines.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return "\n".join(lines)


@pytest.mark.slow
def test_whoever_reaches_the_ports_with_the_public_certificate_gets_nowhere(tmp_path: Path) -> None:
    """From another address, and from another account, while a run goes on: nothing is run, told or stopped."""
    project = made(tmp_path, 5)
    federation = Federation(project, demo.NODES, {name: {"password": "hunter2"} for name in demo.NODES})
    federation.processes = ServerProcesses(project, replace(federation.server, bind="0.0.0.0"))
    federation.server, elsewhere = federation.processes.server, own_address()

    def act() -> None:
        lines = command_lines()
        assert "flwr-serverapp" in lines
        assert not re.search(r"--token |hunter2|[0-9a-f]{48}", lines), lines
        ports = (f"{elsewhere}:{federation.server.port}", f"{elsewhere}:{federation.server.control}")
        for account in {"", OTHER}:
            assert_refused(project, tmp_path, account, *ports)

    with federation:
        watching = Watching(1, act)
        done = running.begin(project, project.runs).wait(watching, federation.check)
        assert watching.done
        assert done.status == "finished"
        assert (done.history()["participants"] == 3).all()
        shut = [project.state, *project.state.rglob("*.db*"), *project.state.glob("nodes/*/memory/*/*"), done.path]
        assert len(shut) > 5
        for path in shut:
            assert path.stat().st_mode & 0o077 == 0, path


@contextmanager
def few_files(many: int) -> Iterator[None]:
    """Processes that start here may have so many files open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (many, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_a_flood_of_silent_connections_does_not_stop_a_run(tmp_path: Path) -> None:
    """More than the server may have files, at both ports, with and without TLS's handshake: nodes go on."""
    project = made(tmp_path, 6)
    federation, stack = Federation(project, demo.NODES), ExitStack()

    def flood() -> None:
        trusting = ssl.create_default_context(cafile=str(project.keys / keys.CA))
        for port in (federation.server.port, federation.server.control):
            for _ in range(600):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            for _ in range(20):
                line = socket.create_connection(("127.0.0.1", port), 20)
                stack.enter_context(trusting.wrap_socket(line, server_hostname="127.0.0.1"))

    with stack:
        with few_files(400):
            stack.enter_context(federation)
        watching = Watching(1, flood)
        done = running.begin(project, project.runs).wait(watching, federation.check)
    assert watching.done
    assert done.status == "finished"
    assert (done.history()["participants"] == 3).all()


@pytest.mark.slow
def test_a_registered_node_can_do_nothing_in_another_s_name(tmp_path: Path) -> None:
    """It is not one of the run's users, and calls whatever Flower has while the others go on."""
    project, told = made(tmp_path, 6), dict[str, str]()
    keys.make_node(project, "site-3")
    federation = Federation(project, demo.NODES)

    def act() -> None:
        with sqlite3.connect(project.state / "superlink.db") as database:
            ((number,),) = database.execute("SELECT run_id FROM run").fetchall()
        told.update(insider.attempts(project, federation.server, "site-3", number % 2**64))

    with federation:
        watching = Watching(1, act)
        done = running.begin(project, project.runs).wait(watching, federation.check)
    harmless = {
        "PullMessages": "let in: 0", "PullObject": "let in: False", "PushObject": "let in: False",
        "ConfirmMessageReceived": "let in: ", "PushMessages, to nothing": "let in: []",
        "PushMessages, signed as another": "let in: []",
    }  # fmt: skip
    wrong = {call: end for call, end in told.items() if not end.startswith(harmless.get(call, "refused"))}
    assert not wrong, wrong
    assert len(told) >= 20
    assert done.status == "finished"
    assert (done.history()["participants"] == 3).all()
    model = done.model()
    assert model is not None
    torch.testing.assert_close(model, in_process(6).model, rtol=1e-9, atol=1e-10)


ASKS_NODES = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    content = RecordDict({"header": ConfigRecord({"json": "{}"})})
    asked = [Message(content, node, "train") for node in grid.get_node_ids()]
    with open(context.run_config["ticket"], "w") as file:
        file.write(repr([reply.error for reply in grid.send_and_receive(asked, timeout=60)]))
"""


@pytest.mark.slow
def test_a_node_runs_no_app_that_arrives(tmp_path: Path) -> None:
    """Not even one that the server's own user begins: the node answers that it cannot read the question."""
    project, app = made(tmp_path, 2), marking_app(tmp_path / "app")
    server = app / "resolvent_federation" / "server.py"
    server.write_text(server.read_text().split('"""')[0] + ASKS_NODES)
    with Federation(project, demo.NODES[:1]) as federation:
        ticket = tmp_path / "ticket"
        control.begin(project, federation.server, {"ticket": str(ticket)}, app)
        until = time.monotonic() + 200
        while not (ticket.is_file() and ticket.read_text()):
            assert time.monotonic() < until
            time.sleep(0.2)
    assert "Malformed at resolvent.engines.flower." in ticket.read_text()
    assert [path.name.split("-")[0] for path in (tmp_path / "markers").iterdir()] == ["server"]


BAD_USERS = """\
import resolvent as rs

calls = []


def problem(node_config):
    def prox(U, eta):
        calls.append(1)
        if node_config["number"] == 1 and len(calls) > 1:
            raise ValueError("cannot read the row of Jane Doe")
        return U / (1 + eta) + 0.1 + 1e6 * (node_config["number"] == 2)

    return rs.Custom(1, 2, value=lambda W: W.square().sum(1) / 2, prox=prox)
"""


@pytest.mark.slow
def test_a_poisoned_node_is_left_out_and_no_text_of_an_exception_leaves_its_node(tmp_path: Path) -> None:
    project = made(tmp_path, 4, BAD_USERS)
    with Federation(project, demo.NODES) as federation:
        run = running.begin(project, project.runs).wait(check=federation.check)
    events = {(event["kind"], event.get("user")) for event in run.events}
    assert {("refused", "site-1"), ("implausible", "site-2"), ("left_out", "site-2")} <= events
    assert run.end is not None
    assert "without site-2, whose answers led too far away" in run.end["reason"]
    refused = next(event["reason"] for event in run.events if event["kind"] == "refused")
    assert "ValueError at user:10; the node's own log says more" in refused
    holding = [path for path in project.path.rglob("*") if path.is_file() and b"Jane Doe" in path.read_bytes()]
    log = project.state / "nodes" / "site-1" / "worker.log"
    assert set(holding) == {project.path / "user.py", log}
    assert log.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_node_whose_key_is_taken_away_is_shut_out(tmp_path: Path) -> None:
    project = made(tmp_path, 2)
    with Federation(project, demo.NODES[:2]) as federation:
        (project.nodes / "site-1.pub").rename(tmp_path / "site-1.pub")
        federation.processes.check()
        node = federation.nodes["site-1"].supernode
        assert node is not None
        node.popen.wait(60)
        federation.nodes["site-1"].close()
        assert list(control.nodes(project, federation.server)) == list(keys.public_keys(project))
        again = federation.start_node("site-1", 1).supernode
        assert again is not None
        again.popen.wait(60)
        assert "the server knows no node with this key" in again.last_words()


@pytest.mark.slow
def test_strangers_are_refused(tmp_path: Path) -> None:
    """An unknown key, no key, plaintext, another authority: none of them is ever online."""
    project = made(tmp_path, 2)
    stranger = template.write(tmp_path / "stranger")
    keys.make_server(stranger, ["127.0.0.1"])
    keys.make_node(project, "site-0")
    with server_of(project) as federation:
        server, online = federation.server, list[str]()
        refused = (
            "SuperNode ID",
            "refused",
            "disconnected",
            "CERTIFICATE_VERIFY_FAILED",
            "Exit Code",
            "attempt failed",
        )

        def tried(log: str) -> None:
            online.extend(status for status in control.nodes(project, server).values() if status == "online")
            assert "SuperNode ID" not in log
            assert any(word in log for word in refused), log

        def node_of(given: Project, name: str) -> processes.Process:
            return deployment.supernode(given, name, server, given.state / "none", given.state / "tried" / name)

        # an unknown key, with the right authority
        (stranger.keys / keys.CA).write_bytes((project.keys / keys.CA).read_bytes())
        keys.make_node(stranger, "mallory")
        tried(log_of(node_of(stranger, "mallory"), refused))
        # no key at all, and plaintext
        beside = ["--superlink", f"127.0.0.1:{server.port}", "--port", str(processes.free_port())]
        for more in (["--root-certificates", str(project.keys / keys.CA)], ["--insecure"]):
            log = tmp_path / f"bare{len(more)}.log"
            command = [str(Path(sys.executable).with_name("flower-supernode")), *beside, *more]
            bare = processes.start("bare", command, log, deployment.environment(stranger, "bare"))
            tried(log_of(bare, refused))
        # a known key, but a server whose certificate another authority has signed
        other = template.write(tmp_path / "other")
        keys.make_server(other, ["127.0.0.1"])
        for name in ("site-0", "site-0.pub"):
            (other.nodes / name).write_bytes((project.nodes / name).read_bytes())
        words = log_of(node_of(other, "site-0"), refused)
        tried(words)
        assert "certificate" in words.lower(), words
        assert online == []
        # and the same key with the right authority is let in
        assert "SuperNode ID" in log_of(node_of(project, "site-0"), ("SuperNode ID",))


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_node_is_killed_in_a_round_and_comes_back(tmp_path: Path) -> None:
    """Its user holds meanwhile, and FedPi ends at the solution of all three.

    The certificates cannot be small before it is back: until then its p_i is not the others'.
    """
    project = made(tmp_path, 400, eta=0.15, more="[stop]\ncertificates = 1e-5\n")
    with Federation(project, demo.NODES) as federation:
        run = running.begin(project, project.runs)
        node = federation.nodes["site-1"]
        done = run.wait(Watching(3, lambda: kill(node.supernode, node.worker)), federation.check)
    assert done.status == "stopped"
    came = done.history()["participants"].tolist()
    assert 2 in came
    assert came[-1] == 3
    assert demo.gap_of(done.model()) < 1e-8  # type: ignore[arg-type]
    kinds = [event["kind"] for event in done.events if event.get("user") == "site-1"]
    assert {"back", "restarted"} & set(kinds), done.events
    assert came[:3] == [3, 3, 3]


@pytest.mark.slow
def test_the_server_s_side_is_killed_and_resumed(tmp_path: Path) -> None:
    rounds = 8
    project = made(tmp_path, rounds)
    with Federation(project, demo.NODES) as federation:
        run = running.begin(project, project.runs)
        with pytest.raises(running.Killed, match="--resume"):
            run.wait(Watching(3, lambda: kill_serverapp()))
        left = running.latest(project.runs)
        assert left.status == "killed"
        done = running.begin(project, project.runs, "latest").wait()
        federation.check()
    assert done.path == left.path
    kinds = [event["kind"] for event in done.events if event["kind"] not in ("time", "unsolved")]
    assert kinds == ["started", "weights", "resumed", "finished"]
    expected = in_process(rounds)
    torch.testing.assert_close(done.model(), expected.model, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(done.history()["value"], expected.history["value"], rtol=1e-10)


def kill_serverapp() -> None:
    mine = f"RESOLVENT_TEST={os.getpid()}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"flwr-serverapp" in (path / "cmdline").read_bytes() and mine in (path / "environ").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            continue


@pytest.mark.slow
def test_a_run_that_is_stopped_from_outside_ends_the_command(tmp_path: Path) -> None:
    """While it waits for nodes, and in its rounds."""
    project = made(tmp_path, 400)
    keys.make_node(project, "site-2")
    with Federation(project, demo.NODES[:2]) as federation:
        run = running.begin(project, project.runs)
        while "running" not in run.status():
            time.sleep(0.2)
        run.stop()
        with pytest.raises((InputError, running.Killed), match=r"stopped from outside|finished:stopped"):
            run.wait(None, federation.check)
        federation.start_node("site-2", 2)
        run = running.begin(project, project.runs)
        with pytest.raises(running.Killed, match=r"interrupted: it was stopped from outside\); `resolvent .* --resume"):
            run.wait(Watching(2, run.stop), federation.check)
        (left,) = runs.folders(project.runs)
        assert (left.status, left.row()["round"] >= 2) == ("interrupted", True)


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True])
def test_a_server_that_is_killed_ends_the_command(tmp_path: Path, begun: bool) -> None:
    """All of its processes, before the run's first round or later."""
    project = made(tmp_path, 400)
    for name in demo.NODES:
        keys.make_node(project, name)
    keys.make_server(project, ["127.0.0.1"])
    settings(project, "port = 9443", f"port = {processes.free_port()}")
    command = [sys.executable, "-m", "resolvent", "federate"]
    where = ["--project", str(project.path)]
    server = subprocess.Popen([*command, "server", *where], stderr=subprocess.PIPE, text=True)
    nodes: list[NodeProcesses] = []
    try:
        assert server.stderr is not None
        assert "listens" in server.stderr.readline()
        following = running.begin(project, project.runs)
        if begun:
            for number, name in enumerate(demo.NODES):
                nodes.append(NodeProcesses(project, name, project.server(), {"number": number}).open())
        while not (following.reported().get("run") if begun else "running" in following.status()):
            time.sleep(0.2)
        server.kill()
        words = r"stopped from outside\); `.* --resume" if begun else "ended before the run began"  # by the guard
        with pytest.raises(running.Killed, match=words):
            following.wait()
    finally:
        server.kill()
        server.communicate()
        for node in nodes:
            node.close()


@pytest.mark.slow
def test_the_superlink_is_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    rounds = 8
    project = made(tmp_path, rounds)
    settings(project, "timeout = 120.0", "timeout = 600.0")  # a node may wait three minutes for half a question
    with Federation(project, demo.NODES) as federation:
        run = running.begin(project, project.runs)

        def act() -> None:
            kill(federation.processes.superlink)

        done = run.wait(Watching(3, act), federation.check)
    expected = in_process(rounds)
    torch.testing.assert_close(done.model(), expected.model, rtol=1e-9, atol=1e-10)
    assert done.status == "finished"


@pytest.mark.slow
def test_all_nodes_are_started_again(tmp_path: Path) -> None:
    """With min_users = 3 the round in which they go waits for them, and the trajectory is the unbroken one."""
    rounds = 6
    project = made(tmp_path, rounds)
    settings(project, "min_users = 1", "min_users = 3")
    with Federation(project, demo.NODES) as federation:
        run = running.begin(project, project.runs)
        every = [process for node in federation.nodes.values() for process in node.processes]
        done = run.wait(Watching(3, lambda: kill(*every)), federation.check)
    assert done.status == "finished"
    torch.testing.assert_close(done.model(), in_process(rounds).model, rtol=1e-9, atol=1e-10)
    assert (done.history()["participants"] == 3).all()


@pytest.mark.slow
def test_a_node_ten_times_slower_does_not_slow_the_rounds_down(tmp_path: Path) -> None:
    """One round waits for it, and no other. FedPi is exact all the same."""
    project = made(tmp_path, 4000, SLOW_USER, eta=0.8, more="[stop]\ncertificates = 5e-5\n")
    settings(project, "timeout = 120.0", "timeout = 12.0")
    with Federation(project, demo.NODES, {"site-2": {"seconds": 15}}) as federation:
        done = running.begin(project, project.runs).wait(None, federation.check)
    assert done.status == "stopped"
    late = [(event["user"], event["round"]) for event in done.events if event["kind"] == "late"]
    assert late == [("site-2", 1)]
    came = done.history()["participants"].tolist()
    assert came[0] == 2
    assert came.count(2) > 2 * came.count(3)  # these were closed without waiting for it
    gap = np.square(np.asarray(done.model()) - np.mean(CENTRES, axis=0)).sum() / 2
    assert gap < 1e-8


@pytest.mark.slow
def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    """As a person would: `federate up` and Ctrl-C, before and after it is ready."""
    project = made(tmp_path, 3)
    for ready in (False, True):
        up = subprocess.Popen(
            [sys.executable, "-m", "resolvent", "federate", "up", "--project", str(project.path)],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whoever runs the tests may ignore it
        )
        assert up.stderr is not None
        if ready:
            assert "nodes are up" in up.stderr.readline()
        else:
            until = time.monotonic() + 200
            while not (project.state / "superlink.log").exists():  # it has begun to start processes
                assert time.monotonic() < until
                time.sleep(0.05)
        up.send_signal(signal.SIGINT)
        assert up.wait(200) == 130
        up.stderr.close()
        assert not flower_processes()


@pytest.mark.slow
def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    import socket

    project = made(tmp_path, 3)
    keys.make_server(project, ["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is taken"):
            deployment.superlink(project, Server("127.0.0.1", port))
    with pytest.raises(InputError, match="site-9 is missing; `resolvent federate keys --node site-9` makes it"):
        NodeProcesses(project, "site-9", project.server(), {})


@pytest.mark.slow
def test_keys_are_renewed_and_revoked_while_a_run_goes_on(tmp_path: Path) -> None:
    """A node with a new key is the same user, and one whose key is taken away is shut out: its user holds."""
    project = made(tmp_path, 400)
    settings(project, "timeout = 120.0", "timeout = 8.0")
    with Federation(project, demo.NODES) as federation:
        old = (project.nodes / "site-1.pub").read_bytes()
        run = running.begin(project, project.runs)

        def renew() -> None:
            federation.nodes.pop("site-1").close()
            keys.make_node(project, "site-1", renew=True)
            federation.start_node("site-1", 1)

        def revoke() -> None:
            (project.nodes / "site-2.pub").unlink()
            federation.nodes.pop("site-2").close()

        def heard(kind: str, user: str) -> Callable[[Folder], bool]:
            return lambda folder: any(e["kind"] == kind and e.get("user") == user for e in folder.events)

        def full(folder: Folder) -> bool:  # the answers of all three, some of them with the new key
            return heard("restarted", "site-1")(folder) and folder.row()["participants"] == 3

        acts: list[tuple[Callable[[Folder], bool], Callable[[], None]]]
        acts = [(lambda folder: folder.row().get("round", 0) >= 2, renew), (full, revoke)]
        acts += [(lambda folder: heard("gone", "site-2")(folder) and folder.row()["participants"] == 2, run.stop)]

        def seen(folder: Folder) -> None:
            if acts and acts[0][0](folder):
                acts.pop(0)[1]()

        with pytest.raises(running.Killed, match="stopped from outside"):
            run.wait(seen, federation.check)
        assert not acts
        assert (project.nodes / "site-1.pub").read_bytes() != old
        known = control.nodes(project, federation.server)
        assert known.keys() == keys.public_keys(project).keys()
        assert sorted(keys.public_keys(project).values()) == ["site-0", "site-1"]
