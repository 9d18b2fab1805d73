"""Settings to begin with, by problem and name: some minutes on two cores, or the paper's size."""

from __future__ import annotations

from typing import Any

Preset = dict[str, dict[str, Any]]
MNIST: dict[str, Preset] = {
    "quick": {
        "problem": {"users": 20, "partition": "shards:6", "images": 3000},
        "local": {"steps": 20, "lr": 0.05},
        "run": {"rounds": 20},
    },
    "paper": {
        "problem": {"users": 20, "partition": "shards:6"},
        "local": {"steps": 100, "lr": 0.01},
        "run": {"rounds": 200},
    },
}
CIFAR10: dict[str, Preset] = {
    "quick": {
        "problem": {"users": 10, "partition": "sorted:10", "images": 1000},
        "local": {"steps": 1, "batch": 20, "lr": 0.1},
        "run": {"rounds": 10},
    },
    "paper": {
        "problem": {"users": 10, "partition": "sorted:10", "images": 10000},
        "local": {"steps": 5, "batch": 20, "lr": 0.1},
        "run": {"rounds": 200},
    },
}
PRESETS: dict[str, dict[str, Preset]] = {
    "mnist": MNIST,
    "fashion-mnist": MNIST,
    "cifar10": CIFAR10,
}
