//! The files that hold the placement map in each store: reads and writes them. docs/formats/log.md,
//! Placement, gives the order in which a map is written to the stores.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Rename, Result};

use crate::format::{MAP_BYTES_MAX, StoreMap, TRASH_DIR, number_name};
use crate::not_found::none_if_not_found;
use crate::stores::errors::refused;
use crate::stores::host::Host;
use crate::stores::store::{FILE_PERMISSIONS, Store};

/// Returns true if a store has a map.
pub(crate) fn has_map(own: &dyn WritableDir) -> Result<bool> {
    Ok(own.names()?.iter().any(|name| StoreMap::version_of(name).is_some()))
}

/// Returns the newest complete map in these stores.
pub(crate) fn newest_map<'a>(
    own: impl IntoIterator<Item = &'a Arc<dyn WritableDir>>,
) -> Result<Option<StoreMap>> {
    let mut newest: Option<StoreMap> = None;
    for dir in own {
        let mut versions = map_versions(&**dir)?;
        while let Some(version) = versions.pop()
            && newest.as_ref().is_none_or(|newest| newest.version < version)
        {
            // A map that is damaged or was just removed is skipped.
            if let Some(map) = read_map(&**dir, version)? {
                newest = Some(map);
            }
        }
    }
    Ok(newest)
}

/// Returns the versions of the map files in a store, the newest last.
pub(crate) fn map_versions(own: &dyn WritableDir) -> Result<Vec<u64>> {
    let mut versions: Vec<u64> = own.names()?.iter().filter_map(|name| StoreMap::version_of(name)).collect();
    versions.sort_unstable();
    Ok(versions)
}

/// Reads a map. Returns `None` if it does not exist or is not complete.
pub(crate) fn read_map(own: &dyn WritableDir, version: u64) -> Result<Option<StoreMap>> {
    let name = StoreMap { version, members: Vec::new() }.file_name();
    let file = match own.open_file(&name) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let size = usize::try_from(file.stat()?.size_bytes).unwrap_or(usize::MAX);
    if size > MAP_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; size];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(StoreMap::decode(version, &bytes[..length]).ok())
}

/// Writes a map to all of its stores, and returns the valid map. `keeper` is the keeper of the
/// previous map.
pub(crate) fn write_new_map(opened: &[Store], keeper: u128, map: StoreMap, host: &Host) -> Result<StoreMap> {
    let stores: Vec<_> = opened.iter().map(|store| (store.number, &store.own)).collect();
    let written = write_map(&stores, keeper, &map, host)?;
    if written.members.iter().map(|member| member.number).ne(map.members.iter().map(|member| member.number))
        && written.version > 1
    {
        return Err(refused(b"", "another process changed the stores at the same time; try again".into()));
    }
    Ok(written)
}

/// Writes a map to the stores of the map that lack it. The process that created the map may have
/// ended before every store had it; running mounts do not use it before all of its stores have it.
pub(crate) fn complete_map(opened: &[Store], map: &StoreMap, host: &Host) -> Result<()> {
    match write_where_missing(opened, map, host) {
        // Nothing can be created or moved in a read-only store, so the map is not needed there.
        Err(error) if error.kind == ErrorKind::ReadOnly => Ok(()),
        Err(error) if error.kind == ErrorKind::PermissionDenied => Err(Error {
            source: Some(
                "not every store has the newest map; the owner of the stores must run `quell log rebalance` again".into(),
            ),
            ..error
        }),
        written => written,
    }
}

/// Writes a map to the stores of the map that lack it.
pub(crate) fn write_where_missing(opened: &[Store], map: &StoreMap, host: &Host) -> Result<()> {
    let mut stores = Vec::new();
    for store in opened.iter().filter(|store| map.member(store.number).is_some()) {
        stores.push((store.number, &store.own));
    }
    let name = map.file_name();
    for (_, own) in &stores {
        if none_if_not_found(own.stat(&name))?.is_none() {
            return write_map(&stores, map.keeper(), map, host).map(drop);
        }
    }
    Ok(())
}

/// Writes a complete map, first to the `keeper` of the previous version. If several processes
/// create the same version at the same time, the first one to succeed there determines it, and the
/// others use its map.
pub(crate) fn write_map(
    stores: &[(u128, &Arc<dyn WritableDir>)],
    keeper: u128,
    map: &StoreMap,
    host: &Host,
) -> Result<StoreMap> {
    let mut stores = stores.to_vec();
    stores.sort_by_key(|(number, _)| (*number != keeper, *number));
    let name = map.file_name();
    let draining = map.members.iter().filter(|member| member.is_draining).count();
    tracing::debug!(version = map.version, stores = map.members.len(), draining, "writing a placement map");
    let mut valid = map.clone();
    for (index, (_, own)) in stores.iter().enumerate() {
        let trash = own.open_writable_dir(TRASH_DIR)?;
        let temporary = number_name(host.random_number());
        let file = trash.create_file(&temporary, FILE_PERMISSIONS)?;
        file.write_at(&valid.encode(), 0)?;
        file.sync()?;
        let mode = if index == 0 { Rename::Keep } else { Rename::Replace };
        match trash.rename(&temporary, &***own, &name, mode) {
            Err(error) if error.kind == ErrorKind::Unsupported && own.stat(&name).is_err() => {
                trash.rename(&temporary, &***own, &name, Rename::Replace)?;
            }
            Err(error) if matches!(error.kind, ErrorKind::Exists | ErrorKind::Unsupported) => {
                trash.remove(&temporary)?;
                match read_map(&***own, map.version)? {
                    Some(first) => valid = first,
                    // The existing map is damaged, and is replaced.
                    None => {
                        tracing::debug!(version = map.version, "replacing a damaged placement map");
                        own.remove(&name)?;
                        return write_map(&stores, keeper, map, host);
                    }
                }
            }
            renamed => renamed?,
        }
        own.sync()?;
    }
    Ok(valid)
}

/// Truncates a map that is no longer valid. Its name stays, so that a process that has the previous
/// version can see that there is a newer version.
pub(crate) fn truncate_map(own: &dyn WritableDir, name: &[u8], host: &Host) -> Result<()> {
    if none_if_not_found(own.stat(name))?.is_none_or(|stat| stat.size_bytes == 0) {
        return Ok(());
    }
    let (trash, temporary) = (own.open_writable_dir(TRASH_DIR)?, number_name(host.random_number()));
    trash.create_file(&temporary, FILE_PERMISSIONS)?;
    trash.rename(&temporary, own, name, Rename::Replace)
}
