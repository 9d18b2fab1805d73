"""The engine over Flower: every user on a machine of its own, the loop on the server.

Each user is sent its own u_i and answers local(u_i). Rounds close by a `Rule`. Whoever has not answered by then holds
its pair (u_i, p_i), and a late answer is taken in the round in which it comes, with the point that it belongs to.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from resolvent.engines.flower.asking import Asking, Note, Taken, unnoted
from resolvent.engines.flower.claims import check_constants
from resolvent.engines.flower.evaluation import Evaluation
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.messages import NOTHING_YET, Question, checksum, describe_operator
from resolvent.engines.flower.plausibility import PATIENCE, judge, left_out
from resolvent.engines.flower.rule import Limits, Rule
from resolvent.engines.in_process import CentralSums
from resolvent.errors import BadAnswer, InputError
from resolvent.iteration import registry
from resolvent.iteration.asking import DOWNWARDS
from resolvent.iteration.engine import Answers, Ask, Curvature, MeanAnswer, Traffic
from resolvent.iteration.facts import Facts, Memory
from resolvent.iteration.metric import FullMetric, Metric, moved
from resolvent.iteration.metric_choice import MAX_HESSIAN_DIM
from resolvent.problems.problem import select

AFTER, ERROR, AT, SENT = "flower.after", "flower.error", "flower.at", "flower.sent"
"""Entries of the memory: the round of each user's last answer that was taken, the bound on its error, and, where what
crosses is compressed, the point that it belongs to and what the server has of z, (users, d)."""
ATTEMPTS = 3
"""How often a user whose answers are refused is asked in one round."""
ROLL_CALL = 5
"""Looks for answers between two looks at who is online, each of which is work for the superlink."""


class FlowerEngine(CentralSums):
    """The server's side. It has no problem: users' functions are known on their machines alone.

    run: the name under which nodes file what they remember; a run that goes on has the same.
    ride: whether models are evaluated on the next question (`Evaluation`), or at once, by a message of its own.
    curvature: whether users are asked for gradients and Hessians, which an automatic eta can do without.
    """

    def __init__(
        self,
        post: Post,
        facts: Facts,
        operator: Any,
        run: str,
        *,
        steady: bool = True,
        rule: Rule = Rule(),  # noqa: B008 (frozen)
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        ride: bool = False,
        curvature: bool = False,
        note: Note = unnoted,
    ) -> None:
        super().__init__(replace(facts, operator=operator, sends_hessians=curvature, values_lag=ride))
        self.rule, self._run, self._asks_curvature, self._note = rule, run, curvature, note
        self._asking = Asking(post, facts.names, limits, facts.metrics, note)
        self.evaluation = Evaluation(self.facts, ride, note)
        self._question = Question("local", run, operator=describe_operator(operator), steady=steady,
                                  schema=facts.lookup("schema") or "")  # fmt: skip
        self._late: set[int] = set()
        self._max_move, self._max_weight, self._left_out = limits.move, limits.weight, set[int]()
        self._after = torch.full((facts.users,), NOTHING_YET)
        self._metrics: dict[int, Metric] = {}
        self._copies: Memory = {}
        self._refusals: dict[int, int] = {}
        """How many answers of each user were refused before the last one that was taken."""
        self._told: dict[int, tuple[int, int]] = {}
        """Of users who have answered in a metric: the round it is of, and how many answers were refused until then."""

    @property
    def traffic(self) -> Traffic:
        return self._asking.traffic

    @property
    def spent(self) -> dict[str, float]:
        """Seconds by what they went to: sending, fetching, looking who is online, waiting for answers."""
        return dict(self._asking.spent)

    @property
    def refused(self) -> dict[str, int]:
        """How many answers were refused, by user."""
        return dict(self._asking.refused)

    def __exit__(self, *error: object) -> None:
        self._asking.forget()

    # --- users' answers ----------------------------------------------------------------------------------------------

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        asked = list(range(self.facts.users)) if ask.who is None else ask.who.tolist()
        rows = dict(zip(asked, u.expand(len(asked), -1).split(1), strict=True))
        taken, memory = self._answers(ask, rows, memory)
        error = memory.get(ERROR)
        if not taken:
            return Answers(torch.tensor([], dtype=torch.int64), u[:0], u[:0], memory, error)
        everybody = taken.keys() == set(asked) and all(t.question.t == ask.t for t in taken.values())
        users = asked if everybody else sorted(taken)
        p = torch.cat([_answer(taken[user]) for user in users])
        if everybody and not _compresses(ask.down):
            return Answers(ask.who, u.expand(len(asked), -1), p, memory, error)
        at = torch.cat([self._now(taken[user], ask) for user in users])
        return Answers(ask.who if everybody else torch.tensor(users), at, p, memory, error)

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        """Answers to earlier questions do not belong to this u, and are not taken."""
        asked = list(range(self.facts.users)) if ask.who is None else ask.who.tolist()
        taken, memory = self._answers(ask, dict.fromkeys(asked, u), memory, late=False)
        answered = [user for user in asked if user in taken]
        if not answered:
            return MeanAnswer(u, lambda u: u.new_zeros(1), memory, memory.get(ERROR), torch.tensor(answered), 0)
        p, who = torch.cat([_answer(taken[user]) for user in answered]), torch.tensor(answered)
        everybody = answered == asked
        lam = self.facts.weights if ask.who is None and everybody else select(self.facts.weights, who)
        mean = (lam @ p).unsqueeze(0)
        spread = (lam @ (p - mean).square().sum(1)).unsqueeze(0)
        return MeanAnswer(mean, lambda u: spread, memory, memory.get(ERROR), None if everybody else who, len(answered))

    def _answers(
        self, ask: Ask, rows: dict[int, Tensor], memory: Memory, late: bool = True
    ) -> tuple[dict[int, Taken], Memory]:
        """The answers of a round that are plausible, and what is remembered after it."""
        self._after = memory.get(AFTER, torch.full((self.facts.users,), NOTHING_YET))
        self._left_out = left_out(memory)
        self._copies = {name: memory[name] for name in (AT, SENT) if name in memory}
        taken = {i: t for i, t in self._round(ask, rows).items() if late or t.question.t == ask.t}
        pairs = {i: (_point(t), _answer(t)) for i, t in taken.items()}
        if not ask.finite:  # nobody may be left out of a private mean for what others have answered
            return taken, self._remembered(memory, taken)
        withheld, judged = judge(pairs, memory, self.facts.users, self._max_move)
        for implausible in withheld:
            del taken[implausible.user]
            about: dict[str, Any] = {"user": self.facts.names[implausible.user], "round": ask.t + 1}
            self._note("implausible", **about, reason=str(implausible))
            if implausible.user in left_out(judged):
                self._note("left_out", **about, reason=f"{PATIENCE} implausible answers in a row")
        return taken, self._remembered(memory, taken) | judged

    def _round(self, ask: Ask, rows: dict[int, Tensor]) -> dict[int, Taken]:
        """Ask those who are not at work, and collect answers until the rule closes the round."""
        everybody, needed = len(rows) == self.facts.users, min(self.rule.min_users, len(rows))
        rows = {i: row for i, row in rows.items() if i not in self._left_out}
        if everybody and len(rows) < needed:
            names = ", ".join(self.facts.names[i] for i in sorted(self._left_out))
            raise BadAnswer(f"{needed} users are needed, but {names} was left out, since its answers were implausible")
        taken: dict[int, Taken] = {}
        asked: set[int] = set()
        before = {i: self._asking.refused[self.facts.names[i]] for i in rows}
        models, began = self.evaluation.riding(), time.monotonic()
        for look in itertools.count():
            if look % ROLL_CALL == 0:
                online = self._asking.online()
            spent = {i for i in rows if self._asking.refused[self.facts.names[i]] - before[i] >= ATTEMPTS}
            idle = [i for i in rows if i not in self._asking.busy and i not in taken and i not in spent]
            if not asked or len(taken) < self._needed(rows, online, everybody):
                asked |= self._asking.ask({i: self._ask(i, ask, rows[i], models) for i in idle}, online)
            for answer in self._asking.collect():
                self.evaluation.take(answer)
                if answer.question.verb == "local":
                    taken[answer.user] = answer
            open_, seconds = self._asking.busy, time.monotonic() - began
            prompt = asked - self._late
            needed = self._needed(rows, online, everybody)
            if self.rule.closed(len(prompt), len(prompt - open_), len(taken), needed, len(open_), seconds):
                break
            if seconds >= self.rule.patience or (not open_ and spent == rows.keys()):
                raise BadAnswer(self._too_few(ask, len(taken), needed, seconds))
            self._asking.pause(self.rule.poll)
        slow = {i for i in taken if taken[i].seconds > self.rule.timeout}
        overdue = asked & open_ if seconds >= self.rule.timeout else set()
        for user in sorted(overdue - self._late):
            self._note("late", user=self.facts.names[user], round=ask.t + 1)
        self._late = (self._late - taken.keys()) | slow | overdue
        return taken

    def _needed(self, rows: dict[int, Tensor], online: dict[int, int], everybody: bool) -> int:
        """How many must answer: of users that were drawn, only those who are there."""
        least = min(self.rule.min_users, len(rows))
        return least if everybody else min(least, len(rows.keys() & online.keys()))

    def _too_few(self, ask: Ask, taken: int, needed: int, seconds: float) -> str:
        refused = ", ".join(f"{name} ({n} refused)" for name, n in self._asking.refused.items())
        return (
            f"in round {ask.t + 1} only {taken} of the {needed} users that are needed answered within {seconds:.0f} s"
            f"{'; ' if refused else ''}{refused}; see the nodes' logs"
        )

    def _ask(self, user: int, ask: Ask, row: Tensor, models: Tensor | None) -> Question:
        after = int(self._after[user])
        question = replace(
            self._question, t=ask.t, user=user, eta=ask.eta, seed=ask.seed, after=after, u=row, models=models,
            centre=ask.centre,
        )  # fmt: skip
        question = self._compressed(question, user, ask)
        metric = ask.metric
        if metric is None:
            return question
        assert isinstance(metric, FullMetric)
        self._metrics[metric.since] = metric
        has_it = self._told.get(user) == (metric.since, self._asking.refused[self.facts.names[user]])
        if has_it:
            return replace(question, metric=metric.since)
        return replace(question, metric=metric.since, vectors=metric.V, values=metric.s)

    def _compressed(self, question: Question, user: int, ask: Ask) -> Question:
        """The question with what is new in u alone, where the user knows the rest, and what its answer changes."""
        assert question.u is not None
        answered = question.after != NOTHING_YET
        if _compresses(ask.down):
            question = replace(question, down=registry.described("down", ask.down))
            sure = self._refusals.get(user, 0) == self._asking.refused[self.facts.names[user]]
            if answered and AT in self._copies and sure:
                old, of_user = self._copies[AT][user : user + 1], question.of_user._replace(t=ask.t + DOWNWARDS)
                news = ask.down.encode(question.u, old, of_user)
                question = replace(question, u=ask.down.decode(news, old, of_user), news=news, at_sum=checksum(old))
        if _compresses(ask.send):
            if not ask.alpha:
                raise InputError("alpha is 0, so that no answer counts, and none can be compressed: leave out `send`")
            assert question.u is not None
            base = self._copies[SENT][user : user + 1] if answered and SENT in self._copies else question.u
            described = registry.described("send", ask.send)
            question = replace(question, send=described, base=base, base_sum=checksum(base), alpha=ask.alpha)
        return question

    def _remembered(self, memory: Memory, taken: dict[int, Taken]) -> Memory:
        """Which answer of every user was taken last, and the bounds on their errors."""
        after, users = self._after.clone(), self.facts.users
        error = memory.get(ERROR, torch.full((users,), torch.nan, dtype=self.facts.dtype)).clone()
        for user, (_, question, answer, _) in taken.items():
            after[user] = question.t
            self._refusals[user] = self._asking.refused[self.facts.names[user]]
            self._told[user] = question.metric, self._refusals[user]
            error[user] = torch.nan if answer.error is None else answer.error
            if answer.forgot:
                self._note("forgot", user=self.facts.names[user], round=question.t + 1)
        self._after = after
        any_bound = ERROR in memory or not bool(error.isnan().all())
        return {AFTER: after} | ({ERROR: error} if any_bound else {}) | self._copied(memory, taken)

    def _copied(self, memory: Memory, taken: dict[int, Taken]) -> Memory:
        """Where users answered last, and what is known of their z, as far as compressors need it."""
        copies: Memory = {}
        for name, needed, of in ((AT, "down", _point), (SENT, "send", lambda taken: taken.answer.sent)):
            rows = {i: of(t) for i, t in taken.items() if getattr(t.question, needed)}
            if rows or name in memory:
                begun = torch.zeros(self.facts.users, self.facts.dim, dtype=self.facts.dtype)
                copies[name] = memory.get(name, begun).clone()
                for user, row in rows.items():
                    copies[name][user] = row[0]
        return copies

    def _now(self, taken: Taken, ask: Ask) -> Tensor:
        """The point that an answer belongs to at today's eta and metric: p is the prox of that as well."""
        u, asked = _point(taken), (taken.question.eta, self._metrics.get(taken.question.metric))
        if asked == (ask.eta, ask.metric) or self.facts.operator.certifies != "p":
            return u
        return moved(u, _answer(taken), asked, (ask.eta, ask.metric))

    # --- values and curvature ----------------------------------------------------------------------------------------

    def curvature(self, w: Tensor) -> Curvature | None:
        facts = self.facts
        if self._left_out or not (self._asks_curvature and facts.convex and facts.dim <= MAX_HESSIAN_DIM):
            return None
        if not {"grad", "hessian"} <= facts.offers:
            return None
        answers = self._everybody(replace(self._question, verb="curvature", u=w))
        if answers is None or any(a.hessian is None for a in answers):
            return None
        try:
            sizes = [float(a.hessian.abs().max()) for a in answers]
            check_constants("the largest number of the Hessian", facts.names, sizes, self._max_weight)
        except InputError as error:
            self._note("implausible", reason=str(error))
            return None
        grads, hessians = (torch.cat([getattr(a, name) for a in answers]) for name in ("grad", "hessian"))
        return Curvature(facts.weights @ grads, torch.tensordot(facts.weights, hessians, 1))

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        """Known values; where models ride on the next question, those that are not known yet are asked for then."""
        if not self.evaluation.rides:
            self._evaluate(w)
        return self.evaluation.measured(w)

    def settle(self) -> None:
        """Ask for the values of models that wait for a next question, which will not come."""
        waiting = self.evaluation.riding()
        if waiting is not None:
            self._evaluate(waiting)

    def _evaluate(self, w: Tensor) -> None:
        self.evaluation.want(w, ride=False)
        question = replace(self._question, verb="measure", models=w)
        for user, answer in enumerate(self._everybody(question) or ()):
            self.evaluation.take(Taken(user, question, answer))

    def _everybody(self, question: Question) -> list[Any] | None:
        users = range(self.facts.users)
        questions = {i: replace(question, user=i, after=int(self._after[i])) for i in users}
        answers = self._asking.all_of(questions, self.rule.timeout, self.rule.poll)
        return None if answers is None else [answers[i] for i in users]


def _compresses(part: Any) -> bool:
    return part is not None and part.compresses


def _point(taken: Taken) -> Tensor:
    assert taken.question.u is not None
    return taken.question.u


def _answer(taken: Taken) -> Tensor:
    assert taken.answer.p is not None
    return taken.answer.p
