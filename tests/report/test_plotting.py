"""Pictures of runs in memory, what notebooks show, and short reprs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resolvent as rs
from resolvent.report.figures import NAMES

pytest.importorskip("matplotlib")


def run(eta: float = 0.02, **more: Any) -> rs.Run:
    return rs.solve(rs.make_least_squares(users=2, dim=3, rows=9), rs.fedpi(eta), rounds=8, **more)


def test_a_run_is_drawn_with_what_its_history_has() -> None:
    figure = run().plot()
    (axis,) = figure.axes
    (line,) = axis.get_lines()
    assert np.array_equal(line.get_ydata(), run().history.gap)
    assert (axis.get_yscale(), axis.get_xlabel(), axis.get_ylabel()) == ("log", "round", NAMES["gap"])
    problem = rs.make_logistic(users=2, dim=3, rows=9)
    test = rs.HeldOut(np.eye(3), [1, -1, 1])
    judged = rs.solve(problem, rs.fedpi(0.1), rounds=9, test=test, validate_every=4)
    figure = judged.plot()
    assert [axis.get_ylabel() for axis in figure.axes] == [NAMES["gap"], "test accuracy", "test auc"]
    assert figure.axes[1].get_lines()[0].get_xdata().tolist() == [1, 4, 8, 9]
    assert figure.axes[1].get_yscale() == "linear"
    assert len(judged.plot(["value", "residual"], x="seconds").axes) == 2


def test_many_runs_are_drawn_together() -> None:
    several = {"small $\\eta$": run(0.01), "large": run(0.05)}
    (axis,) = rs.plot(several).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["small \\$\\eta\\$", "large"]
    lines = axis.get_lines()
    assert lines[0].get_color() != lines[1].get_color()
    (axis,) = rs.plot([run(), run(0.01)], y="residual").axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["FedPi, eta = 0.02", "FedPi, eta = 0.01"]
    assert rs.plot(run(), ax=axis) is axis.figure
    assert len(axis.get_lines()) == 3


def test_losses_within_a_factor_of_ten_are_drawn_on_a_plain_axis() -> None:
    one = run()
    scales = []
    for column, share in (("value", 0.5), ("value", 0.05), ("gap", 0.5)):
        one.history[column] = np.linspace(1.0, share, len(one.history))
        scales.append(one.plot(column).axes[0].get_yscale())
    assert scales == ["linear", "log", "log"]


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: run().plot("speed"), "y is 'speed', but a column of the history is needed: round, eta"),
        (lambda: run().plot(x="speed"), "x is 'speed'"),
        (lambda: rs.plot([]), "runs is empty"),
        (lambda: rs.plot([3]), "a int among them"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Any, words: str) -> None:
    with pytest.raises(rs.InputError, match=words):
        draw()


def test_a_notebook_shows_a_picture_and_escaped_text() -> None:
    shown = run()
    shown.reason = "<script>alert(1)</script>"
    page = shown._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert 'src="data:image/png;base64,' in page
    picture = shown._repr_png_()
    assert picture is not None
    assert picture.startswith(b"\x89PNG")
    shown.history = shown.history.head(0)
    assert shown._repr_png_() is None
    assert "<img" not in shown._repr_html_()


def test_reprs_are_short() -> None:
    one = run()
    assert repr(one).startswith("Run(FedPi on LeastSquares, 2 users, d = 3: finished after 8 rounds (8 rounds); value ")
    assert repr(one.state) == "State(round 8, 2 users, d = 3, eta = 0.02)"
    assert repr(rs.fedpi(0.02)) == "FedPi(alpha=2, beta=2, gamma=0.5, eta=0.02)"
    assert repr(rs.make_logistic(users=2, dim=3, rows=9)) == "Logistic(2 users, d = 3, 18 rows)"
    assert repr(rs.LeastSquares([np.eye(2)], [np.ones(2)])) == "LeastSquares(1 user, d = 2, 2 rows)"
    assert len(repr(rs.plus_minus())) < 80
