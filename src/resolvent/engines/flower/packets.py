"""What crosses the network: a header of plain values and named arrays. Nothing is ever unpickled.

This module imports neither torch nor the rest of the package: the process that talks to the server must start quickly.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KINDS = {"float64": "<f8", "float32": "<f4", "int64": "<i8", "int32": "<i4", "uint8": "|u1"}
"""Types of numbers that cross (whole ones are masked words, places, and bits of compressed rows), and how their bytes
lie: little-endian, row by row."""
RAW = "resolvent.raw"
"""How Flower's arrays say that their bytes are just the numbers."""
HEADER, ARRAYS, WHOLE = "header", "arrays", "packet"
MAX_WHOLE = 1 << 16
"""Bytes of arrays that cross in one piece with their header."""
MAX_HEADER = 1 << 22
"""Characters of a header, at most."""
MAX_DIMENSIONS = 4
MAX_LENGTH = 1 << 48
"""Of an array, along one of them."""
MAX_MESSAGE = 500
"""Characters of what is said about a packet that is none."""


class Malformed(ValueError):
    """What came is no packet; the message says why, and does not quote all of it."""

    def __init__(self, message: str) -> None:
        super().__init__(message[:MAX_MESSAGE])


class Packet(NamedTuple):
    """A header of plain values, and arrays by name."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = {}  # noqa: RUF012 (never written to)

    @property
    def size(self) -> int:
        """Bytes of its content."""
        return len(json.dumps(self.header)) + sum(array.nbytes for array in self.arrays.values())


def array_of(kind: object, shape: object, data: object) -> NDArray[Any]:
    """An array from a type, a shape and bytes that somebody else wrote."""
    if not isinstance(data, (bytes, memoryview)):
        raise Malformed("an array has no bytes")
    if len(data) != _bytes_of(kind, shape):
        raise Malformed(f"an array of shape {tuple(shape)} has {len(data)} bytes")  # type: ignore[arg-type]
    try:
        return np.frombuffer(data, KINDS[kind]).reshape(shape)  # type: ignore[call-overload, index, no-any-return]
    except ValueError:  # no number, in more places than an index can count
        raise Malformed("an array has no proper shape") from None


def _bytes_of(kind: object, shape: object) -> int:
    """How many bytes an array has, once both are what they must be."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise Malformed(f"an array has a type other than {', '.join(KINDS)}")
    if not isinstance(shape, (tuple, list)) or len(shape) > MAX_DIMENSIONS:
        raise Malformed("an array has no proper shape")
    if not all(type(n) is int and 0 <= n <= MAX_LENGTH for n in shape):
        raise Malformed("an array has no proper shape")
    return math.prod(shape) * np.dtype(KINDS[kind]).itemsize


def header_of(text: object) -> dict[str, Any]:
    """A header from text that somebody else wrote."""
    if not isinstance(text, str) or len(text) > MAX_HEADER:
        raise Malformed("there is no proper header")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("the header is not JSON") from None
    if not isinstance(header, dict):
        raise Malformed("the header is no object")
    return header


def _raw(array: NDArray[Any]) -> tuple[str, list[int], bytes]:
    kind = array.dtype.name
    return kind, list(array.shape), np.ascontiguousarray(array, KINDS[kind]).tobytes()


# --- as bytes: between the process that talks to the server and the one that has the data -----------------------------


def to_bytes(packet: Packet) -> bytes:
    """8 bytes with the length of the JSON that follows, then the arrays, one after the other."""
    parts = {name: _raw(array) for name, array in packet.arrays.items()}
    head = {HEADER: packet.header, ARRAYS: [[name, kind, shape] for name, (kind, shape, _) in parts.items()]}
    content = json.dumps(head).encode()
    return b"".join([len(content).to_bytes(8, "little"), content, *(data for _, _, data in parts.values())])


def from_bytes(content: bytes) -> Packet:
    """The packet that these bytes are."""
    length = int.from_bytes(content[:8], "little")
    head, rest = content[8 : 8 + length], memoryview(content)[8 + length :]
    if len(content) < 8 or len(head) != length:
        raise Malformed("the bytes end early")
    try:
        fields = header_of(head.decode())
        header, listed = fields[HEADER], [(name, kind, shape) for name, kind, shape in fields[ARRAYS]]
        arrays = {}
        for name, kind, shape in listed:
            end = _bytes_of(kind, shape)
            arrays[str(name)], rest = array_of(kind, shape, rest[:end]), rest[end:]
    except (UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise Malformed(f"the bytes are no packet ({error})") from None
    if not isinstance(header, dict) or len(rest):
        raise Malformed("the bytes are no packet")
    return Packet(header, arrays)


# --- as records: what Flower carries ---------------------------------------------------------------------------------


def to_records(packet: Packet) -> Any:
    """A RecordDict of one ConfigRecord with the header and, where there are large arrays, one ArrayRecord.

    Flower sends every record, every array and every part of one with a question of its own, so a small packet is one.
    """
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if packet.arrays and sum(array.nbytes for array in packet.arrays.values()) <= MAX_WHOLE:
        return RecordDict({HEADER: ConfigRecord({WHOLE: to_bytes(packet)})})
    records = RecordDict({HEADER: ConfigRecord({"json": json.dumps(packet.header)})})
    if packet.arrays:
        raw = {name: _raw(array) for name, array in packet.arrays.items()}
        records[ARRAYS] = ArrayRecord(
            {n: Array(kind, tuple(shape), RAW, data) for n, (kind, shape, data) in raw.items()}
        )
    return records


def from_records(records: Any) -> Packet:
    """The packet in these records; anything else in them is refused."""
    from flwr.app import ArrayRecord, ConfigRecord

    if not set(records) <= {HEADER, ARRAYS}:
        raise Malformed("there are records that were not asked for")
    header, arrays = records.get(HEADER), records.get(ARRAYS, {})
    if isinstance(header, ConfigRecord) and set(header) == {WHOLE} and set(records) == {HEADER}:
        if not isinstance(whole := header[WHOLE], bytes):
            raise Malformed("there is no proper packet")
        return from_bytes(whole)
    if not isinstance(header, ConfigRecord) or set(header) != {"json"}:
        raise Malformed("there is no proper header")
    if ARRAYS in records and not isinstance(arrays, ArrayRecord):
        raise Malformed("the arrays are no arrays")
    for array in arrays.values():
        if array.stype != RAW:
            raise Malformed(f"an array is not packed as {RAW!r}")
    checked = {name: array_of(a.dtype, a.shape, a.data) for name, a in arrays.items()}
    return Packet(header_of(header["json"]), checked)
