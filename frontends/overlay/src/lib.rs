//! Overlay views: the kernel serves the metadata of a tree from a tmpfs (or from a FUSE mount of
//! Quell) through overlayfs, and its data from the tree itself. With a tmpfs, and data layers that
//! are not FUSE mounts, no Quell process is involved in a request.
//!
//! The metadata layer has one empty file for each regular file. Its attributes
//! `user.overlay.metacopy` and `user.overlay.redirect` direct the kernel to the data-only layer for
//! the data. (Linux 6.16 for callers without privilege.)

#![warn(missing_docs)]

mod copied_directories;
mod descriptors;
mod files;
mod members;
mod metadata;
mod mount;
mod mounted_metadata;
mod namespace;
mod redirected;

pub use copied_directories::{CopiedDirectories, NotCopied, UnattachedCopies};
pub use descriptors::close_inherited_on_exec;
pub use files::{FilePart, attach_files};
pub use members::{end_other_members, other_members};
pub use metadata::{Ids, Metadata, fill, finish_upper};
pub use mount::{
    Credentials, Layers, Powers, Upper, attach, attach_below, mount_bounded_tmpfs, mount_overlay,
    mount_tmpfs, open_layer,
};
pub use mounted_metadata::{FileNow, MountedMetadata, Update};
pub use namespace::{Isolation, Namespaces, isolate};
pub use redirected::Redirected;
