"""Laws of the closed-form problems: every prox, every projection, and what the paper says of its examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from resolvent.errors import InputError
from resolvent.problems.indicators import Indicators
from resolvent.problems.linear_sets import AffineSet, Halfspace, ObtuseCone
from resolvent.problems.problem import Problem, objective
from resolvent.problems.quantile import AbsoluteDeviations
from resolvent.problems.sets import Ball, Box, ConvexSet, Orthant
from resolvent.problems.simple import HalfSquares, Quadratics, plus_minus

pytestmark = pytest.mark.filterwarnings("error")
laws = settings(deadline=None, max_examples=60)

ETA = st.floats(0.01, 100.0)


def tensors(*shape: int, low: float = -10.0, high: float = 10.0) -> st.SearchStrategy[Tensor]:
    return hnp.arrays(np.float64, shape, elements=st.floats(low, high, allow_subnormal=False)).map(torch.from_numpy)


def directions(d: int) -> st.SearchStrategy[Tensor]:
    return tensors(d).filter(lambda a: float(a.norm()) > 0.1)


def dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1)


# Sets, each with its definition written anew: the excess of x is <= 0 exactly for members.
Excess = Callable[[Tensor], Tensor]
Member = tuple[ConvexSet, Excess]


@st.composite
def boxes(draw: Any, d: int) -> Member:
    low, width = draw(tensors(d)), draw(tensors(d, low=0.0))
    high = torch.where(width > 9, torch.inf, low + width)
    return Box(low, high), lambda x: torch.maximum(low - x, x - high).amax(-1)


@st.composite
def balls(draw: Any, d: int) -> Member:
    centre, radius = draw(tensors(d)), draw(st.floats(0, 20))
    return Ball(centre, radius), lambda x: (x - centre).norm(dim=-1) - radius


@st.composite
def halfspaces(draw: Any, d: int) -> Member:
    normal, offset = draw(directions(d)), draw(st.floats(-20, 20))
    return Halfspace(normal, offset), lambda x: (x @ normal - offset) / normal.norm()


@st.composite
def cones(draw: Any, d: int) -> Member:
    axis, angle = draw(directions(d)), draw(st.floats(math.pi / 4, math.pi / 2))
    return ObtuseCone(axis, angle), lambda x: math.cos(angle) * x.norm(dim=-1) - x @ axis / axis.norm()


@st.composite
def affine_sets(draw: Any, d: int) -> Member:
    # Small whole numbers: often rank-deficient, and never nearly so.
    k = draw(st.integers(1, 4))
    M = torch.from_numpy(draw(hnp.arrays(np.int64, (k, d), elements=st.integers(-3, 3)))).double()
    b = M @ draw(tensors(d))
    return AffineSet(M, b), lambda x: (x @ M.T - b).norm(dim=-1)


SETS: dict[str, Callable[[int], st.SearchStrategy[Member]]] = {
    "box": boxes,
    "ball": balls,
    "halfspace": halfspaces,
    "orthant": lambda d: st.just((Orthant(d), lambda x: (-x).amax(-1))),
    "obtuse cone": cones,
    "affine": affine_sets,
}


@st.composite
def quadratics(draw: Any, users: int, d: int) -> Quadratics:
    return Quadratics(
        draw(tensors(users, low=0.1)), draw(tensors(users, d)), weights=draw(tensors(users, low=0.1, high=1.0))
    )


@st.composite
def half_squares(draw: Any, users: int, d: int) -> HalfSquares:
    return HalfSquares(
        users, d, draw(st.one_of(st.none(), tensors(users), tensors(users, d))), draw(tensors(users, low=0.1))
    )


@st.composite
def deviations(draw: Any, users: int, d: int) -> AbsoluteDeviations:
    whole = hnp.arrays(np.float64, (users, d), elements=st.integers(-4, 4).map(float))  # zero rows among them
    return AbsoluteDeviations(draw(whole), draw(tensors(users)), weights=draw(tensors(users, low=0.1, high=1.0)))


@st.composite
def indicators(draw: Any, users: int, d: int) -> Indicators:
    sets = [draw(st.one_of(*(SETS[name](d) for name in SETS)))[0] for _ in range(users)]
    return Indicators([sets[draw(st.integers(0, users - 1))] for _ in range(users)])


ZOO: dict[str, Callable[[int, int], st.SearchStrategy[Any]]] = {
    "quadratics": quadratics,
    "half squares": half_squares,
    "deviations": deviations,
    "indicators": indicators,
}
SMOOTH = ["quadratics", "half squares"]


def draw_problem(data: Any, name: str) -> Any:
    return data.draw(ZOO[name](data.draw(st.integers(1, 4)), data.draw(st.integers(2, 3))))


def draw_rows(data: Any, problem: Problem) -> Tensor:
    rows: Tensor = data.draw(tensors(problem.users, problem.dim))
    return rows


@pytest.mark.parametrize("name", ZOO)
@laws
@given(data=st.data(), eta=ETA)
def test_prox_is_firmly_nonexpansive(name: str, data: Any, eta: float) -> None:
    problem = draw_problem(data, name)
    x, y = draw_rows(data, problem), draw_rows(data, problem)
    p, q = problem.prox(x, eta), problem.prox(y, eta)
    assert bool((dot(p - q, p - q) <= dot(p - q, x - y) + 1e-9).all())


@pytest.mark.parametrize("name", ZOO)
@laws
@given(data=st.data(), eta=ETA)
def test_prox_is_optimal(name: str, data: Any, eta: float) -> None:
    """(u - p)/eta is a subgradient at p: f(y) >= f(p) + <u - p, y - p>/eta for every y, here times eta."""
    problem = draw_problem(data, name)
    u, far = draw_rows(data, problem), draw_rows(data, problem)
    p = problem.prox(u, eta)
    f = problem.value(p)
    assert bool(torch.isfinite(f).all())
    # A set's members may lie outside by its tolerance, and y with them.
    slack = 1e-9 * (1 + eta) + 3 * getattr(problem, "tol", 0.0) * (u - p).norm(dim=1)
    for y in (far, problem.prox(far, eta), p + 1e-3 * far, p - 1e-3 * far, u):
        assert bool((eta * (problem.value(y) - f) >= dot(u - p, y - p) - slack).all())


@pytest.mark.parametrize("name", ZOO)
@laws
@given(data=st.data(), eta=ETA)
def test_one_row_stands_for_all_users(name: str, data: Any, eta: float) -> None:
    problem = draw_problem(data, name)
    row = draw_rows(data, problem)[:1]
    rows = row.expand(problem.users, -1)
    torch.testing.assert_close(problem.prox(row, eta), problem.prox(rows, eta))
    assert problem.prox(row, eta).shape == (problem.users, problem.dim)
    for word in problem.offers - {"prox"}:
        answer = getattr(problem, word)(row)
        assert len(answer) == problem.users
        torch.testing.assert_close(answer, getattr(problem, word)(rows))


@pytest.mark.parametrize("name", ZOO)
@laws
@given(data=st.data(), eta=ETA)
def test_take_is_slicing(name: str, data: Any, eta: float) -> None:
    problem = draw_problem(data, name)
    rows = draw_rows(data, problem)
    who = torch.tensor(data.draw(st.lists(st.integers(0, problem.users - 1), min_size=1, unique=True)))
    part = problem.take(who)
    assert type(part) is type(problem)
    assert part.offers == problem.offers
    torch.testing.assert_close(part.weights, problem.weights[who] / problem.weights[who].sum())
    torch.testing.assert_close(part.prox(rows[who], eta), problem.prox(rows, eta)[who])
    for word in problem.offers - {"prox"}:
        torch.testing.assert_close(getattr(part, word)(rows[who]), getattr(problem, word)(rows)[who])
    for constants in ("lipschitz", "convexity"):
        whole = getattr(problem, constants)
        assert (whole is None and getattr(part, constants) is None) or torch.equal(getattr(part, constants), whole[who])


@pytest.mark.parametrize("name", SMOOTH)
@laws
@given(data=st.data())
def test_derivatives(name: str, data: Any) -> None:
    problem = draw_problem(data, name)
    W = draw_rows(data, problem)
    if name == "half squares":
        assume(bool(((W - problem.shift).abs() > 1e-6).all()))  # the Hessian jumps there
    W.requires_grad_()
    (slope,) = torch.autograd.grad(problem.value(W).sum(), W)
    torch.testing.assert_close(problem.grad(W.detach()), slope)
    for k in range(problem.dim):
        (bend,) = torch.autograd.grad(problem.grad(W)[:, k].sum(), W)
        torch.testing.assert_close(problem.hessian(W.detach())[:, k], bend)


@pytest.mark.parametrize("name", SMOOTH)
@laws
@given(data=st.data())
def test_lipschitz_and_convexity(name: str, data: Any) -> None:
    problem = draw_problem(data, name)
    x, y = draw_rows(data, problem), draw_rows(data, problem)
    turn = problem.grad(x) - problem.grad(y)
    assert bool((dot(turn, x - y) >= problem.convexity * dot(x - y, x - y) - 1e-9).all())
    assert bool((dot(turn, x - y) <= problem.lipschitz * dot(x - y, x - y) + 1e-9).all())


@laws
@given(data=st.data())
def test_subgradient_of_deviations(data: Any) -> None:
    problem = draw_problem(data, "deviations")
    x, y = draw_rows(data, problem), draw_rows(data, problem)
    assert bool((problem.value(y) >= problem.value(x) + dot(problem.grad(x), y - x) - 1e-9).all())


@pytest.mark.parametrize("name", [*SMOOTH, "deviations"])
@laws
@given(data=st.data())
def test_gap_is_the_height_above_the_minimum(name: str, data: Any) -> None:
    problem = draw_problem(data, name)
    W = data.draw(tensors(5, problem.dim))  # any number of points, not one a user
    gap = problem.gap(W)
    assert gap.shape == (5,)
    assert bool((gap >= 0).all())
    torch.testing.assert_close(gap, objective(problem, W) - problem.fstar, atol=1e-9, rtol=1e-9)
    assert float(problem.gap(problem.minimiser)) <= 1e-12
    assert bool((objective(problem, W) >= problem.fstar - 1e-9).all())


def test_gap_of_quadratics_does_not_cancel() -> None:
    problem = Quadratics([1.0, 3.0], [[1e3, 0.0], [0.0, -1e3]])
    near = problem.minimiser + torch.tensor([1e-6, 0.0])
    assert float(problem.gap(near)) == pytest.approx(2.0 / 2 * 1e-12, rel=1e-6)


# Projections


@pytest.mark.parametrize("name", SETS)
@laws
@given(data=st.data(), d=st.integers(2, 4))
def test_projection_is_the_nearest_member(name: str, data: Any, d: int) -> None:
    each, excess = data.draw(SETS[name](d))
    x, y = data.draw(tensors(3, d)), data.draw(tensors(3, d))
    p = each.project(x)
    assert each.dim == d
    assert p.shape == x.shape
    assert bool((excess(p) <= 1e-7).all())
    member = (excess(x) <= 0).unsqueeze(-1)
    torch.testing.assert_close(torch.where(member, p, x), x)
    torch.testing.assert_close(each.project(p), p, atol=1e-9, rtol=0)
    y = torch.where((excess(y) <= 0).unsqueeze(-1), y, each.project(y))
    assert bool((dot(x - p, y - p) <= 1e-8).all())
    moved = (x - p).norm(dim=-1) > 1e-3
    assert bool((excess(p + 0.01 * (x - p))[moved] > 0).all())  # no member is met on the way from p to x
    torch.testing.assert_close(each.project(x[0]), p[0])  # any leading shape, none included


@pytest.mark.parametrize("name", SETS)
@laws
@given(data=st.data(), d=st.integers(2, 4))
def test_contains_agrees_with_the_definition(name: str, data: Any, d: int) -> None:
    each, excess = data.draw(SETS[name](d))
    x = data.draw(tensors(8, d))
    inside, distance = each.contains(x, 1e-7), (x - each.project(x)).norm(dim=-1)
    assert inside.shape == (8,)
    assert inside.dtype == torch.bool
    assert bool(inside[excess(x) <= 0].all())
    assert not bool(inside[distance > 1e-5].any())
    assert bool(each.contains(each.project(x), 1e-7).all())


@pytest.mark.parametrize("name", ["orthant", "obtuse cone", "halfspace"])
@laws
@given(data=st.data(), d=st.integers(2, 4))
def test_reflector_is_idempotent(name: str, data: Any, d: int) -> None:
    each, excess = data.draw(SETS[name](d))
    x = data.draw(tensors(3, d))
    once = 2 * each.project(x) - x
    assert bool((excess(once) <= 1e-9).all())
    torch.testing.assert_close(2 * each.project(once) - once, once, atol=1e-7, rtol=0)


def test_reflector_of_a_ball_is_not_idempotent() -> None:
    ball, x = Ball([0.0], 1.0), torch.tensor([4.0]).double()
    once = 2 * ball.project(x) - x
    assert float(once) == -2.0
    assert float(2 * ball.project(once) - once) == 0.0


@laws
@given(data=st.data(), angle=st.floats(math.pi / 4, math.pi / 2))
def test_moreau_of_the_obtuse_cone(data: Any, angle: float) -> None:
    """x = P_K x + P_K° x: orthogonal parts, the second in the cone of pi/2 - angle about -axis."""
    axis, x = data.draw(directions(3)), data.draw(tensors(3))
    p = ObtuseCone(axis, angle).project(x)
    q = x - p
    assert abs(float(p @ q)) <= 1e-9
    assert float(-q @ axis / axis.norm()) >= math.sin(angle) * float(q.norm()) - 1e-9


@pytest.mark.parametrize(
    ("angle", "x", "nearest"),
    [
        (math.pi / 4, [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        (math.pi / 4, [0.0, 2.0, 0.0], [1.0, 1.0, 0.0]),
        (math.pi / 4, [-1.0, 0.0, 0.5], [0.0, 0.0, 0.0]),
        (math.pi / 2, [-3.0, 1.0, 2.0], [0.0, 1.0, 2.0]),
        (math.pi / 3, [-2.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        (math.pi / 3, [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ],
)
def test_obtuse_cone_by_hand(angle: float, x: list[float], nearest: list[float]) -> None:
    p = ObtuseCone([2.0, 0.0, 0.0], angle).project(torch.tensor(x, dtype=torch.float64))
    torch.testing.assert_close(p, torch.tensor(nearest, dtype=torch.float64))


@laws
@given(data=st.data(), d=st.integers(1, 4), k=st.integers(1, 5))
def test_affine_projection_is_that_of_the_pseudo_inverse(data: Any, d: int, k: int) -> None:
    M = torch.from_numpy(data.draw(hnp.arrays(np.int64, (k, d), elements=st.integers(-3, 3)))).double()
    x, b = data.draw(tensors(d)), M @ data.draw(tensors(d))
    torch.testing.assert_close(AffineSet(M, b).project(x), x - torch.linalg.pinv(M) @ (M @ x - b), atol=1e-8, rtol=0)


def test_affine_rows_count_whatever_their_units() -> None:
    x = torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(AffineSet([[1e-20, 0.0], [0.0, 1e20]], [3e-20, 4e20]).project(x), x.new_tensor([3, 4]))


# Indicators


def test_indicators_with_a_known_common_point() -> None:
    problem: Any = Indicators(
        [Orthant(2), Ball([0, 0], 1.0), Box(0.25, [1, 1])], minimiser=[0.5, 0.5], weights=[1, 1, 0]
    )
    assert problem.fstar == 0.0
    assert problem.offers == {"value", "prox"}
    assert problem.value(torch.tensor([-1.0, 0.0])).tolist() == [math.inf, 0.0, math.inf]
    assert problem.gap(torch.tensor([[0.5, 0.0], [2.0, 0.0]])).tolist() == [0.0, math.inf]
    part = problem.take(torch.tensor([False, True, False]))
    assert part.fstar == 0.0
    assert part.gap(torch.tensor([-1.0, 0.0])).tolist() == [0.0]
    assert part.sets == problem.sets[1:2]


def test_indicators_do_not_guess_a_common_point() -> None:
    problem = Indicators([Ball([0.0], 1.0), Ball([3.0], 1.0)])
    assert problem.minimiser is None
    assert problem.fstar is None
    assert problem.gap(torch.zeros(1)) is None


def test_indicators_have_no_gradient() -> None:
    with pytest.raises(InputError, match=r"grad is asked of indicators.*prox"):
        Indicators([Orthant(1)]).grad(torch.zeros(1, 1))


# The paper's examples


@laws
@given(w=st.floats(-10, 10), eta=ETA)
def test_plus_minus_has_the_paper_s_prox(w: float, eta: float) -> None:
    row = torch.tensor([[w]], dtype=torch.float64)
    assert plus_minus().prox(row, eta).flatten().tolist() == pytest.approx(
        [(w - eta) / (1 + eta), (w + eta) / (1 + eta)]
    )
    assert float(plus_minus(2.0).prox(row, eta)[1]) == pytest.approx((w + 2 * eta) / (1 + 2 * eta))


def test_plus_minus_minimisers() -> None:
    assert float(plus_minus().minimiser) == 0.0
    assert plus_minus().fstar == 0.5
    assert float(plus_minus(2.0).minimiser) == pytest.approx(1 / 3)


@laws
@given(data=st.data(), eta=st.floats(1.0, 100.0))
def test_half_squares_reflector_is_idempotent_from_one_on(data: Any, eta: float) -> None:
    problem = draw_problem(data, "half squares")
    x = draw_rows(data, problem)
    once = 2 * problem.prox(x, eta) - x
    torch.testing.assert_close(2 * problem.prox(once, eta) - once, once)
    if eta == 1.0:
        torch.testing.assert_close(once, torch.maximum(x, problem.shift))


@laws
@given(eta=st.floats(0.01, 0.99), w=st.floats(-10.0, -0.1))
def test_half_squares_reflector_is_not_idempotent_below_one(eta: float, w: float) -> None:
    problem, x = HalfSquares(1), torch.tensor([[w]], dtype=torch.float64)
    once = 2 * problem.prox(x, eta) - x
    assert float((2 * problem.prox(once, eta) - once - once).abs()) > 1e-5


def test_half_squares_reflect_to_the_positive_part_at_one() -> None:
    x = torch.tensor([[-3.0, 2.0]], dtype=torch.float64)
    assert (2 * HalfSquares(1, 2).prox(x, 1.0) - x).tolist() == [[0.0, 2.0]]


# Moreau: x = prox_{eta f}(x) + eta prox_{f*/eta}(x/eta), with the conjugate's prox by hand


@laws
@given(data=st.data(), eta=ETA)
def test_moreau_of_quadratics(data: Any, eta: float) -> None:
    problem = draw_problem(data, "quadratics")
    x = draw_rows(data, problem)
    dual = (x - problem.centre) / (1 / problem.curvature[:, None] + eta)  # f*(y) = centre.y + |y|^2 / (2 curvature)
    torch.testing.assert_close(problem.prox(x, eta) + eta * dual, x, atol=1e-9, rtol=0)


@laws
@given(data=st.data(), eta=ETA)
def test_moreau_of_half_squares(data: Any, eta: float) -> None:
    problem, x = HalfSquares(2, 3), data.draw(tensors(2, 3))
    dual = (x / (1 + eta)).clamp(max=0)  # f*(y) = |y|^2/2 for y <= 0, else infinite
    torch.testing.assert_close(problem.prox(x, eta) + eta * dual, x, atol=1e-9, rtol=0)


@laws
@given(data=st.data(), eta=ETA)
def test_fenchel_of_deviations(data: Any, eta: float) -> None:
    """The prox's subgradient is t a with |t| <= 1, and f(p) + f*(t a) = t a.p, where f*(t a) = t b."""
    problem = draw_problem(data, "deviations")
    u = draw_rows(data, problem)
    p = problem.prox(u, eta)
    size = dot(problem.A, problem.A)
    t = dot((u - p) / eta, problem.A) / size.clamp(min=1)
    moves = size > 0
    assert bool((t.abs() <= 1 + 1e-9).all())
    assert torch.equal(p[~moves], u[~moves])
    torch.testing.assert_close((u - p) / eta, t[:, None] * problem.A, atol=1e-9, rtol=0)
    gap = problem.value(p) + t * problem.b - t * dot(problem.A, p)
    assert bool((gap.abs()[moves] <= 1e-9).all())


