//! The form in which the files of log stores begin.

use serde::{Deserialize, Serialize};

/// The form in which a log mount, or a program, creates files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewFiles {
    /// As a container: a directory with the logs of each writer.
    Container,
    /// As one object, which gets a container when one is needed.
    Object,
}
