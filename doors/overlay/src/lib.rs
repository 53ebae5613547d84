//! The overlay door: the kernel serves a tree's metadata from a tmpfs (or from a FUSE mount of ours)
//! through overlayfs, and its data from the tree itself. No daemon is on the path of any request.
//!
//! The metadata layer holds one empty file for each entry, with `user.overlay.metacopy` and
//! `user.overlay.redirect`, which send the kernel to the data-only layer for the bytes (Linux 6.16 for
//! callers without privilege).

mod files;
mod holder;
mod metadata;
mod mount;
mod namespace;
mod redirected;

pub use files::attach_files;
pub use holder::{Admission, Holder, HolderEnd, Namespaces, ask, join, sweep};
pub use metadata::{Ids, Metadata, fill, finish_upper};
pub use mount::{Layers, Upper, attach, mount_overlay, mount_tmpfs, open_layer};
pub use namespace::{Isolation, isolate};
pub use redirected::Redirected;
