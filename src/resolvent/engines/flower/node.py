"""A user's side: it answers questions with its own data, which never leave. Flower is not needed here."""

from __future__ import annotations

import math
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from resolvent.engines.flower.masking import Masks
from resolvent.engines.flower.memory import Memories
from resolvent.engines.flower.messages import (
    NOTHING_YET,
    TABLE,
    Answer,
    Description,
    Question,
    checksum,
    compressor_of,
    operator_of,
)
from resolvent.engines.flower.packets import Malformed, Packet
from resolvent.engines.flower.summands import counted, in_words, mixing_of
from resolvent.errors import InputError
from resolvent.installed import version
from resolvent.iteration import metric_names
from resolvent.iteration.asking import DOWNWARDS
from resolvent.iteration.engine import PERSONAL, Ask
from resolvent.iteration.facts import Memory, facts_of, is_problem
from resolvent.iteration.metric import FullMetric, Metric
from resolvent.iteration.metric_choice import MAX_HESSIAN_DIM
from resolvent.iteration.scheme import mix
from resolvent.local.choice import check
from resolvent.local.metric_bound import bind

USER_FILE = "user.py"
"""Says what the user's problem is, in the node's own folder."""
MEMORY = "memory"
OWN_U, OWN_Z, SENT = "own.u", "own.z", "own.sent"
"""Entries of the memory of a user who keeps its u_i: u_i, z_i, and what the server's sum has of z_i."""
AT, KNOWN = "point", "known"
"""Entries of a node's memory: where it answered last, and what the server has of its z, both (1, d)."""
Metrics = Callable[[Tensor], dict[str, float]]
"""More metrics of a model (d,), from data of the user's own."""


