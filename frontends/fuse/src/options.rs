//! The options for serving a mount, and their costs.

use quell_vfs::FileSystem;

/// The file system type in `/proc/mounts` is `fuse.` followed by this word.
pub(crate) const SUBTYPE: &str = "quell";

/// The largest request that the kernel may send, in bytes. The kernel's own limit,
/// `fs.fuse.max_pages_limit`, has the same value unless an administrator changed it.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Whether programs can change a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    Writable,
}

impl Access {
    pub(crate) fn new(fs: &dyn FileSystem, options: &Options) -> Access {
        if fs.writable().is_some() && !options.read_only { Access::Writable } else { Access::ReadOnly }
    }
}

/// Where locks (flock(2), fcntl(2)) of a writable tree are kept. The locks of a read-only tree are
/// kept in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LockKeeper {
    /// In the file system: see [`WritableFile::locks`](quell_vfs::WritableFile::locks).
    #[default]
    FileSystem,
    /// In the kernel of this node: locks do not hold between nodes.
    Kernel,
    /// Nowhere: locking fails with ENOLCK.
    Nowhere,
}

/// The options for one mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// Worker threads, at least 1. A request occupies a thread until the file system has answered
    /// it, so this is also the number of opens and reads that can wait for slow storage at the same
    /// time. A single thread answers a single client of a fast file system sooner (reads by a
    /// tenth, opens by a third), but a slow request then delays all others. Between 4 and 16 no
    /// difference was measured.
    pub threads: usize,
    /// Avoid the round trip for each `open(2)`, which then takes a quarter of the time or less. The
    /// kernel opens files by itself, and the server opens a file at the first read that the
    /// kernel's cache cannot answer; it keeps the 512 most recently read files open. An error of
    /// [`FileSystem::open`](quell_vfs::FileSystem::open), such as a stale file, is then returned by
    /// `read(2)`. It is not returned at all if all data that the program reads is cached. Ignored
    /// unless the file system is immutable: a change of a file would not be noticed at an open.
    pub no_open: bool,
    /// Disable the kernel's read-ahead: it requests only the pages that programs read. For
    /// recordings.
    pub no_read_ahead: bool,
    /// Keep the state that [`Session::fill_cache`](crate::Session::fill_cache) needs. That function
    /// must then be called: before the call, programs would wait forever if the session fails.
    pub fills_cache: bool,
    /// Cache no data in the kernel: each read of a program, up to 1 MiB, arrives with its own
    /// length and is answered by this server. For files whose frequently read parts are in this
    /// process's memory, and which are too large to be kept there and in the page cache. Files of a
    /// writable tree are served in this way whether or not this is set, except files whose data
    /// [`KernelCache`](crate::KernelCache) or `exclusive` lets the kernel keep.
    pub direct: bool,
    /// The tree is writable, and only requests of its mount change it. The kernel keeps entries,
    /// missing names, attributes, link targets, listings and, on Linux 6.18 and later, the data of
    /// files that are opened only for reading, until such a request changes them, or memory is
    /// short. It keeps about 65,536 entries of files: each occupies memory of the file system as
    /// well, so further entries are looked up again at each use.
    pub exclusive: bool,
    /// The writable file system has published a write, and returned its errors, before write(2)
    /// returns. So the kernel sends no FLUSH, and close(2) does not wait for the file system.
    /// Ignored if the file system keeps the locks: a FLUSH releases those of a process.
    pub publishes_writes: bool,
    /// Programs cannot change the tree of a writable file system, which may change by itself.
    pub read_only: bool,
    /// Where locks are kept.
    pub locks: LockKeeper,
    /// Give users other than the mounting user access, as far as modes and owners allow it. An
    /// ordinary user who mounts with fusermount3 needs `user_allow_other` in `/etc/fuse.conf` for
    /// this.
    pub allow_other: bool,
    /// Set-id bits have an effect. The kernel allows this only to root.
    pub suid: bool,
    /// Device nodes can be opened as devices. The kernel allows this only to root.
    pub dev: bool,
    /// The first field of the line in `/proc/mounts`, which describes the mount for users.
    pub source: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            threads: 16,
            no_open: false,
            no_read_ahead: false,
            fills_cache: false,
            direct: false,
            exclusive: false,
            publishes_writes: false,
            read_only: false,
            locks: LockKeeper::default(),
            allow_other: false,
            suid: false,
            dev: false,
            source: SUBTYPE.to_owned(),
        }
    }
}
