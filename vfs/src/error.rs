//! The error type of the contract: kind, operation, subject, cause. This file has the only table of
//! error numbers in the project.

use std::fmt;

/// The result of an operation of the contract.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error. There are only as many kinds as a caller needs to decide how to react.
///
/// Layers with servers will add kinds, and programs that use the client library match them: a
/// `match` outside this crate has an arm for other kinds, which treats them as an error without a
/// special meaning. The other enums of the contract are complete: the file types of POSIX and the
/// modes of renameat2(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such entry.
    NotFound,
    /// The caller has no permission for this file.
    PermissionDenied,
    /// A component of the path, or the operand, is not a directory.
    NotADirectory,
    /// The operand is a directory.
    IsADirectory,
    /// The tree is covered read-only, or lies on a read-only file system.
    ReadOnly,
    /// A name is longer than the file system allows.
    NameTooLong,
    /// An argument is not valid (EINVAL).
    InvalidInput,
    /// An entry of this name already exists.
    Exists,
    /// The directory still has entries.
    NotEmpty,
    /// The file system has no space left: remove files, or wait until other users remove some.
    NoSpace,
    /// The caller's own limit of space or files is reached: its administrator can raise it.
    Quota,
    /// The server cannot be reached: try again later, or use another one. Whether the operation was
    /// done is not known.
    Unavailable,
    /// The deadline passed before the server answered. Whether the operation was done is not known.
    TimedOut,
    /// A signal or the end of the mount interrupted the operation; it can be repeated.
    Interrupted,
    /// The object is in use in a way that excludes the operation: try again when it is not.
    Busy,
    /// Another transaction changed the data that this one used: repeat the whole transaction.
    Conflict,
    /// The file behind an immutable view differs from the indexed one.
    Stale,
    /// Data does not have the format that it should have.
    Damaged,
    /// This implementation does not support the operation.
    Unsupported,
    /// Any other error number of the operating system.
    Os(i32),
}

/// The error numbers of Linux, the same on every architecture that Quell supports.
#[allow(missing_docs)] // errno(3) has the meanings
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
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENOTTY: i32 = 25;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EMLINK: i32 = 31;
    pub const EPIPE: i32 = 32;
    pub const ERANGE: i32 = 34;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOLCK: i32 = 37;
    pub const ENOTEMPTY: i32 = 39;
    pub const ELOOP: i32 = 40;
    pub const ENODATA: i32 = 61;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ECONNRESET: i32 = 104;
    pub const ENOTCONN: i32 = 107;
    pub const ETIMEDOUT: i32 = 110;
    pub const ESTALE: i32 = 116;
    pub const EDQUOT: i32 = 122;
    pub const ECANCELED: i32 = 125;
}

impl ErrorKind {
    /// Returns the error number that a program gets.
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
            ErrorKind::Quota => errno::EDQUOT,
            // The kernel returns the same number for a FUSE mount whose process has ended.
            ErrorKind::Unavailable => errno::ENOTCONN,
            ErrorKind::TimedOut => errno::ETIMEDOUT,
            ErrorKind::Interrupted => errno::EINTR,
            ErrorKind::Busy => errno::EBUSY,
            // Not EAGAIN: programs repeat a single call after it, not a transaction.
            ErrorKind::Conflict => errno::ECANCELED,
            // As in NFS: the handle was valid, but the file behind it has changed.
            ErrorKind::Stale => errno::ESTALE,
            ErrorKind::Damaged => errno::EIO,
            ErrorKind::Unsupported => errno::EOPNOTSUPP,
            ErrorKind::Os(number) => number,
        }
    }

    /// Converts an error number returned by the operating system.
    pub fn from_errno(number: i32) -> ErrorKind {
        match number {
            errno::ENOENT => ErrorKind::NotFound,
            // EPERM stays `Os`: it refuses the operation itself, not access to the file.
            errno::EACCES => ErrorKind::PermissionDenied,
            errno::ENOTDIR => ErrorKind::NotADirectory,
            errno::EISDIR => ErrorKind::IsADirectory,
            errno::EROFS => ErrorKind::ReadOnly,
            errno::EEXIST => ErrorKind::Exists,
            errno::ENOTEMPTY => ErrorKind::NotEmpty,
            errno::ENOSPC => ErrorKind::NoSpace,
            errno::EDQUOT => ErrorKind::Quota,
            errno::ENAMETOOLONG => ErrorKind::NameTooLong,
            errno::EINVAL => ErrorKind::InvalidInput,
            errno::ENOTCONN => ErrorKind::Unavailable,
            errno::ETIMEDOUT => ErrorKind::TimedOut,
            errno::EINTR => ErrorKind::Interrupted,
            errno::EBUSY => ErrorKind::Busy,
            errno::ECANCELED => ErrorKind::Conflict,
            errno::ESTALE => ErrorKind::Stale,
            other => ErrorKind::Os(other),
        }
    }
}

