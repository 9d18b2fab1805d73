"""What a user remembers between rounds, on its own disk. The server names the answer to go on from, by its round.

The memories of the last few answers are retained: where an answer was lost, refused, or forgotten by a server that was
killed, the node goes on from the one that the server knows.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from torch import Tensor

from resolvent.errors import StorageError, quoted, refuse

RETAINED = 4
"""Answers per run whose memories are retained."""
MAX_RUNS = 32
"""Runs whose memories are retained, those of the latest answers: a server can begin any number."""
SUFFIX = ".safetensors"

Tensors = dict[str, Tensor]


class Memories:
    """Memories by run and round. Without a folder they are in this process alone."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._cached: dict[tuple[str, int], Tensors] = {}

    def load(self, run: str, t: int) -> Tensors | None:
        """What was remembered after the answer of round t; None where that is not known."""
        if (run, t) not in self._cached and self._folder is not None:
            path = self._path(run, t)
            if not path.is_file():
                return None
            self._cached[run, t] = _read(path)
            os.utime(path)
        tensors = self._cached.pop((run, t), None)
        if tensors is not None:
            self._cached[run, t] = tensors  # the one used last is the last to go
        return tensors

    def store(self, run: str, t: int, tensors: Tensors) -> None:
        """Remember this after the answer of round t."""
        self._cached.pop((run, t), None)
        self._cached[run, t] = tensors
        for old in list(self._cached)[:-RETAINED]:
            del self._cached[old]
        if self._folder is not None:
            path = self._path(run, t)
            if not path.parent.is_dir():
                self._make_room()
            _write(path, tensors)
            for file in _newest(path.parent)[RETAINED:]:
                file.unlink(missing_ok=True)

    def _make_room(self) -> None:
        """For one more run."""
        assert self._folder is not None
        runs = [path for path in self._folder.glob("*") if path.is_dir() and not path.is_symlink()]
        for old in sorted(runs, key=lambda run: run.stat().st_mtime_ns, reverse=True)[MAX_RUNS - 1 :]:
            shutil.rmtree(old)

    def touch(self, run: str, t: int) -> None:
        """The answer of round t is still the one to go on from."""
        if self._folder is not None and self._path(run, t).is_file():
            os.utime(self._path(run, t))

    def _path(self, run: str, t: int) -> Path:
        assert self._folder is not None
        if not run or not all(c.isalnum() or c in "-_." for c in run) or run.startswith("."):
            refuse("run", quoted(run[:100]), "a name of letters, digits, - and _ is needed")
        return self._folder / run / f"{t:08d}{SUFFIX}"


def latest(folder: Path, run: str | None = None) -> tuple[str, int, Tensors]:
    """The run, the round and the tensors of the newest answer under a folder of memories."""
    runs = [folder / run] if run is not None else [path for path in folder.glob("*/") if _newest(path)]
    files = [file for path in runs for file in path.glob(f"[0-9]*{SUFFIX}")]
    if not files:
        named = "" if run is None else f" for run {run}"
        raise StorageError(f"{folder} has no answers of this node{named}; it gives some once a run has begun")
    recent = max(files, key=lambda file: (file.parent.stat().st_mtime_ns, file.name))
    return recent.parent.name, int(recent.stem), _read(recent)


def _newest(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"[0-9]*{SUFFIX}"), key=lambda file: file.stat().st_mtime_ns, reverse=True)


def _read(path: Path) -> Tensors:
    from safetensors.torch import load

    return load(path.read_bytes())


def _write(path: Path, tensors: Tensors) -> None:
    """Whole or not at all."""
    from safetensors.torch import save

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        with part.open("wb") as file:
            file.write(save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        os.utime(path, ns=(now := time.time_ns(), now))
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}); make room there") from error
