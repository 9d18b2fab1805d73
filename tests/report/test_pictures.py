"""Pictures: an algorithm has its colour, acceleration is dashed, seeds are bands, and labels keep apart."""

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

import resolvent as rs
from resolvent import config as configs
from resolvent import experiment, report
from resolvent.errors import StorageError
from resolvent.report import tables
from resolvent.report.curves import colour_of, lighter, palette
from resolvent.report.figures import symbols
from resolvent.runs import Folder, folders

SMALL = {"name": "least-squares", "users": 4, "dim": 5, "rows": 12}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures that were saved."""
    saved: list[Any] = []
    close = plt.close

    def keep(figure: Any) -> None:
        saved.append(figure)

    monkeypatch.setattr(plt, "close", keep)
    yield saved
    for figure in saved:
        close(figure)


Run = Callable[..., Folder]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def make(algorithm: str = "fedpi", memory: int = 0, seed: int = 0, eta: float = 0.01, **more: Any) -> Folder:
        tree = {"problem": SMALL, "scheme": {"algorithm": algorithm, "eta": eta}, "anderson": {"memory": memory}}
        tree |= {"run": {"rounds": 12, "seed": seed} | more.pop("run", {})} | more
        return experiment.begin(experiment.build(configs.read(tree)), tmp_path / "runs", progress=False).run

    return make


def test_colours_are_fixed_and_acceleration_is_dashed(run: Run, figures: list[Any], tmp_path: Path) -> None:
    names = [name for name, row in rs.TABLE.items() if not row.kin]
    runs = [run(name, memory) for name in names for memory in (0, 2)]
    curves = report.curves(runs)
    report.draw(curves, tmp_path / "all.png", "Seven algorithms")
    assert [axis.get_xlabel() for axis in figures[0].axes] == ["round", "seconds"]
    assert figures[0].axes[0].get_ylabel() == r"$f(w) - f^\ast$"
    for axis in figures[0].axes:
        assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
        assert len(axis.lines) == 14
        for line, name, k in zip(axis.lines, sorted(names * 2, key=names.index), range(14), strict=True):
            assert line.get_color() == colour_of(name)
            assert line.get_linestyle() == ("--" if k % 2 else "-")
        widths = [line.get_linewidth() for line in axis.lines]
        assert widths == sorted(widths, reverse=True)  # what lies under another curve shows
        assert len({line.get_marker() for line in axis.lines}) == 7  # one for each algorithm
        assert not axis.collections
    assert figures[0].get_suptitle() == "Seven algorithms"
    legend = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert legend == [symbols(curve.label) for curve in curves]
    few = report.curves(runs[6:8])  # FedPi alone has the colour that it has among seven
    assert {curve.colour for curve in few} == {colour_of("fedpi")}


def test_bytes_are_shown_where_rounds_cost_different_amounts(run: Run, figures: list[Any], tmp_path: Path) -> None:
    few = run("fedpi", 0, participation={"size": 2})
    report.draw(report.curves([run("fedpi", 0), few]), tmp_path / "few.png")
    assert [axis.get_xlabel() for axis in figures[0].axes] == ["round", "seconds", "bytes communicated"]


def test_labels_have_the_symbols_of_the_paper() -> None:
    assert symbols("FedAvg, eta = 0.1, steps = 5, theta = 2") == "FedAvg, η = 0.1, k = 5, theta = 2"
    assert symbols("R_H G, beta = 1") == r"$R_H\,$G, beta = 1"
    assert symbols("a$b$, eta") == r"a\$b\$, eta"


def test_the_best_comes_first() -> None:
    def row(curve: str, final: float, status: str = "finished") -> dict[str, Any]:
        return {"curve": curve, "final": final, "status": status, "measure": "gap"}

    rows = report.ranked([row("a", 2.0), row("b", float("nan")), row("c", 1e-9, "diverged"), row("d", 0.5)])
    assert [each["curve"] for each in rows] == ["d", "a", "c", "b"]
    assert report.best(rows) == "d (final gap 0.5)"
    assert report.best(rows[2:]) is None


def test_colours_can_be_told_apart() -> None:
    """Pictures of different days must agree, and Okabe and Ito's colours are told apart by everyone."""
    five = [colour_of(name) for name in ("fedavg", "fedprox", "fedsplit", "fedpi", "fedrp")]
    assert five == ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"]
    assert len(set(palette())) == len(palette()) == 8
    channels = [[int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in palette()]
    far = [
        sum((a - b) ** 2 for a, b in zip(one, two, strict=True)) for one in channels for two in channels if one != two
    ]
    assert min(far) > 50**2
    assert lighter("#000000", 1) == "#404040"
    assert lighter("#0072B2", 0) == "#0072B2"


def test_settings_of_several_algorithms_are_lighter_and_of_one_have_the_palette(run: Run) -> None:
    two = report.curves([run(name, eta=eta) for name in ("fedpi", "fedprox") for eta in (0.01, 0.02)])
    assert [curve.colour for curve in two] == [
        colour_of("fedprox"), lighter(colour_of("fedprox"), 1), colour_of("fedpi"), lighter(colour_of("fedpi"), 1)
    ]  # fmt: skip
    one = report.curves([run(eta=eta) for eta in (0.01, 0.02, 0.03)])
    assert [curve.colour for curve in one] == palette()[:3]
    assert [curve.label for curve in one] == ["FedPi, eta = 0.01", "FedPi, eta = 0.02", "FedPi, eta = 0.03"]


def test_memories_have_dashes_of_their_own(run: Run, figures: list[Any], tmp_path: Path) -> None:
    curves = report.curves([run(memory=memory) for memory in (10, 0, 2)])
    report.draw(curves, tmp_path / "x.png")
    assert [curve.label for curve in curves] == ["FedPi", "FedPi, Anderson 2", "FedPi, Anderson 10"]
    assert [line.get_linestyle() for line in figures[0].axes[0].lines] == ["-", "--", "-."]


def test_seeds_are_bands(run: Run, figures: list[Any], tmp_path: Path) -> None:
    runs = [run(memory=memory, seed=seed) for memory in (0, 2) for seed in range(3)]
    report.draw(report.curves(runs), tmp_path / "x.png")
    gaps = [run.history()["gap"].tolist() for run in runs[:3]]
    least, middle, most = zip(*map(sorted, zip(*gaps, strict=True)), strict=True)
    axis = figures[0].axes[0]
    assert len(axis.lines) == len(axis.collections) == 2
    assert axis.lines[0].get_ydata().tolist() == list(middle)
    corners = axis.collections[0].get_paths()[0].vertices
    assert {(k, y) for k, y in corners.tolist()} == {
        *((float(k), y) for k, y in enumerate(least, 1)), *((float(k), y) for k, y in enumerate(most, 1))
    }  # fmt: skip
    assert to_hex(axis.collections[0].get_facecolor()[0]) == colour_of("fedpi").lower()


def test_the_same_run_twice_is_not_two_seeds(run: Run) -> None:
    (row,) = report.summary(report.curves([run(), run()]))
    assert row["seeds"] == 1
    assert len(row["runs"]) == 2
    assert "seeds" not in report.columns([row])


def test_rounds_without_a_row_have_bytes_too(run: Run) -> None:
    (curve,) = report.curves([run(run={"rounds": 12, "every": 5})])
    frame = curve.frames[0]
    assert frame["round"].tolist() == [5, 10, 12]
    assert frame["bytes"].tolist() == [2 * 4 * 5 * 8 * k for k in (5, 10, 12)]


@pytest.mark.parametrize("most", [1.5, 30.0, 1e5])
def test_labels_of_ticks_keep_apart(most: float, run: Run, figures: list[Any], tmp_path: Path) -> None:
    made = run()
    frame = made.history()
    frame["seconds"] = [0.013 * most ** (k / (len(frame) - 1)) for k in range(len(frame))]
    made.metrics.write_text(frame.to_csv(index=False, na_rep="nan"))
    report.draw(report.curves([made]), tmp_path / "x.png")
    figures[0].canvas.draw()
    axis = figures[0].axes[1]
    labels = [label for minor in (False, True) for label in axis.get_xticklabels(minor=minor) if label.get_text()]
    low, high = axis.get_xlim()
    boxes = sorted((box.x0, box.x1) for label in labels if low <= label.get_position()[0] <= high
                   for box in [label.get_window_extent()])  # fmt: skip
    assert len(boxes) >= 2
    assert all(left[1] < right[0] for left, right in pairwise(boxes))


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_files_are_pictures(suffix: str, begins: bytes, run: Run, tmp_path: Path) -> None:
    path = report.draw(report.curves([run(), run(memory=2)]), tmp_path / "deep" / f"picture{suffix}", "Two")
    assert path.read_bytes().startswith(begins)
    assert path.stat().st_size > 10_000
    assert plt.get_fignums() == []


def test_one_panel_of_another_figure(run: Run, figures: list[Any], tmp_path: Path) -> None:
    made = run()
    report.draw(report.curves([made]), tmp_path / "x.png", y="residual", xs=["round"])
    (axis,) = figures[0].axes
    assert axis.get_ylabel() == "residual"
    assert axis.lines[0].get_ydata().tolist() == made.history()["residual"].tolist()


# --- partitions ------------------------------------------------------------------------------------------------------


def test_a_bar_a_user_parted_by_class(figures: list[Any], tmp_path: Path) -> None:
    counts = [[3, 0, 1], [2, 5, 0]]
    report.draw_partition({"classes": ["a", "b", "c"], "counts": counts}, tmp_path / "x.png")
    (axis,) = figures[0].axes
    bars = [(round(bar.get_x() + bar.get_width() / 2), bar.get_y(), bar.get_height()) for bar in axis.patches]
    assert bars == [(0, 0, 3), (1, 0, 2), (0, 3, 0), (1, 2, 5), (0, 3, 1), (1, 7, 0)]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["a", "b", "c"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("user", "rows")


def test_a_bar_a_user_where_there_are_no_classes(figures: list[Any], tmp_path: Path) -> None:
    report.draw_partition({"users": [4, 7]}, tmp_path / "x.png")
    assert [bar.get_height() for bar in figures[0].axes[0].patches] == [4, 7]
    assert not figures[0].legends


# --- summaries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "limit", "expected"),
    [
        ([1.0, 1e-3, 1e-7, 1e-9], 0.0, 3),
        ([1.0, 1e-7, 1e-3, 1e-7, 0.0], 0.0, 4),  # it must stay there
        ([1.0, 0.5, 0.3, 0.2], 0.2, None),  # the last round is its own limit
        ([1.0, 0.5, 0.2, 0.2], 0.2, 3),
        ([1.0, 0.9, 0.8], 0.0, None),
        ([1.0, float("nan"), float("nan")], 0.0, None),
        ([1.0, 2.0], float("inf"), None),
        ([0.2], 0.2, None),
    ],
)
def test_rounds_to_the_limit(values: list[float], limit: float, expected: int | None) -> None:
    assert tables.rounds_to(values, range(1, len(values) + 1), limit) == expected


def test_what_accelerated_reaches_is_the_limit_of_both(run: Run) -> None:
    runs = [run("fedprox", memory, run={"rounds": 60}) for memory in (0, 3)]
    plain, fast = report.summary(report.curves(runs))
    assert plain["rounds_to_limit"] is None
    assert fast["rounds_to_limit"] < 40
    assert fast["final"] > 1e-5  # FedProx ends elsewhere
    assert report.columns([plain, fast])["final"] == "final gap"


def test_an_end_that_has_not_settled_is_no_limit(run: Run) -> None:
    """What the longer run counts is where the shorter one ends or beyond."""
    (long,) = report.summary(report.curves([run("fedprox", eta=0.02, run={"rounds": 400})]))
    reached = long["rounds_to_limit"]
    for rounds in (reached - 5, reached, reached + 5):
        (short,) = report.summary(report.curves([run("fedprox", eta=0.02, run={"rounds": rounds})]))
        assert short["rounds_to_limit"] is None


def test_what_solves_the_original_has_the_limit_zero(run: Run, tmp_path: Path) -> None:
    (row,) = report.summary(report.curves([run()]))
    assert row["rounds_to_limit"] is None
    assert [made.id for made in folders(tmp_path / "runs")] == row["runs"]


def test_an_averaged_run_shows_its_average(run: Run) -> None:
    averaged, plain = run(run={"average": "ergodic"}), run()
    curve, other = report.curves([averaged, plain])
    (frame,), (rows,) = curve.frames, other.frames
    assert frame["gap"].tolist() == averaged.history()["average_gap"].tolist()
    assert frame["gap"].iloc[-1] > 2 * rows["gap"].iloc[-1]
    assert report.summary([curve])[0]["final"] == frame["gap"].iloc[-1]


def test_the_limit_is_where_a_sibling_came_to_rest(run: Run) -> None:
    """A biased gap may lie below its limit on the way there: the plain curve's last row is made to."""
    plain, fast = run("fedprox", run={"rounds": 60}), run("fedprox", 2, run={"rounds": 60})
    rows = plain.history()
    rows.loc[rows.index[-1], "gap"] -= 0.01 * rows["gap"].iloc[0]
    rows.loc[rows.index[-1], "residual"] = 1.0
    rows.to_csv(plain.metrics, index=False)
    summary = report.summary(report.curves([plain, fast]))
    assert [row["rounds_to_limit"] is None for row in summary] == [True, False]


def test_a_picture_that_cannot_be_written_leaves_no_figure_open(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be written"):
        report.draw(report.curves([run()]), tmp_path / "file" / "picture.png", "One")
    assert plt.get_fignums() == []
