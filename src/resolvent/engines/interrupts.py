"""Ctrl-C and SIGTERM while several processes run one loop: noted at once, obeyed where all of them can."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

PATIENCE = 5.0
"""Seconds after which a second signal ends this process where it stands: torchrun passes on the first one at once."""


class Interrupts:
    """While it is open, a first signal is noted and a later one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.noted = False
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def open(self) -> None:
        self.noted = False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)

    def close(self) -> None:
        """Signals do again what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted and time.monotonic() - self._since > PATIENCE:
            raise KeyboardInterrupt
        if not self.noted:
            self.noted, self._since = True, time.monotonic()
