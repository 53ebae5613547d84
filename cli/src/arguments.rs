//! The command line: commands and options. Help texts, man pages and completions are generated from
//! the doc comments here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use quell_supervisor::{KernelCaching, StopCondition};
use serde::{Deserialize, Serialize};

use crate::{stop_condition, users};

mod batch;
mod blob;
mod job;
mod log;
mod pool;
mod top;

pub use batch::{
    BatchAbortArgs, BatchBeginArgs, BatchCommand, BatchCommitArgs, BatchConflictsArgs, BatchExportArgs,
    BatchFsckArgs, BatchGcArgs, BatchImportArgs, BatchInitArgs, BatchKeyArgs, BatchQuotaArgs, BatchServeArgs,
    BatchSnapshotsArgs, BatchStatusArgs, BatchVerifyArgs, BatchWatchArgs, ConflictSide, NumberLimit,
};
pub use blob::{
    BlobAddArgs, BlobBackupArgs, BlobBenchArgs, BlobCatArgs, BlobCommand, BlobFsckArgs, BlobGcArgs,
    BlobGetArgs, BlobKeyArgs, BlobLsArgs, BlobMetricsArgs, BlobPutArgs, BlobRmArgs, BlobServeArgs,
    BlobStatArgs, BlobTopArgs,
};
pub use job::{JobCommand, JobRunArgs, JobStatusArgs};
pub use log::{
    LogCommand, LogExportArgs, LogFlattenArgs, LogFsckArgs, LogImportArgs, LogLsArgs, LogMapArgs,
    LogQueryArgs, LogRebalanceArgs, LogStatArgs, PartArgs, StoresArg, TransferArgs,
};
pub use pool::{
    LaunchArgs, PoolCommand, PoolCompression, PoolConsistency, PoolDownArgs, PoolEnvArgs, PoolExpandArgs,
    PoolLsArgs, PoolMapArgs, PoolMetricsArgs, PoolRepairArgs, PoolShrinkArgs, PoolStageInArgs,
    PoolStageOutArgs, PoolStatusArgs, PoolTopArgs, PoolUpArgs, StagingArgs, StagingPart,
};
pub use top::TopArgs;

/// The largest time in seconds that the kernel may keep names and attributes while other processes
/// use a store.
const KERNEL_CACHE_SECONDS_MAX: u32 = 60;

const AFTER: &str = "\
Exit codes: 0 success; 1 a difference was found, or something could not be read;
2 wrong usage or input; 3 this machine cannot do it. `quell run` ends with the
exit code of its program.

Example:
  quell index /shared/env
  quell run -i /shared/env.quell -- /shared/env/bin/python program.py";

/// Reduces metadata storms on shared file systems: covers a software tree with an index of its
/// metadata, so that programs start with almost no requests to the file system's metadata servers.
#[derive(Debug, Parser)]
#[command(name = "quell", version, after_help = AFTER)]
pub struct Arguments {
    /// Print only errors and requested output.
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Append a trace of events to FILE, which must belong to you. The variable QUELL_LOG selects
    /// the events, such as `debug` (the default) or `quell_fuse=debug`. Without this option, and
    /// with QUELL_LOG, events are written to standard error.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Diagnosis")]
    pub log_file: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Index(IndexArgs),
    Run(RunArgs),
    Record(RecordArgs),
    #[command(subcommand)]
    Boot(BootCommand),
    Mount(MountArgs),
    Umount(UmountArgs),
    #[command(subcommand)]
    Log(LogCommand),
    #[command(subcommand)]
    Pool(PoolCommand),
    #[command(subcommand)]
    Blob(BlobCommand),
    #[command(subcommand)]
    Batch(BatchCommand),
    #[command(subcommand)]
    Job(JobCommand),
    #[command(subcommand)]
    Mpi(MpiCommand),
    Verify(VerifyArgs),
    Show(ShowArgs),
    Stats(StatsArgs),
    Probe(ProbeArgs),
    Doctor(DoctorArgs),
    Profile(ProfileArgs),
    #[command(hide = true)]
    Generate(GenerateArgs),
    #[command(hide = true)]
    Holder(HolderArgs),
    #[command(hide = true)]
    EnterMount(EnterMountArgs),
    /// Start the daemons of a pool and wait for them; started by `pool up`, with a plan on standard
    /// input.
    #[command(hide = true)]
    PoolKeeper,
    #[command(hide = true)]
    Calibrate(CalibrateArgs),
}

/// Index a directory tree, once, on any node.
///
/// Reads the metadata of everything below DIR with many requests in flight and writes it to one
/// file. If paths could not be read, they are listed at the end and in the index, and the exit code
/// is 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell index /shared/env
  quell index /shared/env -o ~/env.quell --exclude '__pycache__' --exclude 'share/doc/**'
  quell index --update ~/env.quell

--update reads every entry again, and writes the file only if something differs.
--update=dirs compares the times of directories, and reads only directories that
changed. It is sufficient for tools that replace files by renaming, such as pip,
conda and spack. It does not notice a file that was written in place, whose mode
changed, or that got a second name in another directory.

