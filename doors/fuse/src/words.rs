//! The kernel's words for changes, and the contract's: flags of opens, renames and writes, modes, times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{OpenAccMode, OpenFlags, RenameFlags, Request, TimeOrNow, WriteFlags};
use quell_fs::{New, Open, Rename, Time};
use rustix::fs::OFlags;

use crate::callers::process_of;

/// The bits of a mode that are permissions.
pub(crate) const PERMISSIONS: u32 = 0o7777;

/// What a new entry begins with. The kernel has taken the caller's mask away already.
pub(crate) fn new_entry(request: &Request, mode: u32) -> New {
    New { permissions: mode & PERMISSIONS, uid: request.uid(), gid: request.gid() }
}

pub(crate) fn open_as(request: &Request, flags: OpenFlags) -> Open {
    let truncate = has(flags, OFlags::TRUNC);
    let access = flags.acc_mode();
    // Linux truncates also what is opened for reading, if the caller may write to it.
    let write = access != OpenAccMode::O_RDONLY || truncate;
    // Who reads is not kept apart from others, and so not worth the look.
    let process = if write { process_of(request.pid()) } else { 0 };
    Open { read: access != OpenAccMode::O_WRONLY, write, truncate, process }
}

/// Whether an open that makes a file must not find one.
pub(crate) fn excludes(flags: OpenFlags) -> bool {
    has(flags, OFlags::EXCL)
}

/// Whether a write goes to the end of the file. The flags are those that the descriptor has now. Pages of a
/// mapping have places, whatever the descriptor that the kernel picked for them.
pub(crate) fn appends(flags: OpenFlags, origin: WriteFlags) -> bool {
    has(flags, OFlags::APPEND) && !origin.contains(WriteFlags::FUSE_WRITE_CACHE)
}

/// Whether a write is to survive a loss of power before it returns.
pub(crate) fn syncs(flags: OpenFlags) -> bool {
    has(flags, OFlags::DSYNC) // a part of O_SYNC
}

fn has(flags: OpenFlags, flag: OFlags) -> bool {
    OFlags::from_bits_retain(flags.0 as u32).contains(flag)
}

/// Whether a write takes the set-id bits of its file away: the kernel says so of a process without `CAP_FSETID`, and cannot say
/// whose pages of a mapping it writes.
pub(crate) fn drops_set_id(origin: WriteFlags) -> bool {
    origin.intersects(WriteFlags::FUSE_WRITE_KILL_SUIDGID | WriteFlags::FUSE_WRITE_CACHE)
}

/// `None` for what the contract does not have.
pub(crate) fn rename_as(flags: RenameFlags) -> Option<Rename> {
    match flags {
        RenameFlags::RENAME_NOREPLACE => Some(Rename::Keep),
        RenameFlags::RENAME_EXCHANGE => Some(Rename::Exchange),
        flags if flags.is_empty() => Some(Rename::Replace),
        _ => None,
    }
}

pub(crate) fn time(set: TimeOrNow) -> Time {
    match set {
        TimeOrNow::Now => time_of(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)),
        TimeOrNow::SpecificTime(time) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => time_of(since),
            // The library takes the nanoseconds of a time before 1970 away where it should add them: this
            // undoes what it did, which loses nothing.
            Err(before) => {
                let Time { seconds, nanoseconds } = time_of(before.duration());
                Time { seconds: seconds.wrapping_neg(), nanoseconds }
            }
        },
    }
}

fn time_of(since: Duration) -> Time {
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_appends_as_its_descriptor_says_but_for_pages_of_mappings() {
        let flags = |bits: OFlags| OpenFlags(bits.bits() as i32);
        let none = WriteFlags::empty();
        assert!(appends(flags(OFlags::WRONLY | OFlags::APPEND), none));
        assert!(!appends(flags(OFlags::WRONLY), none));
        assert!(!appends(flags(OFlags::RDWR | OFlags::APPEND), WriteFlags::FUSE_WRITE_CACHE));
        assert!(syncs(flags(OFlags::WRONLY | OFlags::SYNC)) && syncs(flags(OFlags::WRONLY | OFlags::DSYNC)));
        assert!(!syncs(flags(OFlags::WRONLY | OFlags::APPEND)));
    }

    #[test]
    fn renames_are_of_three_kinds() {
        assert_eq!(rename_as(RenameFlags::empty()), Some(Rename::Replace));
        assert_eq!(rename_as(RenameFlags::RENAME_NOREPLACE), Some(Rename::Keep));
        assert_eq!(rename_as(RenameFlags::RENAME_EXCHANGE), Some(Rename::Exchange));
        assert_eq!(rename_as(RenameFlags::RENAME_WHITEOUT), None);
        assert_eq!(rename_as(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_NOREPLACE), None);
    }
}
