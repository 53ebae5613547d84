//! Exit codes and error messages of failed commands.

use std::fmt;
use std::process::ExitCode;

use quell_vfs::{Error, ErrorKind};

/// The exit codes of all commands. `run` ends with its program's own.
pub const YES: u8 = 0;
pub const NO: u8 = 1;
pub const WRONG_INPUT: u8 = 2;
pub const CANNOT: u8 = 3;
/// The code by which shells report a program that SIGINT ended.
pub const INTERRUPTED: u8 = 130;

/// An exit code, and the message to print.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    is_final: bool,
    is_damage: bool,
}

impl Failure {
    /// Returns a failure for input that does not exist or is not valid.
    pub fn wrong_input(message: impl Into<String>) -> Failure {
        Failure::of_code(WRONG_INPUT, message)
    }

    /// Returns a failure for a file that is refused for a reason that the user must know. The
    /// program is not run without it.
    pub fn refused(message: impl Into<String>) -> Failure {
        Failure { is_final: true, ..Failure::wrong_input(message) }
    }

    /// Returns the same failure, after which the program is not run on the original directory.
    pub fn and_final(self) -> Failure {
        Failure { is_final: true, ..self }
    }

    /// Returns whether a file of the right format is damaged, so that the command can continue
    /// without it.
    pub fn is_damage(&self) -> bool {
        self.is_damage
    }

    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// Returns a failure for a request that the machine or the file system does not support.
    pub fn cannot(message: impl Into<String>) -> Failure {
        Failure::of_code(CANNOT, message)
    }

    pub fn interrupted(message: impl Into<String>) -> Failure {
        Failure::of_code(INTERRUPTED, message)
    }

    /// Returns a failure with the exit code of another Quell process.
    pub fn of_code(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), is_final: false, is_damage: false }
    }

    pub fn code(&self) -> u8 {
        self.code
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match error.kind {
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::NameTooLong
            | ErrorKind::Damaged => WRONG_INPUT,
            _ => CANNOT,
        };
        Failure { is_damage: error.kind == ErrorKind::Damaged, ..Failure::of_code(code, error.to_string()) }
    }
}
