"""Before the first round: does the chosen method give what plain autograd gives? Two users are compared, on a few rows.

Parameters and rows are those of the problem with a little noise: layers that begin at zero hide errors, and equal
numbers in a pool tie. The two users differ in parameters, rows and number of rows, so that no result of one can pass
for the other's. Where rounding makes another entry the maximum in one draw, the next two draws decide: a real error
shows in all of them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from resolvent.errors import InputError
from resolvent.networks.layout import ParameterLayout
from resolvent.networks.plain import DROPOUTS, Buffers, Examples, NoDropout, full_precision, preserve_rng

ROWS = 3
"""Rows of the first user; the second user has one less."""
DRAWS = 5
TOLERANCES = {torch.float64: 1e-7, torch.float32: 3e-4}
COARSE_TOLERANCE = 0.05
"""For any other type of numbers, and for products in TF32."""

BROADCASTS = "Using a target size"
"""How torch's warning begins where a loss gets outputs and targets of different shapes."""
UNDECIDED = "gradients are zero or not finite"


class Unanswered(Exception):
    """Why plain autograd gives no answer, in a few words."""


class Answer(NamedTuple):
    """What a method gives: outputs in eval mode, the loss, and its gradient, (2, ...) each."""

    outputs: Tensor
    loss: Tensor
    grad: Tensor


class Question(NamedTuple):
    """Parameters (2, d) and rows (2, ROWS, ...) of two users."""

    W: Tensor
    x: Tensor
    y: Tensor
    mask: Tensor

    @property
    def examples(self) -> Examples:
        return Examples(self.x, self.y, self.mask)


Candidate = Callable[[Question], Answer]


def questions(
    W: Tensor, x: Tensor, y: Tensor, mask: Tensor | None, layout: ParameterLayout, even: bool
) -> Iterator[Question]:
    """DRAWS questions around parameters W (users, d) or (1, d), rows x (users, n, ...) and targets y. The last one is
    the problem without noise.

    `even`: no row is masked, for methods that do something else where one is.
    """
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        chosen = [_rows(mask, i % len(x), x.shape[1], ROWS * i if len(x) == 1 else 0) for i in range(2)]
        rows = torch.stack([x[i % len(x), at.to(x.device)] for i, at in enumerate(chosen)]).to(W.device)
        targets = torch.stack([y[i % len(y), at.to(y.device)] for i, at in enumerate(chosen)]).to(W.device)
        some = torch.stack([W[i % len(W)] for i in range(2)])
        if draw < DRAWS - 1:
            some = some + _noise(some, generator) * _scale(some, layout)
        if draw < DRAWS - 1 and rows.is_floating_point():
            size, noise = rows.square().mean().sqrt(), _noise(rows, generator)
            rows = noise if draw == 2 else rows + noise * torch.where(size > 0, 0.1 * size, 1.0)
        real = torch.ones(2, ROWS, dtype=torch.bool, device=W.device)
        real[1, -1] = even
        yield Question(some, rows, targets, real)


def _rows(mask: Tensor | None, user: int, n: int, first: int) -> Tensor:
    """The numbers of ROWS real rows of a user, from `first` on, starting over if there are fewer."""
    real = torch.arange(n) if mask is None else mask[user].cpu().nonzero().flatten()
    real = real if len(real) else torch.zeros(1, dtype=torch.long)
    return real[torch.arange(first, first + ROWS) % len(real)]


