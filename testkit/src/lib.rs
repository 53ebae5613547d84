//! Support for tests, not linked into releases: trees described in memory, a reference file system
//! simple enough to be verified by reading, the conformance suite for all implementations of the
//! contract, directories and a store that count operations or inject faults, and the recording and
//! checking of histories of concurrent operations.
//!
//! All random choices come from a seed, so a run can be repeated from one number.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod compare;
pub mod conformance;
mod counting;
mod faulty_dir;
pub mod histories;
mod kernel;
pub mod linearizability;
mod lock_table;
mod memory_dir;
mod memory_store;
mod model;
pub mod operations;
pub mod porcupine;
mod random;
mod real_dir;
pub mod serializability;
mod sparse;
mod tree;
mod writable_model;

pub use counting::{CountingDir, Operation};
pub use faulty_dir::{Fault, Faults, FaultyDir};
pub use kernel::kernel_version;
pub use lock_table::{LockTable, MountOwner};
pub use memory_dir::MemoryDir;
pub use memory_store::{CrashRules, MemoryStore, Refusal, Writeback};
pub use model::Model;
pub use random::Random;
pub use real_dir::{CannotMake, make_on_disk};
pub use tree::{NodeNumber, Tree, TreeNode};
pub use writable_model::WritableModel;
