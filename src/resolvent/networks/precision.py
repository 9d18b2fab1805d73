"""How exact products are: `precision` of a network, one setting for all methods.

float32    full single precision (of parameters in float64: full double precision)
tf32       products and convolutions of float32 numbers by tensor cores, which read ten bits of each mantissa
bfloat16   forward by torch.autocast: products of numbers of eight bits. Parameters and gradients stay float32.

torch's own flags are global. They are set for the time of a call, and are afterwards what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args

import torch

from resolvent.errors import quoted, refuse

Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
AMPERE = (8, 0)
"""The first compute capability with TF32."""
FLAGS = tuple((backend, op) for backend in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn"))
"""What torch's newer flags are set for, beside the older ones."""


def as_precision(given: Any, device: torch.device, dtype: torch.dtype) -> Precision:
    """A precision that the device has, for parameters of this type."""
    if not isinstance(given, str) or given not in PRECISIONS:
        refuse("precision", quoted(given), "'float32', 'tf32' or 'bfloat16' is needed")
    precision: Precision = given
    if precision != "float32" and dtype != torch.float32:
        refuse("precision", quoted(given), f"it is for parameters of torch.float32, and these are {dtype}")
    lack = _lack(precision, device)
    if lack:
        refuse("precision", quoted(given), f"{lack}: take 'float32'")
    return precision


def _lack(precision: Precision, device: torch.device) -> str:
    """Why the device does not have it; empty if it does."""
    if precision == "float32" or (precision == "bfloat16" and device.type == "cpu"):
        return ""
    if device.type != "cuda":
        return f"{device.type} has none" if precision == "bfloat16" else f"{device.type} has no TF32, CUDA devices have"
    old = torch.version.hip is not None or torch.cuda.get_device_capability(device) < AMPERE
    return f"{torch.cuda.get_device_name(device)} has no tensor cores for it" if old else ""


@contextmanager
def products_in(device: torch.device, precision: Precision) -> Iterator[None]:
    """Products and convolutions of float32 numbers in TF32, or in full precision, meanwhile."""
    newer = _newer()
    lowered = any(value not in ("none", "ieee") for (backend, _), value in newer.items() if backend == "mkldnn")
    if device.type != "cuda" and not lowered and _read(torch.get_float32_matmul_precision) == "highest":
        yield
        return
    tf32, older = precision == "tf32", _older()
    try:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        for flag in newer:
            torch._C._set_fp32_precision_setter(*flag, "tf32" if tf32 else "ieee")
        yield
    finally:
        for restore in older:
            restore()
        for flag, value in newer.items():
            _restore(flag, value)


@contextmanager
def computing_in(device: torch.device, precision: Precision) -> Iterator[None]:
    """The same, and in bfloat16 by autocast."""
    with products_in(device, precision), autocast_to(precision, device):
        yield


def autocast_to(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """torch.autocast, if it is bfloat16."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


@contextmanager
def attention_in_one_type() -> Iterator[None]:
    """Attention by plain products stays in bfloat16; else torch takes them in float32, and the backward pass fails."""
    cuda = torch.backends.cuda
    before = cuda.fp16_bf16_reduction_math_sdp_allowed()
    cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        yield
    finally:
        cuda.allow_fp16_bf16_reduction_math_sdp(before)


def _older() -> list[Callable[[], None]]:
    """What gives torch's older flags their values again: the defaults where only newer ones can be read."""
    products, allowed = _read(torch.get_float32_matmul_precision), _read(lambda: torch.backends.cuda.matmul.allow_tf32)
    convolutions = _read(lambda: torch.backends.cudnn.allow_tf32)

    def restore_products() -> None:
        torch.set_float32_matmul_precision(products or "highest")
        if products is None and allowed is not None:
            torch.backends.cuda.matmul.allow_tf32 = allowed

    def restore_convolutions() -> None:
        torch.backends.cudnn.allow_tf32 = convolutions is not False

    return [restore_products, restore_convolutions]


def _read(flag: Callable[[], Any]) -> Any:
    """An older flag; None where a newer one says something else, and torch refuses to read it."""
    try:
        return flag()
    except RuntimeError:
        return None


def _newer() -> dict[tuple[str, str], str]:
    """The newer flags, which torch has from 2.9 on."""
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    return {} if read is None else {flag: read(*flag) for flag in FLAGS}


def _restore(flag: tuple[str, str], value: str) -> None:
    """Give a flag its value again: by leaving it open where it then reads as before, as one that was never set."""
    read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    write(*flag, "none")
    if read(*flag) != value:
        write(*flag, value)
