//! How a command ends when it did not do what was asked.

use std::fmt;
use std::process::ExitCode;

use quell_fs::{Error, ErrorKind};

/// The exit codes that every command keeps to. `run` ends with its program's own.
pub const YES: u8 = 0;
pub const NO: u8 = 1;
pub const WRONG_INPUT: u8 = 2;
pub const CANNOT: u8 = 3;
/// As a shell says it: ended by SIGINT.
pub const INTERRUPTED: u8 = 130;

/// An exit code and what to print on the way out.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The user asked for something that does not exist or makes no sense.
    pub fn wrong_input(message: impl Into<String>) -> Failure {
        Failure { code: WRONG_INPUT, message: message.into() }
    }

    /// The machine or the file system cannot do it.
    pub fn cannot(message: impl Into<String>) -> Failure {
        Failure { code: CANNOT, message: message.into() }
    }

    pub fn interrupted(message: impl Into<String>) -> Failure {
        Failure { code: INTERRUPTED, message: message.into() }
    }

    /// What another process of ours ended with.
    pub fn of_code(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
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
        Failure { code, message: error.to_string() }
    }
}
