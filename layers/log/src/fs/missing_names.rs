//! Names that a lookup has not found while this process was the only user of its store. The kernel
//! looks up a name before it creates a file with it, so the creation need not search again.

use std::collections::HashMap;

use quell_vfs::NodeId;

use crate::fs::name_changes::{NameChanges, NamesState};
use crate::locks::{Rank, RankedMutex};
use crate::stores::{OnlyUserPeriod, Stores};

/// The largest number of names. When there are more, all are forgotten.
const NAMES_MAX: usize = 1024;

/// A state of the names of directories and symbolic links in the store, in a period in which only
/// this process changes them. Names of files are not part of it, because the creation of a file
/// fails if another file has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SearchState {
    period: OnlyUserPeriod,
    names: NamesState,
}

/// The missing names of one mount.
pub(crate) struct MissingNames {
    /// The changes that may give a directory or a symbolic link a name.
    pub changes: NameChanges,
    names: RankedMutex<HashMap<(NodeId, Vec<u8>), SearchState>>,
}

impl MissingNames {
    pub fn new() -> MissingNames {
        let names = RankedMutex::new(Rank::Leaf, HashMap::new());
        MissingNames { changes: NameChanges::default(), names }
    }

    /// Returns the current state, or `None` if names are being changed, or other processes may
    /// change them.
    pub fn state(&self, stores: &Stores) -> Option<SearchState> {
        let names = self.changes.state()?;
        stores.only_user_period().map(|period| SearchState { period, names })
    }

    /// Adds a name for which a search that began in this state has found nothing.
    pub fn add(&self, (dir, name): (NodeId, &[u8]), state: SearchState) {
        let mut names = self.names.lock();
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert((dir, name.to_vec()), state);
    }

    /// Removes a name. Returns true if it was added in the current state. Then no directory and no
    /// symbolic link has the name.
    pub fn remove(&self, (dir, name): (NodeId, &[u8]), stores: &Stores) -> bool {
        let known = self.names.lock().remove(&(dir, name.to_vec()));
        known.is_some() && known == self.state(stores)
    }
}
