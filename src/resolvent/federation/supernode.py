"""Takes a node's part in Flower's network: hands questions to the process that has the data, and returns its answers.

    python -P supernode.py HOST:PORT CA KEY SOCKET

Flower's own flower-supernode runs whatever app the server names, and lets other accounts of the machine take part. This
one speaks the same protocol, with Flower's own client, but runs no app that arrives and listens nowhere. The file is
run by its path: the package around it would import torch.
"""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from logging import ERROR, INFO
from pathlib import Path
from types import ModuleType
from typing import Any

MIN_PAUSE, MAX_PAUSE = 0.2, 3.0
"""Seconds between two looks for questions: the shortest after an answer, then longer and longer."""
MAX_SECONDS_TO_START = 60.0
"""Seconds to wait for the process with the data."""


def main(address: str, ca: str, key: str, socket: str) -> None:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore import log
    from flwr.supernode.fleet_http_connection import http_request_response

    mine: Any = load_ssh_private_key(Path(key).read_bytes(), None)
    keys = mine, mine.public_key()
    with http_request_response(address, False, Path(ca).read_bytes(), keys) as connection:
        log(INFO, "SuperNode ID: %s", connection[0])
        pause = MIN_PAUSE
        while True:
            if answer_next(connection, partial(through, socket)):
                pause = MIN_PAUSE
            else:
                time.sleep(pause)
                pause = min(1.5 * pause, MAX_PAUSE)


def through(socket: str, content: bytes, seconds: float = MAX_SECONDS_TO_START) -> bytes:
    """What the process with the data answers; it may be starting, for the first time or again."""
    from resolvent.engines.flower import forward

    until = time.monotonic() + seconds
    while True:
        try:
            return forward.through(socket, content)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise
            time.sleep(MIN_PAUSE)


def answer_next(connection: Any, ask: Any) -> bool:
    """Answer the next question: whether one was answered. One whose run is over is dropped."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode
    from flwr.supercore import log
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
    from flwr.supercore.run import RunNotRunningException

    from resolvent.engines.flower import forward

    _, receive, _, _, _, pull, _, confirm = connection
    try:
        if (received := receive()) is None:
            return False
        (head, tree), began = received, time.monotonic()
        run = head.metadata.run_id
        question = pull_and_inflate_object_from_tree(
            tree, partial(pull, run), partial(confirm, run), return_type=Message
        )
        question.metadata.__dict__["_message_id"] = tree.object_id  # as Flower does: it is not among what was sent
        log(INFO, "[RUN %s, ROUND %s] a question", run, question.metadata.group_id)
        try:
            answer = forward.reply(question, ask)
        except Exception as error:
            log(ERROR, "no answer", exc_info=error)
            reason = f"{type(error).__name__}: {error}"[:500]
            answer = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=question)
        _send(connection, answer, time.monotonic() - began)
    except RunNotRunningException:
        log(INFO, "its run is over")
        return False
    return True


def _send(connection: Any, answer: Any, seconds: float) -> None:
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import push_objects

    _, _, send, _, _, _, push, _ = connection
    answer.metadata.__dict__["_message_id"] = answer.object_id
    with no_object_id_recompute():
        wanted, session = send(answer, get_object_tree(answer), seconds)
        push_objects(
            get_all_nested_objects(answer),
            partial(push, answer.metadata.run_id, session),
            object_ids_to_push=wanted,
        )


def without_init(*names: str) -> None:
    """Make packages of which modules can be imported without what their __init__ imports, which is torch."""
    root = Path(__file__).parents[2]
    for name in names:
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):  # SIGINT: Flower's client, once the server refuses this node
        signal.signal(number, lambda number, frame: sys.exit("the node ends"))
    without_init("resolvent", "resolvent.engines")
    main(*sys.argv[1:])
