//! The operations that change a directory's content. A name must be one component: any other name
//! is refused before the system call, because a wrong name does more harm in writes than in reads.

use std::any::Any;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use quell_vfs::{Caller, Change, Error, ErrorKind, Rename, Result, Space, check_name};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps, UTIME_OMIT,
    Uid, XattrFlags,
};
use rustix::io::Errno;

use super::{PIECES_MAX, PosixDir, PosixFile, failed, moved};
use crate::dir::NOT_AN_OWNER;
use crate::span::{entry_span, file_span, operation_span};
use crate::{Acting, OpenFile, WritableDir, WritableFile, assume};

const SET_GROUP_ID: u32 = 0o2000;
const SET_ID: u32 = 0o6000;
/// The smallest number of a copy of a descriptor: 0, 1 and 2 are the standard streams.
const COPY_NUMBER_MIN: i32 = 3;

/// Checks a name and converts it for a system call.
fn component(name: &[u8]) -> Result<&OsStr> {
    check_name(name)?;
    Ok(OsStr::from_bytes(name))
}

/// Returns the kind and permissions at the time of the open, without a request to a file server.
fn mode_of(fd: BorrowedFd<'_>) -> rustix::io::Result<u32> {
    let local = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(fd, "", local, StatxFlags::TYPE | StatxFlags::MODE)?;
    Ok(found.stx_mode.into())
}

