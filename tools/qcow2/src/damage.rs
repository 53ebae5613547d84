//! Errors of reading a qcow2 image.

use std::fmt;

/// Why an image cannot be read.
#[derive(Debug)]
pub enum Damage {
    /// The bytes are not valid.
    Wrong(String),
    /// The image is valid, and uses an unsupported feature.
    Unsupported(String),
    /// The file could not be read.
    Unreadable(quell_vfs::Error),
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

impl From<quell_vfs::Error> for Damage {
    fn from(error: quell_vfs::Error) -> Damage {
        Damage::Unreadable(error)
    }
}

pub(crate) fn wrong<T>(what: impl Into<String>) -> Result<T, Damage> {
    Err(Damage::Wrong(what.into()))
}

pub(crate) fn unsupported<T>(what: impl Into<String>) -> Result<T, Damage> {
    Err(Damage::Unsupported(what.into()))
}
