//! One error type for the whole contract: what kind, in which operation, on what, and the cause.
//! This file holds the only table of error numbers in the house.

use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in as few kinds as tell a caller what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    NotFound,
    PermissionDenied,
    NotADirectory,
    IsADirectory,
    /// The tree is covered read-only, or lies on a file system that is.
    ReadOnly,
    NameTooLong,
    InvalidInput,
    /// There is an entry of this name already.
    Exists,
    /// The directory still has entries.
    NotEmpty,
    /// The file system has no room (for this user) left.
    NoSpace,
    /// The file behind an immutable view is no longer the one that was indexed.
    Stale,
    /// Bytes that should be a format of ours are not.
    Damaged,
    /// This implementation never does this.
    Unsupported,
    /// The world failed with this error number.
    Os(i32),
}

/// Linux's numbers for the kinds above, the same on every architecture that Quell supports.
pub mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const E2BIG: i32 = 7;
    pub const EBADF: i32 = 9;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENOTTY: i32 = 25;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EPIPE: i32 = 32;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ELOOP: i32 = 40;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ECONNRESET: i32 = 104;
    pub const ESTALE: i32 = 116;
}

impl ErrorKind {
    /// The number that a program sees.
    pub fn errno(self) -> i32 {
        match self {
            ErrorKind::NotFound => errno::ENOENT,
            ErrorKind::PermissionDenied => errno::EACCES,
            ErrorKind::NotADirectory => errno::ENOTDIR,
            ErrorKind::IsADirectory => errno::EISDIR,
            ErrorKind::ReadOnly => errno::EROFS,
            ErrorKind::NameTooLong => errno::ENAMETOOLONG,
            ErrorKind::InvalidInput => errno::EINVAL,
            ErrorKind::Exists => errno::EEXIST,
            ErrorKind::NotEmpty => errno::ENOTEMPTY,
            ErrorKind::NoSpace => errno::ENOSPC,
            // As NFS says it: the handle was good, the file behind it is another one now.
            ErrorKind::Stale => errno::ESTALE,
            ErrorKind::Damaged => errno::EIO,
            ErrorKind::Unsupported => errno::EOPNOTSUPP,
            ErrorKind::Os(number) => number,
        }
    }

    /// The kind for an error number that the world answered with.
    pub fn from_errno(number: i32) -> ErrorKind {
        match number {
            errno::ENOENT => ErrorKind::NotFound,
            // EPERM is kept apart: it is a refusal of the operation, not of the file.
            errno::EACCES => ErrorKind::PermissionDenied,
            errno::ENOTDIR => ErrorKind::NotADirectory,
            errno::EISDIR => ErrorKind::IsADirectory,
            errno::EROFS => ErrorKind::ReadOnly,
            errno::EEXIST => ErrorKind::Exists,
            errno::ENOTEMPTY => ErrorKind::NotEmpty,
            // EDQUOT is kept apart: it is this user's limit, and users ask somebody else about it.
            errno::ENOSPC => ErrorKind::NoSpace,
            errno::ENAMETOOLONG => ErrorKind::NameTooLong,
            errno::ESTALE => ErrorKind::Stale,
            other => ErrorKind::Os(other),
        }
    }
}

/// Kind, operation, subject, cause.
#[derive(Debug)]
pub struct Error {
    pub kind: ErrorKind,
    pub operation: &'static str,
    /// The path, name or place that it happened to, as bytes: names need not be UTF-8.
    pub subject: Vec<u8>,
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub fn new(kind: ErrorKind, operation: &'static str, subject: impl AsRef<[u8]>) -> Error {
        Error { kind, operation, subject: subject.as_ref().to_vec(), source: None }
    }

    pub fn from_io(cause: std::io::Error, operation: &'static str, subject: impl AsRef<[u8]>) -> Error {
        let kind = cause.raw_os_error().map_or(ErrorKind::Os(errno::EIO), ErrorKind::from_errno);
        Error { source: Some(Box::new(cause)), ..Error::new(kind, operation, subject) }
    }

    /// The number that a program sees.
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ErrorKind::NotFound => "no such entry",
            ErrorKind::PermissionDenied => "permission denied",
            ErrorKind::NotADirectory => "not a directory",
            ErrorKind::IsADirectory => "is a directory",
            ErrorKind::ReadOnly => "read-only",
            ErrorKind::Exists => "exists already",
            ErrorKind::NotEmpty => "directory not empty",
            ErrorKind::NoSpace => "no space left",
            ErrorKind::NameTooLong => "name too long",
            ErrorKind::InvalidInput => "invalid input",
            ErrorKind::Stale => "changed since it was indexed",
            ErrorKind::Damaged => "damaged",
            ErrorKind::Unsupported => "not supported",
            ErrorKind::Os(_) => "failed",
        };
        write!(f, "{} {}: {what}", self.operation, crate::printable(&self.subject))?;
        match &self.source {
            Some(cause) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|cause| &**cause as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_from_the_world_comes_back_unchanged() {
        for number in 1..134 {
            assert_eq!(ErrorKind::from_errno(number).errno(), number);
        }
    }
}