--update also prints how much of each boot image beside the index (*.boot) is still
valid; `quell record --update --changed` reads the rest again.")]
pub struct IndexArgs {
    /// The directory; with --update the index file, or the indexed directory.
    pub path: PathBuf,
    /// The file to write [default: DIR.quell beside the directory].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace FILE even if it is not an index. A link, device or directory is never replaced.
    #[arg(long)]
    pub force: bool,
    /// Update the index PATH, with the options that it was created with.
    #[arg(long, value_name = "EXTENT", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    pub update: Option<Update>,
    /// Leave out names (or, with a `/`, paths below DIR) that match; can be repeated.
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Stay within one file system (the default): a mount point below DIR is shown as an empty
    /// directory.
    #[arg(long, overrides_with = "cross_mounts")]
    pub one_file_system: bool,
    /// Include other file systems mounted below DIR.
    #[arg(long, overrides_with = "one_file_system")]
    pub cross_mounts: bool,
    /// When to read the extended attributes and access control lists of each entry. `auto` examines
    /// every directory, two files in each, and files whose status changed after their content; if
    /// any of them has attributes or a list, it examines all entries.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub xattrs: XattrsArg,
    /// Write nothing if anything could not be read.
    #[arg(long)]
    pub strict: bool,
    /// Number of requests in flight.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// The tree's current location, if it is not where it was indexed (with --update).
    #[arg(long, value_name = "DIR", requires = "update")]
    pub source: Option<PathBuf>,
    /// Also update an index that belongs to this user (a name or a number; can be repeated).
    /// Without this option an index is updated only if it belongs to you, to root or to the owner
    /// of the tree, and other users may not write to it.
    #[arg(long, value_name = "USER", requires = "update", value_parser = users::parse)]
    pub trust_owner: Vec<u32>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Update {
    All,
    Dirs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum XattrsArg {
    Auto,
    Always,
    Never,
}

/// Run a program with indexed trees covered at their own paths.
///
/// Only the program and its children see the covered trees. Exit code, signals, terminal and
/// working directory are the program's own. When it ends, no mount and no daemon remain. If Quell
/// cannot cover a tree, it prints a message and the program runs on the original directory, unless
/// --strict is given.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell run -i /shared/env.quell -- /shared/env/bin/python program.py
  # one view for all ranks of a node
  mpirun -n 64 quell run -i /shared/env -- ./program
  # keep writes in memory, and discard them at the end
  quell run -i /shared/env --scratch -- pip install six
  # cover the trees that `quell profile` proposed
  quell run --config quell.toml -- ./program
  # without FUSE and user namespaces: files of ~/ckpt become logs in a store
  quell run --via preload --log /shared/store=$HOME/ckpt -- mpirun ./program
  # files of ~/scratch are in a pool that `quell pool up scratch` has started
  quell run --pool scratch=$HOME/scratch -- ./program
  # one node of the job reads index and boot image for all
  srun quell run -i /shared/env.quell -b /shared/env.boot --job -- ./program
  # one node reads the other files of the tree, too
  srun quell run -i /shared/env.quell -b /shared/env.boot --job --share-data -- ./program
  # all files that tar creates are published at once, when it has ended
  quell run --batch /shared/results=$HOME/out -- tar -xf sources.tar -C $HOME/out
  # start a virtual machine with the recorded blocks of its disk in memory
  quell run --image /srv/debian.raw -b debian.boot -- \\
      qemu-system-x86_64 -m 1G -nographic -drive file=mine.qcow2,if=virtio

With --image, QEMU finds the disk image at its own path. The machine's own disk
was created with: qemu-img create -f qcow2 -b /srv/debian.raw -F raw mine.qcow2
All machines that one user starts in this way on a node share the memory of the
recorded blocks.")]
pub struct RunArgs {
    /// An index, or an indexed directory (DIR.quell is used, and created first if it does not
    /// exist). Can be repeated.
    #[arg(short, long = "index", value_name = "FILE", required_unless_present_any = ["config", "image", "logs", "pools", "batch"])]
    pub index: Vec<PathBuf>,
    /// How the program gets the view. `preload` loads a library into the program and its children,
    /// and needs neither FUSE nor user namespaces; see docs/techniques/preload.md. `preload+sud`
    /// also serves system calls that the program makes without libc, by Syscall User Dispatch
    /// (x86-64, Linux 5.11 and glibc 2.34 or newer).
    #[arg(long, value_enum, default_value = "view")]
    pub via: Via,
    /// With --via preload: keep the files of DIR in these log stores. DIR is an existing, empty
    /// directory. Can be repeated.
    #[arg(long = "log", value_name = "STORE[,STORE...]=DIR")]
    pub logs: Vec<String>,
    /// Show the files of the pool NAME, which `quell pool up` has started, in DIR, an existing
    /// directory. Without DIR, they are in a directory that belongs to the pool. The program finds
    /// the directory of the first pool in the variable QUELL_POOL_DIR. Implies --via preload. Can
    /// be repeated.
    #[arg(long = "pool", value_name = "NAME[=DIR]")]
    pub pools: Vec<String>,
    /// Show the files of STORE, which `quell batch init` has created, or of a directory in it, at
    /// DIR, an existing directory. Only the program and its children see them. With --via preload,
    /// no FUSE is needed.
    ///
    /// With --mode batch, their changes are published when the program has ended, and conflicts
    /// with changes of others are reported. With --strict, the exit code is then 1 if there are
    /// conflicts and the program has returned 0.
    #[arg(long, value_name = "STORE[/PATH]=DIR", conflicts_with_all = ["index", "config", "image", "logs", "pools", "boot", "share"])]
    pub batch: Option<String>,
    #[command(flatten)]
    pub batch_mode: BatchModeArgs,
    /// Cover the disk image of virtual machines and its backing chain instead of a tree; with -b.
    #[arg(long, value_name = "DISK", conflicts_with_all = ["index", "config"])]
    pub image: Option<PathBuf>,
    #[command(flatten)]
    pub image_format: ImageFormatArgs,
    /// Take the trees from a quell.toml file, as written by `quell profile`; a missing index is
    /// created first.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["source", "at"])]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub boot: BootArgs,
    #[command(flatten)]
    pub cover: CoverArgs,
    /// The directories above the trees, up to the mount point of their file system.
    #[arg(long, value_enum, default_value = "live", conflicts_with_all = ["image", "batch"])]
    pub above: AboveArg,
    /// The recording options that `quell record` passes to the holder.
    #[arg(long, hide = true)]
    pub recording: Option<String>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
    /// Share the view with other runs of this name on this node, as the ranks of an MPI job do.
    #[arg(long, value_name = "NAME")]
    pub share: Option<String>,
    #[command(flatten)]
    pub job: JobArgs,
}

/// Options of a job whose nodes read the index and the boot images once.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// Read the indexes and the boot images once for all nodes of the job: one node reads them, and
    /// the others receive them from one another. The launcher (Slurm, PBS, Flux, PMIx, mpirun)
    /// or --share names the job. A node that cannot reach another
    /// node reads the files itself. `quell job status` shows the nodes.
    #[arg(long, requires = "index", conflicts_with_all = ["config", "image", "batch"])]
    pub job: bool,
    /// The directory on a file system that all nodes share, in which the nodes find one another. It
    /// must belong to you with mode 0700, and is created if it does not exist [default: none below
    /// `quell job run`, otherwise the state directory, ~/.local/state/quell].
    #[arg(long, value_name = "DIR", requires = "job")]
    pub job_dir: Option<PathBuf>,
    /// The network interface through which the nodes exchange the files, such as ib0 [default: any
    /// that is not the loopback interface].
    #[arg(long, value_name = "NAME", requires = "job")]
    pub job_interface: Option<String>,
    /// The time, in seconds (0.1 to 3600), after which a node that gets no answer from another node
    /// stops waiting for it.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5, value_parser = job_timeout, requires = "job")]
    pub job_timeout: f64,
    /// Share blocks of files that are in no boot image: one node of the job reads them, and the
    /// others receive them through the tree of nodes. Each node keeps at most MIB of them in memory
    /// [default: 256]. The program gets the FUSE view. `quell job status` shows the bytes.
    #[arg(
        long,
        value_name = "MIB",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "256",
        value_parser = clap::value_parser!(u64).range(1..=SHARED_MIB_MAX),
        requires = "job"
    )]
    pub share_data: Option<u64>,
}

