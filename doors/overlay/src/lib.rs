//! The overlay door: the kernel serves a tree's metadata from a tmpfs (or from a FUSE mount of ours)
//! through overlayfs, and its data from the tree itself. No daemon is on the path of any request.
//!
//! The metadata layer holds one empty file for each entry, with `user.overlay.metacopy` and
//! `user.overlay.redirect`, which send the kernel to the data-only layer for the bytes (Linux 6.16 for
//! callers without privilege).

mod descriptors;
mod files;
mod holder;
mod members;
mod metadata;
mod mount;
mod namespace;
mod redirected;

pub use descriptors::close_inherited_on_exec;
pub use files::{FilePart, attach_files};
pub use holder::{
    ANSWER_TIMEOUT, Admission, CoveredTree, Holder, HolderEnd, HolderProcess, Namespaces, Need,
    ViewDirectory, ask, join, lock_key_within, process_of, sweep,
};
pub use members::end_other_members;
pub use metadata::{Ids, Metadata, fill, finish_upper};
pub use mount::{
    Credentials, Layers, Powers, Upper, attach, attach_below, mount_overlay, mount_tmpfs, open_layer,
};
pub use namespace::{Isolation, isolate};
pub use redirected::Redirected;
