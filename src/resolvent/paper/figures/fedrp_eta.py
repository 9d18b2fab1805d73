"""Figure fedrp_eta: FedRP with constant and diminishing steps."""

from __future__ import annotations

from resolvent.paper.figure import Across, ClaimVerdict, Figure, Panel
from resolvent.paper.figures.eta_effect_fedprox import ROUNDS, SCHEDULES, STYLES, claims, lines
from resolvent.paper.results import Results, short
from resolvent.paper.settings import LEAST_SQUARES, LOGISTIC


def _alike(panels: dict[str, Results]) -> ClaimVerdict:
    """FedRP's constant-step limits against those of FedProx, which its fixed points equal."""
    words, parts = [], {}
    for key, results in panels.items():
        label = next(iter(results.lines))
        slope = results.slope(next(x for x in results.lines if x.endswith("/t")))
        parts[key] = slope < -1.5
        words.append(f"{key}: {label} ends at {short(results.final(label))}, 1/t falls with slope {slope:.2f}")
    return ClaimVerdict.share(parts, "; ".join(words))


FIGURE = Figure(
    "fig:fedrp_eta",
    "FedRP: step size and averaging",
    "FedRP with constant and diminishing steps: solid the last model, dashed the ergodic average, dotted the suffix "
    "average that this library adds.",
    (
        Panel("left", "Least squares", LEAST_SQUARES | {"run.rounds": ROUNDS},
              lines("fedrp", (1e-5, 1e-4), 1e-3, SCHEDULES), claims("FedRP"), styles=STYLES),
        Panel("right", "Logistic regression", LOGISTIC | {"run.rounds": ROUNDS},
              lines("fedrp", (1e-2, 1e-1), 1.0, SCHEDULES), claims("FedRP"), styles=STYLES),
    ),
    (Across("FedRP behaves like FedProx: with 1/t it reaches a correct solution.", ("left", "right"), _alike),),
)  # fmt: skip