/// The largest memory for shared blocks: 1 TiB.
const SHARED_MIB_MAX: u64 = 1 << 20;

fn job_timeout(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "the time is a number from 0.1 to 3600".into())
}

/// How a program gets a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// By mounts in a mount namespace.
    View,
    /// By a library in the program's own process.
    Preload,
    /// By the library, which the kernel also calls for system calls without libc.
    #[value(name = "preload+sud")]
    PreloadSud,
    /// By trapped system calls of programs that load no library. It does not exist.
    #[value(hide = true)]
    Trap,
}

/// The directories above covered trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AboveArg {
    /// The original directories. The client of their file system looks up their names repeatedly.
    Live,
    /// Read-only copies in memory, with the names that they have at the start. Entries beside the
    /// trees are the originals, but no file can be renamed or linked from one to another.
    Copy,
}

/// Options for boot images, common to `run` and `mount`.
#[derive(Debug, Args)]
pub struct BootArgs {
    /// Serve the blocks of this boot image (made by `quell record`) from memory; for several trees,
    /// one image for each.
    #[arg(short, long, value_name = "FILE")]
    pub boot: Vec<PathBuf>,
    /// Memory limit for boot images on this node, in MiB. The blocks of an image that does not fit
    /// are read from it when they are needed, with at most 64 MiB of memory and about 150 bytes for
    /// each file; an image of a disk, or one with --via preload, is then not used.
    /// The limit is never more than is available on the machine and in the control groups of the
    /// job [default: 1024, or half of the available memory if that is less].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub budget: Option<u64>,
}

/// Options of commands that read disk images of virtual machines.
#[derive(Debug, Clone, Copy, Args)]
pub struct ImageFormatArgs {
    /// The format of the disk image [default: qcow2 if it has the qcow2 magic number, otherwise
    /// raw].
    #[arg(long, value_name = "FORMAT", requires = "image")]
    pub image_format: Option<ImageFormatArg>,
}

