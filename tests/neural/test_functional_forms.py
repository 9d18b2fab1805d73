"""Functions of torch.nn.functional are read as their modules, and what has no stacked form goes to the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neural_reference import chosen, federation, plain_loop
from resolvent.networks.stacked.trace import trace

pytestmark = pytest.mark.usefixtures("convolutions")
Function = Callable[[Tensor], Any]
FRONTS: dict[tuple[int, ...], Callable[[], nn.Module]] = {
    (6,): lambda: nn.Linear(6, 7),
    (2, 12): lambda: nn.Conv1d(2, 4, 3),
    (2, 8, 7): lambda: nn.Conv2d(2, 4, 3),
}
LINE, IMAGE = (2, 12), (2, 8, 7)


class Functional(nn.Module):
    """A layer, the function, and a linear layer."""

    def __init__(self, function: Function, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.function, self.front = function, FRONTS[shape]()
        self.end = nn.Linear(function(self.front(torch.zeros(1, *shape))).flatten(1).shape[1], 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.function(self.front(x)).flatten(1))


FORMS: dict[str, tuple[Function, nn.Module, tuple[int, ...]]] = {
    "max_pool1d": (lambda h: F.max_pool1d(h, 2), nn.MaxPool1d(2), LINE),
    "max_pool1d with options": (
        lambda h: F.max_pool1d(h, 3, stride=2, padding=1, dilation=1),
        nn.MaxPool1d(3, stride=2, padding=1),
        LINE,
    ),
    "max_pool1d dilated": (lambda h: F.max_pool1d(h, [2], 1, dilation=3), nn.MaxPool1d(2, 1, dilation=3), LINE),
    "torch.max_pool1d": (lambda h: torch.max_pool1d(h, 2, 1), nn.MaxPool1d(2, 1), LINE),
    "avg_pool1d": (lambda h: F.avg_pool1d(h, 2), nn.AvgPool1d(2), LINE),
    "avg_pool1d with options": (
        lambda h: F.avg_pool1d(h, kernel_size=3, stride=(2,), padding=1),
        nn.AvgPool1d(3, 2, 1),
        LINE,
    ),
    "max_pool2d": (lambda h: F.max_pool2d(h, (2, 1), 1, 0), nn.MaxPool2d((2, 1), 1), IMAGE),
    "torch.max_pool2d": (lambda h: torch.max_pool2d(h, 2), nn.MaxPool2d(2), IMAGE),
    "avg_pool2d": (lambda h: F.avg_pool2d(h, 3, padding=1), nn.AvgPool2d(3, padding=1), IMAGE),
    "adaptive_avg_pool2d": (lambda h: F.adaptive_avg_pool2d(h, (2, 1)), nn.AdaptiveAvgPool2d((2, 1)), IMAGE),
    "local_response_norm": (lambda h: F.local_response_norm(h, 2, 0.3), nn.LocalResponseNorm(2, 0.3), IMAGE),
    "group_norm": (lambda h: F.group_norm(h, 2, eps=1e-3), nn.GroupNorm(2, 4, eps=1e-3, affine=False), IMAGE),
    "flatten": (lambda h: torch.flatten(h, 1), nn.Flatten(), IMAGE),
    "relu": (lambda h: F.relu(h, True), nn.ReLU(), LINE),
    "relu_": (F.relu_, nn.ReLU(), LINE),
    "leaky_relu": (lambda h: F.leaky_relu(h, 0.2), nn.LeakyReLU(0.2), LINE),
    "elu": (lambda h: F.elu(h, 0.7), nn.ELU(0.7), LINE),
    "gelu": (lambda h: F.gelu(h, approximate="tanh"), nn.GELU("tanh"), LINE),
    "silu": (F.silu, nn.SiLU(), LINE),
    "softplus": (lambda h: F.softplus(h, 2), nn.Softplus(2), LINE),
    "tanh": (F.tanh, nn.Tanh(), LINE),
    "sigmoid": (F.sigmoid, nn.Sigmoid(), LINE),
    "log_softmax": (lambda h: F.log_softmax(h, 1), nn.LogSoftmax(1), (6,)),
    "dropout": (lambda h: F.dropout(h, 0.3), nn.Dropout(0.3), (6,)),
    "torch.dropout": (lambda h: torch.dropout(h, 0.3, True), nn.Dropout(0.3), (6,)),
    "dropout that is off": (lambda h: F.dropout(h, 0.3, training=False), nn.Identity(), (6,)),
}


def layers(model: nn.Module) -> list[tuple[str, tuple[int, ...], bool]]:
    """A net's stages, without the names of parameters."""
    stages = trace(model).stages
    return [
        (repr(stage.layer).split(" object at")[0].split("<")[0], stage.inputs, stage.owns_input) for stage in stages
    ]


@pytest.mark.filterwarnings("ignore:nn.functional")  # tanh and sigmoid are deprecated there
@pytest.mark.parametrize("name", FORMS)
def test_a_function_is_read_as_its_module(name: str) -> None:
    function, module, shape = FORMS[name]
    written = Functional(function, shape)
    assert layers(written) == layers(nn.Sequential(FRONTS[shape](), module, nn.Flatten(), written.end))


