//! The implementation for real file systems: system calls relative to open directories.

use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use quell_threads::lock;
use quell_vfs::{Error, Kind, ReadAt, Result, Time};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::span::{entry_span, file_span, operation_span};
use crate::{Dir, OpenFile, RangeLocks, Stat};

mod locking;
mod writing;

/// The largest number of buffers in one call: the limit of the system (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// The size of the buffer for names, in bytes.
const NAMES_BUFFER_BYTES: usize = 64 << 10;

/// A directory of any mounted file system.
#[derive(Debug)]
pub struct PosixDir {
    fd: OwnedFd,
    /// Held during a listing, because a descriptor has one position, and several threads may list
    /// the directory.
    listing: Mutex<()>,
    /// Opened with `open_shared` or `start_shared`, or below such a directory.
    is_shared: bool,
}

impl PosixDir {
    fn new(fd: OwnedFd, is_shared: bool) -> PosixDir {
        PosixDir { fd: moved(fd), listing: Mutex::new(()), is_shared }
    }

    /// Opens the directory at `path`. Symbolic links in the path are followed, because the user
    /// chose the path.
    pub fn open(path: &Path) -> Result<PosixDir> {
        PosixDir::named(path, OFlags::RDONLY, false)
    }

    /// Opens a directory in and below which other users may change names at any time.
    ///
    /// Nothing differs from `open` if the process does not run as root, or while a thread has
    /// assumed a user's credentials ([`assume`](crate::assume)): the kernel then checks that user's
    /// access. Otherwise root restricts itself to the permissions of the users concerned:
    ///
    /// - It adds, removes and opens names for writing with the credentials of the owner of the
    ///   directory or of the file.
    /// - It changes an entry, or opens a regular file for writing, only if it has one name (or is a
    ///   directory), lies on the file system of its directory, and belongs to the owner of its
    ///   directory, unless that is root. All of this is checked on the descriptor that is used
    ///   afterwards.
    /// - With root's privileges it changes only owners, and only of entries that pass these checks
    ///   or that it has just created.
    pub fn open_shared(path: &Path) -> Result<PosixDir> {
        PosixDir::named(path, OFlags::RDONLY, true)
    }

    /// Opens a directory as `open` does, but only as a starting point for names below it: see
    /// [`Dir::enter`].
    pub fn start(path: &Path) -> Result<PosixDir> {
        PosixDir::named(path, OFlags::PATH, false)
    }

    /// Opens a directory as [`start`](PosixDir::start) does, with the rules of
    /// [`open_shared`](PosixDir::open_shared).
    pub fn start_shared(path: &Path) -> Result<PosixDir> {
        PosixDir::named(path, OFlags::PATH, true)
    }

    /// Returns the open directory of a descriptor, as `open` does.
    pub fn of_descriptor(fd: OwnedFd) -> PosixDir {
        PosixDir::new(fd, false)
    }

    /// Returns a regular file that is open for reading. The caller has checked it.
    pub fn file_of_descriptor(fd: OwnedFd) -> Box<dyn OpenFile> {
        Box::new(PosixFile { fd, may_change: true })
    }

    fn named(path: &Path, access: OFlags, is_shared: bool) -> Result<PosixDir> {
        let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|e| failed(e, "open", path.as_os_str().as_bytes()))?;
        Ok(PosixDir::new(fd, is_shared))
    }

    /// Returns a path to a child, or to the directory itself if `name` is empty, for the system
    /// calls for extended attributes. The system calls that take a directory and a name need Linux
    /// 6.13; this path works on all versions.
    fn path_of_child(&self, name: &[u8]) -> Vec<u8> {
        let child: &[u8] = if name.is_empty() { b"." } else { name };
        [format!("/proc/self/fd/{}/", self.fd.as_raw_fd()).as_bytes(), child].concat()
    }

    fn child(&self, name: &[u8], access: OFlags) -> Result<PosixDir> {
        let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, OsStr::from_bytes(name), flags, Mode::empty())
            .map_err(|e| failed(e, "open", name))?;
        Ok(PosixDir::new(fd, self.is_shared))
    }

    fn regular_file(&self, name: &[u8], access: OFlags) -> Result<PosixFile> {
        let fd = self.any_file(name, access)?;
        // The kind is known from the open, so this needs no request to a file server.
        let local = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found =
            rustix::fs::statx(&fd, "", local, StatxFlags::TYPE).map_err(|e| failed(e, "open", name))?;
        self.if_regular(fd, found.stx_mode.into(), name)
    }

    /// Opens an entry of any kind.
    fn any_file(&self, name: &[u8], access: OFlags) -> Result<OwnedFd> {
        // NONBLOCK: if the name has become a fifo, the open must not wait for the other end.
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::openat(&self.fd, OsStr::from_bytes(name), flags, Mode::empty())
            .map_err(|e| failed(e, "open", name))
    }

    /// Returns the file if `mode` is the mode of a regular file.
    fn if_regular(&self, fd: OwnedFd, mode: u32, name: &[u8]) -> Result<PosixFile> {
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile => {
                // The descriptor of a file of a plain tree is given to a program.
                let fd = if self.is_shared { moved(fd) } else { fd };
                Ok(PosixFile { fd, may_change: !self.is_shared })
            }
            FileType::Directory => Err(failed(Errno::ISDIR, "open", name)),
            // The kernel's error for opening a socket.
            _ => Err(failed(Errno::NXIO, "open", name)),
        }
    }
}

