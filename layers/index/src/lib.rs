//! The index layer (MetaFS, section 5): a tree's metadata in one file, built once. stat, listings,
//! link targets, attributes and lookups of missing names are answered from it, without another
//! source. Data comes from the tree itself.
//!
//! The format of the file is described in docs/formats/index.md.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod builder;
mod check;
mod compare;
mod encode;
mod file_system;
pub mod format;
mod freshness;
mod image;
mod indexed_file;
mod inode_numbers;
mod patterns;
mod tree;

pub use builder::{BuildOptions, BuildProgress, Trust, Xattrs, build};
pub use check::{Checked, check, check_and_visit};
pub use compare::{Change, Difference, changed_attributes, compare};
pub use encode::encode;
#[doc(hidden)]
pub use encode::reseal;
pub use file_system::{IndexFs, OnChange, Rules};
pub use freshness::{Comparison, Sampler};
pub use image::{EntryId, Generation, Image, IndexDamage, Problem, ROOT, XattrSet};
pub use indexed_file::is_indexed_root;
pub use inode_numbers::InodeNumbers;
pub use patterns::Patterns;
pub use tree::{Listing, Special, Tree};
