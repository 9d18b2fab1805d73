"""Whether a direction is data or rounding, where the pooled rows do not say so at once."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import resolvent as rs
from resolvent import data
from resolvent.problems.quadratic.jacobi import DOUBTFUL, noise, stacked_root
from resolvent.problems.quadratic.pooled import pooled

A9A = Path(os.environ.get("RESOLVENT_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "libsvm" / "a9a.gz"
GROUPS = (4, 3, 5)
"""Categories coded one by one: the columns of each group add up to one, so that two directions are none."""


def coded(rng: np.random.Generator, rows: int = 40, users: int = 4) -> tuple[list[np.ndarray], list[np.ndarray]]:
    A = [np.concatenate([np.eye(k)[rng.integers(0, k, rows)] for k in GROUPS], 1) for _ in range(users)]
    return A, [rng.standard_normal(rows) for _ in range(users)]


@functools.cache
def a9a() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels, and the solution of least squares over all of them."""
    table = data.read(A9A, None)
    x, y = np.asarray(table.x, float), np.asarray(data.signs(table.y, None), float)
    return x, y, np.linalg.lstsq(x, y, rcond=1e-11)[0]


@pytest.mark.skipif(not A9A.exists(), reason="needs the LIBSVM set a9a")
@pytest.mark.parametrize(("partition", "seed"), [("contiguous", 0), ("iid", 5)])
def test_a9a_has_fifteen_directions_less_than_columns(partition: str, seed: int) -> None:
    """Of these partitions, the rounding errors of users' decompositions add up to more than that of their rows."""
    x, y, w = a9a()
    parts = data.split(partition, y, 20, seed)
    problem = rs.LeastSquares([x[rows] for rows in parts], [y[rows] for rows in parts])
    least = float(0.5 * ((x @ w - y) ** 2).sum() / 20)
    assert problem.fstar == pytest.approx(least, rel=1e-13)
    assert np.linalg.norm(problem.minimiser.numpy() - w) < 1e-9
    assert float(problem.gap(torch.from_numpy(w).unsqueeze(0))) < 1e-20


@pytest.mark.parametrize("seed", range(20))
def test_rounding_in_users_decompositions_is_told_by_their_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, b = coded(rng)
    problem = rs.LeastSquares(A, b)
    X, y = np.concatenate(A), np.concatenate(b)
    w = np.linalg.lstsq(X, y, rcond=1e-11)[0]
    blurred = problem.spectrum.V * (1 + 20 * noise(problem.dim) * torch.from_numpy(rng.standard_normal(problem.dim)))
    spectrum = replace(problem.spectrum, V=blurred)
    users = [(a, t, 0.25) for a, t in zip(A, b, strict=True)]
    for found in (
        pooled(spectrum, spectrum.s, problem.weights, lambda: users),
        pooled(spectrum, spectrum.s, problem.weights),
    ):
        assert np.linalg.norm(found.minimiser.numpy() - w) < 1e-9 * (1 + np.linalg.norm(w))
        assert len(found.root) == sum(GROUPS) - len(GROUPS) + 1


@pytest.mark.parametrize("size", [3.0, 100.0])
def test_data_just_above_the_floor_is_data(size: float) -> None:
    """A column that differs from the sum of others by little is independent of them, if the rows are exact."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((60, 5))
    A[:, 4] = A[:, 0] + A[:, 1]
    A[7, 4] += size * noise(5) * 10
    rows = A / np.linalg.norm(A, axis=0)
    z, sizes = rng.standard_normal(60), np.ones(60)
    R, _, clear = stacked_root(rows, z, sizes, exact=True)
    assert (len(R), clear) == (5, False)
    R, _, clear = stacked_root(rows, z, sizes, exact=False)
    assert (len(R), clear) == (4, False)
    assert DOUBTFUL * noise(5) > size * noise(5) * 10 / np.linalg.norm(A[:, 4])


def test_a_column_that_nobody_sees_is_no_direction() -> None:
    """Rounding in users' decompositions must not pass for data in a column of zeros."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        A = [rng.standard_normal((int(n), 6)) * (rng.random((int(n), 6)) < 0.5) for n in rng.integers(1, 9, 3)]
        for a in A:
            a[:, seed % 6] = 0
        b = [rng.integers(0, 3, len(a)).astype(float) for a in A]
        rows, targets = np.vstack(A), np.concatenate(b)
        r = targets - rows @ np.linalg.lstsq(rows, targets, rcond=None)[0]
        problem = rs.LeastSquares(A, b)
        assert problem.fstar == pytest.approx(r @ r / 6, rel=1e-9, abs=1e-12)
        assert float(problem.minimiser[seed % 6]) == 0
