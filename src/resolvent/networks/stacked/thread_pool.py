"""Threads that each work on their own piece with one-threaded kernels: nobody waits, and the number of threads does not
change a bit of any result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


_found = 1
"""How many threads `one_thread` found: within it, so many may work side by side."""


@contextmanager
def one_thread() -> Iterator[int]:
    """Kernels on one thread meanwhile; gives how many threads there were, before the outer one if they nest."""
    global _found
    threads, outer = torch.get_num_threads(), _found
    if threads == 1:
        yield outer
        return
    torch.set_num_threads(1)
    _found = threads
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
        _found = outer


@lru_cache(maxsize=1)
def _crew(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "resolvent", initializer=torch.set_num_threads, initargs=(1,))


os.register_at_fork(after_in_child=_crew.cache_clear)  # a child process has none of its parent's threads


def each(work: Callable[[Piece], Result], pieces: Iterable[Piece], device: torch.device) -> list[Result]:
    """work(piece) for each piece, results in order; on a CPU on as many threads as torch has."""
    pieces = list(pieces)
    if device.type != "cpu":
        return [work(piece) for piece in pieces]
    with one_thread() as threads:
        if threads == 1 or len(pieces) == 1:
            return [work(piece) for piece in pieces]
        return list(_crew(threads).map(work, pieces))
