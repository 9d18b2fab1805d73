"""One user's sparse rows: the products that problems need, by SciPy, without a dense copy.

Every entry of a product is one sum in the order of the rows, so a user's bits do not depend on who else is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import refuse

MAX_DENSE_GRAM = 1000
"""Up to so many rows or features the largest singular value comes from a dense Gram matrix."""
LANCZOS_MARGIN = 1 + 1e-5
"""By so much Lanczos' method may be below the largest singular value."""


def is_sparse(A: Any) -> bool:
    """Whether this is a matrix of SciPy's sparse formats."""
    return hasattr(A, "tocsr")


def as_sparse(A: Any, argument: str) -> Any:
    """A checked matrix in CSR format; float32 stays, all else becomes float64."""
    import scipy.sparse

    if is_sparse(A):
        A = A.tocsr()
    else:
        A = scipy.sparse.csr_array(A.detach().cpu().numpy() if isinstance(A, Tensor) else np.asarray(A))
    if A.ndim != 2 or 0 in A.shape:
        refuse(argument, f"of shape {A.shape}", "a matrix with at least one row and one column is needed")
    if A.dtype not in (np.float32, np.float64):
        A = A.astype(np.float64)
    if not A.has_canonical_format:
        A = A.copy()
        A.sum_duplicates()
    return A


@dataclass(frozen=True, eq=False)
class SparseBucket:
    """One user, by index, with A (n, d) in CSR format and b (1, n): it answers as `rows.Bucket` does, for g = 1."""

    who: Tensor
    A: Any
    b: Tensor
    mask: Tensor | None = None
    weight: Tensor | None = None

    @cached_property
    def turned(self) -> Any:
        """A^T in CSC format, over the same numbers. Small products take less time than making it anew."""
        return self.A.T

    def of(self, W: Tensor) -> Tensor:
        return W if W.shape[0] == 1 else W[self.who]

    def margins(self, W: Tensor) -> Tensor:
        return torch.from_numpy(self.A @ self.of(W)[0].numpy()).unsqueeze(0)

    def combine(self, R: Tensor) -> Tensor:
        return torch.from_numpy(self.turned @ R[0].numpy()).unsqueeze(0)

    def scores(self, M: Tensor) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray((self.A @ self.of(M)[0].numpy().T).T)).unsqueeze(0)

    def combine_scores(self, S: Tensor) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray((self.turned @ S[0].numpy().T).T)).unsqueeze(0)

    def combine_squares(self, S: Tensor) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray((self.A.power(2).T @ S[0].numpy().T).T)).unsqueeze(0)

    def gram(self, weight: Tensor) -> Tensor:
        """A^T diag(weight) A, dense, (d, d)."""
        import scipy.sparse

        return torch.from_numpy((self.A.T @ (scipy.sparse.diags_array(weight.numpy()) @ self.A)).toarray())

    def total(self) -> Tensor:
        return torch.from_numpy(np.atleast_1d(self.A.data.sum()))

    def squares(self) -> Tensor:
        return torch.from_numpy(np.atleast_1d(np.square(self.A.data).sum()))

    def norms(self) -> Tensor:
        return torch.from_numpy(np.sqrt(np.asarray(self.A.power(2).sum(1)).reshape(1, -1)))

    def largest(self) -> Tensor:
        n, d = self.A.shape
        if min(n, d) <= MAX_DENSE_GRAM:
            gram = (self.A.T @ self.A if n >= d else self.A @ self.A.T).toarray()
            return torch.from_numpy(np.linalg.eigvalsh(gram)[-1:])
        from scipy.sparse.linalg import svds

        start = np.ones(min(n, d), self.A.dtype)
        singular = svds(self.A, k=1, return_singular_vectors=False, v0=start, tol=1e-6)
        return torch.from_numpy(np.square(LANCZOS_MARGIN * singular).astype(self.A.dtype))

    def with_ones(self) -> SparseBucket:
        import scipy.sparse

        ones = scipy.sparse.csr_array(np.ones((self.A.shape[0], 1), self.A.dtype))
        return replace(self, A=scipy.sparse.hstack([self.A, ones], format="csr"))

    def double(self) -> SparseBucket:
        weight = None if self.weight is None else self.weight.double()
        return replace(self, A=self.A.astype(np.float64, copy=False), b=self.b.double(), weight=weight)

    def times(self, factor: Tensor) -> SparseBucket:
        """Every row and its target times a number of its own, (1, n), and no weights."""
        import scipy.sparse

        return SparseBucket(self.who, (scipy.sparse.diags_array(factor[0].numpy()) @ self.A).tocsr(), self.b * factor)

    def pick(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Chosen rows (1, k): dense ones (1, k, d), their targets and weights."""
        some, weight = rows[0], None if self.weight is None else self.weight[:, rows[0]]
        return torch.from_numpy(self.A[some.numpy()].toarray()).unsqueeze(0), self.b[:, some], weight
