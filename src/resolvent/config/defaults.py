"""Defaults that the library has already, so that a configuration and a call agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def defaults(of: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of the arguments of a function or class of the library."""
    return {name: parameter.default for name, parameter in inspect.signature(of).parameters.items()}
