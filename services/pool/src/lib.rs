//! The service of one member of a pool: a part of the name space in a key-value store, and a part
//! of the chunks of all files (GekkoFS, section 2.3 of the BigStorage report).
//!
//! The service is a state machine on one thread. Storage, the other members, the clients and the
//! clock are passed to it, so that many members can run in one process under a simulated network.
//! docs/formats/pool.md describes the keys, the identifiers and the messages.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod changes;
mod chunks;
mod counters;
mod counting;
mod creation;
mod data;
mod directories;
mod entries;
mod environment;
mod holds;
mod inline;
mod inode;
mod keys;
mod listing;
mod lock_table;
mod map;
mod marks;
mod member;
mod names;
mod prepared;
mod references;
mod removal;
mod rename;
mod repetition;
mod replication;
mod replies;
mod results;
mod sessions;
#[cfg(test)]
mod simulation;
mod transactions;
mod waiting;
mod xattrs;

pub use chunks::{ChunkDir, ChunkState, Chunks, Space};
pub use environment::{ClientCounts, Clients, Clock, Environment, Peers};
pub use holds::ClientId;
pub use map::PoolMap;
pub use member::Member;
pub use replication::{Backup, BackupDaemons, BackupEvent, Replication, no_backup};
pub use sessions::LEASE;
