//! Lists directories.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use quell_vfs::{Cursor, DirEntry, Kind, NodeId, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::format::{Stored, shown};
use crate::fs::mount::{EntryName, Mount};
use crate::locks::{Rank, RankedMutex};
use crate::not_found::none_if_not_found;
use crate::stores::StoreList;

/// Number of listings that are kept for later getdents(2) calls.
const LISTINGS_KEPT: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
/// Cursors must fit the positive half of `off_t`, and leave two values for `.` and `..`.
const CURSOR_BITS: u64 = (1 << 62) - 1;

/// An entry of a listing.
struct Listed {
    cursor: u64,
    name: Vec<u8>,
    kind: Kind,
}

/// A listing, sorted by cursor.
type Listing = Vec<Listed>;

/// Listings that are kept until their end is read.
pub(crate) struct Listings(RankedMutex<LruCache<NodeId, Arc<Listing>>>);

impl Listings {
    pub fn new() -> Listings {
        Listings(RankedMutex::new(Rank::Leaf, LruCache::new(LISTINGS_KEPT)))
    }

    /// Visits the entries of a directory after a cursor, until `visit` returns false. A listing
    /// from the start reads the directory again.
    pub fn list(
        &self,
        mount: &Mount,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let kept = self.0.lock().get(&dir).cloned().filter(|_| after != Cursor::START);
        let listing = match kept {
            Some(listing) => listing,
            None => {
                let listing = Arc::new(read_whole(mount, dir)?);
                let evicted = self.0.lock().push(dir, Arc::clone(&listing));
                drop(evicted);
                listing
            }
        };
        let from = listing.partition_point(|entry| entry.cursor <= after.0);
        for Listed { cursor, name, kind } in &listing[from..] {
            let node = mount.nodes.lock().number(dir, name);
            if !visit(DirEntry { name, next: Cursor(*cursor), node, kind: *kind, attributes: None }) {
                break;
            }
        }
        Ok(())
    }
}

/// Lists a directory in all stores, and repeats the listing if a store was added meanwhile.
fn read_whole(mount: &Mount, dir: NodeId) -> Result<Listing> {
    loop {
        let store_list = mount.stores.list();
        let listing = read(mount, dir, &store_list)?;
        if !mount.stores.has_changed(&store_list)? {
            return Ok(listing);
        }
    }
}

fn read(mount: &Mount, dir: NodeId, store_list: &StoreList) -> Result<Listing> {
    let dirs = mount.open_dir(dir)?;
    let mut found = HashMap::new();
    // A file that is moved meanwhile must be found at least once: drained stores are read before
    // the stores to which their files move, and added stores after the stores that lose files.
    let (left, used): (Vec<_>, Vec<_>) = (0..dirs.len()).partition(|store| !store_list.is_used(*store));
    for store in left.into_iter().chain(used) {
        let stored_dir = &dirs[store];
        for (stored, kind) in stored_dir.names_and_kinds()? {
            match shown(&stored) {
                Some(Stored::Container(name)) => {
                    found.insert(name.to_vec(), Kind::File);
                }
                Some(Stored::Other(name)) if store == 0 && !mount.is_hidden(EntryName { dir, name }) => {
                    let kind = match kind {
                        Some(kind) => Some(kind),
                        None => none_if_not_found(stored_dir.stat(&stored))?.and_then(|stat| stat.kind()),
                    };
                    if let Some(kind @ (Kind::Dir | Kind::Symlink)) = kind {
                        found.entry(name.to_vec()).or_insert(kind);
                    }
                }
                _ => {}
            }
        }
    }
    let cursor_of = |name: &[u8]| 1 + (xxh3_64(name) & CURSOR_BITS >> 1);
    let mut listing: Listing =
        found.into_iter().map(|(name, kind)| Listed { cursor: cursor_of(&name), name, kind }).collect();
    listing.sort_by(|a, b| (a.cursor, &a.name).cmp(&(b.cursor, &b.name)));
    Ok(listing)
}
