//! The content of a report, as values: the schema of `report.json` (docs/formats/profile.md). All
//! other forms (terminal, HTML, charts, tables, configuration) are created from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name and version of the schema. Fields may be added within a version; existing ones are not
/// changed or removed.
pub const SCHEMA: &str = "quell-profile/2";

/// The report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: String,
    /// The program and version that wrote it.
    pub made_by: String,
    /// The traced program and its arguments; empty if existing traces were read.
    pub command: Vec<String>,
    /// The files that were read.
    pub traces: Vec<String>,
    /// The node on which the program was traced; absent if existing traces were read.
    pub host: Option<String>,
    /// The job, as `VARIABLE=VALUE` of its launcher's environment; absent outside of a job, and if
    /// existing traces were read.
    pub job: Option<String>,
    /// The result in one sentence. All forms of the report begin with it.
    pub verdict: Verdict,
    /// Time of the first call, in seconds since 1970 (0: the traces have no dates).
    pub started_s: f64,
    /// Offset of the local time from UTC at that time, on the machine that wrote the report.
    #[serde(default)]
    pub utc_offset_s: i32,
    /// Duration from the first call to the end of the last process, divided by `tracing.slow_down`.
    /// The same applies to all times and rates below, so they are estimates unless the slow-down
    /// was measured. Without `tracing` they are the times and rates of the trace, and include the
    /// time that its tracer added.
    pub duration_s: f64,
    /// The tracing of the program; absent if existing traces were read.
    pub tracing: Option<Tracing>,
    /// All calls.
    pub totals: Totals,
    /// The calls by location.
    pub locations: Locations,
    /// Each kind of call in each location, in the order of locations, then by decreasing number of
    /// calls: `operations.csv`.
    pub operations: Vec<Operation>,
    /// Calls and operations over time, in steps of equal length that begin with the first call.
    pub rate: Vec<RatePoint>,
    /// The average and the largest metadata rates.
    pub metadata_rate: MetadataRates,
    /// The operations by path, from the top: a directory precedes its entries. Directories with few
    /// operations are left out; their operations are included in the directories above.
    pub path_tree: Vec<PathNode>,
    /// The processes with the most metadata calls to shared file systems, by start.
    pub processes: Vec<ProcessLane>,
    /// The directories with the most metadata calls, in decreasing order.
    pub directories: Vec<Directory>,
    /// The programs with the most metadata calls, in decreasing order.
    pub programs: Vec<Program>,
    /// Searches for names along lists of directories, in decreasing order of missing names.
    pub searches: Vec<Search>,
    /// Files that one process read several times.
    pub rereads: Vec<Reread>,
    /// Files that several processes wrote (N-1).
    pub shared_writes: Vec<SharedWrite>,
    /// Directories in which many small files were created.
    pub small_files: Vec<SmallFiles>,
    /// Directories that an index would cover, with the operations that it would absorb.
    pub trees: Vec<Tree>,
    /// Directories that look like a tree, and the reasons for which they are not proposed.
    pub not_proposed: Vec<NotProposed>,
    /// The operations that would reach shared file systems in each scenario.
    pub remaining: Scenarios<Remaining>,
    /// Absent without a capacity, or if no call went to a shared file system.
    pub nodes: Option<Nodes>,
    /// The commands to run next, in this order.
    pub next: Vec<NextStep>,
    /// Remarks for the interpretation of the numbers: assumptions, skipped lines, and unknown
    /// values.
    pub notes: Vec<String>,
}

impl Report {
    /// Returns the operations of the comparison of the trees that the user may write to with their
    /// indexes, at each start.
    pub fn check_operations(&self) -> u64 {
        self.trees.iter().filter_map(|tree| tree.check).sum()
    }
}

/// The result in one sentence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The kind of result.
    pub outcome: VerdictKind,
    /// The sentence.
    pub text: String,
}

/// The kind of result that a verdict states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum VerdictKind {
    /// The traces contain no file-system calls.
    #[default]
    NoCalls,
    /// No metadata operation reaches a shared file system.
    NothingShared,
    /// No tree is proposed.
    NothingProposed,
    /// At least one tree is proposed.
    Proposed,
}

/// A command to run next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextStep {
    /// The effect of the command.
    pub purpose: String,
    /// The command alone, in shell syntax.
    pub command: String,
}

/// One value for each scenario.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Scenarios<T> {
    /// Without Quell, as it was traced.
    pub direct: T,
    /// With the proposed trees covered by an index.
    pub index: T,
    /// With an index and a boot image.
    pub boot: T,
}

