//! Reads and changes the attributes of nodes.

use quell_posix::{Stat, assume};
use quell_vfs::{Attributes, Change, Error, ErrorKind, Kind, NodeId, Result};

use crate::container::only_drops_set_id;
use crate::format::other_name;
use crate::fs::files::{file, with_file};
use crate::fs::mount::Mount;

/// Returns the attributes of a directory or symbolic link from those in the store.
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
    let known = mount.node(node)?;
    match known.kind {
        Kind::File => {
            let attributes = with_file(mount, node, |shared| shared.file.attributes(node))?;
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

/// Changes the attributes of a node.
pub(crate) fn change(mount: &Mount, node: NodeId, change: &Change) -> Result<()> {
    let known = mount.node(node)?;
    match known.kind {
        Kind::File => change_file(mount, node, *change),
        _ if change.size_bytes.is_some() => Err(Error::new(ErrorKind::InvalidInput, "resize", known.name)),
        Kind::Dir => {
            mount.stores.refresh()?; // it is changed in every store
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
        // The kernel makes this request with the credentials of the writing user, often not those
        // of the owner.
        if only_drops_set_id(before, permissions) {
            let _acting = assume(None)?;
            shared.file.remove_set_id(before, permissions)?;
            change.permissions = None;
        } else if change.size_bytes.is_some() && before == permissions {
            change.permissions = None; // a truncation has already removed the bits
        }
    }
    shared.file.change(&change)
}
