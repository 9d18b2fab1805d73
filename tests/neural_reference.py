"""A federation of small networks, and its gradients by plain autograd: the reference of the tests in neural/."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from resolvent.networks import Gradients, choose_method
from resolvent.networks.layout import copied


@dataclass(frozen=True)
class Federation:
    model: nn.Module
    W: Tensor
    x: Tensor
    y: Tensor
    loss: Any

    def to(self, dtype: torch.dtype) -> Federation:
        return replace(self, model=deepcopy(self.model).to(dtype), W=self.W.to(dtype), x=self.x.to(dtype))

    def with_data(self, x: Tensor, W: Tensor | None = None) -> Federation:
        return replace(self, x=x, W=self.W if W is None else W)

    def with_targets(self, y: Tensor) -> Federation:
        return replace(self, y=y)

    def only(self, i: int, rows: int | None = None) -> Federation:
        return replace(self, W=self.W[i : i + 1], x=self.x[i : i + 1, :rows], y=self.y[i : i + 1, :rows])


def federation(
    model: nn.Module,
    shape: tuple[int, ...],
    users: int,
    n: int,
    loss: Any = F.cross_entropy,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Federation:
    """Random users, around random parameters: nothing depends on how the model was initialised."""
    generator = torch.Generator().manual_seed(seed)
    model = copied(model).to(dtype)
    with torch.no_grad():
        for p in dict.fromkeys(model.parameters()):
            p.copy_(torch.randn(p.shape, generator=generator, dtype=dtype) / p[0].numel() ** 0.5 / 2)
    w = torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])
    W = w + 0.1 * torch.randn(users, len(w), generator=generator, dtype=dtype)
    x = torch.randn(users, n, *shape, generator=generator, dtype=dtype)
    with torch.no_grad():
        outputs = copied(model).eval()(x[0]).shape[1]
    return Federation(model, W, x, torch.randint(0, outputs, (users, n), generator=generator), loss)


def chosen(fed: Federation, device: str = "cpu", **options: Any) -> Gradients:
    """The federation's gradients by the chosen method; options are those of `choose_method`."""
    loss, dtype = options.pop("loss", fed.loss), options.pop("dtype", fed.W.dtype)
    return choose_method(fed.model, fed.W.to(device), fed.x, fed.y, None, loss, device, dtype, **options)


def plain_loop(fed: Federation) -> tuple[Tensor, Tensor]:
    """Losses and gradients, one user after the other."""
    names = [name for name, p in fed.model.named_parameters() if p.requires_grad]
    shapes = [p.shape for p in fed.model.parameters() if p.requires_grad]
    losses, grads = [], []
    for w, x, y in zip(fed.W, fed.x, fed.y, strict=True):
        leaf = w.detach().clone().requires_grad_()
        parts = torch.split(leaf, [shape.numel() for shape in shapes])
        parameters = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        value = fed.loss(functional_call(fed.model, parameters, (x,)), y)
        grads.append(torch.autograd.grad(value, leaf)[0])
        losses.append(value.detach())
    return torch.stack(losses), torch.stack(grads)
