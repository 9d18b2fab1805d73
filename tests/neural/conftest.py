from __future__ import annotations

from importlib.util import find_spec

import pytest

from resolvent.networks.stacked import workspace


@pytest.fixture(params=["loops", "columns"])
def convolutions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With Numba, and as if it were not installed."""
    if request.param == "loops":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(workspace, "find_spec", lambda name: None if name == "numba" else find_spec(name))
    return str(request.param)
