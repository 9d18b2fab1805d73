"""From CUDA C to a kernel that can be launched: compiled by NVRTC through torch, and cached on disk.

torch keeps these functions to itself, so they are looked for, and what uses them has another way without them.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from resolvent.networks.precision import Precision

DIGEST = hashlib.sha256().digest_size


class Code(NamedTuple):
    """The source of one kernel, and the kernel's name in it."""

    source: str
    name: str


def obstacle_for(device: torch.device, dtype: torch.dtype, precision: Precision = "float32") -> str:
    """Why generated kernels do not serve these numbers on this device, in a few words; empty: they do."""
    if device.type != "cuda":
        return "it is not on a CUDA device"
    if dtype != torch.float32:
        return "the kernels are for float32"
    return "products are in bfloat16" if precision == "bfloat16" else obstacle()


@cache
def obstacle() -> str:
    """What stands in the way of compiling kernels here, in a few words; empty: nothing."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if torch.version.hip:
        return "the kernels are written for NVIDIA's GPUs"
    if _private("_nvrtc_compile") is None or _private("_cuda_load_module") is None:
        return "this torch does not compile kernels"
    try:
        kernel(Code('extern "C" __global__ void nothing() {}', "nothing"), torch.cuda.current_device())
    except (RuntimeError, OSError, TypeError, ValueError, ImportError, AttributeError) as error:
        line = (str(error).splitlines() or [""])[0]
        return f"kernels cannot be compiled ({type(error).__name__}: {line})"
    return ""


def _private(name: str) -> Callable[..., Any] | None:
    try:
        from torch.cuda import _utils
    except ImportError:
        return None
    return getattr(_utils, name, None)


@cache
def kernel(code: Code, device: int) -> Any:
    """The kernel on a device, ready to be called with grid, block and args."""
    binary = compiled(code, device)
    load = _private("_cuda_load_module")
    assert load is not None
    with torch.cuda.device(device):
        return load(binary, [code.name])[code.name]


def prepare(codes: Iterable[Code], device: int) -> None:
    """Compile several kernels at once, on as many threads, so that `kernel` finds them."""
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda code: compiled(code, device), codes))


def compiled(code: Code, device: int) -> bytes:
    """The machine code, from the disk or new."""
    major, minor = torch.cuda.get_device_capability(device)
    chip = f"{major}{minor}"
    file = folder() / key(code, chip)
    cached = _read(file)
    if cached is not None:
        return cached
    build = _private("_nvrtc_compile")
    assert build is not None
    binary, name = build(code.source, code.name, chip)
    if name != code.name:
        raise RuntimeError(f"the kernel {code.name} was compiled as {name}")
    _write(file, bytes(binary))
    return bytes(binary)


def key(code: Code, chip: str) -> str:
    """The name of the file: a hash of the source, the chip and the versions of what compiles it."""
    parts = (code.source, code.name, chip, torch.__version__, str(torch.version.cuda))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest() + ".cubin"


def folder() -> Path:
    """Where machine code is cached."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "resolvent" / "cuda"


def _read(file: Path) -> bytes | None:
    """The file's code, if it is there and whole."""
    with suppress(OSError):
        content = file.read_bytes()
        if hashlib.sha256(content[DIGEST:]).digest() == content[:DIGEST]:
            return content[DIGEST:]
    return None


def _write(file: Path, binary: bytes) -> None:
    """By renaming, so that nobody reads half of it. A disk that cannot be written to only costs time."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(handle, "wb") as out:
            out.write(hashlib.sha256(binary).digest() + binary)
        os.replace(name, file)
