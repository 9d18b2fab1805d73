"""What crosses the seam between the loop and the users: the engine's verbs, the question, and what users remember."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Memory = dict[str, Tensor]
Spread = Callable[[Tensor], Tensor]
"""sum lambda |p_i - mean(p)|^2, (k,), of the answers to each row of u (k, d); equal functions may be asked together."""


PERSONAL = "personal"
"""Where the answers of users who share u are kept, where they are."""


class Ask(NamedTuple):
    """A question to users: the round, the step size, who is asked (None: everyone) and the run's seed.

    `names` are the users' numbers in the whole federation, which their randomness depends on, where the problem at
    hand holds only some of them.
    """

    t: int
    eta: float
    who: Tensor | None = None
    seed: int = 0
    names: Tensor | None = None

    def among(self, users: int) -> Ask:
        """The same question to those asked alone, with the numbers they have among `users`."""
        names = torch.arange(users) if self.names is None else self.names
        return self._replace(who=None, names=names if self.who is None else names[self.who.to(names.device)])


class Engine(Protocol):
    """Where users live. Every question to them, and every sum over them, is one of these verbs.

    Rows are (users, d) tensors in the order of users, or (1, d) where users agree. `who` selects users by index;
    None is everyone.
    """

    @property
    def users(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def certifies(self) -> str | None:
        """Where (u - p) / eta is a subgradient: at "p", at "u", or nowhere (None)."""
        ...

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The answers of the users asked, in order, to their rows of u."""
        ...

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Spread, Memory]:
        """The weighted mean (1, d) of the answers to one u (1, d), a function that gives their spread, and memory."""
        ...

    def mean(self, z: Tensor, who: Tensor | None = None) -> Tensor:
        """The weighted meeting point of these users' rows, (1, d)."""
        ...

    def gram(self, rows: Tensor) -> Tensor:
        """Inner products sum_i lambda_i <a_i, b_i> of k stacks of rows (k, users, d), (k, k)."""
        ...

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor] | None:
        """The weighted mean of the users' gradients (d,) and Hessians (d, d) at a model w (1, d); None where users do
        not know them, or would have to send too much."""
        ...

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        """Metrics of models w (k, d), (k,) each. Asked at a cadence: over a network it is another message."""
        ...

    def inspect(self, w: Tensor, personal: Tensor, memory: Memory) -> dict[str, float] | None:
        """More of one round's models, global (1, d) and personal, where users have more to say; None where not."""
        ...
