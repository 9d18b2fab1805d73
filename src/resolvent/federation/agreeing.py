"""Before the first round: sites with tables agree on one schema, from what each reports of its own rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from resolvent.data.preparation import Preparation
from resolvent.data.scaling import Moments, merged, scaling_of
from resolvent.data.sites import Reported, Terms, merge, moments_of
from resolvent.engines.flower.asking import Asking
from resolvent.engines.flower.claims import check_constants
from resolvent.engines.flower.facts import ask_all
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.messages import MAX_COUNT, TABLE, Question
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

    def __init__(self, post: Post, names: tuple[str, ...], terms: Terms, patience: float, max_weight: float) -> None:
        self._names, self._terms, self._patience, self._most = names, terms, patience, max_weight
        self._asking = Asking(post, names, Limits(), ())

    def reach(self, stored: Preparation | None = None) -> Agreed:
        """Ask, merge and tell. stored: what a run that goes on has agreed on; it does not change."""
        remarks: tuple[str, ...] = ()
        preparation = stored
        if preparation is None:
            reports = self._reports()
            found = merge(reports, self._terms)
            self._check_proportions(reports)
            preparation, remarks = found.preparation, found.remarks
            if self._terms.standardise:
                preparation = self._scaled(preparation, reports)
        told: dict[str, Any] = {"preparation": preparation.as_dict(), "users": len(self._names)}
        answers = self._ask("prepare", told)
        schema = name_of(Preparation.from_dict(told["preparation"]).as_dict(), len(self._names))
        ways: list[Any] = [answer.get("predictor") for answer in answers.values()]
        usual = max(ways, key=ways.count)
        for name, answer in answers.items():
            fits = answer.get("schema") == schema and answer.get("predictor") == usual
            held_out = answer.get("held_out")
            if not fits or type(held_out) is not int or not 0 <= held_out <= MAX_COUNT:
                raise InputError(f"node {name} did not take the schema as it was told; is it of another version?")
        try:
            predictor = Predictor.from_dict(usual)
        except (InputError, LookupError, TypeError, ValueError):
            raise InputError("the nodes say that their model predicts in no known way") from None
        held_out = tuple(answer["held_out"] for answer in answers.values())
        check_constants("the number of held-out rows", self._names, held_out, self._most, power=1)
        return Agreed(schema, preparation, predictor, held_out, remarks)

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

    def _check_proportions(self, reports: Mapping[str, Reported]) -> None:
        """Refuse a site whose claims would decide alone how all sites' rows are scaled, filled and weighed."""
        check_constants("the number of rows", list(reports), [r.rows for r in reports.values()], self._most, power=1)
        columns = {
            name: [r.moments.get(name) for r in reports.values()] for r in reports.values() for name in r.moments
        }
        for name, each in (columns | {self._terms.target: [r.label_moments for r in reports.values()]}).items():
            self._check_sizes(name, each)

    def _check_sizes(self, column: str, each: Sequence[Moments | None], at: int = 0) -> None:
        """Of a column: by how many times the others' its root mean square at a site may be larger."""
        sizes = [None if m is None else math.hypot(m.mean[at], m.spread[at]) for m in each]
        check_constants(f"the size of column {column!r}", self._names, sizes, self._most, power=2)

    def _scaled(self, preparation: Preparation, reports: Mapping[str, Reported]) -> Preparation:
        """With means and spreads of all training rows, merged from what each site reports of its own."""
        each = []
        for name, told in self._ask("moments", {"preparation": preparation.as_dict()}).items():
            try:
                own = moments_of(told, len(preparation.features), rows := reports[name].rows)
                if (own.n != rows).any():
                    raise ValueError("every row has a number once it is filled")
                each.append(own)
            except (LookupError, TypeError, ValueError):
                raise InputError(f"node {name} reports means that cannot be used; see its log") from None
        for at, feature in enumerate(preparation.features):
            self._check_sizes(feature, each, at)
        return replace(preparation, scaling=scaling_of(merged(each), preparation.features))

    def _ask(self, verb: str, table: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        questions = {i: Question(verb, "joining", user=i, table=table or {}) for i in range(len(self._names))}
        found = ask_all(self._asking, questions, self._patience)
        return {name: found[i].facts for i, name in enumerate(self._names)}
