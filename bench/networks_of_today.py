"""`python -m bench.networks_of_today --out FILE.json`: networks of today, per gradient of all users, on a GPU.

Beside the package: torch.compile(vmap(grad)) as one would write it in ten lines, the same without compiling, and a
loop over users. Evaluation is taken out, and the difference of a long and a short run is shared among the gradients
that the long one has more. Each case has a limit of time, and one that fails does not stop others.

`--warm CASE` only compiles, so that several processes can do so at once before anything is measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import resolvent as rs
from resolvent.networks import ParameterLayout
from resolvent.networks.models import cifar10_cnn, mnist_cnn

LIMIT = 150
"""Seconds per case."""
STEPS = 5
RATE = 1e-3


class Encoder(nn.Module):
    """A transformer encoder over tokens, and ten classes from the mean of its outputs."""

    def __init__(self, d: int = 64, layers: int = 2, vocabulary: int = 256) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True)
        self.tokens, self.end = nn.Embedding(vocabulary, d), nn.Linear(d, 10)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.end(self.layers(self.tokens(x)).mean(1))
        return out


class LoRA(nn.Module):
    """A frozen linear layer, and a trained product of rank r beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self.base(x)
        return base + x @ self.a.T @ self.b.T


class Block(nn.Module):
    """Attention and two linear layers, each added to what comes in."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = (nn.LayerNorm(d).requires_grad_(False) for _ in range(2))
        self.qkv, self.out = LoRA(d, 3 * d), LoRA(d, d)
        self.wide, self.narrow = (nn.Linear(*sides).requires_grad_(False) for sides in ((d, 4 * d), (4 * d, d)))

    def forward(self, x: Tensor) -> Tensor:
        n, length, d = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, d))
        inner: Tensor = F.gelu(self.wide(self.between(x)), approximate="tanh")
        out: Tensor = x + self.narrow(inner)
        return out


class GPT(nn.Module):
    """GPT-2's architecture: all of it frozen but the adapters, and the head tied to the embedding."""

    def __init__(self, d: int, layers: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, d).requires_grad_(False)
        self.places = nn.Embedding(length, d).requires_grad_(False)
        self.blocks = nn.Sequential(*(Block(d, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(d).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return F.linear(self.last(self.blocks(h)), self.tokens.weight)


def next_tokens(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over all tokens."""
    return F.cross_entropy(outputs.flatten(0, 1), y.flatten())


class Residual(nn.Module):
    """Two convolutions with GroupNorm, added to what comes in."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, outputs) for _ in range(2))
        same = stride == 1 and inputs == outputs
        self.across = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(h)) + self.across(x))


def resnet(width: int = 16) -> nn.Module:
    """Three residual blocks with GroupNorm for images (3, 32, 32)."""
    blocks = [Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2)]
    first = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.GroupNorm(4, width), nn.ReLU()]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


