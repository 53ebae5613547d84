//! The options, the result and the state of a transfer that all threads share.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_posix::Stat;
use quell_threads::{into_inner, lock};
use quell_vfs::{Change, Error, ErrorKind, ReadAt, Result, Time};

use crate::format::{FileOffset, number_name};
use crate::tools::progress::ToolProgress;

/// Size of a read, in bytes.
pub const READ_BYTES: usize = 4 << 20;
/// Larger files are copied by several threads in ranges of this size, in bytes.
const RANGE_BYTES: u64 = 128 << 20;
/// Prefix of the temporary names of incomplete files.
const TEMPORARY: &[u8] = b".quell-part-";
/// Permissions of files and directories while they are incomplete.
pub const FILE_PERMISSIONS: u32 = 0o600;
pub const DIR_PERMISSIONS: u32 = 0o700;

/// The options of an export or import.
#[derive(Debug, Clone, Copy)]
pub struct TransferOptions {
    /// Number of threads that copy.
    pub threads: usize,
    /// Existing files with the expected size and time are skipped; others are replaced.
    pub resume: bool,
    /// Every copied file is read again and compared.
    pub verify: bool,
    /// Owners and groups are preserved.
    pub owners: bool,
}

/// The result of an export or import.
#[derive(Debug, Default)]
pub struct TransferResult {
    /// Number of files that were copied.
    pub files: u64,
    /// Number of bytes of these files.
    pub bytes: u64,
    /// Number of directories that were created or existed.
    pub dirs: u64,
    /// Number of symbolic links that were created.
    pub links: u64,
    /// Number of files and links that were skipped because they existed.
    pub skipped: u64,
    /// Files that were being written by others during the copy.
    pub being_written: Vec<Vec<u8>>,
    /// Files with a log that has lost its end.
    pub short: Vec<Vec<u8>>,
    /// Objects that are not supported in a store: devices, sockets, FIFOs.
    pub special: Vec<Vec<u8>>,
    /// Paths that could not be copied, and the reasons.
    pub failed: Vec<(Vec<u8>, Error)>,
}

/// The state of a transfer that all threads share.
pub struct Transfer<'a> {
    pub options: TransferOptions,
    pub progress: &'a ToolProgress,
    random_number: &'a (dyn Fn() -> u128 + Sync),
    result: Mutex<TransferResult>,
}

