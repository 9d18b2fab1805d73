"""Questions that are under way, and answers as they come in: checked, or refused by name."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from resolvent.engines.flower.checks import Refused, examine, unpacked
from resolvent.engines.flower.grid import Post, Reply
from resolvent.engines.flower.messages import Answer, Question
from resolvent.engines.flower.rule import Limits
from resolvent.iteration.engine import Traffic

MAX_REASON = 300
"""Characters of a reason that are noted: a node can make one of any length."""
Note = Callable[..., None]
"""Takes note of an event: its kind, and what there is to say of it by name."""


def unnoted(kind: str, **about: Any) -> None:
    """Nobody takes notes."""


class Sent(NamedTuple):
    """A question under way."""

    user: int
    node: int
    question: Question
    at: float


class Taken(NamedTuple):
    """An answer that was taken, with its question, and the seconds between them."""

    user: int
    question: Question
    answer: Answer
    seconds: float = 0.0


class Asking:
    """The server's correspondence with users, by their index among `names`."""

    def __init__(
        self, post: Post, names: tuple[str, ...], limits: Limits, metrics: tuple[str, ...], note: Note = unnoted
    ) -> None:
        self.post, self._names, self._limits, self._metrics = post, names, limits, metrics
        self.note = note
        self.refused: Counter[str] = Counter()
        """Answers that were not taken, by user."""
        self._sent: dict[str, Sent] = {}
        self._replied: set[str] = set()
        self._up = self._down = 0
        self.spent: defaultdict[str, float] = defaultdict(float)
        """Seconds by what they went to: sending, fetching, looking who is online, and waiting for answers."""
        self._gone: set[str] = set()
        self._since: dict[str, str] = {}

    @property
    def traffic(self) -> Traffic:
        return Traffic(self._up, self._down)

    @property
    def busy(self) -> set[int]:
        """Users with a question under way."""
        return {sent.user for sent in self._sent.values()}

    def online(self) -> dict[int, int]:
        """The nodes of the users who are online, by user. Whoever goes or comes back is noted.

        A node that was started again has lost the question that it was at: it is free to be asked anew.
        """
        with self._spending("looking who is online"):
            there = self.post.online()
        for user, name in enumerate(self._names):
            if (name not in there) != (name in self._gone):
                self._gone ^= {name}
                self.note("gone" if name in self._gone else "back", user=name)
            if name in there and self._since.setdefault(name, there[name].since) != there[name].since:
                self._since[name] = there[name].since
                self._sent = {message: sent for message, sent in self._sent.items() if sent.user != user}
                self.note("restarted", user=name)
        return {user: there[name].node for user, name in enumerate(self._names) if name in there}

    def ask(self, questions: Mapping[int, Question], online: Mapping[int, int]) -> set[int]:
        """Send questions to users who are online: those who could be asked."""
        asked = {user: question for user, question in questions.items() if user in online}
        packets = {online[user]: question.packet() for user, question in asked.items()}
        group = str(next(iter(asked.values())).t + 1) if asked else ""
        with self._spending("sending"):
            ids = self.post.send(packets, group)
        users = {online[user]: user for user in asked}
        for node, message in ids.items():
            self._sent[message] = Sent(users[node], node, asked[users[node]], time.monotonic())
            self._down += packets[node].size
        return {users[node] for node in ids}

    def collect(self) -> list[Taken]:
        """The answers that have come since, those that were refused left out."""
        taken = []
        with self._spending("fetching"):
            replies = self.post.collect(self._sent)
        for reply in replies:
            sent = self._sent.get(reply.to)
            try:
                taken.append(self._taken(reply, sent))
            except Refused as reason:
                user = self._names[sent.user] if sent else f"node {reply.source}"
                kind = "lost" if reply.gone and sent else "refused"
                self.refused[user] += kind == "refused"
                self.note(kind, user=user, round=sent.question.t + 1 if sent else None, reason=_short(str(reason)))
            if sent is not None and (reply.error is not None or reply.source == sent.node):
                del self._sent[reply.to]
                self._replied.add(reply.to)
        return taken

    def _taken(self, reply: Reply, sent: Sent | None) -> Taken:
        if sent is None:
            raise Refused("a second answer to one question" if reply.to in self._replied else "nothing was asked")
        if reply.error is not None:
            raise Refused(reply.error)
        if reply.source != sent.node:
            raise Refused(f"node {reply.source} answers what node {sent.node} was asked")
        packet = unpacked(reply.records)
        self._up += packet.size
        answer = examine(packet, sent.question, self._metrics, self._limits)
        return Taken(sent.user, sent.question, answer, time.monotonic() - sent.at)

    def all_of(self, questions: Mapping[int, Question], seconds: float, poll: float) -> dict[int, Answer] | None:
        """The answers of all these users, or None where somebody is busy, away, or takes longer than that."""
        online = self.online()
        if self.busy or not questions.keys() <= online.keys():
            return None
        answers = self.some_of(questions, seconds, poll)
        return answers if answers.keys() == questions.keys() else None

    def some_of(self, questions: Mapping[int, Question], seconds: float, poll: float) -> dict[int, Answer]:
        """The answers of those of these users who are there, idle, and take no longer than that."""
        idle = {user: question for user, question in questions.items() if user not in self.busy}
        waiting = self.ask(idle, self.online())
        answers: dict[int, Answer] = {}
        until = time.monotonic() + seconds
        while True:
            answers |= {taken.user: taken.answer for taken in self.collect() if taken.question is idle.get(taken.user)}
            if not waiting & self.busy or time.monotonic() >= until:
                return answers
            self.pause(poll)

    def pause(self, seconds: float) -> None:
        """Wait for answers: while nodes compute, and until Flower hands on what they have sent."""
        with self._spending("waiting for answers"):
            time.sleep(seconds)

    @contextmanager
    def _spending(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent[what] += time.monotonic() - began

    def forget(self) -> None:
        """Whatever is under way will not be waited for."""
        self._sent.clear()


def _short(reason: str) -> str:
    more = len(reason) - MAX_REASON
    return reason if more <= 0 else f"{reason[:MAX_REASON]}... and {more} more characters"
