//! The failure of a start: a message, and the exit code that belongs to it.

use std::fmt;

use quell_runtime::Refusal;
use quell_vfs::{Error, ErrorKind};

/// The exit code for wrong input.
const WRONG_INPUT: u8 = 2;
/// The exit code if this node cannot serve the pool.
const CANNOT: u8 = 3;

/// A failure with its exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Returns a failure because of wrong settings.
    pub fn wrong_input(message: impl Into<String>) -> Failure {
        Failure { code: WRONG_INPUT, message: message.into() }
    }

    /// Returns a failure because this node cannot serve the pool.
    pub fn cannot(message: impl Into<String>) -> Failure {
        Failure { code: CANNOT, message: message.into() }
    }

    /// Returns the exit code.
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let is_refused = error.kind == ErrorKind::InvalidInput && !error.is_refused_argument();
        let code = if is_refused { WRONG_INPUT } else { CANNOT };
        Failure { code, message: error.to_string() }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        match refusal {
            Refusal::WrongInput(message) => Failure::wrong_input(message),
            Refusal::Cannot(message) => Failure::cannot(message),
        }
    }
}
