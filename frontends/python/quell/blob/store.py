"""Stores and snapshots."""

import asyncio
import atexit
import ctypes
import functools
import weakref
from concurrent.futures import Future

from ..memory import Bytes
from .library import Options, call, last_error, opened, submit
from .reads import Lists, Reads, checked
from .transaction import Retries, Transaction
from .values import encoded

_IN_FLIGHT_MAX = 1000


class Snapshot(Reads, Lists):
    """One state of a store, which later commits do not change. All methods raise `SnapshotTooOld` if
    the store no longer keeps the state. Ends with its `with` block."""

    _verb = "quell_blob_snapshot_"

    def __init__(self, store):
        with store._handle as pointer:
            self._handle = opened("quell_blob_snapshot_close", "quell_blob_snapshot_begin", pointer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._handle.close()

    @property
    def version(self):
        with self._handle as pointer:
            return call("quell_blob_snapshot_version", pointer)

    def next_data(self, name, offset=0):
        """Returns the first position from `offset` on at which a blob has data, or None if there is
        none up to the end. The bytes before it are zeros."""
        position = ctypes.c_uint64()
        with self._handle as pointer:
            arguments = (*encoded(name), checked(offset), ctypes.byref(position))
            found = call("quell_blob_snapshot_next_data", pointer, *arguments)
        return position.value if found else None


class Store(Reads):
    """A store of blobs. A method that changes one blob is a transaction of its own, and never
    conflicts. Any number of threads may use a store."""

    _verb = "quell_blob_"

    def __init__(self, location, *, create=True, in_flight_max=_IN_FLIGHT_MAX):
        if in_flight_max < 1:
            raise ValueError("at least one operation is in flight")
        options = Options(in_flight_max, not create)
        text = location if isinstance(location, bytes) else location.encode()
        if b"\0" in text:
            raise ValueError("a location must not contain a NUL byte")
        self._handle = opened("quell_blob_close", "quell_blob_open", text, ctypes.byref(options))
        self._in_flight_max = in_flight_max
        self._semaphores = weakref.WeakKeyDictionary()
        _open_stores.add(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Waits for all submitted operations, and closes the store. A store in a directory stays open
        until its transactions and snapshots are closed as well."""
        self._handle.close()

    def create(self, name):
        self._call("create", name)

    def delete(self, name):
        self._call("delete", name)

    def rename(self, name, to):
        """Gives a blob another name, which must not be in use."""
        self._call("rename", name, *encoded(to))

    def write(self, name, data, offset=0):
        with Bytes(data) as (address, length):
            self._call("write", name, checked(offset), address, length)

    def append(self, name, data):
        """Writes data at the end of a blob, and returns its offset."""
        with Bytes(data) as (address, length):
            return self._call("append", name, address, length)

    def resize(self, name, size):
        self._call("resize", name, checked(size))

    def transform(self, name, offset, transform):
        """Applies a transform. Returns the numbers before it if the transform asks for them."""
        size = transform.size if transform.returns_before else 0
        before = ctypes.create_string_buffer(size)
        self._call("apply", name, checked(offset), transform.given(), before, size)
        return transform.numbers(before.raw) if size else None

    def list(self, prefix="", after=None, limit=None):
        """Lists the latest state: see `Snapshot.list`."""
        with self.snapshot() as snapshot:
            return snapshot.list(prefix, after, limit)

    def collect(self):
        """Removes all data that neither the latest state nor a snapshot needs."""
        with self._handle as pointer:
            call("quell_blob_collect", pointer)

    def snapshot(self):
        """Begins a snapshot of the latest state."""
        return Snapshot(self)

    def transaction(self):
        """Begins a transaction, which reads the latest state and its own changes."""
        return Transaction(self, "quell_blob_begin")

    def batch(self):
        """Begins a transaction that cannot read. It sends no request to a server before its
        commit."""
        return Transaction(self, "quell_blob_batch")

    def transact(self, body, *arguments, retries=Retries()):
        """Calls `body(transaction, *arguments)`, commits the transaction, and returns the result of
        `body`. Repeats all of this after a conflict."""

        def attempt():
            with self.transaction() as transaction:
                result = body(transaction, *arguments)
            return result

        return retries.repeat(attempt)

    def transactional(self, body):
        """A decorator: calls of the function are transactions of this store, as with `transact`. The
        transaction is the first parameter of the function."""
        return functools.wraps(body)(functools.partial(self.transact, body))

    def submit_read(self, name, buffer, offset=0):
        """Reads into a buffer as `readinto`, without waiting, and returns a
        `concurrent.futures.Future` of the number of bytes, with the rules of `Transaction.submit`.
        The buffer has at most 64 MiB, and must not be used until then."""
        future = Future()
        future.set_running_or_notify_cancel()
        memory = Bytes(buffer, writable=True)
        address, length = memory.__enter__()

        def receive(count):
            memory.__exit__()
            if count < 0:
                future.set_exception(last_error(-count))
            else:
                future.set_result(count)

        try:
            with self._handle as pointer:
                arguments = (*encoded(name), checked(offset), address, length)
                submit("quell_blob_submit_read", pointer, *arguments, receiver=receive)
        except BaseException:
            memory.__exit__()
            raise
        return future

    async def readinto_async(self, name, buffer, offset=0):
        """Reads into a buffer as `readinto`. Other tasks run meanwhile."""
        async with self._slots():
            return await asyncio.wrap_future(self.submit_read(name, buffer, offset))

    async def read_async(self, name, offset, size):
        """Returns bytes as `read`. Other tasks run meanwhile."""
        buffer = bytearray(checked(size))
        received = await self.readinto_async(name, buffer, offset)
        return bytes(memoryview(buffer)[:received])

    def _call(self, verb, name, *arguments):
        with self._handle as pointer:
            return call(self._verb + verb, pointer, *encoded(name), *arguments)

    def _slots(self):
        """Returns a semaphore, so that the thread of the event loop does not wait in the library."""
        loop = asyncio.get_running_loop()
        semaphore = self._semaphores.get(loop)
        if semaphore is None:
            semaphore = self._semaphores[loop] = asyncio.Semaphore(self._in_flight_max)
        return semaphore


_open_stores = weakref.WeakSet()


@atexit.register
def _close_stores():
    # Threads of the library must not call Python functions after the end of the interpreter.
    for store in list(_open_stores):
        store.close()


def open(location, *, create=True, in_flight_max=_IN_FLIGHT_MAX):  # noqa: A001: as in io, os and gzip
    """Opens the store at a location: `dir:PATH`, the path of a directory, `unix:PATH`,
    `quell://HOST:PORT?key=FILE`, or `rados://POOL/NAMESPACE?key=FILE` for the present server of a
    store in RADOS. A directory that does not exist is created, unless `create` is False. At most
    `in_flight_max` submitted operations are in flight."""
    return Store(location, create=create, in_flight_max=in_flight_max)
