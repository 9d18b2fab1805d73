"""Functions of the caller's, of torch or of NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resolvent.errors import InputError

Function = Callable[..., Any]


@dataclass(eq=False)
class Called:
    """A function of the caller's, given what it can work with: torch tensors, or NumPy arrays where those fail.

    It may write to what it is given, and answer with an array that it fills again next time: both are copied.
    """

    name: str
    function: Function
    numpy: bool | None = None
    """None until it has answered once."""

    def __call__(self, W: Tensor, *args: float) -> Any:
        if self.numpy is None:
            answer = self._first(W, *args)
        else:
            answer = self.function(_array(W) if self.numpy else W.clone(), *args)
        if isinstance(answer, Tensor):
            return answer.clone()
        return answer.copy() if isinstance(answer, np.ndarray) else answer

    def _first(self, W: Tensor, *args: float) -> Any:
        try:
            with warnings.catch_warnings():  # an array of NumPy and a tensor in one sum
                warnings.filterwarnings("error", "__array_wrap__", DeprecationWarning)
                answer = self.function(W.clone(), *args)
        except (AttributeError, TypeError, RuntimeError, DeprecationWarning) as error:
            try:
                answer = self.function(_array(W), *args)
            except Exception:
                raise self._failed(error, W) from error
            self.numpy = True
        else:
            self.numpy = False
        return answer

    def _failed(self, error: Exception, W: Tensor) -> Exception:
        if not isinstance(error, AttributeError | TypeError):
            return error
        why = str(error).splitlines()[0][:100]
        return InputError(
            f"{self.name} failed ({type(error).__name__}: {why}) when called as {called_as(self.name)}, with an array "
            f"of shape {tuple(W.shape)}, of torch and of NumPy"
        )


def _array(W: Tensor) -> NDArray[Any]:
    return W.detach().cpu().numpy().copy()


def called_as(name: str) -> str:
    """How a function is called: "prox(U, eta)", "value[2](w)"."""
    point = "w" if "[" in name else "W"
    return (
        f"{name}({point.replace('w', 'u').replace('W', 'U')}, eta)" if name.startswith("prox") else f"{name}({point})"
    )
