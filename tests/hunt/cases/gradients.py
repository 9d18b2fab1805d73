"""Networks whose backward does more than replay forward, against plain `.backward()` on a fresh copy that holds W.

Gradient checkpointing, autograd functions of one's own, attention, embeddings, recurrent layers, low-rank adaption,
forwards that write to their parameters. The reference is torch alone: nothing of the package computes any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import resolvent as rs
from hunt.family import Family

Rng = np.random.Generator
CLASSES, WIDTH, TIMES, VOCABULARY = 3, 4, 5, 7
TOLERANCES = {torch.float32: 2e-3, torch.float64: 1e-8}
"""Relative to the norm: units in the last place, times sums of some hundred numbers, times what norms amplify."""


class Drawn(NamedTuple):
    """A module, and whether its rows are tokens (n, TIMES), sequences (n, TIMES, WIDTH) or vectors (n, WIDTH)."""

    module: nn.Module
    rows: str


def checkpointed(rng: Rng) -> partial[Any]:
    """torch.utils.checkpoint of either kind."""
    return partial(checkpoint, use_reentrant=bool(rng.integers(2)))


def one_of(rng: Rng, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


# --- checkpoints ------------------------------------------------------------------------------------------------------


def block(rng: Rng, width: int = WIDTH) -> nn.Sequential:
    kinds = [
        lambda: nn.Tanh(),
        lambda: nn.ReLU(),
        lambda: nn.Dropout(0.3),
        lambda: nn.BatchNorm1d(width),
        lambda: nn.LayerNorm(width),
        lambda: nn.GELU(),
    ]
    extra = [kinds[k]() for k in rng.integers(0, len(kinds), int(rng.integers(1, 4)))]
    first = [nn.ReLU(inplace=True)] if rng.integers(4) == 0 else []
    return nn.Sequential(nn.Linear(width, width), *first, *extra)


class Checkpointed(nn.Module):
    """Blocks in checkpoints: each alone, all at once, in segments, nested, by a bound method, or by keywords."""

    def __init__(self, rng: Rng) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block(rng) for _ in range(int(rng.integers(1, 4))))
        self.end = nn.Linear(WIDTH, CLASSES)
        self.way = int(rng.integers(6))
        self.keep = checkpointed(rng)
        self.inner = checkpointed(rng)
        if self.way == 3:  # a reentrant checkpoint inside of another one is refused by torch
            self.keep = self.inner = partial(checkpoint, use_reentrant=False)
        self.segments = int(rng.integers(1, len(self.blocks) + 1))

    def stack(self, h: Tensor, scale: float = 1.0) -> Tensor:
        for each in self.blocks:
            h = h + scale * each(h)
        return h

    def nested(self, h: Tensor) -> Tensor:
        for each in self.blocks:
            h = h + self.inner(each, h)
        return h

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.way == 0:
            for each in self.blocks:
                h = h + self.keep(each, h)
        elif self.way == 1:
            h = self.keep(self.stack, h)
        elif self.way == 2:
            h = checkpoint_sequential(nn.Sequential(*self.blocks), self.segments, h, **self.keep.keywords)
        elif self.way == 3:
            h = self.keep(self.nested, h)
        elif self.way == 4:
            for each in self.blocks:
                h = self.keep(each.__call__, h)
        else:
            h = self.keep(partial(self.stack, scale=0.5), h)
        end: Tensor = self.end(torch.tanh(h))
        return end


def checkpoints(rng: Rng) -> Drawn:
    return Drawn(Checkpointed(rng), "vectors")


class Saving(nn.Module):
    """As Hugging Face's layers: calling one in training is a checkpoint of calling it."""

    def __init__(self, rng: Rng, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.gradient_checkpointing = layer, True
        self._gradient_checkpointing_func = checkpointed(rng)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(partial(super().__call__, **options), *args)
        return super().__call__(*args, **options)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Any:
        return self.layer(h) if mask is None else self.layer(h, mask)


# --- attention --------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Heads by hand, or torch's own."""

    def __init__(self, rng: Rng) -> None:
        super().__init__()
        self.own = bool(rng.integers(2))
        self.rate = float(one_of(rng, 0.0, 0.3))
        self.causal = bool(rng.integers(2))
        self.weights = bool(rng.integers(2))
        if self.own:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.heads = nn.MultiheadAttention(WIDTH, 2, dropout=self.rate, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        if self.own:
            q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(h).chunk(3, -1))
            rate = self.rate if self.training else 0.0
            a = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=self.causal)
            return h + self.norm(a.transpose(1, 2).flatten(2))
        a, _ = self.heads(h, h, h, need_weights=self.weights)
        return h + self.norm(a)


