"""SCAFFOLD and its kin are rows of the table: each against its paper's pseudo-code, written plainly, to round-off.

Every loop below yields the server's point after each round, everybody being present. `weights` take the place of the
papers' 1/N where users' weights differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import resolvent as rs
from resolvent import config as configs
from resolvent import randomness, toml
from resolvent.experiment.build import build
from resolvent.iteration.engine import Ask
from resolvent.iteration.participation import RULES
from resolvent.iteration.scheme import SAMPLINGS
from resolvent.iteration.table import TABLE
from resolvent.local.descent import batches
from resolvent.local.tilted import geometric

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")

Array = NDArray[np.float64]
DIM, ROUNDS, STEPS = 4, 40, 5


@dataclass(frozen=True)
class User:
    """f(w) = |A w - b|^2 / 2, or the sum of log(1 + exp(-b_j a_j w)) plus reg |w|^2 / 2."""

    A: Array
    b: Array
    logistic: bool = False
    reg: float = 0.0

    def grad(self, w: Array) -> Array:
        if not self.logistic:
            return self.A.T @ (self.A @ w - self.b)
        return self.reg * w - self.A.T @ (self.b / (1 + np.exp(self.b * (self.A @ w))))

    def hessian(self, w: Array) -> Array:
        if not self.logistic:
            return self.A.T @ self.A
        share = 1 / (1 + np.exp(-self.A @ w))
        return self.reg * np.eye(DIM) + (self.A.T * (share * (1 - share))) @ self.A

    def argmin(self, linear: Array, rho: float, centre: Array) -> Array:
        """argmin of f(w) + <linear, w> + rho/2 |w - centre|^2."""
        w = centre
        for _ in range(40):
            slope = self.grad(w) + linear + rho * (w - centre)
            w = w - np.linalg.solve(self.hessian(w) + rho * np.eye(DIM), slope)
        return w


class Case:
    """The same users twice: as a problem, and as plain functions."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        rng = np.random.default_rng({"least squares": 0, "logistic": 1, "unequal": 2}[kind] + 3 * seed)
        sizes = (7, 12, 20, 9) if kind == "unequal" else (12,) * 4
        A = [rng.standard_normal((n, DIM)) for n in sizes]
        noisy = [a @ rng.standard_normal(DIM) + rng.standard_normal(len(a)) for a in A]
        logistic = kind == "logistic"
        b = [np.sign(each) for each in noisy] if logistic else noisy
        self.weights = np.array(sizes) / sum(sizes)
        self.users = [User(a, y, logistic, 0.5) for a, y in zip(A, b, strict=True)]
        self.problem: Any = (
            rs.Logistic(A, b, reg=0.5, weights=self.weights)
            if logistic
            else rs.LeastSquares(A, b, weights=self.weights)
        )
        self.eta = 0.5 / float(self.problem.lipschitz.max())

    def mean(self, rows: Any) -> Array:
        return self.weights @ np.stack(list(rows))


CASES = ("least squares", "logistic", "unequal")


# --- what the papers print -------------------------------------------------------------------------------------------


def scaffold(case: Case, lr: float, counts: Callable[[int], int], mean: int) -> Iterator[Array]:
    """Karimireddy et al., Algorithm 1, option II, global step size 1; `counts` fixed at `mean`."""
    x, c = np.zeros(DIM), np.zeros(DIM)
    own = [np.zeros(DIM) for _ in case.users]
    t = 0
    while True:
        models, controls = [], []
        for user, c_i in zip(case.users, own, strict=True):
            y = x
            for _ in range(counts(t)):
                y = y - lr * (user.grad(y) - c_i + c)
            models.append(y)
            controls.append(c_i - c + (x - y) / (mean * lr))
        dx = case.mean(y - x for y in models)
        dc = case.mean(new - old for new, old in zip(controls, own, strict=True))
        x, c, own, t = x + dx, c + dc, controls, t + 1
        yield x


def scaffnew(case: Case, lr: float, p: float, meets: Iterator[bool]) -> Iterator[Array]:
    """Mishchenko et al., Algorithm 2: every step is followed by a coin, and by a meeting if that says so."""
    x = [np.zeros(DIM) for _ in case.users]
    h = [np.zeros(DIM) for _ in case.users]
    for coin in meets:
        hat = [own - lr * (user.grad(own) - c) for user, own, c in zip(case.users, x, h, strict=True)]
        if not coin:
            x = hat
            continue
        centre = case.mean(own - lr / p * c for own, c in zip(hat, h, strict=True))
        x = [centre for _ in x]
        h = [c + p / lr * (centre - own) for c, own in zip(h, hat, strict=True)]
        yield centre


