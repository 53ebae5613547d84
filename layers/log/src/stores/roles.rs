//! Changes of the stores' roles: computes the next placement map from the current one. Pure
//! functions on values, no I/O.

use quell_vfs::Result;

use crate::format::{Member, StoreMap};
use crate::stores::errors::{not_a_member, not_given, refused};
use crate::stores::store::Store;

/// The change of a store's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The store keeps its role.
    Keep,
    /// The store is added, or used again.
    Add,
    /// The store is drained.
    Drain,
}

fn member_of(store: &Store) -> Member {
    Member { number: store.number, is_draining: false, path: store.root.path.clone() }
}

/// Returns the map of stores without a map: all are used, in the given order.
pub(crate) fn map_of<'a>(stores: impl IntoIterator<Item = &'a Store>) -> StoreMap {
    StoreMap { version: 0, members: stores.into_iter().map(member_of).collect() }
}

/// Returns the map after the stores have changed their roles. `now` is the current map. The second
/// value lists the stores that become members and therefore must be empty.
///
/// # Errors
///
/// `InvalidInput` if a store is missing, does not belong to the others, or was drained already.
pub(crate) fn change_roles<'a>(
    now: &StoreMap,
    stores: &'a [Store],
    roles: &[Role],
) -> Result<(StoreMap, Vec<&'a Store>)> {
    if let Some(absent) =
        now.members.iter().find(|member| stores.iter().all(|store| store.number != member.number))
    {
        return Err(not_given(absent));
    }
    let mut next = StoreMap { version: now.version + 1, members: now.members.clone() };
    let mut added = Vec::new();
    for (store, role) in stores.iter().zip(roles) {
        let known = next.members.iter_mut().find(|member| member.number == store.number);
        match (role, known) {
            (Role::Keep, Some(_)) => {}
            (Role::Keep, None) => return Err(not_a_member(&store.root.path)),
            (Role::Add, Some(known)) => known.is_draining = false,
            (Role::Add, None) => {
                added.push(store);
                next.members.push(member_of(store));
            }
            (Role::Drain, Some(known)) => known.is_draining = true,
            (Role::Drain, None) => {
                return Err(refused(
                    &store.root.path,
                    "it is not part of this set of stores, or is already drained".into(),
                ));
            }
        }
    }
    Ok((next, added))
}

/// Refuses a map in which no store gets new files.
pub(crate) fn check_is_used(map: &StoreMap) -> Result<()> {
    match map.used().is_empty() {
        true => Err(refused(b"", "no store would be left: keep at least one".into())),
        false => Ok(()),
    }
}
