"""The networks of the paper's experiments, layer by layer as its tables give them, and those of niid_bench.

The latter is Flower's version of a benchmark by Li, Diao, Chen and He (2022). The softmax is in the loss.
"""

from __future__ import annotations

from torch import nn


def mnist_cnn() -> nn.Sequential:
    """The paper's table "MNIST model": (1, 28, 28) to 10 classes, 11,910 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(320, 20),
        nn.ReLU(),
        nn.Linear(20, 10),
    )


def cifar10_cnn() -> nn.Sequential:
    """The paper's table "CIFAR-10 model": (3, 32, 32) to 10 classes, 797,962 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.LocalResponseNorm(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.LocalResponseNorm(2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )


def niid_bench_mnist() -> nn.Sequential:
    """niid_bench's network for (1, 28, 28): 6 and 16 channels, 44,426 parameters."""
    return _niid_bench(1, 16 * 4 * 4)


def niid_bench_cifar10() -> nn.Sequential:
    """niid_bench's network for (3, 32, 32): 6 and 16 channels, 62,006 parameters."""
    return _niid_bench(3, 16 * 5 * 5)


def _niid_bench(channels: int, features: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
