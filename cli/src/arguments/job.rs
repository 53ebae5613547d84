//! The arguments of `quell job`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

/// Show the nodes of jobs that read their files once (`quell run --job`), and run a launcher whose
/// nodes find one another without the file system.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example:
  quell job run -- srun quell run -i env.quell -b env.boot --job -- ./program
  quell job status
  quell job status --json")]
pub enum JobCommand {
    Run(JobRunArgs),
    Status(JobStatusArgs),
}

/// Run a launcher of parallel jobs. The nodes of its jobs find one another through this command
/// instead of a directory, so a further node finds the others without requests to the file system.
///
/// The launcher must pass the variable QUELL_JOB of its environment to the nodes: `srun`, `flux
/// run` and the mpiexec of MPICH do so, and the mpirun of Open MPI with `-x QUELL_JOB`. The
/// variable contains a key, which only you can read.
///
/// SIGTERM and SIGHUP are passed to the launcher. The exit code is that of the launcher.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  quell job run -- srun quell run -i env.quell -b env.boot --job -- ./program
  quell job run -- mpirun -x QUELL_JOB quell run -i env.quell --job -- ./program")]
pub struct JobRunArgs {
    /// The network interface at which the nodes reach this one, such as ib0 [default: any that is
    /// not the loopback interface].
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// The launcher and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
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
