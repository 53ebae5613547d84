//! What a profile says, as values: the schema of `report.json` (docs/formats/profile.md), from which every other
//! form (terminal, HTML, charts, tables, configuration) is drawn.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name and version of the schema. A field may be added within a version; none changes its meaning or goes.
pub const SCHEMA: &str = "quell-profile/1";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    /// Program and version that wrote it.
    pub made_by: String,
    /// The traced program and its arguments; empty where existing traces were read.
    pub command: Vec<String>,
    /// The files that were read.
    pub traces: Vec<String>,
    /// Time of the first call, in seconds since 1970 (0: the traces have no dates).
    pub started_s: f64,
    /// From the first call to the end of the last process, without what tracing added: `tracing.slow_down` times as long in
    /// the trace. So are all times and rates below.
    pub duration_s: f64,
    /// How the trace was made; absent where existing traces were read.
    pub tracing: Option<Tracing>,
    pub totals: Totals,
    pub places: Places,
    /// Each kind of call in each place, in the order of places, then most calls first: `operations.csv`.
    pub operations: Vec<Operation>,
    /// Calls over time, in steps of equal length that begin with the first call.
    pub rate: Vec<RatePoint>,
    pub metadata_rate: MetadataRates,
    /// Where most metadata calls went, most first.
    pub directories: Vec<Directory>,
    /// Which programs made them, most first.
    pub programs: Vec<Program>,
    /// Searches for names along paths of directories, most missing names first.
    pub searches: Vec<Search>,
    /// Files that were read again and again.
    pub rereads: Vec<Reread>,
    /// Files that several processes wrote (N-1).
    pub shared_writes: Vec<SharedWrite>,
    /// Directories in which masses of small files were created.
    pub small_files: Vec<SmallFiles>,
    /// Directories that an index would cover, with what it would absorb.
    pub trees: Vec<Tree>,
    /// Directories that look like one, and why they are not.
    pub not_proposed: Vec<NotProposed>,
    pub remaining: Scenarios<Remaining>,
    /// Absent without a capacity, or where nothing went to a shared file system.
    pub nodes: Option<Nodes>,
    /// What to run next, in this order.
    pub next: Vec<String>,
    /// What the reader must know to judge the numbers: what was assumed, skipped or could not be told.
    pub notes: Vec<String>,
}

/// One value for each way of running the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Scenarios<T> {
    /// As it was traced.
    pub direct: T,
    /// With the proposed trees covered by an index.
    pub index: T,
    /// With a boot image on top.
    pub boot: T,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tracing {
    /// The tracer and its version.
    pub tracer: String,
    /// Wall time of the traced program.
    pub traced_s: f64,
    /// Wall time of the program without tracing: measured, or computed from the cost of a call.
    pub direct_s: f64,
    /// `traced_s / direct_s`.
    pub slow_down: f64,
    /// How `direct_s` is known.
    pub how: SlowDown,
    /// The program's exit code; absent if a signal ended it.
    pub exit_code: Option<i32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlowDown {
    /// The program was run once more without tracing.
    Measured,
    /// The cost of one traced call was measured on this machine, and taken off for each call.
    #[default]
    Estimated,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Lines read.
    pub lines: u64,
    /// File-system calls: `metadata + data + elsewhere`.
    pub calls: u64,
    /// On files, of all places.
    pub metadata: u64,
    /// On files, of all places.
    pub data: u64,
    /// On what lies on no file system, or cannot be told.
    pub elsewhere: Elsewhere,
    /// Calls that failed.
    pub failed: u64,
    /// Calls that asked for a name that does not exist (ENOENT, ENOTDIR).
    pub missing: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub processes: u64,
    /// Different files and directories named.
    pub paths: u64,
    /// File-system calls by name.
    pub by_call: BTreeMap<String, u64>,
    pub skipped: Skipped,
}

/// File-system calls whose descriptor is no file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Pipes, sockets, event and memory descriptors.
    pub no_file: u64,
    /// A descriptor or a directory that the trace does not explain.
    pub unknown: u64,
    /// The call failed before it concerned a file (EBADF, EFAULT).
    pub bad: u64,
}

/// Lines that are no file-system calls, and lines that could not be read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// System calls that concern no file system (`futex`, `brk`, ...).
    pub other_calls: u64,
    /// Signals, exits and remarks of the tracer.
    pub events: u64,
    /// The second halves of calls that were interrupted by others in the log; counted with their first half.
    pub resumed: u64,
    /// Second halves without a first half.
    pub orphans: u64,
    /// Cut off in the middle.
    pub truncated: u64,
    /// Not written by strace.
    pub foreign: u64,
    /// Calls that had not ended when the trace did; they are counted, without a result.
    pub unfinished: u64,
    /// The first few truncated and foreign lines, with file and line number.
    pub examples: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Places {
    pub cwd: Place,
    pub tmp: Place,
    pub shared: Place,
    pub local: Place,
}

