"""Least squares keeps every direction in the data: correlated columns, columns and users of any scales, float32."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import resolvent as rs
from hunt.cases.least_squares import User, exact, solved
from resolvent.iteration.engine import Ask
from resolvent.problems.quadratic import decomposition, pooled
from resolvent.problems.quadratic.affine import prox_share, steps_share
from textbook import Array

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


def f_of(A: Any, b: Any, w: Array) -> float:
    """The mean over users, in long doubles."""
    residuals = [a.astype(np.longdouble) @ w.astype(np.longdouble) - y for a, y in zip(A, b, strict=True)]
    return float(sum(r @ r for r in residuals) / 2 / len(residuals))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_correlated_columns_of_many_rows(kind: Any) -> None:
    """Two users of 100,000 rows whose columns correlate at 0.99: the minimiser is (1, -1), in single precision too."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((2, 100_000, 2))
    A[..., 1] = 0.99 * A[..., 0] + np.sqrt(1 - 0.99**2) * A[..., 1]
    b = (A @ [1.0, -1.0]).astype(kind)
    A = A.astype(kind)
    problem = rs.LeastSquares(A, b)
    assert problem.rows.buckets[0].A.dtype == torch.from_numpy(A).dtype
    run = rs.solve(problem, rs.fedpi(1e-4), rounds=200)
    assert run.model.dtype == torch.from_numpy(A).dtype
    np.testing.assert_allclose(run.model, [1, -1], rtol=1e-5)
    away = np.array([0.5, 0.25], dtype=kind)
    assert float(problem.gap(torch.from_numpy(away)[None])[0]) == pytest.approx(f_of(A, b, away), rel=1e-6)
    true = f_of(A, b, run.model.numpy()) - f_of(A, b, np.linalg.lstsq(*(np.concatenate(x) for x in (A, b)))[0])  # type: ignore[call-overload]
    assert true <= 1e-6
    assert run.history.gap.iloc[-1] <= 1e-6


def test_a_dummy_beside_a_large_column() -> None:
    """A column of scale 1e6 beside zeros and ones, 20,000 rows: the dummy's coefficient is found."""
    rng = np.random.default_rng(1)
    A = np.stack([1e6 * rng.standard_normal((4, 20_000)), rng.integers(0, 2, (4, 20_000))], axis=-1)
    b = A @ [1e-6, 3.0] + 0.1 * rng.standard_normal((4, 20_000))
    problem = rs.LeastSquares(A, b)
    star = np.linalg.lstsq(np.concatenate(A) / [1e6, 1], np.concatenate(b))[0] / [1e6, 1]
    np.testing.assert_allclose(problem.minimiser, star, rtol=1e-9)
    assert problem.fstar == pytest.approx(f_of(A, b, star), rel=1e-12)  # type: ignore[arg-type]
    without = np.array([star[0], 0.0])
    gap = float(problem.gap(torch.from_numpy(without)[None])[0])
    assert gap == pytest.approx(f_of(A, b, without) - problem.fstar, rel=1e-9)
    assert bool((problem.convexity > 1e3).all())


def test_directions_that_only_small_users_see() -> None:
    """A user of scale 1e4 knows two directions, one of scale 1e-4 the third."""
    rng = np.random.default_rng(2)
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    A = [1e4 * rng.standard_normal((30, 2)) @ turn[:2], 1e-4 * rng.standard_normal((30, 3))]
    problem = rs.LeastSquares(A, [a @ [1.0, 2.0, 3.0] for a in A])
    np.testing.assert_allclose(problem.minimiser, [1, 2, 3], rtol=1e-6)
    np.testing.assert_allclose(rs.theory.regularised_minimiser(problem, 1e-3), [1, 2, 3], rtol=1e-6)
    assert problem.fstar < 1e-16


@pytest.mark.parametrize("size", [1e4, 3e7])
def test_what_large_users_leave_behind_is_no_data_beside_small_ones(size: float) -> None:
    """Two large users see one direction between them, and their rounding errors are as long as a small user's rows."""
    rng = np.random.default_rng(3)
    row = rng.standard_normal((1, 3))
    A = [size * row, 2 * size * row, rng.standard_normal((5, 3)) / size]
    problem = rs.LeastSquares(A, [a @ [1.0, 2.0, 3.0] for a in A])
    np.testing.assert_allclose(problem.minimiser, [1, 2, 3], rtol=1e-3)


