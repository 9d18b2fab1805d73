"""Whose runs these are: a run that calls a user's code is sealed with a key that only this user has.

A configuration may name `file.py:function`, which is code. A folder from elsewhere carries no seal of this user's, so
nothing of it is called unless the user says so.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from resolvent.errors import InputError
from resolvent.runs import durable, regular, sums

if TYPE_CHECKING:
    from resolvent.runs.folder import Folder

FILE = "seal"


def seal(listing: bytes) -> bytes | None:
    """The seal of a run's checksums; None where no key can be written."""
    try:
        key = _key(make=True)
    except OSError:
        return None
    return None if key is None else _code(key, listing)


def sealed(folder: Path) -> bool:
    """Whether this user made the folder, and its files are those that were sealed."""
    try:
        key = _key(make=False)
        listing, mine = regular.read(folder / sums.FILE), regular.read(folder / FILE)
        return key is not None and hmac.compare_digest(_code(key, listing), mine) and not sums.changed(folder)
    except OSError:
        return False


def consent(run: Folder, trusted: bool) -> None:
    """Refuse to call code that a folder from elsewhere names."""
    if run.code and not trusted and not sealed(run.path):
        raise InputError(
            f"run {run.id} calls code, {run.code}, and was not made by this user on this machine; "
            f"read that file first, then say so with --trust"
        )


def _code(key: bytes, listing: bytes) -> bytes:
    return hmac.digest(key, listing, "sha256").hex().encode() + b"\n"


def _key(make: bool) -> bytes | None:
    """The user's own key, in a file that nobody else can read."""
    path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "resolvent" / "key"
    if path.is_file():
        return path.read_bytes() or None
    if not make:
        return None
    durable.make(path.parent)
    part = path.with_name(f".key-{secrets.token_hex(4)}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(part, path)  # whoever is first: the same key for all
    except FileExistsError:
        pass
    finally:
        part.unlink()
    durable.sync(path.parent)
    return path.read_bytes()