def feddyn(case: Case, alpha: float) -> Iterator[Array]:
    """Acar et al., Algorithm 1."""
    theta, h = np.zeros(DIM), np.zeros(DIM)
    slopes = [np.zeros(DIM) for _ in case.users]
    while True:
        own = [user.argmin(-g, alpha, theta) for user, g in zip(case.users, slopes, strict=True)]
        slopes = [g - alpha * (mine - theta) for g, mine in zip(slopes, own, strict=True)]
        h = h - alpha * case.mean(mine - theta for mine in own)
        theta = case.mean(own) - h / alpha
        yield theta


def fedadmm(case: Case, rho: float) -> Iterator[Array]:
    """Gong et al., Algorithm 1, server step 1."""
    theta = np.zeros(DIM)
    own, duals = [theta for _ in case.users], [np.zeros(DIM) for _ in case.users]
    while True:
        before = [w + y / rho for w, y in zip(own, duals, strict=True)]
        own = [user.argmin(y, rho, theta) for user, y in zip(case.users, duals, strict=True)]
        duals = [y + rho * (w - theta) for y, w in zip(duals, own, strict=True)]
        theta = theta + case.mean(w + y / rho - old for w, y, old in zip(own, duals, before, strict=True))
        yield theta


def fedpd(case: Case, eta: float) -> Iterator[Array]:
    """Zhang et al., Algorithm 2, with a meeting in every round and exact local solutions."""
    starts, duals = [np.zeros(DIM) for _ in case.users], [np.zeros(DIM) for _ in case.users]
    while True:
        own = [user.argmin(y, 1 / eta, x0) for user, y, x0 in zip(case.users, duals, starts, strict=True)]
        duals = [y + (x - x0) / eta for y, x, x0 in zip(duals, own, starts, strict=True)]
        centre = case.mean(x + eta * y for x, y in zip(own, duals, strict=True))
        starts = [centre for _ in own]
        yield centre


def fedexprox(case: Case, eta: float, extrapolation: float) -> Iterator[Array]:
    """Li, Acharya and Richtarik, Algorithm 1."""
    x = np.zeros(DIM)
    while True:
        x = x + extrapolation * (case.mean(user.argmin(np.zeros(DIM), 1 / eta, x) for user in case.users) - x)
        yield x


def fednova(case: Case, lr: float, counts: tuple[int, ...]) -> Iterator[Array]:
    """Wang et al., equation (7) with plain local steps: normalised gradients, times the mean number of steps."""
    x = np.zeros(DIM)
    while True:
        normalised = []
        for user, tau in zip(case.users, counts, strict=True):
            y, total = x, np.zeros(DIM)
            for _ in range(tau):
                total = total + user.grad(y)
                y = y - lr * user.grad(y)
            normalised.append(total / tau)
        x = x - float(case.weights @ np.array(counts)) * lr * case.mean(normalised)
        yield x


# --- and what the scheme computes ------------------------------------------------------------------------------------


def centres(case: Case, scheme: rs.Scheme, **how: Any) -> list[Array]:
    """mean(u) after each round."""
    seen: list[Array] = []

    def look(happened: rs.Round) -> None:
        ahead = happened.state.u if happened.state.next is None else happened.state.next
        seen.append(case.weights @ ahead.expand(len(case.users), -1).numpy())

    rs.solve(case.problem, scheme, rounds=ROUNDS, callback=look, progress=False, **how)
    return seen


def models(case: Case, scheme: rs.Scheme) -> list[Array]:
    seen: list[Array] = []
    rs.solve(case.problem, scheme, rounds=ROUNDS, callback=lambda r: seen.append(r.model[0].numpy()), progress=False)
    return seen


