"""Least squares on hostile data against exact rational arithmetic: columns and users of any scales, correlated and
equal columns, few rows, single precision, skewed and zero weights."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

import resolvent as rs
from hunt.family import Family
from resolvent.iteration.engine import Ask

Vector = list[Fraction]
Matrix = list[Vector]
CLOSE = 1e-6
UNITS = 16
"""Units in the last place of the data by which a factorisation of nine rows or fewer may move them."""


# --- exact arithmetic ------------------------------------------------------------------------------------------------


def exact(x: Any) -> Any:
    """Floats as the rational numbers that they are."""
    return [exact(row) for row in x] if np.ndim(x) else Fraction(float(x))


def dot(a: Vector, b: Vector) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def times(A: Matrix, w: Vector) -> Vector:
    return [dot(a, w) for a in A]


def solved(H: Matrix, k: Vector) -> tuple[Vector, int]:
    """A solution of H w = k, which has one, and the rank of H."""
    rows, d, done = [[*h, y] for h, y in zip(H, k, strict=True)], len(k), 0
    places = []
    for j in range(d):
        pivot = next((i for i in range(done, d) if rows[i][j]), None)
        if pivot is None:
            continue
        rows[done], rows[pivot] = rows[pivot], rows[done]
        head = rows[done][j]
        rows[done] = [x / head for x in rows[done]]
        for i in range(d):
            if i != done and rows[i][j]:
                factor = rows[i][j]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[done], strict=True)]
        places.append(j)
        done += 1
    w = [Fraction(0)] * d
    for i, j in enumerate(places):
        w[j] = rows[i][d]
    return w, done


@dataclass(frozen=True)
class User:
    """f(w) = |A w - b|^2 / 2, with its Hessian and the gradient at 0."""

    A: Matrix
    b: Vector
    H: Matrix
    k: Vector

    @classmethod
    def of(cls, A: Any, b: Any) -> User:
        rows, y = exact(A), exact(b)
        columns = [list(c) for c in zip(*rows, strict=True)]
        return cls(rows, y, [[dot(c, e) for e in columns] for c in columns], [dot(c, y) for c in columns])

    def value(self, w: Vector) -> Fraction:
        return sum(((x - y) ** 2 for x, y in zip(times(self.A, w), self.b, strict=True)), Fraction(0)) / 2

    def grad(self, w: Vector) -> Vector:
        return [x - y for x, y in zip(times(self.H, w), self.k, strict=True)]

    def prox(self, u: Vector, eta: Fraction) -> Vector:
        d = range(len(u))
        return solved([[(i == j) + eta * self.H[i][j] for j in d] for i in d], [u[i] + eta * self.k[i] for i in d])[0]


# --- hostile data ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A problem, the same users in exact numbers, and the norms of the columns over all users."""

    problem: rs.LeastSquares
    users: list[User]
    lam: Vector
    columns: Any
    rng: np.random.Generator
    words: str


def draw(seed: int, kinds: tuple[type, ...] = (np.float64, np.float32)) -> Case:
    rng = np.random.default_rng(seed)
    users, d = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    kind = kinds[int(rng.integers(len(kinds)))]
    wide = float(rng.choice([0, 2, 4, 8]))
    scale = 10 ** rng.uniform(-wide, wide, d)
    apart = float(rng.choice([0, 2, 4, 8]))
    twin, empty = d > 1 and rng.random() < 0.25, d > 1 and rng.random() < 0.15
    alike = 10 ** -rng.uniform(1, 6) if d > 1 and rng.random() < 0.4 else None
    if twin:  # equal columns round at their own size: beside smaller ones that nearly depend on them, data would drown
        apart = min(apart, 4.0)
        scale = np.full(d, scale[0]) if alike is not None else np.concatenate([[scale.min()], scale[1:]])
    truth = rng.standard_normal(d) / scale
    noise = float(rng.choice([0, 1e-3, 1]))
    A: list[Any] = []
    b: list[Any] = []
    for _ in range(users):
        n = int(rng.integers(1, 9))
        X = rng.standard_normal((n, d))
        if alike is not None:
            X[:, 1] = X[:, 0] + alike * X[:, 1]
        X = X * scale
        if twin:
            X[:, -1] = X[:, 0]
        if empty:
            X[:, 0] = 0
        size = 10 ** rng.uniform(-apart, apart)
        y = X @ truth + noise * rng.standard_normal(n)
        A.append((size * X).astype(kind))
        b.append((size * y).astype(kind))
    weights = [None, rng.uniform(0.1, 1, users), 10 ** rng.uniform(-4, 0, users)][int(rng.integers(3))]
    if weights is not None and users > 1 and rng.random() < 0.3:
        weights[0] = 0
    lam = exact(np.ones(users) if weights is None else weights)
    whole = sum(lam)
    words = f"d {d}, rows {[len(y) for y in b]}, {kind.__name__}, columns 1e+-{wide:g}, users 1e+-{apart:g}, "
    words += f"twin {twin}, empty {empty}, alike {alike}, noise {noise:g}, weights {weights}"
    lam = [x / whole for x in lam]
    exactly = [User.of(x, y) for x, y in zip(A, b, strict=True)]
    columns = np.sqrt([float(sum(x * f.H[j][j] for x, f in zip(lam, exactly, strict=True))) for j in range(d)])
    return Case(rs.LeastSquares(A, b, weights=weights), exactly, lam, np.where(columns > 0, columns, 1), rng, words)