# Least absolute deviations against independent solvers


@pytest.mark.parametrize(
    ("users", "d", "scale"), [(7, 2, 1.0), (40, 5, 1.0), (40, 5, 1e-12), (40, 5, 1e9), (3, 5, 1.0)]
)
@pytest.mark.parametrize("whole", [False, True])
def test_fstar_is_that_of_the_primal_program(users: int, d: int, scale: float, whole: bool) -> None:
    from scipy.optimize import linprog

    rng = np.random.default_rng(users + d)
    A, b = rng.normal(size=(users, d)), rng.normal(size=users)
    if whole:  # degenerate: ties, repeated columns, a zero row
        A, b = rng.integers(-2, 3, size=(users, d)).astype(float), rng.integers(-2, 3, size=users).astype(float)
        A[:, -1], A[0] = A[:, 0], 0.0
    lam = rng.random(users) + 0.1
    problem = AbsoluteDeviations(A, scale * b, weights=lam)
    # min lam.t over (w, t) with -t <= A w - b <= t
    cost = np.concatenate([np.zeros(d), lam / lam.sum()])
    both = np.block([[A, -np.eye(users)], [-A, -np.eye(users)]])
    free = [(None, None)] * d + [(0, None)] * users
    other = linprog(cost, A_ub=both, b_ub=np.concatenate([b, -b]), bounds=free)
    assert problem.fstar == pytest.approx(scale * other.fun, rel=1e-9, abs=scale * 1e-9)


