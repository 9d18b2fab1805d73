"""A stranger who reaches a port and has the public ca.crt: what do Flower's calls give him?

    python stranger.py CA APP RUN ACCOUNT HOST:PORT ...

Prints a JSON object: for every address what each call gave, or "refused: ...". APP is the app that he wants to be run,
RUN the number of the run that he wants to end. With an ACCOUNT that is not empty, he takes that of the machine first.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, GetNodesRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

HEAD, PROTOBUF = "POST /v1/runtime/push-object HTTP/1.1\r\nhost: a\r\n", "application/protobuf"
"""The beginning of a call, and the type of its body."""
LOGGED = "what-a-stranger-writes"
"""Must be in no log of the server, which he could fill."""


def attempts(address: str, ca: bytes, fab: bytes, number: int) -> dict[str, str]:
    """What each call gives."""
    secret, key = generate_key_pairs()
    mine = public_key_to_bytes(key)

    def client(kind: Any, *more: Any) -> Any:
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        made = kind.from_server_address(address, False, ca, [version, *more])
        made._client.timeout = 20.0
        return made

    control, fleet = client(ControlHttpClient), client(FleetHttpClient, NodeAuthHttpInterceptor(secret, key))
    runtime, guess = client(RuntimeHttpClient), client(RuntimeHttpClient, RuntimeTokenHttpInterceptor("0" * 64))
    start = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})), federation="")
    calls: dict[str, Callable[[], Any]] = {
        "ListRuns": lambda: f"{len(control.ListRuns(ListRunsRequest()).run_dict)} runs",
        "StartRun": lambda: control.StartRun(start).run_id,
        "StopRun": lambda: control.StopRun(StopRunRequest(run_id=number)).success,
        "RegisterNode": lambda: control.RegisterNode(RegisterNodeRequest(public_key=mine, name="mallory")).node_id,
        "Fleet.RegisterNode": lambda: fleet.RegisterNode(RegisterNodeFleetRequest(public_key=mine)).node_id,
        "Fleet.ActivateNode": lambda: fleet.ActivateNode(ActivateNodeRequest(public_key=mine)).node_id,
        "AcquireTask": lambda: runtime.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"])).token,
        "GetNodes": lambda: guess.GetNodes(GetNodesRequest()).nodes,
        "a body": lambda: _begun(address, ca, f"{HEAD}content-type: {PROTOBUF}\r\ncontent-length: 30000000\r\n\r\n"),
        "a long path": lambda: _begun(address, ca, f"GET /{LOGGED}{'x' * 50_000} HTTP/1.1\r\nhost: a\r\n\r\n"),
        "headers without end": lambda: _begun(address, ca, HEAD + "x: y\r\n" * 200_000),
    }
    return {name: _tried(call) for name, call in calls.items()}


def _begun(address: str, ca: bytes, beginning: str) -> str:
    """What the beginning of a call gives: a server that waits for the rest would store it."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=ca.decode())
    line = socket.create_connection((host, int(port)), 20)
    with context.wrap_socket(line, server_hostname="127.0.0.1") as tls:
        try:
            tls.sendall(beginning.encode())
            answer = tls.recv(100)
        except TimeoutError:
            return "it waits for more"
    if answer[9:12] in (b"400", b"401", b"404"):
        raise ConnectionRefusedError(answer)
    return str(answer)


def _tried(call: Callable[[], Any]) -> str:
    try:
        return f"let in: {call()}"
    except Exception as error:
        response = getattr(error, "response", None)
        return f"refused: {getattr(response, 'status_code', '')} {type(error).__name__}: {str(error)[:120]}"


def main() -> None:
    ca, app, number, account, *addresses = sys.argv[1:]
    certificate, fab = Path(ca).read_bytes(), Path(app).read_bytes()
    if account:
        os.setgroups([])
        os.setgid(pwd.getpwnam(account).pw_gid)
        os.setuid(pwd.getpwnam(account).pw_uid)
    print(json.dumps({address: attempts(address, certificate, fab, int(number)) for address in addresses}))


if __name__ == "__main__":
    main()
