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
  quell run --pool scratch=$HOME/scratch -- ./program
  quell pool status scratch
  quell pool down scratch --discard

All daemons of a pool run on one machine. Pools on several machines, copies of
data and mounts of pools are not supported.")]
pub enum PoolCommand {
    Up(PoolUpArgs),
    Ls(PoolLsArgs),
    Status(PoolStatusArgs),
    Env(PoolEnvArgs),
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

/// End the daemons of a pool and remove their data.
///
/// A pool that has files is ended only with --discard; otherwise the exit code is 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell run --pool scratch=$HOME/scratch -- cp -r $HOME/scratch/results /shared/me
  quell pool down scratch --discard")]
pub struct PoolDownArgs {
    /// The name of the pool.
    #[arg(default_value = "pool")]
    pub name: String,
    /// End the pool even if it has files. They are lost.
    #[arg(long)]
    pub discard: bool,
}