@laws
@given(data=st.data(), users=st.integers(1, 8))
def test_fstar_in_one_dimension_is_at_a_breakpoint(data: Any, users: int) -> None:
    slopes = data.draw(hnp.arrays(np.float64, users, elements=st.integers(-3, 3).map(float)))
    b, lam = data.draw(tensors(users)), data.draw(tensors(users, low=0.0))
    assume(float(lam.sum()) > 0.1)
    problem = AbsoluteDeviations(slopes[:, None], b, weights=lam)
    breaks = [float(t) / a for a, t in zip(slopes, b, strict=True) if a] or [0.0]
    best = objective(problem, torch.tensor(breaks, dtype=torch.float64)[:, None]).min()
    assert problem.fstar == pytest.approx(float(best), abs=1e-8)  # breakpoints nearer than 1e-9 are one to HiGHS


def test_subgradient_descent_does_not_beat_fstar() -> None:
    rng = np.random.default_rng(0)
    problem = AbsoluteDeviations(rng.normal(size=(30, 3)), rng.normal(size=30))
    w, best = torch.zeros(1, 3, dtype=torch.float64), math.inf
    for t in range(4000):
        best = min(best, float(problem.gap(w)))  # type: ignore[arg-type]
        w = w - 0.5 / (t + 1) ** 0.75 * (problem.weights @ problem.grad(w))
    assert 0 <= best < 1e-3