/// The tracer of a program, and its cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tracing {
    /// The tracer and its version.
    pub tracer: String,
    /// Wall time of the traced program, measured.
    pub traced_s: f64,
    /// Wall time of the program without tracing: measured or estimated, see `how`.
    pub direct_s: f64,
    /// `traced_s / direct_s`; 1 if it is unknown.
    pub slow_down: f64,
    /// The method by which `direct_s` was determined.
    pub how: SlowDown,
    /// The program's exit code; absent if a signal ended it.
    pub exit_code: Option<i32>,
}

/// The method by which the duration without tracing was determined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlowDown {
    /// The program was run once more without tracing.
    Measured,
    /// The cost of one traced call was measured on this machine, and subtracted for the calls that
    /// do not overlap.
    #[default]
    Estimated,
    /// Tracing takes most of the time, so that the rest cannot be estimated. All times include the
    /// time of the tracer.
    Unknown,
}

/// The calls of all processes, in all locations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Number of lines read.
    pub lines: u64,
    /// File-system calls: `metadata + data + elsewhere`.
    pub calls: u64,
    /// Metadata calls on files, in all locations.
    pub metadata: u64,
    /// Data calls on files, in all locations.
    pub data: u64,
    /// Calls on descriptors that are not files, or on unknown files.
    pub elsewhere: Elsewhere,
    /// Calls that failed.
    pub failed: u64,
    /// Calls with a name that does not exist (ENOENT, ENOTDIR), on all file systems.
    pub missing: u64,
    /// Bytes that calls returned, on all file systems; bytes that were read twice count twice.
    pub bytes_read: u64,
    /// Bytes that were written, on all file systems.
    pub bytes_written: u64,
    /// The calls above that go to shared file systems.
    pub shared: SharedTotals,
    /// Number of processes.
    pub processes: u64,
    /// Number of different files and directories named.
    pub paths: u64,
    /// File-system calls by name.
    pub by_call: BTreeMap<String, u64>,
    /// Lines that were not counted.
    pub skipped: Skipped,
}

/// Calls to shared file systems, in all locations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedTotals {
    /// Metadata calls.
    pub metadata: u64,
    /// Data calls.
    pub data: u64,
    /// Calls with a name that does not exist.
    pub missing: u64,
    /// Bytes that calls returned; bytes that were read twice count twice.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
}

/// File-system calls that do not refer to a known file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Pipes, sockets, event and memory descriptors.
    pub no_file: u64,
    /// A descriptor or directory that the trace does not explain.
    pub unknown: u64,
    /// The call failed before it referred to a file (EBADF, EFAULT).
    pub bad: u64,
}

/// Lines that are not file-system calls, and lines that could not be read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// System calls that do not refer to a file system (`futex`, `brk`, ...).
    pub other_calls: u64,
    /// Signals, exits and remarks of the tracer.
    pub events: u64,
    /// Second halves of calls that others interrupted in the log; these calls are counted with
    /// their first half.
    pub resumed: u64,
    /// Second halves without a first half.
    pub orphans: u64,
    /// Truncated lines.
    pub truncated: u64,
    /// Lines not written by strace.
    pub foreign: u64,
    /// Calls that had not ended at the end of the trace; they are counted, without a result.
    pub unfinished: u64,
    /// The first truncated and foreign lines, with file and line number.
    pub examples: Vec<String>,
}

/// The calls by location.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Locations {
    /// The working directory.
    pub cwd: LocationTotals,
    /// Directories for temporary files.
    pub tmp: LocationTotals,
    /// Shared file systems.
    pub shared: LocationTotals,
    /// All other paths: the local system.
    pub local: LocationTotals,
}

impl Locations {
    /// Returns name, meaning and value of each location, in the order of the paper's figure 2.
    pub fn named(&self) -> [(&'static str, &'static str, &LocationTotals); 4] {
        [
            ("cwd", "working directory", &self.cwd),
            ("tmp", "temporary", &self.tmp),
            ("shared", "shared file system", &self.shared),
            ("local", "local system", &self.local),
        ]
    }
}

/// The calls in one location.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LocationTotals {
    /// The directories of the location that calls went to, each with its file system.
    pub roots: Vec<String>,
    /// Metadata calls.
    pub metadata: u64,
    /// Data calls.
    pub data: u64,
    /// Bytes that calls returned; bytes that were read twice count twice.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Calls with a name that does not exist.
    pub missing: u64,
    /// The number of the calls above that go to a shared file system: all of them for `shared`,
    /// none for `local`, and for the others depending on their file system.
    pub on_shared: u64,
    /// Whether the location was changed.
    pub mode: AccessMode,
}

