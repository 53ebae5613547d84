//! `quell umount`: removes a mount that the caller created with `quell mount`.

use std::path::Path;
use std::process::ExitCode;

use quell_supervisor::{END_TIMEOUT, is_quell_mount, mount_point_path, unmount_and_wait};

use crate::arguments::UmountArgs;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::output::errln;

pub fn run(args: UmountArgs, _quiet: bool) -> Result<ExitCode, Failure> {
    let path = mount_point_path(&args.mountpoint)?;
    if !is_quell_mount(&path) {
        let path = shown(&path);
        return Err(Failure::wrong_input(format!(
            "{path} is not a mount of Quell; `grep quell: /proc/mounts` lists the mounts"
        )));
    }
    unmount(&path, args.force)?;
    Ok(ExitCode::SUCCESS)
}

/// Unmounts, and waits for the end of the process that served the mount.
pub fn unmount(path: &Path, force: bool) -> Result<(), Failure> {
    if let Some(process) = unmount_and_wait(path, force)? {
        errln!(
            "quell: {} is unmounted; process {process}, which served it, has not ended after {} s",
            shown(path),
            END_TIMEOUT.as_secs()
        );
    }
    Ok(())
}