impl ImageFormatArgs {
    /// Returns the same option as an argument for another Quell process.
    pub fn words(self) -> Option<String> {
        let format = self.image_format?.to_possible_value()?;
        Some(format!("--image-format={}", format.get_name()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImageFormatArg {
    Qcow2,
    /// Content of the image is never interpreted as the name of another file.
    Raw,
}

/// Record the blocks that a start reads, or select files, and write them to a boot image.
///
/// Runs CMD covered by the index, and writes the blocks that it and its children read, including
/// mapped files and programs, to the file given with -o. Ends with CMD's own exit code. With
/// --small or --pattern, no program is run: the image has all blocks of the selected files.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell record -i /shared/env.quell -o env.boot -- /shared/env/bin/python program.py
  quell record -i /shared/env.quell -o env.boot --merge -- /shared/env/bin/python other.py
  quell record -i /shared/env.quell -o env.boot --update -- /shared/env/bin/python app.py
  quell record -i /shared/env.quell -o env.boot --update --changed
  quell record -i /shared/env.quell -o env.boot --until 30 -- /shared/env/bin/python server.py
  quell record -i /shared/env.quell -o env.boot --until 'Listening on .*:80' -- python server.py
  quell record -i /shared/env.quell -o env.boot --small 16K
  quell record -i /shared/include.quell -o include.boot --pattern '*.h' --pattern '*.hpp'
  quell record --image /srv/debian.raw -o debian.boot --until 'login: ' -- \\
      qemu-system-x86_64 -m 1G -nographic -drive file=mine.qcow2,if=virtio

--until is for programs that do not end. After this time, or when a line of CMD's
standard output or standard error matches the pattern, CMD and its children get
SIGTERM. The image is written when they have ended. The exit code is that of CMD,
or 143 if SIGTERM ended it. Blocks that CMD reads while it ends are recorded, too.
If CMD ends earlier, its whole run is recorded.

A pattern is a regular expression (https://docs.rs/regex/#syntax). A number is a
time in seconds; write '(8080)' for a pattern of digits. An incomplete line, such
as a prompt, can match. With a pattern, quell reads the output of CMD and passes it
on unchanged. If the output of quell is a terminal, CMD gets a terminal, otherwise
a pipe. Many programs buffer their output to a pipe; PYTHONUNBUFFERED=1 and
stdbuf -oL prevent it.

--small and --pattern are for header files, node_modules and data sets of many small
files. The number of files and the memory are printed before the files are read.
`quell run -b` keeps the blocks in memory if they fit its --budget; otherwise it
reads them from the image when they are needed, and takes about 150 bytes of memory
for each file and at most 64 MiB for blocks.

The image contains data of files regardless of their modes. It is therefore created
with mode 0600; use chmod to give other users access. Recording again keeps the mode.

With --image, the blocks that a virtual machine reads from its disk image and from
its backing chain are recorded.")]
pub struct RecordArgs {
    /// An index, or an indexed directory (DIR.quell is used, and created first if it does not
    /// exist).
    #[arg(short, long = "index", value_name = "FILE", required_unless_present = "image")]
    pub index: Option<PathBuf>,
    /// Record the blocks that are read from this disk image instead.
    #[arg(long, value_name = "DISK", conflicts_with_all = ["index", "source"])]
    pub image: Option<PathBuf>,
    #[command(flatten)]
    pub image_format: ImageFormatArgs,
    /// The boot image to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace FILE even if it is not a boot image. A link, device or directory is never replaced.
    #[arg(long)]
    pub force: bool,
    /// Also use indexes and boot images that belong to this user (a name or a number; can be
    /// repeated). Without this option they are used only if they belong to you, to root or to the
    /// owner of the tree, and other users may not write to them.
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub trust_owner: Vec<u32>,
    /// Merge the new recording with the existing image, if there is one.
    #[arg(long)]
    pub merge: bool,
    /// After an update of the index: keep the blocks of the existing image that are still valid,
    /// serve them from memory, and record only blocks that it does not have.
    #[arg(long, conflicts_with_all = ["merge", "min_runs", "image"])]
    pub update: bool,
    /// Keep only blocks that were read in at least N recordings.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub min_runs: u32,
    /// Run no program: select all files of at most this size. K, M and G are 1,024-based units.
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with_all = SELECTION_CONFLICTS)]
    pub small: Option<u64>,
    /// Run no program: select files whose names (or, with a `/`, paths below the tree) match; can
    /// be repeated. With --small, both conditions must hold.
    #[arg(long, value_name = "GLOB", conflicts_with_all = SELECTION_CONFLICTS)]
    pub pattern: Vec<String>,
    /// With --update: run no program, and read the blocks of those files of the image that have
    /// changed in the tree. After an upgrade, this takes no new recording.
    #[arg(long, requires = "update", conflicts_with_all = SELECTION_CONFLICTS)]
    pub changed: bool,
    /// With --small or --pattern: print the number of files and the memory, and write nothing.
    #[arg(long, conflicts_with_all = SELECTION_CONFLICTS)]
    pub dry_run: bool,
    /// Keep all blocks of each file that was opened, as far as --budget allows it: `quell run --via
    /// preload` serves only whole files from memory.
    #[arg(long, conflicts_with = "image")]
    pub whole: bool,
    /// Store only the blocks that were read. Without this, the other blocks of the files are stored
    /// too, as far as they take at most 128 MiB or 4 times the blocks that were read. They are read
    /// from the image when a program needs them.
    #[arg(long)]
    pub exact: bool,
    /// Keep at most this many MiB of blocks, preferring those that were read in most recordings.
    /// With --small or --pattern: select files until their blocks reach this size.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub budget: Option<u64>,
    /// For programs that never end: end CMD after this many seconds, or when a line of its output
    /// matches.
    #[arg(long, value_name = "PATTERN|SECONDS", value_parser = stop_condition::parse)]
    pub until: Option<StopCondition>,
    /// The tree's location on this node, if it is not where it was indexed.
    #[arg(long, value_name = "DIR")]
    pub source: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required_unless_present_any = ["small", "pattern", "changed"], value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

/// Options of `quell record` that are for a program.
const SELECTION_CONFLICTS: [&str; 7] = ["command", "until", "min_runs", "merge", "whole", "exact", "image"];

/// Show, check, merge and extract boot images.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  quell boot show env.boot
  quell boot verify env.boot -i /shared/env.quell
  quell boot merge train.boot test.boot -o env.boot")]
pub enum BootCommand {
    Show(BootShowArgs),
    Verify(BootVerifyArgs),
    Merge(BootMergeArgs),
    Extract(BootExtractArgs),
    Qcow2(BootQcow2Args),
}

/// Show the contents of a boot image.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quell boot show env.boot\n  quell boot show env.boot --files")]
pub struct BootShowArgs {
    /// The boot image.
    pub file: PathBuf,
    /// Also list each file, with the part of it that is in the image.
    #[arg(long)]
    pub files: bool,
    /// Print the contents as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Check every byte of a boot image; with -i or --image, also compare it with the tree or the disk.
///
/// Exit code 1 if a file was replaced or its content differs.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell boot verify env.boot -i /shared/env.quell
  quell boot verify debian.boot --image /srv/debian.raw")]
pub struct BootVerifyArgs {
    /// The boot image.
    pub file: PathBuf,
    /// The index that the image belongs to, or the indexed directory.
    #[arg(short, long, value_name = "FILE")]
    pub index: Option<PathBuf>,
    /// The tree's location on this node, if it is not where it was indexed.
    #[arg(long, value_name = "DIR", requires = "index")]
    pub source: Option<PathBuf>,
    /// The disk image that was recorded.
    #[arg(long, value_name = "DISK", conflicts_with = "index")]
    pub image: Option<PathBuf>,
    #[command(flatten)]
    pub image_format: ImageFormatArgs,
}

/// Merge boot images of one tree or disk (of several runs, ranks, programs or machines) into one.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quell boot merge train.boot test.boot -o env.boot --budget 64")]
pub struct BootMergeArgs {
    /// The boot images to merge.
    #[arg(required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// The image to write; it may be one of the input images.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace FILE even if it is not a boot image. A link, device or directory is never replaced.
    #[arg(long)]
    pub force: bool,
    /// Also merge boot images that belong to this user (a name or a number; can be repeated).
    /// Without this option they are merged only if they belong to you or to root, and other users
    /// may not write to them, because the output belongs to you.
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub trust_owner: Vec<u32>,
    /// Keep only blocks that were read in at least N recordings.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub min_runs: u32,
    /// Keep at most this many MiB of blocks, preferring those that were read in most recordings.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub budget: Option<u64>,
}

/// Write the blocks of a boot image to files, with holes in place of all other blocks.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quell boot extract env.boot /tmp/hot")]
pub struct BootExtractArgs {
    /// The boot image.
    pub file: PathBuf,
    /// The directory to create.
    pub directory: PathBuf,
}

/// Write the recorded blocks of a disk image as a qcow2 image on top of it.
///
/// For machines that are to start faster with QEMU alone: create the machine's own image on top of
/// the written one, which may be on a local disk or in memory. QEMU reads all other blocks from the
/// disk image.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell boot qcow2 debian.boot -o hot.qcow2
  qemu-img create -f qcow2 -b hot.qcow2 -F qcow2 mine.qcow2
  qemu-system-x86_64 -m 1G -nographic -drive file=mine.qcow2,if=virtio")]
pub struct BootQcow2Args {
    /// The boot image.
    pub file: PathBuf,
    /// The qcow2 image to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace FILE even if it is not a qcow2 image. A link, device or directory is never replaced.
    #[arg(long)]
    pub force: bool,
    /// Also use a boot image that belongs to this user (a name or a number; can be repeated).
    /// Without this option it is used only if it belongs to you, to root or to the owner of the
    /// disk image, and other users may not write to it.
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub trust_owner: Vec<u32>,
    /// The disk image that was recorded [default: its path at the time of the recording].
    #[arg(long, value_name = "DISK")]
    pub base: Option<PathBuf>,
    /// The format of the disk image [default: qcow2 if it has the qcow2 magic number, otherwise
    /// raw]. If the image was recorded with `--image-format raw`, give the same option here:
    /// otherwise data that a machine wrote to the image decides the format.
    #[arg(long, value_name = "FORMAT")]
    pub image_format: Option<ImageFormatArg>,
}

/// Options that select how a tree is covered; common to `run` and `mount`.
#[derive(Debug, Args)]
pub struct CoverArgs {
    /// The tree's location on this node, if it is not where it was indexed: its data is read there,
    /// and it is covered there.
    #[arg(long, value_name = "DIR")]
    pub source: Option<PathBuf>,
    /// Cover this directory instead of the tree itself.
    #[arg(long, value_name = "PATH")]
    pub at: Option<PathBuf>,
    /// The view to use [default: the first that works here; see `quell doctor`].
    #[arg(long, value_enum, default_value = "auto")]
    pub view: ViewArg,
    /// How thoroughly to check for changes before and during the run.
    #[arg(long, value_enum, default_value = "auto")]
    pub check: Check,
    /// How many entries of the tree to check per second while it is covered (0: none). The first
    /// check comes after 60 of these intervals, because the tree is checked before the start.
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub recheck: f64,
    /// Fail instead of running on the original directory.
    #[arg(long)]
    pub strict: bool,
    /// Print each view or mount with the reason for it, and each index that is created. Without it,
    /// success prints nothing.
    #[arg(short, long)]
    pub verbose: bool,
    /// Also use indexes and boot images that belong to this user, and backing files of disk images
    /// (a name or a number; can be repeated). Without this option indexes and boot images are used
    /// only if they belong to you, to root or to the owner of the tree, and other users may not
    /// write to them.
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub trust_owner: Vec<u32>,
    /// Add a private writable layer in memory, which is discarded at the end.
    #[arg(long, conflicts_with = "writable")]
    pub scratch: bool,
    /// Add a private writable layer in DIR (on a local file system), which is kept.
    #[arg(long, value_name = "DIR")]
    pub writable: Option<PathBuf>,
    /// The reaction when a program opens a file that changed since indexing (FUSE view only). With
    /// a boot image: refuse.
    #[arg(long, value_enum, default_value = "refuse")]
    pub on_change: OnChangeArg,
    /// Honour set-id bits and file capabilities in the view, as `suid` of mount(8) does. Only for
    /// root, with an index that belongs to root.
    #[arg(long)]
    pub suid: bool,
    /// Let device nodes in the view refer to devices, as `dev` of mount(8) does. Only for root,
    /// with an index that belongs to root.
    #[arg(long)]
    pub dev: bool,
    /// Kernel memory limit for the metadata of one tree, in MiB (1.3 kB per entry); a larger tree
    /// is served by FUSE, whose start takes the same time for every size.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub memory: u64,
    /// End with an error if a file system does not answer for this many seconds while the view is
    /// created [default: wait, and print the path after 3 s].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub answer_timeout: Option<u64>,
    /// Number of threads that serve a FUSE view.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ViewArg {
    Auto,
    /// Metadata from a tmpfs, data from the tree, both combined by the kernel; no daemon serves
    /// requests.
    Overlay,
    /// As `overlay`, with metadata served by FUSE: for large trees of large files.
    OverlayFuse,
    /// Metadata and data through FUSE: for large trees, older kernels, and file systems that
    /// overlayfs does not support.
    Fuse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// A sample; in addition, one node of a job checks every entry: before the program starts (for
    /// at most 5 s) if you may write to the tree, otherwise while it runs, and not again for 10
    /// minutes.
    Auto,
    /// No check.
    None,
    /// At most 8 entries.
    Sample,
    /// Every entry and its extended attributes, before the program starts, on every node.
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnChangeArg {
    /// Fail with "stale file handle" (ESTALE).
    Refuse,
    /// Open the file as it is now.
    Serve,
    /// Do not compare: the kernel answers opens without a request to Quell.
    Ignore,
}

/// Mount the view of an index for all processes, until `quell umount`; or, with --log, a file
/// system in which many processes may write one file.
///
/// An ordinary user's mount uses FUSE, through fusermount3; root's mounts may use the overlay
/// views. The process that serves the mount writes later messages to a log file;
/// `quell stats MOUNTPOINT` prints its path.
#[derive(Debug, Args)]
#[command(
    override_usage = "quell mount [OPTIONS] FILE MOUNTPOINT\n       \
                      quell mount --log STORE[,STORE...] [OPTIONS] MOUNTPOINT\n       \
                      quell mount --pool NAME [OPTIONS] MOUNTPOINT\n       \
                      quell mount --blob STORE [--blob-prefix PREFIX] [OPTIONS] MOUNTPOINT\n       \
                      quell mount --batch STORE [--mode MODE] [OPTIONS] MOUNTPOINT\n       \
                      quell mount --batch STORE --watch BATCH [OPTIONS] MOUNTPOINT\n       \
                      quell mount --config FILE [OPTIONS]",
    after_help = "\
Example:
  quell mount /shared/env.quell /tmp/env
  quell stats /tmp/env
  quell umount /tmp/env
  # on every node; programs then write to ~/ckpt
  mkdir -p ~/ckpt
  quell mount --log /shared/store ~/ckpt
  # spread files over two file systems
  quell mount --log /a/store,/b/store --index flatten ~/ckpt
  # all [[log]] mounts of a file
  quell mount --config quell.toml
  # the pool of a job, for all programs of this node
  quell mount --pool scratch ~/scratch
  # the blobs of a store whose names begin with run7/, as files
  quell mount --blob ~/results --blob-prefix run7 ~/run7
  # a name space of one's own, which is published by: quell umount ~/out
  quell mount --batch /shared/results --mode batch ~/out
  # the disk image of virtual machines, as /run/disks/debian.raw
  quell mount --image /srv/debian.raw /run/disks -b debian.boot

With --log, each process that writes a file appends to a log of its own in the
store, so no two processes write one file of the shared file system. Programs see
one file. A store is a directory on the shared file system; its path may differ
between nodes, and the order of several stores does not matter. Only log mounts,
`quell log` and libquell can read the files in it.

With --index parallel, several threads read the index logs of a file when it is
opened. With `flatten`, the last writer of a file creates one index for all readers
when it closes the file; with `flatten-later`, the mount does so in the background.
BYTES may end with K, M or G."
)]
pub struct MountArgs {
    /// An index, or an indexed directory (DIR.quell is used, and created first if it does not
    /// exist); with --image the disk image.
    #[arg(required_unless_present_any = ["log", "config", "pool", "blob", "batch"])]
    pub file: Option<PathBuf>,
    /// An existing directory.
    #[arg(required_unless_present_any = ["log", "config", "pool", "blob", "batch"])]
    pub mountpoint: Option<PathBuf>,
    /// Mount these stores as a file system in which many processes may write one file.
    #[arg(long, value_name = "STORE", value_delimiter = ',', conflicts_with_all = FOR_VIEWS)]
    pub log: Vec<PathBuf>,
    /// Mount the pool NAME of this node. Unlike `quell run --pool`, it serves all programs.
    #[arg(long, value_name = "NAME", conflicts_with_all = FOR_VIEWS, conflicts_with_all = ["log", "config", "init"])]
    pub pool: Option<String>,
    /// Mount the blobs of STORE as files: dir:PATH or PATH, unix:PATH, quell://HOST:PORT?key=FILE,
    /// or rados://POOL/NAMESPACE?key=FILE. Programs can write to them; others see the writes after
    /// the file was closed. A store in a directory is created if it does not exist.
    #[arg(long, value_name = "STORE", conflicts_with_all = FOR_VIEWS, conflicts_with_all = ["log", "config", "init", "pool"])]
    pub blob: Option<String>,
    /// Show only blobs whose names begin with PREFIX and a slash; the rest of the name is the path
    /// of the file. PREFIX has at most 511 bytes.
    #[arg(long, value_name = "PREFIX", requires = "blob")]
    pub blob_prefix: Option<String>,
    /// Mount the files of STORE, which `quell batch init` has created, or of a directory in it:
    /// STORE/PATH.
    #[arg(long, value_name = "STORE", conflicts_with_all = FOR_VIEWS_ONLY, conflicts_with_all = ["log", "config", "init", "pool", "blob"])]
    pub batch: Option<PathBuf>,
    #[command(flatten)]
    pub batch_mode: BatchModeArgs,
    /// Show the files of the running batch with this number, as they were a few seconds ago. The
    /// mount is read-only. The batch does not wait for it.
    #[arg(long, value_name = "BATCH", requires = "batch", conflicts_with_all = ["mode", "batch_name", "atomic", "join", "proof", "serve"])]
    pub watch: Option<u64>,
    /// Allow a directory that already contains files to become a store. An empty directory needs no
    /// option.
    #[arg(long, conflicts_with_all = FOR_VIEWS)]
    pub init: bool,
    /// Mount all [[log]] mounts of a quell.toml file.
    #[arg(long, value_name = "FILE", conflicts_with_all = FOR_VIEWS, conflicts_with_all = ["log", "file", "mountpoint"])]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub logs: LogArgs,
    /// Show the disk image FILE of virtual machines as a file, with its recorded blocks served from
    /// memory (-b); also show the files of its backing chain that are named relative to it.
    #[arg(long)]
    pub image: bool,
    #[command(flatten)]
    pub image_format: ImageFormatArgs,
    #[command(flatten)]
    pub boot: BootArgs,
    #[command(flatten)]
    pub cover: CoverArgs,
    /// Give other users access to the mount, according to modes and owners (root's mounts always
    /// do).
    #[arg(long)]
    pub allow_other: bool,
}

/// Options of a store for batches, common to `run` and `mount`.
#[derive(Debug, Args)]
pub struct BatchModeArgs {
    /// With `sync`, each change is visible in the store at once; with `batch`, all changes are
    /// published at the end [default: sync for `quell mount`, batch for `quell run`].
    #[arg(long, value_name = "MODE", value_enum, requires = "batch")]
    pub mode: Option<BatchModeArg>,
    /// The name of the batch, or of the part, in `quell batch status` [default: the name of the
    /// host and the number of the process].
    #[arg(long, value_name = "NAME", requires = "batch")]
    pub batch_name: Option<String>,
    /// Publish the batch only if no change of others is in conflict with it.
    #[arg(long, requires = "batch")]
    pub atomic: bool,
    /// Do not wait for the verification of the batch: it is verified when the store is used the
    /// next time, before its changes are shown.
    #[arg(long, requires = "batch")]
    pub lazy: bool,
    /// The form in which the batch is submitted for its verification [default: certificate].
    #[arg(long, value_name = "FORM", value_enum, requires = "batch")]
    pub proof: Option<ProofArg>,
    /// Be a part of the batch with this number, which `quell batch begin` has printed: the end
    /// closes the part, and `quell batch commit` publishes all parts at once. A batch that was
    /// committed, submitted, refused or aborted cannot be joined. Implies `--mode batch`.
    #[arg(long, value_name = "BATCH", requires = "batch", conflicts_with_all = ["atomic", "lazy"])]
    pub join: Option<u64>,
    /// Let other mounts and programs on this node use the store at the same time: unless it has a
    /// server, start one in the background (`quell batch serve`), which ends a minute after its
    /// last client.
    #[arg(long, requires = "batch")]
    pub serve: bool,
}

/// The effect of changes in a mount of a store for batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BatchModeArg {
    /// Each change is made in the store immediately.
    Sync,
    /// All changes are published when the mount is removed.
    Batch,
}

/// The form in which a batch is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProofArg {
    /// Tables with the new entries, and a statement about them: the verification takes less
    /// processor time.
    Certificate,
    /// An operation log with one operation for each changed entry, which the verification executes.
    /// It has about a fifth of the bytes of the tables.
    Log,
}

/// Names of the options that apply to views of trees and disks, and to no store but one for
/// batches.
const FOR_VIEWS: [&str; 1 + FOR_VIEWS_ONLY.len()] = {
    let mut names = ["trust_owner"; 1 + FOR_VIEWS_ONLY.len()];
    let mut at = 0;
    while at < FOR_VIEWS_ONLY.len() {
        names[at + 1] = FOR_VIEWS_ONLY[at];
        at += 1;
    }
    names
};

/// Names of the options that apply to views of trees and disks, and not to stores.
const FOR_VIEWS_ONLY: [&str; 16] = [
    "image",
    "image_format",
    "boot",
    "budget",
    "source",
    "at",
    "view",
    "check",
    "recheck",
    "strict",
    "scratch",
    "writable",
    "on_change",
    "suid",
    "dev",
    "memory",
];

/// Options that select how files of a log mount are written and read.
#[derive(Debug, Clone, Copy, Args)]
pub struct LogArgs {
    /// Size of the buffer that collects one process's writes to a file before they go to the store,
    /// from 4K to 1G [default: 1M].
    #[arg(long, value_name = "BYTES", value_parser = buffer_bytes)]
    pub buffer: Option<u64>,
    /// How the position of each range of a file in the logs is determined when the file is opened
    /// [default: parallel].
    #[arg(long = "index", value_name = "METHOD", value_enum)]
    pub index_method: Option<IndexMethod>,
    /// With --index flatten and flatten-later: do not flatten a file if its index logs together are
    /// larger than this [default: 64M].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub flatten_threshold: Option<u64>,
    /// Where the locks of flock(2) and fcntl(2) are kept [default: store].
    #[arg(long, value_name = "WHERE", value_enum)]
    pub locks: Option<LocksArg>,
    /// How long the kernel keeps names and attributes: `auto`, for 5 seconds while no other process
    /// uses the store; `none`, not at all; SECONDS (1 to 60), also while other processes use the
    /// store, whose changes are then visible up to SECONDS later [default: auto].
    #[arg(long, value_name = "auto|none|SECONDS", value_parser = kernel_caching)]
    pub kernel_cache: Option<KernelCaching>,
    /// The form in which files begin in a mount of one store to which only its owner may write: as
    /// one object, which needs fewer requests to the store, or as a container. In other stores, new
    /// files begin as containers [default: object].
    #[arg(long, value_name = "FORM", value_enum)]
    pub new_files: Option<NewFilesArg>,
}

/// The form in which the files of a log mount begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NewFilesArg {
    /// A directory with the logs of each writer.
    Container,
    /// One file in the store, which gets a container when a second process writes to it, or when it
    /// is not written from its beginning to its end. `quell log rebalance` does not move such files
    /// to another store. Versions of Quell without this option do not show them.
    Object,
}

/// Where the locks of a log mount are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocksArg {
    /// In the store, between all nodes; ENOLCK if its file system has no such locks.
    Store,
    /// In the kernel, between the processes of this node only.
    Node,
    /// Nowhere: every lock fails with ENOLCK.
    None,
}

