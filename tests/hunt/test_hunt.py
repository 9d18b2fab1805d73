"""A few cases of every family; `make hunt` tries many."""

from typing import Any

import pytest

from hunt.families import WRONG, attempt, families


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_a_few_cases_are_right(family: Any) -> None:
    wrong = {seed: words for seed in range(family.few) for end, words in [attempt(family, seed)] if end == WRONG}
    assert not wrong
