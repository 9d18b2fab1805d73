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
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError
from resolvent.installed import install
from resolvent.solving.description import Description

OPSET = 19
OUTPUTS = ("prediction", "decision", "probabilities")


def linear(told: Description, model: Tensor) -> bytes:
    """The graph of a linear model."""
    _needed()
    if told.predictor is None:
        kind = told.kind or "model"
        raise InputError(f"a {kind} predicts nothing, so there is no graph to write; export its vector as npz")
    return bytes(_Linear(told, model.detach().cpu().double().numpy()).built().SerializeToString())


def network(told: Description, module: torch.nn.Module) -> bytes:
    """The graph of a network: any number of rows go in as `X`, and its outputs come out."""
    _needed()
    assert told.network is not None
    row, first = told.network["input"], next(module.parameters())
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


class _Linear:
    """Builds the graph of a linear model, node by node."""

    def __init__(self, told: Description, model: Any) -> None:
        assert told.predictor is not None
        self.told, self.p, self.prepared, self.model = told, told.predictor, told.preparation, model
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[tuple[str, Any, list[Any]]] = []
        self.outputs: list[tuple[str, Any, list[Any]]] = []
        names = [] if told.preparation is None else [column.name for column in told.preparation.columns]
        if taken := [name for name in names if name in OUTPUTS]:
            raise InputError(f"column {taken[0]!r} has the name of an output of the graph; rename it before training")
        self.prefix = "_" * (1 + max((len(name) - len(name.lstrip("_")) for name in names), default=0))

    def built(self) -> Any:
        import onnx
        from onnx import helper

        x = self._features()
        p, many = self.p, self.p.scores * self.p.features
        weights = self.model[:many].reshape(p.scores, p.features).T
        t = self._node("MatMul", x, self._constant(np.ascontiguousarray(weights)))
        if p.intercept:
            t = self._node("Add", t, self._constant(self.model[many:]))
        self._predicts(t)
        graph = helper.make_graph(
            self.nodes, "resolvent", [helper.make_tensor_value_info(*i) for i in self.inputs],
            [helper.make_tensor_value_info(*o) for o in self.outputs], self.constants,
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="resolvent")
        made.ir_version = 9
        onnx.checker.check_model(made)
        return made

    def _features(self) -> str:
        """The features (rows, d), from raw columns where the model knows how these are prepared."""
        from onnx import TensorProto

        if self.prepared is None:
            self.inputs.append(("X", TensorProto.DOUBLE, ["rows", self.p.features]))
            return "X"
        columns = self.prepared.columns
        if all(column.levels is None for column in columns):
            self.inputs.append(("X", TensorProto.DOUBLE, ["rows", len(columns)]))
            x = "X"
            if any(column.fill is not None for column in columns):
                fills = np.array([math.nan if c.fill is None else float(c.fill) for c in columns])
                x = self._node("Where", self._node("IsNaN", x), self._constant(fills), x)
        else:
            parts = [self._column(column) for column in columns]
            x = self._node("Concat", *(part for part, feature in parts if feature), axis=1)
            for guard in (part for part, feature in parts if not feature):
                x = self._node("Add", x, guard)
        if self.prepared.scaling is None:
            return x
        mean, scale = (np.array(part, np.float64) for part in (self.prepared.scaling.mean, self.prepared.scaling.scale))
        return self._node("Div", self._node("Sub", x, self._constant(mean)), self._constant(scale))

    def _column(self, column: Any) -> tuple[str, bool]:
        """A column of numbers, or one column per level of its categories but the first; and whether it is a feature.

        A column of a single level is none: it is 0, or NaN for another level.
        """
        from onnx import TensorProto

        if column.levels is None:
            self.inputs.append((column.name, TensorProto.DOUBLE, ["rows", 1]))
            if column.fill is None:
                return str(column.name), True
            fill = self._constant(np.array([float(column.fill)]))
            return self._node("Where", self._node("IsNaN", column.name), fill, column.name), True
        self.inputs.append((column.name, TensorProto.STRING, ["rows", 1]))
        are = [self._node("Equal", column.name, self._text([level])) for level in column.levels]
        if column.fill is not None and "" not in column.levels:  # text has no NaN: an empty one is missing
            filled = column.levels.index(column.fill)
            are[filled] = self._node("Or", are[filled], self._node("Equal", column.name, self._text([""])))
        known = are[0]
        for one in are[1:]:
            known = self._node("Or", known, one)
        nothing = self._constant(np.array([math.nan]))
        if len(are) == 1:
            return self._node("Where", known, self._constant(np.array([0.0])), nothing), False
        numbers = [self._node("Cast", one, to=TensorProto.DOUBLE) for one in are[1:]]
        together = self._node("Concat", *numbers, axis=1)
        return self._node("Where", known, together, nothing), True

    def _predicts(self, t: str) -> None:
        from onnx import TensorProto

        p = self.p
        if p.classes is None:
            found = self._node("Exp", t) if p.loss == "poisson" else t
            self._output("prediction", self._node("Reshape", found, self._constant(np.array([-1]))), TensorProto.DOUBLE)
            return
        labels = self.told.labels or list(p.classes)
        if p.loss == "softmax":
            best, shares = self._node("ArgMax", t, axis=1, keepdims=0), self._node("Softmax", t, axis=1)
            flat = self._node("Gather", t, self._constant(np.array(0)), axis=1)
            self._output("probabilities", shares, TensorProto.DOUBLE, len(p.classes))
        else:
            flat = self._node("Reshape", t, self._constant(np.array([-1])))
            positive = self._node("Greater", flat, self._constant(np.array(0.0)))
            best = self._node("Cast", positive, to=TensorProto.INT64)
            self._output("decision", flat, TensorProto.DOUBLE)
            if p.loss == "logistic":
                zero = self._node("Sub", t, t)
                both = self._node("Concat", zero, t, axis=1)
                self._output("probabilities", self._node("Softmax", both, axis=1), TensorProto.DOUBLE, 2)
        best = self._node("Where", self._node("IsNaN", flat), self._constant(np.array(len(labels))), best)
        words = any(
            isinstance(label, str) or float(label) != label for label in labels
        )  # the graph's numbers are floats
        numbers = [] if words else [*map(float, labels), math.nan]
        table = self._text([*map(str, labels), ""]) if words else self._constant(np.array(numbers))
        kind = TensorProto.STRING if words else TensorProto.DOUBLE
        self._output("prediction", self._node("Gather", table, best, axis=0), kind)

    def _output(self, name: str, value: str, kind: Any, columns: int | None = None) -> None:
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append((name, kind, ["rows"] if columns is None else ["rows", columns]))

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"{self.prefix}n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def _constant(self, values: Any) -> str:
        from onnx import numpy_helper

        name = f"{self.prefix}c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def _text(self, words: list[str]) -> str:
        from onnx import TensorProto, helper

        name = f"{self.prefix}c{len(self.constants)}"
        content: Any = [word.encode() for word in words]
        self.constants.append(helper.make_tensor(name, TensorProto.STRING, [len(words)], content))
        return name
