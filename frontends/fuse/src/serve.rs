//! The request handlers. Each translates one request of the kernel into a call of the contract,
//! counts it, and translates the result. Lookups, attributes, reads and writes allocate no memory
//! here.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, Version, WriteFlags,
};
use quell_vfs::{Change, Context, Error, ErrorKind, Kind, LockMode, NAME_BYTES_MAX, OpenMode, errno};

use crate::convert::{
    Allocation, PERMISSIONS, allocation, appends, drops_set_id, excludes, is_direct, new_entry, open_mode,
    process_for, rename_rule, syncs, time, xattr_mode,
};
use crate::counters::{add, count};
use crate::frontend::{Frontend, GENERATION, publish_all, stale_if_removed};
use crate::handles::{is_for_writing, mark_writing};
use crate::locks::{F_UNLCK, LockRequest, WaitingRequest, conflict_values, unlock};
use crate::nodes::{file_attr, file_type, ino, no_entry, node};
use crate::options::{LockKeeper, REQUEST_BYTES_MAX};

/// The number of read-aheads in flight from which the kernel makes readers wait.
const READ_AHEADS_MAX: u16 = 64;

const BLOCK_BYTES: u32 = 4096;

/// The protocol version of Linux 6.18. That kernel drops cached data both before and after a direct
/// write, so that a read at the same time leaves no old data in the cache. Earlier kernels may lack
/// the second step.
const INVALIDATES_AFTER_WRITES: Version = Version(7, 45);

