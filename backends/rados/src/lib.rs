//! RADOS, the object store of Ceph, as a backend of servers.
//!
//! - [`Objects`] is the interface to objects, and states how a caller resolves a lost result.
//!   [`Pool`] implements it with librados, which is loaded at run time: without the library,
//!   [`Pool::open`] returns an error that names its package. [`MemoryObjects`] implements it in
//!   memory, for tests and simulations.
//! - [`GuardedLog`] is a log of records in objects. Only the process that took it over last can
//!   append to it. [`Takeover`] takes it over and reads it.
//! - [`RadosStore`] is a key-value store whose commits are records of such a log.
//! - [`ObjectExtents`] are immutable pieces of data with numbers, to which the entries of a store
//!   refer.
//!
//! docs/formats/rados-log.md has the bytes of the objects and the protocol. Only the module of the
//! binding to librados contains unsafe code.

#![warn(missing_docs)]

mod extent_cache;
mod extent_writer;
mod extents;
mod failure;
mod fields;
mod format;
mod groups;
mod guarded_log;
mod lease;
mod librados;
mod memory;
mod objects;
mod pool;
mod store;

pub use extent_writer::ExtentWriter;
pub use extents::ObjectExtents;
pub use failure::Replaced;
pub use format::log::Record;
pub use format::server::{ADDRESS_BYTES_MAX, ServerRecord, ServerState};
pub use groups::{create_groups, find_secret, group_name, read_groups};
pub use guarded_log::{GuardedLog, LogOptions, Takeover};
pub use lease::{Lease, Observed, Observer, Renewal, read_server, wait_for_end};
pub use memory::{FaultEffect, Faults, MemoryObjects, Object};
pub use objects::{
    ATTRIBUTE_BYTES_MAX, NAME_BYTES_MAX, Objects, PendingRead, PendingWrite, Step, TRANSFER_BYTES_MAX, Write,
};
pub use pool::{Pool, PoolOptions};
pub use store::{CheckpointSummary, RadosStore};
