"""Logistic regression and Newton's method on hard data, against arithmetic with 60 digits and linear programs."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import torch
from scipy.optimize import linprog

import resolvent as rs
from hunt.family import Family
from resolvent.errors import BadAnswer
from resolvent.iteration.engine import Ask

EPS = 2.3e-16
DIGITS = 60


class Exact:
    """eta sum_j log(1 + exp(-c_j . x)) + reg eta/2 |x|^2 + |x - u|^2 / 2 in many digits; `u` may be None: no last term.

    Weights omega_j stand for eta where they differ.
    """

    def __init__(self, C: Any, omega: Any, ridge: Any, u: Any = None) -> None:
        self.C, self.d = [[mp.mpf(float(c)) for c in row] for row in C], len(C[0])
        self.omega, self.ridge = [mp.mpf(w) for w in omega], mp.mpf(ridge)
        self.u = None if u is None else [mp.mpf(float(v)) for v in u]
        self.T = mp.mpf(1)

    def slopes(self, x: Any) -> list[Any]:
        return [1 / (1 + mp.exp(mp.fdot(row, x) / self.T)) for row in self.C]

    def value(self, x: Any) -> Any:
        losses = (w * mp.log1p(mp.exp(-mp.fdot(row, x))) for w, row in zip(self.omega, self.C, strict=True))
        return mp.fsum(losses) + self.ridge / 2 * mp.fdot(x, x)

    def gradient(self, x: Any) -> Any:
        pull = [w * s for w, s in zip(self.omega, self.slopes(x), strict=True)]
        columns = zip(*self.C, strict=True)
        g = [self.ridge * v - mp.fdot(pull, column) for v, column in zip(x, columns, strict=True)]
        return g if self.u is None else [g[k] + x[k] - self.u[k] for k in range(self.d)]

    def hessian(self, x: Any) -> Any:
        bend = [w * s * (1 - s) / self.T for w, s in zip(self.omega, self.slopes(x), strict=True)]
        H = mp.matrix(self.d, self.d)
        for i in range(self.d):
            for j in range(self.d):
                H[i, j] = mp.fsum(b * row[i] * row[j] for b, row in zip(bend, self.C, strict=True))
            H[i, i] += self.ridge + (0 if self.u is None else 1)
        return H

    def refined(self, x: Any) -> tuple[Any, Any]:
        """A point where the gradient vanishes to many digits, and |gradient| there: by Newton's method from x.

        Where margins are huge, losses have kinks between which its steps may go to and fro. Then they are rounded off,
        log(1 + exp(-c . x)) -> T log(1 + exp(-c . x / T)), and the minimum is followed from a large T to T = 1.
        """
        x = [mp.mpf(float(v)) for v in x]
        found, left = self.newton(x)
        if left > self.small(found):
            steepest = max(norm(row) for row in self.C)
            doublings = int(mp.log(1 + steepest * (norm(x) + steepest * mp.fsum(self.omega)), 2))
            for self.T in [mp.mpf(2) ** k for k in range(doublings, -1, -1)]:
                x, left = self.newton(x)
            found = x
        return found, left

    def small(self, x: Any) -> Any:
        return mp.mpf(10) ** (-40) * (1 + norm(x))

    def newton(self, x: Any, steps: int = 150) -> tuple[Any, Any]:
        """Halved Newton steps from x, and |gradient| where they lead."""
        for _ in range(steps):
            g = self.gradient(x)
            if norm(g) <= self.small(x):
                break
            h = list(mp.lu_solve(self.hessian(x), mp.matrix(g)))
            t = mp.mpf(1)
            while t > mp.mpf(2) ** -120:
                new = [a - t * b for a, b in zip(x, h, strict=True)]
                if mp.fdot(self.gradient(new), h) >= -mp.fdot(g, h) / 4:
                    break
                t /= 2
            x = new
        return x, norm(self.gradient(x))


def norm(v: Any) -> Any:
    return mp.sqrt(mp.fdot(v, v))


def hard_data(rng: np.random.Generator) -> tuple[Any, Any]:
    """Rows and labels of one user: scales of 1e-8 to 1e8, of the data, of rows, of features; correlated rows."""
    n, d = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    A = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-8, 8)
    kind = int(rng.integers(5))
    if kind == 1:
        A *= 10.0 ** rng.uniform(-4, 4, (n, 1))
    elif kind == 2:
        A *= 10.0 ** rng.uniform(-4, 4, (1, d))
    elif kind == 3:
        line = rng.standard_normal((n, 1)) * rng.standard_normal((1, d))
        A = np.abs(A).max() * (line + 10.0 ** rng.uniform(-12, 0) * rng.standard_normal((n, d)))
    elif kind == 4:
        A = np.rint(rng.uniform(-300, 300, (n, d)))
    return A, rng.choice([-1.0, 1.0], n)


def prox_of_one(seed: int) -> str:
    """|p - prox| <= the error that NewtonProx reports, and that is within what it promises; else it is refused."""
    rng = np.random.default_rng(seed)
    A, b = hard_data(rng)
    eta = 10.0 ** rng.uniform(-8, 8)
    u = rng.standard_normal(A.shape[1]) * 10.0 ** rng.uniform(-8, 8)
    reg = 0.0 if rng.random() < 0.5 else 10.0 ** rng.uniform(-8, 8)
    single = rng.random() < 0.15
    kind = np.float32 if single else np.float64
    A, u, reg = A.astype(kind), u.astype(kind), float(kind(reg))
    problem, tol = rs.Logistic([A], [b.astype(kind)], reg=reg), 5e-13
    U = torch.from_numpy(u).unsqueeze(0)
    try:
        p, memory = rs.NewtonProx(tol).bind(problem, True).rows(Ask(0, eta), U, {})
    except BadAnswer as refusal:
        words = str(refusal)
        if "user 0 in round 1" not in words or benign(A, u, eta):
            raise AssertionError(f"refused a tame case: {words}") from None
        return "refused"
    error, size = float(memory["error"]), 1 + float(np.linalg.norm(u.astype(float)))
    with mp.workdps(DIGITS):
        f = Exact(b[:, None] * A.astype(float), [eta] * len(b), mp.mpf(eta) * reg, u)
        x, left = f.refined(p[0].double().numpy())
        assert left <= 1e-20, f"no reference was found from the answer: the gradient there is {mp.nstr(left, 3)}"
        away = float(norm([mp.mpf(float(a)) - c for a, c in zip(p[0].tolist(), x, strict=True)]))
        s = [float(v) for v in f.slopes(x)]
    lengths, far = np.linalg.norm(A.astype(float), axis=1), float(p.double().norm())
    blur = eta * float(lengths @ (np.array(s) + np.array(s) * (1 - np.array(s)) * lengths * far))
    unit = float(np.finfo(kind).eps)
    round_off = 8 * unit * (blur + size + far)
    assert away <= error + round_off, f"|p - prox| is {away:.3g}, but {error:.3g} is reported"
    most = max(tol * size, 1e-8 * (size + far)) if not single else 1e-2 * (size + far)
    assert away <= most, f"|p - prox| is {away:.3g} for |u| = {size:.3g} and |p| = {far:.3g}"
    if not single and round_off < tol * size:
        assert away <= 2 * tol * size, f"|p - prox| is {away:.3g}, beyond the tolerance {tol * size:.3g}"
    return "right"


def benign(A: Any, u: Any, eta: float) -> bool:
    """Where margins have digits to spare an answer is owed, and where gradients have: terms of up to eta |a| round by
    8 eps of their sum, which is beyond the 1e-8 of a refusal from 5e6 on."""
    pull = eta * np.abs(A).sum()
    far = np.abs(A).max() * (np.linalg.norm(u) + pull)
    return bool(far < 1e9 and pull < 1e6 * (1 + np.linalg.norm(u)))


def labelled(rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    """A few users' small whole numbers, about half of them separable."""
    d = int(rng.integers(1, 4))
    sizes = rng.integers(1, 8, int(rng.integers(1, 4)))
    A = [np.rint(rng.uniform(-3, 3, (n, d))) for n in sizes]
    b = [rng.choice([-1.0, 1.0], n) for n in sizes]
    if rng.random() < 0.4:
        w = rng.standard_normal(d)
        b = [np.where(a @ w >= 0, 1.0, -1.0) for a in A]
    return A, b


