//! The store itself, with its switches for failures.

use std::sync::{Arc, MutexGuard};

use quell_posix::WritableDir;
use quell_vfs::Time;

use super::crash::Writeback;
use super::handles::StoreDir;
use super::inode::ROOT;
use super::state::{CrashRules, SharedState, State};
use crate::counting::Operation;
use crate::random::Random;

/// A file system in memory. Clones share one store.
#[derive(Clone)]
pub struct MemoryStore {
    state: SharedState,
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
        MemoryStore::with_state(State::new())
    }

    fn with_state(state: State) -> MemoryStore {
        MemoryStore { state: SharedState::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Opens the root of the store.
    pub fn root(&self) -> Arc<dyn WritableDir> {
        Arc::new(StoreDir::open(&self.state, ROOT, true))
    }

    /// Opens the root of the store as another node does, which keeps the size of a file once it has
    /// read it or asked for it, until it asks the server ([`OpenFile::stat_from_server`]) or
    /// changes the file. The clients of parallel file systems do so for about a second.
    ///
    /// [`OpenFile::stat_from_server`]: quell_posix::OpenFile::stat_from_server
    pub fn root_on_caching_node(&self) -> Arc<dyn WritableDir> {
        Arc::new(StoreDir::open(&self.state.of_caching_node(), ROOT, true))
    }

    /// Opens the root of the store as a node does whose written data other nodes see only after it
    /// was synced or written back ([`WritableFile::write_back`]), or a descriptor for writing was
    /// closed, as on NFS and MooseFS. Other nodes see no data after the size that the file had
    /// before. At most one node may use the store in this way.
    ///
    /// [`WritableFile::write_back`]: quell_posix::WritableFile::write_back
    pub fn root_on_delaying_node(&self) -> Arc<dyn WritableDir> {
        Arc::new(StoreDir::open(&self.state.of_delaying_node(), ROOT, true))
    }

    /// Limits the bytes that new blocks (4 KiB each) and new names (512 bytes each) may still take;
    /// `None`: no limit. A write that exceeds the limit writes the part that fits.
    pub fn set_free_bytes(&self, bytes: Option<u64>) {
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
    /// Most of the data is lost. The next sync of each open descriptor returns the error once. A
    /// descriptor that is opened later returns it if no other descriptor has. Returns the number of
    /// files that lost data. The seed selects the lost data: all of it if it is divisible by 8.
    pub fn fail_writeback(&self, seed: u64, after: Writeback, is_hit: impl Fn(&[u8]) -> bool) -> usize {
        self.lock().fail_writeback(seed, after, &is_hit)
    }

    /// Removes all pages that count as written from the page cache.
    pub fn evict(&self) {
        self.lock().evict();
    }

    /// With `true`, makes every change fail with EROFS; with `false`, ends this.
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
            let is_selected = verbs.is_empty() || verbs.contains(&operation.verb);
            (is_selected && random.one_in(one_in)).then_some(errno)
        });
    }

    /// Ends all failures set by the functions `fail...`.
    pub fn fail_nothing(&self) {
        self.lock().refusal = None;
    }

    /// Sets whether it is certain that locks hold between all nodes. The locks conflict in both
    /// cases.
    pub fn set_locks_reliable(&self, are_reliable: bool) {
        self.lock().locks_are_reliable = are_reliable;
    }

    /// Sets whether `Rename::Keep` and `Rename::Exchange` work, as they do by default. Otherwise
    /// they return `Unsupported`, as on MooseFS, and files can have several names.
    pub fn set_rename_flags(&self, are_supported: bool) {
        self.lock().has_rename_flags = are_supported;
    }

    /// Sets whether the link count of an open file becomes 0 when its last name is removed.
    /// Otherwise it remains 1, as on NFS, which gives such a file another name.
    pub fn set_removed_names_counted(&self, are_counted: bool) {
        self.lock().counts_removed_names = are_counted;
    }

    /// Returns the number of operations performed on the store.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Returns the number of open files and directories.
    pub fn open_handles(&self) -> u64 {
        self.lock().open_handles()
    }

    /// Sets the rules for later crashes.
    pub fn set_crash_rules(&self, rules: CrashRules) {
        self.lock().rules = rules;
    }

    /// Returns the store in a state that a power failure at this moment could leave. The seed
    /// selects one of the possible states: if it is divisible by 8, all unsynced changes are lost;
    /// if the remainder is 1, none.
    pub fn crash(&self, seed: u64) -> MemoryStore {
        MemoryStore::with_state(self.lock().crashed(seed))
    }

    /// Returns the store in the state after its processes were killed.
    pub fn kill(&self) -> MemoryStore {
        MemoryStore::with_state(self.lock().without_handles())
    }
}
