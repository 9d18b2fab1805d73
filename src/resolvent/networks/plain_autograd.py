"""What plain torch gives for a module: it holds the parameters, is called, and `backward()` is called on its loss.

This is what the methods are compared with, so it shares no code with them that computes anything. It is the module as
it came, not a copy: a copy may still call the first module, by a function that was made in `__init__`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from resolvent.errors import InputError, refuse
from resolvent.networks.dropout import NoDropout, dropout_off
from resolvent.networks.layout import ParameterLayout, attributes_restored, let_go
from resolvent.networks.plain import Examples, preserve_rng
from resolvent.networks.precision import products_in

BROADCASTS = "Using a target size"
"""How torch's warning begins where a loss gets outputs and targets of different shapes."""
REGISTERED = ("_parameters", "_buffers", "_modules")
"""What a module has by name, in its own dictionaries."""
ROUNDING = 100
"""An output is off by at most this many units of its last place: sums over a layer's inputs, through all layers."""


class Unanswered(Exception):
    """Why plain autograd gives no answer, in a few words."""


class Answer(NamedTuple):
    """What a method gives: outputs in eval mode, the loss, and its gradient, (2, ...) each."""

    outputs: Tensor
    loss: Tensor
    grad: Tensor


class Question(NamedTuple):
    """Parameters (2, d) and rows (2, ROWS, ...) of two users."""

    W: Tensor
    x: Tensor
    y: Tensor
    mask: Tensor

    @property
    def examples(self) -> Examples:
        return Examples(self.x, self.y, None if bool(self.mask.all()) else self.mask)