/// Returns a path that refers to the file of any descriptor. If the file is a symbolic link, the
/// path refers to the link itself.
fn path_of(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Owner, group, kind and permissions, link count and device of a file.
struct FileStatus {
    uid: u32,
    gid: u32,
    mode: u32,
    nlink: u32,
    device: (u32, u32),
}

impl FileStatus {
    fn current(fd: BorrowedFd<'_>) -> rustix::io::Result<FileStatus> {
        FileStatus::read(fd, AtFlags::empty())
    }

    /// Returns the status of a child for [`check_child`](PosixDir::check_child). This node may have
    /// cached an earlier link count of a file that has one name now.
    fn of_child(fd: BorrowedFd<'_>) -> rustix::io::Result<FileStatus> {
        let found = FileStatus::current(fd)?;
        match found.has_other_names() {
            true => FileStatus::read(fd, AtFlags::STATX_FORCE_SYNC),
            false => Ok(found),
        }
    }

    /// Returns the status at the time of the open, without a request to a file server.
    fn at_open(fd: BorrowedFd<'_>) -> rustix::io::Result<FileStatus> {
        FileStatus::read(fd, AtFlags::STATX_DONT_SYNC)
    }

    fn read(fd: BorrowedFd<'_>, flags: AtFlags) -> rustix::io::Result<FileStatus> {
        let wanted =
            StatxFlags::UID | StatxFlags::GID | StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::NLINK;
        let found = rustix::fs::statx(fd, "", flags | AtFlags::EMPTY_PATH, wanted)?;
        Ok(FileStatus {
            uid: found.stx_uid,
            gid: found.stx_gid,
            mode: found.stx_mode.into(),
            nlink: found.stx_nlink,
            device: (found.stx_dev_major, found.stx_dev_minor),
        })
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Returns whether it is a file with several names. An open file that was removed has a link
    /// count of 0.
    fn has_other_names(&self) -> bool {
        self.kind() != FileType::Directory && self.nlink > 1
    }

    /// Makes the thread assume the credentials of the file's owner; `None` if the owner is root.
    fn assume_owner(&self) -> Result<Option<Acting>> {
        match self.uid {
            0 => Ok(None),
            uid => {
                let caller = Caller { uid, gid: self.gid, groups: Vec::new() };
                assume(Some(Arc::new(caller))).map(Some)
            }
        }
    }
}

fn refused(operation: &'static str, name: &[u8], why: &'static str) -> Error {
    Error { source: Some(why.into()), ..failed(Errno::PERM, operation, name) }
}

/// Sets the permissions of a directory that was just created, because the umask may have removed
/// some of them. The directory keeps the set-group-id bit that it has inherited.
fn set_permissions_of_new_dir(fd: BorrowedFd<'_>, name: &[u8], permissions: u32) -> Result<()> {
    let fail = |e| failed(e, "create directory", name);
    let found = FileStatus::at_open(fd).map_err(fail)?;
    let (has, inherited) = (found.mode & 0o7777, found.mode & SET_GROUP_ID);
    if has == permissions | inherited {
        return Ok(());
    }
    // Another user may have replaced the directory after it was created.
    if found.kind() != FileType::Directory || found.uid != rustix::process::geteuid().as_raw() {
        return Err(refused("create directory", name, "another user has replaced it"));
    }
    let exact = Change { permissions: Some(permissions | inherited), ..Change::default() };
    change_descriptor(fd, FileType::Directory, &exact).map_err(fail)
}

/// Changes the file of any descriptor. The owners come first, because changing them clears the
/// set-user-id bit.
fn change_descriptor(fd: BorrowedFd<'_>, kind: FileType, change: &Change) -> rustix::io::Result<()> {
    let Change { permissions, uid, gid, size_bytes: _, modified } = *change;
    if uid.is_some() || gid.is_some() {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        rustix::fs::chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if let Some(permissions) = permissions {
        if kind == FileType::Symlink {
            return Err(Errno::OPNOTSUPP); // some file systems change it but return an error
        }
        // `fchmodat2`, which takes any descriptor, needs Linux 6.6; this works on all versions.
        rustix::fs::chmodat(CWD, path_of(fd), Mode::from_raw_mode(permissions), AtFlags::empty())?;
    }
    if let Some(modified) = modified {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() },
        };
        rustix::fs::utimensat(CWD, path_of(fd), &times, AtFlags::empty())?;
    }
    Ok(())
}

impl PosixDir {
    /// Opens a child of any kind with O_PATH, for system calls that take no name or would follow a
    /// link.
    fn point_at(&self, name: &OsStr) -> rustix::io::Result<rustix::fd::OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, name, flags, Mode::empty())
    }

    /// Creates a regular file. The umask may remove some of the permissions.
    fn new_file(&self, name: &[u8], permissions: Mode) -> Result<rustix::fd::OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, component(name)?, flags, permissions)
            .map_err(|e| failed(e, "create", name))
    }

    /// Assumes the credentials of the owner of both directories, if this thread has root's
    /// privileges. If the directories have different owners, neither user may rename between them.
    /// Root then moves the directory entry with its own privileges and does nothing else.
    fn assume_owner_of_both(&self, other: &PosixDir) -> Result<Option<Acting>> {
        if !self.is_guarded() {
            return Ok(None);
        }
        let owner = |dir: &PosixDir| {
            FileStatus::at_open(dir.fd.as_fd()).map_err(|e| failed(e, "look at", b"a directory"))
        };
        let (source, target) = (owner(self)?, owner(other)?);
        if source.uid == target.uid { source.assume_owner() } else { Ok(None) }
    }

    /// Returns whether this thread has root's privileges in a directory where other users may
    /// replace names: see `PosixDir::open_shared`.
    fn is_guarded(&self) -> bool {
        self.is_shared && rustix::process::geteuid().is_root()
    }

    /// Makes the thread assume the owner's credentials, if root changes names in a directory where
    /// other users may replace them.
    fn act_as_owner(&self, operation: &'static str, name: &[u8]) -> Result<Option<Acting>> {
        match self.is_guarded() {
            true => {
                FileStatus::at_open(self.fd.as_fd()).map_err(|e| failed(e, operation, name))?.assume_owner()
            }
            false => Ok(None),
        }
    }

    /// Checks that root may use the child `name`, whose status is `child`, on behalf of the owner
    /// of this directory.
    fn check_child(&self, child: &FileStatus, operation: &'static str, name: &[u8]) -> Result<()> {
        let dir = FileStatus::current(self.fd.as_fd()).map_err(|e| failed(e, operation, name))?;
        if child.has_other_names() {
            return Err(refused(operation, name, "it has another name, which may be in another directory"));
        }
        if child.device != dir.device {
            return Err(refused(operation, name, "it is on another file system"));
        }
        if dir.uid != 0 && child.uid != dir.uid {
            return Err(refused(operation, name, "it belongs to another user than its directory"));
        }
        Ok(())
    }

    /// Changes a child, or the directory itself if the name is empty, where other users may replace
    /// it. In a directory of root, the child must belong to one of `owners`, if there are some.
    fn change_guarded(
        &self,
        fd: BorrowedFd<'_>,
        name: &[u8],
        owners: Option<&[u32]>,
        change: &Change,
    ) -> Result<()> {
        let fail = |e| failed(e, "change", name);
        let found = FileStatus::of_child(fd).map_err(fail)?;
        if !name.is_empty() {
            self.check_child(&found, "change", name)?;
        }
        if let Some(owners) = owners
            && FileStatus::current(self.fd.as_fd()).map_err(fail)?.uid == 0
            && !owners.contains(&found.uid)
        {
            return Err(refused("change", name, NOT_AN_OWNER));
        }
        let owners = Change { uid: change.uid, gid: change.gid, ..Change::default() };
        if owners != Change::default() {
            // A file that its former owner has open must not become a set-id program of the new
            // owner.
            if found.kind() == FileType::RegularFile
                && change.permissions.is_some_and(|mode| mode & SET_ID != 0)
            {
                return Err(refused("change", name, "a file that gets another owner gets no set-id bits"));
            }
            change_descriptor(fd, found.kind(), &owners).map_err(fail)?;
        }
        let rest = Change { permissions: change.permissions, modified: change.modified, ..Change::default() };
        if rest == Change::default() {
            return Ok(());
        }
        let _owner = FileStatus::current(fd).map_err(fail)?.assume_owner()?;
        change_descriptor(fd, found.kind(), &rest).map_err(fail)
    }

    fn change_child(&self, name: &[u8], owners: Option<&[u32]>, change: &Change) -> Result<()> {
        let _span = entry_span("setattr", name);
        if change.size_bytes.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "change", name));
        }
        if !name.is_empty() {
            check_name(name)?;
        }
        let fail = |e| failed(e, "change", name);
        let child = match name.is_empty() {
            true => None,
            false => Some(self.point_at(OsStr::from_bytes(name)).map_err(fail)?),
        };
        let fd = child.as_ref().map_or(self.fd.as_fd(), |child| child.as_fd());
        if self.is_guarded() {
            return self.change_guarded(fd, name, owners, change);
        }
        let kind = FileType::from_raw_mode(mode_of(fd).map_err(fail)?);
        change_descriptor(fd, kind, change).map_err(fail)
    }
}

