//! An open file of a store.

use quell_fs::{
    Attributes, Change, Error, ErrorKind, FileSystem, NodeId, Result, Writable, WritableFile, errno,
};

use crate::owned::Owned;
use crate::store::{How, Store};

/// An open file. Dropping it closes it, and tells nobody of what failed then: [`close`](Self::close) does.
pub struct StoreFile {
    store: Store,
    /// We have one reference to it.
    node: NodeId,
    // A child that dropped it would write what its parent has collected.
    file: Owned<Box<dyn WritableFile>>,
    reads: bool,
    writes: bool,
}

impl std::fmt::Debug for StoreFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreFile").field("node", &self.node).finish_non_exhaustive()
    }
}

impl StoreFile {
    pub(crate) fn new(store: Store, node: NodeId, file: Box<dyn WritableFile>, how: How) -> StoreFile {
        StoreFile { store, node, file: Owned::new(file), reads: how.read, writes: how.write }
    }

    fn reader(&self) -> Result<&dyn WritableFile> {
        let file = self.file.get()?;
        if self.reads { Ok(&**file) } else { Err(refused("read", "opened for writing alone")) }
    }

    fn writer(&self) -> Result<&dyn WritableFile> {
        let file = self.file.get()?;
        if self.writes { Ok(&**file) } else { Err(refused("write", "opened for reading alone")) }
    }

    /// Reads into `into` from `offset`. Fewer bytes than asked only at the end of the file; 0 there and beyond.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.reader()?.read_at(into, offset)
    }

    /// Writes all of `from` at `offset`; after an error any part of it may have been written.
    pub fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.writer()?.write_at(from, offset)
    }

    /// Fills the pieces, each from its own offset, and returns how many bytes each received.
    pub fn read_pieces(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<Vec<usize>> {
        self.reader()?.read_pieces(pieces)
    }

    /// Writes the pieces in order, each at its own offset: a later one wins where two overlap.
    pub fn write_pieces(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.writer()?.write_pieces(pieces)
    }

    /// Writes all of `from` at the end of the file as this process knows it, and returns where that was.
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        self.writer()?.append(from)
    }

    /// What was written so far is there for everybody who opens the file from now on.
    pub fn publish(&self) -> Result<()> {
        self.file.get()?.publish()
    }

    /// As [`publish`](Self::publish), it survives a loss of power, and what others have published is seen from now on.
    pub fn sync(&self) -> Result<()> {
        self.file.get()?.sync()
    }

    pub fn stat(&self) -> Result<Attributes> {
        self.store.fs()?.attributes(self.node)
    }

    /// Makes the file `size_bytes` long: bytes from there on are gone, or it is filled up with zeros.
    pub fn truncate(&self, size_bytes: u64) -> Result<()> {
        self.writer()?;
        let change = Change { size_bytes: Some(size_bytes), ..Change::default() };
        self.store.fs()?.change(self.node, &change).map(drop)
    }

    /// Publishes and closes. In a process that did not open the file nothing is written, and nothing fails.
    pub fn close(self) -> Result<()> {
        if self.writes && self.file.is_ours() { self.publish() } else { Ok(()) }
    }
}

fn refused(operation: &'static str, why: &'static str) -> Error {
    Error { source: Some(why.into()), ..Error::new(ErrorKind::Os(errno::EBADF), operation, "a file") }
}

impl Drop for StoreFile {
    fn drop(&mut self) {
        self.file.close();
        if let Ok(fs) = self.store.fs() {
            fs.forget(self.node, 1);
        }
    }
}
