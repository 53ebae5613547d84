//! The verbs: each turns one request of the kernel into a call of the contract, counts it, and turns
//! the answer back. Nothing here allocates for a lookup, an attribute or a read.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use quell_fs::{Attributes, Capabilities, Cursor, Error, FileSystem, NAME_BYTES_MAX, NodeId, Result};

use crate::counters::{Counters, add, count};
use crate::handles::{Handles, OpenFile, RecentFiles};
use crate::nodes::{file_attr, file_type, ino, no_entry, node};
use crate::options::{Options, REQUEST_BYTES_MAX};
use crate::session::{Ending, Worker};

/// How long the kernel keeps what never changes: a century, which its clock arithmetic can hold.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Inode numbers are never given to another node, so there is one generation of them.
const GENERATION: Generation = Generation(0);

/// Read-aheads that the kernel may have under way before it makes their readers wait.
const READ_AHEADS_MAX: u16 = 64;

/// Without announced opens and closes, this many files stay open for the next read: half of the
/// usual limit of 1,024 descriptors a process.
const RECENT_FILES_MAX: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");

/// The kernel takes no error number from here on: a reply with one is refused and its program would
/// wait for ever.
const ERRNO_END: i32 = 512;

const BLOCK_BYTES: u32 = 4096;

thread_local! {
    /// One buffer for each worker, as large as the largest read it has answered.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One mounted file system, as the worker threads share it.
pub(crate) struct Door {
    fs: Arc<dyn FileSystem>,
    can: Capabilities,
    no_open: bool,
    no_read_ahead: bool,
    direct: bool,
    /// The kernel opens directories by itself once it is told that we do not.
    no_opendir: bool,
    keep: Duration,
    handles: Handles,
    recent: RecentFiles,
    counters: Arc<Counters>,
    ending: Arc<Ending>,
}

impl Door {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        options: &Options,
        counters: Arc<Counters>,
        ending: Arc<Ending>,
    ) -> Door {
        assert_eq!(fs.root(), NodeId(0), "the contract's root is node 0");
        let can = fs.capabilities();
        // Where no open is announced nothing can be said about how a file is to be read.
        let no_open = options.no_open && can.immutable && !options.direct;
        let (no_read_ahead, direct) = (options.no_read_ahead, options.direct);
        let keep = if can.immutable { FOR_EVER } else { Duration::ZERO };
        let (handles, recent) = (Handles::default(), RecentFiles::new(RECENT_FILES_MAX));
        Door {
            fs,
            can,
            no_open,
            no_read_ahead,
            direct,
            no_opendir: false,
            keep,
            handles,
            recent,
            counters,
            ending,
        }
    }

    /// Every verb starts here, so that a panic in one of them ends the session.
    fn enter(&self) -> Worker<'_> {
        self.ending.enter()
    }

    fn refuse(&self, error: &Error) -> Errno {
        count(&self.counters.errors);
        errno(error)
    }

    fn entry(&self, dir: INodeNo, name: &OsStr) -> Result<Option<Attributes>> {
        count(&self.counters.lookups);
        let found = self.fs.lookup(node(dir), name.as_bytes())?;
        if found.is_none() {
            count(&self.counters.negative_lookups);
        }
        Ok(found)
    }

    /// Gives the entries after `offset` to `push` until it says that its buffer is full.
    /// Offset 1 is after `.`, 2 is after `..`, and a cursor of the contract is 2 more than itself.
    fn list(
        &self,
        dir: NodeId,
        offset: u64,
        mut push: impl FnMut(&[u8], u64, &Attributes) -> bool,
    ) -> Result<()> {
        if offset == 0 {
            count(&self.counters.listings);
            if push(b".", 1, &self.fs.attributes(dir)?) {
                return Ok(());
            }
        }
        if offset <= 1 && push(b"..", 2, &self.fs.attributes(self.fs.parent(dir)?)?) {
            return Ok(());
        }
        let mut listed = 0;
        let end = self.fs.list(dir, Cursor(offset.saturating_sub(2)), &mut |entry| {
            let full = push(entry.name, offset_of(entry.next), &entry.attributes);
            listed += usize::from(!full);
            !full
        });
        add(&self.counters.entries_listed, listed);
        end
    }

    fn open_file(&self, node: NodeId) -> Result<Box<dyn quell_fs::File>> {
        match self.fs.open(node) {
            Ok(file) => {
                count(&self.counters.opens);
                Ok(file)
            }
            Err(error) => {
                count(&self.counters.opens_refused);
                Err(error)
            }
        }
    }

    fn file(&self, node: NodeId, handle: FileHandle) -> Result<OpenFile, Errno> {
        if self.no_open {
            return self.recent.get(node, || self.open_file(node)).map_err(|error| self.refuse(&error));
        }
        self.handles.get(handle).ok_or(Errno::EBADF)
    }

    /// Answers a question for bytes that the kernel asks twice: first for their number (`room` 0).
    fn answer_bytes(&self, value: &[u8], room: u32, reply: ReplyXattr) {
        match u32::try_from(value.len()) {
            Ok(length) if room == 0 => reply.size(length),
            Ok(length) if length <= room => reply.data(value),
            _ => reply.error(Errno::ERANGE),
        }
    }
}

/// The number for the kernel. ENOSYS would mean "never ask this again" and is not an error's to say.
fn errno(error: &Error) -> Errno {
    match Errno::from_i32(error.errno()) {
        known if known.code() == Errno::ENOSYS.code() => Errno::EOPNOTSUPP,
        known if (1..ERRNO_END).contains(&known.code()) => known,
        _ => Errno::EIO,
    }
}

