"""Questions to nodes and their answers, as packets and back."""

from __future__ import annotations

import dataclasses
import re
import typing
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.engines.flower.packets import Malformed, Packet
from resolvent.errors import InputError, quoted, refuse
from resolvent.iteration import registry
from resolvent.iteration.engine import Ask
from resolvent.iteration.metric_names import is_free

VERBS = (
    "describe",
    "start",
    "local",
    "measure",
    "curvature",
    "schema",
    "moments",
    "prepare",
    "keys",
    "shares",
    "unmask",
)
TELLING = ("describe", "schema", "moments", "prepare")
"""Questions whose answers are facts in plain values."""
TYPES = {"float64": torch.float64, "float32": torch.float32}
MODELS_ARE_U = "models_are_u"
TABLE = "table"
"""The fact by which a node says that it has a table where none is expected, or none where one is."""
NEWS = "news."
"""How the names of arrays begin that a compressor made."""
NOTHING_YET = -1
"""The round of a user's last answer, where there is none."""
MAX_COUNT, MAX_CONSTANT = 2**53, 1e150
"""What a node may claim at most: a number of rows or coordinates that float64 counts exactly, and a constant of its
function whose square is finite."""
ROUNDING = 1e-4
"""How much a user's convexity may exceed its smoothness by rounding, where both are computed in float32."""
MAX_NAME = 200
"""Characters of a name that a node may give, or a server."""
SCHEMA = re.compile(r"[0-9a-f]{16}")
"""The name of a preparation: the beginning of its SHA-256."""
NUMBER_WORDS = 4
"""Masked words of one number that is neither a coordinate of p nor of u."""
MAX_STEPS = 100_000
"""Steps, or whatever else an operator counts, that a node takes for one answer."""


# --- operators: descriptions of a few numbers ------------------------------------------------------------------------


def describe_operator(operator: Any) -> dict[str, Any]:
    """An operator as plain values; code does not cross."""
    return _bounded(registry.described("local", operator))


def _bounded(described: dict[str, Any]) -> dict[str, Any]:
    """Refuse an operator that would occupy a node for ever. A batch is never larger than a user's rows."""
    for name, value in described.items():
        numbers = value if isinstance(value, list | tuple) else [value]
        if name != "batch" and any(isinstance(number, int) and number > MAX_STEPS for number in numbers):
            refuse(f"local.{name}", quoted(value), f"a node takes at most {MAX_STEPS} per answer")
    return described


def operator_of(described: Any) -> Any:
    """The operator that was described, every value checked."""
    kind = registry.parts("local").get(str(described.get("kind"))) if isinstance(described, dict) else None
    if kind is None or not hasattr(kind.make, "bind"):  # what only a configuration means, "best" say, does not cross
        raise Malformed("there is no such operator; a node needs every part that the server has registered")
    try:
        return registry.choose("local", _bounded(described))
    except InputError as error:
        raise Malformed(str(error)) from None


def compressor_of(kind: str, described: Any) -> Any:
    """The compressor of this kind ("send" or "down") that was described, every value checked; None where none was."""
    if described == {}:
        return None
    try:
        made = registry.choose(kind, described)
    except (InputError, TypeError, AttributeError) as error:
        raise Malformed(f"there is no such compressor ({error})") from None
    if not made.compresses:
        raise Malformed("there is no such compressor")
    return made


