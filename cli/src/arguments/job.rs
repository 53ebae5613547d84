//! The arguments of `quell job`.

use clap::{Args, Subcommand};

/// Show the nodes of jobs that read their files once (`quell run --job`).
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  quell job status
  quell job status --json")]
pub enum JobCommand {
    Status(JobStatusArgs),
}

/// Show the tree of each job of yours that runs on this node.
///
/// For each node: its parent in the tree, the bytes that it received from other nodes and read from
/// the file system, and the time until it had all files.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell job status
  ssh n7 quell job status --json

The exit code is 1 if no such job of yours runs on this node.")]
pub struct JobStatusArgs {
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}