impl AsFd for PosixDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the descriptor that a backend keeps instead of another one.
type Move = fn(OwnedFd) -> OwnedFd;

static MOVE: OnceLock<Move> = OnceLock::new();

/// Makes backends pass each descriptor that they keep to `moved`, and use the returned one. A
/// library in the process of a program needs this, because the program may use fixed numbers, or
/// close all descriptors from a number on. Later calls have no effect.
pub fn move_descriptors(moved: Move) {
    MOVE.get_or_init(|| moved);
}

/// Returns the descriptor to keep for `fd`: see [`move_descriptors`].
pub fn moved(fd: OwnedFd) -> OwnedFd {
    match MOVE.get() {
        Some(moved) => moved(fd),
        None => fd,
    }
}

fn failed(errno: Errno, operation: &'static str, subject: &[u8]) -> Error {
    Error::from_io(io::Error::from(errno), operation, subject)
}

fn stat_at(fd: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<Stat> {
    let flags = flags | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(fd, OsStr::from_bytes(name), flags, StatxFlags::BASIC_STATS)
        .map_err(|e| failed(e, "stat", name))?;
    Ok(stat_from(&found))
}

fn stat_from(found: &Statx) -> Stat {
    let time = |t: rustix::fs::StatxTimestamp| Time { seconds: t.tv_sec, nanoseconds: t.tv_nsec };
    Stat {
        mode: found.stx_mode.into(),
        uid: found.stx_uid,
        gid: found.stx_gid,
        nlink: found.stx_nlink,
        rdev: rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor),
        size_bytes: found.stx_size,
        blocks: found.stx_blocks,
        modified: time(found.stx_mtime),
        changed: time(found.stx_ctime),
        device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        mount_root: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    }
}

impl Dir for PosixDir {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn stat_self(&self) -> Result<Stat> {
        let _span = operation_span("stat");
        stat_at(self.fd.as_fd(), b"", AtFlags::EMPTY_PATH)
    }

    fn stat_self_cached(&self) -> Result<Stat> {
        stat_at(self.fd.as_fd(), b"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC)
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self.names_and_kinds()?.into_iter().map(|(name, _)| name).collect())
    }

    fn names_and_kinds(&self) -> Result<Vec<(Vec<u8>, Option<Kind>)>> {
        let mut names = Vec::new();
        self.visit(&mut |name, kind| {
            names.push((name.to_vec(), kind));
            true
        })?;
        Ok(names)
    }

    fn visit(&self, visit: &mut dyn FnMut(&[u8], Option<Kind>) -> bool) -> Result<()> {
        let _span = operation_span("list");
        let _position = lock(&self.listing);
        rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Start(0)).map_err(|e| failed(e, "list", b""))?;
        let mut buffer = vec![MaybeUninit::<u8>::uninit(); NAMES_BUFFER_BYTES];
        let mut entries = RawDir::new(&self.fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|e| failed(e, "list", b""))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let kind = match entry.file_type() {
                    FileType::RegularFile => Some(Kind::File),
                    FileType::Directory => Some(Kind::Dir),
                    FileType::Symlink => Some(Kind::Symlink),
                    _ => None,
                };
                if !visit(name, kind) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn stat(&self, name: &[u8]) -> Result<Stat> {
        let _span = entry_span("stat", name);
        stat_at(self.fd.as_fd(), name, AtFlags::empty())
    }

    fn stat_from_server(&self, name: &[u8]) -> Result<Stat> {
        let _span = entry_span("stat", name);
        stat_at(self.fd.as_fd(), name, AtFlags::STATX_FORCE_SYNC)
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        let _span = entry_span("readlink", name);
        let target = rustix::fs::readlinkat(&self.fd, OsStr::from_bytes(name), Vec::new())
            .map_err(|e| failed(e, "read link", name))?;
        Ok(target.into_bytes())
    }

