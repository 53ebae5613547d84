//! The command line of `quell log`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// List, inspect, check, repair, export and import the stores of a log mount, without mounting
/// them.
///
/// STORE is the directory that was given to `quell mount --log`. If the mount has several stores,
/// name all of them, separated by commas.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  quell log ls /scratch/store
  quell log map /scratch/store ckpt/step-100.bin
  quell log fsck /scratch/store --repair
  quell log export /scratch/store ckpt /archive/ckpt -j 16")]
pub enum LogCommand {
    Ls(LogLsArgs),
    Stat(LogStatArgs),
    Map(LogMapArgs),
    Query(LogQueryArgs),
    Flatten(LogFlattenArgs),
    Fsck(LogFsckArgs),
    Export(LogExportArgs),
    Import(LogImportArgs),
    Rebalance(LogRebalanceArgs),
}

/// The stores of a log mount.
#[derive(Debug, Args)]
pub struct StoresArg {
    /// The store, or all stores of the mount, separated by commas.
    #[arg(value_name = "STORE[,STORE...]")]
    pub stores: PathBuf,
}

impl StoresArg {
    pub fn paths(&self) -> Vec<PathBuf> {
        let bytes = self.stores.as_os_str().as_bytes();
        let parts = bytes.split(|byte| *byte == b',').filter(|part| !part.is_empty());
        parts.map(|part| PathBuf::from(OsStr::from_bytes(part))).collect()
    }
}

/// The parallelism of a subcommand.
#[derive(Debug, Clone, Copy, Args)]
pub struct ThreadsArg {
    /// Number of files, or of logs and ranges of one file, that are processed at once.
    #[arg(short = 'j', long = "threads", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub count: u16,
}

/// The output format of a subcommand with one result.
#[derive(Debug, Clone, Copy, Args)]
pub struct JsonArg {
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The output format of a subcommand that prints a line for each file or range.
#[derive(Debug, Clone, Copy, Args)]
pub struct JsonLinesArg {
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// List files with their sizes, logs, open writers, and bytes in the store.
///
/// The exit code is 1 if a file could not be read.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log ls /scratch/store
  quell log ls /scratch/store ckpt --recursive --json")]
pub struct LogLsArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A file or directory, by its path in the mount [default: the root].
    pub path: Option<PathBuf>,
    /// Also list the entries of all directories below.
    #[arg(short, long)]
    pub recursive: bool,
    #[command(flatten)]
    pub output: JsonLinesArg,
}

/// Show the content of a file's container: writers and whether their processes exist, logs, epochs,
/// truncations, flat indexes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log stat /scratch/store ckpt/step-100.bin
  quell log stat /scratch/store ckpt/step-100.bin --json")]
pub struct LogStatArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A file, by its path in the mount.
    pub path: PathBuf,
    #[command(flatten)]
    pub threads: ThreadsArg,
    #[command(flatten)]
    pub output: JsonArg,
}

/// Show the log of each range of bytes of a file, in the order of the file, including holes.
///
/// Prints a line for each range: start and end in the file, writer, payload offset, offset in the
/// data log, epoch and sequence. In a data log, a checksum of 8 bytes follows each block.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log map /scratch/store ckpt.bin
  quell log map /scratch/store ckpt.bin --offset 1048576 --length 4096 --json")]
pub struct LogMapArgs {
    #[command(flatten)]
    pub part: PartArgs,
    /// Start at this byte of the file.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub offset: u64,
}

/// Options that select a file and a part of it.
#[derive(Debug, Args)]
pub struct PartArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A file, by its path in the mount.
    pub path: PathBuf,
    /// Show at most this many bytes [default: to the end].
    #[arg(long, value_name = "N")]
    pub length: Option<u64>,
    #[command(flatten)]
    pub threads: ThreadsArg,
    #[command(flatten)]
    pub output: JsonLinesArg,
}

/// Show the ranges of a file that were written to a log, and whether they are part of the file.
///
/// The inverse of `map`, in the order of the log. The state of a range is `held` (part of the
/// file), `overwritten` (by the writer in the last column; --json also prints epoch and sequence),
/// or `truncated`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log query /scratch/store ckpt.bin --writer 00c0ffee00c0ffee
  # the first 4096 bytes of the log, for a program
  quell log query /scratch/store ckpt.bin --writer 00c0ffee00c0ffee \\
      --position 0 --length 4096 --json")]
pub struct LogQueryArgs {
    #[command(flatten)]
    pub part: PartArgs,
    /// The writer, as shown by `stat` and `map`.
    #[arg(long, value_name = "WRITER", value_parser = hexadecimal)]
    pub writer: u64,
    /// Start at this payload offset, which does not count headers and checksums of the log.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub position: u64,
}

/// Check all files and data of a store, and repair problems where this loses no data.
///
/// Verifies every record, header, name, frame and block, compares index logs with data logs, and
/// looks for writers whose process has ended, remains of created and removed files, and entries
/// that Quell did not create. Files may be in use. Prints PATH: IDENTIFIER: TEXT for each problem.
/// The exit code is 1 if a problem remains.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log fsck /scratch/store
  quell log fsck /scratch/store ckpt/step-100.bin -j 8 --json
  # node17 was shut down while its programs wrote
  quell log fsck /scratch/a,/scratch/b --repair --retire node17

--repair creates damaged index logs again from data logs, removes the incomplete
end of logs of dead writers, closes dead writers, and removes leftovers: remains
of created and removed files that have not changed for --older-than days, that no
process of this node has open, and that no live writer uses. Processes of other
nodes cannot be seen: choose --older-than longer than your longest job.

