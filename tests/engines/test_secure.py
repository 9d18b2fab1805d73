"""Secure sums: the server gets the mean of all answers, exactly, and nothing that tells one user's from another's."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from engines.fake_grid import KEYS, PROMPT, FakeGrid
from resolvent.engines.flower import masking
from resolvent.engines.flower.facts import gather
from resolvent.engines.flower.grid import Post
from resolvent.engines.flower.messages import Question
from resolvent.engines.flower.node import Node
from resolvent.engines.flower.packets import Malformed, from_records, to_records
from resolvent.engines.flower.rule import Rule
from resolvent.engines.flower.secure import SecureEngine, shared
from resolvent.errors import BadAnswer, InputError
from resolvent.local.choice import local_operator

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

USERS, DIM = 7, 5
HASTY = Rule(poll=1e-4, timeout=0.3)
"""Nodes of a fake grid answer while they are asked: whoever has not never will."""


def problem(users: int = USERS, seed: int = 0, **more: Any) -> Any:
    rng = np.random.default_rng(seed)
    A = [rng.standard_normal((12 + i, DIM)) for i in range(users)]
    return rs.LeastSquares(A, [a @ rng.standard_normal(DIM) + rng.standard_normal(len(a)) for a in A], **more)


class Watched(FakeGrid):
    """A grid that notes down every packet that reaches the server, by user."""

    def __init__(self, nodes: list[Node], drop: dict[str, set[int]] | None = None) -> None:
        super().__init__(nodes, forge=self._noted)
        self.seen: list[tuple[int, Any]] = []
        self.drop = drop or {}
        """By verb, users whose replies never come."""

    def _noted(self, user: int, reply: Any) -> Iterable[Any]:
        if reply.has_error():
            return [reply]
        packet = from_records(reply.content)
        if user in self.drop.get(packet.header["verb"], ()):
            self.offline.add(user)
            return []
        self.seen.append((user, packet))
        return [reply]


def engine_over(whole: Any, scheme: Any, grid: FakeGrid | None = None, **more: Any) -> tuple[SecureEngine, Any]:
    if grid is None:
        grid = Watched([Node(whole.take(torch.tensor([i])), secure=True) for i in range(whole.users)])
    post = Post(grid, KEYS)
    facts = gather(post, "a-run", whole.users, weights=whole.weights)
    rule = more.pop("rule", PROMPT)
    return SecureEngine(post, facts, local_operator(scheme, facts), "a-run", rule=rule, **more), grid


# --- numbers as words ------------------------------------------------------------------------------------------------


def test_words_add_up_to_the_sum_of_the_rounded_numbers() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        users, exponent = int(rng.integers(1, 40)), int(rng.integers(-60, 10))
        x = rng.standard_normal((users, 9)) * 10.0 ** rng.integers(-3, 4)
        words = [w for row in x if (w := masking.to_words(row, exponent, users)) is not None]
        if len(words) < users:
            assert np.abs(np.ldexp(x, -exponent)).max() >= 2.0**62 / users
            continue
        total = masking.from_words(np.add.reduce(words), exponent)
        assert np.abs(total - x.sum(0)).max() <= users * np.ldexp(0.5, exponent) + 1e-12 * np.abs(x).sum(0).max()


def test_numbers_of_any_size_add_up() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        x = rng.standard_normal(30) * 10.0 ** rng.integers(-12, 15, 30)
        total = masking.number_from_words(np.add.reduce([masking.number_to_words(v) for v in x]), 30)
        assert total == pytest.approx(math.fsum(x), rel=1e-12, abs=30 * 2.0**-60)
    some = [masking.number_to_words(v) for v in (1.0, math.nan, 2.0)]
    assert math.isnan(masking.number_from_words(np.add.reduce(some), 3))  # type: ignore[arg-type]
    assert masking.number_from_words(np.add.reduce([masking.number_to_words(None)] * 3), 3) is None
    assert not masking.number_to_words(1e300).any()


# --- the mean is right -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedrp", "accelerated", "newton"])
def test_a_secure_run_goes_the_way_of_one_in_process(name: str) -> None:
    whole = problem(weights=[1.0, 2, 3, 1, 1, 4, 2])
    if name == "newton":
        A = [np.random.default_rng(i).standard_normal((20, DIM)) for i in range(USERS)]
        whole = rs.Logistic(A, [np.sign(a[:, 0] + 0.5 * a[:, 1] ** 2) for a in A], reg=0.1)
    scheme = {"fedavg": rs.fedavg(0.01, steps=3), "fedrp": rs.fedrp(0.05)}.get(name, rs.fedprox(0.05))
    more: dict[str, Any] = {"anderson": 3} if name == "accelerated" else {}
    engine, _ = engine_over(whole, scheme)
    secure = rs.solve(None, scheme, rounds=10, engine=engine, **more)
    plain = rs.solve(whole, scheme, rounds=10, **more)
    torch.testing.assert_close(secure.model, plain.model, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        torch.tensor(secure.history["value"].to_numpy()[:-1]),
        torch.tensor(plain.history["value"].to_numpy()[:-1]), rtol=1e-9, atol=1e-9,
    )  # fmt: skip
    stationarity = secure.history["stationarity"].to_numpy(), plain.history["stationarity"].to_numpy()
    np.testing.assert_allclose(*stationarity, rtol=1e-6, atol=1e-7)
    consensus = secure.history["consensus"].to_numpy(), plain.history["consensus"].to_numpy()
    np.testing.assert_allclose(*consensus, rtol=1e-5, atol=1e-6)  # of a difference of squares, plus its rounding


@pytest.mark.parametrize("gone", [(), (2,), (0, 6)])
@pytest.mark.parametrize("verb", ["local", "unmask"])
def test_who_drops_out_in_the_middle_is_left_out_exactly(gone: tuple[int, ...], verb: str) -> None:
    whole, scheme = problem(weights=[1.0, 2, 3, 1, 1, 4, 2]), rs.fedprox(0.05)
    nodes = [Node(whole.take(torch.tensor([i])), secure=True) for i in range(USERS)]
    engine, _ = engine_over(whole, scheme, Watched(nodes, {verb: set(gone)}), rule=HASTY)
    assert masking.threshold(USERS) == USERS - 2  # so two may leave
    run = rs.solve(None, scheme, rounds=1, engine=engine)
    stay = [i for i in range(USERS) if verb == "unmask" or i not in gone]  # after its words have come a user counts
    p, lam = whole.prox(torch.zeros(USERS, DIM, dtype=torch.float64), 0.05), whole.weights[stay]
    torch.testing.assert_close(run.model, lam @ p[stay] / lam.sum(), rtol=0, atol=USERS * 2.0**-44 / float(lam.sum()))


@pytest.mark.parametrize("verb", ["keys", "shares", "local", "unmask"])
def test_where_too_few_remain_nothing_is_opened_and_a_sentence_says_so(verb: str) -> None:
    whole, scheme = problem(), rs.fedprox(0.05)
    nodes = [Node(whole.take(torch.tensor([i])), secure=True) for i in range(USERS)]
    engine, grid = engine_over(whole, scheme, Watched(nodes, {verb: {0, 2, 4}}), rule=HASTY)
    with pytest.raises(BadAnswer, match="only 4 users answered, and a secure sum is opened by 5 at least"):
        engine.local_mean(rs_ask(), torch.zeros(1, DIM, dtype=torch.float64), {})
    assert all(packet.header["verb"] != "unmask" for _, packet in grid.seen) or verb == "unmask"


def rs_ask() -> Any:
    from resolvent.iteration.engine import Ask

    return Ask(0, 0.05)


def test_answers_that_have_no_room_are_asked_for_again_on_a_coarser_scale() -> None:
    scheme = rs.fedprox(1e9)
    far = rs.LeastSquares([np.eye(DIM)] * USERS, [1e9 * np.arange(1.0, DIM + 1) + i for i in range(USERS)])
    engine, _ = engine_over(far, scheme)
    run = rs.solve(None, scheme, rounds=1, engine=engine)
    expected = rs.solve(far, scheme, rounds=1).model
    torch.testing.assert_close(run.model, expected, rtol=1e-9, atol=0)


def test_nodes_that_were_started_again_get_new_keys() -> None:
    whole, scheme = problem(), rs.fedprox(0.05)
    nodes = [Node(whole.take(torch.tensor([i])), secure=True) for i in range(USERS)]
    engine, grid = engine_over(whole, scheme, Watched(nodes))

    def restart(happened: Any) -> None:
        if happened.number == 3:  # all of them have lost their keys
            grid.nodes[:] = [Node(whole.take(torch.tensor([i])), secure=True) for i in range(USERS)]

    run = rs.solve(None, scheme, rounds=12, engine=engine, callback=restart)
    torch.testing.assert_close(run.model, rs.solve(whole, scheme, rounds=12).model, rtol=1e-9, atol=1e-9)


# --- and nothing else is known ---------------------------------------------------------------------------------------


def test_what_the_server_receives_tells_no_user_from_random_numbers() -> None:
    whole, scheme = problem(), rs.fedprox(0.05)
    engine, grid = engine_over(whole, scheme)
    rs.solve(None, scheme, rounds=20, engine=engine)
    words = []
    for _, packet in grid.seen:
        header, arrays = packet.header, packet.arrays
        if header["verb"] == "describe":
            continue
        assert set(arrays) <= {"masked"}
        assert (header["values"], header["metrics"], header["error"]) == (None, {}, None)
        words += [arrays["masked"].astype(np.int64)[:DIM]] if arrays else []
    bits = np.unpackbits(np.concatenate(words).view(np.uint8))
    deviation = abs(bits.mean() - 0.5) * 2 * math.sqrt(len(bits))
    assert len(bits) > 40_000
    assert deviation < 5  # standard deviations of a fair coin


def test_the_server_cannot_open_one_users_words_with_what_it_has() -> None:
    """With every message that it received, and the shares that it was given, only the sum of all comes out."""
    whole, scheme = problem(), rs.fedprox(0.05)
    engine, grid = engine_over(whole, scheme)
    rs.solve(None, scheme, rounds=1, engine=engine)
    masked = {user: p.arrays["masked"] for user, p in grid.seen if p.header["verb"] == "local"}
    shares = [p.header["secure"]["own"] for _, p in grid.seen if p.header["verb"] == "unmask"][
        : engine._setup.threshold
    ]
    own = {i: masking.combined([s[str(i)] for s in shares]) for i in masked}
    p = whole.prox(torch.zeros(USERS, DIM, dtype=torch.float64), 0.05).numpy()
    for i, words in masked.items():
        without_own = words.astype(np.int64).view(np.uint64) - masking._mask(own[i], len(words))
        opened = masking.from_words(without_own[:DIM], -masking.DIGITS) * USERS
        assert np.abs(opened - p[i]).max() > 1.0  # the pairwise masks are still on
    total = np.add.reduce([w.astype(np.int64).view(np.uint64) for w in masked.values()])
    sums = masking.from_words(masking.removed(total, 0, {}, own, {})[:DIM], -masking.DIGITS)
    np.testing.assert_allclose(sums, p.mean(0), atol=USERS * 2.0**-44)


def test_a_node_gives_away_one_secret_of_a_user_at_most() -> None:
    users = range(3)
    masks = [masking.Masks("s", i) for i in users]
    keys = {str(m.user): m.keys() for m in masks}
    tokens = [m.share(keys, 3) for m in masks]
    for i in users:
        masks[i].take({str(j): tokens[j][str(i)] for j in users if j != i})
    words = np.arange(4, dtype=np.uint64)
    sealed = [m.mask(words, 0, [0, 1, 2]) for m in masks]
    for wrong in (([0, 1, 2], [1]), ([0, 1], [2]), ([0, 1, 2, 3], [])):
        with pytest.raises(Malformed):
            masks[0].open(0, *wrong)
    with pytest.raises(Malformed, match="used before"):
        masks[0].mask(words, 0, [0, 1, 2])
    with pytest.raises(Malformed, match="given away before"):
        masks[0].share(keys, 3)
    opened = [m.open(0, [0, 1, 2], []) for m in masks]
    with pytest.raises(Malformed, match="opened before"):
        masks[0].open(0, [0, 1, 2], [])
    own = {i: masking.combined([shares["own"][str(i)] for shares in opened]) for i in users}
    total = masking.removed(np.add.reduce(sealed), 0, {}, own, {})
    assert total.tolist() == (3 * words).tolist()


class Lying(FakeGrid):
    """A grid whose user 2 changes what it tells of secrets."""

    def __init__(self, verb: str, change: Any) -> None:
        whole = problem(weights=[1.0, 2, 3, 1, 1, 4, 2])
        nodes = [Node(whole.take(torch.tensor([i])), secure=True) for i in range(USERS)]
        super().__init__(nodes, forge=self._changed)
        self.verb, self.change, self.drop = verb, change, set[int]()

    def _changed(self, user: int, reply: Any) -> Iterable[Any]:
        if reply.has_error():
            return [reply]
        packet = from_records(reply.content)
        if user in self.drop and packet.header["verb"] == "local":
            self.offline.add(user)
            return []
        if user == 2 and packet.header["verb"] == self.verb:
            secure = json.loads(json.dumps(packet.header["secure"]))
            self.change(secure)
            reply.content = to_records(packet._replace(header=packet.header | {"secure": secure}))
        return [reply]


def _first_block(share: str) -> str:
    return share[:20] + ("0" if share[20] != "0" else "1") + share[21:]


SHARES = {
    "another number": lambda share: "09" + share[2:],
    "another secret": _first_block,
    "no numbers": lambda share: "x" * 104,
    "those of the first": lambda share: "01" + share[2:],
}


@pytest.mark.parametrize("gone", [(), (0,), (0, 6)])
@pytest.mark.parametrize("wrong", SHARES)
def test_wrong_shares_of_a_user_open_no_wrong_sum(wrong: str, gone: tuple[int, ...]) -> None:
    """As long as enough others tell the right ones the sum is right, and else there is none."""
    whole, scheme = problem(weights=[1.0, 2, 3, 1, 1, 4, 2]), rs.fedprox(0.05)

    def change(secure: Any) -> None:
        for kind in ("own", "pairs"):
            secure[kind] = {user: SHARES[wrong](share) for user, share in secure[kind].items()}

    grid = Lying("unmask", change)
    grid.drop = set(gone)
    engine, _ = engine_over(whole, scheme, grid, rule=HASTY)
    if len(gone) == 2:  # the liar is one of the five who are needed
        with pytest.raises(BadAnswer, match="the shares that users gave do not open the sum"):
            rs.solve(None, scheme, rounds=1, engine=engine)
        return
    run, stay = rs.solve(None, scheme, rounds=1, engine=engine), [i for i in range(USERS) if i not in gone]
    p, lam = whole.prox(torch.zeros(USERS, DIM, dtype=torch.float64), 0.05), whole.weights[stay]
    torch.testing.assert_close(run.model, lam @ p[stay] / lam.sum(), rtol=0, atol=USERS * 2.0**-44 / float(lam.sum()))


KEYS_THAT_ARE_NONE: dict[str, Any] = {
    "no point": lambda keys: keys["mask"].__setitem__(3, "02" + "ff" * 32),
    "no numbers": lambda keys: keys.__setitem__("cipher", "z" * 66),
    "too few": lambda keys: keys["own"].pop(),
    "too short": lambda keys: keys["own"].__setitem__(0, "ab"),
    "no list": lambda keys: keys.__setitem__("mask", {}),
    "nothing of a seed": lambda keys: keys.pop("own"),
}


@pytest.mark.parametrize("wrong", KEYS_THAT_ARE_NONE)
def test_a_user_whose_keys_are_none_is_left_out_and_named(wrong: str) -> None:
    """It does not keep the others from their sum, who would refuse to share with it."""
    whole, scheme = problem(weights=[1.0, 2, 3, 1, 1, 4, 2]), rs.fedprox(0.05)
    events: list[dict[str, Any]] = []
    note = lambda kind, **about: events.append({"kind": kind} | about)  # noqa: E731
    engine, _ = engine_over(whole, scheme, Lying("keys", KEYS_THAT_ARE_NONE[wrong]), rule=HASTY, note=note)
    run = rs.solve(None, scheme, rounds=1, engine=engine)
    stay = [0, 1, 3, 4, 5, 6]
    p, lam = whole.prox(torch.zeros(USERS, DIM, dtype=torch.float64), 0.05), whole.weights[stay]
    torch.testing.assert_close(run.model, lam @ p[stay] / lam.sum(), rtol=0, atol=USERS * 2.0**-44 / float(lam.sum()))
    assert {"kind": "refused", "user": "site-02", "reason": "its public keys are none"} in events


def test_a_secure_node_answers_no_question_in_the_open() -> None:
    node = Node(problem().take(torch.tensor([0])), secure=True)
    u = torch.zeros(1, DIM, dtype=torch.float64)
    for verb in ("local", "measure", "curvature"):
        with pytest.raises(Malformed, match="only in sums that nobody can open"):
            node.handle(Question(verb, "a-run", u=u, models=u).packet())
    with pytest.raises(Malformed, match="only in sums that nobody can open"):
        node.handle(
            Question("curvature", "a-run", u=u, secure={"setup": "a question that calls itself a sum"}).packet()
        )


# --- what is refused -------------------------------------------------------------------------------------------------


def test_schemes_that_need_everybodys_own_rows_are_refused() -> None:
    whole = problem()
    engine, _ = engine_over(whole, rs.fedpi(0.05))
    with pytest.raises(InputError, match="only the mean of all answers is known"):
        rs.solve(None, rs.fedpi(0.05), rounds=2, engine=engine)


def test_two_users_are_too_few() -> None:
    with pytest.raises(InputError, match="a secure sum needs 3 users, but there are 2"):
        engine_over(problem(2), rs.fedprox(0.05))


# --- users who keep their u_i ----------------------------------------------------------------------------------------


def kept(whole: Any, scheme: Any, grid: FakeGrid | None = None, **more: Any) -> tuple[SecureEngine, Any]:
    return engine_over(whole, scheme, grid, mixing=scheme.fixed_mixing, **more)


@pytest.mark.parametrize("make", [rs.fedpi, rs.fedsplit, rs.reflect_prox])
def test_users_who_keep_their_u_go_the_way_of_the_scheme(make: Any) -> None:
    whole, scheme = problem(weights=[1.0, 2, 3, 1, 1, 4, 2]), make(0.05)
    engine, _ = kept(whole, scheme)
    secure = rs.solve(None, shared(scheme), rounds=10, engine=engine)
    plain = rs.solve(whole, scheme, rounds=10)
    torch.testing.assert_close(secure.model, plain.model, rtol=1e-9, atol=1e-9)
    assert secure.history["stationarity"].isna().all()
    assert secure.history["consensus"].isna().all()


def test_no_rounding_piles_up_and_the_solution_is_that_of_the_pooled_rows() -> None:
    whole, scheme = problem(), rs.fedpi(0.05)
    engine, _ = kept(whole, scheme)
    run = rs.solve(None, shared(scheme), rounds=60, engine=engine)
    torch.testing.assert_close(run.model, whole.minimiser, rtol=0, atol=1e-11)


def test_who_is_away_for_a_round_holds() -> None:
    whole, scheme = problem(), rs.fedpi(0.05)
    nodes = [Node(whole.take(torch.tensor([i])), secure=True) for i in range(USERS)]
    grid = Watched(nodes)
    engine, _ = kept(whole, scheme, grid, rule=HASTY)
    away: dict[int, set[int]] = {2: {1}, 3: {1, 4}, 6: {0}}

    def leave(happened: Any) -> None:
        grid.offline = away.get(happened.number, set())

    secure = rs.solve(None, shared(scheme), rounds=12, engine=engine, callback=leave)
    trace = [[i not in away.get(t, ()) for i in range(USERS)] for t in range(12)]
    plain = rs.solve(whole, scheme, rounds=12, participation=rs.Trace(trace))
    torch.testing.assert_close(secure.model, plain.model, rtol=1e-9, atol=1e-9)


def test_a_node_that_has_lost_what_it_added_is_not_counted_twice() -> None:
    whole, scheme = problem(), rs.fedpi(0.05)
    grid = Watched([Node(whole.take(torch.tensor([i])), secure=True) for i in range(USERS)])
    engine, _ = kept(whole, scheme, grid, rule=HASTY)

    def forget(happened: Any) -> None:
        if happened.number == 2:
            grid.nodes[3] = Node(whole.take(torch.tensor([3])), secure=True)

    run = rs.solve(None, shared(scheme), rounds=9, engine=engine, callback=forget)
    trace = [[t < 2 or i != 3 for i in range(USERS)] for t in range(9)]
    held = rs.solve(whole, scheme, rounds=9, participation=rs.Trace(trace))
    torch.testing.assert_close(run.model, held.model, rtol=1e-9, atol=1e-9)
