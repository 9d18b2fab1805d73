"""`make siege`: seeded attacks on the run store, the live page and federations.

Prints how many were tried, how they ended, and what is wrong.

python -m siege                 # all campaigns
python -m siege folders         # those whose name contains one of these words
python -m siege --seed 1000     # other attacks
python -m siege --scale 0.1     # a tenth of them
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from siege.campaigns import CAMPAIGNS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m siege", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only campaigns whose name contains one of these")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--scale", type=float, default=1.0, help="how many of the attacks")
    given = parser.parse_args()
    wrong = tried = 0
    for campaign in CAMPAIGNS:
        if given.words and not any(word in campaign.name for word in given.words):
            continue
        began, many = time.perf_counter(), max(1, round(campaign.many * given.scale))
        with tempfile.TemporaryDirectory(prefix="siege-") as folder:
            ends = list(campaign.wage(range(given.seed, given.seed + many), Path(folder)))
        counted = ", ".join(f"{count} {end}" for end, count in sorted(Counter(end for _, end in ends).items()))
        print(f"{campaign.name:28} {len(ends):5} attacks {time.perf_counter() - began:6.1f} s   {counted}", flush=True)
        bad = [(seed, end) for seed, end in ends if end not in campaign.fine]
        for seed, end in bad[:5]:
            print(f"    seed {seed}: {end}", flush=True)
        wrong, tried = wrong + len(bad), tried + len(ends)
    print(f"{tried} attacks: {wrong or 'no'} tracebacks, silent wrongs or hangs")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
