"""Before the first round: does the chosen method give what plain autograd gives? Two users are compared, on a few rows.

A method that is not autograd through the module's own code is compared with differences of its outputs, too.

Parameters and rows are those of the problem with a little noise: layers that begin at zero hide errors, and equal
numbers in a pool tie. The two users differ in parameters, rows and number of rows, so that no result of one can pass
for the other's. Where rounding makes another entry the maximum in one draw, the next two draws decide: a real error
shows in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from resolvent.networks.layout import ParameterLayout, let_go
from resolvent.networks.plain_autograd import Answer, Question, Reference, noise, noise_scale

COMPARED_ROWS = 3
"""Rows of the first user; the second user has one less."""
DRAWS = 5
TOLERANCES = {torch.float64: 1e-7, torch.float32: 3e-4}
COARSE_TOLERANCE = 0.05
"""For any other type of numbers."""

UNDECIDED = "gradients are zero or not finite"

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
        chosen = [_rows(mask, i % len(x), x.shape[1], COMPARED_ROWS * i if len(x) == 1 else 0) for i in range(2)]
        rows = torch.stack([x[i % len(x), at.to(x.device)] for i, at in enumerate(chosen)]).to(W.device)
        targets = torch.stack([y[i % len(y), at.to(y.device)] for i, at in enumerate(chosen)]).to(W.device)
        some = torch.stack([W[i % len(W)] for i in range(2)])
        if draw < DRAWS - 1:
            some = some + noise(some, generator) * noise_scale(some, layout)
        if draw < DRAWS - 1 and rows.is_floating_point():
            size, other = rows.square().mean().sqrt(), noise(rows, generator)
            rows = other if draw == 2 else rows + other * torch.where(size > 0, 0.1 * size, 1.0)
        real = torch.ones(2, COMPARED_ROWS, dtype=torch.bool, device=W.device)
        real[1, -1] = even
        yield Question(some, rows, targets, real)


def _rows(mask: Tensor | None, user: int, n: int, first: int) -> Tensor:
    """The numbers of COMPARED_ROWS real rows of a user, from `first` on, starting over if there are fewer."""
    real = torch.arange(n) if mask is None else mask[user].cpu().nonzero().flatten()
    real = real if len(real) else torch.zeros(1, dtype=torch.long)
    return real[torch.arange(first, first + COMPARED_ROWS) % len(real)]


def obstacle(
    candidate: Candidate, reference: Reference, asked: Iterator[Question], layout: ParameterLayout, autograd: bool
) -> str:
    """How the candidate differs from the reference, in a few words; empty where they agree.

    They agree if they do in the first draw that decides, or else in two later ones in a row. The last draw is used only
    where no other decides. `autograd`: the candidate is autograd through the module's own code. Its gradient need not
    be the slope of the outputs: a module may round numbers and pass gradients on as if it had not.
    """
    reason, alike = "", 0
    for k, question in enumerate(asked):
        last = k == DRAWS - 1
        if last and reason:
            break
        want = reference(question)
        if not autograd and reference.needs_loop:
            return reference.needs_loop
        try:
            got = candidate(question)
        except Exception as error:  # whatever a method raises on a module that it misread
            let_go(error)
            first = next(iter(str(error).splitlines()), "")[:150]
            return f"it gave {type(error).__name__} where plain autograd gave a gradient ({first})"
        if not _decides(want):
            continue
        wrong = _difference(got, want, layout)
        if not (wrong or last or autograd or _reduced(want) or reference.has_slopes(question, got.grad)):
            wrong = "gradient (by differences of outputs)"
        alike = 0 if wrong else alike + 1
        if alike == (2 if reason else 1):
            return ""
        reason = f"its {wrong} was not that of plain autograd" if wrong else reason
    return reason or f"it could not be compared with plain autograd: {UNDECIDED}"


def _decides(want: Answer) -> bool:
    return all(bool(t.isfinite().all()) for t in want) and bool(want.grad.any())


def _reduced(want: Answer) -> bool:
    """Whether numbers are of less than single precision."""
    return want.outputs.dtype not in TOLERANCES


def _difference(got: Answer, want: Answer, layout: ParameterLayout) -> str:
    """Which part of the two answers differs; empty if none does."""
    tolerance = COARSE_TOLERANCE if _reduced(want) else TOLERANCES[want.outputs.dtype]
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
