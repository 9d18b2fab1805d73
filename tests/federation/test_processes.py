"""Processes are ended with all that they have started, whatever happens to whoever started them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resolvent as rs
from resolvent.engines.flower import forward
from resolvent.engines.flower.messages import Question, describe_operator
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.packets import from_bytes, to_bytes
from resolvent.federation import processes, supernode, worker

CHILD = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], {more}); "
)
LEADER = CHILD.format(more="stdout=2") + "print('up', flush=True); time.sleep(600)"
STUBBORN = (
    CHILD.format(more="stdout=2")
    + "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def eventually(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def group_alive(group: int) -> bool:
    """Whether any process of a group is left. One that has ended and that nobody has waited for does not count."""
    stats = (path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat") if path.exists())
    return any(int(fields[2]) == group and fields[0] != "Z" for fields in stats)


def started(tmp_path: Path, code: str) -> processes.Process:
    made = processes.start("one", [sys.executable, "-c", code], tmp_path / "log", dict(os.environ))
    eventually(lambda: "up" in made.log.read_text())
    return made


def test_last_words_are_a_process_s_own_and_begin_at_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("ERROR: what an earlier one said\n")
    sentence = "14 columns cannot be used: " + ", ".join(f"column {k}" for k in range(120))
    for code, words in (("print('so far, so good')", "so far, so good"), (f"exit({'ERROR: ' + sentence!r})", sentence)):
        made = processes.start("one", [sys.executable, "-c", code], tmp_path / "log", dict(os.environ))
        eventually(lambda made=made: not made.running)  # type: ignore[misc]
        assert made.last_words() == words
        processes.stop(made)


def test_a_process_and_its_children_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that do not want to."""
    monkeypatch.setattr(processes, "GRACE", 0.3)
    made = started(tmp_path, STUBBORN)
    assert group_alive(made.popen.pid)
    processes.stop(made, None)
    assert not group_alive(made.popen.pid)
    processes.stop(made)  # again: nothing happens


def test_what_a_process_has_started_ends_with_it(tmp_path: Path) -> None:
    """Also where its guard was killed: then as soon as somebody looks, and before its port is needed again."""
    made = started(tmp_path, CHILD.format(more="stdout=2") + "print('up', flush=True)")
    made.popen.wait(60)
    assert not group_alive(made.popen.pid)
    made = started(tmp_path / "other", LEADER)
    made.popen.kill()
    made.popen.wait()
    assert group_alive(made.popen.pid)
    processes.stop(made)
    assert not group_alive(made.popen.pid)


LISTENER = """
import socket, sys, threading, time
door = socket.create_server(("127.0.0.1", int(sys.argv[1])))
much = bytearray(b"x") * 200_000_000
for _ in range(20):
    threading.Thread(target=time.sleep, args=(600,)).start()
print("up", flush=True)
"""


def test_the_port_of_a_killed_process_is_free_once_it_was_stopped(tmp_path: Path) -> None:
    """Its first thread may have ended while others have not, and then it seems to have ended."""
    for k in range(4):
        port, log = processes.free_port(), tmp_path / f"log{k}"
        made = processes.start("one", [sys.executable, "-c", LISTENER, str(port)], log, dict(os.environ))
        while "up" not in log.read_text():
            time.sleep(0.02)
        os.killpg(made.popen.pid, signal.SIGKILL)
        made.popen.wait()
        processes.stop(made)
        assert not processes.listening("127.0.0.1", port)


