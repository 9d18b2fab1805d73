"""What crosses from users to the meeting, and back: everything, or what a compressor makes of it.

Users go on with their own z in (gFL-2); only the meeting sees what was sent in its place. Where answers really cross a
network, the side that runs the loop has only what was sent, and goes on with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from resolvent.errors import quoted, refuse
from resolvent.iteration.engine import Ask
from resolvent.iteration.part import Cost, Part
from resolvent.iteration.registry import part


class Send(Part):
    """zhat, memory = send(z, memory, ask): what the meeting receives in place of the rows z (users here, d).

    `ask` is the question of the round: its number, the seed, who has answered (`who`, by index among the rows; None:
    everyone) and the users' numbers in the federation (`names`), which randomness depends on. Rows of users who have
    not answered must stay as they were sent last.
    """

    needs_rows = True
    """Whether each user's own z is needed; else users who share one u may send the mean of their answers."""
    compresses = False
    """Whether it is there to send less than z, and says how what is new is written (`encode`, `decode`)."""

    sparse = False
    """Whether only some coordinates of what the meeting has of a user change in a round."""

    def __call__(self, z: Tensor, memory: Any, ask: Ask) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def encode(self, new: Tensor, old: Tensor, ask: Ask) -> dict[str, Tensor]:
        """What a user's row `new` becomes on the wire, (1, d), where the other side has `old`; ask is of that user."""
        raise NotImplementedError

    def decode(self, arrays: dict[str, Tensor], old: Tensor, ask: Ask) -> Tensor:
        """The row that the other side has afterwards: the bits of `__call__`. ValueError if this is no encoding."""
        raise NotImplementedError

    def unchanged(self, z: Tensor, memory: Any) -> Tensor:
        """What the meeting has in place of the rows z of a new eta, before anything else is sent."""
        return z


@part("down", "everything")
@part("send", "everything")
@dataclass(frozen=True)
class Everything(Send):
    """All of it crosses."""

    needs_rows = False

    def __call__(self, z: Tensor, memory: Any, ask: Ask) -> tuple[Tensor, Any]:
        return z, memory

    def cost(self, dim: int) -> Cost:
        return Cost(up=dim)


def as_send(given: Send | None, name: str = "send") -> Send:
    """None: everything crosses."""
    if given is not None and not isinstance(given, Send):
        refuse(name, quoted(given), "None, or a part that inherits from resolvent.iteration.sending.Send, is needed")
    return Everything() if given is None else given
