//! Parallel Index Read (section IV-B of the paper): the logs of a file are divided into shares, and
//! each share is read and resolved separately. Threads exchange shares in memory, and processes
//! exchange them as bytes over a transport of their choice. The bytes are a flat index of the
//! share's logs (docs/formats/log.md), and are verified like one.

use std::sync::Arc;

use quell_vfs::{ReadAt, Result};

use crate::container::Flat;
use crate::format::{Extent, FlatLog, Head, Truncations};

/// A share that another process has read. All of its bytes were verified.
#[derive(Debug)]
pub struct Share {
    flat: Flat,
}

impl Share {
    /// Decodes a share.
    ///
    /// # Errors
    ///
    /// `Damaged` if it is not a valid share of this container.
    pub fn decode(bytes: Vec<u8>, container: &Head) -> Result<Share> {
        let size = bytes.len() as u64;
        let flat = Flat::open(Box::new(Held(bytes)), size, container, b"a share of an index")?;
        flat.pages().try_for_each(|page| page.map(drop))?;
        Ok(Share { flat })
    }

    /// Returns the rows of the share's logs.
    pub fn logs(&self) -> &[FlatLog] {
        self.flat.logs()
    }

    /// Returns the numbers of the truncations that the share includes, and of logs of which neither
    /// a batch nor a frame was read.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn truncations(&self) -> &[u64] {
        self.flat.truncations()
    }

    /// Returns true under the same conditions as [`Flat::is_usable`].
    pub fn is_usable(&self, truncations: &Truncations) -> bool {
        self.flat.is_usable(truncations)
    }

    /// Returns all extents, sorted, in groups. Their log numbers are indices into `logs`.
    pub fn extents(&self) -> impl Iterator<Item = Result<Arc<Vec<Extent>>>> {
        self.flat.pages()
    }
}

/// Bytes in memory as a file.
struct Held(Vec<u8>);

impl ReadAt for Held {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..)).unwrap_or_default();
        let length = from.len().min(into.len());
        into[..length].copy_from_slice(&from[..length]);
        Ok(length)
    }
}