def has_minimiser(C: Any) -> bool:
    """Without a regulariser: whether some s >= 1 has sum_j s_j c_j = 0 (Stiemke), by a linear program."""
    found = linprog(np.zeros(len(C)), A_eq=C.T, b_eq=np.zeros(C.shape[1]), bounds=(1, None), method="highs")
    return bool(found.status == 0)


def independent(C: Any) -> list[int]:
    """Columns that no other of them depend on, as many as there are: whole numbers times powers of two."""
    some: list[int] = []
    units = C / np.exp2(np.floor(np.log2(np.abs(C).max(1, keepdims=True) + (C == 0).all(1, keepdims=True))))
    for k in range(C.shape[1]):
        size = np.abs(units).max(0)
        if size[k] and np.linalg.matrix_rank(units[:, [*some, k]] / size[[*some, k]]) > len(some):
            some.append(k)
    return some


def minimum_without_regulariser(seed: int) -> str:
    """A minimiser is given exactly where there is one, whatever the scales; values are right in every round."""
    rng = np.random.default_rng(seed)
    A, b = labelled(rng)
    weights = rng.uniform(0.1, 1, len(A))
    if len(A) > 1 and rng.random() < 0.5:
        weights[0] = 0.0
    rows, columns = 2.0 ** rng.integers(-20, 20, len(A)), 2.0 ** rng.integers(-20, 20, A[0].shape[1])
    kind = np.float32 if rng.random() < 0.3 else np.float64
    scaled = [(a * r * columns).astype(kind) for a, r in zip(A, rows, strict=True)]
    problem = rs.Logistic(scaled, [y.astype(kind) for y in b], reg=0, weights=weights.astype(kind))
    lam = problem.weights.double().numpy()
    say = [i for i in range(len(A)) if lam[i] > 0]
    exists = has_minimiser(np.concatenate([b[i][:, None] * A[i] for i in say]))
    given = problem.minimiser
    assert exists or given is None, f"there is no minimiser, but given is {given}"
    if exists and given is None:
        assert max(rows) / min(rows) > 1e4 or max(columns) / min(columns) > 1e4, "a minimiser was missed in a tame case"
        return "refused"
    eta = 1 / (float(problem.lipschitz.max()) or 1.0)
    try:
        run = rs.solve(problem, rs.fedpi(eta), rounds=3)
    except BadAnswer as refusal:  # rows of 1e-11 at an eta of 1e20
        if all(benign(a, np.zeros(a.shape[1]), eta) for a in scaled):
            raise AssertionError(f"refused a tame case: {refusal}") from None
        return "refused"
    C = np.concatenate([b[i][:, None] * scaled[i].astype(float) for i in say])
    omega = np.concatenate([np.full(len(b[i]), lam[i]) for i in say])
    with mp.workdps(DIGITS):
        f = Exact(C, omega, 0)
        value = float(f.value([mp.mpf(v) for v in run.model.double().tolist()]))
        unit = 1e-9 if kind is np.float64 else 1e-5
        assert abs(run.history.value.iloc[-1] - value) <= unit * value, f"{run.history.value.iloc[-1]} is not {value}"
        if not exists:
            assert bool(run.history.gap.isna().all())
            assert any("no minimiser" in str(finding) for finding in run.explanation.findings)
            return "warned"
        # The value at the minimiser is the least: gradient to nothing, seen through coordinates that are of size one.
        gap, fstar = float(run.history.gap.iloc[-1]), problem.fstar
        assert fstar is not None
        assert gap >= 0
        assert abs(gap - (value - fstar)) <= unit * value + 1e-4 * gap
        # f(w) - f* is within what is certified, which is at most 1e-10 f*: independent features have the same minimum.
        least, some = problem.minimum, independent(C)
        rest = Exact(C[:, some], omega, 0)
        x, left = rest.refined(np.linalg.lstsq(C[:, some], C @ least.w, rcond=None)[0])
        assert left <= 1e-20, f"no reference was found from the minimiser: the gradient there is {mp.nstr(left, 3)}"
        above = float(f.value([mp.mpf(v) for v in least.w]) - rest.value(x))
        assert above <= least.bound <= 1e-10 * fstar, f"f(w) - f* is {above:.3g}, certified is {least.bound:.3g}"
    return "right"


