//! The messages between the clients and the server of a store. docs/formats/batch-protocol.md
//! describes them.

use quell_vfs::{Kind, NAME_BYTES_MAX, NewEntry, Rename};
use quell_wire::Failure;
use serde::{Deserialize, Serialize};

use crate::batch::{BatchCaller, BatchRecord, BatchSummary, Conflict, Marker, Resolution, Resolved};
use crate::change::{DataChange, InodeChange};
use crate::entry::{Content, INLINE_BYTES_MAX, Inode, Timestamp};
use crate::limits::{LimitChange, Quota, QuotaSubject};
use crate::names::{FoundNode, NewNode, Place, Removed, Renamed};
use crate::partition::{NewAssignment, PartitionMap, ReturnedChanges};
use crate::readable::{EntriesOf, ListedEntries};
use crate::snapshots::SnapshotSummary;
use crate::task::VerificationTask;
use crate::verdict::VERDICT_BYTES_MAX;

/// The version of the protocol, and of the rules of the verification: an auxiliary server must not
/// verify the batches of a primary server that has other rules.
pub const PROTOCOL: u32 = 8;
/// The largest length of the target of a symbolic link on Linux, in bytes.
const TARGET_BYTES_MAX: usize = 4095;
/// The largest length of the name of a batch, in bytes.
const BATCH_NAME_BYTES_MAX: usize = 255;
/// The largest length of the name of an auxiliary server, in bytes.
const AUXILIARY_NAME_BYTES_MAX: usize = 255;
/// The largest length of the location of a store of blobs, in bytes.
const LOCATION_BYTES_MAX: usize = 8192;
/// The largest length of the name of a blob, in bytes.
const BLOB_NAME_BYTES_MAX: usize = 4096;
/// The largest number of paths of conflicts in a request.
pub const PATHS_MAX: usize = 4096;
/// The largest number of bytes of these paths together, and of the new path of an entry.
pub const PATHS_BYTES_MAX: usize = 128 << 10;
/// The largest number of supplementary groups of a process on Linux.
const GROUPS_MAX: usize = 65_536;

/// A request of a client. The requests on names correspond to the methods of
/// [`NameSpace`](crate::NameSpace).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // docs/formats/batch-protocol.md has the fields
pub enum Request {
    Hello { protocol: u32 },
    Lookup { dir: u64, name: Bytes },
    Find { number: u64, place: Place },
    Parent { dir: u64 },
    List { dir: u64, after: Bytes },
    Create { dir: u64, name: Bytes, node: NewNode, new: Attributes, now: Timestamp },
    Link { number: u64, place: Place, dir: u64, name: Bytes, now: Timestamp },
    Remove { dir: u64, name: Bytes, now: Timestamp },
    RemoveDir { dir: u64, name: Bytes, now: Timestamp },
    Rename(RenameRequest),
    Change { number: u64, place: Place, change: InodeChange, now: Timestamp },
    Sync,
    Begin { name: String, caller: BatchCaller, subtree: u64, is_atomic: bool },
    Commit { batch: u64 },
    Abort { batch: u64 },
    Batches { after: u64 },
    Conflicts { batch: u64, from: u64 },
    Counters,
    Snapshots { after: u64 },
    Submit { batch: u64 },
    BeginForParts { name: String, caller: BatchCaller, subtree: u64, is_atomic: bool },
    Join { batch: u64, name: String, caller: BatchCaller },
    NextVerification { name: String },
    Verdict { verification: u64, result: VerificationResult },
    AuxiliaryServers,
    Prepare { batch: u64, marker: Marker },
    Publish { batch: u64, marker: String },
    RollBack { batch: u64, marker: String },
    Quotas { from: u64 },
    Quota,
    SetLimit { subject: QuotaSubject, change: LimitChange },
    Resolve { batch: u64, paths: Option<Vec<Bytes>>, resolution: Resolution },
    Record { batch: u64 },
    Entries { batch: u64, dir: u64, of: EntriesOf },
    TakeBack { dir: u64 },
    AwaitDivision { dir: u64 },
    Assign(Box<NewAssignment>),
    GiveBack { number: u64 },
    Forget { number: u64 },
    Touched { dir: u64, number: u64 },
}

