"""All users' losses and gradients of one network at once, in the fastest way that its layers allow.

The way follows from the device and from what the module is made of, never from a timing, so that results are the same
bits in every process. Before the first gradient it is compared with plain autograd (`verify.py`):

stacked   every layer has a stacked form (`forms.py`)
vmap      on an accelerator, where all layers are products and pointwise: many small users in few launches
loop      everything else, one user after the other
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from resolvent.errors import InputError, refuse
from resolvent.problems.neural.desk import loops_for
from resolvent.problems.neural.flat import Layout, copied
from resolvent.problems.neural.layers import Unstackable
from resolvent.problems.neural.losses import known
from resolvent.problems.neural.plain import Buffers, Given, Loop, Vmap, drops_out, seeded, undisturbed
from resolvent.problems.neural.pointwise import Dropout
from resolvent.problems.neural.stacked import Stacked
from resolvent.problems.neural.trace import peculiar, trace
from resolvent.problems.neural.verify import (
    UNDECIDED,
    Answer,
    Method,
    Question,
    Reference,
    Unanswered,
    obstacle,
    questions,
)

VECTORISED = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Flatten, nn.Identity, nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid)
"""Layers that torch vectorises over users into batched kernels; a convolution becomes a grouped one, which is slow."""


class Slopes(NamedTuple):
    """Each user's loss (users,) and gradient (users, d), and the module's buffers (users, ...) as it left them."""

    loss: Tensor
    grad: Tensor
    buffers: Buffers


class Ways:
    """One architecture for all users. The module is copied, and never changed.

    `loss(output, target)` gives the mean over a user's rows. Layers are in the mode in which they come: training, as a
    rule. Dropout is on where `seeds` are given, whole numbers (users,) of which each user's noise is a pure function,
    and off without. `way` forces one of "stacked", "vmap" and "loop".
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] = nn.functional.cross_entropy,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        autocast: torch.dtype | None = None,
        way: str | None = None,
    ) -> None:
        if way not in (None, "stacked", "vmap", "loop"):
            refuse("way", repr(way), "'stacked', 'vmap', 'loop' or None is needed")
        _unhooked(model)
        self._original: nn.Module | None = model  # until it has been compared with
        self.model = copied(model).to(device=device, dtype=dtype)
        self.layout = Layout.of(self.model)
        self.device, self.dtype = torch.device(device), dtype
        self._plain: Loop = Loop(self.model, self.layout, loss, autocast)
        self._stacked: Stacked | None = None
        self._fits: dict[tuple[int, ...], bool] = {}
        self._forced, self._outputs_compared = way is not None, False
        self.way, self.reason = "loop", "it was asked for"
        self.choices: tuple[str, ...] = ()
        if way in (None, "stacked"):
            self._try_stacked(loss, autocast, must=way is not None)
        if way == "vmap" or (way is None and self._stacked is None and self._vectorises()):
            self._plain = Vmap(self.model, self.layout, loss, autocast)
            self.way = "vmap"
            if way is None:
                self.reason = f"{self.reason}, but torch vectorises all of its layers"

    def _try_stacked(self, loss: Callable[..., Any], autocast: torch.dtype | None, must: bool) -> None:
        try:
            columns = loops_for(self.device, self.dtype, autocast) is None
            net = trace(self.model, join=columns)
            fixed = {name: p.detach() for name, p in self.model.named_parameters() if not p.requires_grad}
            self._stacked = Stacked(net, self.layout, fixed, known(loss), loss, autocast, columns)
            self.way, self.reason = "stacked", "every layer has a stacked form"
        except Unstackable as obstacle:
            self.reason = str(obstacle)
            if must:
                refuse("way", "'stacked'", f"the module cannot be stacked: {obstacle}; leave it out")

    def _vectorises(self) -> bool:
        leaves = [m for m in self.model.modules() if not list(m.children())]
        return self.device.type != "cpu" and all(isinstance(m, VECTORISED) for m in leaves) and not peculiar(self.model)

    def check(self, W: Tensor, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> None:
        """Compare the method with plain autograd through the module as it came, once, on a few of these rows.

        Where they differ the loop is taken, and where that differs too the module is refused. Without targets only
        outputs are compared. Costs gradients of two users on three rows, by plain autograd and by the method.
        """
        if self._original is None or (y is None and self._outputs_compared):
            return
        state = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        reference = Reference(self._original, state, self.layout, self._plain.loss, self.device)
        with torch.inference_mode(False), undisturbed(self.device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._compare(reference, _usable(W), _usable(x), y, mask)
        self._outputs_compared = True
        if y is not None:
            self._original = None

    def _compare(self, reference: Reference, W: Tensor, x: Tensor, y: Tensor | None, mask: Tensor | None) -> None:
        def ask(method: Method, even: bool = False) -> str:
            return obstacle(method, reference, questions(W, x, y, mask, self.layout, even), self.layout)

        try:
            fast = self._stacks(x, y) is not None or self.way == "vmap"
            if fast:
                reason = ask(self._fast_answer, even=self.way == "vmap") or reference.peculiar
                self._plain.drops = reference.drops
                if not reason:
                    return
                self._fall_back(reason)
            reason = ask(lambda question: self._plainly(Loop, question, reference.drops))
            self._plain.drops = reference.drops
            self._accept_loop(reference, reason)
        except Unanswered as error:  # the module itself cannot be asked: the loop will say why
            self._fall_back(str(error))

    def _fast_answer(self, question: Question) -> Answer:
        """The stacked or vectorised method, without autocast, on buffers that nobody else uses."""
        W, x, y, _ = question
        if self._stacked is None:
            return self._plainly(Vmap, question, drops=False)
        stacked = replace(self._stacked, compute=None, _desks=SimpleQueue())
        outputs = stacked.outputs(W, x)
        return Answer(outputs) if y is None else Answer(outputs, *stacked.slopes(W, question.given))

    def _plainly(self, kind: type[Loop], question: Question, drops: bool) -> Answer:
        plain = kind(self.model, self.layout, self._plain.loss, drops=drops)
        W, x, y, _ = question
        outputs = torch.cat([self._drawn(plain, W[i : i + 1], x[i : i + 1]) for i in range(len(W))])
        if y is None:
            return Answer(outputs)
        given = question.given if kind is Loop else replace(question.given, mask=None)
        return Answer(outputs, *plain.slopes(W, given)[:2])

    def _drawn(self, plain: Loop, w: Tensor, x: Tensor) -> Tensor:
        """One user's outputs, with the random numbers that the reference draws."""
        with seeded(None, self.device):
            return plain.outputs(w, x)

    def _fall_back(self, reason: str) -> None:
        if self._forced and self.way != "loop":
            refuse("way", repr(self.way), f"{reason}; leave it out")
        if self.way != "loop":
            self._plain = Loop(self.model, self.layout, self._plain.loss, self._plain.autocast, self._plain.drops)
            self._stacked, self.way, self.reason = None, "loop", reason

    def _accept_loop(self, reference: Reference, reason: str) -> None:
        """Refuse a module whose copy is another function, or loses what the module changes."""
        if reference.assigned:
            raise InputError(
                f"model is a module that assigns to its buffer {reference.assigned} in forward, which would be lost; "
                f"write into it instead, with self.{reference.assigned}.copy_(...)"
            )
        if reason and not reference.fickle and UNDECIDED not in reason:
            raise InputError(
                f"model is a module whose copy computes something else ({reason}), but a copy is trained; "
                "do not call its layers from functions that were made outside of forward, as in lambda x: self.layer(x)"
            )

    @property
    def dim(self) -> int:
        """d, the number of trained parameters."""
        return self.layout.dim

    @property
    def random(self) -> bool:
        """Whether a layer drops out at random, for which seeds are wanted."""
        traced = () if self._stacked is None else self._stacked.net.steps
        functions = self._plain.drops or any(isinstance(step.layer, Dropout) for step in traced)
        return drops_out(self.model) or functions

    def value_and_grad(
        self,
        W: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        seeds: Tensor | None = None,
        buffers: Buffers | None = None,
    ) -> Slopes:
        """Losses and gradients at rows W, (users, d) or (1, d), on x (users, n, ...) and y (users, n, ...).

        `mask` (users, n) is 0 for rows that only fill up a user's share.
        """
        self._check(W, x, y)
        self.check(W, x, y, mask)
        with torch.inference_mode(False):  # which would forbid gradients, and taint what is kept between calls
            return self._slopes(_usable(W), Given(_usable(x), _usable(y), mask, seeds), buffers)

    def _slopes(self, W: Tensor, given: Given, buffers: Buffers | None) -> Slopes:
        stacked = self._stacks(given.x, given.y)
        if stacked is not None:
            loss, grad = stacked.slopes(W, given)
            left = buffers or {}
        else:
            loss, grad, left = self._plain.slopes(W, given, buffers)
        assert grad is not None
        return Slopes(loss, grad, left)

    def values(
        self,
        W: Tensor,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None = None,
        seeds: Tensor | None = None,
        buffers: Buffers | None = None,
    ) -> Tensor:
        """The losses alone, (users,): the function whose gradient `value_and_grad` gives."""
        self._check(W, x, y)
        self.check(W, x, y, mask)
        stacked, given = self._stacks(x, y), Given(x, y, mask, seeds)
        with torch.inference_mode(False):
            if stacked is not None:
                return stacked.slopes(W, given, slope=False)[0]
            return self._plain.slopes(W, given, buffers, slope=False)[0]

    def outputs(self, W: Tensor, x: Tensor, buffers: Buffers | None = None, mask: Tensor | None = None) -> Tensor:
        """What the module gives at rest (`eval`, without dropout), (users, n, ...), where the mask is not 0.

        A module may look at several rows at once: those that only fill up a user's share are kept from it.
        """
        self._check(W, x, None)
        self.check(W, x, mask=mask)
        stacked = self._stacks(x, None)
        with torch.inference_mode(False):
            return self._plain.outputs(W, x, buffers, mask) if stacked is None else stacked.outputs(W, x)

    def settle(self, x: Tensor, y: Tensor) -> None:
        """Note in `way` whether users with so many rows of this shape go another way than the rest."""
        stacked = self._stacks(x, y)
        if stacked is not None:
            like = torch.empty(0, device=self.device, dtype=self.dtype)
            self.choices = stacked.arranged(tuple(x.shape[2:]), like).choices

    def _stacks(self, x: Tensor, y: Tensor | None) -> Stacked | None:
        """The stacked way, if it takes images of this shape and number, and targets of this shape."""
        if self._stacked is None:
            return None
        key = (*x.shape[1:], -1, *(() if y is None else y.shape[2:]))
        if key not in self._fits:
            try:
                self._fits[key] = self._stacked.fits(x, y)
                obstacle = "" if self._fits[key] else "the loss needs all images at once, and they are too many"
            except Unstackable as error:
                self._fits[key], obstacle = False, str(error)
            if obstacle:
                self.way, self.reason = "loop", obstacle
        return self._stacked if self._fits[key] else None

    def _check(self, W: Tensor, x: Tensor, y: Tensor | None) -> None:
        if W.ndim != 2 or W.shape[1] != self.dim or len(W) not in (1, len(x)):
            refuse("W", f"of shape {tuple(W.shape)}", f"({len(x)}, {self.dim}) or (1, {self.dim}) is needed")
        if y is not None and y.shape[:2] != x.shape[:2]:
            refuse("y", f"of shape {tuple(y.shape)}", f"a target for each of the {tuple(x.shape[:2])} rows is needed")


def _usable(x: Tensor) -> Tensor:
    """x, or a copy where it comes from inference mode: autograd refuses such tensors."""
    return x.clone() if x.is_inference() else x


def _unhooked(model: nn.Module) -> None:
    """Refuse gradients that parameters change on their own: they are no gradients of a function, and would be lost."""
    for name, p in model.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            refuse(f"model.{name}", "a parameter with gradient hooks", "they are not called here; remove them")
