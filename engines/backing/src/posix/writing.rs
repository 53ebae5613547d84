//! The verbs of the real engine that change what is below a directory. A name is one component: anything else is
//! refused before the system sees it, as a wrong one would do more harm here than where things are only read.

use std::any::Any;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use quell_fs::{Change, Error, ErrorKind, Rename, Result, Space, Time, check_name};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps, UTIME_OMIT, Uid,
};
use rustix::io::Errno;

use super::{PIECES_MAX, PosixDir, PosixFile, failed};
use crate::{WritableDir, WritableFile};

const SET_GROUP_ID: u32 = 0o2000;

/// The name for a system call.
fn one(name: &[u8]) -> Result<&OsStr> {
    check_name(name)?;
    Ok(OsStr::from_bytes(name))
}

/// Kind and permissions of what a descriptor is, as they were when it was opened: no file system is asked again.
fn mode_of(fd: BorrowedFd<'_>) -> rustix::io::Result<u32> {
    let local = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(fd, "", local, StatxFlags::TYPE | StatxFlags::MODE)?;
    Ok(found.stx_mode.into())
}

/// A way to what a descriptor is, whatever it was opened for; what it leads to is no link to be followed.
fn path_of(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

impl PosixDir {
    /// A child, whatever it is, for a call that takes no name or would follow it.
    fn point_at(&self, name: &OsStr) -> rustix::io::Result<rustix::fd::OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, name, flags, Mode::empty())
    }

    fn set_permissions(&self, name: &[u8], permissions: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(permissions);
        // The call that would not follow a link came with Linux 6.6; this works on all.
        let set = |fd: BorrowedFd<'_>| rustix::fs::chmodat(CWD, path_of(fd), mode, AtFlags::empty());
        if name.is_empty() {
            return set(self.fd.as_fd());
        }
        let child = self.point_at(OsStr::from_bytes(name))?;
        if FileType::from_raw_mode(mode_of(child.as_fd())?) == FileType::Symlink {
            return Err(Errno::OPNOTSUPP); // some file systems would do it and then say so
        }
        set(child.as_fd())
    }

    fn set_owners(&self, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> rustix::io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        rustix::fs::chownat(&self.fd, OsStr::from_bytes(name), uid, gid, flags)
    }

    fn set_modified(&self, name: &[u8], modified: Time) -> rustix::io::Result<()> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() },
        };
        if name.is_empty() {
            return rustix::fs::utimensat(CWD, path_of(self.fd.as_fd()), &times, AtFlags::empty());
        }
        rustix::fs::utimensat(&self.fd, OsStr::from_bytes(name), &times, AtFlags::SYMLINK_NOFOLLOW)
    }
}

impl WritableDir for PosixDir {
    fn open_writable_dir(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        check_name(name)?;
        Ok(Arc::new(self.child(name, OFlags::RDONLY)?))
    }

    fn enter_writable(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        check_name(name)?;
        Ok(Arc::new(self.child(name, OFlags::PATH)?))
    }

    fn open_writable_file(&self, name: &[u8]) -> Result<Box<dyn WritableFile>> {
        check_name(name)?;
        Ok(Box::new(self.regular_file(name, OFlags::RDWR)?))
    }

