//! How the index of a file of a log mount is made.

use quell_log::Choices;
use serde::{Deserialize, Serialize};

/// With a flattening mode: the largest size of the index logs of a file that is flattened, in
/// bytes, unless the user gives another.
pub const FLATTEN_THRESHOLD_BYTES: u64 = 64 << 20;

/// How the index of a file of a log mount is made when the file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IndexMode {
    /// The last writer to close a file creates one index for all readers.
    Flatten,
    /// As `Flatten`, in the background.
    FlattenLater,
    /// Several threads read the index logs.
    Parallel,
}

impl IndexMode {
    /// Returns the name as in the serialized form.
    pub fn name(self) -> &'static str {
        match self {
            IndexMode::Flatten => "flatten",
            IndexMode::FlattenLater => "flatten-later",
            IndexMode::Parallel => "parallel",
        }
    }

    /// Returns the options of the log layer. `buffer_bytes`: the size of the write buffer of one
    /// process for one file.
    pub fn choices(self, buffer_bytes: usize, flatten_threshold_bytes: u64) -> Choices {
        let common = Choices { buffer_bytes, flatten_bytes: 0, ..Choices::default() };
        match self {
            IndexMode::Flatten => Choices { flatten_bytes: flatten_threshold_bytes, ..common },
            IndexMode::FlattenLater => {
                Choices { flatten_bytes: flatten_threshold_bytes, flattens_later: true, ..common }
            }
            IndexMode::Parallel => common,
        }
    }
}
