"""Jobs, users and blocks of their images that go through a net together, and the threads that run them.

Every thread runs one-threaded kernels, each on its own job. So threads never wait for each other inside a kernel, and
their number changes no bit of any result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import TypeVar

import torch

from resolvent.problems.one_thread import one_thread

Item = TypeVar("Item")
Result = TypeVar("Result")

LANES = 16
"""Images per block are a multiple of this, if a user has as many: runs of images are then whole vectors."""
JOBS_PER_USER = 4
"""A user's blocks are divided into at most this many jobs, which threads may share."""
MAX_WHOLE_NUMBERS = 1 << 27
"""How many numbers the largest value of a block has where a loss must see all of a user's outputs at once: several
blocks would go forward twice."""
MAX_JOB_USERS = 256
JOB_BLOCKS = 2
"""On a CPU the users of a job have so many times the numbers of a block, which makes operations longer: threads then
wait less for Python's lock."""
MAX_JOB_PARAMETERS = 1 << 22
"""Parameters that all users of a job have on a CPU, at most. A job copies them, and holds as many gradients."""


@dataclass(frozen=True)
class Job:
    """Users from `first` to `last`, and blocks of their images, each (from, to), whose gradients are summed."""

    first: int
    last: int
    blocks: tuple[tuple[int, int], ...]

    @property
    def who(self) -> slice:
        return slice(self.first, self.last)


def plan_jobs(
    users: int, n: int, width: int, dim: int, numbers: int, threads: int | None, whole: bool = False
) -> list[Job]:
    """Jobs for images whose largest value has `width` numbers; `whole`: all images of a user in one job.

    threads: how many run jobs side by side; None: an accelerator runs one after the other. How a user's images are
    divided depends on their number alone, so that sums are the same whoever else takes part.
    """
    most = max(1, (MAX_WHOLE_NUMBERS if whole else numbers) // width // LANES) * LANES
    count = max(1, round(n / most))
    blocks = list(pairwise([*(k * most for k in range(count)), n]))
    per_job = count if whole else ceil(count / JOBS_PER_USER)
    parts = [tuple(blocks[k : k + per_job]) for k in range(0, count, per_job)]
    ends = _groups(users, width * min(n, most), dim, numbers, threads)
    return [Job(first, last, part) for first, last in pairwise(ends) for part in parts]


def one_block(jobs: list[Job]) -> bool:
    return len(jobs) == 1 and len(jobs[0].blocks) == 1


def _groups(users: int, images: int, dim: int, numbers: int, threads: int | None) -> list[int]:
    """Where groups of users begin and end, all about as large: on a CPU as many for each thread."""
    if threads is None:
        count = ceil(users / max(1, min(MAX_JOB_USERS, numbers // (images + dim))))
    else:
        together = max(1, min(MAX_JOB_USERS, JOB_BLOCKS * numbers // max(1, images), MAX_JOB_PARAMETERS // dim))
        count = min(users, ceil(ceil(users / together) / threads) * threads)
    return [users * k // max(1, count) for k in range(count + 1)]


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
