"""One thread per test process: tests run side by side, and threads that wait for each other are slow."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Some machines announce matrix tiles (AMX) that their sandbox does not let a process use: bfloat16 products would die.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Runs of networks, and processes that tests begin, take no more either; more: `make anywhere`.
os.environ["OMP_NUM_THREADS"] = os.environ.get("RESOLVENT_TEST_THREADS", "1")

import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# The same draws on every machine, none of them timed; `pytest --hypothesis-profile=default` draws others.
settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

gc.disable()  # nothing that is imported and collected is garbage, and looking for some takes a fifth of that time


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The key that seals runs is made for the tests, not in the user's own folder."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """A real file by its path below the folder of data sets; the test is skipped where it is missing."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("RESOLVENT_DATA") or beside)

    def find(name: str) -> Path:
        if not (root / name).exists():
            pytest.skip(f"real data: no {name} (RESOLVENT_DATA names the folder)")
        return root / name

    return find
