"""The engine over Flower whose server learns sums and nothing else: of users' answers, values and metrics.

Every sum takes two messages per user, the masked numbers and what opens them; every eighth takes two more, for keys and
shares. Whoever drops out between them is left out of the sum, exactly; where too few remain, nothing is opened.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.engines.flower.engine import AFTER, ATTEMPTS, ERROR, FlowerEngine
from resolvent.engines.flower.masking import (
    FEWEST,
    SUMS_PER_SETUP,
    Lists,
    Words,
    digest,
    is_keys,
    public_of,
    recovered,
    removed,
    threshold,
)
from resolvent.engines.flower.messages import NOTHING_YET, Answer, Question
from resolvent.engines.flower.summands import Sums, exponent_of, from_sum
from resolvent.errors import BadAnswer, InputError
from resolvent.iteration import schedules
from resolvent.iteration.engine import Answers, Ask, Curvature, MeanAnswer, Spread
from resolvent.iteration.facts import Memory
from resolvent.iteration.scheme import Scheme

SHARED_U = (
    "with secure sums only the mean of all answers is known, so users must share one u (beta = 1, everybody is asked, "
    "no compression, no robust meeting) or keep their own (fedpi or fedsplit with a constant eta)"
)
SUM = "flower.sum"
"""The entry of the memory that has sum_i lambda_i z_i, (1, d), where users keep their u_i."""
COARSER = 16
"""Bits by which the resolution is coarsened where somebody's numbers had no room."""


@dataclass
class Setup:
    """Keys and shares that users have exchanged, for some sums."""

    name: str
    threshold: int
    keys: dict[int, dict[str, Any]]
    tokens: dict[int, dict[str, str]]
    """By user, the shares that the others encrypted for it, by sender."""
    used: int = 0
    delivered: set[int] = field(default_factory=set)

    @property
    def members(self) -> list[int]:
        return sorted(self.tokens)


