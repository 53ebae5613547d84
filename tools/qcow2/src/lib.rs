//! Disk images in QEMU's qcow2 format, as far as boot images of virtual machines need it: parsing
//! headers, locating the clusters of a disk, finding the clusters that recorded blocks contain
//! completely, and creating a new image. Pure: the input is bytes, or an open file of the contract.
//! The bytes are untrusted, so every number is checked before it is used.
//!
//! The format: docs/interop/qcow2.rst of QEMU. Reasons for not using a library:
//! docs/decisions/0009-qcow2.md.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cluster;
mod damage;
mod header;
mod hot;
mod map;
mod write;

pub use cluster::{Cluster, expand};
pub use damage::Qcow2Error;
pub use header::{Backing, Compression, HEADER_BYTES_MAX, Header, Named, is_qcow2, named};
pub use hot::{BLOCK_BYTES, BlockSource, Layer, hot_blocks};
pub use map::{TABLE_BYTES_MAX, visit};
pub use write::{Block, write};
