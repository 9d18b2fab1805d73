"""The seam between the loop and the users: what is asked, what comes back, and the verbs of an engine.

An engine owns where users live: in this process, on other machines, or some of them here and some elsewhere. Every
question to users and every sum over them is one of its verbs, and each verb may be a message or a collective. So the
side that runs the loop needs no problem.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resolvent.iteration.facts import Facts
from resolvent.iteration.facts import Memory as Memory  # for whoever implements the seam
from resolvent.iteration.metric import Metric

PERSONAL = "personal"
"""The entry of a memory that has the latest answers of users who share u, (users, d), where they are retained."""

Spread = Callable[[Tensor], Tensor]
"""sum_i lambda_i |p_i - mean(p)|^2, (k,), of the answers to each row of u (k, d).

Equal functions may be called once, with all of their rows."""


Seed = int | NDArray[np.int64]
"""The seed of a run, or, where users of several runs are asked at once, one for each user."""


class Ask(NamedTuple):
    """A question to users: the round, the step size, who is asked (None: everyone here) and the run's seed.

    `names` are the users' numbers in the whole federation, which their randomness depends on, where the problem at
    hand holds only some of them.
    """

    t: int
    eta: float
    who: Tensor | None = None
    seed: int = 0
    names: Tensor | None = None
    seeds: NDArray[np.int64] | None = None
    """One for each user, where users of several runs are asked at once; None: they are of one run."""
    centre: Tensor | None = None
    """mean(u), (1, d), or one row per user, where the operator wants it (`wants_centre`)."""
    metric: Metric | None = None
    """That of the prox; None: the identity."""
    metric_before: Metric | None = None
    """That of the round before; another one than `metric` where it has just changed."""
    send: Any = None
    """What crosses back (`sending.Send`), and what crosses on the way there: for engines that encode both
    (`Facts.encodes`)."""
    down: Any = None
    alpha: float = 1.0
    """With which an answer becomes z, which is what compressors are for."""
    finite: bool = True
    """Whether an answer that is not finite ends the run; a private meeting takes it for none."""

    @property
    def seeding(self) -> Seed:
        """What users' randomness depends on beside their numbers."""
        return self.seed if self.seeds is None else self.seeds

    def among(self, users: int) -> Ask:
        """The same question to those asked alone, with the numbers they have among `users`."""
        names = torch.arange(users) if self.names is None else self.names
        return self._replace(who=None, names=names if self.who is None else names[self.who.to(names.device)])


class Answers(NamedTuple):
    """What came back in a round. Not everybody asked need answer, and an answer may come rounds after its question."""

    who: Tensor | None
    """Who answered, by index among the users here; None: everyone who lives here, to the question just asked."""
    at: Tensor
    """The points that the answers belong to, one row per user who answered."""
    p: Tensor
    """local(at), one row per user who answered."""
    memory: Memory
    error: Tensor | None = None
    """Bounds on |p_i - prox(u_i)| of the latest answers of all users here, (users,), where the operator knows them."""
    came: int | None = None
    """How many answered in all, where some users live elsewhere; None: those in `who`."""
    clock: float | None = None
    """The time at which the round was closed, in seconds since the run began, where an engine keeps time."""
    asked: int | None = None
    """How many were sent a question, wherever they live, where some of those drawn are still at work; None: all."""


class MeanAnswer(NamedTuple):
    """The mean of the answers alone: all that secure aggregation reveals."""

    p: Tensor
    """(1, d)."""
    spread: Spread
    memory: Memory
    error: Tensor | None = None
    who: Tensor | None = None
    """Whose answers it is the mean of, where not everybody asked has answered; None: all of those asked."""
    came: int | None = None
    """How many answered in all; None: all of those asked."""


class Curvature(NamedTuple):
    """The gradient (k,) and the Hessian (k, k) of f at a model: k = d, or in coordinates of a few directions."""

    gradient: Tensor
    hessian: Tensor
    basis: Tensor | None = None
    """Orthonormal directions (k, d); None: the coordinates are those of the model."""
    beyond: float = 0.0
    """How far the Hessian leads out of these directions."""


class Present(NamedTuple):
    """Who takes part in a round."""

    who: Tensor | None
    """Those of them who live here, by index among the users here; None: everyone here."""
    came: int
    """How many take part, wherever they live."""


Judge = Callable[[str, list[tuple[Any, Any]], str | None, int | None], tuple[dict[str, float], dict[str, float]]]
"""Metrics by column, those that have a name here and the user's own functions: of the data's name, each user's
(outputs, targets) as arrays, and of one of torch's losses its name and the target that it ignores."""


class Look(NamedTuple):
    """What is asked for when models are inspected, beside their values."""

    held_out: bool = True
    """Whether metrics on validation and test data are."""
    judge: Judge | None = None
    """Further metrics of what a network answers to held-out rows."""


class Traffic(NamedTuple):
    """Bytes that have really moved since the engine was opened."""

    up: int
    down: int


class Engine(Protocol):
    """Where users live. Rows are (users here, d) tensors in the order of users, or (1, d) where users agree.

    `who` selects users by index among those here; None is everyone here. Sums run over all users, wherever they live.
    """

    @property
    def facts(self) -> Facts: ...

    @property
    def traffic(self) -> Traffic | None:
        """None where nothing moves: the history then counts what a network would carry."""

    def __enter__(self) -> Self:
        """Called before round 0. An engine may be entered again after it was left."""

    def __exit__(self, *error: object) -> None:
        """Called at the end of a run, whatever has happened."""

    def present(self, who: Tensor | None) -> Present:
        """Which of those drawn from the whole federation (None: everyone) live here, and how many came in all."""

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        """Ask users at their rows of u, one row per user asked, and collect what has been answered by now."""

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        """The weighted mean of the answers to one u (1, d)."""

    def mean(self, z: Tensor, who: Tensor | None = None, news: bool = False) -> Tensor:
        """The weighted meeting point of these users' rows, (1, d).

        news: the rows are those of the last such call but for a few coordinates, which alone need cross.
        """

    def gram(self, rows: Tensor) -> Tensor:
        """Inner products sum_i lambda_i <a_i, b_i> of k stacks of rows (k, users, d), (k, k)."""

    def every(self, flags: Tensor) -> bool:
        """Whether these flags, one per user here, are true for all users."""

    def curvature(self, w: Tensor) -> Curvature | None:
        """The weighted mean of the users' gradients and Hessians at a model w (1, d); None where users do not know
        them, or would have to send too much."""

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        """Metrics of models w (k, d), (k,) each. Asked at a cadence: over a network it is another message."""

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        """More of one round's models, global (1, d) and local, where users have more to say; None where not."""


class Joining(Protocol):
    """Makes the engine of a process that is one of several: what is known of the users is known once all have met."""

    def join(self, problem: Any, operator: Any, steady: bool) -> Engine:
        """The engine, whose facts have the problem of the users here."""
