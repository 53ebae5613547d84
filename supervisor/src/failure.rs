//! The error type of this crate and of the commands: a message, and the exit code of the command
//! that fails with it.

use std::fmt;

use quell_runtime::Refusal;
use quell_vfs::{Error, ErrorKind};

/// An exit code, and the message to print.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    is_final: bool,
    is_damage: bool,
}

impl Failure {
    /// The exit code for wrong usage or input.
    pub const WRONG_INPUT: u8 = 2;
    /// The exit code for a request that the environment does not allow.
    pub const CANNOT: u8 = 3;
    /// The code by which shells report a program that SIGINT ended.
    pub const INTERRUPTED: u8 = 130;

    /// Returns a failure for input that does not exist or is not valid.
    pub fn wrong_input(message: impl Into<String>) -> Failure {
        Failure::with_code(Failure::WRONG_INPUT, message)
    }

    /// Returns a failure for a file that is refused for a reason that the user must know. The
    /// program is not run without it.
    pub fn refused(message: impl Into<String>) -> Failure {
        Failure { is_final: true, ..Failure::wrong_input(message) }
    }

    /// Returns the same failure, after which the program is not run on the original directory.
    pub fn into_final(self) -> Failure {
        Failure { is_final: true, ..self }
    }

    /// Returns whether the cause is a damaged file. The command can continue without this file.
    pub fn is_damage(&self) -> bool {
        self.is_damage
    }

    /// Returns whether the program must not be run on the original directory.
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// Returns a failure for a request that the machine or the file system does not support.
    pub fn cannot(message: impl Into<String>) -> Failure {
        Failure::with_code(Failure::CANNOT, message)
    }

    /// Returns a failure for work that the user interrupted.
    pub fn interrupted(message: impl Into<String>) -> Failure {
        Failure::with_code(Failure::INTERRUPTED, message)
    }

    /// Returns a failure with the exit code of another Quell process.
    pub fn with_code(code: u8, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), is_final: false, is_damage: false }
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
        let code = match error.kind {
            _ if error.is_refused_argument() => Failure::CANNOT,
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::NameTooLong
            | ErrorKind::Damaged => Failure::WRONG_INPUT,
            _ => Failure::CANNOT,
        };
        Failure { is_damage: error.kind == ErrorKind::Damaged, ..Failure::with_code(code, error.to_string()) }
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

#[cfg(test)]
mod tests {
    use quell_vfs::errno::EINVAL;

    use super::*;

    #[test]
    fn an_invalid_argument_of_the_user_is_wrong_input_and_one_of_a_system_call_is_not() {
        let of_user = Error::new(ErrorKind::InvalidInput, "open", "a");
        assert_eq!(Failure::from(of_user).code(), Failure::WRONG_INPUT);
        let cause = std::io::Error::from_raw_os_error(EINVAL);
        assert_eq!(Failure::from(Error::from_io(cause, "mount", "a")).code(), Failure::CANNOT);
    }
}
