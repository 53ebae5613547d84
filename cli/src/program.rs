//! Executes the user's program.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use quell_supervisor::Waiting;

use crate::failure::Failure;
use crate::inputs::shown;
use crate::output::errln;

/// Executes the program in this process, with further variables in its environment, so exit code,
/// signals and terminal are the program's own. Returns only if the program cannot be started.
/// `waiting`: watches the start of the program; its thread ends with this program.
pub fn become_program(
    command: &[OsString],
    outputs: Option<[File; 2]>,
    variables: &[(&str, OsString)],
    waiting: &Waiting,
) -> Result<ExitCode, Failure> {
    let (program, arguments) = command.split_first().expect("clap asks for one");
    let mut command = Command::new(program);
    if let Some([out, err]) = outputs {
        command.stdout(out).stderr(err);
    }
    let variables = variables.iter().map(|(name, value)| (name, value));
    let command = command.args(arguments).envs(variables);
    let error = waiting.watch(Path::new(program), || command.exec());
    errln!("quell: {}: {error}", shown(Path::new(program)));
    Ok(ExitCode::from(start_code(&error)))
}

/// Returns the exit code for a program that could not be started, as shells and env(1) do: 127 if
/// it was not found, else 126.
pub fn start_code(error: &std::io::Error) -> u8 {
    if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }
}
