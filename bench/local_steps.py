"""`python -m bench.local_steps --device cpu|cuda`: a local step of all users, with pull and momentum as one pass.

Beside it the same gradients, followed by torch's operations one after the other, to the same bits; and what one would
write by hand, torch.func.vmap and the same operations.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import resolvent as rs
from bench.neural import NETS, vectorised
from bench.timing import machine, take_turns
from resolvent.iteration.engine import Ask
from resolvent.local.descent import Descent, Pull, descend, gradients
from resolvent.networks import ParameterLayout

STEPS, RATE, ETA = 10, 0.01, 100.0
CASES = {"FedAvg": (0.0, False), "a prox": (0.0, True), "a prox, momentum": (0.9, True)}


class ByOperations(rs.Neural):
    """The same network without the faster descent."""

    def descent(self, x: Tensor, lr: Any, momentum: float, pull: Any) -> Any:
        return Descent(x, lr, momentum, pull)


def compare(name: str, n: int, device: str, turns: int) -> None:
    """Milliseconds per step of one net."""
    make, shape, users, _ = NETS[name]
    torch.manual_seed(0)
    model, rows = make(), [(torch.randn(n, *shape), torch.randint(0, 10, (n,))) for _ in range(users)]
    problems = {kind: kind(model, rows, device=device) for kind in (ByOperations, rs.Neural)}
    for title, (momentum, pulled) in CASES.items():
        sides = {kind.__name__: side(problem, momentum, pulled) for kind, problem in problems.items()}
        ends = [answer() for answer, _ in sides.values()]
        assert torch.equal(*ends), "both sides compute the same bits"
        timed = {kind: run for kind, (_, run) in sides.items()} | {
            "vmap": by_hand(model, rows, device, momentum, pulled)
        }
        before, after, hand = take_turns(timed, turns).values()
        text = f"{1e3 * after:.2f} ms in one pass, {1e3 * before:.2f} by operations ({before / after:.2f}x)"
        text += f", {1e3 * hand:.2f} with vmap ({hand / after:.2f}x)"
        print(f"{name}, {users} users x {n}, {title}: {text}", flush=True)


def by_hand(
    model: nn.Module, rows: list[tuple[Tensor, Tensor]], device: str, momentum: float, pulled: bool
) -> Callable[[], int]:
    """The same steps as plain torch, all of its threads working on each operation."""
    layout = ParameterLayout.of(model)
    gradient = vectorised(model.to(device), layout)
    x, y = (torch.stack(each).to(device) for each in zip(*rows, strict=True))
    u = layout.flatten(model).to(device).expand(len(x), -1)

    def run() -> int:
        W, v = u, torch.zeros_like(u)
        for _ in range(STEPS):
            g = gradient(W, x, y)[1]
            if pulled:
                g = g + (W - u) / ETA
            v = torch.add(g, v, alpha=momentum) if momentum else g
            W = W - RATE * v
        if W.is_cuda:
            torch.cuda.synchronize()
        return STEPS

    return run


def side(problem: rs.Neural, momentum: float, pulled: bool) -> tuple[Callable[[], Tensor], Callable[[], int]]:
    """Some steps: what they end at, and the same as a side of a comparison."""
    u = problem.start.unsqueeze(0).expand(problem.users, -1)

    def steps(u: Tensor) -> Tensor:
        pull = Pull(u, ETA) if pulled else None
        return descend(problem, u, RATE, momentum, gradients(problem, Ask(0, ETA), STEPS), pull)

    answer = problem.captured(steps)

    def run() -> int:
        with problem.working():
            answer(u)
        if u.is_cuda:
            torch.cuda.synchronize()
        return STEPS

    return lambda: answer(u).clone(), run


def main() -> None:
    """Every net, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("nets", nargs="*", default=["mnist", "mlp"])
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    print(f"Measured on {torch.cuda.get_device_name() if args.device == 'cuda' else machine()}.")
    for name in args.nets:
        for n in NETS[name][3][args.device]:
            compare(name, n, args.device, args.turns)


if __name__ == "__main__":
    main()
