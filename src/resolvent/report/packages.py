"""The packages that pictures and pages are made with."""

from __future__ import annotations

from importlib.util import find_spec

from resolvent.errors import InputError
from resolvent.installed import install


def needed(*names: str) -> None:
    """Refuse, before anything is run, what could not be drawn afterwards."""
    for name in names:
        if find_spec(name) is None:
            raise InputError(f"{name}, which draws this, is not installed; {install('plot')}")
