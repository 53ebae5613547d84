//! One file-system call of a trace, with the file that it refers to.

use crate::paths::PathId;
use crate::trace::calls::FileCall;
use crate::trace::processes::ProgramId;

/// The file that a call refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallTarget {
    File(PathId),
    /// A pipe, a socket, or memory.
    NoFile,
    /// The trace does not contain the path of the descriptor or of the working directory.
    Unknown,
    /// The call failed before it referred to a file (EBADF, EFAULT).
    Invalid,
}

/// One file-system call.
#[derive(Debug, Clone, PartialEq)]
pub struct Event<'a> {
    pub name: &'a [u8],
    pub call: FileCall,
    /// The time of its start in microseconds, not relative to the start of the trace.
    pub time_us: u64,
    /// The time of the first call of all traces.
    pub first_call_us: u64,
    pub duration_us: Option<u64>,
    /// The number of the process; its threads have the same one.
    pub process: u32,
    /// The id of the thread, as in the trace.
    pub pid: u32,
    pub program: ProgramId,
    pub target: CallTarget,
    /// The path in the call, if it has one. If it is a symbolic link, `target` has the link's
    /// target.
    pub named_path: Option<PathId>,
    /// The directory at which the lookup of `named_path` begins: the root directory, the working
    /// directory, or the directory of a descriptor.
    pub base: PathId,
    /// The descriptor to which the call writes.
    pub output_descriptor: Option<i32>,
    /// For a close: whether the process has no other copy of the descriptor.
    pub closes_last_copy: bool,
    /// The other file: the old name of a rename, the destination of a copy.
    pub other_path: Option<PathId>,
    pub result: CallResult<'a>,
    pub bytes: u64,
    /// For an open: its flags.
    pub open: OpenMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallResult<'a> {
    Succeeded,
    /// The name of the error.
    Failed(&'a [u8]),
    /// The call did not return, or the trace does not have its result.
    Unknown,
}

impl CallResult<'_> {
    /// Returns whether the name does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, CallResult::Failed(b"ENOENT" | b"ENOTDIR"))
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenMode {
    pub for_writing: bool,
    pub creates: bool,
    pub directory: bool,
}
