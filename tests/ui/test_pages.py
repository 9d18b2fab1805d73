"""The pages in a real browser: curves that grow, comparison, sliders, stop and resume; nothing complained of, nobody
else asked. Each page is also photographed in both themes and at two widths."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import Process
from resolvent.runs import Folder, folders, sums

from .conftest import PATIENCE, Open, make, serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")
NASTY = '</script><img src=x onerror="window.taken = 1"><b>bold</b> & "it\'s"'
ENDLESS = ("--users", "3", "--dim", "4", "--rows", "10", "--eta", "0.001", "--rounds", "1000000")


def drawn(page: Any, chart: str = "chart") -> list[dict[str, Any]]:
    """The lines of a chart: names, colours and points, without the edges of bands."""
    found: list[dict[str, Any]] = page.evaluate(
        """id => (document.getElementById(id)?._fullData ?? []).filter(t => t.hoverinfo !== "skip").map(t => (
             {name: t.name, colour: t.line.color, x: Array.from(t.x), y: Array.from(t.y)}))""",
        chart,
    )
    return found


def lines(page: Any, number: int, chart: str = "chart") -> list[dict[str, Any]]:
    """The same, once there are so many."""
    page.wait_for_function(
        """([id, n]) => (document.getElementById(id)?._fullData ?? []).filter(t => t.hoverinfo !== "skip").length
                        === n""",
        arg=[chart, number],
    )
    return drawn(page, chart)


def row(page: Any, run: Folder | str) -> Any:
    return page.locator(f'.line[data-id="{run if isinstance(run, str) else run.id}"]')


def until(page: Any, true: Callable[[], bool]) -> None:
    """Wait for what the browser's requests bring about here."""
    end = time.monotonic() + PATIENCE / 1000
    while not true():
        assert time.monotonic() < end
        page.wait_for_timeout(20)


def grows(page: Any, chart: str, beyond: int) -> None:
    page.wait_for_function(
        "([id, n]) => (document.getElementById(id)?._fullData?.[0]?.x?.length ?? 0) > n", arg=[chart, beyond]
    )


def test_selected_runs_are_compared(address: str, stored: Path, opened: Open) -> None:
    runs = folders(stored)
    page = opened(address)
    playwright.expect(page.locator(".line")).to_have_count(len(runs))
    playwright.expect(page.locator("#count")).to_contain_text("6 runs")
    row(page, runs[0]).click()
    assert lines(page, 1)[0]["y"] == runs[0].history()["gap"].tolist()
    row(page, runs[1]).click()
    both = lines(page, 2)
    assert [line["name"] for line in both] == ["FedAvg", "FedProx"]
    assert [line["colour"].upper() for line in both] == ["#0072B2", "#E69F00"]
    page.select_option("#y", "residual")
    page.select_option("#x", "bytes")
    page.wait_for_function(
        "() => document.getElementById('chart')._fullLayout.xaxis.title.text === 'bytes communicated'"
    )
    history = runs[1].history()
    assert drawn(page)[1]["y"] == history["residual"].tolist()
    assert drawn(page)[1]["x"] == (history["bytes_up"] + history["bytes_down"]).cumsum().tolist()
    page.get_by_text("linear").click()
    page.wait_for_function("() => document.getElementById('chart')._fullLayout.yaxis.type === 'linear'")
    assert page.locator("#differences mark").all_inner_texts() == ["fedavg", "fedprox"]
    for run in runs[2:5]:  # seeds of one configuration: one curve, with a band
        row(page, run).click()
    playwright.expect(page.locator("#chart .scatterlayer .fills path.js-fill")).to_have_count(1)
    lines(page, 3)
    page.reload()
    lines(page, 3)  # the address remembers the selection
    with page.expect_download() as saved:
        page.locator("#downloads summary").click()
        page.get_by_text("CSV", exact=True).click()
    assert len(Path(saved.value.path()).read_text().splitlines()) == 1 + 5 * 15


