//! What can be said to `quell log`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Look into the stores of a log mount without a mount: list, map and check files, bring them in and out.
///
/// STORE is the directory that was given to `quell mount --log`; several are separated by commas, as many as the mount has.
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

/// Directories, as many as the mount has.
#[derive(Debug, Args)]
pub struct StoresArg {
    /// The store, or the stores, separated by commas.
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

/// List files with their sizes, logs, writers that have not ended, and bytes in the store.
///
/// Exit code 1 if a file could not be read.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log ls /scratch/store
  quell log ls /scratch/store ckpt --recursive --json")]
pub struct LogLsArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A directory or file, as the mount names it [default: the root].
    pub path: Option<PathBuf>,
    /// Also all that is below.
    #[arg(short, long)]
    pub recursive: bool,
    /// Print one object a line.
    #[arg(long)]
    pub json: bool,
}

/// Show all that a file's container has: writers and whether they are gone, logs, epochs, cuts, flat indices.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quell log stat /scratch/store ckpt/step-100.bin")]
pub struct LogStatArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    pub path: PathBuf,
    /// Threads that read index logs.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    #[arg(long)]
    pub json: bool,
}

/// Show which log holds which bytes of a file, in the order of the file, holes too.
///
/// A line for each stretch: start, end, writer, position among that writer's bytes, place in its data log, epoch and
/// sequence. A checksum of 8 bytes follows each block of a data log.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log map /scratch/store ckpt.bin
  quell log map /scratch/store ckpt.bin --offset 1048576 --length 4096 --json")]
pub struct LogMapArgs {
    #[command(flatten)]
    pub part: PartArgs,
    /// Begin at this byte of the file.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub offset: u64,
}

/// Of which file how much is shown, and how.
#[derive(Debug, Args)]
pub struct PartArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    pub path: PathBuf,
    /// Show so many bytes [default: to the end].
    #[arg(long, value_name = "N")]
    pub length: Option<u64>,
    /// Threads that read index logs.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Print one object a line.
    #[arg(long)]
    pub json: bool,
}

/// Show which bytes of a file the bytes of a log are, and whether the file still has them.
///
/// The other way round than `map`, in the order of the log: each stretch is held by the file, was overwritten (and by
/// whom), or was cut away.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log query /scratch/store ckpt.bin --writer 00c0ffee00c0ffee
  quell log query /scratch/store ckpt.bin --writer 00c0ffee00c0ffee --position 0 --length 4096 --json")]
pub struct LogQueryArgs {
    #[command(flatten)]
    pub part: PartArgs,
    /// The writer, as `stat` and `map` show it.
    #[arg(long, value_name = "W", value_parser = |text: &str| u64::from_str_radix(text, 16))]
    pub writer: u64,
    /// Begin at this position: bytes of the file in the log, without heads and checksums.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub position: u64,
}

/// Check files byte by byte, and repair what can be repaired without losing anything.
///
/// Looks at every record, head, name, frame and block, compares index logs with data logs, and looks for writers that are gone,
/// leftovers, and what is not a log mount's. Files may be in use. Exit code 1 if a problem was found and is not repaired.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log fsck /scratch/store
  quell log fsck /scratch/store ckpt/step-100.bin -j 8 --json
  quell log fsck /scratch/a,/scratch/b --repair --retire node17

--repair makes index logs anew from data logs, cuts off what was begun and not ended when a writer died, ends writers that
are gone, and removes what making and removing files left over: what nothing has happened to for --older-than days, no
process of this node has open, and no writer that may live writes to. Processes of other nodes cannot be seen: see that none
has had a removed file open for so long. Damaged bytes are told with their place in the file and stay as they are:
to read them is an error. Nothing is brought back from the trash, and nothing foreign is removed.")]
pub struct LogFsckArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A file or directory, as the mount names it [default: all, and what the stores keep for themselves].
    pub path: Option<PathBuf>,
    /// Repair what can be repaired.
    #[arg(long)]
    pub repair: bool,
    /// NODE is known to be dead: its writers are gone. A host name, or with the boot id before it as `stat` shows it; may be
    /// given again.
    #[arg(long, value_name = "NODE")]
    pub retire: Vec<String>,
    /// End this writer, of which it cannot be told whether its process lives: `quell log stat` shows the numbers of writers.
    /// If it does live, its next fsync or close fails. May be given again.
    #[arg(long, value_name = "WRITER", requires_all = ["force", "repair"], value_parser = writer_number)]
    pub writer: Vec<u64>,
    /// With --writer: end it, whatever is known of its process.
    #[arg(long, requires = "writer")]
    pub force: bool,
    /// What is left over must be as old as this to be told and removed.
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    pub older_than: u32,
    /// Files that are checked at once; of one file, logs.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    #[arg(long)]
    pub json: bool,
}

