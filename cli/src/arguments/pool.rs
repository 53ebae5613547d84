//! The arguments of `quell pool`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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

All daemons of a pool run on one machine. Pools on several machines, copies of
data and mounts of pools are not supported.")]
pub enum PoolCommand {
    Up(PoolUpArgs),
    Ls(PoolLsArgs),
    Status(PoolStatusArgs),
    Env(PoolEnvArgs),
    StageIn(PoolStageInArgs),
    StageOut(PoolStageOutArgs),
    Down(PoolDownArgs),
}

/// Start a pool on this machine.
///
/// Returns when all daemons serve. They run until `quell pool down`, which also removes their data.
/// If a daemon cannot be started, the others are ended, and the exit code is 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool up --local 1
  quell pool up scratch --local 3 --dir /mnt/ssd")]
pub struct PoolUpArgs {
    /// The name of the new pool: at most 64 letters, digits, '-', '_' and '.'.
    #[arg(default_value = "pool")]
    pub name: String,
    /// Start N daemons on this machine, 1 to 256.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub local: u16,
    /// An existing directory of a local file system. The data of the daemons is in a new directory
    /// below it, to which other users have no access [default: $TMPDIR, or /tmp].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The size of the chunks into which files are divided, in KiB, 4 to 512.
    #[arg(long, value_name = "KIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..=512))]
    pub chunk_kib: u32,
    /// Encrypt the data that the daemons send to each other. Without this option it is protected
    /// against changes, but can be read on the network.
    #[arg(long)]
    pub encrypt: bool,
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
/// The space is the sum of the file systems of all daemons: daemons on one disk count it once each.
/// The exit code is 1 if a daemon does not answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell pool status scratch")]
pub struct PoolStatusArgs {
    /// The name of the pool.
    #[arg(default_value = "pool")]
    pub name: String,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Print the environment variables with which a program sees a pool without `quell run`.
///
/// The variables are QUELL_VIEW and LD_PRELOAD, one in each line.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  export $(quell pool env scratch=$HOME/scratch)
  ./program")]
pub struct PoolEnvArgs {
    /// The name of the pool, and the existing directory in which programs see its files. Without
    /// DIR, it is a directory that belongs to the pool; QUELL_VIEW contains its path.
    #[arg(value_name = "NAME[=DIR]", default_value = "pool")]
    pub pool: String,
}

/// Copy files and directories into a pool.
///
/// Each SRC is copied into DIR under its own last name; of a SRC that ends in `/.` the entries are
/// copied. A file gets its name in DIR after its copy was read back and has the checksum of what
/// was read. Files that DIR has already, with the size and the modification time of the source, are
/// not copied again, so a command that was interrupted is continued by running it again.
///
/// Symbolic links are copied as links, and holes are kept. Each entry that was not copied is
/// printed on standard error, and the exit code is 1 then.
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
}

/// Copy a file or directory out of a pool.
///
/// PATH is copied into DIR under its own last name; of `NAME:/`, and of a PATH that ends in `/.`,
/// the entries are copied. The rules are those of `quell pool stage-in`. Before a complete copy is
/// reported, its data is passed to the storage of DIR (syncfs).
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
}

/// The options of both directions.
#[derive(Debug, Args)]
pub struct StagingArgs {
    /// Number of files, or ranges of large files, that are copied at once.
    #[arg(short = 'j', long = "threads", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Do not read the copies back.
    #[arg(long)]
    pub no_verify: bool,
    /// Compare files that exist with the size and time of the source by content, and copy those
    /// that differ.
    #[arg(long)]
    pub checksum: bool,
    /// Write a line of JSON for each file that is complete, with its path in DIR, size,
    /// modification time and BLAKE3 checksum. Implies --checksum.
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Copy only part I of N of the files, counted from 0. Several processes, on any nodes, copy
    /// the N parts at once. `auto`: the rank and the number of ranks that mpirun or srun have set
    /// in the environment.
    #[arg(long, value_name = "I/N", value_parser = staging_part)]
    pub part: Option<StagingPart>,
    /// Print a line of JSON for each entry that was not copied, and one with the totals.
    #[arg(long)]
    pub json: bool,
}

/// The part of the files that a process copies.
#[derive(Debug, Clone, Copy)]
pub enum StagingPart {
    /// That of the rank of the process.
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

/// End the daemons of a pool and remove their data.
///
/// A pool that has files is ended only after `quell pool stage-out NAME:/ DIR` has copied all of
/// them and nothing was changed since, or with --discard; otherwise the exit code is 1.
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