def test_search_sort_filters_and_the_keyboard(address: str, stored: Path, opened: Open) -> None:
    page = opened(address)
    page.fill("#search", "fedpi stragglers")
    playwright.expect(page.locator(".line")).to_have_count(1)
    page.fill("#search", "no such run")
    playwright.expect(page.locator("#viewport")).to_contain_text("No run matches")
    page.fill("#search", "")
    playwright.expect(page.locator("#viewport .empty")).to_have_count(0)
    page.select_option("#algorithm", "fedpi")
    playwright.expect(page.locator(".line")).to_have_count(4)
    page.select_option("#algorithm", "")
    page.get_by_role("button", name="Gap").click()
    wanted = sorted(folders(stored), key=lambda run: run.row()["gap"])
    page.wait_for_function(
        """ids => [...document.querySelectorAll('.line')].sort((a, b) => a.dataset.k - b.dataset.k)
                  .map(l => l.dataset.id).join() === ids.join()""",
        arg=[run.id for run in wanted],
    )
    row(page, wanted[0]).focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("id => document.activeElement.dataset.id === id", arg=wanted[1].id)
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Space")
    playwright.expect(row(page, wanted[1])).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    page.wait_for_url("**/run?id=*")
    playwright.expect(page.locator("#id")).to_have_text(wanted[1].id)


def test_many_runs_show_only_the_rows_in_sight(stored: Path, tmp_path: Path, opened: Open) -> None:
    out = tmp_path / "runs"
    for k in range(300):
        shutil.copytree(folders(stored)[0].path, out / f"run-{k:03d}", ignore=shutil.ignore_patterns("checkpoints"))
    with serving(out) as place:
        page = opened(place)
        playwright.expect(page.locator("#count")).to_contain_text("300 runs")
        assert page.locator(".line").count() < 40
        page.locator("#viewport").evaluate("port => { port.scrollTop = port.scrollHeight }")
        playwright.expect(page.locator(".line[data-k='299']")).to_be_visible()
        assert page.locator(".line").count() < 40
        page.context.close()


def test_one_run(address: str, stored: Path, opened: Open) -> None:
    late = folders(stored)[-1]
    page = opened(f"{address}/run?id={late.id}")
    assert lines(page, 1, "chart-first")[0]["y"] == late.history()["gap"].tolist()
    assert [line["name"] for line in lines(page, 2, "chart-certificates")] == ["stationarity", "consensus"]
    lines(page, 1, "chart-more")
    shown = page.evaluate("() => document.getElementById('chart-more')._fullLayout.yaxis.range")
    assert shown == [0, 0.02]  # eta = 0.01 throughout, and it is seen to be more than zero
    body = page.locator("main").inner_text()
    assert late.about["explanation"]["words"].splitlines()[0] in body
    assert "40 of 40 rounds" in body
    playwright.expect(page.locator("#presence canvas")).to_be_visible()
    assert "answered late" in page.locator("#presence").inner_text()
    playwright.expect(page.locator("#losses .bars > div")).to_have_count(4)
    assert page.locator("#events li").count() == 2
    page.get_by_text("Configuration", exact=True).click()
    assert page.locator("#toml").inner_text().strip() == (late.path / "config.toml").read_text().strip()
    assert page.locator("#stop").is_hidden()
    assert page.locator("#resume").is_hidden()


def test_markup_in_a_run_is_text(stored: Path, tmp_path: Path, opened: Open) -> None:
    run = folders(stored)[0]
    shutil.copytree(run.path, tmp_path / "runs" / run.id)
    copy = Folder(tmp_path / "runs" / run.id)
    partition = {"classes": [NASTY, "b"], "counts": [[3, 4], [5, 0]]}
    about = run.about | {"title": NASTY, "problem": run.about["problem"] | {"partition": partition}}
    about["explanation"] = about["explanation"] | {"words": NASTY}
    (copy.path / "about.json").write_text(json.dumps(about))
    written = {name: (copy.path / name).read_bytes() for name in ("config.toml", "about.json")}
    (copy.path / sums.FILE).write_bytes(sums.listing(written))
    with serving(tmp_path / "runs") as place:
        page = opened(place)
        playwright.expect(page.locator(".line a")).to_contain_text(NASTY)
        page.locator(".line").click()
        assert lines(page, 1)[0]["name"] == NASTY.replace("&", "&amp;").replace("<", "&lt;")
        assert NASTY in page.locator("#differences").inner_text()
        page.goto(f"{place}/run?id={run.id}")
        playwright.expect(page.locator("#name")).to_contain_text(NASTY)
        playwright.expect(page.locator("#words")).to_have_text(NASTY)
        assert f"class {NASTY}" in page.locator("#partition").inner_text()
        assert page.evaluate("() => window.taken") is None
        assert page.locator("main img, main b").count() == 0
        page.context.close()


