"""Problems made of a user's own functions: right ones are never refused, wrong ones are, before the first round."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import resolvent as rs
from hunt.family import Family

Function = Callable[..., Any]


@dataclass(frozen=True)
class One:
    """One user's f, in units of order one."""

    value: Function
    grad: Function | None = None
    prox: Function | None = None
    hessian: Function | None = None
    convex: bool = True
    inside: float | None = None
    """Where all coordinates of a start must be, for functions with a domain."""


def tensor(x: Any) -> Tensor:
    return torch.as_tensor(np.asarray(x), dtype=torch.float64)


def quadratic(rng: np.random.Generator, d: int) -> One:
    """|A x - b|^2 / 2 + reg |x|^2 / 2, A of any rank."""
    A, reg = tensor(rng.standard_normal((int(rng.integers(1, 2 * d + 1)), d))), float(rng.choice([0.0, 0.1, 1.0]))
    b = tensor(rng.standard_normal(len(A)))
    H = A.T @ A + reg * torch.eye(d, dtype=A.dtype)
    return One(
        lambda x: (A @ x - b).square().sum() / 2 + reg * x.square().sum() / 2,
        lambda x: H @ x - A.T @ b,
        lambda u, eta: torch.linalg.solve(torch.eye(d, dtype=A.dtype) + eta * H, u + eta * A.T @ b),
        lambda x: H,
    )


def logistic(rng: np.random.Generator, d: int) -> One:
    A, reg = tensor(rng.standard_normal((int(rng.integers(1, 10)), d))), float(rng.choice([0.0, 0.1, 1.0]))
    return One(
        lambda x: torch.nn.functional.softplus(-(A @ x)).sum() + reg * x.square().sum() / 2,
        lambda x: -A.T @ torch.sigmoid(-(A @ x)) + reg * x,
        hessian=lambda x: A.T @ ((q := torch.sigmoid(A @ x)) * (1 - q))[:, None].mul(A) + reg * torch.eye(d).to(x),
    )


def lasso(rng: np.random.Generator, d: int) -> One:
    """c |x - b|^2 / 2 + k |x|_1."""
    c, k, b = rng.uniform(0.2, 3), rng.uniform(0.1, 2), tensor(rng.standard_normal(d) * rng.choice([0.3, 3]))

    def prox(u: Tensor, eta: float) -> Tensor:
        v = (u + eta * c * b) / (1 + eta * c)
        return v.sign() * (v.abs() - eta * k / (1 + eta * c)).clamp_min(0)

    return One(lambda x: c * (x - b).square().sum() / 2 + k * x.abs().sum(), lambda x: c * (x - b) + k * x.sign(), prox)


def deviation(rng: np.random.Generator, d: int) -> One:
    """|a . x - b|."""
    a, b = tensor(rng.standard_normal(d)), float(rng.standard_normal())
    return One(
        lambda x: (a @ x - b).abs(),
        lambda x: a * torch.sign(a @ x - b),
        lambda u, eta: u - a * torch.clamp((a @ u - b) / (a @ a), -eta, eta),
    )


def norm(rng: np.random.Generator, d: int) -> One:
    """|x - c|, whose prox rests at c."""
    c = tensor(rng.standard_normal(d))
    return One(
        lambda x: (x - c).norm(),
        lambda x: (x - c) / (x - c).norm().clamp_min(1e-300),
        lambda u, eta: c + (u - c) * max(0.0, 1 - eta / max(float((u - c).norm()), 1e-300)),
    )


def highest(rng: np.random.Generator, d: int) -> One:
    """The largest of a few linear functions: kinks everywhere."""
    A, b = tensor(rng.standard_normal((6, d))), tensor(rng.standard_normal(6))
    return One(lambda x: (A @ x + b).amax(), lambda x: A[int((A @ x + b).argmax())])


def huber(rng: np.random.Generator, d: int) -> One:
    """Its hessian jumps."""
    c, k = tensor(rng.standard_normal(d)), rng.uniform(0.1, 2)

    def prox(u: Tensor, eta: float) -> Tensor:
        r = u - c
        return c + torch.where(r.abs() <= k * (1 + eta), r / (1 + eta), r - eta * k * r.sign())

    return One(
        lambda x: torch.where((x - c).abs() <= k, (x - c).square() / 2, k * (x - c).abs() - k * k / 2).sum(),
        lambda x: (x - c).clamp(-k, k),
        prox,
        lambda x: torch.diag(((x - c).abs() <= k).to(x)),
    )


def box(rng: np.random.Generator, d: int) -> One:
    """An indicator: 0 inside, infinite outside."""
    low, high = tensor(rng.uniform(-2, -0.1, d)), tensor(rng.uniform(0.1, 2, d))
    return One(
        lambda x: torch.where((x >= low).all() & (x <= high).all(), 0.0, torch.inf),
        prox=lambda u, eta: u.clamp(low, high),
    )


