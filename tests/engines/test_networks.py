"""Networks behind every engine: batch norm's buffers, integers among them, go into rounds and come out again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import resolvent as rs
from engines.contract import ENGINES
from resolvent.iteration import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::resolvent.errors.ResolventWarning")


def network(norm: bool) -> rs.Neural:
    rng = np.random.default_rng(0)
    users = [
        (
            torch.from_numpy(rng.standard_normal((n, 1, 6, 6)).astype("float32")),
            torch.from_numpy(rng.integers(0, 3, n)),
        )
        for n in (7, 12, 5)
    ]
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)]
    if norm:
        layers.insert(1, nn.BatchNorm2d(2))
    return rs.Neural(nn.Sequential(*layers), users, nn.CrossEntropyLoss(), weights=[1, 2, 1])


SCHEMES = {
    "fedavg": rs.fedavg(0.1, steps=2),
    "fedpi": rs.fedpi(0.1, local=rs.GradientProx(2, lr=0.05)),
    "batches": rs.fedrp(0.1, local=rs.GradientProx(1, lr=0.05, batch=4, momentum=0.5)),
}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch_norm"])
@pytest.mark.parametrize("who", [None, rs.FixedSize(2), rs.FixedSize(2, absent="paper")], ids=str)
def test_networks_take_the_same_way(name: str, scheme: str, norm: bool, who: Any) -> None:
    expected = rs.solve(network(norm), SCHEMES[scheme], rounds=4, participation=who, seed=2)
    found = rs.solve(network(norm), SCHEMES[scheme], rounds=4, participation=who, seed=2, engine=name)
    torch.testing.assert_close(found.state.u, expected.state.u, rtol=1e-4, atol=1e-5)
    assert found.state.memory.keys() == expected.state.memory.keys()
    assert any(t.dtype == torch.int64 for t in found.state.memory.values()) == norm
    for key, tensor in expected.state.memory.items():
        torch.testing.assert_close(found.state.memory[key], tensor, rtol=1e-4, atol=1e-5, msg=key)
    np.testing.assert_allclose(found.history.value, expected.history.value, rtol=1e-4)


@pytest.mark.parametrize("name", ENGINES)
def test_a_network_goes_on_from_a_stored_state(name: str) -> None:
    more: dict[str, Any] = {"engine": name, "participation": rs.FixedSize(2), "seed": 2}
    whole = rs.solve(network(True), SCHEMES["fedpi"], rounds=5, **more)
    half = rs.solve(network(True), SCHEMES["fedpi"], rounds=2, **more)
    state = checkpoint.unpack(*checkpoint.pack(half.state))
    rest = rs.solve(network(True), SCHEMES["fedpi"], rounds=3, start=state, **more)
    assert torch.equal(whole.state.u, rest.state.u)
    assert all(torch.equal(rest.state.memory[key], tensor) for key, tensor in whole.state.memory.items())
