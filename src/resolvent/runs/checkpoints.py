"""Checkpoints of a run: pure safetensors files, each named after its round and the checksum of its bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resolvent.runs import durable, regular
from resolvent.runs.metrics import Extent

if TYPE_CHECKING:  # a run is listed without torch
    from torch import Tensor

    from resolvent.iteration.state import State
    from resolvent.solving.stopping import Best

RETAINED = 2
SUFFIX = ".safetensors"
NAME = re.compile(r"[0-9]{1,18}-[^-]*")
"""A round and a checksum."""
KEPT = "kept."
"""Before the names of the tensors of the best model by a metric."""


class Checkpoint(NamedTuple):
    """A State as named tensors, and numbers as JSON."""

    round: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]

    @property
    def state(self) -> State:
        from resolvent.iteration import checkpoint

        return checkpoint.unpack(self.tensors, self.numbers["state"])

    @property
    def kept(self) -> Best | None:
        """The best model by a metric, where the run has one."""
        if "kept" not in self.numbers:
            return None
        from resolvent.iteration import packing
        from resolvent.solving.stopping import Best

        tensors = {name.removeprefix(KEPT): tensor for name, tensor in self.tensors.items() if name.startswith(KEPT)}
        kept = packing.unpack(tensors, self.numbers["kept"])
        if not isinstance(kept, Best):
            raise ValueError(f"a Best is needed, but {type(kept).__name__} came")
        return kept

    @property
    def extent(self) -> Extent:
        """The rows of the metrics that belong to this round and those before."""
        return Extent(self.numbers["metrics"], self.numbers.get("metrics_sha256"))


def encode(tensors: Mapping[str, Tensor], numbers: dict[str, Any] | None = None) -> bytes:
    """Named tensors, and the numbers of a checkpoint, as the bytes of a safetensors file."""
    from safetensors.torch import save

    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    return save(own, metadata=None if numbers is None else {"numbers": json.dumps(numbers)})


def tensors(content: bytes) -> dict[str, Tensor]:
    """Named tensors from the bytes of a safetensors file; raises ValueError where they are none."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError) as error:
        raise ValueError(f"{type(error).__name__} while reading it") from error


def decode(content: bytes) -> Checkpoint:
    """A checkpoint from its bytes; raises ValueError where they are none, whatever they are."""
    named = tensors(content)
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        numbers = json.loads(header["__metadata__"]["numbers"])
        stored = Checkpoint(numbers["state"]["round"], named, numbers)
        _ = stored.state, stored.kept
        _check(numbers)
    except regular.UNFIT as error:
        raise ValueError(f"{type(error).__name__} while reading it") from error
    return stored


def _check(numbers: dict[str, Any]) -> None:
    """ValueError where what a checkpoint says of its run has other types than it is written with."""
    rows, ending, monitor = numbers["metrics"], numbers.get("verdict"), numbers.get("pulse", [])
    if type(rows) is not int or rows < 0 or not isinstance(numbers.get("metrics_sha256"), str | None):
        raise ValueError("it says of no rows that they are its own")
    if ending and not (isinstance(ending, list) and [type(each) for each in ending] == [str, str]):
        raise ValueError("it ends in no known way")
    numbers_then_counts = isinstance(monitor, list) and {*map(type, monitor[:3])} <= {float, int}
    if not numbers_then_counts or not {*map(type, monitor[3:])} <= {int}:
        raise ValueError("its monitor remembers no numbers")


def write(folder: Path, new: Checkpoint, alone: bool = False) -> None:
    """Add a checkpoint and remove older ones: the newest two remain, or this one `alone`."""
    content = encode(new.tensors, new.numbers)
    path = folder / f"{new.round:08d}-{_checksum(content)}{SUFFIX}"
    durable.write(path, content)
    files = _files(folder)
    same = [old for old in files if old != path and _round(old) == new.round]
    old_ones = [old for old in files if old != path] if alone else [old for old in files if old not in same][RETAINED:]
    for old in (*same, *old_ones, *folder.glob(".*.part")):
        old.unlink(missing_ok=True)
    if alone:  # a later round that came back after a power cut would be taken for the newest
        durable.sync(folder)


def newest(
    folder: Path, run: str | None = None, usable: Callable[[Checkpoint], bool] = lambda stored: True
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose bytes are what was written, and one sentence for each that was skipped.

    With `run`, it must be one of this run's: a file that was copied here from another has a right checksum, too.
    Those that are not `usable` are passed over without a word.
    """
    complaints: list[str] = []
    for stored in _read(folder, run):
        if isinstance(stored, str):
            complaints.append(stored)
        elif usable(stored):
            return stored, complaints
    return None, complaints


def sound(folder: Path, run: str | None = None) -> tuple[list[Checkpoint], list[str]]:
    """All checkpoints whose bytes are what was written, newest first, and one sentence for each that was skipped."""
    every = list(_read(folder, run))
    return [each for each in every if isinstance(each, Checkpoint)], [each for each in every if isinstance(each, str)]


def forget_after(folder: Path, round: int) -> None:
    """Remove checkpoints of later rounds, which will be done again."""
    for path in _files(folder):
        if _round(path) > round:
            path.unlink(missing_ok=True)


def _read(folder: Path, run: str | None) -> Iterator[Checkpoint | str]:
    """Each checkpoint, newest first, or a sentence that says why it cannot be used."""
    for path in _files(folder):
        checksum = path.stem.partition("-")[2]
        try:
            content = regular.read(path, limit=None)
            if _checksum(content) != checksum:
                yield f"checkpoint {path.name} is damaged and was skipped"
                continue
            stored = decode(content)
        except (OSError, ValueError) as error:
            yield f"checkpoint {path.name} cannot be read ({error}) and was skipped"
            continue
        if stored.round != _round(path) or run not in (None, stored.numbers.get("run")):
            yield f"checkpoint {path.name} belongs to another run or round and was skipped"
            continue
        yield stored


def newest_name(folder: Path) -> str | None:
    """The name of the newest checkpoint's file, sound or not."""
    return next((path.name for path in _files(folder)), None)


def _files(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in folder.glob(f"*{SUFFIX}") if NAME.fullmatch(path.stem)), reverse=True)


def _round(path: Path) -> int:
    return int(path.stem.partition("-")[0])


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