/// Make MPI-IO programs write and read log stores without a mount and without changes.
///
/// Open MPI loads the components of Quell from a directory. They take the files below the virtual
/// directories that `quell mpi env` names; all other files are untouched.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  quell mpi build
  eval \"$(quell mpi env --log /shared/store=/run/data)\"
  mpirun -x QUELL_VIEW -n 64 ./program /run/data/checkpoint")]
pub enum MpiCommand {
    Build(MpiBuildArgs),
    Env(MpiEnvArgs),
}

/// Compile the components for the MPI that is installed.
///
/// Components work only with the version of Open MPI that they were compiled for. The headers of
/// Open MPI must be installed (Debian: libopenmpi-dev). For MPICH, and for ROMIO in Open MPI, a
/// library is compiled that wraps MPI_File_open.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell mpi build
  quell mpi build --compiler /opt/openmpi/bin/mpicc --output ~/components")]
pub struct MpiBuildArgs {
    #[command(flatten)]
    pub compiler: CompilerArgs,
    /// The directory for the components [default: a directory for this version of the MPI in
    /// ~/.local/lib/quell].
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// The libquell.so that the components use [default: the installed one].
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The MPI that is used.
#[derive(Debug, Args)]
pub struct CompilerArgs {
    /// The compiler of the MPI.
    #[arg(long, value_name = "PROGRAM", default_value = "mpicc")]
    pub compiler: PathBuf,
}

/// Print the environment variables for MPI programs, as commands of a shell.
///
/// DIR is the directory in which programs find the files of the stores. It need not exist. Start
/// ranks on other nodes with `mpirun -x QUELL_VIEW`; srun passes all variables on.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  eval \"$(quell mpi env --log /shared/store=/run/data)\"
  quell mpi env --log /shared/store=/run/data --index flatten --json")]
pub struct MpiEnvArgs {
    /// The stores, and the directory that they replace; can be repeated.
    #[arg(long = "log", value_name = "STORE[,STORE...]=DIR", required = true)]
    pub logs: Vec<String>,
    #[command(flatten)]
    pub options: LogArgs,
    #[command(flatten)]
    pub compiler: CompilerArgs,
    /// Use Open MPI's ROMIO and the preload library, and not OMPIO and the components. MPICH has
    /// only ROMIO.
    #[arg(long)]
    pub romio: bool,
    /// The directory of the components [default: where `quell mpi build` or `make install-ompi` has
    /// put them].
    #[arg(long, value_name = "DIR")]
    pub components: Option<PathBuf>,
    /// Print the variables as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The methods of building the index of a file in a log mount when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IndexMethod {
    /// The last writer to close a file creates one index for all readers.
    Flatten,
    /// As `flatten`, in the background: no close waits for it.
    FlattenLater,
    /// Several threads read the index logs.
    Parallel,
}

fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.ok_or_else(|| "give a number of bytes, such as 65536, 64K, 16M or 1G".to_owned())
}

