//! Converts the kernel's flags for opens, renames and writes, and its modes and times, to the types
//! of the contract, and the contract's errors to error numbers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, OpenAccMode, OpenFlags, RenameFlags, Request, TimeOrNow, WriteFlags};
use quell_vfs::{Error, NewEntry, OpenMode, Rename, SetXattr, Time};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};

use crate::callers::process_of;

/// The permission bits of a mode.
pub(crate) const PERMISSIONS: u32 = 0o7777;

/// Returns the attributes of a new entry. The kernel has already applied the caller's umask.
pub(crate) fn new_entry(request: &Request, mode: u32) -> NewEntry {
    NewEntry { permissions: mode & PERMISSIONS, uid: request.uid(), gid: request.gid() }
}

pub(crate) fn open_mode(flags: OpenFlags) -> OpenMode {
    let truncate = has(flags, OFlags::TRUNC);
    let access = flags.acc_mode();
    // Linux also truncates a file that is opened for reading, if the caller may write to it.
    let write = access != OpenAccMode::O_RDONLY || truncate;
    OpenMode { read: access != OpenAccMode::O_WRONLY, write, truncate }
}

/// Returns the process of a request that opens a file, or 0 for an open for reading: file systems
/// distinguish processes only as writers, and finding the process takes time.
pub(crate) fn process_for(request: &Request, mode: OpenMode) -> u32 {
    if mode.write { process_of(request.pid()) } else { 0 }
}

/// Returns whether an open that creates a file must fail if the file exists.
pub(crate) fn excludes(flags: OpenFlags) -> bool {
    has(flags, OFlags::EXCL)
}

/// Returns whether a write goes to the end of the file. The flags are the current flags of the
/// descriptor. Pages of a mapping are written at their own offsets, regardless of the descriptor
/// with which the kernel sends them.
pub(crate) fn appends(flags: OpenFlags, origin: WriteFlags) -> bool {
    has(flags, OFlags::APPEND) && !origin.contains(WriteFlags::FUSE_WRITE_CACHE)
}

/// Returns whether the data must survive a power failure when the write returns.
pub(crate) fn syncs(flags: OpenFlags) -> bool {
    has(flags, OFlags::DSYNC) // O_SYNC includes it
}

/// Returns whether a program wants its reads not to be cached (O_DIRECT).
pub(crate) fn is_direct(flags: OpenFlags) -> bool {
    has(flags, OFlags::DIRECT)
}

fn has(flags: OpenFlags, flag: OFlags) -> bool {
    OFlags::from_bits_retain(flags.0 as u32).contains(flag)
}

/// Returns whether a write removes the set-id bits of its file. The kernel sets the flag for a
/// process without `CAP_FSETID`; for pages of a mapping it does not know the process, so they are
/// treated in the same way.
pub(crate) fn drops_set_id(origin: WriteFlags) -> bool {
    origin.intersects(WriteFlags::FUSE_WRITE_KILL_SUIDGID | WriteFlags::FUSE_WRITE_CACHE)
}

/// Converts the flags of a rename; `None` for combinations that the contract does not have.
pub(crate) fn rename_rule(flags: RenameFlags) -> Option<Rename> {
    match flags {
        RenameFlags::RENAME_NOREPLACE => Some(Rename::Keep),
        RenameFlags::RENAME_EXCHANGE => Some(Rename::Exchange),
        flags if flags.is_empty() => Some(Rename::Replace),
        _ => None,
    }
}

/// The effect of fallocate(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// The range reads as zeros afterwards, as far as it is within the file.
    pub zeros: bool,
    /// The file ends at the end of the range or later.
    pub extends: bool,
}

/// Returns the effect of fallocate(2) with these flags; `None` for operations that the contract
/// does not have.
pub(crate) fn allocation(mode: i32) -> Option<Allocation> {
    let (keep, punch) = (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE);
    let zeros = FallocateFlags::ZERO_RANGE;
    let flags = FallocateFlags::from_bits(mode as u32)?;
    match flags {
        flags if flags.is_empty() => Some(Allocation { zeros: false, extends: true }),
        flags if flags == keep => Some(Allocation { zeros: false, extends: false }),
        flags if flags == keep | punch || flags == keep | zeros => {
            Some(Allocation { zeros: true, extends: false })
        }
        flags if flags == zeros => Some(Allocation { zeros: true, extends: true }),
        _ => None,
    }
}