--repair does not change damaged bytes; reading them is an error. It does not
restore removed files, and does not remove entries that Quell did not create.")]
pub struct LogFsckArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A file or directory, by its path in the mount [default: all files, and the data that Quell
    /// keeps beside them].
    pub path: Option<PathBuf>,
    /// Repair problems where this loses no data.
    #[arg(long)]
    pub repair: bool,
    /// Close the writers of NODE, which is dead or was rebooted. A host name, or the whole name
    /// that `stat` prints; can be repeated. Writers that began on this node since its last boot
    /// stay open unless their processes are known to have ended.
    #[arg(long, value_name = "NODE")]
    pub retire: Vec<String>,
    /// Close this writer although the state of its process is unknown; `quell log stat` prints the
    /// numbers of writers. If the process is alive, its next fsync or close fails. Can be repeated.
    #[arg(long, value_name = "WRITER", requires_all = ["force", "repair"], value_parser = writer_number)]
    pub writer: Vec<u64>,
    /// With --writer: close the writer regardless of the state of its process.
    #[arg(long, requires = "writer")]
    pub force: bool,
    /// Report and remove leftovers only if they have not changed for this number of days.
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    pub older_than: u32,
    #[command(flatten)]
    pub threads: ThreadsArg,
    #[command(flatten)]
    pub output: JsonArg,
}

/// Options that select how files are copied; common to `export` and `import`.
#[derive(Debug, Clone, Copy, Args)]
pub struct TransferArgs {
    #[command(flatten)]
    pub threads: ThreadsArg,
    /// Continue an earlier run: files with the same size and time are skipped, other regular files
    /// are replaced. A device, FIFO or symbolic link is never replaced by a file.
    #[arg(long)]
    pub resume: bool,
    /// Read all written data again and compare it.
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub output: JsonArg,
}

/// Write files of a store as plain files.
///
/// A file gets its name when it is complete. Holes, permissions, times and links are kept; owners
/// too, if root runs the command. Stores may be read-only. A file that is being written is exported
/// with its published content, and is listed. The exit code is 1 if an entry could not be exported.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log export /scratch/store ckpt/step-100.bin step-100.bin
  quell log export /scratch/store ckpt /archive/ckpt -j 16 --verify
  quell log export /scratch/a,/scratch/b / /archive/all --resume")]
pub struct LogExportArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A file or directory, by its path in the mount; `/` means everything.
    pub path: PathBuf,
    /// For a file, its new name, or an existing directory for it; for a directory, one that does
    /// not exist or is empty.
    pub dest: PathBuf,
    #[command(flatten)]
    pub transfer: TransferArgs,
}

/// Copy plain files into a store.
///
/// Each thread is a separate writer, so large files get several logs. A file gets its name when it
/// is complete. Holes, permissions, times and links are kept; owners too, if root runs the command.
/// The exit code is 1 if an entry could not be imported.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log import step-100.bin /scratch/store ckpt
  quell log import /archive/ckpt /scratch/a,/scratch/b ckpt -j 16 --verify")]
pub struct LogImportArgs {
    /// A file, or a directory with everything in it.
    pub source: PathBuf,
    #[command(flatten)]
    pub stores: StoresArg,
    /// The name in the mount; an existing directory gets the file, or the entries of the source
    /// directory [default: the root].
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub transfer: TransferArgs,
}

/// Create one index of all index logs of a file, for faster opens (Index Flatten).
///
/// Reading then also needs less memory. Running writers are not affected: readers take later data
/// from the logs. The exit code is 1 if a file could not be flattened.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log flatten /scratch/store ckpt/step-100.bin
  quell log flatten /scratch/store ckpt --json")]
pub struct LogFlattenArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A file, or a directory for all files below it, by its path in the mount [default: the root].
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub threads: ThreadsArg,
    #[command(flatten)]
    pub output: JsonLinesArg,
}

/// Add stores, drain stores, and move each file to the store that the placement map assigns.
///
/// Running mounts continue: they detect an added store and use it, and place nothing new in a
/// drained one. Each node must reach an added store by the path given here. New mounts must name
/// all stores. A file that is being written is skipped; the exit code is then 1, and the command
/// must be run again. The command can be interrupted at any moment, and continues when it is run
/// again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  # also use /nvme/c, an empty directory
  quell log rebalance /scratch/a,/scratch/b --add /nvme/c -j 16
  # move everything out of /scratch/b
  quell log rebalance /scratch/a,/scratch/b,/nvme/c --drain /scratch/b
  # show what would be moved
  quell log rebalance /scratch/a,/nvme/c --dry-run --json")]
pub struct LogRebalanceArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// An empty directory that becomes a store; can be repeated.
    #[arg(long, value_name = "STORE")]
    pub add: Vec<PathBuf>,
    /// A store to move everything out of; it is removed from the set of stores afterwards. Can be
    /// repeated.
    #[arg(long, value_name = "STORE")]
    pub drain: Vec<PathBuf>,
    #[command(flatten)]
    pub threads: ThreadsArg,
    /// Print the number of files that would be moved, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: JsonArg,
}

/// Parses a writer's number, of which leading zeros may be left out.
fn hexadecimal(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16)
        .map_err(|_| "the number of a writer is hexadecimal, as `quell log stat` prints it".to_owned())
}

/// Parses a writer's number as `quell log stat` and `fsck` print it: 16 hexadecimal digits, not 0.
fn writer_number(text: &str) -> Result<u64, String> {
    match u64::from_str_radix(text, 16) {
        Ok(number) if text.len() == 16 && number != 0 => Ok(number),
        _ => {
            Err("the number of a writer has 16 hexadecimal digits, as `quell log stat` prints it".to_owned())
        }
    }
}
