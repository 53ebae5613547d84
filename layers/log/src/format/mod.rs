//! Formats of the log layer (docs/formats/log.md): pure functions from bytes to values and back.

pub mod bytes;
pub mod damage;
pub mod data_log;
pub mod extents;
pub mod flat;
pub mod frames;
pub mod heads;
pub mod index_log;
pub mod meta;
pub mod naming;
pub mod runs;
pub mod store_map;
