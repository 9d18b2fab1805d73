"""Checkpoints of a run: pure safetensors files, each named after its round and the checksum of its bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from resolvent.runs import durable

KEPT = 2
SUFFIX = ".safetensors"


class Checkpoint(NamedTuple):
    """A State as named tensors, and numbers as JSON."""

    round: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def write(folder: Path, checkpoint: Checkpoint, alone: bool = False) -> None:
    """Add a checkpoint; the last two are kept, or this one `alone`."""
    from safetensors.torch import save

    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in checkpoint.tensors.items()}
    content = save(own, metadata={"numbers": json.dumps(checkpoint.numbers)})
    path = folder / f"{checkpoint.round:08d}-{_checksum(content)}{SUFFIX}"
    durable.write(path, content)
    old_ones = [old for old in _files(folder) if old != path] if alone else _files(folder)[KEPT:]
    for old in (*old_ones, *folder.glob(".*.part")):
        old.unlink(missing_ok=True)


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose bytes are what was written, and a sentence for each that had to be passed over."""
    from safetensors.torch import load

    complaints = []
    for path in _files(folder):
        content = path.read_bytes()
        if _checksum(content) != path.stem.partition("-")[2]:
            complaints.append(f"checkpoint {path.name} is damaged and passed over")
            continue
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        numbers = json.loads(header["__metadata__"]["numbers"])
        return Checkpoint(int(path.name[:8]), load(content), numbers), complaints
    return None, complaints


def _files(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob(f"[0-9]*-*{SUFFIX}"), reverse=True)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