# --- questions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What a node is asked. `after`: the round of its last answer that was taken, whose memory it goes on from.

    models: rows of models to evaluate, beside whatever else is asked. Where they are u, as with FedAvg, u is sent once.
    """

    verb: str
    run: str
    t: int = 0
    user: int = 0
    eta: float = 1.0
    seed: int = 0
    after: int = NOTHING_YET
    operator: dict[str, Any] = field(default_factory=dict)
    steady: bool = True
    send: dict[str, Any] = field(default_factory=dict)
    down: dict[str, Any] = field(default_factory=dict)
    """Compressors of the answer and of u, by their descriptions; none where all of it crosses."""
    alpha: float = 1.0
    """z = (1 - alpha) u + alpha p is what a compressed answer has."""
    base_sum: int = 0
    at_sum: int = 0
    """Checksums of what the server has of the user's answer, and of the point that it was given at: a node that
    remembers anything else says so, or sends everything."""
    metric: int = NOTHING_YET
    """The round before which the metric of the prox was chosen; NOTHING_YET: the identity."""
    schema: str = ""
    """Which preparation of its table a node goes by, where it has one."""
    table: dict[str, Any] = field(default_factory=dict)
    """A preparation that is told."""
    u: Tensor | None = None
    models: Tensor | None = None
    vectors: Tensor | None = None
    values: Tensor | None = None
    """The eigenvectors (d, d) and eigenvalues (d,) of the metric, for a node that does not know it yet."""
    centre: Tensor | None = None
    """mean(u), (1, d), for operators that want it."""
    news: dict[str, Tensor] = field(default_factory=dict)
    """What `down` makes of u, which does not cross then: the node knows the point of its last answer."""
    base: Tensor | None = None
    """What the server has of the user's z, (1, d), which a compressed answer changes; it does not cross."""

    secure: dict[str, Any] = field(default_factory=dict)
    """Of a sum that nobody can open (`masking`): its keys, shares and masks; empty: what is answered is not hidden."""

    ARRAYS = ("u", "models", "vectors", "values", "centre")

    @property
    def words(self) -> int:
        """How many masked words answer it."""
        models = 0 if self.models is None else len(self.models)
        numbers = models * len(self.secure.get("metrics", ())) + 2 * (self.verb == "local")
        return NUMBER_WORDS * numbers + (self.u.shape[1] if self.u is not None else 0)

    def packet(self) -> Packet:
        aside = {*self.ARRAYS, "news", "base"}
        header = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in aside}
        arrays = {"u": None if self.news else self.u, "models": self.models, "vectors": self.vectors}
        arrays |= {"values": self.values, "centre": self.centre}
        if arrays["u"] is not None and self.models is not None and torch.equal(arrays["u"], self.models):
            header, arrays["models"] = header | {MODELS_ARE_U: True}, None
        return Packet(header, _arrays(**arrays, **{NEWS + name: each for name, each in self.news.items()}))

    @property
    def of_user(self) -> Ask:
        """Round, seed and user, which what a compressor draws depends on."""
        return Ask(self.t, self.eta, None, self.seed, torch.tensor([self.user]))

    @classmethod
    def of(cls, packet: Packet) -> Question:
        """The question in a packet, every value checked: whoever sent it may have taken over the server."""
        try:
            arrays = {name: _tensor(array) for name, array in packet.arrays.items()}
            parts: dict[str, Any] = {name: array for name, array in arrays.items() if not name.startswith(NEWS)}
            parts["news"] = {name.removeprefix(NEWS): each for name, each in arrays.items() if name.startswith(NEWS)}
            header = dict(packet.header)
            if header.pop(MODELS_ARE_U, False):
                parts["models"] = parts.get("u")
            made = cls(**header, **parts)
        except TypeError as error:
            raise Malformed(f"this is no question ({error}); is the server of another version?") from None
        if type(made.verb) is not str or made.verb not in VERBS:
            raise Malformed(f"there is no question {quoted(made.verb)}; is the server of another version?")
        real = (array for name, array in parts.items() if name != "news")  # whose types its compressor looks at
        if not all(isinstance(array, Tensor) and array.is_floating_point() for array in real):
            raise Malformed("an array is not one of real numbers")
        made._check()
        return made

    def _check(self) -> None:
        """Refuse what no server asks, before anything is computed with it or stored under its name."""
        for name, least, end in (("t", 0, MAX_COUNT), ("user", 0, MAX_COUNT), ("after", NOTHING_YET, MAX_COUNT),
                                 ("metric", NOTHING_YET, MAX_COUNT), ("seed", 0, 2**63),
                                 ("base_sum", 0, 2**32), ("at_sum", 0, 2**32)):  # fmt: skip
            if type(value := getattr(self, name)) is not int or not least <= value < end:
                raise Malformed(f"{name} is {quoted(value)}, and a whole number from {least} is needed")
        if type(self.eta) not in (int, float) or not 0 <= self.eta <= MAX_CONSTANT:
            raise Malformed(f"eta is {quoted(self.eta)}, and a number from 0 to {MAX_CONSTANT:g} is needed")
        if type(self.alpha) not in (int, float) or not (self.alpha and abs(self.alpha) <= MAX_CONSTANT):
            raise Malformed(f"alpha is {quoted(self.alpha)}, and a number other than 0 is needed")
        if type(self.run) is not str or len(self.run) > MAX_NAME:
            raise Malformed(f"run is {quoted(self.run)}, and a name of at most {MAX_NAME} characters is needed")
        if not (isinstance(self.operator, dict) and isinstance(self.secure, dict)) or type(self.steady) is not bool:
            raise Malformed("operator, secure or steady are not what they must be")
        if type(self.schema) is not str or not (self.schema == "" or SCHEMA.fullmatch(self.schema)):
            raise Malformed("schema is no name of a preparation")
        if not isinstance(self.table, dict):
            raise Malformed("table is no preparation")
        for name, rows in (("u", self.u), ("models", self.models), ("centre", self.centre)):
            if rows is not None and (rows.ndim != 2 or not rows.is_floating_point()):
                raise Malformed(f"{name} is of shape {tuple(rows.shape)}, and rows of numbers are needed")
        if self.base is not None:
            raise Malformed("this is no question; is the server of another version?")
        if self.vectors is not None or self.values is not None:
            self._check_metric(self.vectors, self.values)

    def _check_metric(self, V: Tensor | None, s: Tensor | None) -> None:
        """Refuse what is no metric of the length of u."""
        d = 0 if self.u is None else self.u.shape[1]
        if V is None or s is None or V.shape != (d, d) or s.shape != (d,):
            raise Malformed("the metric is not one of as many coordinates as u")
        orthogonal = bool(((V.T @ V - torch.eye(d, dtype=V.dtype)).abs() <= 1e-6).all())
        if not (orthogonal and bool(((s > 0) & (s <= 1)).all())):
            raise Malformed("the metric is not positive definite")