/// Whether a location was changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessMode {
    /// No call went there.
    #[default]
    Unused,
    /// No file was created, written, renamed, removed or opened for writing.
    ReadOnly,
    /// Something was created, written, renamed or removed, or opened for writing.
    ReadWrite,
}

/// One row of `operations.csv`; its fields are the columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// `cwd`, `tmp`, `shared`, `local` or `elsewhere`.
    pub location: String,
    /// `metadata` or `data`.
    pub class: String,
    /// The name of the system call.
    pub call: String,
    /// Number of calls.
    pub calls: u64,
    /// Number of these that failed.
    pub failed: u64,
    /// Number of these with a name that does not exist.
    pub missing: u64,
    /// Bytes that calls returned; bytes that were read twice count twice.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Time spent in these calls, including tracing, if the trace has it.
    pub seconds: f64,
}

/// The rates in one step of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RatePoint {
    /// Start of the step, in seconds after the first call.
    pub t: f64,
    /// Metadata calls per second to shared file systems.
    pub metadata: f64,
    /// Data calls per second to shared file systems.
    pub data: f64,
    /// Metadata operations per second without Quell.
    pub direct: f64,
    /// Metadata operations per second that would remain with an index.
    pub index: f64,
    /// Metadata operations per second that would remain with an index and a boot image.
    pub boot: f64,
    /// Metadata calls per second to all other file systems.
    pub elsewhere: f64,
}

/// The average and the largest metadata rates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MetadataRates {
    /// Length of a step of `rate`.
    pub step_s: f64,
    /// The peak is the busiest interval of this length.
    pub window_s: f64,
    /// Metadata calls. A call can cause several operations, or none.
    pub calls: Rate,
    /// Metadata operations.
    #[serde(flatten)]
    pub scenarios: Scenarios<Rate>,
}

/// Metadata operations, or metadata calls, per second on shared file systems.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// The average over the whole duration, per second.
    pub average: f64,
    /// The average in the busiest interval, per second.
    pub peak: f64,
    /// Start of the busiest interval, in seconds after the first call.
    pub peak_at_s: f64,
}

/// The calls in one directory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Directory {
    /// The path of the directory.
    pub path: String,
    /// `cwd`, `tmp`, `shared` or `local`.
    pub location: String,
    /// Metadata calls that named this directory or an entry directly in it.
    pub metadata: u64,
    /// The number of these with a missing name.
    pub missing: u64,
    /// Data calls on files directly in it.
    pub data: u64,
    /// Bytes that calls returned; bytes that were read twice count twice.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Metadata operations that would reach a shared file system for this directory.
    pub remaining: Scenarios<u64>,
}

/// A directory with the operations for everything below it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PathNode {
    /// The path of the directory.
    pub path: String,
    /// The number of `PathNode`s that contain this one.
    pub depth: u64,
    /// Metadata operations that reach a shared file system.
    pub operations: Scenarios<u64>,
    /// Whether it is in a proposed tree.
    pub in_tree: bool,
}

/// The operations of one process over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessLane {
    /// The id of the process in the trace.
    pub pid: u64,
    /// The last program that it executed.
    pub program: String,
    /// The start of its first call, in seconds after the first call of the trace.
    pub begin_s: f64,
    /// The end of its last call, in seconds after the first call of the trace.
    pub end_s: f64,
    /// Number of its file-system calls.
    pub calls: u64,
    /// Metadata operations without Quell.
    pub operations: u64,
    /// The part of `operations` in each of equal steps of the whole duration.
    pub steps: Vec<u64>,
}

/// The calls of one program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The path of the program.
    pub path: String,
    /// Number of processes that ran it.
    pub processes: u64,
    /// Metadata calls, on all file systems.
    pub metadata: u64,
    /// Metadata calls to shared file systems.
    pub shared: u64,
    /// Calls with a name that does not exist, on all file systems.
    pub missing: u64,
    /// The part of `missing` that is on shared file systems.
    pub missing_shared: u64,
    /// Data calls, on all file systems.
    pub data: u64,
}

