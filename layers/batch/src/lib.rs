//! Batch layer: a name space of a store for batches, and the data files of the store, as a file
//! system of the contract (BatchFS).
//!
//! The name space is the master image, which several mounts share, or the private name space of a
//! batch. The bytes of a small file are in its inode. A file that becomes larger than
//! [`INLINE_BYTES_MAX`](quell_batch_service::INLINE_BYTES_MAX) gets a data file, and keeps it.
//!
//! | module | content |
//! |---|---|
//! | `access_list` | the access control lists of files in a private store |
//! | `adopted` | the files of the tree that a store has adopted |
//! | `adoption` | the walk through a tree that a new store adopts |
//! | `data` | the data files of the store |
//! | `nodes` | the nodes that callers have references to or have open |
//! | `state` | the known inode and the buffered writes of a file: no I/O |
//! | `shared` | the parts of a mount that its open files use as well |
//! | `content` | reads, writes, appends and truncations of a file |
//! | `file` | an open file |
//! | `file_system` | the file system of the contract |
//! | `subtree` | a directory of a name space as the root of another one |
//! | `store_dir` | the directory of a store |
//! | `store_lock` | the locks of a store |
//! | `store` | a store that this process has open |
//! | `serving` | the execution of the requests of clients on such a store |
//! | `exclusive` | the opening of a store without its server |
//! | `server_files` | the files by which clients find a server |
//! | `auxiliary_servers` | the auxiliary servers that are connected, and their verifications |
//! | `auxiliary_server` | an auxiliary server |
//! | `verification_dir` | the directories in which auxiliary servers write tables |
//! | `served_names` | a name space that another process has, by requests to it |
//! | `name_requests` | the execution of requests on names |
//! | `random` | random numbers |
//! | `remote` | a store that a server has open |
//! | `shared_names` | a name space that this process serves to others on its node |
//! | `local` | the client of such a process |
//! | `file_locks` | the locks of its files |
//! | `access` | the access to a store, in one of these two ways |
//! | `open_batch` | a batch of this process |
//! | `views` | the states of a running batch that other processes see |
//! | `parts`, `part_records` | batches of several parts |
//! | `commit_with_blobs` | the commit of a batch together with a transaction of blobs |
//! | `conflicts` | the conflicts of committed batches, and their resolution |
//! | `incoming` | the batches and data files of other users than the owner |
//! | `copied_batch` | the copy of a batch of another user, before it is verified |
//! | `data_names` | the names of data files |
//! | `data_readers` | the users that can read data files of a private store |
//! | `data_files` | the files below the data directory of a store |
//! | `fsck` | the check of a store |
//! | `garbage` | the files of a store that nothing refers to |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod access_list;
mod adopted;
mod adoption;
mod auxiliary_server;
mod auxiliary_servers;
mod commit_with_blobs;
mod conflicts;
mod content;
mod copied_batch;
mod data;
mod data_files;
mod data_names;
mod data_readers;
mod exclusive;
mod file;
mod file_locks;
mod file_system;
mod fsck;
mod garbage;
mod incoming;
mod local;
mod name_requests;
mod nodes;
mod open_batch;
mod part_records;
mod partition_clients;
mod partition_server;
mod partition_servers;
mod parts;
mod random;
mod remote;
mod served_names;
mod server_files;
mod server_process;
mod serving;
mod shared;
mod shared_names;
mod state;
mod store;
mod store_dir;
mod store_lock;
mod subtree;
mod user_key;
mod verification_dir;
mod views;

pub use access::StoreAccess;
pub use adoption::{Adoption, AdoptionProgress};
pub use auxiliary_server::{AuxiliaryEvent, AuxiliaryServer};
pub use auxiliary_servers::VERIFICATION_LIMIT;
pub use auxiliary_servers::{AuxiliaryServers, SendReply};
pub use commit_with_blobs::{MarkerLocation, TransactionOutcome};
pub use file_system::BatchFs;
pub use fsck::{StoreProblem, fsck, problem_kinds};
pub use garbage::Unused;
pub use local::open_shared_names;
pub use open_batch::{OpenBatch, has_written_changes};
pub use partition_server::ServedPartitions;
pub use partition_servers::PartitionServerSummary;
pub use parts::{PartProgress, part_progress};
pub use quell_batch_service::{BatchSummary, Marker, ProofForm, Resolution, Resolved, SummaryState, UserKey};
pub use server_files::ServerFiles;
pub use server_process::ServerProcess;
pub use serving::{Requester, ServedStore};
pub use shared_names::{Executed, SharedNames};
pub use store::{BatchStore, split_path};
pub use user_key::{derive_user_key, install_user_key};
pub use views::{Refreshed, ViewRequest, WatchedBatch, WatchedName};
