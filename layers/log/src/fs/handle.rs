//! The handles of open files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_posix::{assume, assumed};
use quell_vfs::{Caller, Error, ErrorKind, File, Open, Result, WritableFile};

use crate::format::FileOffset;
use crate::fs::open_files::SharedFile;
use crate::session::Writer;

/// An open file of a log mount.
pub(crate) struct Handle {
    shared: Arc<SharedFile>,
    writer: Option<Arc<Writer>>,
    /// The credentials with which the file was opened.
    credentials: Option<Arc<Caller>>,
    process: u32,
    flattens_later: bool,
}

impl Handle {
    /// Opens a file as `open` requests.
    pub fn open(shared: Arc<SharedFile>, open: Open, flattens_later: bool) -> Result<Handle> {
        if open.truncate {
            shared.file.truncate(0)?;
        }
        let writer = if open.write { Some(shared.file.writer(open.process)?) } else { None };
        if open.read {
            shared.file.refresh()?;
        }
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Ok(Handle { shared, writer, credentials: assumed(), process: open.process, flattens_later })
    }

    fn writer(&self) -> Result<&Writer> {
        // The frontends do not write to a file that is open for reading.
        self.writer
            .as_deref()
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "write", b"opened for reading"))
    }
}

impl File for Handle {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let _acting = assume(self.credentials.clone())?;
        self.shared.file.read_at(into, FileOffset(offset))
    }
}

impl WritableFile for Handle {
    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        let _acting = assume(self.credentials.clone())?;
        self.shared.file.write_at(self.writer()?, from, FileOffset(offset))
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        let _acting = assume(self.credentials.clone())?;
        self.shared.file.append(self.writer()?, from).map(|offset| offset.0)
    }

    fn publish(&self) -> Result<()> {
        let _acting = assume(self.credentials.clone())?;
        self.shared.file.publish(self.writer.as_deref())
    }

    fn sync(&self) -> Result<()> {
        let _acting = assume(self.credentials.clone())?;
        self.shared.file.sync()
    }

    fn drop_set_id(&self) -> Result<()> {
        // The process's own credentials: the permissions belong to the owner, and another user may
        // write.
        let _acting = assume(None)?;
        self.shared.file.drop_set_id()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.handles.fetch_sub(1, Ordering::Relaxed);
        if self.writer.take().is_none() {
            return;
        }
        // A thread that is started here inherits the credentials.
        let Ok(_process) = assume(None) else { return };
        // `publish` has returned the errors; `quell log fsck` finds unpublished data.
        if let Ok(true) = self.shared.file.release(self.process) {
            if self.flattens_later {
                self.shared.flattening.add(Arc::clone(&self.shared));
            } else {
                self.shared.flatten(&AtomicBool::new(false));
            }
        }
    }
}