def pooled(case: Case, pulls: list[Matrix] | None = None, sides: list[Vector] | None = None) -> tuple[Vector, int]:
    """A minimiser of f, or a root of another weighted sum, and the rank."""
    H = pulls or [f.H for f in case.users]
    k = sides or [f.k for f in case.users]
    d = range(len(k[0]))
    total = [[sum(x * h[i][j] for x, h in zip(case.lam, H, strict=True)) for j in d] for i in d]
    return solved(total, [sum(x * y[i] for x, y in zip(case.lam, k, strict=True)) for i in d])  # type: ignore[arg-type, misc]


def f_of(case: Case, w: Vector) -> Fraction:
    return sum((x * f.value(w) for x, f in zip(case.lam, case.users, strict=True)), Fraction(0))


def near(case: Case, star: Vector) -> list[Any]:
    """Points from afar to the rounding of the minimiser, in steps that every column feels alike."""
    w, d = np.array([float(x) for x in star]), len(star)
    sizes = (1e3, 1.0, 1e-3, 1e-6)
    away = [w + size * case.rng.standard_normal(d) / case.columns for size in sizes]
    kind = case.problem.weights.numpy().dtype
    return [point.astype(kind) for point in (np.zeros(d), w, *away)]


def size_of(f: User, w: Vector) -> float:
    """| |A| |w| + |b| |: what rounding errors of f at w are measured by."""
    terms = ((sum(abs(a * x) for a, x in zip(row, w, strict=True)) + abs(y)) for row, y in zip(f.A, f.b, strict=True))
    return float(np.sqrt(sum(float(x) ** 2 for x in terms)))


def off(found: Any, true: Vector, columns: Any, size: float) -> float:
    """The largest error of a point, each coordinate in the unit of its column, beside `size`."""
    error = np.asarray(found, float) - np.array([float(x) for x in true])
    return float(np.max(np.abs(columns * error))) / size if size else 0.0


def norms(f: User) -> Any:
    """The norms of a user's columns."""
    return np.sqrt([float(f.H[j][j]) for j in range(len(f.k))])


def nudged(f: User, rng: np.random.Generator) -> User:
    """The same user with each number moved by a unit in the last place, equal columns alike.

    A factorisation in floating point is the exact one of data that are moved by some such units (backward stability):
    what this does to an answer, times `UNITS`, is what the arithmetic allows.
    """
    A, b = np.array(f.A, dtype=float), np.array(f.b, dtype=float)
    same = [next(k for k in range(j + 1) if f.H[k] == f.H[j]) for j in range(len(f.k))]
    moved = (np.spacing(np.abs(A)) * rng.choice([-1, 1], A.shape))[:, same]
    return User.of(A + moved, b + np.spacing(np.abs(b)) * rng.choice([-1, 1], b.shape))


def conditioned(f: User) -> float:
    """The condition number of a user's rows with its columns scaled to length one."""
    sigma = np.linalg.svd(np.array(f.A, dtype=float) / norms(f), compute_uv=False)
    return float(sigma[0] / sigma[-1])