@pytest.mark.parametrize("power", [4, 8, 12])
def test_nearly_dependent_columns(power: int) -> None:
    """Columns 1e-12 apart are two columns: Jacobi's method sees what A^T A cannot."""
    rng = np.random.default_rng(3)
    A = rng.standard_normal((3, 40, 3))
    A[..., 2] = A[..., 0] + 10.0**-power * A[..., 2]
    problem = rs.LeastSquares(A, A @ [1.0, 2.0, 0.0])
    values = np.stack([np.linalg.svd(a, compute_uv=False) for a in A])
    np.testing.assert_allclose(problem.convexity.sqrt(), values[:, -1], rtol=10.0 ** (power - 14))
    np.testing.assert_allclose(problem.lipschitz.sqrt(), values[:, 0], rtol=1e-12)


@pytest.mark.parametrize("penalty", [None, rs.Box(-1e15, 1e15)], ids=["plain", "penalised"])
def test_the_minimum_of_nearly_dependent_columns_has_its_digits(penalty: Any) -> None:
    """f* is summed over the rows at a minimiser whose own error enters by its square: a few units in the last place.

    The residual that a factorisation leaves has 1e-16 of the columns instead, which are 1e6 times as far out here.
    """
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((int(rng.integers(5, 9)), 4))
        A[:, 1] = A[:, 0] + 1e-6 * A[:, 1]
        A, b = A * 10 ** rng.uniform(-4, 4, 4), rng.standard_normal(len(A))
        user = User.of(A, b)
        least = float(user.value(solved(user.H, user.k)[0]))
        assert rs.LeastSquares([A], [b], penalty=penalty).fstar == pytest.approx(least, rel=1e-13)


