"""A thread pool whose threads run one-threaded kernels, each on its own items.

Threads never wait for each other inside a kernel, and their number changes no bit of any result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

from resolvent.problems.one_thread import one_thread

Item = TypeVar("Item")
Result = TypeVar("Result")


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
