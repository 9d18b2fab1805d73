"""A user's own functions: stacked or one a user, given or derived, whole or taken apart, they say the same."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

import resolvent as rs
from resolvent.errors import BadAnswer, InputError
from resolvent.problems.custom import Custom
from resolvent.problems.problem import Problem
from resolvent.problems.simple import Quadratics

pytestmark = pytest.mark.filterwarnings("error")
laws = settings(deadline=None, max_examples=40)

USERS, DIM = 3, 2
WORDS = ("value", "grad", "prox", "hessian")


def tensors(*shape: int, low: float = -10.0) -> st.SearchStrategy[Tensor]:
    return hnp.arrays(np.float64, shape, elements=st.floats(low, 10.0, allow_subnormal=False)).map(torch.from_numpy)


@st.composite
def quadratics(draw: Any) -> Quadratics:
    return Quadratics(draw(tensors(USERS, low=0.1)), draw(tensors(USERS, DIM)), draw(tensors(USERS, low=0.1)))


def together(model: Quadratics, *words: str, **more: Any) -> Custom:
    return Custom(USERS, DIM, **{word: getattr(model, word) for word in words}, weights=model.weights, **more)


def apart(model: Quadratics, *words: str, **more: Any) -> Custom:
    """One function a user, each of which sees its own row only."""

    def own(word: str, user: int) -> Callable[..., Tensor]:
        alone = model.take(torch.tensor([user]))
        return lambda w, *eta: getattr(alone, word)(w[None], *eta)[0]

    functions: dict[str, Any] = {word: [own(word, user) for user in range(USERS)] for word in words}
    return Custom(USERS, DIM, **functions, weights=model.weights, **more)


BUILDERS = pytest.mark.parametrize("build", [together, apart])


def ask(problem: Any, word: str, W: Tensor) -> Tensor:
    answer: Tensor = problem.prox(W, 0.7) if word == "prox" else getattr(problem, word)(W)
    return answer


@BUILDERS
@laws
@given(model=quadratics(), W=tensors(USERS, DIM))
def test_custom_says_what_the_functions_say(build: Any, model: Quadratics, W: Tensor) -> None:
    custom = build(model, *WORDS)
    assert isinstance(custom, Problem)
    assert custom.offers == set(WORDS)
    assert custom.closed_form
    for word in WORDS:
        torch.testing.assert_close(ask(custom, word, W), ask(model, word, W))
        torch.testing.assert_close(ask(custom, word, W[:1]), ask(model, word, W[:1].expand(USERS, -1)))
        torch.testing.assert_close(ask(custom, word, W[0]), ask(model, word, W[:1]))


@BUILDERS
@laws
@given(model=quadratics(), W=tensors(USERS, DIM), who=st.permutations(range(USERS)), n=st.integers(1, USERS))
def test_take_is_slicing(build: Any, model: Quadratics, W: Tensor, who: list[int], n: int) -> None:
    custom = build(model, *WORDS, lipschitz=model.curvature, convexity=0.1, minimiser=model.minimiser)
    chosen = torch.tensor(who[:n])
    part = custom.take(chosen)
    last = part.take(torch.tensor([-1]))  # taken twice
    torch.testing.assert_close(part.weights, model.weights[chosen] / model.weights[chosen].sum())
    torch.testing.assert_close(part.lipschitz, model.curvature[chosen])
    assert part.convexity.tolist() == [0.1] * n
    assert part.minimiser is None
    assert part.fstar is None
    for word in WORDS:
        whole = ask(model, word, W)
        torch.testing.assert_close(ask(part, word, W[chosen]), whole[chosen])
        torch.testing.assert_close(ask(last, word, W[chosen[-1:]]), whole[chosen[-1:]])


def test_users_who_are_not_taken_are_not_asked() -> None:
    asked: list[int] = []

    def watched(user: int) -> Callable[[Tensor, float], Tensor]:
        def prox(u: Tensor, eta: float) -> Tensor:
            asked.append(user)
            return u

        return prox

    custom = Custom(3, 1, prox=[watched(user) for user in range(3)])
    custom.take(torch.tensor([2, 1])).take(torch.tensor([0])).prox(torch.zeros(1, 1), 1.0)
    assert asked == [2]


def test_take_by_mask() -> None:
    model = Quadratics([1, 2, 3], [[0, 0], [1, 1], [2, 2]])
    part = together(model, "value").take(torch.tensor([True, False, True]))
    W = torch.ones(2, 2, dtype=torch.float64)
    torch.testing.assert_close(part.value(W), model.value(W[:1])[[0, 2]])


@BUILDERS
@laws
@given(model=quadratics(), W=tensors(USERS, DIM))
def test_the_gradient_is_derived_from_value(build: Any, model: Quadratics, W: Tensor) -> None:
    custom = build(model, "value")
    assert custom.offers == {"value", "grad"}
    assert not custom.closed_form
    torch.testing.assert_close(custom.grad(W), model.grad(W))
    torch.testing.assert_close(custom.take(torch.tensor([2, 0])).grad(W[[2, 0]]), model.grad(W)[[2, 0]])
    assert not custom.grad(W).requires_grad
    assert not W.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(custom.grad(W[:1]), model.grad(W[:1]))
    with torch.inference_mode():
        torch.testing.assert_close(custom.grad(W * 1.0), model.grad(W))


def test_the_derived_gradient_of_a_function_that_is_not_quadratic() -> None:
    custom = Custom(2, 1, value=[lambda w: w.exp().sum(), lambda w: w.sin().sum()])
    W = torch.tensor([[0.3], [0.4]], dtype=torch.float64)
    assert custom.grad(W).flatten().tolist() == pytest.approx([math.exp(0.3), math.cos(0.4)])


@pytest.mark.parametrize(
    "value",
    [
        lambda W: W.detach().numpy().sum(1) if not W.requires_grad else W.numpy(),
        lambda W: [float(w.sum()) for w in W],
        lambda W: W.sum(1) + float(W[0, 0]),  # a graph, but a part of it lost
        lambda W: np.zeros(len(W)),
    ],
)
def test_no_gradient_is_promised_where_torch_cannot_see(value: Callable[[Tensor], Any]) -> None:
    for _ in range(2):  # torch warns of float() once in a process: the second time must be like the first
        custom = Custom(2, 1, value=value, prox=lambda U, eta: U)
        assert custom.offers == {"value", "prox"}
        assert custom.value(torch.ones(1, 1)).shape == (2,)
        assert custom.take(torch.tensor([1])).offers == {"value", "prox"}


@laws
@given(model=quadratics(), W=tensors(5, DIM))
def test_gap_with_a_known_minimiser(model: Quadratics, W: Tensor) -> None:
    custom = together(model, "value", minimiser=model.minimiser)
    assert custom.fstar == pytest.approx(model.fstar)
    gap = custom.gap(W)
    assert gap is not None
    torch.testing.assert_close(gap, model.gap(W), rtol=1e-9, atol=1e-9)
    assert together(model, "value").gap(W) is None
    assert together(model, "grad", minimiser=model.minimiser).fstar is None


def test_functions_that_work_in_place_do_no_harm() -> None:
    def halve(U: Tensor, eta: float) -> Tensor:
        return U.mul_(0.5)

    def lowered(W: Tensor) -> Tensor:
        return W.sub_(1).square().sum(1)

    custom = Custom(2, 1, value=lowered, prox=halve)
    W = torch.full((2, 1), 4.0, dtype=torch.float64)
    assert custom.prox(W, 1.0).tolist() == [[2.0], [2.0]]
    assert custom.value(W).tolist() == [9.0, 9.0]
    assert custom.prox(W[:1], 1.0).tolist() == [[2.0], [2.0]]
    assert custom.grad(W).tolist() == [[6.0], [6.0]]
    assert W.tolist() == [[4.0], [4.0]]


def test_functions_that_answer_with_an_array_of_theirs_do_no_harm() -> None:
    c, same = np.array([[0.0, 1.0], [2.0, -2.0], [7.0, 3.0]]), np.empty((3, 2))

    def prox(U: Any, eta: float) -> Any:
        return (np.asarray(U) + eta * c) / (1 + eta)

    def filled(U: Any, eta: float) -> Any:
        same[...] = prox(U, eta)
        return same

    runs = [rs.solve(Custom(3, 2, prox=f), "fedpi", rounds=12, start=np.ones(2)) for f in (prox, filled)]
    assert runs[0].model.equal(runs[1].model)
    assert runs[0].personal.equal(runs[1].personal)
    for column in ("eta", "residual", "consensus", "stationarity"):
        np.testing.assert_array_equal(runs[0].history[column], runs[1].history[column])


def test_dtype_and_numpy_results() -> None:
    custom = Custom(2, 1, prox=lambda U, eta: np.asarray(U) / (1 + eta), dtype=torch.float32, lipschitz=1)
    assert custom.weights.dtype == custom.prox(np.ones((2, 1)), 1.0).dtype == torch.float32  # type: ignore[arg-type]
    assert custom.lipschitz is not None
    assert custom.lipschitz.tolist() == [1.0, 1.0]


def prox(U: Tensor, eta: float) -> Tensor:
    return U


W1 = torch.zeros(1, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Custom(2, 1), "grad prox value needed"),
        (lambda: Custom(2, 1, hessian=lambda W: W), "grad prox"),
        (lambda: Custom(2, 1, value=lambda W: np.zeros(2)), "grad value torch"),
        (lambda: Custom(2, 1, prox=lambda U: U), "prox arguments prox(U, eta)"),
        (lambda: Custom(2, 1, value=lambda W: np.abs(W).sum(1), hessian=True), "hessian True value torch"),
        (lambda: Custom(0, 1, prox=prox), "users 0"),
        (lambda: Custom(1, 0, prox=prox), "dim 0"),
        (lambda: Custom(2, 1, prox=[prox]), "prox 1 2 users"),
        (lambda: Custom(2, 1, prox=[prox, 3]), "prox[1] int function"),  # type: ignore[list-item]
        (lambda: Custom(2, 1, prox=prox, weights=[1, -1]), "weights negative"),
        (lambda: Custom(2, 1, prox=prox, minimiser=[1, 2]), "minimiser (2,) 1"),
        (lambda: Custom(2, 1, prox=prox, minimiser=[math.nan]), "minimiser coordinate 0"),
        (lambda: Custom(2, 1, prox=prox, lipschitz=[1, 2, 3]), "lipschitz (3,) 2"),
        (lambda: Custom(2, 1, prox=prox, lipschitz=[1, math.inf]), "lipschitz user 1"),
        (lambda: Custom(2, 1, prox=prox, convexity=[1, -1]), "convexity user 1 >= 0"),
        (lambda: Custom(2, 1, prox=prox, dtype=torch.int64), "dtype int64"),
        (lambda: Custom(2, 1, value=lambda W: W), "value (2, 1) (2,)"),
        (lambda: Custom(2, 1, prox=lambda U, eta: U[0]).prox(W1, 1.0), "prox (1,) (2, 1)"),
        (lambda: Custom(2, 1, grad=[lambda w: w, lambda w: w[0]]).grad(W1), "grad[1] () (1,)"),
        (lambda: Custom(2, 1, grad=lambda W: W, hessian=lambda W: W).hessian(W1), "hessian (2, 1) (2, 1, 1)"),
        (lambda: Custom(2, 1, prox=prox).value(W1), "value given Custom"),
        (lambda: Custom(2, 1, prox=prox).grad(W1), "grad given Custom"),
        (lambda: Custom(2, 1, grad=lambda W: W).prox(W1, 1.0), "prox given Custom"),
        (lambda: Custom(2, 1, prox=prox).prox(torch.zeros(2, 3), 1.0), "W (2, 3) (2, 1)"),
        (lambda: Custom(2, 1, prox=prox).take(torch.tensor([0, 0])), "who twice prox"),
        (lambda: Custom(2, 1, prox=lambda U, eta: "no").prox(W1, 1.0), "prox numbers"),
    ],
)
def test_bad_inputs_are_refused_in_one_sentence(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    message = str(caught.value)
    assert all(word in message for word in words.split()), message
    assert ", but " in message
    assert "\n" not in message


C = np.arange(6.0).reshape(3, 2)


def numpy_prox(U: Any, eta: float) -> Any:
    return C + np.sign(U - C) * np.maximum(np.abs(U - C) - eta, 0)


def test_functions_of_numpy_are_given_arrays_and_give_what_those_of_torch_do() -> None:
    c = torch.from_numpy(C)
    ours = Custom(3, 2, prox=lambda U, eta: c + (U - c).sign() * ((U - c).abs() - eta).clamp_min(0))
    each = [lambda u, eta, i=i: C[i] + np.sign(u - C[i]) * np.maximum(np.abs(u - C[i]) - eta, 0) for i in range(3)]
    U = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    who = torch.tensor([2, 0])
    for theirs in (Custom(3, 2, prox=numpy_prox), Custom(3, 2, prox=each)):
        assert torch.equal(theirs.prox(U, 0.7), ours.prox(U, 0.7))
        assert torch.equal(theirs.take(who).prox(U[:2], 0.7), ours.take(who).prox(U[:2], 0.7))


@pytest.mark.parametrize("each", [False, True])
def test_the_hessian_comes_from_value_where_it_is_asked_for(each: bool) -> None:
    A = torch.randn(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    value: Any = lambda W: (A @ W.unsqueeze(2)).cosh().sum((1, 2))  # noqa: E731
    value = [lambda w, a=a: (a @ w).cosh().sum() for a in A] if each else value
    W = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    right = torch.einsum("unj,un,unk->ujk", A, (A @ W.unsqueeze(2)).squeeze(2).cosh(), A)
    custom = Custom(3, 2, value=value, hessian=True)
    assert torch.allclose(custom.hessian(W), right, rtol=1e-12)
    assert torch.allclose(custom.take(torch.tensor([1])).hessian(W[1:2]), right[1:2], rtol=1e-12)
    assert not Custom(3, 2, value=lambda W: W.sum(1), hessian=True).hessian(W).any()


CENTRES = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(1)


def wells(W: torch.Tensor) -> torch.Tensor:
    return ((W - CENTRES).square() - 1).square().sum(1)


def not_convex(problem: Custom, eta: float, rounds: int, start: float) -> rs.Run:
    with pytest.warns(rs.MayNotConverge, match="not convex"):
        return rs.solve(problem, rs.fedpi(eta), rounds=rounds, start=torch.full((problem.dim,), start), progress=False)


@pytest.mark.parametrize("eta", [0.001, 0.01, 0.05])
def test_a_prox_of_a_function_that_is_not_convex_is_found_where_its_objective_is_convex(eta: float) -> None:
    """Curvature is -4 at the least, and 1 / eta at least 20."""
    problem = rs.Custom(6, 3, value=wells, hessian=True, convex=False)
    run = not_convex(problem, eta, 30, 0.7)
    u, p = run.state.u, run.state.p
    torch.testing.assert_close(p + eta * problem.grad(p), u, rtol=0, atol=1e-11)


def test_a_maximum_is_not_taken_for_the_prox() -> None:
    """From 0, where 3 cos(w) is largest, the gradient is 0."""
    problem = rs.Custom(2, 2, value=lambda W: 3 * torch.cos(W).sum(1), hessian=True, convex=False)
    with pytest.raises(BadAnswer, match=r"prox of user 0 in round 1.*no minimum where its gradient is 0.*is -2;"):
        not_convex(problem, 1.0, 3, 0.0)
    assert not_convex(problem, 0.1, 3, 0.0).status == "finished"  # 0 is the prox there
    torch.testing.assert_close(not_convex(problem, 1.0, 30, 0.3).model, torch.full((2,), torch.pi, dtype=torch.float64))


@pytest.mark.parametrize("off", [0.0, 1e-9, 0.01])
def test_a_point_lower_than_the_claimed_minimiser_is_named(off: float) -> None:
    """One percent is too little for the check before the first round."""
    centres = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    functions: Any = {
        "value": lambda W: (W - centres).square().sum(1),
        "prox": lambda U, eta: U + (centres - U) * 2 / 3,
    }
    problem = rs.Custom(2, 2, **functions, minimiser=centres.mean(0) * (1 + off))

    def solve() -> rs.Run:
        return rs.solve(problem, rs.fedpi(1.0), rounds=80, stop=rs.Stop(gap=1e-10), progress=False)

    if off < 0.01:
        assert solve().status == "stopped"  # warnings are errors here
    else:
        with pytest.warns(rs.DoubtfulResult, match="lower than at the minimiser that Custom was given, by 0.00"):
            solve()


@pytest.mark.parametrize("off", [0.0, 1e-9])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e5])
@pytest.mark.parametrize("seed", [3, 5, 13])
def test_runs_that_begin_at_the_minimiser_of_squares_multiplied_out(seed: int, scale: float, off: float) -> None:
    """What is left of the value there, and of the first move, is rounding: nothing is refused, no claim is wrong."""
    rng = np.random.default_rng(seed)
    A, noise = rng.standard_normal((2, 9, 3)), 1e-6 * scale * rng.standard_normal((2, 9))
    b = scale * (A @ rng.standard_normal(3)) + noise
    G, h, rest = np.einsum("umd,ume->ude", A, A), np.einsum("umd,um->ud", A, b), (b**2).sum(1) / 2
    best = np.linalg.solve(G.mean(0), h.mean(0))
    problem = rs.Custom(
        2,
        3,
        value=lambda W: np.einsum("ud,ude,ue->u", W, G, W) / 2 - (h * W).sum(1) + rest,
        grad=lambda W: np.einsum("ude,ue->ud", G, W) - h,
        hessian=lambda W: G.copy(),
        minimiser=best,
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = rs.solve(problem, rs.fedpi(0.5), rounds=60, start=best * (1 + off), progress=False)
    assert "lower" not in " ".join(str(one.message) for one in said)
    np.testing.assert_allclose(run.model.numpy(), best, rtol=0, atol=1e-9 * scale)


class Shrinks:
    def value(self, w: Tensor) -> Tensor:
        return w.norm(dim=-1)

    def prox(self, w: Tensor, step: float) -> Tensor:
        return w * (1 - step / w.norm(dim=-1, keepdim=True)).clamp_min(0)


def test_an_object_of_one_s_own_goes_by_the_name_of_its_class() -> None:
    problem = rs.Custom(2, 2, value=lambda W: W.square().sum(1), penalty=Shrinks())
    texts = str(rs.explain(rs.fedpi(0.1), problem)), repr(problem)
    assert "Shrinks" in texts[0]
    assert not any("object at" in text for text in texts)
