"""`make hunt`: many cases of every family, on all cores. Prints how many were tried, how they ended, and what is wrong.

python -m hunt                      # all families
python -m hunt least-squares        # those whose name contains one of these words
python -m hunt --seed 1000          # other cases
python -m hunt newton --only 17     # one case again, with its traceback
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from hunt.families import WRONG, attempts, families
from hunt.family import Family

CHUNK = 20
"""Cases handed to a process at a time."""


def hunt(chosen: list[Family], first: int) -> int:
    """Try them all; the number of wrong cases."""
    wrong = 0
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for family in chosen:
            began = time.perf_counter()
            last = first + family.many
            blocks = [range(k, min(k + CHUNK, last)) for k in range(first, last, CHUNK)]
            found = [case for part in pool.map(attempts, [family.name] * len(blocks), blocks) for case in part]
            ends = Counter(end for _, end, _ in found)
            counted = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
            print(
                f"{family.name:34} {len(found):6} cases  {time.perf_counter() - began:6.1f} s   {counted}", flush=True
            )
            bad = [(seed, words) for seed, end, words in found if end == WRONG]
            for seed, words in bad[:5]:
                print(f"    seed {seed}: {words}", flush=True)
            wrong += len(bad)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hunt", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only families whose name contains one of these")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", type=int, help="one seed alone, with its traceback")
    given = parser.parse_args()
    chosen = [f for f in families() if not given.words or any(word in f.name for word in given.words)]
    if not chosen:
        sys.exit(f"no family is called {' or '.join(given.words)}; there are {', '.join(f.name for f in families())}")
    if given.only is not None:
        for family in chosen:
            print(f"{family.name}: {family.check(given.only)}")
        return
    wrong = hunt(chosen, given.seed)
    print(f"{sum(f.many for f in chosen)} cases, {wrong or 'none'} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
