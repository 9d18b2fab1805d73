"""Networks as people write them against plain autograd in double precision, user by user: equal, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import resolvent as rs
from hunt.family import Family
from resolvent.networks.stacked import workspace

Rng = np.random.Generator
Op = Callable[[Any, Tensor], Tensor]
DOUBLE = torch.float64
TOLERANCE = 1e-8


class Drawn(nn.Module):
    """A forward that is drawn step by step. `quiet` is for the reference: dropout that is a function is off."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: list[Op] = []
        self.quiet = False
        self.simple = False

    def add(self, layer: nn.Module) -> str:
        name = f"layer{len(list(self.children()))}"
        self.add_module(name, layer)
        return name

    def forward(self, x: Tensor) -> Tensor:
        for op in self.plan:
            x = op(self, x)
        return x


# --- steps: each takes the generator, the module and the shape of what comes, and gives None where it does not fit ----


def layer(m: Drawn, made: nn.Module) -> Op:
    name = m.add(made)
    return lambda m, h: getattr(m, name)(h)


def linear(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    """The last axis: stacked only where it is the only one."""
    if m.simple and len(shape) > 2:
        return reshaped(rng, m, shape)
    return layer(m, nn.Linear(shape[-1], int(rng.integers(2, 7)), bias=bool(rng.integers(2))))


def tied(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    """One layer twice, or two that share a weight."""
    if m.simple and len(shape) > 2:
        return None
    first, second = m.add(nn.Linear(shape[-1], shape[-1])), m.add(nn.Linear(shape[-1], shape[-1]))
    if rng.integers(2):
        getattr(m, second).weight = getattr(m, first).weight
        return lambda m, h: getattr(m, first)(torch.tanh(getattr(m, second)(h)))
    return lambda m, h: getattr(m, first)(torch.tanh(getattr(m, first)(h)))


def convolution(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    if len(shape) < 3 or min(shape[2:]) < 4:
        return None
    kind = nn.Conv1d if len(shape) == 3 else nn.Conv2d
    options: dict[str, Any] = {"padding": int(rng.integers(0, 3)), "stride": int(rng.integers(1, 3))}
    rare = rng.random()
    if rare < 0.2:
        options |= {"dilation": 2, "padding": 2}
    elif rare < 0.3:
        options = {"padding": "same"}
    elif rare < 0.35 and not m.simple:
        options["groups"] = shape[1]
    elif rare < 0.4 and not m.simple:
        options = {"padding": 1, "padding_mode": "circular"}
    out = shape[1] * int(rng.integers(1, 3)) if "groups" in options else int(rng.integers(2, 6))
    return layer(m, kind(shape[1], out, int(rng.integers(1, 4)), bias=bool(rng.integers(2)), **options))


def around_a_pool(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    """One convolution before and after a pool."""
    if len(shape) != 4 or min(shape[2:]) < 4:
        return None
    name = m.add(nn.Conv2d(shape[1], shape[1], 5, padding=2))
    return lambda m, h: getattr(m, name)(F.max_pool2d(getattr(m, name)(h), 2))


def pool(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    if len(shape) < 3 or min(shape[2:]) < 4:
        return None
    if len(shape) == 3:
        made = [
            nn.MaxPool1d(2),
            nn.AvgPool1d(3, 2, 1),
            nn.MaxPool1d(3, 2, 1),
            nn.AdaptiveAvgPool1d(2),
            nn.LPPool1d(2, 2),
            nn.AdaptiveMaxPool1d(2),
        ]
        if rng.integers(3) or m.simple:
            return layer(m, made[rng.integers(3 if m.simple else len(made))])
        return lambda m, h: F.max_pool1d(h, 2)
    layers = [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(2, 1, dilation=2),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d((1, None)),
        nn.AdaptiveAvgPool2d(2),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.MaxPool2d(3, ceil_mode=True),
        nn.AdaptiveMaxPool2d(2),
        nn.LPPool2d(2, 2),
    ]
    functions: list[Op] = [
        lambda m, h: F.max_pool2d(h, 2),
        lambda m, h: F.max_pool2d(h, kernel_size=(2, 1), stride=1),
        lambda m, h: F.avg_pool2d(h, 2),
        lambda m, h: F.adaptive_avg_pool2d(h, 1),
        lambda m, h: F.adaptive_max_pool2d(h, 2),
        lambda m, h: h.mean((2, 3), keepdim=True),
    ]
    if rng.integers(2):
        return layer(m, layers[rng.integers(6 if m.simple else len(layers))])
    return functions[rng.integers(4 if m.simple else len(functions))]


ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU,
    lambda: nn.ReLU(inplace=True),
    nn.Tanh,
    nn.Sigmoid,
    nn.SiLU,
    nn.GELU,
    lambda: nn.GELU("tanh"),
    lambda: nn.ELU(0.7),
    lambda: nn.ELU(inplace=True),
    lambda: nn.LeakyReLU(0.2),
    lambda: nn.LeakyReLU(0.2, inplace=True),
    nn.Softplus,  # so far those of simple networks
    nn.PReLU,
    nn.Hardtanh,
    nn.ReLU6,
    nn.Mish,
    nn.SELU,
]
FUNCTIONS: list[Op] = [
    lambda m, h: F.relu(h),
    lambda m, h: F.relu(h, inplace=True),
    lambda m, h: F.relu(h, True),
    lambda m, h: h.relu(),
    lambda m, h: torch.relu(h),
    lambda m, h: torch.relu_(h),
    lambda m, h: h.tanh(),
    lambda m, h: torch.tanh(h),
    lambda m, h: F.tanh(h),
    lambda m, h: h.sigmoid_(),
    lambda m, h: F.gelu(h, approximate="tanh"),
    lambda m, h: F.elu(h, 0.5),
    lambda m, h: F.leaky_relu(h, negative_slope=0.3),
    lambda m, h: F.leaky_relu_(h, 0.3),
    lambda m, h: F.softplus(h, 2.0, 5.0),
    lambda m, h: F.silu(h, inplace=True),
    lambda m, h: F.log_softmax(h, dim=1),  # so far those of simple networks
    lambda m, h: torch.nn.functional.hardswish(h),
    lambda m, h: torch.clamp(h, min=-0.5),
    lambda m, h: F.softmax(h, 1),
    lambda m, h: F.log_softmax(h, dim=-1),
    lambda m, h: h * torch.sigmoid(h),
]


def activation(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    if rng.integers(2):
        return layer(m, ACTIVATIONS[rng.integers(12 if m.simple else len(ACTIVATIONS))]())
    return FUNCTIONS[rng.integers(17 if m.simple else len(FUNCTIONS))]


def unassigned(m: Any, h: Tensor) -> Tensor:
    g = torch.add(h, h)
    g.relu_()
    return g


def used_again(m: Any, h: Tensor) -> Tensor:
    g = torch.add(h, h)
    return F.relu(g, inplace=True) + g


def other_name(m: Any, h: Tensor) -> Tensor:
    g = k = torch.add(h, h)
    g += torch.tanh(h)
    return g + k


def through_a_view(m: Any, h: Tensor) -> Tensor:
    g = torch.add(h, h)
    g.flatten(1).tanh_()
    return g + h


def slice_written(m: Any, h: Tensor) -> Tensor:
    g = h.clone()
    g[:, 0] = 0
    g[:, :1] += 1
    return g


def slice_by_method(m: Any, h: Tensor) -> Tensor:
    g = torch.add(h, h)
    g[:, 0].mul_(3)
    return g


def harmless(m: Any, h: Tensor) -> Tensor:
    g = torch.add(h, h)
    g += torch.tanh(h)
    return F.relu(g, inplace=True)


def scaled(m: Any, h: Tensor) -> Tensor:
    g = torch.add(h, h)
    g *= 0.5
    g -= 0.1
    return g


def some_without_gradient(m: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        g = torch.tanh(h)
    return h + g


def by_its_size(m: Any, h: Tensor) -> Tensor:
    return torch.tanh(h) if h.shape[1] > 4 else F.relu(h)


def by_its_type(m: Any, h: Tensor) -> Tensor:
    return torch.tanh(h) if isinstance(h, Tensor) else torch.sigmoid(h)


def by_its_mode(m: Any, h: Tensor) -> Tensor:
    return torch.tanh(h) if m.training else torch.sigmoid(h)


WAYS_TO_WRITE: list[Op] = [
    harmless,
    unassigned,
    used_again,
    other_name,
    through_a_view,
    slice_written,
    slice_by_method,
    scaled,
    some_without_gradient,
    by_its_size,
    by_its_type,
    by_its_mode,
    lambda m, h: h + torch.tanh(h),
    lambda m, h: torch.add(h, torch.tanh(h), alpha=2),
    lambda m, h: h.add(torch.relu(h)),
    lambda m, h: 2 * h - 0.1,
    lambda m, h: h / h.size(0),
    lambda m, h: h + h.detach(),
    lambda m, h: torch.cat([h, torch.relu(h)], 1),
    lambda m, h: sum(h.chunk(2, 1)[:1]),  # type: ignore[list-item, return-value]
    lambda m, h: h.split(1, 1)[0],
    lambda m, h: h[:, : max(1, h.shape[1] - 1)],
    lambda m, h: h.flip(1),
    lambda m, h: h - h.mean(0, keepdim=True),
    lambda m, h: h.reshape(h.shape),
    lambda m, h: h.view(h.size(0), -1, *h.shape[2:]),
    lambda m, h: h.contiguous(),
    lambda m, h: h.clone(),
    lambda m, h: h.unsqueeze(1).squeeze(1),
]


def written(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    return WAYS_TO_WRITE[rng.integers(len(WAYS_TO_WRITE))]


def reshaped(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    if m.simple and len(shape) > 2 and rng.integers(2):
        return layer(m, nn.Flatten())
    if len(shape) == 2:
        half = shape[1] // 2
        return None if shape[1] % 2 else lambda m, h: h.view(-1, 2, half)
    options: list[Op] = [
        lambda m, h: h.flatten(1),
        lambda m, h: torch.flatten(h, 1),
        lambda m, h: torch.flatten(h, start_dim=1),
        lambda m, h: h.view(h.size(0), -1),
        lambda m, h: h.view(h.shape[0], -1),
        lambda m, h: h.reshape(h.size()[0], -1),
        lambda m, h: torch.reshape(h, (h.shape[0], -1)),  # so far those of simple networks
        lambda m, h: h.reshape(-1, *shape[1:]),
        lambda m, h: h.transpose(1, -1),
        lambda m, h: h.permute(0, *range(len(shape) - 1, 0, -1)).contiguous(),
        lambda m, h: h.flatten(2),
        lambda m, h: h.flatten(-2),
    ]
    return options[rng.integers(7 if m.simple else len(options))]


def norm(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    kind = rng.integers(4)
    if kind == 0:
        return layer(m, {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](shape[1]))
    if kind == 1:
        return layer(m, nn.LayerNorm(shape[-1]))
    if kind == 2 and len(shape) > 2:
        return layer(m, nn.LocalResponseNorm(int(rng.integers(1, 5)), alpha=0.3))
    return layer(m, nn.GroupNorm((1, shape[1])[len(m.plan) % 2], shape[1]))


def dropout(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    """Which is off here: no seeds are given."""
    if rng.integers(2):
        return layer(m, nn.Dropout(0.3))
    if rng.integers(2):
        return lambda m, h: F.dropout(h, 0.3, m.training and not m.quiet)
    return lambda m, h: F.dropout(h, 0.3, training=False)


def direct(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> Op | None:
    """A parameter or a buffer that is no layer's."""
    name = f"own{len(m.plan)}"
    if rng.integers(2):
        m.register_buffer(name, torch.rand(shape[-1]))
    else:
        setattr(m, name, nn.Parameter(torch.rand(shape[-1])))
    return lambda m, h: h * getattr(m, name)


STEPS = [linear, linear, tied, convolution, convolution, pool, activation, activation, written, reshaped]
STEPS += [around_a_pool, norm, dropout, direct]
SIMPLE = [linear, tied, convolution, convolution, pool, activation, activation, around_a_pool, dropout, reshaped]
SHAPES = [(5,), (8,), (2, 9), (3, 4), (2, 8, 8), (1, 10, 7), (3, 6, 6)]


def body(rng: Rng) -> tuple[Drawn, tuple[int, ...]]:
    """A module up to its last layer, and the shape of its rows: all steps simple ones, all but one, or any."""
    m, shape = Drawn().to(DOUBLE), SHAPES[rng.integers(len(SHAPES))]
    kind, count = rng.integers(3), int(rng.integers(1, 8))
    odd = int(rng.integers(count)) if kind == 1 else -1
    for k in range(count):
        m.simple = bool(kind < 2 and k != odd)
        steps = SIMPLE if m.simple else STEPS
        extend(m, shape, lambda found, steps=steps: steps[rng.integers(len(steps))](rng, m, found))  # type: ignore[misc]
        if kind == 0 and k % 4 == 1:
            extend(m, shape, lambda found: layer(m, nn.GroupNorm((1, found[1])[count % 2], found[1])))
    return m, shape


def outgoing(m: Drawn, shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(m.to(DOUBLE).eval()(torch.rand(3, *shape, dtype=DOUBLE)).shape)


def extend(m: Drawn, shape: tuple[int, ...], make: Callable[[tuple[int, ...]], Op | None]) -> None:
    """One step more, unless it does not fit."""
    before = outgoing(m, shape)
    op = make(before)
    if op is None:
        return
    m.plan.append(op)
    try:
        after = outgoing(m, shape)
        if not 2 <= len(after) <= 4 or after[0] != 3 or 0 in after:
            m.plan.pop()
    except (RuntimeError, IndexError, ValueError):
        m.plan.pop()


# --- ends: the last layer, a loss and targets -------------------------------------------------------------------------


def classes(g: torch.Generator, *shape: int, count: int = 3) -> Tensor:
    return torch.randint(0, count, shape, generator=g)


def numbers(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=g, dtype=DOUBLE)


End = tuple[int, Op, Any, Callable[[torch.Generator, int], Tensor]]
W3 = torch.tensor([1.0, 2.0, 0.5], dtype=DOUBLE)


def same(m: Any, h: Tensor) -> Tensor:
    return h


def log(m: Any, h: Tensor) -> Tensor:
    return F.log_softmax(h, dim=1)


def gaussian(out: Tensor, y: Tensor) -> Tensor:
    mean, spread = out[:, :1], F.softplus(out[:, 1:]) + 0.1
    return F.gaussian_nll_loss(mean, y, spread)


ENDS: list[End] = [
    (3, same, F.cross_entropy, lambda g, n: classes(g, n)),
    (3, same, nn.CrossEntropyLoss(), lambda g, n: classes(g, n)),
    (3, same, nn.CrossEntropyLoss(label_smoothing=0.1), lambda g, n: classes(g, n)),
    (3, same, nn.CrossEntropyLoss(W3), lambda g, n: classes(g, n)),
    (3, same, nn.CrossEntropyLoss(ignore_index=2), lambda g, n: torch.cat([classes(g, 1, count=2), classes(g, n - 1)])),
    (3, same, nn.CrossEntropyLoss(reduction="sum"), lambda g, n: classes(g, n)),
    (3, same, F.cross_entropy, lambda g, n: numbers(g, n, 3).softmax(1)),
    (3, log, F.nll_loss, lambda g, n: classes(g, n)),
    (3, log, nn.NLLLoss(W3), lambda g, n: classes(g, n)),
    (3, log, nn.KLDivLoss(reduction="batchmean"), lambda g, n: numbers(g, n, 3).softmax(1)),
    (6, lambda m, h: h.view(-1, 3, 2), F.cross_entropy, lambda g, n: classes(g, n, 2)),
    (12, lambda m, h: h.view(h.size(0), 3, 2, 2), nn.CrossEntropyLoss(), lambda g, n: classes(g, n, 2, 2)),
    (
        6,
        lambda m, h: h.view(-1, 2, 3),
        lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
        lambda g, n: classes(g, n, 2),
    ),
    (3, same, F.mse_loss, lambda g, n: numbers(g, n, 3)),
    (3, same, nn.MSELoss(reduction="sum"), lambda g, n: numbers(g, n, 3)),
    (4, lambda m, h: h.view(-1, 2, 2), F.mse_loss, lambda g, n: numbers(g, n, 2, 2)),
    (1, lambda m, h: h.squeeze(1), F.mse_loss, lambda g, n: numbers(g, n)),
    (1, lambda m, h: h.flatten(), nn.MSELoss(), lambda g, n: numbers(g, n)),
    (1, lambda m, h: torch.flatten(h), F.mse_loss, lambda g, n: numbers(g, n)),
    (1, lambda m, h: h.view(-1), F.l1_loss, lambda g, n: numbers(g, n)),
    (1, lambda m, h: h[:, 0], F.mse_loss, lambda g, n: numbers(g, n)),
    (1, same, F.mse_loss, lambda g, n: numbers(g, n)),
    (1, same, lambda o, y: (o - y).square().mean(), lambda g, n: numbers(g, n)),
    (2, same, F.l1_loss, lambda g, n: numbers(g, n, 2)),
    (2, same, F.smooth_l1_loss, lambda g, n: numbers(g, n, 2)),
    (2, same, nn.HuberLoss(delta=0.5), lambda g, n: numbers(g, n, 2)),
    (2, same, nn.BCEWithLogitsLoss(pos_weight=W3[:2]), lambda g, n: classes(g, n, 2, count=2).to(DOUBLE)),
    (1, lambda m, h: h.squeeze(-1), F.binary_cross_entropy_with_logits, lambda g, n: classes(g, n, count=2).to(DOUBLE)),
    (1, lambda m, h: torch.sigmoid(h), nn.BCELoss(), lambda g, n: classes(g, n, 1, count=2).to(DOUBLE)),
    (2, same, nn.PoissonNLLLoss(), lambda g, n: classes(g, n, 2).to(DOUBLE)),
    (2, same, gaussian, lambda g, n: numbers(g, n, 1)),
    (3, same, nn.MultiMarginLoss(), lambda g, n: classes(g, n)),
    (2, same, nn.SoftMarginLoss(), lambda g, n: numbers(g, n, 2).sign()),
    (3, same, lambda o, y: -o.log_softmax(1)[torch.arange(len(y)), y].mean(), lambda g, n: classes(g, n)),
]


def finish(rng: Rng, m: Drawn, shape: tuple[int, ...]) -> tuple[Any, Callable[..., Tensor]]:
    """Add a last layer; its loss, and what draws targets for it. Every eighth has something hooked on."""
    width, last, loss, targets = ENDS[rng.integers(len(ENDS))] if rng.random() < 0.6 else ENDS[rng.integers(2)]
    if len(outgoing(m, shape)) > 2:
        m.plan.append(lambda m, h: h.flatten(1))
    m.plan.append(layer(m, nn.Linear(outgoing(m, shape)[1], width)))
    if last is not same:
        m.plan.append(last)
    if rng.random() < 0.125:
        hook(rng, m)
    m.to(DOUBLE).train(bool(rng.random() < 0.9))
    return loss, targets


def hook(rng: Rng, m: Drawn) -> None:
    last = list(m.children())[-1]
    kind = rng.integers(5)
    if kind == 0:
        last.register_forward_hook(lambda module, inputs, out: out * 2)
    elif kind == 1:
        last.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    elif kind == 2:
        last.register_full_backward_hook(
            lambda module, inward, outward: tuple(None if g is None else 2 * g for g in inward)  # type: ignore[attr-defined]
        )
    elif kind == 3:
        parametrizations.weight_norm(last)
    else:
        m.register_forward_hook(lambda module, inputs, out: out - 0.5 * out.tanh())  # a probability stays one


# --- the check --------------------------------------------------------------------------------------------------------


@contextmanager
def numba(there: bool) -> Iterator[None]:
    workspace.find_spec = find_spec if there else lambda name: None if name == "numba" else find_spec(name)  # type: ignore[assignment, attr-defined, misc]
    try:
        yield
    finally:
        workspace.find_spec = find_spec  # type: ignore[attr-defined]


def reference(m: nn.Module, loss: Any, w: Tensor, x: Tensor, y: Tensor, resting: bool = False) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by `backward()` on a copy with w and without dropout, in its own mode or `resting`."""
    m = deepcopy(m)
    m.quiet = True  # type: ignore[assignment]
    for part in m.modules():
        if resting or isinstance(part, nn.Dropout):
            part.eval()
    at = 0
    for p in m.parameters():
        p.data.copy_(w[at : at + p.numel()].view(p.shape))
        at += p.numel()
    value = loss(m(x.clone()), y)
    value.backward()
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in m.parameters()]
    return value.detach(), torch.cat([part.flatten() for part in parts])


def near(got: Tensor, want: Tensor, what: str, method: str) -> None:
    apart = float((got - want).norm() / want.norm().clamp_min(1e-3))
    assert apart < TOLERANCE, f"{what} is off by {apart:.1e}, {method}"


def against_autograd(seed: int) -> str:
    """Full gradients, values and gradients of batches of users of unequal size."""
    rng, g = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # for the layers' first weights
    m, shape = body(rng)
    loss, targets = finish(rng, m, shape)
    sizes = rng.integers(2, 7, int(rng.integers(1, 5)))
    users = [(numbers(g, int(n), *shape), targets(g, int(n))) for n in sizes]
    with numba(bool(rng.integers(2))):
        try:
            problem = rs.Neural(m, users, loss=loss)
        except rs.InputError:
            return "refused"
        W = problem.start + 0.1 * numbers(g, len(users), problem.dim)
        each = list(zip(W, users, strict=True))
        try:
            want = [reference(m, loss, w, *user)[1] for w, user in each]
        except RuntimeError as error:  # in place where autograd needs what was there
            if "inplace" in str(error) and problem.gradients.method == "loop":
                return "refused by autograd"
            raise
        near(problem.grad(W), torch.stack(want), "the gradient", problem.method)
        batches(rng, problem, m, loss, W, users)
        values = [reference(m, loss, w, *user, resting=True)[0] for w, user in each]
        near(problem.value(W), torch.stack(values), "the value", problem.method)
    return f"right, {problem.gradients.method}"


def batches(rng: Rng, problem: Any, m: Any, loss: Any, W: Tensor, users: list[tuple[Tensor, Tensor]]) -> None:
    """Some rows of each user, of one none at all."""
    most = 4
    rows = torch.from_numpy(np.stack([rng.integers(0, len(y), most) for _, y in users]))
    counts = rng.integers(2, most + 1, len(users))
    if len(users) > 1:
        counts[rng.integers(len(users))] = 0
    mask = torch.arange(most) < torch.from_numpy(counts)[:, None]
    got = problem.batch_grad(W, rows, mask)
    for i, (x, y) in enumerate(users):
        mine = rows[i][mask[i]]
        want = reference(m, loss, W[i], x[mine], y[mine])[1] if len(mine) else torch.zeros_like(W[i])
        if bool(want.isfinite().all()):  # all targets of a batch may be ignored
            near(got[i], want, "the gradient of a batch", problem.method)


FAMILIES = [Family("networks against autograd", against_autograd, few=20, many=350)]
