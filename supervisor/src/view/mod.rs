//! Chooses and mounts the view of a tree.

pub(crate) mod boot_blocks;
pub(crate) mod credentials;
pub(crate) mod mount;
pub(crate) mod options;
pub(crate) mod selection;
pub(crate) mod shared_blocks;
