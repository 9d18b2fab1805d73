"""Stacked forms of torch's layers: the layer for each function and method. Modules are read as the functions they call.

Functions are looked up by identity, never by name: a user's own function may be called `relu`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from resolvent.networks.stacked import layers, pointwise
from resolvent.networks.stacked.convolution import Conv
from resolvent.networks.stacked.group_norm import GroupNorm
from resolvent.networks.stacked.layers import Layer, Shape, Unstackable
from resolvent.networks.stacked.pointwise import ACTIVATIONS
from resolvent.networks.stacked.pools import AvgPool, MaxPool

Read = tuple[tuple[Any, ...], Layer | None]
"""The tensors that a call takes, and its layer; None: the call does nothing."""


def _pair(value: Any) -> tuple[int, int]:
    a, b = (value, value) if isinstance(value, int) else value
    return int(a), int(b)


def _line(value: Any, rest: int) -> tuple[int, int]:
    """An option of a layer over one axis as one over two: `rest` for the height, which is one."""
    return rest, int(value if isinstance(value, int) else value[0])


def _conv1d(weight: Shape, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Layer:
    if isinstance(padding, str):
        raise Unstackable("a convolution over one axis with padding by name")
    *channels, width = weight
    return _conv2d((*channels, 1, width), _line(stride, 1), _line(padding, 0), _line(dilation, 1), groups)


def _conv2d(weight: Shape, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Layer:
    outputs, inputs, *kernel = weight
    if groups != 1:
        raise Unstackable("a convolution in groups, or with padding other than zeros")
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(_pair(dilation), kernel, strict=True)]
        if padding == "same" and any(r % 2 for r in reach):
            raise Unstackable("padding='same' that is not even")
        padding = tuple(r // 2 for r in reach) if padding == "same" else 0
    return Conv(inputs, outputs, _pair(kernel), _pair(stride), _pair(padding), _pair(dilation))


def _max_pool2d(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Layer:
    if ceil_mode or return_indices:
        raise Unstackable("a pooling with ceil_mode or indices")
    return MaxPool(_pair(kernel_size), _pair(stride or kernel_size), _pair(padding), _pair(dilation))


def _max_pool1d(kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, **options: Any) -> Layer:
    return _max_pool2d(
        _line(kernel_size, 1), _line(stride or kernel_size, 1), _line(padding, 0), _line(dilation, 1), **options
    )


def _avg_pool2d(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Layer:
    if ceil_mode or divisor_override is not None or (not count_include_pad and _pair(padding) != (0, 0)):
        raise Unstackable("a pooling with ceil_mode, a divisor or uncounted padding")
    return AvgPool(_pair(kernel_size), _pair(stride or kernel_size), _pair(padding))


def _avg_pool1d(kernel_size: Any, stride: Any = None, padding: Any = 0, *more: bool, **options: Any) -> Layer:
    return _avg_pool2d(_line(kernel_size, 1), _line(stride or kernel_size, 1), _line(padding, 0), *more, **options)


def _adaptive(output_size: Any) -> Layer:
    a, b = (output_size, output_size) if output_size is None or isinstance(output_size, int) else output_size
    return AvgPool(None, (1, 1), (0, 0), (a, b))


def _log_softmax(dim: Any) -> Layer:
    if dim != 1:
        raise Unstackable("a softmax over another axis than the first")
    return pointwise.LogSoftmax()


def _flatten(start_dim: int = 0, end_dim: int = -1) -> Layer:
    """torch's function and method begin with the rows, unlike nn.Flatten."""
    if start_dim < 1 or end_dim != -1:
        raise Unstackable("a flattening of other axes than all features")
    return layers.Reshape(None, start_dim - 1)


def _reshape(x: fx.Node, *sizes: Any) -> Read:
    shape = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    whole = all(isinstance(s, int) for s in shape[1:])
    if len(shape) < 2 or not whole or (shape[0] == -1 and -1 in shape[1:]) or shape[0] not in (-1, "n"):
        raise Unstackable("a reshape that is not of each image")
    return (x,), layers.Reshape(tuple(shape[1:]))


def _sum(a: fx.Node, b: fx.Node) -> Read:
    return (a, b), layers.Add()


def _dropout(p: float, training: bool = True) -> Layer | None:
    if p >= 1:
        raise Unstackable("a dropout of everything")
    return pointwise.Dropout(p) if training and p > 0 else None


