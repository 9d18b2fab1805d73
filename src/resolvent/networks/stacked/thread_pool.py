"""A thread pool whose threads run one-threaded kernels, each on its own items.

Threads never wait for each other inside a kernel, and their number changes no bit of any result.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


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


@lru_cache(maxsize=1)
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "resolvent", initializer=torch.set_num_threads, initargs=(1,))


os.register_at_fork(after_in_child=_thread_pool.cache_clear)  # a child process has none of its parent's threads


def parallel_map(work: Callable[[Item], Result], items: Iterable[Item], device: torch.device) -> list[Result]:
    """work(item) for each item, results in order; on a CPU, on as many threads as torch has."""
    items = list(items)
    if device.type != "cpu":
        return [work(item) for item in items]
    with one_thread() as threads:
        if threads == 1 or len(items) == 1:
            return [work(item) for item in items]
        return list(_thread_pool(threads).map(work, items))
