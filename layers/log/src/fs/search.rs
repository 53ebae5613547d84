//! Finds names in the stores.

use std::sync::Arc;

use quell_posix::Stat;
use quell_vfs::{Kind, Result};

use crate::format::{container_name, other_name};
use crate::fs::mount::{EntryName, Mount};
use crate::fs::store_dirs::Dirs;
use crate::not_found::none_if_not_found;
use crate::stores::{StoreList, StoreNumber};

/// The location of an entry of the mount.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundEntry {
    pub store: StoreNumber,
    pub kind: Kind,
    pub stat: Stat,
}

impl FoundEntry {
    /// Returns true if this is the same object in the same store.
    pub fn is_same(&self, other: &FoundEntry) -> bool {
        (self.store, self.stat.identity()) == (other.store, other.stat.identity())
    }
}

/// The result of a search for a name, and the directory that was searched.
pub(crate) struct SearchResult {
    pub dirs: Dirs,
    /// The stores as they were known. If nothing was found, no store was added before the end of
    /// the search.
    pub store_list: Arc<StoreList>,
    pub found: Option<FoundEntry>,
}

/// Finds a name. If the name is in none of the known stores, newer maps are read before it is
/// reported as missing or created, because it may be in a store that was added.
///
/// The search for a missing name costs three requests even in a single store, of which only the
/// third one can be omitted, by the only user of the store. A file and another object of the same
/// name have different names in the store, and either may have been created by another node. A file
/// may have been moved to an added store at any time, and a map that was read before the search
/// does not rule this out.
pub(crate) fn search(mount: &Mount, at: EntryName<'_>) -> Result<SearchResult> {
    loop {
        let store_list = mount.stores.list();
        let dirs = mount.open_dir(at.dir)?;
        let found = if mount.is_hidden(at) { None } else { search_stores(&dirs, &store_list, at.name)? };
        if found.is_some() || !mount.stores.has_changed(&store_list)? {
            return Ok(SearchResult { dirs, store_list, found });
        }
    }
}

/// Finds `name`: first as a file, in its home and then in the other stores, then as a directory or
/// symbolic link.
///
/// A file that is being moved gets its name in its home before the old one is removed, so the home
/// is searched once more at the end.
fn search_stores(dirs: &Dirs, store_list: &StoreList, name: &[u8]) -> Result<Option<FoundEntry>> {
    let file_in = |store: StoreNumber, stored: &[u8]| -> Result<Option<FoundEntry>> {
        // A removed directory is missing in stores that were added later.
        let Some(dir) = dirs.get(store) else { return Ok(None) };
        // A container, or the object as which a file begins.
        let is_file = |stat: &Stat| matches!(stat.kind(), Some(Kind::Dir | Kind::File));
        let stat = none_if_not_found(dir.stat(stored))?.filter(is_file);
        Ok(stat.map(|stat| FoundEntry { store, kind: Kind::File, stat }))
    };
    let stored = container_name(name).ok();
    let home = store_list.home(name);
    if let Some(stored) = &stored {
        for store in std::iter::once(home).chain((0..dirs.len()).filter(|store| *store != home)) {
            if let Some(found) = file_in(store, stored)? {
                return Ok(Some(found));
            }
        }
    }
    let stat = none_if_not_found(dirs[0].stat(&other_name(name)?))?;
    let other = stat.and_then(|stat| {
        let kind = stat.kind().filter(|kind| matches!(kind, Kind::Dir | Kind::Symlink))?;
        Some(FoundEntry { store: 0, kind, stat })
    });
    match stored {
        Some(stored) if other.is_none() && dirs.len() > 1 => file_in(home, &stored),
        _ => Ok(other),
    }
}

/// Returns true if a name is no longer where it was found, because another node has moved it. The
/// operation can then be repeated.
pub(crate) fn has_moved(mount: &Mount, at: EntryName<'_>, found: &FoundEntry) -> Result<bool> {
    Ok(search(mount, at)?.found.is_some_and(|now| !now.is_same(found)))
}

/// Returns true if a name no longer refers to the object `found`, or if it refers to an object
/// although `found` is `None`.
pub(crate) fn is_another(mount: &Mount, at: EntryName<'_>, found: Option<&FoundEntry>) -> Result<bool> {
    Ok(match (search(mount, at)?.found, found) {
        (Some(now), Some(found)) => !now.is_same(found),
        (now, found) => now.is_some() != found.is_some(),
    })
}
