"""The stacked way: users' images in pieces that fit a cache, each piece forward and backward through stacked layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, prod
from queue import Empty, SimpleQueue
from typing import Any

import torch
from torch import Tensor

from resolvent.problems.neural.convolution import Conv, ConvPool
from resolvent.problems.neural.crew import each
from resolvent.problems.neural.cuda.arrange import Arranged, arrange
from resolvent.problems.neural.cuda.obstacle import obstacle
from resolvent.problems.neural.desk import Desk
from resolvent.problems.neural.flat import Layout
from resolvent.problems.neural.layers import Shape
from resolvent.problems.neural.losses import MeanLoss
from resolvent.problems.neural.net import Net
from resolvent.problems.neural.plain import Given
from resolvent.problems.neural.program import Program, draw

NUMBERS = 1 << 19
"""How many numbers the largest value of a block has on a CPU: less stays nearer the cache, more keeps threads from
meeting in Python between short operations."""
COLUMNS = 4
"""So many times more where convolutions go by columns, which are the largest values then."""
LANES = 16
"""A block of images is a multiple of so many, if a user has them: runs of images are then whole vectors."""
STRANDS = 4
"""A user's blocks are summed in so many runs at most, which threads may share."""
ROOM = 1 << 30
"""The same on CUDA, at most: more is faster, by a fifth from a quarter of it, and all buffers together take about three
times as many. SHARE bytes of a device's memory allow one."""
SHARE = 128
LARGEST = 1 << 27
"""Numbers that a value may have where a user's images cannot be cut into blocks."""
PROGRAMS = 16
"""Programs that a desk keeps."""


@dataclass(frozen=True)
class Piece:
    """Users from `first` to `last`, and the blocks of images, each (from, to), that are summed in one run."""

    first: int
    last: int
    blocks: tuple[tuple[int, int], ...]

    @property
    def who(self) -> slice:
        return slice(self.first, self.last)


