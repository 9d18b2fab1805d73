"""Where the real data sets lie, if they do."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from resolvent.errors import InputError


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """A real file by its path below the folder of data sets; the test is skipped where it is missing."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    root = Path(os.environ.get("RESOLVENT_DATA") or beside)

    def find(name: str) -> Path:
        if not (root / name).exists():
            pytest.skip(f"real data: no {name} (RESOLVENT_DATA names the folder)")
        return root / name

    return find


@pytest.fixture
def refused() -> Callable[..., str]:
    """Checks that a call is refused in one sentence with all of the words in it."""

    def check(attempt: Callable[[], object], *words: str) -> str:
        with pytest.raises(InputError) as caught:
            attempt()
        message = str(caught.value)
        for word in words:
            assert word in message, (word, message)
        assert "\n" not in message
        assert not re.search(r"\. [A-Z]", message), f"more than one sentence: {message}"
        return message

    return check
