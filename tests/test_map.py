"""The map of algorithms: every row of the table is on the picture and in the README, where it belongs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import resolvent as rs
from bench import map as drawing
from resolvent.iteration import registry
from resolvent.iteration.table import TABLE, Row
from resolvent.report.figures import save, symbols

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
ROOT = Path(__file__).parents[1]
NEW = Row("FedNew", 2, 1.5, 0.75, forward=False, colour="#123456", about="made for this test")


def texts(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that is written on the picture."""
    figures: list[Any] = []

    def look(figure: Any, *where: Any, **how: Any) -> Path:
        figures.append([text.get_text() for text in figure.axes[0].texts])
        return save(figure, *where, **how)

    monkeypatch.setattr(drawing, "save", look)
    assert drawing.draw(path).stat().st_size > 10_000
    (written,) = figures
    return list(written)


def test_every_row_and_every_part_is_on_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "fednew", NEW)
    written = texts(tmp_path / "map.png", monkeypatch)
    for row in TABLE.values():
        assert any(text == symbols(row.title) or text.startswith(f"{row.title}, k") for text in written), row.title
    assert "2, 1.5, 0.75" in written
    for kind in drawing.PARTS:
        names = ", ".join(part.make.__name__ for part in registry.parts(kind).values())
        assert any(names in text for text in written), kind


def test_where_they_are() -> None:
    found = {place.title: place[1:4] for place in drawing.places()}
    assert found["FedAvg, k = 1"] == ("1, 1, 1", "gradient steps", "original")
    assert found["FedAvg, k > 1"] == ("1, 1, 1", "gradient steps", "regularised")
    assert found["FedPi"] == found["FedDyn"] == ("2, 2, ½", "prox", "original")
    assert found["SCAFFOLD"] == ("2, 2, ½", "tilted steps", "original")
    assert found["FedExProx"] == ("1, 1, > 1", "prox", "regularised")
    assert found["R_H G"] == ("1, 2, 1", "gradient steps", "neither")


def test_the_readme_has_every_row_with_its_numbers() -> None:
    lines = [line.split(" | ") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `rs.")]
    said = {name: line[1:4] for line in lines for name in re.findall(r"`rs\.(\w+)\(", line[0])}
    assert set(said) == set(TABLE)
    for name, row in TABLE.items():
        numbers = {"alpha": row.alpha, "beta": row.beta, "gamma": row.gamma}
        expected = ["> 1" if of in row.free else "1/2" if x == 0.5 else f"{x:g}" for of, x in numbers.items()]
        assert said[name] == expected, name
        assert hasattr(rs, name)
