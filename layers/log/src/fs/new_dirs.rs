//! The directories that this process has created while it was the only user of its store. All of
//! their names are known, so the search for another name needs no request to the store.

use std::collections::{HashMap, HashSet};

use quell_vfs::NodeId;
use xxhash_rust::xxh3::xxh3_64;

use crate::stores::OnlyUserPeriod;

/// The largest number of names in all directories, about 20 MB. When there are more, all
/// directories are forgotten.
const NAMES_MAX: usize = 1 << 20;

/// A directory counts as this number of names, because of the memory that it uses.
const NAMES_OF_DIR: usize = 8;

#[derive(Debug)]
struct NewDir {
    /// The period in which it was created. In another period, other processes may have created
    /// names in it.
    period: OnlyUserPeriod,
    /// The hashes of the names that the directory has had. The hash of a removed name is kept.
    names: HashSet<u64>,
}

/// The new directories of one mount.
#[derive(Debug, Default)]
pub(crate) struct NewDirs {
    dirs: HashMap<NodeId, NewDir>,
    /// The number of names in all directories.
    names: usize,
}

impl NewDirs {
    /// Adds a directory that was created in this period and is empty.
    pub fn add(&mut self, dir: NodeId, period: OnlyUserPeriod) {
        self.forget(dir);
        self.dirs.insert(dir, NewDir { period, names: HashSet::new() });
        self.count(NAMES_OF_DIR);
    }

    /// Forgets a directory whose node is no longer referenced.
    pub fn forget(&mut self, dir: NodeId) {
        if let Some(forgotten) = self.dirs.remove(&dir) {
            self.names -= forgotten.names.len() + NAMES_OF_DIR;
        }
    }

    /// Returns true if a directory has never had this name. `period` is the current period.
    pub fn lacks(&self, dir: NodeId, name: &[u8], period: Option<OnlyUserPeriod>) -> bool {
        let found = self.dirs.get(&dir).filter(|found| Some(found.period) == period);
        found.is_some_and(|found| !found.names.contains(&xxh3_64(name)))
    }

    /// Adds a name that is about to be created in a directory. Returns true if the directory has
    /// never had it.
    pub fn add_name(&mut self, dir: NodeId, name: &[u8], period: Option<OnlyUserPeriod>) -> bool {
        let Some(found) = self.dirs.get_mut(&dir) else { return false };
        if Some(found.period) != period {
            self.forget(dir); // a period that is over is not used again
            return false;
        }
        let is_new = found.names.insert(xxh3_64(name));
        if is_new {
            self.count(1);
        }
        is_new
    }

    fn count(&mut self, names: usize) {
        self.names += names;
        if self.names > NAMES_MAX {
            *self = NewDirs::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::stores::OnlyUserPeriods;

    const DIR: NodeId = NodeId(7);

    /// Returns two periods.
    fn periods() -> [Option<OnlyUserPeriod>; 2] {
        let (periods, now) = (OnlyUserPeriods::new(), Instant::now());
        [1, 2].map(|_| {
            periods.confirm(now + Duration::from_secs(1), now);
            let period = periods.current(now);
            periods.end();
            period
        })
    }

    #[test]
    fn a_directory_has_the_names_that_were_added_since_it_was_created_in_the_same_period() {
        let [first, second] = periods();
        let mut dirs = NewDirs::default();
        assert!(!dirs.lacks(DIR, b"a", first) && !dirs.add_name(DIR, b"a", first), "it is not known");
        dirs.add(DIR, first.unwrap());
        assert!(
            dirs.lacks(DIR, b"a", first) && !dirs.lacks(DIR, b"a", second) && !dirs.lacks(DIR, b"a", None)
        );
        assert!(dirs.add_name(DIR, b"a", first) && !dirs.add_name(DIR, b"a", first));
        assert!(!dirs.lacks(DIR, b"a", first) && dirs.lacks(DIR, b"b", first));
        assert!(!dirs.add_name(DIR, b"b", None) && !dirs.lacks(DIR, b"b", first), "the period is over");
        assert!(!dirs.lacks(DIR, b"c", first) && dirs.names == 0, "the directory is forgotten");
        dirs.add(DIR, second.unwrap());
        assert!(dirs.lacks(DIR, b"a", second) && dirs.add_name(DIR, b"a", second));
        dirs.add(DIR, second.unwrap());
        assert!(dirs.lacks(DIR, b"a", second), "it was removed and created again");
        dirs.forget(DIR);
        assert!(!dirs.lacks(DIR, b"c", second) && dirs.names == 0);
    }

    #[test]
    fn the_number_of_names_is_limited() {
        let [first, _] = periods();
        let mut dirs = NewDirs::default();
        dirs.add(DIR, first.unwrap());
        for name in 0..=NAMES_MAX as u64 {
            dirs.add_name(DIR, &name.to_le_bytes(), first);
        }
        assert!(dirs.dirs.is_empty() && dirs.names == 0);
    }
}