def ball(rng: np.random.Generator, d: int) -> One:
    """An indicator whose boundary is met up to rounding only."""
    c, r = tensor(rng.standard_normal(d)), rng.uniform(0.3, 3)
    return One(
        lambda x: torch.where((x - c).norm() <= r, 0.0, torch.inf),
        prox=lambda u, eta: c + (u - c) * min(1.0, r / max(float((u - c).norm()), 1e-300)),
    )


def barrier(rng: np.random.Generator, d: int) -> One:
    """-sum log x_j, NaN outside of its domain."""

    def known(x: Tensor) -> Tensor:
        return torch.where((x > 0).all(), x, torch.nan)

    return One(
        lambda x: -torch.log(x).sum(),
        lambda x: -1 / known(x),
        lambda u, eta: (u + (u.square() + 4 * eta).sqrt()) / 2,
        lambda x: torch.diag(1 / known(x).square()),
        inside=1.0,
    )


def entropy(rng: np.random.Generator, d: int) -> One:
    """Raises an error outside of its domain."""

    def value(x: Tensor) -> Tensor:
        if bool((x <= 0).any()):
            raise ValueError("x must be positive")
        return (x * x.log()).sum()

    def positive(x: Tensor) -> Tensor:
        return torch.where((x > 0).all(), x, torch.nan)

    return One(value, lambda x: 1 + x.log(), hessian=lambda x: torch.diag(1 / positive(x)), inside=1.0)


def exponentials(rng: np.random.Generator, d: int) -> One:
    A = tensor(rng.standard_normal((3, d)))
    return One(lambda x: (A @ x).exp().sum(), lambda x: A.T @ (A @ x).exp())


def line(rng: np.random.Generator, d: int) -> One:
    a, b = tensor(rng.standard_normal(d)), float(rng.standard_normal() * 10.0 ** rng.integers(0, 7))
    return One(lambda x: a @ x + b, lambda x: a, lambda u, eta: u - eta * a, lambda x: torch.zeros(d, d).to(x))


def nothing(rng: np.random.Generator, d: int) -> One:
    return One(lambda x: 0 * x.sum(), lambda x: 0 * x, lambda u, eta: u)


def waves(rng: np.random.Generator, d: int) -> One:
    a, k = tensor(rng.standard_normal(d)), rng.uniform(0.3, 3)
    return One(
        lambda x: torch.sin(k * x + a).sum(),
        lambda x: k * torch.cos(k * x + a),
        hessian=lambda x: torch.diag(-k * k * torch.sin(k * x + a)),
        convex=False,
    )


def net(rng: np.random.Generator, d: int) -> One:
    """Kinks without convexity; its gradient is derived."""
    A, b = tensor(rng.standard_normal((8, d))), tensor(rng.standard_normal(8))
    c = tensor(rng.standard_normal(8))
    return One(lambda x: c @ torch.relu(A @ x + b) + x.square().sum(), convex=False)


CURVED = (quadratic, logistic, lasso, huber)
KINDS = (*CURVED, deviation, norm, highest, box, ball, barrier, entropy, exponentials, line, nothing, waves, net)


def scaled(f: One, height: float, width: float) -> One:
    """height f(x / width)."""
    grad, prox, hessian = f.grad, f.prox, f.hessian
    return replace(
        f,
        value=lambda x: height * f.value(x / width),
        grad=grad and (lambda x: height / width * grad(x / width)),
        prox=prox and (lambda u, eta: width * prox(u / width, eta * height / width**2)),
        hessian=hessian and (lambda x: height / width**2 * hessian(x / width)),
    )


@dataclass(frozen=True)
class Drawn:
    """Users, how they are handed over, and where a run with them begins."""

    users: list[One]
    given: tuple[str, ...]
    stacked: bool
    dtype: torch.dtype
    eta: float
    start: Tensor
    more: dict[str, Any]

    def build(self) -> rs.Custom:
        def own(function: str, f: One) -> Function:
            def answer(x: Tensor, *eta: float) -> Tensor:
                inner = torch.float64 if self.dtype == torch.float64 else x.dtype
                out: Tensor = getattr(f, function)(x.to(torch.float64), *eta)
                return out.to(inner)

            return answer

        functions: dict[str, Any] = {name: [own(name, f) for f in self.users] for name in self.given}
        if self.stacked:
            functions = {name: self.stack(each) for name, each in functions.items()}
        convex = self.more.get("convex", all(f.convex for f in self.users))
        return rs.Custom(
            len(self.users), self.start.shape[1], **functions, dtype=self.dtype, **{**self.more, "convex": convex}
        )

    @staticmethod
    def stack(each: list[Function]) -> Function:
        return lambda W, *eta: torch.stack([f(w, *eta) for f, w in zip(each, W, strict=True)])

    def run(self, **how: Any) -> None:
        problem = self.build()
        scheme = rs.fedpi(self.eta) if "prox" in problem.offers else rs.fedavg(self.eta)
        rs.solve(problem, scheme, rounds=2, start=self.start, **how)


