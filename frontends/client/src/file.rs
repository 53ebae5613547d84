//! An open file.

use std::sync::Arc;
use std::time::Duration;

use quell_vfs::{
    Attributes, Change, Context, Error, ErrorKind, FileLocks, LockMode, LockOwner, LockScope, NodeId, Result,
    Writable, WritableFile, errno,
};

use crate::open_options::OpenOptions;
use crate::owned::Owned;

/// The first and the longest pause between two attempts to take a lock that another owner holds.
const LOCK_PAUSE: Duration = Duration::from_micros(100);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(10);

/// An open file. Dropping it closes it without reporting errors; [`close`](Self::close) reports
/// them.
pub struct ClientFile {
    fs: Arc<Owned<Arc<dyn Writable>>>,
    /// This object has one reference to the node.
    node: NodeId,
    // In a child process, dropping the file would write the data that its parent has buffered.
    file: Owned<Box<dyn WritableFile>>,
    reads: bool,
    writes: bool,
}

impl std::fmt::Debug for ClientFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientFile").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ClientFile {
    pub(crate) fn new(
        fs: Arc<Owned<Arc<dyn Writable>>>,
        node: NodeId,
        file: Box<dyn WritableFile>,
        options: OpenOptions,
    ) -> ClientFile {
        ClientFile { fs, node, file: Owned::new(file), reads: options.read, writes: options.write }
    }

    fn reader(&self) -> Result<&dyn WritableFile> {
        let file = self.file.get()?;
        if self.reads { Ok(&**file) } else { Err(refused("read", "the file was not opened for reading")) }
    }

    fn writer(&self) -> Result<&dyn WritableFile> {
        let file = self.file.get()?;
        if self.writes { Ok(&**file) } else { Err(refused("write", "opened for reading alone")) }
    }

    /// Reads into `into` from `offset` (bytes) and returns the number of bytes read. It is less
    /// than requested only if the file ends there, and 0 at and beyond the end.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.reader()?.read_at(into, offset)
    }

    /// Writes all of `from` at `offset` (bytes). After an error, any part of it may have been
    /// written.
    pub fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.writer()?.write_at(from, offset)
    }

    /// Reads several ranges, each from its own offset, and returns the number of bytes read for
    /// each.
    pub fn read_pieces(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<Vec<usize>> {
        self.reader()?.read_pieces(pieces)
    }

    /// Writes several ranges in order, each at its own offset. Where two overlap, the later one
    /// remains.
    pub fn write_pieces(&self, pieces: &[(u64, &[u8])]) -> Result<()> {
        self.writer()?.write_pieces(pieces)
    }

    /// Appends all of `from` at the end of the file as known to this process, and returns its
    /// offset.
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        self.writer()?.append(from)
    }

    /// Makes all data written so far visible to processes that open the file from now on.
    pub fn publish(&self) -> Result<()> {
        self.file.get()?.publish()
    }

    /// As [`publish`](Self::publish); in addition the data survives a power failure, and data that
    /// other processes have published becomes visible.
    pub fn sync(&self) -> Result<()> {
        self.file.get()?.sync()
    }

    /// Returns the locks of the file. They hold between the nodes that have the store.
    pub fn locks(&self) -> Result<&dyn FileLocks> {
        self.file.get()?.locks()
    }

    /// Takes a lock, and waits as long as locks of other owners conflict with it. No order among
    /// waiting owners is kept. Errors: `ENOLCK` if the store's file system keeps no locks between
    /// its nodes; `EBADF` for an exclusive lock if the caller may not write to the file.
    pub fn lock(&self, owner: LockOwner, scope: LockScope, mode: LockMode) -> Result<()> {
        let mut pause = LOCK_PAUSE;
        while !self.locks()?.try_lock(owner, scope, mode)? {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOCK_PAUSE_MAX);
        }
        Ok(())
    }

    /// Returns the attributes of the file.
    pub fn stat(&self) -> Result<Attributes> {
        self.file.get()?.attributes()
    }

    /// Sets the size of the file. Data beyond it is removed; a file that becomes longer is filled
    /// with zeros.
    pub fn truncate(&self, size_bytes: u64) -> Result<()> {
        self.writer()?;
        let change = Change { size_bytes: Some(size_bytes), ..Change::default() };
        self.fs.get()?.change(&Context::OWN, self.node, &change).map(drop)
    }

    /// Publishes the file and closes it. Also returns the error of an earlier failed write or sync
    /// of the file whose data is still not stored, even if this handle can only read. In a process
    /// that did not open the file, writes nothing and returns `Ok`.
    pub fn close(self) -> Result<()> {
        match self.file.get() {
            Ok(file) => file.close(),
            Err(_) => Ok(()),
        }
    }
}

fn refused(operation: &'static str, reason: &'static str) -> Error {
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Os(errno::EBADF), operation, "a file") }
}

impl Drop for ClientFile {
    fn drop(&mut self) {
        self.file.close();
        if let Ok(fs) = self.fs.get() {
            fs.forget(self.node, 1);
        }
    }
}