def same(ours: list[Array], printed: Iterator[Array]) -> None:
    expected = np.stack(list(islice(printed, ROUNDS)))
    np.testing.assert_allclose(np.stack(ours), expected, rtol=0, atol=1e-12 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("kind", CASES)
def test_scaffold_is_fedpi_with_tilted_steps(kind: str) -> None:
    case = Case(kind)
    same(centres(case, rs.scaffold(case.eta, STEPS)), scaffold(case, case.eta, lambda t: STEPS, STEPS))


@pytest.mark.parametrize("kind", CASES)
def test_scaffnew_is_scaffold_with_a_geometric_number_of_steps(kind: str) -> None:
    case, seed = Case(kind), 3
    local = rs.RandomTiltedSteps(STEPS, case.eta)
    counts = [int(local.count(Ask(t, 1.0, seed=seed))) for t in range(ROUNDS)]
    assert len(set(counts)) > 3
    coins = (k == count - 1 for count in counts for k in range(count))
    same(centres(case, rs.scaffnew(case.eta, STEPS), seed=seed), scaffnew(case, case.eta, 1 / STEPS, coins))


def test_the_numbers_of_steps_are_geometric() -> None:
    drawn = geometric(STEPS, randomness.uniforms(0, randomness.STEP_COUNTS, np.arange(100_000)))
    assert drawn.min() == 1
    assert abs(drawn.mean() - STEPS) < 0.05
    np.testing.assert_allclose([(drawn == k).mean() for k in (1, 2, 3)], [0.2, 0.16, 0.128], atol=0.005)
    assert (geometric(1, np.array([0.0, 0.999])) == 1).all()


@pytest.mark.parametrize("kind", CASES)
def test_feddyn_fedadmm_and_fedpd_are_fedpi(kind: str) -> None:
    case = Case(kind)
    eta = 4 * case.eta
    pi = models(case, rs.fedpi(eta))
    same(models(case, rs.feddyn(eta)), feddyn(case, 1 / eta))
    same(models(case, rs.fedadmm(eta)), fedadmm(case, 1 / eta))
    same(models(case, rs.fedpd(eta)), fedpd(case, eta))
    same(pi, feddyn(case, 1 / eta))


@pytest.mark.parametrize("kind", CASES)
def test_fedexprox_is_fedprox_with_gamma_above_one(kind: str) -> None:
    case = Case(kind)
    same(centres(case, rs.fedexprox(case.eta, 1.7)), fedexprox(case, case.eta, 1.7))


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("counts", [3, (1, 2, 3, 5)])
def test_fednova_normalises_each_users_displacement(kind: str, counts: Any) -> None:
    case = Case(kind)
    each = (counts,) * 4 if isinstance(counts, int) else counts
    same(centres(case, rs.fednova(case.eta, counts)), fednova(case, case.eta, each))


def test_one_normalised_step_is_as_long_as_its_scale() -> None:
    """p = u + s (y - u) is one gradient step of size s eta: explained, and solved, as that."""
    problem = Case("unequal").problem
    eta = 0.1 / float(problem.lipschitz.max())
    mixing = (0.8, 0.5, 0.5)
    ours = rs.Scheme(*mixing, eta, local=rs.NormalisedSteps(1, scale=3.0))
    plain = rs.Scheme(*mixing, 3 * eta, local=rs.GradientSteps(1))
    assert rs.explain(ours, problem).eta_eff == pytest.approx(rs.explain(plain, problem).eta_eff, rel=1e-12)
    same(centres(Case("unequal"), ours), iter(centres(Case("unequal"), plain)))
    assert "converges" in str(rs.explain(rs.fednova(12 * eta, 1), problem).theorem)
    assert rs.explain(rs.fednova(12 * eta, 1, scale=3.0), problem).theorem is None  # 3.6 / L


@pytest.mark.parametrize("written", ["1,2,3,5", [1, 2, 3, 5]], ids=["in words", "as a list"])
@pytest.mark.parametrize("kind", [{}, {"kind": "normalised-steps"}], ids=["the algorithm's own", "by name"])
def test_a_configuration_has_a_number_of_steps_for_each_user(written: Any, kind: dict[str, str]) -> None:
    """A page and a command line say it in words, a TOML file in a list; a run writes it back, and reads it again."""
    sections = {"problem": {"users": 4, "dim": 3, "rows": 8}, "scheme": {"algorithm": "fednova", "eta": 1e-3}}
    config = configs.read({**sections, "local": {**kind, "steps": written}})
    assert configs.read(toml.parse(configs.dumps(config))) == config
    built = build(config)
    run = rs.solve(built.task.problem, built.scheme, 3, progress=False)
    same_run = rs.solve(built.task.problem, rs.fednova(1e-3, (1, 2, 3, 5)), 3, progress=False)
    assert torch.equal(run.model, same_run.model)


@pytest.mark.parametrize(
    ("algorithm", "written", "said"),
    [
        ("fednova", "1,2,x,5", "steps is '1,2,x,5', but a whole number or whole numbers, separated by commas"),
        ("fednova", [1, 2.5, 3, 4], "a whole number or whole numbers"),
        ("fednova", "1,2,3", "one for each of 4 users"),
        ("fednova", [1, 0, 3, 5], "steps is 0"),
        ("fedavg", "1,2,3,5", r"steps is \(1, 2, 3, 5\), but a whole number >= 1 is needed"),
        ("scaffold", [1, 2, 3, 5], r"steps is \(1, 2, 3, 5\), but a whole number >= 1 is needed"),
    ],
)
def test_numbers_of_steps_that_do_not_fit(algorithm: str, written: Any, said: str) -> None:
    sections = {"problem": {"users": 4, "dim": 3, "rows": 8}, "scheme": {"algorithm": algorithm, "eta": 1e-3}}
    with pytest.raises(rs.InputError, match=said):
        build(configs.read({**sections, "local": {"steps": written}}))


def test_fednova_at_equal_numbers_of_steps_is_fedavg() -> None:
    case = Case("unequal")
    same(centres(case, rs.fednova(case.eta, 3)), iter(centres(case, rs.fedavg(case.eta, 3))))


# --- users who are absent --------------------------------------------------------------------------------------------


def sampled_scaffold(case: Case, lr: float, masks: NDArray[np.bool_]) -> Iterator[Array]:
    """Karimireddy et al., Algorithm 1, option II: x moves by the mean over S, c by |S|/N times it."""
    x, c = np.zeros(DIM), np.zeros(DIM)
    own = [np.zeros(DIM) for _ in case.users]
    for mask in masks:
        S = np.flatnonzero(mask)
        share, dx, dc = case.weights[S].sum(), np.zeros(DIM), np.zeros(DIM)
        for i in S:
            y = x
            for _ in range(STEPS):
                y = y - lr * (case.users[i].grad(y) - own[i] + c)
            new = own[i] - c + (x - y) / (STEPS * lr)
            dx, dc = dx + case.weights[i] / share * (y - x), dc + case.weights[i] / share * (new - own[i])
            own[i] = new
        x, c = x + dx, c + share * dc
        yield x


def sampled_feddyn(case: Case, alpha: float, masks: NDArray[np.bool_]) -> Iterator[Array]:
    """Acar et al., Algorithm 1: the models of those present, h over all users."""
    theta, h = np.zeros(DIM), np.zeros(DIM)
    slopes = [np.zeros(DIM) for _ in case.users]
    for mask in masks:
        S = np.flatnonzero(mask)
        if not len(S):
            yield theta
            continue
        own = {i: case.users[i].argmin(-slopes[i], alpha, theta) for i in S}
        for i in S:
            slopes[i] = slopes[i] - alpha * (own[i] - theta)
            h = h - alpha * case.weights[i] * (own[i] - theta)
        theta = sum(case.weights[i] * own[i] for i in S) / case.weights[S].sum() - h / alpha
        yield theta


def sampled_fedadmm(case: Case, rho: float, masks: NDArray[np.bool_]) -> Iterator[Array]:
    """Gong et al., Algorithm 1, with the server step |S|/N."""
    theta = np.zeros(DIM)
    own, duals = [theta for _ in case.users], [np.zeros(DIM) for _ in case.users]
    for mask in masks:
        change = np.zeros(DIM)
        for i in np.flatnonzero(mask):
            before = own[i] + duals[i] / rho
            own[i] = case.users[i].argmin(duals[i], rho, theta)
            duals[i] = duals[i] + rho * (own[i] - theta)
            change = change + case.weights[i] * (own[i] + duals[i] / rho - before)
        theta = theta + change
        yield theta


def sampled_fedexprox(case: Case, eta: float, extrapolation: float, masks: NDArray[np.bool_]) -> Iterator[Array]:
    """Li, Acharya and Richtarik, Algorithm 1 with those of S."""
    x = np.zeros(DIM)
    for mask in masks:
        S = np.flatnonzero(mask)
        answers = [case.weights[i] * case.users[i].argmin(np.zeros(DIM), 1 / eta, x) for i in S]
        x = x + extrapolation * (sum(answers) / case.weights[S].sum() - x) if len(S) else x
        yield x


def sampled_fednova(case: Case, lr: float, counts: tuple[int, ...], masks: NDArray[np.bool_]) -> Iterator[Array]:
    """Wang et al., the mean of the normalised gradients of S, times the mean number of steps of all users."""
    x = np.zeros(DIM)
    for mask in masks:
        S, total = np.flatnonzero(mask), np.zeros(DIM)
        for i in S:
            y = x
            for _ in range(counts[i]):
                y = y - lr * case.users[i].grad(y)
            total = total + case.weights[i] / case.weights[S].sum() * (x - y) / counts[i]
        x = x - float(case.weights @ np.array(counts)) * total
        yield x


def masks_of(seed: int) -> NDArray[np.bool_]:
    """Who comes: everybody at some time, but not at first, and to one round nobody."""
    rng = np.random.default_rng(seed)
    masks = rng.random((ROUNDS, 4)) < rng.uniform(0.3, 0.8)
    masks[0, rng.integers(4)] = masks[3] = False
    masks[ROUNDS // 2] = True
    return masks


def met(case: Case, scheme: rs.Scheme, masks: NDArray[np.bool_], **how: Any) -> list[Array]:
    """Where users met after each round."""
    seen: list[Array] = []
    who = rs.Trace(masks, absent="paper")
    rs.solve(case.problem, scheme, rounds=len(masks), participation=who, progress=False, **how,
             callback=lambda r: seen.append(r.state.met[0].numpy()))  # fmt: skip
    return seen


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", CASES)
def test_absent_users_as_each_paper_prints_it(kind: str, seed: int) -> None:
    case, masks = Case(kind, seed), masks_of(seed)
    eta = 4 * case.eta
    who = rs.Trace(masks, absent="paper")
    same(centres(case, rs.scaffold(case.eta, STEPS), participation=who), sampled_scaffold(case, case.eta, masks))
    same(met(case, rs.feddyn(eta), masks), sampled_feddyn(case, 1 / eta, masks))
    same(met(case, rs.fedadmm(eta), masks), sampled_fedadmm(case, 1 / eta, masks))
    exprox, nova = rs.fedexprox(case.eta, 1.7), rs.fednova(case.eta, (1, 2, 3, 5))
    same(centres(case, exprox, participation=who), sampled_fedexprox(case, case.eta, 1.7, masks))
    same(centres(case, nova, participation=who), sampled_fednova(case, case.eta, (1, 2, 3, 5), masks))


def test_every_rule_has_a_name_that_schemes_take() -> None:
    assert set(SAMPLINGS) == {"", "none", *RULES}
    assert {row.sampling for row in TABLE.values()} == set(SAMPLINGS)
    with pytest.raises(rs.InputError, match="sampling is 'fedfoo'"):
        rs.Scheme(2, 2, 0.5, 0.1, sampling="fedfoo")


@pytest.mark.parametrize("kind", CASES)
def test_the_papers_rules_solve_the_original_problem_too(kind: str) -> None:
    case = Case(kind)
    eta = 4 * case.eta
    for scheme in (rs.scaffold(case.eta, STEPS), rs.feddyn(eta), rs.fedadmm(eta)):
        who = rs.Bernoulli(0.7, absent="paper")
        run = rs.solve(case.problem, scheme, rounds=900, participation=who, progress=False)
        np.testing.assert_allclose(run.state.met[0], case.problem.minimiser, atol=1e-8)
        told = rs.explain(scheme, case.problem, who)
        assert told.solves == "original"
        assert told.theorem is None
        assert "own theorem" in told.why
        assert "Algorithm 1's sampling" not in str(told)


def test_they_go_on_where_they_were_left() -> None:
    case, who = Case("unequal"), rs.Bernoulli(0.5, absent="paper")
    for scheme in (rs.scaffold(case.eta, STEPS), rs.feddyn(case.eta)):
        how: Any = {"participation": who, "progress": False, "seed": 2}
        half = rs.solve(case.problem, scheme, 3, **how)
        rest = rs.solve(case.problem, scheme, 3, start=half.state, **how)
        whole: Any = rs.solve(case.problem, scheme, 6, **how).state.next
        assert torch.equal(whole, rest.state.next)  # type: ignore[arg-type]


def test_before_everybody_has_answered_nothing_is_certified() -> None:
    case = Case("unequal")
    masks = np.array([[1, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 1]])
    who = rs.Trace(masks, absent="paper")
    run = rs.solve(case.problem, rs.feddyn(case.eta), rounds=4, participation=who, progress=False)
    assert run.history["stationarity"].isna().tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("scheme", "how", "said"),
    [
        (rs.scaffnew(0.01, 5), {}, "the paper of Scaffnew has everybody present"),
        (rs.fedpd(0.1), {}, "the paper of FedPD has everybody present"),
        (rs.feddyn(rs.schedules.harmonic(0.1)), {}, "one eta"),
        (rs.Scheme(2, 2, 1, 0.1, sampling="feddyn"), {}, r"\(2, 2, 1/2\)"),
        (rs.feddyn(0.1), {"send": rs.TopK(0.5)}, "everything sent"),
        (rs.feddyn(0.1), {"meet": rs.CoordinateMedian()}, "the plain mean"),
        (rs.scaffold(0.01, 5), {"penalty": rs.L1(0.1)}, "no penalty"),
    ],
)
def test_what_no_paper_says_is_refused(scheme: rs.Scheme, how: dict[str, Any], said: str) -> None:
    who = rs.Bernoulli(0.5, absent="paper")
    with pytest.raises(rs.InputError, match=said):
        rs.solve(Case("unequal").problem, scheme, participation=who, **how)


# --- what they solve -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("scheme", [rs.scaffold, rs.scaffnew])
def test_scaffold_solves_the_original_problem_also_with_half_of_the_users_present(kind: str, scheme: Any) -> None:
    case = Case(kind)
    for participation in (None, 0.5):
        run = rs.solve(case.problem, scheme(case.eta, STEPS), rounds=300, participation=participation, progress=False)
        np.testing.assert_allclose(run.model, case.problem.minimiser, atol=1e-9)
        assert run.history["stationarity"].isna().all()  # s_i is a gradient only in the limit
        assert run.history["consensus"].isna().all()


def test_an_eta_other_than_k_lr_moves_no_fixed_point() -> None:
    case = Case("unequal")
    run = rs.solve(case.problem, rs.scaffold(case.eta, STEPS, eta=9 * case.eta), rounds=500, progress=False)
    np.testing.assert_allclose(run.model, case.problem.minimiser, atol=1e-9)


def test_users_with_different_numbers_of_batches_do_not_pull_harder() -> None:
    """The largest user takes five steps a pass; eta counts these for everybody."""
    case = Case("unequal")
    scheme = rs.scaffold(case.eta / 50, 1, batch=4)
    assert rs.solve(case.problem, scheme, rounds=1).state.eta == pytest.approx(5 * case.eta / 50)  # 20 rows: 5 batches
    run = rs.solve(case.problem, scheme, rounds=800, progress=False, average="suffix")
    assert float(run.history["gap"].iloc[-1]) < 1e-3 * float(run.history["gap"].iloc[0])


@pytest.mark.parametrize(
    ("scheme", "solves", "said"),
    [
        (rs.scaffold(0.01, 5), "original", "SCAFFOLD is FedPi with k tilted gradient steps"),
        (rs.scaffnew(0.01, 5), "original", "Scaffnew (ProxSkip) is SCAFFOLD"),
        (rs.feddyn(0.1), "original", "FedDyn is FedPi"),
        (rs.fedadmm("auto"), "original", "FedADMM with a server step of 1 is FedPi"),
        (rs.fedpd(0.1), "original", "FedPD that meets in every round is FedPi"),
        (rs.fedexprox(0.1, 1.5), "regularised", "FedExProx is FedProx with gamma > 1"),
        (rs.fednova(0.001, 3), "regularised", "FedNova is FedAvg with displacements divided"),
        (rs.fednova(0.001, 3), "regularised", "with the mean number of steps of all users, present or not"),
    ],
)
def test_each_is_explained(scheme: rs.Scheme, solves: str, said: str) -> None:
    for problem in (None, Case("unequal").problem):
        told = rs.explain(scheme, problem)
        assert told.solves == solves
        assert said in str(told)


def test_the_theorems_are_fedpis_or_none() -> None:
    problem = Case("logistic").problem
    for name in ("feddyn", "fedadmm", "fedpd"):
        assert rs.explain(getattr(rs, name)(0.1), problem).theorem == rs.explain(rs.fedpi(0.1), problem).theorem
    assert rs.explain(rs.scaffold(0.001, 5), problem).theorem is None
    assert "Karimireddy" in rs.explain(rs.scaffold(0.001, 5), problem).why
    assert "2/L" in str(rs.explain(rs.scaffold(9.0, 5), problem))
    assert rs.explain(rs.fedexprox(0.1, 1.9), problem).theorem is not None
    assert rs.explain(rs.fedexprox(0.1, 2.0), problem).theorem is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rs.scaffold(0, 5), "lr is 0"),
        (lambda: rs.scaffold("fast", 5), "lr is 'fast'"),  # type: ignore[arg-type]
        (lambda: rs.scaffold(None, 5), "lr is None"),  # type: ignore[arg-type]
        (lambda: rs.scaffold(0.1, 0), "steps is 0"),
        (lambda: rs.scaffold(0.1, 2, momentum=1), "momentum is 1"),
        (lambda: rs.TiltedSteps(2, batch=4), "lr is None"),
        (lambda: rs.fednova(0.1, []), "steps is empty"),
        (lambda: rs.fednova(0.1, [1, 0]), "steps is 0"),
        (lambda: rs.fednova(0.1, "many"), "steps is"),  # type: ignore[arg-type]
        (lambda: rs.fednova(0.1, 2, scale=0), "scale is 0"),
        (lambda: rs.fedexprox(0.1, 1), "gamma is 1"),
        (lambda: rs.solve(Case("unequal").problem, rs.fednova(0.1, [1, 2])), "one for each of 4 users"),
        (lambda: rs.solve(Case("unequal").problem, "scaffold"), r"write rs.scaffold\(lr=...\)"),
    ],
)
def test_bad_input_is_one_sentence(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(rs.InputError, match=said):
        make()


# --- networks --------------------------------------------------------------------------------------------------------

LR, MOMENTUM, BATCH, PASSES = 0.05, 0.5, 4, 2


def network(norm: bool = True) -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(6)] if norm else []
    model = nn.Sequential(nn.Linear(4, 6), *norms, nn.Tanh(), nn.Linear(6, 3)).double()
    users = [(torch.randn(n, 4, dtype=torch.float64), torch.randint(0, 3, (n,))) for n in (8, 12, 8)]
    return model, users


