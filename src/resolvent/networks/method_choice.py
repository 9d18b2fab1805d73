"""Which method computes a network's gradients: chosen once, before the first gradient, and never changed.

The choice follows from the device, the module and the shape of its rows, never from a timing, so that results are the
same bits in every process:

stacked    every layer has a stacked form (`stacked/forms.py`); on a CPU not GroupNorm beside wide convolutions
compiled   on a GPU, everything else that torch can vectorise over users and compile
vmap       what it can vectorise only; on a CPU calls of four users or more whose work is small
loop       everything else: with dropout, with buffers that change, with hooks

What is proposed is compared with plain autograd through the module as it came (`verify.py`). Where they differ the loop
is taken, and where that differs too the module is refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.errors import InputError, quoted, refuse
from resolvent.networks.compiled import Compiled
from resolvent.networks.dropout import drops_out
from resolvent.networks.gradients import Gradients, usable
from resolvent.networks.layout import ParameterLayout, copied, let_go
from resolvent.networks.mean_losses import mean_loss
from resolvent.networks.plain import Examples, Loop, Method, preserve_rng, seeded
from resolvent.networks.plain_autograd import Answer, Question, Reference, Unanswered
from resolvent.networks.precision import Precision
from resolvent.networks.stacked.convolution import WIDE, Conv
from resolvent.networks.stacked.group_norm import GroupNorm
from resolvent.networks.stacked.layers import Unstackable
from resolvent.networks.stacked.losses import stacked_loss
from resolvent.networks.stacked.method import Stacked
from resolvent.networks.stacked.net import Net
from resolvent.networks.stacked.trace import hidden_behaviour, trace
from resolvent.networks.stacked.workspace import loops_for
from resolvent.networks.vectorised import MANY_USERS, Vmap
from resolvent.networks.verify import UNDECIDED, obstacle, questions

METHODS = ("stacked", "compiled", "vmap", "loop")
NO_BATCHING = re.compile(r"the batching rule for (\S+?)\.(?:\s|$)")
"""In what torch warns of."""
DROPS = "the module drops out at random"


def choose_method(
    model: nn.Module,
    W: Tensor,
    x: Tensor,
    y: Tensor,
    mask: Tensor | None = None,
    loss: Callable[..., Any] = nn.functional.cross_entropy,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    precision: Precision = "float32",
    method: str | None = None,
) -> Gradients:
    """The gradients of a module for rows like x (users, n, ...) and y, compared with plain autograd on a few of them.

    `method` forces one of METHODS.
    """
    proposed = propose(model, loss, device, dtype, precision, method, len(x))
    return verified(proposed, model, W, x, y, mask, forced=method is not None)


def propose(
    model: nn.Module,
    loss: Callable[..., Any],
    device: torch.device | str,
    dtype: torch.dtype,
    precision: Precision = "float32",
    method: str | None = None,
    users: int = 1,
) -> Gradients:
    """What the module and the device suggest for so many users, not yet compared with anything.

    The module itself is never changed.
    """
    if method is not None and (not isinstance(method, str) or method not in METHODS):
        refuse("method", quoted(method), "'stacked', 'compiled', 'vmap', 'loop' or None is needed")
    _check_hooks(model)
    where, model = torch.device(device), copied(model).to(device=device, dtype=dtype)
    plain = Loop(model, ParameterLayout.of(model), loss, precision)
    reason = "it was asked for"
    if method in (None, "stacked"):
        try:
            stacked = _stacked(plain, loops_for(where, dtype, precision) is None)
            if method is None and where.type == "cpu":
                _check_speed(stacked.net)
            return Gradients(stacked, "every layer has a stacked form", plain, where)
        except Unstackable as obstacle:
            reason = str(obstacle)
            if method == "stacked":
                refuse("method", "'stacked'", f"the module cannot be stacked: {reason}; leave it out")
    if method in ("compiled", "vmap") or (method is None and where.type == "cuda"):
        unsuited = _not_over_users(model)
        if method is None and unsuited:
            reason = f"{reason}, and {unsuited}"
        else:
            kind = Vmap if method == "vmap" else Compiled
            return Gradients(kind(model, plain.layout, loss, precision), reason, plain, where)
    many = method is None and where.type == "cpu" and users >= MANY_USERS
    if many and precision == "float32" and not _not_over_users(model):
        return Gradients(Vmap(model, plain.layout, loss, only_small=True), reason, plain, where)
    return Gradients(plain, reason, plain, where)


def _stacked(plain: Loop, columns: bool) -> Stacked:
    net = trace(plain.model, join=columns)
    fixed = {name: p.detach() for name, p in plain.model.named_parameters() if not p.requires_grad}
    form = stacked_loss(mean_loss(plain.loss))
    return Stacked(net, plain.layout, fixed, form, plain.loss, plain.precision, columns)


def _check_speed(net: Net) -> None:
    """Refuse a net that users take one by one faster on a CPU: by 3 to 23 % for a ResNet of width 16, while one of
    width 8 takes 0.7 to 0.85 times as long stacked."""
    layers = [stage.layer for stage in net.stages]
    wide = any(isinstance(layer, Conv) and layer.outputs >= WIDE for layer in layers)
    if wide and any(isinstance(layer, GroupNorm) for layer in layers):
        raise Unstackable(f"on a CPU, GroupNorm beside convolutions of {WIDE} outputs or more is slower stacked")


def _not_over_users(model: nn.Module) -> str:
    """Why users of this module are not vectorised unless that is asked for; empty: nothing speaks against it."""
    return DROPS if drops_out(model) else hidden_behaviour(model)


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
    small = isinstance(suited.by, Vmap) and suited.by.only_small
    state = dict(suited.model.named_parameters()) | dict(suited.model.named_buffers())
    reference = Reference(original, state, suited.layout, suited.plain.loss, suited.device)
    with torch.inference_mode(False), preserve_rng(suited.device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = _compared(suited, reference, usable(W), usable(x), y, mask)
        if small and chosen.method == "loop":
            chosen = replace(chosen, reason=suited.reason)
        elif isinstance(chosen.by, Vmap):
            chosen = _tried(chosen, usable(W), Examples(usable(x), usable(y), mask))
    if forced and chosen.method != proposed.method:
        refuse("method", quoted(proposed.method), f"{chosen.reason}; leave it out")
    if chosen.stacked is None:
        return chosen
    like = W.new_empty(0, device=chosen.device)
    return replace(chosen, choices=chosen.stacked.arranged(tuple(x.shape[2:]), like).choices)


def _compared(
    proposed: Gradients, reference: Reference, W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None
) -> Gradients:
    def difference(by: Method, even: bool = False) -> str:
        """Of a method. That the module calls dropout functions is known once the reference has answered."""
        asked = questions(W, x, y, mask, proposed.layout, even)
        autograd = by is proposed.plain

        def candidate(question: Question) -> Answer:
            method = proposed.dropping(reference.drops).plain if autograd else by
            return _answer(method.exact(), proposed.device, question)

        return obstacle(candidate, reference, asked, proposed.layout, autograd)

    try:
        for by, even in _variants(proposed.by):
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                reason = difference(by, even) or reference.needs_loop or _one_by_one(heard)
                if not reason and isinstance(by, Vmap) and by.only_small:
                    reason = difference(proposed.plain)
            if reason and reference.drops and isinstance(by, Vmap):
                reason = DROPS
            if not reason:
                return replace(proposed, by=by).dropping(reference.drops)
        if proposed.method != "loop":
            proposed = proposed.by_loop(reason)
        _accept_loop(reference, difference(proposed.plain))
    except Unanswered as error:  # the module itself fails: the loop will say why
        proposed = proposed.by_loop(str(error))
    return proposed.dropping(reference.drops)


def _one_by_one(heard: list[warnings.WarningMessage]) -> str:
    """What torch computes user by user within vmap, and more slowly than the loop, as it warns; empty if nothing."""
    operations = [match[1] for each in heard if (match := NO_BATCHING.search(str(each.message)))]
    return f"torch does not vectorise {operations[0]}" if operations else ""


def _variants(by: Method) -> list[tuple[Method, bool]]:
    """What is compared, and whether on users with equal numbers of rows: with and without rows that only pad others."""
    if isinstance(by, Vmap):
        return [(by, False), (replace(by, masks=False), True)] if by.takes_masks else [(by, True)]
    return [] if isinstance(by, Loop) else [(by, False)]


def _tried(chosen: Gradients, W: Tensor, given: Examples) -> Gradients:
    """Compiled, and in the precision that is asked for, on the rows that are there; else by vmap, or by the loop."""
    by = chosen.by
    try:
        by.value_and_grad(W, given)
    except torch.OutOfMemoryError:  # all rows of a user may be more than minibatches will be
        return chosen
    except Exception as error:  # what a few rows in full precision did not show
        let_go(error)
        return chosen.by_loop(f"{chosen.reason}, and vmap gave {type(error).__name__} for all rows")
    if not isinstance(by, Compiled) or not by.obstacles:
        return chosen
    return replace(chosen, by=by.eager(), reason=f"{chosen.reason}, and {by.obstacles[0]}")


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
