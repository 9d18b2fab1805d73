"""What dropout draws, as torch draws it."""

from __future__ import annotations

import torch
from torch import Tensor

from resolvent.networks.stacked.layers import Shape
from resolvent.networks.stacked.net import Net
from resolvent.networks.stacked.pointwise import Dropout


def draw_noise(net: Net, features: Shape, n: int, seeds: list[int], like: Tensor) -> dict[int, Tensor]:
    """The noise of each dropout for n images per user, (users, ...features, n): what torch draws after manual_seed."""
    shapes = net.shapes(features)
    drawn: dict[int, list[Tensor]] = {}
    for seed in seeds:
        generator = torch.Generator(like.device)
        generator.manual_seed(seed)
        for k, stage in enumerate(net.stages):
            if isinstance(stage.layer, Dropout):
                keep = 1 - stage.layer.p
                noise = like.new_empty((n, *shapes[stage.inputs[0]])).bernoulli_(keep, generator=generator)
                drawn.setdefault(k, []).append(noise.div_(keep))
    return {k: torch.stack(parts).movedim(1, -1) for k, parts in drawn.items()}
