"""What dropout draws, as torch draws it."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.networks.stacked.layers import Shape
from resolvent.networks.stacked.net import Net
from resolvent.networks.stacked.pointwise import Dropout


def draw_noise(
    net: Net, features: Shape, n: int, mask: Tensor | None, seeds: list[int], like: Tensor
) -> dict[int, Tensor]:
    """The noise of each dropout for n images per user, (users, ...features, n): what torch draws after manual_seed.

    Nothing is drawn for images that the mask (users, n) leaves out: how far a user's images are padded depends on the
    other users, and the next dropout would draw other numbers.
    """
    shapes = net.shapes(features)
    drawn: dict[int, list[Tensor]] = {}
    for i, seed in enumerate(seeds):
        generator = torch.Generator(like.device)
        generator.manual_seed(seed)
        real = torch.arange(n) if mask is None else mask[i].cpu().nonzero().flatten()
        for k, stage in enumerate(net.stages):
            if isinstance(stage.layer, Dropout):
                keep = 1 - stage.layer.p
                shape = shapes[stage.inputs[0]]
                mine = like.new_empty((len(real), *shape)).bernoulli_(keep, generator=generator).div_(keep)
                drawn.setdefault(k, []).append(_padded(mine, real, n))
    return {k: torch.stack(parts).movedim(1, -1) for k, parts in drawn.items()}


def _padded(noise: Tensor, real: Tensor, n: int) -> Tensor:
    if len(noise) == n:
        return noise
    return noise.new_ones(n, *noise.shape[1:]).index_copy_(0, real.to(noise.device), noise)
