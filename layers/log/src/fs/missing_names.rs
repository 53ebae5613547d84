//! Names that a lookup has not found while this process was the only user of its store. The kernel
//! looks up a name before it creates a file with it, so the creation need not search again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_vfs::NodeId;

use crate::locks::{Rank, RankedMutex};
use crate::stores::{OnlyUserPeriod, Stores};

/// The largest number of names. When there are more, all are forgotten.
const NAMES_MAX: usize = 1024;

/// A state of the names of directories and symbolic links in the store, which only this process
/// changes. Names of files are not part of it, because the creation of a file fails if another file
/// has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamesState {
    period: OnlyUserPeriod,
    changes: u64,
}

/// The missing names of one mount.
pub(crate) struct MissingNames {
    /// Changes before and after a directory or a symbolic link gets a name.
    changes: AtomicU64,
    names: RankedMutex<HashMap<(NodeId, Vec<u8>), NamesState>>,
}

impl MissingNames {
    pub fn new() -> MissingNames {
        MissingNames { changes: AtomicU64::new(0), names: RankedMutex::new(Rank::Leaf, HashMap::new()) }
    }

    /// Returns the current state, or `None` if other processes may change names.
    pub fn state(&self, stores: &Stores) -> Option<NamesState> {
        let changes = self.changes.load(Ordering::SeqCst);
        stores.only_user_period().map(|period| NamesState { period, changes })
    }

    /// Adds a name for which a search that began in this state has found nothing.
    pub fn add(&self, (dir, name): (NodeId, &[u8]), state: NamesState) {
        let mut names = self.names.lock();
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert((dir, name.to_vec()), state);
    }

    /// Removes a name. Returns true if no directory and no symbolic link has got it since it was
    /// added.
    pub fn take(&self, (dir, name): (NodeId, &[u8]), stores: &Stores) -> bool {
        let known = self.names.lock().remove(&(dir, name.to_vec()));
        known.is_some() && known == self.state(stores)
    }

    /// Calls `change`, which may give a directory or a symbolic link a name.
    pub fn while_changing<T>(&self, change: impl FnOnce() -> T) -> T {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let changed = change();
        self.changes.fetch_add(1, Ordering::SeqCst);
        changed
    }
}
