"""Read and write protocol buffers without a schema compiler (https://protobuf.dev/programming-guides/encoding/).

A message is a sequence of fields. Each has a number, and a value that is an integer, a number of 4 or 8 bytes, or bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TypeAlias

Value: TypeAlias = "int | float | bytes"

_INTEGER, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_INTEGER = 10
"""The largest number of bytes of an integer."""


def read_fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field. Numbers of 4 and 8 bytes are read as floats, and integers as signed
    ones. Raises ValueError if the message is not valid."""
    place = 0
    while place < len(message):
        tag, place = _read_integer(message, place)
        kind = tag & 7
        if kind == _INTEGER:
            number, place = _read_integer(message, place)
            value: Value = number - 2**64 if number >= 2**63 else number
        elif kind == _BYTES:
            size, place = _read_integer(message, place)
            value = _cut(message, place, size)
            place += size
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            size, layout = (8, "<d") if kind == _EIGHT_BYTES else (4, "<f")
            value = struct.unpack(layout, _cut(message, place, size))[0]
            place += size
        else:
            raise ValueError(f"a field has the unknown wire type {kind}")
        yield tag >> 3, value


def read_integers(value: Value) -> list[int]:
    """Return the integers of a repeated field, which may be packed. Raises ValueError."""
    if not isinstance(value, bytes):
        return [int(value)]
    found, place = [], 0
    while place < len(value):
        number, place = _read_integer(value, place)
        found.append(number - 2**64 if number >= 2**63 else number)
    return found


def write_integer(number: int, value: int) -> bytes:
    return _write_integer(number << 3 | _INTEGER) + _write_integer(value)


def write_integers(number: int, values: Iterable[int]) -> bytes:
    """Return a packed repeated field, or nothing if there are no values."""
    packed = b"".join(map(_write_integer, values))
    return write_bytes(number, packed) if packed else b""


def write_double(number: int, value: float) -> bytes:
    return _write_integer(number << 3 | _EIGHT_BYTES) + struct.pack("<d", value)


def write_bytes(number: int, value: bytes) -> bytes:
    """Return a field of bytes, or one that contains another message."""
    return _write_integer(number << 3 | _BYTES) + _write_integer(len(value)) + value


def write_text(number: int, value: str) -> bytes:
    return write_bytes(number, value.encode())


def _read_integer(message: bytes, place: int) -> tuple[int, int]:
    number = 0
    for index in range(_LONGEST_INTEGER):
        if place + index >= len(message):
            raise ValueError("the message ends within an integer")
        byte = message[place + index]
        number |= (byte & 127) << (7 * index)
        if byte < 128:
            return number & (2**64 - 1), place + index + 1
    raise ValueError("an integer has more than 10 bytes")


def _write_integer(value: int) -> bytes:
    rest, written = value & (2**64 - 1), bytearray()
    while rest > 127:
        written.append(rest & 127 | 128)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def _cut(message: bytes, place: int, size: int) -> bytes:
    if place + size > len(message):
        raise ValueError(f"a field of {size} bytes exceeds the message")
    return message[place : place + size]
