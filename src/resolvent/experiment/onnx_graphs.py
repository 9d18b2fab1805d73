"""A model as an ONNX graph: a network as torch exports it, a linear model with all that happens to a raw row before it.

A linear model of a table whose columns are numbers has one input, `X` (rows, columns). With categories every column is
an input of its own, (rows, 1), numbers in float64 and categories as text. Where the model refuses a row, for a missing
value or a category that nobody held, its prediction is NaN, or an empty label. Outputs: `prediction`, and `decision` or
`probabilities` of classifiers.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from functools import reduce
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.data.preparation import Preparation
from resolvent.errors import InputError, refuse
from resolvent.installed import install
from resolvent.problems.linear.predictor import Predictor
from resolvent.solving.description import Description

OPSET, IR_VERSION = 19, 9
OUTPUTS = ("prediction", "decision", "probabilities")


def linear(description: Description, model: Tensor) -> bytes:
    """The graph of a linear model."""
    _needed()
    if description.predictor is None:
        kind = description.kind or "model"
        raise InputError(f"a {kind} predicts nothing, so there is no graph to write; export its vector as npz")
    names = [] if description.preparation is None else [column.name for column in description.preparation.columns]
    if taken := [name for name in names if name in OUTPUTS]:
        raise InputError(f"column {taken[0]!r} has the name of an output of the graph; rename it before training")
    graph, p = _Graph(names), description.predictor
    x = _features(graph, p.features, description.preparation)
    many, numbers = p.scores * p.features, model.detach().cpu().double().numpy()
    weights = np.ascontiguousarray(numbers[:many].reshape(p.scores, p.features).T)
    t = graph.node("MatMul", x, graph.constant(weights))
    if p.intercept:
        t = graph.node("Add", t, graph.constant(numbers[many:]))
    if p.classes is None:
        value = graph.node("Exp", t) if p.loss == "poisson" else t
        graph.output("prediction", graph.flat(value), graph.number)
    else:
        _classify(graph, p, description.labels or list(p.classes), t)
    return graph.serialized()


def network(description: Description, module: torch.nn.Module) -> bytes:
    """The graph of a network: any number of rows go in as `X`, and its outputs come out."""
    _needed()
    assert description.network is not None
    row, first = description.network["input"], next(module.parameters())
    if "inputs" in row:
        refuse(
            "file", "an .onnx", f"only networks of one input become one, and this one has {', '.join(row['inputs'])}"
        )
    x = torch.zeros((2, *row["shape"]), dtype=getattr(torch, row["dtype"]), device=first.device)
    names: Any = {"input_names": ["X"], "output_names": ["output"], "verbose": False}
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:  # by tracing: seconds, where the newer way takes half a minute
            rows = {"X": {0: "rows"}, "output": {0: "rows"}}
            torch.onnx.export(module.eval(), (x,), file, dynamic_axes=rows, dynamo=False, **names)
            return bytes(file.getvalue())
        except Exception:  # layers that it does not know
            many = ({0: torch.export.Dim("rows")},)
            made: Any = torch.onnx.export(module.eval(), (x,), dynamic_shapes=many, dynamo=True, **names)
            return bytes(made.model_proto.SerializeToString())


def _needed() -> None:
    for name in ("onnx", "onnxscript"):
        if find_spec(name) is None:
            raise InputError(f"{name}, which writes ONNX, is not installed; {install('onnx')}")


class _Graph:
    """An ONNX graph that grows node by node. Every method that adds something returns its name."""

    def __init__(self, taken: Sequence[str]) -> None:
        import onnx

        self.number, self.text, self.whole = onnx.TensorProto.DOUBLE, onnx.TensorProto.STRING, onnx.TensorProto.INT64
        self._onnx, self._nodes, self._constants = onnx, list[Any](), list[Any]()
        self._inputs, self._outputs = list[Any](), list[Any]()
        self._prefix = "_" * (1 + max((len(name) - len(name.lstrip("_")) for name in taken), default=0))

    def input(self, name: str, kind: Any, columns: int) -> str:
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, ["rows", columns]))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self._prefix}n{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, values: Any) -> str:
        """Numbers, or text in an array of objects."""
        name = f"{self._prefix}c{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def flat(self, value: str) -> str:
        return self.node("Reshape", value, self.constant([-1]))

    def where_missing(self, values: Any, x: str) -> str:
        """x, with these values in place of NaN."""
        return self.node("Where", self.node("IsNaN", x), self.constant(values), x)

    def output(self, name: str, value: str, kind: Any, *columns: int) -> None:
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._onnx.helper.make_tensor_value_info(name, kind, ["rows", *columns]))

    def serialized(self) -> bytes:
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "resolvent", self._inputs, self._outputs, self._constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="resolvent")
        made.ir_version = IR_VERSION
        self._onnx.checker.check_model(made)
        return bytes(made.SerializeToString())


def _features(graph: _Graph, features: int, preparation: Preparation | None) -> str:
    """The features (rows, d), from raw columns where the model knows how these are prepared."""
    if preparation is None:
        return graph.input("X", graph.number, features)
    columns = preparation.columns
    if all(column.levels is None for column in columns):
        x = graph.input("X", graph.number, len(columns))
        if any(column.fill is not None for column in columns):
            x = graph.where_missing([math.nan if c.fill is None else float(c.fill) for c in columns], x)
    else:
        parts = [_column(graph, column) for column in columns]
        x = graph.node("Concat", *(part for part, is_feature in parts if is_feature), axis=1)
        for guard in (part for part, is_feature in parts if not is_feature):
            x = graph.node("Add", x, guard)
    if preparation.scaling is None:
        return x
    mean, scale = (np.array(part, np.float64) for part in (preparation.scaling.mean, preparation.scaling.scale))
    return graph.node("Div", graph.node("Sub", x, graph.constant(mean)), graph.constant(scale))


def _column(graph: _Graph, column: Any) -> tuple[str, bool]:
    """A column of numbers, or one column per level of its categories but the first; and whether it is a feature.

    A column of a single level is none: it is 0, or NaN for another level.
    """
    if column.levels is None:
        x = graph.input(column.name, graph.number, 1)
        return x if column.fill is None else graph.where_missing([float(column.fill)], x), True
    x = graph.input(column.name, graph.text, 1)

    def equals(level: str) -> str:
        return graph.node("Equal", x, graph.constant(np.array([level], object)))

    matches = [equals(level) for level in column.levels]
    if column.fill is not None and "" not in column.levels:  # text has no NaN: an empty one is missing
        filled = column.levels.index(column.fill)
        matches[filled] = graph.node("Or", matches[filled], equals(""))
    has_level = reduce(lambda some, one: graph.node("Or", some, one), matches)
    unknown = graph.constant([math.nan])
    if len(matches) == 1:
        return graph.node("Where", has_level, graph.constant([0.0]), unknown), False
    numbers = [graph.node("Cast", one, to=graph.number) for one in matches[1:]]
    return graph.node("Where", has_level, graph.node("Concat", *numbers, axis=1), unknown), True


def _classify(graph: _Graph, p: Predictor, labels: Sequence[Any], t: str) -> None:
    """The outputs of a classifier whose scores are t."""
    if p.loss == "softmax":
        best, first = graph.node("ArgMax", t, axis=1, keepdims=0), graph.node("Gather", t, graph.constant(0), axis=1)
        graph.output("probabilities", graph.node("Softmax", t, axis=1), graph.number, p.scores)
    else:
        first = graph.flat(t)
        best = graph.node("Cast", graph.node("Greater", first, graph.constant(0.0)), to=graph.whole)
        graph.output("decision", first, graph.number)
        if p.loss == "logistic":
            both = graph.node("Concat", graph.node("Sub", t, t), t, axis=1)
            graph.output("probabilities", graph.node("Softmax", both, axis=1), graph.number, 2)
    best = graph.node("Where", graph.node("IsNaN", first), graph.constant(len(labels)), best)
    is_text = any(isinstance(label, str) or float(label) != label for label in labels)  # its numbers are floats
    table = np.array([*map(str, labels), ""], object) if is_text else [*map(float, labels), math.nan]
    kind = graph.text if is_text else graph.number
    graph.output("prediction", graph.node("Gather", graph.constant(table), best, axis=0), kind)
