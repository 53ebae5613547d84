//! Stores: placement of containers, the store map, and the directories of the name space.

pub mod newer_map;
pub mod placement;
pub mod store_set;
pub mod tree;
