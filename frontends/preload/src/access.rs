//! Checks permissions, as the kernel does for paths that it resolves itself.

use libc::c_int;
use quell_vfs::{Attributes, Kind};

use crate::errno::{Errno, Outcome};

/// Checks access as access(2) does. `effective`: for the effective user, not the real one.
pub fn check_access(found: &Attributes, wanted: c_int, effective: bool) -> Outcome<()> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    let (uid, gid) = if effective { (geteuid(), getegid()) } else { (getuid(), getgid()) };
    let allowed = if uid.is_root() {
        // Root may execute a file only if one of its execute bits is set.
        let executes = found.kind == Kind::Dir || found.permissions & 0o111 != 0;
        if executes { 7 } else { 6 }
    } else if uid.as_raw() == found.uid {
        found.permissions >> 6 & 7
    } else if gid.as_raw() == found.gid || is_in_group(found.gid) {
        found.permissions >> 3 & 7
    } else {
        found.permissions & 7
    };
    match wanted as u32 & !allowed & 7 {
        0 => Ok(()),
        _ => Err(Errno(libc::EACCES)),
    }
}

fn is_in_group(gid: u32) -> bool {
    // SAFETY: with a size of 0 the list is not written.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the list has space for `count` groups.
    let count = unsafe { libc::getgroups(count.max(0), groups.as_mut_ptr()) };
    groups[..usize::try_from(count).unwrap_or(0)].contains(&gid)
}
