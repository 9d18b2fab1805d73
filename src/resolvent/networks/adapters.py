"""Low-rank adapters (LoRA): which of their two matrices is trained.

An adapter adds B A to a weight. A federation averages what is trained, and mean(B_i) mean(A_i) is not mean(B_i A_i).
With A frozen at one draw for all users it is: mean(B_i) A = mean(B_i A). (FFA-LoRA: Sun et al., ICLR 2024.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from resolvent.errors import quoted, refuse

A = re.compile(r"(?:^|(?<=\.))(lora\w*_)([Aa])(?=\.|$)")
"""In names of parameters: lora_A and lora_embedding_A as peft has them, and lora_a. That of B has the next letter."""


def pairs(model: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """The matrices A and B of each adapter whose parameters are named so."""
    named = dict(model.named_parameters())
    partners = {name: A.sub(lambda m: m[1] + ("B" if m[2] == "A" else "b"), name) for name in named if A.search(name)}
    return [(named[a], named[b]) for a, b in partners.items() if b in named]


@contextmanager
def trained_by(model: nn.Module, lora: str | None) -> Iterator[list[str]]:
    """Meanwhile, with lora="b", A of every adapter requires no gradient, nor does it in copies made of the module.

    Gives the names of what it freezes.
    """
    if lora is None:
        yield []
        return
    if not isinstance(lora, str) or lora != "b":
        refuse("lora", quoted(lora), "'b', which freezes A of every adapter B A, or None is needed")
    found = pairs(model)
    if not any(b.requires_grad for _, b in found):
        refuse(
            "lora",
            "'b'",
            f"the {type(model).__name__} has no trained parameter lora_B beside a lora_A, as peft names them: "
            "add adapters, or leave lora out and freeze what you like with requires_grad_(False)",
        )
    if any(b.requires_grad and not bool(a.any()) for a, b in found):
        refuse("lora", "'b'", "an adapter's A is zero, as peft begins those of embeddings: frozen, it would stay so")
    before = [(a, a.requires_grad) for a, _ in found]
    try:
        for a, _ in before:
            a.requires_grad_(False)
        frozen = {id(a) for a, trained in before if trained}
        yield [name for name, p in model.named_parameters() if id(p) in frozen]
    finally:
        for a, trained in before:
            a.requires_grad_(trained)
