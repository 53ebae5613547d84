//! The holder: the process that creates a view or a mount, serves it, and ends with its last user.

pub mod batch;
mod blob;
mod boot_images;
mod checked_tree;
mod copies_above;
mod covered_view;
mod disk;
mod disk_boot;
mod handshake;
mod hidden_mounts;
mod in_flight;
mod job;
mod log;
mod messages;
mod only_user;
mod own_mount;
mod pool;
pub(crate) mod privileges;
pub(crate) mod process;
mod process_trees;
pub(crate) mod recording;
mod served;
mod signals;
mod tree_changes;
mod tree_view;
mod writable_layer;
mod writable_mount;
