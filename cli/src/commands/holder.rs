//! The internal command `holder`: the process that serves a view or a mount.

use std::process::ExitCode;
use std::sync::Arc;

use crate::arguments::HolderArgs;
use crate::failure::Failure;
use crate::progress::Terminal;

pub fn run(args: HolderArgs, quiet: bool) -> Result<ExitCode, Failure> {
    match args.detach {
        true => quell_supervisor::detach_holder()?,
        false => quell_supervisor::run_holder(Arc::new(Terminal), quiet)?,
    }
    Ok(ExitCode::SUCCESS)
}
