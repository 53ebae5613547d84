//! Creates files, directories and symbolic links.

use std::sync::Arc;

use quell_posix::{Acting, Stat, WritableDir, WritableFile, assume, assumed};
use quell_vfs::{Attributes, Caller, Change, Error, ErrorKind, Kind, NewEntry, OpenMode, Result, check_name};

use crate::container::{Container, begins_as_object, has_owner_and_permissions, set_attributes};
use crate::format::{OBJECT_FRAME_BYTES, container_name, other_name};
use crate::fs::attributes::attributes_from;
use crate::fs::handle::Handle;
use crate::fs::mount::{EntryName, Mount};
use crate::fs::search::{FoundEntry, SearchResult, has_moved, search};
use crate::fs::store_dirs::Dirs;
use crate::not_found::none_if_not_found;
use crate::session::LogFile;
use crate::stores::{Host, StoreList};

/// Creates a file, opens it for `process`, and adds a reference to its node.
pub(crate) fn create_file(
    mount: &Mount,
    at: EntryName<'_>,
    new: NewEntry,
    mode: OpenMode,
    process: u32,
) -> Result<(Attributes, Handle)> {
    mount.stores.while_creating_file(|is_only_user| {
        let stored = container_name(at.name)?;
        // The owner of a directory of the store may have been changed in the store itself.
        mount.prepare_for_writers(new.permissions, Some(new.uid))?;
        let is_missing = mount.begin_name(at);
        let created = match is_only_user && mode.write {
            true => create_object_in_place(mount, at, &stored, new, is_missing)?,
            false => None,
        };
        let created = match created {
            Some(created) => created,
            None => create_container(mount, at, &stored, new, mode.write)?,
        };
        open_created(mount, at, created, mode, process)
    })
}

/// Adds a file that was just created to the nodes and the open files, and opens it.
fn open_created(
    mount: &Mount,
    at: EntryName<'_>,
    created: Created,
    mode: OpenMode,
    process: u32,
) -> Result<(Attributes, Handle)> {
    let Created { container, dirs, object } = created;
    let home = container.home();
    let file = LogFile::created(
        container,
        Some(Arc::clone(&dirs[home])),
        mount.choices,
        Arc::clone(&mount.descriptors),
    );
    let node = {
        let mut nodes = mount.nodes.lock();
        // Another node may have removed the file with this name.
        nodes.removed(at.dir, at.name);
        nodes.refer(at.dir, at.name, Kind::File)
    };
    let shared = mount.files.add_new(node, file);
    let opened = shared.file.attributes_of_new(node, object).and_then(|attributes| {
        let mode = OpenMode { truncate: false, ..mode };
        Ok((attributes, Handle::open(shared, node, mode, process, mount.choices.flattens_later)?))
    });
    opened.inspect_err(|_| mount.forget(node, 1))
}

/// A file that was just created.
struct Created {
    container: Container,
    /// Its directory in all stores.
    dirs: Dirs,
    /// The attributes of the object, if the file is an object.
    object: Option<Stat>,
}

/// Creates a file as an object under its name, for the only user of the store. Returns `None` if
/// the file cannot be created in this way.
///
/// The search for the name is shorter than in `create_container`. The creation fails if a file has
/// the name, and other processes create no names. So the name is free if it is known to be missing,
/// if the lookup of the kernel has just not found it, or if one stat(2) does not find a directory
/// or symbolic link.
fn create_object_in_place(
    mount: &Mount,
    at: EntryName<'_>,
    stored: &[u8],
    new: NewEntry,
    is_missing: bool,
) -> Result<Option<Created>> {
    check_name(at.name)?;
    let store_list = mount.stores.list();
    // On a file system without the operations that name an object, no container could be created.
    if !mount.stores.has_named_object() || mount.is_hidden(at) || !may_be_object(mount, &store_list, new)? {
        return Ok(None);
    }
    let dirs = mount.open_dir(at.dir)?;
    let home = store_list.home(at.name);
    let Some(dir) = dirs.get(home) else { return Ok(None) };
    if !is_missing
        && !mount.missing_names.remove((at.dir, at.name), &mount.stores)
        && none_if_not_found(dirs[0].stat(&other_name(at.name)?))?.is_some()
    {
        return Ok(None);
    }
    // The kernel gives the file the group of a directory with the set-group-ID bit.
    let complete_attributes = |file: &dyn WritableFile, stat: Stat| {
        if has_owner_and_permissions(&stat, new) {
            return Ok(stat);
        }
        // The file belongs to the owner of the directory, who may have opened it for writing, so it
        // must not be given to another user.
        if stat.uid != new.uid {
            return Err(Error::new(ErrorKind::Unsupported, "make", at.name));
        }
        let new = inherit(&**dir, new, false)?;
        let _group = with_group(new.gid)?;
        set_attributes(file, stat, new)
    };
    let permissions = new.permissions;
    match Container::create_object_in_place(
        &mount.stores,
        home,
        &**dir,
        stored,
        permissions,
        &complete_attributes,
    ) {
        // The name may belong to an empty directory, which only a container can replace.
        Err(error) if matches!(error.kind, ErrorKind::Exists | ErrorKind::Unsupported) => Ok(None),
        created => {
            let (container, stat) = created?;
            Ok(Some(Created { container, dirs, object: Some(stat) }))
        }
    }
}

