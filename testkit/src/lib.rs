//! What tests need and no release may link: trees described in memory, a file system simple enough to be
//! obviously right, the promises that every implementation of the contract keeps, and twins of the
//! backing engine that count or break.
//!
//! Everything that looks like chance comes from a seed: one number replays a run.

pub mod broken;
pub mod conformance;
mod counting;
pub mod histories;
mod memory_dir;
mod memory_store;
mod model;
pub mod operations;
mod random;
mod real_dir;
mod sparse;
mod tree;
mod writable_model;

pub use counting::{CountingDir, Operation};
pub use memory_dir::MemoryDir;
pub use memory_store::{CrashRules, MemoryStore, Refusal, Writeback};
pub use model::Model;
pub use random::Random;
pub use real_dir::{CannotMake, make_on_disk};
pub use tree::{Node, NodeNumber, Tree};
pub use writable_model::WritableModel;