thread_local! {
    /// One buffer per worker, as large as the largest read that the worker has answered.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Filesystem for Frontend {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        let is_kept = self.capabilities.immutable || self.is_exclusive;
        self.no_opendir = is_kept && offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        self.no_open &= offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        let mut wanted = InitFlags::FUSE_PARALLEL_DIROPS;
        self.may_cache_data = config.kernel_abi() >= INVALIDATES_AFTER_WRITES
            && offered.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        if self.fs.writable().is_some() {
            // A listing with attributes would create references that the contract does not count,
            // so FUSE_DO_READDIRPLUS is not set.
            wanted |= InitFlags::FUSE_ATOMIC_O_TRUNC;
            if self.locks != LockKeeper::Kernel {
                wanted |= InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
            }
        } else {
            // Listings always include attributes, because a program that lists a directory usually
            // needs them next.
            wanted |= InitFlags::FUSE_DO_READDIRPLUS;
        }
        if is_kept {
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
        if self.capabilities.acls {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        let refused = |limit| io::Error::other(format!("the kernel's limit is {limit}"));
        config.add_capabilities(wanted & offered).map_err(|flags| io::Error::other(format!("{flags:?}")))?;
        config.set_max_write(REQUEST_BYTES_MAX).map_err(refused)?;
        if self.no_read_ahead {
            // 1 byte is less than a page, and so disables read-ahead. The library does not accept
            // 0.
            config.set_max_readahead(1).map_err(refused)?;
        }
        config.set_max_background(READ_AHEADS_MAX).map_err(|limit| refused(limit.into()))?;
        Ok(())
    }

    fn destroy(&mut self) {
        // The kernel may close a connection without releasing each open file.
        publish_all(&self.writable_files, &self.counters);
    }

    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _worker = self.enter("lookup", dir);
        let begin = self.lifetimes.begin();
        match self.entry(dir, name) {
            Ok(Some(found)) => self.reply_entry(found, begin, reply),
            Ok(None) => {
                let lifetimes = self.lifetimes.reply(begin);
                match lifetimes.missing_name() {
                    lifetime if lifetime.is_zero() => reply.error(Errno::ENOENT),
                    lifetime => reply.entry(&lifetime, &no_entry(), GENERATION),
                }
            }
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    /// Returns references to a node. The library also calls this for each node of a batch of
    /// FORGETs.
    fn forget(&self, _: &Request, ino: INodeNo, references: u64) {
        if let (Some(tree), false) = (self.fs.writable(), ino == INodeNo::ROOT) {
            let _worker = self.enter("forget", ino);
            self.lifetimes.forgotten(node(ino));
            tree.forget(node(ino), references);
            self.lifetimes.returned(references);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let _worker = self.enter("getattr", ino);
        count(&self.counters.attributes);
        let begin = self.lifetimes.begin();
        match self.fs.attributes(&Context::OWN, node(ino)) {
            Ok(attributes) => self.reply_attributes(&attributes, begin, reply),
            Err(error) => reply.error(self.refuse_known(&error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let _worker = self.enter("readlink", ino);
        count(&self.counters.links_read);
        match self.fs.read_link(&Context::OWN, node(ino)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size_bytes: Option<u64>,
        _: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let entered = self.enter_for("setattr", ino, request);
        let permissions = mode.map(|mode| mode & PERMISSIONS);
        let begin = self.lifetimes.begin();
        let change = Change { permissions, uid, gid, size_bytes, modified: modified.map(time) };
        let changed = if change == Change::default() {
            self.fs.attributes(&entered.context(), node(ino)) // only the access time is set; it is not kept
        } else {
            self.tree().and_then(|tree| tree.change(&entered.context(), node(ino), &change))
        };
        match self.counted(&self.counters.changes, changed) {
            Ok(attributes) => self.reply_attributes(&attributes, begin, reply),
            Err(number) => reply.error(number),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let entered = self.enter_for("mknod", dir, request);
        let begin = self.lifetimes.begin();
        if !matches!(Kind::from_mode(mode), Some(Kind::File)) {
            return reply.error(Errno::EPERM); // the contract has no fifos, sockets and devices
        }
        let new = new_entry(request, mode);
        let (context, name) = (entered.context(), name.as_bytes());
        let created = self.tree().and_then(|tree| {
            let (found, file) = tree.create(&context, node(dir), name, new, OpenMode::READ)?;
            file.close()?;
            Ok(found)
        });
        match self.counted(&self.counters.made, created) {
            Ok(found) => self.reply_entry(found, begin, reply),
            Err(number) => reply.error(number),
        }
    }

    fn mkdir(&self, request: &Request, dir: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let entered = self.enter_for("mkdir", dir, request);
        let begin = self.lifetimes.begin();
        let new = new_entry(request, mode);
        let context = entered.context();
        let created = self.tree().and_then(|tree| tree.make_dir(&context, node(dir), name.as_bytes(), new));
        match self.counted(&self.counters.made, created) {
            Ok(found) => self.reply_entry(found, begin, reply),
            Err(number) => reply.error(number),
        }
    }

    fn symlink(&self, request: &Request, dir: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let entered = self.enter_for("symlink", dir, request);
        let begin = self.lifetimes.begin();
        let (new, target) = (new_entry(request, 0o777), target.as_os_str().as_bytes());
        let (context, name) = (entered.context(), name.as_bytes());
        let created = self.tree().and_then(|tree| tree.make_symlink(&context, node(dir), name, target, new));
        match self.counted(&self.counters.made, created) {
            Ok(found) => self.reply_entry(found, begin, reply),
            Err(number) => reply.error(number),
        }
    }

    fn link(&self, request: &Request, ino: INodeNo, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let entered = self.enter_for("link", dir, request);
        let begin = self.lifetimes.begin();
        let (context, name) = (entered.context(), name.as_bytes());
        let linked = self.tree().and_then(|tree| tree.link(&context, node(ino), node(dir), name));
        // As link(2) documents it for file systems without hard links.
        let linked = linked.map_err(|error| match error.kind {
            ErrorKind::Unsupported => Error { kind: ErrorKind::Os(errno::EPERM), ..error },
            _ => error,
        });
        match self.counted(&self.counters.made, linked) {
            Ok(found) => self.reply_entry(found, begin, reply),
            Err(number) => reply.error(number),
        }
    }

    fn unlink(&self, request: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let entered = self.enter_for("unlink", dir, request);
        let removed =
            self.tree().and_then(|tree| tree.remove(&entered.context(), node(dir), name.as_bytes()));
        send(self.counted(&self.counters.removed, removed), reply);
    }

    fn rmdir(&self, request: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let entered = self.enter_for("rmdir", dir, request);
        let removed =
            self.tree().and_then(|tree| tree.remove_dir(&entered.context(), node(dir), name.as_bytes()));
        send(self.counted(&self.counters.removed, removed), reply);
    }

    fn rename(
        &self,
        request: &Request,
        from_dir: INodeNo,
        from: &OsStr,
        to_dir: INodeNo,
        to: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let entered = self.enter_for("rename", from_dir, request);
        let Some(rule) = rename_rule(flags) else { return reply.error(Errno::EINVAL) };
        let (from_dir, to_dir) = (node(from_dir), node(to_dir));
        let (context, from, to) = (entered.context(), from.as_bytes(), to.as_bytes());
        let renamed = self.tree().and_then(|tree| tree.rename(&context, from_dir, from, to_dir, to, rule));
        send(self.counted(&self.counters.renamed, renamed), reply);
    }

    fn create(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let entered = self.enter_for("create", dir, request);
        let begin = self.lifetimes.begin();
        let (new, open_mode) = (new_entry(request, mode), open_mode(OpenFlags(flags)));
        let context = Context { process: process_for(request, open_mode), ..entered.context() };
        let name = name.as_bytes();
        let created = self.tree().and_then(|tree| tree.create(&context, node(dir), name, new, open_mode));
        match self.counted(&self.counters.made, created) {
            Ok((found, file)) => {
                count(&self.counters.opens);
                let (mut handle, open_flags) =
                    (self.writable_files.insert(file.into()), self.open_flags(open_mode.write));
                let attributes = found.into_attributes();
                if OpenFlags(flags).acc_mode() != OpenAccMode::O_RDONLY {
                    handle = mark_writing(handle);
                    self.lifetimes.opens(attributes.node);
                }
                let lifetimes = self.lifetimes.reply(begin);
                let kept = lifetimes.created(&attributes);
                reply.created(&kept, &file_attr(&attributes), GENERATION, handle, open_flags);
            }
            // Another node created the file after the kernel's lookup, and the kernel has not
            // checked access to it. ESTALE makes the kernel repeat the lookup and the check.
            Err(number) if number.code() == Errno::EEXIST.code() && !excludes(OpenFlags(flags)) => {
                reply.error(Errno::ESTALE);
            }
            // Another node removed the new file or the directory meanwhile.
            Err(number) => reply.error(stale_if_removed(number)),
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let entered = self.enter_for("open", ino, request);
        if let Some(tree) = self.fs.writable() {
            let mode = open_mode(flags);
            if mode.write && self.is_read_only {
                return reply.error(Errno::EROFS);
            }
            let context = Context { process: process_for(request, mode), ..entered.context() };
            if mode.write {
                self.lifetimes.opens(node(ino));
            }
            let begin = self.lifetimes.begin();
            let opened = self.opened(tree.open_as(&context, node(ino), mode));
            // An open for reading that truncates changes the file only now.
            let stays_for_writing = flags.acc_mode() != OpenAccMode::O_RDONLY;
            if mode.write && (opened.is_err() || !stays_for_writing) {
                self.lifetimes.closed(node(ino));
            }
            let handle = match opened {
                Ok(file) => self.writable_files.insert(file.into()),
                Err(error) => return reply.error(self.refuse_known(&error)),
            };
            return if stays_for_writing {
                reply.opened(mark_writing(handle), self.open_flags(mode.write));
            } else if self.may_cache_data && !mode.write && !is_direct(flags) {
                let send = |cache| reply.opened(handle, self.read_only_flags(cache));
                self.lifetimes.opened(node(ino), begin, send);
            } else {
                reply.opened(handle, self.open_flags(mode.write));
            };
        }
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        if self.no_open {
            return reply.error(Errno::ENOSYS); // the kernel then opens files by itself
        }
        match self.opened(self.fs.open(&entered.context(), node(ino))) {
            Ok(file) => reply.opened(self.handles.insert(file.into()), self.open_flags(false)),
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
        let _worker = self.enter("read", ino);
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

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        origin: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _worker = self.enter("write", ino);
        let Some(file) = self.writable_files.get(handle) else { return reply.error(Errno::EBADF) };
        let ready = if drops_set_id(origin) { file.drop_set_id() } else { Ok(()) };
        let mut written = ready.and_then(|()| match appends(flags, origin) {
            true => file.append(data).map(|_offset| ()),
            false => file.write_at(data, offset),
        });
        if syncs(flags) {
            written = written.and_then(|()| file.sync());
        }
        match self.counted(&self.counters.writes, written) {
            Ok(()) => {
                add(&self.counters.bytes_written, data.len());
                reply.written(data.len() as u32); // no request is larger than REQUEST_BYTES_MAX
            }
            Err(number) => reply.error(number),
        }
    }

    /// Publishes the file, and removes the locks of fcntl(2) of the process, which owns them. The
    /// kernel sends this request at each close(2), which returns its result.
    fn flush(&self, _: &Request, ino: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        let _worker = self.enter("flush", ino);
        if self.fs.writable().is_none() {
            return reply.error(Errno::ENOSYS); // nothing to flush: the kernel sends no further FLUSH
        }
        let Some(file) = self.writable_files.get(handle) else { return reply.error(Errno::EBADF) };
        if is_for_writing(handle) {
            self.lifetimes.flushed(node(ino));
        }
        let mut published = file.publish();
        if self.locks == LockKeeper::FileSystem {
            if let Ok(locks) = file.locks() {
                let released = locks.release(quell_vfs::LockOwner(owner.0));
                published = published.and(released.inspect_err(|error| {
                    tracing::warn!(%error, "cannot release the locks of a process that closed a file");
                }));
            }
            self.lock_waiters.wake(node(ino));
        }
        send(self.counted(&self.counters.published, published), reply);
    }

    fn getlk(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        let _worker = self.enter("getlk", ino);
        let (file, scope, mode) = match self.lock_request(request, handle, kind, first, last) {
            Ok((file, LockRequest::Lock(scope, mode))) => (file, scope, mode),
            Ok((_, LockRequest::Unlock(_))) => return reply.error(Errno::EINVAL),
            Err(number) => return reply.error(number),
        };
        let owner = quell_vfs::LockOwner(owner.0);
        match file.locks().and_then(|locks| locks.conflicting(owner, scope, mode)) {
            Ok(None) => reply.locked(first, last, F_UNLCK, 0),
            Ok(Some(held)) => {
                let (first, last, kind) = conflict_values(&held);
                reply.locked(first, last, kind, 0); // the process may be on another node
            }
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        _: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let _worker = self.enter("setlk", ino);
        let (node, owner) = (node(ino), quell_vfs::LockOwner(owner.0));
        let (file, scope, mode) = match self.lock_request(request, handle, kind, first, last) {
            Ok((file, LockRequest::Lock(scope, mode))) => (file, scope, mode),
            Ok((file, LockRequest::Unlock(scope))) => {
                let unlocked = file.locks().and_then(|locks| unlock(locks, owner, scope));
                self.lock_waiters.wake(node);
                return match unlocked {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(self.refuse(&error)),
                };
            }
            Err(number) => return reply.error(number),
        };
        let attempt = || file.locks().and_then(|locks| locks.try_lock(owner, scope, mode));
        let mut locked = attempt();
        if matches!(locked, Ok(false)) && !waits {
            self.lock_waiters.await_closes(node);
            locked = attempt();
        }
        match locked {
            Ok(true) => {
                count(&self.counters.locked);
                // An exclusive lock may have become a shared one.
                if mode == LockMode::Shared {
                    self.lock_waiters.wake(node);
                }
                reply.ok();
            }
            Ok(false) if waits => {
                count(&self.counters.lock_waits);
                let waiting = WaitingRequest { file, node, owner, scope, mode, thread: request.pid() };
                self.lock_waiters.start(&self.state, waiting, reply);
            }
            Ok(false) => reply.error(Errno::EAGAIN),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let _worker = self.enter("fsync", ino);
        if self.fs.writable().is_none() {
            return reply.error(Errno::ENOSYS); // nothing to sync: the kernel sends no further FSYNC
        }
        let Some(file) = self.writable_files.get(handle) else { return reply.error(Errno::EBADF) };
        send(self.counted(&self.counters.synced, file.sync()), reply);
    }

    /// Syncs a directory. On a read-only mount there is nothing to sync: after the error ENOSYS the
    /// kernel answers by itself.
    fn fsyncdir(&self, _: &Request, dir: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let _worker = self.enter("fsyncdir", dir);
        let Some(tree) = self.fs.writable() else { return reply.error(Errno::ENOSYS) };
        send(self.counted(&self.counters.synced, tree.sync_dir(&Context::OWN, node(dir))), reply);
    }

    /// Guarantees that the file is long enough, unless it must keep its size, and that a range
    /// reads as zeros, if that is requested. Space cannot be reserved. The file is extended by
    /// writing a byte at its end, because setting the size could remove data that others write at
    /// the same time.
    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _worker = self.enter("fallocate", ino);
        let Some(Allocation { zeros, extends }) = allocation(mode) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        let Some(end) = offset.checked_add(length) else { return reply.error(Errno::EFBIG) };
        let Some(file) = self.writable_files.get(handle) else { return reply.error(Errno::EBADF) };
        let zeroed = if zeros { file.write_zeros(offset, length) } else { Ok(()) };
        let changed = zeroed.and_then(|()| match end.checked_sub(1) {
            Some(last) if extends && file.attributes()?.size_bytes < end => file.write_at(&[0], last),
            _ => Ok(()),
        });
        send(self.counted(&self.counters.changes, changed), reply);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let _worker = self.enter("release", ino);
        if self.fs.writable().is_none() {
            drop(self.handles.remove(handle));
        } else if let Some(file) = self.writable_files.remove(handle) {
            // Data written through a mapping after the last close(2) has not been published yet. An
            // error can no longer be returned to a program.
            let closed = self.lock_waiters.while_closing(node(ino), || file.close());
            if flags.acc_mode() != OpenAccMode::O_RDONLY || closed.is_err() {
                let _ = self.counted(&self.counters.published, closed);
            }
            if flags.acc_mode() != OpenAccMode::O_RDONLY {
                self.lifetimes.closed(node(ino));
            }
        }
        reply.ok();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let _worker = self.enter("opendir", ino);
        if self.no_opendir {
            return reply.error(Errno::ENOSYS); // the kernel then opens directories by itself
        }
        let keep = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
        reply.opened(FileHandle(0), if self.capabilities.immutable { keep } else { FopenFlags::empty() });
    }

    fn readdir(&self, _: &Request, dir: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _worker = self.enter("readdir", dir);
        let listed = self.list(node(dir), offset, |next, entry| {
            let name = OsStr::from_bytes(entry.name);
            reply.add(ino(entry.node), next, file_type(entry.kind), name)
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
        let _worker = self.enter("readdirplus", dir);
        // The kernel sends this request only for a tree that is not writable. The lifetime of its
        // entries does not change.
        let kept = self.lifetimes.reply(self.lifetimes.begin()).missing_name();
        let listed = self.list(node(dir), offset, |next, entry| {
            let attr = file_attr(&entry.attributes.expect("a read-only tree lists all attributes"));
            let name = OsStr::from_bytes(entry.name);
            reply.add(attr.ino, next, name, &kept, &attr, GENERATION)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, capacity: u32, reply: ReplyXattr) {
        let _worker = self.enter("getxattr", ino);
        count(&self.counters.xattrs);
        if !self.capabilities.xattrs {
            return reply.error(Errno::ENOSYS); // the kernel then returns EOPNOTSUPP by itself
        }
        match self.fs.xattr(&Context::OWN, node(ino), name.as_bytes()) {
            Ok(Some(value)) => self.reply_bytes(&value, capacity, reply),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let entered = self.enter_for("setxattr", ino, request);
        if !self.capabilities.xattrs {
            return reply.error(Errno::ENOSYS); // the kernel then returns EOPNOTSUPP by itself
        }
        let Some(mode) = xattr_mode(flags) else { return reply.error(Errno::EINVAL) };
        let (context, name) = (entered.context(), name.as_bytes());
        let set = self.tree().and_then(|tree| tree.set_xattr(&context, node(ino), name, value, mode));
        send(self.counted(&self.counters.changes, set), reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let entered = self.enter_for("removexattr", ino, request);
        if !self.capabilities.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        let (context, name) = (entered.context(), name.as_bytes());
        let removed = self.tree().and_then(|tree| tree.remove_xattr(&context, node(ino), name));
        send(self.counted(&self.counters.changes, removed), reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, capacity: u32, reply: ReplyXattr) {
        let _worker = self.enter("listxattr", ino);
        count(&self.counters.xattrs);
        if !self.capabilities.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        match self.fs.xattr_names(&Context::OWN, node(ino)) {
            Ok(names) => {
                let mut list = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
                for name in names {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                self.reply_bytes(&list, capacity, reply);
            }
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let _worker = self.enter("statfs", ino);
        let Some(tree) = self.fs.writable() else {
            // No space, used or free, as for other read-only file systems that are not on a device.
            return reply.statfs(0, 0, 0, 0, 0, BLOCK_BYTES, NAME_BYTES_MAX as u32, BLOCK_BYTES);
        };
        match tree.space() {
            Ok(space) => {
                let [total, free, available] = [space.total_bytes, space.free_bytes, space.available_bytes]
                    .map(|bytes| bytes / u64::from(BLOCK_BYTES));
                let (entries, left) = (space.entries, space.entries_free);
                let name_bytes = space.name_bytes_max;
                reply.statfs(total, free, available, entries, left, BLOCK_BYTES, name_bytes, BLOCK_BYTES);
            }
            Err(error) => reply.error(self.refuse(&error)),
        }
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS); // the kernel then treats the whole file as data
    }

    /// Refuses the request. Python calls isatty(3) for every file that it opens, which causes such
    /// a request.
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

/// Sends the reply of an operation that returns only success or an error.
fn send(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(number) => reply.error(number),
    }
}