/// How files are moved; common to `export` and `import`.
#[derive(Debug, Clone, Copy, Args)]
pub struct MoveArgs {
    /// Files, and ranges of large ones, that are copied at once.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Continue an earlier run: files with the same size and time are left, other regular files are replaced. A device, a pipe
    /// or a symbolic link is never replaced by a file.
    #[arg(long)]
    pub resume: bool,
    /// Read everything that was written again and compare it.
    #[arg(long)]
    pub verify: bool,
    #[arg(long)]
    pub json: bool,
}

/// Write files of a store as plain files.
///
/// A file gets its name when it is whole. Holes stay holes; permissions, times and links are kept, owners if root
/// does it. Stores may be read-only. A file that is being written meanwhile is brought out as it is when its turn comes, and
/// is named. Exit code 1 if something could not be brought out.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log export /scratch/store ckpt/step-100.bin step-100.bin
  quell log export /scratch/store ckpt /archive/ckpt -j 16 --verify
  quell log export /scratch/a,/scratch/b / /archive/all --resume")]
pub struct LogExportArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A file or directory, as the mount names it; `/` is all.
    pub path: PathBuf,
    /// For a file its new name, or a directory to put it into; for a directory, one that does not exist or is empty.
    pub dest: PathBuf,
    #[command(flatten)]
    pub how: MoveArgs,
}

/// Bring plain files into a store.
///
/// Each thread is a writer of its own, so that large files become several logs. A file gets its name when it is whole. Holes
/// stay holes; permissions, times and links are kept, owners if root does it. Exit code 1 if something could not be brought in.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log import step-100.bin /scratch/store ckpt
  quell log import /archive/ckpt /scratch/a,/scratch/b ckpt -j 16 --verify")]
pub struct LogImportArgs {
    /// A file, or a directory with all that is in it.
    pub source: PathBuf,
    #[command(flatten)]
    pub stores: StoresArg,
    /// What it is called in the mount; a directory that is there already gets the file, or what is in the directory
    /// [default: the root].
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub how: MoveArgs,
}

/// Write one index for all who read a file, instead of one for each process that wrote it (Index Flatten).
///
/// A file is opened quicker afterwards, and reading needs less memory. Who writes at the same time is not disturbed: what comes later is
/// read from the logs, as always. Exit code 1 if a file could not be flattened.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log flatten /scratch/store ckpt/step-100.bin
  quell log flatten /scratch/store ckpt --json")]
pub struct LogFlattenArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// A file, or a directory for all files below, as the mount names it [default: the root].
    pub path: Option<PathBuf>,
    /// Threads that read the index logs of a file.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Print one object a line.
    #[arg(long)]
    pub json: bool,
}

/// Add stores, drain stores, and move files to where they belong.
///
/// Running mounts continue: they detect an added store and use it, and place nothing new in a drained one. Each node must reach
/// an added store by the path given here. New mounts name all stores. A file that is being written is skipped: exit code 1, run
/// the command again. It can be interrupted at any moment, and continues when it is run again.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell log rebalance /scratch/a,/scratch/b --add /nvme/c -j 16
  quell log rebalance /scratch/a,/scratch/b,/nvme/c --drain /scratch/b
  quell log rebalance /scratch/a,/nvme/c --dry-run --json")]
pub struct LogRebalanceArgs {
    #[command(flatten)]
    pub stores: StoresArg,
    /// An empty directory that is a store from now on; as often as needed.
    #[arg(long, value_name = "STORE")]
    pub add: Vec<PathBuf>,
    /// A store that is emptied and is none any more; as often as needed.
    #[arg(long, value_name = "STORE")]
    pub drain: Vec<PathBuf>,
    /// Files that are moved at once.
    #[arg(short = 'j', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Say how many files would be moved, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
    #[arg(long)]
    pub json: bool,
}

/// A writer's number, as `quell log stat` and `fsck` show it.
fn writer_number(text: &str) -> Result<u64, String> {
    match u64::from_str_radix(text, 16) {
        Ok(number) if text.len() == 16 && number != 0 => Ok(number),
        _ => Err("a writer's number has 16 hexadecimal digits".to_owned()),
    }
}
