//! The exit codes of commands, and their errors.

use quell_blob::{Error, Refusal};
pub use quell_supervisor::Failure;

/// The exit codes of all commands. `quell run` ends with the exit code of its program.
pub const YES: u8 = 0;
pub const NO: u8 = 1;
pub const WRONG_INPUT: u8 = Failure::WRONG_INPUT;
pub const CANNOT: u8 = Failure::CANNOT;
/// The code by which shells report a program that SIGINT ended.
pub const INTERRUPTED: u8 = Failure::INTERRUPTED;

/// Returns the failure for an error of a store of blobs.
pub fn of_blob(error: Error) -> Failure {
    match error {
        Error::Store(error) => error.into(),
        Error::Refused(Refusal::Failed { failure, .. }) => failure.into_error("commit", b"").into(),
        Error::Refused(refusal) => Failure::cannot(refusal.to_string()),
    }
}
