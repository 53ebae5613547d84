//! The directories and files of one container, and the cache of descriptors of its logs.

pub mod container_dir;
pub mod descriptors;
pub mod log_dirs;
pub mod missing;
pub mod scratch;