def test_ctrl_c_while_a_process_is_being_started_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when the process is there and nobody has its number: the pipe to its guard is closed."""
    guards: list[int] = []
    fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]

    def interrupted(*given: Any) -> None:
        guards.append(fork_exec(*given))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "_fork_exec", interrupted)
    with pytest.raises(KeyboardInterrupt):
        processes.start("one", [sys.executable, "-c", LEADER], tmp_path / "log", dict(os.environ))
    os.waitpid(guards[0], 0)
    assert not group_alive(guards[0])


def test_a_process_that_was_started_can_be_interrupted(tmp_path: Path) -> None:
    tell = "import signal; print('blocked', signal.pthread_sigmask(signal.SIG_BLOCK, ()), 'up', flush=True)"
    made = started(tmp_path, tell)
    processes.stop(made)
    assert "blocked set() up" in made.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_of_a_killed_parent_end_as_well(tmp_path: Path, number: signal.Signals) -> None:
    """Also what they have started in turn, which Linux's signal to the children of a killed process does not reach."""
    code = (
        "import os, sys, time; from pathlib import Path; from resolvent.federation import processes; "
        f"p = processes.start('x', [sys.executable, '-c', {LEADER!r}], Path({str(tmp_path / 'log')!r}), "
        "dict(os.environ)); print(p.popen.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    eventually(lambda: "up" in (tmp_path / "log").read_text())
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not group_alive(child))


def test_roles_are_found_and_stopped(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; from pathlib import Path; from resolvent.federation import processes; "
        f"processes.note(Path({str(tmp_path)!r}), 'server', port=7); print('up', flush=True); time.sleep(600)"
    )
    made = started(tmp_path, code)
    told = processes.noted(tmp_path)
    assert told["server"]["running"]
    assert (os.getpgid(told["server"]["pid"]), told["server"]["port"]) == (made.popen.pid, 7)
    assert processes.stop_noted(tmp_path, "server")
    assert made.popen.wait() == 128 + signal.SIGTERM
    assert processes.noted(tmp_path) == {}
    assert not processes.stop_noted(tmp_path, "server")


def test_a_number_that_another_process_has_by_now_is_not_touched(tmp_path: Path) -> None:
    about = {"pid": os.getpid()}  # it would stop this very process
    (tmp_path / "server.json").write_text(json.dumps(about))
    assert processes.noted(tmp_path)["server"] == about | {"running": False}
    assert not processes.stop_noted(tmp_path, "server")


def test_ports() -> None:
    port = processes.free_port()
    assert not processes.listening("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        assert processes.listening("127.0.0.1", port)


def test_questions_reach_the_process_that_has_the_data(tmp_path: Path) -> None:
    """And what its code raises comes back as a line."""
    node: Any = Node(rs.LeastSquares(np.eye(2)[None], np.ones((1, 2))))
    path = tmp_path / "s"
    threading.Thread(target=worker.serve, args=(node, path, None), daemon=True).start()
    eventually(path.exists)
    assert path.stat().st_mode & 0o077 == 0
    question = Question("describe", "run", operator=describe_operator(rs.ExactProx())).packet()
    told = from_bytes(forward.through(str(path), to_bytes(question)))
    assert told.header["facts"]["dim"] == 2
    wrong = from_bytes(forward.through(str(path), b"nonsense"))
    assert "Malformed" in wrong.header[forward.FAILED]
    with pytest.raises(FileNotFoundError):
        supernode.through(str(tmp_path / "gone"), b"", seconds=0.0)


def test_a_question_waits_for_a_process_that_is_being_started(tmp_path: Path) -> None:
    node: Any = Node(rs.LeastSquares(np.eye(2)[None], np.ones((1, 2))))
    path, content = tmp_path / "s", to_bytes(Question("describe", "run").packet())
    answers: list[bytes] = []
    asking = threading.Thread(target=lambda: answers.append(supernode.through(str(path), content)))
    asking.start()
    time.sleep(0.3)
    with socket.socket(socket.AF_UNIX) as stale:  # as a process that was killed leaves it
        stale.bind(str(path))
    time.sleep(0.3)
    assert asking.is_alive()
    threading.Thread(target=worker.serve, args=(node, path, None), daemon=True).start()
    asking.join(60)
    assert from_bytes(answers[0]).header["facts"]["dim"] == 2
