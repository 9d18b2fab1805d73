"""Checksums of a run's own files: `sha256sum -c SHA256SUMS` in its folder checks them too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from resolvent.runs import regular

FILE = "SHA256SUMS"


def listing(contents: Mapping[str, bytes]) -> bytes:
    """What the file says of these contents."""
    return "".join(f"{of(content)}  {name}\n" for name, content in contents.items()).encode()


def changed(folder: Path) -> list[str]:
    """What is wrong with the files that the listing names, a few words each; nothing where there is no listing."""
    path = folder / FILE
    if not path.exists():
        return []
    pairs = [line.split("  ", 1) for line in regular.text(path, "replace").splitlines()]
    listed = {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and len(pair[0]) == 64}
    if len(listed) != len(pairs) or not {"config.toml", "about.json"} <= listed.keys():
        return [f"{FILE} is damaged"]
    return [finding for name, sha256 in listed.items() if (finding := differs(folder, name, sha256))]


def of(content: bytes) -> str:
    """SHA-256 as text."""
    return hashlib.sha256(content).hexdigest()


def differs(folder: Path, name: str, sha256: str) -> str:
    """How a file differs from the one with this checksum, in a few words; empty where it does not."""
    path = folder / name
    if Path(name).name != name or not path.is_file():
        return f"{name} is missing"
    with regular.opened(path, limit=None if path.suffix == ".safetensors" else regular.MAX_FILE_BYTES) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
            return ""
        empty = not file.tell()
    return f"{name} is empty" if empty else f"{name} was changed since it was written"
