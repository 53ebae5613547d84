//! The holder's answer to a plan, and the messages of a recording. All of them are lines of JSON.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The holder's answer, sent when the view exists or cannot be created.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// `None`: the view exists. Otherwise the reason why the holder does not serve it.
    pub refused: Option<Refusal>,
}

/// Why a holder does not serve.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Refusal {
    /// The exit code of the command.
    pub code: u8,
    /// The message to print.
    pub message: String,
    /// Whether the program must not be run on the original directory.
    pub is_final: bool,
}

impl From<&Failure> for Refusal {
    fn from(failure: &Failure) -> Refusal {
        Refusal { code: failure.code(), message: failure.to_string(), is_final: failure.is_final() }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let failure = Failure::with_code(refusal.code, refusal.message);
        if refusal.is_final { failure.into_final() } else { failure }
    }
}

/// Identifies the processes that are recorded.
#[derive(Debug, Serialize, Deserialize)]
pub struct RecordingStart {
    /// Their mount namespace, as given by the link /proc/PID/ns/mnt.
    pub namespace: PathBuf,
    /// The process id of the holder, which is in the namespace too and is not recorded.
    pub holder: u32,
}

/// The result of a recording.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RecordingResult {
    /// Why no image was written; the other fields are then 0.
    pub failure: Option<String>,
    /// Number of files that were read in this start.
    pub files: u64,
    /// Number of blocks that were read in this start.
    pub blocks: u64,
    /// Number of files in the image.
    pub image_files: u64,
    /// Number of different blocks in the image that were read in a recording.
    pub image_contents: u64,
    /// Number of blocks in the image that no recording has read.
    pub unread_blocks: u64,
    /// Size of the image, in bytes.
    pub image_bytes: u64,
    /// With `--update`: number of blocks that the older image did not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_blocks: Option<u64>,
    /// Number of files that are not in the image because they were changed or removed.
    pub changed_files: u64,
    /// Number of blocks that are not in the image because they could not be read.
    pub unreadable_blocks: u64,
    /// Number of recordings that are merged in the image.
    pub recordings: u32,
}
