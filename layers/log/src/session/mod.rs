//! Open log files: writers, order of their frames, and the extents that a reader resolves.
//!
//! # Locks
//!
//! A thread takes the locks of a mount in this order only. Debug builds check it (`locks::Rank`).
//!
//! | rank | lock | protects | I/O while it is held |
//! |---|---|---|---|
//! | `LockOwner` | `FileLocks`: one owner | the descriptor and the locks of one owner | yes; only threads that lock or unlock for the same owner wait |
//! | `Sync` | `LogFile::synced_changes` | the sync of a file: one thread syncs | yes; threads that sync the same file wait for the result |
//! | `Slots` | `LogFile::writers` | the writer of each process | never |
//! | `Epoch` | `LogFile::epoch` | one thread takes an epoch | yes; only threads that need a later epoch wait |
//! | `MapUpdate` | `Reader::update` | one thread reads index logs or writes a scratch file | yes; only threads that need the data of other nodes wait |
//! | `Writer` | `Writer::state` | the collected frame and the logs of one writer | yes: its owner writes; threads that need its data in the log wait |
//! | `ContainerCreation` | `Container::creating` | one thread creates the container of an object | yes; threads that need the container wait |
//! | `ObjectWriteBack` | `Object::write_back_state` | one thread passes a new object to the file server | yes; threads that need the result wait |
//! | `PlacementMap` | `Stores::looking` | one thread reads a newer placement map and opens its stores | yes; only threads that have seen that the map is old wait |
//! | `Map` | `Reader::map` | the extent map | never |
//! | `Sequencer` | `LogFile::sequencer` | order of frames, collected ranges | never |
//! | `Leaf` | all others | `fs`: nodes, missing names, open files and directories, listings, the flatten queue. `stores`: the list of stores, open log directories. `container`: open data logs, pages of a flat index. `session`: failures, writers that could not end, kept blocks, torn ranges, owners of locks | never |
//!
//! Two locks of one rank are never held together, so no lock is taken while a leaf is held. Files
//! and directories are dropped without a lock, because the last reference to one may close or
//! delete it.

#[cfg(test)]
mod blocked_io_test;
mod buffer;
mod collected;
#[cfg(test)]
mod ending_writer_test;
mod extent_map;
mod failures;
mod file_locks;
mod flatten;
#[cfg(test)]
mod flatten_test;
#[cfg(test)]
mod forged_test;
mod locked_bytes;
mod log_file;
mod log_reader;
mod reader;
mod scan;
mod sequencer;
mod share;
#[cfg(test)]
mod share_test;
mod writer;

pub use extent_map::{ExtentMap, Flattened};
pub use flatten::{flatten, flatten_shares, index_logs, read_share};
pub use log_file::{Choices, LogFile};
pub use scan::{DataLog, IndexEnd, open_data_and_head, visit_batches, visit_frames};
pub use share::Share;
pub use writer::Writer;
