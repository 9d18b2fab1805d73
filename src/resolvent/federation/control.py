"""What the server's machine asks of its superlink: which nodes there are, to know another one, to begin or stop a run.

Flower's own command line does the same, one process per question.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from resolvent.errors import InputError
from resolvent.federation import bundle, keys, superlink
from resolvent.federation.project import Project, Server

NEVER_CAME = "never came"


class _WithToken:
    """Shows the superlink the token that commands need."""

    def __init__(self, project: Project) -> None:
        path = project.keys / keys.SECRET
        try:
            self._token = superlink.token(path.read_bytes())
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}): only whoever runs the server can") from None

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers["authorization"] = f"Bearer {self._token}"
        return call_next(context)


def address(server: Server) -> str:
    """Where the superlink serves commands and the processes of runs."""
    return f"{superlink.LOOPBACK}:{server.control}"


@contextmanager
def _client(project: Project, server: Server) -> Iterator[Any]:
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    logging.getLogger("httpx").setLevel(logging.WARNING)
    client = ControlHttpClient.from_server_address(
        server_address=address(server),
        insecure=False,
        root_certificates=(project.keys / keys.CA).read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _WithToken(project)],
    )
    try:
        yield client
    except httpx.HTTPStatusError as error:
        raise InputError(f"the server refused: {error.response.text[:300] or error}") from None
    except httpx.HTTPError as error:
        raise InputError(f"the server at {address(server)} cannot be reached ({error}); is it running?") from None
    except Exception as error:
        if type(error).__module__.startswith("flwr"):
            raise InputError(f"the server refused: {error}") from None
        raise
    finally:
        client.close()


def nodes(project: Project, server: Server) -> dict[bytes, str]:
    """How the nodes that the server knows stand (online, never came, gone since 14:05), by public key."""
    with _client(project, server) as client:
        return {key: standing(node) for key, node in _nodes(client).items()}


def standing(node: Any) -> str:
    """How a node stands. Flower calls one that never came registered, and one that was there offline."""
    if node.status == "registered":
        return NEVER_CAME
    if node.status != "offline" or not node.last_deactivated_at:
        return str(node.status)
    since, now = datetime.fromisoformat(node.last_deactivated_at).astimezone(), datetime.now().astimezone()
    return f"gone since {since:%H:%M}" if since.date() == now.date() else f"gone since {since:%Y-%m-%d %H:%M}"


def run_under_way(project: Project, server: Server) -> bool:
    """Whether a run goes on, or waits for its nodes."""
    from flwr.proto.control_pb2 import ListRunsRequest

    with _client(project, server) as client:
        runs = client.ListRuns(ListRunsRequest()).run_dict.values()
    return any(run.status.status != "finished" for run in runs)


def _nodes(client: Any) -> dict[bytes, Any]:
    from flwr.proto.control_pb2 import ListNodesRequest

    listed = client.ListNodes(ListNodesRequest()).nodes_info
    return {bytes(node.public_key): node for node in listed if node.status != "unregistered"}


def register(project: Project, server: Server) -> list[str]:
    """Let the server know exactly the nodes whose public keys are in the project: the names of the new ones."""
    from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

    named = keys.public_keys(project)
    with _client(project, server) as client:
        registered = _nodes(client)
        for key in registered.keys() - named.keys():
            client.UnregisterNode(request=UnregisterNodeRequest(node_id=registered[key].node_id))
        new = {key: name for key, name in named.items() if key not in registered}
        for key, name in new.items():
            client.RegisterNode(request=RegisterNodeRequest(public_key=key, name=name))
    return list(new.values())


def begin(project: Project, server: Server, given: dict[str, Any], app: Path | None = None) -> int:
    """Begin a run on the server: its number there. `app`: another one than the federation's own."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's own
        content = build_fab_from_disk(bundle.write(project.state / "app") if app is None else app)
    fab, config = Fab(hashlib.sha256(content).hexdigest(), content, {}), user_config_to_proto(given)
    request = StartRunRequest(fab=fab_to_proto(fab), override_config=config, federation="")
    with _client(project, server) as client:
        answer = client.StartRun(request)
    if not answer.HasField("run_id"):
        raise InputError("the server did not begin the run; see .federation/superlink.log")
    return int(answer.run_id)


def status(project: Project, server: Server, number: int) -> str:
    """How a run stands: pending, starting, running, finished:completed, finished:failed, ..."""
    from flwr.proto.control_pb2 import ListRunsRequest

    with _client(project, server) as client:
        runs = client.ListRuns(ListRunsRequest(run_id=number)).run_dict
    return f"{runs[number].status.status}:{runs[number].status.sub_status}".rstrip(":") if number in runs else "unknown"


def stop(project: Project, server: Server, number: int) -> None:
    """End a run."""
    from flwr.proto.control_pb2 import StopRunRequest

    with _client(project, server) as client:
        client.StopRun(request=StopRunRequest(run_id=number))
