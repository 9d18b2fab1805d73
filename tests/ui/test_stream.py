"""The stream of events: whatever else looks at the runs, pages are told of every change, and the last one is right."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from resolvent.runs import folders
from resolvent.ui.jobs import Job, Jobs
from resolvent.ui.store import Store
from resolvent.ui.stream import Stream

Told = Callable[[str], Coroutine[Any, Any, Any]]


@pytest.fixture
def copied(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "runs"))


def heard(store: Store, page: Callable[[Told], Coroutine[Any, Any, None]], jobs: Jobs | None = None) -> None:
    """Open a page, which is given a function that waits for the next event of a name."""

    async def gone() -> bool:
        return False

    async def opened() -> None:
        stream = Stream(store, jobs or Jobs(store), lambda: False).listen(gone)

        async def told(name: str) -> Any:
            async for message in stream:
                if f"event: {name}\n".encode() in message:
                    return json.loads(message.partition(b"data: ")[2])
            raise EOFError

        await told("hello")
        await page(told)
        await stream.aclose()  # type: ignore[attr-defined]

    with ThreadPoolExecutor(1) as thread:  # the browser's driver may have a loop in this one
        thread.submit(lambda: asyncio.run(asyncio.wait_for(opened(), 120))).result()


@pytest.mark.parametrize("look", ["row", "refresh"])
def test_a_change_that_a_request_has_seen_first_is_told(look: str, copied: Path) -> None:
    store, run = Store(copied), folders(copied)[0]
    store.refresh()
    events = run.path / "events.jsonl"
    ended = events.read_bytes()
    events.write_bytes(ended.splitlines(keepends=True)[0])
    (run.path / "changed").write_text("")  # the folder's time tells that something has
    store.refresh()

    async def page(told: Told) -> None:
        assert store.row(run.id)["status"] == "killed"
        events.write_bytes(ended)
        (run.path / "changed").unlink()
        if look == "row":
            assert store.row(run.id)["status"] == "finished"
        else:
            store.refresh()
        news = await told("runs")
        assert [(row["id"], row["status"]) for row in news["changed"]] == [(run.id, "finished")]
        shutil.rmtree(run.path)
        store.refresh()
        assert (await told("runs"))["gone"] == [run.id]

    heard(store, page)


def test_what_changed_while_nobody_listened_is_told(copied: Path) -> None:
    store, first, second = Store(copied), *(run.path for run in folders(copied)[:2])
    store.refresh()
    jobs = Jobs(store)
    stream = Stream(store, jobs, lambda: False)
    shutil.rmtree(first)
    store.refresh()
    changed, gone = stream._news()
    assert (changed, gone) == ([], [first.name])
    assert stream._news() == ([], [])
    shutil.rmtree(second)
    assert stream._news()[1] == [second.name]


def test_a_watch_that_fails_ends_the_stream_so_that_pages_begin_anew(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(copied)

    async def page(told: Told) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        monkeypatch.setattr(store, "refresh", lambda: 1 / 0)
        with pytest.raises(EOFError):
            await told("runs")

    heard(store, page)


def test_jobs_are_told_though_a_run_was_deleted(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may be deleted between the list of runs and the search for the one that a job has begun."""
    store = Store(copied)
    store.refresh()
    jobs = Jobs(store)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        jobs._jobs["a"] = Job("a", process, copied / "output")
        rows = [row | {"id": "deleted", "status": "running"} for row in store.rows()]
        monkeypatch.setattr(store, "rows", lambda: rows)
        assert jobs.rows() == [{"id": "a", "run": None, "status": "running", "words": ""}]
    assert jobs.rows()[0]["status"] == "ended"
