//! An open file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_blob::{FileAttributes, Operation, OperationResult};
use quell_threads::read_lock;
use quell_vfs::{Attributes, Error, ErrorKind, File, ReadAt, Result, WritableFile, errno};

use crate::failure::failed;
use crate::nodes::Node;
use crate::shared::Shared;

/// An open file. All open files of a node have the same content.
pub(crate) struct BlobFile {
    shared: Arc<Shared>,
    node: Arc<Node>,
    is_closed: AtomicBool,
}

impl BlobFile {
    /// Returns an open file of a node. The caller has counted it as one use of the node.
    pub(crate) fn new(shared: Arc<Shared>, node: Arc<Node>) -> BlobFile {
        node.content.opened();
        BlobFile { shared, node, is_closed: AtomicBool::new(false) }
    }

    fn check_open(&self) -> Result<()> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Os(errno::EBADF), "use", "a closed file")),
            false => Ok(()),
        }
    }

    fn publish_writes(&self) -> Result<()> {
        let _paths = read_lock(&self.shared.paths);
        self.node.content.publish(&self.shared.store, &self.shared.blob_of(&self.node)?)
    }

    fn commit(&self, operations: impl FnOnce(Vec<u8>) -> Vec<Operation>) -> Result<Vec<OperationResult>> {
        let _paths = read_lock(&self.shared.paths);
        let blob = self.shared.blob_of(&self.node)?;
        self.node.content.commit(&self.shared.store, &blob, operations(blob.clone()))
    }
}

impl ReadAt for BlobFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.check_open()?;
        let _paths = read_lock(&self.shared.paths);
        self.node.content.read(&self.shared.store, &self.shared.blob_of(&self.node)?, into, offset)
    }
}

impl File for BlobFile {
    fn attributes(&self) -> Result<Attributes> {
        self.check_open()?;
        let _paths = read_lock(&self.shared.paths);
        self.shared.attributes(&self.node)
    }
}

impl WritableFile for BlobFile {
    fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let committed = self.publish_writes();
        self.node.content.closed();
        committed.and(self.shared.release(self.node.id, 1))
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.check_open()?;
        let _paths = read_lock(&self.shared.paths);
        self.node.content.write(&self.shared.store, &self.shared.blob_of(&self.node)?, from, offset)
    }

    /// Commits the append at once, because only the store knows the end of the file.
    fn append(&self, from: &[u8]) -> Result<u64> {
        self.check_open()?;
        if from.is_empty() {
            return Ok(self.attributes()?.size_bytes);
        }
        let data = from.to_vec();
        match self.commit(|name| vec![Operation::Append { name, data }])?.first() {
            Some(OperationResult::Appended(offset)) => Ok(*offset),
            _ => Err(Error::new(ErrorKind::Damaged, "append to", "a file")),
        }
    }

    fn publish(&self) -> Result<()> {
        self.check_open()?;
        self.publish_writes()
    }

    /// Does the same as `publish`, because each commit survives a power failure.
    fn sync(&self) -> Result<()> {
        self.publish()
    }

    fn drop_set_id(&self) -> Result<()> {
        self.check_open()?;
        if !self.node.content.has_set_id() {
            return Ok(());
        }
        let _paths = read_lock(&self.shared.paths);
        let blob = self.shared.blob_of(&self.node)?;
        let failed = |cause| failed(cause, "change", &blob);
        let Some(stat) = self.shared.store.stat(&blob).map_err(failed)? else {
            return Err(Error::new(ErrorKind::Stale, "change", &blob));
        };
        if let Some(file) = stat.file {
            let file = Some(without_set_id(file));
            let set = Operation::SetAttributes { name: blob.clone(), file, modified_ns: None };
            self.shared.store.commit(vec![set]).map_err(failed)?;
            self.node.content.note_mode(0);
        }
        Ok(())
    }
}

impl Drop for BlobFile {
    fn drop(&mut self) {
        // A frontend calls `close` first, and gets its errors.
        let _ = self.close();
    }
}

/// Removes the set-user-ID bit, and the set-group-ID bit if the group may execute the file.
pub(crate) fn without_set_id(file: FileAttributes) -> FileAttributes {
    let group = if file.mode & 0o010 != 0 { 0o2000 } else { 0 };
    FileAttributes { mode: file.mode & !(0o4000 | group), ..file }
}
