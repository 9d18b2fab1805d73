"""A trained network: parameters, users' buffers and what was never trained, by name or as a module.

Users' buffers, such as running means, travel in what users remember, under names that begin with `BUFFER`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import prod
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from resolvent.errors import InputError, refuse
from resolvent.networks import models
from resolvent.networks.layout import Buffers, ParameterLayout, copied
from resolvent.randomness import INITIAL_WEIGHTS, words

BUFFER = "buffer."
"""The prefix of buffers' names in memory."""
FACTORIES = {
    make.__name__: make
    for make in (models.mnist_cnn, models.cifar10_cnn, models.niid_bench_mnist, models.niid_bench_cifar10)
}
"""Networks of the package by name."""


def own_buffers(memory: Buffers) -> Buffers:
    """Users' buffers in what they remember, by their names in the module."""
    return {name.removeprefix(BUFFER): rows for name, rows in memory.items() if name.startswith(BUFFER)}


def as_memory(buffers: Buffers) -> Buffers:
    """The same the other way around."""
    return {BUFFER + name: rows for name, rows in buffers.items()}


def mean_buffer(weights: Tensor, rows: Tensor) -> Tensor:
    """The weighted mean of users' buffers (users, ...), (1, ...); whole numbers are rounded."""
    if bool((rows == rows[:1]).all()):
        return rows[:1]
    lam = weights.view(-1, *(1,) * (rows.ndim - 1))
    mean = (lam.to(torch.float64) * rows).sum(0, keepdim=True)
    return (mean if rows.is_floating_point() else mean.round()).to(rows.dtype)


def buffers_of(memory: Buffers, weights: Tensor, user: int | None) -> Buffers:
    """The buffers of one user, or their weighted mean."""
    named = own_buffers(memory).items()
    return {n: mean_buffer(weights.to(rows.device), rows)[0] if user is None else rows[user] for n, rows in named}


def untrained(module: nn.Module) -> Buffers:
    """Parameters that require no gradient."""
    return {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}


def checksum(frozen: Buffers) -> str:
    """Of parameters that are not trained, by which users find that theirs are the same; empty where there are none."""
    whole = hashlib.sha256()
    for name, tensor in sorted(frozen.items()):
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        whole.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()[:16] if frozen else ""


def described(module: nn.Module, layout: ParameterLayout, fixed: list[str]) -> dict[str, Any]:
    """What the module is made of, in plain values: names and shapes."""
    return {
        "class": f"{type(module).__module__}.{type(module).__qualname__}",
        "parameters": [[name, list(shape)] for name, shape in zip(layout.names, layout.shapes, strict=True)],
        "fixed": fixed,
    }


def drawn_anew(module: nn.Module, seed: int) -> nn.Module:
    """A copy on the CPU whose trainable parameters are drawn as its layers draw them when they are made.

    A module draws after those that it is made of, so that what it draws of their weights stays.
    """
    for name, layer in module.named_modules():
        if (by := _drawn_elsewhere(layer)) and any(p.requires_grad for p in layer.parameters()):
            _refuse_to_draw(name, layer, f"draws its weights by {by}, not by reset_parameters(): pass")
    copy = copied(module).cpu()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(int(words(seed, INITIAL_WEIGHTS)[0] >> 1))
        for name, layer in sorted(copy.named_modules(), key=lambda pair: -pair[0].count(".") - bool(pair[0])):
            draw = _drawing(layer)
            if not any(p.requires_grad for p in layer.parameters(recurse=draw is not None)):
                continue
            if draw is None:
                _refuse_to_draw(
                    name, layer, "has no reset_parameters() that draws its parameters: give it one, or pass"
                )
            draw()
    return copy


LIBRARIES = ("transformers", "peft", "timm", "diffusers")
"""Their models draw the weights of torch's layers in ways of their own."""


def _drawing(layer: nn.Module) -> Callable[[], object] | None:
    return getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)


def _drawn_elsewhere(layer: nn.Module) -> str | None:
    """What has drawn a module's weights, where `reset_parameters` of its layers draws others."""
    if library := next((r for c in type(layer).__mro__ if (r := c.__module__.split(".")[0]) in LIBRARIES), None):
        return library
    own = ("_init_weights", "init_weights") if _drawing(layer) is None else ()
    return next((f"{name}()" for name in own if callable(getattr(layer, name, None))), None)


def _refuse_to_draw(name: str, layer: nn.Module, why: str) -> NoReturn:
    what = f"{name or 'the model'}, a {type(layer).__name__}, {why}"
    refuse(
        "start",
        "'random'",
        f"{what} a list with one problem per seed to rs.solve_seeds or rs.compare, each of a model made under its seed",
    )


def with_values(module: nn.Module, layout: ParameterLayout, w: Tensor, buffers: Buffers) -> nn.Module:
    """A copy of the module with these parameters, and with these buffers where they are given."""
    trained = copied(module)
    layout.load(trained, w.detach())
    for name, buffer in trained.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
    return trained


def tensors(description: Any, model: Tensor, memory: Buffers, user: int | None = None) -> Buffers:
    """Every parameter and buffer of a network that a run's folder describes; the buffers of one user, or their mean."""
    network, by_name, at = description.network, dict(description.fixed), 0
    for name, shape in network["parameters"]:
        by_name[name] = model[at : at + prod(shape)].reshape(shape)
        at += prod(shape)
    if at != len(model):
        raise InputError(f"the network has {at} parameters, but the model has {len(model)}; the run's files do not fit")
    by_name |= buffers_of(memory, torch.tensor(network["weights"], dtype=torch.float64), user)
    return {name: tensor.detach().cpu() for name, tensor in by_name.items()}


def loaded(
    description: Any, model: Tensor, memory: Buffers, into: nn.Module | None = None, user: int | None = None
) -> nn.Module:
    """The network itself: one of the package's by its name, or `into` a module of the same architecture."""
    network = description.network
    if into is None:
        if network.get("factory") not in FACTORIES:
            raise InputError(
                f"the network is a {network['class']}, and no code is called that a folder names; "
                "make one yourself and pass it: run.module(into=MyNetwork())"
            )
        into = FACTORIES[network["factory"]]()
    if not isinstance(into, nn.Module):
        refuse("into", f"of type {type(into).__name__}", "a torch.nn.Module is needed")
    trained = tensors(description, model, memory, user)
    own = dict(into.named_parameters()) | dict(into.named_buffers())
    for name in (*trained, *own):
        here, there = (f"of shape {tuple(t[name].shape)}" if name in t else "missing" for t in (own, trained))
        if here != there:
            raise InputError(
                f"into is another network than the one that was trained: its {name} is {here}, and was {there}; "
                f"pass a {network['class']} made as it was for training"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(trained[name])
    return into
