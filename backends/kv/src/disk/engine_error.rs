//! The kinds of the engine's errors.

use quell_vfs::{ErrorKind, errno};

/// Returns the kind of an engine's error.
pub(super) fn kind_of(cause: &fjall::Error) -> ErrorKind {
    match cause {
        fjall::Error::Io(cause) | fjall::Error::Storage(fjall::LsmError::Io(cause)) => of_io(cause),
        fjall::Error::Locked => ErrorKind::Busy,
        // An earlier write failed, and its error was reported then.
        fjall::Error::Poisoned => ErrorKind::Os(errno::EIO),
        // Wrong checksums, headers, versions and tags.
        _ => ErrorKind::Damaged,
    }
}

fn of_io(cause: &std::io::Error) -> ErrorKind {
    match (cause.raw_os_error(), cause.kind()) {
        (Some(number), _) => ErrorKind::from_errno(number),
        // The engine and the standard library report invalid content of files with these errors.
        (None, std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidData) => ErrorKind::Damaged,
        (None, _) => ErrorKind::Os(errno::EIO),
    }
}