def draw(rng: np.random.Generator, kinds: tuple[Any, ...]) -> Drawn:
    kind, d, m = kinds[rng.integers(len(kinds))], int(rng.choice([1, 2, 3, 8, 30])), int(rng.integers(1, 6))
    height, width = (10.0 ** rng.uniform(-8, 8) if rng.random() < 0.5 else 1.0 for _ in range(2))
    dtype = torch.float32 if rng.random() < 0.25 else torch.float64
    each = [kind(rng, d) for _ in range(m)]
    apart = rng.random() < 0.3  # users of quite different scales
    users = [scaled(f, height * (10.0 ** rng.uniform(-4, 4) if apart else 1), width) for f in each]
    offered = [name for name in ("value", "grad", "prox", "hessian") if getattr(each[0], name) is not None]
    given = tuple(name for name in offered if rng.random() < 0.8)
    needed = {"grad", "prox"} & set(offered) or {"value"}
    given = given if needed & set(given) else tuple(offered)
    inside = each[0].inside
    start = rng.standard_normal((m, d)) * rng.choice([0.0, 0.1, 1, 10]) if inside is None else np.full((m, d), inside)
    eta = width**2 / height * 10.0 ** rng.uniform(-2, 2)
    return Drawn(users, given, bool(rng.random() < 0.5), dtype, eta, tensor(start * width), {})


def right_functions(seed: int) -> str:
    rng = np.random.default_rng(seed)
    drawn = draw(rng, KINDS)
    engine = "debug" if rng.random() < 0.3 else "inprocess"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            drawn.run(engine=engine)
        except (rs.errors.InputError, rs.errors.BadAnswer) as error:
            if "differentiated" in str(error):  # value alone, which torch cannot see through
                return "refused"
            if "NaN or infinity" in str(error):  # the steps themselves led there
                return "diverged"
            raise AssertionError(f"right functions refused: {error}") from None
        except ValueError as error:  # the run itself left the domain
            if "must be positive" not in str(error):
                raise
            return "diverged"
    return "right"


# --- wrong ones ------------------------------------------------------------------------------------------------------


def factor(rng: np.random.Generator) -> float:
    return float(rng.choice([-1.0, 0.5, 2.0, 1.1, 0.1, 100.0, 0.0]))


def wrong_gradient(rng: np.random.Generator, f: One, d: int) -> One:
    grad, k, j = f.grad, factor(rng), int(rng.integers(d))
    assert grad is not None
    one = torch.nn.functional.one_hot(torch.tensor(j), d).to(torch.float64)
    which = rng.integers(2)
    return replace(f, grad=(lambda x: k * grad(x)) if which else lambda x: grad(x) * (1 + (k - 1) * one))


def missing_regulariser(rng: np.random.Generator, f: One, d: int) -> One:
    value, reg = f.value, float(rng.choice([3.0, 30.0]))
    return replace(f, value=lambda x: value(x) + reg * x.square().sum() / 2)


def wrong_prox(rng: np.random.Generator, f: One, d: int) -> One:
    prox, k = f.prox, float(rng.choice([0.5, 2.0, 10.0, 0.01]))
    assert prox is not None
    return replace(f, prox=lambda u, eta: prox(u, k * eta))


def wrong_hessian(rng: np.random.Generator, f: One, d: int) -> One:
    hessian, k = f.hessian, factor(rng)
    assert hessian is not None
    return replace(f, hessian=lambda x: k * hessian(x))


def gross_gradient(rng: np.random.Generator, f: One, d: int) -> One:
    grad, k = f.grad, float(rng.choice([-1.0, 0.3, 3.0, 100.0]))
    assert grad is not None
    return replace(f, grad=lambda x: k * grad(x))


