"""A run on several ranks: rank 0 writes the run's folder, and every other rank its own checkpoints, in a folder inside.

On machines that share no disk, that folder lies alone under the run's name. After a fault, ranks may be a round apart:
each retains its last two checkpoints, and all go on from the newest round that every rank has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from resolvent.iteration.state import State
from resolvent.runs import checkpoints, durable
from resolvent.runs.checkpoints import Checkpoint
from resolvent.runs.recorder import best_of, packed, remembered_in
from resolvent.solving.recording import Entry


def place(out: Path, run: str, rank: int) -> Path:
    """Where a rank other than 0 stores its checkpoints."""
    return out / run / f"rank-{rank}"


def stored(folder: Path, run: str) -> list[int]:
    """The rounds that a rank can go on from; 0 is the beginning."""
    return [0, *(held.round for held in checkpoints.sound(folder, run)[0])] if folder.is_dir() else [0]


def common(rounds: Sequence[Sequence[int]]) -> int:
    """The newest round that every rank has stored."""
    return max(set(rounds[0]).intersection(*rounds[1:]))


class RankRecorder:
    """Stores the checkpoints of a rank other than 0, for `solve`. Rank 0 stores everything else."""

    def __init__(self, folder: Path, run: str, rounds: int, at: int, due: Callable[[], bool]) -> None:
        self._folder, self._run, self._rounds, self._due = folder, run, rounds, due
        with durable.storing(folder, "name another folder with --out, or make room there"):
            durable.make(folder)
        held, self.complaints = checkpoints.sound(folder, run)
        found = next((each for each in held if each.round == at), None)
        self.state: State | None = None if found is None else found.state
        self.remembered, self.ending = remembered_in({} if found is None else found.numbers)
        self.best = best_of(found) or self.state
        self.kept = None if found is None else found.kept
        self.columns: tuple[str, ...] = ("round",) if at else ()
        self.done = at
        self._waiting: Checkpoint | None = None

    def __call__(self, entry: Entry) -> None:
        self._waiting = packed(self._run, entry, {"metrics": 0})
        if self._due() or entry.ending is not None or entry.number == self._rounds:
            self.flush()

    def give_up(self, entry: Entry) -> None:
        """The best state becomes the only checkpoint."""
        self._waiting = packed(self._run, entry, {"metrics": 0})
        self.flush(alone=True)

    def flush(self, alone: bool = False) -> None:
        """Write the checkpoint that waits, if one does; `alone`: and remove all others."""
        if self._waiting is None:
            return
        with durable.storing(self._folder, "make room there, then resume the run with the same command"):
            checkpoints.write(self._folder, self._waiting, alone)
        self.done, self._waiting = self._waiting.round, None
