"""A disk that loses power: what it holds is what was fsynced, by two models of how bad that can be.

"strict" is what POSIX promises: a file has the content of its last fsync, a folder the names of its last fsync.
"ext4" is what a journal of metadata does: names are on disk before contents, so a file never fsynced is empty.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

Site = tuple[str, ...]
"""Who asked for an fsync: the functions of the package on the stack, innermost first."""


class Disk:
    """Records every fsync below `root`, but for those of one site, which are lost."""

    def __init__(self, root: Path, lost: Site | None = None) -> None:
        self.root, self.lost = root, lost
        self.sites: dict[Site, int] = {}
        self.after: Callable[[], None] | None = None
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {root.stat().st_ino: self._listed(root)}

    def record(self, patch: pytest.MonkeyPatch) -> None:
        original = os.fsync

        def fsync(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if path.is_relative_to(self.root):
                site = _site()
                self.sites[site] = self.sites.get(site, 0) + 1
                if site != self.lost:
                    self._keep(handle, path)
                if self.after is not None:
                    self.after()
            else:
                original(handle)

        patch.setattr(os, "fsync", fsync)

    def restore(self, to: Path, model: str) -> Path:
        """What is there after a power cut now."""
        self._put(self.root, self.root.stat().st_ino, to, model)
        return to

    def _keep(self, handle: int, path: Path) -> None:
        inode = os.fstat(handle).st_ino
        if path.is_dir():
            self._names[inode] = self._listed(path)
        else:
            self._contents[inode] = path.read_bytes()

    def _listed(self, folder: Path) -> dict[str, int]:
        return {entry.name: entry.inode() for entry in os.scandir(folder)}

    def _put(self, now: Path, inode: int, to: Path, model: str) -> None:
        to.mkdir()
        names = self._listed(now) if model == "ext4" and now.is_dir() else self._names.get(inode, {})
        for name, number in names.items():
            if number in self._names or (now / name).is_dir():
                self._put(now / name, number, to / name, model)
            else:
                (to / name).write_bytes(self._contents.get(number, b""))


def _site() -> Site:
    frame: FrameType | None = sys._getframe(2)
    names = []
    while frame is not None:
        if f"{os.sep}resolvent{os.sep}" in frame.f_code.co_filename:
            names.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(names[:4])
