"""Figure extrap: Anderson acceleration of the five algorithms."""

from __future__ import annotations

import math
import statistics

from resolvent.paper import networks
from resolvent.paper.figure import HOLDS, IN_PART, NOT, Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.networks import FINE, FINE_TEXT, QUICK_TEXT
from resolvent.paper.results import Results, each, listed, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, algorithms, also

RAW, SAFE = "Anderson", "Anderson, safeguarded"
STYLES = {"-": "plain", "--": "Anderson", ":": "Anderson, safeguarded (ours)"}
EXACT, BIASED = ("fedsplit", "fedpi"), ("fedavg", "fedprox", "fedrp")


def accelerated(lines: tuple[PanelLine, ...], memory: int, on: str = "u") -> tuple[PanelLine, ...]:
    """Each line; the same with Anderson as the paper prints it, dashed; and with this library's safeguards, dotted."""
    settings: Settings = {"anderson.memory": memory, "anderson.on": on}
    raw = also(lines, RAW, "--", settings | {"anderson.safeguard": False})
    safe = also(lines, SAFE, ":", settings, ours=True)
    return (*lines, *raw, *safe)


def _rounds(results: Results, kind: str = RAW) -> dict[str, tuple[float, float]]:
    """Rounds until close to the limit, plain and accelerated; infinite where it was not reached.

    The limit is 0 for schemes that solve the original problem, else where the accelerated run ends: its last row says
    nothing, since it is the limit itself.
    """
    rounds = {}
    for line in results.shown("-"):
        fast = f"{line.label} | {kind}"
        limit = 0.0 if results.algorithm(line.label) in EXACT else results.final(fast)
        plain, accelerated = (results.rounds_to_limit(label, limit, rows=2) for label in (line.label, fast))
        rounds[line.label] = plain, accelerated
    return rounds


def _n(n: float) -> str:
    return "not reached" if math.isinf(n) else f"{n:.0f}"


def _faster(results: Results) -> ClaimVerdict:
    rounds = _rounds(results)
    numbers = ", ".join(f"{name}: {_n(plain)} -> {_n(fast)}" for name, (plain, fast) in rounds.items())
    parts = {name: fast < plain for name, (plain, fast) in rounds.items()}
    return ClaimVerdict.share(parts, f"rounds to 1e-6 of its first distance to its own limit: {numbers}")


def _helps_biased_most(results: Results) -> ClaimVerdict:
    last = float(max(results[next(iter(results))][0]["round"]))
    gains = {name: min(plain, last) / min(fast, last) for name, (plain, fast) in _rounds(results).items()}
    biased = min(gain for name, gain in gains.items() if results.algorithm(name) in BIASED)
    exact = [gain for name, gain in gains.items() if results.algorithm(name) in EXACT]
    said = HOLDS if biased >= max(exact) else IN_PART if biased > min(exact) else NOT
    return ClaimVerdict(said, f"fewer rounds: {listed(gains, '{name}: {value:.0f}x')}")


def _same_end(results: Results) -> ClaimVerdict:
    plain = [line.label for line in results.shown("-")]
    biased = [label for label in plain if results.algorithm(label) in BIASED]
    worst = max(abs(results.final(f"{label} | {RAW}") / results.final(label) - 1) for label in biased)
    exact = max(results.final(f"{label} | {RAW}") for label in plain if label not in biased)
    start = max(results.at(label, 1) for label in plain)
    numbers = f"biased limits differ by {worst:.1%} at most; exact methods end at {short(exact)} or less, accelerated"
    return ClaimVerdict.of(worst < 0.05 and exact < 1e-9 * start, numbers)


def _safe(results: Results) -> ClaimVerdict:
    safe = {name: fast for name, (_, fast) in _rounds(results, SAFE).items()}
    raw = {name: fast for name, (_, fast) in _rounds(results).items()}
    numbers = ", ".join(f"{name}: {_n(raw[name])} and {_n(safe[name])}" for name in raw)
    parts = {name: safe[name] <= 1.3 * raw[name] for name in raw}
    return ClaimVerdict.share(parts, f"rounds, raw and safeguarded: {numbers}")


CLAIMS = (
    Claim("Acceleration speeds up every algorithm, without any more communication.", _faster),
    Claim("It helps FedAvg, FedProx and FedRP most.", _helps_biased_most,
          why="Likely: FedPi starts from the slowest rate but FedProx's, and has more to gain."),
    Claim("It does not change what the algorithms end at.", _same_end),
    Claim("The safeguards cost next to nothing here.", _safe, ours=True),
)  # fmt: skip

# --- the network -----------------------------------------------------------------------------------------------------

UNSTABLE = ("fedsplit", "fedrp")
BETTER = 0.95
"""An accelerated loss below so much of the plain one counts as help."""


def gain(results: Results, label: str, kind: str = RAW) -> float:
    """Area under the accelerated loss over the area under the plain one, seed by seed: below 1 it helped."""
    fast = f"{label} | {kind}"
    if results.diverged(fast):
        return math.inf
    pairs = zip(results[fast], results[label], strict=False)  # at the paper's size not all of them may have all seeds
    return statistics.median(float(a["value"].sum() / b["value"].sum()) for a, b in pairs)


def _helped(results: Results) -> ClaimVerdict:
    """Which algorithms the raw acceleration of the mean helped, and which it harmed."""
    gains = {x.label: gain(results, x.label) for x in results.shown("-")}
    parts = {x: ratio > 1 if results.algorithm(x) in UNSTABLE else ratio < BETTER for x, ratio in gains.items()}
    return ClaimVerdict.share(parts, f"area under the loss, accelerated over plain: {listed(gains)}")


def _harmless(results: Results) -> ClaimVerdict:
    gains = {x.label: gain(results, x.label, SAFE) for x in results.shown("-")}
    return each(gains, lambda ratio: ratio < 1.05, "area under the loss, safeguarded over plain: {}")


ROWS = (
    "Likely: FedSplit and FedPi carry a row for each user, and the mean that is accelerated does not decide their next "
    "round."
)
LONG_STEPS = First("10 local steps of 0.1 in quick runs, and eta = 100 for FedSplit and FedPi")
"""As the paper prints it, acceleration then made FedAvg three times worse."""
NETWORK = (
    Claim("On the network it helps FedAvg, FedProx and FedPi, and makes FedRP and FedSplit unstable.", _helped,
          why=ROWS, first=LONG_STEPS),
    Claim("With safeguards it harms nobody.", _harmless, ours=True, why=ROWS, first=LONG_STEPS),
)  # fmt: skip
LINES, NETWORK_LINES = algorithms(2, alone=True), networks.algorithms(alone=True, fold=FINE)

FIGURE = Figure(
    "fig:extrap",
    "Anderson acceleration",
    "Solid lines plain, dashed lines accelerated as the paper prints it, dotted lines with this library's safeguards. "
    "Memory 2 on u for the convex problems, 10 on the mean for the network.",
    (
        Panel("left", "Least squares", LEAST_SQUARES, accelerated(LINES, 2), CLAIMS, styles=STYLES),
        Panel("middle", "Logistic regression", LOGISTIC, accelerated(LINES, 2), CLAIMS, styles=STYLES),
        networks.panel("right", "CNN on MNIST, six digits a user", accelerated(NETWORK_LINES, 10, "mean"), NETWORK,
                       seeds=4, bands=False, styles=STYLES),
    ),
    settings="FedAvg takes k = 2 local steps on the convex problems.",
    network_settings=f"{QUICK_TEXT} {FINE_TEXT}",
)  # fmt: skip
