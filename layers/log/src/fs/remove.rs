//! Removes files, directories and symbolic links. The attributes and the content of a removed node
//! are kept as long as it is referenced.

use std::sync::Arc;

use quell_posix::{WritableDir, assume};
use quell_vfs::{Attributes, Error, ErrorKind, FileIdentity, Kind, NodeId, Rename, Result};

use crate::container::{Container, ContainerIdentity, delete_container};
use crate::format::{container_name, number_name, other_name};
use crate::fs::attributes::attributes_from;
use crate::fs::files::add_file;
use crate::fs::mount::{EntryName, Mount, RemovedLink};
use crate::fs::search::{FoundEntry, SearchResult, has_moved, search};
use crate::fs::store_dirs::{Dirs, check_empty, remove_everywhere};
use crate::stores::StoreNumber;

/// A directory or symbolic link that is being removed, and its referenced node.
pub(crate) struct RemovedNode {
    node: NodeId,
    state: RemovedState,
}

enum RemovedState {
    Dir(Dirs),
    Link(RemovedLink),
}

impl RemovedNode {
    /// Returns the state of a directory or symbolic link that is about to be removed, if it is
    /// referenced, because it cannot be found by name afterwards.
    pub fn before_removal(mount: &Mount, at: EntryName<'_>, dirs: &Dirs) -> Result<Option<RemovedNode>> {
        let Some(node) = mount.named(at) else { return Ok(None) };
        let state = match mount.node(node)?.kind {
            Kind::File => return Ok(None),
            Kind::Dir => RemovedState::Dir(mount.open_dir(node)?),
            kind => {
                let stored = other_name(at.name)?;
                let attributes = attributes_from(node, kind, &dirs[0].stat(&stored)?);
                RemovedState::Link(RemovedLink {
                    attributes: Attributes { nlink: 0, ..attributes },
                    target: dirs[0].read_link(&stored)?,
                })
            }
        };
        Ok(Some(RemovedNode { node, state }))
    }

    /// Keeps the state until the node is forgotten.
    pub fn keep(self, mount: &Mount) {
        match self.state {
            RemovedState::Dir(dirs) => mount.dirs.keep_removed(self.node, dirs),
            RemovedState::Link(link) => drop(mount.removed_links.lock().insert(self.node, link)),
        }
    }
}

/// Removes a file or a symbolic link.
pub(crate) fn remove(mount: &Mount, at: EntryName<'_>) -> Result<()> {
    if !remove_closed_file(mount, at)? {
        remove_found(mount, at)?;
    }
    mount.nodes.lock().removed(at.dir, at.name);
    Ok(())
}

/// Searches for a file or a symbolic link, and removes it.
fn remove_found(mount: &Mount, at: EntryName<'_>) -> Result<()> {
    loop {
        let SearchResult { dirs, found, .. } = search(mount, at)?;
        match found {
            None => return Err(Error::new(ErrorKind::NotFound, "remove", at.name)),
            Some(FoundEntry { kind: Kind::Dir, .. }) => {
                return Err(Error::new(ErrorKind::IsADirectory, "remove", at.name));
            }
            Some(found @ FoundEntry { store, kind: Kind::File, .. }) => {
                let node = mount.named(at);
                let file = StoredFile::found(&dirs[store], store, &found);
                match discard(mount, file, &container_name(at.name)?, node) {
                    Err(error) if error.kind == ErrorKind::NotFound && has_moved(mount, at, &found)? => {
                        continue;
                    }
                    discarded => discarded?,
                }
            }
            Some(FoundEntry { store, .. }) => {
                let removed = RemovedNode::before_removal(mount, at, &dirs)?;
                dirs[store].remove(&other_name(at.name)?)?;
                if let Some(removed) = removed {
                    removed.keep(mount);
                }
            }
        }
        return Ok(());
    }
}

/// Removes a file that is not open, without a search for its name: this process is the only user of
/// the store, and the node with this name is a file. Returns false if the name has to be searched
/// for.
fn remove_closed_file(mount: &Mount, at: EntryName<'_>) -> Result<bool> {
    if mount.is_hidden(at) {
        return Ok(false);
    }
    let is_closed_file = |node: &NodeId| {
        mount.files.peek(*node).is_none() && mount.node(*node).is_ok_and(|found| found.kind == Kind::File)
    };
    let Some(node) = mount.named(at).filter(is_closed_file) else { return Ok(false) };
    let Some(dir) = mount.open_dir_of_only_user(at.dir)? else { return Ok(false) };
    let file = StoredFile { dir: &dir, store: 0, kind: Some(Kind::File), identity: None };
    match discard(mount, file, &container_name(at.name)?, Some(node)) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
        discarded => discarded.map(|()| true),
    }
}

/// Removes an empty directory from all stores.
pub(crate) fn remove_dir(mount: &Mount, at: EntryName<'_>) -> Result<()> {
    let dirs = loop {
        let SearchResult { dirs, store_list, found } = search(mount, at)?;
        match found {
            None => return Err(Error::new(ErrorKind::NotFound, "remove", at.name)),
            Some(FoundEntry { kind: Kind::Dir, .. }) => {}
            Some(_) => return Err(Error::new(ErrorKind::NotADirectory, "remove", at.name)),
        }
        check_empty(&dirs, at.name)?;
        // Files may have been moved to a store that was added.
        if !mount.stores.has_changed(&store_list)? {
            break dirs;
        }
    };
    let removed = RemovedNode::before_removal(mount, at, &dirs)?;
    if let Err(error) = remove_everywhere(&dirs, &other_name(at.name)?) {
        // Another directory may have this name now.
        if let Some(node) = mount.named(at) {
            mount.dirs.close(node);
        }
        return Err(error);
    }
    if let Some(removed) = removed {
        removed.keep(mount);
    }
    let node = mount.nodes.lock().removed(at.dir, at.name);
    if let Some(node) = node {
        mount.dirs.close(node);
    }
    Ok(())
}

