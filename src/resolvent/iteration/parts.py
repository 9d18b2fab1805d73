"""The parts of a round, and what each of them remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from resolvent.errors import whole
from resolvent.iteration.acceleration import Acceleration, Unaccelerated
from resolvent.iteration.averaging import Average, Averaging
from resolvent.iteration.facts import Facts
from resolvent.iteration.meeting import Meet, TheMean
from resolvent.iteration.packing import remembered
from resolvent.iteration.part import NO_MEMORY, Cost, Effect, NoMemory
from resolvent.iteration.participation import Everyone, Participation, Presence
from resolvent.iteration.scheme import Scheme, mix
from resolvent.iteration.sending import Everything, Send
from resolvent.iteration.tuning import Scheduled, StepSize


@remembered
@dataclass(frozen=True, eq=False)
class Memories:
    """What the parts of a round remember, under the names that they have in `Parts`."""

    participation: Presence = Presence()  # noqa: RUF009 (frozen)
    send: Any = NO_MEMORY
    meet: Any = NO_MEMORY
    accelerate: Any = NO_MEMORY
    eta: Any = NO_MEMORY
    average: Average | None = None
    down: Any = NO_MEMORY


@dataclass(frozen=True)
class Parts:
    """What a round consists of beside the scheme and the local operator; the defaults are the plain iteration."""

    participation: Participation = Everyone()  # noqa: RUF009 (frozen)
    send: Send = Everything()  # noqa: RUF009 (frozen)
    meet: Meet = TheMean()  # noqa: RUF009 (frozen)
    accelerate: Acceleration = Unaccelerated()  # noqa: RUF009 (frozen)
    eta: StepSize = Scheduled()  # noqa: RUF009 (frozen)
    average: Averaging = Averaging()  # noqa: RUF009 (frozen)
    down: Send = Everything()  # noqa: RUF009 (frozen)

    def share(self, scheme: Scheme) -> bool:
        """Whether users who start together stay together, so that u is one vector: beta = 1, nobody is left behind, and
        nobody's own z is asked for."""
        stay = self.participation.full or self.participation.absent == "paper"
        return scheme.projects and stay and not any(p.needs_rows for p in (self.send, self.meet, self.down))

    def begin(self, u: Tensor, together: bool, scheme: Scheme) -> Memories:
        """What they remember before the first round, at u."""
        return Memories(
            self.participation.remember(u, together, scheme),
            self.send.begin(u),
            self.meet.begin(u),
            self.accelerate.begin(u),
            self.eta.begin(u),
            self.average.begin(u),
            self.down.begin(u),
        )

    def go_on(self, state: Any, scheme: Scheme) -> Memories:
        """What they remember where other parts have made this State: what fits is taken over.

        A meeting to which everything was sent knows z.
        """
        past, rows, u = state.parts, len(state.u), state.u
        alpha = scheme.mixing(max(state.round - 1, 0))[0]
        fresh = {name: getattr(self, name) for name in ("send", "meet", "accelerate", "average", "down")}
        known = {"send": mix(u, state.p, alpha)} if state.round and isinstance(past.send, NoMemory) else {}
        return Memories(
            participation=self.participation.go_on(past.participation, state, scheme),
            eta=self.eta.go_on(past.eta, state.eta),
            **{
                name: memory if part.fits(memory := getattr(past, name), rows) else part.begin(known.get(name, u))
                for name, part in fresh.items()
            },
        )

    def laws(self, setting: Any) -> tuple[Effect, ...]:
        """What each of them does to fixed points and theorems."""
        parts = (self.send, self.meet, self.accelerate, self.eta, self.average, self.down)
        return tuple(part.law(setting) for part in parts)

    def cost(self, facts: Facts) -> Cost:
        """Numbers per user and round that cross: a question has u_i, and the centre where the operator wants it."""
        question = self.down.cost(facts.dim).downwards + Cost(down=facts.dim if facts.wants_centre else 0)
        total = sum((part.cost(facts.dim) for part in (self.send, self.meet, self.accelerate, self.average)), question)
        return Cost(*(whole(count, f"Cost({name}=)", least=0) for name, count in total._asdict().items()))
