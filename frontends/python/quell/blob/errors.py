"""The errors of transactions."""

from typing import NamedTuple, Optional, Tuple


class Change(NamedTuple):
    """A part that a transaction has read, and that another one has changed."""

    name: bytes
    """The name of the blob; for `names`, the beginning of the names."""
    part: str
    """`existence`, `size`, `range` or `names`."""
    read: Optional[Tuple[int, int]]
    """For a range, the first byte that was read, and the byte after the last one."""
    changed: Optional[Tuple[int, int]]
    """For a range, the first byte that was changed, and the byte after the last one."""


class Conflict(OSError):
    """Other transactions have changed data that this one has read (ECANCELED). `changes` lists the
    blobs and ranges. Repeat the transaction."""

    changes: Tuple[Change, ...] = ()


class SnapshotTooOld(OSError):
    """The state that a snapshot or transaction reads is no longer kept (ESTALE)."""


class Different(OSError):
    """A compare-and-set found another number than the expected one (ECANCELED). `operation` is the
    index of the operation in the transaction, `cell` the index of the number, and `found` the bytes
    of the number."""

    operation, cell, found = -1, 0, b""


class Overflow(OSError):
    """The result of a checked transform is outside the range of its type (EINVAL). `operation` is
    the index of the operation in the transaction, and `cell` the index of the number."""

    operation, cell = -1, 0
