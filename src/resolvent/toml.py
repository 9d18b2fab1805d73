"""TOML of others. Python's parser takes time quadratic in the parts of a dotted key: long ones are refused first."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

MAX_CHARACTERS = 1 << 22
"""Of a document, at most: Python's parser takes about a second for each million."""
MOST_PARTS = 32
"""Of a dotted key, at most: what is written here has two."""
TOKEN = re.compile(
    r"""
    (\.)
    | ( \"{3} (?: [^"\\]++ | \\. | "(?!"") )*+ \"{3,5}
      | '{3} (?: [^']++ | '(?!'') )*+ '{3,5}
      | "(?!"") (?: [^"\\\n]++ | \\. )*+ "
      | '(?!'') [^'\n]*+ '
      | [\w\t\ -]++ )
    | (["'])
    | \#[^\n]*+
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
"""A dot, what may stand beside one in a key, a quote that nothing ends, or anything else; each takes what it passes."""


def parse(text: str) -> dict[str, Any]:
    """The sections of a document; ValueError where it is none, or has a number of thousands of digits."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has more than {MAX_CHARACTERS} characters")
    dots = 0
    for token in TOKEN.finditer(text):
        if token.lastindex == 3:  # the parser gets no further
            break
        dots = 0 if token.lastindex is None else dots + (token.lastindex == 1)
        if dots >= MOST_PARTS:
            raise ValueError(f"a key in it has more than {MOST_PARTS} parts with dots between them")
    tree = tomllib.loads(text)
    repr(tree)  # ValueError where a hexadecimal number has more digits than a sentence about it could show
    return tree


def fingerprint_of(tree: Mapping[str, Any]) -> str:
    """The fingerprint of a configuration as it was written."""
    computed = {name: section for name, section in tree.items() if name != "store"}
    problem = computed.get("problem")
    if isinstance(problem, Mapping) and "sha256" in problem:
        computed["problem"] = {key: value for key, value in problem.items() if key != "data"}
    return hashlib.sha256(json.dumps(computed, sort_keys=True, default=str).encode()).hexdigest()[:16]
