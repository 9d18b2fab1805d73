"""The stacked method: users' images in blocks that fit a cache, each forward and backward through stacked layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from queue import Empty, SimpleQueue
from typing import Any, Self

import torch
from torch import Tensor

from resolvent.networks.cuda_graphs import captured_now
from resolvent.networks.layout import Buffers, ParameterLayout
from resolvent.networks.plain import Examples, ValueAndGrad
from resolvent.networks.precision import Precision, products_in
from resolvent.networks.stacked.convolution import Conv, ConvPool
from resolvent.networks.stacked.cuda.compiler import obstacle_for
from resolvent.networks.stacked.fused import Arranged, arrange
from resolvent.networks.stacked.head import linear_choices
from resolvent.networks.stacked.jobs import Job, one_block, parallel_map, plan_jobs
from resolvent.networks.stacked.layers import Shape
from resolvent.networks.stacked.losses import CrossEntropy, StackedLoss
from resolvent.networks.stacked.net import Net, draw_noise
from resolvent.networks.stacked.program import Program
from resolvent.networks.stacked.workspace import Workspace
from resolvent.problems.one_thread import threads_there

BLOCK_NUMBERS = 1 << 19
"""How many numbers the largest value of a block has on a CPU. Smaller blocks stay nearer the cache; larger ones make
operations longer, so that threads wait less for Python's lock."""
COLUMNS = 4
"""Blocks are this many times larger where convolutions go by columns, which are the largest values then."""
CUDA_BLOCK_NUMBERS = 1 << 30
"""The same on CUDA, at most. Larger is faster, by a fifth from a quarter of it, and all buffers together take about
three times as many numbers. A device of n bytes of memory allows n / CUDA_SHARE numbers."""
CUDA_SHARE = 128
CACHED_PROGRAMS = 32
"""Programs that a workspace holds before it drops them all."""
CACHED_PLANS = 256


