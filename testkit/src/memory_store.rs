//! A writable backing directory in memory that can simulate failures: no space, a read-only or
//! unavailable store, failing operations, a clock that is set back, killed processes and power
//! failures.
//!
//! It gives the same results as a local file system of Linux. Permissions are stored but not
//! enforced; there are no extended attributes and no hard links.
//!
//! # Power failures
//!
//! [`MemoryStore::crash`] creates a store in a state that a power failure could leave. The
//! simulation is strict but realistic: everything that a program must not rely on can happen, and
//! nothing that no file system does.
//!
//! - **Data and size of a file** are as of its last `sync`. Each later write independently may be
//!   present, lost, present up to some byte or from some byte on, present in some of its blocks, or
//!   have made the file longer without its data (zeros instead). Thus later writes may be present
//!   without earlier ones. A new size may be present or not.
//! - **Names** are as of the last `sync` of their directory. Each later change independently may
//!   have happened or not, but the changes of one name happen in order. A rename is atomic: it has
//!   happened to both names or to neither, and is durable when the directory of the new name is
//!   synced. A removed directory was emptied before; a directory that was moved to another one was
//!   moved after all earlier changes: no file system loses the content of a directory through the
//!   order of its journal.
//! - **A sync of a file does not make its name durable**, unless
//!   [`CrashRules::file_sync_keeps_name`] is set, as with ext4 and XFS.
//! - **Mode, owner and time** are old or new if they were changed after the last sync of the
//!   directory that contains the file. The sync of the file itself does not include them
//!   (`fdatasync`).
//! - **A failed sync** may have lost the data that it was to write, even if the next sync succeeds,
//!   as on Linux.
//! - Old changes are written back without a sync: all but the last 64 MiB of a file and the last
//!   10,000 names. Tests with fewer changes are not affected.
//!
//! [`MemoryStore::kill`] creates the state after all processes were killed: all written data is
//! present, and no file is open. Both return another store; the original and its open files remain
//! usable.

mod crash;
mod handles;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_posix::WritableDir;
use quell_vfs::Time;

use crate::counting::Operation;
use crate::random::Random;
pub use crash::Writeback;
use handles::StoreDir;
use state::State;

/// The rules for [`MemoryStore::crash`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CrashRules {
    /// The `sync` of a file also makes the name durable with which it was created or renamed.
    pub file_sync_keeps_name: bool,
}

/// Decides whether an operation fails, and with which error number.
pub type Refusal = Box<dyn FnMut(&Operation) -> Option<i32> + Send>;

/// A file system in memory. Clones share one store.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("operations", &self.operations()).finish_non_exhaustive()
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl MemoryStore {
    /// Creates an empty directory on a file system without space limits.
    pub fn new() -> MemoryStore {
        MemoryStore::with(State::new())
    }

    fn with(state: State) -> MemoryStore {
        MemoryStore { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the root of the store.
    pub fn root(&self) -> Arc<dyn WritableDir> {
        Arc::new(StoreDir::open(self, state::ROOT, true))
    }

    /// Limits the bytes that new blocks of 4 KiB and new names of 512 bytes may still take; `None`:
    /// no limit. A write that exceeds the limit writes the part that fits.
    pub fn set_room(&self, bytes: Option<u64>) {
        let mut state = self.lock();
        state.capacity_bytes = bytes.map(|bytes| state.used_bytes + bytes);
    }

    /// Limits the number of files, directories and links that may still be created; `None`: no
    /// limit.
    pub fn set_inodes(&self, count: Option<u64>) {
        let mut state = self.lock();
        state.inodes_max = count.map(|count| state.used_inodes() + count);
    }

    /// Simulates a failed writeback of all unsynced data of the files whose paths `is_hit` selects.
    /// Most of the data is lost. Each open descriptor reports this once, with its next sync; one
    /// that is opened later does so if no descriptor has. Returns the number of files that lost
    /// data. The seed selects the lost data: all of it if it is divisible by 8.
    pub fn fail_writeback(&self, seed: u64, after: Writeback, is_hit: impl Fn(&[u8]) -> bool) -> usize {
        self.lock().fail_writeback(seed, after, &is_hit)
    }

    /// Removes all pages that count as written from the page cache.
    pub fn evict(&self) {
        self.lock().evict();
    }

    pub fn set_read_only(&self, read_only: bool) {
        self.lock().read_only = read_only;
    }

    /// Makes every operation fail with this error number from now on; `None` ends this.
    pub fn set_gone(&self, errno: Option<i32>) {
        self.lock().gone = errno;
    }

    /// Sets the time of the next change, and the step by which each later change is later. With 0
    /// the clock stands still.
    pub fn set_clock(&self, now: Time, step_nanoseconds: u32) {
        let mut state = self.lock();
        (state.now, state.step_nanoseconds) = (now, step_nanoseconds);
    }

    /// Makes operations fail as decided by `refusal`. A failed write may have written some of its
    /// first bytes. `refusal` must not use the store.
    pub fn fail(&self, refusal: impl FnMut(&Operation) -> Option<i32> + Send + 'static) {
        self.lock().refusal = Some(Box::new(refusal));
    }

    /// Makes the `nth` operation from now fail, once; the next operation is the first.
    pub fn fail_nth(&self, nth: u64, errno: i32) {
        let mut count = 0;
        self.fail(move |_| {
            count += 1;
            (count == nth).then_some(errno)
        });
    }

    /// Makes one in `one_in` operations with one of the `verbs` fail; of all operations if `verbs`
    /// is empty.
    pub fn fail_one_in(&self, seed: u64, one_in: usize, verbs: &'static [&'static str], errno: i32) {
        let mut random = Random::new(seed);
        self.fail(move |operation| {
            let asked = verbs.is_empty() || verbs.contains(&operation.verb);
            (asked && random.one_in(one_in)).then_some(errno)
        });
    }

    pub fn fail_nothing(&self) {
        self.lock().refusal = None;
    }

    /// Returns the number of operations performed on the store.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Returns the number of open files and directories.
    pub fn open_handles(&self) -> u64 {
        self.lock().open_handles()
    }

    pub fn set_crash_rules(&self, rules: CrashRules) {
        self.lock().rules = rules;
    }

    /// Returns the store in a state that a power failure at this moment could leave. The seed
    /// selects one of the possible states: if it is divisible by 8, all unsynced changes are lost;
    /// if the remainder is 1, none.
    pub fn crash(&self, seed: u64) -> MemoryStore {
        MemoryStore::with(self.lock().crashed(seed))
    }

    /// Returns the store in the state after its processes were killed.
    pub fn kill(&self) -> MemoryStore {
        MemoryStore::with(self.lock().without_handles())
    }
}
