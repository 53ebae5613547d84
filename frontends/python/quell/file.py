"""An open file of a store."""

import ctypes
import io
import os
from contextlib import ExitStack

from .library import Attributes, ReadPiece, WritePiece, call
from .memory import Bytes, Handle


class File(io.RawIOBase):
    """An open file, not buffered by Python. Any number of threads may use it. They share the
    position (`seek`, `tell`, `read`, `write`); `pread`, `pwrite` and the functions for pieces do
    not use it."""

    def __init__(self, store, pointer, path, mode):
        super().__init__()
        self._store = store  # files opened through one store share their data
        self._handle = Handle(pointer, "quell_close", call)
        self.name, self.mode = path, mode
        self._reads, self._writes = "r" in mode or "+" in mode, mode.strip("b") != "r"
        self._appends = "a" in mode
        self._position = 0

    def __repr__(self):
        return f"<quell.File name={self.name!r} mode={self.mode!r}{' closed' if self.closed else ''}>"

    def readable(self):
        self._check_open()
        return self._reads

    def writable(self):
        self._check_open()
        return self._writes

    def seekable(self):
        self._check_open()
        return True

    def _check_open(self):
        if self.closed:
            raise ValueError("I/O operation on a closed file")

    def _check(self, may, verb):
        self._check_open()
        if not may:
            raise io.UnsupportedOperation(f"the file is not open for {verb}")

    # Operations at the position of the file.

    def readinto(self, buffer):
        count = self.preadinto(buffer, self._position)
        self._position += count
        return count

    def readall(self):
        rest = self.pread(max(0, self._size() - self._position), self._position)
        self._position += len(rest)
        return rest

    def write(self, data):
        if self._appends:
            self._check(self._writes, "writing")
            with Bytes(data) as (address, length), self._handle as file:
                self._position = call("quell_append", file, address, length, path=self.name) + length
        else:
            length = self.pwrite(data, self._position)
            self._position += length
        return length

    def seek(self, offset, whence=os.SEEK_SET):
        self._check_open()
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError("whence is 0, 1 or 2")
        start = 0
        if whence == os.SEEK_CUR:
            start = self._position
        elif whence == os.SEEK_END:
            start = self._size()
        if start + offset < 0:
            raise ValueError("a position cannot be negative")
        self._position = start + offset
        return self._position

    def tell(self):
        self._check_open()
        return self._position

    def truncate(self, size=None):
        self._check(self._writes, "writing")
        size = self._position if size is None else size
        if size < 0:
            raise ValueError("a size cannot be negative")
        with self._handle as file:
            call("quell_file_truncate", file, size, path=self.name)
        return size

    def flush(self):
        """Makes all data written so far visible to processes that open the file from now on."""
        self._check_open()
        if self._writes and self._handle.is_ours:
            self.publish()

    def close(self):
        if not self.closed:
            try:
                super().close()  # flushes
            finally:
                self._handle.close()

    # Operations at an offset, for any number of threads.

    def preadinto(self, buffer, offset):
        """Reads into a buffer from `offset`, and returns the number of bytes read: less than its
        length only if the file ends there."""
        self._check(self._reads, "reading")
        with Bytes(buffer, writable=True) as (address, length), self._handle as file:
            return call("quell_pread", file, address, length, _offset(offset), path=self.name)

    def pread(self, count, offset):
        buffer = bytearray(count)
        received = self.preadinto(buffer, offset)
        return bytes(memoryview(buffer)[:received])

    def pwrite(self, data, offset):
        """Writes all of the data at `offset`, and returns the number of bytes."""
        self._check(self._writes, "writing")
        with Bytes(data) as (address, length), self._handle as file:
            return call("quell_pwrite", file, address, length, _offset(offset), path=self.name)

    def append(self, data):
        """Appends all of the data at the end of the file as known to this process, and returns its
        offset."""
        self._check(self._writes, "writing")
        with Bytes(data) as (address, length), self._handle as file:
            return call("quell_append", file, address, length, path=self.name)

    def read_pieces(self, pieces):
        """Reads several ranges (offset, count) in one call, and returns the bytes of each."""
        pieces = list(pieces)
        whole = memoryview(bytearray(sum(count for _, count in pieces)))
        parts, start = [], 0
        for offset, count in pieces:
            parts.append((offset, whole[start : start + count]))
            start += count
        received = self.read_pieces_into(parts)
        return [bytes(part[:count]) for (_, part), count in zip(parts, received)]

    def read_pieces_into(self, pieces):
        """Reads into several buffers (offset, buffer) in one call, and returns the number of bytes
        read into each."""
        self._check(self._reads, "reading")
        pieces = list(pieces)
        wanted = (ReadPiece * len(pieces))()
        with ExitStack() as held:
            for piece, (offset, buffer) in zip(wanted, pieces):
                piece.into, piece.length = held.enter_context(Bytes(buffer, writable=True))
                piece.offset = _offset(offset)
            with self._handle as file:
                call("quell_read_pieces", file, wanted, len(pieces), path=self.name)
        return [piece.received for piece in wanted]

    def write_pieces(self, pieces):
        """Writes several ranges (offset, data) in one call, in order, and returns the total number
        of bytes."""
        self._check(self._writes, "writing")
        pieces = list(pieces)
        given = (WritePiece * len(pieces))()
        with ExitStack() as held:
            for piece, (offset, data) in zip(given, pieces):
                piece.source, piece.length = held.enter_context(Bytes(data))
                piece.offset = _offset(offset)
            with self._handle as file:
                return call("quell_write_pieces", file, given, len(pieces), path=self.name)

    def publish(self):
        """Makes all data written so far visible to processes that open the file from now on."""
        self._check_open()
        with self._handle as file:
            call("quell_publish", file, path=self.name)

    def sync(self):
        """As `publish`; in addition the data survives a power failure, and data that other
        processes have published becomes visible."""
        self._check_open()
        with self._handle as file:
            call("quell_sync", file, path=self.name)

    def stat(self):
        """As `os.fstat`; the access time is the time of the last modification."""
        self._check_open()
        attributes = Attributes()
        with self._handle as file:
            call("quell_file_stat", file, ctypes.byref(attributes), path=self.name)
        return attributes.as_stat()

    def _size(self):
        return self.stat().st_size


def _offset(offset):
    # ctypes would convert a negative number to a large one.
    if offset < 0:
        raise ValueError("an offset cannot be negative")
    return offset