    fn xattrs(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let _span = entry_span("listxattr", name);
        let path = self.path_of_child(name);
        let path = Path::new(OsStr::from_bytes(&path));
        let list = match sized(|buffer| rustix::fs::llistxattr(path, buffer)) {
            Ok(list) => list,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
            Err(e) => return Err(failed(e, "list attributes", name)),
        };
        let mut set = Vec::new();
        for attribute in list.split(|b| *b == 0).filter(|a| !a.is_empty()) {
            match sized(|buffer| rustix::fs::lgetxattr(path, OsStr::from_bytes(attribute), buffer)) {
                Ok(value) => set.push((attribute.to_vec(), value)),
                // The attribute was removed meanwhile, or is listed but not readable: treated as
                // not set.
                Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => {}
                Err(e) => return Err(failed(e, "read attribute", name)),
            }
        }
        set.sort();
        Ok(set)
    }

    fn open_dir(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        let _span = entry_span("open_dir", name);
        Ok(Arc::new(self.child(name, OFlags::RDONLY)?))
    }

    fn enter(&self, name: &[u8]) -> Result<Arc<dyn Dir>> {
        let _span = entry_span("open_dir", name);
        Ok(Arc::new(self.child(name, OFlags::PATH)?))
    }

    fn open_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        let _span = entry_span("open_file", name);
        Ok(Box::new(self.regular_file(name, OFlags::RDONLY)?))
    }

    fn open_file_and_stat(&self, name: &[u8]) -> Result<(Box<dyn OpenFile>, Stat)> {
        let _span = entry_span("open_file", name);
        let fd = self.any_file(name, OFlags::RDONLY)?;
        let found = stat_at(fd.as_fd(), b"", AtFlags::EMPTY_PATH)?;
        Ok((Box::new(self.if_regular(fd, found.mode, name)?), found))
    }
}

/// Calls `read` with increasing buffer sizes until the result fits.
fn sized(read: impl Fn(&mut Vec<u8>) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    // Most results are empty or short; the kernel's limit is 64 KiB.
    for capacity in [512, 64 << 10] {
        let mut buffer = vec![0; capacity];
        match read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if capacity == 512 => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::RANGE)
}

#[derive(Debug)]
struct PosixFile {
    fd: OwnedFd,
    /// Root may change the owner: the file was created here, or is in a directory where no other
    /// user changes names.
    may_change: bool,
}

impl ReadAt for PosixFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let _span = file_span("read", offset, into.len());
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.fd, &mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e, "read", b"")),
            }
        }
        Ok(done)
    }
}

