"""torch's kernels on one thread, for as long as a block lasts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Available(threading.local):
    """How many threads torch had when `one_thread` was entered: so many may work side by side inside it.

    torch's number of threads is each thread's own too. Threads that enter and leave in turn would otherwise leave
    each other's number behind.
    """

    threads = 1


_available = _Available()


@contextmanager
def one_thread() -> Iterator[int]:
    """Limit torch's kernels to one thread; gives the number of threads before, of the outermost call if they nest."""
    threads, outer = torch.get_num_threads(), _available.threads
    if threads == 1:
        yield outer
        return
    torch.set_num_threads(1)
    _available.threads = threads
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
        _available.threads = outer


def threads_there() -> int:
    """On how many threads `parallel_map` would work now."""
    threads = torch.get_num_threads()
    return _available.threads if threads == 1 else threads
