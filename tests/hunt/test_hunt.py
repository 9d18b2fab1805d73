"""A few cases of every family, and those that were wrong once; `make hunt` tries many."""

from typing import Any

import pytest

from hunt.families import WRONG, attempt, families
from hunt.regressions import FAILED


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_a_few_cases_are_right(family: Any) -> None:
    """Half of what a family calls few: they are the same every time, and `make hunt` draws others."""
    seeds = range((family.few + 1) // 2)
    wrong = {seed: words for seed in seeds for end, words in [attempt(family, seed)] if end == WRONG}
    assert not wrong


@pytest.mark.parametrize("name", FAILED)
def test_cases_that_were_wrong_once_stay_right(name: str) -> None:
    family = next(family for family in families() if family.name == name)
    wrong = {seed: words for seed in FAILED[name] for end, words in [attempt(family, seed)] if end == WRONG}
    assert not wrong
