"""A trained network from what a run's folder holds: parameters, buffers, and what was never trained."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from resolvent.errors import InputError, refuse
from resolvent.networks import models
from resolvent.networks.buffers import own_buffers
from resolvent.networks.layout import mean_buffer


def tensors(described: Any, model: Tensor, memory: dict[str, Tensor], user: int | None = None) -> dict[str, Tensor]:
    """Every parameter and buffer of a network by name; the buffers of one user, or their mean."""
    network, found, at = described.network, dict(described.fixed), 0
    for name, shape in network["parameters"]:
        found[name] = model[at : at + prod(shape)].reshape(shape)
        at += prod(shape)
    if at != len(model):
        raise InputError(f"the network has {at} parameters, but the model has {len(model)}; the run's files do not fit")
    weights = torch.tensor(network["weights"], dtype=torch.float64)
    for name, rows in own_buffers(memory).items():
        found[name] = mean_buffer(weights.to(rows.device), rows)[0] if user is None else rows[user]
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def loaded(
    described: Any, model: Tensor, memory: dict[str, Tensor], into: nn.Module | None = None, user: int | None = None
) -> nn.Module:
    """The network itself: one of the package's by its name, or `into` a module of the same architecture."""
    known = described.network.get("factory")
    if into is None:
        if known not in FACTORIES:
            raise InputError(
                f"the network is a {described.network['class']}, and no code is called that a folder names; "
                "make one yourself and pass it: run.module(into=MyNetwork())"
            )
        into = FACTORIES[known]()
    if not isinstance(into, nn.Module):
        refuse("into", f"of type {type(into).__name__}", "a torch.nn.Module is needed")
    found = tensors(described, model, memory, user)
    own = dict(into.named_parameters()) | dict(into.named_buffers())
    for name in (*found, *own):
        if name not in own or name not in found or own[name].shape != found[name].shape:
            there = f"of shape {tuple(found[name].shape)}" if name in found else "missing"
            here = f"of shape {tuple(own[name].shape)}" if name in own else "missing"
            raise InputError(
                f"into is another network than the one that was trained: its {name} is {here}, and was {there}; "
                f"pass a {described.network['class']} made as it was for training"
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(found[name])
    return into


FACTORIES = {"mnist_cnn": models.mnist_cnn, "cifar10_cnn": models.cifar10_cnn}
"""Networks of the package by name."""