def plain_loop(
    model: nn.Module, users: Any, rounds: int, seed: int, eta: float, batch: int = BATCH
) -> tuple[torch.Tensor, list[Any]]:
    """SCAFFOLD in PyTorch: one model per user in turn, minibatches, momentum, everyone's own running means."""
    weights = torch.tensor([1 / 3] * 3, dtype=torch.float64)
    x = nn.utils.parameters_to_vector(model.parameters()).detach()
    controls = [torch.zeros_like(x) for _ in users]
    buffers = [{name: b.clone() for name, b in model.named_buffers()} for _ in users]
    for t in range(rounds):
        answers = []
        for i, (inputs, targets) in enumerate(users):
            nn.utils.vector_to_parameters(x.clone(), model.parameters())
            for name, b in model.named_buffers():
                b.data.copy_(buffers[i][name])
            y, v = x.clone(), torch.zeros_like(x)
            for k in range(PASSES):
                for rows, mask in batches(torch.tensor([len(targets)]), batch, seed, t, np.array([i]), k):
                    chosen = rows[mask]
                    model.zero_grad()
                    # batch gradients are unbiased for the sum that f_i is: the mean loss of networks
                    nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
                    g = torch.cat([p.grad.flatten() for p in model.parameters()])
                    v = MOMENTUM * v + g - controls[i]
                    y = y - LR * v
                    nn.utils.vector_to_parameters(y.clone(), model.parameters())
            buffers[i] = {name: b.clone() for name, b in model.named_buffers()}
            answers.append(y)
        centre = weights @ torch.stack(answers)
        controls = [c + (centre - y) / eta for c, y in zip(controls, answers, strict=True)]
        x = centre
    return x, buffers


