//! The arguments of `quell pool`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::top::{EndpointArg, TopArgs};
use crate::sizes;

/// Start, describe and end pools: file systems of a job's own on local disks.
///
/// A pool divides its names and data among several daemons. Programs see it with `quell run
/// --pool`.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  quell pool up scratch --local 3
  quell pool stage-in /shared/me/input scratch:/
  quell run --pool scratch=$HOME/scratch -- ./program
  quell pool stage-out scratch:/results /shared/me
  quell pool down scratch --discard

In a job, `quell pool up` starts a daemon on each node, and programs on all of
them see the same files:
  quell pool up
  srun quell run --pool pool -- ./program
  quell pool down --discard")]
pub enum PoolCommand {
    Up(PoolUpArgs),
    Ls(PoolLsArgs),
    Status(PoolStatusArgs),
    Map(PoolMapArgs),
    Top(PoolTopArgs),
    Metrics(PoolMetricsArgs),
    Env(PoolEnvArgs),
    StageIn(PoolStageInArgs),
    StageOut(PoolStageOutArgs),
    Expand(PoolExpandArgs),
    Shrink(PoolShrinkArgs),
    Repair(PoolRepairArgs),
    Down(PoolDownArgs),
}

/// Start a pool: a daemon on each node of a job, or several on this node. Returns when all daemons
/// serve. If a daemon cannot be started, the other daemons are ended, the error message names the
/// node, and the exit code is 2 or 3.
///
/// The nodes of the pool are the nodes of the Slurm, PBS or Flux job of this command, or of
/// --hosts. The daemons end with `quell pool down` on any of the nodes, or when the job ends: a
/// background process of this command, which stays in its session, keeps the connections to them.
/// Daemons that were started with --local run until `quell pool down`. All daemons remove their
/// data when they end.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool up --local 1
  quell pool up scratch --local 3 --dir /mnt/ssd
  quell pool up scratch --local 1 --memory 4G
  # in a job: on all of its nodes
  quell pool up scratch --dir /local
  quell pool up scratch --dir /local --replicas 2
  # with ssh, on the nodes of a file
  quell pool up scratch --hosts nodes.txt --interface ib0

The program quelld must have the same path on all nodes. The value of
QUELL_RUNTIME_DIR in the environment of this command is used on all nodes.")]
pub struct PoolUpArgs {
    /// The name of the new pool: at most 64 letters, digits, '-', '_' and '.'.
    #[arg(default_value = "pool")]
    pub name: String,
    #[command(flatten)]
    pub launch: LaunchArgs,
    /// An existing directory of a local file system on each node. The daemons keep their data in a
    /// new directory below it, to which other users have no access [default: $TMPDIR of the node,
    /// or /tmp].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Keep the data in the memory of the nodes instead of in a directory. Each daemon uses at most
    /// SIZE, a number with a unit such as M, G or T (4G), at least 16M: seven eighths for data,
    /// and one eighth for names and attributes. A write that does not fit fails with ENOSPC.
    /// Requires root, or a system that permits user namespaces.
    #[arg(long, value_name = "SIZE", value_parser = memory_size, conflicts_with = "dir")]
    pub memory: Option<u64>,
    /// The size of the chunks into which files are divided, in KiB, 4 to 512.
    #[arg(long, value_name = "KIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..=512))]
    pub chunk_kib: u32,
    /// Keep COPIES copies of all names and data on different daemons, 1 to 4, so that programs can
    /// continue if a daemon fails. Writes then pass through the daemons.
    #[arg(long, value_name = "COPIES", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4))]
    pub replicas: u16,
    /// When other processes see the size and the times of a file that a process writes: `sync`,
    /// when the write returns; `commit`, when the process closes the file or calls fsync(2), which
    /// saves a request for each write to a file of several chunks.
    #[arg(long, value_enum, default_value_t = PoolConsistency::Sync)]
    pub consistency: PoolConsistency,
    /// Prepare the pool for up to N daemons, so that `quell pool expand` can add some later: N
    /// parts are distributed on the daemons, and a new daemon takes its share of them. Programs
    /// access only the data of the first part of their node without requests. N is 1 to 1024
    /// [default: the number of daemons].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub expand_to: Option<u16>,
    /// Encrypt the data that the daemons send to each other. Without this option it is protected
    /// against changes, but can be read on the network.
    #[arg(long)]
    pub encrypt: bool,
    /// Compress the data that the daemons send to each other, for networks of less than about 1
    /// Gbit/s: `lz4`, or `zstd`, which is smaller and slower. The data on the nodes is not
    /// compressed.
    #[arg(long, value_enum, value_name = "ALGORITHM", default_value_t = PoolCompression::None)]
    pub compress: PoolCompression,
}