    fn create_file(&self, name: &[u8], permissions: u32) -> Result<Box<dyn WritableFile>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(permissions);
        let fail = |e| failed(e, "create", name);
        let fd = rustix::fs::openat(&self.fd, one(name)?, flags, mode).map_err(fail)?;
        if mode_of(fd.as_fd()).map_err(fail)? & 0o7777 != permissions {
            rustix::fs::fchmod(&fd, mode).map_err(fail)?;
        }
        Ok(Box::new(PosixFile { fd }))
    }

    fn make_dir(&self, name: &[u8], permissions: u32) -> Result<()> {
        let fail = |e| failed(e, "make directory", name);
        let mode = Mode::from_raw_mode(permissions);
        rustix::fs::mkdirat(&self.fd, one(name)?, mode).map_err(fail)?;
        let local = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let made =
            rustix::fs::statx(&self.fd, OsStr::from_bytes(name), local, StatxFlags::MODE).map_err(fail)?;
        let (has, inherited) = (u32::from(made.stx_mode) & 0o7777, u32::from(made.stx_mode) & SET_GROUP_ID);
        if has != permissions | inherited {
            self.set_permissions(name, permissions | inherited).map_err(fail)?;
        }
        Ok(())
    }

    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        rustix::fs::symlinkat(OsStr::from_bytes(target), &self.fd, one(name)?)
            .map_err(|e| failed(e, "make link", name))
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(&self.fd, one(name)?, AtFlags::empty()).map_err(|e| failed(e, "remove", name))
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(&self.fd, one(name)?, AtFlags::REMOVEDIR)
            .map_err(|e| failed(e, "remove directory", name))
    }

    fn rename(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8], how: Rename) -> Result<()> {
        let invalid = || Error::new(ErrorKind::InvalidInput, "rename", from);
        let to_dir = to_dir.as_any().downcast_ref::<PosixDir>().ok_or_else(invalid)?;
        let flags = match how {
            Rename::Replace => RenameFlags::empty(),
            Rename::Keep => RenameFlags::NOREPLACE,
            Rename::Exchange => RenameFlags::EXCHANGE,
        };
        let (from_name, to_name) = (one(from)?, one(to)?);
        let renamed = if flags.is_empty() {
            rustix::fs::renameat(&self.fd, from_name, &to_dir.fd, to_name)
        } else {
            rustix::fs::renameat_with(&self.fd, from_name, &to_dir.fd, to_name, flags)
        };
        renamed.map_err(|e| match e {
            Errno::INVAL if flags.is_empty() => invalid(),
            Errno::INVAL | Errno::NOSYS => Error::new(ErrorKind::Unsupported, "rename", from),
            e => failed(e, "rename", from),
        })
    }

    fn change(&self, name: &[u8], change: &Change) -> Result<()> {
        if change.size_bytes.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "change", name));
        }
        if !name.is_empty() {
            check_name(name)?;
        }
        let Change { permissions, uid, gid, size_bytes: _, modified } = *change;
        let fail = |e| failed(e, "change", name);
        // In this order: new owners take the set-user-id bit away.
        if uid.is_some() || gid.is_some() {
            self.set_owners(name, uid, gid).map_err(fail)?;
        }
        if let Some(permissions) = permissions {
            self.set_permissions(name, permissions).map_err(fail)?;
        }
        if let Some(modified) = modified {
            self.set_modified(name, modified).map_err(fail)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let synced = match rustix::fs::fsync(&self.fd) {
            // A starting point for names (`PosixDir::start`) is no open directory.
            Err(Errno::BADF) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::openat(&self.fd, ".", flags, Mode::empty()).and_then(rustix::fs::fsync)
            }
            synced => synced,
        };
        match synced {
            // A file system that cannot be asked this of a directory keeps names as well as it can without.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(e) => Err(failed(e, "sync", b"")),
        }
    }

    fn space(&self) -> Result<Space> {
        let found = rustix::fs::fstatvfs(&self.fd).map_err(|e| failed(e, "ask for the space of", b""))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Space {
            total_bytes: bytes(found.f_blocks),
            free_bytes: bytes(found.f_bfree),
            available_bytes: bytes(found.f_bavail),
            entries: found.f_files,
            entries_free: found.f_ffree,
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl WritableFile for PosixFile {
    fn write_pieces_at(&self, pieces: &[&[u8]], offset: u64) -> Result<()> {
        let mut at = offset;
        for some in pieces.chunks(PIECES_MAX) {
            let mut slices: Vec<IoSlice<'_>> = some.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut left = &mut slices[..];
            // Also of 0 bytes: it takes empty pieces away, for which the system would answer 0 as at a full disk.
            IoSlice::advance_slices(&mut left, 0);
            while !left.is_empty() {
                match rustix::io::pwritev(&self.fd, left, at) {
                    Ok(0) => return Err(failed(Errno::IO, "write", b"")),
                    Ok(n) => {
                        at += n as u64;
                        IoSlice::advance_slices(&mut left, n);
                    }
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(failed(e, "write", b"")),
                }
            }
        }
        Ok(())
    }

    fn set_size(&self, size_bytes: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.fd, size_bytes).map_err(|e| failed(e, "set the size of", b""))
    }
}

#[cfg(test)]
#[path = "writing_test.rs"]
mod tests;
