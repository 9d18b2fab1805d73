"""A run's model for other programs: tensors with names, and what turns raw rows into predictions.

Nothing here is pickled but by torch.save, and that file holds tensors, text and numbers alone, so that
`torch.load(weights_only=True)` reads it.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from resolvent.errors import InputError
from resolvent.experiment import onnx_graphs
from resolvent.networks import rebuilding
from resolvent.runs import durable
from resolvent.solving.description import Description

FORMS = ("safetensors", "pt", "onnx", "npz", "json")


def export(run: Any, path: Path, into: Any = None) -> Path:
    """Write a run's model into a file, whose suffix says how."""
    form, description = path.suffix.removeprefix("."), run.description
    if form == "onnx" and description.network is not None:
        content = onnx_graphs.network(description, run.module(into))
    else:
        content = encode(form, description, run.model, run.state.memory)
    with durable.storing(path, "name another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(path, content, durable.SHARED_FILE)
    return path


def encode(form: str, description: Description, model: Tensor, memory: dict[str, Tensor]) -> bytes:
    """The bytes of a file of this form."""
    if form == "onnx":
        if description.network is None:
            return onnx_graphs.linear(description, model)
        return onnx_graphs.network(description, rebuilding.loaded(description, model, memory))
    tensors, about = parts(description, model, memory)
    if form == "json":
        plain = {name: tensor.tolist() for name, tensor in tensors.items()}
        return (json.dumps(plain | about, indent=2) + "\n").encode()
    if form == "npz":
        return _npz(tensors, about)
    if form == "safetensors":
        from safetensors.torch import save

        own = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
        return save(own, metadata={"resolvent": json.dumps(about)} if about else None)
    if form == "pt":
        file = io.BytesIO()
        own = {name: tensor.clone() for name, tensor in tensors.items()}
        torch.save(own if description.network is not None else own | about, file)
        return file.getvalue()
    raise InputError(f"a model cannot be written as {form}; {', '.join(FORMS)} are the forms there are")


def parts(
    description: Description, model: Tensor, memory: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and plain values: a network's own parameters and buffers; a linear model's coefficients and
    intercepts, the names of its features, its classes and its scaling; else the vector alone."""
    if description.network is not None:
        shown = {key: description.network[key] for key in ("class", "loss", "input")}
        return rebuilding.tensors(description, model, memory), {"network": shown}
    model = model.detach().cpu()
    p, prepared = description.predictor, description.preparation
    if p is None:
        return {"model": model}, {}
    many = p.scores * p.features
    shape = (p.scores, p.features) if p.loss == "softmax" else (p.features,)
    tensors = {"model": model, "coefficients": model[:many].reshape(shape)}
    if p.intercept:
        tensors["intercept"] = model[many:]
    about: dict[str, Any] = {"predictor": p.as_dict(), "preparation": None, "classes": description.labels}
    if prepared is not None:
        about["preparation"] = prepared.as_dict()
        about["features"] = list(prepared.features)
        named = prepared.unscale(model.double().numpy())
        about["in_units_of_the_table"] = {str(name): value for name, value in named.items()}
        if prepared.scaling is not None:
            tensors["mean"] = torch.tensor(prepared.scaling.mean, dtype=torch.float64)
            tensors["scale"] = torch.tensor(prepared.scaling.scale, dtype=torch.float64)
    return tensors, about


def _npz(tensors: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    for name in ("features", "classes"):
        if about.get(name):
            arrays[name] = np.array(about[name])
    if about:
        arrays["about"] = np.array(json.dumps(about))
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
