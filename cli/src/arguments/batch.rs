//! The arguments of `quell batch`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::log::JsonArg;

/// Run the operations of a job in a private name space, then verify and publish all of them at
/// once.
///
/// STORE is a directory on the shared file system, with the names and the data. Only its owner can
/// use it.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  quell batch init /shared/results
  mkdir -p ~/out
  quell mount --batch /shared/results --mode batch ~/out
  tar -xf sources.tar -C ~/out
  # publishes all files at once
  quell umount ~/out
  quell batch status /shared/results")]
pub enum BatchCommand {
    Init(BatchInitArgs),
    Status(BatchStatusArgs),
    Conflicts(BatchConflictsArgs),
    Commit(BatchCommitArgs),
    Abort(BatchAbortArgs),
}

/// Create a store in a directory that does not exist or is empty. Its name space is empty.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch init /shared/results")]
pub struct BatchInitArgs {
    /// The directory.
    pub store: PathBuf,
}

/// List the batches of a store: number, state, new entries, conflicts, name.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch status /shared/results
  quell batch status /shared/results --json")]
pub struct BatchStatusArgs {
    /// The store.
    pub store: PathBuf,
    #[command(flatten)]
    pub output: JsonArg,
}

/// List the changes of a batch that were in conflict with changes of others, with the reasons and
/// the names under which new entries were kept. The exit code is 1 if there are any.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch conflicts /shared/results 7")]
pub struct BatchConflictsArgs {
    /// The store.
    pub store: PathBuf,
    /// The number of the batch.
    pub batch: u64,
    #[command(flatten)]
    pub output: JsonArg,
}

/// Publish a batch whose process ended after it had written its changes, but before it had
/// committed them. `quell umount` commits a batch otherwise.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch commit /shared/results 7")]
pub struct BatchCommitArgs {
    /// The store.
    pub store: PathBuf,
    /// The number of the batch.
    pub batch: u64,
}

/// Discard the changes of a batch that no process uses any more.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell batch abort /shared/results 7")]
pub struct BatchAbortArgs {
    /// The store.
    pub store: PathBuf,
    /// The number of the batch.
    pub batch: u64,
}
