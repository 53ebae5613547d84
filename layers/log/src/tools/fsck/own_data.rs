//! Checks a store's `.quell` directory: containers that are being created, removed containers, and
//! log directories of containers in other stores. Removes leftovers there if repairs are requested.

use quell_posix::Stat;
use quell_vfs::{Kind, Result};

use super::context::Check;
use super::problem::Problem;
use crate::container::{Container, owners_of};
use crate::format::{CLOSED_NEW_DIR, NEW_DIR, OWN, TRASH_DIR, is_own, number_name};
use crate::not_found::none_if_not_found;
use crate::stores::{StoreNumber, Stores, remove_shallow};

/// Checks names of interrupted creations of a store, of containers that are being created, and of
/// removed containers.
pub fn check_own_data(check: &Check<'_>, store: StoreNumber) -> Result<()> {
    let root = &check.stores.roots()[store];
    let store_text = check.store_text(store);
    for name in root.names()? {
        if is_own(&name) && name != OWN && check.is_old(&**root, &name)? {
            let problem = Problem::leftover(&name.escape_ascii().to_string(), &store_text);
            check.report_and_repair(b"", problem, || remove_shallow(&**root, &name));
        }
    }
    let own = root.open_writable_dir(OWN)?;
    for area in [NEW_DIR, CLOSED_NEW_DIR, TRASH_DIR] {
        // A drained store has no `new`, and only a drain that was killed leaves `closed-new`.
        let Some(dir) = none_if_not_found(own.open_writable_dir(area))? else { continue };
        for name in dir.names()? {
            // A file is an object under construction, which is not used yet.
            let is_dir = |stat: Stat| stat.kind() == Some(Kind::Dir);
            let container = match none_if_not_found(dir.stat(&name))?.is_some_and(is_dir) {
                true => Container::open(check.stores, store, &*dir, &name).ok(),
                false => None,
            };
            let number = container.as_ref().map(Container::number);
            // A copy that `quell log rebalance` has moved to `trash` has the number of a file that
            // is in use.
            let is_file = number.is_some_and(|number| !check.add_container(number));
            if !check.is_old(&*dir, &name)? || (check.options.is_in_use)(store, &[area, &name]) {
                continue;
            }
            let summary = container.as_ref().and_then(|container| container.summary().ok());
            if summary.is_some_and(|summary| summary.is_being_written(|holder| check.is_dead(holder))) {
                continue; // a process may still write to it
            }
            let path = format!(".quell/{}/{}", area.escape_ascii(), name.escape_ascii());
            check.report_and_repair(b"", Problem::leftover(&path, &store_text), || {
                let owners = container.as_ref().map(|container| owners_of(&**container.dir()?));
                remove_shallow(&*dir, &name)?;
                match (number, owners.transpose()?) {
                    (Some(number), Some(owners)) if !is_file => remove_parts(check.stores, number, &owners),
                    _ => Ok(()),
                }
            });
        }
    }
    Ok(())
}

/// Removes the log directories of a removed container from all stores. Directories that belong to
/// none of `owners` are not part of the container and stay.
fn remove_parts(stores: &Stores, number: u128, owners: &[u32]) -> Result<()> {
    let name = number_name(number);
    for root in stores.roots() {
        let parts = root.open_writable_dir(OWN)?.open_writable_dir(b"parts")?;
        if parts.stat(&name).is_ok_and(|stat| !owners.contains(&stat.uid)) {
            continue;
        }
        none_if_not_found(remove_shallow(&*parts, &name))?;
    }
    Ok(())
}

/// Reports log directories whose container was not found. They are never removed, because the
/// container may be in a store that was not given to the check.
pub fn check_parts(check: &Check<'_>, store: StoreNumber) -> Result<()> {
    let own = check.stores.roots()[store].open_writable_dir(OWN)?;
    for name in own.open_writable_dir(b"parts")?.names()? {
        let number = std::str::from_utf8(&name).ok().and_then(|hex| u128::from_str_radix(hex, 16).ok());
        if !number.is_some_and(|number| check.has_container(number)) {
            let path = format!(".quell/parts/{}", name.escape_ascii());
            check.report(b"", Problem::orphan_parts(&path, &check.store_text(store)));
        }
    }
    Ok(())
}
