"""What a run is made of, in plain values: what its folder says of the problem, and what its model needs to predict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from resolvent.data.preparation import Preparation
from resolvent.errors import InputError
from resolvent.iteration import registry
from resolvent.iteration.anderson import Anderson
from resolvent.iteration.facts import Facts, facts_of
from resolvent.iteration.scheme import Scheme
from resolvent.iteration.table import TABLE
from resolvent.problems.linear.predictor import Predictor


@dataclass(frozen=True, eq=False)
class Description:
    """What a model is: `kind` names the problem's class.

    A linear model has a predictor, one of a table also a preparation of raw rows. A network has names and shapes, and
    `fixed`: what of it is not trained.
    """

    kind: str = ""
    predictor: Predictor | None = None
    preparation: Preparation | None = None
    network: dict[str, Any] | None = None
    fixed: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def labels(self) -> list[Any] | None:
        """The labels that the model tells apart, in the order of its scores and in the table's own words; None for
        numbers and networks."""
        if self.predictor is None or self.predictor.classes is None:
            return None
        codes = list(self.predictor.classes)
        if self.preparation is None:
            return codes
        return self.preparation.labels(np.array(codes)).tolist()  # type: ignore[no-any-return]

    @property
    def adds_to(self) -> str:
        """What a coefficient of a table's model adds to, per unit of its column."""
        loss, labels = None if self.predictor is None else self.predictor.loss, self.labels
        if labels is None:
            return "the logarithm of the mean count" if loss == "poisson" else "the prediction"
        if len(labels) > 2 or loss == "softmax":
            return "the score of each class"
        return f"the {'log odds' if loss == 'logistic' else 'score'} of {labels[1]!r}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `fixed` is a file of its own."""
        return {
            "kind": self.kind,
            "predictor": None if self.predictor is None else self.predictor.as_dict(),
            "preparation": None if self.preparation is None else self.preparation.as_dict(),
            "network": self.network,
        }

    @staticmethod
    def from_dict(stored: Any, fixed: Mapping[str, Tensor]) -> Description:
        """What `as_dict` wrote; ValueError, in a few words, where it is something else."""
        if not isinstance(stored, Mapping):
            raise ValueError("the model is no object")
        kind, network = stored.get("kind", ""), stored.get("network")
        predictor = _read("predictor", Predictor.from_dict, stored.get("predictor"))
        preparation = _read("preparation", Preparation.from_dict, stored.get("preparation"))
        if not isinstance(kind, str):
            raise ValueError("the model's kind is no text")
        if network is not None:
            _check_network(network)
        if predictor is not None and preparation is not None and len(preparation.features) != predictor.features:
            raise ValueError("its preparation and its predictor do not have the same features")
        return Description(kind, predictor, preparation, network, fixed)


def describe(problem: Any) -> Description:
    """What can be said of a problem, or of the facts of an engine."""
    facts = facts_of(problem)
    try:
        predictor = facts.lookup("predictor")
    except InputError:  # a loss of one's own
        predictor = None
    preparation, network = facts.lookup("preparation"), facts.lookup("network")
    fixed = facts.problem.fixed() if network is not None else {}
    return Description(facts.kind, predictor, preparation, network, fixed)


def settings(
    facts: Facts, scheme: Scheme, parts: Mapping[str, Any], rounds: int, seed: int
) -> dict[str, dict[str, Any]]:
    """A run's settings as sections of plain values; functions and objects are named, not described. parts: by kind."""
    eta = "auto" if scheme.auto else scheme.eta_at(0)
    algorithm = next((key for key, row in TABLE.items() if row.title == scheme.name), "custom")
    mixing = dict(zip(("alpha", "beta", "gamma"), scheme.mixing(0), strict=True))
    made: dict[str, Any] = {"algorithm": algorithm, "title": scheme.name, "eta": eta}
    made |= {key: float(value) for key, value in mixing.items()}
    problem = {"name": facts.kind, "users": facts.users, "dim": facts.dim}
    finite = {key: value for key, value in made.items() if not (isinstance(value, float) and math.isnan(value))}
    run = {"rounds": rounds, "seed": seed}
    accelerate = parts.get("accelerate")
    memory = accelerate.memory if isinstance(accelerate, Anderson) else 0
    others = {kind: made for kind, made in parts.items() if made is not None and not isinstance(made, Anderson)}
    sections = {kind: registry.named_values(kind, made) for kind, made in others.items()}
    if scheme.local is not None:
        sections["local"] = registry.named_values("local", scheme.local)
    elif scheme.forward:
        sections["local"] = {"steps": scheme.steps}
    named = {kind: section for kind, section in sections.items() if section}  # without parts that stand for none
    return {"problem": problem, "scheme": finite, **named, "anderson": {"memory": memory}, "run": run}


def _read(what: str, read: Any, stored: Any) -> Any:
    if stored is None:
        return None
    try:
        return read(stored)
    except (InputError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        brief = (str(error).splitlines() or [""])[0][:100]
        raise ValueError(f"the {what} cannot be read ({type(error).__name__}: {brief})") from error


def _check_network(network: Any) -> None:
    """Names with shapes, weights, and an input: anything else is not what was written."""
    try:
        shapes = [(str(name), [int(n) for n in shape]) for name, shape in network["parameters"]]
        fine = all(n >= 0 for _, shape in shapes for n in shape) and all(isinstance(n, str) for n in network["fixed"])
        fine = fine and all(math.isfinite(0.0 + weight) for weight in network["weights"])
        fine = fine and isinstance(network["class"], str) and all(int(n) > 0 for n in network["input"]["shape"])
        if not fine or not isinstance(network["input"]["dtype"], str):
            raise ValueError("a value makes no sense")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the network cannot be read ({type(error).__name__}: {error})") from error
