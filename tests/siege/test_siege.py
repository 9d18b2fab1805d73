"""A small draw of the siege; `make siege` wages all of it."""

from pathlib import Path
from typing import Any

import pytest

from siege.campaigns import CAMPAIGNS

FEW = {"mutated folders": 8, "fuzzed configurations": 25, "fuzzed data": 25, "files that cannot grow": 4,
       "the live page": 25, "malicious answers": 10, "malicious claims": 40, "a federation's server": 2}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("campaign", [c for c in CAMPAIGNS if c.name in FEW], ids=lambda campaign: campaign.name)
def test_a_few_attacks_end_well(campaign: Any, tmp_path: Path) -> None:
    ends = dict(campaign.wage(range(FEW[campaign.name]), tmp_path / "at"))
    assert {seed: end for seed, end in ends.items() if end not in campaign.fine} == {}


@pytest.mark.slow
@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda campaign: campaign.name)
def test_many_attacks_end_well(campaign: Any, tmp_path: Path) -> None:
    ends = dict(campaign.wage(range(10_000, 10_000 + max(3, campaign.many // 8)), tmp_path / "at"))
    assert {seed: end for seed, end in ends.items() if end not in campaign.fine} == {}
