"""Reads, which stores, snapshots and transactions have in common."""

from ..memory import Bytes
from .library import call, opened
from .values import encoded, names_of, stat_of


class Reads:
    """The operations that read one state. `_handle` is the handle, and `_verb` the beginning of the
    names of its functions."""

    def readinto(self, name, buffer, offset=0):
        """Reads into a buffer from `offset`, and returns the number of bytes read: less than its
        length only if the blob ends there."""
        with Bytes(buffer, writable=True) as (address, length), self._handle as pointer:
            return call(self._verb + "read", pointer, *encoded(name), checked(offset), address, length)

    def read(self, name, offset=0, size=None):
        """Returns `size` bytes from `offset`, or all to the end. They are fewer only if the blob ends
        there."""
        if size is None:
            size = max(0, self.stat(name).size - offset)
        buffer = bytearray(checked(size))
        received = self.readinto(name, buffer, offset)
        return bytes(memoryview(buffer)[:received])

    def stat(self, name):
        """Returns the attributes of a blob."""
        return stat_of(self._verb + "stat", self._handle, name)

    def exists(self, name):
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True


class Lists:
    """The list of names of one state."""

    def list(self, prefix="", after=None, limit=None):
        """Returns at most `limit` pairs of a name and its attributes, in the order of the names. The
        names begin with `prefix`, have its type, and are after `after`."""
        limit = (1 << 62) if limit is None else limit
        arguments = (*encoded(prefix), *encoded(after or b""), limit)
        with self._handle as pointer:
            names = opened("quell_blob_names_close", self._verb + "list", pointer, *arguments)
        return names_of(names, prefix)


def checked(number):
    """Returns an offset or size, which ctypes would truncate."""
    if not 0 <= number < 1 << 64:
        raise ValueError("offsets and sizes are from 0 to 2^64 - 1")
    return number