impl WritableDir for PosixDir {
    fn open_writable_dir(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        let _span = entry_span("open_dir", name);
        check_name(name)?;
        Ok(Arc::new(self.child(name, OFlags::RDONLY)?))
    }

    fn enter_writable(&self, name: &[u8]) -> Result<Arc<dyn WritableDir>> {
        let _span = entry_span("open_dir", name);
        check_name(name)?;
        Ok(Arc::new(self.child(name, OFlags::PATH)?))
    }

    fn open_writable_file(&self, name: &[u8]) -> Result<Box<dyn WritableFile>> {
        let _span = entry_span("open_file", name);
        check_name(name)?;
        if !self.is_guarded() {
            let PosixFile { fd, may_change } = self.regular_file(name, OFlags::RDWR)?;
            // In a shared directory, `regular_file` has moved the descriptor already.
            let fd = if self.is_shared { fd } else { moved(fd) };
            return Ok(Box::new(PosixFile { fd, may_change }));
        }
        let fail = |e| failed(e, "open", name);
        let child = self.point_at(OsStr::from_bytes(name)).map_err(fail)?;
        let found = FileStatus::of_child(child.as_fd()).map_err(fail)?;
        match found.kind() {
            FileType::RegularFile => {}
            FileType::Directory => return Err(fail(Errno::ISDIR)),
            FileType::Symlink => return Err(fail(Errno::LOOP)),
            _ => return Err(fail(Errno::NXIO)),
        }
        self.check_child(&found, "open", name)?;
        let _owner = found.assume_owner()?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(CWD, path_of(child.as_fd()), flags, Mode::empty()).map_err(fail)?;
        Ok(Box::new(PosixFile { fd: moved(fd), may_change: false }))
    }

    fn create_file(&self, name: &[u8], permissions: u32) -> Result<Box<dyn WritableFile>> {
        let _span = entry_span("create", name);
        let mode = Mode::from_raw_mode(permissions);
        let _owner = self.act_as_owner("create", name)?;
        let fd = self.new_file(name, mode)?;
        let fail = |e| failed(e, "create", name);
        // The umask may have removed permissions. Another process that has opened the file since
        // may have added some.
        if mode_of(fd.as_fd()).map_err(fail)? & permissions != permissions {
            rustix::fs::fchmod(&fd, mode).map_err(fail)?;
        }
        Ok(Box::new(PosixFile { fd: moved(fd), may_change: true }))
    }

    fn create_file_with_umask(&self, name: &[u8], permissions: u32) -> Result<Box<dyn WritableFile>> {
        let _span = entry_span("create", name);
        let _owner = self.act_as_owner("create", name)?;
        let fd = self.new_file(name, Mode::from_raw_mode(permissions))?;
        Ok(Box::new(PosixFile { fd: moved(fd), may_change: true }))
    }

    fn make_dir(&self, name: &[u8], permissions: u32) -> Result<()> {
        let _span = entry_span("mkdir", name);
        let fail = |e| failed(e, "create directory", name);
        let mode = Mode::from_raw_mode(permissions);
        let _owner = self.act_as_owner("create directory", name)?;
        rustix::fs::mkdirat(&self.fd, component(name)?, mode).map_err(fail)?;
        let created = self.point_at(OsStr::from_bytes(name)).map_err(fail)?;
        set_permissions_of_new_dir(created.as_fd(), name, permissions)
    }

