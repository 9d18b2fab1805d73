"""Pages whose answers come late, in another order than they were asked for, or from a server that was restarted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from resolvent.runs import Folder, folders
from resolvent.ui import server

from .conftest import Open, admit, serving
from .test_pages import drawn, grows, lines, row, slide, until

playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")


class Growing:
    """A run that nobody writes, and whose rows come when the test says so."""

    def __init__(self, stored: Path, out: Path, rows: int) -> None:
        first = folders(stored)[0]
        self.whole = first.metrics.read_bytes().splitlines(keepends=True)
        unfinished = shutil.ignore_patterns("checkpoints", "events.jsonl")
        self.run = Folder(shutil.copytree(first.path, out / first.id, ignore=unfinished))
        self.have(rows)

    def have(self, number: int) -> None:
        self.run.metrics.write_bytes(b"".join(self.whole[: 1 + number]))
        os.utime(self.run.path)  # changes of files that nobody writes are looked for where the folder changed


def settled(page: Any) -> None:
    """Let what has arrived be drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


@contextmanager
def closing(page: Any) -> Iterator[Any]:
    """Close a page before its server ends."""
    try:
        yield page
    finally:
        page.context.close()


@pytest.mark.parametrize("cell", [".name", ".rounds"])
def test_a_row_that_changes_while_it_is_clicked(cell: str, stored: Path, tmp_path: Path, opened: Open) -> None:
    growing = Growing(stored, tmp_path, 4)
    with serving(tmp_path) as place, closing(opened(place)) as page:
        line = row(page, growing.run)
        box = line.locator(cell).bounding_box()
        page.mouse.move(box["x"] + box["width"] - 4, box["y"] + box["height"] - 4)
        page.mouse.down()
        growing.have(9)
        playwright.expect(line.locator(".rounds")).to_contain_text("9 /")
        page.mouse.up()
        playwright.expect(line).to_have_attribute("aria-selected", "true")


def test_the_last_selection_is_the_one_that_is_drawn(address: str, stored: Path, opened: Open) -> None:
    page, (first, second) = opened(address), folders(stored)[:2]
    held: list[Any] = []
    page.route("**/api/compare", lambda request: held.append(request))
    row(page, first).click()
    until(page, lambda: bool(held))
    row(page, second).click()
    playwright.expect(row(page, second)).to_have_attribute("aria-selected", "true")
    settled(page)
    page.route("**/api/compare", lambda request: request.continue_())
    for request in reversed(held):
        with page.expect_response("**/api/compare"):
            request.continue_()
        settled(page)
    lines(page, 2)
    assert page.locator("#differences tbody tr").count() == 2


def test_a_list_that_comes_late_does_not_undo_what_was_told_meanwhile(
    stored: Path, tmp_path: Path, opened: Open
) -> None:
    growing, other = Growing(stored, tmp_path, 4), folders(stored)[1]
    shutil.copytree(other.path, tmp_path / other.id)
    answers: list[Any] = []

    def late(request: Any) -> None:
        answers.append((request, request.fetch()))

    with serving(tmp_path) as place, closing(opened("about:blank")) as page:
        page.route("**/api/runs", late)
        admit(page.context, place)
        page.goto(place)
        until(page, lambda: bool(answers))
        growing.have(9)
        playwright.expect(row(page, growing.run).locator(".rounds")).to_contain_text("9 /")
        page.route("**/api/runs", lambda request: request.continue_())
        for request, answer in answers:
            request.fulfill(response=answer)
        playwright.expect(page.locator(".line")).to_have_count(2)
        assert "9 /" in row(page, growing.run).locator(".rounds").inner_text()


@pytest.mark.parametrize("shown", ["/#runs={}", "/run?id={}"])
def test_a_page_goes_on_when_its_server_was_restarted(shown: str, stored: Path, tmp_path: Path, opened: Open) -> None:
    growing = Growing(stored, tmp_path, 4)
    chart = "chart" if "#" in shown else "chart-first"
    kept = server.listening("127.0.0.1", 0)  # whoever connects between the two waits
    with serving(tmp_path, listener=kept.dup()) as place:
        page = opened(place + shown.format(growing.run.id), expected="net::ERR")
        grows(page, chart, 3)
    growing.have(9)
    with serving(tmp_path, listener=kept), closing(page):
        grows(page, chart, 8)
        assert len(drawn(page, chart)[0]["x"]) == 9


def test_a_curve_grows_on_a_linear_scale_too(stored: Path, tmp_path: Path, opened: Open) -> None:
    """Plotly takes an array that is the same for one that has not changed."""
    growing = Growing(stored, tmp_path, 4)
    with serving(tmp_path) as place, closing(opened(f"{place}/#runs={growing.run.id}")) as page:
        grows(page, "chart", 3)
        page.get_by_text("linear").click()
        page.wait_for_function("() => document.getElementById('chart')._fullLayout.yaxis.type === 'linear'")
        growing.have(9)
        page.wait_for_function(
            "() => document.querySelector('#chart path.js-line').getAttribute('d').match(/[ML]/g).length === 9"
        )