def test_a_gradient_is_right_in_the_unit_of_its_smallest_column() -> None:
    """Columns within three decades, in any order: squares of them span six, of which a product A^T A loses as many."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        A, b = rng.standard_normal((7, 4)) * 10 ** rng.permutation(np.linspace(0, 2.9, 4)), rng.standard_normal(7)
        unit = np.linalg.norm(A, axis=0)
        w = rng.standard_normal(4) / unit
        true = [float(x) for x in User.of(A, b).grad(exact(w))]
        error = rs.LeastSquares([A], [b]).grad(torch.from_numpy(w)[None])[0].numpy() - true
        assert np.abs(error / unit).max() <= 1e-13 * np.linalg.norm(np.abs(A) @ np.abs(w) + np.abs(b))


def turn(a: Array, null: Array) -> float:
    """The length of the columns that depend on each other, in units of the least singular value that is not zero."""
    scale = np.linalg.norm(a, axis=0)
    values = np.linalg.svd(a, compute_uv=False)
    rank = np.linalg.matrix_rank(a / np.where(scale > 0, scale, 1))
    return float(np.linalg.norm(a[:, null != 0]) / values[rank - 1]) if rank else 0.0


@pytest.mark.parametrize("case", ["twin", "sum", "zero", "thin", "thin twin", "nothing"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_columns_that_do_depend_leave_exact_null_directions(case: str, kind: type) -> None:
    rng = np.random.default_rng(4)
    A = rng.integers(-8, 9, (3, 2 if "thin" in case else 60, 4)) * np.array([1.0, 1e3, 1e-3, 1.0])
    A = np.concatenate([A, A[..., :1] + A[..., -1:]], axis=2).astype(kind)  # exact, also in single precision
    null = np.array([1.0, 0, 0, 1, -1])
    if case == "zero":
        A[..., 2], null = 0, np.array([0.0, 0, 1, 0, 0])
    elif "twin" in case:
        A[..., 4], null = A[..., 0], np.array([1.0, 0, 0, 0, -1])
    elif case == "nothing":
        A[:] = 0
    problem = rs.LeastSquares(A, rng.standard_normal((3, A.shape[1])).astype(kind))
    assert problem.convexity.tolist() == [0, 0, 0]
    assert int((problem.spectrum.s > 0).sum(1).max()) == np.linalg.matrix_rank(
        A[0].astype(float) / [1, 1e3, 1e-3, 1, 1]
    )
    u = torch.from_numpy(rng.standard_normal((3, 5)).astype(kind))
    # One rounding error in each of d columns turns the null direction by this much towards the weakest one that is not
    # null; the answer itself is rounded once more, to its own type.
    turned = np.finfo(float).eps * max(turn(a.astype(float), null) for a in A)
    for eta in (1e-6, 1.0, 1e6):
        moved = (problem.prox(u, eta) - u).numpy()
        atol = 5 * (turned + np.finfo(kind).eps) * (1 + np.abs(moved).max())
        np.testing.assert_allclose(moved @ null, 0, atol=atol)
    flat = torch.from_numpy((problem.minimiser.double().numpy() + 7 * null)[None])
    assert float(problem.gap(flat)[0]) <= 1e-10 * (1 + float(problem.lipschitz.max()) * (kind is np.float32))


def test_scaled_columns_give_the_scaled_minimiser() -> None:
    """Powers of two are exact, so that nothing but the scale may change."""
    rng = np.random.default_rng(5)
    A, b = rng.standard_normal((4, 30, 5)), rng.standard_normal((4, 30))
    scale = 2.0 ** np.array([-26, -13, 0, 13, 26])
    plain, scaled = rs.LeastSquares(A, b), rs.LeastSquares(A * scale, b)
    np.testing.assert_allclose(scaled.minimiser.numpy() * scale, plain.minimiser, rtol=1e-10)
    w = rng.standard_normal((3, 5))
    np.testing.assert_allclose(scaled.gap(torch.from_numpy(w / scale)), plain.gap(torch.from_numpy(w)), rtol=1e-10)
    assert scaled.fstar == pytest.approx(plain.fstar, rel=1e-12)


@pytest.mark.parametrize("rows", [2, 3, 4])
@pytest.mark.parametrize("order", [(8, -8, 0, 4), (-8, 8, -8, 8), (0, 8, -6, -8)])
def test_users_of_few_rows_and_columns_of_any_scales(rows: int, order: tuple[int, ...]) -> None:
    """The minimiser of least norm solves every equation, to the rounding of its own terms."""
    rng = np.random.default_rng(9)
    A = rng.standard_normal((1, rows, 4)) * 10.0 ** np.array(order)
    b = rng.standard_normal((1, rows))
    w = rs.LeastSquares(A, b).minimiser.numpy()
    size = np.abs(A[0]) @ np.abs(w) + np.abs(b[0])
    error = A[0].astype(np.longdouble) @ w.astype(np.longdouble) - b[0]
    assert float(np.max(np.abs(error) / size)) <= 1e-12


def test_only_users_who_need_it_are_decomposed_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    A = [rng.standard_normal((n, 4)) for n in (12, 12, 2, 3, 13)]
    A[1][:, 3] = A[1][:, 0]
    A[4][:, 2] = 0  # a column of zeros needs no more than the Gram matrix
    asked = []
    by_rows = decomposition._by_rows
    monkeypatch.setattr(decomposition, "_by_rows", lambda A, b: (asked.append(A), by_rows(A, b))[1])
    problem = rs.LeastSquares(A, [np.ones(len(a)) for a in A])
    assert len(asked) == 1
    assert (problem.spectrum.s > 0).sum(1).tolist() == [4, 3, 2, 3, 3]


def test_the_spread_of_users_who_agree_is_not_lost_in_a_difference() -> None:
    """Users whose answers differ by 1e-9 of the way they go: no number is rounded to 0 or to 1e-8."""
    rng = np.random.default_rng(7)
    A = np.repeat(rng.standard_normal((1, 20, 3)), 4, axis=0)
    A[1] *= 1 + 1e-10
    b = np.repeat(rng.standard_normal((1, 20)), 4, axis=0)
    problem = rs.LeastSquares(A, b)
    u = torch.tensor([[100.0, -30.0, 4.0]], dtype=torch.float64)
    p = problem.prox(u, 0.05).numpy().astype(np.longdouble)
    spread = float(((p - p.mean(0)) ** 2).sum(1).mean())
    maps = rs.ExactProx().bind(problem, True).maps(0.05)  # type: ignore[attr-defined]
    assert float(maps.spread(u)[0]) == pytest.approx(spread, rel=1e-3)
    assert 0 < spread < 1e-16


def test_a_gap_in_single_precision_is_that_of_the_model() -> None:
    """What single precision cannot resolve shows in the gap, to all digits."""
    rng = np.random.default_rng(8)
    A = (rng.standard_normal((3, 50, 4)) * [1, 1, 1, 1e3]).astype(np.float32)
    b = rng.standard_normal((3, 50)).astype(np.float32)
    problem = rs.LeastSquares(A, b)
    run = rs.solve(problem, rs.fedprox(1e-3), rounds=50)
    star = np.linalg.lstsq(np.concatenate(A).astype(float), np.concatenate(b).astype(float))[0]
    residual = np.concatenate(A).astype(float) @ (run.model.double().numpy() - star)
    assert run.history.gap.iloc[-1] == pytest.approx(residual @ residual / 2 / 3, rel=1e-9)
    assert run.history.value.iloc[-1] == pytest.approx(f_of(A, b, run.model.double().numpy()), rel=1e-12)


def test_numbers_whose_squares_overflow_are_refused() -> None:
    with pytest.raises(rs.InputError, match="so large that squares overflow for user 1"):
        rs.LeastSquares(np.array([[[1.0]], [[1e200]]]), np.ones((2, 1)))


def test_a_far_minimiser_along_a_weak_direction_does_not_blur_the_strong_one() -> None:
    """x lies 1e12 away where the curvature is 1e-18; along (1, 1) the prox is right to all digits."""
    A = np.array([[[1.0, 1.0], [1e-9, -1e-9]]])
    problem = rs.LeastSquares(A, np.array([[1.0, 1e3]]))
    u = torch.tensor([[0.3, -0.4]], dtype=torch.float64)
    strong = (-0.1 + 2 * 1.0) / 3  # (1, 1) . p, since s = 2 and x there is 1
    for steady in (False, True):
        p = rs.ExactProx().bind(problem, steady).rows(Ask(0, 1.0), u, {})[0]
        assert float(p.sum()) == pytest.approx(strong, rel=1e-13)
        assert float(p[0, 0] - p[0, 1]) == pytest.approx(0.7 + 2e-6, rel=1e-12)


@pytest.mark.parametrize("x", [1e-30, 1e-12, 1e-3, 0.4, 0.6, 1.0, 1.7, 1e300])
def test_shares_of_the_way_keep_their_digits(x: float) -> None:
    """x / (1 + x) for a prox and 1 - (1 - x)^k for k steps, however small x is."""
    at, exact = torch.tensor([0.0, x], dtype=torch.float64), Fraction(x)
    assert prox_share(at).tolist() == pytest.approx([0.0, float(exact / (1 + exact))], rel=1e-15, abs=0)
    if x < 2:
        assert steps_share(at, 3).tolist() == pytest.approx([0.0, float(1 - (1 - exact) ** 3)], rel=1e-14, abs=0)


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_sums_of_squares_are_as_precise_as_they_say(seed: int, sharp: bool) -> None:
    """Against rational arithmetic, at any point, for columns and users of any scales and rows of several blocks."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 6))
    scales = 10 ** rng.uniform(-4, 4, d)
    A = [10 ** rng.uniform(-2, 2) * rng.standard_normal((n, d)) * scales for n in (4, 40, 9)]
    w = rng.standard_normal(d) / scales
    b = [a @ w + 10 ** rng.uniform(-9, 1) * rng.standard_normal(len(a)) for a in A]
    problem = rs.LeastSquares(A, b, weights=rng.uniform(0.1, 1, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooled, "BLOCK", 8 * d)
        here = problem._squares.at(w, sharp)
    value, gradient, x = Fraction(0), [Fraction(0)] * d, [Fraction(v) for v in w]
    for a, y, weight in zip(A, b, problem._lam.tolist(), strict=True):
        for row, target in zip(a, y, strict=True):
            r = [Fraction(v) for v in row]
            e = sum(p * q for p, q in zip(r, x, strict=True)) - Fraction(target)
            value += Fraction(weight) * e * e / 2
            gradient = [g + Fraction(weight) * e * p for g, p in zip(gradient, r, strict=True)]
    assert abs(float(Fraction(here.value) - value)) <= here.rounding
    error = np.array([abs(float(Fraction(g) - h)) for g, h in zip(here.gradient, gradient, strict=True)])
    assert (error <= here.blur * here.columns * (1 + 1e-9) + here.summed).all()
    assert here.rounding <= 1e-9 * (here.value + here.size)  # and no more than that
