//! The internal command `pool-keeper`: the process that is the parent of the launchers of a pool's
//! daemons.

use std::process::ExitCode;

use crate::failure::Failure;

pub fn run() -> Result<ExitCode, Failure> {
    match quell_supervisor::run_pool_keeper() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The command that has started the keeper prints the failure.
        Err(failure) => Ok(ExitCode::from(failure.code())),
    }
}