@dataclass(frozen=True)
class Answer:
    """What a node answers. The first four say which question; `error` bounds |p - prox|, where the operator knows it.

    values: f_i at the models that came with the question. metrics: figures by name, one per model.
    forgot: the node did not find what it was to go on from, and began anew.
    """

    verb: str
    run: str
    t: int
    user: int
    error: float | None = None
    values: list[float] | None = None
    metrics: dict[str, list[float]] = field(default_factory=dict)
    forgot: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    secure: dict[str, Any] = field(default_factory=dict)
    p: Tensor | None = None
    grad: Tensor | None = None
    hessian: Tensor | None = None
    masked: Tensor | None = None
    """Instead of p, values, metrics and error: words that only a sum makes sense of."""
    news: dict[str, Tensor] = field(default_factory=dict)
    """What a compressor makes of z; p does not cross then."""
    sent: Tensor | None = None
    """What the server has of z afterwards, where it is compressed; it does not cross."""

    ARRAYS = ("p", "grad", "hessian", "masked")

    def packet(self) -> Packet:
        aside = (*self.ARRAYS, "news", "sent")
        header = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in aside}
        news = {NEWS + name: each for name, each in self.news.items()}
        return Packet(header, _arrays(**{name: getattr(self, name) for name in self.ARRAYS}, **news))


def checksum(row: Tensor) -> int:
    """Of the bits of a row."""
    return zlib.crc32(row.detach().cpu().contiguous().numpy().tobytes())


def _arrays(**tensors: Tensor | None) -> dict[str, Any]:
    return {name: t.detach().cpu().numpy() for name, t in tensors.items() if t is not None}


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))


# --- what a node says of itself --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """What the server knows of a user: sizes and constants, no data."""

    problem: str
    dim: int
    dtype: str
    samples: int
    offers: tuple[str, ...]
    convex: bool
    closed_form: bool
    lipschitz: float | None = None
    convexity: float | None = None
    typical_eta: float | None = None
    rows: int | None = None
    means: bool = False
    """Whether f_i is a mean over the user's rows, as for networks; else it is a sum over them."""
    starts: bool = False
    """Whether the problem says where to begin, as networks do."""
    metrics: tuple[str, ...] = ()
    intercepts: tuple[int, ...] = ()
    """Coordinates that no penalty touches, in ascending order."""
    version: str = ""
    frozen: str = ""
    """A checksum of what a network does not train; empty where everything is trained."""

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, facts: Any) -> Description:
        """From what a node said; every field is checked."""
        known = {field.name: field for field in registry.fields(cls)}
        if not isinstance(facts, dict) or facts.keys() != known.keys():
            raise Malformed("this is no description of a user")
        for name, value in facts.items():
            _check_type(known[name], value)
            _check_range(name, value)
        if facts["dtype"] not in TYPES:
            raise Malformed(f"dtype is {facts['dtype']!r}, and {' or '.join(TYPES)} is needed")
        if facts["samples"] != (facts["rows"] or 0):
            raise Malformed(f"samples is {facts['samples']}, but rows is {facts['rows']}")
        if facts["lipschitz"] is not None and (facts["convexity"] or 0.0) > facts["lipschitz"] * (1 + ROUNDING):
            raise Malformed(f"convexity is {facts['convexity']}, above lipschitz, which is {facts['lipschitz']}")
        if facts["intercepts"] != sorted({i for i in facts["intercepts"] if 0 <= i < facts["dim"]}):
            raise Malformed("intercepts are not coordinates in ascending order")
        if not all(map(is_free, facts["metrics"])) or len(set(facts["metrics"])) < len(facts["metrics"]):
            raise Malformed("metrics are not names that a history has room for")
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()}
        return cls(**values)


def _check_type(field: registry.Field, value: Any) -> None:
    """Refuse what JSON cannot have made of this field: a list has one type of items, and names are short."""
    listed = [option for option in field.options if typing.get_origin(option) is tuple]
    types = (listed and typing.get_args(listed[0])[:1]) or field.options
    items = value if listed and isinstance(value, list) else [value]
    if (listed and not isinstance(value, list)) or not all(type(item) in types for item in items):
        raise Malformed(f"{field.name} is not the list that it must be" if listed else f"{field.name} is no "
                        f"{' or '.join(kind.__name__ for kind in types if kind is not type(None))}")  # fmt: skip
    if any(len(item) > MAX_NAME or not item.isprintable() for item in items if isinstance(item, str)):
        raise Malformed(f"{field.name} has a name of more than {MAX_NAME} characters, or of some that nobody can print")


def _check_range(name: str, value: Any) -> None:
    """Refuse numbers that no user has, before anything is computed with them."""
    if type(value) is int and not (name == "dim") <= value <= MAX_COUNT:
        raise Malformed(f"{name} is {str(value)[:20]}, and a count up to 2^53 is needed")
    if type(value) is float and not 0 <= value <= MAX_CONSTANT:
        raise Malformed(f"{name} is {value:g}, and a number from 0 to {MAX_CONSTANT:g} is needed")
    if name == "typical_eta" and value == 0:
        raise Malformed("typical_eta is 0, and a step size is needed")