def _noise(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def _scale(W: Tensor, layout: ParameterLayout) -> Tensor:
    """How much noise each parameter gets: a tenth of its tensor's size, or of the usual size where that is larger."""
    scale = torch.empty_like(W)
    for name, part in layout.split(W).items():
        usual = max(1, part[0][0].numel() if part.ndim > 1 else 1) ** -0.5
        layout.split(scale)[name].copy_(0.1 * part.square().mean().sqrt().clamp_min(usual).expand_as(part))
    return scale


@dataclass(eq=False)
class Reference:
    """Plain autograd through the module as it came, hooks included, without dropout. The module is left as it was.

    `state` has its parameters and buffers, in the type and on the device in which they are used. The reference also
    notes whether the module `draws` random numbers, `drops` out by a function rather than a layer, `changes` a buffer,
    has `assigned` one, or is `inconsistent`: it gives something else when called again.
    """

    model: nn.Module
    state: Buffers
    layout: ParameterLayout
    loss: Callable[..., Any]
    device: torch.device
    draws: bool = False
    drops: bool = False
    changes: bool = False
    assigned: str = ""
    _last: tuple[Question, Answer] | None = None

    def __call__(self, question: Question) -> Answer:
        try:
            answer = self._answer(question)
        except InputError:
            raise
        except Exception as error:  # whatever a module's own code raises
            line = (str(error).splitlines() or [""])[0]
            raise Unanswered(f"plain autograd gave {type(error).__name__} ({line})") from error
        self._last = question, answer
        return answer

    @property
    def needs_loop(self) -> str:
        """What the module does that only the loop can reproduce; empty if nothing."""
        return "it draws random numbers" if self.draws else "it changes its buffers" if self.changes else ""

    @property
    def inconsistent(self) -> bool:
        if self._last is None:
            return False
        question, answer = self._last
        pairs = zip(answer, self(question), strict=True)
        return any(not torch.equal(a, b) for a, b in pairs)

    def _answer(self, question: Question) -> Answer:
        W, x, y, mask = question
        parts = self.layout.split(W)
        with _restored(self.model):
            for m in self.model.modules():
                if isinstance(m, DROPOUTS):
                    m.eval()
            found = []
            for i in range(len(W)):
                leaves = {name: part[i].detach().clone().requires_grad_() for name, part in parts.items()}
                with torch.enable_grad(), full_precision(self.device, None):
                    out = self._called(leaves, x[i][mask[i]])
                    value = self._loss(out, y[i][mask[i]])
                    grads = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
                found.append((value.detach(), torch.cat([g.reshape(-1) for g in grads])))
            self.model.eval()
            with torch.no_grad(), full_precision(self.device, None):
                outputs = [self._called({name: part[i] for name, part in parts.items()}, x[i]) for i in range(len(W))]
        return Answer(torch.stack(outputs), *(torch.stack(parts) for parts in zip(*found, strict=True)))

    def _loss(self, out: Any, y: Tensor) -> Tensor:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", BROADCASTS)
                value: Tensor = self.loss(out, y.clone())
        except UserWarning as warning:
            if not re.match(BROADCASTS, str(warning)):
                raise
            raise InputError(
                f"the loss cannot take outputs of shape {tuple(out.shape[1:])} and targets of shape "
                f"{tuple(y.shape[1:])} for each row: torch would repeat one to fit the other, across rows too; "
                "give both the same shape"
            ) from None
        return value

    def _called(self, leaves: Buffers, x: Tensor) -> Any:
        rest = {name: t.detach().clone() for name, t in self.state.items() if name not in leaves}
        after: Buffers = {}
        hook = self.model.register_forward_hook(lambda model, inputs, out: after.update(model.named_buffers()))
        try:
            with preserve_rng(self.device) as drawn, NoDropout() as no_dropout:
                out = functional_call(self.model, {**rest, **leaves}, (x.clone(),))
                self.draws |= drawn()
                self.drops |= no_dropout.met
        finally:
            hook.remove()
        for name, left in after.items():
            moved = not torch.equal(left.detach(), self.state[name])
            self.changes |= moved
            if moved and left is not rest[name]:
                self.assigned = name
        return out


def obstacle(candidate: Candidate, reference: Candidate, asked: Iterator[Question], layout: ParameterLayout) -> str:
    """How the candidate differs from the reference, in a few words; empty where they agree.

    They agree if they do in the first draw that decides, or else in two later ones in a row. The last draw is used only
    where no other decides.
    """
    reason, alike = "", 0
    for k, question in enumerate(asked):
        if k == DRAWS - 1 and reason:
            break
        want = reference(question)
        try:
            got = candidate(question)
        except Exception as error:  # whatever a method raises on a module that it misread
            return f"it gave {type(error).__name__} where plain autograd gave a gradient"
        if not _decides(want):
            continue
        wrong = _difference(got, want, layout)
        alike = 0 if wrong else alike + 1
        if alike == (2 if reason else 1):
            return ""
        reason = f"its {wrong} was not that of plain autograd" if wrong else reason
    return reason or f"it could not be compared with plain autograd: {UNDECIDED}"


def _decides(want: Answer) -> bool:
    return all(bool(t.isfinite().all()) for t in want) and bool(want.grad.any())


def _difference(got: Answer, want: Answer, layout: ParameterLayout) -> str:
    """Which part of the two answers differs; empty if none does."""
    reduced = want.outputs.is_cuda and torch.get_float32_matmul_precision() != "highest"
    tolerance = COARSE_TOLERANCE if reduced else TOLERANCES.get(want.outputs.dtype, COARSE_TOLERANCE)
    if not _close(got.outputs, want.outputs, tolerance):
        return "output"
    if not _close(got.loss, want.loss, tolerance):
        return "loss"
    blocks = zip(layout.split(got.grad).values(), layout.split(want.grad).values(), strict=True)
    floor = 0.01 * want.grad.norm(dim=1)
    return "" if all(_close(a, b, tolerance, floor) for a, b in blocks) else "gradient"


def _close(a: Tensor, b: Tensor, tolerance: float, floor: Tensor | float = 0.0) -> bool:
    """Whether |a_i - b_i| <= tolerance (|b_i| + floor_i) for each user i."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    apart, size = ((t.reshape(len(b), -1)).norm(dim=1) for t in (a - b, b))
    return bool((apart <= tolerance * (size + floor)).all())


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore the module's mode and attributes afterwards: forward may count calls or store results."""
    before = [(m, dict(vars(m))) for m in model.modules()]
    try:
        yield
    finally:
        for m, attributes in before:
            vars(m).clear()
            vars(m).update(attributes)
