"""From a module to stacked layers: torch.fx records what the module does, and each call is looked up in a table.

What is not understood exactly has no stacked form: a value that is overwritten while another name refers to it, hooks,
gradients switched off inside forward. `verify.py` compares the result with plain autograd all the same.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules import module as modules

from resolvent.networks.calling import DOOR, packing_of
from resolvent.networks.layout import copied, let_go
from resolvent.networks.plain import preserve_rng
from resolvent.networks.stacked import layers
from resolvent.networks.stacked.forms import FUNCTIONS, METHODS, MODULES, OPTIONS, OVER_ONE_AXIS, WEIGHTED, writes
from resolvent.networks.stacked.layers import Layer, Unstackable
from resolvent.networks.stacked.net import Net, Stage, improved

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def trace(model: nn.Module, join: bool = True) -> Net:
    """The module as stacked layers, or Unstackable with the reason; `join` is for `improved`."""
    if packing_of(model) is not None:
        raise Unstackable("its rows are several tensors")
    if reason := hidden_behaviour(model):
        raise Unstackable(reason)
    root = copied(model)
    try:
        with preserve_rng(torch.device("cpu")), torch.enable_grad():
            graph = _Tracer().trace(root)
        stages = _Reader(graph, root).read()
    except Exception as error:  # whatever a module's own code raises when it is traced
        let_go(error)
        if isinstance(error, Unstackable):
            raise
        raise Unstackable(f"torch.fx cannot trace it ({type(error).__name__})") from error
    return improved(stages, join)


def hidden_behaviour(model: nn.Module) -> str:
    """Where calling a module does more than its class defines; empty if nowhere."""
    if any(getattr(modules, f"_global{hooks}", None) for hooks in HOOKS):
        return "all modules have hooks"
    for name, module in model.named_modules():
        if any(not isinstance(hook, DOOR) for hooks in HOOKS for hook in getattr(module, hooks).values()):
            return f"{name or 'it'} has hooks"
        if "forward" in vars(module):
            return f"{name or 'it'} has a forward of its own"
    return ""


class _Proxy(fx.Proxy):
    """Records in-place operators as such: torch.fx itself would read `h += g` as `h = h + g`."""

    def __iadd__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def _assigned(self, other: Any) -> Any:
        raise Unstackable("an assignment in place")

    __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = __imatmul__ = _assigned
    __iand__ = __ior__ = __ixor__ = _assigned


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__()
        self.autocast = torch.is_autocast_enabled()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Modules with a stacked form are read as the function that their forward calls."""
        return type(m) not in MODULES and super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **options: Any) -> fx.Node:
        """torch.fx records operations, but not the settings under which they run."""
        if not torch.is_grad_enabled():
            raise Unstackable("it switches gradients off inside forward, or has an autograd.Function")
        if torch.is_autocast_enabled() != self.autocast:
            raise Unstackable("it sets autocast inside forward")
        return super().create_node(*args, **options)