fn kernel_caching(text: &str) -> Result<KernelCaching, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(KernelCaching::Auto),
        ("none", _) => Ok(KernelCaching::None),
        (_, Ok(seconds @ 1..=KERNEL_CACHE_SECONDS_MAX)) => Ok(KernelCaching::Seconds(seconds)),
        _ => Err(format!("give auto, none, or a time of 1 to {KERNEL_CACHE_SECONDS_MAX} seconds")),
    }
}

fn buffer_bytes(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?;
    match (4 << 10..=1 << 30).contains(&bytes) {
        true => Ok(bytes),
        false => Err("give a size from 4K to 1G".to_owned()),
    }
}

/// Remove a mount created by `quell mount`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quell umount /tmp/env")]
pub struct UmountArgs {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Unmount even if programs use the mount; files that are open there then return errors.
    #[arg(long)]
    pub force: bool,
}

/// Compare an index with its tree, entry by entry.
///
/// Prints each difference: + added, - removed, ~ changed (and which fields). Exit code 1 if there
/// is any.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quell verify /shared/env.quell")]
pub struct VerifyArgs {
    /// The index, or the indexed directory.
    pub file: PathBuf,
    /// The tree's current location, if it is not where it was indexed.
    #[arg(long, value_name = "DIR")]
    pub source: Option<PathBuf>,
    /// Number of requests in flight.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Print the differences as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Show the contents of an index: a summary, or one entry (and the listing of a directory).
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  quell show env.quell\n  quell show env.quell lib/python3.11 --json")]
pub struct ShowArgs {
    /// The index, or the indexed directory.
    pub file: PathBuf,
    /// A path below the tree's root, or below its absolute path.
    pub path: Option<PathBuf>,
    /// Show everything below PATH, one entry per line.
    #[arg(short, long)]
    pub recursive: bool,
    /// Print the contents as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Print how many requests a view absorbed, and how many it passed on.
///
/// For a mount point, prints the counters of that mount; for an index, an indexed directory or a
/// store, the counters of each of your views and mounts of it on this node.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell stats /tmp/env
  quell stats /shared/env.quell --json
  quell stats /tmp/env --prometheus /var/lib/node_exporter/quell.prom")]
pub struct StatsArgs {
    /// A mount point, an index file, an indexed directory or a store.
    pub path: PathBuf,
    /// Print the counters as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the counters to FILE in the Prometheus text format (`-`: print them).
    #[arg(long, value_name = "FILE")]
    pub prometheus: Option<PathBuf>,
    /// Replace FILE even if this command did not write it. A link, device or directory is never
    /// replaced.
    #[arg(long)]
    pub force: bool,
}

/// Measure, with limited load, how many metadata operations per second a file system sustains.
///
/// Creates a small tree in DIR, requests names, attributes and listings with 1, 2, 4, ... threads
/// until more threads bring no higher rate, and removes the tree. Prints its plan and asks for
/// confirmation first. The rate of one node is a lower bound of the file system's rate.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell probe /shared/project
  quell probe --yes -o capacity.json /shared/project
  # remove the directories that a killed probe left
  quell probe --clean /shared/project

The exit code is 1 if no rate could be measured. The probe does not start without
write permission, without free space, while another probe uses DIR, or if the file
system is busy (a request takes more than 50 ms).")]
pub struct ProbeArgs {
    /// A directory on the file system, with write permission.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Limit on the number of operations, including those that create and remove the tree.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(200..=1_000_000))]
    pub operations: u64,
    /// Limit on the duration of the measurement, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub seconds: u64,
    /// Limit on the number of threads.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub max_parallel: u32,
    /// Start without asking for confirmation.
    #[arg(long)]
    pub yes: bool,
    /// Remove the directories that your killed probes left in DIR, and measure nothing.
    #[arg(long, conflicts_with_all = ["output", "json"])]
    pub clean: bool,
    /// Write the result to FILE as JSON, for `quell profile --capacity`.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Replace FILE even if it is not the result of a probe. A link, device or directory is never
    /// replaced.
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Report the features of this machine, the view that would be used, the reason, and the way to
/// enable a better view.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell doctor /shared/env
  # which ways can serve this program
  quell doctor -- ./program")]
pub struct DoctorArgs {
    /// The directory to cover, or its index.
    pub directory: Option<PathBuf>,
    /// A program: report the ways that can serve it.
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Option<std::ffi::OsString>,
    /// Print the findings as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Trace a program, and report its requests to shared file systems and those that Quell would
/// absorb.
///
/// Runs CMD and all its children under strace, and writes a report to DIR: report.html and
/// report.json, the table of operations, charts, the trace, and a quell.toml for
/// `quell run --config`. Prints a summary with the commands to run next. Tracing slows the program
/// down; the report states by how much. The exit code is that of CMD, also if no tree is proposed;
/// the report then gives the reason, and `quell run --config` runs CMD without a view.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell profile -- python train.py
  quell profile -o report --shared /data --capacity 32000 -- ./pipeline.sh
  # with the measured rate of the file system
  quell probe /shared/project -o probe.json
  quell profile --capacity probe.json -- python train.py
  # from an existing trace
  strace -f -ttt -T -y -o trace.0 ./program
  quell profile --import trace.0

A directory counts as shared if it lies on Lustre, GPFS, NFS, BeeGFS, Ceph, Gluster,
MooseFS or another FUSE file system. --shared DIR declares any other directory as
shared.")]
pub struct ProfileArgs {
    /// The directory to write to [default: quell-profile, or the next free quell-profile.N].
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Write to DIR even if it contains files that do not belong to a report. Files with the names
    /// of a report's files are replaced; links and devices never.
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Read existing traces of `strace -f -ttt -y` instead (one, or one for each rank; also those
    /// of `strace -ff`).
    #[arg(long, value_name = "TRACE", num_args = 1.., conflicts_with = "command")]
    pub import: Vec<PathBuf>,
    /// Treat DIR as a directory on a shared file system; can be repeated.
    #[arg(long, value_name = "DIR")]
    pub shared: Vec<PathBuf>,
    /// The rate that the file system sustains: metadata operations per second, or a file written by
    /// `quell probe -o`.
    #[arg(long, value_name = "OPS_PER_S|FILE")]
    pub capacity: Option<String>,
    /// First run CMD once without tracing, to measure the slow-down instead of estimating it.
    #[arg(long, requires = "command")]
    pub compare: bool,
    /// The working directory of imported traces [default: the current directory, until the trace
    /// names one].
    #[arg(long, value_name = "DIR", requires = "import")]
    pub cwd: Option<PathBuf>,
    /// The mount table of imported traces, a copy of /proc/self/mountinfo [default: this
    /// machine's].
    #[arg(long, value_name = "FILE", requires = "import")]
    pub mounts: Option<PathBuf>,
    /// Print the report as JSON instead of the summary.
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required_unless_present = "import", value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

/// Time file-system calls; started by `profile`, with and without a tracer.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    pub calls: u32,
}

/// Write man pages or shell completions.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    pub what: Generated,
    pub directory: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Generated {
    Man,
    Completions,
}

/// Serve a view; started by `run` and `mount`, with a plan on standard input.
#[derive(Debug, Args)]
pub struct HolderArgs {
    /// Start another holder in its own session, and exit.
    #[arg(long)]
    pub detach: bool,
}

/// Run a program with a mount at a directory that others do not see there; started by `run`.
#[derive(Debug, Args)]
pub struct EnterMountArgs {
    /// The mount.
    pub mount: PathBuf,
    /// The directory.
    pub directory: PathBuf,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Calls `check` for a command and all commands below it that are not hidden.
    fn for_each_command(command: &clap::Command, check: &dyn Fn(&clap::Command)) {
        check(command);
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            for_each_command(below, check);
        }
    }

