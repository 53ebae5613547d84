//! The directory `incoming` of a store for a group: the batches and the data files of users other
//! than the owner of the store. docs/formats/batch.md describes it.
//!
//! Users may change their entries in it at any time. A directory or file is opened without
//! following symbolic links and without leaving the file system, and its owner is read from the
//! descriptor.

use std::os::fd::OwnedFd;

use quell_batch_service::{DataFile, FILES_OF_USERS};
use quell_posix::{OpenFile, PosixDir};
use quell_vfs::{Error, ErrorKind, Result, errno};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;

use crate::data_names::{batch_name, dir_name, file_name, incoming_name};

const OPERATION: &str = "use a file of another user";

pub(crate) fn refused(name: &str, reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::InvalidInput, OPERATION, name) }
}

/// Opens an entry of a directory of another user. Fails if it is a symbolic link or on another file
/// system.
fn open_at(dir: &OwnedFd, name: &str, flags: OFlags) -> Result<(OwnedFd, Stat)> {
    let failed = |error: Errno| match error {
        Errno::LOOP | Errno::XDEV => refused(name, "it is a symbolic link, or on another file system"),
        error => Error::from_io(error.into(), OPERATION, name),
    };
    // A FIFO must not block, and a lease of the user must not delay the open.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let opened = match openat2(dir, name, flags, Mode::empty(), resolve) {
        // Linux before 5.6.
        Err(Errno::NOSYS) => openat(dir, name, flags, Mode::empty()),
        opened => opened,
    };
    let opened = opened.map_err(failed)?;
    let found = fstat(&opened).map_err(failed)?;
    match found.st_dev == fstat(dir).map_err(failed)?.st_dev {
        true => Ok((opened, found)),
        false => Err(failed(Errno::XDEV)),
    }
}

/// Opens a directory of a user.
fn open_dir(dir: &OwnedFd, name: &str, uid: Option<u32>) -> Result<(OwnedFd, u32)> {
    let (opened, found) = open_at(dir, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    match uid.is_none_or(|uid| uid == found.st_uid) {
        true => Ok((opened, found.st_uid)),
        false => Err(refused(name, "the directory belongs to another user")),
    }
}

/// Opens a regular file of a user. Fails if the file has several names, because it could then also
/// be in another directory.
pub(crate) fn open_file(dir: &OwnedFd, name: &str, uid: u32) -> Result<(OwnedFd, u64)> {
    let (opened, found) = open_at(dir, name, OFlags::RDONLY).map_err(|error| match error.kind {
        // A socket, or a file with a lease.
        ErrorKind::Os(errno::ENXIO | errno::EAGAIN) => refused(name, "it is not a regular file"),
        _ => error,
    })?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(refused(name, "it is not a regular file"));
    }
    if found.st_uid != uid {
        return Err(refused(name, "it belongs to another user"));
    }
    if found.st_nlink != 1 {
        return Err(refused(name, "it has several names"));
    }
    Ok((opened, u64::try_from(found.st_size).unwrap_or_default()))
}

/// Opens the directory of a batch of a user.
///
/// # Errors
/// `NotFound` if there is none; `InvalidInput` if it is not a directory of this user; the errors of
/// open(2).
pub(crate) fn open_batch_dir(incoming: &OwnedFd, number: u64, uid: u32) -> Result<OwnedFd> {
    Ok(open_dir(incoming, &batch_name(number), Some(uid))?.0)
}

/// Opens the directory of a user with the data files of the synchronous mode and the key.
///
/// # Errors
/// As for [`open_batch_dir`].
pub(crate) fn open_user_dir(incoming: &OwnedFd, uid: u32) -> Result<OwnedFd> {
    Ok(open_dir(incoming, &incoming_name(FILES_OF_USERS + u64::from(uid)), Some(uid))?.0)
}

/// Opens a data file of another user for reading. It belongs to the user of its directory.
///
/// # Errors
/// `NotFound`; `InvalidInput` if it is not a regular file of this user; the errors of open(2).
pub(crate) fn open_data_file(incoming: &OwnedFd, file: DataFile) -> Result<Box<dyn OpenFile>> {
    let uid = file.batch.checked_sub(FILES_OF_USERS).map(|uid| u32::try_from(uid).unwrap_or(u32::MAX));
    let (top, uid) = open_dir(incoming, &incoming_name(file.batch), uid)?;
    let (dir, _) = open_dir(&top, &dir_name(file.inode), Some(uid))?;
    let (opened, _) = open_file(&dir, &file_name(file), uid)?;
    Ok(PosixDir::file_of_descriptor(opened))
}
