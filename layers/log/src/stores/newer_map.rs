//! Applies a newer version of the placement map to stores that are open. Stores that the map adds
//! are opened by the path in the map and verified before they are searched. docs/formats/log.md,
//! Placement, gives the order in which maps are written, and explains why this is sufficient.
//!
//! A map may have been written by another user and is not trusted. A store is accepted only if its
//! own record and map agree, and if its owner could also have put the same files into the known
//! stores.

use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, Result, errno};

use crate::format::store_map::{Member, StoreMap};
use crate::stores::store_set::{Opened, Opener, Root, View, enter, map_versions, read_map};

/// The largest number of stores that are added in one step. More than any real installation has.
const ADDED_MAX: usize = 1024;

/// A version of the map that is not known yet, and the store that has it.
struct Newer {
    map: StoreMap,
    /// The owner of that store's `.quell`, who may write maps there.
    owner: u32,
    number: u128,
}

/// Returns the stores according to the newest map that is present in every store that it adds, or
/// `None` if the known map is the newest. A map that is not yet in all of these stores is not used.
pub(crate) fn follow(known: &View, opener: Option<&Opener>, uid: u32) -> Result<Option<View>> {
    let mut opened = known.opened();
    'opening: loop {
        let newer = newer_maps(&opened, known.version)?;
        'maps: for said in &newer {
            let map = &said.map;
            for member in &map.members {
                if opened.iter().all(|store| store.number != member.number) {
                    if opened.len() - known.numbers.len() >= ADDED_MAX {
                        return Err(unusable(member, "too many stores were added"));
                    }
                    match open(member, said, opener, uid)? {
                        Some(store) => opened.push(store),
                        None => continue 'maps,
                    }
                    // The added store may have a still newer map.
                    continue 'opening;
                }
            }
            let is_new = |store: &&Opened| !known.numbers.contains(&store.number);
            let is_member = |store: &&Opened| map.member(store.number).is_some();
            let mut added = opened.iter().filter(is_new).filter(is_member);
            let has_it = |store: &Opened| Ok(read_map(&*store.own, map.version)?.as_ref() == Some(map));
            if added.try_fold(true, |all, store| Ok::<_, Error>(all && has_it(store)?))? {
                check_first(known, map)?;
                let stay = |store: &Opened| !is_new(&store) || is_member(&store);
                return Ok(Some(View::of(opened.iter().filter(|store| stay(store)).cloned(), map)));
            }
        }
        return Ok(None);
    }
}

/// Returns the maps in these stores with a version above `version`, the newest first.
fn newer_maps(opened: &[Opened], version: u64) -> Result<Vec<Newer>> {
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
fn open(member: &Member, said: &Newer, opener: Option<&Opener>, uid: u32) -> Result<Option<Opened>> {
    let Some(opener) = opener else { return Err(unusable(member, "this program opens no other stores")) };
    let unreachable = |error: Error| unusable(member, &format!("it cannot be opened here: {error}"));
    let dir = opener(&member.path).map_err(unreachable)?;
    let root = Root { dir: Arc::clone(&dir), path: member.path.clone() };
    let store = enter(vec![root]).map_err(unreachable)?.remove(0);
    if store.number != member.number {
        return Err(unusable(member, "another store has this path here"));
    }
    let of_another = || Err(unusable(member, "it belongs to another user than the store whose map names it"));
    // The owner of a store can write a map that names any directory.
    let owner = store.own.stat_self()?.uid;
    // Any user can create a store in a directory to which all users can write. The other entries of
    // that directory may belong to others.
    let is_theirs = owner == 0 || owner == uid || dir.stat_self()?.uid == owner;
    if !is_theirs || owner != said.owner && owner != 0 {
        return of_another();
    }
    if owner != said.owner {
        // Root may have added a store of its own. In this case the added store's map must also name
        // the store in which the map was found.
        return match newest(&store)? {
            Some(map) if map.version >= said.map.version => match map.member(said.number) {
                Some(_) => Ok(Some(store)),
                None => of_another(),
            },
            _ => Ok(None),
        };
    }
    Ok(Some(store))
}

/// Returns the newest map of a store.
fn newest(store: &Opened) -> Result<Option<StoreMap>> {
    for version in map_versions(&*store.own)?.into_iter().rev() {
        if let Some(map) = read_map(&*store.own, version)? {
            return Ok(Some(map));
        }
    }
    Ok(None)
}

/// Refuses a map that puts an added store before the first known store. The first store holds the
/// symbolic links and determines the directories, so it must not change while the mount runs.
fn check_first(known: &View, map: &StoreMap) -> Result<()> {
    match map.members.first() {
        Some(first) if first.number != known.numbers[0] && map.member(known.numbers[0]).is_some() => {
            Err(unusable(first, "it comes before the stores that are known"))
        }
        _ => Ok(()),
    }
}

/// Returns ENXIO, not `NotFound`, because the requested file may exist.
fn unusable(member: &Member, why: &str) -> Error {
    let path = String::from_utf8_lossy(&member.path);
    let advice = "let it be reached by this path, or begin again and name all stores";
    Error {
        source: Some(format!("the store {path} was added, and is not used: {why}; {advice}").into()),
        ..Error::new(ErrorKind::Os(errno::ENXIO), "open", &member.path)
    }
}

#[cfg(test)]
#[path = "newer_map_test.rs"]
mod tests;
