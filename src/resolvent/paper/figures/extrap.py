"""Figure extrap: Anderson acceleration of the five algorithms."""

from __future__ import annotations

import math
import statistics

from resolvent.paper import networks
from resolvent.paper.figure import HOLDS, IN_PART, NOT, Claim, ClaimVerdict, Figure, First, Panel, PanelLine, Settings
from resolvent.paper.networks import FINE, FINE_WORDS, MNIST, QUICK_MNIST, QUICK_WORDS
from resolvent.paper.results import Results, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC, algorithms, also

CLOSE = 1e-6
RAW, SAFE = "Anderson", "Anderson, safeguarded"
STYLES = {"-": "plain", "--": "Anderson", ":": "Anderson, safeguarded (ours)"}
EXACT = ("fedsplit", "fedpi")
BIASED = ("fedavg", "fedprox", "fedrp")


def accelerated(lines: tuple[PanelLine, ...], memory: int, on: str = "u") -> tuple[PanelLine, ...]:
    """Each line; the same with Anderson as the paper prints it, dashed; and with this library's safeguards, dotted."""
    settings: Settings = {"anderson.memory": memory, "anderson.on": on}
    raw = also(lines, RAW, "--", settings | {"anderson.safeguard": False})
    safe = also(lines, SAFE, ":", settings, ours=True)
    return (*lines, *raw, *safe)


def _algorithm(results: Results, label: str) -> str:
    return str(results.lines[label].settings["scheme.algorithm"])


def rounds(results: Results, kind: str = RAW) -> dict[str, tuple[float, float]]:
    """Rounds to 1e-6 of the first distance to the limit, plain and accelerated; infinite where it was not reached.

    The limit is 0 for schemes that solve the original problem, else where the accelerated run ends.
    """
    found = {}
    for line in results.shown("-"):
        fast = f"{line.label} | {kind}"
        limit = 0.0 if _algorithm(results, line.label) in EXACT else results.final(fast)
        found[line.label] = tuple(_within(results, label, limit) for label in (line.label, fast))
    return found  # type: ignore[return-value]


def _within(results: Results, label: str, limit: float) -> float:
    values = (results.series(label) - limit).abs()
    far = values.index[~(values <= CLOSE * values.iloc[0])]
    after = values.index[values.index > (far[-1] if len(far) else 0)]
    return float(after[0]) if len(after) > 1 else math.inf


def _faster(results: Results) -> ClaimVerdict:
    counts = rounds(results)
    words = ", ".join(f"{name} {_n(plain)} -> {_n(fast)}" for name, (plain, fast) in counts.items())
    return ClaimVerdict.share(
        {name: fast < plain for name, (plain, fast) in counts.items()}, f"rounds to 1e-6: {words}"
    )


def _n(n: float) -> str:
    return "not reached" if math.isinf(n) else f"{n:.0f}"


def _most(results: Results) -> ClaimVerdict:
    last = float(max(results[next(iter(results))][0]["round"]))
    gains = {name: min(plain, last) / min(fast, last) for name, (plain, fast) in rounds(results).items()}
    one = min(gain for name, gain in gains.items() if _algorithm(results, name) in BIASED)
    other = max(gain for name, gain in gains.items() if _algorithm(results, name) in EXACT)
    least = min(gain for name, gain in gains.items() if _algorithm(results, name) in EXACT)
    words = ", ".join(f"{name} {gain:.0f}x" for name, gain in gains.items())
    return ClaimVerdict(HOLDS if one >= other else IN_PART if one > least else NOT, f"fewer rounds: {words}")


def _same(results: Results) -> ClaimVerdict:
    pairs = [line.label for line in results.shown("-")]
    biased = [label for label in pairs if _algorithm(results, label) in BIASED]
    worst = max(abs(results.final(f"{label} | {RAW}") / results.final(label) - 1) for label in biased)
    exact = max(results.final(f"{label} | {RAW}") for label in pairs if label not in biased)
    first = max(results.at(label, 1) for label in pairs)
    words = f"biased limits differ by {worst:.1%} at most; exact methods end at {short(exact)} or less, accelerated"
    return ClaimVerdict.of(worst < 0.05 and exact < 1e-9 * first, words)


