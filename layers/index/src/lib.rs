//! The index layer (MetaFS, section 5): a tree's metadata in one file, built once, from which stat,
//! listings, link targets, attributes and negative answers are given with no other source. Data comes
//! from the tree itself.
//!
//! The file is drawn in docs/formats/index.md.

mod builder;
mod check;
mod compare;
mod encode;
mod file_system;
pub mod format;
mod freshness;
mod image;
mod opened;
mod tree;

pub use builder::{BuildOptions, Progress, Trust, Xattrs, build};
pub use check::{Checked, check};
pub use compare::{Change, Difference, changed_attributes, compare};
pub use encode::encode;
#[doc(hidden)]
pub use encode::reseal;
pub use file_system::{IndexFs, OnChange, Rules};
pub use freshness::Sampler;
pub use image::{Damage, EntryId, Generation, Image, Problem, ROOT, XattrSet};
pub use tree::{Listing, Special, Tree};