def encoder_layer(rng: Rng) -> nn.Module:
    return nn.TransformerEncoderLayer(
        WIDTH, 2, 6, float(one_of(rng, 0.0, 0.3)), batch_first=True, norm_first=bool(rng.integers(2))
    )


class Transformer(nn.Module):
    def __init__(self, rng: Rng) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layers = [one_of(rng, Attention, encoder_layer)(rng) for _ in range(int(rng.integers(1, 3)))]
        self.layers = nn.ModuleList(Saving(rng, layer) if rng.integers(2) else layer for layer in layers)
        self.drop = nn.Dropout(float(one_of(rng, 0.0, 0.2)))
        self.end = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if rng.integers(2):
            self.end.weight = self.tokens.weight
        if rng.integers(3) == 0:  # all but the rest is trained, and the checkpoints need an input with a gradient
            self.tokens.requires_grad_(False)
            self.tokens.register_forward_hook(lambda module, inputs, out: out.requires_grad_(True))

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.tokens(x))
        for layer in self.layers:
            h = layer(h)
        out: Tensor = self.end(h.mean(1))
        return out


def transformers(rng: Rng) -> Drawn:
    return Drawn(Transformer(rng), "tokens")


# --- embeddings and recurrent layers ----------------------------------------------------------------------------------


class Embedded(nn.Module):
    def __init__(self, rng: Rng) -> None:
        super().__init__()
        bags = rng.integers(4) == 0
        options: dict[str, Any] = {"max_norm": one_of(rng, None, 0.5, 1.5), "norm_type": float(one_of(rng, 1.0, 2.0))}
        options |= {"padding_idx": one_of(rng, None, 0), "scale_grad_by_freq": bool(rng.integers(2))}
        if not bags and not options["scale_grad_by_freq"]:
            options["sparse"] = bool(rng.integers(2))
        kind: Any = nn.EmbeddingBag if bags else nn.Embedding
        self.tokens = kind(VOCABULARY, WIDTH, **options)
        self.frozen = nn.Embedding(VOCABULARY, WIDTH, max_norm=0.7).requires_grad_(False)
        self.end = nn.Linear(WIDTH, VOCABULARY)
        if rng.integers(3) == 0 and not options.get("sparse"):
            self.end.weight = self.tokens.weight
        self.bags, self.keep = bags, checkpointed(rng) if rng.integers(2) else None

    def embedded(self, x: Tensor) -> Tensor:
        h: Tensor = self.tokens(x) if self.bags else self.tokens(x).mean(1)
        return torch.tanh(h)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedded(x) if self.keep is None else self.keep(self.embedded, x)
        out: Tensor = self.end(h + self.frozen(x).mean(1))
        return out


def embeddings(rng: Rng) -> Drawn:
    return Drawn(Embedded(rng), "tokens")


class Recurrent(nn.Module):
    def __init__(self, rng: Rng) -> None:
        super().__init__()
        both = bool(rng.integers(2))
        kind = one_of(rng, nn.LSTM, nn.GRU, nn.RNN)
        layers = int(rng.integers(1, 3))
        rate = float(one_of(rng, 0.0, 0.4)) if layers > 1 else 0.0
        self.cells = kind(WIDTH, WIDTH, layers, batch_first=True, bidirectional=both, dropout=rate)
        self.end = nn.Linear(WIDTH * (1 + both), CLASSES)
        self.keep = checkpointed(rng) if rng.integers(2) else None
        self.first = nn.Linear(WIDTH, WIDTH)

    def read(self, h: Tensor) -> Tensor:
        out: Tensor = self.cells(h)[0]
        return out[:, -1]

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.end(self.read(h) if self.keep is None else self.keep(self.read, h))
        return out


def recurrences(rng: Rng) -> Drawn:
    return Drawn(Recurrent(rng), "sequences")


