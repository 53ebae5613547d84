//! Reads and changes the attributes of nodes.

use quell_posix::{Stat, assume};
use quell_vfs::{Attributes, Change, Error, ErrorKind, Kind, NodeId, Result};

use crate::container::{Container, ContainerIdentity, SET_ID, begins_as_object, only_drops_set_id};
use crate::format::{ObjectSize, container_name, other_name};
use crate::fs::files::{file, with_file};
use crate::fs::mount::{EntryName, Mount};
use crate::fs::nodes::Node;
use crate::fs::search::{FoundEntry, SearchResult, search};
use crate::fs::store_dirs::Dirs;

/// Converts the attributes that a directory or symbolic link has in the store to those of its node.
pub(crate) fn attributes_from(node: NodeId, kind: Kind, stat: &Stat) -> Attributes {
    Attributes {
        node,
        kind,
        permissions: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        nlink: if kind == Kind::Dir { 2 } else { 1 },
        rdev: 0,
        size_bytes: stat.size_bytes,
        blocks: stat.blocks,
        modified: stat.modified,
        changed: stat.changed,
    }
}

/// Returns the attributes of a node. A removed node has no links.
pub(crate) fn attributes(mount: &Mount, node: NodeId) -> Result<Attributes> {
    let renames = mount.renames.state();
    let known = mount.node(node)?;
    match known.kind {
        Kind::File => {
            let of_object = attributes_of_known_object(mount, node, &known)?;
            // If a rename has begun meanwhile, another file may have the name now.
            let has_name = renames.is_none() || renames == mount.renames.state();
            if let Some(attributes) = of_object.filter(|_| has_name) {
                return Ok(attributes);
            }
            let attributes = match with_file(mount, node, |shared| shared.file.attributes(node)) {
                Err(error) if error.kind == ErrorKind::Damaged && !known.is_removed => {
                    attributes_of_file_without_header(mount, node)?.ok_or(error)?
                }
                attributes => attributes?,
            };
            Ok(Attributes { nlink: u32::from(!known.is_removed), ..attributes })
        }
        Kind::Dir => {
            let attributes = attributes_from(node, Kind::Dir, &mount.open_dir(node)?[0].stat_self()?);
            Ok(Attributes { nlink: if known.is_removed { 0 } else { attributes.nlink }, ..attributes })
        }
        kind => {
            if let Some(removed) = mount.removed_links.lock().get(&node) {
                return Ok(removed.attributes);
            }
            let stat = mount.open_dir(known.parent)?[0].stat(&other_name(&known.name)?)?;
            Ok(attributes_from(node, kind, &stat))
        }
    }
}

/// Returns the attributes of a node that is not open, if it is an object that is known to be a
/// whole file.
fn attributes_of_known_object(mount: &Mount, node: NodeId, known: &Node) -> Result<Option<Attributes>> {
    if known.is_removed || mount.files.peek(node).is_some() || mount.stores.creation_state().is_none() {
        return Ok(None);
    }
    let SearchResult { found, .. } = search(mount, EntryName { dir: known.parent, name: &known.name })?;
    Ok(found.and_then(|found| attributes_if_known_object(mount, node, &found)))
}

/// Returns the attributes of a file that was found, if it is an object that is known to be a whole
/// file, and that is not open.
pub(crate) fn attributes_if_known_object(
    mount: &Mount,
    node: NodeId,
    found: &FoundEntry,
) -> Option<Attributes> {
    let FoundEntry { store, kind, stat } = *found;
    let state = mount.stores.creation_state()?;
    // A file with set-id bits has a container.
    let is_known = || mount.stores.known_objects().head(state, store, &stat).is_some();
    if stat.kind() != Some(Kind::File) || stat.mode & SET_ID != 0 || !is_known() {
        return None;
    }
    // Writers of this mount may have data that is not in the store.
    if mount.files.with_container(&ContainerIdentity { store, dir: stat.identity() }).is_some() {
        return None;
    }
    let size = ObjectSize::of(stat.size_bytes)?;
    Some(Attributes {
        node,
        kind,
        permissions: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        nlink: 1,
        rdev: 0,
        size_bytes: size.file_bytes(),
        blocks: size.log_end().div_ceil(512),
        modified: stat.modified,
        changed: stat.modified.max(stat.changed),
    })
}

