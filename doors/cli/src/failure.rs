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
    is_final: bool,
    is_damage: bool,
}

impl Failure {
    /// The user asked for something that does not exist or makes no sense.
    pub fn wrong_input(message: impl Into<String>) -> Failure {
        Failure::of_code(WRONG_INPUT, message)
    }

    /// A file that is not used for a reason that the user has to know: no program is run without it.
    pub fn refused(message: impl Into<String>) -> Failure {
        Failure { is_final: true, ..Failure::wrong_input(message) }
    }

    /// The same failure, after which no program is run on the original directory.
    pub fn and_final(self) -> Failure {
        Failure { is_final: true, ..self }
    }

    /// A file of the right format is damaged: what it is for can be done without it.
    pub fn is_damage(&self) -> bool {
        self.is_damage
    }

    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// The machine or the file system cannot do it.
    pub fn cannot(message: impl Into<String>) -> Failure {
        Failure::of_code(CANNOT, message)
    }

    pub fn interrupted(message: impl Into<String>) -> Failure {
        Failure::of_code(INTERRUPTED, message)
    }

    /// What another process of ours ended with.
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
