//! The `quell` command: parses the command line, runs the command, and prints its result.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod blob_load;
mod boot_images;
mod commands;
mod config;
mod failure;
mod images_beside;
mod indexes;
mod inputs;
mod installed;
mod local_time;
mod metrics_endpoint;
mod output;
mod plans;
mod pool_table;
mod program;
mod program_kind;
mod progress;
mod run_inputs;
mod screen;
mod serving;
mod sizes;
mod staging;
mod stop_condition;
mod store_table;
mod table_cells;
mod top;
mod trace;
mod tracer;
mod traces;
mod users;
mod views;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};
use crate::commands::index::SummaryOutput;
use crate::output::errln;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(e) => return print_usage(&with_escaped_arguments(e)),
    };
    if let Err(failure) = trace::start(arguments.log_file.as_deref()) {
        return exit_code(Err(failure));
    }
    let quiet = arguments.quiet;
    let result = match arguments.command {
        Command::Index(args) => {
            let report = if quiet { SummaryOutput::None } else { SummaryOutput::Stdout };
            commands::index::run(args, quiet, report)
        }
        Command::Boot(command) => commands::boot::run(command, quiet),
        Command::Record(args) => commands::record::run(args, quiet),
        Command::Run(args) => commands::run::run(args, quiet),
        Command::Mount(args) => commands::mount::run(args, quiet),
        Command::Umount(args) => commands::umount::run(args, quiet),
        Command::Log(command) => commands::log::run(command, quiet),
        Command::Pool(command) => commands::pool::run(command, quiet),
        Command::Batch(command) => commands::batch::run(command, quiet),
        Command::Blob(command) => commands::blob::run(command, quiet),
        Command::Job(command) => commands::job::run(command),
        Command::Mpi(command) => commands::mpi::run(command, quiet),
        Command::Verify(args) => commands::verify::run(args, quiet),
        Command::Show(args) => commands::show::run(args),
        Command::Stats(args) => commands::stats::run(args),
        Command::Probe(args) => commands::probe::run(args, quiet),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Profile(args) => commands::profile::run(args, quiet),
        Command::Calibrate(args) => Ok(tracer::calibrate(args.calls)),
        Command::Generate(args) => commands::generate::run(args),
        Command::PoolKeeper => commands::pool_keeper::run(),
        Command::Holder(args) => commands::holder::run(args, quiet),
        Command::EnterMount(args) => commands::run_batch::enter(&args, quiet),
    };
    exit_code(result)
}

/// Returns the same error for the arguments as printable text. The message repeats arguments, which
/// may be names of files with control characters and line ends.
fn with_escaped_arguments(error: clap::Error) -> clap::Error {
    if !error.use_stderr() {
        return error;
    }
    let escaped = std::env::args_os().map(inputs::shown);
    Arguments::try_parse_from(escaped).err().filter(clap::Error::use_stderr).unwrap_or(error)
}

/// Prints the error of a wrong command line, or the requested help.
fn print_usage(error: &clap::Error) -> ExitCode {
    let text = error.render();
    if error.use_stderr() {
        errln!("{}", text.to_string().trim_end());
        return ExitCode::from(failure::WRONG_INPUT);
    }
    match output::is_terminal() {
        true => output::print_coloured(&text.ansi().to_string()),
        false => output::print(format_args!("{text}")),
    }
    exit_code(Ok(ExitCode::SUCCESS))
}

/// Prints a failure. The failure of the command takes precedence over a failure of standard output.
fn exit_code(result: Result<ExitCode, failure::Failure>) -> ExitCode {
    let printed = output::finish();
    match result.and_then(|code| printed.map(|()| code)) {
        Ok(code) => code,
        Err(failure) => {
            let message = failure.to_string();
            if !message.is_empty() {
                errln!("quell: {message}");
            }
            ExitCode::from(failure.code())
        }
    }
}