class _Reader:
    """Reads a graph node by node.

    `parameters` names the nodes that are parameters. `values` numbers the nodes that are tensors; `lengths` are nodes
    that are the number of images. `memory` says which nodes share memory: views, and results of in-place operations.
    `stale` are nodes whose memory was overwritten.
    """

    def __init__(self, graph: fx.Graph, root: nn.Module) -> None:
        self.graph = graph
        self.modules = dict(root.named_modules(remove_duplicate=False))
        first_names = {id(p): name for name, p in root.named_parameters()}
        self.names = {name: first_names[id(p)] for name, p in root.named_parameters(remove_duplicate=False)}
        self.shapes = {name: tuple(p.shape) for name, p in root.named_parameters()}
        self.parameters: dict[Any, str] = {}
        self.values: dict[fx.Node, int] = {}
        self.memory: dict[fx.Node, fx.Node] = {}
        self.stale: set[fx.Node] = set()
        self.sizes: set[fx.Node] = set()
        self.lengths: set[fx.Node] = set()
        self.stages: list[Stage] = []

    def read(self) -> list[Stage]:
        for node in self.graph.nodes:
            if node.op == "placeholder":
                if self.values:
                    raise Unstackable("it takes more than one argument")
                self.values[node], self.memory[node] = 0, node
            elif node.op == "output":
                if self._value(node.args[0], "the result") != len(self.stages):
                    raise Unstackable("it returns something else than its last layer's result")
            elif node.op == "call_module":
                raise Unstackable(f"{type(self.modules[str(node.target)]).__name__} has no stacked form")
            elif node.op in ("call_function", "call_method"):
                self._call(node)
            elif node.op == "get_attr" and node.target in self.names:
                self.parameters[node] = self.names[str(node.target)]
            else:
                raise Unstackable(f"it uses {node.target} directly")
        if not self.stages:
            raise Unstackable("it does nothing")
        return self.stages

    def _value(self, node: Any, name: Any) -> int:
        """The number of a node's value, refused if it was overwritten."""
        if not isinstance(node, fx.Node) or node not in self.values:
            raise Unstackable(f"{name} of something else than a layer's result")
        if node in self.stale:
            raise Unstackable(f"{name} of what was overwritten in place by another name")
        return self.values[node]

    def _add(self, node: fx.Node, layer: Layer, inputs: tuple[int, ...], parameter: str | None = None) -> None:
        self.stages.append(Stage(layer, inputs, parameter))
        self.values[node] = len(self.stages)

    def _share(self, node: fx.Node, first: fx.Node, layer: Layer | None, written: bool) -> None:
        """Note which node owns the memory of this node's value."""
        if layer is not None and written:
            self.stale |= {other for other, owner in self.memory.items() if owner is self.memory[first]}
        view = layer is None or isinstance(layer, layers.Reshape)
        self.memory[node] = self.memory[first] if view or written else node

    @contextmanager
    def _lifted(self, node: fx.Node, line: bool) -> Iterator[None]:
        """Around layers over one axis: a height of one is added to the node's value, and removed from the result."""
        if line:
            self._add(node, layers.Lift(put=True), (self.values[node],))
        yield
        if line:
            self._add(node, layers.Lift(put=False), (self.values[node],))

    def _call(self, node: fx.Node) -> None:
        if self._about_sizes(node):
            return
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        if node.target in WEIGHTED:
            self._weighted(node, name)
            return
        build = METHODS.get(node.target) if isinstance(node.target, str) else FUNCTIONS.get(node.target)
        if build is None:
            raise Unstackable(f"{name} has no stacked form")
        args, options = fx.node.map_arg((node.args, node.kwargs), lambda a: "n" if a in self.lengths else a)
        try:
            taken, layer = build(*args, **options)
        except TypeError:
            raise Unstackable(f"{name} with such options has no stacked form") from None
        inputs = tuple(self._value(i, name) for i in taken)
        self._share(node, taken[0], layer, writes(node.target, dict(node.kwargs)))
        self.values[node] = inputs[0]
        if layer is None:
            return
        line = node.target in OVER_ONE_AXIS
        with self._lifted(node, line):
            self._add(node, layer, (self.values[node],) if line else inputs)

    def _weighted(self, node: fx.Node, name: str) -> None:
        """A product, a convolution or a normalisation as a function of the module's own parameters."""
        options = dict(zip(OPTIONS[node.target], node.args, strict=False)) | node.kwargs  # type: ignore[index]
        first, weight, bias = (options.pop(key, None) for key in ("input", "weight", "bias"))
        if any(p is not None and p not in self.parameters for p in (weight, bias)):
            raise Unstackable(f"{name} with weights that are not parameters")
        named = self.parameters.get(weight)
        layer = WEIGHTED[node.target](None if named is None else self.shapes[named], **options)  # type: ignore[index]
        self.values[node] = self._value(first, name)
        assert isinstance(first, fx.Node)
        self._share(node, first, layer, written=False)
        with self._lifted(node, node.target in OVER_ONE_AXIS):
            self._add(node, layer, (self.values[node],), named)
            if bias is not None:
                self._add(node, layers.Bias(), (self.values[node],), self.parameters[bias])

    def _about_sizes(self, node: fx.Node) -> bool:
        """x.size(0), x.size()[0] and x.shape[0]: the number of images."""
        first, *rest = node.args
        if node.target in ("size", getattr) and isinstance(first, fx.Node) and first in self.values:
            if rest == [0] or (not rest and node.kwargs == {"dim": 0}):
                self.lengths.add(node)
            elif rest in ([], ["shape"]) and not node.kwargs:
                self.sizes.add(node)
            else:
                raise Unstackable("it looks at a size")
            return True
        if node.target is operator.getitem and isinstance(first, fx.Node) and first in self.sizes and rest == [0]:
            self.lengths.add(node)
            return True
        return False
