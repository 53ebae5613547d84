//! A backing directory in memory that may be changed, with all that can go wrong with one: no room, read-only,
//! gone, operations that fail, a clock that is set back, processes that are killed and power that is lost.
//!
//! It answers as a local file system of Linux does. Permissions are kept and forbid nothing; there are no extended
//! attributes and no hard links.
//!
//! # What a loss of power leaves
//!
//! [`MemoryStore::crash`] makes a store as it might be found afterwards. It is strict but realistic: whatever a
//! program may not rely on happens, what no file system does never happens.
//!
//! - **Bytes and size of a file** are there as its last `sync` found them. Each write since then, by itself, has arrived,
//!   is lost, has arrived up to some byte or from some byte on, in some of its blocks, or has made the file
//!   longer without its bytes (zeros there). So later writes may have arrived without earlier ones. A new size that was set
//!   has arrived or not.
//! - **Names** are there as the last `sync` of their directory found them. Each change since then, by itself, has
//!   happened or not, but what has happened to one name has happened in order. A rename is one step: it has happened to both names or to
//!   neither, and is safe as soon as the directory is synced that has the new name. A directory that is gone has
//!   been emptied before; one that has moved elsewhere was moved after all earlier changes: no file system loses
//!   what lies in a directory by the order in which its journal is written.
//! - **A file's sync says nothing about its name**, unless [`CrashRules::file_sync_keeps_name`] is set, as ext4 and XFS have it.
//! - **Mode, owner and time** are old or new where they were changed after the last sync of the directory that names the file;
//!   the file's own says nothing about them (`fdatasync`).
//! - **A sync that failed** may have lost what it was to write, also when the next one succeeds, as Linux has it.
//! - The system writes back by itself what has waited long: all but the last 64 MiB of a file and the last
//!   10,000 names. Tests with fewer see no difference.
//!
//! [`MemoryStore::kill`] is what is there when processes are killed: everything that was written, and nobody has anything open.
//! Both answer with another store; the old one, and what is open in it, goes on by itself.

mod crash;
mod handles;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_backing::WritableDir;
use quell_fs::Time;

use crate::counting::Operation;
use crate::random::Random;
pub use crash::Writeback;
use handles::StoreDir;
use state::State;

/// What [`MemoryStore::crash`] may take for granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CrashRules {
    /// The `sync` of a file makes the name that it was made or renamed with safe as well.
    pub file_sync_keeps_name: bool,
}

/// Says whether an operation fails, and with which error number.
pub type Refusal = Box<dyn FnMut(&Operation) -> Option<i32> + Send>;

/// A file system in memory. Clones are the same store.
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
    /// An empty directory on a file system with room for everything.
    pub fn new() -> MemoryStore {
        MemoryStore::with(State::new())
    }

    fn with(state: State) -> MemoryStore {
        MemoryStore { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the store's root.
    pub fn root(&self) -> Arc<dyn WritableDir> {
        Arc::new(StoreDir::open(self, state::ROOT, true))
    }

    /// So many bytes may still be taken by new blocks of 4 KiB and new names of 512 bytes; `None`: no limit. A write
    /// that finds no room has written what fitted.
    pub fn set_room(&self, bytes: Option<u64>) {
        let mut state = self.lock();
        state.capacity_bytes = bytes.map(|bytes| state.used_bytes + bytes);
    }

    /// So many files, directories and links may still be made; `None`: no limit.
    pub fn set_inodes(&self, count: Option<u64>) {
        let mut state = self.lock();
        state.inodes_max = count.map(|count| state.used_inodes() + count);
    }

    /// The system writes back all that was not synced of the files that `is_hit` says by their paths, and fails: most of it is lost, which
    /// each descriptor that is open reports once, with its next sync; one that is opened later does so if none has.
    /// Returns how many files lost something. The seed says what: all of it if it is divisible by 8.
    pub fn fail_writeback(&self, seed: u64, after: Writeback, is_hit: impl Fn(&[u8]) -> bool) -> usize {
        self.lock().fail_writeback(seed, after, &is_hit)
    }

    /// All pages that the system takes for written leave its memory.
    pub fn evict(&self) {
        self.lock().evict();
    }

    pub fn set_read_only(&self, read_only: bool) {
        self.lock().read_only = read_only;
    }

    /// Every operation fails with this error number from now on; `None`: the store is back.
    pub fn set_gone(&self, errno: Option<i32>) {
        self.lock().gone = errno;
    }

    /// What the next change is stamped with, and how much later the one after it is; with 0 the clock stands.
    pub fn set_clock(&self, now: Time, step_nanoseconds: u32) {
        let mut state = self.lock();
        (state.now, state.step_nanoseconds) = (now, step_nanoseconds);
    }

    /// Fails operations as `refusal` says. A write that fails may have written some of its first bytes.
    /// `refusal` must not ask the store.
    pub fn fail(&self, refusal: impl FnMut(&Operation) -> Option<i32> + Send + 'static) {
        self.lock().refusal = Some(Box::new(refusal));
    }

    /// The `nth` operation from now fails, once; the next one is the first.
    pub fn fail_nth(&self, nth: u64, errno: i32) {
        let mut count = 0;
        self.fail(move |_| {
            count += 1;
            (count == nth).then_some(errno)
        });
    }

    /// One in so many operations fails, of those with one of these verbs; of all where none is named.
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

    /// How many operations the store was asked for.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// How many files and directories are open.
    pub fn open_handles(&self) -> u64 {
        self.lock().open_handles()
    }

    pub fn set_crash_rules(&self, rules: CrashRules) {
        self.lock().rules = rules;
    }

    /// The store as a loss of power at this moment may leave it; the seed says which of the possible ways. Seeds
    /// divisible by 8 lose all that was not synced, those one above lose nothing.
    pub fn crash(&self, seed: u64) -> MemoryStore {
        MemoryStore::with(self.lock().crashed(seed))
    }

    /// The store as its processes leave it when they are killed.
    pub fn kill(&self) -> MemoryStore {
        MemoryStore::with(self.lock().without_handles())
    }
}
