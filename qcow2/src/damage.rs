//! Why bytes are not a qcow2 image that can be read, or why it could not be read at all.

use std::fmt;

/// What is wrong.
#[derive(Debug)]
pub enum Damage {
    /// The bytes make no sense.
    Wrong(String),
    /// They make sense and ask for what is not done here.
    Unsupported(String),
    /// The file could not be read.
    Unreadable(quell_fs::Error),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Wrong(what) => write!(f, "damaged qcow2: {what}"),
            Damage::Unsupported(what) => write!(f, "this qcow2 cannot be used: {what}"),
            Damage::Unreadable(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Damage {}

impl From<quell_fs::Error> for Damage {
    fn from(error: quell_fs::Error) -> Damage {
        Damage::Unreadable(error)
    }
}

pub(crate) fn wrong<T>(what: impl Into<String>) -> Result<T, Damage> {
    Err(Damage::Wrong(what.into()))
}

pub(crate) fn unsupported<T>(what: impl Into<String>) -> Result<T, Damage> {
    Err(Damage::Unsupported(what.into()))
}
