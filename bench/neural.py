"""`python -m bench.neural --device cpu|cuda`: one gradient of every user of a network, against plain PyTorch.

The loop is what one would write: functional_call and autograd, user by user. In full precision: TF32 is off.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from bench.timing import machine, take_turns
from resolvent.networks import Captured, ParameterLayout, choose_method
from resolvent.networks.models import cifar10_cnn, mnist_cnn

Gradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def mlp() -> nn.Module:
    """784-200-200-10."""
    layers = [nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)]
    return nn.Sequential(*layers)


def lenet() -> nn.Module:
    """LeNet-5 for (3, 32, 32), with ReLU and maxima."""
    first = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    last = [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*first, *last)


def small() -> nn.Module:
    """3 x 3 kernels with a margin, for (1, 28, 28)."""
    first = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*first, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 10))


def sensors() -> nn.Module:
    """Over time: nine sensors, 128 readings."""
    first = [nn.Conv1d(9, 16, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 16, 5), nn.ReLU(), nn.MaxPool1d(2)]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(464, 10))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, dict[str, tuple[int, ...]]]] = {
    "mnist": (mnist_cnn, (1, 28, 28), 20, {"cpu": (240, 20), "cuda": (2400, 240, 20)}),
    "mlp": (mlp, (1, 28, 28), 20, {"cpu": (240, 20), "cuda": (2400, 240, 20)}),
    "lenet": (lenet, (3, 32, 32), 20, {"cpu": (100, 20), "cuda": (2400, 100)}),
    "small": (small, (1, 28, 28), 20, {"cpu": (240, 20), "cuda": (2400, 240)}),
    "sensors": (sensors, (9, 128), 20, {"cpu": (240, 20), "cuda": (2400, 240)}),
    "cifar": (cifar10_cnn, (3, 32, 32), 10, {"cpu": (20,), "cuda": (800, 20)}),
}


def loop(model: nn.Module, layout: ParameterLayout) -> Gradient:
    """One user after the other."""

    def gradient(W: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses, grads = [], []
        parts = layout.split(W)
        for i in range(len(x)):
            leaves = {name: part[i].detach().requires_grad_() for name, part in parts.items()}
            loss = F.cross_entropy(functional_call(model, leaves, (x[i],)), y[i])
            slopes = torch.autograd.grad(loss, list(leaves.values()))
            losses.append(loss.detach())
            grads.append(torch.cat([s.reshape(-1) for s in slopes]))
        return torch.stack(losses), torch.stack(grads)

    return gradient


def vectorised(model: nn.Module, layout: ParameterLayout) -> Gradient:
    """torch.func.vmap over users."""

    def value(leaves: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, leaves, (x,)), y)

    def gradient(W: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        slopes, loss = vmap(grad_and_value(value))(layout.split(W), x, y)
        return loss, torch.cat([slopes[name].flatten(1) for name in layout.names], 1)

    return gradient


def captured(gradient: Gradient, W: Tensor, x: Tensor, y: Tensor) -> Gradient:
    """The gradient as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradient(W, x, y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = gradient(W, x, y)

    def replay(W: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        graph.replay()
        return result

    return replay


def compare(name: str, n: int, device: str, dtype: torch.dtype, turns: int) -> None:
    """Times and ratios of one net, and how far two users' gradients are from double precision."""
    make, shape, users, _ = NETS[name]
    torch.manual_seed(0)
    model = make().to(device, dtype)
    layout = ParameterLayout.of(model)
    W = layout.flatten(model) + 0.03 * torch.randn(users, layout.dim, device=device, dtype=dtype)
    x = torch.randn(users, n, *shape, device=device, dtype=dtype)
    y = torch.randint(0, 10, (users, n), device=device)
    gradients = choose_method(model, W, x, y, None, F.cross_entropy, device, dtype)

    def ours(W: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return gradients.value_and_grad(W, x, y)[:2]

    sides: dict[str, Gradient] = {"loop": loop(model, layout), "vmap": vectorised(model, layout), "ours": ours}
    few = slice(0, 2)
    exact = deepcopy(model).double()
    truth = loop(exact, layout)(W[few].double(), x[few].double(), y[few])[1]
    errors = {}
    for who in ("loop", "ours"):
        gradient = sides[who](W[few].contiguous(), x[few], y[few])[1]
        off = float(((gradient - truth).norm(dim=1) / truth.norm(dim=1)).max())
        errors[who] = f"{off:.1e}"
    repeats = 5 if device == "cuda" else 1
    if device == "cuda":
        sides["graph of the loop"] = captured(sides["loop"], W, x, y)

    def side(gradient: Gradient) -> Callable[[], int]:

        def run() -> int:
            for _ in range(repeats):
                gradient(W, x, y)
            if device == "cuda":
                torch.cuda.synchronize()
            return repeats

        return run

    def steps(W: Tensor) -> Tensor:
        for _ in range(repeats):
            W = W - 0.01 * ours(W, x, y)[1]
        return W

    descent = Captured(steps)

    def in_one_graph() -> int:
        descent(W)
        torch.cuda.synchronize()
        return repeats

    timed = {who: side(gradient) for who, gradient in sides.items()}
    if device == "cuda":
        timed["ours, 5 steps in one graph"] = in_one_graph
    times = take_turns(timed, turns)
    cells = ", ".join(f"{who} {1e3 * t:.2f} ms ({times['loop'] / t:.2f}x)" for who, t in times.items())
    print(f"{name}, {users} users x {n}, {gradients.method}: {cells}; off by {errors}", flush=True)


def main() -> None:
    """Every net, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tf32", action="store_true", help="products and convolutions in TF32, on both sides")
    parser.add_argument("--double", action="store_true", help="float64 instead of float32")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: as torch has it")
    parser.add_argument("nets", nargs="*", default=list(NETS))
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.tf32
    print(f"Measured on {torch.cuda.get_device_name() if args.device == 'cuda' else machine()}.")
    for name in args.nets:
        for n in NETS[name][3][args.device]:
            compare(name, n, args.device, torch.float64 if args.double else torch.float32, args.turns)


if __name__ == "__main__":
    main()
