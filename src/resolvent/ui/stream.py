"""Server-sent events: which runs have changed, told to every open page within a fraction of a second."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from resolvent.ui.jobs import Jobs
from resolvent.ui.store import Row, Store

SHORTEST, LONGEST, SHARE = 0.1, 0.3, 4.0
"""Seconds between two looks at the folder: so many times what a look takes, within these bounds."""
BEAT = 0.5
"""Seconds after which an idle stream shows that it is alive, and looks whether the server is ending."""
ROOM = 256
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
        self._told = {row["id"]: row for row in store.rows()}
        self._told_jobs = jobs.rows()
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None

    async def listen(self, gone: Callable[[], Any]) -> AsyncIterator[bytes]:
        """The events for one page, until it is gone."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(ROOM)
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
                self._tell(message("runs", {"changed": changed, "gone": lost}))
            jobs = await asyncio.to_thread(self._jobs.rows)
            if jobs != self._told_jobs:
                self._told_jobs = jobs
                self._tell(message("jobs", jobs))
            await asyncio.sleep(min(max(SHORTEST, SHARE * (time.perf_counter() - began)), LONGEST))

    def _news(self) -> tuple[list[Row], list[str]]:
        """What differs from what was told last. Requests look at runs too, so that what the store finds changed here
        is not all of it."""
        self._store.refresh()
        told, now = self._told, {row["id"]: row for row in self._store.rows()}
        self._told = now
        return [row for name, row in now.items() if told.get(name) is not row], [
            name for name in told if name not in now
        ]

    def _tell(self, told: bytes) -> None:
        for queue in self._listeners:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(message("again", {}))
            else:
                queue.put_nowait(told)
