//! A mount as a file system of the contract: each method makes the system call that a program would
//! make. The tests for implementations can thus be run on the kernel and the FUSE server together.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File as Opened, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind,
    NewEntry, NodeId, NodeRef, OpenMode, ReadAt, Rename, Result, SetXattr, Space, Time, Writable,
    WritableFile, XATTR_VALUE_BYTES_MAX, check_name, errno,
};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps,
    UTIME_OMIT, Uid, XattrFlags,
};

/// The tree below a mount point. The kernel's inode numbers are the nodes plus one.
pub struct Through {
    point: PathBuf,
    root: Arc<OwnedFd>,
    known: Mutex<HashMap<NodeId, Known>>,
}

/// A node with references.
struct Known {
    /// Opened with O_PATH.
    fd: Arc<OwnedFd>,
    references: u64,
    /// The directory and name where it was found, for paths that are too long for /proc.
    place: (NodeId, Vec<u8>),
}

fn failed(operation: &'static str, subject: &[u8]) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::from_io(io::Error::from(errno), operation, subject)
}

fn io_failed(operation: &'static str) -> impl Fn(io::Error) -> Error {
    move |cause| match cause.raw_os_error() {
        // The kernel's error for a file that would end beyond the largest offset.
        Some(quell_vfs::errno::EFBIG) => Error::new(ErrorKind::InvalidInput, operation, b""),
        _ => Error::from_io(cause, operation, b""),
    }
}

/// Returns a path to the file of a descriptor.
fn fd_path(fd: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

fn attributes_of(fd: BorrowedFd<'_>) -> Result<Attributes> {
    let found = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
        .map_err(failed("stat", b""))?;
    let time = |t: rustix::fs::StatxTimestamp| Time { seconds: t.tv_sec, nanoseconds: t.tv_nsec };
    Ok(Attributes {
        node: NodeId(found.stx_ino - 1),
        kind: Kind::from_mode(found.stx_mode.into()).expect("a kind that exists"),
        permissions: u32::from(found.stx_mode) & 0o7777,
        uid: found.stx_uid,
        gid: found.stx_gid,
        nlink: found.stx_nlink,
        rdev: 0,
        size_bytes: found.stx_size,
        blocks: found.stx_blocks,
        modified: time(found.stx_mtime),
        changed: time(found.stx_ctime),
    })
}

fn point_at(dir: impl AsFd, name: &[u8], follow: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, OsStr::from_bytes(name), OFlags::PATH | OFlags::CLOEXEC | follow, Mode::empty())
}

impl Through {
    pub fn new(point: &Path) -> Through {
        let root = Arc::new(point_at(CWD, point.as_os_str().as_bytes(), OFlags::empty()).unwrap());
        Through { point: point.to_path_buf(), root, known: Mutex::default() }
    }

    fn fd(&self, node: NodeId) -> Result<Arc<OwnedFd>> {
        if node == self.root() {
            return Ok(Arc::clone(&self.root));
        }
        let known = self.known.lock().unwrap();
        let found = known.get(&node).map(|known| Arc::clone(&known.fd));
        found.ok_or_else(|| Error::new(ErrorKind::Stale, "use", "a node without references"))
    }

    fn refer(&self, fd: OwnedFd, dir: NodeId, name: &[u8]) -> Result<NodeRef<'_>> {
        let found = attributes_of(fd.as_fd())?;
        let mut known = self.known.lock().unwrap();
        let new = || Known { fd: Arc::new(fd), references: 0, place: (dir, name.to_vec()) };
        known.entry(found.node).or_insert_with(new).references += 1;
        Ok(NodeRef::counted(self, found))
    }

    fn created_entry(&self, dir: NodeId, name: &[u8]) -> Result<NodeRef<'_>> {
        let fd = point_at(&*self.fd(dir)?, name, OFlags::NOFOLLOW).map_err(failed("look up", name))?;
        self.refer(fd, dir, name)
    }

    /// Returns the path from the mount point to a node that has a name.
    fn path_of(&self, node: NodeId) -> Result<PathBuf> {
        let path = match std::fs::read_link(fd_path(&*self.fd(node)?)).map_err(io_failed("find")) {
            Err(error) if error.kind == ErrorKind::NameTooLong => {
                let (dir, name) = self.known.lock().unwrap()[&node].place.clone();
                return Ok(self.path_of(dir)?.join(OsStr::from_bytes(&name)));
            }
            path => path?,
        };
        match path.strip_prefix(&self.point) {
            Ok(path) if attributes_of(self.fd(node)?.as_fd())?.nlink > 0 => Ok(path.to_path_buf()),
            _ => Err(Error::new(ErrorKind::NotFound, "find", "a node without a name")),
        }
    }
}

