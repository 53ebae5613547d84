//! The report that a holder sends on request, as JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use quell_job::SharedBlocksStatus;
use quell_mount_spec::IndexMode;

use crate::protocol::plan::LocksMode;

/// The views or the mount that a holder serves, with their counters.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct HolderReport {
    /// The process id of the holder.
    pub pid: u32,
    /// The mount point; absent for a view in a namespace.
    pub mountpoint: Option<PathBuf>,
    /// The trees, or the disk image.
    pub trees: Vec<TreeReport>,
    /// The log mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogReport>,
    /// The mount of a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolReport>,
    /// The mount of blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<BlobReport>,
    /// The mount of a store for batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchReport>,
    /// The files of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobReport>,
    /// The path of the message log of a mount's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<PathBuf>,
}

impl HolderReport {
    /// Returns the report as the holder sends it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The report of a log mount.
#[derive(Debug, Serialize, Deserialize)]
pub struct LogReport {
    /// The mount point.
    pub path: PathBuf,
    /// The paths of the stores, in the order of the placement map.
    pub stores: Vec<PathBuf>,
    /// The size of the write buffer of one process for one file, in bytes.
    pub buffer_bytes: u64,
    /// How the index of a file is made.
    pub index: IndexMode,
    /// Where locks are kept. A mount of an earlier version does not report it.
    #[serde(default)]
    pub locks: LocksMode,
    /// The mount is the only user of its store, and the kernel keeps names and attributes.
    #[serde(default)]
    pub only_user: bool,
    /// The counters of the mount, by name.
    pub counters: BTreeMap<String, u64>,
}

/// The report of a mount of a pool.
#[derive(Debug, Serialize, Deserialize)]
pub struct PoolReport {
    /// The name of the pool.
    pub name: String,
    /// The mount point.
    pub path: PathBuf,
    /// The counters of the mount, by name.
    pub counters: BTreeMap<String, u64>,
}

/// The report of a mount of blobs.
#[derive(Debug, Serialize, Deserialize)]
pub struct BlobReport {
    /// The location of the store.
    pub store: String,
    /// The prefix of the names of the blobs.
    pub prefix: String,
    /// The mount point.
    pub path: PathBuf,
    /// The counters of the mount, by name.
    pub counters: BTreeMap<String, u64>,
}

/// The report of a mount of a store for batches.
#[derive(Debug, Serialize, Deserialize)]
pub struct BatchReport {
    /// The path of the store.
    pub store: PathBuf,
    /// The number of the batch; absent in the synchronous mode.
    pub batch: Option<u64>,
    /// The users who may own the store, besides the caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trust_owners: Vec<u32>,
    /// The mount point.
    pub path: PathBuf,
    /// The counters of the mount, by name.
    pub counters: BTreeMap<String, u64>,
}

/// The report of one node of a job that reads its files once.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobReport {
    /// The identifier of the job.
    pub job: String,
    /// The number of this node; 0 is the reader.
    pub node: u32,
    /// The parent of this node; absent if it has read the files itself.
    pub parent: Option<u32>,
    /// The files.
    pub files: Vec<PathBuf>,
    /// The bytes that this node received from other nodes.
    pub received_bytes: u64,
    /// The bytes that it read from the file system.
    pub read_bytes: u64,
    /// The milliseconds until it had all files.
    pub milliseconds: u64,
    /// The nodes that the reader knows; empty if it does not answer.
    pub nodes: Vec<JobNodeReport>,
    /// The shared blocks of this node, if it shares blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_blocks: Option<SharedBlocksStatus>,
}

/// A node of a job, as its reader knows it.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobNodeReport {
    /// The number of the node; 0 is the reader.
    pub node: u32,
    /// Its parent; absent for the reader.
    pub parent: Option<u32>,
    /// Its name.
    pub name: String,
    /// The bytes that it received from other nodes.
    pub received_bytes: u64,
    /// The bytes that it read from the file system.
    pub read_bytes: u64,
    /// The milliseconds until it had all files; absent if it does not have them.
    pub milliseconds: Option<u64>,
}

/// The report of a tree, or of a disk image.
#[derive(Debug, Serialize, Deserialize)]
pub struct TreeReport {
    /// The path of the index file, or of the disk image.
    pub index: PathBuf,
    /// The generation of the index; empty for a disk image.
    pub generation: String,
    /// The path at which the view is seen.
    pub path: PathBuf,
    /// The directory from which data is read.
    pub source: PathBuf,
    /// The name of the view.
    pub view: String,
    /// The reason why this view was chosen, and not a preferred one.
    pub reason: String,
    /// Number of entries in the index.
    pub entries: u64,
    /// Number of entries that were compared since the tree was covered.
    pub looks: u64,
    /// Number of these entries that had changed.
    pub changes: u64,
    /// The view's counters; a view that is served by the kernel alone has none.
    pub counters: Option<BTreeMap<String, u64>>,
}
