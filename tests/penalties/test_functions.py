"""Penalties and constraints as functions: values, prox and distances against their definitions, and bad input."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import resolvent as rs
from resolvent.problems.penalty_words import parse_penalty

DIM = 4
CENTRE = [0.3, -0.2, 0.1, 0.4]
PENALTIES: dict[str, Any] = {
    "l1": rs.L1(0.7),
    "l1 per coordinate": rs.L1([0.0, 0.3, 1.0, 2.0]),
    "l2": rs.L2(1.3),
    "elastic net": rs.ElasticNet(0.4, [0.0, 1.0, 2.0, 0.1]),
    "box": rs.Box(-0.5, [0.2, 1.0, float("inf"), 0.0]),
    "orthant": rs.Orthant(),
    "simplex": rs.Simplex(1.5),
    "ball": rs.Ball(CENTRE, 0.8),
    "ball of a number": rs.Ball(0.0, 0.8),
    "halfspace": rs.Halfspace([1.0, -2.0, 0.5, 0.0], 0.3),
    "plane": rs.AffineSet([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]], [0.5, 0.1]),
    "cone": rs.ObtuseCone([1.0, 1.0, 0.0, 0.0]),
    "l1 but for two": rs.L1([0.5, 0.9]).free([0, 3]),
    "simplex but for one": rs.Simplex().free(torch.tensor([2])),
}


def points(seed: int, n: int = 40) -> Tensor:
    return 2 * torch.from_numpy(np.random.default_rng(seed).standard_normal((n, DIM)))


@pytest.mark.parametrize("g", PENALTIES.values(), ids=PENALTIES)
@pytest.mark.parametrize("step", [0.1, 1.0, 7.0])
def test_a_prox_is_where_the_distance_to_the_subdifferential_vanishes(g: Any, step: float) -> None:
    """x = prox(w) if and only if (w - x) / step is a subgradient of g at x; other points have a positive distance."""
    w = points(1)
    x = g.prox(w, step)
    assert torch.isfinite(g.value(x)).all()
    assert float(g.distance(x, (w - x) / step).max()) < 1e-12
    other = g.prox(points(2), step)
    wrong = g.distance(other, (w - other) / step)
    assert torch.equal(wrong > 1e-9, (other - x).norm(dim=1) > 1e-9)
    torch.testing.assert_close(x[3], g.prox(w[3], step))  # one point or many


@pytest.mark.parametrize("g", PENALTIES.values(), ids=PENALTIES)
def test_no_point_is_better_than_the_prox(g: Any) -> None:
    w, step = points(3, 5), 0.8
    x = g.prox(w, step)
    best = g.value(x) + (x - w).square().sum(1) / (2 * step)
    rng = np.random.default_rng(4)
    for size in (1e-3, 0.1, 2.0):
        for _ in range(30):
            y = g.prox(x + size * torch.from_numpy(rng.standard_normal(x.shape)), 1e-9)  # feasible, near by
            assert bool((g.value(y) + (y - w).square().sum(1) / (2 * step) >= best - 1e-9).all())


@pytest.mark.parametrize("g", PENALTIES.values(), ids=PENALTIES)
def test_distances_are_those_to_a_set_of_subgradients(g: Any) -> None:
    """v is a subgradient at x exactly if g(y) >= g(x) + <v, y - x>, and the distance is 1-Lipschitz in v."""
    x = g.prox(points(5), 0.5)
    v = points(6)
    away = g.distance(x, v)
    assert bool(((away - g.distance(x, v + 0.1)).abs() <= 0.2 + 1e-12).all())
    y = g.prox(points(7, 60), 0.3)
    for i in range(len(x)):
        holds = bool((g.value(y) >= g.value(x[i]) + (y - x[i]) @ v[i] - 1e-9).all())
        assert holds or float(away[i]) > 0


@pytest.mark.parametrize("name", ["box", "orthant", "simplex", "ball"])
def test_outside_of_a_set_a_constraint_is_infinite(name: str) -> None:
    g = PENALTIES[name]
    w = torch.tensor([[5.0, 5.0, -5.0, 5.0], [0.1, 0.1, 0.1, 0.1]], dtype=torch.float64)
    assert float(g.value(w)[0]) == float("inf")
    assert float(g.distance(w, w)[0]) == float("inf")
    inside = g.prox(w, 1.0)
    assert g.value(inside).tolist() == [0.0, 0.0]
    single = g.prox(w.float(), 1.0)
    assert single.dtype == torch.float32
    assert g.value(single).tolist() == [0.0, 0.0]


def test_zeros_are_exact_and_free_coordinates_are_not_touched() -> None:
    w = points(8)
    shrunk = rs.L1(0.9).prox(w, 1.0)
    assert torch.equal(shrunk == 0, w.abs() <= 0.9)
    freed = rs.L1(0.9).free([1]).free([3]).prox(w, 1.0)
    assert torch.equal(freed[:, [1, 3]], w[:, [1, 3]])
    assert torch.equal(freed[:, [0, 2]], shrunk[:, [0, 2]])
    assert rs.L1(1.0).free([]) is not None
    np.testing.assert_allclose(rs.Simplex(2.0).prox(w, 1.0).sum(1).numpy(), 2.0, rtol=1e-14)


@pytest.mark.parametrize(("words", "made"), [
    ("l1:0.1", "L1(0.1)"), ("L2:3", "L2(3)"), ("elastic-net:1:2", "ElasticNet(1, 2)"),
    ("elastic_net:1:2", "ElasticNet(1, 2)"), ("box:-1:inf", "Box(-1, inf)"), ("orthant", "Orthant()"),
    ("simplex", "Simplex(1)"), ("simplex:2.5", "Simplex(2.5)"), ("ball:3", "Ball(0, 3)"),
])  # fmt: skip
def test_penalties_in_words(words: str, made: str) -> None:
    assert str(parse_penalty(words)) == made


@pytest.mark.parametrize(
    "words", ["l3:1", "l1", "l1:x", "l1:-1", "l1:nan", "box:2:1", "simplex:0", "ball:-1", "", "l1:1:2"]
)
def test_words_that_name_no_penalty_are_refused(words: str) -> None:
    with pytest.raises(rs.InputError, match="penalty is"):
        parse_penalty(words)


A, b = np.ones((2, 3, 2)), np.ones((2, 3))


@pytest.mark.parametrize(("penalty", "words"), [
    (rs.L1([1.0, 2.0, 3.0]), "one for each of 2 coordinates"),
    (rs.Box([0.0] * 3, [1.0] * 3), "dimension 3"),
    (rs.L1(1.0).free([5]), "free at 5"),
    (rs.L1(1.0).free([0, 1]), "every coordinate"),
    ("l1", "rs.L1"),
    (0.1, "rs.L1"),
])  # fmt: skip
def test_a_penalty_that_does_not_fit_is_refused(penalty: Any, words: str) -> None:
    with pytest.raises(rs.InputError, match=words):
        rs.solve(rs.LeastSquares(A, b, penalty=penalty), "fedpi", rounds=2)


def test_bad_numbers_are_refused() -> None:
    for make in (lambda: rs.L1(-1), lambda: rs.L1([[1.0]]), lambda: rs.L2(float("nan")), lambda: rs.ElasticNet("x", 1),
                 lambda: rs.ElasticNet([1, 2], [1, 2, 3]), lambda: rs.Simplex(-1), lambda: rs.L1(1).free([-1]),
                 lambda: rs.L1(1).free([0.5]), lambda: rs.L1([])):  # fmt: skip
        with pytest.raises(rs.InputError):
            make()
    with pytest.raises(rs.InputError, match="Orthant"):
        rs.Indicators([rs.Orthant()])
