//! The bytes of a lock file that represent the scopes of locks of another file.

use quell_vfs::{Error, ErrorKind, LockScope, Result, TO_END};

use crate::dir::{LockedRange, OFFSET_MAX};

/// The bytes of a lock file: the same bytes as in the file for locks of bytes, and one byte above
/// them for the whole file.
#[derive(Debug, Clone, Copy)]
pub struct ScopeBytes {
    whole_file: u64,
}

impl ScopeBytes {
    /// Returns the bytes of a lock file in which byte `whole_file`, greater than 0, represents the
    /// whole file. Bytes of the file from `whole_file` on share the byte below it.
    pub const fn new(whole_file: u64) -> ScopeBytes {
        ScopeBytes { whole_file }
    }

    /// Returns the first and the last byte that represent a scope.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid scope.
    pub fn of(self, scope: LockScope) -> Result<(u64, u64)> {
        let whole_file = self.whole_file;
        match scope {
            LockScope::WholeFile => Ok((whole_file, whole_file)),
            LockScope::Everything => Ok((0, whole_file)),
            LockScope::Bytes { first, last } if first <= last && first < OFFSET_MAX => {
                Ok((first.min(whole_file - 1), last.min(whole_file - 1)))
            }
            LockScope::Bytes { first, .. } => {
                Err(Error::new(ErrorKind::InvalidInput, "lock", first.to_string()))
            }
        }
    }

    /// Returns the scope of a lock that conflicts with a lock of scope `wanted`.
    pub fn scope(self, found: LockedRange, wanted: LockScope) -> LockScope {
        if found.first == self.whole_file || wanted == LockScope::WholeFile {
            return LockScope::WholeFile;
        }
        let last = if found.last >= self.whole_file - 1 { TO_END } else { found.last };
        LockScope::Bytes { first: found.first, last }
    }
}
