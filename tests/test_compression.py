"""Compressors with memory: no fixed point moves, little is lost, bytes are true, and engines agree."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resolvent as rs
from resolvent.engines.debug import Debug
from resolvent.iteration import checkpoint
from resolvent.iteration.engine import Ask
from resolvent.iteration.sending import Send

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")
USERS, DIM, ETA = 10, 40, 0.02
ALL = [rs.TopK(0.25), rs.TopK(0.1), rs.RandomK(0.25), rs.Quantised(8), rs.Quantised(2), rs.Quantised(1)]


def squares(users: int = USERS, dim: int = DIM, seed: int = 0, dtype: Any = np.float64) -> rs.LeastSquares:
    """Users who differ: each has its own w beside a common one."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((users, 3 * dim // 2, dim))
    own = rng.standard_normal(dim) + 0.5 * rng.standard_normal((users, dim))
    b = np.einsum("urd,ud->ur", A, own) + rng.standard_normal(A.shape[:2])
    return rs.LeastSquares(A.astype(dtype), b.astype(dtype), weights=np.arange(1, users + 1))


@cache
def common() -> rs.LeastSquares:
    return squares()


def error(run: rs.Run, problem: Any = None) -> float:
    best = (problem or common()).minimiser
    return float((run.model - best).norm() / best.norm())


@cache
def rounds_needed(send: Send | None, present: float = 1.0) -> int:
    """Until the model is right to 1e-8."""
    best, reached = common().minimiser, list[int]()

    def look(happened: rs.Round) -> bool:
        if float((happened.model[0] - best).norm()) <= 1e-8 * float(best.norm()):
            reached.append(happened.number)
        return bool(reached)

    more: dict[str, Any] = {"participation": present} if present < 1 else {}
    rs.solve(common(), rs.fedpi(ETA), rounds=800, send=send, stop=look, every=50, progress=False, **more)
    return reached[0]


# --- what is reached, and how soon -----------------------------------------------------------------------------------


@pytest.mark.parametrize("send", ALL, ids=str)
def test_no_fixed_point_moves(send: Send) -> None:
    """A run that has arrived, and whose meeting has all of z, stays where it is; from zero the solution is reached."""
    dense = rs.solve(common(), rs.fedpi(ETA), rounds=400, every=100, progress=False)
    on = rs.solve(common(), rs.fedpi(ETA), rounds=30, start=dense.state, send=send, progress=False)
    assert error(on) < 1e-12
    assert rounds_needed(send) < 800


@pytest.mark.parametrize("scheme", [rs.fedprox(ETA), rs.fedrp(ETA), rs.fedavg(0.002, steps=3)], ids=str)
@pytest.mark.parametrize("send", [rs.TopK(0.25), rs.Quantised(4)], ids=str)
def test_other_schemes_keep_theirs(scheme: rs.Scheme, send: Send) -> None:
    dense = rs.solve(common(), scheme, rounds=700, every=700, progress=False)
    sent = rs.solve(common(), scheme, rounds=1000, every=1000, send=send, progress=False)
    torch.testing.assert_close(sent.model, dense.model, rtol=1e-9, atol=1e-9)


def test_rounds_that_compression_costs() -> None:
    dense = rounds_needed(None)
    assert rounds_needed(rs.TopK(0.25)) <= 1.5 * dense
    assert rounds_needed(rs.TopK(0.1)) <= 2.5 * dense
    assert rounds_needed(rs.RandomK(0.25)) <= 5 * dense
    assert rounds_needed(rs.Quantised(8)) <= 1.1 * dense
    assert rounds_needed(rs.TopK(0.25), present=0.5) <= 1.5 * rounds_needed(None, present=0.5)


