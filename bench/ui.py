"""`python -m bench.ui`: how long the live page takes to open, to show a round, and to follow a slider.

The server runs in a process of its own, the page in a headless Chromium. A store of 2,000 small runs is made first.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from bench.timing import machine
from resolvent import config as configs
from resolvent import experiment
from resolvent.runs import Folder, folders, lock

RUNS, TURNS = 2000, 15
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SLIDERS = {"plane": "gamma", "least-squares": "eta", "logistic": "gamma"}


def fill(out: Path) -> None:
    """Runs of seven algorithms, copied under other names: what the page reads of them differs."""
    tree: dict[str, Any] = {"problem": {"name": "least-squares", "users": 4, "dim": 5, "rows": 12}}
    tree |= {"run": {"rounds": 200}, "store": {"checkpoint": 60.0}}
    stored = []
    with mock.patch.object(os, "fsync", return_value=None):
        for name in ("fedavg", "fedprox", "fedsplit", "fedpi", "fedrp", "reflect_gradient", "reflect_prox"):
            config = configs.read(tree | {"scheme": {"algorithm": name, "eta": 0.01}})
            stored.append(experiment.begin(experiment.build(config), out, progress=False).run)
    for k in range(RUNS - len(stored)):
        source = stored[k % len(stored)]
        shutil.copytree(source.path, out / f"{source.id}-{k:04d}", ignore=shutil.ignore_patterns("checkpoints"))


def median(measure: Callable[[], float], turns: int = TURNS) -> str:
    taken = sorted(measure() for _ in range(turns))
    return f"{1000 * statistics.median(taken):.0f} ms (from {1000 * taken[0]:.0f} to {1000 * taken[-1]:.0f})"


def admitted(browser: Any, address: str) -> Any:
    """The cookie that the token in the address is exchanged for."""
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector(".line")
    return page.context.storage_state()


def opening(browser: Any, place: str) -> float:
    """From the request to rows on the screen, in a browser without a cache."""
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(place, wait_until="commit")
    page.wait_for_selector(".line")
    taken = time.perf_counter() - began
    page.close()
    return taken


def updates(browser: Any, place: str, run: Folder) -> list[float]:
    """From the write of a row to the moment when the page shows its round."""
    page = browser.new_page()
    page.goto(f"{place}/run?id={run.id}")
    page.wait_for_function("() => document.getElementById('chart-first')?._fullData?.length")
    page.evaluate("""() => { window.seen = {}; new MutationObserver(() => {
        const x = document.getElementById('chart-first')?._fullData?.[0]?.x, now = Date.now();
        const round = x?.[x.length - 1];
        if (round && !(round in window.seen)) window.seen[round] = now;
    }).observe(document.getElementById('chart-first'), {attributes: true}); }""")
    last, written = run.metrics.read_text().splitlines()[-1].split(",")[1:], {}
    with lock.held(run.path), run.metrics.open("a") as file:
        time.sleep(1)
        for n in range(201, 201 + TURNS):
            file.write(",".join([str(n), *last]) + "\n")
            file.flush()
            written[n] = time.time()
            time.sleep(0.7)
    seen = {int(n): moment / 1000 for n, moment in page.evaluate("() => window.seen").items()}
    page.close()
    return [seen[n] - moment for n, moment in written.items() if n in seen]


def sliding(browser: Any, place: str, problem: str) -> Callable[[], float]:
    """From the move of a slider to the curve drawn again."""
    page = browser.new_page()
    page.goto(f"{place}/explorer")
    page.wait_for_function("() => document.getElementById('chart').dataset.drawn")
    page.select_option("#problem", problem)
    page.wait_for_timeout(1500)
    name = SLIDERS[problem]

    def move() -> float:
        taken: float = page.evaluate(
            """name => new Promise(resolve => {
                 const chart = document.getElementById('chart'), slider = document.getElementById(name);
                 const began = performance.now();
                 const done = () => { watch.disconnect(); resolve((performance.now() - began) / 1000) };
                 const watch = new MutationObserver(done);
                 watch.observe(chart, {attributes: true, attributeFilter: ['data-drawn']});
                 slider.value = Number(slider.value) - Number(slider.step);
                 slider.dispatchEvent(new Event('input', {bubbles: true}));
               })""",
            name,
        )
        page.wait_for_timeout(150)
        return taken

    return move


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        out = Path(folder) / "runs"
        fill(out)
        server = subprocess.Popen(
            [sys.executable, "-m", "resolvent", "ui", "--runs", str(out), "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.stderr is not None
        began = time.perf_counter()
        address = server.stderr.readline().split()[-1]
        place = address.partition("/?")[0]
        threading.Thread(target=server.stderr.read, daemon=True).start()
        chromium = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        browser = SimpleNamespace(new_page=partial(chromium.new_page, storage_state=admitted(chromium, address)))
        try:
            opening(browser, place)
            print(f"{json.dumps(machine())}\n{RUNS} runs; the first page after {time.perf_counter() - began:.1f} s")
            print(f"open the page with {RUNS} runs: {median(lambda: opening(browser, place))}")
            taken = updates(browser, place, folders(out)[0])
            print(f"a round on the page: {median(iter(taken).__next__, len(taken))}")
            for problem in SLIDERS:
                print(f"a slider to its curve, {problem}: {median(sliding(browser, place, problem))}")
        finally:
            chromium.close()
            server.terminate()
            server.wait(10)


if __name__ == "__main__":
    main()
