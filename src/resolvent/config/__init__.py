"""A run's configuration: typed sections, read from TOML or the command line, written back whole."""

from resolvent.config.reading import (
    alike,
    choices,
    dumps,
    fingerprint,
    fingerprints,
    literal,
    load,
    nearest,
    parse,
    plain,
    preset,
    read,
    text,
    with_values,
)
from resolvent.config.sections import Config

__all__ = [
    "Config",
    "alike",
    "choices",
    "dumps",
    "fingerprint",
    "fingerprints",
    "literal",
    "load",
    "nearest",
    "parse",
    "plain",
    "preset",
    "read",
    "text",
    "with_values",
]