def test_the_minimiser_is_polished() -> None:
    """At a vertex d residuals vanish to round-off: linear programming alone leaves them near 1e-11."""
    rng = np.random.default_rng(1)
    problem = AbsoluteDeviations(rng.normal(size=(400, 50)), rng.normal(size=400))
    assert problem.minimiser is not None
    assert int((problem.value(problem.minimiser) < 1e-14).sum()) == 50


def test_fstar_does_not_mind_the_units_of_a_coordinate() -> None:
    rng = np.random.default_rng(2)
    A, b, units = rng.normal(size=(100, 10)), rng.normal(size=100), np.logspace(0, -11, 10)
    assert AbsoluteDeviations(A * units, b).fstar == pytest.approx(AbsoluteDeviations(A, b).fstar, rel=1e-12)


def test_the_minimiser_is_unknown_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    problem = AbsoluteDeviations([[1.0]], [2.0])
    assert problem.minimiser is None
    assert problem.fstar is None
    assert problem.gap(torch.zeros(1)) is None


# Inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    one, two = torch.ones(2, dtype=dtype), torch.ones(2, 3, dtype=dtype)
    sets: list[ConvexSet] = [Ball(two[0], 1.0), Halfspace(two[0], 1.0), Box(-1, two[0]), AffineSet(two[:1], one[:1])]
    for problem in (
        Quadratics(one, two),
        HalfSquares(2, 3, shift=two),
        AbsoluteDeviations(two, one),
        Indicators([*sets, ObtuseCone(two[0]), Orthant(3)]),
    ):
        W = torch.randn(problem.users, 3, generator=torch.Generator().manual_seed(0))
        p = problem.prox(W, 0.5)
        assert p.dtype == problem.weights.dtype == problem.value(p).dtype == dtype
        assert bool(torch.isfinite(problem.value(p)).all())
        assert all(getattr(problem, word)(W).dtype == dtype for word in problem.offers - {"prox"})
        if problem.minimiser is not None:
            assert problem.minimiser.dtype == dtype
            assert problem.gap(W).dtype == dtype


