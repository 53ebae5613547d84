//! `quell log`: runs the subcommand.

use std::process::ExitCode;

use crate::arguments::LogCommand;
use crate::commands::{log_flatten, log_fsck, log_list, log_map, log_rebalance, log_transfer};
use crate::failure::Failure;

pub fn run(command: LogCommand, quiet: bool) -> Result<ExitCode, Failure> {
    match command {
        LogCommand::Ls(args) => log_list::list(&args, quiet),
        LogCommand::Stat(args) => log_list::stat(&args),
        LogCommand::Map(args) => log_map::map(&args),
        LogCommand::Query(args) => log_map::query(&args),
        LogCommand::Flatten(args) => log_flatten::run(&args, quiet),
        LogCommand::Fsck(args) => log_fsck::run(&args, quiet),
        LogCommand::Export(args) => log_transfer::export(&args, quiet),
        LogCommand::Import(args) => log_transfer::import(&args, quiet),
        LogCommand::Rebalance(args) => log_rebalance::run(&args, quiet),
    }
}
