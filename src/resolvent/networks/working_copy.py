"""A copy of a module that holds one user's parameters and buffers while it is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from resolvent.networks.layout import Buffers, ParameterLayout, attributes_restored, copied


class WorkingCopy:
    """A copy of a module, filled with parameters and buffers before each call.

    They stay in it until the next `fill`: backward may call the module again, as gradient checkpointing does, and must
    meet the parameters that forward met. They are in memory of their own, since forward may write to them: an
    nn.Embedding with max_norm scales rows of its weight, and some modules set p.data.
    """

    def __init__(self, model: nn.Module, layout: ParameterLayout) -> None:
        self.module = copied(model)
        self._layout = layout
        trained = dict(self.module.named_parameters())
        self._trained = [trained[name] for name in layout.names]
        pairs = zip(self.module.parameters(), model.parameters(), strict=True)
        self._fixed = [(p, p.data, first) for p, first in pairs if not p.requires_grad]
        self._first = dict(model.named_buffers())
        self._buffers = dict(self.module.named_buffers())
        self._owners = [(m, key, b) for m in self.module.modules() for key, b in m.named_buffers(recurse=False)]

    def fill(self, w: Tensor, buffers: Buffers | None = None) -> None:
        """Take in the parameters w (d,), these buffers, and all else as the module came; no gradient."""
        torch.clear_autocast_cache()  # it would give the parameters that were here before
        row = w.detach().clone(memory_format=torch.contiguous_format).unsqueeze(0)
        for p, part in zip(self._trained, self._layout.split(row).values(), strict=True):
            p.grad, p.data = None, part[0]
        for p, memory, first in self._fixed:
            p.data = memory.copy_(first)
        for m, key, buffer in self._owners:  # forward may have put another one in its place
            setattr(m, key, buffer)
        for name, value in (self._first if buffers is None else buffers).items():
            buffer = self._buffers[name]
            if buffer.grad_fn is not None:  # forward wrote into it what has a gradient
                buffer.detach_()
            buffer.data = value.clone()

    def gradient(self, out: Tensor) -> None:
        """Write the parameters' gradients to `out` (d,); 0 for those that the loss does not depend on."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in self._trained]
        torch.cat([part.reshape(-1) for part in parts], out=out)
        for p in self._trained:
            p.grad = None

    def buffers(self) -> Buffers:
        """What the calls since `fill` have left in the buffers."""
        after = dict(self.module.named_buffers())
        return {name: after[name].detach() for name in self._buffers}

    @contextmanager
    def at_rest(self) -> Iterator[nn.Module]:
        """The module in eval mode; afterwards it is in its own mode again.

        It is put there with its parameters in it: layers of low-rank adaption add their product to a weight then.
        """
        with attributes_restored(self.module):
            yield self.module.eval()