/// The end of a verification by an auxiliary server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum VerificationResult {
    /// The encoded [verdict](crate::Verdict).
    Verified(Bytes),
    /// The error. `InvalidInput`: the batch is refused.
    Failed(Failure),
}

/// An auxiliary server that is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuxiliarySummary {
    /// The name that the auxiliary server has given itself.
    pub name: String,
    /// The number of the batch or part that it verifies at present.
    pub batch: Option<u64>,
    /// The number of verifications that it has completed.
    pub verified: u64,
    /// The number of verifications that it could not complete.
    pub failed: u64,
}

/// Bytes of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// The attributes of a new entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Attributes {
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
}

/// A rename.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RenameRequest {
    pub from_dir: u64,
    pub from: Bytes,
    pub to_dir: u64,
    pub to: Bytes,
    #[serde(with = "RenameMode")]
    pub mode: Rename,
    pub now: Timestamp,
}

/// The encoding of [`Rename`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Rename")]
enum RenameMode {
    Replace,
    Keep,
    Exchange,
}

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Reply {
    Welcome {
        store: u128,
    },
    Failed(Failure),
    Found(Option<FoundNode>),
    Parent {
        dir: u64,
        name: Bytes,
    },
    /// The next names of a directory, and whether they are the last ones.
    Names {
        names: Vec<ListedName>,
        is_last: bool,
    },
    Removed(Removed),
    Renamed(Renamed),
    Changed(Inode),
    Done,
    /// A batch that has begun, or the record of an open batch.
    Begun(BatchRecord),
    Batch(BatchSummary),
    /// The next batches, and whether they are the last ones.
    Batches {
        batches: Vec<BatchSummary>,
        is_last: bool,
    },
    Conflicts {
        conflicts: Vec<Conflict>,
        is_last: bool,
    },
    Counters(Vec<(String, u64)>),
    /// The next snapshots, and whether they are the last ones.
    Snapshots {
        snapshots: Vec<SnapshotSummary>,
        is_last: bool,
    },
    /// A batch, or a part of one, that the auxiliary server is to verify.
    Verification {
        verification: u64,
        task: Box<VerificationTask>,
    },
    AuxiliaryServers(Vec<AuxiliarySummary>),
    /// The next quotas, and whether they are the last ones.
    Quotas {
        quotas: Vec<Quota>,
        is_last: bool,
    },
    /// The quota of the whole store. `None` if the name space checks no limit before a commit.
    Quota(Option<Quota>),
    Resolved(Resolved),
    /// Entries of the snapshot of a batch.
    Entries(ListedEntries),
    /// The servers of a directory: a partition server executes the request.
    Partitions(PartitionMap),
    /// The partition server does not execute the operations on the name.
    NotAssigned,
    /// The partition server cannot execute the request, which concerns more than one partition.
    NeedsPrimary,
    Returned(ReturnedChanges),
    /// The time of the last change of the names of a directory by a partition server.
    Touched(Option<Timestamp>),
}

/// A name of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ListedName {
    pub name: Bytes,
    pub number: u64,
    /// The type bits of `st_mode`.
    pub type_bits: u32,
}

impl From<NewEntry> for Attributes {
    fn from(NewEntry { permissions, uid, gid }: NewEntry) -> Attributes {
        Attributes { permissions, uid, gid }
    }
}

impl From<Attributes> for NewEntry {
    fn from(Attributes { permissions, uid, gid }: Attributes) -> NewEntry {
        NewEntry { permissions, uid, gid }
    }
}

impl ListedName {
    /// Returns the kind of the entry, if the type bits are valid.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_mode(self.type_bits)
    }
}

