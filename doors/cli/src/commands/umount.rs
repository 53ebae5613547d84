//! `quell umount`: takes away a mount of ours, and nobody else's.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use crate::arguments::UmountArgs;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::mounts::{self, Mount};
use crate::runtime;

/// How long the serving process may take to notice.
const END_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(args: UmountArgs, _quiet: bool) -> Result<ExitCode, Failure> {
    // Not `canonicalize`: a view whose process died answers nothing, not even this.
    let path = std::path::absolute(&args.mountpoint)
        .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(&args.mountpoint))))?;
    let path = match path.parent().and_then(|parent| parent.canonicalize().ok()) {
        Some(parent) => parent.join(path.file_name().unwrap_or_default()),
        None => path,
    };
    if !is_ours(&path) {
        return Err(Failure::wrong_input(format!("{} is no mount of quell's", shown(&path))));
    }
    take_away(&path, args.force)?;
    Ok(ExitCode::SUCCESS)
}

/// Unmounts and waits until nothing of it runs any more.
pub fn take_away(path: &Path, force: bool) -> Result<(), Failure> {
    unmount(path, force)?;
    wait_for_end(path);
    Ok(())
}

fn is_ours(path: &Path) -> bool {
    let table = mounts::table().unwrap_or_default();
    table.iter().rfind(|mount| mount.point == path).is_some_and(Mount::is_ours)
}

fn unmount(path: &Path, force: bool) -> Result<(), Failure> {
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
    // An ordinary user's way out is the way in.
    let option = if force { "-uz" } else { "-u" };
    let ended = Command::new("fusermount3").arg(option).arg("--").arg(path).stdin(Stdio::null()).output();
    match ended {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(Failure::cannot(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        Err(e) => Err(Failure::cannot(format!("fusermount3: {e}"))),
    }
}

/// When this command ends, nothing of the view runs any more.
fn wait_for_end(path: &Path) {
    let Ok(directory) = runtime::directory() else { return };
    let begun = Instant::now();
    while begun.elapsed() < END_TIMEOUT {
        match quell_overlay::ask(&directory, &runtime::mount_key(path)) {
            Ok(Some(_)) => std::thread::sleep(Duration::from_millis(20)),
            _ => return,
        }
    }
}
