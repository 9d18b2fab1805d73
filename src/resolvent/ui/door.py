"""Connections before they have shown the token: few at a time, and not for long.

Whoever reaches the port can open connections and send nothing, or a header byte by byte. Files that a process may have
open are few (often 1,024), so that without bounds some hundred such clients would shut everybody else out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from resolvent.ui.guard import ADMITTED

MAX_STRANGERS = 128
"""Connections that have not shown the token, at most: where one more comes, the oldest of them is closed."""
MAX_SECONDS_UNKNOWN = 10.0
"""Seconds in which a connection must have shown it."""
MAX_CONNECTIONS = 512
"""Connections in all; further requests are answered with 503."""
MAX_BACKLOG = 64
"""Connections that are accepted in a row before any of them is looked at."""
MAX_HEADER_BYTES = 1 << 14
"""Of a request's head, at most."""


class Door(H11Protocol):
    """One connection."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], *more: Any, **named: Any) -> None:
        super().__init__(config, server_state, {**app_state, ADMITTED: self._admit}, *more, **named)
        self.stranger = True
        self.since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        strangers = [each for each in self.connections if isinstance(each, Door) and each.stranger]
        if len(strangers) >= MAX_STRANGERS:
            oldest = min(strangers, key=lambda each: each.since)
            self.connections.discard(oldest)
            oldest.transport.abort()
        super().connection_made(transport)
        self._timer = self.loop.call_later(MAX_SECONDS_UNKNOWN, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _admit(self) -> None:
        self.stranger = False
        self._timer.cancel()