/// Returns true if a new file can be an object.
fn may_be_object(mount: &Mount, store_list: &StoreList, new: NewEntry) -> Result<bool> {
    // A drained store refuses only containers, so sets of stores have no new objects.
    Ok(mount.choices.begins_as_object
        && mount.choices.buffer_bytes as u64 >= OBJECT_FRAME_BYTES
        && begins_as_object(new.permissions)
        && store_list.version == 0
        && !mount.stores.has_other_writers_now()?)
}

/// Creates a file in its home store, as an object or as a container.
fn create_container(
    mount: &Mount,
    at: EntryName<'_>,
    stored: &[u8],
    new: NewEntry,
    has_writer: bool,
) -> Result<Created> {
    loop {
        let (dirs, store_list) = free_name(mount, at)?;
        let new = inherit(&*dirs[0], new, false)?;
        // In a directory with the set-group-ID bit, a new file gets the group of the directory,
        // even if the user does not belong to this group. The kernel does not set this group for
        // the container, which is first created in another directory.
        let _group = with_group(new.gid)?;
        let home = store_list.home(at.name);
        let Some(stored_dir) = dirs.get(home) else {
            // The directory was removed.
            return Err(Error::new(ErrorKind::NotFound, "make", at.name));
        };
        if may_be_object(mount, &store_list, new)? {
            match Container::create_object(&mount.stores, home, &**stored_dir, stored, new, has_writer) {
                // The name belongs to an empty directory, which only a container can replace.
                Err(error) if error.kind == ErrorKind::Exists && is_replaceable(&**stored_dir, stored)? => {}
                Err(error) if error.kind == ErrorKind::Unsupported => {}
                Err(error)
                    if error.kind == ErrorKind::NotFound && mount.stores.has_changed(&store_list)? =>
                {
                    continue;
                }
                created => {
                    let (container, stat) = created?;
                    return Ok(Created { container, dirs, object: Some(stat) });
                }
            }
        }
        match Container::create(&mount.stores, home, &**stored_dir, stored, new) {
            // The store is being drained, and this mount did not know it.
            Err(error) if error.kind == ErrorKind::NotFound && mount.stores.has_changed(&store_list)? => {}
            created => return Ok(Created { container: created?, dirs, object: None }),
        }
    }
}

