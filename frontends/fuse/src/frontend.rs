//! The parts that all requests share: the served file system, the open files, the counters, and the
//! translation of results and errors for the kernel.

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fuser::{Errno, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyEntry, ReplyXattr, Request};
use quell_vfs::{
    Attributes, Caller, Capabilities, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, NodeId,
    NodeRef, Result, Writable, WritableFile,
};

use crate::callers::caller_of;
use crate::convert::errno;
use crate::counters::{Counters, add, count};
use crate::handles::{Handles, OpenFile, RecentFiles};
use crate::lifetimes::{Begin, Changes, DataCache, Lifetimes};
use crate::lock_call::lock_call;
use crate::locks::{LockRequest, LockWaiters};
use crate::nodes::{file_attr, node};
use crate::options::{LockKeeper, Options};
use crate::session_state::{RequestGuard, SessionState};

/// The number of files kept open for further reads when the kernel sends no opens and closes: half
/// of the usual limit of 1,024 descriptors per process.
const RECENT_FILES_MAX: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");

/// An inode number is not reused for another node while the kernel knows it, so one generation is
/// enough.
pub(crate) const GENERATION: Generation = Generation(0);

pub(crate) type WritableHandles = Handles<dyn WritableFile>;

/// Publishes the files that are still open at the end of a session, because their closes will not
/// arrive any more. Errors can only be counted.
pub(crate) fn publish_all(files: &WritableHandles, counters: &Counters) {
    for file in files.all() {
        // A panic in one file must not prevent the publication of the others: the session may have
        // ended because of the same panic.
        let published = catch_unwind(AssertUnwindSafe(|| file.publish()));
        count(if matches!(published, Ok(Ok(()))) { &counters.published } else { &counters.errors });
    }
}

/// One mounted file system, shared by the worker threads.
pub(crate) struct Frontend {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) capabilities: Capabilities,
    pub(crate) no_open: bool,
    pub(crate) no_read_ahead: bool,
    pub(crate) direct: bool,
    /// The kernel may cache data of a writable tree, see [`Lifetimes::opened`].
    pub(crate) may_cache_data: bool,
    /// Programs cannot change the tree, even if it has operations for that. Root can remount a
    /// read-only mount as writable, so the kernel's flag alone does not ensure this.
    pub(crate) is_read_only: bool,
    /// This process runs as root, and so serves other users.
    is_root: bool,
    /// The tree changes only by requests of this mount.
    pub(crate) is_exclusive: bool,
    /// The kernel opens directories by itself after the first `opendir` is answered with ENOSYS.
    pub(crate) no_opendir: bool,
    /// The kernel sends a FLUSH at each close.
    sends_flush: bool,
    pub(crate) lifetimes: Arc<Lifetimes>,
    pub(crate) handles: Handles<dyn File>,
    /// The open files of a writable tree; for such a tree `handles` is empty.
    pub(crate) writable_files: Arc<WritableHandles>,
    recent: RecentFiles,
    pub(crate) counters: Arc<Counters>,
    pub(crate) state: Arc<SessionState>,
    /// Where locks of the tree are kept; `Kernel` if it is read-only.
    pub(crate) locks: LockKeeper,
    pub(crate) lock_waiters: Arc<LockWaiters>,
}