GROSS = "grad in float32"
"""The precision in which small mistakes are not seen."""
MISTAKES: dict[str, tuple[Any, tuple[Any, ...], tuple[str, ...]]] = {
    "grad": (wrong_gradient, (quadratic, logistic, lasso, deviation, highest, exponentials), ("value", "grad")),
    GROSS: (gross_gradient, (quadratic, lasso, deviation, highest), ("value", "grad")),
    "grad, not convex": (wrong_gradient, (waves,), ("value", "grad")),
    "grad or prox": (wrong_gradient, (quadratic,), ("grad", "prox")),
    "regulariser of grad": (missing_regulariser, (quadratic, logistic, lasso, huber), ("value", "grad")),
    "regulariser of prox": (missing_regulariser, (quadratic, lasso, huber), ("value", "prox")),
    "prox": (wrong_prox, (quadratic, lasso, norm), ("value", "prox")),
    "prox and grad": (wrong_prox, (quadratic,), ("grad", "prox")),
    "hessian": (wrong_hessian, (logistic, barrier), ("grad", "hessian")),
}
"""How, for which functions, and which of them are handed over."""


def wrong_functions(seed: int) -> str:
    rng = np.random.default_rng(seed)
    name = list(MISTAKES)[seed % len(MISTAKES)]
    mistake, kinds, given = MISTAKES[name]
    drawn = draw(rng, kinds)
    m, d = len(drawn.users), drawn.start.shape[1]
    height, width = 10.0 ** rng.uniform(-8, 8, 2)
    whose = {int(rng.integers(m))} if rng.random() < 0.5 else set(range(m))
    kind = kinds[rng.integers(len(kinds))]
    users = [kind(rng, d) for _ in range(m)]
    users = [scaled(mistake(rng, f, d) if i in whose else f, height, width) for i, f in enumerate(users)]
    start = rng.standard_normal((m, d)) if users[0].inside is None else np.full((m, d), 1.0)
    eta = width**2 / height * 10.0 ** rng.uniform(-1, 1)
    dtype = torch.float32 if name == GROSS else torch.float64
    drawn = replace(drawn, users=users, given=given, dtype=dtype, start=tensor(start * width), eta=eta)
    return refused(drawn, f"{name} of {kind.__name__} for users {whose}", whose)


def refused(drawn: Drawn, words: str, whose: set[int] | None = None, surely: bool = True) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn.run()
    except rs.errors.InputError as error:
        said = str(error)
        assert whose is None or any(f"of user {i} " in said for i in whose), f"{words}: {said}"
        assert "\n" not in said, said
        return "refused"
    assert not surely, f"not refused: {words}, dtype {drawn.dtype}"
    return "not seen"


def wrong_claims(seed: int) -> str:
    """convex, lipschitz, convexity, minimiser, and rows that are mixed.

    That f is convex cannot be disproved at the few points that are looked at if it is so there: a wave is, between two
    crests. tests/laws/test_verify.py has how often that may go unseen.
    """
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(2, 6)), int(rng.choice([1, 2, 5]))
    height, width = 10.0 ** rng.uniform(-8, 8, 2)
    c, k = tensor(rng.standard_normal((m, d))), tensor(rng.uniform(0.5, 2, m))
    claim = ("convex", "lipschitz", "convexity", "minimiser", "rows")[seed % 5]
    kind = [
        One(
            lambda x, c=c, k=k: k * (x - c).square().sum() / 2,
            lambda x, c=c, k=k: k * (x - c),
            lambda u, eta, c=c, k=k: (u + eta * k * c) / (1 + eta * k),
        )
        for c, k in zip(c, k, strict=True)
    ]
    users = [waves(rng, d) for _ in range(m)] if claim == "convex" else kind
    users = [scaled(f, height, width) for f in users]
    given = ("value", "grad") if claim in ("convex", "minimiser") or rng.random() < 0.5 else ("prox",)
    curvature, best = k * height / width**2, (k @ c / k.sum()) * width
    more: dict[str, Any] = {
        "convex": {"convex": True},
        "lipschitz": {"lipschitz": curvature * rng.uniform(0.1, 0.97)},
        "convexity": {"convexity": curvature * rng.uniform(1.03, 10)},
        "minimiser": {"minimiser": best + width * tensor(rng.choice([-1.0, 1.0], d))},
        "rows": {},
    }[claim]
    start, eta = tensor(rng.standard_normal((m, d)) * width), width**2 / height * 10.0 ** rng.uniform(-1, 1)
    drawn = Drawn(users, given, True, torch.float64, eta, start, more)
    if claim == "rows":
        drawn = Mixing(users, given, True, torch.float64, eta, start, {})
    return refused(drawn, f"{claim} claimed of {given}", surely=claim != "convex")


class Mixing(Drawn):
    """Each row is asked at the mean of all rows."""

    @staticmethod
    def stack(each: list[Function]) -> Function:
        plain = Drawn.stack(each)
        return lambda W, *eta: plain(W.mean(0).expand(len(W), -1), *eta)


FAMILIES = [
    Family("custom functions that are right", right_functions, few=25, many=400),
    Family("custom functions that are wrong", wrong_functions, few=36, many=600),
    Family("custom claims that are wrong", wrong_claims, few=25, many=300),
]
