"""Server-sent events: which runs have changed, told to every open page within a fraction of a second."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from resolvent.ui.jobs import Jobs
from resolvent.ui.store import Row, Store

MIN_PAUSE, MAX_PAUSE, PAUSE_PER_LOOK = 0.1, 0.3, 4.0
"""Seconds between two looks at the folder: so many times what a look takes, within these bounds."""
BEAT = 0.5
"""Seconds after which an idle stream shows that it is alive, and looks whether the server is ending."""
MAX_WAITING = 256
"""Messages that may wait for a page; one that falls further behind is told to read everything again."""


def message(event: str, data: Any) -> bytes:
    """One server-sent event."""
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


class Stream:
    """Looks for changes while somebody listens, and tells everyone who does.

    A page that asks for all runs after the hello, and then applies what it is told in order, shows what is there.
    """

    def __init__(self, store: Store, jobs: Jobs, ending: Callable[[], bool]) -> None:
        self._store, self._jobs, self._ending = store, jobs, ending
        self._sent = {row["id"]: row for row in store.rows()}
        self._sent_jobs = jobs.rows()
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None

    async def listen(self, gone: Callable[[], Any]) -> AsyncIterator[bytes]:
        """The events for one page, until it is gone."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._listeners.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            yield b"retry: 1000\n\n" + message("hello", {})
            while not (self._ending() or self._task.done() or await gone()):  # without a watch, the page begins anew
                try:
                    yield await asyncio.wait_for(queue.get(), BEAT)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._listeners.discard(queue)

    async def _watch(self) -> None:
        while self._listeners:
            began = time.perf_counter()
            changed, lost = await asyncio.to_thread(self._news)
            if changed or lost:
                self._send(message("runs", {"changed": changed, "gone": lost}))
            jobs = await asyncio.to_thread(self._jobs.rows)
            if jobs != self._sent_jobs:
                self._sent_jobs = jobs
                self._send(message("jobs", jobs))
            await asyncio.sleep(min(max(MIN_PAUSE, PAUSE_PER_LOOK * (time.perf_counter() - began)), MAX_PAUSE))

    def _news(self) -> tuple[list[Row], list[str]]:
        """What differs from what was told last. Requests look at runs too, so that what the store finds changed here
        is not all of it."""
        self._store.refresh()
        before, now = self._sent, {row["id"]: row for row in self._store.rows()}
        self._sent = now
        changed = [row for name, row in now.items() if before.get(name) is not row]
        return changed, [name for name in before if name not in now]

    def _send(self, event: bytes) -> None:
        for queue in self._listeners:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(message("again", {}))
            else:
                queue.put_nowait(event)