impl Places {
    /// Name, meaning and value, in the order of the paper's figure 2.
    pub fn named(&self) -> [(&'static str, &'static str, &Place); 4] {
        [
            ("cwd", "working directory", &self.cwd),
            ("tmp", "temporary", &self.tmp),
            ("shared", "shared file system", &self.shared),
            ("local", "local system", &self.local),
        ]
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The directories that make up the place, each with its file system, as far as calls went there.
    pub roots: Vec<String>,
    pub metadata: u64,
    pub data: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub missing: u64,
    /// Part of the calls above that go to a shared file system: all of them for `shared`, none for `local`;
    /// for the others it depends on where they lie.
    pub on_shared: u64,
    pub mode: AccessMode,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// No call went there.
    #[default]
    Unused,
    /// Nothing was created, written, renamed, removed or opened for writing.
    ReadOnly,
    ReadWrite,
}

/// One row of `operations.csv`; its fields are the columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// `cwd`, `tmp`, `shared`, `local` or `elsewhere`.
    pub place: String,
    /// `metadata` or `data`.
    pub class: String,
    pub call: String,
    pub calls: u64,
    pub failed: u64,
    pub missing: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Time spent in these calls, where the trace tells it; tracing lengthens it.
    pub seconds: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RatePoint {
    /// Begin of the step, in seconds after the first call.
    pub t: f64,
    /// Metadata calls a second to shared file systems.
    pub metadata: f64,
    /// Data calls a second to shared file systems.
    pub data: f64,
    /// Metadata operations a second that would remain with an index.
    pub index: f64,
    /// Metadata operations a second that would remain with a boot image on top.
    pub boot: f64,
    /// Metadata calls a second to everything else.
    pub elsewhere: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MetadataRates {
    /// Length of a step of `rate`.
    pub step_s: f64,
    /// The peak is the busiest stretch of this length.
    pub window_s: f64,
    #[serde(flatten)]
    pub scenarios: Scenarios<Rate>,
}

/// Metadata operations a second on shared file systems.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    pub average: f64,
    pub peak: f64,
    /// Begin of the busiest stretch, in seconds after the first call.
    pub peak_at_s: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Directory {
    pub path: String,
    /// `cwd`, `tmp`, `shared` or `local`.
    pub place: String,
    /// Metadata calls that named this directory or something directly in it.
    pub metadata: u64,
    /// Those of them that asked for a missing name.
    pub missing: u64,
    pub data: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Metadata operations that would reach a shared file system for this directory.
    pub remaining: Scenarios<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub path: String,
    /// Processes that ran it.
    pub processes: u64,
    pub metadata: u64,
    /// Metadata calls to shared file systems.
    pub shared: u64,
    pub missing: u64,
    pub data: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// The variable (or the alternatives) that names the directories: `PATH`, `LD_LIBRARY_PATH or RPATH`, ...
    pub variable: String,
    /// How the variable is known: `environment` (it had these directories) or `names` (the kind of names sought).
    pub how: String,
    /// Names sought and not found.
    pub missing: u64,
    /// Of these, on shared file systems.
    pub shared: u64,
    /// Names found.
    pub found: u64,
    /// The directories with most misses.
    pub directories: Vec<SearchDirectory>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchDirectory {
    pub path: String,
    pub missing: u64,
    pub found: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reread {
    pub path: String,
    pub place: String,
    pub opens: u64,
    pub processes: u64,
    pub bytes_read: u64,
    /// Highest number of times that one byte's worth of the file was read: `bytes_read` by the part of the file that was seen.
    pub times: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedWrite {
    pub path: String,
    pub place: String,
    /// Processes that wrote it.
    pub writers: u64,
    pub writes: u64,
    pub bytes_written: u64,
    /// Most usual size of a write, in bytes.
    pub record: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SmallFiles {
    pub directory: String,
    pub place: String,
    /// Files created in it, up to 64 KiB each.
    pub files: u64,
    pub bytes_written: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    pub path: String,
    /// Type of the file system it lies on; empty if not known.
    pub file_system: String,
    /// Metadata calls below it.
    pub metadata: u64,
    pub missing: u64,
    /// Successful opens of files below it (programs started included): what an index cannot absorb.
    pub opens: u64,
    pub files_opened: u64,
    /// Operations that would reach the file system.
    pub remaining: Scenarios<Remaining>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NotProposed {
    pub path: String,
    pub metadata: u64,
    pub why: String,
}

/// What would reach the shared file systems of one cold node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Remaining {
    /// Metadata operations, after what the client keeps for a second and each of Quell's own.
    pub metadata: u64,
    /// Bytes of files read or mapped, each byte once (the page cache keeps them), and of Quell's own files.
    pub bytes_read: u64,
}

/// Nodes that run the program at once when the file system is saturated: a first-order estimate, `capacity / rate`,
/// rounded down and told in as many digits as the rate has in whole operations a second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Nodes {
    /// By the average rate. Direct counts each metadata call as an operation, as the paper does. `null`: nothing
    /// remains that would set a limit.
    pub direct: Option<u64>,
    pub index: Option<u64>,
    pub boot: Option<u64>,
    /// By the peak rate: bursts of all nodes coincide.
    pub by_peak: Scenarios<Option<u64>>,
    /// Operations a second that the file system sustains.
    pub capacity: f64,
    /// Where the capacity is from: `--capacity`, or the directory and day of a `quell probe`.
    pub capacity_from: String,
    /// What the estimate leaves out.
    pub leaves_out: Vec<String>,
}
