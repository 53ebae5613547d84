//! The table of file-system calls: the class of each call, the file that it refers to, and its
//! effect. docs/formats/profile.md has the same list for users.

/// The paper's two classes of operations (section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    Metadata,
    Data,
}

impl Class {
    pub fn name(self) -> &'static str {
        match self {
            Class::Metadata => "metadata",
            Class::Data => "data",
        }
    }
}

/// The file that a call refers to. The numbers are indexes of arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileArgument {
    Path(usize),
    /// A path relative to a descriptor. An empty or absent path refers to the descriptor's file.
    At(usize, usize),
    Descriptor(usize),
}

/// The effect of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Reads attributes or similar metadata.
    Inspect,
    /// Opens a file, with the flags in this argument.
    Open(usize),
    /// `creat`: opens a file for writing.
    Create,
    Close,
    /// Reads names of a directory.
    List,
    /// Reads bytes of the file; the result is their number.
    Read,
    /// Writes bytes to the file.
    Write,
    /// Copies bytes from one descriptor to another (the second).
    Copy(usize, usize),
    /// Maps this many bytes of a file.
    Map(usize),
    /// Writes back or reads ahead: a data call that transfers no bytes itself.
    Hint,
    /// Changes the file.
    Change,
    /// Changes the file and another name.
    Rename(FileArgument),
    ChangeDirectory,
    /// Changes the root directory: absolute paths begin there afterwards.
    ChangeRoot,
    Execute,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileCall {
    pub class: Class,
    pub file: FileArgument,
    pub effect: Effect,
    /// Whether a symbolic link at the end of the path is followed.
    pub follows: bool,
}

/// Calls that do not count as file-system calls, but change the process or descriptor table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateCall {
    /// The result is a copy of the first argument's descriptor.
    Duplicate,
    /// As `Duplicate` if the second argument is F_DUPFD; other commands change the close-on-exec
    /// flag.
    Control,
    /// An array argument returns both ends.
    Pair(usize),
    /// The result is a descriptor that is not a file.
    NoFile,
    /// The result is a descriptor of a file that the trace does not name.
    Nameless,
    CloseRange,
    /// Creates a child, with the flags in this argument; without flags it shares nothing.
    Fork(Option<usize>),
    Unshare,
    /// Makes file-system requests that the trace does not show.
    Hidden,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    File(FileCall),
    State(StateCall),
}