class Naive(Send):
    """The largest coordinates of z itself, and zero for the others: no memory."""

    def __call__(self, z: Tensor, memory: Any, ask: Ask) -> tuple[Tensor, Any]:
        top = z.abs().topk(z.shape[1] // 4, dim=1).indices
        return torch.zeros_like(z).scatter(1, top, z.gather(1, top)), memory


def test_without_memory_the_same_compressor_stalls() -> None:
    naive = rs.solve(common(), rs.fedpi(ETA), rounds=400, every=100, send=Naive(), progress=False)
    assert error(naive) > 0.05


@pytest.mark.parametrize("who", [None, rs.Bernoulli(0.5), rs.Bernoulli(0.5, absent="paper")], ids=str)
@pytest.mark.parametrize("send", [rs.TopK(1.0), rs.RandomK(1)], ids=str)
def test_all_coordinates_are_everything(send: Send, who: Any) -> None:
    given: dict[str, Any] = {"rounds": 30, "participation": who, "progress": False}
    for scheme in (rs.fedpi(ETA), rs.fedprox(ETA)):
        dense = rs.solve(common(), scheme, **given)
        sent = rs.solve(common(), scheme, send=send, **given)
        torch.testing.assert_close(sent.model, dense.model, rtol=1e-10, atol=1e-12)
        assert sent.history.bytes_up.tolist() == dense.history.bytes_up.tolist()


@pytest.mark.parametrize("send", [rs.TopK(0.25), rs.Quantised(4)], ids=str)
def test_it_goes_with_automatic_eta_anderson_and_a_penalty(send: Send) -> None:
    given: dict[str, Any] = {"rounds": 400, "every": 100, "send": send, "progress": False}
    assert error(rs.solve(common(), rs.fedpi("auto"), **given)) < 1e-8
    assert error(rs.solve(common(), rs.fedpi(ETA), anderson=5, **given)) < 1e-8
    sparse = rs.solve(common(), rs.fedpi(ETA), penalty=rs.L1(20.0), **given)
    dense = rs.solve(common(), rs.fedpi(ETA), penalty=rs.L1(20.0), rounds=400, every=100, progress=False)
    torch.testing.assert_close(sparse.model, dense.model, rtol=1e-8, atol=1e-8)
    assert bool((sparse.model == 0).any())


@pytest.mark.parametrize("send", ALL, ids=str)
def test_float32(send: Send) -> None:
    problem = squares(dtype=np.float32)
    run = rs.solve(problem, rs.fedpi(ETA), rounds=500, every=100, send=send, progress=False)
    assert run.model.dtype == torch.float32
    assert error(run, problem) < 1e-4


def network() -> rs.Neural:
    torch.manual_seed(0)
    centres = 2 * torch.randn(3, 4)
    labels = [torch.randint(0, 3, (20,)) for _ in range(4)]
    users = [(centres[y] + torch.randn(20, 4), y) for y in labels]
    return rs.Neural(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), users)


@pytest.mark.parametrize("send", [rs.TopK(0.1), rs.RandomK(0.2), rs.Quantised(4)], ids=str)
def test_networks_improve(send: Send) -> None:
    run = rs.solve(network(), rs.fedavg(0.1, steps=5), rounds=30, send=send, progress=False)
    assert run.history.value.iloc[-1] < 0.6 * run.history.value.iloc[0]


# --- each compressor by itself ---------------------------------------------------------------------------------------


def received(send: Any, z: Tensor, zhat: Tensor, **ask: Any) -> Tensor:
    got: Tensor = send(z, type(send.begin(zhat))(zhat), Ask(3, 0.1, **ask))[0]
    return got


