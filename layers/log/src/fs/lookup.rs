//! Looks up names: finds them in the stores, and gives them nodes.

use quell_vfs::{Attributes, Error, ErrorKind, Kind, NodeId, Result, check_name};

use crate::container::{Container, ContainerIdentity};
use crate::format::{container_name, other_name};
use crate::fs::attributes::{
    attributes_from, attributes_if_known_object, attributes_without_header, is_without_header,
};
use crate::fs::files::{ATTEMPTS_MAX, open_found, with_file};
use crate::fs::mount::{EntryName, Mount};
use crate::fs::nodes::Node;
use crate::fs::search::{FoundEntry, SearchResult, is_another, search};
use crate::fs::store_dirs::Dirs;
use crate::not_found::none_if_not_found;

/// Looks up a name, and adds a reference to its node. Returns `None` if it is missing.
///
/// # Errors
///
/// `Damaged` if parts of the file were lost.
pub(crate) fn lookup(mount: &Mount, at: EntryName<'_>) -> Result<Option<Attributes>> {
    check_name(at.name)?;
    if mount.is_missing(at) {
        return Ok(None);
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        let names_state = mount.missing_names.state(&mount.stores);
        let SearchResult { dirs, found, .. } = search(mount, at)?;
        let Some(found) = found else {
            // Another node may have removed the name.
            mount.nodes.lock().removed(at.dir, at.name);
            if let Some(state) = names_state {
                mount.missing_names.add((at.dir, at.name), state);
            }
            return Ok(None);
        };
        note_replaced_node(mount, at, &dirs, &found);
        let node = mount.nodes.lock().refer(at.dir, at.name, found.kind);
        let error = match attributes_of_found(mount, node, &found) {
            Ok(attributes) => return Ok(Some(attributes)),
            // The kernel looks up a file before it removes it, so the lookup of this file succeeds.
            // Opening the file fails.
            Err(error)
                if error.kind == ErrorKind::Damaged && is_without_header(mount, &dirs, at.name, &found) =>
            {
                return Ok(Some(attributes_without_header(node, &found)));
            }
            Err(error) => error,
        };
        // A process of this mount, or another mount, may have removed or replaced the file since it
        // was found.
        let is_removed = mount.node(node).is_ok_and(|node| node.is_removed);
        mount.forget(node, 1);
        if attempts < ATTEMPTS_MAX
            && matches!(error.kind, ErrorKind::NotFound | ErrorKind::Stale)
            && (is_removed || is_another(mount, at, Some(&found))?)
        {
            continue;
        }
        // A directory with the name of a container and without a record is not a file.
        return match error.kind == ErrorKind::NotFound && !is_incomplete(mount, &dirs, at.name, &found)? {
            true => Ok(None),
            false => Err(error_of_incomplete(error, at.name)),
        };
    }
}

fn attributes_of_found(mount: &Mount, node: NodeId, found: &FoundEntry) -> Result<Attributes> {
    match found.kind {
        Kind::File => {
            if let Some(attributes) = attributes_if_known_object(mount, node, found) {
                return Ok(attributes);
            }
            open_found(mount, node, found)?;
            with_file(mount, node, |shared| shared.file.attributes(node))
        }
        kind => Ok(attributes_from(node, kind, &found.stat)),
    }
}

/// Marks the known node of a name as removed, if another mount has given the name to another file,
/// directory or link.
fn note_replaced_node(mount: &Mount, at: EntryName<'_>, dirs: &Dirs, found: &FoundEntry) {
    let Some(node) = mount.named(at) else { return };
    let is_another = match found.kind {
        Kind::File => {
            let shared = mount.files.peek(node);
            let now = ContainerIdentity { store: found.store, dir: found.stat.identity() };
            let known = shared.as_ref().map(|shared| shared.file.container());
            let is_another = known.is_some_and(|known| known.identity() != now);
            if is_another
                && let Some(known) = known
                && container_name(at.name)
                    .and_then(|stored| {
                        Container::open(&mount.stores, found.store, &*dirs[found.store], &stored)
                    })
                    .is_ok_and(|found| found.number() == known.number())
            {
                // The file is the same, but was moved to another store.
                drop((mount.files.forget(node), shared));
                return;
            }
            is_another
        }
        _ => {
            let known = mount.dirs.peek(node).and_then(|dirs| dirs[0].stat_self().ok());
            known.is_some_and(|known| known.identity() != found.stat.identity())
        }
    };
    if is_another {
        mount.nodes.lock().removed(at.dir, at.name);
    }
}

/// Returns true if the container of `name` has a record, but lacks `access` or `meta`, after a
/// power failure or an interrupted removal. A new file with this name can be created only after the
/// container was removed.
fn is_incomplete(mount: &Mount, dirs: &Dirs, name: &[u8], found: &FoundEntry) -> Result<bool> {
    if found.kind != Kind::File {
        return Ok(false);
    }
    let stored = container_name(name)?;
    let open =
        || none_if_not_found(Container::open(&mount.stores, found.store, &*dirs[found.store], &stored));
    let Some(container) = open()? else { return Ok(false) };
    if container.is_complete()? {
        return Ok(false); // another container, which was created meanwhile
    }
    // A container that is being removed has already lost its name.
    Ok(open()?.is_some_and(|now| now.identity() == container.identity()))
}

/// Returns the error of `lookup` for an incomplete container (see `is_incomplete`). Other errors
/// are unchanged.
fn error_of_incomplete(error: Error, name: &[u8]) -> Error {
    match error.kind {
        ErrorKind::NotFound => Error {
            source: Some(
                "parts of the file were lost before it was synced, or while it was removed; remove it".into(),
            ),
            ..Error::new(ErrorKind::Damaged, "read", name)
        },
        _ => error,
    }
}

/// Returns the target of a symbolic link.
pub(crate) fn read_link(mount: &Mount, node: NodeId) -> Result<Vec<u8>> {
    let Node { parent, name, kind, .. } = mount.node(node)?;
    if kind != Kind::Symlink {
        return Err(Error::new(ErrorKind::InvalidInput, "read link", name));
    }
    if let Some(removed) = mount.removed_links.lock().get(&node) {
        return Ok(removed.target.clone());
    }
    mount.open_dir(parent)?[0].read_link(&other_name(&name)?)
}

/// Returns the path of a node from the root.
pub(crate) fn path(mount: &Mount, node: NodeId) -> Result<Vec<u8>> {
    let path = mount.nodes.lock().path_to(node)?;
    let names: Vec<&[u8]> = path.iter().map(|(_, name)| &name[..]).collect();
    Ok(names.join(&b'/'))
}
