"""Before the first round: sites with tables agree on one schema, from what each reports of its own rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from resolvent.data.preparation import Preparation
from resolvent.data.scaling import merged, scaling_of
from resolvent.data.sites import Reported, Terms, merge, moments_of
from resolvent.engines.flower.asking import Asking
from resolvent.engines.flower.facts import ask_all
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.messages import TABLE, Question
from resolvent.engines.flower.rule import Limits
from resolvent.errors import InputError
from resolvent.federation.site import name_of
from resolvent.iteration.facts import Facts
from resolvent.problems.linear.predictor import Predictor


@dataclass(frozen=True)
class Agreed:
    """What all sites go by. remarks: what must be pointed out in the sites' columns."""

    schema: str
    preparation: Preparation
    predictor: Predictor
    held_out: tuple[int, ...]
    remarks: tuple[str, ...] = ()

    def known(self, facts: Facts) -> Facts:
        """The facts of these users, with what their model needs to predict."""
        own: dict[str, Any] = {"schema": self.schema, "preparation": self.preparation, "predictor": self.predictor}
        if any(self.held_out):
            own["held_out"] = torch.tensor(self.held_out)
        before = facts.lookup
        return replace(facts, lookup=lambda name: own[name] if name in own else before(name))


class Agreement:
    """The correspondence of a server with sites that have tables, by their names."""

    def __init__(self, post: Post, names: tuple[str, ...], terms: Terms, patience: float) -> None:
        self._names, self._terms, self._patience = names, terms, patience
        self._asking = Asking(post, names, Limits(), ())

    def reach(self, stored: Preparation | None = None) -> Agreed:
        """Ask, merge and tell. stored: what a run that goes on has agreed on; it does not change."""
        remarks: tuple[str, ...] = ()
        preparation = stored
        if preparation is None:
            found = merge(self._reports(), self._terms)
            preparation, remarks = found.preparation, found.remarks
            if self._terms.standardise:
                preparation = self._scaled(preparation)
        told: dict[str, Any] = {"preparation": preparation.as_dict(), "users": len(self._names)}
        answers = self._ask("prepare", told)
        schema = name_of(Preparation.from_dict(told["preparation"]).as_dict(), len(self._names))
        first = answers[self._names[0]]
        for name, answer in answers.items():
            fits = answer.get("schema") == schema and answer.get("predictor") == first.get("predictor")
            if not fits or type(answer.get("held_out")) is not int or answer["held_out"] < 0:
                raise InputError(f"node {name} did not take the schema as it was told; is it of another version?")
        try:
            predictor = Predictor.from_dict(first["predictor"])
        except (InputError, LookupError, TypeError, ValueError):
            raise InputError(f"node {self._names[0]} says that its model predicts in no known way") from None
        return Agreed(schema, preparation, predictor, tuple(a["held_out"] for a in answers.values()), remarks)

    def _reports(self) -> dict[str, Reported]:
        reports = {}
        for name, told in self._ask("schema").items():
            if told == {TABLE: False}:
                raise InputError(
                    f"node {name} goes by its user.py, but federation.toml here has [data]; copy it to that node, and "
                    "start it with --data FILE"
                )
            try:
                reports[name] = Reported.of(told)
            except ValueError as error:
                raise InputError(f"node {name} reports on its table in a way that cannot be used: {error}") from None
        return reports

    def _scaled(self, preparation: Preparation) -> Preparation:
        """With means and spreads of all training rows, merged from what each site reports of its own."""
        each = []
        for name, told in self._ask("moments", {"preparation": preparation.as_dict()}).items():
            try:
                each.append(moments_of(told, len(preparation.features)))
            except (LookupError, TypeError, ValueError):
                raise InputError(f"node {name} reports means that cannot be used; see its log") from None
        return replace(preparation, scaling=scaling_of(merged(each), preparation.features))

    def _ask(self, verb: str, table: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        questions = {i: Question(verb, "joining", user=i, table=table or {}) for i in range(len(self._names))}
        found = ask_all(self._asking, questions, self._patience)
        return {name: found[i].facts for i, name in enumerate(self._names)}