def _one(build: Callable[..., Layer | None]) -> Callable[..., Any]:
    """A function of one tensor and options, from what builds its layer."""

    def call(x: fx.Node, *args: Any, inplace: bool = False, **options: Any) -> Read:
        options.pop("_stacklevel", None)
        if options.pop("dtype", None) is not None:
            raise Unstackable("a function that changes the type of its numbers")
        return (x,), build(*args, **options)

    return call


MODULES: frozenset[type[nn.Module]] = frozenset(
    {nn.Linear, nn.Conv1d, nn.Conv2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}
    | {nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU, nn.ELU, nn.LeakyReLU, nn.Softplus}
    | {nn.Flatten, nn.Dropout, nn.LocalResponseNorm, nn.GroupNorm, nn.LogSoftmax, nn.Identity}
)
"""Modules whose forward calls one of the functions below, or does nothing."""

FUNCTIONS: dict[Callable[..., Any], Callable[..., Read]] = {
    F.avg_pool1d: _one(_avg_pool1d),
    F.avg_pool2d: _one(_avg_pool2d),
    F.adaptive_avg_pool2d: _one(_adaptive),
    torch.flatten: _one(_flatten),
    torch.reshape: _reshape,
    F.dropout: _one(lambda p=0.5, training=True: _dropout(p, training)),
    torch.dropout: _one(lambda p, train: _dropout(p, train)),
    F.local_response_norm: _one(
        lambda size, alpha=1e-4, beta=0.75, k=1.0: pointwise.LocalResponseNorm(size, alpha, beta, k)
    ),
    F.silu: _one(ACTIVATIONS["silu"]),
    F.gelu: _one(ACTIVATIONS["gelu"]),
    F.softplus: _one(ACTIVATIONS["softplus"]),
}
FUNCTIONS |= dict.fromkeys((operator.add, operator.iadd, torch.add), _sum)
FUNCTIONS |= dict.fromkeys((F.max_pool1d, torch.max_pool1d), _one(_max_pool1d))
FUNCTIONS |= dict.fromkeys((F.max_pool2d, torch.max_pool2d), _one(_max_pool2d))
FUNCTIONS |= dict.fromkeys((F.log_softmax, torch.log_softmax), _one(_log_softmax))
FUNCTIONS |= dict.fromkeys((F.relu, torch.relu, torch.relu_), _one(ACTIVATIONS["relu"]))
FUNCTIONS |= dict.fromkeys((torch.tanh, torch.tanh_), _one(ACTIVATIONS["tanh"]))
FUNCTIONS |= dict.fromkeys((torch.sigmoid, torch.sigmoid_), _one(ACTIVATIONS["sigmoid"]))
FUNCTIONS |= dict.fromkeys((F.elu, F.elu_), _one(ACTIVATIONS["elu"]))
FUNCTIONS |= dict.fromkeys((F.leaky_relu, F.leaky_relu_), _one(ACTIVATIONS["leaky_relu"]))


def _group_norm(weight: Shape | None, num_groups: int, eps: float = 1e-5) -> Layer:
    return GroupNorm(int(num_groups), float(eps), None if weight is None else weight[0])


WEIGHTED: dict[Callable[..., Any], Callable[..., Layer]] = {
    F.linear: lambda weight: layers.Linear(weight[1], weight[0]),
    F.conv1d: _conv1d,
    F.conv2d: _conv2d,
    F.group_norm: _group_norm,
}
"""Functions of a tensor, a weight and a bias: the layer, of the weight's shape and the options."""
OPTIONS: dict[Callable[..., Any], tuple[str, ...]] = dict.fromkeys(
    WEIGHTED, ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
)
OPTIONS[F.group_norm] = ("input", "num_groups", "weight", "bias", "eps")
"""What these functions take, in order."""

METHODS: dict[str, Callable[..., Read]] = {
    "flatten": _one(_flatten),
    "view": _reshape,
    "reshape": _reshape,
    "log_softmax": _one(_log_softmax),
}
METHODS |= dict.fromkeys(("add", "add_"), _sum)
for _name in ("relu", "tanh", "sigmoid"):
    METHODS |= dict.fromkeys((_name, f"{_name}_"), _one(ACTIVATIONS[_name]))


OVER_ONE_AXIS: frozenset[Any] = frozenset({F.conv1d, F.max_pool1d, torch.max_pool1d, F.avg_pool1d})
"""Functions over one axis: a height of one is added before them and removed after."""


def writes(target: Any, options: dict[str, Any]) -> bool:
    """Whether a call writes into its first argument."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return target is operator.iadd or name.endswith("_") or bool(options.get("inplace"))
