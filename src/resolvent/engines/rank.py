"""One rank of an all-reduce: the verbs of an engine over the users here and the sums over those elsewhere.

A mean over users is one all-reduce of d numbers; Anderson's inner products are one of (memory + 1)^2 numbers.
"""

from __future__ import annotations

import math
import signal
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from resolvent.engines.in_process import curvature, measure
from resolvent.engines.interrupts import Interrupts
from resolvent.engines.process_group import INDEX_BYTES, Group, same
from resolvent.errors import BadAnswer, BlewUp, InputError, RankLost
from resolvent.iteration.engine import PERSONAL, Answers, Ask, Curvature, Look, MeanAnswer, Present, Traffic
from resolvent.iteration.facts import Facts, Memory, facts_of
from resolvent.local.metric_bound import bind
from resolvent.problems.problem import weighted

SPREAD = "_spread"
"""How the name of a standard deviation over users ends; what comes before is the name of the mean."""
FINE, BLEW_UP, FAILED = 0, 1, 2
"""How a rank's users fared in a round."""
CLOSE = 1e-9
"""The relative difference up to which ranks' step sizes are the same: different processors round differently."""


class RankEngine:
    """One rank's users. Every verb that sums over users is a collective: all ranks call it, or none."""

    def __init__(
        self, problem: Any, facts: Facts, group: Group, steady: bool, whole: Any = None, measured: bool = False
    ) -> None:
        assert facts.numbers is not None
        self.problem, self.group = problem, group
        self._bound = bind(facts.operator, problem, steady)
        self._names, self._first = facts.numbers.to(facts.device), int(facts.numbers[0])
        self._lam = facts.weights[self._names]
        self._share = self._lam.sum()
        self._some_rank_has_one_user = 1 in group.gathered(
            facts.here
        )  # one row may then be its own, or one that all share
        self._measured = measured and "inspect" not in facts.offers
        self._whole = facts_of(whole) if self._measured and whole is not None else None
        self.facts = replace(facts, problem=problem, peers=self, counted=self._measured)
        self._interrupts, self._open, self._interrupted = Interrupts(), False, False
        self._shared: BaseException | None = None
        self._most = int(group.most(torch.tensor(facts.here)))
        self._sparse = False
        self._rows: Tensor | None = None  # every rank's sum of what its users sent, where little of it is new
        self._came = facts.users  # of those asked last, wherever they live

    def __enter__(self) -> Self:
        self._interrupts.open()
        self._open, self._interrupted, self._shared = True, False, None
        self.group.moved, self._rows = [0, 0], None
        return self

    def __exit__(self, *error: object) -> None:
        self._open = False
        self._interrupts.close()
        raised = next((each for each in error if isinstance(each, BaseException)), None)
        if raised is not None:
            self.leave(raised)
        elif self._interrupts.noted and not self._interrupted:  # after the last round: for whoever comes next
            signal.raise_signal(signal.SIGINT)

    @property
    def traffic(self) -> Traffic:
        """Bytes that this rank has put into collectives and got out of them."""
        return Traffic(*self.group.moved)

    # --- the other ranks ---------------------------------------------------------------------------------------------

    def same(self, describe: Callable[[], dict[str, Any]]) -> None:
        try:
            same(self.group, describe(), "all ranks must run the same")
        except InputError as error:
            self._shared = error
            raise

    def agree(self, own: Any) -> Any:
        size, rank = self.group.size, self.group.rank
        first, noted = self.group.most(torch.tensor([-size if own is None else -rank, self._interrupts.noted])).tolist()
        self._interrupted = bool(noted)
        return None if -first == size else self.group.gathered(own)[-first]

    def largest(self, values: Tensor) -> Tensor:
        return self.group.most(values.max())

    def leave(self, error: BaseException) -> None:
        if error is not self._shared and not isinstance(error, RankLost):
            self.group.leave(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

    def _compare(self, ask: Ask, failed: Exception | None) -> None:
        """After every rank has asked its users: whether they asked the same, and whether all went well."""
        code = FINE if failed is None else BLEW_UP if isinstance(failed, BlewUp) else FAILED
        numbers = ask.t, ask.seed, struct.unpack("<q", struct.pack("<d", ask.eta))[0]
        agreed = self.group.most(torch.tensor([code, *numbers, *(-x for x in numbers)])).tolist()
        most, least = agreed[1:4], [-x for x in agreed[4:]]
        for name, a, b in zip(("the round", "the seed", "eta"), least, most, strict=True):
            if a != b and not (name == "eta" and _real(b) - _real(a) <= CLOSE * _real(b)):
                both = f"{_real(a)} on one rank and {_real(b)}" if name == "eta" else f"{a} on one rank and {b}"
                self._raise(InputError(f"{name} is {both} on another, but all ranks must run the same"))
        if agreed[0] != FINE:
            self._fail(code == agreed[0], agreed[0], failed, ask)

    def _fail(self, mine: bool, code: int, failed: Exception | None, ask: Ask) -> None:
        """Fail on every rank: with what happened here, or with what happened elsewhere."""
        messages = self.group.gathered(f"{type(failed).__name__}: {failed}" if mine else None)
        rank, message = next((rank, message) for rank, message in enumerate(messages) if message is not None)
        if code == BLEW_UP:  # the run has diverged, in the same words everywhere
            self._raise(BlewUp(message.partition(": ")[2]))
        if mine and failed is not None:
            self._raise(failed)
        self._raise(BadAnswer(f"rank {rank} failed in round {ask.t + 1} with {message}"))

    def _raise(self, error: BaseException) -> NoReturn:
        self._shared = error
        raise error

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def present(self, who: Tensor | None) -> Present:
        if self._interrupted:
            raise KeyboardInterrupt
        self._came = self.facts.users if who is None else len(who)
        if who is None:
            return Present(None, self._came)
        here = who[(who >= self._first) & (who < self._first + self.facts.here)] - self._first
        return Present(here.to(self.facts.device), self._came)

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        self._sparse = ask.send is not None and self._saves(ask.send)
        u = u.expand(self.facts.here if ask.who is None else len(ask.who), -1)
        p, failed = u, None
        try:
            if len(u):
                p, memory = self._bound.rows(ask._replace(names=self._names), u, memory)
        except Exception as error:
            failed = error
        if self._open:
            self._compare(ask, failed)
        elif failed is not None:
            raise failed
        return Answers(ask.who, u, p, memory, memory.get("error"), self._came)

    def _saves(self, send: Any) -> bool:
        """Whether all ranks' new coordinates together, with their places, are fewer bytes than one sum of whole rows.

        Sums of quantised rows have no fewer numbers, and cross whole.
        """
        new = send.cost(self.facts.dim).up * self._most
        size = torch.finfo(self.facts.dtype).bits // 8
        return bool(send.sparse and self.group.size * new * (size + INDEX_BYTES) < self.facts.dim * size)

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        _, _, p, memory, error, *_ = self.local(ask, u, memory)
        lam, total = self._weights_of(ask.who)
        mean = (self.group.sum(lam @ p) / total).unsqueeze(0)
        apart = lam @ (p - mean).square().sum(1)
        spread = self.group.sum((apart / total).unsqueeze(0))
        if "training" in self.facts.offers:  # a network's personal models are not computed again for the asking
            begun = self.problem.start.expand(self.facts.here, -1)
            before = memory.get(PERSONAL, begun)
            memory = memory | {PERSONAL: p if ask.who is None else before.index_copy(0, ask.who, p)}
        return MeanAnswer(mean, lambda u: spread, memory, error, None, self._came)

    def _weights_of(self, who: Tensor | None) -> tuple[Tensor, Tensor | float]:
        """The weights of these users, and their sum over all ranks; ones where all of theirs are zero."""
        if who is None:
            return self._lam, 1.0
        lam = self._lam[who]
        total = self.group.sum(torch.stack([lam.sum(), lam.new_tensor(float(len(lam)))]))
        return (lam, total[0]) if float(total[0]) > 0 else (torch.ones_like(lam), total[1])

    def mean(self, z: Tensor, who: Tensor | None = None, news: bool = False) -> Tensor:
        if self._is_one(z):
            return self.group.sum(self._share * z) if self._some_rank_has_one_user else z
        lam, total = self._weights_of(who)
        own = lam @ (z if who is None else z[who])
        if news and self._sparse:
            rows = self._rows = self.group.rows(own, self._rows)
            return (rows.sum(0) / total).unsqueeze(0)
        return (self.group.sum(own) / total).unsqueeze(0)

    def gram(self, rows: Tensor) -> Tensor:
        one = self._is_one(rows[0])
        weights = self._share.sqrt() if one else self._lam.sqrt().unsqueeze(1)
        flat = (rows if one and not self._some_rank_has_one_user else rows * weights).flatten(1)
        products = flat @ flat.T
        return products if one and not self._some_rank_has_one_user else self.group.sum(products)

    def _is_one(self, rows: Tensor) -> bool:
        """Whether this is a row that all users share. A rank with one user cannot tell: there the sum is the same."""
        return len(rows) == 1 and self.facts.here > 1

    def every(self, flags: Tensor) -> bool:
        return int(self.group.sum((~flags).sum().cpu())) == 0

    def curvature(self, w: Tensor) -> Curvature | None:
        mine = curvature(self.facts, w, self._lam)
        if mine is None:
            return None
        gradient, hessian = mine[:2]
        both = self.group.sum(torch.cat([gradient.to(hessian), hessian.flatten()]))
        return Curvature(both[: len(gradient)].to(gradient), both[len(gradient) :].view_as(hessian))

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        if self._measured:  # by rank 0, which has the whole problem and so knows f*
            values = {} if self._whole is None else measure(self._whole, w)
            table = torch.stack([values.get(name, w.new_zeros(len(w))).double() for name in ("value", "gap")])
            value, gap = self.group.spread(table)
            return {"value": value, "gap": gap}
        value = w.new_full((len(w),), torch.nan, dtype=torch.float64)
        if "value" in self.facts.offers:
            value = torch.stack([weighted(self._lam, self.problem.value(row)).double() for row in w.split(1)])
            value = self.group.sum(value)
        return {"value": value, "gap": torch.full_like(value, torch.nan)}

    def inspect(self, w: Tensor, p: Tensor, memory: Memory, look: Look) -> dict[str, float] | None:
        if "inspect" not in self.facts.offers:
            return None
        if look.judge is not None:
            self._raise(InputError("metrics are functions of all users' rows, and no rank has these; leave them out"))
        memory = self.problem.remembering({}).memory() | memory  # also where nobody here has been asked yet
        common = self.problem.common(memory, self._mean_buffer)
        several = PERSONAL in memory or self._several(p)
        own = self.problem.inspect(w, memory.get(PERSONAL, p), memory, look, common, several)
        weights = dict.fromkeys(own, float(self._share)) | getattr(self.problem, "shares", {})
        shares = self.group.gathered([weights, own])
        try:
            return combined(shares)
        except InputError as error:
            self._raise(error)

    def _several(self, p: Tensor) -> bool:
        """Whether these are users' own rows; ranks with one user go by what the others have."""
        if not self._some_rank_has_one_user:
            return len(p) > 1
        own = self.group.gathered(len(p) > 1 if self.facts.here > 1 else None)
        return all(word is not False for word in own)

    def _mean_buffer(self, rows: Tensor) -> Tensor:
        lam = self._lam.view(-1, *(1,) * (rows.ndim - 1)).double()
        mean = self.group.sum((lam * rows).sum(0, keepdim=True))
        return (mean if rows.is_floating_point() else mean.round()).to(rows.dtype)


def _real(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return number


def combined(parts: Sequence[tuple[dict[str, float], dict[str, float]]]) -> dict[str, float]:
    """Metrics over all users from (what each of the rank's metrics weighs, its metrics), in the order of ranks."""
    names = list(parts[0][1])
    for rank, (_, own) in enumerate(parts):
        if list(own) != names:
            raise InputError(
                f"rank {rank} reports {', '.join(own)} and rank 0 reports {', '.join(names)}, but all ranks need "
                "validation and test data of the same kinds"
            )
    counting = {name: [(by[name], own) for by, own in parts if by[name] > 0] for name in names}
    means = {name: sum(share * own[name] for share, own in counting[name]) for name in names}
    return {name: _deviation(name, means, counting[name]) if name.endswith(SPREAD) else means[name] for name in names}


def _deviation(name: str, means: dict[str, float], counting: Sequence[tuple[float, dict[str, float]]]) -> float:
    """The square of a deviation is the mean of those inside the ranks, plus that of the ranks' means."""
    mean = name.removesuffix(SPREAD)
    return math.sqrt(sum(share * (own[name] ** 2 + (own[mean] - means[mean]) ** 2) for share, own in counting))
