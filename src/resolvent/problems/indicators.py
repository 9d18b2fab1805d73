"""The problem of finding a point that lies in every user's set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any, NoReturn

import torch
from torch import Tensor

from resolvent.errors import bounded, quoted, real, refuse
from resolvent.problems.inputs import FLOAT, as_rows, as_tensor, as_weights, finite, points, refuse_shape
from resolvent.problems.problem import ProblemDefaults, select
from resolvent.problems.sets import TOL, ConvexSet

MIN_APART, MIN_FAR = 1e3, 10.0
"""Sets are reported not to meet where their points are more than MIN_APART tolerances apart, and a common point would
have to be more than MIN_FAR times as far away as they are from each other and from where the run began."""
ROUNDING = 16.0
"""Units in the last place of u and p by which normals and distances may be wrong."""
MAX_SEARCHED = 100_000
"""Numbers in all normals beyond which multiples of them are not searched for (nonnegative least squares)."""


class Indicators(ProblemDefaults):
    """f_i is 0 in sets[i] and infinite elsewhere, so that its prox, whatever eta, is the projection.

    "In" means to within the length `tol` (1e-9, or 1e-4 in float32). Whether the sets have a common point is not
    checked: where one is known, give it as `minimiser`, and f* = 0 and the gap (0 or infinite) are known with it.
    """

    offers = frozenset({"value", "prox"})
    convex = True
    closed_form = True

    def __init__(
        self,
        sets: Sequence[ConvexSet],
        weights: Any = None,
        minimiser: Any = None,
        tol: float | None = None,
        *,
        penalty: Any = None,
    ) -> None:
        self.penalty = penalty
        self.sets = tuple(sets) if isinstance(bounded(sets, "sets"), list | tuple) else ()
        if not self.sets or not all(hasattr(each, "dim") and hasattr(each, "project") for each in self.sets):
            received = "empty" if isinstance(sets, list | tuple) and not sets else quoted(sets)
            refuse("sets", received, "a list of one set per user is needed, such as rs.Ball(centre, radius)")
        dim = self.sets[0].dim
        if dim is None:
            refuse("sets[0]", f"{self.sets[0]} of any dimension", "its dimension is needed, as in rs.Orthant(3)")
        self.users, self.dim = len(self.sets), dim
        for user, each in enumerate(self.sets):
            if each.dim != self.dim:
                refuse(f"sets[{user}]", f"of dimension {each.dim}", f"that of user 0 is {self.dim}, and all must agree")
        like = _kind(self.sets)
        self.weights = as_weights(weights, self.users, like)
        tol = (TOL if like.dtype == FLOAT else 1e-4) if tol is None else tol
        self.tol = real(tol, "tol", lambda x: x >= 0, "a length >= 0 is needed")
        # Users who share one set object, as homogeneous users do, are projected together.
        members: dict[int, list[int]] = {}
        for user, each in enumerate(self.sets):
            members.setdefault(id(each), []).append(user)
        self._groups = [(self.sets[who[0]], torch.tensor(who, device=like.device)) for who in members.values()]
        self.minimiser = None if minimiser is None else self._common(minimiser)

    def _common(self, minimiser: Any) -> Tensor:
        w = finite(as_tensor(minimiser, "minimiser").to(self.weights), "minimiser", of="coordinate")
        if w.shape != (self.dim,):
            refuse_shape("minimiser", w, f"one point of length {self.dim} is needed")
        outside = (self.value(w) > 0) & (self.weights > 0)
        if bool(outside.any()):
            refuse(
                "minimiser",
                f"outside sets[{int(outside.nonzero()[0])}]",
                "a point common to all sets of positive weight is needed",
            )
        return w

    def value(self, W: Tensor) -> Tensor:
        W = as_rows(W, self).expand(self.users, -1)
        out = torch.full_like(self.weights, torch.inf)
        for each, who in self._groups:
            out[who] = out[who].masked_fill(each.contains(W[who], self.tol), 0.0)
        return out

    def grad(self, W: Tensor) -> NoReturn:
        refuse("grad", "asked of indicators, which have none", "a scheme with a prox, such as fedpi, is needed")

    def prox(self, U: Tensor, eta: float) -> Tensor:
        U = as_rows(U, self).expand(self.users, -1)
        out = torch.empty_like(U)
        for each, who in self._groups:
            out[who] = each.project(U[who])
        return out

    def remarks(self, U: Tensor, origin: Tensor) -> Iterator[str]:
        """That the sets do not meet, where u, (users, d) or (1, d), shows it to a run that began at `origin` (1, d)."""
        lam, U = self.weights.unsqueeze(1), as_rows(U, self).expand(self.users, -1)
        p = self.prox(U, 1.0)
        mean = (lam * p).sum(0)
        apart = float((lam * (p - mean).square()).sum().sqrt())
        least = self._away(U, p, mean) if apart > MIN_APART * self.tol else 0.0
        if least > MIN_FAR * (apart + float((mean - origin).norm())):
            yield (
                f"the sets do not meet, or only far away: the users' points stay {apart:.3g} apart (root mean square), "
                f"and a point common to all sets would be at least {least:.2g} away from them"
            )

    def _away(self, U: Tensor, p: Tensor, mean: Tensor) -> float:
        """How far from mean(p) a point common to all sets is at least.

        u_i - p_i is normal to set i at p_i. So a common point x has sum_i mu_i <n_i, x - p_i> <= 0 for the directions
        n_i of these normals and any mu >= 0: with c = sum_i mu_i <n_i, mean(p) - p_i> > 0 it is at least
        c / |sum_i mu_i n_i| away. Lengths of normals tell how often users came; the best mu depends on none of them.
        """
        from scipy.optimize import nnls

        unit = ROUNDING * torch.finfo(U.dtype).eps
        normals, blur = (U - p).double(), unit * U.double().norm(dim=1)
        lengths = normals.norm(dim=1)
        counts = (self.weights > 0) & (lengths > blur)
        lengths, beyond = lengths[counts], (mean - p).double()[counts]
        n, blur = normals[counts] / lengths.unsqueeze(1), blur[counts] / lengths
        depth = (n * beyond).sum(1)  # how far mean(p) is outside the halfspace around set i
        if not bool((depth > 0).any()):
            return 0.0
        mu = self.weights.double()[counts] * lengths
        if n.numel() <= MAX_SEARCHED:
            terms = torch.cat([n, depth.unsqueeze(1) / depth.max()], 1).T.cpu().numpy()
            with suppress(RuntimeError):  # not found in as many steps as SciPy allows
                mu = torch.from_numpy(nnls(terms, [0.0] * self.dim + [1.0])[0]).to(n)
        unsure = blur * beyond.norm(dim=1) + unit * (p.double()[counts].norm(dim=1) + mean.double().norm())
        total = float((mu.unsqueeze(1) * n).sum(0).norm() + mu @ blur)
        return float(mu @ (depth - unsure)) / total if total > 0 else 0.0

    def take(self, who: Tensor) -> Indicators:
        chosen = torch.arange(self.users, device=who.device)[who].tolist()
        sets = [self.sets[i] for i in chosen]
        return Indicators(sets, select(self.weights, who), self.minimiser, self.tol, penalty=self.penalty)

    @property
    def fstar(self) -> float | None:
        return None if self.minimiser is None or self.penalty is not None else 0.0

    def gap(self, W: Tensor) -> Tensor | None:
        """0 or infinite; users of weight zero do not count (0 * inf = 0). Not known with a penalty."""
        if self.fstar is None:
            return None
        return torch.stack([self.value(w)[self.weights > 0].sum() for w in points(W, self)])


def _kind(sets: Sequence[ConvexSet]) -> Tensor:
    """An empty tensor of the dtype and device of the sets' own data; of float64 where they have none (orthants)."""
    data = [x for each in sets for x in getattr(each, "__dict__", {}).values() if isinstance(x, Tensor)]
    if not data:
        return torch.empty(0, dtype=FLOAT)
    return torch.empty(0, dtype=reduce(torch.promote_types, (x.dtype for x in data)), device=data[0].device)
