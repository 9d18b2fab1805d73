"""Networks' runs against loops that a textbook would print, in double precision: batches, momentum, proxes, dropout."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import vector_to_parameters

import resolvent as rs
from hunt.family import Family
from resolvent.local.descent import batches
from resolvent.randomness import STEPS, words

ROUNDS = 4
MIXING = {"fedavg": (1, 1, 1), "fedprox": (1, 1, 1), "fedpi": (2, 2, 0.5), "fedrp": (2, 1, 1)}


class Training(NamedTuple):
    """What a run is asked for. eta: of the prox; None for FedAvg, whose steps are `lr` long."""

    algorithm: str
    steps: int
    lr: float
    momentum: float
    batch: int | None
    eta: float | None

    @property
    def scheme(self) -> rs.Scheme:
        if self.eta is None:
            return rs.fedavg(self.lr, local=rs.GradientSteps(self.steps, self.batch, self.momentum))
        local = rs.GradientProx(self.steps, self.lr, self.batch, self.momentum)
        made: rs.Scheme = getattr(rs, self.algorithm)(self.eta, local=local)
        return made


def drawn(rng: np.random.Generator) -> Training:
    algorithm = str(rng.choice(list(MIXING)))
    batch = [None, 3, 5][rng.integers(3)]
    eta = None if algorithm == "fedavg" else float(rng.choice([0.1, 1.0, 10.0]))
    lr, momentum = float(rng.choice([0.01, 0.1])), float(rng.choice([0.0, 0.5, 0.9]))
    return Training(algorithm, int(rng.integers(1, 6)), lr, momentum, batch, eta)


def by_the_book(model: nn.Module, users: list[tuple[Tensor, Tensor]], asked: Training, seed: int) -> Tensor:
    """The model after the rounds: user by user, step by step."""
    alpha, beta, gamma = MIXING[asked.algorithm]
    u = [torch.cat([p.detach().flatten() for p in model.parameters()])] * len(users)
    mean = u[0]
    for t in range(ROUNDS):
        p = [_trained(model, asked, u[i], i, *users[i], seed, t) for i in range(len(users))]
        z = [(1 - alpha) * a + alpha * b for a, b in zip(u, p, strict=True)]
        mean = torch.stack(z).mean(0)
        u = [(1 - gamma) * a + gamma * ((1 - beta) * b + beta * mean) for a, b in zip(u, z, strict=True)]
    return mean


def _trained(model: nn.Module, asked: Training, u: Tensor, i: int, x: Tensor, y: Tensor, seed: int, t: int) -> Tensor:
    w, v = u, torch.zeros_like(u)
    for epoch in range(asked.steps):
        for k, rows in enumerate(_batches(len(y), asked.batch, seed, t, i, epoch)):
            torch.manual_seed(int(words(seed, STEPS, t, epoch, k, np.array(i))[0] >> np.uint64(1)))  # for dropout
            g = _gradient(model, w, x[rows], y[rows])
            v = asked.momentum * v + (g if asked.eta is None else g + (w - u) / asked.eta)
            w = w - asked.lr * v
    return w


def _batches(n: int, batch: int | None, seed: int, t: int, i: int, epoch: int) -> list[Tensor]:
    """The shuffle of user i alone: a function of the seed, the round and the user."""
    if batch is None:
        return [torch.arange(n)]
    return [rows[0][real[0]] for rows, real in batches(torch.tensor([n]), batch, seed, t, np.array([i]), epoch)]


def _gradient(model: nn.Module, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    copy = deepcopy(model)
    vector_to_parameters(w.clone(), copy.parameters())
    F.cross_entropy(copy(x), y).backward()
    return torch.cat([p.grad.flatten() for p in copy.parameters() if p.grad is not None])


def training(seed: int) -> str:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    features, width, classes = (int(rng.integers(a, b)) for a, b in ((2, 7), (1, 9), (2, 5)))
    between: list[nn.Module] = [nn.ReLU() if seed % 2 else nn.Tanh()]
    if seed % 3 == 0:
        between = [nn.Dropout(0.2), *between, nn.Dropout(0.4)]
    model = nn.Sequential(nn.Linear(features, width), *between, nn.Linear(width, classes)).double()
    sizes = rng.integers(1, 14, rng.integers(1, 6)).tolist()
    users = [(torch.randn(n, features, dtype=torch.float64), torch.randint(0, classes, (n,))) for n in sizes]
    asked = drawn(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rs.errors.ResolventWarning)
        run = rs.solve(rs.Neural(model, users), asked.scheme, rounds=ROUNDS, seed=seed, progress=False)
    if run.status != "finished":
        return str(run.status)
    expected = by_the_book(model, users, asked, seed)
    off = float((run.model.flatten() - expected).norm() / expected.norm())
    assert off < 1e-12, f"{asked} of users with {sizes} rows: off by {off:.1e}"
    return "right"


FAMILIES = [Family("networks' runs", training, few=15, many=300)]
