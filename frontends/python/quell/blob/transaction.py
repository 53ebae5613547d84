"""Transactions: operations and reads that are committed together, or not at all."""

import asyncio
import ctypes
import random
import time
from concurrent.futures import Future
from typing import NamedTuple

from ..memory import Bytes
from .library import FileAttributes, call, last_error, opened, submit
from .reads import Lists, Reads, checked
from .values import encoded

# Data of this length and more is written while it is submitted, if no server has the store open.
_WRITTEN_AT_ONCE = 32 << 10


class Committed(NamedTuple):
    """The result of a transaction."""

    version: int
    """The version of the state after the transaction."""
    results: tuple
    """The result of each operation: the offset of an append, the numbers before a transform that
    returns them, otherwise None."""


class Transaction(Reads, Lists):
    """A transaction, which is committed at the end of a `with` block without an exception. Then
    `committed` has its result. Each method that adds an operation returns its index. A transaction
    of `Store.batch` cannot read and never conflicts."""

    _verb = "quell_blob_transaction_"

    def __init__(self, store, function):
        self._store = store
        with store._handle as pointer:
            self._handle = opened("quell_blob_transaction_close", function, pointer)
        # The transforms whose results have numbers, and the appends, by the index of the operation.
        self._transforms, self._appends, self._count, self._largest = {}, set(), 0, 0
        self.committed = None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None and self.committed is None:
                self.commit()
        finally:
            self.close()

    def close(self):
        """Ends the transaction. One that was not committed changes nothing."""
        self._handle.close()

    @property
    def version(self):
        """The version of the state that the transaction reads."""
        with self._handle as pointer:
            return call("quell_blob_transaction_version", pointer)

    def create(self, name, exist_ok=False):
        return self._add("create", name, exist_ok)

    def delete(self, name):
        return self._add("delete", name)

    def rename(self, name, to):
        return self._add("rename", name, *encoded(to))

    def write(self, name, data, offset=0):
        with Bytes(data) as (address, length):
            self._largest = max(self._largest, length)
            return self._add("write", name, checked(offset), address, length)

    def append(self, name, data):
        with Bytes(data) as (address, length):
            self._largest = max(self._largest, length)
            index = self._add("append", name, address, length)
        self._appends.add(index)
        return index

    def resize(self, name, size):
        return self._add("resize", name, checked(size))

    def set_attributes(self, name, file=None, modified_ns=None):
        """Sets the attributes of a blob as a file of `quell mount --blob`: `file` is a tuple of
        `st_mode`, user and group. `modified_ns` is the time of the last change, in nanoseconds
        since 1970. `None` leaves them as they are."""
        given = None
        if file is not None:
            mode, uid, gid = file  # ctypes accepts fewer numbers, and truncates large ones
            if not all(0 <= number < 1 << 32 for number in (mode, uid, gid)):
                raise ValueError("modes, users and groups are from 0 to 2^32 - 1")
            given = FileAttributes(mode, uid, gid)
        time_ns = None if modified_ns is None else ctypes.c_uint64(checked(modified_ns))
        references = [None if value is None else ctypes.byref(value) for value in (given, time_ns)]
        return self._add("set_attributes", name, *references)

    def transform(self, name, offset, transform):
        index = self._add("apply", name, checked(offset), transform.given())
        if transform.returns_before:
            self._transforms[index] = transform
        return index

    def _add(self, verb, name, *arguments):
        with self._handle as pointer:
            call(self._verb + verb, pointer, *encoded(name), *arguments)
        self._count += 1
        return self._count - 1

    def commit(self):
        """Commits the transaction, and returns a `Committed`."""
        with self._handle as pointer:
            result = opened("quell_blob_result_close", "quell_blob_commit", pointer)
        with result as found:
            self.committed = self._read(found)
        result.close()
        return self.committed

    def submit(self):
        """Commits the transaction without waiting, and returns a `concurrent.futures.Future` of a
        `Committed`. Waits while `in_flight_max` operations are in flight. The functions that the
        future calls run on the thread of the store that calls all of them, and must not wait for
        other operations of the store."""
        future = Future()
        future.set_running_or_notify_cancel()

        def receive(status, result):
            try:
                if status < 0:
                    raise last_error(-status)
                self.committed = self._read(result)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(self.committed)

        with self._handle as pointer:
            submit("quell_blob_submit", pointer, receiver=receive)
        return future

    async def commit_async(self):
        """Commits the transaction, and returns a `Committed`. Other tasks run meanwhile."""
        async with self._store._slots():
            if self._largest < _WRITTEN_AT_ONCE:
                future = self.submit()
            else:
                future = await asyncio.get_running_loop().run_in_executor(None, self.submit)
            return await asyncio.wrap_future(future)

    def _read(self, result):
        def value(index):
            if index in self._appends:
                return call("quell_blob_result_appended", result, index)
            transform = self._transforms.get(index)
            if transform is None:
                return None
            before = ctypes.create_string_buffer(transform.size)
            call("quell_blob_result_before", result, index, before, transform.size)
            return transform.numbers(before.raw)

        results = tuple(value(index) for index in range(self._count))
        return Committed(call("quell_blob_result_version", result), results)


class Retries(NamedTuple):
    """The number of attempts of a transaction that conflicts, and their delays. The mean time before
    an attempt doubles from `first_delay` to `delay_max`, both in seconds."""

    attempts: int = 20
    first_delay: float = 0.0001
    delay_max: float = 1.0

    def repeat(self, attempt):
        """Calls `attempt` until it raises no error after which a transaction can be repeated."""
        for number in range(1, self.attempts + 1):
            try:
                return attempt()
            except OSError as error:
                if not getattr(error, "is_repeatable", False) or number == self.attempts:
                    raise
            time.sleep(self._delay(number))

    def _delay(self, number):
        return random.uniform(0.5, 1.5) * min(self.delay_max, self.first_delay * 2 ** min(number - 1, 60))