def precision(problem: rs.LeastSquares) -> float:
    """Ten digits; of single precision all but the last two."""
    return 1e-10 if problem.weights.dtype == torch.float64 else 1e-5


# --- what must hold --------------------------------------------------------------------------------------------------


def true_gap(seed: int) -> str:
    """f*, and f - f* of any point: from afar down to the rounding of the minimiser."""
    case = draw(seed)
    star, _ = pooled(case)
    least, size = f_of(case, star), float(f_of(case, [Fraction(0)] * len(star)))
    assert abs(float(Fraction(case.problem.fstar) - least)) <= 1e-9 * float(least) + 1e-13 * size, case.words
    for w in near(case, star):
        check_gap(case, w, least, float(case.problem.gap(torch.from_numpy(w).unsqueeze(0))[0]))
    return "right"


def check_gap(case: Case, w: Any, least: Fraction, said: float) -> None:
    exactly = exact(w)
    true = float(f_of(case, exactly) - least)
    size = np.sqrt(sum(float(x) * size_of(f, exactly) ** 2 for x, f in zip(case.lam, case.users, strict=True)))
    wrong = abs(np.sqrt(said) - np.sqrt(true))
    assert wrong <= CLOSE * np.sqrt(true) + 1e-10 * size, f"gap {said:.3g}, truly {true:.3g} at {w}: {case.words}"


def gap_of_a_run(seed: int) -> str:
    """The gap that a run reports is that of the model that it reports, in single precision too."""
    case = draw(seed)
    L = float(case.problem.lipschitz.max()) or 1.0
    eta = float(10 ** case.rng.uniform(-1, 6)) / L
    scheme = [rs.fedpi, rs.fedprox, rs.fedsplit][int(case.rng.integers(3))](eta)
    run = rs.solve(case.problem, scheme, rounds=30)
    if run.status == "diverged":
        return "diverged"
    least = f_of(case, pooled(case)[0])
    check_gap(case, run.model.numpy(), least, float(run.history.gap.iloc[-1]))
    return "right"


def true_answers(seed: int) -> str:
    """Values, gradients, prox, local steps and batches of every user, alone and among others."""
    case = draw(seed)
    problem, rng = case.problem, case.rng
    own = np.stack([norms(f) for f in case.users])
    unit = np.where(own > 0, own, 1)
    U = torch.from_numpy(rng.standard_normal(own.shape) / unit).to(problem.weights)
    L = float(problem.lipschitz.max()) or 1.0
    eta, k = float(10 ** rng.uniform(-12, 12)) / L, int(rng.integers(1, 4))
    small = float(10 ** rng.uniform(-12, 0)) / L
    answers = {
        "prox": problem.prox(U, eta),
        "steady prox": rs.ExactProx().bind(problem, True).rows(Ask(0, eta), U, {})[0],
        "steps": rs.GradientSteps(k).bind(problem, False).rows(Ask(0, small), U, {})[0],
        "steady steps": rs.GradientSteps(k).bind(problem, True).rows(Ask(0, small), U, {})[0],
    }
    value, grad, tol = problem.value(U), problem.grad(U), precision(problem)
    for i, f in enumerate(case.users):
        u, size = exact(U[i]), size_of(f, exact(U[i]))
        assert abs(float(value[i]) - float(f.value(u))) <= tol * size**2, f"value of user {i}: {case.words}"
        assert off(grad[i], f.grad(u), 1 / unit[i], size) <= tol, f"gradient of user {i}: {case.words}"
        for name, answer in answers.items():

            def truly(f: User, u: Vector = u, steps: bool = "steps" in name) -> Vector:
                return _steps(f, u, small, k) if steps else f.prox(u, Fraction(eta))

            true = truly(f)
            far = float(np.abs(unit[i] * [float(x) for x in true]).sum() + np.abs(unit[i] * U[i].numpy()).sum())
            wrong = off(answer[i], true, unit[i], far)
            if wrong > tol:  # columns that nearly depend on each other: digits that the data themselves do not have
                others = [truly(nudged(f, np.random.default_rng(n))) for n in range(8)]
                allowed = UNITS * max(off([float(x) for x in other], true, unit[i], far) for other in others)
                assert wrong <= allowed, (
                    f"{name} of user {i} is off by {wrong:.2g}, eta {eta:g} {small:g}: {case.words}"
                )
    _check_batch(case, U, unit, tol)
    return "right"


