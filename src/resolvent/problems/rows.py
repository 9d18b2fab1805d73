"""Users' data: a matrix A_i and a vector b_i each, of any number of rows, stored so that users are batched.

Users of equal size are one (users, rows, d) tensor, without a copy. Users of unequal size fall into a few buckets of
similar size, zero-padded inside each, so that every operation is a handful of batched products. Users with sparse rows
have a bucket each (sparse_rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import bounded, quoted, refuse
from resolvent.problems.inputs import as_tensor, refuse_shape, same_length
from resolvent.problems.products import rows_times, times_rows
from resolvent.problems.sparse_rows import SparseBucket, as_sparse, is_sparse

MAX_PADDING = 1.25
"""Within a bucket the largest user has at most this many times the rows of the smallest."""
FIRST = torch.zeros(1, dtype=torch.long)
"""The place of the only user."""
MIN_LARGE_USER = 1 << 16
"""Numbers in a user's rows from which on batching users gains nothing."""


@dataclass(frozen=True, eq=False)
class Bucket:
    """Some users, by index (None: all of them, in order), with A (g, n, d), b (g, n) and a mask of real rows.

    weight: by which each row's loss is multiplied, (g, n); None: by 1.
    """

    who: Tensor | None
    A: Tensor
    b: Tensor
    mask: Tensor | None
    weight: Tensor | None = None

    def of(self, W: Tensor) -> Tensor:
        """These users' rows of W, which may be one row that all share."""
        return W if self.who is None or W.shape[0] == 1 else W[self.who]

    def margins(self, W: Tensor) -> Tensor:
        """A_i w_i, (g, n)."""
        return times_rows(self.A, self.of(W).expand(len(self.A), -1))

    def combine(self, R: Tensor) -> Tensor:
        """A_i^T r_i, (g, d)."""
        return rows_times(R, self.A)

    def scores(self, M: Tensor) -> Tensor:
        """M_i A_i^T for matrices M with one row per class, (g, classes, n)."""
        return torch.bmm(self.of(M).expand(len(self.A), -1, -1), self.A.mT)

    def combine_scores(self, S: Tensor) -> Tensor:
        """S_i A_i for S (g, classes, n): (g, classes, d)."""
        return torch.bmm(S, self.A)

    def combine_squares(self, S: Tensor) -> Tensor:
        """The same with the squares of A's entries."""
        return torch.bmm(S, self.A.square())

    def total(self) -> Tensor:
        """The sum of each user's entries, (g,)."""
        return self.A.sum((1, 2))

    def squares(self) -> Tensor:
        """The sum of the squares of each user's entries, (g,)."""
        return self.A.square().sum((1, 2))

    def norms(self) -> Tensor:
        """The length of each row, (g, n)."""
        norms: Tensor = torch.linalg.vector_norm(self.A, dim=2)
        return norms

    def largest(self) -> Tensor:
        """The squares of the users' largest singular values, (g,)."""
        gram = self.A.mT @ self.A if self.A.shape[1] >= self.A.shape[2] else self.A @ self.A.mT
        if not bool(torch.isfinite(gram).all()):
            refuse("A", "so large that squares overflow", "rescale it, or standardise its columns")
        most: Tensor = torch.linalg.eigvalsh(gram)[:, -1]
        return most

    def with_ones(self) -> Bucket:
        ones = torch.ones_like(self.b) if self.mask is None else self.mask
        return replace(self, A=torch.cat([self.A, ones.unsqueeze(2)], 2))

    def double(self) -> Bucket:
        """In float64: the data themselves, without a copy, where they are in float64."""
        mask, weight = (None if part is None else part.double() for part in (self.mask, self.weight))
        return Bucket(self.who, self.A.double(), self.b.double(), mask, weight)

    def times(self, factor: Tensor) -> Bucket:
        """Every row and its target times a number of its own, (g, n), and no weights."""
        return Bucket(self.who, self.A * factor.unsqueeze(2), self.b * factor, self.mask)

    def pick(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Chosen rows (g, k) of every user, their targets and weights."""
        each = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        return self.A[each, rows], self.b[each, rows], None if self.weight is None else self.weight[each, rows]


@dataclass(frozen=True, eq=False)
class Rows:
    """All users' data in buckets, with the number of rows of each."""

    buckets: tuple[Bucket | SparseBucket, ...]
    sizes: Tensor
    dim: int
    balanced: bool = False
    """Whether their weights depend on how common classes are among all users' rows."""

    @property
    def sparse(self) -> bool:
        return isinstance(self.buckets[0], SparseBucket)

    @property
    def large(self) -> bool:
        """Whether users are large enough to be computed one after the other."""
        return self.sparse or int(self.sizes.sum()) * self.dim >= MIN_LARGE_USER * self.users

    @property
    def users(self) -> int:
        return len(self.sizes)

    def gather(self, parts: Sequence[Tensor]) -> Tensor:
        """One tensor over all users from one per bucket."""
        if self.buckets[0].who is None:
            return parts[0]
        out = parts[0].new_empty((self.users, *parts[0].shape[1:]))
        for bucket, part in zip(self.buckets, parts, strict=True):
            out[bucket.who] = part
        return out

    def one(self, i: int) -> tuple[Any, Tensor]:
        """User i's own A_i, in CSR format where rows are sparse, and b_i."""
        n = int(self.sizes[i])
        bucket, j = self._places[i]
        if isinstance(bucket, SparseBucket):
            return bucket.A, bucket.b[0]
        return bucket.A[j, :n], bucket.b[j, :n]

    def weight(self, i: int) -> Tensor | None:
        """User i's own weights of its rows, where there are any."""
        bucket, j = self._places[i]
        return None if bucket.weight is None else bucket.weight[j, : int(self.sizes[i])]

    @property
    def mass(self) -> Tensor:
        """How many rows each user has, one counting as often as its weight says."""
        if self.buckets[0].weight is None:
            return self.sizes
        return self.gather([bucket.weight.sum(1) for bucket in self.buckets])  # type: ignore[union-attr]

    def weighted(self, weights: Sequence[Tensor]) -> Rows:
        """The same with weights of each user's rows."""
        buckets: list[Any] = []
        for bucket in self.buckets:
            weight = torch.zeros_like(bucket.b)
            for j, i in enumerate(range(self.users) if bucket.who is None else bucket.who.tolist()):
                weight[j, : len(weights[i])] = weights[i]
            buckets.append(replace(bucket, weight=weight))
        return Rows(tuple(buckets), self.sizes, self.dim, self.balanced)

    def absorbed(self, power: float) -> Rows:
        """The weights, to this power, as factors of rows and targets: 1/2 for squares, 1 for what is proportional."""
        if self.buckets[0].weight is None:
            return self
        buckets: Any = tuple(bucket.times(bucket.weight**power) for bucket in self.buckets)  # type: ignore[operator]
        return Rows(buckets, self.sizes, self.dim, self.balanced)

    def dense(self, i: int) -> Tensor:
        """A copy of user i's A_i."""
        A, _ = self.one(i)
        return A.clone() if isinstance(A, Tensor) else torch.from_numpy(A.toarray())

    def some(self, i: int, every: int) -> Tensor:
        """One in so many of user i's rows, dense; at least one."""
        A = self.one(i)[0][::every]
        return A if isinstance(A, Tensor) else torch.from_numpy(A.toarray())

    def lengths(self, i: int) -> Tensor:
        """Of each of user i's rows."""
        A, _ = self.one(i)
        return torch.linalg.vector_norm(A, dim=1) if isinstance(A, Tensor) else self._places[i][0].norms()[0]

    def alone(self, i: int) -> Rows:
        """User i's rows as those of the only user, without a copy."""
        (A, b), weight = self.one(i), self.weight(i)
        one: Any = Bucket(None, A[None], b[None], None) if not self.sparse else SparseBucket(FIRST, A, b[None])
        if weight is not None:
            one = replace(one, weight=weight[None])
        return Rows((one,), self.sizes[i : i + 1], self.dim, self.balanced)

    def double(self) -> Rows:
        """In float64."""
        buckets: Any = tuple(bucket.double() for bucket in self.buckets)
        return Rows(buckets, self.sizes, self.dim, self.balanced)

    @cached_property
    def _places(self) -> list[tuple[Bucket | SparseBucket, int]]:
        """Each user's bucket, and its place there."""
        first = self.buckets[0]
        if first.who is None:
            return [(first, j) for j in range(self.users)]
        places = {i: (bucket, j) for bucket in self.buckets for j, i in enumerate(bucket.who.tolist())}  # type: ignore[union-attr]
        return [places[i] for i in range(self.users)]

    def take(self, who: Tensor) -> Rows:
        """The rows of some users only."""
        bucket = self.buckets[0]
        if bucket.who is None:
            weight = None if bucket.weight is None else bucket.weight[who]
            return Rows(
                (Bucket(None, bucket.A[who], bucket.b[who], None, weight),), self.sizes[who], self.dim, self.balanced
            )
        chosen = torch.arange(self.users)[who.cpu()].tolist()
        taken = collected([self.one(i) for i in chosen], self.dim)
        return taken if bucket.weight is None else taken.weighted([self.weight(i) for i in chosen])  # type: ignore[misc]

    def with_ones(self) -> Rows:
        """The same with one more feature, the last, that is 1 in every row: its coefficient is an intercept."""
        buckets: Any = tuple(bucket.with_ones() for bucket in self.buckets)
        return Rows(buckets, self.sizes, self.dim + 1, self.balanced)

    def pick(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Chosen rows of every user: rows (users, k) -> A (users, k, d), b (users, k) and their weights, if any."""
        parts = [bucket.pick(rows if bucket.who is None else rows[bucket.who]) for bucket in self.buckets]
        A, b, weight = (None if each[0] is None else self.gather(each) for each in zip(*parts, strict=True))
        return A, b, weight  # type: ignore[return-value]


def as_data(A: Any, b: Any) -> Rows:
    """Checked data from (users, rows, d) and (users, rows), or from lists of unequal matrices and vectors."""
    if is_sparse(A):
        refuse("A", "one sparse matrix", "a list with one matrix per user is needed ([A] for one user)")
    if isinstance(bounded(A, "A"), (list, tuple)):
        return _from_lists(A, bounded(b, "b"))
    A = as_tensor(A, "A")
    if A.ndim != 3 or 0 in A.shape:
        refuse_shape("A", A, "(users, rows, d), none of them 0, or a list of matrices is needed")
    b = as_tensor(b, "b").to(A)
    if b.shape != A.shape[:2]:
        refuse_shape("b", b, f"{tuple(A.shape[:2])}, one number for each row of A, is needed")
    sizes = torch.full((A.shape[0],), A.shape[1], device=A.device)
    return Rows((Bucket(None, A.contiguous(), b.contiguous(), None),), sizes, A.shape[2])


def _from_lists(A: Sequence[Any], b: Any) -> Rows:
    if not A:
        refuse("A", "an empty list", "at least one user is needed")
    if not isinstance(b, (list, tuple, np.ndarray, Tensor)):
        refuse("b", quoted(b), f"A is a list of {len(A)} matrices, so as many vectors are needed")
    same_length("b", b, len(A))
    read: Any = as_sparse if any(is_sparse(a) for a in A) else as_tensor
    users = [(read(a, f"A[{i}]"), as_tensor(y, f"b[{i}]")) for i, (a, y) in enumerate(zip(A, b, strict=True))]
    first = users[0][0]
    dim = first.shape[-1] if first.ndim == 2 else 0
    for i, (a, y) in enumerate(users):
        if a.ndim != 2 or a.shape[1] != dim or 0 in a.shape:
            refuse_shape(f"A[{i}]", a, f"a matrix with at least one row and {dim} columns is needed")
        if y.shape != a.shape[:1]:
            refuse_shape(f"b[{i}]", y, f"({a.shape[0]},), one number for each row of A[{i}], is needed")
    if read is as_sparse:
        kind = np.result_type(*(a.dtype for a, _ in users))
        return _sparse([(a.astype(kind, copy=False), y.to(torch.from_numpy(np.zeros(0, kind)))) for a, y in users], dim)
    dtype = torch.promote_types(first.dtype, max((a.dtype for a, _ in users), key=lambda d: torch.finfo(d).bits))
    return _bucketed([(a.to(dtype), y.to(dtype)) for a, y in users], dim)


def collected(users: Sequence[tuple[Any, Tensor]], dim: int) -> Rows:
    """The rows of users by their A, tensors or CSR matrices, and b."""
    return _bucketed(users, dim) if isinstance(users[0][0], Tensor) else _sparse(users, dim)


def _sparse(users: Sequence[tuple[Any, Tensor]], dim: int) -> Rows:
    buckets = tuple(SparseBucket(torch.tensor([i]), a, y.unsqueeze(0)) for i, (a, y) in enumerate(users))
    return Rows(buckets, torch.tensor([len(y) for _, y in users]), dim)


def _bucketed(users: Sequence[tuple[Tensor, Tensor]], dim: int) -> Rows:
    sizes = torch.tensor([len(y) for _, y in users], device=users[0][0].device)
    if bool((sizes == sizes[0]).all()):
        A, b = torch.stack([a for a, _ in users]), torch.stack([y for _, y in users])
        return Rows((Bucket(None, A, b, None),), sizes, dim)
    order = np.argsort(sizes.cpu().numpy(), kind="stable")
    buckets: list[Bucket] = []
    while len(order):
        smallest = int(sizes[order[0]])
        end = int(np.searchsorted(sizes.cpu().numpy()[order], MAX_PADDING * smallest, side="right"))
        buckets.append(_bucket(np.sort(order[:end]), users, dim))
        order = order[end:]
    return Rows(tuple(buckets), sizes, dim)


def _bucket(who: Any, users: Sequence[tuple[Tensor, Tensor]], dim: int) -> Bucket:
    chosen = [users[i] for i in who]
    n = max(len(y) for _, y in chosen)
    A = chosen[0][0].new_zeros((len(chosen), n, dim))
    b, mask = A.new_zeros((len(chosen), n)), A.new_zeros((len(chosen), n))
    for j, (a, y) in enumerate(chosen):
        A[j, : len(y)], b[j, : len(y)], mask[j, : len(y)] = a, y, 1
    return Bucket(torch.as_tensor(who, device=A.device), A, b, mask)