impl FileSystem for Through {
    fn capabilities(&self) -> Capabilities {
        Capabilities { xattrs: true, ..Capabilities::default() }
    }

    fn root(&self) -> NodeId {
        NodeId(0)
    }

    fn lookup(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        match check_name(name) {
            // The kernel sends no request for these names.
            Err(error) if error.kind == ErrorKind::InvalidInput => return Ok(None),
            _ => {}
        }
        match point_at(&*self.fd(dir)?, name, OFlags::NOFOLLOW) {
            Ok(fd) => Ok(Some(self.refer(fd, dir, name)?)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("look up", name)(errno)),
        }
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        attributes_of(self.fd(node)?.as_fd())
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        if node == self.root() {
            return Ok(node);
        }
        let path = self.path_of(node)?;
        let above = self.point.join(path.parent().expect("it is not the root"));
        let fd =
            point_at(CWD, above.as_os_str().as_bytes(), OFlags::NOFOLLOW).map_err(failed("find", b""))?;
        Ok(attributes_of(fd.as_fd())?.node)
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        self.path_of(node).map(|path| path.into_os_string().into_vec())
    }

    fn list(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&*self.fd(dir)?, ".", flags, Mode::empty());
        let fail = failed("list", b"");
        let mut opened = rustix::fs::Dir::new(opened.map_err(&fail)?).map_err(&fail)?;
        if after != Cursor::START {
            opened.seek(after.0 as i64).map_err(&fail)?;
        }
        for entry in opened {
            let entry = entry.map_err(&fail)?;
            let (name, next) = (entry.file_name().to_bytes(), Cursor(entry.offset() as u64));
            let kind = match entry.file_type() {
                FileType::Directory => Kind::Dir,
                FileType::Symlink => Kind::Symlink,
                _ => Kind::File,
            };
            let node = NodeId(entry.ino() - 1);
            if name != b"." && name != b".." && !visit(DirEntry { name, next, node, kind, attributes: None })
            {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        let target = rustix::fs::readlinkat(&*self.fd(node)?, "", Vec::new());
        // If the descriptor does not refer to a symbolic link, the kernel returns ENOENT.
        let fail = |errno| match errno {
            rustix::io::Errno::NOENT => Error::new(ErrorKind::InvalidInput, "read link", b""),
            errno => failed("read link", b"")(errno),
        };
        Ok(target.map_err(fail)?.into_bytes())
    }

    fn xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let fd = self.fd(node)?;
        let mut value = vec![0; XATTR_VALUE_BYTES_MAX];
        match rustix::fs::getxattr(fd_path(&*fd), OsStr::from_bytes(name), &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                Ok(Some(value))
            }
            Err(rustix::io::Errno::NODATA) => Ok(None),
            Err(errno) => Err(failed("read an extended attribute", name)(errno)),
        }
    }

    fn xattr_names(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        let fd = self.fd(node)?;
        let mut names = vec![0; 64 << 10];
        let length = rustix::fs::listxattr(fd_path(&*fd), &mut names[..]).map_err(failed("list", b""))?;
        let names = names[..length].split_inclusive(|byte| *byte == 0);
        Ok(names.map(|name| name[..name.len() - 1].to_vec()).collect())
    }

    fn open(&self, _: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        Ok(Box::new(self.file(node, OpenMode::READ)?))
    }

    fn forget(&self, node: NodeId, references: u64) {
        let mut known = self.known.lock().unwrap();
        if let Some(Known { references: held, .. }) = known.get_mut(&node) {
            *held = held.saturating_sub(references);
            if *held == 0 {
                known.remove(&node);
            }
        }
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

fn flags_of(open_mode: OpenMode) -> OFlags {
    let access = match (open_mode.read, open_mode.write) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    access | OFlags::CLOEXEC | if open_mode.truncate { OFlags::TRUNC } else { OFlags::empty() }
}

impl Through {
    fn file(&self, node: NodeId, open_mode: OpenMode) -> Result<ThroughFile> {
        let fd = self.fd(node)?;
        match attributes_of(fd.as_fd())?.kind {
            Kind::File => {}
            Kind::Dir => return Err(Error::new(ErrorKind::IsADirectory, "open", b"")),
            _ => return Err(Error::new(ErrorKind::InvalidInput, "open", b"")),
        }
        let file = rustix::fs::open(fd_path(&*fd), flags_of(open_mode), Mode::empty())
            .map_err(failed("open", b""))?;
        Ok(ThroughFile::new(file))
    }
}

impl Writable for Through {
    fn create(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        open_mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        check_name(name)?;
        let flags = flags_of(open_mode) | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(new.permissions);
        let file = rustix::fs::openat(&*self.fd(dir)?, OsStr::from_bytes(name), flags, mode)
            .map_err(failed("create", name))?;
        let fd = point_at(CWD, fd_path(&file).as_os_str().as_bytes(), OFlags::empty());
        let found = self.refer(fd.map_err(failed("create", name))?, dir, name)?;
        Ok((found, Box::new(ThroughFile::new(file))))
    }

    fn make_dir(&self, _: &Context<'_>, dir: NodeId, name: &[u8], new: NewEntry) -> Result<NodeRef<'_>> {
        check_name(name)?;
        let mode = Mode::from_raw_mode(new.permissions);
        rustix::fs::mkdirat(&*self.fd(dir)?, OsStr::from_bytes(name), mode).map_err(failed("make", name))?;
        self.created_entry(dir, name)
    }

    fn make_symlink(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        _: NewEntry,
    ) -> Result<NodeRef<'_>> {
        check_name(name)?;
        rustix::fs::symlinkat(OsStr::from_bytes(target), &*self.fd(dir)?, OsStr::from_bytes(name))
            .map_err(failed("make", name))?;
        self.created_entry(dir, name)
    }

    fn link(&self, _: &Context<'_>, node: NodeId, dir: NodeId, name: &[u8]) -> Result<NodeRef<'_>> {
        check_name(name)?;
        let (from, dir_fd) = (fd_path(&*self.fd(node)?), self.fd(dir)?);
        rustix::fs::linkat(CWD, from, &*dir_fd, OsStr::from_bytes(name), AtFlags::SYMLINK_FOLLOW)
            .map_err(failed("link", name))?;
        self.created_entry(dir, name)
    }

    fn remove(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(&*self.fd(dir)?, OsStr::from_bytes(name), AtFlags::empty())
            .map_err(failed("remove", name))
    }

    fn remove_dir(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(&*self.fd(dir)?, OsStr::from_bytes(name), AtFlags::REMOVEDIR)
            .map_err(failed("remove", name))
    }

    fn rename(
        &self,
        _: &Context<'_>,
        from_dir: NodeId,
        from: &[u8],
        to_dir: NodeId,
        to: &[u8],
        how: Rename,
    ) -> Result<()> {
        check_name(to)?;
        let flags = match how {
            Rename::Replace => RenameFlags::empty(),
            Rename::Keep => RenameFlags::NOREPLACE,
            Rename::Exchange => RenameFlags::EXCHANGE,
        };
        let (from_dir, to_dir) = (self.fd(from_dir)?, self.fd(to_dir)?);
        let (old, new) = (OsStr::from_bytes(from), OsStr::from_bytes(to));
        rustix::fs::renameat_with(&*from_dir, old, &*to_dir, new, flags).map_err(failed("rename", from))
    }

    fn change(&self, _: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        let fd = self.fd(node)?;
        let path = fd_path(&*fd);
        if let Some(size) = change.size_bytes {
            if attributes_of(fd.as_fd())?.kind != Kind::File {
                return Err(Error::new(ErrorKind::InvalidInput, "set size", b""));
            }
            let file = OpenOptions::new().write(true).open(&path).map_err(io_failed("set size"))?;
            rustix::fs::ftruncate(&file, size).map_err(failed("set size", b""))?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            rustix::fs::chownat(&*fd, "", uid, gid, AtFlags::EMPTY_PATH).map_err(failed("give away", b""))?;
        }
        if let Some(permissions) = change.permissions {
            let mode = Mode::from_raw_mode(permissions);
            rustix::fs::chmodat(CWD, &path, mode, AtFlags::empty()).map_err(failed("set mode", b""))?;
        }
        if let Some(modified) = change.modified {
            let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let set = Timespec { tv_sec: modified.seconds, tv_nsec: modified.nanoseconds.into() };
            let times = Timestamps { last_access: omitted, last_modification: set };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).map_err(failed("set time", b""))?;
        }
        attributes_of(fd.as_fd())
    }

    fn open_as(&self, _: &Context<'_>, node: NodeId, open_mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        Ok(Box::new(self.file(node, open_mode)?))
    }

    fn set_xattr(
        &self,
        _: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<()> {
        let flags = match mode {
            SetXattr::Any => XattrFlags::empty(),
            SetXattr::Create => XattrFlags::CREATE,
            SetXattr::Replace => XattrFlags::REPLACE,
        };
        let fd = self.fd(node)?;
        rustix::fs::setxattr(fd_path(&*fd), OsStr::from_bytes(name), value, flags)
            .map_err(failed("set an extended attribute", name))
    }

    fn remove_xattr(&self, _: &Context<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        let fd = self.fd(node)?;
        rustix::fs::removexattr(fd_path(&*fd), OsStr::from_bytes(name))
            .map_err(failed("remove an extended attribute", name))
    }

    fn sync_dir(&self, _: &Context<'_>, dir: NodeId) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&*self.fd(dir)?, ".", flags, Mode::empty());
        rustix::fs::fsync(opened.map_err(failed("sync", b""))?).map_err(failed("sync", b""))
    }

    fn space(&self) -> Result<Space> {
        let found = rustix::fs::fstatvfs(&*self.root).map_err(failed("ask for space", b""))?;
        Ok(Space {
            total_bytes: found.f_blocks * found.f_frsize,
            free_bytes: found.f_bfree * found.f_frsize,
            available_bytes: found.f_bavail * found.f_frsize,
            entries: found.f_files,
            entries_free: found.f_ffree,
            name_bytes_max: u32::try_from(found.f_namemax).unwrap_or(u32::MAX),
        })
    }
}

struct ThroughFile {
    file: Opened,
    /// The same file opened to append, once an append was made.
    appending: Mutex<Option<Opened>>,
    is_closed: AtomicBool,
}

impl ThroughFile {
    fn new(file: OwnedFd) -> ThroughFile {
        ThroughFile { file: file.into(), appending: Mutex::new(None), is_closed: AtomicBool::new(false) }
    }

    /// Fails after `close`, although the descriptor is open until this object is dropped.
    fn check_open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Os(errno::EBADF), "use", "a closed file")),
            false => Ok(()),
        }
    }
}