def test_scaffold_on_a_network_with_minibatches_momentum_and_batch_norm() -> None:
    model, users = network()
    problem = rs.Neural(model, users, weights=[1 / 3] * 3)
    rounds, seed = 5, 1
    run = rs.solve(problem, rs.scaffold(LR, PASSES, batch=BATCH, momentum=MOMENTUM), rounds, seed=seed, progress=False)
    eta = run.state.eta
    total = sum((1 - MOMENTUM**n) / (1 - MOMENTUM) for n in range(1, 7))  # the largest user takes six steps
    assert eta == pytest.approx(LR * total)
    assert run.state.next is not None
    x, buffers = plain_loop(network()[0], users, rounds, seed, eta)
    torch.testing.assert_close(run.state.next.mean(0), x, rtol=0, atol=1e-10)
    for i, own in enumerate(buffers):
        torch.testing.assert_close(run.state.memory["buffer.1.running_mean"][i], own["1.running_mean"])


class Graph:
    """A CUDA graph's way of calling a function: arguments are copied to where the first ones lay."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        self.function, self.calls = function, 0
        self.arguments: list[torch.Tensor] = []

    def __call__(self, *arguments: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.arguments = self.arguments or [t.clone() for t in arguments]
        for own, t in zip(self.arguments, arguments, strict=True):
            own.copy_(t)
        return self.function(*self.arguments)


def test_scaffold_with_full_gradients_is_one_graph_in_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers of a loop in PyTorch, and the bits of steps that are taken one by one."""
    graphs: list[Graph] = []
    rounds, scheme = 6, rs.scaffold(LR, PASSES, momentum=MOMENTUM)

    def final() -> rs.State:
        model, users = network(norm=False)
        problem = rs.Neural(model, users, weights=[1 / 3] * 3)
        return rs.solve(problem, scheme, rounds, progress=False).state

    monkeypatch.setattr(rs.Neural, "captured", lambda _, function: graphs.append(Graph(function)) or graphs[-1])
    state = final()
    assert [graph.calls for graph in graphs] == [rounds]
    monkeypatch.setattr(rs.Neural, "stateless", False)
    assert torch.equal(state.u, final().u)
    assert len(graphs) == 1
    x, _ = plain_loop(*network(norm=False), rounds, 0, state.eta, batch=12)
    assert state.next is not None
    torch.testing.assert_close(state.next.mean(0), x, rtol=0, atol=1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_scaffolds_graph_on_cuda_has_the_numbers_of_a_loop(
    dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph for all rounds; in single precision with the kernel that adds the tilt as it takes the step."""
    graphs, captured, rounds = list[Any](), rs.Neural.captured, 6
    monkeypatch.setattr(rs.Neural, "captured", lambda *given: graphs.append(captured(*given)) or graphs[-1])
    model, users = network(norm=False)
    problem = rs.Neural(model, users, weights=[1 / 3] * 3, device="cuda", dtype=dtype)
    state = rs.solve(problem, rs.scaffold(LR, PASSES, momentum=MOMENTUM), rounds, progress=False).state
    assert [graph._graph is not None for graph in graphs] == [True]
    x, _ = plain_loop(*network(norm=False), rounds, 0, state.eta, batch=12)
    assert state.next is not None
    torch.testing.assert_close(state.next.mean(0).double().cpu(), x, rtol=0, atol=tolerance)


def test_fednova_on_a_network_counts_each_users_own_steps() -> None:
    """Who has taken its steps sees no more rows: its running means are those of a run on its own."""
    model, users = network()
    problem = rs.Neural(model, users, weights=[1 / 3] * 3)
    run = rs.solve(problem, rs.fednova(LR, (1, 3, 2), batch=BATCH), 1, seed=1, progress=False)
    for i, passes in enumerate((1, 3, 2)):
        alone = rs.Neural(network()[0], users, weights=[1 / 3] * 3)
        other = rs.solve(alone, rs.fednova(LR, passes, batch=BATCH, scale=1), 1, seed=1, progress=False)
        name = "buffer.1.running_mean"
        torch.testing.assert_close(run.state.memory[name][i], other.state.memory[name][i])
        moved = other.personal[i] - problem.start.flatten()
        scale = (1 * 2 + 3 * 3 + 2 * 2) / 3
        torch.testing.assert_close(run.personal[i] - problem.start.flatten(), moved * scale)


@pytest.mark.parametrize("scheme", [rs.scaffold(LR, 2, momentum=0.5), rs.scaffnew(LR, 3, batch=5), rs.fednova(LR, 2)])
def test_networks_go_on_where_they_were_left(scheme: rs.Scheme) -> None:
    problem = rs.Neural(*network())
    whole = rs.solve(problem, scheme, 4, seed=2, progress=False, participation=0.7)
    half = rs.solve(problem, scheme, 2, seed=2, progress=False, participation=0.7)
    rest = rs.solve(problem, scheme, 2, seed=2, progress=False, participation=0.7, start=half.state)
    assert torch.equal(whole.model, rest.model)