@pytest.mark.parametrize("send", ALL, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_laws(send: Any, seed: int) -> None:
    """C(0) = 0; every row comes no farther away; absent rows stay; a user draws the same wherever its row is."""
    rng = torch.Generator().manual_seed(seed)
    z, zhat = (torch.randn(6, 9, generator=rng, dtype=torch.float64) * 10**seed for _ in range(2))
    assert torch.equal(received(send, z, z), z)
    got = received(send, z, zhat)
    assert bool(((z - got).norm(dim=1) <= (z - zhat).norm(dim=1) * (1 + 1e-12)).all())
    assert not torch.equal(got, zhat)
    who = torch.tensor([1, 4])
    some = received(send, z, zhat, who=who)
    assert torch.equal(some[who], got[who])
    rest = torch.tensor([0, 2, 3, 5])
    assert torch.equal(some[rest], zhat[rest])
    nobody = received(send, z, zhat, who=torch.tensor([], dtype=torch.long))
    assert torch.equal(nobody, zhat)
    on_a_rank = received(send, z[3:], zhat[3:], names=torch.arange(3, 6), who=torch.tensor([1]))
    assert torch.equal(on_a_rank[1], got[4])


def test_what_crosses() -> None:
    z, zhat = torch.tensor([[1.0, -5.0, 3.0, 0.5]]), torch.tensor([[1.0, -1.0, 0.0, 0.0]])
    assert received(rs.TopK(0.5), z, zhat).tolist() == [[1.0, -5.0, 3.0, 0.0]]
    assert received(rs.TopK(0.01), z, zhat).tolist() == [[1.0, -5.0, 0.0, 0.0]]
    assert received(rs.Quantised(2), z, zhat).tolist() == [[1.0, -5.0, 4.0, 0.0]]
    assert received(rs.Quantised(1), z, zhat).tolist() == [[1 + 7.5 / 4, -1 - 7.5 / 4, 7.5 / 4, 7.5 / 4]]
    drawn = [received(rs.RandomK(0.25), torch.ones(1, 4), torch.zeros(1, 4), seed=seed) for seed in range(50)]
    assert {int(row.argmax()) for row in drawn} == {0, 1, 2, 3}
    assert all(int(row.sum()) == 1 for row in drawn)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("send", "of"),
    [
        (rs.TopK(0.1), lambda size: 4 * size + 4 * 4),
        (rs.TopK(1.0), lambda size: DIM * size),
        (rs.RandomK(0.1), lambda size: 4 * size),
        (rs.Quantised(), lambda size: DIM + size),
        (rs.Quantised(3), lambda size: math.ceil(DIM * 3 / 8) + size),
    ],
    ids=["top", "all", "random", "quantised", "three bits"],
)
@pytest.mark.parametrize("who", [None, rs.Bernoulli(0.5)])
def test_bytes_are_what_a_network_would_carry(send: Send, of: Any, dtype: Any, who: Any) -> None:
    run = rs.solve(squares(dtype=dtype), rs.fedpi(ETA), rounds=6, send=send, participation=who, progress=False)
    size, rows = np.dtype(dtype).itemsize, run.history
    assert rows.bytes_up.tolist() == (of(size) * rows.participants).tolist()
    assert rows.bytes_down.tolist() == (DIM * size * rows.participants).tolist()


def test_an_automatic_eta_pays_for_the_mean_that_was_not_sent() -> None:
    """It looks before rounds 1, 2, 3, 5, 9 at mean(p), which the meeting of compressed z does not have."""
    dense, sent = (
        rs.solve(common(), rs.fedpi("auto"), rounds=9, send=send, metric="identity", progress=False).history.bytes_up
        for send in (None, rs.RandomK(0.1))
    )
    less = USERS * 8 * (DIM - 4)
    assert (dense - sent).tolist() == [less - (USERS * DIM * 8 if t in (2, 3, 5, 9) else 0) for t in range(1, 10)]


# --- what is said of it ----------------------------------------------------------------------------------------------


def test_nothing_is_certified_that_the_meeting_does_not_know() -> None:
    """Certificates are NaN, and the residual counts what has not been sent: it bounds that of T with the whole z."""
    seen = list[rs.Round]()
    run = rs.solve(common(), rs.fedpi(ETA), rounds=40, send=rs.TopK(0.1), callback=seen.append, progress=False)
    assert run.history.stationarity.isna().all()
    assert run.history.consensus.isna().all()
    assert not any(each.certified for each in seen)
    for each in seen:
        whole = rs.solve(common(), rs.fedpi(ETA), rounds=1, start=each.state.u, progress=False).history.residual.iloc[0]
        assert whole <= each.residual * (1 + 1e-9)
    np.testing.assert_allclose([each.residual for each in seen], run.history.residual, rtol=1e-12)
    stopped = rs.solve(common(), rs.fedpi(ETA), rounds=40, send=rs.TopK(0.1), stop=rs.Stop(certificates=1e9))
    assert stopped.status == "finished"
    everything = rs.solve(common(), rs.fedpi(ETA), rounds=40, send=rs.TopK(1.0), progress=False)
    assert everything.history.stationarity.notna().all()