# --- low-rank adaption ------------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A frozen weight and a product of rank 2. With `merges` it is added to the weight by eval(), as loralib does."""

    def __init__(self, rng: Rng, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, inputs) / 2)
        self.b = nn.Parameter(torch.zeros(outputs, 2))
        self.drop = nn.Dropout(float(one_of(rng, 0.0, 0.2)))
        self.merges, self.merged = bool(rng.integers(2)), False

    def train(self, mode: bool = True) -> Adapted:
        super().train(mode)
        if self.merges and self.merged is mode:
            self.base.weight.data += (-1 if mode else 1) * (self.b @ self.a).data
            self.merged = not mode
        return self

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.base(h)
        return out if self.merged else out + F.linear(F.linear(self.drop(h), self.a), self.b)


class LowRank(nn.Module):
    def __init__(self, rng: Rng) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Adapted(rng, WIDTH, WIDTH), Adapted(rng, WIDTH, CLASSES)])
        self.keep = checkpointed(rng) if rng.integers(2) else None
        self.scale = nn.Parameter(torch.ones(WIDTH)) if rng.integers(2) else None

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.scale is None else x * self.scale
        h = torch.tanh(self.layers[0](h) if self.keep is None else self.keep(self.layers[0], h))
        out: Tensor = self.layers[1](h)
        return out


def adaptions(rng: Rng) -> Drawn:
    return Drawn(LowRank(rng), "vectors")


# --- autograd functions of one's own ----------------------------------------------------------------------------------


class Again(torch.autograd.Function):
    """Backward calls `run` once more and differentiates that."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run, ctx.parameters = run, parameters
        ctx.save_for_backward(x)
        with torch.no_grad():
            out: Tensor = run(x)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return None, *torch.autograd.grad(ctx.run(x), (x, *ctx.parameters), g)


class ByItsLayer(torch.autograd.Function):
    """Backward reads the weight from the layer, as it is then."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Linear, x: Tensor, weight: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, g @ ctx.layer.weight.detach(), g.T @ x


class Rounded(torch.autograd.Function):
    """A step function with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


class Reversed(torch.autograd.Function):
    """The identity with the opposite gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return -0.5 * g


class OfOnesOwn(nn.Module):
    def __init__(self, rng: Rng) -> None:
        super().__init__()
        self.a, self.b, self.end = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.ways = rng.integers(0, 7, int(rng.integers(1, 4))).tolist()
        self.keep = checkpointed(rng)

    def step(self, h: Tensor, way: int) -> Tensor:
        if way == 0:
            return Again.apply(self.b, h, *self.b.parameters())
        if way == 1:
            return Again.apply(lambda x: torch.tanh(self.b(torch.sin(x))), h, *self.b.parameters())
        if way == 2:
            return ByItsLayer.apply(self.b, h, self.b.weight) + self.b.bias
        if way == 3:
            return Rounded.apply(h)
        if way == 4:
            return Reversed.apply(h)
        if way == 5:
            return h + ((4 * h).round() / 4 - h).detach()
        return self.keep(lambda x: Again.apply(self.b, x, *self.b.parameters()), h)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        for way in self.ways:
            h = torch.tanh(self.step(h, way))
        out: Tensor = self.end(h)
        return out


def functions(rng: Rng) -> Drawn:
    return Drawn(OfOnesOwn(rng), "vectors")


# --- forwards that write ----------------------------------------------------------------------------------------------