@dataclass(eq=False)
class Stacked:
    """A net over rows of parameters W (users, d). `fixed` are the parameters that are not trained.

    `loss_form` is the stacked form of the loss, if it has one. `columns`: whether convolutions go by columns (im2col)
    rather than by compiled loops.
    """

    net: Net
    layout: ParameterLayout
    fixed: dict[str, Tensor]
    loss_form: StackedLoss | None
    loss: Callable[..., Any]
    precision: Precision = "float32"
    columns: bool = True
    name = "stacked"
    _arranged: dict[Hashable, Arranged] = field(default_factory=dict)
    _outputs: dict[Shape, Shape] = field(default_factory=dict)
    _plans: dict[Hashable, list[Job]] = field(default_factory=dict)
    _workspaces: SimpleQueue[Workspace] = field(default_factory=SimpleQueue)
    _most_users: dict[Hashable, int] = field(default_factory=dict)

    def value_and_grad(
        self, W: Tensor, given: Examples, buffers: Buffers | None = None, out: Tensor | None = None
    ) -> ValueAndGrad:
        """On a CPU the gradients are in `out`, if that is given."""
        with products_in(W.device, self.precision):
            return self._value_and_grad(W, given, buffers, out)

    def _value_and_grad(self, W: Tensor, given: Examples, buffers: Buffers | None, out: Tensor | None) -> ValueAndGrad:
        loss_form = self._loss_form(given.x, given.y)
        jobs = self._plan(W, given.x, whole=loss_form is None)
        if W.is_cuda and loss_form is not None and given.seeds is None and one_block(jobs):
            with self._workspace(W) as workspace, torch.no_grad():
                program = self._program(workspace, given.x, with_grad=True, users=self._padded(given.x))
                return ValueAndGrad(*program.whole(W, given.x, given.y, given.mask), buffers or {})
        weight = None if loss_form is None else loss_form.weigh(given.y, given.mask, W)
        loss = W.new_zeros(len(given.x))
        grad = W.new_empty(len(given.x), self.layout.dim) if out is None else out

        def work(job: Job) -> tuple[Tensor, Tensor]:
            rows = grad[job.who] if job.blocks[0][0] == 0 else torch.empty_like(grad[job.who])
            return self._run(job, W, given, weight, rows), rows

        for job, (value, rows) in zip(jobs, parallel_map(work, jobs, W.device), strict=True):
            loss[job.who] += value
            if job.blocks[0][0] > 0:
                grad[job.who] += rows
        return ValueAndGrad(loss, grad, buffers or {})

    def outputs(self, W: Tensor, x: Tensor, buffers: Buffers | None = None, mask: Tensor | None = None) -> Tensor:
        def work(job: Job) -> list[Tensor]:
            with self._workspace(W) as workspace, torch.no_grad():
                outs = []
                for a, b in job.blocks:
                    program = self._program(workspace, x[job.who, a:b], with_grad=False)
                    if a == job.blocks[0][0]:
                        program.load_parameters(W if len(W) == 1 else W[job.who])
                    outs.append(program.forward(x[job.who, a:b], {}).movedim(-1, 1).clone())
                return outs

        jobs = self._plan(W, x)
        parts: dict[int, list[Tensor]] = {}
        with products_in(W.device, self.precision):
            done = parallel_map(work, jobs, W.device)
        for job, blocks in zip(jobs, done, strict=True):
            parts.setdefault(job.first, []).extend(blocks)
        return torch.cat([torch.cat(blocks, 1) for blocks in parts.values()])

    def exact(self) -> Self:
        return replace(self, precision="float32", _arranged={}, _plans={}, _workspaces=SimpleQueue())

    def check(self, features: Shape) -> None:
        """Raise Unstackable where a layer cannot take images of this shape."""
        self._width(features, self.net)

    def arranged(self, features: Shape, like: Tensor) -> Arranged:
        """The net for images of this shape where `like` is, and how its layers with weights are computed there."""
        key = (features, like.device, like.dtype, self.precision)
        if key not in self._arranged:
            arranged = Arranged(self.net)
            if like.is_cuda:
                general = obstacle_for(like.device, like.dtype, self.precision)
                arranged = arrange(self.net, features, general)
                loss = "" if self.loss_form == CrossEntropy(logits=True) else "the loss is not cross entropy"
                ends = linear_choices(arranged.net, general or loss)
                arranged = replace(arranged, choices=arranged.choices + ends)
            self._arranged[key] = arranged
        return self._arranged[key]

    def _loss_form(self, x: Tensor, y: Tensor) -> StackedLoss | None:
        """The stacked form of the loss, if it takes outputs and targets of these shapes."""
        if self.loss_form is None:
            return None
        features = tuple(x.shape[2:])
        if features not in self._outputs:
            self._outputs[features] = self.net.shapes(features)[-1]
        return self.loss_form if self.loss_form.takes(self._outputs[features], y) else None

    def _width(self, features: Shape, net: Net) -> int:
        """How many numbers one image has in the largest value."""
        shapes = net.shapes(features)
        width = max(map(prod, shapes))
        for stage in net.stages if self.columns else ():
            conv = stage.layer.wide if isinstance(stage.layer, ConvPool) else stage.layer
            if isinstance(conv, Conv):
                width = max(width, conv.columns(shapes[stage.inputs[0]]))
        return width

    def _plan(self, like: Tensor, x: Tensor, whole: bool = False) -> list[Job]:
        threads = None if like.is_cuda else threads_there()
        key = (tuple(x.shape), like.device, like.dtype, whole, threads)
        plan = self._plans.get(key)  # once: another thread may clear the cache meanwhile
        if plan is None:
            if len(self._plans) >= CACHED_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._new_plan(like, x, whole, threads)
        return plan

    def _new_plan(self, like: Tensor, x: Tensor, whole: bool, threads: int | None) -> list[Job]:
        features = tuple(x.shape[2:])
        numbers = BLOCK_NUMBERS * COLUMNS if self.columns else BLOCK_NUMBERS
        if like.is_cuda:
            numbers = min(CUDA_BLOCK_NUMBERS, torch.cuda.get_device_properties(like.device).total_memory // CUDA_SHARE)
        width = self._width(features, self.arranged(features, like).net)
        return plan_jobs(len(x), x.shape[1], width, self.layout.dim, numbers, threads, whole)

    @contextmanager
    def _workspace(self, like: Tensor) -> Iterator[Workspace]:
        """A workspace that no other thread uses meanwhile."""
        try:
            workspace = self._workspaces.get_nowait()
        except Empty:
            workspace = Workspace(like, self.precision)
        if (workspace.like.dtype, workspace.like.device) != (like.dtype, like.device):
            workspace = Workspace(like, self.precision)
        try:
            yield workspace
        finally:
            self._workspaces.put(workspace)

    def _padded(self, x: Tensor) -> int:
        """How many users a program for a block x has: where ever fewer take a step, few sizes serve them all."""
        most = self._most_users[x.shape[1:]] = max(len(x), self._most_users.get(x.shape[1:], 0))
        return min(most, 1 << (len(x) - 1).bit_length())

    def _program(
        self, workspace: Workspace, x: Tensor, with_grad: bool, with_dropout: bool = False, users: int | None = None
    ) -> Program:
        """The program for blocks like x (users, n, ...), from the workspace's cache or written now; `users` if not
        those of x."""
        n, *rest = x.shape[1:]
        users, features = users or len(x), tuple(rest)
        key = (users, n, features, with_grad, with_dropout)
        if key not in workspace.programs:
            if len(workspace.programs) >= CACHED_PROGRAMS:
                workspace.clear()
            workspace.programs[key] = Program(
                workspace,
                self.arranged(features, workspace.like).net,
                self.layout,
                self.fixed,
                users,
                features,
                n,
                with_grad,
                with_dropout,
                self.loss_form,
            )
        program: Program = workspace.programs[key]
        if (capture := captured_now()) is not None:
            capture.kept.append(program)
        return program

    def _run(self, job: Job, W: Tensor, given: Examples, weight: Tensor | None, rows: Tensor) -> Tensor:
        """The losses (users,) of a job, and in `rows` the gradients."""
        who, loss = job.who, W.new_zeros(job.last - job.first)
        x, y, mask = given.x[who], given.y[who], None if given.mask is None else given.mask[who]
        with self._workspace(W) as workspace, torch.no_grad():
            noise: dict[int, Tensor] = {}
            if given.seeds is not None:
                features = tuple(x.shape[2:])
                net = self.arranged(features, W).net
                noise = draw_noise(net, features, x.shape[1], mask, given.seeds[who].tolist(), W)
            programs = [self._program(workspace, x[:, a:b], True, bool(noise)) for a, b in job.blocks]
            programs[0].load_parameters(W if len(W) == 1 else W[who])
            parts = [{k: drawn[..., a:b] for k, drawn in noise.items()} for a, b in job.blocks]
            if weight is None:
                loss += self._any_loss(programs, job, x, y, mask, parts)
            else:
                for k, (program, (a, b)) in enumerate(zip(programs, job.blocks, strict=True)):
                    loss += program.loss_and_backward(x[:, a:b], y[:, a:b], weight[who, a:b], parts[k], add=k > 0)
            programs[-1].copy_gradient(rows)
        return loss

    def _any_loss(
        self,
        programs: list[Program],
        job: Job,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        noise: list[dict[int, Tensor]],
    ) -> Tensor:
        """Any loss, of all of each user's outputs. Where there are several blocks, each goes forward a second time."""
        blocks = list(zip(programs, job.blocks, noise, strict=True))
        if len(blocks) == 1:
            out = programs[0].forward(x, noise[0])
        else:
            out = torch.cat([program.forward(x[:, a:b], part).clone() for program, (a, b), part in blocks], -1)
        loss, G = self._user_by_user(out, y.to(out.device), None if mask is None else mask.to(out.device))
        for k, (program, (a, b), part) in enumerate(blocks):
            assert program.G is not None
            if len(blocks) > 1:
                program.forward(x[:, a:b], part)
            program.G.copy_(G[..., a:b])
            program.backward(add=k > 0)[0].replay()
        return loss

    def _user_by_user(self, out: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Each user's loss of its outputs (n, ...), and the gradient at `out`, by autograd."""
        with torch.enable_grad():
            o = out.movedim(-1, 1).detach().clone().requires_grad_()
            rows: list[Any] = [slice(None)] * len(o) if mask is None else list(mask.bool())
            # Copies: a loss may write to what it gets.
            loss = torch.stack([self._of_one(o[i][real].clone(), y[i][real].clone()) for i, real in enumerate(rows)])
            G = torch.autograd.grad(loss.sum(), o)[0].movedim(1, -1)
        return loss.detach(), G

    def _of_one(self, o: Tensor, y: Tensor) -> Tensor:
        """The loss of a user's outputs (n, ...); 0 of none, which a loss may refuse."""
        loss: Tensor = self.loss(o, y) if len(y) else o.sum()
        return loss