def test_a_run_from_the_command_line_grows_on_the_page_stops_and_resumes(tmp_path: Path, opened: Open) -> None:
    out = tmp_path / "runs"
    with serving(out) as place:
        page = opened(place)
        playwright.expect(page.locator("#viewport")).to_contain_text("No runs in runs/ yet")
        child = Process("run", "least-squares", *ENDLESS, "--algorithm", "fedprox", "--out", out, "--quiet")
        try:
            page.locator(".line").click()
            grows(page, "chart", 2)
            grows(page, "chart", len(drawn(page)[0]["x"]))
            (run,) = folders(out)
            page.goto(f"{place}/run?id={run.id}")
            grows(page, "chart-first", 2)
            grows(page, "chart-first", len(drawn(page, "chart-first")[0]["x"]))
            playwright.expect(page.locator("#advance")).to_contain_text("left")
            page.click("#stop")
            playwright.expect(page.locator("#status")).to_have_text("interrupted")
            assert child.wait(120) == 130
            assert run.status == "interrupted"
            done = run.row()["round"]
            page.click("#resume")
            playwright.expect(page.locator("#status")).to_have_text("running")
            page.wait_for_function("n => Number(document.getElementById('progress').getAttribute('aria-valuenow')) > n",
                                   arg=done)  # fmt: skip
            page.click("#stop")
            playwright.expect(page.locator("#status")).to_have_text("interrupted")
            playwright.expect(page.locator("#events")).to_contain_text("resumed")
        finally:
            _end(out, child)
            page.context.close()
        rounds = run.history()["round"].tolist()
        assert rounds == list(range(1, len(rounds) + 1))
        assert len(rounds) > done


def test_a_run_is_started_from_the_form(tmp_path: Path, opened: Open) -> None:
    out = tmp_path / "runs"
    out.mkdir()
    with serving(out) as place:
        page = opened(place, expected="400 (Bad Request)")
        page.click("#new")
        for name, value in (("users", 3), ("dim", 4), ("rows", 10)):
            page.fill(f"[name='problem.{name}']", str(value))
        page.select_option("[name='scheme.algorithm']", "fedsplit")
        page.fill("[name='scheme.eta']", "much")
        page.get_by_role("button", name="Start", exact=True).click()
        playwright.expect(page.locator("#refused")).to_contain_text("scheme.eta")
        page.fill("[name='scheme.eta']", "0.01")
        page.fill("[name='run.rounds']", "12")
        page.get_by_role("button", name="Start", exact=True).click()
        playwright.expect(page.locator(".line .status")).to_have_text("finished")
        assert page.locator("#start").is_hidden()
        (run,) = folders(out)
        grows(page, "chart", 11)  # it is selected by itself
        assert lines(page, 1)[0]["y"] == run.history()["gap"].tolist()
        assert run.config["scheme"]["algorithm"] == "fedsplit"
        assert run.config["problem"] | {"users": 3, "dim": 4, "rows": 10} == run.config["problem"]
        page.context.close()


