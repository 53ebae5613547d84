//! Starts a holder: the side of the command.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::inputs::InputFile;
use crate::protocol::answer::Answer;
use crate::protocol::plan::Plan;
use crate::protocol::transfer::{self, Address};

/// The command of this program that calls [`run_holder`](crate::run_holder), and the option with
/// which it calls [`detach_holder`].
const HOLDER_ARGUMENTS: [&str; 2] = ["holder", "--detach"];

/// The environment variable with the path of the log file.
pub const LOG_FILE_VARIABLE: &str = "QUELL_LOG_FILE";

/// Starts a holder for the plan and waits for its answer. The holder keeps the lock until other
/// processes can find it.
pub fn start_holder(
    plan: &Plan,
    address: &Address,
    files: &[InputFile],
    lock: &File,
) -> Result<Answer, Failure> {
    let (own, theirs) = UnixStream::pair().map_err(cannot_start)?;
    let mut child = Command::new("/proc/self/exe")
        .args(HOLDER_ARGUMENTS)
        .envs(plan.log_file.iter().map(|path| (LOG_FILE_VARIABLE, path)))
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(cannot_start)?;
    transfer::send(plan, address, files, lock, own).map_err(cannot_start)?;
    // The child exits at once. The holder is not a child of this process; it keeps the write end of
    // the pipe open until it has answered.
    let mut answer = String::new();
    child.stdout.take().expect("it was piped").read_to_string(&mut answer).map_err(cannot_start)?;
    child.wait().map_err(cannot_start)?;
    serde_json::from_str(&answer).map_err(|_| Failure::cannot("the holder process ended without an answer; run the command again with --log-file FILE to see why"))
}

/// Starts the holder as a child of this process, which exits at once: the holder must not be a
/// child of the user's program, which did not start it.
pub fn detach_holder() -> Result<(), Failure> {
    quell_overlay::close_inherited_on_exec().map_err(cannot_start)?;
    Command::new("/proc/self/exe").arg(HOLDER_ARGUMENTS[0]).spawn().map_err(cannot_start)?;
    Ok(())
}

fn cannot_start(error: std::io::Error) -> Failure {
    Failure::cannot(format!("cannot start the holder: {error}"))
}