/// An error of the contract.
#[derive(Debug)]
pub struct Error {
    /// The kind, from which the caller decides how to react.
    pub kind: ErrorKind,
    /// The operation that failed, as a verb: `open`, `rename`.
    pub operation: &'static str,
    /// The path or name that the operation was applied to, as bytes, because names need not be
    /// UTF-8.
    pub subject: Vec<u8>,
    /// The error that caused this one.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Returns an error without a cause.
    pub fn new(kind: ErrorKind, operation: &'static str, subject: impl AsRef<[u8]>) -> Error {
        Error { kind, operation, subject: subject.as_ref().to_vec(), source: None }
    }

    /// Returns an error of the operating system, with the kind of its number.
    pub fn from_io(cause: std::io::Error, operation: &'static str, subject: impl AsRef<[u8]>) -> Error {
        let kind = cause.raw_os_error().map_or(ErrorKind::Os(errno::EIO), ErrorKind::from_errno);
        Error { source: Some(Box::new(cause)), ..Error::new(kind, operation, subject) }
    }

    /// Returns the error number that a program gets.
    pub fn errno(&self) -> i32 {
        self.kind.errno()
    }

    /// Returns whether the kernel refused an argument of a system call of this program, for example
    /// of mount(2). Such an error is not a mistake of the user, unlike an argument that Quell
    /// itself refused.
    pub fn is_refused_argument(&self) -> bool {
        let source = self.source.as_ref().filter(|_| self.kind == ErrorKind::InvalidInput);
        source.is_some_and(|cause| is_errno(&**cause, errno::EINVAL))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject.is_empty() {
            true => write!(f, "{}: ", self.operation)?,
            false => write!(f, "{} {}: ", self.operation, crate::printable(&self.subject))?,
        }
        let what = match self.kind {
            ErrorKind::Stale => "it has changed or was removed".to_owned(),
            ErrorKind::Damaged => "damaged".to_owned(),
            ErrorKind::Unsupported => "not supported".to_owned(),
            kind => errno_text(kind.errno()),
        };
        match &self.source {
            // The text of the kind would repeat the cause.
            Some(cause) if is_errno(&**cause, self.errno()) => f.write_str(&what),
            Some(cause) if matches!(self.kind, ErrorKind::InvalidInput | ErrorKind::Stale) => {
                write!(f, "{cause}")
            }
            Some(cause) => write!(f, "{what} ({cause})"),
            None => f.write_str(&what),
        }
    }
}

/// Returns the text of an error number as strerror(3) spells it: the one spelling in all messages.
fn errno_text(number: i32) -> String {
    let text = std::io::Error::from_raw_os_error(number).to_string();
    // The standard library appends the number.
    match text.strip_suffix(&format!(" (os error {number})")) {
        Some(text) => text.to_owned(),
        None => text,
    }
}

fn is_errno(cause: &(dyn std::error::Error + 'static), number: i32) -> bool {
    cause.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.raw_os_error() == Some(number))
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
    fn each_error_number_has_one_spelling() {
        let cause = |number| std::io::Error::from_raw_os_error(number);
        let found = Error::from_io(cause(errno::ENOENT), "open", "a");
        assert_eq!(found.to_string(), "open a: No such file or directory");
        assert_eq!(Error::new(ErrorKind::NotFound, "open", "a").to_string(), found.to_string());
        assert_eq!(Error::from_io(cause(errno::EIO), "read", "a").to_string(), "read a: Input/output error");
        let other = Error { source: Some(Box::new(std::io::Error::other("no index"))), ..found };
        assert_eq!(other.to_string(), "open a: No such file or directory (no index)");
        let invalid = Error { kind: ErrorKind::InvalidInput, ..other };
        assert_eq!(invalid.to_string(), "open a: no index");
        assert_eq!(
            Error::new(ErrorKind::NotFound, "open", "").to_string(),
            "open: No such file or directory"
        );
    }

    #[test]
    fn every_error_number_survives_the_conversion_to_a_kind() {
        for number in 1..134 {
            assert_eq!(ErrorKind::from_errno(number).errno(), number);
        }
    }
}
