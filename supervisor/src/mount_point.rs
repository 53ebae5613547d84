//! Mount points: checks before a mount, and unmounting.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::UnmountFlags;

use crate::display::shown;
use crate::failure::Failure;
use crate::mount_table::{self, MountTableEntry};
use crate::runtime::directory::runtime_directory;
use crate::runtime::key::mount_key;
use crate::socket::client::{HolderProcess, process_of, request_discard};

/// How long the process that served a mount may take to end after the unmount.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the mount point with symbolic links above it resolved. `canonicalize` cannot be used,
/// because any access to a view blocks or fails if its process has died.
pub fn mount_point_path(mountpoint: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(mountpoint)
        .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(mountpoint))))?;
    Ok(match path.parent().and_then(|parent| parent.canonicalize().ok()) {
        Some(parent) => parent.join(path.file_name().unwrap_or_default()),
        None => path,
    })
}

/// Returns an error if any user has a view at the mount point. `mountpoint` has no symbolic links.
pub fn refuse_mounted(mountpoint: &Path) -> Result<(), Failure> {
    let Some(mount) = mount_table::quell_mount_at(mountpoint) else { return Ok(()) };
    let by = match holder_of(mountpoint) {
        Some(process) => format!("served by process {}", process.pid),
        None => "not served by a process of yours: it is another user's, or its process has ended".into(),
    };
    let point = shown(mountpoint);
    Err(Failure::wrong_input(format!(
        "{point} already has a view, {} ({by}); remove it with `quell umount {point}`",
        shown(&mount.source)
    )))
}

/// Returns the caller's process that serves a mount point. `None` if it was killed or belongs to
/// another user.
fn holder_of(mountpoint: &Path) -> Option<HolderProcess> {
    let directory = runtime_directory().ok()?;
    process_of(&directory, &mount_key(mountpoint)).ok()?
}

/// Returns whether the topmost mount at this path is a mount of Quell.
pub fn is_quell_mount(path: &Path) -> bool {
    let table = mount_table::mount_table().unwrap_or_default();
    table.iter().rfind(|mount| mount.point == path).is_some_and(MountTableEntry::is_quell)
}

/// Unmounts `path`, and waits for the end of the process that served the mount. With `force`, the
/// mount is removed even if it is in use.
///
/// Returns the number of the process if it has not ended within `END_TIMEOUT`: it may be stopped,
/// or may be writing to a store that does not answer.
pub fn unmount_and_wait(path: &Path, force: bool) -> Result<Option<i32>, Failure> {
    // Looked up before the unmount, because the process removes its socket when it ends.
    let process = holder_of(path);
    unmount(path, force)?;
    Ok(process.filter(|process| !process.wait(END_TIMEOUT)).map(|process| process.pid))
}

/// Makes the process that serves the mount at `path` discard the changes of its batch when it ends.
/// Returns false if the process has no batch, or has ended.
pub fn discard_changes(path: &Path) -> Result<bool, Failure> {
    Ok(request_discard(&runtime_directory()?, &mount_key(path))?)
}

/// Unmounts `path`; with `force`, even if it is in use.
pub fn unmount(path: &Path, force: bool) -> Result<(), Failure> {
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::PERM) => {}
        Err(rustix::io::Errno::BUSY) => return Err(busy(path)),
        Err(e) => return Err(Failure::cannot(format!("{}: {e}", shown(path)))),
    }
    // An ordinary user's mount was made with fusermount3, and only fusermount3 can unmount it.
    let option = if force { "-uz" } else { "-u" };
    let ended = Command::new("fusermount3")
        .arg(option)
        .arg("--")
        .arg(path)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output();
    match ended {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(if message.contains("Device or resource busy") {
                busy(path)
            } else {
                Failure::cannot(shown(message))
            })
        }
        Err(e) => Err(Failure::cannot(format!("fusermount3: {e}"))),
    }
}

/// Returns the failure of an unmount while programs use the mount.
fn busy(path: &Path) -> Failure {
    let path = shown(path);
    Failure::cannot(format!(
        "{path} is in use by a program (`fuser -vm {path}` lists them); end it, or run `quell umount --force {path}`: files \
         that are open there then return errors"
    ))
}
