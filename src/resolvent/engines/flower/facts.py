"""Who the users are: what nodes say of themselves, put together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from resolvent.engines.flower.asking import Asking, Note, unnoted
from resolvent.engines.flower.claims import check_constants, check_weights
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.messages import TABLE, TYPES, Answer, Description, Question
from resolvent.engines.flower.packets import Malformed
from resolvent.engines.flower.rule import MAX_WEIGHT, Limits
from resolvent.errors import InputError, quoted, refuse
from resolvent.iteration.facts import Facts
from resolvent.problems.inputs import WEIGHTS

POLL = 0.3


def gather(
    post: Post,
    run: str,
    users: int,
    weights: str | Mapping[str, float] | Tensor = "rows",
    patience: float = 600.0,
    note: Note = unnoted,
    names: tuple[str, ...] | None = None,
    max_weight: float = MAX_WEIGHT,
    schema: str = "",
    same_start: bool = False,
) -> Facts:
    """Wait for the users, ask each what it is, and put that together. `names`: the users of a run that goes on.

    weights: "rows" (every row counts the same, as if all lay in one place), "users" (every user's mean over its rows
    does), numbers by name, or numbers. max_weight: how many times the others' median a weight may be that follows from
    what a user says of itself; its fourth power is the limit for the constants of its function. schema: the name of
    the preparation that nodes with tables have agreed on. same_start: whether all must begin at the same point, as in a
    private run, where it is public; else it is the first one's.
    """
    names = wait(post, users, patience, names, note)
    asking = Asking(post, names, Limits(), (), note)
    found = ask_all(asking, {i: Question("describe", run, user=i, schema=schema) for i in range(len(names))}, patience)
    descriptions = [_description(name, found[i].facts) for i, name in enumerate(names)]
    first = descriptions[0]
    for name, other in zip(names, descriptions, strict=True):
        for what in ("problem", "dim", "dtype", "metrics", "intercepts"):
            mine, theirs = getattr(first, what), getattr(other, what)
            if mine != theirs:
                refuse(what, f"{theirs} on node {name}", f"{mine} on node {names[0]}: all users need the same")
        if first.frozen != other.frozen:
            needed = "all users need the same base model, with the same draw of what is not trained"
            refuse(f"what node {name} does not train", f"other numbers than on node {names[0]}", needed)
    check_constants("lipschitz", names, [d.lipschitz for d in descriptions], max_weight)  # the largest of them counts
    check_constants("typical_eta", names, [d.typical_eta for d in descriptions], max_weight, small=True)
    start = None
    if first.starts:
        zero = torch.zeros((1, first.dim), dtype=TYPES[first.dtype])
        asked = range(len(names) if same_start else 1)
        begun = ask_all(asking, {i: Question("start", run, u=zero) for i in asked}, patience)
        points = [begun[i].p for i in asked]
        assert points[0] is not None
        start = points[0][0]
        for i, point in enumerate(points):
            if point is None or not torch.equal(point[0], start):
                needed = (
                    "a private run begins where no user's rows have a say: load or seed the same model on all nodes"
                )
                refuse("start", f"other numbers on node {names[i]} than on node {names[0]}", needed)
    kind = TYPES[first.dtype]
    eta = [d.typical_eta for d in descriptions if d.typical_eta is not None]
    typical = float(torch.tensor(eta, dtype=torch.float64).median()) if eta else 1.0
    constants = {"lipschitz": _all_known([d.lipschitz for d in descriptions], kind), "typical_eta": typical}
    return Facts(
        users=len(names),
        names=names,
        dim=first.dim,
        weights=_weights(weights, names, descriptions, kind, max_weight),
        offers=frozenset.intersection(*(frozenset(d.offers) for d in descriptions)),
        convex=all(d.convex for d in descriptions),
        closed_form=all(d.closed_form for d in descriptions),
        sizes=None if any(d.rows is None for d in descriptions) else torch.tensor([d.rows for d in descriptions]),
        start=start,
        metrics=first.metrics,
        kind=first.problem,
        intercepts=first.intercepts,
        counted=False,
        encodes=True,
        secret=True,
        lookup=(constants | {"convexity": _all_known([d.convexity for d in descriptions], kind)}).get,
    )


def wait(
    post: Post, users: int, patience: float, names: tuple[str, ...] | None, note: Note = unnoted
) -> tuple[str, ...]:
    """The names of the users, once enough of them are online; until then it is noted who is waited for."""
    until, said = time.monotonic() + patience, None
    while True:
        there = post.online()
        wanted = sorted(there) if names is None else [name for name in names if name in there]
        if len(wanted) < users and said != wanted:
            absent = [name for name in (post.names if names is None else names) if name not in there]
            here = f" ({', '.join(wanted)})" if wanted else ""
            note("waiting", reason=f"{len(wanted)} of {users} nodes are here{here}; waiting for {' or '.join(absent)}")
            said = wanted
        if len(wanted) >= users:
            return tuple(wanted) if names is None else names
        if time.monotonic() >= until:
            online = f"{', '.join(sorted(there)) or 'nobody'} came"
            raise InputError(f"{users} users are needed, but within {patience:g} s {online}; start the other nodes")
        time.sleep(POLL)


def ask_all(asking: Asking, questions: dict[int, Question], patience: float) -> dict[int, Answer]:
    """What every user answers; a refusal with the reasons where somebody does not."""
    reasons: list[str] = []
    heard = asking.note

    def note(kind: str, **about: Any) -> None:
        reasons.extend([f"{about['user']}: {about['reason']}"] if kind == "refused" else [])
        heard(kind, **about)

    asking.note = note
    found = asking.all_of(questions, patience, POLL)
    asking.note = heard
    if found is None:
        why = "; ".join(reasons) or f"not everybody answered within {patience:g} s"
        raise InputError(f"the nodes could not be asked what they are: {why}")
    return found


def _description(name: str, facts: Any) -> Description:
    if facts == {TABLE: True}:
        raise InputError(f"node {name} has a table, but federation.toml here has no [data]; copy one to the other")
    try:
        return Description.of(facts)
    except Malformed as error:
        raise InputError(f"node {name} described itself in a way that cannot be used: {error}") from None


def _weights(
    given: Any, names: tuple[str, ...], descriptions: list[Description], kind: torch.dtype, most: float
) -> Tensor:
    """lambda: by what shall count the same, by name, or as given."""
    if isinstance(given, Tensor):
        numbers = given.double()
    elif isinstance(given, str) and given in WEIGHTS:
        numbers = _named(given, descriptions)
        check_weights(names, [d.samples for d in descriptions], numbers, most)
    elif isinstance(given, Mapping) and given.keys() >= set(names):
        numbers = torch.tensor([float(given[name]) for name in names], dtype=torch.float64)
    else:
        refuse("weights", quoted(given), f'"rows", "users" or a number for each of {", ".join(names)} is needed')
    if not (bool((numbers >= 0).all()) and 0 < float(numbers.sum()) < float("inf")):
        refuse("weights", numbers.tolist(), "numbers >= 0 are needed, not all of them zero")
    return (numbers / numbers.sum()).to(kind)


def _named(name: str, descriptions: list[Description]) -> Tensor:
    """f_i is a mean over a network's rows, and a sum over those of any other user; users without rows are equal."""
    samples = torch.tensor([d.samples for d in descriptions], dtype=torch.float64)
    mean = all(d.means for d in descriptions)
    if (name == "rows") != mean or not bool((samples > 0).all()):
        return torch.ones_like(samples)
    return samples if mean else 1 / samples


def _all_known(numbers: list[float | None], kind: torch.dtype) -> Tensor | None:
    return None if any(x is None for x in numbers) else torch.tensor(numbers, dtype=kind)
