//! Errors of reading a qcow2 image.

use std::fmt;

/// The reason for which an image cannot be read.
#[derive(Debug)]
pub enum Qcow2Error {
    /// The bytes are not valid.
    Wrong(String),
    /// The image is valid, and uses an unsupported feature.
    Unsupported(String),
    /// The file could not be read.
    Unreadable(quell_vfs::Error),
}

impl fmt::Display for Qcow2Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Qcow2Error::Wrong(what) => write!(f, "damaged qcow2: {what}"),
            Qcow2Error::Unsupported(what) => write!(f, "this qcow2 cannot be used: {what}"),
            Qcow2Error::Unreadable(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Qcow2Error {}

impl From<quell_vfs::Error> for Qcow2Error {
    fn from(error: quell_vfs::Error) -> Qcow2Error {
        Qcow2Error::Unreadable(error)
    }
}

pub(crate) fn wrong<T>(what: impl Into<String>) -> Result<T, Qcow2Error> {
    Err(Qcow2Error::Wrong(what.into()))
}

pub(crate) fn unsupported<T>(what: impl Into<String>) -> Result<T, Qcow2Error> {
    Err(Qcow2Error::Unsupported(what.into()))
}
