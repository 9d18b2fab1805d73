"""Processes are ended with all that they have started, whatever happens to whoever started them."""

from __future__ import annotations

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


def started(tmp_path: Path, code: str) -> processes.Process:
    made = processes.start("one", [sys.executable, "-c", code], tmp_path / "log", dict(os.environ))
    eventually(lambda: "up" in made.log.read_text())
    return made


def test_a_process_and_its_children_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that do not want to."""
    monkeypatch.setattr(processes, "GRACE", 0.3)
    made = started(tmp_path, STUBBORN)
    assert processes.group_alive(made.popen.pid)
    processes.stop(made, None)
    assert not processes.group_alive(made.popen.pid)
    processes.stop(made)  # again: nothing happens


def test_ctrl_c_while_a_process_is_being_started_is_not_lost(tmp_path: Path) -> None:
    """Python ignores what is raised while it forks: here the signal comes just then."""
    armed = [True]
    os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT) if armed and armed.pop() else None)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait)  # may take the signal in this thread's stead
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            processes.start("one", [sys.executable, "-c", "pass"], tmp_path / "log", dict(os.environ))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
        waiting.set()
        other.join()


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
    eventually(lambda: not processes.group_alive(child))


def test_roles_are_found_and_stopped(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; from pathlib import Path; from resolvent.federation import processes; "
        f"processes.note(Path({str(tmp_path)!r}), 'server', port=7); print('up', flush=True); time.sleep(600)"
    )
    made = started(tmp_path, code)
    told = processes.noted(tmp_path)
    assert told["server"]["running"]
    assert (told["server"]["pid"], told["server"]["port"]) == (made.popen.pid, 7)
    threading.Thread(target=made.popen.wait).start()  # whoever started it looks after it
    assert processes.stop_noted(tmp_path, "server", told["server"])
    assert made.popen.wait() == -signal.SIGTERM
    assert processes.noted(tmp_path) == {}
    assert not processes.stop_noted(tmp_path, "server", told["server"])


def test_a_number_that_another_process_has_by_now_is_not_touched(tmp_path: Path) -> None:
    processes.note(tmp_path, "server")
    other = processes.noted(tmp_path)["server"] | {"began": "1"}
    assert not processes.stop_noted(tmp_path, "server", other)  # it would have stopped this very process


def test_ports() -> None:
    port = processes.free_port()
    assert not processes.listening("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        assert processes.listening("127.0.0.1", port)


def test_questions_reach_the_process_that_has_the_data(tmp_path: Path) -> None:
    """And what its code raises comes back as a line."""
    node: Any = Node(rs.LeastSquares(np.eye(2)[None], np.ones((1, 2))))
    path = tmp_path / "s"
    threading.Thread(target=worker.serve, args=(node, path), daemon=True).start()
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
    threading.Thread(target=worker.serve, args=(node, path), daemon=True).start()
    asking.join(60)
    assert from_bytes(answers[0]).header["facts"]["dim"] == 2