/// Returns the entry of a call, or `None` if it does not refer to a file system.
pub fn call_kind(name: &[u8]) -> Option<CallKind> {
    use Class::{Data, Metadata};
    use Effect::*;
    use FileArgument::{At, Descriptor, Path};
    use StateCall::*;
    let metadata = |subject, effect| (Metadata, subject, effect, true);
    let link = |subject, effect| (Metadata, subject, effect, false);
    let data = |subject, effect| (Data, subject, effect, true);
    let (class, file, effect, follows) = match name {
        b"stat" | b"stat64" | b"access" | b"statfs" | b"statfs64" | b"getxattr" | b"listxattr" => {
            metadata(Path(0), Inspect)
        }
        b"oldstat" | b"umount2" | b"umount" | b"acct" => metadata(Path(0), Inspect),
        b"lstat" | b"lstat64" | b"oldlstat" | b"readlink" | b"lgetxattr" | b"llistxattr" => {
            link(Path(0), Inspect)
        }
        b"newfstatat" | b"fstatat64" | b"statx" | b"faccessat" | b"faccessat2" => metadata(At(0, 1), Inspect),
        b"readlinkat" | b"name_to_handle_at" => link(At(0, 1), Inspect),
        b"inotify_add_watch" => metadata(Path(1), Inspect),
        b"fstat" | b"fstat64" | b"fstatfs" | b"fstatfs64" | b"fgetxattr" | b"flistxattr" | b"flock" => {
            metadata(Descriptor(0), Inspect)
        }
        b"open" => metadata(Path(0), Open(1)),
        b"openat" | b"openat2" => metadata(At(0, 1), Open(2)),
        b"creat" => metadata(Path(0), Create),
        b"close" => metadata(Descriptor(0), Close),
        b"getdents" | b"getdents64" | b"readdir" => metadata(Descriptor(0), List),
        b"chdir" => metadata(Path(0), ChangeDirectory),
        b"chroot" => metadata(Path(0), ChangeRoot),
        b"fchdir" => metadata(Descriptor(0), ChangeDirectory),
        b"execve" => metadata(Path(0), Execute),
        b"execveat" => metadata(At(0, 1), Execute),
        b"mkdir" | b"rmdir" | b"unlink" | b"mknod" | b"lchown" | b"lchown32" | b"lsetxattr"
        | b"lremovexattr" => link(Path(0), Change),
        b"chmod" | b"chown" | b"chown32" | b"utime" | b"utimes" | b"truncate" | b"truncate64"
        | b"setxattr" | b"removexattr" => metadata(Path(0), Change),
        b"mkdirat" | b"unlinkat" | b"mknodat" => link(At(0, 1), Change),
        b"fchmodat" | b"fchmodat2" | b"fchownat" | b"utimensat" | b"utimensat_time64" | b"futimesat" => {
            metadata(At(0, 1), Change)
        }
        b"fchmod" | b"fchown" | b"fchown32" | b"ftruncate" | b"ftruncate64" | b"fsetxattr"
        | b"fremovexattr" | b"fallocate" => metadata(Descriptor(0), Change),
        b"rename" => link(Path(1), Rename(Path(0))),
        b"renameat" | b"renameat2" => link(At(2, 3), Rename(At(0, 1))),
        b"link" | b"symlink" => link(Path(1), Change),
        b"linkat" => link(At(2, 3), Change),
        b"symlinkat" => link(At(1, 2), Change),
        b"read" | b"readv" | b"pread64" | b"pread" | b"preadv" | b"preadv2" => data(Descriptor(0), Read),
        b"write" | b"writev" | b"pwrite64" | b"pwrite" | b"pwritev" | b"pwritev2" => {
            data(Descriptor(0), Write)
        }
        b"sendfile" | b"sendfile64" => data(Descriptor(1), Copy(1, 0)),
        b"copy_file_range" => data(Descriptor(0), Copy(0, 2)),
        b"splice" => data(Descriptor(0), Copy(0, 2)),
        b"mmap" | b"mmap2" => data(Descriptor(4), Map(1)),
        b"fsync" | b"fdatasync" | b"sync_file_range" | b"syncfs" | b"readahead" | b"fadvise64"
        | b"fadvise64_64" => data(Descriptor(0), Hint),
        other => {
            return Some(CallKind::State(match other {
                b"dup" | b"dup2" | b"dup3" => Duplicate,
                b"fcntl" | b"fcntl64" | b"ioctl" => Control,
                b"pipe" | b"pipe2" => Pair(0),
                b"socketpair" => Pair(3),
                b"socket" | b"accept" | b"accept4" | b"epoll_create" | b"epoll_create1" | b"eventfd"
                | b"eventfd2" | b"signalfd" | b"signalfd4" | b"timerfd_create" | b"memfd_create"
                | b"inotify_init" | b"inotify_init1" | b"pidfd_open" | b"userfaultfd"
                | b"perf_event_open" | b"fanotify_init" | b"memfd_secret" | b"fsopen" | b"fspick"
                | b"bpf" => NoFile,
                // Files without a path in the trace.
                b"open_by_handle_at" | b"open_tree" | b"fsmount" | b"pidfd_getfd" => Nameless,
                b"close_range" => CloseRange,
                b"fork" | b"vfork" => Fork(None),
                b"clone" => Fork(Some(1)),
                b"clone3" => Fork(Some(0)),
                b"unshare" => Unshare,
                b"io_uring_setup" | b"io_uring_enter" | b"io_submit" => Hidden,
                _ => return None,
            }));
        }
    };
    Some(CallKind::File(FileCall { class, file, effect, follows }))
}

/// The calls that a tracer must trace: every call of the table that exists in Linux today, and the
/// end of processes.
pub const TRACED: &[&str] = &[
    "%file",
    "read",
    "readv",
    "pread64",
    "preadv",
    "preadv2",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "close",
    "fstat",
    "fstatfs",
    "fgetxattr",
    "flistxattr",
    "fsetxattr",
    "fremovexattr",
    "flock",
    "getdents",
    "getdents64",
    "fchdir",
    "fchmod",
    "fchown",
    "ftruncate",
    "fallocate",
    "sendfile",
    "copy_file_range",
    "splice",
    "mmap",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "syncfs",
    "readahead",
    "fadvise64",
    "fcntl",
    "dup",
    "dup2",
    "dup3",
    "close_range",
    "clone",
    "clone3",
    "fork",
    "vfork",
    "unshare",
    "io_uring_setup",
    "io_submit",
];
