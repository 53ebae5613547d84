//! The stores according to one version of the placement map.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_vfs::Result;

use crate::format::{StoreMap, choose_store};
use crate::not_found::none_if_not_found;
use crate::stores::store::{Store, StoreNumber};

/// The stores according to one version of the map. A store keeps its index during the lifetime of
/// `Stores`: added stores are appended, and drained stores stay in the list.
pub(crate) struct StoreList {
    /// 0 for a single store without a map.
    pub version: u64,
    pub stores: Vec<Store>,
    /// The store in which the next version of the map is created first.
    keeper: StoreNumber,
    /// The stores in use: their indices, and their numbers.
    used: (Vec<StoreNumber>, Vec<u128>),
}

impl StoreList {
    /// Creates a list. `stores` contains every store that `map` uses. A store that is not in the
    /// map gets no new files.
    pub fn new(stores: Vec<Store>, map: &StoreMap) -> StoreList {
        let is_used = |number| map.member(number).is_some_and(|member| !member.is_draining);
        let indices: Vec<_> = (0..stores.len()).filter(|index| is_used(stores[*index].number)).collect();
        let keeper =
            stores.iter().position(|store| store.number == map.keeper()).expect("a store that is used");
        let numbers = indices.iter().map(|index| stores[*index].number).collect();
        StoreList { version: map.version, stores, keeper, used: (indices, numbers) }
    }

    pub fn len(&self) -> usize {
        self.stores.len()
    }

    /// Returns the `.quell` directories of all stores.
    pub fn own_dirs(&self) -> impl Iterator<Item = &Arc<dyn WritableDir>> {
        self.stores.iter().map(|store| &store.own)
    }

    /// Returns true if a store has this number.
    pub fn has(&self, number: u128) -> bool {
        self.stores.iter().any(|store| store.number == number)
    }

    /// Returns the home store of the file `name`.
    pub fn home(&self, name: &[u8]) -> StoreNumber {
        let (indices, numbers) = &self.used;
        indices[choose_store(name, numbers)]
    }

    /// Returns true if the store gets new files.
    pub fn is_used(&self, store: StoreNumber) -> bool {
        self.used.0.contains(&store)
    }

    /// Returns true if there is no newer version of the map. Makes a single lookup.
    pub fn is_newest(&self) -> Result<bool> {
        let Some(version) = self.version.checked_add(1) else { return Ok(true) };
        let next = StoreMap { version, members: Vec::new() }.file_name();
        Ok(none_if_not_found(self.stores[self.keeper].own.stat(&next))?.is_none())
    }
}
