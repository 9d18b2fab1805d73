"""Figure fedrp_eta: FedRP with constant and diminishing steps."""

from __future__ import annotations

from resolvent.paper.figure import Claim, ClaimVerdict, Figure
from resolvent.paper.figures.eta_effect_fedprox import panel
from resolvent.paper.results import Results, short


def _alike(panels: dict[str, Results]) -> ClaimVerdict:
    """FedRP's constant-step limits against those of FedProx, which its fixed points equal."""
    numbers, parts = [], {}
    for key, results in panels.items():
        label = next(iter(results.lines))
        slope = results.slope(next(x for x in results.lines if x.endswith("/t")))
        parts[key] = slope < -1.5
        numbers.append(f"{key}: {label} ends at {short(results.final(label))}, 1/t falls with slope {slope:.2f}")
    return ClaimVerdict.share(parts, "; ".join(numbers))


FIGURE = Figure(
    "fig:fedrp_eta",
    "FedRP: step size and averaging",
    "FedRP with constant and diminishing steps: solid the last model, dashed the ergodic average, dotted the suffix "
    "average that this library adds.",
    (panel("left", "fedrp", "FedRP", False), panel("right", "fedrp", "FedRP", True)),
    (Claim("FedRP behaves like FedProx: with 1/t it reaches a correct solution.", _alike, panels=("left", "right")),),
)