def plan(users: int, n: int, width: int, dim: int, numbers: int, whole: bool = False) -> list[Piece]:
    """Pieces for images whose largest value has `width` numbers; `whole`: all images of a user in one block.

    Where a user's images are cut depends on nothing but their number, so that the sums are the same in any company.
    """
    most = max(1, numbers // width // LANES) * LANES
    count = 1 if whole else max(1, round(n / most))
    blocks = list(pairwise([*(k * most for k in range(count)), n]))
    strand = ceil(count / STRANDS)
    strands = [tuple(blocks[k : k + strand]) for k in range(0, count, strand)]
    together = max(1, min(256, numbers // (width * min(n, most) + dim)))
    groups = [(first, min(first + together, users)) for first in range(0, users, together)]
    return [Piece(first, last, strand) for first, last in groups for strand in strands]


@dataclass(eq=False)
class Stacked:
    """A net over rows of parameters W (users, d). `fixed` are the parameters that are not trained.

    `columns`: whether convolutions go by columns, rather than by loops of our own.
    """

    net: Net
    layout: Layout
    fixed: dict[str, Tensor]
    mean: MeanLoss | None
    loss: Callable[..., Any]
    compute: torch.dtype | None = None
    columns: bool = True
    _arranged: dict[Hashable, Arranged] = field(default_factory=dict)
    _desks: SimpleQueue[Desk] = field(default_factory=SimpleQueue)

    def slopes(self, W: Tensor, given: Given, slope: bool = True) -> tuple[Tensor, Tensor | None]:
        """Each user's loss (users,), and gradient (users, d) if asked for."""
        mean = self._mean(given.x, given.y)
        pieces = self._plan(W, given.x, whole=mean is None)
        weight = None if mean is None else mean.weigh(given.y, given.mask, W)

        loss = W.new_zeros(len(given.x))
        grad = W.new_empty(len(given.x), self.layout.dim) if slope else None

        def work(piece: Piece) -> tuple[Tensor, Tensor | None]:
            rows = None
            if grad is not None:
                rows = grad[piece.who] if piece.blocks[0][0] == 0 else torch.empty_like(grad[piece.who])
            return self._piece(piece, W, given, weight, rows), rows

        for piece, (value, rows) in zip(pieces, each(work, pieces, W.device), strict=True):
            loss[piece.who] += value
            if grad is not None and rows is not None and piece.blocks[0][0] > 0:
                grad[piece.who] += rows
        return loss, grad

    def outputs(self, W: Tensor, x: Tensor) -> Tensor:
        """What the net gives, (users, n, ...), without dropout."""

        def work(piece: Piece) -> list[Tensor]:
            with self._desk(W) as desk, torch.no_grad():
                outs = []
                for a, b in piece.blocks:
                    program = self._program(desk, x[piece.who, a:b], slope=False)
                    if a == piece.blocks[0][0]:
                        program.lay(W if len(W) == 1 else W[piece.who])
                    outs.append(program.forward(x[piece.who, a:b], {}).movedim(-1, 1).clone())
                return outs

        pieces = self._plan(W, x)
        parts: dict[int, list[Tensor]] = {}
        for piece, blocks in zip(pieces, each(work, pieces, W.device), strict=True):
            parts.setdefault(piece.first, []).extend(blocks)
        return torch.cat([torch.cat(blocks, 1) for blocks in parts.values()])

    def fits(self, x: Tensor, y: Tensor | None) -> bool:
        """Whether users' images can go this way; raises Unstackable where a layer cannot take them."""
        width = self._width(tuple(x.shape[2:]), self.net)
        return y is None or width * x.shape[1] <= LARGEST or self._mean(x, y) is not None

    def _mean(self, x: Tensor, y: Tensor) -> MeanLoss | None:
        """The loss in its stacked form, where it is asked for the mean over images that it knows."""
        if self.mean is None:
            return None
        return self.mean if self.mean.takes(self.net.shapes(tuple(x.shape[2:]))[-1], y) else None

    def arranged(self, features: Shape, like: Tensor) -> Arranged:
        """The net for images of this shape, computed where `like` is, and how its convolutions go there."""
        key = (features, like.device, like.dtype, self.compute)
        if key not in self._arranged:
            known = Arranged(self.net)
            if like.is_cuda:
                known = arrange(self.net, features, obstacle(like.device, like.dtype, self.compute))
            self._arranged[key] = known
        return self._arranged[key]

    def _width(self, features: Shape, net: Net) -> int:
        """Numbers of one image in the largest value."""
        shapes = net.shapes(features)
        width = max(map(prod, shapes))
        for step in net.steps if self.columns else ():
            conv = step.layer.wide if isinstance(step.layer, ConvPool) else step.layer
            if isinstance(conv, Conv):
                width = max(width, conv.columns(shapes[step.inputs[0]]))
        return width

    def _plan(self, like: Tensor, x: Tensor, whole: bool = False) -> list[Piece]:
        features = tuple(x.shape[2:])
        numbers = NUMBERS * COLUMNS if self.columns else NUMBERS
        if like.is_cuda:
            numbers = min(ROOM, torch.cuda.get_device_properties(like.device).total_memory // SHARE)
        width = self._width(features, self.arranged(features, like).net)
        return plan(len(x), x.shape[1], width, self.layout.dim, numbers, whole)

    @contextmanager
    def _desk(self, like: Tensor) -> Iterator[Desk]:
        """A desk that nobody else works at."""
        try:
            desk = self._desks.get_nowait()
        except Empty:
            desk = Desk(like, self.compute)
        if (desk.like.dtype, desk.like.device) != (like.dtype, like.device):
            desk = Desk(like, self.compute)
        try:
            yield desk
        finally:
            self._desks.put(desk)

    def _program(self, desk: Desk, x: Tensor, slope: bool, noisy: bool = False) -> Program:
        """The program for blocks like x (users, n, ...), from the desk or new."""
        key = (tuple(x.shape), slope, noisy)
        if key not in desk.kept:
            if len(desk.kept) >= PROGRAMS:
                desk.clear()
            users, n, *rest = x.shape
            features = tuple(rest)
            net = self.arranged(features, desk.like).net
            desk.kept[key] = Program(desk, net, self.layout, self.fixed, users, features, n, slope, noisy, self.mean)
        return desk.kept[key]  # type: ignore[no-any-return]

    def _piece(self, piece: Piece, W: Tensor, given: Given, weight: Tensor | None, rows: Tensor | None) -> Tensor:
        """The losses (users,) of a piece, and in `rows` the gradients."""
        who, loss = piece.who, W.new_zeros(piece.last - piece.first)
        x, y = given.x[who], given.y[who]
        with self._desk(W) as desk, torch.no_grad():
            noise: dict[int, Tensor] = {}
            if given.seeds is not None:
                net = self.arranged(tuple(x.shape[2:]), W).net
                noise = draw(net, tuple(x.shape[2:]), x.shape[1], given.seeds[who].tolist(), W)
            programs = [self._program(desk, x[:, a:b], rows is not None, bool(noise)) for a, b in piece.blocks]
            programs[0].lay(W if len(W) == 1 else W[who])
            for k, (program, (a, b)) in enumerate(zip(programs, piece.blocks, strict=True)):
                part = {step: drawn[..., a:b] for step, drawn in noise.items()}
                if weight is not None:
                    loss += program.mean_loss(x[:, a:b], y[:, a:b], weight[who, a:b], part, add=k > 0)
                    continue
                out = program.forward(x[:, a:b], part)
                mask = None if given.mask is None else given.mask[who].to(out.device)
                loss += self._user_by_user(out, y.to(out.device), mask, program.G)
                program.back(add=k > 0)[0].play()
            if rows is not None:
                programs[-1].gradient(rows)
        return loss

    def _user_by_user(self, out: Tensor, y: Tensor, mask: Tensor | None, G: Tensor | None) -> Tensor:
        """Any loss, asked of each user's outputs (n, ...), and in G its gradient."""
        with torch.enable_grad():
            o = out.movedim(-1, 1).detach().clone().requires_grad_(G is not None)
            rows: list[Any] = [slice(None)] * len(o) if mask is None else list(mask.bool())
            # Copies: a loss may write to what it gets.
            loss = torch.stack([self._of_one(o[i][real].clone(), y[i][real].clone()) for i, real in enumerate(rows)])
            if G is not None:
                G.copy_(torch.autograd.grad(loss.sum(), o)[0].movedim(1, -1))
        return loss.detach()

    def _of_one(self, o: Tensor, y: Tensor) -> Tensor:
        """The loss of a user's outputs (n, ...); 0 of none, which a loss may refuse."""
        loss: Tensor = self.loss(o, y) if len(y) else o.sum()
        return loss
