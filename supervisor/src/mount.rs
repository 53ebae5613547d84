//! Mounts a view, or a log mount, at a mount point, with a holder that serves it.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::display::shown;
use crate::failure::Failure;
use crate::mount_point::{END_TIMEOUT, mount_point_path, refuse_mounted};
use crate::protocol::plan::{Plan, Target};
use crate::protocol::transfer::Address;
use crate::runtime::directory::runtime_directory;
use crate::runtime::end_record;
use crate::runtime::key::{mount_key, remove_lock};
use crate::socket::client::process_of;
use crate::socket::lock::lock_key_within;
use crate::start::start_holder;

/// The time between two checks whether a process that has not ended still has a socket. Each check
/// takes the lock for a moment, which the process needs in order to remove the socket.
const SOCKET_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the target for a mount point, which must be a directory without a view. `allow_other`:
/// whether other users have access.
pub fn mount_target(mountpoint: &Path, allow_other: bool) -> Result<Target, Failure> {
    // This check comes first: any access to a view blocks if its process was killed or stopped, and
    // fails if the view belongs to another user.
    let named = mount_point_path(mountpoint)?;
    refuse_mounted(&named)?;
    let found = mountpoint.canonicalize().and_then(|path| Ok((path.metadata()?.is_dir(), path)));
    let (is_dir, path) = found.map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(mountpoint))))?;
    if !is_dir {
        return Err(Failure::wrong_input(format!("{} is not a directory", shown(&path))));
    }
    // Root's mounts are for all users: the overlay views have no other mode.
    let allow_other = allow_other || rustix::process::geteuid().is_root();
    Ok(Target::Mountpoint { path, allow_other })
}

/// Starts a holder that mounts a plan at the mount point of its target.
pub fn mount(plan: &Plan) -> Result<(), Failure> {
    let Some(mountpoint) = plan.target.mountpoint() else {
        return Err(Failure::wrong_input("the plan has no mount point"));
    };
    let address = Address { directory: runtime_directory()?, key: mount_key(mountpoint) };
    let lock = lock_unused(&address, mountpoint)?;
    // Removes the record of an earlier mount, which no `quell umount` has read.
    end_record::remove(&address);
    match start_holder(plan, &address, &[], &lock)?.refused {
        None => Ok(()),
        Some(refusal) => {
            remove_lock(&address);
            Err(refusal.into())
        }
    }
}

/// Locks a mount point that has neither a view nor a process with a socket for it. Waits until such
/// a process ends, or removes its socket because it serves a detached mount.
fn lock_unused(address: &Address, mountpoint: &Path) -> Result<File, Failure> {
    let deadline = Instant::now() + END_TIMEOUT;
    let left = || deadline.saturating_duration_since(Instant::now());
    let (point, seconds) = (shown(mountpoint), END_TIMEOUT.as_secs());
    loop {
        let Some(lock) = lock_key_within(&address.directory, &address.key, left())? else {
            return Err(Failure::cannot(format!(
                "another quell mount of {point} has not ended after {seconds} s; try again later"
            )));
        };
        refuse_mounted(mountpoint)?;
        let process = process_of(&address.directory, &address.key)?;
        let Some(process) = process else { return Ok(lock) };
        // The holder needs the lock in order to end, or to remove its socket: a holder of a
        // detached mount goes on without a socket.
        drop(lock);
        if !process.wait(left().min(SOCKET_CHECK_INTERVAL)) && left().is_zero() {
            return Err(Failure::cannot(format!(
                "{point} was unmounted, and process {}, which served it, has not ended after {seconds} s; try again later",
                process.pid
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// This process stands for the holder of a detached mount: it removes its socket and goes on.
    #[test]
    fn a_process_that_removes_its_socket_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let address = Address { directory: directory.path().to_owned(), key: "point".into() };
        let socket = directory.path().join("point.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lock_unused(&address, Path::new("/nowhere/point")));
            std::thread::sleep(2 * SOCKET_CHECK_INTERVAL);
            assert!(!waiting.is_finished());
            std::fs::remove_file(&socket).unwrap();
            waiting.join().unwrap().unwrap();
        });
    }
}