/// Returns the result of close(2) on another descriptor of the same open file.
#[allow(unsafe_code)]
fn close_another(file: &Opened) -> Result<()> {
    // SAFETY: the declaration matches the declaration in every libc. The standard library does not
    // return the result of close(2).
    unsafe extern "C" {
        fn close(fd: i32) -> i32;
    }
    let another = file.try_clone().map_err(io_failed("publish"))?.into_raw_fd();
    // SAFETY: the descriptor was duplicated above and is not used anywhere else.
    match unsafe { close(another) } {
        0 => Ok(()),
        _ => Err(io_failed("publish")(io::Error::last_os_error())),
    }
}

impl File for ThroughFile {
    fn attributes(&self) -> Result<Attributes> {
        self.check_open()?;
        attributes_of(self.file.as_fd())
    }
}

impl ReadAt for ThroughFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.check_open()?;
        // The kernel rejects these offsets; no file extends there.
        let Some(bytes_left) = (i64::MAX as u64).checked_sub(offset) else { return Ok(0) };
        let length = into.len().min(usize::try_from(bytes_left).unwrap_or(usize::MAX));
        let into = &mut into[..length];
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(cause) => return Err(io_failed("read")(cause)),
            }
        }
        Ok(done)
    }
}

impl WritableFile for ThroughFile {
    fn close(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let published = self.publish();
        self.is_closed.store(true, Ordering::Relaxed);
        published
    }

