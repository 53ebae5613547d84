//! Parallel Index Read (section IV-B of the paper): the logs of a file are divided into shares, and
//! each share is read and resolved separately. Threads exchange shares in memory, and processes
//! exchange them as bytes over a transport of their choice. The bytes are a flat index of the
//! share's logs (docs/formats/log.md), and are verified like one.

use std::ops::Range;
use std::sync::Arc;

use quell_vfs::{Error, ErrorKind, File, Result};

use crate::container::container_dir::Container;
use crate::format::extents::Extent;
use crate::format::flat::{Flat, FlatLog};
use crate::format::heads::Head;
use crate::format::meta::Truncations;
use crate::session::flatten;
use crate::tools::report;

/// Returns the indices of the logs, out of `count`, in share `number` of `shares`. Each log is in
/// exactly one share, and the sizes of the shares differ by at most one.
pub fn part(count: usize, number: usize, shares: usize) -> Range<usize> {
    let before = |number: usize| (count as u128 * number as u128 / shares.max(1) as u128) as usize;
    before(number)..before(number + 1)
}

/// Reads share `number` of `shares` with `threads` threads, and encodes it for the other readers of
/// the file.
pub fn read(container: &Container, number: usize, shares: usize, threads: usize) -> Result<Vec<u8>> {
    if number >= shares {
        return Err(Error::new(ErrorKind::InvalidInput, "read share", format!("{number} of {shares}")));
    }
    let summary = container.summary()?.part(number, shares);
    let view = report::view_of(container, &summary, threads)?;
    let mut bytes = Vec::new();
    let put = |pieces: &[&[u8]], _| {
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        Ok(())
    };
    flatten::write(&view, container.head(), put)?;
    Ok(bytes)
}

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

    /// Returns the numbers of the truncations that the share includes, and of logs of which nothing
    /// is known.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn cuts(&self) -> &[u64] {
        self.flat.cuts()
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

impl File for Held {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..)).unwrap_or_default();
        let length = from.len().min(into.len());
        into[..length].copy_from_slice(&from[..length]);
        Ok(length)
    }
}

#[cfg(test)]
#[path = "share_test.rs"]
mod tests;