def test_the_final_number_follows_a_run_that_goes_on(stored: Path, tmp_path: Path, opened: Open) -> None:
    growing = Growing(stored, tmp_path, 4)
    with serving(tmp_path) as place, closing(opened(f"{place}/#runs={growing.run.id}")) as page:
        final = page.locator("#differences tbody td").last
        listed = row(page, growing.run).locator(".number.right").first
        playwright.expect(final).to_have_text(listed.inner_text())
        before = final.inner_text()
        growing.have(9)
        playwright.expect(listed).not_to_have_text(before)
        settled(page)
        playwright.expect(final).to_have_text(listed.inner_text(), timeout=10_000)


def test_a_selected_run_that_is_deleted(stored: Path, tmp_path: Path, opened: Open) -> None:
    growing, other = Growing(stored, tmp_path, 4), folders(stored)[1]
    shutil.copytree(other.path, tmp_path / other.id)
    with serving(tmp_path) as place, closing(opened(f"{place}/#runs={growing.run.id},{other.id}")) as page:
        lines(page, 2)
        shutil.rmtree(growing.run.path)
        lines(page, 1)
        playwright.expect(page.locator("#differences tbody tr")).to_have_count(1)
        shutil.rmtree(tmp_path / other.id)
        playwright.expect(page.locator("#nothing")).to_be_visible()
        playwright.expect(page.locator("#differences")).to_be_empty()


def test_a_problem_that_is_chosen_before_the_answer_on_another(address: str, opened: Open) -> None:
    wanted = opened(f"{address}/explorer#problem=sets")
    lines(wanted, 1)
    page = opened(f"{address}/explorer#problem=least-squares&rounds=10")
    lines(page, 1)
    held: list[Any] = []
    page.route("**/api/explore", lambda request: held.append(request))
    slide(page, "gamma", 0.25)
    until(page, lambda: bool(held))
    page.select_option("#problem", "sets")
    page.route("**/api/explore", lambda request: request.continue_())
    for request in held:
        request.continue_()
    playwright.expect(page.locator("#plane .rim")).to_have_count(2)
    playwright.expect(page.locator("#y")).to_have_value(wanted.locator("#y").input_value())
    playwright.expect(page.locator("#where")).to_have_text(wanted.locator("#where").inner_text())


DRIVEN = """window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  readyState = 1;
  constructor() { super(); window.events = this; }
  close() {}
  tell(name, data) { this.dispatchEvent(new MessageEvent(name, {data: JSON.stringify(data)})); }
}"""


@pytest.mark.parametrize("first", ["answer", "event"])
def test_a_started_run_is_selected_whichever_comes_first(first: str, address: str, stored: Path, opened: Open) -> None:
    run = folders(stored)[0]
    job = {"id": "abc", "run": None, "status": "running", "words": ""}
    old = {"id": "old", "run": None, "status": "failed", "words": "long ago"}
    page = opened("about:blank")
    page.add_init_script(DRIVEN)
    held: list[Any] = []
    page.route(
        "**/api/runs", lambda request: held.append(request) if request.request.method == "POST" else request.continue_()
    )
    page.route("**/api/jobs", lambda request: request.fulfill(json=[old]))
    admit(page.context, address)
    page.goto(address)
    with page.expect_response("**/api/jobs"):
        page.evaluate("() => events.tell('hello', {})")
    playwright.expect(row(page, run)).to_be_visible()
    page.click("#new")
    page.get_by_role("button", name="Start", exact=True).dblclick()
    until(page, lambda: bool(held))
    if first == "answer":
        held[0].fulfill(status=202, json=job)
        playwright.expect(page.locator("#told")).to_contain_text("Starting")
    page.evaluate("jobs => events.tell('jobs', jobs)", [old, job | {"run": run.id}])
    if first == "event":
        held[0].fulfill(status=202, json=job)
    playwright.expect(row(page, run)).to_have_attribute("aria-selected", "true")
    playwright.expect(page.locator("#told")).to_contain_text("Starting")
    assert len(held) == 1  # though it was clicked twice


def test_a_run_page_keeps_what_it_was_told_last(address: str, stored: Path, opened: Open) -> None:
    """An answer that is older than an event, and an event before the first answer."""
    run, answers = folders(stored)[0], list[Any]()
    page = opened("about:blank")
    page.add_init_script(DRIVEN)
    page.route(f"**/api/runs/{run.id}", lambda request: answers.append((request, request.fetch())))
    admit(page.context, address)
    page.goto(f"{address}/run?id={run.id}")
    page.evaluate("() => events.tell('hello', {})")
    until(page, lambda: bool(answers))
    told = json.loads(answers[0][1].body())
    now = told["row"] | {"status": "interrupted"}
    page.evaluate("row => events.tell('runs', {changed: [row], gone: []})", now)
    request, _ = answers.pop(0)
    request.fulfill(json=told | {"row": told["row"] | {"status": "running"}})
    playwright.expect(page.locator("#status")).to_have_text("interrupted")
    until(page, lambda: bool(answers))  # it asks once more, since the answer may have been the older one
    request, _ = answers.pop(0)
    page.route(f"**/api/runs/{run.id}", lambda request: request.continue_())
    request.fulfill(json=told)
    playwright.expect(page.locator("#status")).to_have_text(told["row"]["status"])
