"""What is known of the users of a run without asking them: all that `solve` and `explain` need.

Every engine fills in the same `Facts`: in one process from the problem, on several ranks from what the ranks tell each
other, over a network from what the nodes say of themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from resolvent.errors import refuse
from resolvent.iteration.penalties import Penalty, fitting

Memory = dict[str, Tensor]
"""What users remember between rounds: warm starts, batch-norm buffers. Opaque to the loop, which only hands it back.

In one process it travels in the State; over a network it stays with the users and this is empty.
"""


STRUCTURE = ("predictor", "preparation", "network", "matrix_free", "schema", "running_statistics",
             "balanced_classes")  # fmt: skip
"""What may be looked up of users in a private run, since no row of theirs decides it."""


class Peers(Protocol):
    """The other processes that run the same loop at the same time, where an engine's facts name any.

    Each of them must take every decision alike: none may end the run, or go on, alone.
    """

    def same(self, describe: Callable[[], dict[str, Any]]) -> None:
        """Refuse a run that another process describes differently."""

    def agree(self, own: Any) -> Any:
        """What the first process says that says anything; None where all of them say None. Anything of JSON."""

    def largest(self, values: Tensor) -> Tensor:
        """The largest of these values anywhere, a scalar."""

    def leave(self, error: BaseException) -> None:
        """This process has failed and leaves; the others are told, unless they have failed in the same way."""


class NoPeers:
    """This process alone runs the loop."""

    def same(self, describe: Callable[[], dict[str, Any]]) -> None:
        pass

    def agree(self, own: Any) -> Any:
        return own

    def largest(self, values: Tensor) -> Tensor:
        return values.max()

    def leave(self, error: BaseException) -> None:
        pass


ALONE = NoPeers()


def nothing(name: str) -> None:
    """Nothing further is known."""


@dataclass(frozen=True, eq=False)
class Facts:
    """m users on R^d, their weights, what their functions are like, and the operator that they apply."""

    users: int
    """In the whole federation."""
    dim: int
    weights: Tensor
    """lambda, (users,)."""
    operator: Any = None
    """The local operator that users apply; None before it is chosen."""
    offers: frozenset[str] = frozenset()
    """What users can be asked for: see `Problem`."""
    convex: bool = False
    closed_form: bool = False
    kind: str = ""
    """The name of the problem's class."""
    numbers: Tensor | None = None
    """The numbers of the users whose rows are held here, as a rank has them; None: all users."""
    names: tuple[str, ...] = ()
    """What users are called, where they have names."""
    start: Tensor | None = None
    """Where to begin, (d,); None: at zero."""
    sizes: Tensor | None = None
    """Rows of each user, (users,); None where users have none."""
    intercepts: Any = ()
    """The coordinates that no penalty touches."""
    penalty: Penalty | None = None
    """g of the objective sum_i lambda_i f_i + g, as it was given."""
    counted: bool = True
    """Whether the values that users tell count the penalty already; else it is added to them."""
    metrics: tuple[str, ...] = ()
    """What users measure on data of their own."""
    problem: Any = None
    """The problem of the users here; None where this process has none."""
    lookup: Callable[[str], Any] = nothing
    """Further facts by name, computed when they are asked for; None where there is no such fact."""
    peers: Peers = ALONE
    """The other processes that run the same loop."""
    sends_hessians: bool = True
    """Whether users who know their Hessians may be asked for them."""
    encodes: bool = False
    """Whether users' answers really cross to the process that runs the loop, so that the engine encodes and decodes
    what compressors make of them; the rows that the loop has are then what was sent."""
    values_lag: bool = False
    """Whether f of a model is known one round later than the model, and is NaN until then."""
    secret: bool = False
    """Whether users are real, so that what a private meeting draws must be known to nobody."""
    private: bool = False
    """Whether nothing is told of the users' rows: a private run's facts."""

    def withholding(self) -> Facts:
        """Without what is computed from users' rows: constants, sizes, the minimum."""
        if self.private:
            return self

        def structure(name: str) -> Any:
            return self.lookup(name) if name in STRUCTURE else None

        return replace(self, sizes=None, lookup=structure, private=True)

    @property
    def here(self) -> int:
        """Users whose rows of u are held here: all of them, or a rank's own."""
        return self.users if self.numbers is None else len(self.numbers)

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.device

    @property
    def g(self) -> Penalty | None:
        """The penalty as the meeting applies it: checked, and intercepts are free."""
        return None if self.penalty is None else fitting(self.penalty, self.dim, self.intercepts)

    @property
    def beside(self) -> Penalty | None:
        """The penalty where it must be added to what users say."""
        return None if self.counted else self.g

    @property
    def wants_centre(self) -> bool:
        """Whether the operator needs mean(u) beside each user's u_i."""
        return bool(getattr(self.operator, "wants_centre", False))

    # --- what may be expensive ---------------------------------------------------------------------------------------

    @property
    def lipschitz(self) -> Tensor | None:
        """L_i, (users,)."""
        return self.lookup("lipschitz")  # type: ignore[no-any-return]

    @property
    def convexity(self) -> Tensor | None:
        """mu_i, (users,)."""
        return self.lookup("convexity")  # type: ignore[no-any-return]

    @property
    def minimiser(self) -> Tensor | None:
        return self.lookup("minimiser")  # type: ignore[no-any-return]

    @property
    def fstar(self) -> float | None:
        return self.lookup("fstar")  # type: ignore[no-any-return]

    @property
    def typical_eta(self) -> float:
        """Where an automatic eta starts if no L_i is known."""
        eta = self.lookup("typical_eta")
        return 1.0 if eta is None else float(eta)

    @property
    def quadratic(self) -> bool:
        """Whether every f_i is known to be quadratic: its Hessian is the same everywhere."""
        return bool({"spectrum", "quadratic"} & self.offers)

    @property
    def matrix_free(self) -> bool:
        """Whether Hessians are known by their products only."""
        return bool(self.lookup("matrix_free"))

    @property
    def frozen(self) -> str:
        """A checksum of what users' networks do not train, which must be the same; empty where there is nothing."""
        return self.lookup("frozen") or ""

    def remarks(self, u: Tensor, origin: Tensor) -> Iterable[str]:
        """What must be said of a run that ends at u and began at `origin`."""
        remarks = self.lookup("remarks")
        return () if remarks is None else remarks(u, origin)

    def common_memory(self, memory: Memory) -> Memory:
        """What the model needs of users' memory: a network's buffers."""
        common = self.lookup("common_memory")
        return {} if common is None else common(memory)


def facts_of(given: Any, operator: Any = None) -> Facts:
    """The facts of a problem all of whose users live here. This is the one place where a problem is probed."""
    if isinstance(given, Facts):
        return given
    ask = partial(_attribute, given)
    intercepts, sizes = ask("intercepts"), ask("sizes")
    return Facts(
        users=int(given.users),
        dim=int(given.dim),
        weights=given.weights,
        operator=operator,
        offers=given.offers,
        convex=bool(given.convex),
        closed_form=bool(given.closed_form),
        kind=type(given).__name__,
        start=ask("start"),
        sizes=sizes,
        intercepts=() if intercepts is None else intercepts,
        penalty=ask("penalty"),
        problem=given,
        lookup=ask,
    )


def _attribute(problem: Any, name: str) -> Any:
    return getattr(problem, name, None)


def is_problem(given: object) -> bool:
    """Whether this can be solved: a problem says what it `offers`."""
    return isinstance(given, Facts) or hasattr(given, "offers")


def needs_problem(given: object, needed: str) -> None:
    """Refuse what is no problem."""
    if not is_problem(given):
        refuse("problem", f"of type {type(given).__name__}", needed)
