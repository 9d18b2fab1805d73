"""Small versions of the paper's panels, and results that were tampered with: what the tests of `paper` share."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from resolvent.data.images import Images
from resolvent.paper.figure import Claim, Panel, PanelLine, Settings
from resolvent.paper.results import Results

TENTH = 10
"""Made problems have a tenth of the rows, so a tenth of the curvature, and ten times the step sizes."""
EVERY = 5
"""One row of the history for so many rounds: a row takes longer than such a round."""
SIZES: dict[str, Settings] = {
    "least-squares": {"problem.users": 5, "problem.dim": 10, "problem.rows": 500},
    "logistic": {"problem.users": 4, "problem.dim": 10, "problem.rows": 100, "run.rounds": 250},
}
NETWORK: Settings = {"problem.users": 20, "problem.images": 400, "run.rounds": 2, "run.every": 1}
LOCAL: Settings = {"local.steps": 1}


def _scaled(settings: Settings) -> Settings:
    made = dict(settings)
    for key in ("scheme.eta", "local.lr"):
        if key in made:
            made[key] = made[key] * TENTH
    if "local.batch" in made:
        made["local.batch"] //= TENTH
        made["run.rounds"] = 120
    if made.get("run.rounds", 0) > 1200:
        made["run.rounds"] = 600
    return made


def small(panel: Panel) -> Panel:
    """The panel on a problem of seconds: the same curvature times step, so about the same picture."""
    panel = replace(panel, claims=tuple(_first_small(claim) for claim in panel.claims))
    name = panel.base.get("problem.name")
    if panel.networks:
        lines = [replace(x, quick=x.quick | LOCAL | ({"local.batch": 10} if "local.batch" in x.settings else {}))
                 for x in panel.lines]  # fmt: skip
        return replace(panel, quick=panel.quick | NETWORK, lines=tuple(lines), seeds=1)
    if name is None:
        return panel
    base = _scaled(panel.base) | SIZES[name] | {"run.every": panel.base.get("run.every", EVERY)}
    return replace(panel, base=base, lines=tuple(replace(x, settings=_scaled(x.settings)) for x in panel.lines))


def _first_small(claim: Claim) -> Claim:
    """The claim with the panel of its first choice small too."""
    if claim.first is None or claim.first.panel is None:
        return claim
    return replace(claim, first=replace(claim.first, panel=small(claim.first.panel)))


def tampered(panel: Panel, facts: dict[str, Any], draws: int = 150) -> Iterator[Results]:
    """Results that never were: lines that end anywhere, in order, in reverse, or all alike; facts off by any factor."""
    rng = np.random.default_rng(zlib.crc32(panel.key.encode()))
    n = len(panel.lines)
    ladders = [np.geomspace(1e-24, 1e2, n), np.geomspace(1e-6, 1e-3, n), np.full(n, 1e-5)]
    for levels in (x for ladder in ladders for x in (ladder, ladder[::-1])):
        yield Results(panel, _frames(panel, levels, np.full(n, 0.5)), facts)
    for k in range(draws):
        levels = 10 ** rng.uniform(-24, 2, n) if k % 2 else 10 ** rng.uniform(-4, -2, n)
        yield Results(panel, _frames(panel, levels, rng.uniform(0.3, 0.999, n)), _shaken(facts, rng, k))


def _frames(panel: Panel, levels: Any, rates: Any) -> dict[str, list[pd.DataFrame]]:
    made = {}
    for line, level, rate in zip(panel.lines, levels, rates, strict=True):
        frames = [_frame(panel, line, level, rate, seed) for seed in range(panel.seeds)]
        made[line.label] = frames
    return made


def _frame(panel: Panel, line: PanelLine, level: float, rate: float, seed: int) -> pd.DataFrame:
    rounds = np.arange(1, 401)
    values = level * (1 + (rate - 0.3) * seed) + 100.0 * rate**rounds
    names = (line.column or panel.column, "gap", "value", "average_gap", "average_value", "validation_accuracy")
    columns = dict.fromkeys(names, values)
    frame = pd.DataFrame({"round": rounds, **columns})
    frame.attrs["status"] = "finished"
    return frame


def _shaken(facts: Any, rng: Any, k: int) -> Any:
    """The facts with every number multiplied by a factor: one for all, or one for each, and then perhaps moved."""
    common = 10 ** rng.uniform(-15, 15)

    def shake(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shake(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(shake(item) for item in value)
        if isinstance(value, bool):
            return bool(rng.random() < 0.5)
        if isinstance(value, (int, float)) and math.isfinite(value):
            return value * common if k % 3 == 0 else value * 10 ** rng.uniform(-4, 4) + (k % 3 - 1) * rng.random()
        return value

    return shake(facts)


def images(folder: Any = None, shape: tuple[int, ...] = (1, 28, 28)) -> Images:
    """Noise with a bright corner whose place is the class."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 10
    x = torch.randint(0, 60, (400, *shape), dtype=torch.uint8, generator=generator)
    for image, k in zip(x, y.tolist(), strict=True):
        image[:, 2 * k : 2 * k + 4, 2 * k : 2 * k + 4] = 250
    return Images(x, y, x[:50], y[:50], tuple("0123456789"), "made")