/// The compression of the data between daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PoolCompression {
    None,
    Lz4,
    Zstd,
}

/// The daemons to start.
#[derive(Debug, Args)]
pub struct LaunchArgs {
    /// Start N daemons on this node, 1 to 256.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256),
        conflicts_with_all = ["hosts", "nodes", "launcher", "interface", "network"])]
    pub local: Option<u16>,
    /// Start a daemon on each node that is listed in FILE, with one name in each line. The rest of
    /// a line after '#' is a comment.
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
    /// Use only the first N nodes, 1 to 1024.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub nodes: Option<u16>,
    /// The program that starts the daemons: ssh, srun, flux, mpirun, or a command in which {host}
    /// stands for the name of a node, to which the path of quelld is added. It must pass its
    /// standard input to the daemon, and the daemon's output to its own [default: srun in Slurm,
    /// flux in Flux, otherwise ssh].
    #[arg(long, value_name = "COMMAND")]
    pub launcher: Option<String>,
    /// The network interface of each node on which its daemon listens [default: the interface with
    /// the address to which the node's name resolves].
    #[arg(long, value_name = "NAME", conflicts_with = "network")]
    pub interface: Option<String>,
    /// The network on which the daemons listen, such as 10.1.0.0/16.
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub network: Option<String>,
    /// The time limit of the start, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: u32,
}

/// Start more daemons for a running pool, and move parts of the names and data to them. Programs
/// that use the pool continue.
///
/// The nodes of the pool are the nodes of the Slurm, PBS or Flux job of this command, or of
/// --hosts. Nodes that have a daemon are omitted. The pool must have been started with --expand-to,
/// unless it has lost daemons before. Use the command on the node on which the pool was started. If
/// it is interrupted, the pool completes the expansion.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool up scratch --local 2 --expand-to 8
  quell pool expand scratch --local 2
  # in a job: on the nodes that have no daemon yet
  quell pool up scratch --nodes 4 --expand-to 16
  quell pool expand scratch")]
pub struct PoolExpandArgs {
    /// The name of the pool.
    #[arg(default_value = "pool")]
    pub name: String,
    #[command(flatten)]
    pub launch: LaunchArgs,
}

/// Move all names and data away from daemons of a running pool, and end these daemons. Programs on
/// other nodes continue.
///
/// The pool is not changed if a program on one of their nodes uses it, or if the other daemons have
/// too little space. Use the command on the node on which the pool was started. If it is
/// interrupted, the pool completes the change.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool shrink scratch 2 3
  quell pool shrink scratch node17")]
pub struct PoolShrinkArgs {
    /// The name of the pool.
    pub name: String,
    /// The number of a daemon, as `quell pool status` prints it, or the name of its node.
    #[arg(value_name = "DAEMON", required = true, num_args = 1..)]
    pub daemons: Vec<String>,
}

/// Start a daemon on each node whose daemon has failed, and wait until all copies of names and data
/// exist.
///
/// A new daemon takes over the data that only the failed one had, if its directory still exists.
/// The exit code is 3 if a daemon could not be started or if files cannot be used. Use the command
/// on the node on which the pool was started.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool repair scratch")]
pub struct PoolRepairArgs {
    /// The name of the pool.
    #[arg(default_value = "pool")]
    pub name: String,
    /// The time limit of the start of the daemons, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: u32,
}

/// When other processes see the sizes of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PoolConsistency {
    Sync,
    Commit,
}

/// Parses the size of the memory of a daemon. Returns bytes.
fn memory_size(text: &str) -> Result<u64, String> {
    const BYTES_MIN: u64 = 16 << 20;
    match sizes::parse(text)? {
        bytes if bytes >= BYTES_MIN => Ok(bytes),
        _ => Err("a daemon needs at least 16M".into()),
    }
}

