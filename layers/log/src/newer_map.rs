//! What a newer version of the map says to who has the stores open: stores that were added are opened by the path that the map
//! has, and checked, before anything is looked for in them. The order in which maps are written, and why this is enough,
//! is in docs/formats/log.md, Placement.
//!
//! A map is somebody else's word. A store is taken only if it says the same of itself, and is of an owner who could have put the
//! same files into the stores that are known.

use std::sync::Arc;

use quell_fs::{Error, ErrorKind, Result, errno};

use crate::store_map::{Member, StoreMap};
use crate::stores::{Opened, Opener, Root, View, enter, map_versions, read_map};

/// Stores that are added while one newer map is looked for: more than anybody has.
const ADDED_MAX: usize = 1024;

/// A version of the map that is not known yet, and a store that has it.
struct Newer {
    map: StoreMap,
    /// Who may write maps there.
    owner: u32,
    number: u128,
}

/// The stores by the newest map that every store has which it adds; `None` if what is known is the newest. One that not all of
/// them have does not count yet: nobody goes by it.
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
                    // It may know of a newer map still.
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

/// All that these stores know beyond `version`, the newest first.
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

/// Opens a store that a map adds. `None`: it has not got the map yet that it is to be trusted by.
fn open(member: &Member, said: &Newer, opener: Option<&Opener>, uid: u32) -> Result<Option<Opened>> {
    let Some(opener) = opener else { return Err(unusable(member, "this program opens no other stores")) };
    let unreachable = |error: Error| unusable(member, &format!("it cannot be opened here: {error}"));
    let dir = opener(&member.path).map_err(unreachable)?;
    let root = Root { dir: Arc::clone(&dir), path: member.path.clone() };
    let store = enter(vec![root]).map_err(unreachable)?.remove(0);
    if store.number != member.number {
        return Err(unusable(member, "another store has this path here"));
    }
    let of_another =
        || Err(unusable(member, "it belongs to somebody else than the store whose map names it"));
    // Whoever owns a store could make a map that names any directory.
    let owner = store.own.stat_self()?.uid;
    // Anybody may make a store of a directory that all may write to, which does not make the rest of it theirs.
    let is_theirs = owner == 0 || owner == uid || dir.stat_self()?.uid == owner;
    if !is_theirs || owner != said.owner && owner != 0 {
        return of_another();
    }
    if owner != said.owner {
        // Root may have given a store of its own: then that one names the other, too.
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

/// The newest map that a store has.
fn newest(store: &Opened) -> Result<Option<StoreMap>> {
    for version in map_versions(&*store.own)?.into_iter().rev() {
        if let Some(map) = read_map(&*store.own, version)? {
            return Ok(Some(map));
        }
    }
    Ok(None)
}

/// The first store has the links, and says which directories there are: it is not another one for who has begun.
fn check_first(known: &View, map: &StoreMap) -> Result<()> {
    match map.members.first() {
        Some(first) if first.number != known.numbers[0] && map.member(known.numbers[0]).is_some() => {
            Err(unusable(first, "it comes before the stores that are known"))
        }
        _ => Ok(()),
    }
}

/// Not `NotFound`: what was asked for may well be there.
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