/// Lookups along a list of directories.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// The variable (or the alternatives) that lists the directories: `PATH`,
    /// `LD_LIBRARY_PATH or RPATH`, ...
    pub variable: String,
    /// The source of the variable: `environment` (it lists these directories) or `names` (the kind
    /// of names suggests it).
    pub how: String,
    /// Number of lookups that found no file.
    pub missing: u64,
    /// The number of these on shared file systems.
    pub shared: u64,
    /// Number of lookups that found a file.
    pub found: u64,
    /// The directories with the most missing names.
    pub directories: Vec<SearchDirectory>,
}

/// One directory of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchDirectory {
    /// The path of the directory.
    pub path: String,
    /// Number of lookups that found no file.
    pub missing: u64,
    /// Number of lookups that found a file.
    pub found: u64,
}

/// A file that one process read several times.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reread {
    /// The path of the file.
    pub path: String,
    /// `cwd`, `tmp`, `shared` or `local`.
    pub location: String,
    /// Number of opens, by all processes.
    pub opens: u64,
    /// Number of processes that opened it.
    pub processes: u64,
    /// Bytes that all processes read.
    pub bytes_read: u64,
    /// The largest number of times that one process read the same bytes: the bytes that it read,
    /// divided by the part of the file that is read in one pass. Several processes that read a file
    /// once each are not a reread, because the page cache of a node serves them.
    pub times: f64,
}

/// A file that several processes wrote.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedWrite {
    /// The path of the file.
    pub path: String,
    /// `cwd`, `tmp`, `shared` or `local`.
    pub location: String,
    /// Whether it is on a shared file system.
    pub on_shared: bool,
    /// Number of processes that wrote it. Writes to an inherited standard output or standard error
    /// do not count.
    pub writers: u64,
    /// Number of writes, by all processes.
    pub writes: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// The most frequent size of a write, in bytes.
    pub record: u64,
}

/// A directory in which many small files were created.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SmallFiles {
    /// The path of the directory.
    pub directory: String,
    /// `cwd`, `tmp`, `shared` or `local`.
    pub location: String,
    /// Number of files of up to 64 KiB that were created in it.
    pub files: u64,
    /// Bytes that were written to these files.
    pub bytes_written: u64,
}

/// A directory that an index would cover.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    /// The path of the tree.
    pub path: String,
    /// Type of its file system; empty if it is unknown.
    pub file_system: String,
    /// Metadata calls below it.
    pub metadata: u64,
    /// Number of these with a name that does not exist.
    pub missing: u64,
    /// Successful opens of files below it, including program starts: an index cannot absorb these.
    pub opens: u64,
    /// Number of different files that were opened below it.
    pub files_opened: u64,
    /// Number of these of which at most 16 KiB were read.
    #[serde(default)]
    pub small_files_opened: u64,
    /// The operations of the comparison of the whole tree with its index at each start, counted up
    /// to 4,096. Absent if the user may not write to the tree, or if it is unknown: then at most
    /// one comparison in ten minutes is made for all nodes.
    #[serde(default)]
    pub check: Option<u64>,
    /// Operations that would reach the file system.
    pub remaining: Scenarios<Remaining>,
}

/// A directory that looks like a tree and is not proposed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NotProposed {
    /// The path of the directory.
    pub path: String,
    /// Metadata calls below it.
    pub metadata: u64,
    /// The reason, with the path of a change.
    pub why: String,
    /// Whether the program only wrote Python bytecode, so that a second profile may propose it.
    pub only_bytecode: bool,
}

/// Operations that would reach the shared file systems from one cold node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Remaining {
    /// Metadata operations, without those that the client's cache of a second answers, and
    /// including Quell's own.
    pub metadata: u64,
    /// Bytes of files that are read or mapped, each byte once, because the page cache keeps them.
    pub bytes_read: u64,
}

/// The number of nodes that, running the program at once, saturate the file system: a first-order
/// estimate, `capacity / rate`, rounded down, with as many digits as the rate has in whole
/// operations per second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Nodes {
    /// By the average rate. `null`: no operation remains, so there is no limit.
    pub direct: Option<u64>,
    /// As `direct`, with an index.
    pub index: Option<u64>,
    /// As `direct`, with an index and a boot image.
    pub boot: Option<u64>,
    /// By the peak rate: bursts of all nodes coincide.
    pub by_peak: Scenarios<Option<u64>>,
    /// Operations per second that the file system sustains.
    pub capacity: f64,
    /// The source of the capacity: `--capacity`, or the directory and day of a `quell probe`.
    pub capacity_from: String,
    /// The effects that the estimate leaves out.
    pub leaves_out: Vec<String>,
}