class Recurrent(nn.Module):
    """An LSTM over numbers."""

    def __init__(self, inputs: int = 8, hidden: int = 32) -> None:
        super().__init__()
        self.cells, self.end = nn.LSTM(inputs, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.end(self.cells(x)[0][:, -1])
        return out


class Case(NamedTuple):
    """A network, its users, the shape of a row, and whether rows are tokens (how many there are)."""

    make: Callable[[], nn.Module]
    users: int
    rows: int
    shape: tuple[int, ...]
    tokens: int | None = None
    language: bool = False
    precision: str = "float32"
    repeats: int = 20
    plain_compiled: bool = True


def gpt2() -> nn.Module:
    """GPT-2 small: 124 million frozen parameters."""
    return GPT(768, 12, 12, 50257, 128)


def gpt() -> nn.Module:
    """Four layers."""
    return GPT(128, 4, 4, 256, 64)


CASES: dict[str, Case] = {
    "encoder": Case(Encoder, 10, 128, (32,), 256),
    "gpt-lora": Case(gpt, 10, 128, (64,), 256, True),
    "gpt2-lora": Case(gpt2, 10, 8, (128,), 50257, True, repeats=5, plain_compiled=False),
    "gpt2-lora-tf32": Case(gpt2, 10, 8, (128,), 50257, True, "tf32", 5, plain_compiled=False),
    "resnet": Case(resnet, 10, 128, (3, 32, 32)),
    "cifar": Case(cifar10_cnn, 10, 800, (3, 32, 32), repeats=10, plain_compiled=False),
    "cifar-tf32": Case(cifar10_cnn, 10, 800, (3, 32, 32), precision="tf32", repeats=10, plain_compiled=False),
    "gpt-lora-bfloat16": Case(gpt, 10, 128, (64,), 256, True, "bfloat16", plain_compiled=False),
    "gpt2-lora-100-users": Case(gpt2, 100, 8, (128,), 50257, True, "tf32", 2, plain_compiled=False),
    "lstm": Case(Recurrent, 10, 64, (16, 8)),
}
TINY: dict[str, Case] = {
    "encoder": Case(lambda: Encoder(8, 1, 16), 3, 4, (5,), 16, repeats=2),
    "gpt-lora": Case(lambda: GPT(8, 1, 2, 16, 6), 3, 4, (6,), 16, True, repeats=2),
    "gpt2-lora": Case(lambda: GPT(8, 1, 2, 16, 6), 3, 2, (6,), 16, True, "bfloat16", 2, plain_compiled=False),
    "resnet": Case(lambda: resnet(4), 2, 3, (3, 8, 8), repeats=2),
}

SMALL: dict[str, Case] = {
    "encoder, d = 16": Case(lambda: Encoder(16, 2, 64), 10, 8, (16,), 64),
    "encoder, d = 64": Case(lambda: Encoder(64, 2, 64), 10, 8, (16,), 64),
    "gpt-lora, d = 16": Case(lambda: GPT(16, 2, 2, 64, 16), 10, 8, (16,), 64, True),
    "resnet, width 8": Case(lambda: resnet(8), 10, 8, (3, 16, 16)),
    "resnet, width 16": Case(lambda: resnet(16), 10, 8, (3, 16, 16)),
}
"""On a CPU alone."""


def users_of(case: Case) -> list[tuple[Tensor, Tensor]]:
    """Random rows."""
    rows = []
    for _ in range(case.users):
        size = (case.rows, *case.shape)
        x = torch.randn(size) if case.tokens is None else torch.randint(0, case.tokens, size)
        y = torch.randint(0, case.tokens or 10, size) if case.language else torch.randint(0, 10, (case.rows,))
        rows.append((x, y))
    return rows


# --- measuring -------------------------------------------------------------------------------------------------------


def wait(device: str) -> None:
    """Until the GPU is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(run: Callable[[], Any], device: str, repeats: int) -> float:
    """Per call, the best of three turns, warmed up."""
    run()
    wait(device)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(repeats):
            run()
        wait(device)
        best = min(best, (time.perf_counter() - began) / repeats)
    return 1e3 * best


class Unevaluated(rs.Neural):
    """Without evaluation: what a run does besides it."""

    def value(self, W: Tensor) -> Tensor:
        return W.new_zeros(self.users)


def per_step(problem: Any, scheme: Any, steps: int, device: str, rounds: int) -> float:
    """Milliseconds per local step of a run, from the difference of a long and a short one."""

    def seconds(rounds: int) -> float:
        began = time.perf_counter()
        rs.solve(problem, scheme, rounds=rounds, every=rounds, progress=False)
        wait(device)
        return time.perf_counter() - began

    seconds(2)
    long, short = (min(seconds(k) for _ in range(3)) for k in (1 + rounds, 1))
    return 1e3 * (long - short) / (rounds * steps)


@contextmanager
def peak(device: str) -> Iterator[dict[str, float]]:
    """The most memory that was allocated and reserved meanwhile, in GiB."""
    result: dict[str, float] = {}
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    yield result
    if device == "cuda":
        torch.cuda.synchronize()
        result["allocated"] = torch.cuda.max_memory_allocated() / 2**30
        result["reserved"] = torch.cuda.max_memory_reserved() / 2**30


def by_hand(model: nn.Module, loss: Any, tf32: bool, bfloat16: bool) -> Callable[..., Tensor]:
    """What a user could write: all users' gradients (users, d)."""
    names = [name for name, p in model.named_parameters() if p.requires_grad]

    def value(leaves: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = loss(functional_call(model, leaves, (x,)), y)
        return result

    def gradient(leaves: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        cast = torch.autocast(x.device.type, torch.bfloat16, enabled=bfloat16)
        with cast, sdpa_kernel(SDPBackend.MATH):
            grads, _ = vmap(grad_and_value(value))(leaves, x, y)
        return torch.cat([grads[name].flatten(1) for name in names], 1)

    return gradient


@contextmanager
def tf32_is(on: bool) -> Iterator[None]:
    """torch's flags for what is written by hand."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def by_loop(model: nn.Module, loss: Any, W: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """One user after the other."""
    layout, grads = ParameterLayout.of(model), []
    parts = layout.split(W)
    for i in range(len(x)):
        leaves = {name: part[i].detach().requires_grad_() for name, part in parts.items()}
        value = loss(functional_call(model, leaves, (x[i],)), y[i])
        slopes = torch.autograd.grad(value, list(leaves.values()))
        grads.append(torch.cat([s.reshape(-1) for s in slopes]))
    return torch.stack(grads)


def relative(a: Tensor, b: Tensor) -> float:
    """The largest over users."""
    return float(((a - b).double().norm(dim=1) / b.double().norm(dim=1)).max())


def measure(name: str, case: Case, device: str, warm: bool, full: bool, ours_only: bool) -> dict[str, Any]:
    """All sides of one case."""
    torch.manual_seed(0)
    model, users = case.make(), users_of(case)
    loss = next_tokens if case.language else F.cross_entropy
    result: dict[str, Any] = {"case": name, "precision": case.precision}
    began = time.perf_counter()
    with peak(device) as memory:
        method = None if device == "cuda" else "compiled" if case.plain_compiled else "vmap"
        problem = Unevaluated(model, users, loss, device=device, precision=case.precision, method=method)  # type: ignore[arg-type]
        noise = 0.02 * torch.randn(case.users, problem.dim)
        W = problem.start + noise.to(problem.start)
        ours = problem.grad(W)
        wait(device)
        result["building and first gradient, s"] = time.perf_counter() - began
        result["method"] = problem.method
        result["compiling, s"] = getattr(problem.gradients.by, "seconds", 0.0)
        if warm:
            return result
        result["gradient"] = milliseconds(lambda: problem.grad(W), device, case.repeats)
    result["peak"] = memory
    scheme = rs.fedpi(eta=1.0, local=rs.GradientProx(steps=STEPS, lr=RATE))
    result["per step of FedPi"] = per_step(problem, scheme, STEPS, device, max(2, case.repeats // 2))
    show(result)
    if ours_only:
        return result
    model = model.to(device)
    x, y = (torch.stack(each).to(device) for each in zip(*users, strict=True))
    exact, few = case.make(), slice(0, 2)
    exact.load_state_dict(model.state_dict())
    exact = exact.to(device).double()
    truth = by_loop(exact, loss, W[few].double(), x[few] if case.tokens else x[few].double(), y[few])
    del exact
    result["error"] = relative(ours[few], truth)
    tf32, bfloat16 = case.precision == "tf32", case.precision == "bfloat16"
    gradient = by_hand(model, loss, tf32, bfloat16)
    leaves = ParameterLayout.of(model).split(W)
    with tf32_is(tf32):
        result["error of the loop"] = relative(by_loop(model, loss, W[few], x[few], y[few]), truth)
        if case.users <= 10:
            del problem
            with peak(device) as memory:
                result["vmap"] = milliseconds(lambda: gradient(leaves, x, y), device, max(2, case.repeats // 4))
            result["peak of vmap"] = memory
            result["error of vmap"] = relative(gradient(leaves, x, y)[few], truth)
            result["loop"] = milliseconds(lambda: by_loop(model, loss, W, x, y), device, max(1, case.repeats // 5))
        show(result)
        if case.plain_compiled or full:
            began = time.perf_counter()
            compiled = torch.compile(gradient)
            with peak(device) as memory:
                compiled(leaves, x, y)
                wait(device)
                result["compiling by hand, s"] = time.perf_counter() - began
                result["compiled by hand"] = milliseconds(lambda: compiled(leaves, x, y), device, case.repeats)
            result["peak of compiled by hand"] = memory
    return result


def methods(name: str, case: Case, rows: int) -> dict[str, Any]:
    """The package's own methods on a CPU, in milliseconds of processor time and of the clock per gradient of all users.
    They take turns, and the least of each counts, so that other programs disturb little."""
    torch.manual_seed(0)
    case = case._replace(rows=rows)
    model, users = case.make(), users_of(case)
    result: dict[str, Any] = {"case": name, "rows": rows, "threads": torch.get_num_threads()}
    problems, turns = dict[str, Any](), dict[str, list[tuple[float, float]]]()
    for method in ("loop", "stacked", "vmap", "compiled"):
        began = time.process_time()
        try:
            problem = rs.Neural(model, users, next_tokens if case.language else F.cross_entropy, method=method)
        except rs.InputError as error:
            result[f"{method}, why not"] = str(error)
            continue
        problems[method], turns[method] = problem, []
        result[f"{method}, building in s"] = time.process_time() - began
    W = next(iter(problems.values())).start.expand(case.users, -1).clone()
    for turn in range(1 + case.repeats):
        for method, problem in problems.items():
            began, processor = time.perf_counter(), time.process_time()
            problem.grad(W)
            if turn:
                turns[method].append((time.process_time() - processor, time.perf_counter() - began))
    for method, taken in turns.items():
        result[method], result[f"{method}, clock"] = (1e3 * min(column) for column in zip(*taken, strict=True))
    return result


def siblings(device: str, tiny: bool) -> dict[str, Any]:
    """SCAFFOLD beside FedAvg, per local step on the MNIST network: minibatches of 64 rows, and 64 rows in all."""
    result: dict[str, Any] = {"case": "scaffold"}
    batch, rounds = (4, 2) if tiny else (64, 20)
    for title, rows, given in (("minibatches", 10 * batch, batch), ("full", batch, None)):
        torch.manual_seed(0)
        users = [(torch.randn(rows, 1, 28, 28), torch.randint(0, 10, (rows,))) for _ in range(10)]
        problem = Unevaluated(mnist_cnn(), users, device=device)
        passes, steps = (1, 10) if given else (10, 10)
        schemes = {
            "FedAvg": rs.fedavg(RATE * steps, local=rs.GradientSteps(passes, batch=given)),
            "SCAFFOLD": rs.scaffold(RATE, steps=passes, batch=given),
        }
        if given:
            schemes["FedAvg"] = rs.fedavg(RATE, local=rs.GradientSteps(passes, batch=given))
        for name, scheme in schemes.items():
            result[f"{name}, {title}"] = per_step(problem, scheme, steps, device, rounds)
    return result


# --- the run ---------------------------------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> None:
    """One line of JSON."""
    print(json.dumps(result), flush=True)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after that long, as soon as Python is asked."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"{seconds} s are over")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def table(results: list[dict[str, Any]]) -> None:
    """A short table last."""
    columns = ["gradient", "per step of FedPi", "vmap", "compiled by hand", "loop", "error", "error of the loop"]
    print("| case | " + " | ".join(columns) + " | peak, GiB (vmap's) | method |")
    for result in results:
        cells = [f"{result[c]:.3g}" if c in result else "" for c in columns]
        peaks = [f"{result.get(c, {}).get('allocated', float('nan')):.2f}" for c in ("peak", "peak of vmap")]
        print(f"| {result['case']} | {' | '.join(cells)} | {peaks[0]} ({peaks[1]}) | {result.get('method', '')[:70]} |")
    for result in results:
        if result["case"] == "scaffold":
            print({key: round(value, 4) for key, value in result.items() if isinstance(value, float)})


def main() -> None:
    """Every case, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--warm", nargs="*", help="compile these only")
    parser.add_argument("--tiny", action="store_true", help="tiny networks, on a CPU")
    parser.add_argument("--full", action="store_true", help="compiled by hand for all cases")
    parser.add_argument("--ours", action="store_true", help="nothing beside the package")
    parser.add_argument("--methods", type=int, metavar="ROWS", help="each method on a CPU, rows per user")
    parser.add_argument("--device", default=None)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore", rs.ResolventWarning)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = args.device or ("cpu" if args.tiny or args.methods else "cuda")
    cases, results = TINY if args.tiny else CASES | SMALL if args.methods else CASES, list[dict[str, Any]]()
    chosen = args.warm if args.warm is not None else args.only
    for name in chosen or [*cases, "scaffold"]:
        began = time.perf_counter()
        try:
            with limited(LIMIT if device == "cuda" else 3600):
                if args.methods:
                    result = methods(name, cases[name], args.methods)
                elif name == "scaffold":
                    result = siblings(device, args.tiny)
                else:
                    result = measure(name, cases[name], device, args.warm is not None, args.full, args.ours)
        except BaseException as error:  # whatever it is, the other cases go on
            traceback.print_exc()
            result = {"case": name, "failed": f"{type(error).__name__}: {error}"[:300]}
            if isinstance(error, KeyboardInterrupt):
                raise
        result["case took, s"] = time.perf_counter() - began
        results.append(result)
        show(result)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1))
        if device == "cuda":
            torch.cuda.empty_cache()
    if not args.methods:
        table(results)


if __name__ == "__main__":
    main()