def test_numpy_lists_and_whole_numbers_are_as_good() -> None:
    U: Any = np.array([[2.0], [3.0]])
    for centre in ([1, 2], [[1], [2]], np.array([1.0, 2.0]), torch.tensor([1, 2])):
        assert Quadratics([1, 1], centre).prox(U, 1.0).tolist() == [[1.5], [2.5]]


def test_homogeneous_users_are_projected_together() -> None:
    calls = []

    class Line:
        dim = 2

        def project(self, x: Tensor) -> Tensor:
            calls.append(len(x))
            return x * torch.tensor([1.0, 0.0], dtype=x.dtype)

        def contains(self, x: Tensor, tol: float = 0.0) -> Tensor:
            return x[..., 1].abs() <= tol

    line = Line()
    p = Indicators([line, Orthant(2), line]).prox(torch.tensor([[1.0, -2.0]]), 1.0)
    assert p.tolist() == [[1, 0], [1, 0], [1, 0]]
    assert calls == [2]


NAN = float("nan")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Quadratics([1, 1], [[0.0], [NAN]]), "centre user 1 finite"),
        (lambda: Quadratics([1, 0], [0, 0]), "curvature 0.0 user 1 > 0"),
        (lambda: Quadratics([1, NAN], [0, 0]), "curvature user 1 finite"),
        (lambda: Quadratics([1, 1, 1], [0, 0]), "curvature (3,) 2"),
        (lambda: Quadratics(1.0, [0, 0]), "curvature ()"),
        (lambda: Quadratics([], []), "centre (0, 1)"),
        (lambda: Quadratics([1], [[[0]]]), "centre (1, 1, 1) (users, d)"),
        (lambda: Quadratics([1, 1], ["a", "b"]), "centre numbers"),
        (lambda: Quadratics([1, 1], [0, 0], weights=[1]), "weights (1,) 2"),
        (lambda: Quadratics([1, 1], [0, 0]).prox(torch.zeros(3, 1), 1.0), "W (3, 1) (2, 1)"),
        (lambda: Quadratics([1, 1], [0, 0]).gap(torch.zeros(3, 2)), "W (3, 2) length 1"),
        (lambda: plus_minus(-1.0), "scale -1.0 > 0"),
        (lambda: HalfSquares(0), "users 0 >= 1"),
        (lambda: HalfSquares(2, 1.5), "dim 1.5 whole"),  # type: ignore[arg-type]
        (lambda: HalfSquares(2, 2, shift=[1, 2, 3]), "shift (3,) (2, 2)"),
        (lambda: HalfSquares(2, shift=[1, math.inf]), "shift user 1 finite"),
        (lambda: Indicators([]), "sets empty"),
        (lambda: Indicators([Orthant(2), Orthant(3)]), "sets[1] dimension 3 2"),
        (lambda: Indicators([Orthant(2)], minimiser=[1]), "minimiser (1,) 2"),
        (lambda: Indicators([Orthant(1), Ball([0], 1)], minimiser=[2]), "minimiser sets[1] common"),
        (lambda: Indicators([Orthant(1)], tol=-1.0), "tol -1.0"),
        (lambda: Orthant(0), "dim 0"),
        (lambda: Box([0, 2], [1, 1]), "low[1] 2.0 high[1]"),
        (lambda: Box([0, NAN], [1, 1]), "low[1] nan"),
        (lambda: Box(math.inf, math.inf), "low[0] inf"),
        (lambda: Box([0, 0], [1, 1, 1]), "low (2,) high (3,)"),
        (lambda: Ball([0, NAN], 1.0), "centre coordinate 1 finite"),
        (lambda: Ball([0], -1.0), "radius -1.0"),
        (lambda: Ball([], 1.0), "centre (0,)"),
        (lambda: Ball([[0.0]], 1.0), "centre (1, 1) vector"),
        (lambda: Halfspace([0, 0], 1.0), "normal length 0.0"),
        (lambda: Halfspace([1], NAN), "offset nan"),
        (lambda: ObtuseCone([1.0]), "axis two dimensions"),
        (lambda: ObtuseCone([1, 0], 0.78), "angle 0.78 pi/4"),
        (lambda: ObtuseCone([1, 0], 2.0), "angle 2.0 pi/2"),
        (lambda: AffineSet([[1, 1], [2, 2]], [1, 3]), "offset inconsistent"),
        (lambda: AffineSet([[0, 0]], [1]), "offset inconsistent"),
        (lambda: AffineSet([1, 1], [1]), "matrix (2,)"),
        (lambda: AffineSet([[1, 1]], [1, 2]), "offset (2,) 1 rows"),
        (lambda: AffineSet([[1, NAN]], [1]), "matrix row 0 finite"),
        (lambda: AbsoluteDeviations([[1, 2], [NAN, 0]], [0, 0]), "A user 1 finite"),
        (lambda: AbsoluteDeviations([[1, 2], [1, 0]], [0, math.inf]), "b user 1 finite"),
        (lambda: AbsoluteDeviations([1, 2], [0, 0]), "A (2,) (users, d)"),
        (lambda: AbsoluteDeviations([[1, 2]], [0, 0]), "b (2,) 1 rows"),
        (lambda: AbsoluteDeviations(np.zeros((0, 2)), []), "A (0, 2)"),
    ],
)
def test_bad_inputs_are_refused_in_one_sentence(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    message = str(caught.value)
    assert all(word in message for word in words.split()), message
    assert ", but " in message
    assert "\n" not in message
