//! The committed states that can be read: the latest state, and the states of snapshots.

use std::collections::BTreeMap;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quell_kv::Value;
use quell_threads::{read_lock, write_lock};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::Version;

use crate::joint::LocksOfState;
use crate::tables::{Changed, History};

/// The published state, the snapshots, and the values that snapshots need.
pub(crate) struct Versions {
    state: RwLock<VersionsState>,
    /// Whether the history is empty. While it is, reads do not need the lock.
    is_empty: AtomicBool,
    /// States before this one cannot be read.
    oldest_readable: AtomicU64,
    history_bytes_max: u64,
}

struct VersionsState {
    published: Version,
    /// The number of snapshots of each state.
    snapshots: BTreeMap<Version, usize>,
    history: History,
    /// The joint transactions that are prepared in the latest state.
    locks: LocksOfState,
}

impl Versions {
    /// Returns the versions of a store whose only state is `published`.
    pub(crate) fn new(published: Version, locks: LocksOfState, history_bytes_max: u64) -> Versions {
        let (snapshots, history) = (BTreeMap::new(), History::default());
        let state = VersionsState { published, snapshots, history, locks };
        Versions {
            state: RwLock::new(state),
            is_empty: AtomicBool::new(true),
            oldest_readable: AtomicU64::new(published.0),
            history_bytes_max,
        }
    }

    /// Returns the latest state.
    pub(crate) fn published(&self) -> Version {
        read_lock(&self.state).published
    }

    /// Returns the joint transactions that are prepared in the latest state.
    pub(crate) fn locks(&self) -> LocksOfState {
        read_lock(&self.state).locks.clone()
    }

    /// Registers a snapshot of the latest state, and returns its version and the joint transactions
    /// that are prepared in it.
    pub(crate) fn begin_snapshot(&self) -> (Version, LocksOfState) {
        let mut state = write_lock(&self.state);
        let version = state.published;
        *state.snapshots.entry(version).or_insert(0) += 1;
        (version, state.locks.clone())
    }

    /// Registers another snapshot of a state that already has a snapshot.
    pub(crate) fn begin_snapshot_of(&self, version: Version) {
        *write_lock(&self.state).snapshots.entry(version).or_insert(0) += 1;
    }

    /// Removes a snapshot.
    pub(crate) fn end_snapshot(&self, version: Version) {
        let mut state = write_lock(&self.state);
        if let Some(count) = state.snapshots.get_mut(&version) {
            *count -= 1;
            if *count == 0 {
                state.snapshots.remove(&version);
            }
        }
    }

    /// Adds the values before a commit, which must not have begun to write.
    pub(crate) fn begin_commit(&self, version: Version, before: Vec<(Vec<u8>, Option<Value>)>) {
        let mut state = write_lock(&self.state);
        state.history.add(version, before);
        self.is_empty.store(false, Ordering::Release);
    }

    /// Removes the values before the last commit, which has written nothing.
    pub(crate) fn undo_commit(&self, version: Version) {
        let mut state = write_lock(&self.state);
        state.history.forget_last(version);
        self.is_empty.store(state.history.is_empty(), Ordering::Release);
    }

    /// Makes a committed state the latest one. Returns the oldest state that a snapshot or the next
    /// reader can need: data that was replaced up to this state can be removed. `locks` are the
    /// joint transactions that are prepared, if they have changed.
    pub(crate) fn publish(&self, version: Version, locks: Option<LocksOfState>) -> Version {
        let mut state = write_lock(&self.state);
        state.published = version;
        if let Some(locks) = locks {
            state.locks = locks;
        }
        self.forget_unneeded(&mut state)
    }

    /// Returns the oldest state that a snapshot or the next reader can need.
    pub(crate) fn oldest_needed(&self) -> Version {
        self.forget_unneeded(&mut write_lock(&self.state))
    }

    fn forget_unneeded(&self, state: &mut VersionsState) -> Version {
        if state.history.bytes() > self.history_bytes_max {
            // Readers check the state after they have read, so they do not use a state without its
            // history.
            if let Some(forgotten) = state.history.shrink(self.history_bytes_max / 2) {
                self.oldest_readable.fetch_max(forgotten.0, Ordering::AcqRel);
            }
        }
        let oldest_readable = Version(self.oldest_readable.load(Ordering::Acquire));
        let oldest_snapshot = state.snapshots.range(oldest_readable..).next().map(|(version, _)| *version);
        let needed = oldest_snapshot.unwrap_or(state.published);
        state.history.forget_up_to(needed);
        self.is_empty.store(state.history.is_empty(), Ordering::Release);
        needed
    }

    /// Makes all states before `version` unreadable.
    pub(crate) fn expire_before(&self, version: Version) {
        let mut state = write_lock(&self.state);
        self.oldest_readable.fetch_max(version.0.min(state.published.0), Ordering::AcqRel);
        self.forget_unneeded(&mut state);
    }

    /// Returns `Stale` if a state cannot be read any more.
    pub(crate) fn check(&self, version: Version) -> Result<()> {
        match version.0 < self.oldest_readable.load(Ordering::Acquire) {
            true => Err(too_old()),
            false => Ok(()),
        }
    }

    /// Returns the value that a key had in a state, if a later commit changes it. The caller must
    /// have read the value in the key-value store before this call.
    pub(crate) fn before(&self, key: &[u8], version: Version) -> Result<Option<Option<Value>>> {
        if self.is_empty.load(Ordering::Acquire) {
            self.check(version)?;
            return Ok(None);
        }
        let state = read_lock(&self.state);
        self.check(version)?;
        Ok(state.history.before(key, version).cloned())
    }

    /// Returns the keys in a range that commits after a state change, with their values in that
    /// state. The caller must have read the key-value store before this call.
    pub(crate) fn changed_after(&self, start: &[u8], end: &[u8], version: Version) -> Result<Changed> {
        if self.is_empty.load(Ordering::Acquire) {
            self.check(version)?;
            return Ok(Changed::new());
        }
        let state = read_lock(&self.state);
        self.check(version)?;
        Ok(state.history.changed_after(start, end, version))
    }

    /// Returns the memory of the history, in bytes.
    pub(crate) fn history_bytes(&self) -> u64 {
        read_lock(&self.state).history.bytes()
    }
}

/// Returns the error of a read of a state that is no longer kept.
fn too_old() -> Error {
    let source = Some("the state of the snapshot is no longer kept: too much was changed since".into());
    Error { source, ..Error::new(ErrorKind::Stale, "read", "snapshot") }
}
