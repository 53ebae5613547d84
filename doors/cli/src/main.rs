//! The command line: reads what was asked, has the layers and doors do it, says how it went.

mod arguments;
mod commands;
mod failure;
mod inputs;
mod plan;
mod progress;
mod runtime;
mod views;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let quiet = arguments.quiet;
    let result = match arguments.command {
        Command::Index(args) => commands::index::run(args, quiet),
        Command::Run(args) => commands::run::run(args, quiet),
        Command::Mount(args) => commands::mount::run(args, quiet),
        Command::Umount(args) => commands::umount::run(args, quiet),
        Command::Verify(args) => commands::verify::run(args, quiet),
        Command::Show(args) => commands::show::run(args),
        Command::Stats(args) => commands::stats::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Holder(args) => commands::holder::run(args, quiet),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("quell: {failure}");
            failure.exit_code()
        }
    }
}
