"""What tests of data share."""

import re
from collections.abc import Callable

import pytest

from resolvent.errors import InputError


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