@pytest.mark.filterwarnings("ignore:nn.functional")
@pytest.mark.parametrize("name", [name for name in FORMS if "dropout" not in name])
def test_its_gradients_are_those_of_plain_autograd(name: str) -> None:
    function, _, shape = FORMS[name]
    fed = federation(Functional(function, shape), shape, users=3, n=5)
    gradients = chosen(fed)
    assert gradients.method == "stacked", gradients.reason
    got, (loss, grad) = gradients.value_and_grad(fed.W, fed.x, fed.y), plain_loop(fed)
    torch.testing.assert_close(got.loss, loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.grad, grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["dropout", "torch.dropout"])
def test_dropout_draws_what_its_module_draws_in_the_loop(name: str) -> None:
    function, module, shape = FORMS[name]
    written = Functional(function, shape)
    fed, seeds = federation(written, shape, users=3, n=5), torch.tensor([4, 5, 6])
    stacked = chosen(fed)
    assert stacked.method == "stacked"
    still, noisy = (stacked.value_and_grad(fed.W, fed.x, fed.y, seeds=drawn).grad for drawn in (None, seeds))
    by_module = federation(nn.Sequential(FRONTS[shape](), module, nn.Flatten(), written.end), shape, users=3, n=5)
    want = chosen(by_module, method="loop").value_and_grad(fed.W, fed.x, fed.y, seeds=seeds).grad
    torch.testing.assert_close(noisy, want, rtol=1e-10, atol=1e-12)
    assert float((noisy - still).norm()) > 1e-3


class Weighted(nn.Module):
    """Products and convolutions as functions of parameters: of its own, and of layers."""

    def __init__(self, call: str) -> None:
        super().__init__()
        line = "1d" in call
        self.call, self.kernel = call, nn.Parameter(torch.zeros(4, 2, 3) if line else torch.zeros(4, 2, 3, 2))
        self.shift, self.layer, self.end = nn.Parameter(torch.zeros(4)), nn.Linear(5, 5), nn.Linear(5, 3)
        self.wide = nn.Parameter(torch.zeros(5, 4 * (6 if line else 12)))

    def forward(self, x: Tensor) -> Tensor:
        if self.call == "conv1d":
            h = F.conv1d(x, self.kernel, self.shift, stride=2, padding=1)
        elif self.call == "conv2d":
            h = F.conv2d(x, self.kernel, bias=self.shift, stride=(3, 2), padding=(1, 1), dilation=1)
        elif self.call == "conv1d of a sum":
            h = F.conv1d(x, self.kernel + 1, None, 2, 1)
        else:
            h = F.conv2d(x, self.kernel, None, (3, 2), groups=1, padding=1)
        h = F.linear(torch.relu(h).flatten(1), self.wide)
        return self.end(self.layer(h) + F.linear(h, self.layer.weight, self.layer.bias))


@pytest.mark.parametrize(
    ("call", "shape", "reason"),
    [
        ("conv1d", LINE, "every layer has a stacked form"),
        ("conv2d", IMAGE, "every layer has a stacked form"),
        ("conv2d without bias", IMAGE, "every layer has a stacked form"),
        ("conv1d of a sum", LINE, "add of something else than a layer's result"),
    ],
)
def test_functions_of_parameters_are_layers(call: str, shape: tuple[int, ...], reason: str) -> None:
    fed = federation(Weighted(call), shape, users=3, n=5)
    gradients = chosen(fed)
    assert gradients.reason == reason
    got, want = gradients.value_and_grad(fed.W, fed.x, fed.y), chosen(fed, method="loop")
    torch.testing.assert_close(got.grad, want.value_and_grad(fed.W, fed.x, fed.y).grad, rtol=1e-10, atol=1e-12)
    moved = {name for name, part in gradients.layout.split(got.grad).items() if bool(part.any())}
    assert set(gradients.layout.names) - moved == ({"shift"} if " " in call else set())


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda h: F.max_pool1d(h, 3, ceil_mode=True), LINE),
        (lambda h: F.max_pool1d(h, 2, return_indices=True)[0], LINE),
        (lambda h: F.max_pool1d(h, 2), (6,)),  # over what would be one image's features, as torch does it
        (lambda h: F.avg_pool1d(h, 3, padding=1, count_include_pad=False), LINE),
        (lambda h: F.avg_pool2d(h, 2, divisor_override=3), IMAGE),
        (lambda h: F.log_softmax(h, 2), LINE),
    ],
)
def test_other_options_go_to_the_loop(function: Function, shape: tuple[int, ...]) -> None:
    fed = federation(Functional(function, shape), shape, users=2, n=5)
    gradients = chosen(fed)
    assert gradients.method == "loop"
    torch.testing.assert_close(gradients.value_and_grad(fed.W, fed.x, fed.y).grad, plain_loop(fed)[1])
