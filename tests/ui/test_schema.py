"""schemathesis over the API's own description: whatever it sends, no answer is a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from resolvent.runs import folders
from resolvent.ui.jobs import Jobs

from .conftest import TOKEN

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
BOUNDED = settings(
    max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    database=None,
)  # fmt: skip
SHOWN = {"Authorization": f"Bearer {TOKEN}"}
JOB = {"id": "a", "run": None, "status": "running", "words": ""}


@pytest.fixture(autouse=True)
def nothing_is_started() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Jobs, "_start", lambda *_: JOB)
        yield


def schema_of(address: str) -> Any:
    return schemathesis.openapi.from_url(f"{address}/api/openapi.json", headers=SHOWN)


def sent(case: Any, address: str) -> None:
    answer = case.call(base_url=address, timeout=30, headers=SHOWN)
    assert answer.status_code < 500, f"{case.method} {case.path}: {answer.status_code}"


def test_no_answer_is_a_5xx(address: str, stored: Path) -> None:
    """Every operation, with values that fit its description and with values that do not."""
    ids = [run.id for run in folders(stored)]
    operations = [found.ok() for found in schema_of(address).get_all_operations()]
    assert {operation.path for operation in operations} >= {"/api/runs/{run}/metrics", "/api/explore", "/api/compare"}
    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            @seed(0)
            @BOUNDED
            @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans(), which=st.sampled_from(ids))
            def check(case: Any, known: bool, which: str) -> None:
                if known and "run" in (case.path_parameters or {}):
                    case.path_parameters["run"] = which
                sent(case, address)

            try:
                check()
            except Exception as error:
                if type(error).__name__ not in ("Unsatisfiable", "InvalidArgument"):  # nothing of that kind to send
                    raise
