"""Accelerations, meetings and stored states as parts: each against a plain loop, and one of a stranger's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.engines.in_process import InProcess
from resolvent.iteration import checkpoint, packing
from resolvent.iteration.acceleration import Acceleration
from resolvent.iteration.engine import Ask
from resolvent.iteration.meeting import MeanThenProx
from resolvent.iteration.part import Cost, Effect
from resolvent.iteration.parts import Parts
from resolvent.iteration.rounds import rounds
from resolvent.iteration.sending import Send
from resolvent.iteration.state import begin
from resolvent.local.bound import Plain

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


def squares(seed: int = 0, users: int = 4) -> rs.LeastSquares:
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((users, 6, 3)), rng.standard_normal((users, 6))
    return rs.LeastSquares(A, b, weights=[1, 2, 3, 1][:users])


def assert_equal(one: Tensor | None, other: Tensor | None) -> None:
    assert one is not None
    assert other is not None
    assert torch.equal(one, other)


# --- momentum --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [rs.fedpi(0.2), rs.fedprox(0.2), rs.fedavg(0.05), rs.fedrp(0.2)], ids=str)
@pytest.mark.parametrize("theta", [0.0, 0.5, 0.9])
def test_momentum_goes_on_along_the_last_step(scheme: rs.Scheme, theta: float) -> None:
    """u_{t+1} = T u_t + theta (u_t - u_{t-1}), with T from a run of one round."""
    problem, seen = squares(), []
    rs.solve(problem, scheme, rounds=12, accelerate=rs.Momentum(theta), callback=lambda r: seen.append(r.state.u))

    def T(u: Tensor) -> Any:
        return rs.solve(problem, scheme, rounds=1, start=u).state.next

    before = u = torch.zeros_like(seen[0])
    for t, found in enumerate(seen):
        torch.testing.assert_close(found, u, rtol=1e-10, atol=1e-12, msg=f"round {t + 1}")
        before, u = u, T(u) + theta * (u - before)


@pytest.mark.parametrize("on", ["u", "mean"])
@pytest.mark.parametrize("scheme", [rs.fedpi(0.2), rs.fedprox(0.2)], ids=str)
def test_momentum_moves_no_fixed_point(scheme: rs.Scheme, on: Any) -> None:
    problem = squares()
    plain = rs.solve(problem, scheme, rounds=2000)
    heavy = rs.solve(problem, scheme, rounds=2000, accelerate=rs.Momentum(0.4, on=on))
    torch.testing.assert_close(heavy.model, plain.model, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("on", ["u", "mean"])
def test_momentum_is_part_of_the_state(on: Any) -> None:
    problem = squares()
    more: dict[str, Any] = {"accelerate": rs.Momentum(0.7, on=on), "participation": rs.Bernoulli(0.6)}
    whole = rs.solve(problem, rs.fedpi(0.2), rounds=20, **more)
    half = rs.solve(problem, rs.fedpi(0.2), rounds=9, **more)
    state = checkpoint.unpack(*checkpoint.pack(half.state))
    rest = rs.solve(problem, rs.fedpi(0.2), rounds=11, start=state, **more)
    assert_equal(whole.state.next, rest.state.next)


def test_what_explain_says_of_momentum() -> None:
    said = rs.explain(rs.fedpi(0.2), squares(), None, rs.Momentum(0.5))
    assert said.solves == "original"
    assert said.theorem is None
    assert "momentum" in said.why


FAST: Any = "fast"
NEITHER: Any = "z"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rs.Momentum(1.0), r"theta is 1.0, but a number in \[0, 1\)"),
        (lambda: rs.Momentum(0.5, on=NEITHER), "either"),
        (lambda: rs.solve(squares(), rs.fedpi(0.1), anderson=FAST), r"rs.Anderson\(memory\), rs.Momentum\(theta\)"),
        (lambda: rs.solve(squares(), rs.fedpi(0.1), anderson=2, accelerate=rs.Momentum(0.5)), "one of the two"),
    ],
)
def test_bad_input(make: Any, words: str) -> None:
    with pytest.raises(rs.InputError, match=words):
        make()


# --- the meeting point -----------------------------------------------------------------------------------------------


def soft_threshold(x: Tensor, step: float) -> Tensor:
    return x.sign() * (x.abs() - 0.3 * step).clamp_min(0)


def lasso(problem: Any, penalty: float) -> Any:
    """sum_i lambda_i f_i + penalty |w|_1 by coordinate descent."""
    lam = problem.weights.numpy()
    A = np.concatenate([np.sqrt(w) * problem.rows.one(i)[0].numpy() for i, w in enumerate(lam)])
    b = np.concatenate([np.sqrt(w) * problem.rows.one(i)[1].numpy() for i, w in enumerate(lam)])
    w = np.zeros(A.shape[1])
    for _ in range(3000):
        for j in range(len(w)):
            pull = A[:, j] @ (b - A @ w + A[:, j] * w[j])
            w[j] = np.sign(pull) * max(abs(pull) - penalty, 0) / (A[:, j] @ A[:, j])
    return w


@pytest.mark.parametrize("scheme", [rs.fedpi(0.2), rs.fedsplit(0.2)], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_a_prox_at_the_meeting_point_solves_the_sum_with_its_function(scheme: rs.Scheme, seed: int) -> None:
    """(2, 2): Douglas-Rachford and Peaceman-Rachford splitting for f + g + consensus, here the lasso."""
    problem = squares(seed)
    engine, u0 = InProcess(problem, rs.ExactProx()), torch.zeros(1, 3, dtype=torch.float64)
    parts = Parts(meet=MeanThenProx(soft_threshold))
    loop = rounds(engine, scheme, begin(u0, u0, 4, scheme, parts), parts)
    for _ in range(3000):
        last = next(loop)
    expected = lasso(problem, 0.3)
    np.testing.assert_allclose(last.model[0].numpy(), expected, rtol=1e-8, atol=1e-10)
    assert (last.model[0].numpy() == 0).tolist() == (expected == 0).tolist()


# --- an acceleration of one's own, in a few lines ---------------------------------------------------------------------


@packing.remembered
@dataclass(frozen=True)
class Halfway:
    """What `Averaging` remembers."""

    total: Tensor | None = None
    count: int = 0
    accepted: bool = True


@dataclass(frozen=True)
class Averaging(Acceleration):
    """The next u is the mean of all T u so far."""

    title = "averaging"

    def begin(self, u: Tensor) -> Halfway:
        return Halfway()

    def restart(self, past: Halfway) -> Halfway:
        return Halfway()

    def fits(self, past: object, rows: int) -> bool:
        return isinstance(past, Halfway)

    def on_u(self, past: Halfway, u: Tensor, Tu: Tensor, gram: Any) -> tuple[Tensor, Halfway]:
        total, count = Tu if past.total is None else past.total + Tu, past.count + 1
        return total / count, Halfway(total, count)


def test_a_stranger_s_acceleration_runs_is_stored_and_goes_on(tmp_path: Any) -> None:
    problem = squares()
    whole = rs.solve(problem, rs.fedpi(0.2), rounds=14, accelerate=Averaging())
    half = rs.solve(problem, rs.fedpi(0.2), rounds=6, accelerate=Averaging())
    half.save(tmp_path / "run")
    loaded = rs.Run.load(tmp_path / "run")
    rest = rs.solve(problem, rs.fedpi(0.2), rounds=8, accelerate=Averaging(), start=loaded.state)
    assert_equal(whole.state.next, rest.state.next)
    assert whole.state.parts.accelerate.count == rest.state.parts.accelerate.count == 14


def test_a_class_that_nobody_knows_is_refused() -> None:
    state = rs.solve(squares(), rs.fedpi(0.2), rounds=2, accelerate=Averaging()).state
    tensors, numbers = checkpoint.pack(state)
    numbers["parts"]["accelerate"]["class"] = "Unheard"
    with pytest.raises(ValueError, match="no part that is installed here remembers Unheard"):
        checkpoint.unpack(tensors, numbers)


@dataclass(frozen=True)
class NotRemembered:
    accepted: bool = True


def test_only_remembered_dataclasses_are_stored() -> None:
    with pytest.raises(TypeError, match="a NotRemembered, which cannot be stored"):
        packing.pack(NotRemembered())
    with pytest.raises(TypeError, match="another class named State"):
        packing.remembered(type("State", (), {}))


def test_packing_keeps_every_bit() -> None:
    nested = Halfway(torch.tensor([0.1, float("nan"), -0.0]), 3, False)
    value = {"a": (1, 0.1, None, "x", True), "b": {"c.d": nested}, "e": float("inf")}
    tensors, tree = packing.pack(value)
    import json

    back = packing.unpack(tensors, json.loads(json.dumps(tree)))
    assert back["a"] == value["a"]
    assert back["e"] == float("inf")
    found = back["b"]["c.d"]
    assert isinstance(found, Halfway)
    assert (found.count, found.accepted) == (3, False)
    assert found.total is not None
    assert found.total.numpy().tobytes() == nested.total.numpy().tobytes()


# --- what crosses, and the centre ------------------------------------------------------------------------------------


@packing.remembered
@dataclass(frozen=True, eq=False)
class SentBefore:
    zhat: Tensor


@dataclass(frozen=True)
class Largest(Send):
    """Of what is new in z, the largest coordinates of each user."""

    count: int

    def begin(self, u: Tensor) -> SentBefore:
        return SentBefore(torch.zeros_like(u))

    def fits(self, past: object, rows: int) -> bool:
        return isinstance(past, SentBefore) and len(past.zhat) == rows

    def __call__(self, z: Tensor, memory: SentBefore, ask: Ask) -> tuple[Tensor, SentBefore]:
        new = z - memory.zhat
        top = new.abs().topk(self.count, dim=1).indices
        sent = memory.zhat + torch.zeros_like(new).scatter(1, top, new.gather(1, top))
        zhat = sent if ask.who is None else memory.zhat.index_copy(0, ask.who, sent[ask.who])
        return zhat, SentBefore(zhat)

    def law(self, setting: Any) -> Effect:
        return Effect(uncovered="no theorem covers what is left out of z")

    def cost(self, dim: int) -> Cost:
        return Cost(up=2 * self.count)


@pytest.mark.parametrize("who", [None, rs.Bernoulli(0.7)])
@pytest.mark.parametrize("engine", ["in_process", "debug"])
def test_a_compressor_is_one_part(who: Any, engine: str) -> None:
    """It moves no fixed point, is counted and explained, and its memory is part of the State."""
    problem, more = squares(), {"send": Largest(1), "participation": who, "engine": engine}
    whole = rs.solve(problem, rs.fedpi(0.1), rounds=600 if engine == "in_process" else 40, every=10, **more)
    half = rs.solve(problem, rs.fedpi(0.1), rounds=30, **more)
    state = checkpoint.unpack(*checkpoint.pack(half.state))
    rest = rs.solve(problem, rs.fedpi(0.1), rounds=10, start=state, **more)
    assert_equal(rs.solve(problem, rs.fedpi(0.1), rounds=40, **more).state.next, rest.state.next)
    assert "what is left out of z" in whole.explanation.why
    if engine == "in_process":
        torch.testing.assert_close(whole.model, problem.minimiser, rtol=1e-6, atol=1e-6)
    rows = half.history
    assert (rows.bytes_up == 2 * 8 * rows.participants).all()
    assert (rows.bytes_down == 3 * 8 * rows.participants).all()


def test_users_who_share_u_part_where_each_sends_its_own() -> None:
    run = rs.solve(squares(), rs.fedprox(0.1), rounds=5, send=Largest(2))
    assert not run.state.together


@dataclass(frozen=True)
class TowardsCentre:
    """Half a prox, half the way to mean(u): an operator that asks for the centre."""

    needs = frozenset({"prox"})
    forward, certifies, wants_centre = False, None, True

    def bind(self, problem: Any, steady: bool) -> Any:
        def answer(part: Any, ask: Ask, u: Tensor) -> Tensor:
            assert ask.centre is not None
            return (part.prox(u, ask.eta) + ask.centre) / 2

        return Plain(problem, answer)


@pytest.mark.parametrize("name", ["fedpi", "fedprox"])
@pytest.mark.parametrize("engine", ["in_process", "debug"])
@pytest.mark.parametrize("who", [None, rs.Trace([[1, 0, 1, 1], [1, 1, 0, 1]])])
def test_an_operator_may_ask_for_the_centre(name: str, engine: str, who: Any) -> None:
    """mean(u) of the rows at which users answer, and twice as many numbers go down."""
    problem, seen = squares(), list[rs.Round]()
    scheme = rs.TABLE[name].scheme(0.1, TowardsCentre())
    run = rs.solve(problem, scheme, rounds=6, engine=engine, participation=who, callback=seen.append)
    last = seen[-1]
    u = last.state.u.expand(4, -1)
    centre = problem.weights @ u
    some = slice(None) if last.who is None else last.who
    expected = (problem.prox(u, 0.1) + centre) / 2
    if not last.state.together:
        torch.testing.assert_close(last.state.p[some], expected[some])
    assert (run.history.bytes_down == 2 * 3 * 8 * run.history.participants).all()


def test_a_keyword_that_is_no_part_is_refused_with_the_nearest() -> None:
    misspelt: Any = {"partcipation": 0.5}
    number: Any = 3
    with pytest.raises(rs.InputError, match="did you mean participation"):
        rs.solve(squares(), rs.fedpi(0.1), **misspelt)
    with pytest.raises(rs.InputError, match="send is 3, but None"):
        rs.solve(squares(), rs.fedpi(0.1), send=number)
    elsewhere: Any = {"absent": "paper"}
    with pytest.raises(rs.InputError, match=r"one of a participation: rs\.Bernoulli\(0\.5, absent="):
        rs.solve(squares(), rs.fedpi(0.1), **elsewhere)


class HalfANumber(Largest):
    def cost(self, dim: int) -> Cost:
        return Cost(up=dim / 2)  # type: ignore[arg-type]


def test_a_cost_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(rs.InputError, match=r"Cost\(up=\) is 1\.5, but a whole number >= 0 is needed"):
        rs.solve(squares(), rs.fedpi(0.1), rounds=2, send=HalfANumber(1))


def test_fedpi_and_fedsplit_find_their_own_eta() -> None:
    assert rs.fedpi().auto
    assert rs.fedsplit().auto