def test_explain() -> None:
    said = rs.explain(rs.fedpi(ETA), common(), send=rs.TopK(0.1))
    assert said.solves == "original"
    assert said.theorem is None
    assert "lags behind z" in said.why
    assert rs.explain(rs.fedpi(ETA), common(), send=rs.TopK(1.0)).theorem is not None
    both = rs.explain(rs.fedpi(ETA), common(), anderson=5, send=rs.Quantised())
    assert any("what the meeting lacks changes every round" in str(finding) for finding in both.findings)


WRONG: Any = "much"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rs.TopK(0), r"share is 0, but a share of the coordinates in \(0, 1\] is needed"),
        (lambda: rs.TopK(1.01), r"share is 1.01, but"),
        (lambda: rs.RandomK(-0.1), r"share is -0.1, but"),
        (lambda: rs.RandomK(WRONG), r"share is 'much', but"),
        (lambda: rs.TopK(math.nan), r"share is nan, but"),
        (lambda: rs.Quantised(0), "bits is 0, but a whole number >= 1 is needed"),
        (lambda: rs.Quantised(17), "bits is 17, but a whole number from 1 to 16 is needed"),
        (lambda: rs.Quantised(WRONG), "bits is 'much'"),
    ],
)
def test_bad_input(make: Any, sentence: str) -> None:
    with pytest.raises(rs.InputError, match=sentence):
        make()


