//! How a mount is served: the choices that a caller has, and what they cost.

/// The file system type shown in `/proc/mounts` is `fuse.` followed by this word.
pub(crate) const SUBTYPE: &str = "quell";

/// The largest read that we let the kernel ask for; its own limit is `fs.fuse.max_pages_limit`,
/// which is the same unless an administrator changed it.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// The choices for one mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// Worker threads, at least 1. One request occupies one thread until the file system has answered
    /// it, so this is also how many opens and reads may wait for slow storage at once. One alone
    /// answers a single client of a fast file system sooner (by a tenth, an open by a third) and then
    /// makes everybody wait for the slow ones; from 4 to 16 there is no difference to measure.
    pub threads: usize,
    /// Do without the round trip for each `open(2)`, which then costs a quarter or less: the kernel
    /// opens files by itself and the door opens them at the first read that the kernel's cache cannot
    /// answer (and keeps the 512 read last open). An error of
    /// [`FileSystem::open`](quell_fs::FileSystem::open) (a stale file, say) then reaches the program
    /// from `read(2)`, and not at all if everything it reads is cached. Ignored unless the file system
    /// is immutable: there would be no moment to notice that a file changed.
    pub no_open: bool,
    /// Let the kernel ask for exactly what programs read: no page more. For recording what that is.
    pub no_read_ahead: bool,
    /// Keep what [`Session::fill_cache`](crate::Session::fill_cache) needs. It has to be called then: until it was,
    /// programs would wait for ever for a session that failed.
    pub fills_cache: bool,
    /// Keep no data in the kernel: each read of a program arrives as it was asked for, up to a megabyte, and is answered
    /// from here. For files whose hot part is in our memory, and which are too large to be kept twice. Those of a tree
    /// that may be changed are served so in any case.
    pub direct: bool,
    /// Let users other than the one who mounts in; modes and owners decide what they may do. An
    /// ordinary user mounting with fusermount3 needs `user_allow_other` in `/etc/fuse.conf` for it.
    pub allow_other: bool,
    /// Set-id bits count. The kernel obeys only root.
    pub suid: bool,
    /// Device nodes lead to devices. The kernel obeys only root.
    pub dev: bool,
    /// The first word of the line in `/proc/mounts`: what is mounted, for people to read.
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
            allow_other: false,
            suid: false,
            dev: false,
            source: SUBTYPE.to_owned(),
        }
    }
}
