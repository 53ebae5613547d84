//! `quell umount`: removes a mount that the caller created with `quell mount`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::mount::UnmountFlags;

use crate::arguments::UmountArgs;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::mounts::{self, Mount};
use crate::runtime;
use crate::streams::say;

/// How long the process that served a mount may take to end after the unmount.
pub const END_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(args: UmountArgs, _quiet: bool) -> Result<ExitCode, Failure> {
    let path = path_of(&args.mountpoint)?;
    if !is_ours(&path) {
        return Err(Failure::wrong_input(format!("{} is no mount of quell's", shown(&path))));
    }
    take_away(&path, args.force)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the mount point with symbolic links above it resolved. `canonicalize` cannot be used,
/// because any access to a view blocks or fails if its process has died.
pub fn path_of(mountpoint: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(mountpoint)
        .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(mountpoint))))?;
    Ok(match path.parent().and_then(|parent| parent.canonicalize().ok()) {
        Some(parent) => parent.join(path.file_name().unwrap_or_default()),
        None => path,
    })
}

/// Unmounts, and waits for the end of the process that served the mount.
pub fn take_away(path: &Path, force: bool) -> Result<(), Failure> {
    let directory = runtime::directory();
    // There is no process to wait for if it was killed or belongs to another user.
    let process = directory.ok().and_then(|directory| {
        quell_overlay::process_of(&directory, &runtime::mount_key(path)).ok().flatten()
    });
    unmount(path, force)?;
    match process {
        Some(process) if !process.wait(END_TIMEOUT) => {
            // The process may be stopped, or may be writing to a store that does not answer.
            say(&format!(
                "{} is unmounted; process {}, which served it, has not ended after {} s",
                shown(path),
                process.pid,
                END_TIMEOUT.as_secs()
            ));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn is_ours(path: &Path) -> bool {
    let table = mounts::table().unwrap_or_default();
    table.iter().rfind(|mount| mount.point == path).is_some_and(Mount::is_ours)
}

/// Unmounts `path`; with `force`, even if it is in use.
pub fn unmount(path: &Path, force: bool) -> Result<(), Failure> {
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::PERM) => {}
        Err(rustix::io::Errno::BUSY) => {
            return Err(Failure::cannot(format!(
                "{} is in use (--force takes it away all the same)",
                shown(path)
            )));
        }
        Err(e) => return Err(Failure::cannot(format!("{}: {e}", shown(path)))),
    }
    // An ordinary user's mount was made with fusermount3, and only fusermount3 can unmount it.
    let option = if force { "-uz" } else { "-u" };
    let ended = Command::new("fusermount3").arg(option).arg("--").arg(path).stdin(Stdio::null()).output();
    match ended {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(Failure::cannot(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        Err(e) => Err(Failure::cannot(format!("fusermount3: {e}"))),
    }
}
