//! Parallel Index Read (section IV-B of the paper): the reading of a file's logs is divided into shares, and each is read and
//! resolved by itself. Threads share memory; processes exchange their shares as bytes, by whatever means they have. The
//! bytes are a flat index of the share's logs (docs/formats/log.md), and are trusted no more than one.

use std::ops::Range;
use std::sync::Arc;

use quell_fs::{Error, ErrorKind, File, Result};

use crate::container::Container;
use crate::extents::Extent;
use crate::flat::{Flat, FlatLog};
use crate::flatten;
use crate::heads::Head;
use crate::meta::Truncations;
use crate::report;

/// Which of `count` logs share `number` of `shares` has: each log is in one share, and none has two more than another.
pub fn part(count: usize, number: usize, shares: usize) -> Range<usize> {
    let before = |number: usize| (count as u128 * number as u128 / shares.max(1) as u128) as usize;
    before(number)..before(number + 1)
}

/// Reads share `number` of `shares` with so many threads, as bytes for all who read the file.
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

/// A share that somebody has read, every byte checked.
#[derive(Debug)]
pub struct Share {
    flat: Flat,
}

impl Share {
    /// Errors: `Damaged`, also for a share of another file.
    pub fn decode(bytes: Vec<u8>, container: &Head) -> Result<Share> {
        let size = bytes.len() as u64;
        let flat = Flat::open(Box::new(Held(bytes)), size, container, b"a share of an index")?;
        flat.pages().try_for_each(|page| page.map(drop))?;
        Ok(Share { flat })
    }

    /// What it knows of its logs.
    pub fn logs(&self) -> &[FlatLog] {
        self.flat.logs()
    }

    /// The numbers of the truncations that it takes into account, among others.
    pub fn cuts(&self) -> &[u64] {
        self.flat.cuts()
    }

    /// As [`Flat::is_usable`].
    pub fn is_usable(&self, truncations: &Truncations) -> bool {
        self.flat.is_usable(truncations)
    }

    /// All that it has, sorted, some at a time; the logs are numbered as in `logs`.
    pub fn extents(&self) -> impl Iterator<Item = Result<Arc<Vec<Extent>>>> {
        self.flat.pages()
    }
}

/// Bytes in memory, as a file.
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
