//! The directories and files of one container, and the cache of descriptors of its logs.

mod data_log;
mod descriptors;
mod directory;
mod flat_index;
mod lock_file;
mod log_directories;
mod object;
mod permissions;
mod pointers;

pub use data_log::{
    Block, Edges, NoEdges, is_frame_whole, read_frame_head, read_payload, torn_blocks, write_frame,
    write_zeros,
};
pub use descriptors::Descriptors;
pub use directory::{Container, ContainerIdentity};
pub(crate) use directory::{LOG_PERMISSIONS, OwnerChange};
pub use flat_index::{Flat, HeldPages};
pub(crate) use lock_file::{LockFile, WHOLE_FILE, with_locks_excluded};
pub(crate) use log_directories::{delete_container, owners_of};
pub(crate) use object::{
    FIRST_EPOCH, OBJECT_PAYLOAD_MAX, begins_as_object, has_owner_and_permissions, rename_object,
    set_attributes,
};
#[cfg(test)]
pub use permissions::dir_permissions;
pub(crate) use permissions::{SET_ID, effective_set_id, may_write, only_drops_set_id};
pub(crate) use pointers::{read_pointer, write_pointer};
