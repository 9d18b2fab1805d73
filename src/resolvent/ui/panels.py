"""The reproduced paper: what each panel shows and claims, and where its runs are there, its picture and verdicts."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

from resolvent.paper import conduct
from resolvent.paper.drawing import picture
from resolvent.paper.figure import Figure, Panel
from resolvent.paper.figures.contents import FIGURES
from resolvent.ui.downloads import ONE_AT_A_TIME
from resolvent.ui.store import Unknown

FOLDER = "paper"
"""Where `resolvent reproduce` stores its runs, below the folder of runs."""


class Panels:
    """The panels of the paper over the runs in a folder, read when somebody asks."""

    def __init__(self, out: Path) -> None:
        self.out = out / FOLDER if (out / FOLDER).is_dir() else out
        self._lock = threading.Lock()
        self._index: tuple[int, conduct.RunIndex] | None = None
        self._judged: dict[tuple[int, str, str], dict[str, Any]] = {}
        self._pictures = Path(tempfile.mkdtemp(prefix="resolvent-ui-"))
        weakref.finalize(self, shutil.rmtree, self._pictures, ignore_errors=True)

    def contents(self) -> list[dict[str, Any]]:
        """Every figure and its panels, and how many of a panel's runs are there."""
        with self._lock:
            index = self._runs()
            return [
                {
                    "name": figure.name,
                    "title": figure.title,
                    "caption": figure.caption,
                    "settings": figure.settings,
                    "network_settings": figure.network_settings,
                    "panels": [_listed(panel, index) for panel in figure.panels],
                }
                for figure in FIGURES
            ]

    def panel(self, figure: str, key: str) -> dict[str, Any]:
        """A panel's verdicts, its table where it has one, and whether there is a picture."""
        of_figure, panel = self._find(figure, key)
        with self._lock:
            index = self._runs()
            place = (self._stamp(), figure, key)
            if place not in self._judged:
                self._judged[place] = self._make(of_figure, panel, index)
            return self._judged[place]

    def picture(self, figure: str, key: str) -> bytes:
        """The picture of a panel, PNG."""
        self.panel(figure, key)
        try:
            return (self._pictures / f"{figure}-{key}.png").read_bytes()
        except OSError:
            raise Unknown(f"there is no picture of {figure} {key}; its runs are missing") from None

    def _make(self, figure: Figure, panel: Panel, index: conduct.RunIndex) -> dict[str, Any]:
        result = conduct.make(figure, panel, index, lambda words: None, only_stored=True)
        with ONE_AT_A_TIME:
            drawn = picture(result, self._pictures, dpi=150)
        verdicts = [{"claim": claim.text, "said": verdict.said, "measured": verdict.numbers, "ours": claim.ours}
                    for claim, verdict, _ in result.verdicts]  # fmt: skip
        heads, rows = ([], []) if panel.table is None or result.results is None else panel.table(result.results)
        return {"missing": result.missing, "picture": drawn is not None, "verdicts": verdicts, "heads": heads,
                "rows": rows}  # fmt: skip

    def _find(self, name: str, key: str) -> tuple[Figure, Panel]:
        for figure in FIGURES:
            for panel in figure.panels:
                if (figure.name, panel.key) == (name, key):
                    return figure, panel
        raise Unknown(f"there is no panel {key[:40]!r} of {name[:40]!r}; the page lists those there are")

    def _runs(self) -> conduct.RunIndex:
        if self._index is None or self._index[0] != self._stamp():
            self._judged.clear()
            self._index = self._stamp(), conduct.RunIndex(self.out)
        return self._index[1]

    def _stamp(self) -> int:
        try:
            return self.out.stat().st_mtime_ns
        except OSError:
            return 0


def _listed(panel: Panel, index: conduct.RunIndex) -> dict[str, Any]:
    wanted = index.needed([panel])
    there = sum(each in index.ended for each in wanted)
    return {"key": panel.key, "title": panel.title, "runs": len(wanted), "there": there, "networks": panel.networks}
