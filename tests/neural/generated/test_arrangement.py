"""Which layers go by generated kernels, and what is said of those that do not: by rule, so known without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from resolvent.networks.models import cifar10_cnn, mnist_cnn
from resolvent.networks.stacked.cuda.compiler import obstacle_for
from resolvent.networks.stacked.fused import FusedConv, arrange
from resolvent.networks.stacked.head import NOT_LAST, linear_choices
from resolvent.networks.stacked.trace import trace


def fused(model: nn.Module, shape: tuple[int, ...]) -> list[str]:
    """The layers of the arranged net in words."""
    net = arrange(trace(model), shape, "").net
    net.shapes(shape)
    return [str(s.layer.geometry) if isinstance(s.layer, FusedConv) else type(s.layer).__name__ for s in net.stages]


def test_the_mnist_cnn_is_two_kernels_and_its_linear_layers() -> None:
    arranged = arrange(trace(mnist_cnn()), (1, 28, 28), "")
    assert fused(mnist_cnn(), (1, 28, 28)) == [
        "1 to 10 channels, 5 x 5, bias, max 2 x 2, ReLU",
        "10 to 20 channels, 5 x 5, bias, max 2 x 2, ReLU",
        *["Reshape", "Linear", "Bias", "ReLU", "Linear", "Bias"],
    ]
    first, second = arranged.net.stages[:2]
    assert (first.parameter, first.bias, second.inputs) == ("0.weight", "0.bias", (1,))
    assert arranged.choices[0] == "0.weight: a CUDA kernel (1 to 10 channels, 5 x 5, bias, max 2 x 2, ReLU)"


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(2)], ["2 to 4 channels, 3 x 3, bias, ReLU, mean 2 x 2"]),
        ([nn.Conv2d(2, 4, 3), nn.AvgPool2d(2), nn.ReLU()], ["2 to 4 channels, 3 x 3, bias, mean 2 x 2, ReLU"]),
        ([nn.Conv2d(2, 4, 3, bias=False), nn.MaxPool2d(2)], ["2 to 4 channels, 3 x 3, max 2 x 2"]),
        ([nn.Conv2d(2, 4, 3), nn.GELU(), nn.MaxPool2d(2)], ["2 to 4 channels, 3 x 3, bias", "Pointwise", "MaxPool"]),
        ([nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, 2)], ["2 to 4 channels, 3 x 3", "MaxPool", "Bias"]),
        ([nn.Conv2d(2, 4, 3), nn.MaxPool2d(2, padding=1)], ["2 to 4 channels, 3 x 3", "MaxPool", "Bias"]),
        ([nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AvgPool2d(3)], ["2 to 4 channels, 3 x 3, bias, ReLU", "AvgPool"]),
        (
            [nn.Conv2d(2, 4, 3), nn.AvgPool2d(2), nn.MaxPool2d(2)],
            ["2 to 4 channels, 3 x 3, bias, mean 2 x 2", "MaxPool"],
        ),
        ([nn.Conv2d(2, 4, 3, stride=2), nn.ReLU()], ["Conv", "Bias", "ReLU"]),
    ],
)
def test_runs_of_layers(layers: list[nn.Module], words: list[str]) -> None:
    assert fused(nn.Sequential(*layers), (2, 14, 14)) == words


def test_over_one_axis_a_height_of_one_is_put_in() -> None:
    net = nn.Sequential(nn.Conv1d(9, 16, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 16, 5), nn.ReLU())
    first, second = "9 to 16 channels, 1 x 5, bias, max 1 x 2, ReLU", "16 to 16 channels, 1 x 5, bias"
    assert fused(net, (9, 128)) == ["Lift", first, second, "Lift", "ReLU"]


def test_a_value_that_two_layers_read_ends_the_run() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv(x)
            return torch.relu(x) + x

    assert fused(Two(), (1, 8, 8)) == ["1 to 4 channels, 3 x 3, bias", "ReLU", "Add"]


@pytest.mark.parametrize(
    ("conv", "reason"),
    [
        (nn.Conv2d(2, 4, 3, stride=2), "its stride is 2 x 2"),
        (nn.Conv2d(2, 4, 3, dilation=2), "it is dilated"),
        (nn.Conv2d(2, 4, 9), "its kernel is larger than 7 x 7"),
        (nn.Conv2d(2, 33, 3), "it has more than 32 channels"),
    ],
)
def test_what_does_not_fit_says_why(conv: nn.Module, reason: str) -> None:
    arranged = arrange(trace(nn.Sequential(conv, nn.ReLU())), (2, 20, 20), "")
    assert arranged.choices == (f"0.weight: matrix products, since {reason}",)
    assert not any(isinstance(stage.layer, FusedConv) for stage in arranged.net.stages)


def test_wide_convolutions_keep_todays_way_layer_by_layer() -> None:
    choices = arrange(trace(cifar10_cnn()), (3, 32, 32), "").choices
    assert [choice.split(":")[1] for choice in choices] == [" matrix products, since it has more than 32 channels"] * 2


def test_an_obstacle_keeps_all_of_them() -> None:
    net = trace(mnist_cnn())
    arranged = arrange(net, (1, 28, 28), "the kernels are for float32")
    assert arranged.net.stages == net.stages
    assert arranged.choices[1] == "3.weight: matrix products, since the kernels are for float32"


def test_obstacles_of_device_and_numbers() -> None:
    cuda, f32 = torch.device("cuda"), torch.float32
    assert obstacle_for(torch.device("cpu"), f32) == "it is not on a CUDA device"
    assert obstacle_for(cuda, torch.float64) == "the kernels are for float32"
    assert obstacle_for(cuda, f32, "bfloat16") == "products are in bfloat16"


def said(model: nn.Module, shape: tuple[int, ...], obstacle: str = "") -> list[str]:
    """What is said of linear layers."""
    return list(linear_choices(arrange(trace(model), shape, obstacle).net, obstacle))


IN, BY, WHY = "in the kernel that ends with the loss", "matrix products, since", NOT_LAST


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 9)], [f"2.weight: {IN}"]),
        (
            [nn.ReLU(), nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.Linear(9, 3)],
            [f"2.weight: {IN}", f"4.weight: {IN}"],
        ),
        (
            [nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.Linear(9, 3)],
            [f"1.weight: {BY} {WHY}", f"3.weight: {IN}"],
        ),
        (
            [nn.Flatten(), nn.Linear(36, 3)],
            [f"1.weight: {BY} it reads the data, which do not lie as the kernel needs them"],
        ),
        ([nn.ReLU(), nn.Flatten(), nn.Linear(36, 33)], [f"2.weight: {BY} it has more than 32 outputs"]),
        ([nn.ReLU(), nn.Flatten(), nn.Linear(36, 9), nn.ReLU()], [f"2.weight: {BY} other layers follow"]),
        (
            [nn.ReLU(), nn.Flatten(), nn.Linear(36, 900), nn.ReLU(), nn.Linear(900, 32)],
            [f"2.weight: {BY} {WHY}", f"4.weight: {BY} its weights do not fit into 48 KiB of shared memory"],
        ),
    ],
)
def test_linear_layers(layers: list[nn.Module], words: list[str]) -> None:
    assert said(nn.Sequential(*layers), (1, 6, 6)) == words


def test_what_stands_in_the_way_of_every_kernel_is_said_of_linear_layers_too() -> None:
    why = "the loss is not cross entropy"
    assert said(mnist_cnn(), (1, 28, 28), why) == [f"{name}.weight: {BY} {why}" for name in ("7", "9")]


def test_shared_parameters_keep_their_layers_apart() -> None:
    first = nn.Linear(6, 6)
    (_, last) = said(nn.Sequential(nn.ReLU(), first, nn.ReLU(), first), (6,))
    assert last.endswith("other layers share its parameters")
