"""Users' parameters as the buffers that layers read, and their gradients: rows (users, d) are copied in and out."""

from __future__ import annotations

from itertools import accumulate
from math import ceil, prod

import torch
from torch import Tensor

from resolvent.networks.layout import ParameterLayout
from resolvent.networks.stacked.cuda import source
from resolvent.networks.stacked.cuda.launch import run
from resolvent.networks.stacked.net import Net
from resolvent.networks.stacked.workspace import Workspace

ALIGNED = 32
"""In numbers, where parts of one buffer begin: 128 bytes, as matrix products like it."""
THREADS = 256


class Parameters:
    """`weights` and `grads` by name, (users, rows, columns). Programs for the same number of users share them.

    Where generated kernels serve, the parts of all names are one buffer, so that one launch copies them all.
    """

    def __init__(
        self,
        workspace: Workspace,
        net: Net,
        layout: ParameterLayout,
        fixed: dict[str, Tensor],
        users: int,
        with_grad: bool,
    ) -> None:
        self.workspace, self.layout, self.fixed, self.users = workspace, layout, fixed, users
        self.matrices = {
            name: (shape[0], prod(shape[1:])) for name, shape in zip(layout.names, layout.shapes, strict=True)
        }
        used = dict.fromkeys(name for stage in net.stages for name in stage.parameters)
        self._joined: dict[str, Tensor] = {}
        self._table: Tensor | None = None
        self.weights = self._buffers("weight", [name for name in used if name in self.matrices])
        self.grads = self._buffers("weight_grad", [name for name in used if name in self.matrices]) if with_grad else {}
        for name in used:
            if name not in self.matrices:
                matrix = (len(fixed[name]), prod(fixed[name].shape[1:]))
                self.weights[name] = workspace.empty(("weight", users, name), users, matrix)

    def _buffers(self, kind: str, names: list[str]) -> dict[str, Tensor]:
        if not self.workspace.generated:
            return {
                name: self.workspace.empty((kind, self.users, name), self.users, self.matrices[name]) for name in names
            }
        sizes = [rows * columns for rows, columns in self.matrices.values()]
        padded = [ceil(size / ALIGNED) * ALIGNED for size in sizes]
        starts = list(accumulate(padded, initial=0))
        joined = self._joined[kind] = self.workspace.empty((kind, self.users), self.users, (starts[-1],)).view(-1)
        if self._table is None:
            table = [*accumulate(sizes, initial=0), *starts[:-1]]
            self._table = torch.tensor(table, dtype=torch.int32, device=joined.device)
        parts = {}
        for (name, matrix), size, start in zip(self.matrices.items(), sizes, starts, strict=False):
            at = self.users * start
            parts[name] = joined[at : at + self.users * size].view(self.users, *matrix)
        return {name: parts[name] for name in names}

    def load(self, rows: Tensor) -> None:
        """Copy in the users' parameters, (users, d), or (1, d) for all of them."""
        split = {} if self._joined else self.layout.split(rows)
        if self._joined:
            self._copy("split", rows.contiguous(), self._joined["weight"], len(rows) == 1)
        for name, weight in self.weights.items():
            if name in split:
                weight.copy_(split[name].reshape(len(rows), *weight.shape[1:]))
            elif name in self.fixed:
                weight.copy_(self.fixed[name].to(rows).reshape(1, *weight.shape[1:]))

    def store(self, out: Tensor, written: set[str]) -> None:
        """Write the gradients into rows `out` (users, d), with zeros for parameters that have none."""
        if self._joined:
            self._copy("join", out, self._joined["weight_grad"], False)
        for name, part in self.layout.split(out).items():
            if name not in written:
                part.zero_()
            elif not self._joined:
                part.copy_(self.grads[name].view_as(part))

    def _copy(self, name: str, rows: Tensor, parts: Tensor, shared: bool) -> None:
        assert self._table is not None
        grid = (ceil(self.layout.dim / THREADS), self.users, 1)
        args = (rows, parts, self._table, len(self.matrices), self.layout.dim, self.users, int(shared))
        run(rows.device, source.rows(name), grid, THREADS // 32, args)
