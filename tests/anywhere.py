"""The numerical tests as other processors would run them: with other kernels of the libraries, and with more threads.

    make anywhere                        # every setting, one after the other; with ARGS=--short, what CI runs
    python -m anywhere oldest avx2       # some settings
    python -m anywhere oldest -- -x -k prox tests/laws    # one setting, and what pytest is to do

Last bits differ between processors, since libraries choose their kernels by what a processor can do. Environment
variables make them choose as for another one, so that a tolerance that fits one chip alone shows on any.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parent
WITHOUT_NUMBERS = {"cli", "config", "federation", "report", "runs", "siege", "ui"}
"""Folders of tests that compare no numbers which another kernel could change."""
SHORT = ("laws", "equivalence", "penalties", "hunt")

TORCH_OLD = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
NUMPY_OLD = {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "V3"}
SETTINGS: dict[str, dict[str, str]] = {
    "oldest": TORCH_OLD | NUMPY_OLD | {"ONEDNN_MAX_CPU_ISA": "SSE41", "NUMBA_CPU_NAME": "generic"},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "V4",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "torch": TORCH_OLD,
    "numpy": NUMPY_OLD,
    "onednn": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "threads": {"RESOLVENT_TEST_THREADS": "2"},
}
"""By name: variables that are set. For NumPy, the oldest kernels that are left out: those of x86-64-v3 or v4 and up."""


def numpy_features(oldest: str) -> str:
    """The kernels from `oldest` on that NumPy would take here; it warns of names that this processor lacks."""
    names: list[str] = np.show_config("dicts")["SIMD Extensions"].get("found", [])
    return " ".join(name for name in names if oldest == "V3" or not name.startswith(("X86_V3", "AVX2", "FMA")))


def run(name: str, arguments: list[str]) -> bool:
    """Whether the tests pass under a setting."""
    variables = dict(SETTINGS[name])
    if "NPY_DISABLE_CPU_FEATURES" in variables:
        variables["NPY_DISABLE_CPU_FEATURES"] = numpy_features(variables["NPY_DISABLE_CPU_FEATURES"])
    processes = max(1, (os.cpu_count() or 1) // int(variables.get("RESOLVENT_TEST_THREADS", 1)))
    print(f"{name}: " + " ".join(f"{key}={value!r}" for key, value in variables.items()), flush=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), "--dist", "worksteal", *arguments]
    ended = subprocess.run(command, cwd=TESTS.parent, env=os.environ | variables)
    print(f"{name}: exit {ended.returncode} after {time.monotonic() - began:.0f} s", flush=True)
    return ended.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m anywhere", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", help=f"some of {', '.join(SETTINGS)}; without any, all")
    parser.add_argument("--short", action="store_true", help=f"the first one alone, on {', '.join(SHORT)}")
    here = sys.argv[1:]
    cut = here.index("--") if "--" in here else len(here)
    given = parser.parse_args(here[:cut])
    unknown = [name for name in given.settings if name not in SETTINGS]
    if unknown:
        parser.error(f"no setting is called {unknown[0]}: {', '.join(SETTINGS)} are")
    numerical = sorted(p for p in TESTS.iterdir() if p.name not in WITHOUT_NUMBERS and any(p.glob("**/test_*.py")))
    places = [TESTS / name for name in SHORT] if given.short else [*numerical, *sorted(TESTS.glob("test_*.py"))]
    arguments = here[cut + 1 :] or [str(place.relative_to(TESTS.parent)) for place in places]
    chosen = given.settings or (list(SETTINGS)[:1] if given.short else list(SETTINGS))
    failed = [name for name in chosen if not run(name, arguments)]
    sys.exit(f"failed under {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
