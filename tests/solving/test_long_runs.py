"""Very many rounds: what is in memory stays bounded, what is stored is whole, and pictures show extremes."""

from __future__ import annotations

import gc
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from plotly.offline import get_plotlyjs

import resolvent as rs
from resolvent import config as configs
from resolvent import experiment, report
from resolvent.report.curves import drawn_rows
from resolvent.runs.metrics import Metrics, read
from resolvent.solving import history


def problem() -> rs.LeastSquares:
    return rs.make_least_squares(users=2, dim=2, rows=4)


def frames(rounds: int, most: int, **more: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The history of a run with all rows, and of one with at most so many in memory."""
    whole = rs.solve(problem(), rs.fedpi(0.5), rounds=rounds, progress=False, **more).history
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "MOST_ROWS", most)
        thin = rs.solve(problem(), rs.fedpi(0.5), rounds=rounds, progress=False, **more).history
    return whole.drop(columns="seconds"), thin.drop(columns="seconds")


@pytest.mark.parametrize(("rounds", "steps"), [(100, {1}), (164, {1}), (300, {2, 4}), (1000, {8, 16})])
@pytest.mark.parametrize("every", [1, 3])
def test_of_a_long_history_every_step_th_row_is_retained(rounds: int, steps: set[int], every: int) -> None:
    whole, thin = frames(rounds * every, 164, every=every)
    step = (thin["round"][1] - thin["round"][0]) // every
    assert step in steps
    rows = sorted({*range(0, len(whole), step), len(whole) - 1})
    assert thin.dtypes.equals(whole.dtypes)
    for name in ("bytes_up", "bytes_down"):  # those of all rounds since the row before
        thin[name], whole[name] = thin[name].cumsum(), whole[name].cumsum()
    pd.testing.assert_frame_equal(thin, whole.iloc[rows].reset_index(drop=True), check_exact=True)


def test_what_ends_a_run_does_not_depend_on_it() -> None:
    """Values of all rows are compared: those of a run that wanders off, and a limit in rounds without a row."""
    for scheme, gap, status in ((rs.fedavg(4.0), None, "diverged"), (rs.fedpi(1e-3), 1e-2, "stopped")):
        ends = []
        for most in (1 << 17, 70):
            with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                patch.setattr(history, "MOST_ROWS", most)
                stop = None if gap is None else rs.Stop(gap=gap)
                run = rs.solve(problem(), scheme, rounds=3000, stop=stop, every=7, progress=False)
            ends.append((run.status, run.reason, run.state.round, run.model.tolist()))
        assert ends[0] == ends[1]
        assert ends[0][0] == status
        assert ends[0][2] > 70 or status == "diverged"


def test_every_row_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_ROWS", 70)
    tree = {"problem": {"users": 2, "dim": 2, "rows": 4}, "run": {"rounds": 300}, "scheme": {"eta": 0.5}}
    tree |= {"store": {"checkpoint": 60.0}}
    run = experiment.begin(experiment.build(configs.read(tree)), tmp_path, progress=False).run
    assert run.history()["round"].tolist() == list(range(1, 301))


def test_a_row_takes_little_memory() -> None:
    """Eight bytes for each number; as an object in a list it would take 32."""
    sizes: dict[int, int] = {}

    def look(happened: Any) -> None:
        if happened.number in (500, 2500):
            gc.collect()
            sizes[happened.number] = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    run = rs.solve(problem(), rs.fedpi(0.5), rounds=2501, callback=look, progress=False)
    tracemalloc.stop()
    numbers = len(run.history.columns) + 1
    assert (sizes[2500] - sizes[500]) / 2000 < 2 * 8 * numbers  # arrays grow ahead of what is in them


def test_files_of_many_rows_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = Metrics(tmp_path / "metrics.csv")
    for n, numbers in enumerate(rng.standard_normal((500, 3)).tolist(), 1):
        rows.append({"round": n, "a": numbers[0], "b": numbers[1] * 1e-300, "c": numbers[2] if n % 7 else float("nan")})
    rows.close()
    whole = read(tmp_path / "metrics.csv")
    for size in (100, 1000, 12_345):
        monkeypatch.setattr("resolvent.runs.metrics.PART_BYTES", size)
        pd.testing.assert_frame_equal(read(tmp_path / "metrics.csv"), whole, check_exact=True)


def test_a_picture_has_the_extremes_of_a_long_curve() -> None:
    """Spikes, the ends, and the first rounds, which a logarithmic axis shows; short curves are left alone."""
    rng = np.random.default_rng(0)
    values = rng.random(200_000)
    spikes = np.arange(20) * 10_000 + rng.integers(10_000, size=20)  # one or none in each stretch
    values[spikes[:10]], values[spikes[10:]] = 5 + rng.random(10), -5 - rng.random(10)
    table = pd.DataFrame({"median": values, "gaps": np.where(rng.random(200_000) < 0.5, np.nan, 1.0), "none": np.nan})
    rows = drawn_rows(table)
    assert len(rows) < 3000
    assert (np.diff(rows) > 0).all()
    shown = set(rows.tolist())
    assert {0, 199_999, *range(20)} <= shown
    assert set(spikes.tolist()) <= shown
    assert drawn_rows(table[:4000]).tolist() == list(range(4000))


def test_reports_and_pictures_of_long_runs_are_small(tmp_path: Path) -> None:
    tree = {"problem": {"users": 2, "dim": 2, "rows": 4}, "run": {"rounds": 3}, "scheme": {"eta": 0.5}}
    run = experiment.begin(experiment.build(configs.read(tree)), tmp_path, progress=False).run
    frame = run.history()
    rng, many = np.random.default_rng(1), 50_000
    long = {name: rng.random(many) for name in frame} | {"round": np.arange(1, many + 1)}
    long["gap"][31_234] = 123.456
    sizes = {}
    for rows in (many // 10, many):
        part = pd.DataFrame({name: values[-rows:] for name, values in long.items()})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(run), "history", lambda self, part=part: part.copy())
            page = report.page(report.curves([run]), tmp_path / "report.html", "Long").read_text()
            picture = report.draw(report.curves([run]), tmp_path / "report.svg", y="gap").read_text()
        sizes[rows] = len(page) - len(get_plotlyjs()), len(picture)
        assert "123.456" in page or rows < many
    assert all(after < 2 * before for before, after in zip(*sizes.values(), strict=True)), sizes