fn offset_of(cursor: Cursor) -> u64 {
    assert!(cursor.0 <= i64::MAX as u64 - 2, "a cursor must fit the positive half of off_t: {cursor:?}");
    cursor.0 + 2
}

impl Filesystem for Door {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        self.no_opendir = self.can.immutable && offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        self.no_open &= offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        // Attributes always travel with a listing: what lists a directory usually wants them next.
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS | InitFlags::FUSE_DO_READDIRPLUS;
        if self.can.immutable {
            wanted |= InitFlags::FUSE_CACHE_SYMLINKS | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        } else {
            wanted |= InitFlags::FUSE_AUTO_INVAL_DATA;
        }
        if self.no_open {
            wanted |= InitFlags::FUSE_NO_OPEN_SUPPORT;
        }
        if self.direct {
            wanted |= InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        }
        if self.can.acls {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        let refused = |limit| io::Error::other(format!("the kernel's limit is {limit}"));
        config.add_capabilities(wanted & offered).map_err(|flags| io::Error::other(format!("{flags:?}")))?;
        config.set_max_write(REQUEST_BYTES_MAX).map_err(refused)?;
        if self.no_read_ahead {
            // Less than a page; the library takes no 0.
            config.set_max_readahead(1).map_err(refused)?;
        }
        config.set_max_background(READ_AHEADS_MAX).map_err(|limit| refused(limit.into()))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _worker = self.enter();
        match self.entry(dir, name) {
            Ok(Some(attributes)) => reply.entry(&self.keep, &file_attr(&attributes), GENERATION),
            Ok(None) if self.can.immutable => reply.entry(&self.keep, &no_entry(), GENERATION),
            Ok(None) => reply.error(Errno::ENOENT),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn forget(&self, _: &Request, _: INodeNo, _: u64) {}

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let _worker = self.enter();
        count(&self.counters.attributes);
        match self.fs.attributes(node(ino)) {
            Ok(attributes) => reply.attr(&self.keep, &file_attr(&attributes)),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let _worker = self.enter();
        count(&self.counters.links_read);
        match self.fs.read_link(node(ino)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _worker = self.enter();
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        if self.no_open {
            return reply.error(Errno::ENOSYS); // the kernel opens by itself from now on
        }
        let mut keep = if self.can.immutable { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        if self.direct {
            keep = FopenFlags::FOPEN_DIRECT_IO;
        }
        match self.open_file(node(ino)) {
            Ok(file) => reply.opened(self.handles.insert(file.into()), keep | FopenFlags::FOPEN_NOFLUSH),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _worker = self.enter();
        let file = match self.file(node(ino), handle) {
            Ok(file) => file,
            Err(number) => return reply.error(number),
        };
        count(&self.counters.reads);
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match file.read_at(&mut buffer[..size], offset) {
                Ok(n) => {
                    add(&self.counters.bytes_read, n);
                    reply.data(&buffer[..n]);
                }
                Err(error) => reply.error(self.refuse(&error)),
            }
        });
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let _worker = self.enter();
        drop(self.handles.remove(handle));
        reply.ok();
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let _worker = self.enter();
        if self.no_opendir {
            return reply.error(Errno::ENOSYS); // the kernel opens, and keeps listings, by itself from now on
        }
        let keep = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
        reply.opened(FileHandle(0), if self.can.immutable { keep } else { FopenFlags::empty() });
    }

    fn readdir(&self, _: &Request, dir: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _worker = self.enter();
        let listed = self.list(node(dir), offset, |name, next, attributes| {
            reply.add(ino(attributes.node), next, file_type(attributes.kind), OsStr::from_bytes(name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        dir: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _worker = self.enter();
        let listed = self.list(node(dir), offset, |name, next, attributes| {
            let attr = file_attr(attributes);
            reply.add(attr.ino, next, OsStr::from_bytes(name), &self.keep, &attr, GENERATION)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, room: u32, reply: ReplyXattr) {
        let _worker = self.enter();
        count(&self.counters.xattrs);
        if !self.can.xattrs {
            return reply.error(Errno::ENOSYS); // the kernel says EOPNOTSUPP by itself from now on
        }
        match self.fs.xattr(node(ino), name.as_bytes()) {
            Ok(Some(value)) => self.answer_bytes(&value, room, reply),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, room: u32, reply: ReplyXattr) {
        let _worker = self.enter();
        count(&self.counters.xattrs);
        if !self.can.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        match self.fs.xattr_names(node(ino)) {
            Ok(names) => {
                let mut list = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
                for name in names {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                self.answer_bytes(&list, room, reply);
            }
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    /// No space, used or free: like other read-only file systems that are not a device's.
    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let _worker = self.enter();
        reply.statfs(0, 0, 0, 0, 0, BLOCK_BYTES, NAME_BYTES_MAX as u32, BLOCK_BYTES);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS); // nothing to flush: the kernel stops asking at every close
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS); // the kernel then takes the whole file for data
    }

    /// `isatty` asks this of every file that Python opens.
    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_fs::ErrorKind;

    #[test]
    fn no_error_makes_the_kernel_stop_asking_or_wait_for_ever() {
        let number = |kind| errno(&Error::new(kind, "open", "x")).code();
        assert_eq!(number(ErrorKind::Stale), 116);
        assert_eq!(number(ErrorKind::Os(38)), 95);
        for odd in [0, -5, 512, 4096] {
            assert_eq!(number(ErrorKind::Os(odd)), 5);
        }
    }
}