/// Returns the effect of setxattr(2) with these flags.
pub(crate) fn xattr_mode(flags: i32) -> Option<SetXattr> {
    match XattrFlags::from_bits(flags as u32)? {
        XattrFlags::CREATE => Some(SetXattr::Create),
        XattrFlags::REPLACE => Some(SetXattr::Replace),
        flags if flags.is_empty() => Some(SetXattr::Any),
        _ => None,
    }
}

pub(crate) fn time(set: TimeOrNow) -> Time {
    match set {
        TimeOrNow::Now => time_of(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)),
        TimeOrNow::SpecificTime(time) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => time_of(since),
            // For a time before 1970 the library subtracts the nanoseconds where it should add
            // them. This reverses the subtraction without loss.
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

/// The kernel rejects a reply with an error number from here on, and its program would wait
/// forever.
const ERRNO_END: i32 = 512;

/// Returns the error number for the kernel. ENOSYS would tell the kernel never to send this kind of
/// request again, so it is replaced.
pub(crate) fn errno(error: &Error) -> Errno {
    match Errno::from_i32(error.errno()) {
        known if known.code() == Errno::ENOSYS.code() => Errno::EOPNOTSUPP,
        known if (1..ERRNO_END).contains(&known.code()) => known,
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use quell_vfs::ErrorKind;

    use super::*;

    #[test]
    fn a_write_appends_if_its_descriptor_does_except_for_pages_of_mappings() {
        let flags = |bits: OFlags| OpenFlags(bits.bits() as i32);
        let none = WriteFlags::empty();
        assert!(appends(flags(OFlags::WRONLY | OFlags::APPEND), none));
        assert!(!appends(flags(OFlags::WRONLY), none));
        assert!(!appends(flags(OFlags::RDWR | OFlags::APPEND), WriteFlags::FUSE_WRITE_CACHE));
        assert!(syncs(flags(OFlags::WRONLY | OFlags::SYNC)) && syncs(flags(OFlags::WRONLY | OFlags::DSYNC)));
        assert!(!syncs(flags(OFlags::WRONLY | OFlags::APPEND)));
    }

    #[test]
    fn rename_flags_map_to_three_rules() {
        assert_eq!(rename_rule(RenameFlags::empty()), Some(Rename::Replace));
        assert_eq!(rename_rule(RenameFlags::RENAME_NOREPLACE), Some(Rename::Keep));
        assert_eq!(rename_rule(RenameFlags::RENAME_EXCHANGE), Some(Rename::Exchange));
        assert_eq!(rename_rule(RenameFlags::RENAME_WHITEOUT), None);
        assert_eq!(rename_rule(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_NOREPLACE), None);
    }

    #[test]
    fn fallocate_extends_files_writes_zeros_and_refuses_everything_else() {
        let of = |flags: FallocateFlags| allocation(flags.bits() as i32).map(|of| (of.zeros, of.extends));
        let (keep, punch) = (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE);
        assert_eq!(of(FallocateFlags::empty()), Some((false, true)));
        assert_eq!(of(keep), Some((false, false)));
        assert_eq!(of(keep | punch), Some((true, false)));
        assert_eq!(of(FallocateFlags::ZERO_RANGE), Some((true, true)));
        assert_eq!(of(FallocateFlags::ZERO_RANGE | keep), Some((true, false)));
        for refused in [punch, FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
            assert_eq!(of(refused), None);
        }
    }

    #[test]
    fn every_error_number_is_one_that_the_kernel_accepts_and_never_enosys() {
        let number = |kind| errno(&Error::new(kind, "open", "x")).code();
        assert_eq!(number(ErrorKind::Stale), 116);
        assert_eq!(number(ErrorKind::Os(38)), 95);
        for odd in [0, -5, 512, 4096] {
            assert_eq!(number(ErrorKind::Os(odd)), 5);
        }
    }
}