class Node:
    """One user: its problem, what it remembers, and more metrics where it has any.

    secure: answer nothing about the data but in sums that nobody can open.
    """

    def __init__(
        self, problem: Any, folder: Path | None = None, metrics: Metrics | None = None, secure: bool = False
    ) -> None:
        if not is_problem(problem) or problem.users != 1:
            users = problem.users if is_problem(problem) else "no"
            raise InputError(f"a node is one user, but its problem has {users} users: give it this node's data alone")
        self.facts = facts_of(problem)
        if self.facts.penalty is not None:
            raise InputError(
                f"a node's problem has the penalty {self.facts.penalty}, which belongs to the meeting of all users, "
                'not to one of them: leave it out, and set `penalty = "l1:0.1"` in the section [federation] of '
                "federation.toml on the server, or give rs.solve(None, ..., engine=FlowerEngine(...), penalty=...)"
            )
        self.problem, self._metrics = problem, metrics
        self._memories = Memories(folder)
        self._bound: dict[str, Any] = {}
        self._known_metric: tuple[tuple[str, int], Metric] | None = None
        self._secure = secure
        self._masks: Masks | None = None

    def handle(self, packet: Packet) -> Packet:
        """The answer to a question. What the user's own code raises comes through."""
        question = Question.of(packet)
        summed = question.verb in ("local", "measure") and bool(question.secure)  # a Hessian fits into no sum
        if self._secure and question.verb in ("local", "measure", "curvature") and not summed:
            raise Malformed("this node answers only in sums that nobody can open, as its federation.toml says")
        return getattr(self, f"_{question.verb}")(question).packet()  # type: ignore[no-any-return]

    # --- the questions -----------------------------------------------------------------------------------------------

    def _describe(self, question: Question) -> Answer:
        facts = self.facts
        rows = None if facts.sizes is None else int(facts.sizes[0])
        metrics = self._measured(torch.zeros(facts.dim) if facts.start is None else facts.start, {})
        typical = facts.lookup("typical_eta")
        description = Description(
            problem=facts.kind,
            dim=facts.dim,
            dtype=str(facts.dtype).removeprefix("torch."),
            samples=rows or 0,
            offers=tuple(
                sorted(facts.offers - {"spectrum", "inspect"} | ({"quadratic"} if facts.quadratic else set()))
            ),
            convex=facts.convex,
            closed_form=facts.closed_form,
            lipschitz=_constant(facts.lipschitz),
            convexity=_constant(facts.convexity),
            typical_eta=None if typical is None else float(typical),
            rows=rows,
            means="training" in facts.offers,
            starts=facts.start is not None,
            metrics=tuple(name for name in metrics if name not in ("value", "gap")),
            intercepts=tuple(int(i) for i in facts.intercepts),
            version=version(),
            frozen=facts.frozen,
        )
        return self._answer(question, facts=description.as_dict())

    def _schema(self, question: Question) -> Answer:
        """A user whose user.py makes its problem has no table."""
        return self._answer(question, facts={TABLE: False})

    def _start(self, question: Question) -> Answer:
        assert self.facts.start is not None
        return self._answer(question, p=self.facts.start.reshape(1, -1))

    def _local(self, question: Question) -> Answer:
        memory, forgot = self._remembered(question)
        evaluated = self._evaluated(question, memory)
        own = {name: tensor for name, tensor in memory.items() if name not in (PERSONAL, AT, KNOWN)}
        device = self.problem.weights.device
        centre = None if question.centre is None else question.centre.to(device)
        ask = question.of_user._replace(metric=self._metric(question), centre=centre)
        if question.secure.get("mixing"):
            return self._own_step(question, ask, own, forgot, evaluated)
        u = self._point(question, memory)
        p, now = self._operator(question).rows(ask, u.to(device), own)
        bound = now.get("error")
        answer = self._answer(question, error=None if bound is None else float(bound[0]), forgot=forgot, **evaluated)
        answer, sent = self._sent(question, answer, u, p, None if forgot else memory.get(KNOWN, u))
        at = {AT: u} if question.down else {}
        self._memories.store(question.run, question.t, now | {PERSONAL: p} | sent | at)
        return self._hidden(question, answer)

    def _point(self, question: Question, memory: Memory) -> Tensor:
        """u, as it came, or from what is new in it."""
        down = compressor_of("down", question.down)
        if question.u is not None:
            return question.u
        if down is None or AT not in memory or checksum(memory[AT]) != question.at_sum:
            raise Malformed("what is new in u came, and what it was before is not known here")
        try:
            return down.decode(question.news, memory[AT], question.of_user._replace(t=question.t + DOWNWARDS))  # type: ignore[no-any-return]
        except ValueError as error:
            raise Malformed(str(error)) from None

    def _sent(
        self, question: Question, answer: Answer, u: Tensor, p: Tensor, before: Tensor | None
    ) -> tuple[Answer, Memory]:
        """The answer with p, or with what is new in z, and what the server has of z afterwards.

        Whoever has forgotten what the server knows, or knows something else, sends everything.
        """
        send = compressor_of("send", question.send)
        if send is None:
            return replace(answer, p=p), {}
        z = mix(u.cpu(), p.cpu(), question.alpha)
        if before is None or checksum(before) != question.base_sum:
            return replace(answer, p=p, error=answer.error or 0.0), {KNOWN: z}
        news = send.encode(z, before.cpu(), question.of_user)
        sent = send.decode(news, before.cpu(), question.of_user)
        lag = float(torch.linalg.vector_norm(z.double() - sent.double())) / abs(question.alpha)
        return replace(answer, news=news, error=(answer.error or 0.0) + lag), {KNOWN: sent}

    def _measure(self, question: Question) -> Answer:
        memory, forgot = self._remembered(question)
        return self._hidden(question, self._answer(question, forgot=forgot, **self._evaluated(question, memory)))

    def _curvature(self, question: Question) -> Answer:
        problem, w = self.problem, question.u
        if not (problem.convex and {"grad", "hessian"} <= problem.offers and problem.dim <= MAX_HESSIAN_DIM):
            return self._answer(question)
        return self._answer(question, grad=problem.grad(w), hessian=problem.hessian(w))

    # --- sums that nobody can open -----------------------------------------------------------------------------------

    def _keys(self, question: Question) -> Answer:
        self._masks = Masks(str(question.secure.get("setup")), question.user)
        return self._answer(question, secure=self._masks.keys())

    def _shares(self, question: Question) -> Answer:
        keys, needed = question.secure.get("keys"), question.secure.get("threshold")
        return self._answer(question, secure=self._masks_of(question).share(keys, needed))

    def _unmask(self, question: Question) -> Answer:
        k, here, gone = (question.secure.get(name) for name in ("sum", "here", "gone"))
        return self._answer(question, secure=self._masks_of(question).open(k, here, gone))

    def _masks_of(self, question: Question) -> Masks:
        masks = self._masks
        if masks is None or (masks.setup, masks.user) != (question.secure.get("setup"), question.user):
            raise Malformed("the keys of this sum are not known here: was this node started again?")
        return masks

    def _own_step(self, question: Question, ask: Ask, memory: Memory, forgot: bool, evaluated: Any) -> Answer:
        """A round of a scheme whose u_i stays here: from the meeting point w to z_i, of which the sum gets what is new.

        SENT is what the sum has of z_i, so that nobody is lost who is away for a round, and no rounding piles up.
        """
        alpha, beta, gamma = mixing_of(question.secure)
        if forgot:
            raise Malformed("what this node has added to the sum is not known here any more: begin a new run")
        w = question.u.to(self.problem.weights)  # type: ignore[union-attr]
        u = mix(memory[OWN_U], mix(memory[OWN_Z], w, beta), gamma) if OWN_U in memory else w
        inner = {name: tensor for name, tensor in memory.items() if name not in (OWN_U, OWN_Z, SENT)}
        p, now = self._operator(question).rows(ask, u, inner)
        z, sent = mix(u, p, alpha), memory.get(SENT, torch.zeros(1, self.facts.dim, dtype=torch.float64))
        answer = self._hidden(question, self._answer(question, p=z, **evaluated), sent)
        if answer.masked is not None:
            words = in_words(question, self._answer(question, p=z), sent)
            assert words is not None
            own = {OWN_U: u, OWN_Z: z, SENT: sent + counted(words, question), PERSONAL: p}
            self._memories.store(question.run, question.t, now | own)
        return answer

    def _hidden(self, question: Question, answer: Answer, since: Tensor | None = None) -> Answer:
        """The same numbers under masks, times this user's weight, where the question asks for a sum."""
        if not question.secure:
            return answer
        masks, terms = self._masks_of(question), question.secure
        masks.take(terms.get("shares", {}))
        at = question.u if since is None else since
        words = in_words(question, answer, torch.zeros(1) if at is None else at)
        if words is None:
            return self._answer(question, forgot=answer.forgot, secure={"beyond": True})
        masked = masks.mask(words, terms.get("sum"), terms.get("peers"))
        return self._answer(question, forgot=answer.forgot, masked=torch.from_numpy(masked.view("int64")))

    # --- what they are made of ---------------------------------------------------------------------------------------

    def _answer(self, question: Question, **more: Any) -> Answer:
        return Answer(question.verb, question.run, question.t, question.user, **more)

    def _remembered(self, question: Question) -> tuple[Memory, bool]:
        """What the user remembered after the answer that the server knows, and whether that was forgotten."""
        if question.after == NOTHING_YET:
            return {}, False
        self._memories.touch(question.run, question.after)
        memory = self._memories.load(question.run, question.after)
        return ({}, True) if memory is None else (memory, False)

    def _operator(self, question: Question) -> Any:
        """The operator joined to the problem, once: what it caches lasts from round to round."""
        key = repr((question.operator, question.steady))
        if key not in self._bound:
            operator = operator_of(question.operator)
            check(operator, self.facts)
            self._bound = {key: bind(operator, self.problem, question.steady)}
        return self._bound[key]

    def _metric(self, question: Question) -> Metric | None:
        """The metric of the question: the one that came with it, or with an earlier one."""
        if question.metric == NOTHING_YET:
            return None
        name = question.run, question.metric
        if question.vectors is not None and question.values is not None:
            self._known_metric = name, FullMetric(question.vectors, question.values, question.metric)
        if self._known_metric is None or self._known_metric[0] != name:
            raise Malformed("the metric of this question is not known here")
        return self._known_metric[1]

    def _evaluated(self, question: Question, memory: Memory) -> dict[str, Any]:
        """f_i, and more, at the models that came with the question."""
        if question.models is None:
            return {}
        rows = [self._measured(row, memory) for row in question.models.to(self.problem.weights.device)]
        names = [name for name in rows[0] if name not in ("value", "gap")]
        values = [row["value"] for row in rows] if "value" in rows[0] else None
        return {"values": values, "metrics": {name: [row[name] for row in rows] for name in names}}

    def _measured(self, w: Tensor, memory: Memory) -> dict[str, float]:
        w = w.to(self.problem.weights).reshape(1, -1)
        metrics: dict[str, float] = {}
        if "inspect" in self.problem.offers:
            own = {name: tensor for name, tensor in memory.items() if name not in (PERSONAL, AT, KNOWN)}
            inspected = self.problem.inspect(w, memory.get(PERSONAL, w), own)
            metrics |= {name: value for name, value in inspected.items() if "spread" not in name}  # of one user: none
        elif "value" in self.problem.offers:
            metrics["value"] = float(self.problem.value(w)[0])
        if self._metrics is not None:
            for name, value in self._metrics(w[0]).items():
                if metric_names.checked(name, "a metric of this node") in metrics:
                    raise InputError(f"a metric of this node is {name!r}, which its problem reports: name it otherwise")
                metrics[name] = float(value)
        return metrics


def _constant(numbers: Tensor | None) -> float | None:
    """A user's constant; None where it is not known or infinite."""
    if numbers is None or not math.isfinite(float(numbers[0])):
        return None
    return float(numbers[0])


def load_node(folder: Path, config: Mapping[str, Any], memory: Path | None = None, secure: bool = False) -> Node:
    """The node that `problem(config)`, and `metrics(model, config)` where there is one, of `user.py` make."""
    path = folder / USER_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no {USER_FILE}; `resolvent federate init` makes a folder with one")
    sys.path.insert(0, str(folder))  # what lies beside the file can be imported
    names, given = runpy.run_path(str(path), run_name="user"), dict(config)
    problem, metrics = names.get("problem"), names.get("metrics")
    if not callable(problem):
        raise InputError(f"{path} has no function problem(node_config)")
    own = (lambda model: metrics(model, given)) if callable(metrics) else None
    return Node(problem(given), folder / MEMORY if memory is None else memory, own, secure)