/// Returns true if a file began as an object, and has no valid header.
pub(crate) fn is_without_header(mount: &Mount, dirs: &Dirs, name: &[u8], found: &FoundEntry) -> bool {
    let open = |stored: Vec<u8>| Container::open(&mount.stores, found.store, &*dirs[found.store], &stored);
    found.stat.kind() == Some(Kind::File)
        && container_name(name).and_then(open).is_err_and(|error| error.kind == ErrorKind::Damaged)
}

/// Returns the attributes of a file whose object has no valid header.
pub(crate) fn attributes_without_header(node: NodeId, found: &FoundEntry) -> Attributes {
    Attributes { size_bytes: 0, ..attributes_from(node, Kind::File, &found.stat) }
}

/// Returns the attributes of a node whose object has no valid header, and `None` for other files.
fn attributes_of_file_without_header(mount: &Mount, node: NodeId) -> Result<Option<Attributes>> {
    let Node { parent, name, .. } = mount.node(node)?;
    let SearchResult { dirs, found, .. } = search(mount, EntryName { dir: parent, name: &name })?;
    let found = found.filter(|found| is_without_header(mount, &dirs, &name, found));
    Ok(found.map(|found| attributes_without_header(node, &found)))
}

/// Changes the attributes of a node.
pub(crate) fn change(mount: &Mount, node: NodeId, change: &Change) -> Result<()> {
    let known = mount.node(node)?;
    mount.prepare_for_writers(change.permissions.unwrap_or(0), change.uid)?;
    match known.kind {
        Kind::File => change_file(mount, node, *change),
        _ if change.size_bytes.is_some() => Err(Error::new(ErrorKind::InvalidInput, "resize", known.name)),
        Kind::Dir => {
            mount.stores.refresh()?; // the directory is changed in every store
            mount.open_dir(node)?.iter().try_for_each(|dir| dir.change(b"", change))
        }
        _ => mount.open_dir(known.parent)?[0].change(&other_name(&known.name)?, change),
    }
}

fn change_file(mount: &Mount, node: NodeId, change: Change) -> Result<()> {
    let (shared, mut change) = (file(mount, node)?, change);
    if let Some(permissions) = change.permissions
        && change.uid.is_none()
        && change.gid.is_none()
    {
        let before = shared.file.permissions()?;
        // The kernel makes this request with the credentials of the writing user, often another
        // user than the owner.
        if only_drops_set_id(before, permissions) {
            let _acting = assume(None)?;
            shared.file.remove_set_id(before, permissions)?;
            change.permissions = None;
        } else if change.size_bytes.is_some() && before == permissions {
            change.permissions = None; // a truncation has already removed the bits
        }
    }
    if let Some(size) = change.size_bytes {
        shared.file.change(&Change { size_bytes: Some(size), ..Change::default() })?;
        change.size_bytes = None;
    }
    if change == Change::default() {
        return Ok(());
    }
    let container = shared.file.container();
    if let Some(object) = container.only_object()? {
        // A container is found only if it belongs to the owner of the object, so the container is
        // created before root changes the owner.
        let keeps_user = change.uid.is_none_or(|uid| object.stat().is_ok_and(|stat| stat.uid == uid));
        if keeps_user && stays_object(&change) && shared.file.change_only_object(&change)? {
            return Ok(());
        }
    }
    shared.file.change(&change)
}

/// Returns true if the object of a file can have these attributes without a container.
fn stays_object(change: &Change) -> bool {
    change.permissions.is_none_or(begins_as_object)
}
