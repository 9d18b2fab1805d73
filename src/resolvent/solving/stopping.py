"""When a run ends, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from resolvent.errors import refuse


class Ending(NamedTuple):
    """Why a run ends: "finished", "stopped" or "diverged", and the reason in words."""

    status: str
    reason: str


@dataclass(frozen=True)
class Stop:
    """When to stop before `rounds`: as soon as one of these is met. `certificates` is met by both of them together."""

    gap: float | None = None
    residual: float | None = None
    certificates: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("gap", "residual", "certificates", "seconds"):
            limit = getattr(self, name)
            if limit is not None and not limit >= 0:
                refuse(f"stop.{name}", limit, "a number >= 0 is needed")

    def reason(self, row: dict[str, Any]) -> str | None:
        """Why this row of the history is the last, or None."""
        if self.gap is not None and row["gap"] <= self.gap:
            return f"gap {row['gap']:.3g} <= {self.gap:g}"
        if self.residual is not None and row["residual"] <= self.residual:
            return f"residual {row['residual']:.3g} <= {self.residual:g}"
        if self.certificates is not None and max(row["stationarity"], row["consensus"]) <= self.certificates:
            return f"stationarity and consensus <= {self.certificates:g}"
        if self.seconds is not None and row["seconds"] >= self.seconds:
            return f"{row['seconds']:.3g} seconds >= {self.seconds:g}"
        return None