impl Request {
    /// Returns whether all parts of the request are within their limits. The name space checks
    /// everything that depends on its state.
    pub fn is_within_limits(&self) -> bool {
        match self {
            Request::Hello { .. }
            | Request::Parent { .. }
            | Request::Sync
            | Request::Commit { .. }
            | Request::Abort { .. }
            | Request::Batches { .. }
            | Request::Conflicts { .. }
            | Request::Counters
            | Request::Snapshots { .. }
            | Request::Submit { .. }
            | Request::Quotas { .. }
            | Request::Quota
            | Request::SetLimit { .. }
            | Request::Record { .. }
            | Request::TakeBack { .. }
            | Request::AwaitDivision { .. }
            | Request::GiveBack { .. }
            | Request::Forget { .. }
            | Request::Touched { .. }
            | Request::AuxiliaryServers => true,
            Request::Assign(new) => new.is_valid(),
            // The name space returns the error for a name that is too long.
            Request::Lookup { .. } | Request::Remove { .. } | Request::RemoveDir { .. } => true,
            Request::Find { place, .. } | Request::Link { place, .. } => is_place(place),
            Request::List { after, .. } => after.0.len() <= NAME_BYTES_MAX,
            Request::Create { node, .. } => match node {
                NewNode::Symlink(target) => (1..=TARGET_BYTES_MAX).contains(&target.len()),
                NewNode::File | NewNode::Dir => true,
            },
            Request::Rename(rename) => rename.from.0.len() <= NAME_BYTES_MAX,
            Request::Change { place, change, .. } => is_place(place) && is_change(change),
            Request::Begin { name, caller, .. }
            | Request::BeginForParts { name, caller, .. }
            | Request::Join { name, caller, .. } => {
                name.len() <= BATCH_NAME_BYTES_MAX && caller.groups.len() <= GROUPS_MAX
            }
            Request::Prepare { marker, .. } => {
                marker.location.len() <= LOCATION_BYTES_MAX && marker.blob.len() <= BLOB_NAME_BYTES_MAX
            }
            Request::Publish { marker, .. } | Request::RollBack { marker, .. } => {
                marker.len() <= BLOB_NAME_BYTES_MAX
            }
            Request::Resolve { paths, resolution, .. } => {
                let is_new_path = match resolution {
                    Resolution::Rename(path) => path.len() <= PATHS_BYTES_MAX,
                    Resolution::Mine | Resolution::Theirs => true,
                };
                is_new_path && paths.as_ref().is_none_or(|paths| are_paths(paths))
            }
            Request::Entries { of, .. } => match of {
                EntriesOf::Inode => true,
                EntriesOf::Name(name) => (1..=NAME_BYTES_MAX).contains(&name.len()),
                EntriesOf::NamesAfter(after) => after.len() <= NAME_BYTES_MAX,
            },
            Request::NextVerification { name } => name.len() <= AUXILIARY_NAME_BYTES_MAX,
            Request::Verdict { result, .. } => match result {
                VerificationResult::Verified(verdict) => verdict.0.len() <= VERDICT_BYTES_MAX,
                VerificationResult::Failed(_) => true,
            },
        }
    }

    /// Returns the directory and the name of an operation on one name, which a partition server can
    /// execute.
    pub fn partition_name(&self) -> Option<(u64, &[u8])> {
        match self {
            Request::Lookup { dir, name }
            | Request::Remove { dir, name, .. }
            | Request::Create { dir, name, node: NewNode::File | NewNode::Symlink(_), .. } => {
                Some((*dir, &name.0))
            }
            Request::Find { place: Place::Name { dir, name }, .. }
            | Request::Change { place: Place::Name { dir, name }, .. } => Some((*dir, name)),
            _ => None,
        }
    }