/// List the pools of this user on this machine, with the number of their daemons.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool ls
  quell pool ls --json")]
pub struct PoolLsArgs {
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Print the space and the daemons of a pool.
///
/// All daemons are asked. The space of the pool is the sum of their file systems; a file system
/// that several daemons use counts once. The exit code is 1 if a daemon does not answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool status scratch")]
pub struct PoolStatusArgs {
    /// The name of the pool.
    #[arg(default_value = "pool")]
    pub name: String,
    /// The time limit for the answer of each daemon, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub wait_ms: u32,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Print the daemon of each range of bytes of a file of a pool, and the daemon of its attributes.
///
/// The ranges follow from the chunks, also where the file has holes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool map scratch:/results/output.h5")]
pub struct PoolMapArgs {
    /// The pool and the file in it.
    #[arg(value_name = "NAME:/FILE")]
    pub file: String,
    /// Print one JSON object for each range, after one for the attributes.
    #[arg(long)]
    pub json: bool,
}

/// Show the rates of operations and bytes, the latencies and the space of a pool by member, and
/// update them until q or Ctrl-C is pressed. Each daemon has one or several members.
///
/// On a terminal, the table fills the screen. Otherwise it is printed again after each interval.
/// The second line has the rates of each kind of operation; `direct` are accesses of clients to
/// chunks of their node, which send no request. The columns: connections of client processes (one
/// of them may belong to this command); operations of the clients of the daemon, those that have
/// failed, requests of other daemons, and bytes that clients have read and written, all in one
/// second; the time that half and 99 % of the clients' operations did not exceed, rounded up to a
/// power of 2 in microseconds; available space. With --once, the exit code is 1 if a daemon does
/// not answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool top scratch
  # one line of JSON every ten seconds, with the rates and all counters
  quell pool top scratch --interval 10 --json >> top.jsonl")]
pub struct PoolTopArgs {
    /// The name of the pool.
    #[arg(default_value = "pool")]
    pub name: String,
    #[command(flatten)]
    pub top: TopArgs,
}

/// Print the counters of a pool's daemons in the Prometheus text format, or serve them for
/// Prometheus.
///
/// Without --listen, the exit code is 1 if a daemon does not answer. With --listen, the command
/// runs until SIGINT or SIGTERM, and answers `GET /metrics` with counters that are at most 1 s old.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool metrics scratch
  quell pool metrics scratch --listen unix:$XDG_RUNTIME_DIR/scratch.metrics &
  curl --unix-socket $XDG_RUNTIME_DIR/scratch.metrics http://localhost/metrics
  # a port, which every user of this node can read
  quell pool metrics scratch --listen 127.0.0.1:9469")]
pub struct PoolMetricsArgs {
    /// The name of the pool.
    #[arg(default_value = "pool")]
    pub name: String,
    #[command(flatten)]
    pub endpoint: EndpointArg,
}

/// Print the environment variables with which a program sees a pool without `quell run`. The
/// variables are QUELL_VIEW, LD_PRELOAD and QUELL_POOL_DIR, one in each line.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  export $(quell pool env scratch=$HOME/scratch)
  ./program")]
pub struct PoolEnvArgs {
    /// The name of the pool, and the existing directory in which programs see its files. Without
    /// DIR, it is a directory that belongs to the pool; QUELL_POOL_DIR contains its path.
    #[arg(value_name = "NAME[=DIR]", default_value = "pool")]
    pub pool: String,
}

/// Copy files and directories into a pool. Each SRC is copied into DIR under the last component of
/// its path; if SRC ends in `/.`, its entries are copied into DIR. The copy of a file gets its name
/// in DIR after it was read back and its checksum was compared with the checksum of the source. A
/// file that exists in DIR with the size and the modification time of the source is not copied
/// again, so an interrupted command is continued by running it again. Symbolic links are copied as
/// links, and holes are kept. Each entry that was not copied is printed on standard error, and the
/// exit code is then 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool stage-in /shared/me/input scratch:/
  quell pool stage-in /shared/me/input/. scratch:/input --manifest input.jsonl
  # four processes, each of which copies a part
  srun -n 4 quell pool stage-in /shared/me/input scratch:/ --part auto")]
pub struct PoolStageInArgs {
    /// Files and directories to copy.
    #[arg(value_name = "SRC", required = true, num_args = 1..)]
    pub sources: Vec<PathBuf>,
    /// The pool, and a directory in it, which is created if it does not exist.
    #[arg(value_name = "NAME:/DIR")]
    pub destination: String,
    #[command(flatten)]
    pub staging: StagingArgs,
    #[command(flatten)]
    pub part: StagingPartArg,
}

/// Copy a file or directory out of a pool. PATH is copied into DIR under its last component; for
/// `NAME:/`, and if PATH ends in `/.`, the entries are copied into DIR. The rules of
/// `quell pool stage-in` apply. Before the command reports success, the file system of DIR is
/// synced (syncfs).
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool stage-out scratch:/results /shared/me
  quell pool stage-out scratch:/ /shared/me/everything && quell pool down scratch")]
pub struct PoolStageOutArgs {
    /// The pool, and a path in it.
    #[arg(value_name = "NAME:/PATH")]
    pub source: String,
    /// A directory, which is created if it does not exist.
    #[arg(value_name = "DIR")]
    pub destination: PathBuf,
    #[command(flatten)]
    pub staging: StagingArgs,
    #[command(flatten)]
    pub part: StagingPartArg,
}

/// The options of commands that copy trees.
#[derive(Debug, Args)]
pub struct StagingArgs {
    /// The number of files, or of ranges of large files, that are copied at the same time.
    #[arg(short = 'j', long = "threads", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Do not read the copies back.
    #[arg(long)]
    pub no_verify: bool,
    /// Do not copy extended attributes. Without this option, those with names that begin with
    /// "user." are copied.
    #[arg(long)]
    pub no_xattrs: bool,
    /// Compare the content of files that exist with the size and time of the source, and copy files
    /// that differ.
    #[arg(long)]
    pub checksum: bool,
    /// Write one line of JSON to FILE for each complete file, with its path in DIR, size,
    /// modification time and BLAKE3 checksum. Implies --checksum.
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Print a line of JSON for each entry that was not copied, and one with the totals.
    #[arg(long)]
    pub json: bool,
}

/// The part of a copy that a process of a pool's `stage-in` or `stage-out` makes.
#[derive(Debug, Args)]
pub struct StagingPartArg {
    /// Copy only part I of N of the files, counted from 0. Several processes, on any nodes, can
    /// copy the N parts at the same time. `auto`: I is the rank and N the number of ranks that
    /// mpirun, srun or flux have set in the environment.
    #[arg(long, value_name = "I/N", value_parser = staging_part)]
    pub part: Option<StagingPart>,
}

/// The part of the files that a process copies.
#[derive(Debug, Clone, Copy)]
pub enum StagingPart {
    /// The part of the rank of the process.
    Auto,
    /// Part `index` of `count`, with `index` less than `count`.
    Of { index: u32, count: u32 },
}

fn staging_part(text: &str) -> Result<StagingPart, String> {
    if text == "auto" {
        return Ok(StagingPart::Auto);
    }
    let parsed =
        text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
    match parsed.filter(|(index, count)| index < count) {
        Some((index, count)) => Ok(StagingPart::Of { index, count }),
        None => Err("a part is `auto`, or has the form I/N with I from 0 to N - 1".into()),
    }
}

/// End the daemons of a pool, on all nodes, and remove their data. The command can be used on each
/// node with a daemon of the pool. It ends a pool that has files only if `quell pool stage-out
/// NAME:/ DIR` has copied all of them and nothing was changed since, or with --discard; otherwise
/// the exit code is 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool stage-out scratch:/ /shared/me/everything && quell pool down scratch
  # or, if only a part is needed
  quell pool stage-out scratch:/results /shared/me && quell pool down scratch --discard")]
pub struct PoolDownArgs {
    /// The name of the pool.
    #[arg(default_value = "pool")]
    pub name: String,
    /// End the pool even if it has files that were not copied. They are lost.
    #[arg(long)]
    pub discard: bool,
}
