"""The typed configuration as a form: sections, fields, what each may be, its default, and what it means."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from dataclasses import MISSING, fields
from typing import Any, Literal

from resolvent.config import Config, problem_sections
from resolvent.iteration.table import TABLE

HIDDEN = {"problem": {"folder", "sha256"}, "run": {"threads"}, "store": {"tensorboard"}}
"""Keys that the page does not set: files that it does not read, and what depends on the machine."""
FIRST = {
    "problem": ("name", "users", "dim", "rows", "partition"),
    "scheme": ("algorithm", "eta", "schedule"),
    "local": ("steps",),
    "anderson": ("memory",),
    "participation": ("probability",),
    "run": ("rounds", "seed"),
}
"""Keys that are shown without being asked for."""
WORDS = {
    "problem.users": "How many users.",
    "problem.dim": "The dimension of the model.",
    "problem.rows": "Rows of data per user.",
    "problem.noise": "The standard deviation of the noise.",
    "problem.shift": "How far apart the users' own solutions are.",
    "problem.partition": "iid, dirichlet:0.3, shards:2, sorted:2 or contiguous.",
    "problem.seed": "The seed of the data; the run's own unless given.",
    "scheme.algorithm": "A row of the paper's Table 1, or custom with alpha, beta and gamma.",
    "scheme.eta": "The step size: a number or auto. Empty: what suits the problem.",
    "scheme.schedule": "How eta changes over the rounds.",
    "scheme.period": "Rounds between two halvings, for the schedule halving.",
    "scheme.alpha": "Of (gFL-1), for custom: 1 is the prox, 2 reflects.",
    "scheme.beta": "Of (gFL-2), for custom: 1 is the mean, 2 reflects.",
    "scheme.gamma": "Of (gFL-3), for custom: 1/2 averages with the old u.",
    "local.kind": "What users compute.",
    "local.lr": "The step size of gradient steps inside a prox.",
    "local.batch": "Rows in a minibatch.",
    "local.momentum": "The momentum of gradient steps.",
    "local.tol": "The relative error of Newton's prox.",
    "anderson.memory": "Anderson acceleration with this memory; 0 is none.",
    "anderson.on": "Which sequence is accelerated.",
    "participation.probability": "The probability that a user takes part in a round.",
    "participation.size": "A fixed number of users per round.",
    "participation.spread": "How much the time of an answer varies.",
    "participation.absent": "What absent users do: hold converges, paper is Algorithm 1 as printed.",
    "run.seed": "The seed of everything random.",
    "run.every": "Rounds between two rows of metrics.",
    "run.average": "Report the average of the models.",
    "run.engine": "Where users are computed.",
    "stop.gap": "Stop when f(w) - f* is at most this.",
    "stop.residual": "Stop when the residual is at most this.",
    "stop.certificates": "Stop when stationarity and consensus are at most this.",
    "stop.seconds": "Stop after this many seconds of computing.",
    "stop.metric": "Stop when this column of the history no longer gets better.",
    "stop.patience": "How many evaluations in a row may be no better.",
    "stop.min_delta": "How much better counts as better.",
    "stop.mode": "Whether less or more is better; told by the metric's name where that is usual.",
    "run.validate_every": "Rounds between two evaluations on held-out data.",
}


def form() -> dict[str, Any]:
    """Problems by name with their fields, and the sections that all of them share."""
    whole = Config()
    shared = [(f.name, type(getattr(whole, f.name))) for f in fields(Config) if f.name != "problem"]
    return {
        "problems": [
            {"name": name, "fields": _fields("problem", kind)} for name, kind in problem_sections.PROBLEMS.items()
        ],
        "sections": [{"name": name, "fields": _fields(name, kind)} for name, kind in shared],
    }


def _fields(section: str, kind: type[Any]) -> list[dict[str, Any]]:
    hints, documented = typing.get_type_hints(kind), _documented(kind)
    made = []
    for f in fields(kind):
        where = f"{section}.{f.name}"
        if f.name in HIDDEN.get(section, ()) or where == "problem.name":
            continue
        default = f.default if f.default is not MISSING else None
        choices, types_ = _taken(hints[f.name])
        if where == "scheme.algorithm":
            choices, types_ = [*TABLE, "custom"], []
        words = WORDS.get(where) or documented.get(f.name, "")
        made.append(
            {
                "key": f.name,
                "types": types_,
                "choices": choices,
                "optional": type(None) in typing.get_args(hints[f.name]),
                "default": default if default is None or isinstance(default, str | bool | int | float) else None,
                "words": words,
                "first": f.name in FIRST.get(section, ()),
            }
        )
    return made


def _taken(hint: Any) -> tuple[list[str], list[str]]:
    """The words and the types that an annotation allows."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if union else (hint,)
    words = [word for option in options if typing.get_origin(option) is Literal for word in typing.get_args(option)]
    return words, [kind.__name__ for kind in (int, float, bool, str) if kind in options]


def _documented(kind: type[Any]) -> dict[str, str]:
    """What stands under the fields of a class in its source: the first sentence of each."""
    try:
        (tree,) = ast.parse(inspect.getsource(kind)).body
    except (OSError, TypeError, ValueError):
        return {}
    found, last = {}, ""
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and last:
            found[last] = " ".join(str(node.value.value).split())
    return found
