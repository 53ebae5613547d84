//! Opens the files of nodes.

use std::sync::Arc;

use quell_posix::{WritableDir, assumed};
use quell_vfs::{Error, ErrorKind, Kind, NodeId, OpenMode, Result};

use crate::container::{Container, ContainerIdentity};
use crate::format::container_name;
use crate::fs::handle::Handle;
use crate::fs::mount::{EntryName, Mount};
use crate::fs::nodes::Node;
use crate::fs::open_files::SharedFile;
use crate::fs::search::{FoundEntry, SearchResult, has_moved, search};
use crate::fs::store_dirs::Dirs;
use crate::not_found::none_if_not_found;
use crate::session::LogFile;

/// The largest number of attempts of a lookup or an open. An attempt fails if another process
/// replaces the file after it was found, so a file that is replaced continually needs a limit.
pub(crate) const ATTEMPTS_MAX: usize = 100;
/// The largest number of attempts to open a file without a search. An attempt fails if a rename
/// begins at the same time.
const UNSEARCHED_ATTEMPTS: usize = 2;

/// Returns the file of a node, and opens it if it is not open.
///
/// # Errors
///
/// `IsADirectory`, `InvalidInput` for other kinds, and `Stale` if the file was removed.
pub(crate) fn file(mount: &Mount, node: NodeId) -> Result<Arc<SharedFile>> {
    if let Some(shared) = mount.files.get(node) {
        return Ok(shared);
    }
    for _ in 0..UNSEARCHED_ATTEMPTS {
        let Some(renames) = mount.renames.state() else { break };
        let OwnedName { dir, name } = name_of_file(mount, node)?;
        let at = EntryName { dir, name: &name };
        let Some((container, stored_dir)) = open_without_search(mount, at)? else { break };
        // If the file was removed or a rename has begun meanwhile, another file may have the name.
        name_of_file(mount, node)?;
        if mount.renames.state() == Some(renames) {
            return Ok(add_file(mount, node, container, &stored_dir));
        }
    }
    let OwnedName { dir, name } = name_of_file(mount, node)?;
    let at = EntryName { dir, name: &name };
    loop {
        let SearchResult { dirs, found, .. } = search(mount, at)?;
        let Some(found) = found.filter(|found| found.kind == Kind::File) else {
            return Err(Error::new(ErrorKind::NotFound, "open", &name));
        };
        let dir = &dirs[found.store];
        let opened = open_container(mount, &dirs, &name, &found);
        match opened {
            Err(error) if error.kind == ErrorKind::NotFound && has_moved(mount, at, &found)? => {}
            container => return Ok(add_file(mount, node, container?, dir)),
        }
    }
}

/// The name of a file, and its directory.
struct OwnedName {
    dir: NodeId,
    name: Vec<u8>,
}

/// Returns the name of a file. Errors: as for `file`.
fn name_of_file(mount: &Mount, node: NodeId) -> Result<OwnedName> {
    let Node { parent, name, kind, is_removed, .. } = mount.node(node)?;
    match kind {
        Kind::File if is_removed => Err(Error::new(ErrorKind::Stale, "open", name)),
        Kind::File => Ok(OwnedName { dir: parent, name }),
        Kind::Dir => Err(Error::new(ErrorKind::IsADirectory, "open", name)),
        _ => Err(Error::new(ErrorKind::InvalidInput, "open", name)),
    }
}

/// Opens the file with this name without a search for it, if this process is the only user of the
/// store: the name belongs to a file, and only this process renames files. Returns `None` if the
/// name has to be searched for.
fn open_without_search(
    mount: &Mount,
    at: EntryName<'_>,
) -> Result<Option<(Container, Arc<dyn WritableDir>)>> {
    let Some(dir) = mount.open_dir_of_only_user(at.dir)? else { return Ok(None) };
    let opened = Container::open_as(&mount.stores, 0, &*dir, &container_name(at.name)?, Some(Kind::File));
    Ok(none_if_not_found(opened)?.map(|container| (container, dir)))
}

/// Opens the container of a file that was found, or its object.
fn open_container(mount: &Mount, dirs: &Dirs, name: &[u8], found: &FoundEntry) -> Result<Container> {
    let stored = container_name(name)?;
    Container::open_as(&mount.stores, found.store, &*dirs[found.store], &stored, found.stat.kind())
}

/// Makes a container in `dir` the file of a node, unless the node has one.
pub(crate) fn add_file(
    mount: &Mount,
    node: NodeId,
    container: Container,
    dir: &Arc<dyn WritableDir>,
) -> Arc<SharedFile> {
    let descriptors = Arc::clone(&mount.descriptors);
    mount.files.add(node, LogFile::new(container, Some(Arc::clone(dir)), mount.choices, descriptors))
}

/// Opens the file of a node that was just found, so that `file` does not search for it again. Does
/// nothing if the file is open, or is no longer where it was found.
pub(crate) fn open_found(mount: &Mount, node: NodeId, found: &FoundEntry) -> Result<()> {
    if mount.files.get(node).is_some() {
        return Ok(());
    }
    let identity = ContainerIdentity { store: found.store, dir: found.stat.identity() };
    let Node { parent, name, .. } = mount.node(node)?;
    let dirs = mount.open_dir(parent)?;
    let Some(dir) = dirs.get(found.store) else { return Ok(()) };
    let opened = open_container(mount, &dirs, &name, found);
    if let Some(container) = none_if_not_found(opened)?
        && container.identity() == identity
    {
        add_file(mount, node, container, dir);
    }
    Ok(())
}

/// Calls `act` with the file of a node. If another mount has moved the file to another store, or
/// replaced it by another file, calls it again with the file that has the name now, at most
/// [`ATTEMPTS_MAX`] times.
pub(crate) fn with_file<T>(
    mount: &Mount,
    node: NodeId,
    act: impl Fn(Arc<SharedFile>) -> Result<T>,
) -> Result<T> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let shared = file(mount, node)?;
        match act(Arc::clone(&shared)) {
            Err(error)
                if attempts < ATTEMPTS_MAX
                    && matches!(error.kind, ErrorKind::NotFound | ErrorKind::Stale)
                    && !mount.node(node)?.is_removed
                    && shared.file.container().is_gone()? =>
            {
                drop((mount.files.forget(node), shared));
            }
            done => return done,
        }
    }
}

/// Opens a file as `mode` requests, for a process of this node.
///
/// # Errors
///
/// `PermissionDenied` if this thread has assumed the credentials of a user without write permission
/// to the file. The kernel checks this with attributes that may be outdated, and the store checks
/// it only when a log is created.
pub(crate) fn open_file(mount: &Mount, node: NodeId, mode: OpenMode, process: u32) -> Result<Handle> {
    let user = assumed().filter(|_| mode.write);
    with_file(mount, node, |shared| {
        if let Some(user) = &user
            && !shared.file.may_be_written_by(user)?
        {
            return Err(Error::new(ErrorKind::PermissionDenied, "open", mount.node(node)?.name));
        }
        Handle::open(shared, node, mode, process, mount.choices.flattens_later)
    })
}