impl OpenFile for PosixFile {
    fn into_descriptor(self: Box<Self>) -> Option<OwnedFd> {
        Some(self.fd)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn stat(&self) -> Result<Stat> {
        let _span = operation_span("fstat");
        stat_at(self.fd.as_fd(), b"", AtFlags::EMPTY_PATH)
    }

    fn stat_from_server(&self) -> Result<Stat> {
        let _span = operation_span("fstat");
        stat_at(self.fd.as_fd(), b"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC)
    }

    fn counts_removed_names(&self) -> bool {
        crate::lock_support::counts_removed_names(self.fd.as_fd())
    }

    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let _span = operation_span("lseek");
        // No other operation uses the position of the descriptor.
        let seek = |to| rustix::fs::seek(&self.fd, to);
        let first = match seek(rustix::fs::SeekFrom::Data(offset)) {
            Ok(first) => first,
            Err(Errno::NXIO) => return Ok(None),
            Err(e) => return Err(failed(e, "find data of", b"")),
        };
        // The file may have been truncated meanwhile.
        match seek(rustix::fs::SeekFrom::Hole(first)) {
            Ok(end) => Ok(Some((first, end))),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(failed(e, "find a hole of", b"")),
        }
    }

    fn acl(&self) -> Result<Option<Vec<u8>>> {
        match sized(|buffer| rustix::fs::fgetxattr(&self.fd, "system.posix_acl_access", buffer)) {
            Ok(list) => Ok(Some(list)),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(e) => Err(failed(e, "read the access control list", b"")),
        }
    }

    fn locks(&self) -> Option<&dyn RangeLocks> {
        Some(self)
    }

    fn sync(&self) -> Result<()> {
        let _span = operation_span("fsync");
        // Does not sync the times. fdatasync(2) syncs the size, because the data could not be read
        // without it.
        rustix::fs::fdatasync(&self.fd).map_err(|e| failed(e, "sync", b""))
    }

    fn read_pieces_at(&self, pieces: &mut [&mut [u8]], offset: u64) -> Result<usize> {
        let _span = file_span("readv", offset, pieces.iter().map(|piece| piece.len()).sum());
        let mut done = 0;
        for batch in pieces.chunks_mut(PIECES_MAX) {
            let mut slices: Vec<IoSliceMut<'_>> =
                batch.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
            let mut left = &mut slices[..];
            // Advancing by 0 skips empty buffers, for which the kernel would return 0 as at the end
            // of file.
            IoSliceMut::advance_slices(&mut left, 0);
            while !left.is_empty() {
                match rustix::io::preadv(&self.fd, left, offset + done as u64) {
                    Ok(0) => return Ok(done),
                    Ok(n) => {
                        done += n;
                        IoSliceMut::advance_slices(&mut left, n);
                    }
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(failed(e, "read", b"")),
                }
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names_of(dir: &dyn Dir) -> Vec<Vec<u8>> {
        let mut names = dir.names().unwrap();
        names.sort();
        names
    }

    #[test]
    fn a_directory_can_be_listed_twice_and_names_are_any_bytes() {
        let temp = tempfile::tempdir().unwrap();
        let odd = OsStr::from_bytes(b"\xff\nodd");
        std::fs::write(temp.path().join(odd), b"x").unwrap();
        std::fs::write(temp.path().join("plain"), b"").unwrap();
        let dir = PosixDir::open(temp.path()).unwrap();
        assert_eq!(names_of(&dir), [&b"plain"[..], b"\xff\nodd"]);
        assert_eq!(names_of(&dir).len(), 2);
    }

    #[test]
    fn any_number_of_threads_may_list_at_once() {
        let temp = tempfile::tempdir().unwrap();
        (0..300).for_each(|i| std::fs::write(temp.path().join(format!("{i}")), b"").unwrap());
        let dir = PosixDir::open(temp.path()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..300).for_each(|_| assert_eq!(dir.names().unwrap().len(), 300)));
            }
        });
    }

    #[test]
    fn links_are_read_but_never_followed() {
        let temp = tempfile::tempdir().unwrap();
        symlink("/etc", temp.path().join("out")).unwrap();
        symlink("/etc/passwd", temp.path().join("file")).unwrap();
        let dir = PosixDir::open(temp.path()).unwrap();
        assert_eq!(dir.read_link(b"out").unwrap(), b"/etc");
        assert!(dir.open_dir(b"out").is_err());
        assert!(dir.open_file(b"file").is_err());
        assert_eq!(dir.stat(b"out").unwrap().mode & 0o170_000, 0o120_000);
    }

    #[test]
    fn only_regular_files_open() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("dir")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, temp.path().join("fifo"), FileType::Fifo, mode, 0).unwrap();
        let dir = PosixDir::open(temp.path()).unwrap();
        assert_eq!(dir.open_file(b"dir").err().unwrap().errno(), quell_vfs::errno::EISDIR);
        assert!(dir.open_file(b"fifo").is_err());
    }

    #[test]
    fn reads_end_at_the_end_of_the_file() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("f"), b"0123456789").unwrap();
        let file = PosixDir::open(temp.path()).unwrap().open_file(b"f").unwrap();
        let mut buffer = [0; 8];
        assert_eq!(file.read_at(&mut buffer, 6).unwrap(), 4);
        assert_eq!(&buffer[..4], b"6789");
        assert_eq!(file.read_at(&mut buffer, 10).unwrap(), 0);
        assert_eq!(file.stat().unwrap().size_bytes, 10);
    }

    #[test]
    fn extended_attributes_are_sorted_and_none_is_no_error() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("f");
        std::fs::write(&path, b"").unwrap();
        let dir = PosixDir::open(temp.path()).unwrap();
        assert_eq!(dir.xattrs(b"f").unwrap(), []);
        let flags = rustix::fs::XattrFlags::empty();
        for (name, value) in [("user.b", "2"), ("user.a", "1")] {
            match rustix::fs::setxattr(&path, name, value.as_bytes(), flags) {
                Err(Errno::OPNOTSUPP) => {
                    return println!("SKIPPED: no user attributes on {}", path.display());
                }
                other => other.unwrap(),
            }
        }
        let expected = [(b"user.a".to_vec(), b"1".to_vec()), (b"user.b".to_vec(), b"2".to_vec())];
        assert_eq!(dir.xattrs(b"f").unwrap(), expected);
    }
}
