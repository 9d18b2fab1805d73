"""A net as a list of stacked layers, and the same net put better."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from resolvent.problems.neural.convolution import Conv, ConvPool
from resolvent.problems.neural.layers import Bias, Layer, Lift, Shape
from resolvent.problems.neural.pointwise import ReLU
from resolvent.problems.neural.pools import MaxPool


@dataclass(frozen=True)
class Step:
    """One layer: which values it takes (0 is the data, k the result of step k - 1), and its parameters' names."""

    layer: Layer
    inputs: tuple[int, ...]
    parameter: str | None = None
    owns: bool = False
    bias: str | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for name in (self.parameter, self.bias) if name is not None)


@dataclass(frozen=True)
class Net:
    """The steps of a module, in order; the last one's result is the output."""

    steps: tuple[Step, ...]

    def shapes(self, features: Shape) -> list[Shape]:
        """The features' shape of each value, beginning with the data's; Unstackable where a layer cannot take them."""
        shapes = [features]
        for step in self.steps:
            shapes.append(step.layer.shape(*(shapes[i] for i in step.inputs)))
        return shapes


def improved(steps: list[Step], join: bool) -> Net:
    """The net of these steps, as fast as it can be put; `join`: convolutions by columns, and the first one pooled."""
    steps = _early(_level(_early(steps)))
    return Net(owned(_join(steps) if join else steps))


def consumers(steps: list[Step]) -> list[int]:
    count = [0] * (len(steps) + 1)
    for step in steps:
        for i in step.inputs:
            count[i] += 1
    return count


def _early(steps: list[Step]) -> list[Step]:
    """Maxima before biases and ReLUs rather than after: the same numbers and gradients, on a quarter of the entries.

    And a height put in before them, so that what is over one axis can be treated alike.
    """
    steps, count = list(steps), consumers(steps)
    moved = True
    while moved:
        moved = False
        for k in range(len(steps) - 1):
            late, mover = steps[k], steps[k + 1]
            moves = isinstance(mover.layer, MaxPool) or mover.layer == Lift(put=True)
            follows = mover.inputs == (k + 1,) and count[k + 1] == 1
            if moves and follows and isinstance(late.layer, Bias | ReLU):
                steps[k], steps[k + 1] = replace(mover, inputs=late.inputs), replace(late, inputs=(k + 1,))
                moved = True
    return steps


def _level(steps: list[Step]) -> list[Step]:
    """Without heights that are taken out only to be put in again."""
    source = list(range(len(steps) + 1))  # which value stands for each
    for k, step in enumerate(steps):
        if step.layer == Lift(put=True) and step.inputs[0] and steps[step.inputs[0] - 1].layer == Lift(put=False):
            source[k + 1] = source[steps[step.inputs[0] - 1].inputs[0]]
    steps = [replace(step, inputs=tuple(source[i] for i in step.inputs)) for step in steps]
    count = consumers(steps)
    for k in reversed(range(len(steps) - 1)):
        if isinstance(steps[k].layer, Lift) and not count[k + 1]:
            count[steps[k].inputs[0]] -= 1
    number, kept = {0: 0}, list[Step]()
    for k, step in enumerate(steps):
        if count[k + 1] or k == len(steps) - 1 or not isinstance(step.layer, Lift):
            kept.append(replace(step, inputs=tuple(number[i] for i in step.inputs)))
            number[k + 1] = len(kept)
    return kept


def _join(steps: list[Step]) -> list[Step]:
    """A first convolution and its maxima as one step, where that is better.

    Its kernels' gradient is gathered apart and written at the end, so nobody else may have a share in it.
    """
    count, uses = consumers(steps), Counter(step.parameter for step in steps)
    number = {0: 0}
    joined: list[Step] = []
    for k, step in enumerate(steps):
        last = steps[k - 1] if k else step
        if step.inputs == (k,) and k and count[k] == 1 and last.inputs == (0,) and uses[last.parameter] == 1:
            conv, pool = last.layer, step.layer
            if isinstance(conv, Conv) and isinstance(pool, MaxPool) and ConvPool.fits(conv, pool):
                joined[-1] = replace(last, layer=ConvPool(conv, pool.kernel))
                number[k + 1] = len(joined)
                continue
        joined.append(replace(step, inputs=tuple(number[i] for i in step.inputs)))
        number[k + 1] = len(joined)
    return joined


def owned(steps: list[Step]) -> tuple[Step, ...]:
    """Which steps may overwrite their input: the only taker of what its maker does not look at again."""
    count = consumers(steps)

    def free(i: int) -> bool:
        return i > 0 and count[i] == 1 and not steps[i - 1].layer.needs_output

    return tuple(replace(step, owns=all(free(i) for i in step.inputs)) for step in steps)
