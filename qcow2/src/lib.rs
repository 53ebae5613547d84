//! Disk images in QEMU's format qcow2, as far as boot images of virtual machines need it: what a header says, where the
//! clusters of a disk lie, which of them recorded blocks make whole, and the bytes of a new image. Pure: from bytes, or from
//! an open file of the contract, to answers. Whoever wrote the bytes may be hostile, so every number is checked
//! before it is used.
//!
//! The format: docs/interop/qcow2.rst of QEMU. Why no library: docs/decisions/0009-qcow2.md.

mod cluster;
mod damage;
mod header;
mod hot;
mod map;
mod write;

pub use cluster::{Cluster, expand};
pub use damage::Damage;
pub use header::{Backing, Compression, HEADER_BYTES_MAX, Header, Named, is_qcow2, named};
pub use hot::{BLOCK_BYTES, Layer, Source, hot_blocks};
pub use map::{TABLE_BYTES_MAX, visit};
pub use write::{Block, write};
