//! The report that a holder sends on request, as JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::protocol::plan::IndexMode;

/// What a holder serves, and its counters.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub pid: u32,
    pub mountpoint: Option<PathBuf>,
    pub trees: Vec<TreeReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogReport>,
    /// The path of the message log of a mount's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<PathBuf>,
}

impl Report {
    /// Returns the report as the holder sends it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The report of a log mount.
#[derive(Debug, Serialize, Deserialize)]
pub struct LogReport {
    pub path: PathBuf,
    pub stores: Vec<PathBuf>,
    pub buffer_bytes: u64,
    pub index: IndexMode,
    pub counters: BTreeMap<String, u64>,
}

/// The report of a tree, or of a disk image.
#[derive(Debug, Serialize, Deserialize)]
pub struct TreeReport {
    pub index: PathBuf,
    pub generation: String,
    /// The path at which the view is seen.
    pub path: PathBuf,
    pub source: PathBuf,
    pub view: String,
    /// Why this view was chosen, and not one that comes before it.
    pub reason: String,
    pub entries: u64,
    /// Number of entries compared since the tree was covered, and number of changes found.
    pub looks: u64,
    pub changes: u64,
    /// The view's counters; a view that is served by the kernel alone has none.
    pub counters: Option<BTreeMap<String, u64>>,
}
