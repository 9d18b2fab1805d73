"""How much memory there is, and a refusal of what would not fit, before it is allocated."""

from __future__ import annotations

import os

from resolvent.errors import refuse

FALLBACK_MEMORY_BYTES = 16 * 2**30
"""Bytes assumed where the system does not say."""


def room() -> int:
    """Bytes of memory that this machine has in all."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return FALLBACK_MEMORY_BYTES


def gib(count: int) -> str:
    """Bytes in words."""
    return f"{count:,} bytes ({count / 2**30:.1f} GiB)"


def fits(argument: str, received: str, count: int, advice: str) -> None:
    """Refuse what needs `count` bytes where the machine has fewer."""
    if count > room():
        refuse(argument, f"{received}, which takes {gib(count)}", f"this machine has {gib(room())}: {advice}")
