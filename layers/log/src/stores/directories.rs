//! Opens directories, and creates them if they do not exist, in one store or in all stores.

use std::sync::Arc;

use quell_posix::{WritableDir, assume};
use quell_vfs::{Change, ErrorKind, Result, errno};

use crate::stores::host::Host;

/// Opens a directory, and creates it if it does not exist.
pub(crate) fn open_or_create_dir(
    parent: &dyn WritableDir,
    name: &[u8],
    permissions: u32,
) -> Result<Arc<dyn WritableDir>> {
    open_or_create_dir_for(parent, name, permissions, None)
}

/// Opens a directory, and creates it for `owner` (uid and gid) if it does not exist.
pub(crate) fn open_or_create_dir_for(
    parent: &dyn WritableDir,
    name: &[u8],
    permissions: u32,
    owner: Option<(u32, u32)>,
) -> Result<Arc<dyn WritableDir>> {
    match parent.open_writable_dir(name) {
        Err(error) if error.kind == ErrorKind::NotFound => {}
        opened => return opened,
    }
    match parent.make_dir(name, permissions) {
        Err(error) if error.kind == ErrorKind::Exists => {}
        Err(error) => return Err(error),
        Ok(()) => give_new_dir(parent, name, owner)?,
    }
    parent.open_writable_dir(name)
}

/// Creates a directory for `owner` (uid and gid), and opens it. Opens it if it exists already.
pub(crate) fn create_or_open_dir_for(
    parent: &dyn WritableDir,
    name: &[u8],
    permissions: u32,
    owner: Option<(u32, u32)>,
) -> Result<Arc<dyn WritableDir>> {
    match parent.make_and_open_dir(name, permissions) {
        Err(error) if error.kind == ErrorKind::Exists => parent.open_writable_dir(name),
        made => {
            let dir = made?;
            give_new_dir(parent, name, owner)?;
            Ok(dir)
        }
    }
}

/// Gives a directory that this process has just created to `owner` (uid and gid).
///
/// # Errors
///
/// EPERM if the parent has got another owner since the directory was created. Then the directory is
/// removed, because its owner is wrong, unless another process has already created a file in it.
fn give_new_dir(parent: &dyn WritableDir, name: &[u8], owner: Option<(u32, u32)>) -> Result<()> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    // The owner of the parent may have replaced the new directory. `change` refuses a directory
    // that does not belong to the owner of its parent (`PosixDir::open_shared`).
    let made = parent.stat(name)?;
    if (made.uid, made.gid) == (uid, gid) {
        return Ok(());
    }
    let owner = Change { uid: Some(uid), gid: Some(gid), ..Change::default() };
    parent.change(name, &owner).inspect_err(|error| {
        if error.errno() == errno::EPERM {
            let _ = parent.remove_dir(name); // fails if the directory has files
        }
    })
}

/// Opens the directory `stored` in `dirs`, which is one directory opened in every store. Creates it
/// with the first store's attributes in stores that lack it.
pub(crate) fn open_in_all_stores(
    dirs: &[Arc<dyn WritableDir>],
    stored: &[u8],
    host: &Host,
) -> Result<Vec<Arc<dyn WritableDir>>> {
    // The directory is created with the rights of this process, because all users that it serves
    // need it, and with the attributes that it has in the first store.
    let _process = assume(None)?;
    let mut entered: Vec<Arc<dyn WritableDir>> = Vec::with_capacity(dirs.len());
    for dir in dirs {
        let opened = match (dir.open_writable_dir(stored), entered.first()) {
            (Err(error), Some(first)) if error.kind == ErrorKind::NotFound => {
                let like = first.stat_self()?;
                match dir.make_dir(stored, like.mode & 0o7777) {
                    // Another mount has created it meanwhile.
                    Err(error) if error.kind == ErrorKind::Exists => {}
                    made => {
                        made?;
                        if host.uid == 0 || host.gid != like.gid {
                            let uid = (host.uid == 0).then_some(like.uid);
                            let change = Change { uid, gid: Some(like.gid), ..Change::default() };
                            // An unprivileged process cannot set a group that it does not belong
                            // to; the directory is usable without it.
                            match dir.change(stored, &change) {
                                Err(error) if host.uid == 0 => return Err(error),
                                _ => {}
                            }
                        }
                    }
                }
                dir.open_writable_dir(stored)?
            }
            (opened, _) => opened?,
        };
        entered.push(opened);
    }
    Ok(entered)
}