def _check_batch(case: Case, U: torch.Tensor, unit: Any, tol: float) -> None:
    """n / |batch| times the gradient of some rows."""
    sizes = case.problem.sizes.tolist()
    rows = torch.stack([torch.from_numpy(case.rng.permutation(n).repeat(3)[:3]) for n in sizes])
    mask = torch.tensor([[j < n for j in range(3)] for n in sizes])
    grad = case.problem.batch_grad(U, rows, mask)
    for i, f in enumerate(case.users):
        some, u = [int(r) for r, taken in zip(rows[i], mask[i], strict=True) if taken], exact(U[i])
        part = User.of([[float(x) for x in f.A[r]] for r in some], [float(f.b[r]) for r in some])
        true = [Fraction(sizes[i], len(some)) * g for g in part.grad(u)]
        wrong = off(grad[i], true, 1 / unit[i], sizes[i] * size_of(f, u))
        assert wrong <= tol, f"batch gradient of user {i} is off by {wrong:.2g}: {case.words}"


def true_closed_forms(seed: int) -> str:
    """Where FedProx and FedAvg end, the mean of users' answers to one point, and how far these are apart."""
    case = draw(seed, kinds=(np.float64,))
    problem, rng, d = case.problem, case.rng, range(case.problem.dim)
    L = float(problem.lipschitz.max()) or 1.0
    eta, small, k = float(10 ** rng.uniform(-6, 3)) / L, float(10 ** rng.uniform(-6, 0)) / L, int(rng.integers(1, 4))
    zero = [Fraction(0)] * len(d)
    origin = [f.prox(zero, Fraction(eta)) for f in case.users]  # p = p(0) + M u
    axes = [[Fraction(int(i == j)) for i in d] for j in d]
    M = [[[x - o for x, o in zip(f.prox(e, Fraction(eta)), at, strict=True)] for e in axes]
         for f, at in zip(case.users, origin, strict=True)]  # fmt: skip
    pull = [[[(i == j) - m[i][j] for j in d] for i in d] for m in M]
    check_root(case, pull, origin, rs.theory.regularised_minimiser(problem, eta), f"eta {eta:g}")
    H, side = [], []
    for f in case.users:
        paths = [_steps(f, e, small, k) for e in (zero, *axes)]
        side.append(paths[0])
        H.append([[(i == j) - (paths[j + 1][i] - paths[0][i]) for j in d] for i in d])
    check_root(case, H, side, rs.theory.fedavg_fixed_point(problem, small, k), f"eta {small:g}, {k} steps")
    u = rng.standard_normal(len(d)) / case.columns
    maps = rs.ExactProx().bind(problem, True).maps(eta)  # type: ignore[attr-defined]
    answers = [f.prox(exact(u), Fraction(eta)) for f in case.users]
    mean = [dot(case.lam, list(column)) for column in zip(*answers, strict=True)]
    spread = dot(case.lam, [dot(r, r) for p in answers for r in [[x - y for x, y in zip(p, mean, strict=True)]]])
    row = torch.from_numpy(u).unsqueeze(0)
    far = float(np.abs(u).max() + max(abs(float(x)) for p in answers for x in p))
    assert off(maps.mean(row)[0], mean, 1.0, far) <= 1e-10, f"mean: {case.words}"
    found = float(maps.spread(row)[0])
    assert abs(np.sqrt(found) - np.sqrt(float(spread))) <= CLOSE * np.sqrt(float(spread)) + 1e-10 * far, (
        f"spread {found:.3g}, truly {float(spread):.3g}: {case.words}"
    )
    return "right"


def _steps(f: User, w: Vector, eta: float, k: int) -> Vector:
    for _ in range(k):
        w = [x - Fraction(eta) * g for x, g in zip(w, f.grad(w), strict=True)]
    return w


