"""What attackers bring: mutations of folders, configurations and data files that are nearly right."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from resolvent.config import dumps
from resolvent.config.sections import Config
from resolvent.runs import folders
from resolvent.runs.recorder import Recorder

Ends = Iterator[tuple[int, str]]
"""Seed by seed, how an attack ended."""


class Killed(BaseException):
    """Raised where a process would be killed."""


def recorder_call() -> Callable[..., Any]:
    return Recorder.__call__


@contextlib.contextmanager
def recording(call: Callable[..., Any]) -> Iterator[None]:
    with mock.patch.object(Recorder, "__call__", call):
        yield


@contextlib.contextmanager
def files_of(size: int | None) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits[0] if size is None else size, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def mutate(path: Path, rng: random.Random) -> str:
    """Damage one file of a run; what was done."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())
    if not files:
        return "nothing is left"
    file = rng.choice(files)
    if (special := rng.random()) < 0.1:
        return _special(file, special, rng)
    file.write_bytes(scrambled(file.read_bytes(), rng, [other.read_bytes() for other in files]))
    return f"bytes of {file.name}"


def _special(file: Path, special: float, rng: random.Random) -> str:
    """Deleted, renamed, or a pipe, a link or a folder instead."""
    if special < 0.04:
        file.unlink()
        return f"deleted {file.name}"
    if special < 0.06:
        file.rename(file.with_name(f"{rng.randrange(30):08d}-{rng.randbytes(4).hex()}{file.suffix}"))
        return f"renamed {file.name}"
    if special < 0.07:
        file.unlink()
        os.mkfifo(file)
        return f"a pipe instead of {file.name}"
    if special < 0.08:
        other = file.with_name(f"{file.name}.real")
        file.rename(other)
        file.symlink_to(other.name)
        return f"linked {file.name}"
    file.unlink()
    file.mkdir()
    return f"a folder instead of {file.name}"


def scrambled(content: bytes, rng: random.Random, others: list[bytes] | None = None) -> bytes:
    """Bytes that are nearly these."""
    new, at = bytearray(content), rng.randrange(max(len(content), 1))
    how = rng.randrange(9)
    if how == 0 and new:
        new[at] ^= 1 << rng.randrange(8)
    elif how == 1:
        del new[at:]
    elif how == 2:
        new.clear()
    elif how == 3:
        new[at : at + 20] = rng.randbytes(20)
    elif how == 4:
        new[at:at] = rng.choice([b"\n", b"0", b"[" * 3000, b"\0", b"9" * 400, b'"', b"\xff", b"1e999", b"-"])
    elif how == 5:
        new = bytearray(rng.choice(others or [b""]))
    elif how == 6:
        new = new * 2
    elif how == 7:
        lines = content.splitlines(keepends=True)
        rng.shuffle(lines)
        new = bytearray(b"".join(lines))
    else:
        digits = [k for k, byte in enumerate(new) if chr(byte).isdigit()]
        if digits:
            new[rng.choice(digits)] = ord(rng.choice("0123456789"))
    return bytes(new)


WEIRD = ("0", "-1", "1e400", "nan", "inf", "-inf", '""', '"auto"', "true", "[]", "[1, 2]", "{}", "9" * 30, "1e-320",
         "0.5", "3", '"\\u001b[31m"', '"$"', '"../.."', "1979-05-27", '"fedpi"', '"hold"', "1e100", "2")  # fmt: skip


def config(rng: random.Random) -> bytes:
    """A small configuration with some values, keys or bytes that are wrong."""
    lines = dumps(Config()).replace("rounds = 200", "rounds = 3").replace("rows = 5000", "rows = 9").splitlines()
    lines = [line.replace("users = 25", "users = 3").replace("dim = 100", "dim = 3") for line in lines]
    for _ in range(rng.randrange(1, 4)):
        k = rng.randrange(len(lines))
        key = lines[k].partition(" = ")[0]
        if key.startswith("[") or not key:
            continue
        lines[k] = f"{key} = {rng.choice(WEIRD)}"
        if key in ("rounds", "users", "dim", "rows", "threads", "memory", "steps") and lines[k].endswith("9" * 30):
            lines[k] = f"{key} = 4"  # a long run is no fault
    text = "\n".join(lines).encode()
    return scrambled(text, rng) if rng.random() < 0.4 else text


def options(rng: random.Random) -> list[str]:
    keys = ("scheme.eta", "scheme.algorithm", "anderson.memory", "participation.probability", "local.steps", "stop.gap",
            "run.average", "scheme.schedule", "local.batch", "participation.size")  # fmt: skip
    given = [("--set", f"{rng.choice(keys)}={rng.choice(WEIRD)}") for _ in range(rng.randrange(3))]
    return [word for pair in given for word in pair]


def data(rng: random.Random, stem: Path) -> Path:
    """A data file of some format with some bytes that are wrong."""
    kind = rng.choice(["csv", "tsv", "libsvm", "npz", "parquet", "txt", ""])
    content = _plain(kind, rng)
    if rng.random() < 0.8:
        content = scrambled(content, rng)
    suffix = f".{kind}" if kind else ""
    packing: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    if rng.random() < 0.4:
        packed = rng.choice(list(packing))
        content = packing[packed](content)
        suffix += f".{packed}"
        if rng.random() < 0.4:
            content = scrambled(content, rng)
    path = stem.with_name(f"{stem.name}{suffix}")
    path.write_bytes(content)
    return path


def _plain(kind: str, rng: random.Random) -> bytes:
    n = rng.choice([1, 2, 5, 30])
    scale = rng.choice([1, 1, 1, 1e-300, 1e100, 1e200])
    if kind in ("csv", "tsv"):
        comma = "," if kind == "csv" else "\t"
        body = "\n".join(comma.join([str(k * scale), str(k * k % 7), str(k % 2)]) for k in range(n))
        return (comma.join("aby") + "\n" + body).encode()
    if kind in ("npz", "parquet"):
        file = io.BytesIO()
        x, y = np.arange(n * 2.0).reshape(n, 2) * scale, np.arange(n) % 2
        if kind == "npz":
            (np.savez if rng.random() < 0.5 else np.savez_compressed)(file, x=x, y=y)
        else:
            import pandas as pd

            pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y}).to_parquet(file)
        return file.getvalue()
    return "\n".join(f"{k % 2} 1:{k * scale} {rng.choice([2, 2, 2, 40])}:{k * k % 7}" for k in range(n)).encode()


def wait_for_a_checkpoint(out: Path, process: subprocess.Popen[Any]) -> None:
    """Until the process has written something, or has ended."""
    before = {path for run in folders(out) for path in run.checkpoints.iterdir()} if out.is_dir() else set()
    while process.poll() is None:
        if out.is_dir() and {path for run in folders(out) for path in run.checkpoints.glob("[0-9]*")} - before:
            return
        time.sleep(0.01)
