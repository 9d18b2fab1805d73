"""The pages for newcomers: their code runs, and what they say of it is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

DOCS = Path(__file__).resolve().parents[1] / "docs"
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


def run(page: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


def test_the_first_ten_lines_end_at_the_solution_of_all_rows() -> None:
    names = run("index.md")
    assert names["run"].history["gap"].iloc[-1] < 1e-20


def test_the_choice_is_solved_to_its_certificates() -> None:
    names = run("choose.md")
    last = names["run"].history.iloc[-1]
    assert max(last["stationarity"], last["consensus"]) <= 1e-8
    rows, targets = np.concatenate(names["A"]), np.concatenate(names["b"])
    best = np.linalg.lstsq(rows, targets, rcond=None)[0]
    np.testing.assert_allclose(names["run"].model, best, atol=1e-6)


def test_what_others_do_is_done_here() -> None:
    names = run("coming-from.md")
    np.testing.assert_allclose(names["ours"].coef_, names["pooled"].coef_, rtol=1e-3, atol=1e-4)
    consensus = names["rs"].solve(names["consensus"], names["rs"].fedpi(eta=1.0), rounds=50, anderson=5)
    torch.testing.assert_close(consensus.model, names["c"].mean(0), rtol=0, atol=1e-8)


def test_privacy_spends_its_budget_and_no_more() -> None:
    pytest.importorskip("dp_accounting")
    spent = run("privacy.md")["run"].history["epsilon"].iloc[-1]
    assert 3.99 < spent <= 4.0