    /// Removes the bits as the kernel does; root's own writes leave them.
    fn drop_set_id(&self) -> Result<()> {
        let before = self.attributes()?.permissions;
        let dropped = if before & 0o010 != 0 { 0o6000 } else { 0o4000 };
        let mode = Mode::from_raw_mode(before & !dropped);
        rustix::fs::fchmod(&self.file, mode).map_err(failed("set mode", b""))
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.check_open()?;
        if from.is_empty() {
            return Ok(());
        }
        self.file.write_all_at(from, offset).map_err(io_failed("write"))
    }

    fn write_zeros(&self, offset: u64, length: u64) -> Result<()> {
        self.check_open()?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, punch, offset, length).map_err(failed("punch a hole", b""))
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        self.check_open()?;
        let mut appending = self.appending.lock().unwrap();
        if appending.is_none() {
            let opened = OpenOptions::new().append(true).open(fd_path(&self.file));
            *appending = Some(opened.map_err(io_failed("append"))?);
        }
        let file = appending.as_mut().expect("it was just opened");
        let written = file.write(from).map_err(io_failed("append"))?;
        assert_eq!(written, from.len(), "all at once");
        Ok(file.stream_position().map_err(io_failed("append"))? - written as u64)
    }

    fn publish(&self) -> Result<()> {
        if let Some(appending) = &*self.appending.lock().unwrap() {
            close_another(appending)?;
        }
        close_another(&self.file)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(io_failed("sync"))
    }
}