def check_root(case: Case, pulls: list[Matrix], sides: list[Vector], found: Any, words: str) -> None:
    """found solves sum_i lambda_i (pull_i w - side_i) = 0, as seen through the sum itself: e^T (sum) e is small."""
    star, _ = pooled(case, pulls, sides)
    e = [x - y for x, y in zip(exact(found), star, strict=True)]
    height = dot(case.lam, [dot(e, times(h, e)) for h in pulls])
    w = exact(found)
    size = dot(case.lam, [dot(w, times(h, w)) + abs(dot(w, k)) for h, k in zip(pulls, sides, strict=True)])
    wrong = np.sqrt(max(float(height), 0) / float(size)) if size else 0.0
    assert wrong <= 1e-8, f"closed form off by {wrong:.2g} ({words}): {case.words}"


def true_constants(seed: int) -> str:
    """mu and L of every user: H - mu has no negative eigenvalue, but one as soon as mu grows; mu = 0 for lost ranks."""
    case = draw(seed, kinds=(np.float64,))
    d = case.problem.dim
    for i, f in enumerate(case.users):
        mu, L = float(case.problem.convexity[i]), float(case.problem.lipschitz[i])
        _, rank = solved(f.H, f.k)
        assert (mu > 0) == (rank == d), f"mu {mu:g} of user {i}, of rank {rank}: {case.words}"
        if mu > 0:
            # Jacobi's method has sigma to eps times this condition number (Demmel and Veselic, 1992), and mu = sigma^2.
            part = max(1e-8, UNITS * 2.3e-16 * conditioned(f))
            around = below(f.H, mu * (1 - part)), below(f.H, mu * (1 + part))
            assert around[0] == 0 < around[1], f"mu {mu:g} of user {i}: {case.words}"
        if L > 0:
            around = below(f.H, L * (1 - 1e-8)), below(f.H, L * (1 + 1e-8))
            assert around[0] < d == around[1], f"L {L:g} of user {i}: {case.words}"
    return "right"


def below(H: Matrix, x: float) -> int:
    """How many eigenvalues of H lie below x: the negative pivots of H - x (Sylvester)."""
    d, count = len(H), 0
    rows = [[H[i][j] - Fraction(x) * (i == j) for j in range(d)] for i in range(d)]
    for j in range(d):
        count += rows[j][j] < 0
        for i in range(j + 1, d):
            factor = rows[i][j] / rows[j][j]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[j], strict=True)]
    return count


def small_users_count(seed: int) -> str:
    """Large users see d - 1 directions or fewer, some the same ones; the others are for small users to decide."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 5))
    large = rng.standard_normal((int(rng.integers(1, d)), d))
    apart, kind = float(rng.uniform(0, 7)), [np.float64, np.float32][int(rng.integers(2))]
    A = [10**apart * large[rng.permutation(len(large))[: int(rng.integers(1, len(large) + 1))]] for _ in range(3)]
    A += [10**-apart * rng.standard_normal((int(rng.integers(d, 9)), d)) for _ in range(2)]
    A = [x.astype(kind) for x in A]
    truths = [*np.repeat(rng.standard_normal((1, d)), 3, axis=0), *rng.standard_normal((2, d))]  # the large ones agree
    b = [(x @ w).astype(kind) for x, w in zip(A, truths, strict=True)]
    problem, users = rs.LeastSquares(A, b), [User.of(x, y) for x, y in zip(A, b, strict=True)]
    case = Case(problem, users, [Fraction(1, len(users))] * len(users), np.ones(d), rng, f"d {d}, 1e+-{apart:.2g}")
    star, rank = pooled(case)
    assert rank == d
    found = torch.linalg.vector_norm(problem.minimiser.double() - torch.tensor([float(x) for x in star]))
    wrong = float(found) / max(abs(float(x)) for x in star)
    assert wrong <= 1e-6 + 1e-15 * 100**apart, f"w* is off by {wrong:.2g}: {case.words}"
    return "right"


FAMILIES = [
    Family("least squares: gap and f*", true_gap, few=60, many=1000),
    Family("least squares: gap of a run", gap_of_a_run, few=30, many=500),
    Family("least squares: users' answers", true_answers, few=60, many=1000),
    Family("least squares: closed forms", true_closed_forms, few=40, many=600),
    Family("least squares: small users", small_users_count, few=60, many=1000),
    Family("least squares: constants", true_constants, few=60, many=1000),
]