    /// Sets the time of a change, which the client has taken from its own clock.
    pub fn set_time(&mut self, time: Timestamp) {
        match self {
            Request::Create { now, .. }
            | Request::Link { now, .. }
            | Request::Remove { now, .. }
            | Request::RemoveDir { now, .. }
            | Request::Change { now, .. }
            | Request::Rename(RenameRequest { now, .. }) => *now = time,
            Request::Hello { .. }
            | Request::Lookup { .. }
            | Request::Find { .. }
            | Request::Parent { .. }
            | Request::List { .. }
            | Request::Sync
            | Request::Begin { .. }
            | Request::Commit { .. }
            | Request::Abort { .. }
            | Request::Batches { .. }
            | Request::Conflicts { .. }
            | Request::Counters
            | Request::Snapshots { .. }
            | Request::Submit { .. }
            | Request::BeginForParts { .. }
            | Request::Join { .. }
            | Request::NextVerification { .. }
            | Request::Verdict { .. }
            | Request::AuxiliaryServers
            | Request::Prepare { .. }
            | Request::Publish { .. }
            | Request::Quotas { .. }
            | Request::Quota
            | Request::SetLimit { .. }
            | Request::Resolve { .. }
            | Request::Record { .. }
            | Request::Entries { .. }
            | Request::TakeBack { .. }
            | Request::AwaitDivision { .. }
            | Request::Assign(_)
            | Request::GiveBack { .. }
            | Request::Forget { .. }
            | Request::Touched { .. }
            | Request::RollBack { .. } => {}
        }
    }

    /// Returns whether a second execution has the same result as the first one, unless other
    /// requests were executed in between.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Request::Hello { .. }
            | Request::Lookup { .. }
            | Request::Find { .. }
            | Request::Parent { .. }
            | Request::List { .. }
            | Request::Sync
            | Request::Commit { .. }
            | Request::Abort { .. }
            | Request::Batches { .. }
            | Request::Conflicts { .. }
            | Request::Counters
            | Request::Snapshots { .. }
            | Request::Submit { .. }
            | Request::AuxiliaryServers
            | Request::Prepare { .. }
            | Request::Publish { .. }
            | Request::Quotas { .. }
            | Request::Quota
            | Request::SetLimit { .. }
            | Request::Record { .. }
            | Request::Entries { .. }
            | Request::TakeBack { .. }
            | Request::AwaitDivision { .. }
            | Request::Assign(_)
            | Request::GiveBack { .. }
            | Request::Forget { .. }
            | Request::Touched { .. }
            | Request::RollBack { .. } => true,
            Request::Create { .. }
            | Request::Link { .. }
            | Request::Remove { .. }
            | Request::RemoveDir { .. }
            | Request::Rename(_)
            | Request::Change { .. }
            | Request::Begin { .. }
            | Request::BeginForParts { .. }
            | Request::Join { .. }
            | Request::NextVerification { .. }
            | Request::Resolve { .. }
            | Request::Verdict { .. } => false,
        }
    }
}

fn are_paths(paths: &[Bytes]) -> bool {
    let bytes: usize = paths.iter().map(|Bytes(path)| path.len()).sum();
    (1..=PATHS_MAX).contains(&paths.len()) && bytes <= PATHS_BYTES_MAX
}

fn is_place(place: &Place) -> bool {
    match place {
        Place::Name { name, .. } => (1..=NAME_BYTES_MAX).contains(&name.len()),
        Place::Dir(_) | Place::Linked(_) => true,
    }
}

fn is_change(change: &InodeChange) -> bool {
    let is_content = |content: &Content| match content {
        Content::Empty | Content::File(_) => true,
        Content::Inline(bytes) => bytes.len() <= INLINE_BYTES_MAX,
        Content::Target(_) | Content::Parent { .. } | Content::Adopted(_) | Content::Hidden => false,
    };
    let is_present = |content: &Content| match content {
        Content::Adopted(file) => file.has_valid_path(),
        content => is_content(content),
    };
    let is_data = match &change.data {
        Some(DataChange::Replace { expected, new, .. }) => is_present(expected) && is_content(new),
        // The ends of writes and appends are checked when they are applied.
        None | Some(DataChange::Inline { .. } | DataChange::File(..)) => true,
    };
    // Extended attributes are checked when they are applied.
    let is_time = change.modified.is_none_or(|Timestamp(_, nanoseconds)| nanoseconds < 1_000_000_000);
    is_data && is_time
}
