"""Whole runs, iterate by iterate, against plain NumPy loops: any scheme, schedule, weights, scale and company."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch

import resolvent as rs
import textbook
from hunt.family import Family
from resolvent.iteration import checkpoint
from textbook import Array, Grand, Squares

ROUNDS = 14


@dataclass(frozen=True)
class Case:
    """Least squares as the package and the textbook see it, a scheme, and where the run begins."""

    users: list[Squares]
    lam: Array
    problem: Any
    scheme: rs.Scheme
    grand: Grand
    start: Array
    together: bool
    float32: bool

    @property
    def m(self) -> int:
        return len(self.users)

    @property
    def tolerance(self) -> float:
        return 2e-3 if self.float32 else 1e-8

    def record(self, rounds: int = ROUNDS, **how: Any) -> tuple[list[rs.Round], rs.Run]:
        seen: list[rs.Round] = []
        start = self.start[0] if self.together else self.start
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rs.ResolventWarning)
            run = rs.solve(self.problem, self.scheme, rounds=rounds, start=start, callback=seen.append, **how)
        assert run.status == "finished", f"{run.status}: {run.reason}"
        return seen, run

    def rows(self, tensor: Any) -> Array:
        return np.asarray(tensor.expand(self.m, -1), dtype=np.float64)


def some_users(rng: np.random.Generator, m: int, d: int, spread: float) -> list[Squares]:
    """Users with from one row to twice as many as columns, whose sizes are up to 10^spread apart."""
    users = []
    for _ in range(m):
        n = int(rng.integers(1, 2 * d + 1))
        A = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-spread / 2, spread / 2)
        if n > 1 and rng.random() < 0.3:  # columns or rows that depend on each other
            A[-1] = A[0]
        users.append(Squares(A, A @ rng.standard_normal(d) + 0.3 * np.linalg.norm(A) * rng.standard_normal(n)))
    return users


def some_weights(rng: np.random.Generator, m: int) -> Array:
    kind = rng.integers(3)
    lam = [np.ones(m), 10.0 ** rng.uniform(-4, 0, m), (rng.random(m) < 0.6).astype(float)][kind]
    lam = lam if lam.sum() > 0 else np.ones(m)
    return np.asarray(lam / lam.sum())


def some_schedule(rng: np.random.Generator, eta: float) -> tuple[Any, Callable[[int], float]]:
    """As the package takes it, and as a plain function."""
    kinds: list[tuple[Any, Callable[[int], float]]] = [
        (rs.schedules.harmonic(eta), lambda t: eta / (t + 1)),
        (rs.schedules.inverse_sqrt(eta), lambda t: eta / math.sqrt(t + 1)),
        (rs.schedules.inverse_log(eta), lambda t: eta / (math.log10(t + 1) + 1)),
        (rs.schedules.halving(eta, 3), lambda t: eta / 2 ** (t // 3)),
        (lambda t: eta * (1 + math.cos(t)) / 2 + eta / 10, lambda t: eta * (1 + math.cos(t)) / 2 + eta / 10),
    ]
    return kinds[rng.integers(len(kinds))]


MIXING = {"fedprox": (1, 1, 1), "fedsplit": (2, 2, 1), "fedpi": (2, 2, 0.5), "fedrp": (2, 1, 1)} | {
    "reflect_prox": (1, 2, 1),
    "fedavg": (1, 1, 1),
    "reflect_gradient": (1, 2, 1),
}
FORWARD = ("fedavg", "reflect_gradient")


def some_scheme(rng: np.random.Generator, L: float, changing: bool, mixing: bool) -> tuple[rs.Scheme, Grand, bool]:
    """A row of Table 1 or any numbers; `changing`: eta may; `mixing`: alpha, beta, gamma may change with the round."""
    name = str(rng.choice([*MIXING, "any", "any", "any", "any forward"]))
    forward, steps = name in FORWARD or name == "any forward", int(rng.integers(1, 4))
    eta = (rng.uniform(0.1, 1.9) if forward else 10.0 ** rng.uniform(-1.5, 1.5)) / L
    local = textbook.descend(steps) if forward else textbook.prox
    given: Any
    given, plain = eta, lambda t: eta
    if changing and rng.random() < 0.5:
        given, plain = some_schedule(rng, eta)
    if name in MIXING:
        scheme = getattr(rs, name)(given, **({"steps": steps} if forward else {}))
        return scheme, Grand(*MIXING[name], plain, local), given is not eta
    alpha, beta, gamma = rng.uniform(0, 2), rng.choice([1.0, rng.uniform(0, 2)]), rng.uniform(0.05, 1)
    numbers: list[Any] = [float(alpha), float(beta), float(gamma)]
    if mixing and rng.random() < 0.3:
        k = int(rng.integers(3))
        base = numbers[k]
        numbers[k] = lambda t: base * (1 - 0.5 / (t + 1))
    how: dict[str, Any] = {"forward": True, "steps": steps} if forward else {}
    return rs.Scheme(*numbers, given, **how), Grand(*numbers, plain, local), given is not eta  # type: ignore[call-arg]


def draw(rng: np.random.Generator, changing: bool = True, mixing: bool = True, one: bool = True) -> Case:
    """Scales: A by a and b by a times x, so that models are of size x and curvatures of size a^2, balanced by eta."""
    m, d = int(rng.integers(1 if one else 2, 7)), int(rng.integers(1, 6))
    float32 = bool(rng.random() < 0.2)
    a, x = (10.0 ** rng.uniform(-8, 8) if rng.random() < 0.5 else 1.0 for _ in range(2))
    if float32:
        a, x = a**0.25, x**0.25
    users = some_users(rng, m, d, 0 if rng.random() < 0.5 else 3)
    users = [Squares(a * f.A, a * x * f.b) for f in users]
    if float32:
        users = [Squares(f.A.astype(np.float32).astype(float), f.b.astype(np.float32).astype(float)) for f in users]
    lam = some_weights(rng, m)
    dtype = np.float32 if float32 else np.float64
    problem = rs.LeastSquares([f.A.astype(dtype) for f in users], [f.b.astype(dtype) for f in users], weights=lam)
    L = float(max(np.linalg.norm(f.A, 2) ** 2 for f in users))
    scheme, grand, changes = some_scheme(rng, float(L), changing, mixing)
    if changes and scheme.exact:  # the package keeps subgradients when eta changes: see eta_that_changes
        scheme, grand, _ = rs.fedprox(1 / L), Grand(1, 1, 1, 1 / L), False
    together = bool(rng.random() < 0.5)
    start = x * (np.tile(rng.standard_normal(d), (m, 1)) if together else rng.standard_normal((m, d)))
    return Case(users, lam, problem, scheme, grand, start, together, float32)


def agree(case: Case, run: list[rs.Round], loop: Iterator[tuple[Array, Array]], asked: bool, words: str = "") -> None:
    """Models and rows u of every round are those of the loop, relative to the largest seen so far."""
    size = float(np.abs(case.start).max())
    for happened, (model, rows) in zip(run, islice(loop, len(run)), strict=True):
        state = happened.state
        u = case.rows(state.u if asked or state.next is None else state.next)
        size = max(size, float(np.abs(rows).max()), float(np.abs(model).max()))
        for name, ours, theirs in (("model", case.rows(happened.model)[0], model), ("u", u, rows)):
            error = float(np.abs(ours - theirs).max()) / size
            assert error <= case.tolerance, (
                f"{name} of round {happened.number} is off by {error:.2g} of its size: {case.scheme}, {case.m} users, "
                f"{'float32' if case.float32 else 'float64'}, {'together' if case.together else 'apart'} {words}"
            )


def full_participation(seed: int) -> str:
    case = draw(np.random.default_rng(seed))
    run, _ = case.record()
    agree(case, run, textbook.grand(case.users, case.lam, case.start.copy(), case.grand), asked=False)
    return "right"


def eta_that_changes(seed: int) -> str:
    """alpha = beta = 2: p and g = (u - p) / eta outlive a change of eta."""
    rng = np.random.default_rng(seed)
    case = draw(rng, changing=False)
    L = max(np.linalg.norm(f.A, 2) ** 2 for f in case.users)
    given, plain = some_schedule(rng, 10.0 ** rng.uniform(-1, 1) / float(L))
    gamma = float(rng.choice([0.5, 1.0, rng.uniform(0.1, 1)]))
    scheme = rs.Scheme(2, 2, gamma, given)
    case = replace(case, scheme=scheme)
    run, _ = case.record()
    agree(case, run, textbook.rescaled(case.users, case.lam, case.start.copy(), plain, gamma), asked=True)
    return "right"


def some_company(rng: np.random.Generator, m: int, absent: Any) -> tuple[Any, str]:
    """Who comes: at random, so many, or by a trace with empty rounds."""
    kind = rng.integers(3)
    if kind == 0:
        p = float(rng.choice([0.1, 0.5, 0.9]))
        return rs.Bernoulli(p, absent=absent), f"Bernoulli({p})"
    if kind == 1:
        n = int(rng.integers(1, m + 1))
        return rs.FixedSize(n, absent=absent), f"FixedSize({n})"
    masks = rng.random((int(rng.integers(1, 9)), m)) < rng.choice([0.2, 0.6])
    return rs.Trace(masks, absent=absent), f"Trace({masks.astype(int).tolist()})"


def masks_of(company: Any, seed: int, m: int, rounds: int) -> Array:
    masks = np.zeros((rounds, m), dtype=bool)
    for t in range(rounds):
        who = company.present(seed, t, m)
        masks[t, slice(None) if who is None else who.numpy()] = True
    return masks


def sampled(seed: int, absent: str) -> str:
    rng = np.random.default_rng(seed)
    case = draw(rng, mixing=absent == "paper")
    company, words = some_company(rng, case.m, absent)
    run, _ = case.record(participation=company, seed=seed)
    masks = masks_of(company, seed, case.m, ROUNDS)
    loop = textbook.held if absent == "hold" else textbook.algorithm_1
    agree(
        case, run, loop(case.users, case.lam, case.start.copy(), case.grand, masks), absent == "hold",
        f"{absent}, {words}",
    )  # fmt: skip
    return "right"


def holding(seed: int) -> str:
    return sampled(seed, "hold")


def as_printed(seed: int) -> str:
    return sampled(seed, "paper")


def unsafeguarded_anderson(seed: int) -> str:
    """By its definition, with a pseudo-inverse, for as long as the weights are well determined."""
    rng = np.random.default_rng(seed)
    case = draw(rng, changing=False, mixing=False)
    if case.float32:
        return "refused"  # weights of float32 residuals are another story
    on: Any = str(rng.choice(["u", "mean"]))
    memory = int(rng.integers(1, 4))
    loop = textbook.anderson if on == "u" else textbook.anderson_on_mean
    seen: list[Array] = []
    plain = list(islice(loop(case.users, case.lam, case.start.copy(), case.grand, memory, seen), 8))
    rounds = well_determined(seen, plain, float(np.abs(case.start).max()))
    if rounds:
        run, _ = case.record(rounds, anderson=rs.Anderson(memory, on=on, safeguard=False))
        loose = replace(case, float32=True)  # errors grow with the conditioning that is allowed
        agree(loose, run, iter(plain), asked=True, words=f"Anderson({memory}) on {on}")
    return "right"


def well_determined(residuals: list[Array], plain: list[tuple[Array, Array]], size: float, worst: float = 1e4) -> int:
    """For how many rounds residuals are far from dependent, and from round-off, and the iterates have a decent size."""
    for t, stack in enumerate(residuals):
        F = stack.reshape(len(stack), -1)
        norms = np.linalg.norm(F, axis=1)
        dependent = len(F) > F.shape[1] or not np.linalg.svd(F)[1].min() > norms.max() / worst
        if dependent or norms.min() <= 1e-7 * size or np.abs(plain[t][1]).max() > 1e3 * size:
            return t + 1  # weights of round t + 1 are used in the next one only
    return len(residuals)


def averages(seed: int) -> str:
    """sum eta w / sum eta; as a suffix average begun anew in rounds 1, 2, 4, ... or when somebody next comes."""
    rng = np.random.default_rng(seed)
    case = draw(rng)
    kind = str(rng.choice(["ergodic", "suffix"]))
    company, words = some_company(rng, case.m, "paper") if rng.random() < 0.5 else (None, "everyone")
    masks = np.ones((ROUNDS, case.m), bool) if company is None else masks_of(company, seed, case.m, ROUNDS)
    run, result = case.record(average=kind, participation=company, seed=seed)
    total, mass, due = np.zeros(case.start.shape[1]), 0.0, True
    loop = textbook.algorithm_1(case.users, case.lam, case.start.copy(), case.grand, masks)
    for t, (model, _) in enumerate(islice(loop, ROUNDS)):
        due = due or (kind == "suffix" and (t + 1) & t == 0)
        if masks[t].any():
            eta = textbook.at(case.grand.eta, t)
            total, mass = (eta * model, eta) if due else (total + eta * model, mass + eta)
            due = False
    expected = total / mass if mass else case.lam @ case.start
    size = max(float(np.abs(case.start).max()), float(np.abs(expected).max()))
    error = float(np.abs(result.model.numpy().astype(float) - expected).max()) / size
    assert error <= case.tolerance, f"{kind} average is off by {error:.2g}: {case.scheme}, {case.m} users, {words}"
    assert len(run) == ROUNDS
    return "right"


def resumed(seed: int) -> str:
    """Left after some rounds and gone on with: equal to the bit, what the run is judged against included."""
    rng = np.random.default_rng(seed)
    case = draw(rng)
    if np.random.default_rng([seed, 1]).random() < 0.3:
        top = case.scheme.eta_at(0)
        rising: Any = lambda t: top * (t + 1) / ROUNDS  # noqa: E731
        case = replace(case, scheme=case.scheme.settled(case.scheme.local, rising))
    how: dict[str, Any] = {"seed": seed}
    if rng.random() < 0.6:
        how["participation"], _ = some_company(rng, case.m, str(rng.choice(["hold", "paper"])))
    elif rng.random() < 0.7:
        memory, on = int(rng.integers(1, 4)), str(rng.choice(["u", "mean"]))
        how["anderson"] = rs.Anderson(memory, on=on)  # type: ignore[arg-type]
    if rng.random() < 0.5:
        how["average"] = str(rng.choice(["ergodic", "suffix"]))
    whole, _ = case.record(**how)
    k = int(rng.integers(1, ROUNDS))
    _, first = case.record(k, **how)
    seen: list[rs.Round] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rs.ResolventWarning)
        rs.solve(case.problem, case.scheme, rounds=ROUNDS - k, start=first.state, callback=seen.append, **how)
    assert [happened.number for happened in seen] == list(range(k + 1, ROUNDS + 1)), "rounds are not counted on"
    states = [first.state, *(happened.state for happened in seen)]
    for ours, theirs in zip(states, whole[k - 1 :], strict=True):
        (a, rest), (b, others) = checkpoint.pack(ours), checkpoint.pack(theirs.state)
        words = f"of round {ours.round} differs after a resume at {k}: {case.scheme}, {how}"
        assert a.keys() == b.keys()
        for name in a:
            assert torch.equal(a[name].nan_to_num(7.0), b[name].nan_to_num(7.0)), f"{name} {words}"
        assert repr(rest) == repr(others), f"what is no tensor {words}: {rest}, but {others}"
    return "right"


FAMILIES = [
    Family("trajectories with everyone", full_participation, few=25, many=500),
    Family("trajectories with an eta that changes", eta_that_changes, few=15, many=400),
    Family("trajectories with absent users held", holding, few=25, many=500),
    Family("trajectories of Algorithm 1", as_printed, few=25, many=500),
    Family("trajectories with Anderson", unsafeguarded_anderson, few=25, many=600),
    Family("trajectories' averages", averages, few=25, many=500),
    Family("trajectories resumed", resumed, few=15, many=400),
]