@pytest.mark.parametrize("shown", ["/#runs={}", "/run?id={}"])
def test_no_row_is_drawn_twice_however_slow_the_answers_are(
    shown: str, stored: Path, tmp_path: Path, opened: Open
) -> None:
    out, first = tmp_path / "runs", folders(stored)[0]
    unfinished = shutil.ignore_patterns("checkpoints", "events.jsonl")
    run = Folder(shutil.copytree(first.path, out / first.id, ignore=unfinished))
    rows = run.metrics.read_bytes().splitlines(keepends=True)
    chart = "chart" if "#" in shown else "chart-first"

    def have(number: int) -> None:
        run.metrics.write_bytes(b"".join(rows[: 1 + number]))
        os.utime(run.path)  # changes of files that nobody writes are looked for where the folder changed

    have(4)
    with serving(out) as place:
        page = opened(place + shown.format(run.id))
        grows(page, chart, 3)
        held: list[Any] = []
        page.route("**/metrics?*", lambda request: held.append(request))
        for number in (7, 11, 15):
            have(number)
            if chart == "chart":  # once the page is told of them, it asks for them
                playwright.expect(row(page, run).locator(".rounds")).to_contain_text(f"{number} /")
            else:
                playwright.expect(page.locator("#progress")).to_have_attribute("aria-valuenow", str(number))
            until(page, lambda: bool(held))
        page.route("**/metrics?*", lambda request: request.continue_())  # those that come after these
        for request in held:
            request.continue_()
        grows(page, chart, 14)
        assert drawn(page, chart)[0]["y"] == first.history()["gap"].tolist()
        page.context.close()


def _end(out: Path, child: Process) -> None:
    """Stop whatever still writes there, by its id."""
    for run in folders(out):
        holder = run.path / "holder.json"
        if run.status == "running" and holder.exists():
            os.kill(json.loads(holder.read_text())["pid"], 15)
    if child.poll() is None:
        child.terminate()
        child.wait(120)


def slide(page: Any, name: str, value: float) -> None:
    page.locator(f"#{name}").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})) }", value
    )


def test_a_slider_changes_the_curve(address: str, opened: Open) -> None:
    page = opened(f"{address}/explorer#problem=least-squares&rounds=30")
    before = lines(page, 1)[0]
    assert before["colour"].upper() == "#D55E00"
    slide(page, "gamma", 0.25)
    page.wait_for_function("y => JSON.stringify(Array.from(document.getElementById('chart')._fullData[0].y)) !== y",
                           arg=json.dumps(before["y"], separators=(",", ":")))  # fmt: skip
    assert "gamma=0.25" in page.url
    page.get_by_role("button", name="FedProx").click()
    page.wait_for_function("() => document.getElementById('chart')._fullData[0].line.color.toUpperCase() === '#E69F00'")
    assert "regularised" in page.locator("#words").inner_text()
    assert "predicted fixed point" in page.locator("#chart").inner_text()
    told = drawn(page)[0]["y"]
    again = opened(page.url)  # the link reproduces the state
    assert lines(again, 1)[0]["y"] == told
    assert again.locator("#gamma").input_value() == "1"


def test_an_algorithm_with_a_local_operator_of_its_own_says_which(address: str, opened: Open) -> None:
    page = opened(f"{address}/explorer")
    lines(page, 1)
    page.get_by_role("button", name="SCAFFOLD").click()
    playwright.expect(page.locator("#formula")).to_contain_text("local: tilted steps")
    assert "prox" not in page.locator("#formula").inner_text()
    assert page.locator("[name=forward]:checked").count() == 0
    playwright.expect(page.locator("#steps")).to_be_enabled()
    playwright.expect(page.locator("#steps")).to_have_value("5")
    page.click("#next")
    playwright.expect(page.locator("#where")).to_have_text("round 2, tilted steps")
    page.click("[data-name=reflect_gradient]")
    playwright.expect(page.locator("#formula")).to_contain_text("1 G ui")
    assert page.locator("#steps").input_value() == "1"
    page.get_by_role("button", name="SCAFFOLD").click()
    playwright.expect(page.locator("#formula")).to_contain_text("local: tilted steps")
    page.get_by_text("prox", exact=True).first.click()
    playwright.expect(page.get_by_role("button", name="FedPi")).to_have_attribute("aria-pressed", "true")
    playwright.expect(page.locator("#steps")).to_be_disabled()
    assert page.locator("[name=forward]:checked").get_attribute("value") == "false"


