//! The state of a regular file that is in use: its inode as it was last read, and the writes that
//! are not yet in the name space. The functions perform no I/O.

use std::sync::{Arc, Mutex};

use quell_batch_service::{Content, Inode};
use quell_mount_state::Extents;
use quell_threads::lock;
use quell_vfs::{Attributes, Time};

use crate::data::Handle;

/// The set-id bits of `st_mode`.
const SET_ID: u32 = 0o6000;

/// The state of a regular file. The inode is known while the file is open.
pub(crate) struct FileState {
    /// The number of open files.
    pub(crate) open: usize,
    pub(crate) content: Content,
    size_bytes: u64,
    mode: u32,
    /// The file with the bytes of the content, if it was opened.
    pub(crate) data: Option<Arc<Handle>>,
    /// Whether the name of the data file was made durable since the file was opened.
    pub(crate) has_durable_name: bool,
    /// Writes to the content in the inode that the inode does not have yet. If there are pending
    /// writes, the content is not a data file.
    pub(crate) pending: Extents,
    /// The end and the time of the writes that the inode does not have yet. If there is a data
    /// file, it already has the bytes of these writes.
    unsent: Mutex<Option<Unsent>>,
    /// The number of failed syncs of the data file.
    pub(crate) sync_failures: u64,
}

/// Writes that the inode does not have yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsent {
    pub(crate) end: u64,
    pub(crate) written: Time,
}

impl Default for FileState {
    fn default() -> FileState {
        FileState {
            open: 0,
            content: Content::Empty,
            size_bytes: 0,
            mode: 0,
            data: None,
            has_durable_name: false,
            pending: Extents::default(),
            unsent: Mutex::new(None),
            sync_failures: 0,
        }
    }
}

impl FileState {
    /// Returns the state of a file that was just created, and is open once.
    pub(crate) fn created(mode: u32) -> FileState {
        FileState { open: 1, mode, ..FileState::default() }
    }

    /// Records the inode as it was just read or changed.
    pub(crate) fn note(&mut self, inode: Inode) {
        if self.content != inode.content {
            if self.content.is_in_file() || inode.content.is_in_file() {
                (self.data, self.has_durable_name) = (None, false);
            }
            self.content = inode.content;
        }
        (self.size_bytes, self.mode) = (inode.size_bytes, inode.mode);
    }

    /// Ends the use by an open file. After the last use, the writes that could not be sent are
    /// discarded: each close has returned the error.
    pub(crate) fn closed(&mut self) {
        self.open -= 1;
        self.forget_if_closed();
    }

    /// Forgets the inode if the file is not open.
    pub(crate) fn forget_if_closed(&mut self) {
        if self.open == 0 {
            *self = FileState::default();
        }
    }

    /// Returns whether the inode had set-id bits when it was last read.
    pub(crate) fn has_set_id(&self) -> bool {
        self.mode & SET_ID != 0
    }

    /// Returns the size, including the writes that the inode does not have yet.
    pub(crate) fn size_bytes(&self) -> u64 {
        let unsent = lock(&self.unsent).map_or(0, |unsent| unsent.end);
        self.size_bytes.max(unsent)
    }

    pub(crate) fn unsent(&self) -> Option<Unsent> {
        *lock(&self.unsent)
    }

    /// Records a write that ends at `end`.
    pub(crate) fn wrote(&self, end: u64, written: Time) {
        let mut unsent = lock(&self.unsent);
        let end = unsent.map_or(end, |unsent| unsent.end.max(end));
        *unsent = Some(Unsent { end, written });
    }

    /// Records that no writes are to be sent: the inode has them, or they are discarded.
    pub(crate) fn sent(&mut self) {
        self.pending = Extents::default();
        *lock(&self.unsent) = None;
    }

    /// Returns the attributes of the inode, changed by the writes that the inode does not have yet.
    pub(crate) fn with_unsent(&self, found: Attributes) -> Attributes {
        let Some(unsent) = self.unsent() else { return found };
        let size_bytes = found.size_bytes.max(unsent.end);
        let (blocks, time) = (size_bytes.div_ceil(512), unsent.written);
        Attributes { size_bytes, blocks, modified: time, changed: time, ..found }
    }
}