    #[test]
    fn every_command_and_option_has_help() {
        for_each_command(&Arguments::command(), &|command| {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for option in command.get_opts().filter(|option| !option.is_hide_set()) {
                assert!(option.get_help().is_some(), "{} --{}", command.get_name(), option.get_id());
            }
        });
    }

    #[test]
    fn notes_and_examples_fit_a_page() {
        for_each_command(&Arguments::command(), &|command| {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
        });
    }

    #[test]
    fn bytes_are_numbers_with_or_without_a_unit() {
        for (text, number) in [("0", 0), ("4096", 4096), ("64K", 65536), ("1m", 1 << 20), ("2G", 2 << 30)] {
            assert_eq!(bytes(text), Ok(number));
        }
        for text in ["", "K", "-1", "1.5M", "1T", "16 M", "99999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(kernel_caching("auto"), Ok(KernelCaching::Auto));
        assert_eq!(kernel_caching("none"), Ok(KernelCaching::None));
        assert_eq!(kernel_caching("60"), Ok(KernelCaching::Seconds(60)));
        assert!(["", "0", "61", "-1", "1.5", "Auto"].iter().all(|text| kernel_caching(text).is_err()));
        assert!(buffer_bytes("4095").is_err() && buffer_bytes("1025M").is_err());
        assert_eq!((buffer_bytes("4K"), buffer_bytes("1G")), (Ok(4096), Ok(1 << 30)));
    }
}