impl Frontend {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        options: &Options,
        counters: Arc<Counters>,
        state: Arc<SessionState>,
    ) -> Frontend {
        assert_eq!(fs.root(), NodeId(0), "the contract's root is node 0");
        let capabilities = fs.capabilities();
        assert!(
            !capabilities.immutable || fs.writable().is_none(),
            "an immutable file system is not writable"
        );
        // If the kernel sends no opens, there is no reply that could select direct reads.
        let no_open = options.no_open && capabilities.immutable && !options.direct;
        let (no_read_ahead, direct) = (options.no_read_ahead, options.direct || fs.writable().is_some());
        let changes = match (capabilities.immutable, options.exclusive) {
            (true, _) => Changes::None,
            (false, true) => Changes::OfThisMount,
            (false, false) => Changes::OfOthers,
        };
        let lifetimes = Arc::new(Lifetimes::new(changes));
        let locks = if fs.writable().is_some() { options.locks } else { LockKeeper::Kernel };
        let sends_flush =
            fs.writable().is_some() && !(options.publishes_writes && locks != LockKeeper::FileSystem);
        let recent = RecentFiles::new(RECENT_FILES_MAX);
        let (handles, writable_files) = (Handles::default(), Arc::new(WritableHandles::default()));
        Frontend {
            fs,
            capabilities,
            no_open,
            no_read_ahead,
            direct,
            may_cache_data: false,
            is_read_only: options.read_only,
            is_root: rustix::process::geteuid().is_root(),
            is_exclusive: changes == Changes::OfThisMount,
            no_opendir: false,
            sends_flush,
            lifetimes,
            handles,
            writable_files,
            recent,
            counters,
            state,
            locks,
            lock_waiters: Arc::default(),
        }
    }

    /// Begins a request; all handlers call this first, except those that only return a constant
    /// error. While the result exists, the request is listed as in flight, it has a span in the
    /// trace, and a panic ends the session.
    pub(crate) fn enter(&self, operation: &'static str, inode: INodeNo) -> RequestGuard<'_> {
        self.state.enter(operation, node(inode))
    }

    /// Begins a request that opens or changes something, as [`enter`](Self::enter) does. If this
    /// process runs as root, the request is done with the permissions of the caller. Lookups,
    /// attributes and listings do not need this: the kernel has already checked access, and these
    /// requests change nothing.
    pub(crate) fn enter_for(
        &self,
        operation: &'static str,
        inode: INodeNo,
        request: &Request,
    ) -> CallersRequest<'_> {
        let guard = self.enter(operation, inode);
        let serves_another = self.is_root && request.uid() != 0 && self.fs.writable().is_some();
        CallersRequest { _guard: guard, caller: serves_another.then(|| caller_of(request)) }
    }

    pub(crate) fn refuse(&self, error: &Error) -> Errno {
        count(&self.counters.errors);
        tracing::debug!(%error, "a request fails");
        errno(error)
    }

    /// Counts an error of a request for a node that the kernel knows by a name, and returns the
    /// error number for the kernel.
    pub(crate) fn refuse_known(&self, error: &Error) -> Errno {
        stale_if_removed(self.refuse(error))
    }

    /// Counts a successful result in `counter`, or an error, and returns the result for the kernel.
    pub(crate) fn counted<T>(&self, counter: &AtomicU64, result: Result<T>) -> Result<T, Errno> {
        if result.is_ok() {
            count(counter);
        }
        result.map_err(|error| self.refuse(&error))
    }

    /// Returns the operations that change the tree. Errors: `ReadOnly` if the tree has none, or if
    /// programs cannot change it. The kernel sends a request for a change of a read-only mount only
    /// after root has remounted it as writable.
    pub(crate) fn tree(&self) -> Result<&dyn Writable> {
        let tree = self.fs.writable().filter(|_| !self.is_read_only);
        tree.ok_or_else(|| Error::new(ErrorKind::ReadOnly, "change", ""))
    }

    pub(crate) fn entry(&self, dir: INodeNo, name: &OsStr) -> Result<Option<NodeRef<'_>>> {
        count(&self.counters.lookups);
        let found = self.fs.lookup(&Context::OWN, node(dir), name.as_bytes())?;
        if found.is_none() {
            count(&self.counters.negative_lookups);
        }
        Ok(found)
    }

    /// Replies with an entry. The kernel takes over the reference and returns it with FORGET.
    pub(crate) fn reply_entry(&self, found: NodeRef<'_>, begin: Begin, reply: ReplyEntry) {
        let (attributes, lifetimes) = (found.into_attributes(), self.lifetimes.reply(begin));
        let (kept, entry) = (lifetimes.attributes(&attributes), lifetimes.entry(&attributes));
        reply.entry_with_ttls(&kept, &entry, &file_attr(&attributes), GENERATION);
    }

    /// Replies with attributes that were determined since `begin`.
    pub(crate) fn reply_attributes(&self, attributes: &Attributes, begin: Begin, reply: ReplyAttr) {
        let lifetimes = self.lifetimes.reply(begin);
        reply.attr(&lifetimes.attributes(attributes), &file_attr(attributes));
    }

    /// Passes the entries after `offset`, `.` and `..` included, to `push` until it returns that
    /// its buffer is full. `push` gets the offset after the entry first: 1 after `.`, 2 after `..`,
    /// and the cursor plus 2 after all others.
    pub(crate) fn list(
        &self,
        dir: NodeId,
        offset: u64,
        mut push: impl FnMut(u64, DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut push_dir = |name: &[u8], next, node| {
            let attributes = self.fs.attributes(&Context::OWN, node)?;
            let (node, kind) = (attributes.node, attributes.kind);
            let attributes = Some(attributes);
            Ok(push(next, DirEntry { name, next: Cursor::START, node, kind, attributes }))
        };
        if offset == 0 {
            count(&self.counters.listings);
            if push_dir(b".", 1, dir)? {
                return Ok(());
            }
        }
        if offset <= 1 && push_dir(b"..", 2, self.fs.parent(dir)?)? {
            return Ok(());
        }
        let mut listed = 0;
        let end = self.fs.list(&Context::OWN, dir, Cursor(offset.saturating_sub(2)), &mut |entry| {
            assert!(
                entry.next <= Cursor::MAX,
                "a cursor must fit the positive half of off_t: {:?}",
                entry.next
            );
            let full = push(entry.next.0 + 2, entry);
            listed += usize::from(!full);
            !full
        });
        add(&self.counters.entries_listed, listed);
        end
    }

    /// Counts the result of an open and returns it.
    pub(crate) fn opened<T>(&self, file: Result<T>) -> Result<T> {
        count(if file.is_ok() { &self.counters.opens } else { &self.counters.opens_refused });
        file
    }

    /// Returns the flags for a file that was opened. They determine whether the kernel caches its
    /// data, and whether the kernel sends a FLUSH at each close.
    pub(crate) fn open_flags(&self, writes: bool) -> FopenFlags {
        let mut flags =
            if self.capabilities.immutable { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        if self.direct {
            flags = FopenFlags::FOPEN_DIRECT_IO;
        }
        let flags = if writes { flags | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES } else { flags };
        flags | self.close_flags()
    }

    /// Returns the flags that determine whether the kernel sends a FLUSH at each close. In a
    /// writable tree, closing a file that was opened only for reading also returns the errors of
    /// syncs.
    fn close_flags(&self) -> FopenFlags {
        if self.sends_flush { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH }
    }

    /// Returns the flags for a file of a writable tree that was opened only for reading.
    pub(crate) fn read_only_flags(&self, cache: DataCache) -> FopenFlags {
        match cache {
            DataCache::Direct => self.open_flags(false),
            DataCache::Fill => self.close_flags(),
            DataCache::Keep => FopenFlags::FOPEN_KEEP_CACHE | self.close_flags(),
        }
    }

    pub(crate) fn file(&self, node: NodeId, handle: FileHandle) -> Result<OpenFile, Errno> {
        if self.no_open {
            let open = || self.opened(self.fs.open(&Context::OWN, node));
            return self.recent.get(node, open).map_err(|error| self.refuse(&error));
        }
        let file = match self.fs.writable() {
            Some(_) => self.writable_files.get(handle).map(|file| file as OpenFile),
            None => self.handles.get(handle),
        };
        file.ok_or(Errno::EBADF)
    }

    /// Returns the open file and the lock of a request of fcntl(2) or flock(2). `first` and `last`
    /// are bytes.
    pub(crate) fn lock_request(
        &self,
        request: &Request,
        handle: FileHandle,
        kind: i32,
        first: u64,
        last: u64,
    ) -> Result<(Arc<dyn WritableFile>, LockRequest), Errno> {
        if self.locks != LockKeeper::FileSystem {
            return Err(Errno::ENOLCK);
        }
        let file = self.writable_files.get(handle).ok_or(Errno::EBADF)?;
        Ok((file, LockRequest::new(kind, first, last, || lock_call(request.pid()))?))
    }

    /// Answers a request for bytes that the kernel sends twice: first for their number (`capacity`
    /// is 0).
    pub(crate) fn reply_bytes(&self, value: &[u8], capacity: u32, reply: ReplyXattr) {
        match u32::try_from(value.len()) {
            Ok(length) if capacity == 0 => reply.size(length),
            Ok(length) if length <= capacity => reply.data(value),
            _ => reply.error(Errno::ERANGE),
        }
    }
}

/// A request that is done with the permissions of its caller.
pub(crate) struct CallersRequest<'a> {
    _guard: RequestGuard<'a>,
    /// `None`: the request is done with the permissions of this process.
    caller: Option<Caller>,
}

impl CallersRequest<'_> {
    pub(crate) fn context(&self) -> Context<'_> {
        Context { caller: self.caller.as_ref(), ..Context::OWN }
    }
}

/// Returns ESTALE for ENOENT, and other numbers unchanged. If another mount has removed a file that
/// the kernel knows by a name, ESTALE makes the kernel look the name up again; it then returns
/// ENOENT to the program, or creates a file for an open with O_CREAT.
pub(crate) fn stale_if_removed(number: Errno) -> Errno {
    if number.code() == Errno::ENOENT.code() { Errno::ESTALE } else { number }
}
