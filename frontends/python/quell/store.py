"""Stores, and operations on them by path."""

import ctypes
import os
import stat
import threading
import weakref
from typing import NamedTuple

from .file import File
from .library import Attributes, Choices, EntryOfDirectory, ShareBytes, call
from .memory import Handle


class Entry(NamedTuple):
    """An entry of a directory."""

    name: str
    mode: int

    def is_dir(self):
        return stat.S_ISDIR(self.mode)

    def is_file(self):
        return stat.S_ISREG(self.mode)


class Store:
    """Directories opened as one directory tree. 0 selects the default of an option."""

    def __init__(self, *directories, buffer_bytes=0, index_threads=0, flatten_bytes=0):
        paths = [os.fsencode(directory) for directory in directories]
        listed = (ctypes.c_char_p * len(paths))(*paths)
        choices = Choices(buffer_bytes, index_threads, flatten_bytes)
        pointer = ctypes.c_void_p()
        named = directories[0] if directories else None
        call("quell_store_open", listed, len(paths), ctypes.byref(choices), ctypes.byref(pointer), path=named)
        self._handle = Handle(pointer, "quell_store_close", call)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the store. Files that were opened through it stay open."""
        self._handle.close()

    def open(self, path, mode="rb", permissions=0o666, shares=None):
        """Opens a file. `mode` is a mode of Python's `open` for binary files; `permissions` are
        reduced by the umask. With `shares`, the results of `read_share` of all processes that open
        the file together, the index of an existing file is not read again; the mode is then rb or
        rb+."""
        flags = _flags(mode)
        pointer = ctypes.c_void_p()
        if shares is None:
            self._ask("quell_open", path, flags, permissions, ctypes.byref(pointer))
        else:
            given = _shares(shares)
            self._ask("quell_open_with_shares", path, flags, given, len(given), ctypes.byref(pointer))
        file = File(self, pointer, path, mode)
        if "a" in mode:
            file.seek(0, os.SEEK_END)
        return file

    def stat(self, path):
        """As `os.lstat`; the access time is the time of the last modification."""
        attributes = Attributes()
        self._ask("quell_stat", path, ctypes.byref(attributes))
        return attributes.as_stat()

    def exists(self, path):
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def truncate(self, path, size):
        if size < 0:
            raise ValueError("a size cannot be negative")
        self._ask("quell_truncate", path, size)

    def flatten(self, path):
        """Merges the indexes of the published data of a file into one, for later opens, and returns
        its size in bytes."""
        return self._ask("quell_flatten", path)

    def flatten_shares(self, path, shares):
        """As `flatten`, with the results of `read_share` of all processes: one of them calls it."""
        given = _shares(shares)
        return self._ask("quell_flatten_shares", path, given, len(given))

    def index_logs(self, path):
        """Returns the number of index logs that opening the file reads, the largest useful number
        of shares: 0 if no process has published data, and 1 if the file is flattened."""
        return self._ask("quell_index_logs", path)

    def read_share(self, path, number, shares):
        """Reads share `number` (from 0) of `shares` of the index of a file, as bytes. Processes
        that open a file together each read one share, exchange them, for example with mpi4py, and
        pass all of them to `open`."""
        pointer = ctypes.c_void_p()
        self._ask("quell_read_share", path, number, shares, ctypes.byref(pointer))
        try:
            found = ShareBytes()
            call("quell_share_bytes", pointer, ctypes.byref(found))
            return ctypes.string_at(found.bytes, found.length)
        finally:
            call("quell_share_free", pointer)

    def remove(self, path):
        self._ask("quell_remove", path)

    def rename(self, source, target):
        """Renames `source` to `target`, and replaces an existing entry of that name."""
        self._ask("quell_rename", source, _path(target))

    def mkdir(self, path, permissions=0o777):
        self._ask("quell_mkdir", path, permissions)

    def rmdir(self, path):
        self._ask("quell_rmdir", path)

    def scandir(self, path=""):
        """Returns the entries of a directory, in no particular order."""
        pointer = ctypes.c_void_p()
        self._ask("quell_dir_open", path, ctypes.byref(pointer))
        listing, entry, entries = Handle(pointer, "quell_dir_close", call), EntryOfDirectory(), []
        with listing as directory:
            while call("quell_dir_next", directory, ctypes.byref(entry)):
                entries.append(Entry(os.fsdecode(entry.name), entry.mode))
        listing.close()
        return entries

    def listdir(self, path=""):
        return [entry.name for entry in self.scandir(path)]

    def _ask(self, function, path, *arguments):
        with self._handle as store:
            return call(function, store, _path(path), *arguments, path=path)


def _path(path):
    path = os.fsencode(path)
    if b"\0" in path:
        raise ValueError("a path must not contain a NUL byte")
    return path


def _shares(shares):
    """Returns an array for the library. The strings in it are kept by the array."""
    shares = [bytes(share) for share in shares]
    array = (ShareBytes * len(shares))()
    for entry, share in zip(array, shares):
        entry.bytes, entry.length = ctypes.cast(share, ctypes.c_void_p), len(share)
    array.kept = shares
    return array


def _flags(mode):
    kinds = {"r": os.O_RDONLY, "w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT}
    letters = sorted(mode.replace("b", "", 1).replace("+", "", 1))
    if len(letters) != 1 or letters[0] not in kinds:
        raise ValueError(f"the mode is one of r, w, x and a, with + and b or without, and not {mode!r}")
    if "+" in mode:
        return kinds[letters[0]] | os.O_RDWR
    return kinds[letters[0]] | (os.O_RDONLY if letters[0] == "r" else os.O_WRONLY)


# One store per tree, kept while it has open files, so that these share their data.
_stores = weakref.WeakValueDictionary()
_stores_lock = threading.Lock()


def open(store, path, mode="rb", permissions=0o666):  # noqa: A001: as in io, os and gzip
    """Opens a file in a store: a directory, several of them, or a `Store`. See `Store.open`."""
    _flags(mode)
    if not isinstance(store, Store):
        store = _store_of(store)
    return store.open(path, mode, permissions)


def _store_of(directories):
    if isinstance(directories, (str, bytes, os.PathLike)):
        directories = [directories]
    directories = [os.path.realpath(os.fsencode(directory)) for directory in directories]
    key = (os.getpid(), *directories)
    with _stores_lock:
        store = _stores.get(key)
        if store is None:
            store = _stores[key] = Store(*directories)
        return store


# In a child process the thread that held the lock does not exist.
def _after_fork():
    global _stores_lock
    _stores_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
