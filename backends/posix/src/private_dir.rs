//! Directories that one user alone has access to.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::{CWD, Mode, OFlags, fstat, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Opens a directory that only this user has access to. It is created with mode 0700 if
/// `may_create` is set and it does not exist. Errors contain `operation`.
///
/// # Errors
/// `PermissionDenied` if the directory belongs to another user, or if other users have access to
/// it; the errors of mkdir(2) and open(2).
pub fn open_private_dir(path: &Path, may_create: bool, operation: &'static str) -> Result<OwnedFd> {
    let subject = path.as_os_str().as_bytes();
    let failed = |error: Errno| Error::from_io(error.into(), operation, subject);
    if may_create {
        match mkdirat(CWD, path, Mode::RWXU) {
            Err(error) if error != Errno::EXIST => return Err(failed(error)),
            _ => {}
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
    let found = fstat(opened.as_fd()).map_err(failed)?;
    let refuse = |reason: String| {
        let source = Some(reason.into());
        Err(Error { source, ..Error::new(ErrorKind::PermissionDenied, operation, subject) })
    };
    let user = geteuid().as_raw();
    if found.st_uid != user {
        return refuse(format!("it belongs to user {}, and not to user {user}", found.st_uid));
    }
    if found.st_mode & 0o077 != 0 {
        return refuse(
            "other users have access to it; a store needs a directory of its own: chmod 700 DIR".into(),
        );
    }
    Ok(opened)
}
