"""The sets that `resolvent data` downloads: what is known of each is true of its public file."""

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from resolvent.data.samples import SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_the_checksum_and_the_number_of_rows(name: str, real_data: Callable[[str], Path]) -> None:
    """A wrong checksum would refuse every download."""
    content = gzip.decompress(real_data(f"libsvm/{name}.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest() == SAMPLES[name].sha256
    assert f"{len(content.splitlines()):,}" == SAMPLES[name].about.split()[0]