def _safe(results: Results) -> ClaimVerdict:
    raw, safe = rounds(results), rounds(results, SAFE)
    words = ", ".join(f"{name} {_n(raw[name][1])} and {_n(safe[name][1])}" for name in raw)
    return ClaimVerdict.share(
        {name: safe[name][1] <= 1.3 * raw[name][1] for name in raw}, f"rounds, raw and safeguarded: {words}"
    )


CLAIMS = (
    Claim("Acceleration speeds up every algorithm, without any more communication.", _faster),
    Claim(
        "It helps FedAvg, FedProx and FedRP most.",
        _most,
        why="Likely: FedPi starts from the slowest rate but FedProx's, and has more to gain.",
    ),
    Claim("It does not change what the algorithms end at.", _same),
    Claim("The safeguards cost next to nothing here.", _safe, ours=True),
)
STABLE, UNSTABLE = ("fedavg", "fedprox", "fedpi"), ("fedsplit", "fedrp")
BETTER = 0.95
"""An accelerated loss below so much of the plain one counts as help."""


def gain(results: Results, label: str, kind: str = RAW) -> float:
    """Area under the accelerated loss over the area under the plain one, seed by seed: below 1 it helped."""
    fast = f"{label} | {kind}"
    if results.diverged(fast):
        return math.inf
    pairs = zip(results[fast], results[label], strict=False)  # at the paper's size not all of them may have all seeds
    return statistics.median(float(a["value"].sum() / b["value"].sum()) for a, b in pairs)


def helped(results: Results) -> ClaimVerdict:
    """Which algorithms the raw acceleration of the mean helped, and which it harmed."""
    gains = {x.label: gain(results, x.label) for x in results.shown("-")}
    parts = {}
    for label, ratio in gains.items():
        parts[label] = ratio < BETTER if _algorithm(results, label) in STABLE else ratio > 1
    words = ", ".join(f"{label}: {short(ratio)}" for label, ratio in gains.items())
    return ClaimVerdict.share(parts, f"area under the loss, accelerated over plain: {words}")


def kept_safe(results: Results) -> ClaimVerdict:
    """Whether the safeguarded acceleration harms nobody."""
    gains = {x.label: gain(results, x.label, SAFE) for x in results.shown("-")}
    words = ", ".join(f"{label}: {short(ratio)}" for label, ratio in gains.items())
    return ClaimVerdict.share(
        {k: v < 1.05 for k, v in gains.items()}, f"area under the loss, safeguarded over plain: {words}"
    )


ROWS = (
    "Likely: FedSplit and FedPi carry a row for each user, and the mean that is accelerated does not decide their next "
    "round."
)
LONG_STEPS = First("10 local steps of 0.1 in quick runs, and eta = 100 for FedSplit and FedPi")
"""As the paper prints it, acceleration then made FedAvg three times worse."""
NETWORK = (
    Claim(
        "On the network it helps FedAvg, FedProx and FedPi, and makes FedRP and FedSplit unstable.",
        helped,
        why=ROWS,
        first=LONG_STEPS,
    ),
    Claim("With safeguards it harms nobody.", kept_safe, ours=True, why=ROWS, first=LONG_STEPS),
)

FIGURE = Figure(
    "fig:extrap",
    "Anderson acceleration",
    "Solid lines plain, dashed lines accelerated as the paper prints it, dotted lines with this library's safeguards. "
    "Memory 2 on u for the convex problems, 10 on the mean for the network.",
    (
        Panel("left", "Least squares", LEAST_SQUARES, accelerated(algorithms(2, alone=True), 2), CLAIMS, styles=STYLES),
        Panel("middle", "Logistic regression", LOGISTIC, accelerated(algorithms(2, alone=True), 2), CLAIMS,
              styles=STYLES),
        Panel("right", "CNN on MNIST, six digits a user", MNIST,
              accelerated(networks.algorithms(alone=True, fold=FINE), 10, "mean"), NETWORK, column="value",
              ylabel="training loss", quick=QUICK_MNIST, seeds=4, bands=False, styles=STYLES),
    ),
    settings=f"FedAvg takes k = 2 local steps on the convex problems. {QUICK_WORDS} {FINE_WORDS}",
)  # fmt: skip