/// Returns true if `stored` is an empty directory.
fn is_replaceable(dir: &dyn WritableDir, stored: &[u8]) -> Result<bool> {
    match dir.open_writable_dir(stored).and_then(|found| found.names()) {
        Ok(names) => Ok(names.is_empty()),
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates a directory in all stores, and adds a reference to its node.
pub(crate) fn make_dir(mount: &Mount, at: EntryName<'_>, new: NewEntry) -> Result<Attributes> {
    let period = mount.stores.only_user_period();
    let (dirs, _) = open_dir_for_new_name(mount, at)?;
    let stored = other_name(at.name)?;
    let new = inherit(&*dirs[0], new, true)?;
    mount.prepare_for_writers(new.permissions, None)?;
    // The first store decides which of several mounts that create the same directory succeeds.
    let mut created: Vec<&dyn WritableDir> = Vec::with_capacity(dirs.len());
    for (store, stored_dir) in dirs.iter().enumerate() {
        let done = match stored_dir.make_dir(&stored, new.permissions) {
            // Another mount created the missing directory in this store, or the directory remained
            // after a removal.
            Err(error) if error.kind == ErrorKind::Exists && store > 0 => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                created.push(&**stored_dir);
                Ok(())
            }
        };
        if let Err(error) = done.and_then(|()| set_owner(mount.stores.host(), &**stored_dir, &stored, new)) {
            // Removes only directories that this call has created, and only if they are empty.
            for dir in created.iter().rev() {
                let _ = dir.remove_dir(&stored);
            }
            return Err(error);
        }
    }
    let stat = dirs[0].stat(&stored)?;
    let node = mount.nodes.lock().refer_to_new_dir(at.dir, at.name, period);
    Ok(attributes_from(node, Kind::Dir, &stat))
}

/// Creates a symbolic link in the first store, and adds a reference to its node.
pub(crate) fn make_symlink(
    mount: &Mount,
    at: EntryName<'_>,
    target: &[u8],
    new: NewEntry,
) -> Result<Attributes> {
    let (dirs, _) = open_dir_for_new_name(mount, at)?;
    let stored = other_name(at.name)?;
    let new = inherit(&*dirs[0], new, false)?;
    dirs[0].make_symlink(&stored, target)?;
    set_owner(mount.stores.host(), &*dirs[0], &stored, new).inspect_err(|error| {
        // If the link is gone, another mount's object may have the name now.
        if error.kind != ErrorKind::NotFound {
            let _ = dirs[0].remove(&stored);
        }
    })?;
    let stat = dirs[0].stat(&stored)?;
    let node = mount.nodes.lock().refer(at.dir, at.name, Kind::Symlink);
    Ok(attributes_from(node, Kind::Symlink, &stat))
}

/// Checks that the name of a directory or symbolic link that is about to be created is free.
/// Returns the same as `free_name`.
fn open_dir_for_new_name(mount: &Mount, at: EntryName<'_>) -> Result<(Dirs, Arc<StoreList>)> {
    check_name(at.name)?;
    let store_list = mount.stores.list();
    match mount.begin_name(at) && !mount.is_hidden(at) {
        true => Ok((mount.open_dir(at.dir)?, store_list)),
        false => free_name(mount, at),
    }
}

/// Checks that a name is free. Returns the directory in all stores, and the list of stores that
/// were searched.
fn free_name(mount: &Mount, at: EntryName<'_>) -> Result<(Dirs, Arc<StoreList>)> {
    check_name(at.name)?;
    if mount.is_hidden(at) {
        return Err(Error::new(ErrorKind::PermissionDenied, "make", at.name));
    }
    let SearchResult { dirs, store_list, found } = search(mount, at)?;
    match found {
        // An empty directory with the name of a container and without a record is replaced. A
        // container that was just moved is not.
        Some(found @ FoundEntry { store, kind: Kind::File, .. })
            if Container::open(&mount.stores, store, &*dirs[store], &container_name(at.name)?)
                .is_err_and(|error| error.kind == ErrorKind::NotFound)
                && !has_moved(mount, at, &found)? =>
        {
            Ok((dirs, store_list))
        }
        Some(_) => Err(Error::new(ErrorKind::Exists, "make", at.name)),
        None => Ok((dirs, store_list)),
    }
}

/// Returns `new` with the group of a directory that has the set-group-ID bit.
fn inherit(dir: &dyn WritableDir, new: NewEntry, is_dir: bool) -> Result<NewEntry> {
    let parent = dir.stat_self()?;
    Ok(if parent.mode & 0o2000 != 0 {
        let bit = if is_dir { 0o2000 } else { 0 };
        NewEntry { gid: parent.gid, permissions: new.permissions | bit, ..new }
    } else {
        new
    })
}

/// Makes `gid` the group of new files until the result is dropped, if this thread has assumed the
/// credentials of a user with another group.
fn with_group(gid: u32) -> Result<Option<Acting>> {
    match assumed() {
        Some(caller) if caller.gid != gid => {
            let groups = caller.groups.iter().copied().chain([caller.gid]).collect();
            assume(Some(Arc::new(Caller { gid, groups, uid: caller.uid }))).map(Some)
        }
        _ => Ok(None),
    }
}

/// Gives a new object to the intended user and group, if it does not already belong to them.
fn set_owner(host: &Host, dir: &dyn WritableDir, stored: &[u8], new: NewEntry) -> Result<()> {
    let (uid, gid) = match host.uid {
        0 => dir.stat(stored).map(|stat| (stat.uid, stat.gid))?,
        _ => (host.uid, host.gid),
    };
    if (uid, gid) == (new.uid, new.gid) {
        return Ok(());
    }
    dir.change(stored, &Change { uid: Some(new.uid), gid: Some(new.gid), ..Change::default() })
}
