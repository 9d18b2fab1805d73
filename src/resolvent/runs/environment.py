"""Where a run took place: versions, git, machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("resolvent", "torch", "numpy", "scipy", "pandas", "numba")


def environment() -> dict[str, Any]:
    """What one needs to know to run it again elsewhere."""
    import torch

    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "git": _git(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # from a checkout that is not installed
        return None


@cache
def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git() -> dict[str, Any] | None:
    """The commit of the working folder, and whether it was changed since."""
    try:
        commit = _output("git", "rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_output("git", "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=5).stdout.strip()
