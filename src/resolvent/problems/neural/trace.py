"""From a module to stacked layers: torch.fx writes down what the module does, and each line is looked up in a table."""

from __future__ import annotations

import operator
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import fx, nn

from resolvent.problems.neural import layers, pointwise
from resolvent.problems.neural.convolution import Conv
from resolvent.problems.neural.layers import Layer, Unstackable
from resolvent.problems.neural.net import Net, Step, improved
from resolvent.problems.neural.pointwise import ACTIVATIONS
from resolvent.problems.neural.pools import AvgPool, MaxPool


def trace(model: nn.Module, join: bool = True) -> Net:
    """The module as stacked layers, or Unstackable with what stands in the way; `join` is for `improved`."""
    try:
        graph = fx.symbolic_trace(deepcopy(model))
    except Exception as error:  # whatever a module's own code raises when it is traced
        raise Unstackable(f"torch.fx cannot trace it ({type(error).__name__})") from error
    return improved(_Reader(graph).read(), join)


class _Reader:
    """Reads a graph node by node; `values` numbers the nodes that are tensors, `batch` those that are its length."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph
        self.modules = dict(graph.named_modules())
        first_names = {id(p): name for name, p in graph.named_parameters()}
        self.names = {name: first_names[id(p)] for name, p in graph.named_parameters(remove_duplicate=False)}
        self.values: dict[fx.Node, int] = {}
        self.sizes: set[fx.Node] = set()
        self.lengths: set[fx.Node] = set()
        self.steps: list[Step] = []

    def read(self) -> list[Step]:
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                if self.values:
                    raise Unstackable("it takes more than one argument")
                self.values[node] = 0
            elif node.op == "output":
                if not isinstance(node.args[0], fx.Node) or self.values.get(node.args[0]) != len(self.steps):
                    raise Unstackable("it returns something else than its last layer's result")
            elif node.op == "call_module":
                self._module(node)
            elif node.op in ("call_function", "call_method"):
                self._call(node)
            else:
                raise Unstackable(f"it uses {node.target} directly")
        if not self.steps:
            raise Unstackable("it does nothing")
        return self.steps

    def _add(self, node: fx.Node, layer: Layer, inputs: tuple[Any, ...], parameter: str | None = None) -> None:
        if not all(isinstance(i, fx.Node) and i in self.values for i in inputs):
            raise Unstackable(f"{node.target} of something else than a layer's result")
        self.steps.append(Step(layer, tuple(self.values[i] for i in inputs), parameter))
        self.values[node] = len(self.steps)

    def _module(self, node: fx.Node) -> None:
        name, module = str(node.target), self.modules[str(node.target)]
        build = MODULES.get(type(module))
        if build is None or len(node.args) != 1 or node.kwargs:
            raise Unstackable(f"{type(module).__name__} has no stacked form")
        layer, argument = build(module), node.args[0]
        if not isinstance(argument, fx.Node) or argument not in self.values:
            raise Unstackable(f"{name} of something else than a layer's result")
        self.values[node] = self.values[argument]
        if layer is None:  # it does nothing
            return
        line = isinstance(module, nn.Conv1d | nn.MaxPool1d | nn.AvgPool1d)
        if line:
            self._add(node, layers.Lift(put=True), (node,))
        self._add(node, layer, (node,), self.names.get(f"{name}.weight"))
        if f"{name}.bias" in self.names:
            self._add(node, layers.Bias(), (node,), self.names[f"{name}.bias"])
        if line:
            self._add(node, layers.Lift(put=False), (node,))

    def _call(self, node: fx.Node) -> None:
        if self._about_sizes(node):
            return
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        build = FUNCTIONS.get(name.rstrip("_"))
        if build is None:
            raise Unstackable(f"{name} has no stacked form")
        args = ["n" if isinstance(a, fx.Node) and a in self.lengths else a for a in node.args]
        taken, layer = build(*args, **node.kwargs)
        self._add(node, layer, taken)

    def _about_sizes(self, node: fx.Node) -> bool:
        """x.size(0), x.size()[0], x.shape[0] and len(x): the number of images."""
        first, *rest = node.args
        if node.target in ("size", "shape", getattr) and isinstance(first, fx.Node) and first in self.values:
            if rest == [0]:
                self.lengths.add(node)
            elif rest in ([], ["shape"]):
                self.sizes.add(node)
            else:
                raise Unstackable("it looks at a size")
            return True
        if node.target is operator.getitem and isinstance(first, fx.Node) and first in self.sizes and rest == [0]:
            self.lengths.add(node)
            return True
        return False


def _pair(value: Any) -> tuple[int, int]:
    a, b = (value, value) if isinstance(value, int) else value
    return int(a), int(b)


def _line(value: Any, rest: int) -> tuple[int, int]:
    """A setting of a layer over one axis, for its height of one and its width."""
    return rest, int(value if isinstance(value, int) else value[0])


def _conv1d(module: nn.Conv1d) -> Layer:
    if module.groups != 1 or module.padding_mode != "zeros" or isinstance(module.padding, str):
        raise Unstackable("a convolution in groups, or with padding by name or other than zeros")
    kernel, stride, dilation = (_line(v, 1) for v in (module.kernel_size, module.stride, module.dilation))
    return Conv(module.in_channels, module.out_channels, kernel, stride, _line(module.padding, 0), dilation)


def _conv(module: nn.Conv2d) -> Layer:
    if module.groups != 1 or module.padding_mode != "zeros":
        raise Unstackable("a convolution in groups, or with padding other than zeros")
    if isinstance(module.padding, str):
        odd = all(d * (k - 1) % 2 == 0 for d, k in zip(module.dilation, module.kernel_size, strict=True))
        if module.padding == "same" and not odd:
            raise Unstackable("padding='same' that is not even")
        same = tuple(d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True))
        padding = _pair(same) if module.padding == "same" else (0, 0)
    else:
        padding = _pair(module.padding)
    kernel, stride, dilation = _pair(module.kernel_size), _pair(module.stride), _pair(module.dilation)
    return Conv(module.in_channels, module.out_channels, kernel, stride, padding, dilation)


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


def _adaptive(size: Any) -> Layer:
    a, b = (size, size) if size is None or isinstance(size, int) else size
    return AvgPool(None, (1, 1), (0, 0), (a, b))


def _log_softmax(dim: Any) -> Layer:
    if dim != 1:
        raise Unstackable("a softmax over another axis than the first")
    return pointwise.LogSoftmax()


def _flatten(start: int = 1, end: int = -1) -> Layer:
    if start < 1 or end != -1:
        raise Unstackable("a flattening of other axes than all features")
    return layers.Reshape(None, start - 1)


def _reshape(x: fx.Node, *sizes: Any) -> tuple[tuple[fx.Node], Layer]:
    shape = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    whole = all(isinstance(s, int) for s in shape[1:])
    if len(shape) < 2 or not whole or (shape[0] == -1 and -1 in shape[1:]) or shape[0] not in (-1, "n"):
        raise Unstackable("a reshape that is not of each image")
    return (x,), layers.Reshape(tuple(shape[1:]))


def _sum(a: fx.Node, b: fx.Node) -> tuple[tuple[fx.Node, fx.Node], Layer]:
    return (a, b), layers.Add()


def _dropout(p: float, training: bool = True) -> Layer | None:
    return pointwise.Dropout(p) if training and p > 0 else None


def _one(build: Callable[..., Layer | None]) -> Callable[..., Any]:
    """A function of one tensor and options, from what builds its layer."""

    def call(x: fx.Node, *args: Any, inplace: bool = False, **options: Any) -> tuple[tuple[fx.Node], Layer]:
        options.pop("_stacklevel", None), options.pop("dtype", None)
        renamed = {RENAMED.get(key, key): value for key, value in options.items()}
        layer = build(*args, **renamed)
        return (x,), layers.Reshape(None, 0) if layer is None else layer

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
    nn.Conv2d: _conv,
    nn.MaxPool2d: lambda m: _max_pool(m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices),
    nn.AvgPool2d: lambda m: _avg_pool(
        m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override
    ),
    nn.Conv1d: _conv1d,
    nn.MaxPool1d: lambda m: _max_pool(
        _line(m.kernel_size, 1),
        _line(m.stride, 1),
        _line(m.padding, 0),
        _line(m.dilation, 1),
        m.ceil_mode,
        m.return_indices,
    ),
    nn.AvgPool1d: lambda m: _avg_pool(
        _line(m.kernel_size, 1), _line(m.stride, 1), _line(m.padding, 0), m.ceil_mode, m.count_include_pad
    ),
    nn.AdaptiveAvgPool2d: lambda m: _adaptive(m.output_size),
    nn.Flatten: lambda m: _flatten(m.start_dim, m.end_dim),
    nn.Dropout: lambda m: _dropout(m.p, m.training),
    nn.LocalResponseNorm: lambda m: pointwise.LocalResponseNorm(m.size, m.alpha, m.beta, m.k),
    nn.LogSoftmax: lambda m: _log_softmax(m.dim),
    nn.Identity: lambda m: None,
} | {kind: _named(*named) for kind, named in ACTIVATION_MODULES.items()}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max_pool2d": _one(_max_pool),
    "boolean_dispatch": _one(_max_pool),  # what torch.fx calls F.max_pool2d
    "avg_pool2d": _one(_avg_pool),
    "adaptive_avg_pool2d": _one(_adaptive),
    "flatten": _one(_flatten),
    "dropout": _one(lambda p=0.5, training=True: _dropout(p, training)),
    "local_response_norm": _one(
        lambda size, alpha=1e-4, beta=0.75, k=1.0: pointwise.LocalResponseNorm(size, alpha, beta, k)
    ),
    "log_softmax": _one(_log_softmax),
}
FUNCTIONS |= {"view": _reshape, "reshape": _reshape, "add": _sum, "iadd": _sum}
FUNCTIONS |= {name: _one(build) for name, build in ACTIVATIONS.items()}
