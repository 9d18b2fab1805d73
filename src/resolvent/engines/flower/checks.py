"""Every answer is checked before it touches the state. Whoever sent it may be broken, or hostile."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.engines.flower.messages import NEWS, TELLING, Answer, Question, compressor_of
from resolvent.engines.flower.packets import Malformed, Packet, from_records
from resolvent.engines.flower.rule import Limits
from resolvent.iteration.scheme import mix

FIELDS = {"verb", "run", "t", "user", "error", "values", "metrics", "forgot", "facts", "secure"}

ASYMMETRY = 1e-2
"""How far from symmetric a Hessian may be, times its largest number: in float32, sums over 80,000 rows are that exact
at least."""


class Refused(Exception):
    """An answer is not taken; the words say why."""


def examine(packet: Packet, question: Question, metrics: tuple[str, ...], limits: Limits) -> Answer:
    """The answer to this question, or Refused. `metrics` are those that the node said it would report."""
    header = packet.header
    if header.keys() != FIELDS:
        raise Refused("its fields are not those of an answer")
    for name in ("verb", "run", "t", "user"):
        answered, asked = header[name], getattr(question, name)
        if type(answered) is not type(asked) or answered != asked:
            raise Refused(f"it answers {name} {str(answered)[:40]!r}, but {asked!r} was asked")
    if type(header["forgot"]) is not bool or not all(isinstance(header[name], dict) for name in ("facts", "secure")):
        raise Refused("its fields are not those of an answer")
    if header["facts"] and question.verb not in TELLING:
        raise Refused("it tells facts that were not asked for")
    if (header["secure"] and not question.secure) or (question.secure and _in_the_open(header)):
        raise Refused("it hides what was not to be hidden, or the other way round")
    fields: dict[str, Any] = {name: header[name] for name in ("verb", "run", "t", "user", "forgot", "facts", "secure")}
    fields["error"] = _error(header["error"], question)
    if question.send and fields["error"] is None:
        raise Refused("it does not say how much of the answer was not sent")
    fields["values"], fields["metrics"] = _values(header["values"], header["metrics"], question, metrics)
    fields |= _tensors(packet.arrays, question, limits)
    return Answer(**fields)


def _tensors(arrays: dict[str, Any], question: Question, limits: Limits) -> dict[str, Tensor]:
    """Finite numbers of the shape and type that the question needs, and no other arrays."""
    tensors: dict[str, Tensor] = {}
    if question.send and not arrays.keys() <= {"p"}:
        assert question.u is not None
        u, zhat = question.u, _decoded(arrays, question)
        arrays, tensors = {"p": (u + (zhat - u) / question.alpha).numpy()}, {"sent": zhat}
    shapes = _shapes(question)
    # whoever does not know its Hessian, or whose numbers have no room in a sum, sends none
    none_needed = (question.verb == "curvature" or bool(question.secure)) and not arrays
    if arrays.keys() != shapes.keys() and not none_needed:
        raise Refused(f"it has the arrays {sorted(arrays)[:5]}, but {sorted(shapes)} are needed")
    for name, array in arrays.items():
        kind = "int64" if name == "masked" else str(question.u.dtype).removeprefix("torch.")  # type: ignore[union-attr]
        if array.dtype != kind:
            raise Refused(f"{name} is of type {array.dtype}, but {kind} is needed")
        if array.shape != shapes[name]:
            raise Refused(f"{name} is of shape {array.shape}, but {shapes[name]} is needed")
        if not np.isfinite(array).all():
            raise Refused(f"{name} is partly NaN or infinite")
        if limits.norm is not None and name == "p" and not _norm(array) <= limits.norm:
            raise Refused(f"p is longer than the limit {limits.norm:g}")
        if name == "hessian" and np.abs(array - array.swapaxes(1, 2)).max() > ASYMMETRY * np.abs(array).max():
            raise Refused("hessian is not symmetric")
        tensors[name] = torch.from_numpy(_native(array))
    if question.send and "sent" not in tensors:
        assert question.u is not None
        tensors["sent"] = mix(question.u, tensors["p"], question.alpha)
    return tensors


def _decoded(arrays: dict[str, Any], question: Question) -> Tensor:
    """z as the server has it, once what is new has come."""
    assert question.base is not None
    news = {str(name).removeprefix(NEWS): torch.from_numpy(_native(array)) for name, array in arrays.items()}
    try:
        return compressor_of("send", question.send).decode(news, question.base, question.of_user)  # type: ignore[no-any-return]
    except ValueError as error:
        raise Refused(str(error)) from None


def _native(array: Any) -> Any:
    return array.astype(array.dtype.newbyteorder("="), copy=True)


def _norm(array: Any) -> float:
    """Without an overflow on the way."""
    largest = float(np.abs(array).max(initial=0.0))
    return largest * float(np.linalg.norm(array.astype(np.float64).ravel() / largest)) if largest > 0 else 0.0


def _in_the_open(header: dict[str, Any]) -> bool:
    return header["error"] is not None or header["values"] is not None or bool(header["metrics"])


def _shapes(question: Question) -> dict[str, tuple[int, ...]]:
    if question.secure and question.verb in ("local", "measure"):
        return {"masked": (question.words,)}
    if question.u is None:
        return {}
    if question.verb == "curvature":
        d = question.u.shape[1]
        return {"grad": (1, d), "hessian": (1, d, d)}
    return {"p": tuple(question.u.shape)}


def _error(bound: Any, question: Question) -> float | None:
    if bound is None:
        return None
    if question.verb != "local" or type(bound) is not float or not (math.isfinite(bound) and bound >= 0):
        raise Refused("its bound on the error is no number >= 0")
    return bound


def _values(
    values: Any, metrics: Any, question: Question, named: tuple[str, ...]
) -> tuple[list[float] | None, dict[str, list[float]]]:
    """One value per model asked about, infinity where f_i is; metrics by the names that were announced."""
    models = 0 if question.models is None else len(question.models)
    if not isinstance(metrics, dict) or metrics.keys() - set(named):
        raise Refused("it has metrics that were not announced")
    for name, row in (("values", values), *metrics.items()):
        if row is None and name == "values":
            continue
        if not isinstance(row, list) or len(row) != models or not all(type(x) is float for x in row):
            raise Refused(f"{str(name)[:40]} are not {models} numbers")
    return values, metrics


def unpacked(records: Any) -> Packet:
    """The packet in a reply's records, or Refused."""
    try:
        return from_records(records)
    except Malformed as error:
        raise Refused(str(error)) from None