impl<'a> Transfer<'a> {
    pub fn new(
        options: TransferOptions,
        progress: &'a ToolProgress,
        random_number: &'a (dyn Fn() -> u128 + Sync),
    ) -> Transfer<'a> {
        Transfer { options, progress, random_number, result: Mutex::default() }
    }

    pub fn update(&self, update: impl FnOnce(&mut TransferResult)) {
        update(&mut lock(&self.result));
    }

    /// Records a failure, unless it is the effect of a stop.
    pub fn add_failure(&self, path: Vec<u8>, error: Error) {
        if !self.progress.is_stopped() {
            self.update(|result| result.failed.push((path, error)));
        }
    }

    pub fn add_file(&self, size_bytes: u64) {
        self.progress.add_file();
        self.update(|result| {
            (result.files, result.bytes) = (result.files + 1, result.bytes + size_bytes);
        });
    }

    pub fn add_skipped(&self) {
        self.update(|result| result.skipped += 1);
    }

    pub fn temporary_name(&self) -> Vec<u8> {
        [TEMPORARY, &number_name((self.random_number)())[..]].concat()
    }

    /// Returns an error if the transfer was stopped.
    pub fn check_stop(&self) -> Result<()> {
        match self.progress.is_stopped() {
            true => Err(Error::new(ErrorKind::Interrupted, "copy", b"")),
            false => Ok(()),
        }
    }

    pub fn into_result(self) -> TransferResult {
        into_inner(self.result)
    }

    /// Returns the attributes of a copy.
    pub fn attributes(&self, permissions: Option<u32>, uid: u32, gid: u32, modified: Time) -> Change {
        let (uid, gid) = if self.options.owners { (Some(uid), Some(gid)) } else { (None, None) };
        Change { permissions, uid, gid, size_bytes: None, modified: Some(modified) }
    }

    /// Returns the attributes of a copy of a file or directory.
    pub fn attributes_of(&self, stat: &Stat) -> Change {
        self.attributes(Some(stat.mode & 0o7777), stat.uid, stat.gid, stat.modified)
    }

    /// Returns the attributes of a copy of a symbolic link, which has no permissions.
    pub fn attributes_of_link(&self, stat: &Stat) -> Change {
        self.attributes(None, stat.uid, stat.gid, stat.modified)
    }

    /// Returns the ranges in which a file of this size is copied, at least one.
    pub fn ranges(&self, size_bytes: u64) -> Vec<Range<FileOffset>> {
        split_ranges(size_bytes, if self.options.threads > 1 { RANGE_BYTES } else { u64::MAX })
    }

    /// Reads both files completely. `name` is their name in errors.
    ///
    /// # Errors
    ///
    /// `Damaged` if they differ.
    pub fn compare(&self, name: &[u8], one: &dyn ReadAt, other: &dyn ReadAt, size_bytes: u64) -> Result<()> {
        let (mut a, mut b) = (vec![0; READ_BYTES], vec![0; READ_BYTES]);
        let mut at = 0;
        while at < size_bytes {
            self.check_stop()?;
            let n = READ_BYTES.min((size_bytes - at) as usize);
            read_whole(one, name, &mut a[..n], at)?;
            read_whole(other, name, &mut b[..n], at)?;
            if a[..n] != b[..n] {
                return Err(Error {
                    source: Some("the copy differs from the original; run the command again".into()),
                    ..Error::new(ErrorKind::Damaged, "verify", name)
                });
            }
            at += n as u64;
        }
        Ok(())
    }
}

/// Divides `size_bytes` into ranges of at most `range_bytes`. An empty file has one empty range.
pub fn split_ranges(size_bytes: u64, range_bytes: u64) -> Vec<Range<FileOffset>> {
    let count = size_bytes.div_ceil(range_bytes).max(1);
    let range = |number: u64| {
        let end = (number + 1).saturating_mul(range_bytes).min(size_bytes);
        FileOffset(number * range_bytes)..FileOffset(end)
    };
    (0..count).map(range).collect()
}

/// Fills `into`. `name` is the name of the file in errors.
pub fn read_whole(file: &dyn ReadAt, name: &[u8], into: &mut [u8], offset: u64) -> Result<()> {
    match file.read_at(into, offset)? == into.len() {
        true => Ok(()),
        false => Err(Error {
            source: Some("the file became shorter during the copy".into()),
            ..Error::new(ErrorKind::Stale, "read", name)
        }),
    }
}

/// Number of unfinished parts of a file or directory, which is completed after the last part.
pub struct Pending(AtomicUsize);

impl Pending {
    pub fn new(parts: usize) -> Pending {
        Pending(AtomicUsize::new(parts))
    }

    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a part. Returns true if it was the last.
    pub fn finish(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// The copy of one file by several threads: the number of ranges left, and the first failure.
pub struct RangeCopies {
    pending: Pending,
    failure: Mutex<Option<Error>>,
}

impl RangeCopies {
    pub fn new(ranges: usize) -> RangeCopies {
        RangeCopies { pending: Pending::new(ranges), failure: Mutex::default() }
    }

    /// Ends the copy of a range. After the last range, returns the result of all ranges.
    pub fn finish(&self, copied: Result<()>) -> Option<Result<()>> {
        let failure = || lock(&self.failure);
        if let Err(error) = copied {
            failure().get_or_insert(error);
        }
        if !self.pending.finish() {
            return None;
        }
        Some(failure().take().map_or(Ok(()), Err))
    }
}