def test_the_plane_plays_round_by_round(address: str, opened: Open) -> None:
    page = opened(f"{address}/explorer")
    lines(page, 1)
    assert page.locator("#plane .level").count() == 21
    playwright.expect(page.locator("#where")).to_have_text("round 1, move on")
    page.click("#next")
    playwright.expect(page.locator("#where")).to_have_text("round 2, prox")
    assert page.locator("#plane .reflect").count() == 0
    page.click("#next")
    assert page.locator("#plane .reflect").count() == 3
    page.click("#play")
    page.wait_for_function("() => document.getElementById('where').textContent.startsWith('round 3')")
    page.click("#play")
    page.select_option("#problem", "sets")
    playwright.expect(page.locator("#plane .rim")).to_have_count(2)
    page.select_option("#problem", "line")
    playwright.expect(page.locator("#plane .diagonal")).to_have_count(1)
    page.select_option("#problem", "logistic")
    playwright.expect(page.locator("#plane")).to_be_hidden()


def test_what_is_copied_is_what_the_server_says(address: str, opened: Open) -> None:
    page = opened(f"{address}/explorer#problem=least-squares&rounds=30&anderson=2")
    lines(page, 1)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#python")
    playwright.expect(page.locator("#told")).to_have_text("Python copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert "anderson=2" in copied
    compile(copied, "copied", "exec")
    page.click("#command")
    playwright.expect(page.locator("#told")).to_have_text("Command copied")
    assert page.evaluate("() => navigator.clipboard.readText()").startswith("resolvent run least-squares --users 5")


PICTURES: dict[str, tuple[str, dict[str, int]]] = {
    "runs": ("/#runs={all}", {"#chart .scatterlayer .trace": 3}),
    "run": ("/run?id={last}", {"#losses .bars": 1, ".scatterlayer .trace": 4}),
    "explorer": ("/explorer", {"#plane .prox": 1, ".scatterlayer .trace": 1}),
    "paper": ("/paper", {".panel img": 1}),
}
"""The address of each page, and what it must show, at least so many times, before it is photographed."""
FITTING = """all => Object.entries(all).every(([selector, n]) => document.querySelectorAll(selector).length >= n) &&
  [...document.querySelectorAll(".js-plotly-plot")].every(
    chart => Math.abs(chart.querySelector(".main-svg").clientWidth - chart.clientWidth) < 2)"""


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_every_page(name: str, address: str, stored: Path, opened: Open, tmp_path: Path) -> None:
    path, ready = PICTURES[name]
    runs = folders(stored)
    url = address + path.format(all=",".join(run.id for run in runs), last=runs[-1].id)
    folder = Path(os.environ.get("RESOLVENT_PICTURES") or tmp_path)
    page = opened(url)
    grounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width, height in ((1400, 900), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function(FITTING, arg=ready)
            page.wait_for_function("() => document.getAnimations().every(each => each.playState === 'finished')")
            wide = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], f"{name} is wider than a screen of {width} pixels"
            grounds.add(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))
            picture = folder / f"{name}-{scheme}-{width}.png"
            page.screenshot(path=str(picture))
            assert picture.stat().st_size > 10_000
    assert len(grounds) == 2
    page.click("#theme")  # the switch wins over the system
    assert page.evaluate("() => document.documentElement.dataset.theme") == "light"
    page.reload()
    assert page.evaluate("() => document.documentElement.dataset.theme") == "light"


def test_many_rounds_stand_in_one_line(address: str, stored: Path, opened: Open) -> None:
    page = opened(address)
    cell = row(page, folders(stored)[0]).locator(".rounds")
    low = cell.bounding_box()["height"]
    cell.locator("span").first.evaluate("words => { words.textContent = '60000 / 60000'; }")
    assert cell.bounding_box()["height"] == low


def test_nothing_moves_while_curves_load(address: str, stored: Path, opened: Open) -> None:
    page = opened(address)
    before = page.locator("#chart").bounding_box()
    row(page, folders(stored)[0]).click()
    lines(page, 1)
    assert page.locator("#chart").bounding_box() == before


OVERLAPS = """selector => {
  const boxes = [...document.querySelectorAll(selector)].map(each => [each.textContent, each.getBoundingClientRect()]);
  const shared = (p, q, from, to) => Math.min(p[to], q[to]) - Math.max(p[from], q[from]) > 1;
  const overlap = (p, q) => shared(p, q, "left", "right") && shared(p, q, "top", "bottom");
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) => overlap(p, q)).map(([b]) => `${a} on ${b}`));
}"""
SEEK = "k => { const at = document.getElementById('at'); at.value = k; at.dispatchEvent(new Event('input')); }"


