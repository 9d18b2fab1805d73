"""Figure comp: the algorithms side by side, on data that are less and less alike."""

from __future__ import annotations

import statistics
from dataclasses import replace

from resolvent.paper import networks
from resolvent.paper.figure import Claim, ClaimVerdict, Figure, First, Panel
from resolvent.paper.networks import MNIST, QUICK_TEXT, TIE
from resolvent.paper.results import Results, listed, short
from resolvent.paper.settings import LEAST_SQUARES, algorithms
from resolvent.paper.small import problem_of
from resolvent.theory import closed_forms

LEVELS = {"top-left": (0.5, 119e3), "top-middle": (4.0, 7.61e6), "top-right": (20.0, 190.3e6)}
"""The noise of each panel, and the paper's H."""
PARTITIONS = {
    "bottom-left": ("iid", "digits spread evenly"),
    "bottom-middle": ("shards:6", "at most six digits a user"),
    "bottom-right": ("shards:2", "at most two digits a user"),
}
EXACT, BIASED = ("FedAvg, k = 1", "FedSplit", "FedPi"), ("FedAvg, k = 5", "FedProx", "FedRP")
BEGINNING = 2.3
"""The loss of a network that has learnt nothing."""


# --- least squares ---------------------------------------------------------------------------------------------------


def _smallest(results: Results) -> ClaimVerdict:
    worst, best = max(results.finals(*EXACT).values()), min(results.finals(*BIASED).values())
    return ClaimVerdict.of(worst < best / 10, results.numbers(*EXACT, *BIASED))


def _level(key: str, noise: float, paper_H: float) -> Panel:
    def as_stated(results: Results) -> ClaimVerdict:
        H = results.facts["H"]
        return ClaimVerdict.of(0.8 < H / paper_H < 1.25, f"H = {H:.3g}, the paper's {paper_H:.3g}")

    claims = (
        Claim("FedSplit, FedPi and FedAvg with k = 1 reach the smallest gaps.", _smallest),
        Claim("The data are as heterogeneous as stated.", as_stated),
    )
    base = LEAST_SQUARES | {"problem.noise": noise}
    return Panel(key, f"Least squares, H about {paper_H:.3g}", base, algorithms(), claims,
                 facts=lambda settings: {"H": closed_forms.heterogeneity(problem_of(settings))})  # fmt: skip


def _deteriorate(panels: dict[str, Results]) -> ClaimVerdict:
    first, *_, last = panels.values()
    growth = {label: last.final(label) / first.final(label) for label in BIASED}
    exact = max(gap for results in panels.values() for gap in results.finals(*EXACT).values())
    H = last.facts["H"] / first.facts["H"]
    numbers = f"H grows {H:.0f}x, and gaps: {listed(growth, '{name}: {short}x')}; {', '.join(EXACT)} stay below "
    parts = {label: ratio > 10 for label, ratio in growth.items()} | dict.fromkeys(EXACT, exact > 1e-12)
    return ClaimVerdict.share(parts, f"{numbers}{short(exact)} at every level")


ROUND_OFF = (
    "Exact methods reach round-off whatever H is. Likely: a gap computed as F(w) - F* ends at the round-off of F*, "
    "which does grow with H."
)

# --- the network -----------------------------------------------------------------------------------------------------

LARGE = {
    title: replace(networks.prox(title, networks.ETA), label=f"{title}, eta = 100", hidden=True, ours=True)
    for title in ("FedSplit", "FedPi")
}
LARGE_LABELS = [line.label for line in LARGE.values()]


def _two_best(results: Results) -> ClaimVerdict:
    return _best_of(results.finals(), TIE)


def _two_best_first(results: Results) -> ClaimVerdict:
    """No ties, and FedSplit and FedPi at eta = 100 where that was run."""
    there = {title: line.label for title, line in LARGE.items() if line.label in results}
    verdict = _best_of(results.finals() | {title: results.final(label) for title, label in there.items()}, 1.0)
    if len(there) == len(LARGE):
        return verdict
    return verdict._replace(numbers=f"{verdict.numbers}, these two with eta = 0.1: 100 was not run")


def _best_of(finals: dict[str, float], tie: float) -> ClaimVerdict:
    ordered = dict(sorted(finals.items(), key=lambda item: item[1]))
    level = tie * list(ordered.values())[1]
    best = {label: finals[label] <= level for label in (networks.MANY, "FedRP")}
    return ClaimVerdict.share(best, f"final losses: {listed(ordered)}")


def _one_step(results: Results) -> ClaimVerdict:
    one, many = results.final(networks.ONE), results.final(networks.MANY)
    return ClaimVerdict.of(one > 1.5 * many, f"one step: {short(one)}, many: {short(many)}")


def _run_away(results: Results) -> ClaimVerdict:
    """Most seeds of each diverge, or the median of those that do not ends no lower than where it began."""

    def runs_away(label: str) -> bool:
        ends = [float(frame["value"].iloc[-1]) for frame in results.surviving(label)]
        return results.diverged(label) or not statistics.median(ends) < BEGINNING

    parts = {label: runs_away(label) for label in LARGE_LABELS}
    return ClaimVerdict.share(parts, f"final losses: {results.numbers(*LARGE_LABELS)}")


def _run_away_first(results: Results) -> ClaimVerdict:
    """The median over seeds does."""
    parts = {label: not results.final(label) < BEGINNING for label in LARGE_LABELS}
    return ClaimVerdict.share(parts, f"final losses: {results.numbers(*LARGE_LABELS)}")


RUNAWAY = Claim(
    "FedSplit and FedPi run away at eta = 100, the step of the others.",
    _run_away,
    ours=True,
    first=First("the median over seeds, infinite where half of them diverge", _run_away_first),
)
NETWORK = (
    Claim(
        "FedRP and FedAvg with many local steps do best.",
        _two_best,
        first=First("the two least losses, however close, with eta = 100 for FedSplit and FedPi", _two_best_first),
    ),
    Claim("FedAvg with k = 1 is far behind FedAvg with many local steps.", _one_step),
)


def _partitioned(key: str, partition: str, title: str) -> Panel:
    more = partition == "shards:6"
    lines = (*networks.algorithms(), *(LARGE.values() if more else ()))
    claims = (*NETWORK, *((RUNAWAY,) if more else ()))
    return networks.panel(key, f"CNN on MNIST, {title}", lines, claims, base=MNIST | {"problem.partition": partition})


FIGURE = Figure(
    "fig:comp",
    "The algorithms, and how alike users are",
    "Top: least squares with more and more noise, so that users' minimisers lie further apart. Bottom: the network, "
    "with digits spread evenly, at most six a user, at most two a user.",
    (
        *(_level(key, *level) for key, level in LEVELS.items()),
        *(_partitioned(key, *partition) for key, partition in PARTITIONS.items()),
    ),
    (Claim("All algorithms get worse as users differ more.", _deteriorate, why=ROUND_OFF, panels=tuple(LEVELS)),),
    settings="The three levels of H are made by noise of standard deviation 0.5, 4 and 20 around one common model. "
    "Gaps are computed as quadratic forms, so that nothing cancels.",
    network_settings="The networks' prox has eta = 100. " + QUICK_TEXT,
)
