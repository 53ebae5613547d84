//! The command line: reads what was asked, has the layers and doors do it, says how it went.

mod arguments;
mod commands;
mod config;
mod ending;
mod failure;
mod freshness;
mod inputs;
mod memory;
mod mounts;
mod notices;
mod plan;
mod progress;
mod runtime;
mod streams;
mod tap;
mod tracer;
mod traces;
mod until;
mod views;
mod whole_check;
mod working_directory;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    end_quietly_without_a_reader();
    let arguments = Arguments::parse();
    let quiet = arguments.quiet;
    let result = match arguments.command {
        Command::Index(args) => commands::index::run(args, quiet, commands::index::Voice::Result),
        Command::Boot(command) => commands::boot::run(command, quiet),
        Command::Record(args) => commands::record::run(args, quiet),
        Command::Run(args) => commands::run::run(args, quiet),
        Command::Mount(args) => commands::mount::run(args, quiet),
        Command::Umount(args) => commands::umount::run(args, quiet),
        Command::Log(command) => commands::log_list::run(command, quiet),
        Command::Verify(args) => commands::verify::run(args, quiet),
        Command::Show(args) => commands::show::run(args),
        Command::Stats(args) => commands::stats::run(args),
        Command::Probe(args) => commands::probe::run(args, quiet),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Profile(args) => commands::profile::run(args, quiet),
        Command::Calibrate(args) => Ok(tracer::calibrate(args.calls)),
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

/// `quell show -r FILE | head`: a reader that has gone is no reason to complain. Rust ignores SIGPIPE and has
/// `println!` panic instead.
fn end_quietly_without_a_reader() {
    let complain = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>();
        if message.is_some_and(|m| m.starts_with("failed printing to stdout") && m.contains("os error 32")) {
            // As a shell shows a program that SIGPIPE ended.
            std::process::exit(141);
        }
        complain(panic);
    }));
}
