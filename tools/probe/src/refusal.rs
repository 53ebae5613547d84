//! The reasons why a probe does not start or has no result.

use std::fmt;
use std::time::Duration;

use quell_vfs::Error;

/// The reason why a probe does not start or has no result.
#[derive(Debug)]
pub enum Refusal {
    /// The caller may not write to the directory.
    NotWritable(Error),
    /// Too few free inodes or too little space.
    NoSpace(&'static str),
    /// The median latency of the first requests was this long.
    Busy(Duration),
    /// Another probe is running in the directory: the name of its directory and its owner.
    InUse {
        /// The name of its directory.
        name: String,
        /// A description of its owner.
        owner: String,
    },
    /// A call did not return and was given up.
    Unanswered,
    /// Another error.
    Failed(Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotWritable(error) => write!(f, "a probe creates and removes files: {error}"),
            Refusal::NoSpace(what) => write!(f, "too few free {what} here"),
            Refusal::Busy(median) => write!(
                f,
                "the file system takes {} ms for one request: it is busy or slow, and a probe would add load",
                median.as_millis()
            ),
            Refusal::InUse { name, owner } => {
                write!(
                    f,
                    "another probe is running here: {name}, of {owner}; only one at a time may run in a directory"
                )
            }
            Refusal::Unanswered => write!(f, "the file system stopped answering"),
            Refusal::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Refusal::NotWritable(error) | Refusal::Failed(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Failed(error)
    }
}