/// The location of a file that is removed.
#[derive(Clone, Copy)]
pub(crate) struct StoredFile<'a> {
    /// The directory in `store` that contains the file.
    pub dir: &'a Arc<dyn WritableDir>,
    pub store: StoreNumber,
    /// The kind that the name in the store probably has. If it is known, opening an object takes
    /// one request fewer.
    pub kind: Option<Kind>,
    /// The identity of the file with this name in the store, if it was just read.
    pub identity: Option<FileIdentity>,
}

impl<'a> StoredFile<'a> {
    /// Returns the location of a file that was found.
    pub fn found(dir: &'a Arc<dyn WritableDir>, store: StoreNumber, found: &FoundEntry) -> StoredFile<'a> {
        let FoundEntry { stat, .. } = found;
        StoredFile { dir, store, kind: stat.kind(), identity: Some(stat.identity()) }
    }
}

/// Moves the container `stored` to `trash`, or removes the object `stored` and moves its container
/// to `trash`. Deletes the container in `trash`, unless its `node` is still referenced.
pub(crate) fn discard(
    mount: &Mount,
    file: StoredFile<'_>,
    stored: &[u8],
    node: Option<NodeId>,
) -> Result<()> {
    discard_by(mount, file, stored, node, &|| file.dir.remove(stored))
}

/// As `discard`. `remove` removes the name of an object, or replaces it by another object.
pub(crate) fn discard_by(
    mount: &Mount,
    file: StoredFile<'_>,
    stored: &[u8],
    node: Option<NodeId>,
    remove: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let StoredFile { dir, store, kind, identity } = file;
    // The file is not opened again if it is open. Other mounts may have given the name to another
    // file, which a client of NFS notices only when it opens the name.
    let is_only_user = mount.stores.only_user_period().is_some();
    let found = identity.map(|dir| ContainerIdentity { store, dir });
    let open = node.filter(|_| is_only_user).and_then(|node| mount.files.get(node));
    let open = open.filter(|open| Some(open.file.container().identity()) == found);
    let opened = match open.is_some() {
        true => Ok(None),
        false => Container::open_as(&mount.stores, store, &**dir, stored, kind).map(Some),
    };
    let container = match opened {
        Ok(container) => container,
        // A damaged container can still be removed, and so can an object that this user cannot
        // read. `quell log fsck` finds its parts.
        Err(error) if matches!(error.kind, ErrorKind::Damaged | ErrorKind::PermissionDenied) => {
            if dir.stat(stored)?.kind() == Some(Kind::File) {
                return remove();
            }
            if error.kind == ErrorKind::PermissionDenied {
                return Err(error);
            }
            None
        }
        Err(error) => return Err(error),
    };
    let known = open.as_ref().map(|open| open.file.container()).or(container.as_ref());
    let (number, is_object) = match known {
        Some(container) => (container.number(), container.object().is_some()),
        None => (0, false),
    };
    // If the kernel may still use the file, the container becomes the file of its node.
    let (shared, container) = match (node, container) {
        (_, None) => (open, None),
        (Some(node), Some(container)) => match mount.files.get(node) {
            Some(known) if known.file.container().identity() == container.identity() => (Some(known), None),
            Some(_) => (None, Some(container)),
            None => (Some(add_file(mount, node, container, dir)), None),
        },
        (None, Some(container)) => (mount.files.with_container(&container.identity()), Some(container)),
    };
    let name = number_name(mount.stores.random_number());
    let object = shared.as_ref().map(|shared| shared.file.container()).or(container.as_ref());
    match object.filter(|_| is_object) {
        Some(container) => {
            if !remove_object(container, &name, remove)? {
                // The object stays open as long as the file is used. The last close deletes it.
                if let Some(shared) = shared {
                    shared.set_unlinked();
                    let before = node.map(|node| mount.files.keep_removed(node, &shared));
                    drop((before, shared));
                }
                return Ok(());
            }
        }
        None => dir.rename(stored, &*mount.stores.trash_dir(store)?, &name, Rename::Replace)?,
    }
    let Some(shared) = shared else {
        // The name is removed, as requested. If the container cannot be deleted now, `quell log
        // fsck` finds it.
        let _process = assume(None)?;
        let _ = delete_container(&mount.stores, store, &name, number);
        return Ok(());
    };
    shared.set_removed(name);
    mount.files.flattening().forget(&shared);
    let before = node.map(|node| mount.files.keep_removed(node, &shared));
    drop((before, shared)); // deleted at the last drop, which may be this one
    Ok(())
}

/// Removes an object, and then moves its container to `trash` under the name `name`, if it has one.
/// Returns whether the object has a container.
///
/// A process that creates the container at the same time looks for the object afterwards, and
/// removes the container if the object was removed.
///
/// Processes that have the file open keep the object. If they need a container later, it is created
/// in `trash` (`Container::dir`).
fn remove_object(container: &Container, name: &[u8], remove: &dyn Fn() -> Result<()>) -> Result<bool> {
    remove()?;
    container.set_removed();
    if container.is_known_only_object() {
        return Ok(false);
    }
    // Another mount may have given the object a second name, see `rename_object`. Read before the
    // removal, the link count would not include a name that is added meanwhile.
    if let Some(object) = container.object()
        && object.has_name()?
    {
        return Ok(false);
    }
    // The file is removed, as requested. `quell log fsck` finds a container without an object.
    let _process = assume(None)?;
    Ok(container.move_container_to_trash(name).unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot remove the container of an object");
        false
    }))
}