def minimum_with_regulariser(seed: int) -> str:
    """f* to the ten digits that are certified, or None where scales leave too few."""
    rng = np.random.default_rng(seed)
    A, b = hard_data(rng)
    reg = 10.0 ** rng.uniform(-10, 4)
    problem = rs.Logistic([A], [b], reg=reg)
    if problem.minimiser is None:
        assert not (1e-3 < np.abs(A).max() < 1e3 and reg > 1e-4), "no minimum of a tame case"
        return "refused"
    with mp.workdps(DIGITS):
        f = Exact(b[:, None] * A, [1.0] * len(b), reg)
        x, left = f.refined(problem.minimiser.numpy())
        assert left <= 1e-20, f"no reference was found from the minimiser: the gradient there is {mp.nstr(left, 3)}"
        least = f.value(x)
        above, excess = float(f.value([mp.mpf(v) for v in problem.minimum.w]) - least), problem.minimum.bound
        assert above <= excess, f"f(w) - f* is {above:.3g}, certified is {excess:.3g}"
        w = np.array([float(v) for v in x]) + rng.standard_normal(len(x)) * 10.0 ** rng.uniform(-6, 1)
        truth = float(f.value([mp.mpf(v) for v in w]) - least)
        least = float(least)
    assert problem.fstar is not None
    assert abs(problem.fstar - least) <= 1e-10 * least, f"f* is {least}, not {problem.fstar}"
    gap = float(problem.gap(torch.from_numpy(w).unsqueeze(0)))  # type: ignore[arg-type]
    assert abs(gap - truth) <= 1e-6 * truth + 1e-9 * least, f"the gap is {truth}, not {gap}"
    return "right"


