"""The report in a browser: what it draws, what it answers to, and that it needs nothing but itself."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import strictly
from resolvent import config as configs
from resolvent import experiment, report
from resolvent.report.curves import colour_of
from resolvent.runs import Folder

playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--no-first-run"]  # fmt: skip
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

SMALL = {"name": "least-squares", "users": 4, "dim": 5, "rows": 12}
COMPARED = ("fedavg", "fedprox", "fedsplit", "fedpi", "fedrp")
COLUMNS = "round,eta,value,gap,residual,consensus,stationarity,participants,bytes_up,bytes_down,seconds"
NASTY = '</script><script>window.taken = 1</script><!--<script> & "it\'s" <b>bold</b> $title'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield browser
        browser.close()


Open = Callable[[Path], Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens a page; nothing may be complained of, and nothing be asked for but the page."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(120_000)
    complaints: list[str] = []
    asked: list[str] = []

    def open_page(path: Path) -> Any:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.resolve().as_uri())
        page.wait_for_selector(".plot .main-svg")
        asked[:] = [url for url in asked if url not in (path.resolve().as_uri(), "data:,")]
        return page

    yield open_page
    context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == []


def run(out: Path, algorithm: str = "fedpi", memory: int = 0, seed: int = 0, **more: Any) -> Folder:
    tree = {"problem": SMALL, "scheme": {"algorithm": algorithm, "eta": 0.01}, "anderson": {"memory": memory}}
    tree |= {"run": {"rounds": 15, "seed": seed}} | more
    return experiment.begin(experiment.build(configs.read(tree)), out, progress=False).run


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[Folder]:
    """Five algorithms, plain and accelerated."""
    out = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        return [run(out, name, memory) for name in COMPARED for memory in (0, 2)]


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> list[Folder]:
    """FedPi, plain and accelerated, three seeds each."""
    out = tmp_path_factory.mktemp("seeded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        return [run(out, "fedpi", memory, seed) for memory in (0, 2) for seed in range(3)]


def altered(run: Folder, out: Path, values: dict[str, list[float]] | None = None, **about: Any) -> Folder:
    """A copy of a run that says other things of itself, with other numbers in its rows."""
    shutil.copytree(run.path, out / run.id)
    copy = Folder(out / run.id)
    (copy.path / "about.json").write_text(json.dumps(run.about | about))
    if values is not None:
        frame = run.history().iloc[: len(next(iter(values.values()), []))].assign(**values)
        copy.metrics.write_text(frame.to_csv(index=False, na_rep="nan") if values else "")
    return copy


def lines(page: Any) -> Any:
    """The curves that are drawn, without the edges of bands."""
    return page.locator(".plot .scatterlayer .trace path.js-line")


def drawn(page: Any) -> list[dict[str, Any]]:
    """What Plotly draws: names, colours, dashes, visibility and points of the curves proper."""
    found: list[dict[str, Any]] = page.evaluate(
        """() => document.querySelector(".plot")._fullData.filter(t => t.showlegend).map(t => ({
             name: t.name, colour: t.line.color, dash: t.line.dash, visible: t.visible,
             x: Array.from(t.x), y: Array.from(t.y)}))"""
    )
    return found


def axis(page: Any, name: str) -> dict[str, str]:
    found: dict[str, str] = page.evaluate(
        "name => (a => ({type: a.type, title: a.title.text}))(document.querySelector('.plot')._fullLayout[name])", name
    )
    return found


def legend(page: Any, k: int) -> Any:
    return page.locator(".plot .legend .traces").nth(k).locator(".legendtoggle")


def test_every_curve_is_drawn_in_its_colour_dashed_where_accelerated(
    compared: list[Folder], opened: Open, tmp_path: Path
) -> None:
    curves = report.curves(compared)
    page = opened(report.page(curves, tmp_path / "page.html", "Five algorithms"))
    assert page.title() == page.locator("h1").inner_text() == "Five algorithms"
    made = drawn(page)
    assert lines(page).count() == len(made) == 10
    assert [trace["name"] for trace in made] == [curve.label for curve in curves]
    for trace, curve in zip(made, curves, strict=True):
        assert trace["colour"] == colour_of(curve.first.config["scheme"]["algorithm"])
        assert trace["dash"] == ("dash" if "Anderson" in curve.label else "solid")
        history = curve.first.history()
        assert trace["x"] == history["round"].tolist()
        assert trace["y"] == history["gap"].tolist()
    styles = [lines(page).nth(k).get_attribute("style") for k in range(10)]
    assert ["stroke-dasharray: " in style for style in styles] == [False, True] * 5
    widths = [float(re.search(r"stroke-width: ([0-9.]+)px", style or "")[1]) for style in styles]  # type: ignore[index]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 10  # what lies under another curve shows on both of its sides
    assert (axis(page, "xaxis"), axis(page, "yaxis")) == (
        {"type": "linear", "title": "round"},
        {"type": "log", "title": "gap"},
    )


def test_each_problem_has_a_section(opened: Open, tmp_path: Path) -> None:
    runs = []
    for name, users in (("least-squares", 4), ("logistic", 4), ("logistic", 5)):
        problem = {"name": name, "users": users, "dim": 3, "rows": 12}
        tree = {"problem": problem, "scheme": {"eta": 0.1}, "run": {"rounds": 5}}
        runs.append(experiment.begin(experiment.build(configs.read(tree)), tmp_path / "runs", progress=False).run)
    problems = report.by_problem(runs)
    assert list(problems) == ["least-squares", "logistic, users = 4", "logistic, users = 5"]
    page = opened(report.page(problems, tmp_path / "page.html", "Three problems"))
    assert page.locator("section > h2:first-child").all_inner_texts() == list(problems)
    assert page.locator(".plot .main-svg").count() >= 3
    for k, run in enumerate(runs):
        drawn_y = page.evaluate("k => [...document.querySelectorAll('.plot')[k].data[0].y]", k)
        assert drawn_y == run.history()["gap"].tolist()
    page.locator("select.y").nth(1).select_option("residual")
    titles = page.evaluate("() => [...document.querySelectorAll('.plot')].map(p => p.layout.yaxis.title.text)")
    assert titles == ["gap", "residual", "gap"]


def test_a_click_on_the_legend_hides_a_curve(compared: list[Folder], opened: Open, tmp_path: Path) -> None:
    page = opened(report.page(report.curves(compared), tmp_path / "page.html", "Runs"))
    legend(page, 3).click()
    playwright.expect(lines(page)).to_have_count(9)
    assert [trace["visible"] for trace in drawn(page)] == [True] * 3 + ["legendonly"] + [True] * 6
    legend(page, 3).click()
    playwright.expect(lines(page)).to_have_count(10)


def test_a_band_goes_with_its_curve(seeded: list[Folder], opened: Open, tmp_path: Path) -> None:
    curves = report.curves(seeded)
    page = opened(report.page(curves, tmp_path / "page.html", "Runs"))
    assert len(drawn(page)) == 2
    assert page.locator(".plot .scatterlayer .fills path.js-fill").count() == 2
    low, high, middle = page.evaluate("() => document.querySelector('.plot').data.slice(0, 3).map(t => t.y)")
    gaps = [run.history()["gap"].tolist() for run in curves[0].runs]
    assert [low, middle, high] == [list(values) for values in zip(*map(sorted, zip(*gaps, strict=True)), strict=True)]
    legend(page, 0).click()
    playwright.expect(page.locator(".plot .scatterlayer .fills path.js-fill").filter(visible=True)).to_have_count(1)
    assert "seeds" in page.locator("table thead").inner_text()


def test_another_axis_and_another_figure_redraw(compared: list[Folder], opened: Open, tmp_path: Path) -> None:
    curves = report.curves(compared)
    page = opened(report.page(curves, tmp_path / "page.html", "Runs"))
    page.select_option(".x", "bytes")
    assert axis(page, "xaxis")["title"] == "bytes communicated"
    assert drawn(page)[0]["x"] == [2 * 4 * 5 * 8 * k for k in range(1, 16)]  # up and down, users, dim, bytes a number
    page.select_option(".x", "seconds")
    assert drawn(page)[5]["x"] == curves[5].first.history()["seconds"].tolist()
    page.select_option(".y", "stationarity")
    assert axis(page, "yaxis")["title"] == "stationarity"
    known = [None if v != v else v for v in curves[5].first.history()["stationarity"]]
    assert drawn(page)[5]["y"] == known
    page.check(".logx")
    assert axis(page, "xaxis")["type"] == "log"
    offered = page.locator(".y option").all_inner_texts()
    assert offered[0] == "gap"
    assert {"value", "residual", "consensus", "stationarity", "eta"} <= set(offered)
    for name in offered:
        page.select_option(".y", name)
        assert axis(page, "yaxis")["title"] == name


def test_table_configurations_environment_and_words_are_there(
    compared: list[Folder], opened: Open, tmp_path: Path
) -> None:
    curves = report.curves(compared)
    page = opened(report.page(curves, tmp_path / "page.html", "Runs"))
    rows = page.locator("table tbody tr").all_inner_texts()
    for row, told in zip(rows, report.summary(curves), strict=True):
        assert row.split("\t")[0] == told["curve"]
        assert f"{told['final']:.3g}" in row
    words = page.locator("body").inner_text()
    for run in compared:
        assert run.about["explanation"]["words"].split("\n")[0] in words
    page.locator("details summary").nth(7).click()
    assert page.locator("details pre").nth(7).inner_text().strip() == (
        (curves[7].first.path / "config.toml").read_text().strip()
    )
    assert strictly(page.locator("pre").last.inner_text()) == curves[0].first.about["environment"]


def test_text_is_shown_as_it_is(compared: list[Folder], opened: Open, tmp_path: Path) -> None:
    partition = {"classes": [NASTY, "b"], "counts": [[3, 4], [5, 0]]}
    run = altered(
        compared[6], tmp_path / "runs", title=NASTY, problem=compared[6].about["problem"] | {"partition": partition}
    )
    page = opened(report.page(report.curves([run]), tmp_path / "page.html", NASTY))
    assert page.evaluate("() => window.taken") is None
    assert page.locator("h1").inner_text() == NASTY
    assert page.locator("table tbody td").first.inner_text() == NASTY
    assert page.locator(".plot .legendtext").first.text_content() == NASTY
    assert page.locator("summary").inner_text() == NASTY
    assert page.locator(".bar span").first.get_attribute("title") == f"class {NASTY}: 3 rows"
    assert NASTY in page.locator(".key").inner_text()
    assert page.locator(".plot .legend b, h1 b, td b").count() == 0


def test_a_run_without_rows(compared: list[Folder], opened: Open, tmp_path: Path) -> None:
    empty = altered(compared[0], tmp_path / "runs", {})
    page = opened(report.page(report.curves([empty]), tmp_path / "alone.html", "Runs"))
    assert drawn(page) == []
    assert page.locator("table tbody tr").count() == 1
    page = opened(report.page(report.curves([empty, compared[6]]), tmp_path / "both.html", "Runs"))
    assert len(drawn(page)) == 1
    assert page.locator("table tbody tr").count() == 2
    report.draw(report.curves([empty]), tmp_path / "alone.png")
    assert report.summary(report.curves([empty]))[0]["rounds"] == 0


def test_a_seed_without_rows(seeded: list[Folder], opened: Open, tmp_path: Path) -> None:
    curves = report.curves([altered(seeded[0], tmp_path / "runs", {}), seeded[1], seeded[2]])
    page = opened(report.page(curves, tmp_path / "page.html", "Runs"))
    assert len(drawn(page)) == 1
    assert len(drawn(page)[0]["x"]) == 15
    report.draw(curves, tmp_path / "page.png")


NAN = float("nan")


@pytest.mark.parametrize(
    ("gaps", "values", "shown", "scale", "points"),
    [
        ([NAN] * 4, [4.0, 3.0, 2.0, 1.0], "value", "log", [4.0, 3.0, 2.0, 1.0]),
        ([NAN] * 4, [1.0, 0.0, -1.0, -2.0], "value", "linear", [1.0, 0.0, -1.0, -2.0]),
        ([NAN] * 4, [-1.0, -2.0, -2.5, -2.5], "value", "linear", [-1.0, -2.0, -2.5, -2.5]),
        ([1.0, 1e-3, 0.0, -1e-16], [2.0] * 4, "gap", "log", [1.0, 1e-3, None, None]),
        ([0.0] * 4, [1.0] * 4, "gap", "linear", [0.0] * 4),
        ([1.0, 10.0, float("inf"), NAN], [2.0] * 4, "gap", "log", [1.0, 10.0, None, None]),
    ],
    ids=["no minimum", "below zero", "all below zero", "down to round-off", "zero from the first", "diverged"],
)
def test_whatever_the_numbers_are(
    gaps: list[float],
    values: list[float],
    shown: str,
    scale: str,
    points: list[float],
    compared: list[Folder],
    opened: Open,
    tmp_path: Path,
) -> None:
    curves = report.curves([altered(compared[6], tmp_path / "runs", {"gap": gaps, "value": values})])
    page = opened(report.page(curves, tmp_path / "page.html", "Runs"))
    assert axis(page, "yaxis") == {"type": scale, "title": shown}
    assert drawn(page)[0]["y"] == points
    assert lines(page).count() == 1
    assert ("gap" in page.locator(".y option").all_inner_texts()) == (shown == "gap")
    assert report.draw(curves, tmp_path / "picture.png").stat().st_size > 10_000
    strictly(page.locator("#data").text_content())


def test_pages_are_whole_whatever_the_locale(compared: list[Folder], tmp_path: Path) -> None:
    made = report.page(report.curves(compared), tmp_path / "page.html", "Übung 数据")
    content = made.read_bytes().decode("utf-8")
    assert "<h1>Übung 数据</h1>" in content
