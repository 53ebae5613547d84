//! Ordered key-value stores for the servers of pool, batch and blob.
//!
//! [`KeyValue`] is the interface, and states what a commit, a failed commit and a scan guarantee.
//! [`DiskStore`] keeps the entries in a directory of a local disk, [`MemoryStore`] in memory. The
//! bytes of keys and values have no meaning here.
//!
//! The storage engine below [`DiskStore`] is an internal matter of this crate: its types appear in
//! no signature. docs/decisions/0019-key-value-store.md has the reasons for the choice.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod disk;
mod key_value;
mod memory;
mod range;
mod value;

pub use batch::{BATCH_BYTES_MAX, Batch, KEY_BYTES_MAX, OPERATION_BYTES, VALUE_BYTES_MAX};
pub use disk::{DiskOptions, DiskStore, Durability};
pub use key_value::KeyValue;
pub use memory::{MemoryLimit, MemoryStore};
pub use range::KeyRange;
pub use value::Value;
