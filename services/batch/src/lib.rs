//! The name space of a store for batches of file operations (BatchFS).
//!
//! [`Names`] has the rules of a name space. [`Entries`] is the interface to the storage of its
//! entries. [`NameSpace`] is the interface for frontends. docs/decisions/0038-batches.md has the
//! design.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod auxiliary;
mod batch;
mod batch_size;
mod certificate;
mod change;
mod check;
mod commit;
mod commit_locks;
mod compaction;
mod conflict_list;
mod entries;
mod entry;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod image;
mod image_copy;
mod initial;
mod key;
mod limits;
mod master_image;
mod memory;
mod memtable;
mod merge;
mod name_space;
mod names;
mod open_snapshots;
mod operations;
mod partition;
mod partition_entries;
mod partition_store;
mod parts;
mod permissions;
mod pinned_tables;
mod primary;
mod private;
mod protocol;
mod readable;
mod reservations;
mod served_snapshot;
mod snapshots;
mod stored;
mod submit;
mod submitted;
mod table;
mod table_dir;
mod table_ref;
mod table_set;
mod task;
mod usage;
mod user_key;
mod user_names;
mod verdict;
mod verify;
mod view;

pub use auxiliary::{Auxiliary, verify_task};
pub use batch::{
    BatchCaller, BatchRecord, BatchState, BatchSummary, Conflict, ConflictReason, Conflicts, Kept, Marker,
    PartState, Prepared, Resolution, Resolved, SummaryState,
};
pub use certificate::{Certificate, CertifiedDir, CertifiedTable, ProofForm};
pub use change::{DataChange, FileSize, InodeChange, XATTRS_BYTES_MAX, XattrChange};
pub use check::{Checked, Problem, ProblemKind, check_tables};
pub use commit::{SubmittedChanges, SubmittedVisitor};
pub use commit_locks::CommitGuard;
pub use entries::{DirRequest, Entries, KeyChange};
pub use entry::{
    ADOPTED_PATH_BYTES_MAX, AdoptedFile, Content, DEPTH_MAX, DataFile, Entry, FILES_OF_USERS, FIRST_INODE,
    INLINE_BYTES_MAX, Inode, ROOT, Timestamp, Xattr,
};
pub use files::TableFiles;
pub use image::Image;
pub use initial::{InitialEntries, InitialTables};
pub use key::{Key, split};
pub use limits::{Limit, LimitChange, NumberChange, Quota, QuotaSubject, UNLIMITED};
pub use master_image::{PartitionCounters, PartitionServers};
pub use memory::MemoryEntries;
pub use name_space::NameSpace;
pub use names::{FoundNode, Names, NewNode, Place, Removed, Renamed};
pub use operations::OperationsWriter;
pub use partition::{Assignment, NewAssignment, Obstacle, PartitionMap, ReturnedChanges, SlotPartitions};
pub use partition_entries::PartitionEntries;
pub use partition_store::PartitionStore;
pub use parts::NewPart;
pub use primary::{AcceptedFile, DataFileVisitor, NewBatch, Primary};
pub use private::{MEMORY_BYTES, NameVisitor, PrivateEntries};
pub use protocol::{
    Attributes, AuxiliarySummary, Bytes, ListedName, PATHS_BYTES_MAX, PATHS_MAX, PROTOCOL, RenameRequest,
    Reply, Request, VerificationResult,
};
pub use readable::{EncodedEntry, EntriesOf, ListedEntries, ReadAccess};
pub use served_snapshot::SnapshotServer;
pub use snapshots::SnapshotSummary;
pub use table::{BlockCache, Table, TableEntries, TableSummary, TableWriter};
pub use table_dir::TableDir;
pub use table_ref::TableRef;
pub use task::VerificationTask;
pub use usage::Usage;
pub use user_key::UserKey;
pub use user_names::UserNames;
pub use verdict::{VERDICT_BYTES_MAX, Verdict};
pub use view::{CopiedChanges, View, open_batch_of_copy};
