"""`make hunt`: new cases of every family, on all cores. Prints how many were tried, how they ended, and what is wrong.

python -m hunt                      # cases that nobody has seen yet; the first line says how to see them again
python -m hunt least-squares        # those of families whose name contains one of these words
python -m hunt --seed 1000          # these cases again
python -m hunt --times 3            # three times as many
python -m hunt newton --only 17     # one case again, with its traceback
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

from hunt.families import WRONG, attempts, families
from hunt.family import Family

CASES_PER_TASK = 20
"""Cases handed to a process at a time."""
SEEDS = 10**9
"""New cases are drawn below this seed, the first ones (`make test`) left out."""


def hunt(chosen: list[Family], first: int, times: int) -> tuple[int, int]:
    """Try the cases from seed `first` on; how many were tried, and how many are wrong."""
    began, tried, wrong = time.perf_counter(), 0, 0
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        tasks = {family.name: _submitted(pool, family, first, family.many * times) for family in chosen}
        for name, parts in tasks.items():
            cases = [case for part in parts for case in part.result()]
            ends = Counter(end for _, end, _ in cases)
            counts = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
            print(f"{time.perf_counter() - began:6.0f} s  {name:38} {len(cases):6} cases   {counts}", flush=True)
            for seed, end, message in cases:
                if end == WRONG:
                    print(f"    seed {seed}: {message}", flush=True)
            tried, wrong = tried + len(cases), wrong + ends[WRONG]
    return tried, wrong


def _submitted(
    pool: ProcessPoolExecutor, family: Family, first: int, cases: int
) -> list[Future[list[tuple[int, str, str]]]]:
    last = first + cases
    blocks = [range(k, min(k + CASES_PER_TASK, last)) for k in range(first, last, CASES_PER_TASK)]
    return [pool.submit(attempts, family.name, block) for block in blocks]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m hunt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only families whose name contains one of these")
    parser.add_argument("--seed", type=int, help="the first seed; new cases without it")
    parser.add_argument("--times", type=int, default=1, help="how many times as many cases as usual")
    parser.add_argument("--only", type=int, metavar="SEED", help="one case alone, with its traceback")
    given = parser.parse_args()
    chosen = [f for f in families() if not given.words or any(word in f.name for word in given.words)]
    if not chosen:
        sys.exit(f"no family is called {' or '.join(given.words)}; there are {', '.join(f.name for f in families())}")
    if given.only is not None:
        for family in chosen:
            print(f"{family.name}: {family.check(given.only)}")
        return
    first = 10**6 + secrets.randbelow(SEEDS) if given.seed is None else given.seed
    print(f"the same cases again: python -m hunt {' '.join(given.words)} --seed {first} --times {given.times}")
    tried, wrong = hunt(chosen, first, given.times)
    print(f"{tried} cases from seed {first} on, {wrong or 'none'} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