def in_place(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h += m.b(x)
    h.mul_(0.5)
    return m.end(F.relu_(h))


def clamped(m: Any, x: Tensor) -> Tensor:
    m.a.weight.data.clamp_(-0.3, 0.3)
    return m.end(torch.tanh(m.a(x)))


def normalised(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.b.weight.div_(m.b.weight.norm(dim=1, keepdim=True))
    return m.end(torch.tanh(m.b(torch.tanh(m.a(x)))))


def replaced(m: Any, x: Tensor) -> Tensor:
    m.b.weight.data = F.normalize(m.b.weight.data)
    return m.end(torch.tanh(m.b(torch.tanh(m.a(x)))))


def tied_in_forward(m: Any, x: Tensor) -> Tensor:
    """As autoencoders do: one layer's weight is the other's, transposed."""
    m.b.weight.data = m.a.weight.data.T
    return m.end(torch.tanh(m.b(torch.tanh(m.a(x)))))


def frozen_written(m: Any, x: Tensor) -> Tensor:
    m.fixed.data.mul_(0.9)
    return m.end(torch.tanh(m.a(x)) * m.fixed)


def buffer_written(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    m.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return m.end(torch.tanh(h - m.mean))


def buffer_assigned(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    m.mean = 0.9 * m.mean + 0.1 * h.detach().mean(0)
    return m.end(torch.tanh(h - m.mean))


def buffer_with_a_gradient(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    m.mean = 0.9 * m.mean.detach() + 0.1 * h.mean(0)
    return m.end(torch.tanh(h - m.mean))


def parametrised(m: Any, x: Tensor) -> Tensor:
    return m.end(torch.tanh(m.b(torch.tanh(m.a(x)))))


WRITES: list[Callable[[Any, Tensor], Tensor]] = [
    in_place,
    clamped,
    normalised,
    replaced,
    tied_in_forward,
    frozen_written,
    buffer_written,
    buffer_assigned,
    buffer_with_a_gradient,
    parametrised,
]


class Writing(nn.Module):
    mean: Tensor

    def __init__(self, rng: Rng) -> None:
        super().__init__()
        self.a, self.b, self.end = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.fixed = nn.Parameter(torch.rand(WIDTH), requires_grad=False)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.does = one_of(rng, *WRITES)
        if self.does is parametrised or rng.integers(5) == 0:
            one_of(rng, parametrizations.weight_norm, parametrizations.spectral_norm)(self.a)
        if self.does is parametrised:
            nn.utils.spectral_norm(self.b)
        if self.does is tied_in_forward and hasattr(self.a, "parametrizations"):
            self.does = parametrised
        if self.does is clamped and hasattr(self.a, "parametrizations"):
            self.does = normalised

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x)


def writers(rng: Rng) -> Drawn:
    return Drawn(Writing(rng), "vectors")


# --- plain torch ------------------------------------------------------------------------------------------------------


def holding(module: nn.Module, w: Tensor) -> nn.Module:
    """A fresh copy of the module that holds the trained parameters w."""
    made = deepcopy(module)
    fill(made, w)
    return made


def fill(module: nn.Module, w: Tensor) -> None:
    """Into memory of its own for each parameter: forward may have made one the view of another."""
    at = 0
    module.zero_grad()
    for p in module.parameters():
        if p.requires_grad:
            p.data = w[at : at + p.numel()].view(p.shape).clone()
            at += p.numel()
    assert at == len(w)


def refreeze(module: nn.Module, first: nn.Module) -> None:
    """Frozen parameters are what they were, even if a forward has written to them."""
    for p, q in zip(module.parameters(), first.parameters(), strict=True):
        if not p.requires_grad:
            p.data = q.data.clone()


def quiet(module: nn.Module) -> nn.Module:
    """Without dropout, in the mode in which it is."""
    for m in module.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
        if isinstance(m, nn.MultiheadAttention | nn.RNNBase):
            m.dropout = 0.0
        if isinstance(m, Attention):
            m.rate = 0.0
    return module


def backward(module: nn.Module, loss: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and its gradient, as any training loop computes them."""
    value = loss(module(x), y)
    value.backward()
    parts = [
        torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in module.parameters() if p.requires_grad
    ]
    return value.detach(), torch.cat([part.flatten() for part in parts])


# --- the checks -------------------------------------------------------------------------------------------------------


def data(rng: Rng, drawn: Drawn, dtype: torch.dtype, g: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Users, most of them with unequal numbers of rows."""
    outputs = CLASSES if drawn.rows != "tokens" else VOCABULARY
    count = int(rng.integers(1, 4))
    sizes = [6] * count if rng.integers(4) == 0 else rng.integers(3, 8, count).tolist()
    shape = {"tokens": (TIMES,), "sequences": (TIMES, WIDTH), "vectors": (WIDTH,)}[drawn.rows]
    if drawn.rows == "tokens":
        xs = [torch.randint(0, VOCABULARY, (n, *shape), generator=g) for n in sizes]
    else:
        xs = [torch.randn(n, *shape, generator=g, dtype=torch.float64).to(dtype) for n in sizes]
    return [(x, torch.randint(0, outputs, (len(x),), generator=g)) for x in xs]


def without_gradient(module: nn.Module, users: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether plain torch could not train it: all that is trained is in reentrant checkpoints of fixed inputs, say."""
    return not deepcopy(module)(users[0][0]).requires_grad


def near(got: Tensor, want: Tensor, what: str) -> None:
    apart = float((got - want).norm() / want.norm().clamp_min(1e-3))
    assert apart < TOLERANCES[want.dtype], f"{what} is off by {apart:.1e}"


def started(seed: int, make: Callable[[Rng], Drawn]) -> tuple[Rng, torch.Generator, Drawn, torch.dtype]:
    rng, g = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # for the layers' first weights
    dtype = torch.float32 if rng.integers(3) == 0 else torch.float64
    drawn = make(rng)
    parameters = list(drawn.module.parameters())
    if rng.integers(5) == 0 and make is not functions:  # which ask torch for the gradients of all of their parameters
        parameters[rng.integers(len(parameters) - 1)].requires_grad_(False)
    if rng.integers(8) == 0 and make is not adaptions:  # which have nothing to train once they are merged
        drawn.module.eval()
    drawn.module.to(dtype)
    return rng, g, drawn, dtype


def refused(module: nn.Module, users: list[tuple[Tensor, Tensor]]) -> str:
    try:
        rs.Neural(module, users)
    except rs.InputError as error:
        if "no gradient" in str(error):
            return "refused"
        raise
    raise AssertionError("a module whose loss has no gradient was taken")


def against_backward(seed: int, make: Callable[[Rng], Drawn]) -> str:
    """Values and gradients at random W, with and without dropout; nothing that was given is changed."""
    rng, g, (module, rows), dtype = started(seed, make)
    users = data(rng, Drawn(module, rows), dtype, g)
    loss: Any = one_of(rng, F.cross_entropy, lambda o, y: F.cross_entropy(o, y))
    if without_gradient(module, users):
        return refused(module, users)
    first = {name: t.clone() for name, t in module.state_dict().items()}
    problem = rs.Neural(module, users, loss=loss, dtype=torch.float64 if rng.integers(4) == 0 else None)
    if problem.start.dtype != dtype:
        dtype, users = torch.float64, [(x.double() if x.is_floating_point() else x, y) for x, y in users]
        module = deepcopy(module).double()
        first = {name: t.clone() for name, t in module.state_dict().items()}
    noise = torch.randn(len(users), problem.dim, generator=g, dtype=torch.float64).to(dtype)
    W = problem.start + 0.3 * noise
    given, start = W.clone(), problem.start.clone()
    seeds = rng.integers(0, 2**40, len(users))
    how = f"{type(module).__name__}, {problem.method}"

    got, noisy, values = problem.grad(W), problem.grad(W, seeds=2 * seeds.astype(np.uint64)), problem.value(W)
    for i, (w, (x, y)) in enumerate(zip(given, users, strict=True)):
        near(got[i], backward(quiet(holding(module, w)), loss, x, y)[1], f"the gradient of {how}")
        torch.manual_seed(int(seeds[i]))
        near(noisy[i], backward(holding(module, w), loss, x, y)[1], f"the gradient with dropout of {how}")
        with torch.no_grad():
            near(values[i], loss(holding(module, w).eval()(x), y), f"the value of {how}")
    pick = torch.from_numpy(np.stack([rng.choice(len(y), 3, replace=False) for _, y in users]))
    batch = problem.batch_grad(W, pick, torch.ones(pick.shape, dtype=torch.bool))
    for i, (w, (x, y)) in enumerate(zip(given, users, strict=True)):
        want = backward(quiet(holding(module, w)), loss, x[pick[i]], y[pick[i]])[1]
        near(batch[i], want, f"the gradient of a batch of {how}")
    assert torch.equal(problem.grad(W), got), f"a second gradient is another one, {how}"
    assert torch.equal(W, given), f"W was changed, {how}"
    assert torch.equal(problem.start, start), f"the start was changed, {how}"
    assert all(torch.equal(t, first[name]) for name, t in module.state_dict().items()), f"the module was changed, {how}"
    return f"right, {problem.gradients.method}"


def rounds(seed: int) -> str:
    """Two rounds of FedAvg or FedProx against loops over `.backward()`; each user has a module and its buffers."""
    make = MAKERS[seed % len(MAKERS)]
    rng, g, (module, rows), dtype = started(seed, make)
    quiet(module)
    users = data(rng, Drawn(module, rows), dtype, g)
    steps, lr = int(rng.integers(1, 4)), float(one_of(rng, 0.03, 0.3))
    eta = one_of(rng, None, 0.5)
    scheme = rs.fedavg(lr, steps) if eta is None else rs.fedprox(eta, local=rs.GradientProx(steps, lr))
    if without_gradient(module, users):
        return refused(module, users)
    problem = rs.Neural(module, users)
    run = rs.solve(problem, scheme, rounds=2, seed=seed, progress=False)
    if run.status != "finished":
        return str(run.status)
    theirs = [deepcopy(module) for _ in users]
    mean = torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])
    for _ in range(2):
        ends = []
        for mine, (x, y) in zip(theirs, users, strict=True):
            w = mean
            for _ in range(steps):
                fill(mine, w)
                refreeze(mine, module)
                slope = backward(mine, F.cross_entropy, x, y)[1]
                w = w - lr * (slope if eta is None else slope + (w - mean) / eta)
            ends.append(w)
        mean = torch.stack(ends).mean(0)
    how = f"{type(module).__name__}, {problem.method}"
    near(run.model.flatten(), mean, f"the model of {how}")
    trained = run.module()
    for name, buffer in trained.named_buffers():
        if buffer.is_floating_point():
            want = torch.stack([dict(mine.named_buffers())[name] for mine in theirs]).mean(0)
            near(buffer, want, f"buffer {name} of {how}")
    return f"right, {problem.gradients.method}"


class Doored(nn.Module):
    """A module that gets its rows in two parts, and with labels gives its loss, too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, left: Tensor, right: Tensor, labels: Tensor | None = None) -> Any:
        out = self.inner(torch.cat([left, right], -1))
        return out if labels is None else {"loss": F.cross_entropy(out, labels), "logits": out}


def several_inputs(seed: int) -> str:
    """Rows in two parts, as a dict, a tuple, rows of a data set or a batch with labels, against the module alone."""
    make = MAKERS[seed % len(MAKERS)]
    rng, g, (module, rows), dtype = started(seed, make)
    users = data(rng, Drawn(module, rows), dtype, g)
    if without_gradient(module, users):
        return "refused"
    where, form = int(rng.integers(0, users[0][0].shape[-1] + 1)), one_of(rng, "dict", "tuple", "rows", "labels")
    parts = [{"left": x[..., :where], "right": x[..., where:]} for x, _ in users]
    given: list[Any] = [(part, y) for part, (_, y) in zip(parts, users, strict=True)]
    if form == "tuple":
        given = [(tuple(part.values()), y) for part, y in given]
    elif form == "rows":
        given = [[({k: t[i] for k, t in part.items()}, y[i]) for i in range(len(y))] for part, y in given]
    elif form == "labels":
        given = [part | {"labels": y} for part, y in given]
    problem = rs.Neural(Doored(module), given)
    W = problem.start + 0.3 * torch.randn(len(users), problem.dim, generator=g, dtype=torch.float64).to(dtype)
    seeds = rng.integers(0, 2**40, len(users))
    pick = torch.from_numpy(np.stack([rng.choice(len(y), 3, replace=False) for _, y in users]))
    got, values = problem.grad(W), problem.value(W)
    noisy = problem.grad(W, seeds=2 * seeds.astype(np.uint64)) if form != "rows" else None
    batch = problem.batch_grad(W, pick, torch.ones(pick.shape, dtype=torch.bool))
    how = f"{type(module).__name__} as {form}"
    for i, (w, (x, y)) in enumerate(zip(W, users, strict=True)):
        near(got[i], backward(quiet(holding(module, w)), F.cross_entropy, x, y)[1], f"the gradient of {how}")
        few = backward(quiet(holding(module, w)), F.cross_entropy, x[pick[i]], y[pick[i]])[1]
        near(batch[i], few, f"the gradient of a batch of {how}")
        if noisy is not None:
            torch.manual_seed(int(seeds[i]))
            want = backward(holding(module, w), F.cross_entropy, x, y)[1]
            near(noisy[i], want, f"the gradient with dropout of {how}")
        with torch.no_grad():
            near(values[i], F.cross_entropy(holding(module, w).eval()(x), y), f"the value of {how}")
    return f"right, {problem.gradients.method}"


MAKERS = [checkpoints, transformers, embeddings, recurrences, adaptions, functions, writers]
FAMILIES = [
    Family(f"backward of {make.__name__}", partial(against_backward, make=make), few=6, many=200) for make in MAKERS
]
FAMILIES.append(Family("rounds of such networks", rounds, few=14, many=400))
FAMILIES.append(Family("networks of several inputs", several_inputs, few=14, many=400))
