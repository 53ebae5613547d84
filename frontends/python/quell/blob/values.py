"""Names, attributes and transforms, as Python programs write them."""

import ctypes
import os
import struct
from typing import NamedTuple

from .library import Attributes, Name, TransformOfNumbers, call

_KINDS = ("add", "multiply", "min", "max", "and", "or", "xor", "compare-and-set")
_OVERFLOWS = ("wrap", "saturate", "check")
# The letters of the module `struct`.
_CELLS = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "f32": "f",
    "f64": "d",
}


class Stat(NamedTuple):
    """The attributes of a blob."""

    size: int
    """In bytes."""
    modified_ns: int
    """The time of the last commit that changed the blob, in nanoseconds since 1970 (UTC)."""


class Transform:
    """Arithmetic on consecutive numbers of a blob, little endian, without reading them.

    `kind` is add, multiply, min, max, and, or, xor or compare-and-set; `type` is u8 to u64, i8 to
    i64, f32 or f64. `operands` is a number, which is used for `count` numbers, or a sequence or
    array with one operand for each number. An array must have the type of the numbers. `overflow`
    is the treatment of integer results outside the range of the type: wrap, saturate or check,
    which raises `Overflow`. A compare-and-set needs `expected`, as many numbers as operands.
    `returns_before` asks for the numbers before the transform."""

    def __init__(self, kind, type, operands, *, count=None, overflow="wrap", expected=None, returns_before=False):
        for value, known in ((kind, _KINDS), (type, _CELLS), (overflow, _OVERFLOWS)):
            if value not in known:
                raise ValueError(f"{value!r} is not one of {', '.join(known)}")
        self._letter = _CELLS[type]
        self._operands = _packed(self._letter, operands)
        self._expected = b"" if expected is None else _packed(self._letter, expected)
        size = struct.calcsize("<" + self._letter)
        self.count = len(self._operands) // size if count is None else count
        self.size = self.count * size
        self.returns_before = returns_before
        self._given = TransformOfNumbers(
            _KINDS.index(kind),
            tuple(_CELLS).index(type),
            _OVERFLOWS.index(overflow),
            self.count,
            ctypes.cast(self._operands, ctypes.c_void_p),
            len(self._operands),
            ctypes.cast(self._expected, ctypes.c_void_p),
            len(self._expected),
            returns_before,
        )

    def given(self):
        """Returns the transform as the library gets it. This object must exist during the call."""
        return ctypes.byref(self._given)

    def numbers(self, data):
        """Returns the numbers in the bytes before the transform."""
        return struct.unpack(f"<{self.count}{self._letter}", data)


def _packed(letter, numbers):
    if isinstance(numbers, (int, float)):
        return struct.pack("<" + letter, numbers)
    try:
        array = memoryview(numbers)
    except TypeError:
        numbers = list(numbers)
        return struct.pack(f"<{len(numbers)}{letter}", *numbers)
    same_kind = (array.format.lstrip("<@=") in "fd") == (letter in "fd")
    if not same_kind or array.itemsize != struct.calcsize("<" + letter):
        raise ValueError(f"the array has other numbers ({array.format!r}) than the transform ({letter!r})")
    return array.tobytes()


def encoded(name):
    """Returns the pointer and the length of a name."""
    name = os.fsencode(name)
    return name, len(name)


def stat_of(function, handle, name):
    """Calls a function that returns the attributes of a blob."""
    attributes = Attributes()
    with handle as pointer:
        call(function, pointer, *encoded(name), ctypes.byref(attributes))
    return Stat(attributes.size_bytes, attributes.modified_ns)


def names_of(opened, prefix):
    """Returns the names and attributes in a list, in the type of `prefix`."""
    found, name = [], Name()
    decode = os.fsdecode if isinstance(prefix, str) else bytes
    with opened as names:
        while call("quell_blob_names_next", names, ctypes.byref(name)):
            stat = Stat(name.attributes.size_bytes, name.attributes.modified_ns)
            found.append((decode(ctypes.string_at(name.name, name.name_bytes)), stat))
    opened.close()
    return found
