"""LIBSVM's text format: `label index:value index:value ...`, indices from 1, one line per row, comments after #."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.limits import check_dense
from resolvent.errors import quoted, refuse, whole

Floats = NDArray[np.float64]

MAX_FEATURES = {False: 10**6, True: 2**24}
"""Features of dense and of sparse rows, at most: each has a name, and each user's state a number."""
BLOCK_BYTES = 2**23
"""Read at a time: a file of any size needs little more memory than its rows."""

# Possessive (++, *+): a line that does not match is refused in linear time.
_NUMBER = rb"[-+]?(?:(?:\d++\.?\d*+|\.\d++)(?:e[-+]?\d++)?|nan|inf(?:inity)?)"
_PAIR = rb"[ \t]++\d{1,15}+:" + _NUMBER
_LINE = re.compile(
    rb"[ \t]*(" + _NUMBER + rb")(?:[ \t]++qid:\d++)?((?:" + _PAIR + rb")*+)\s*+(?:#.*)?", re.IGNORECASE | re.DOTALL
)
_COMMENT = re.compile(rb"\s*(?:#.*)?", re.DOTALL)


def looks_alike(file: IO[bytes]) -> bool:
    """Whether the first row of an open file is one of this format, with at least one feature."""
    first = next((line for line in file if not _COMMENT.fullmatch(line)), b"")
    file.seek(0)
    match = _LINE.fullmatch(first)
    return match is not None and b":" in match[2]


def read(
    file: IO[bytes], name: str, target: object = None, width: int | None = None, sparse: bool = False
) -> tuple[Any, Floats, tuple[str, ...], str]:
    """Features, named by their indices, dense or as a SciPy CSR array, and labels.

    width: how many features there are; without it, as many as the largest index says.
    """
    if target is not None:
        refuse("target", quoted(target), f"{name} is a LIBSVM file, whose labels come first: leave it out")
    width = None if width is None else whole(width, "width")
    parts, n, largest = [], 0, 0
    for label, row, column, value in _blocks(file, name):
        row += n
        parts.append((label, row, column, value))
        n, largest = n + len(label), max(largest, int(column.max(initial=0)))
        _check_width(largest, "path", f"{name}, which has a feature number {largest}", sparse)
        if not sparse:
            check_dense(n, largest, name)
        _check_columns(row, column, name)
    if not n:
        refuse("path", f"{name}, which has no rows", "lines of `label index:value ...` are needed")
    if width is not None and width < largest:
        refuse("width", width, f"{name} has a feature number {largest}")
    d = largest if width is None else width
    _check_width(d, "width", d, sparse)
    labels, rows, columns, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if sparse:
        from scipy.sparse import csr_array

        x = csr_array((values, (rows, columns - 1)), shape=(n, d))
    else:
        check_dense(n, d, name)
        x = np.zeros((n, d))
        x[rows, columns - 1] = values
    return x, labels, tuple(str(i + 1) for i in range(d)), "label"


def _check_width(features: int, argument: str, given: object, sparse: bool) -> None:
    """Refuse a feature number that no model here has room for; one slip of the pen is enough for it."""
    if features > MAX_FEATURES[sparse]:
        kind, advice = ("sparse", "") if sparse else ("dense", f", or up to {MAX_FEATURES[True]} with sparse=True")
        refuse(argument, given, f"{kind} rows have at most {MAX_FEATURES[sparse]} features{advice}")


def _blocks(file: IO[bytes], name: str) -> Iterator[tuple[Floats, NDArray[np.int64], NDArray[np.int64], Floats]]:
    """The labels of a block of lines, and the rows, features and values of its pairs."""
    lines_before = 0
    while lines := file.readlines(BLOCK_BYTES):
        block = list(_rows(lines, lines_before, name))
        lines_before += len(lines)
        if block:
            pairs = np.array([row.count(b":") for row in block], dtype=np.int64)
            numbers = np.fromstring(b" ".join(block).replace(b":", b" ").decode(), sep=" ")
            starts = np.cumsum(1 + 2 * pairs) - (1 + 2 * pairs)
            _check_labels(block, numbers[starts], name)
            rest = np.delete(numbers, starts)
            yield numbers[starts], np.repeat(np.arange(len(pairs)), pairs), rest[::2].astype(np.int64), rest[1::2]


def _rows(lines: Iterable[bytes], before: int, name: str) -> Iterator[bytes]:
    """Each line's label and pairs, without comments and qid."""
    for number, line in enumerate(lines, before + 1):
        if match := _LINE.fullmatch(line):
            yield match[1] + match[2]
        elif not _COMMENT.fullmatch(line):
            shown = line.strip()[:40].decode(errors="replace")
            refuse("path", f"{name}, whose line {number} is {shown!r}", "`label index:value ...` is needed")


def _check_labels(block: Sequence[bytes], labels: Floats, name: str) -> None:
    """Refuse a whole number that a float rounds: it may be a class, and another one would become the same."""
    for k in np.flatnonzero(np.abs(labels) >= 2.0**53).tolist():
        text = block[k].split(maxsplit=1)[0]
        if text.lstrip(b"+-").isdigit() and int(text) != float(labels[k]):
            what = f"{name}, where a label is {text[:40].decode()}"
            refuse("path", what, "whole numbers up to 2^53 are read exactly: number the classes anew, or write 1e20")


def _check_columns(row: NDArray[np.int64], column: NDArray[np.int64], name: str) -> None:
    """Refuse features that are numbered 0, or that a row has twice; they may come in any order."""
    if column.min(initial=1) < 1:
        at = int(row[column.argmin()]) + 1
        refuse("path", f"{name}, whose row {at} has a feature number 0", "LIBSVM counts features from 1")
    if ((np.diff(column) > 0) | (np.diff(row) > 0)).all():
        return
    order = np.lexsort((column, row))
    twice = (np.diff(column[order]) == 0) & (np.diff(row[order]) == 0)
    if twice.any():
        at = order[np.flatnonzero(twice)[0]]
        refuse("path", f"{name}, whose row {row[at] + 1} has feature {column[at]} twice", "once is needed")