@pytest.mark.parametrize("problem", ["plane", "line", "sets"])
def test_labels_of_the_plane_do_not_overlap(problem: str, address: str, opened: Open) -> None:
    page = opened(f"{address}/explorer#problem={problem}")
    lines(page, 1)
    for algorithm in ("fedpi", "fedprox"):
        page.locator(f'#algorithms button[data-name="{algorithm}"]').click()
        playwright.expect(page.locator(f'#algorithms button[data-name="{algorithm}"]')).to_have_attribute(
            "aria-pressed", "true"
        )
        for k in (0, 1, 2, 3, 6, 9, 12, 20, 40):
            page.evaluate(SEEK, k)
            assert page.locator("#plane text.label").count()
            assert page.evaluate(OVERLAPS, "#plane text") == [], (algorithm, k)


def test_the_curve_stays_in_its_card_when_another_algorithm_follows(address: str, opened: Open) -> None:
    page = opened(f"{address}/explorer")
    lines(page, 1)
    for algorithm in ("fedpi", "fedprox"):
        page.locator(f'#algorithms button[data-name="{algorithm}"]').click()
        playwright.expect(page.locator(f'#algorithms button[data-name="{algorithm}"]')).to_have_attribute(
            "aria-pressed", "true"
        )
    page.wait_for_function(
        """() => document.querySelector("#chart .xtitle").getBoundingClientRect().bottom
                 <= document.querySelector(".curvecard").getBoundingClientRect().bottom"""
    )


def test_curves_are_told_apart_and_axes_come_with_them(stored: Path, tmp_path: Path, opened: Open) -> None:
    for eta in (0.01, 0.02):
        make(tmp_path / "runs", "fedprox", scheme={"algorithm": "fedprox", "eta": eta})
    with serving(tmp_path / "runs") as place:
        page = opened(place)
        playwright.expect(page.locator(".line")).to_have_count(2)
        playwright.expect(page.locator("#y")).to_be_hidden()  # empty before anything is ticked
        playwright.expect(page.locator("#x")).to_be_hidden()
        for k in range(2):
            page.locator(".line").nth(k).click()
        lines(page, 2)
        playwright.expect(page.locator("#y")).to_be_visible()
        named = ["FedProx, eta = 0.01", "FedProx, eta = 0.02"]
        playwright.expect(page.locator("#chart .legendtext")).to_have_text(named)
        assert page.locator("#differences tbody a").all_inner_texts() == named
        page.context.close()


def test_the_button_for_a_new_run_is_centred_on_a_phone(address: str, opened: Open) -> None:
    page = opened(address)
    page.set_viewport_size({"width": 375, "height": 740})
    left, right = page.evaluate(
        """() => { const button = document.getElementById("new"), range = document.createRange();
             range.selectNodeContents(button);
             const outer = button.getBoundingClientRect(), inner = range.getBoundingClientRect();
             return [inner.left - outer.left, outer.right - inner.right]; }"""
    )
    assert abs(left - right) < 1.5


def test_pictures_of_the_paper_are_dark_in_the_dark(address: str, opened: Open) -> None:
    page = opened(f"{address}/paper")
    page.wait_for_selector(".panel img")
    shown = "() => getComputedStyle(document.querySelector('.panel img')).filter"
    assert page.evaluate(shown) == "none"
    page.emulate_media(color_scheme="dark")
    assert "invert" in page.evaluate(shown)
    page.click("#theme")  # light, whatever the system says
    assert page.evaluate(shown) == "none"
    commands = page.locator("#lead code").all_inner_texts()
    assert commands == ["resolvent reproduce all", "resolvent reproduce all --only convex"]
    told = page.locator(".figure > p", has_text="training images a user")
    assert told.count() == page.locator("#fig-cifar10 > p", has_text="training images a user").count()  # networks alone
    assert "training images" in page.locator("#fig-eta-effect-fedprox .settings").first.inner_text()
