"""All users' losses and gradients of one network at once, by one of four methods (`method_choice.py` says which).

stacked    all users go through each layer together, forward and backward written by hand (`stacked/`)
compiled   torch's vectorisation over users, compiled (`compiled.py`)
vmap       the same without compiling (`vectorised.py`)
loop       one user after the other, by autograd
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from resolvent.errors import refuse
from resolvent.networks.dropout import drops_out
from resolvent.networks.layout import Buffers, ParameterLayout
from resolvent.networks.plain import Examples, Loop, Method, ValueAndGrad
from resolvent.networks.stacked.layers import Shape, Unstackable
from resolvent.networks.stacked.method import Stacked
from resolvent.networks.stacked.pointwise import Dropout


@dataclass(frozen=True, eq=False)
class Gradients:
    """One architecture for all users, and the method by which its gradients are computed, which never changes.

    The loss of (output, target) is the mean over a user's rows. Layers are in the mode in which the module came:
    training, as a rule. Dropout is on where `seeds` are given, integers (users,) of which each user's noise is a pure
    function, and off without. `plain` is the loop, which takes any module.
    """

    by: Method
    reason: str
    plain: Loop
    device: torch.device
    choices: tuple[str, ...] = ()
    """On a GPU, how each convolution is computed, one sentence each."""

    @property
    def method(self) -> str:
        """ "stacked", "compiled", "vmap" or "loop"."""
        return self.by.name

    @property
    def stacked(self) -> Stacked | None:
        return self.by if isinstance(self.by, Stacked) else None

    @property
    def model(self) -> nn.Module:
        """A copy of the module, of the type and on the device of the parameters. It is never changed."""
        return self.plain.model

    @property
    def layout(self) -> ParameterLayout:
        return self.plain.layout

    @property
    def dim(self) -> int:
        """d, the number of trained parameters."""
        return self.layout.dim

    @property
    def random(self) -> bool:
        """Whether the module has dropout, for which seeds are needed."""
        stages = () if self.stacked is None else self.stacked.net.stages
        functions = self.plain.drops or any(isinstance(stage.layer, Dropout) for stage in stages)
        return drops_out(self.model) or functions

    def by_loop(self, reason: str) -> Gradients:
        """The same by the loop over users, and why; the loop itself stays as it is."""
        return self if self.method == "loop" else Gradients(self.plain, reason, self.plain, self.device)

    def for_features(self, features: Shape) -> Gradients:
        """The same for rows of this shape: by the loop where a layer has no stacked form for it."""
        try:
            if self.stacked is not None:
                self.stacked.check(features)
        except Unstackable as obstacle:
            return self.by_loop(str(obstacle))
        return self

    def dropping(self, functions: bool) -> Gradients:
        """The same, with or without calls of dropout functions, which must do nothing where no seeds are given."""
        plain = replace(self.plain, drops=functions)
        if self.by is self.plain:  # one working copy of the module for both
            return replace(self, by=plain, plain=plain)
        by = replace(self.by, drops=functions) if isinstance(self.by, Loop) else self.by
        return replace(self, by=by, plain=plain)

    def value_and_grad(
        self,
        W: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        seeds: Tensor | None = None,
        buffers: Buffers | None = None,
        out: Tensor | None = None,
    ) -> ValueAndGrad:
        """Losses and gradients at rows W, (users, d) or (1, d), on x (users, n, ...) and y (users, n, ...).

        `mask` (users, n) is 0 for rows that only pad a user's rows to the length of others. `out` is memory (users, d)
        that the gradients may take.
        """
        self._check(W, x)
        if y.shape[:2] != x.shape[:2]:
            refuse("y", f"of shape {tuple(y.shape)}", f"a target for each of the {tuple(x.shape[:2])} rows is needed")
        with torch.inference_mode(False):  # which would forbid gradients, and taint buffers that later calls reuse
            return self.by.value_and_grad(usable(W), Examples(usable(x), usable(y), mask, seeds), buffers, out)

    def outputs(self, W: Tensor, x: Tensor, buffers: Buffers | None = None, mask: Tensor | None = None) -> Tensor:
        """What the module gives in eval mode, without dropout, (users, n, ...), where the mask is not 0.

        A module may look at several rows at once, so it never sees rows that are only padding.
        """
        self._check(W, x)
        with torch.inference_mode(False):
            return self.by.outputs(W, x, buffers, mask)

    def _check(self, W: Tensor, x: Tensor) -> None:
        if W.ndim != 2 or W.shape[1] != self.dim or len(W) not in (1, len(x)):
            refuse("W", f"of shape {tuple(W.shape)}", f"({len(x)}, {self.dim}) or (1, {self.dim}) is needed")


def usable(x: Tensor) -> Tensor:
    """x, or a copy where it comes from inference mode: autograd refuses such tensors."""
    return x.clone() if x.is_inference() else x
