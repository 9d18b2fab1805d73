"""A run's configuration: typed sections, read from TOML or the command line, written back whole."""

from resolvent.config.reading import (
    dumps,
    fingerprint,
    fingerprint_of,
    keys,
    literal,
    load,
    names,
    parse,
    plain,
    preset,
    read,
    text,
    with_values,
)
from resolvent.config.sections import Config
from resolvent.iteration.registry import alike, nearest

__all__ = [
    "Config",
    "alike",
    "dumps",
    "fingerprint",
    "fingerprint_of",
    "keys",
    "literal",
    "load",
    "names",
    "nearest",
    "parse",
    "plain",
    "preset",
    "read",
    "text",
    "with_values",
]
