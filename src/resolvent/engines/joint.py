"""Runs of several seeds at once: users of all runs are asked together, as the users of one larger problem.

Every run has its own loop, state and history, in a thread of its own. One thread runs at a time: it holds `baton`, and
lets go of it only while it waits for the others to ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from resolvent.engines.in_process import InProcess
from resolvent.iteration.engine import Ask
from resolvent.iteration.facts import Memory
from resolvent.local.operators import Operator
from resolvent.local.training import Trained
from resolvent.networks.joined_users import joined

Result = TypeVar("Result")


class Question(NamedTuple):
    """What a run asks of all of its users."""

    ask: Ask
    u: Tensor
    memory: Memory


class Joint:
    """What the runs share. `engines` has one engine per run; without a joined problem each answers for itself."""

    def __init__(self, problems: Sequence[Any], operator: Operator, steady: bool = True) -> None:
        self.problems, self.operator, self.steady = list(problems), operator, steady
        self.engines = [InProcess(problem, operator, steady) for problem in problems]
        self.baton = threading.Condition()
        self.interrupted = False
        self._running = set(range(len(self.problems)))
        self._asked: dict[int, Question] = {}
        self._answers: dict[int, tuple[Tensor, Memory] | BaseException] = {}
        self._bounds: dict[tuple[int, ...], Trained | None] = {}
        if self._bound(tuple(self._running)) is not None:
            for k, engine in enumerate(self.engines):
                engine.ask_elsewhere(partial(self._answer, k))

    @property
    def joins(self) -> bool:
        """Whether users of all runs are asked at once."""
        return self._bound(tuple(range(len(self.problems)))) is not None

    def run(self, work: Sequence[Callable[[], Result]]) -> list[Result | BaseException]:
        """What the runs return, or raise; work[k] solves with engines[k]."""
        results: list[Any] = [None] * len(work)
        threads_of_torch = torch.get_num_threads()

        def thread(k: int) -> None:
            with self.baton:
                torch.set_num_threads(threads_of_torch)
                try:
                    results[k] = work[k]()
                except BaseException as error:
                    results[k] = error
                finally:
                    self._leave(k)

        threads = [threading.Thread(target=thread, args=(k,), name=f"seed {k}") for k in range(len(work))]
        for each in threads:
            each.start()
        for each in threads:
            self._join(each)
        return results

    def _join(self, thread: threading.Thread) -> None:
        """Ctrl-C comes to the main thread: every run is told at its next question."""
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                self.interrupted = True

    def _leave(self, k: int) -> None:
        self._running.discard(k)
        self._asked.pop(k, None)
        self.baton.notify_all()

    def _answer(self, k: int, ask: Ask, u: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """What run k's users answer, once every run that goes on has asked."""
        self._asked[k] = Question(ask, u, memory)
        self.baton.wait_for(lambda: k in self._answers or len(self._asked) == len(self._running))
        if k not in self._answers:
            self._compute()
        if self.interrupted:
            self._answers.pop(k)
            raise KeyboardInterrupt
        answer = self._answers.pop(k)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _compute(self) -> None:
        """Answer all questions: those that are alike at once."""
        asked, self._asked = self._asked, {}
        alike: dict[tuple[int, float], list[int]] = {}
        for k, question in sorted(asked.items()):
            alike.setdefault((question.ask.t, question.ask.eta), []).append(k)
        for runs in alike.values():
            self._answers.update(self._together(tuple(runs), asked))
        self.baton.notify_all()

    def _together(
        self, runs: tuple[int, ...], asked: dict[int, Question]
    ) -> dict[int, tuple[Tensor, Memory] | BaseException]:
        try:
            bound = self._bound(runs)
            if bound is None:
                return {k: self.engines[k].compute(*asked[k]) for k in runs}
            return self._joined(bound, runs, asked)
        except Exception as error:
            return dict.fromkeys(runs, error)

    def _joined(
        self, bound: Trained, runs: tuple[int, ...], asked: dict[int, Question]
    ) -> dict[int, tuple[Tensor, Memory] | BaseException]:
        questions = [asked[k] for k in runs]
        users = [len(question.u) for question in questions]
        ask = questions[0].ask._replace(
            names=torch.cat([torch.arange(count) for count in users]),
            seeds=np.repeat(np.array([question.ask.seed for question in questions], dtype=np.int64), users),
            centre=_rows([question.ask.centre for question in questions], users),
        )
        common = set.intersection(*(set(question.memory) for question in questions))
        memory = {name: torch.cat([question.memory[name] for question in questions]) for name in sorted(common)}
        p, now = bound.compute(ask, torch.cat([question.u for question in questions]), memory)
        parts = zip(*(rows.split(users) for rows in now.values()), strict=True) if now else [()] * len(users)
        return {
            k: (rows, dict(zip(now, part, strict=True)))
            for k, rows, part in zip(runs, p.split(users), parts, strict=True)
        }

    def _bound(self, runs: tuple[int, ...]) -> Trained | None:
        """What computes the answers of these runs' users; None: each run for itself. Joined data are dropped when
        other runs are left."""
        if runs not in self._bounds:
            problem = joined([self.problems[k] for k in runs]) if len(runs) > 1 else None
            bound = None if problem is None else self.operator.bind(problem, self.steady)
            self._bounds = {runs: bound if isinstance(bound, Trained) else None}
        return self._bounds[runs]


def _rows(centres: Sequence[Tensor | None], users: Sequence[int]) -> Tensor | None:
    """Each run's centre, once for each of its users."""
    rows = [centre.expand(count, -1) for centre, count in zip(centres, users, strict=True) if centre is not None]
    return torch.cat(rows) if rows else None
