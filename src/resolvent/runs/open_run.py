"""The life of a run on disk, from its folder to its end: one context manager for everybody who runs one.

The command line, sweeps, several seeds, ranks and the server of a federation write their runs through it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from resolvent import config as configs
from resolvent.config import Config, problem_sections
from resolvent.errors import BadAnswer, InputError, RankLost, RoundFailed, StorageError
from resolvent.installed import install
from resolvent.runs import durable, lock
from resolvent.runs.checkpoints import Checkpoint
from resolvent.runs.collection import NO_ROOM, create
from resolvent.runs.folder import Folder, damaged
from resolvent.runs.recorder import Recorder, Sink


def needs_tensorboard() -> None:
    """Refuse, before anything is made, what could not be written afterwards."""
    try:
        import_module("torch.utils.tensorboard.writer")
    except ImportError:
        raise InputError(f"TensorBoard is not installed; {install('tensorboard')}, or leave it out") from None


def tensorboard_sink(folder: Path) -> Sink:
    """Write every number of a row as a scalar at its round. A round done again replaces what stood there."""
    needs_tensorboard()
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: list[SummaryWriter] = []

    def take(row: dict[str, Any]) -> None:
        if not writer:
            writer.append(SummaryWriter(str(folder), purge_step=row["round"]))
        for name, value in row.items():
            if name != "round" and math.isfinite(value):
                writer[0].add_scalar(name, value, row["round"])
        writer[0].flush()

    return take


class OpenRun:
    """A run that this process writes. Its lock is held from `begin` or `resume` until the `with` block is left.

        with OpenRun.begin(out, name, config, about) as run:
            recorder = run.record(config)
            ...                                   # the rounds, each of which the recorder stores
            run.end("finished", "20 rounds")

    An error that leaves the block is noted as an event, once everything before it is stored. A new run that never came
    as far as `record` leaves no folder behind.
    """

    def __init__(self, folder: Folder, new: bool) -> None:
        self.folder = folder
        self.recorder: Recorder | None = None
        self._new, self._noted = new, False
        self._stack = ExitStack()
        self._stack.enter_context(lock.held(folder.path))

    @classmethod
    def begin(
        cls,
        out: Path,
        name: str,
        config: Config,
        about: dict[str, Any],
        start: Checkpoint | None = None,
        fixed: Mapping[str, Tensor] | None = None,
    ) -> OpenRun:
        """Make a run's folder under `out`; `start`: where a fork begins; `fixed`: a network's untrained tensors."""
        if config.store.tensorboard:
            needs_tensorboard()
        code = isinstance(config.problem, problem_sections.OwnSection)
        folder = create(out, name, configs.dumps(config), about, start, code, fixed)
        try:
            return cls(folder, new=True)
        except lock.Held:  # another process resumed it first
            raise
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise

    @classmethod
    def resume(cls, folder: Folder) -> OpenRun:
        """Go on with a run that is sound and that no other process writes."""
        if wrong := folder.damage():
            raise damaged(folder, wrong)
        return cls(folder, new=False)

    def record(self, config: Config, at: int | None = None, due: Callable[[], bool] | None = None) -> Recorder:
        """Open its metrics and the checkpoint to go on from. `at` and `due` are those of a run on several ranks."""
        sink = tensorboard_sink(self.folder.path / "tensorboard") if config.store.tensorboard else None
        with durable.storing(self.folder.path, NO_ROOM if self._new else "make it writable to go on"):
            recorder = Recorder(self.folder, config.run.rounds, config.store.checkpoint, sink, at, due)
            self._stack.callback(recorder.close)
            if not self._new:
                self.folder.note("resumed", round=recorder.done)
            for sentence in recorder.complaints:
                self.folder.note("damage", words=sentence)
        self.recorder = recorder
        return recorder

    def end(self, status: str, reason: str) -> None:
        """Note how the rounds ended, with the checksums of what is stored."""
        assert self.recorder is not None
        self.recorder.end(status, reason)
        self._noted = True

    def leave(self, kind: str, reason: str) -> None:
        """Note that the run was left before its end, once everything that was done is stored."""
        assert self.recorder is not None
        self.recorder.flush()
        done = self.recorder.done
        with durable.storing(self.folder.path, f"and round {done + 1} {kind} with {reason}"):
            self.folder.note(kind, reason=reason, round=done)
        self._noted = True

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if isinstance(error, Exception | KeyboardInterrupt | SystemExit) and not self._noted:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Note what a round raised, and raise it with what can be done."""
        if self.recorder is None:
            if self._new:
                shutil.rmtree(self.folder.path, ignore_errors=True)
            return
        if isinstance(error, StorageError):
            return
        if isinstance(error, KeyboardInterrupt):
            self.leave("interrupted", f"interrupted after {self.recorder.done} rounds")
            return
        why = str(error) if isinstance(error, BadAnswer | InputError) else f"{type(error).__name__}: {error}"
        self.leave("failed", why)
        if isinstance(error, InputError | RankLost):
            return
        name, again = self.folder.id, f"`{self.folder.resuming}` tries again"
        if not self.folder.federated:
            again += f", `resolvent fork {name}` goes on with corrected code"
        failed = f"round {self.recorder.done + 1} of run {name} failed ({why})"
        raise RoundFailed(f"{failed}; everything before it is stored: {again}") from error