def noise(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def noise_scale(W: Tensor, layout: ParameterLayout) -> Tensor:
    """How much noise each parameter gets: a tenth of its tensor's size, or of the usual size where that is larger."""
    scale = torch.empty_like(W)
    for name, part in layout.split(W).items():
        usual = max(1, part[0][0].numel() if part.ndim > 1 else 1) ** -0.5
        layout.split(scale)[name].copy_(0.1 * part.square().mean().sqrt().clamp_min(usual).expand_as(part))
    return scale


@dataclass(eq=False)
class Reference:
    """Plain autograd through the module as it came, hooks included, without dropout. The module is left as it was.

    `state` has its parameters and buffers, in the type and on the device in which they are used. The reference also
    notes whether the module `draws` random numbers, `drops` out by a function rather than a layer, `changes` a buffer,
    `writes` to a parameter, or is `inconsistent`: it gives something else when called again.
    """

    model: nn.Module
    state: dict[str, Tensor]
    layout: ParameterLayout
    loss: Callable[..., Any]
    device: torch.device
    draws: bool = False
    drops: bool = False
    changes: bool = False
    writes: bool = False
    _last: tuple[Question, Answer] | None = None

    def __call__(self, question: Question) -> Answer:
        try:
            with _restored(self.model):
                users = list(zip(*question, strict=True))
                trained = [self._trained(w, x[real], y[real]) for w, x, y, real in users]
                outputs = [self._at_rest(w, x) for w, x, _, _ in users]
            answer = Answer(torch.stack(outputs), *(torch.stack(parts) for parts in zip(*trained, strict=True)))
        except InputError:
            raise
        except Exception as error:  # whatever a module's own code raises
            let_go(error)
            line = (str(error).splitlines() or [""])[0]
            raise Unanswered(f"plain autograd gave {type(error).__name__} ({line})") from error
        self._last = question, answer
        return answer

    @property
    def needs_loop(self) -> str:
        """What the module does that only the loop can reproduce; empty if nothing."""
        reasons = {
            "it draws random numbers": self.draws,
            "it changes its buffers": self.changes,
            "it writes to its parameters": self.writes,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    @property
    def inconsistent(self) -> bool:
        if self._last is None:
            return False
        question, answer = self._last
        pairs = zip(answer, self(question), strict=True)
        return any(not torch.equal(a, b) for a, b in pairs)

    def has_slopes(self, question: Question, grad: Tensor) -> bool:
        """Whether the first user's gradient is the slope of the module's outputs along a random direction v.

        The slope of the loss is <grad, v>, and that of <c, outputs> where c is the loss's gradient at the outputs. The
        loss itself is not differenced: its gradient may be another on purpose, as with detach().
        """
        W, real = question.W[:1], question.mask[0]
        eps = torch.finfo(W.dtype).eps
        h = eps ** (1 / 3)  # where the error of a difference of order h^2 meets that of rounding
        v = noise(W, torch.Generator().manual_seed(0)) * noise_scale(W, self.layout)
        with _restored(self.model):
            before, after = (self._outputs(w, question.x[0][real]) for w in (*(W - h * v), *(W + h * v)))
        here = ((before + after) / 2).requires_grad_()
        (c,) = torch.autograd.grad(self._loss(here.clone(), question.y[0][real]), here)
        parts = grad[0].double() * v[0].double()
        slope = (c.double() * (after.double() - before.double())).sum() / (2 * h)
        rounding = ROUNDING * eps * (c * here).abs().sum() / h
        allowed = 10 * h * (parts.sum().abs() + parts.norm()) + rounding
        return bool((slope - parts.sum()).abs() <= allowed)

    def _trained(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient in the module's own mode."""
        with self._filled(w), torch.enable_grad():
            value = self._loss(self.model(x.clone()), y)
            if not value.requires_grad:
                needed = (
                    "it must depend on a trained parameter, and reentrant checkpoints need an input with a gradient"
                )
                refuse("model", "a module whose loss has no gradient", f"{needed}: take use_reentrant=False there")
            torch.autograd.backward(value)  # which, unlike value.backward(), leaves NoDropout on
            parameters = dict(self.model.named_parameters())
            parts = [parameters[name] for name in self.layout.names]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parts]
        return value.detach(), torch.cat([g.reshape(-1) for g in grads])

    def _outputs(self, w: Tensor, x: Tensor) -> Tensor:
        with self._filled(w), torch.no_grad():
            out: Tensor = self.model(x.clone())
        return out

    def _at_rest(self, w: Tensor, x: Tensor) -> Tensor:
        with self._filled(w), _restored(self.model), torch.no_grad():
            self.model.eval()
            out: Tensor = self.model(x.clone())
        return out

    def _loss(self, out: Any, y: Tensor) -> Tensor:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", BROADCASTS)
                value: Tensor = self.loss(out, y.clone())
        except UserWarning as warning:
            if not re.match(BROADCASTS, str(warning)):
                raise
            raise InputError(
                f"the loss cannot take outputs of shape {tuple(out.shape[1:])} and targets of shape "
                f"{tuple(y.shape[1:])} for each row: torch would repeat one to fit the other, across rows too; "
                "give both the same shape"
            ) from None
        return value

    @contextmanager
    def _filled(self, w: Tensor) -> Iterator[None]:
        """The module holds the parameters w (d,) and drops nothing. What it does besides is noted."""
        values = self.state | {name: part[0] for name, part in self.layout.split(w.unsqueeze(0)).items()}
        torch.clear_autocast_cache()  # it would give the parameters that were here before
        for name, tensor in _tensors(self.model):
            tensor.grad, tensor.data = None, values[name].detach().clone()
        with preserve_rng(self.device) as drawn, dropout_off(self.model), NoDropout() as no_dropout:
            with products_in(self.device, "float32"):
                yield
            self.draws |= drawn()
        self.drops |= no_dropout.met
        for name, tensor in _tensors(self.model):
            if name in values and not torch.equal(tensor.detach(), values[name]):
                self.writes |= isinstance(tensor, nn.Parameter)
                self.changes |= not isinstance(tensor, nn.Parameter)


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore the module afterwards: parameters, buffers, gradients, mode and attributes, which forward may set."""
    tensors = [(t, t.data, t.grad) for _, t in _tensors(model)]
    registered = [(items, dict(items)) for m in model.modules() for items in (vars(m)[kind] for kind in REGISTERED)]
    try:
        with attributes_restored(model):
            yield
    finally:
        for items, before in registered:
            items.clear()
            items.update(before)
        for tensor, data, grad in tensors:
            if tensor.grad_fn is not None:  # a buffer that something with a gradient was written into
                tensor.detach_()
            tensor.grad, tensor.data = None, data
            tensor.grad = grad