@pytest.mark.parametrize("send", ALL, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_encoded_is_decoded_to_the_same_bits(send: Any, dtype: torch.dtype) -> None:
    """And takes the bytes that are stated, places included."""
    rng = torch.Generator().manual_seed(1)
    for dim in (1, 7, 40):
        z, zhat = (torch.randn(1, dim, generator=rng).to(dtype) for _ in range(2))
        z[0, dim // 2] = zhat[0, dim // 2]
        ask = Ask(3, 0.1, names=torch.tensor([4]), seed=7)
        arrays = send.encode(z, zhat, ask)
        assert torch.equal(send.decode(arrays, zhat, ask), send.receive(z, zhat, ask))
        cost = send.cost(dim)
        assert sum(each.nbytes for each in arrays.values()) == cost.up * dtype.itemsize + cost.bytes_up
        with pytest.raises(ValueError, match="its arrays are not"):
            send.decode(arrays | {"more": z}, zhat, ask)
    wrong = {"values": torch.zeros(2), "places": torch.tensor([1, 1], dtype=torch.int32)}
    with pytest.raises(ValueError, match="its places are not coordinates, each once"):
        rs.TopK(0.5).decode(wrong, torch.zeros(1, 4), ask)
    wrong = {"codes": torch.tensor([255], dtype=torch.uint8), "scale": torch.ones(1)}
    with pytest.raises(ValueError, match="its codes are none of these bits"):
        rs.Quantised(2).decode(wrong, torch.zeros(1, 4), ask)


# --- on the way down -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("down", [rs.TopK(0.25), rs.RandomK(0.5), rs.Quantised(4)], ids=str)
@pytest.mark.parametrize("send", [None, rs.TopK(0.25)], ids=str)
@pytest.mark.parametrize("present", [1.0, 0.5])
def test_users_who_are_told_what_is_new_reach_the_same_solution(down: Send, send: Send | None, present: float) -> None:
    """The iteration is u += C(T u - u); the pairs (u_i, p_i) are those of points that users know."""
    given: dict[str, Any] = {"send": send, "down": down, "participation": None if present == 1 else present}
    run = rs.solve(common(), rs.fedpi(ETA), rounds=900, every=300, progress=False, **given)
    assert error(run) < 1e-8
    if send is None:
        p = common().prox(run.state.u, ETA)
        torch.testing.assert_close(run.state.p, p, rtol=1e-9, atol=1e-9)
        assert run.history.stationarity.iloc[-1] < 1e-4
    size, rows = down.cost(DIM), run.history
    if present == 1:
        assert rows.bytes_down.tolist()[0] == 300 * USERS * (size.up * 8 + size.bytes_up)


@pytest.mark.parametrize("scheme", [rs.fedprox(ETA), rs.fedavg(0.002, steps=3), rs.scaffold(0.002, 5)], ids=str)
def test_other_schemes_keep_their_fixed_points_on_the_way_down(scheme: rs.Scheme) -> None:
    dense = rs.solve(common(), scheme, rounds=700, every=700, progress=False)
    told = rs.solve(common(), scheme, rounds=1000, every=1000, down=rs.TopK(0.25), progress=False)
    torch.testing.assert_close(told.model, dense.model, rtol=1e-8, atol=1e-8)


def test_what_is_said_of_the_way_down() -> None:
    said = rs.explain(rs.fedpi(ETA), common(), down=rs.TopK(0.1))
    assert said.solves == "original"
    assert "users who lag behind u" in said.why
    with pytest.raises(rs.InputError, match="down is 3, but None, or a part that inherits from"):
        rs.solve(common(), rs.fedpi(ETA), down=3, progress=False)  # type: ignore[arg-type]


# --- resumed, and elsewhere ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send", [rs.TopK(0.1), rs.RandomK(0.1), rs.Quantised(3)], ids=str)
@pytest.mark.parametrize("who", [None, rs.Bernoulli(0.5)], ids=str)
def test_a_run_that_goes_on_has_the_same_bits(send: Send, who: Any) -> None:
    given: dict[str, Any] = {"send": send, "down": send, "participation": who, "seed": 5, "progress": False}
    whole = rs.solve(common(), rs.fedpi(ETA), rounds=20, **given)
    half = rs.solve(common(), rs.fedpi(ETA), rounds=9, **given)
    state = checkpoint.unpack(*checkpoint.pack(half.state))
    rest = rs.solve(common(), rs.fedpi(ETA), rounds=11, start=state, **given)
    assert whole.state.next is not None
    assert rest.state.next is not None
    assert torch.equal(whole.state.next, rest.state.next)
    assert torch.equal(whole.state.parts.send.zhat, rest.state.parts.send.zhat)


def test_a_dense_run_goes_on_compressed_and_back() -> None:
    dense = rs.solve(common(), rs.fedpi(ETA), rounds=20, progress=False)
    sent = rs.solve(common(), rs.fedpi(ETA), rounds=200, start=dense.state, send=rs.TopK(0.25), progress=False)
    again = rs.solve(common(), rs.fedpi(ETA), rounds=200, start=sent.state, progress=False)
    assert error(again) < 1e-10


@pytest.mark.parametrize("send", [rs.TopK(0.1), rs.RandomK(0.1), rs.Quantised(3)], ids=str)
def test_several_seeds_at_once_and_one_user_at_a_time_take_the_same_way(send: Send) -> None:
    given: dict[str, Any] = {"rounds": 4, "send": send, "participation": 0.5, "progress": False}
    together = rs.solve_seeds(network(), rs.fedavg(0.1, steps=2), [0, 1], **given)
    for seed, run in enumerate(together):
        alone = rs.solve(network(), rs.fedavg(0.1, steps=2), seed=seed, **given)
        assert torch.equal(run.model, alone.model)
    problem = squares(users=5, dim=12)
    slow = rs.solve(problem, rs.fedpi(ETA), engine=Debug(problem, rs.ExactProx()), **given)
    torch.testing.assert_close(slow.model, rs.solve(problem, rs.fedpi(ETA), **given).model, rtol=1e-10, atol=1e-12)
