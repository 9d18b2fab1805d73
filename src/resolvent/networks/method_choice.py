"""Which method computes a network's gradients: chosen once, before the first gradient, and never changed.

The choice follows from the device, the module and the shape of its rows, never from a timing, so that results are the
same bits in every process:

stacked   every layer has a stacked form (`stacked/forms.py`)
vmap      on an accelerator, where all layers are products and pointwise: many small users in few launches
loop      everything else

What is proposed is compared with plain autograd through the module as it came (`verify.py`). Where they differ the loop
is taken, and where that differs too the module is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.errors import InputError, quoted, refuse
from resolvent.networks.gradients import Gradients, usable
from resolvent.networks.layout import ParameterLayout, copied
from resolvent.networks.mean_losses import mean_loss
from resolvent.networks.plain import Loop, Method, Vmap, preserve_rng, seeded
from resolvent.networks.plain_autograd import Answer, Question, Reference, Unanswered
from resolvent.networks.stacked.layers import Unstackable
from resolvent.networks.stacked.losses import stacked_loss
from resolvent.networks.stacked.method import Stacked
from resolvent.networks.stacked.trace import hidden_behaviour, trace
from resolvent.networks.stacked.workspace import loops_for
from resolvent.networks.verify import UNDECIDED, obstacle, questions

VECTORISED = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Flatten, nn.Identity, nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid)
"""Layers that torch vectorises over users into batched kernels; a convolution becomes a grouped one, which is slow."""


def choose_method(
    model: nn.Module,
    W: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None = None,
    loss: Callable[..., Any] = nn.functional.cross_entropy,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    autocast: torch.dtype | None = None,
    method: str | None = None,
) -> Gradients:
    """The gradients of a module for rows like x (users, n, ...) and y, compared with plain autograd on a few of them.

    `method` forces one of "stacked", "vmap" and "loop".
    """
    proposed = propose(model, loss, device, dtype, autocast, method)
    return verified(proposed, model, W, x, y, mask, forced=method is not None)


def propose(
    model: nn.Module,
    loss: Callable[..., Any],
    device: torch.device | str,
    dtype: torch.dtype,
    autocast: torch.dtype | None = None,
    method: str | None = None,
) -> Gradients:
    """What the module and the device suggest, not yet compared with anything. The module itself is never changed."""
    if method not in (None, "stacked", "vmap", "loop"):
        refuse("method", quoted(method), "'stacked', 'vmap', 'loop' or None is needed")
    _check_hooks(model)
    if any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        refuse("model", "compiled by torch.jit", "its parameters cannot be exchanged; pass the module itself")
    where, model = torch.device(device), copied(model).to(device=device, dtype=dtype)
    plain = Loop(model, ParameterLayout.of(model), loss, autocast)
    reason = "it was asked for"
    if method in (None, "stacked"):
        try:
            stacked = _stacked(plain, loops_for(where, dtype, autocast) is None)
            return Gradients(stacked, "every layer has a stacked form", plain, where)
        except Unstackable as obstacle:
            reason = str(obstacle)
            if method == "stacked":
                refuse("method", "'stacked'", f"the module cannot be stacked: {reason}; leave it out")
    if method == "vmap" or (method is None and _vectorises(model, where)):
        reason = reason if method == "vmap" else f"{reason}, but torch vectorises all of its layers"
        return Gradients(Vmap(model, plain.layout, loss, autocast), reason, plain, where)
    return Gradients(plain, reason, plain, where)


def _stacked(plain: Loop, columns: bool) -> Stacked:
    net = trace(plain.model, join=columns)
    fixed = {name: p.detach() for name, p in plain.model.named_parameters() if not p.requires_grad}
    form = stacked_loss(mean_loss(plain.loss))
    return Stacked(net, plain.layout, fixed, form, plain.loss, plain.autocast, columns)


def _vectorises(model: nn.Module, device: torch.device) -> bool:
    leaves = [m for m in model.modules() if not list(m.children())]
    return device.type != "cpu" and all(isinstance(m, VECTORISED) for m in leaves) and not hidden_behaviour(model)


def verified(
    proposed: Gradients,
    original: nn.Module,
    W: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None = None,
    forced: bool = False,
) -> Gradients:
    """What was proposed, or the loop where it does not give what plain autograd through the original module gives.

    Costs gradients of two users on three rows, by plain autograd and by the method.
    """
    suited = proposed.for_features(tuple(x.shape[2:]))
    if forced and suited is not proposed:
        refuse("method", quoted(proposed.method), f"the module cannot be stacked: {suited.reason}; leave it out")
    state = dict(suited.model.named_parameters()) | dict(suited.model.named_buffers())
    reference = Reference(original, state, suited.layout, suited.plain.loss, suited.device)
    with torch.inference_mode(False), preserve_rng(suited.device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = _compared(suited, reference, usable(W), usable(x), y, mask)
    if forced and chosen.method != proposed.method:
        refuse("method", quoted(proposed.method), f"{chosen.reason}; leave it out")
    if chosen.stacked is None:
        return chosen
    like = W.new_empty(0, device=chosen.device)
    return replace(chosen, choices=chosen.stacked.arranged(tuple(x.shape[2:]), like).choices)


def _compared(
    proposed: Gradients, reference: Reference, W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None
) -> Gradients:
    def difference(autograd: bool) -> str:
        """Of the method proposed. That the module calls dropout functions is known once the reference has answered."""
        asked = questions(W, x, y, mask, proposed.layout, even=proposed.method == "vmap")

        def candidate(question: Question) -> Answer:
            method = proposed.dropping(reference.drops).by if autograd else proposed.by
            return _answer(method.uncast(), proposed.device, question)

        return obstacle(candidate, reference, asked, proposed.layout, autograd)

    try:
        if proposed.method != "loop":
            reason = difference(autograd=False) or reference.needs_loop
            if not reason:
                return proposed.dropping(reference.drops)
            proposed = proposed.by_loop(reason)
        _accept_loop(reference, difference(autograd=True))
    except Unanswered as error:  # the module itself fails: the loop will say why
        proposed = proposed.by_loop(str(error))
    return proposed.dropping(reference.drops)


def _answer(method: Method, device: torch.device, question: Question) -> Answer:
    """What a method gives. A loop's users begin with the random numbers that the reference draws, one by one."""
    users = [slice(i, i + 1) for i in range(len(question.W))] if isinstance(method, Loop) else [slice(None)]
    outputs = []
    for who in users:
        with seeded(None, device):
            outputs.append(method.outputs(question.W[who], question.x[who]))
    loss, grad, _ = method.value_and_grad(question.W, question.examples)
    return Answer(torch.cat(outputs), loss, grad)


def _accept_loop(reference: Reference, reason: str) -> None:
    """Refuse a module whose copy is another function."""
    if reason and not reference.inconsistent and UNDECIDED not in reason:
        raise InputError(
            f"model is a module whose copy computes something else ({reason}), but a copy is trained; "
            "do not call its layers from functions that were made outside of forward, as in lambda x: self.layer(x)"
        )


def _check_hooks(model: nn.Module) -> None:
    """Refuse parameters whose hooks change their gradients: those are no gradients of a function, and would be lost."""
    for name, p in model.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            refuse(f"model.{name}", "a parameter with gradient hooks", "they are not called here; remove them")
