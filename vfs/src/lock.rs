//! The contract for locks of an open file: fcntl(2) locks on ranges of bytes, and flock(2) locks on
//! the whole file. Locks are advisory: reads and writes do not check them.

use crate::error::Result;

/// The last byte of a range that extends to the end of the file, however long it becomes.
pub const TO_END: u64 = u64::MAX;

/// Identifies the owner of locks, among the owners of one file on one mount: a process for locks of
/// fcntl(2), an open file description for others. Locks of one owner never conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockOwner(pub u64);

/// The mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Conflicts with exclusive locks of other owners.
    Shared,
    /// Conflicts with all locks of other owners.
    Exclusive,
}

/// The part of a file that a lock covers. As on a local file system of Linux, `Bytes` and
/// `WholeFile` never conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockScope {
    /// A range of bytes, as with fcntl(2). It may lie beyond the end of the file.
    Bytes {
        /// The first byte.
        first: u64,
        /// The last byte, not before `first`; [`TO_END`] for all following bytes.
        last: u64,
    },
    /// The whole file, as with flock(2).
    WholeFile,
    /// All bytes and the whole file: for a frontend that cannot distinguish a lock of flock(2) from
    /// a lock of fcntl(2) on all bytes.
    Everything,
}

impl LockScope {
    /// All bytes.
    pub const ALL_BYTES: LockScope = LockScope::Bytes { first: 0, last: TO_END };
}

/// A lock that an owner holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLock {
    /// The locked part of the file. For a conflicting lock, at least one of the conflicting parts.
    pub scope: LockScope,
    /// Its mode.
    pub mode: LockMode,
}

/// The locks of an open file. docs/semantics.md states between which processes they hold.
///
/// No operation waits for another owner. A frontend that waits repeats [`try_lock`](Self::try_lock)
/// with pauses.
///
/// Errors of all operations: `Os(ENOLCK)` if the file system below does not keep locks that hold
/// between its nodes; `InvalidInput` for a range that ends before it begins or begins beyond the
/// largest offset of a byte (2^63 - 2).
pub trait FileLocks {
    /// Locks `scope` for `owner`, unless a lock of another owner conflicts with it; returns whether
    /// it is locked now. The owner's earlier locks are replaced where they overlap.
    ///
    /// If an exclusive lock becomes a shared one, data written through this file is published
    /// first. When this returns true, data that others published before they released a lock is
    /// visible in this open file. Errors: `Os(EBADF)` for an exclusive lock if the caller may not
    /// write to the file. After an error the owner may have lost its earlier locks of `scope`.
    fn try_lock(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<bool>;

    /// Publishes the data written through this file, then removes the owner's locks of `scope`.
    /// They are removed even if the data cannot be published, and the error is returned.
    fn unlock(&self, owner: LockOwner, scope: LockScope) -> Result<()>;

    /// Returns a lock of another owner with which the described lock would conflict.
    fn conflicting(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<Option<HeldLock>>;

    /// Removes all locks of the owner. A frontend calls it when the owner closes the file, after it
    /// has published the data written through this file. If the owner has locks, unpublished data
    /// of other open files of the same file is published first; the locks are removed even if that
    /// fails, and the error is returned. The locks that were taken through an open file are also
    /// removed when that file is closed.
    fn release(&self, owner: LockOwner) -> Result<()>;
}
