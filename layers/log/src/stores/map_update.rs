//! Applies a newer version of the placement map to stores that are open. Stores that the map adds
//! are opened by the path in the map and verified before they are searched. docs/formats/log.md,
//! Placement, gives the order in which maps are written, and explains why this is sufficient.
//!
//! A map may have been written by another user and is not trusted. A store is accepted only if its
//! own record and map agree with it, and if it belongs to root or to the owner of the store in
//! which the map was found.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Result, errno, printable};

use crate::format::{Member, StoreMap};
use crate::stores::map_files::{map_versions, read_map};
use crate::stores::store::{Root, Store, open_stores};
use crate::stores::store_list::StoreList;

/// Opens the directory at a path in a map. The map may have been written by another user: symbolic
/// links must not be followed, and `newer_stores` verifies the directory.
pub type Opener = Box<dyn Fn(&[u8]) -> Result<Arc<dyn WritableDir>> + Send + Sync>;

/// The largest number of stores that are added in one step, more than any real installation has.
const ADDED_MAX: usize = 1024;

/// A version of the map that is not known yet, and the store that has it.
struct Newer {
    map: StoreMap,
    /// The owner of that store's `.quell`. This user can write maps there.
    owner: u32,
    number: u128,
}

/// Returns the stores according to the newest map that is present in every store that it adds, or
/// `None` if the known map is the newest. A map that is not yet in all of these stores is not used.
pub(crate) fn newer_stores(
    known: &StoreList,
    opener: Option<&Opener>,
    uid: u32,
) -> Result<Option<StoreList>> {
    let mut opened = known.stores.clone();
    'opening: loop {
        let newer = newer_maps(&opened, known.version)?;
        'maps: for newer_map in &newer {
            let map = &newer_map.map;
            for member in &map.members {
                if opened.iter().all(|store| store.number != member.number) {
                    if opened.len() - known.len() >= ADDED_MAX {
                        return Err(unusable(member, "too many stores were added"));
                    }
                    match open(member, newer_map, opener, uid)? {
                        Some(store) => opened.push(store),
                        None => continue 'maps,
                    }
                    // The added store may have a still newer map.
                    continue 'opening;
                }
            }
            let is_new = |store: &&Store| !known.has(store.number);
            let is_member = |store: &&Store| map.member(store.number).is_some();
            let mut added = opened.iter().filter(is_new).filter(is_member);
            let has_it = |store: &Store| Ok(read_map(&*store.own, map.version)?.as_ref() == Some(map));
            if added.try_fold(true, |all, store| Ok::<_, Error>(all && has_it(store)?))? {
                check_first(known, map)?;
                let stay = |store: &Store| !is_new(&store) || is_member(&store);
                return Ok(Some(StoreList::new(
                    opened.iter().filter(|store| stay(store)).cloned().collect(),
                    map,
                )));
            }
        }
        return Ok(None);
    }
}

/// Returns the maps in these stores with a version above `version`, the newest first.
fn newer_maps(opened: &[Store], version: u64) -> Result<Vec<Newer>> {
    let mut newer: Vec<Newer> = Vec::new();
    for store in opened {
        let owner = store.own.stat_self()?.uid;
        for version in map_versions(&*store.own)?.into_iter().filter(|other| *other > version) {
            if let Some(map) = read_map(&*store.own, version)? {
                newer.push(Newer { map, owner, number: store.number });
            }
        }
    }
    newer.sort_by_key(|newer| std::cmp::Reverse(newer.map.version));
    Ok(newer)
}

/// Opens and verifies a store that a map adds. Returns `None` if the store does not yet have the
/// map that is required to trust it.
fn open(member: &Member, newer_map: &Newer, opener: Option<&Opener>, uid: u32) -> Result<Option<Store>> {
    let Some(opener) = opener else {
        let why = "this process can use only the stores that were named when it started";
        return Err(unusable(member, why));
    };
    let unreachable = |error: Error| unusable(member, &format!("it cannot be opened here: {error}"));
    let dir = opener(&member.path).map_err(unreachable)?;
    let root = Root { dir: Arc::clone(&dir), path: member.path.clone() };
    let store = open_stores(vec![root]).map_err(unreachable)?.remove(0);
    if store.number != member.number {
        return Err(unusable(member, "another store has this path here"));
    }
    let of_another = || Err(unusable(member, "it belongs to another user than the store whose map names it"));
    // The owner of a store can write a map that names any directory.
    let owner = store.own.stat_self()?.uid;
    // Any user can create a store in a directory to which all users can write. The other entries of
    // such a directory may belong to other users.
    let is_theirs = owner == 0 || owner == uid || dir.stat_self()?.uid == owner;
    if !is_theirs || owner != newer_map.owner && owner != 0 {
        return of_another();
    }
    if owner != newer_map.owner {
        // Root may have added a store of its own. In this case the added store's map must also name
        // the store in which the map was found.
        return match newest(&store)? {
            Some(map) if map.version >= newer_map.map.version => match map.member(newer_map.number) {
                Some(_) => Ok(Some(store)),
                None => of_another(),
            },
            _ => Ok(None),
        };
    }
    Ok(Some(store))
}

/// Returns the newest map of a store.
fn newest(store: &Store) -> Result<Option<StoreMap>> {
    for version in map_versions(&*store.own)?.into_iter().rev() {
        if let Some(map) = read_map(&*store.own, version)? {
            return Ok(Some(map));
        }
    }
    Ok(None)
}

/// Refuses a map that puts an added store before the first known store. The first store holds the
/// symbolic links and determines the directories, so it must not change while the mount runs.
fn check_first(known: &StoreList, map: &StoreMap) -> Result<()> {
    match map.members.first() {
        Some(first)
            if first.number != known.stores[0].number && map.member(known.stores[0].number).is_some() =>
        {
            let why = "the placement map lists it before the first store of this process, which must stay the \
                       first one";
            Err(unusable(first, why))
        }
        _ => Ok(()),
    }
}

/// Returns ENXIO, not `NotFound`, because the requested file may exist.
fn unusable(member: &Member, why: &str) -> Error {
    let path = printable(&member.path);
    let advice = "make it available at this path, or name all stores in a new mount or command";
    Error {
        source: Some(format!("the store {path} was added, and is not used: {why}; {advice}").into()),
        ..Error::new(ErrorKind::Os(errno::ENXIO), "open", &member.path)
    }
}

#[cfg(test)]
#[path = "map_update_test.rs"]
mod tests;
