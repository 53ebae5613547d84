"""Pointers of the C libraries, and the memory of Python objects."""

import ctypes
import errno
import os
import threading
from ctypes import POINTER, c_char_p, c_int, c_ssize_t, c_void_p


class Handle:
    """A pointer of a library, and the name of the function that closes it, which `call` calls. It is
    closed once, when no thread uses it, and only by the process that opened it."""

    def __init__(self, pointer, close, call):
        self._pointer, self._close, self._call = pointer, close, call
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._users = 0
        self._is_open = True

    def __enter__(self):
        if not self.is_ours:
            raise OSError(errno.EBADF, "it was opened before the fork, by another process")
        with self._lock:
            if not self._is_open:
                raise ValueError("I/O operation on a closed file or store")
            self._users += 1
            return self._pointer

    def __exit__(self, *_):
        with self._lock:
            self._users -= 1
            is_last = not self._users and not self._is_open
        if is_last:
            self._call(self._close, self._pointer)

    @property
    def is_ours(self):
        return self._process == os.getpid()

    def close(self):
        if not self.is_ours:
            self._is_open = False
            return
        with self._lock:
            was_open, self._is_open = self._is_open, False
            is_used = self._users > 0
        # A thread that still uses it closes it afterwards.
        if was_open and not is_used:
            self._call(self._close, self._pointer)

    def __del__(self):
        try:
            self.close()
        except OSError:
            pass  # cannot be reported here; `close` reports errors


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython's stable ABI."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, POINTER(_PyBuffer), c_int]
_get_buffer.restype = c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [POINTER(_PyBuffer)]
_release_buffer.restype = None
_SIMPLE, _WRITABLE = 0, 1


class Bytes:
    """The memory of an object, for a `with` block: its address and size do not change meanwhile."""

    def __init__(self, of, writable=False):
        self._of, self._how = of, _WRITABLE if writable else _SIMPLE
        self._buffer = _PyBuffer()

    def __enter__(self):
        _get_buffer(self._of, ctypes.byref(self._buffer), self._how)
        return self._buffer.buf, self._buffer.len

    def __exit__(self, *_):
        _release_buffer(ctypes.byref(self._buffer))
