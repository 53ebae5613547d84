"""Transactional blobs for programs that share state, in a directory or through a server.

    import quell.blob

    with quell.blob.open("dir:/scratch/results") as store:
        with store.transaction() as t:
            t.create("events", exist_ok=True)
            t.append("events", b"temperature 21\\n")
        assert store.read("events").endswith(b"21\\n")

Names are `str`, encoded as file names are, or `bytes`. Data is any object with a buffer: `bytes`,
`memoryview`, a numpy array. Offsets and sizes are in bytes. docs/semantics.md states the guarantees.

Errors are `OSError` and its subclasses. Those that concern transactions are `Conflict`,
`SnapshotTooOld`, `Different` and `Overflow`. Any number of threads may use a store. After a fork, a
child cannot use the store of its parent (`EBADF`); it opens its own, through a server.
"""

from .errors import Change, Conflict, Different, Overflow, SnapshotTooOld
from .store import Snapshot, Store, open
from .transaction import Committed, Retries, Transaction
from .values import Stat, Transform

__all__ = [
    "Change",
    "Committed",
    "Conflict",
    "Different",
    "Overflow",
    "Retries",
    "Snapshot",
    "SnapshotTooOld",
    "Stat",
    "Store",
    "Transaction",
    "Transform",
    "open",
]