def own_functions(seed: int) -> str:
    """Newton's method on functions of one's own: right where they are convex, refused where the hessian is wrong."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 4))
    slope, bend = SHAPES[int(rng.integers(len(SHAPES)))]
    scale, height = 10.0 ** rng.uniform(-3, 3, d), 10.0 ** rng.uniform(-3, 3, d)
    k, h = torch.from_numpy(scale), torch.from_numpy(height)
    lie = [1.0, 1.0, -1.0, 0.01, 100.0][int(rng.integers(5))]
    problem = rs.Custom(
        1,
        d,
        grad=lambda W: h * k * slope(k * W),
        hessian=lambda W: torch.diag_embed(lie * h * k * k * bend(k * W)),
    )
    u, eta = rng.standard_normal(d) * 10.0 ** rng.uniform(-3, 3), 10.0 ** rng.uniform(-4, 4)
    try:
        p, _ = rs.NewtonProx().bind(problem, True).rows(Ask(0, eta), torch.from_numpy(u).unsqueeze(0), {})
    except BadAnswer:
        assert lie != 1.0, "a convex function with its own hessian was refused"
        return "refused"
    for i in range(d):
        low, high = sorted((0.0, float(u[i])))  # the slope has the sign of x, so the prox lies between 0 and u
        for _ in range(200):
            x = (low + high) / 2
            at = x - u[i] + eta * height[i] * scale[i] * float(slope(torch.tensor(scale[i] * x, dtype=torch.float64)))
            low, high = (low, x) if at > 0 else (x, high)
        size = 1 + float(np.linalg.norm(u))
        curve = eta * height[i] * scale[i] ** 2 * float(bend(torch.tensor(scale[i] * x, dtype=torch.float64)))
        assert abs(float(p[0, i]) - x) <= 1e-12 * size + 64 * EPS * curve * abs(x), f"{float(p[0, i])} is not {x}"
    return "right"


SHAPES = [
    (lambda x: x**3, lambda x: 3 * x**2),
    (lambda x: torch.tanh(x), lambda x: 1 / torch.cosh(x.clamp(-300, 300)) ** 2),
    (lambda x: x / torch.sqrt(1 + x * x), lambda x: (1 + x * x) ** -1.5),
    (lambda x: torch.asinh(x), lambda x: 1 / torch.sqrt(1 + x * x)),
]

FAMILIES = [
    Family("logistic prox on hard data", prox_of_one, few=40, many=1000),
    Family("logistic minimum without a regulariser", minimum_without_regulariser, few=12, many=300),
    Family("logistic minimum with a regulariser", minimum_with_regulariser, few=40, many=1000),
    Family("newton on functions of one's own", own_functions, few=12, many=300),
]