class SecureEngine(FlowerEngine):
    """The server's side, for schemes whose users share one u, or keep their own. Nobody's answer is known here, so none
    is judged.

    mixing: alpha, beta and gamma of a scheme whose u_i stay with the users; the loop then runs on its meeting points,
    with `shared` of that scheme. The sum has what is new of each z_i, so that whoever is away for a round holds.
    """

    def __init__(self, *args: Any, mixing: tuple[float, float, float] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._mixing = mixing
        if mixing is not None:
            self.facts = replace(self.facts, operator=_uncertified(self.facts.operator))
        if self.facts.wants_centre:
            words = "needs the mean of all u_i, which no secure sum has; take another algorithm"
            raise InputError(f"{self.facts.operator} {words}")
        if self.facts.users < FEWEST:
            raise InputError(f"a secure sum needs {FEWEST} users, but there are {self.facts.users}: of two, each could "
                             "subtract its own answer")  # fmt: skip
        self._setup: Setup | None = None

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        raise InputError(SHARED_U)

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        self._after = memory.get(AFTER, torch.full((self.facts.users,), NOTHING_YET))
        models = self.evaluation.riding()
        sums, here = self._sum(lambda user: self._ask(user, ask, u, models), u, f"in round {ask.t + 1}")
        everybody = len(here) == self.facts.users
        self._take_means(models, sums, everybody)
        self._after = self._after.clone()
        self._after[here] = ask.t
        memory = memory | {AFTER: self._after}
        if self._mixing is not None:
            return self._met(sums, u, memory, len(here))
        total = float(self.facts.weights.double()[here].sum())
        if not total > 0:
            raise BadAnswer(f"in round {ask.t + 1} only users of weight 0 answered, and their mean says nothing")
        step = torch.from_numpy(sums.step) / total
        spread = _spread(step, sums.square / total, len(here) * 2.0 ** exponent_of(u) / total)
        mean = u.double() + step
        if sums.error is not None:  # the mean of the bounds is one on the mean, and nobody's own is known
            memory = memory | {ERROR: torch.full((self.facts.users,), sums.error / total, dtype=self.facts.dtype)}
        who = None if everybody else torch.tensor(here)
        return MeanAnswer(mean.to(u.dtype), spread, memory, memory.get(ERROR), who, len(here))

    def _met(self, sums: Sums, w: Tensor, memory: Memory, came: int) -> MeanAnswer:
        """The meeting point of all who have ever answered, at their latest z_i."""
        seen = memory[AFTER] != NOTHING_YET
        total = float(self.facts.weights.double()[seen].sum())
        zsum = memory.get(SUM, torch.zeros(1, self.facts.dim, dtype=torch.float64)) + torch.from_numpy(sums.step)
        mean = (zsum / total if total > 0 else w).to(w.dtype)
        return MeanAnswer(mean, _unknown, memory | {SUM: zsum}, None, None, came)

    def curvature(self, w: Tensor) -> Curvature | None:
        return None

    def _evaluate(self, w: Tensor) -> None:
        self.evaluation.want(w, ride=False)
        question = replace(self._question, verb="measure", models=w)
        try:
            sums, here = self._sum(
                lambda user: replace(question, user=user, after=int(self._after[user])), w, "after the last round"
            )
        except BadAnswer as error:
            self._note("not_measured", reason=str(error))
            return
        self._take_means(w, sums, len(here) == self.facts.users)

    def _take_means(self, models: Tensor | None, sums: Sums, everybody: bool) -> None:
        """Values of a model are known where they are of everybody."""
        if models is not None and everybody:
            self.evaluation.take_means(models, sums.means)

    # --- the protocol ------------------------------------------------------------------------------------------------

    def _sum(self, question: Callable[[int], Question], u: Tensor, when: str) -> tuple[Sums, list[int]]:
        """The sum over all who have answered, and who they are."""
        exponent = exponent_of(u)
        for _ in range(2 * ATTEMPTS):
            setup, fresh = self._ready(when)
            k, setup.used = setup.used, setup.used + 1
            sealed = {i: self._sealed(question(i), setup, k, exponent) for i in setup.members}
            answers = self._heard(sealed)
            setup.delivered |= answers.keys()
            if any(answer.secure.get("beyond") for answer in answers.values()):
                exponent += COARSER
                continue
            here = sorted(i for i, answer in answers.items() if answer.masked is not None)
            if len(here) >= setup.threshold:
                words = self._opened(setup, k, {i: _words(answers[i]) for i in here}, when)
                return from_sum(sealed[here[0]], words, len(here)), here
            if fresh:
                raise BadAnswer(self._fewer(when, len(here), setup.threshold))
            self._setup = None  # nodes that were started again have lost their keys: one more try, with new ones
        raise BadAnswer(f"{when} somebody's answer had no room in the sum: it is too large, or not a number")

    def _ready(self, when: str) -> tuple[Setup, bool]:
        """Keys for one more sum, and whether they are new."""
        if self._setup is not None and self._setup.used < SUMS_PER_SETUP:
            return self._setup, False
        name, users = os.urandom(8).hex(), range(self.facts.users)
        replies = self._heard({i: self._about("keys", i, setup=name) for i in users})
        keys = {i: answer.secure for i, answer in replies.items() if is_keys(answer.secure)}
        for i in replies.keys() - keys.keys():
            self._note("refused", user=self.facts.names[i], reason="its public keys are none")
        if len(keys) < threshold(len(users)):
            raise BadAnswer(self._fewer(when, len(keys), threshold(len(users))))
        needed, named = threshold(len(keys)), {str(i): keys[i] for i in sorted(keys)}
        asked = {i: self._about("shares", i, setup=name, keys=named, threshold=needed) for i in keys}
        shared = {i: a.secure for i, a in self._heard(asked).items() if a.secure.keys() == named.keys() - {str(i)}}
        if len(shared) < needed:
            raise BadAnswer(self._fewer(when, len(shared), needed))
        tokens = {i: {str(j): shared[j][str(i)] for j in shared if j != i} for i in shared}
        self._setup = Setup(name, needed, keys, tokens)
        return self._setup, True

    def _sealed(self, question: Question, setup: Setup, k: int, exponent: int) -> Question:
        """A question whose answer only the sum makes known."""
        shares = {} if question.user in setup.delivered else setup.tokens[question.user]
        weight, names = float(self.facts.weights[question.user]), ["value", *self.facts.metrics]
        mixing = {} if self._mixing is None or question.verb != "local" else {"mixing": list(self._mixing)}
        terms = mixing | {
            "setup": setup.name,
            "sum": k,
            "peers": setup.members,
            "users": len(setup.members),
            "shares": shares,
        }
        return replace(question, secure=terms | {"weight": weight, "exponent": exponent, "metrics": names})

    def _opened(self, setup: Setup, k: int, masked: dict[int, Words], when: str) -> Words:
        here = sorted(masked)
        gone = [i for i in setup.members if i not in masked]
        asked = {i: self._about("unmask", i, setup=setup.name, sum=k, here=here, gone=gone) for i in here}
        opened = {i: a.secure for i, a in self._heard(asked).items() if _opens(a.secure, here, gone)}
        if len(opened) < setup.threshold:
            raise BadAnswer(self._fewer(when, len(opened), setup.threshold))

        def secrets(kind: str, users: list[int], name: str, public: Callable[[bytes], str]) -> dict[int, bytes]:
            given = {i: [shares[kind][str(i)] for shares in opened.values()] for i in users}
            return {i: recovered(given[i], setup.threshold, setup.keys[i][name][k], public) for i in users}

        try:
            own, pairs = secrets("own", here, "own", digest), secrets("pairs", gone, "mask", public_of)
        except ValueError:
            raise BadAnswer(f"{when} the shares that users gave do not open the sum; see the nodes' logs") from None
        total = np.add.reduce([masked[i] for i in here])
        return removed(total, k, setup.keys, own, pairs)

    def _about(self, verb: str, user: int, **secure: Any) -> Question:
        return replace(self._question, verb=verb, user=user, secure=secure)

    def _heard(self, questions: dict[int, Question]) -> dict[int, Answer]:
        answers = self._asking.some_of(questions, self.rule.timeout, self.rule.poll)
        for user in sorted(questions.keys() & self._asking.busy):
            self._note("late", user=self.facts.names[user], round=questions[user].t + 1)
        for user, answer in answers.items():
            if answer.forgot:
                self._note("forgot", user=self.facts.names[user], round=questions[user].t + 1)
        return answers

    def _fewer(self, when: str, came: int, needed: int) -> str:
        refused = ", ".join(f"{name} ({n} refused)" for name, n in self._asking.refused.items())
        return (
            f"{when} only {came} users answered, and a secure sum is opened by {needed} at least; nothing was opened"
            f"{'; ' if refused else ''}{refused}; see the nodes' logs, and resume once they are back"
        )


def _uncertified(operator: Any) -> Any:
    """The operator of users who keep their u_i: the server knows too little of them to certify anything."""
    copied = copy(operator)
    object.__setattr__(copied, "certifies", None)
    return copied


def _unknown(u: Tensor) -> Tensor:
    return u.new_full((len(u),), torch.nan)


def shared(scheme: Scheme) -> Scheme:
    """The scheme of meeting points alone: w is followed by the mean of the z_i that users make of it."""
    one = schedules.constant(1.0)
    return replace(scheme, alpha=one, beta=one, gamma=one)


def _spread(step: Tensor, square: float, resolution: float) -> Spread:
    """sum_i lambda_i |p_i - mean(p)|^2 from the sums of p_i - u and of its squares, with all that rounding may add."""
    length = float(step.norm())
    lost = resolution * math.sqrt(len(step))
    rounding = 8 * torch.finfo(step.dtype).eps * (square + length**2) + 2 * lost * length + lost**2
    apart = max(0.0, square - length**2) + rounding
    return lambda u: u.new_full((len(u),), apart)


def _words(answer: Answer) -> Words:
    assert answer.masked is not None
    return answer.masked.numpy().view(np.uint64)


def _opens(reply: Lists, here: list[int], gone: list[int]) -> bool:
    """Whether these are shares for each of these users."""
    for kind, users in (("own", here), ("pairs", gone)):
        shares = reply.get(kind)
        if not isinstance(shares, dict) or shares.keys() != {str(user) for user in users}:
            return False
        if not all(isinstance(share, str) and len(share) == 104 for share in shares.values()):
            return False
    return True
