//! Stores: placement of containers, the store map, and the directories of the name space.

mod directories;
mod errors;
mod host;
mod known_objects;
mod log_dir_cache;
mod map_files;
mod map_update;
mod only_user;
mod removal;
mod roles;
mod scratch;
mod set;
mod store;
mod store_list;
mod use_lock;

pub(crate) use directories::{
    create_or_open_dir_for, open_in_all_stores, open_or_create_dir, open_or_create_dir_for,
};
pub use host::Host;
pub use log_dir_cache::Ticket;
pub use map_update::Opener;
#[cfg(test)]
pub(crate) use only_user::OnlyUserPeriods;
pub(crate) use only_user::{CreationState, OnlyUserPeriod};
pub(crate) use removal::{remove_shallow, remove_tree};
pub use roles::Role;
#[cfg(test)]
pub use scratch::EXTENTS_MAX;
pub use scratch::Scratch;
pub use set::Stores;
pub(crate) use store::{FILE_PERMISSIONS, OTHERS_WRITE};
pub use store::{Root, StoreNumber, is_store};
pub(crate) use store_list::StoreList;
