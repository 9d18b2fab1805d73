"""LIBSVM's text format: `label index:value index:value ...`, indices from 1, one line per row, comments after #."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.errors import refuse, whole

Floats = NDArray[np.float64]

MOST = 8 * 2**30
"""Bytes of the largest dense array that is made."""
MOST_FEATURES = {False: 10**6, True: 2**24}
"""Features of dense and of sparse rows, at most: each has a name, and each user's state a number."""
BLOCK = 2**23
"""Bytes read at a time: a file of any size needs little more memory than its rows."""

# Possessive (++, *+): a line that does not match is refused in linear time.
_NUMBER = rb"[-+]?(?:(?:\d++\.?\d*+|\.\d++)(?:e[-+]?\d++)?|nan|inf(?:inity)?)"
_PAIR = rb"[ \t]++\d{1,15}+:" + _NUMBER
_LINE = re.compile(
    rb"[ \t]*(" + _NUMBER + rb")(?:[ \t]++qid:\d++)?((?:" + _PAIR + rb")*+)\s*+(?:#.*)?", re.IGNORECASE | re.DOTALL
)
_QUIET = re.compile(rb"\s*(?:#.*)?", re.DOTALL)


def looks_alike(file: IO[bytes]) -> bool:
    """Whether the first row of an open file is one of this format, with at least one feature."""
    first = next((line for line in file if not _QUIET.fullmatch(line)), b"")
    file.seek(0)
    match = _LINE.fullmatch(first)
    return match is not None and b":" in match[2]


def rows(
    file: IO[bytes], name: str, target: object = None, width: int | None = None, sparse: bool = False
) -> tuple[Any, Floats, tuple[str, ...], str]:
    """Features, named by their indices, and labels."""
    if target is not None:
        refuse("target", repr(target), f"{name} is a LIBSVM file, whose labels come first: leave it out")
    x, y = parse(file, name, None if width is None else whole(width, "width"), sparse)
    return x, y, tuple(str(i + 1) for i in range(x.shape[1])), "label"


def parse(file: IO[bytes], name: str, width: int | None = None, sparse: bool = False) -> tuple[Any, Floats]:
    """(x, y) of an open file, x dense or a SciPy CSR array; `width` features, or as many as the largest index says."""
    labels, rows, columns, values = [], [], [], []
    seen = most = 0
    for numbers, pairs in _blocks(file, name):
        starts = np.cumsum(1 + 2 * pairs) - (1 + 2 * pairs)
        rest = np.delete(numbers, starts)
        row, column = np.repeat(np.arange(seen, seen + len(pairs)), pairs), rest[::2].astype(np.int64)
        labels.append(numbers[starts])
        rows.append(row)
        columns.append(column)
        values.append(rest[1::2])
        seen += len(pairs)
        most = max(most, int(column.max(initial=0)))
        _few(most, "path", f"{name}, which has a feature number {most}", sparse)
        if not sparse:
            fits(seen, most, name)
        _check(row, column, name)
    if not seen:
        refuse("path", f"{name}, which has no rows", "lines of `label index:value ...` are needed")
    if width is not None and width < most:
        refuse("width", width, f"{name} has a feature number {most}")
    width = most if width is None else width
    _few(width, "width", width, sparse)
    if sparse:
        from scipy.sparse import csr_array

        at = np.concatenate(rows), np.concatenate(columns) - 1
        return csr_array((np.concatenate(values), at), shape=(seen, width)), np.concatenate(labels)
    fits(seen, width, name)
    x = np.zeros((seen, width))
    x[np.concatenate(rows), np.concatenate(columns) - 1] = np.concatenate(values)
    return x, np.concatenate(labels)


def _few(features: int, argument: str, came: object, sparse: bool) -> None:
    """Refuse a feature number that no model here has room for; one slip of the pen is enough for it."""
    if features > MOST_FEATURES[sparse]:
        kind, advice = ("sparse", "") if sparse else ("dense", f", or up to {MOST_FEATURES[True]} with sparse=True")
        refuse(argument, came, f"{kind} rows have at most {MOST_FEATURES[sparse]} features{advice}")


def fits(rows: int, columns: int, name: str) -> None:
    """Refuse what would fill the memory once it is dense."""
    if rows * columns * 8 > MOST:
        came = f"{name}, whose rows ({rows} or more, of {columns} features) take {rows * columns * 8 / 2**30:.1f} GiB"
        refuse("path", came, f"at most {MOST / 2**30:g} GiB are read: take fewer rows or features")


def _blocks(file: IO[bytes], name: str) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """All numbers of a block of lines, and how many pairs each row has."""
    number = 0
    while lines := file.readlines(BLOCK):
        block = list(_rows(lines, number, name))
        number += len(lines)
        if block:
            pairs = np.array([row.count(b":") for row in block], dtype=np.int64)
            numbers = np.fromstring(b" ".join(block).replace(b":", b" ").decode(), sep=" ")
            _check_labels(block, numbers[np.cumsum(1 + 2 * pairs) - (1 + 2 * pairs)], name)
            yield numbers, pairs


def _check_labels(block: Sequence[bytes], labels: Floats, name: str) -> None:
    """Refuse a whole number that a float rounds: it may be a class, and another one would become the same."""
    for k in np.flatnonzero(np.abs(labels) >= 2.0**53).tolist():
        text = block[k].split(maxsplit=1)[0]
        if text.lstrip(b"+-").isdigit() and int(text) != float(labels[k]):
            came = f"{name}, where a label is {text[:40].decode()}"
            refuse("path", came, "whole numbers up to 2^53 are read exactly: number the classes anew, or write 1e20")


def _rows(lines: Iterable[bytes], before: int, name: str) -> Iterator[bytes]:
    """Each line's label and pairs, without comments and qid."""
    for number, line in enumerate(lines, before + 1):
        if match := _LINE.fullmatch(line):
            yield match[1] + match[2]
        elif not _QUIET.fullmatch(line):
            shown = line.strip()[:40].decode(errors="replace")
            refuse("path", f"{name}, whose line {number} is {shown!r}", "`label index:value ...` is needed")


def _check(row: NDArray[np.int64], column: NDArray[np.int64], name: str) -> None:
    if column.min(initial=1) < 1:
        at = int(row[column.argmin()]) + 1
        refuse("path", f"{name}, whose row {at} has a feature number 0", "LIBSVM counts features from 1")
    ascending = (np.diff(column) > 0) | (np.diff(row) > 0)
    if not ascending.all():  # allowed, unless it is because a feature comes twice
        order = np.lexsort((column, row))
        twice = (np.diff(column[order]) == 0) & (np.diff(row[order]) == 0)
        if twice.any():
            at = order[np.flatnonzero(twice)[0]]
            refuse("path", f"{name}, whose row {row[at] + 1} has feature {column[at]} twice", "once is needed")