    fn make_and_open_dir(&self, name: &[u8], permissions: u32) -> Result<Arc<dyn WritableDir>> {
        let _span = entry_span("mkdir", name);
        let fail = |e| failed(e, "create directory", name);
        let mode = Mode::from_raw_mode(permissions);
        let owner = self.act_as_owner("create directory", name)?;
        rustix::fs::mkdirat(&self.fd, component(name)?, mode).map_err(fail)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, OsStr::from_bytes(name), flags, Mode::empty()) {
            Ok(fd) => {
                set_permissions_of_new_dir(fd.as_fd(), name, permissions)?;
                Ok(Arc::new(PosixDir::new(fd, self.is_shared)))
            }
            // The umask has removed the permission to read it.
            Err(Errno::ACCESS) => {
                let created = self.point_at(OsStr::from_bytes(name)).map_err(fail)?;
                set_permissions_of_new_dir(created.as_fd(), name, permissions)?;
                drop(owner);
                self.open_writable_dir(name)
            }
            Err(e) => Err(fail(e)),
        }
    }

    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        let _span = entry_span("symlink", name);
        let _owner = self.act_as_owner("create link", name)?;
        rustix::fs::symlinkat(OsStr::from_bytes(target), &self.fd, component(name)?)
            .map_err(|e| failed(e, "create link", name))
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        let _span = entry_span("unlink", name);
        let _owner = self.act_as_owner("remove", name)?;
        rustix::fs::unlinkat(&self.fd, component(name)?, AtFlags::empty())
            .map_err(|e| failed(e, "remove", name))
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        let _span = entry_span("rmdir", name);
        let _owner = self.act_as_owner("remove directory", name)?;
        rustix::fs::unlinkat(&self.fd, component(name)?, AtFlags::REMOVEDIR)
            .map_err(|e| failed(e, "remove directory", name))
    }

    fn rename(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8], how: Rename) -> Result<()> {
        let _span = entry_span("rename", from);
        let invalid = || Error::new(ErrorKind::InvalidInput, "rename", from);
        let to_dir = to_dir.as_any().downcast_ref::<PosixDir>().ok_or_else(invalid)?;
        let flags = match how {
            Rename::Replace => RenameFlags::empty(),
            Rename::Keep => RenameFlags::NOREPLACE,
            Rename::Exchange => RenameFlags::EXCHANGE,
        };
        let (from_name, to_name) = (component(from)?, component(to)?);
        let _owner = self.assume_owner_of_both(to_dir)?;
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

    fn link(&self, from: &[u8], to_dir: &dyn WritableDir, to: &[u8]) -> Result<()> {
        let _span = entry_span("link", from);
        let invalid = || Error::new(ErrorKind::InvalidInput, "link", from);
        let to_dir = to_dir.as_any().downcast_ref::<PosixDir>().ok_or_else(invalid)?;
        let _owner = self.assume_owner_of_both(to_dir)?;
        rustix::fs::linkat(&self.fd, component(from)?, &to_dir.fd, component(to)?, AtFlags::empty())
            .map_err(|e| failed(e, "link", from))
    }

    fn set_xattr(&self, name: &[u8], attribute: &[u8], value: Option<&[u8]>) -> Result<()> {
        let _span = entry_span("setxattr", name);
        if !name.is_empty() {
            check_name(name)?;
        }
        if self.is_shared {
            return Err(Error::new(ErrorKind::Unsupported, "set the extended attribute", attribute));
        }
        let path = self.path_of_child(name);
        let (path, key) = (Path::new(OsStr::from_bytes(&path)), OsStr::from_bytes(attribute));
        let done = match value {
            Some(value) => rustix::fs::lsetxattr(path, key, value, XattrFlags::empty()),
            None => rustix::fs::lremovexattr(path, key),
        };
        done.map_err(|e| match e {
            Errno::OPNOTSUPP | Errno::NOSYS => {
                Error::new(ErrorKind::Unsupported, "set the extended attribute", attribute)
            }
            e => failed(e, "set an extended attribute of", name),
        })
    }

    fn change(&self, name: &[u8], change: &Change) -> Result<()> {
        self.change_child(name, None, change)
    }

    fn change_of(&self, name: &[u8], owners: &[u32], change: &Change) -> Result<()> {
        self.change_child(name, Some(owners), change)
    }

    fn change_open(&self, file: &dyn OpenFile, change: &Change) -> Result<()> {
        const NAME: &[u8] = b"an open file";
        let _span = operation_span("fsetattr");
        let Some(fd) = file.descriptor().filter(|_| change.size_bytes.is_none()) else {
            return Err(Error::new(ErrorKind::InvalidInput, "change", NAME));
        };
        if self.is_guarded() {
            return self.change_guarded(fd, NAME, None, change);
        }
        let fail = |e| failed(e, "change", NAME);
        let kind = FileType::from_raw_mode(mode_of(fd).map_err(fail)?);
        change_descriptor(fd, kind, change).map_err(fail)
    }

    fn sync(&self) -> Result<()> {
        let _span = operation_span("fsync");
        let synced = match rustix::fs::fsync(&self.fd) {
            // A starting point for names (`PosixDir::start`) is not open for reading.
            Err(Errno::BADF) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::openat(&self.fd, ".", flags, Mode::empty()).and_then(rustix::fs::fsync)
            }
            synced => synced,
        };
        match synced {
            // This file system does not support syncing a directory; names are as durable as it
            // makes them.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(e) => Err(failed(e, "sync", b"")),
        }
    }

    fn space(&self) -> Result<Space> {
        let _span = operation_span("statfs");
        let found = rustix::fs::fstatvfs(&self.fd).map_err(|e| failed(e, "read the space of", b""))?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Space {
            total_bytes: bytes(found.f_blocks),
            free_bytes: bytes(found.f_bfree),
            available_bytes: bytes(found.f_bavail),
            entries: found.f_files,
            entries_free: found.f_ffree,
            name_bytes_max: u32::try_from(found.f_namemax).unwrap_or(u32::MAX),
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl WritableFile for PosixFile {
    fn write_pieces_at(&self, pieces: &[&[u8]], offset: u64) -> Result<()> {
        let _span = file_span("writev", offset, pieces.iter().map(|piece| piece.len()).sum());
        let mut at = offset;
        for batch in pieces.chunks(PIECES_MAX) {
            let mut slices: Vec<IoSlice<'_>> = batch.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut left = &mut slices[..];
            // Advancing by 0 skips empty buffers, for which the kernel would return 0 as on a full
            // disk.
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

    /// Closes a copy of the descriptor: NFS and FUSE file systems such as MooseFS write the data of
    /// a file back when any descriptor of it is closed. File systems whose nodes see written data
    /// at once do nothing then.
    fn write_back(&self) -> Result<()> {
        let _span = operation_span("flush");
        // Not below the descriptor's own number, which may have been moved out of the range that a
        // program uses (`move_descriptors`). In that range another thread of the program could
        // replace the copy by dup2(2), and the program's descriptor would be closed here.
        let number_min = self.fd.as_raw_fd().max(COPY_NUMBER_MIN);
        match rustix::io::fcntl_dupfd_cloexec(&self.fd, number_min) {
            Ok(copy) => nix::unistd::close(copy)
                .map_err(|e| failed(Errno::from_raw_os_error(e as i32), "write back the data of", b"")),
            // No number is free. No data was lost, and a sync passes it to the file server as well.
            Err(_) => self.sync(),
        }
    }

    fn drop_cache(&self, offset: u64, length: NonZeroU64) -> Result<()> {
        rustix::fs::fadvise(&self.fd, offset, Some(length), rustix::fs::Advice::DontNeed)
            .map_err(|e| failed(e, "drop the cache of", b""))
    }

    fn expect_random_reads(&self) {
        // An advice that is not followed changes no data.
        let _ = rustix::fs::fadvise(&self.fd, 0, None, rustix::fs::Advice::Random);
    }

    fn will_read(&self, offset: u64, length: NonZeroU64) {
        // An advice that is not followed changes no data.
        let _ = rustix::fs::fadvise(&self.fd, offset, Some(length), rustix::fs::Advice::WillNeed);
    }

    fn set_size(&self, size_bytes: u64) -> Result<()> {
        let _span = operation_span("ftruncate");
        rustix::fs::ftruncate(&self.fd, size_bytes).map_err(|e| failed(e, "set the size of", b""))
    }

    fn change(&self, change: &Change) -> Result<()> {
        let _span = operation_span("fsetattr");
        if change.size_bytes.is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, "change", b""));
        }
        if !self.may_change && rustix::process::geteuid().is_root() {
            return Err(refused("change", b"", "another user may have replaced it after it was created"));
        }
        change_descriptor(self.fd.as_fd(), FileType::RegularFile, change)
            .map_err(|e| failed(e, "change", b""))
    }
}

#[cfg(test)]
#[path = "writing_test.rs"]
mod tests;
