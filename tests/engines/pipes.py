"""A toy engine over pipes: every user lives in a process of its own, and nothing but messages passes between them.

It shows what the seam bears: users' data and what they remember stay in their processes; an answer may come rounds
after its question; a process that dies answers no more, while the run goes on with the last pair of its user. It is an
example, and not fit for real networks: no encryption, no identities, messages are pickled.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

import torch
from torch import Tensor

from resolvent.engines.in_process import CentralSums
from resolvent.iteration.engine import Answers, Ask, MeanAnswer, Traffic
from resolvent.iteration.facts import Facts, Memory

Lateness = Callable[[int, int], int]
"""How many rounds after its question, asked in round t, the answer of user i is collected."""


def at_once(t: int, user: int) -> int:
    return 0


def live(pipe: Connection, name: int, user: Any, operator: Any) -> None:
    """The process of one user: it answers until the pipe is closed."""
    torch.set_num_threads(1)
    bound = operator.bind(user, steady=True)
    memory: Memory = {}
    while True:
        try:
            verb, *given = pickle.loads(pipe.recv_bytes())
            if verb == "local":
                t, eta, seed, u = given
                p, memory = bound.rows(Ask(t, eta, None, seed, torch.tensor([name])), u, memory)
                pipe.send_bytes(pickle.dumps((u, p)))
            else:
                pipe.send_bytes(pickle.dumps(torch.cat([user.value(w) for w in given[0].split(1)])))
        except (EOFError, OSError):  # the server has gone
            return


class Pipes(CentralSums):
    """The server's side. It has no problem: users' functions are known in their processes alone."""

    def __init__(self, users: list[Any], weights: Tensor, operator: Any, late: Lateness = at_once) -> None:
        told: dict[str, Any] = {"offers": frozenset({"grad", "prox"}), "convex": True, "closed_form": True}
        super().__init__(Facts(len(users), users[0].dim, weights, operator, **told))
        self._users, self._late = users, late
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._moved = [0, 0]
        self._due: dict[int, int] = {}

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("forkserver")  # forked from one process that has imported torch
        context.set_forkserver_preload(["resolvent.face"])
        for name, user in enumerate(self._users):
            here, there = context.Pipe()
            self._processes.append(context.Process(target=live, args=(there, name, user, self.facts.operator)))
            self._processes[-1].start()
            there.close()  # the child has its own end: when it dies, the pipe is closed
            self._pipes.append(here)
        return self

    def __exit__(self, *error: object) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(5)
            process.kill()
        self._pipes, self._processes, self._due = [], [], {}

    def kill(self, user: int) -> None:
        """A machine goes down."""
        self._processes[user].kill()
        self._processes[user].join()

    @property
    def traffic(self) -> Traffic:
        return Traffic(*self._moved)

    def _send(self, user: int, *message: Any) -> bool:
        """Whether the message could be sent."""
        content = pickle.dumps(message)
        try:
            self._pipes[user].send_bytes(content)
        except OSError:
            return False
        self._moved[1] += len(content)
        return True

    def _receive(self, user: int) -> Any:
        """The next message of a user; None if its process has died."""
        try:
            content = self._pipes[user].recv_bytes()
        except (EOFError, OSError):
            return None
        self._moved[0] += len(content)
        return pickle.loads(content)

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def local(self, ask: Ask, u: Tensor, memory: Memory) -> Answers:
        asked = range(self.facts.users) if ask.who is None else ask.who.tolist()
        for user, row in zip(asked, u.expand(len(asked), -1).split(1), strict=True):
            if user not in self._due and self._send(user, "local", ask.t, ask.eta, ask.seed, row.clone()):
                self._due[user] = ask.t + self._late(ask.t, user)
        who, answers = [], []
        for user in sorted(user for user, due in self._due.items() if due <= ask.t):
            del self._due[user]
            answer = self._receive(user)
            if answer is not None:
                who.append(user)
                answers.append(answer)
        at, p = (torch.cat([answer[k] for answer in answers]) if answers else u[:0] for k in (0, 1))
        return Answers(torch.tensor(who, dtype=torch.int64), at, p, {})

    def local_mean(self, ask: Ask, u: Tensor, memory: Memory) -> MeanAnswer:
        who, _, p, *_ = self.local(ask, u, memory)
        assert who is not None
        lam = self.facts.weights[who] / self.facts.weights[who].sum()
        mean = (lam @ p).unsqueeze(0)
        spread = (lam @ (p - mean).square().sum(1)).unsqueeze(0)
        everybody = len(who) == self.facts.users
        return MeanAnswer(mean, lambda u: spread, {}, None, None if everybody else who, len(who))

    def measure(self, w: Tensor) -> dict[str, Tensor]:
        """Values are known where nobody is gone or still at work."""
        unknown = w.new_full((len(w),), torch.nan)
        if self._due:
            return {"value": unknown, "gap": unknown}
        reached = [user for user in range(self.facts.users) if self._send(user, "value", w)]
        parts = [part for part in map(self._receive, reached) if part is not None]
        everybody = len(parts) == self.facts.users
        return {"value": self.facts.weights @ torch.stack(parts) if everybody else unknown, "gap": unknown}
