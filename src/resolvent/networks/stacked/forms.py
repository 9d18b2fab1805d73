"""Stacked forms of torch's layers: the layer for each module, function and method.

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
    outputs, inputs, width = weight
    if groups != 1 or isinstance(padding, str):
        raise Unstackable("a convolution in groups, or with padding by name or other than zeros")
    return Conv(inputs, outputs, (1, width), _line(stride, 1), _line(padding, 0), _line(dilation, 1))


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


def _of_module(conv: Callable[..., Layer]) -> Callable[[Any], Layer]:
    def build(module: Any) -> Layer:
        if module.padding_mode != "zeros":
            raise Unstackable("a convolution in groups, or with padding other than zeros")
        weight = (module.out_channels, module.in_channels, *module.kernel_size)
        return conv(weight, module.stride, module.padding, module.dilation, module.groups)

    return build


def _max_pool(
    kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, indices: bool = False
) -> Layer:
    if ceil_mode or indices:
        raise Unstackable("a pooling with ceil_mode or indices")
    steps = _pair(kernel if stride is None or stride == [] else stride)
    return MaxPool(_pair(kernel), steps, _pair(padding), _pair(dilation))


def _avg_pool(
    kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, padded: bool = True, divisor: Any = None
) -> Layer:
    if ceil_mode or divisor is not None or (not padded and _pair(padding) != (0, 0)):
        raise Unstackable("a pooling with ceil_mode, a divisor or uncounted padding")
    return AvgPool(_pair(kernel), _pair(kernel if stride is None or stride == [] else stride), _pair(padding))


def _max_pool1d(
    kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, indices: bool = False
) -> Layer:
    steps = _line(kernel if stride is None or stride == [] else stride, 1)
    return _max_pool(_line(kernel, 1), steps, _line(padding, 0), _line(dilation, 1), ceil_mode, indices)


def _avg_pool1d(
    kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, padded: bool = True
) -> Layer:
    steps = _line(kernel if stride is None or stride == [] else stride, 1)
    return _avg_pool(_line(kernel, 1), steps, _line(padding, 0), ceil_mode, padded)


def _adaptive(size: Any) -> Layer:
    a, b = (size, size) if size is None or isinstance(size, int) else size
    return AvgPool(None, (1, 1), (0, 0), (a, b))


def _log_softmax(dim: Any) -> Layer:
    if dim != 1:
        raise Unstackable("a softmax over another axis than the first")
    return pointwise.LogSoftmax()


def _flatten(start: int = 0, end: int = -1) -> Layer:
    """torch's function and method begin with the rows, unlike nn.Flatten."""
    if start < 1 or end != -1:
        raise Unstackable("a flattening of other axes than all features")
    return layers.Reshape(None, start - 1)


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
        renamed = {RENAMED.get(key, key): value for key, value in options.items()}
        return (x,), build(*args, **renamed)

    return call


def _named(name: str, *options: str) -> Callable[[nn.Module], Layer]:
    return lambda module: ACTIVATIONS[name](**{key: getattr(module, key) for key in options})


RENAMED = {"kernel_size": "kernel", "return_indices": "indices", "count_include_pad": "padded", "output_size": "size"}
RENAMED |= {"divisor_override": "divisor", "start_dim": "start", "end_dim": "end"}

ACTIVATION_MODULES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.ReLU: ("relu",),
    nn.Tanh: ("tanh",),
    nn.Sigmoid: ("sigmoid",),
    nn.SiLU: ("silu",),
    nn.GELU: ("gelu", "approximate"),
    nn.ELU: ("elu", "alpha"),
    nn.LeakyReLU: ("leaky_relu", "negative_slope"),
    nn.Softplus: ("softplus", "beta", "threshold"),
}

MODULES: dict[type[nn.Module], Callable[[Any], Layer | None]] = {
    nn.Linear: lambda m: layers.Linear(m.in_features, m.out_features),
    nn.Conv2d: _of_module(_conv2d),
    nn.MaxPool2d: lambda m: _max_pool(m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices),
    nn.AvgPool2d: lambda m: _avg_pool(
        m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override
    ),
    nn.Conv1d: _of_module(_conv1d),
    nn.MaxPool1d: lambda m: _max_pool1d(m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices),
    nn.AvgPool1d: lambda m: _avg_pool1d(m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad),
    nn.AdaptiveAvgPool2d: lambda m: _adaptive(m.output_size),
    nn.Flatten: lambda m: _flatten(m.start_dim, m.end_dim),
    nn.Dropout: lambda m: _dropout(m.p, m.training),
    nn.LocalResponseNorm: lambda m: pointwise.LocalResponseNorm(m.size, m.alpha, m.beta, m.k),
    nn.LogSoftmax: lambda m: _log_softmax(m.dim),
    nn.Identity: lambda m: None,
} | {kind: _named(*named) for kind, named in ACTIVATION_MODULES.items()}


FUNCTIONS: dict[Callable[..., Any], Callable[..., Read]] = {
    F.avg_pool1d: _one(_avg_pool1d),
    F.avg_pool2d: _one(_avg_pool),
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
FUNCTIONS |= dict.fromkeys((F.max_pool2d, torch.max_pool2d), _one(_max_pool))
FUNCTIONS |= dict.fromkeys((F.log_softmax, torch.log_softmax), _one(_log_softmax))
FUNCTIONS |= dict.fromkeys((F.relu, torch.relu, torch.relu_), _one(ACTIVATIONS["relu"]))
FUNCTIONS |= dict.fromkeys((torch.tanh, torch.tanh_), _one(ACTIVATIONS["tanh"]))
FUNCTIONS |= dict.fromkeys((torch.sigmoid, torch.sigmoid_), _one(ACTIVATIONS["sigmoid"]))
FUNCTIONS |= dict.fromkeys((F.elu, F.elu_), _one(ACTIVATIONS["elu"]))
FUNCTIONS |= dict.fromkeys((F.leaky_relu, F.leaky_relu_), _one(ACTIVATIONS["leaky_relu"]))

WEIGHTED: dict[Callable[..., Any], Callable[..., Layer]] = {
    F.linear: lambda weight: layers.Linear(weight[1], weight[0]),
    F.conv1d: _conv1d,
    F.conv2d: _conv2d,
}
"""Functions of a tensor, a weight and a bias: the layer, of the weight's shape and the options that follow."""
OPTIONS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
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


OVER_ONE_AXIS: frozenset[Any] = frozenset({nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d})
OVER_ONE_AXIS |= {F.conv1d, F.max_pool1d, torch.max_pool1d, F.avg_pool1d}
"""Modules and functions over one axis: a height of one is added before them and removed after."""


def writes(target: Any, options: dict[str, Any]) -> bool:
    """Whether a call writes into its first argument."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return target is operator.iadd or name.endswith("_") or bool(options.get("inplace"))
