"""How this package was installed: hints on optional packages name a command that works here."""

from __future__ import annotations

import json
from importlib import metadata
from urllib.parse import unquote, urlsplit

NAME = "resolvent"


def version() -> str:
    """The version of this package; nothing from a checkout that is not installed."""
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return ""


def install(extra: str) -> str:
    """The command that adds what an extra of this package needs, as this package itself was installed.

    From a checkout that is not installed, or where nothing is known, the packages themselves are named.
    """
    try:
        found = metadata.distribution(NAME)
        source = json.loads(found.read_text("direct_url.json") or "null")
    except (metadata.PackageNotFoundError, ValueError):
        return "pip install " + " ".join(FALLBACK[extra])
    if source is None:
        return f"pip install '{NAME}[{extra}]'"
    url, editable = source["url"], source.get("dir_info", {}).get("editable", False)
    if url.startswith("file:") and "dir_info" in source:
        return f"pip install {'-e ' if editable else ''}'{unquote(urlsplit(url).path)}[{extra}]'"
    vcs = source.get("vcs_info", {}).get("vcs")
    return f"pip install '{NAME}[{extra}] @ {f'{vcs}+' if vcs else ''}{url}'"


FALLBACK = {
    "plot": ("matplotlib", "plotly"),
    "parquet": ("pyarrow",),
    "tensorboard": ("tensorboard",),
    "fast": ("numba",),
    "onnx": ("onnx", "onnxscript"),
    "flower": ("'flwr==1.41.*'", "cryptography"),
    "ui": ("fastapi", "uvicorn", "matplotlib", "plotly", "pyarrow"),
}
