"""A site of a federation: a node whose problem comes from its own table, or from its own user.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from resolvent import data
from resolvent.data.held_out import HeldOut
from resolvent.data.preparation import Preparation
from resolvent.data.sites import SiteTable
from resolvent.engines.flower.messages import TABLE, Answer, Question
from resolvent.engines.flower.node import MEMORY, Metrics, Node, load_node
from resolvent.engines.flower.packets import Malformed, Packet
from resolvent.errors import InputError
from resolvent.federation import settings
from resolvent.federation.project import FILE, Project
from resolvent.solving.evaluating import Evaluation

SCHEMAS = "schemas"
"""The folder of the preparations that a site has agreed to."""
RETAINED = 8
"""How many of them stay on disk."""


def load(folder: Path, config: Mapping[str, Any], memory: Path | None = None) -> Any:
    """The node of this folder: of the table that it was given, where federation.toml has [data], else of user.py."""
    agreed = Project(folder).config() if (folder / FILE).is_file() else None
    terms = None if agreed is None else settings.terms_of(agreed)
    if terms is None:
        return load_node(folder, config, memory, agreed is not None and bool(getattr(agreed.problem, "secure", False)))
    path = config.get("data")
    if not path:
        raise InputError(f"{FILE} has a section [data], and this node was given no table; start it with --data FILE")
    frame = data.frame(Path(folder, str(path)))
    return TableNode(SiteTable(frame, terms), folder / MEMORY if memory is None else memory)


def name_of(preparation: Mapping[str, Any], users: int) -> str:
    """A preparation's short name: the beginning of its checksum."""
    content = json.dumps({"preparation": preparation, "users": users}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class TableNode:
    """A user with a table. What it is told before the first round is a preparation, which it stores by name; the
    answers to all other questions are those of the problem that its rows become by it."""

    def __init__(self, table: SiteTable, folder: Path) -> None:
        self.table, self._folder = table, folder
        self._nodes: dict[str, Node] = {}

    def handle(self, packet: Packet) -> Packet:
        """The answer to a question."""
        question = Question.of(packet)
        if question.verb == "schema":
            return self._facts(question, self.table.report())
        if question.verb == "moments":
            return self._facts(question, self.table.moments(Preparation.from_dict(question.table["preparation"])))
        if question.verb == "prepare":
            return self._facts(question, self._prepare(question.table))
        if question.verb == "describe" and not question.schema:
            return self._facts(question, {TABLE: True})
        return self._node(question.schema).handle(packet)

    def _facts(self, question: Question, facts: dict[str, Any]) -> Packet:
        return Answer(question.verb, question.run, question.t, question.user, facts=facts).packet()

    def _prepare(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Take a preparation: its name, and how the model will predict."""
        name = name_of(told["preparation"], told["users"])
        self._nodes[name] = node = self._made(told)
        for old in list(self._nodes)[:-RETAINED]:
            del self._nodes[old]
        folder = self._folder / SCHEMAS
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(dict(told)))
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-RETAINED]:
            path.unlink(missing_ok=True)
        return {"schema": name, "predictor": node.problem.predictor.as_dict(), "held_out": len(self.table.held_out)}

    def _node(self, name: str) -> Node:
        """The user as a preparation has it; a process that was started again finds it on its disk."""
        if name not in self._nodes:
            try:
                told = json.loads((self._folder / SCHEMAS / f"{name}.json").read_text())
            except (OSError, ValueError):
                raise Malformed(
                    "the schema of this run is not known here; `federate run --resume` agrees again"
                ) from None
            self._nodes[name] = self._made(told)
        return self._nodes[name]

    def _made(self, told: Mapping[str, Any]) -> Node:
        preparation, users = Preparation.from_dict(told["preparation"]), told["users"]
        if type(users) is not int or users < 1:
            raise Malformed("the number of users is none")
        problem = self.table.problem(preparation, users)
        return Node(problem, self._folder, self._metrics(problem.predictor, preparation))

    def _metrics(self, predictor: Any, preparation: Preparation) -> Metrics | None:
        """What a model says of the rows that were held out here; NaN where there are none."""
        if self.table.terms.test is None:
            return None
        x, codes, rows = self.table.features(preparation), self.table.codes(preparation), self.table.held_out
        every = Evaluation.of("test", HeldOut([x], [codes], ["here"]), predictor, None)
        if not len(rows):
            return lambda model: dict.fromkeys(every.columns, float("nan"))
        own = Evaluation.of("test", HeldOut([x[rows]], [codes[rows]], ["here"]), predictor, None)
        return lambda model: own(model.double() if isinstance(model, torch.Tensor) else model)[0]
