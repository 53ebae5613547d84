"""Batches: changes of a store for batches that are published together."""

import ctypes
import os
import weakref
from typing import NamedTuple

from .library import BatchOptions, BatchResult, call
from .memory import Handle
from .store import Store


class CommitResult(NamedTuple):
    """The result of a commit: the number of the batch, the number of new files, directories and
    links that were published, and the number of operations that conflict with changes of others and
    were not published. `quell batch conflicts` lists them."""

    number: int
    entries: int
    conflicts: int


class ConflictsError(Exception):
    """A batch was committed except for operations that conflict with changes of others. `result` is
    the result of the commit."""

    def __init__(self, result):
        super().__init__(result)
        self.result = result

    def __str__(self):
        return f"batch {self.result.number}: {self.result.conflicts} operations were not published"


class Batch(Store):
    """A batch in the store for batches at `store`. It changes the existing `directory` of the store
    with everything below it, and paths are relative to that. `name` is shown by `quell batch
    status`. An atomic batch publishes either all changes or none. The store belongs to this user or
    to one of the users with the IDs `trusted_owners`.

    At the end of a `with` block, the files of the batch are closed and the batch is committed, and
    ConflictsError is raised if operations were not published. After an exception in the block, the
    batch is aborted."""

    def __init__(self, store, directory="", name="Python", atomic=False, trusted_owners=()):
        if any(not 0 <= owner < 2**32 for owner in trusted_owners):
            raise ValueError("a user ID is a number of 32 bits")
        owners = (ctypes.c_uint32 * len(trusted_owners))(*trusted_owners)
        words = [os.fsencode(directory), name.encode()]
        if any(b"\0" in word for word in [*words, os.fsencode(store)]):
            raise ValueError("a path or a name must not contain a NUL byte")
        options = BatchOptions(*words, owners, len(owners), int(atomic))
        pointer = ctypes.c_void_p()
        call("quell_batch_begin", os.fsencode(store), ctypes.byref(options), ctypes.byref(pointer), path=store)
        self._handle = Handle(pointer, "quell_store_close", call)
        self._files = weakref.WeakSet()
        self._has_ended = False

    def open(self, path, mode="rb", permissions=0o666):
        """As `Store.open`."""
        file = super().open(path, mode, permissions)
        self._files.add(file)
        return file

    def __exit__(self, kind, *_):
        try:
            if kind is None and not self._has_ended:
                for file in list(self._files):
                    file.close()
                result = self.commit()
                if result.conflicts:
                    raise ConflictsError(result)
        finally:
            self.close()

    @property
    def number(self):
        """The number of the batch in its store."""
        with self._handle as batch:
            return call("quell_batch_number", batch)

    def close(self):
        """Closes the batch, and aborts it unless `commit` has written its changes to the store:
        then it stays open for `quell batch commit` or `quell batch abort`, as the error of `commit`
        says."""
        self._has_ended = True
        super().close()

    def commit(self):
        """Verifies and publishes the changes, and returns a CommitResult. The files of the batch
        must be closed before. After an error, the batch can be committed again or aborted."""
        result = BatchResult()
        with self._handle as batch:
            call("quell_batch_commit", batch, ctypes.byref(result))
        self._has_ended = True
        return CommitResult(result.number, result.entries, result.conflicts)

    def abort(self):
        """Discards the changes, also those that are made later through open files. After an error,
        the batch can only be aborted again."""
        self._has_ended = True
        with self._handle as batch:
            call("quell_batch_abort", batch)
