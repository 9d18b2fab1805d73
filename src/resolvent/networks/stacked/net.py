"""A net as a list of stacked layers, rewrites that make it faster, and what its dropout draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from resolvent.networks.stacked.convolution import Conv, ConvPool
from resolvent.networks.stacked.group_norm import GroupNorm
from resolvent.networks.stacked.layers import Bias, Layer, Lift, Shape
from resolvent.networks.stacked.pointwise import Dropout, ReLU
from resolvent.networks.stacked.pools import MaxPool


@dataclass(frozen=True)
class Stage:
    """One layer, the values it reads (0 is the data, k the result of stage k - 1), and its parameters' names.

    `owns_input`: it may overwrite its input. `bias`: of a layer that has weights and biases.
    """

    layer: Layer
    inputs: tuple[int, ...]
    parameter: str | None = None
    owns_input: bool = False
    bias: str | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name in (self.parameter, self.bias) if name is not None)


@dataclass(frozen=True)
class Net:
    """The stages of a module in order; the last one's result is the output."""

    stages: tuple[Stage, ...]

    def shapes(self, features: Shape) -> list[Shape]:
        """The features' shape of each value, beginning with the data's; Unstackable where a layer cannot take them."""
        shapes = [features]
        for stage in self.stages:
            shapes.append(stage.layer.shape(*(shapes[i] for i in stage.inputs)))
        return shapes


def improved(stages: list[Stage], join: bool) -> Net:
    """The net of these stages after all rewrites; `join`: a first convolution and its pooling may become one stage."""
    stages = _merged(_pool_early(_cancel_lifts(_pool_early(stages))), _into_norm)
    return Net(mark_owners(_join(stages) if join else stages))


def consumers(stages: list[Stage]) -> list[int]:
    count = [0] * (len(stages) + 1)
    for stage in stages:
        for i in stage.inputs:
            count[i] += 1
    return count


def _pool_early(stages: list[Stage]) -> list[Stage]:
    """Move maxima before biases and ReLUs: the same numbers and gradients, on a quarter of the entries.

    Added heights move before them too, so that layers over one axis are treated like those over two.
    """
    stages, count = list(stages), consumers(stages)
    moved = True
    while moved:
        moved = False
        for k in range(len(stages) - 1):
            late, early = stages[k], stages[k + 1]
            moves = isinstance(early.layer, MaxPool) or early.layer == Lift(put=True)
            follows = early.inputs == (k + 1,) and count[k + 1] == 1
            if moves and follows and isinstance(late.layer, Bias | ReLU):
                stages[k], stages[k + 1] = replace(early, inputs=late.inputs), replace(late, inputs=(k + 1,))
                moved = True
    return stages


def _cancel_lifts(stages: list[Stage]) -> list[Stage]:
    """Remove heights that are removed only to be added again."""
    source = list(range(len(stages) + 1))  # which value replaces each
    for k, stage in enumerate(stages):
        if stage.layer == Lift(put=True) and stage.inputs[0] and stages[stage.inputs[0] - 1].layer == Lift(put=False):
            source[k + 1] = source[stages[stage.inputs[0] - 1].inputs[0]]
    stages = [replace(stage, inputs=tuple(source[i] for i in stage.inputs)) for stage in stages]
    count = consumers(stages)
    for k in reversed(range(len(stages) - 1)):
        if isinstance(stages[k].layer, Lift) and not count[k + 1]:
            count[stages[k].inputs[0]] -= 1
    number, remaining = {0: 0}, list[Stage]()
    for k, stage in enumerate(stages):
        if count[k + 1] or k == len(stages) - 1 or not isinstance(stage.layer, Lift):
            remaining.append(replace(stage, inputs=tuple(number[i] for i in stage.inputs)))
            number[k + 1] = len(remaining)
    return remaining


def _merged(stages: list[Stage], merge: Callable[[Stage, Stage], Stage | None]) -> list[Stage]:
    """Each stage and the only consumer of its result as one stage, where `merge` makes one of the two."""
    count, number, result = consumers(stages), {0: 0}, list[Stage]()
    for k, stage in enumerate(stages):
        both = merge(result[-1], stage) if k and stage.inputs == (k,) and count[k] == 1 else None
        if both is None:
            result.append(replace(stage, inputs=tuple(number[i] for i in stage.inputs)))
        else:
            result[-1] = both
        number[k + 1] = len(result)
    return result


def _join(stages: list[Stage]) -> list[Stage]:
    """Join a first convolution and its maxima into one stage, where that is faster.

    The gradient of its kernels is collected in a buffer of its own and copied at the end, so no other stage may share
    the kernels.
    """
    uses = Counter(stage.parameter for stage in stages)

    def both(first: Stage, second: Stage) -> Stage | None:
        conv, pool = first.layer, second.layer
        if not (isinstance(conv, Conv) and isinstance(pool, MaxPool) and ConvPool.fits(conv, pool)):
            return None
        alone = first.inputs == (0,) and uses[first.parameter] == 1
        return replace(first, layer=ConvPool(conv, pool.kernel)) if alone else None

    return _merged(stages, both)


def _into_norm(norm: Stage, stage: Stage) -> Stage | None:
    """A normalisation with the bias or the ReLU behind it. Weights that are the biases too keep a stage each."""
    if not isinstance(norm.layer, GroupNorm) or norm.layer.relu:
        return None
    if isinstance(stage.layer, ReLU):
        return replace(norm, layer=replace(norm.layer, relu=True))
    if isinstance(stage.layer, Bias) and norm.bias is None and stage.parameter != norm.parameter:
        return replace(norm, bias=stage.parameter)
    return None


def mark_owners(stages: list[Stage]) -> tuple[Stage, ...]:
    """Mark stages that may overwrite their input: the only consumer of a value that its producer no longer reads."""
    count = consumers(stages)

    def free(i: int) -> bool:
        return i > 0 and count[i] == 1 and not stages[i - 1].layer.needs_output

    return tuple(replace(stage, owns_input=all(free(i) for i in stage.inputs)) for stage in stages)


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
