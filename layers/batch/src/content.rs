//! The bytes of a file.
//!
//! In a shared name space, writes to a small file are collected in memory, and sent with the next
//! publish as one change of its inode, which has only the written ranges, so another mount's writes
//! to other ranges remain. Writes to a data file reach it at once; the next publish sends the new
//! size. In a private name space, a change is no request, so each write is sent at once.
//!
//! All open files of a node use its state, so they see each write at once. The state is locked for
//! writing while the inode changes, so changes of one file wait for each other.

use std::sync::{Arc, RwLockReadGuard};

use quell_batch_service::{Content, DataChange, FileSize, INLINE_BYTES_MAX, Inode, InodeChange};
use quell_mount_state::Extents;
use quell_posix::WritableFile;
use quell_threads::{read_lock, write_lock};
use quell_vfs::{Change, Error, ErrorKind, Result};

use crate::data::Handle;
use crate::nodes::Node;
use crate::shared::{Shared, now};
use crate::state::FileState;

/// The largest size of a file on Linux, in bytes.
const SIZE_BYTES_MAX: u64 = i64::MAX as u64;
/// The number of times that a change is tried while other mounts change the content.
const ATTEMPTS: usize = 100;
/// The size of the buffer with which a data file is copied.
const COPY_BYTES: usize = 1 << 20;

impl Shared {
    /// Reads bytes, and returns their number.
    pub(crate) fn read(&self, node: &Node, into: &mut [u8], offset: u64) -> Result<usize> {
        let (state, data) = self.read_locked(node)?;
        if state.content == Content::Hidden {
            return Err(hidden());
        }
        let count = state.size_bytes().saturating_sub(offset).min(into.len() as u64) as usize;
        let into = &mut into[..count];
        let found = match (&state.content, &data) {
            (_, Some(data)) => data.read_at(into, offset)?,
            (Content::Inline(bytes), None) => {
                let rest = bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
                let found = rest.len().min(count);
                into[..found].copy_from_slice(&rest[..found]);
                found
            }
            _ => 0,
        };
        into[found..].fill(0);
        state.pending.copy_to(offset, into);
        Ok(count)
    }

    /// Locks the state of an open file for reading, after its data file was opened, if it has one.
    fn read_locked<'a>(
        &self,
        node: &'a Node,
    ) -> Result<(RwLockReadGuard<'a, FileState>, Option<Arc<Handle>>)> {
        loop {
            let state = read_lock(&node.file);
            match (&state.content, &state.data) {
                (content, None) if content.is_in_file() => {}
                (_, data) => {
                    let data = data.clone();
                    return Ok((state, data));
                }
            }
            drop(state);
            self.opened_data(&mut write_lock(&node.file))?;
        }
    }

    /// Returns the open file with the bytes of the content, if they are in a file.
    pub(crate) fn opened_data(&self, state: &mut FileState) -> Result<Option<Arc<Handle>>> {
        if state.data.is_none() {
            state.data = self.data.open_content(&state.content)?.map(Arc::new);
        }
        Ok(state.data.clone())
    }

    /// Writes bytes to an open file.
    pub(crate) fn write(&self, node: &Node, from: &[u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(from.len() as u64).filter(|end| *end <= SIZE_BYTES_MAX);
        if from.is_empty() {
            return Ok(());
        }
        let end = end.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "write", ""))?;
        for _ in 0..ATTEMPTS {
            {
                let (state, data) = self.read_locked(node)?;
                if let Some(file) = data.as_ref().and_then(|data| data.own()) {
                    self.name_space.check_open()?;
                    file.write_at(from, offset)?;
                    state.wrote(end, now());
                    if self.name_space.is_shared() {
                        return Ok(());
                    }
                    drop(state);
                    // This may send writes of other threads as well, so an error discards nothing.
                    return self.send(node, &mut write_lock(&node.file));
                }
            }
            let mut state = write_lock(&node.file);
            match state.content {
                Content::File(file) if self.data.is_own(file) => {}
                Content::Empty | Content::Inline(_) | Content::Hidden if end <= INLINE_BYTES_MAX as u64 => {
                    state.pending.write(offset, from);
                    state.wrote(end, now());
                    return self.send_if_private(node, &mut state);
                }
                _ => self.move_to_data(node, &mut state)?,
            }
        }
        Err(busy())
    }

    /// Appends bytes to an open file, and returns their offset.
    pub(crate) fn append(&self, node: &Node, from: &[u8]) -> Result<u64> {
        let length = from.len() as u64;
        let mut state = write_lock(&node.file);
        for _ in 0..ATTEMPTS {
            if from.is_empty() {
                self.send(node, &mut state)?;
                let inode = self.inode(node)?;
                state.note(inode);
                return Ok(state.size_bytes());
            }
            match state.content {
                Content::File(file) if self.data.is_own(file) => {
                    self.send(node, &mut state)?;
                    let data = Some(DataChange::File(file, FileSize::LongerBy(length)));
                    match self.change(node, &InodeChange { data, ..InodeChange::default() }) {
                        Ok(inode) => {
                            let offset = inode.size_bytes - length;
                            state.note(inode);
                            let data = self.opened_data(&mut state)?;
                            own(data.as_deref())?.write_at(from, offset)?;
                            return Ok(offset);
                        }
                        Err(error) => self.read_again(node, &mut state, error)?,
                    }
                }
                Content::File(_) | Content::Adopted(_) => self.move_to_data(node, &mut state)?,
                // Only this mount changes the file, so the size of the file is known.
                _ if !self.name_space.is_shared()
                    && state.size_bytes().saturating_add(length) <= INLINE_BYTES_MAX as u64 =>
                {
                    let offset = state.size_bytes();
                    state.pending.write(offset, from);
                    state.wrote(offset + length, now());
                    self.send_if_private(node, &mut state)?;
                    return Ok(offset);
                }
                _ => {
                    let inline = inline(&state, None, from);
                    match self.change(node, &InodeChange { data: Some(inline), ..InodeChange::default() }) {
                        Ok(inode) => {
                            let offset = inode.size_bytes - length;
                            state.sent();
                            state.note(inode);
                            return Ok(offset);
                        }
                        Err(error) => {
                            self.read_again(node, &mut state, error)?;
                            if !matches!(state.content, Content::File(_)) {
                                self.move_to_data(node, &mut state)?;
                            }
                        }
                    }
                }
            }
        }
        Err(busy())
    }

    /// Sends the pending write, if the name space is private. If this fails, the write is
    /// discarded, because write(2) returns the error.
    fn send_if_private(&self, node: &Node, state: &mut FileState) -> Result<()> {
        if self.name_space.is_shared() {
            return Ok(());
        }
        self.send(node, state).inspect_err(|_| state.sent())
    }

    /// Sends the writes that the inode does not have yet. If this fails, each later call tries
    /// again.
    pub(crate) fn send(&self, node: &Node, state: &mut FileState) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let Some(unsent) = state.unsent() else { return Ok(()) };
            let data = match state.content {
                Content::File(file) => DataChange::File(file, FileSize::GrownTo(unsent.end)),
                _ => inline(state, None, b""),
            };
            let modified = Some(unsent.written.into());
            match self.change(node, &InodeChange { data: Some(data), modified, ..InodeChange::default() }) {
                Ok(inode) => {
                    state.sent();
                    state.note(inode);
                    return Ok(());
                }
                Err(error) => self.read_again(node, state, error)?,
            }
        }
        Err(busy())
    }

    /// Reads the inode again after a change that failed with `error`, if the reason is that another
    /// mount has changed the content. Writes that are not sent are moved to its new content.
    fn read_again(&self, node: &Node, state: &mut FileState, error: Error) -> Result<()> {
        if error.kind != ErrorKind::Conflict {
            return Err(error);
        }
        let inode = self.inode(node)?;
        self.note_and_keep_writes(node, state, inode)
    }

    /// Records the inode. If its content is now a data file, the pending writes to the inode are
    /// moved to this file.
    pub(crate) fn note_and_keep_writes(
        &self,
        node: &Node,
        state: &mut FileState,
        inode: Inode,
    ) -> Result<()> {
        let Content::File(file) = inode.content else {
            state.note(inode);
            return Ok(());
        };
        if state.pending.is_empty() {
            state.note(inode);
            return Ok(());
        }
        if !self.data.is_own(file) {
            return self.move_to_data(node, state);
        }
        let data = Arc::new(self.data.open(file)?);
        write_pending(state, own(Some(&data))?)?;
        state.pending = Extents::default();
        state.note(inode);
        state.data = Some(data);
        Ok(())
    }

    /// Moves the content to a data file of the batch of this mount, with the writes that the inode
    /// does not have yet.
    fn move_to_data(&self, node: &Node, state: &mut FileState) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let inode = self.inode(node)?;
            if matches!(inode.content, Content::File(file) if self.data.is_own(file)) {
                return self.note_and_keep_writes(node, state, inode);
            }
            let (file, data) = self.data.create(node.number)?;
            let filled = self.copy_content(&inode, &*data).and_then(|()| write_pending(state, &*data));
            let unsent = state.unsent();
            let size = FileSize::GrownTo(unsent.map_or(0, |unsent| unsent.end));
            let replace = DataChange::Replace { expected: inode.content, new: Content::File(file), size };
            let modified = unsent.map_or(inode.modified, |unsent| unsent.written.into());
            let change =
                InodeChange { data: Some(replace), modified: Some(modified), ..InodeChange::default() };
            let error = match filled {
                Ok(()) => match self.change(node, &change) {
                    Ok(changed) => {
                        state.sent();
                        state.note(changed.clone());
                        state.data = Some(Arc::new(Handle::Own(data)));
                        // The permissions of the inode are those of the moment of the change, so no
                        // user could read the data file before who may not read the inode.
                        return match self.data.private {
                            Some(_) => self.set_readers(node, changed).map(drop),
                            None => Ok(()),
                        };
                    }
                    Err(error) if matches!(error.kind, ErrorKind::Conflict | ErrorKind::Quota) => error,
                    // A private name space denies a change before it executes it.
                    Err(error)
                        if error.kind == ErrorKind::PermissionDenied && !self.name_space.is_shared() =>
                    {
                        error
                    }
                    // The inode may refer to the new data file, which is therefore not removed.
                    Err(error) => return Err(error),
                },
                Err(error) => error,
            };
            self.data.remove(file)?;
            if error.kind != ErrorKind::Conflict {
                return Err(error);
            }
        }
        Err(busy())
    }

    /// Writes the content of an inode into an empty data file.
    fn copy_content(&self, inode: &Inode, to: &dyn WritableFile) -> Result<()> {
        match &inode.content {
            Content::Inline(bytes) => return to.write_at(bytes, 0),
            Content::Hidden => return Err(hidden()),
            _ => {}
        }
        let Some(from) = self.data.open_content(&inode.content)? else { return Ok(()) };
        let mut buffer = vec![0; COPY_BYTES];
        let mut at = 0;
        while let Some((first, end)) = from.next_data(at)? {
            at = first;
            let end = end.min(inode.size_bytes);
            while at < end {
                let wanted = (end - at).min(COPY_BYTES as u64) as usize;
                let found = from.read_at(&mut buffer[..wanted], at)?;
                if found == 0 {
                    return from.check_unchanged();
                }
                to.write_at(&buffer[..found], at)?;
                at += found as u64;
            }
            if at >= inode.size_bytes {
                break;
            }
        }
        // A hole may have been filled after it was skipped.
        from.check_unchanged()
    }

    /// Changes a regular file, and returns the new attributes. If `drops_set_id` is set, a new size
    /// removes the set-id bits.
    pub(crate) fn change_file(
        &self,
        node: &Node,
        change: &Change,
        drops_set_id: bool,
    ) -> Result<quell_vfs::Attributes> {
        let mut state = write_lock(&node.file);
        let changed = self.change_locked(node, &mut state, change, drops_set_id);
        state.forget_if_closed();
        changed
    }

    fn change_locked(
        &self,
        node: &Node,
        state: &mut FileState,
        change: &Change,
        drops_set_id: bool,
    ) -> Result<quell_vfs::Attributes> {
        let rest = InodeChange { drops_set_id, ..inode_change(change) };
        let Some(size_bytes) = change.size_bytes else {
            // Earlier writes are sent first, so that they do not change the new time.
            self.send(node, state)?;
            let inode = self.change(node, &rest)?;
            let attributes = inode.attributes();
            state.note(inode);
            return attributes;
        };
        if size_bytes > SIZE_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "set the size", ""));
        }
        for _ in 0..ATTEMPTS {
            let inode = self.inode(node)?;
            self.note_and_keep_writes(node, state, inode)?;
            let data = match state.content {
                Content::File(file) if self.data.is_own(file) => {
                    let data = self.opened_data(state)?;
                    let data = own(data.as_deref())?;
                    // The bytes are removed before the size changes: if the file grows again, it
                    // has zeros there, even if this process ends before the change.
                    if data.stat()?.size_bytes > size_bytes {
                        data.set_size(size_bytes)?;
                    }
                    DataChange::File(file, FileSize::Exactly(size_bytes))
                }
                ref content if content.is_in_file() && size_bytes == 0 => empty(content.clone()),
                Content::File(_) | Content::Adopted(_) => {
                    self.move_to_data(node, state)?;
                    continue;
                }
                _ => inline(state, Some(size_bytes), b""),
            };
            match self.change(node, &InodeChange { data: Some(data), ..rest.clone() }) {
                Ok(inode) => {
                    let attributes = inode.attributes();
                    state.sent();
                    state.note(inode);
                    return attributes;
                }
                Err(error) => self.read_again(node, state, error)?,
            }
        }
        Err(busy())
    }

    /// Makes the changes of other clients since the open visible.
    pub(crate) fn read_inode_again(&self, node: &Node, state: &mut FileState) -> Result<()> {
        if !self.name_space.is_shared() {
            return Ok(());
        }
        match self.inode(node) {
            Ok(inode) => self.note_and_keep_writes(node, state, inode),
            // Another client has removed the file, so no further changes become visible.
            Err(error) if error.kind == ErrorKind::Stale => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes the data and the attributes of a file survive a power failure. Changes by other
    /// clients since the file was opened are visible afterwards.
    pub(crate) fn sync(&self, node: &Node, state: &mut FileState) -> Result<()> {
        self.send(node, state)?;
        self.read_inode_again(node, state)?;
        let data = self.opened_data(state)?;
        if let Some(file) = data.as_ref().and_then(|data| data.own()) {
            if let Err(error) = file.sync() {
                // The kernel reports this once, but each open file has to return it.
                state.sync_failures += 1;
                return Err(error);
            }
            if !state.has_durable_name {
                self.data.sync_name(node.number)?;
                state.has_durable_name = true;
            }
        }
        self.name_space.sync()
    }
}

/// Returns the change that sends the pending writes of a file with its content in the inode.
fn inline(state: &FileState, size_bytes: Option<u64>, append: &[u8]) -> DataChange {
    let writes = state.pending.iter().map(|(offset, bytes)| (offset, bytes.to_vec())).collect();
    DataChange::Inline { writes, size_bytes, append: append.to_vec() }
}

/// Returns the change that truncates a file whose content is in a file to which this mount does not
/// write.
fn empty(expected: Content) -> DataChange {
    DataChange::Replace { expected, new: Content::Empty, size: FileSize::Exactly(0) }
}

fn write_pending(state: &FileState, to: &dyn WritableFile) -> Result<()> {
    state.pending.iter().try_for_each(|(offset, bytes)| to.write_at(bytes, offset))
}

fn own(data: Option<&Handle>) -> Result<&dyn WritableFile> {
    data.and_then(Handle::own).ok_or_else(busy)
}

/// Returns the change of the attributes, without the size.
pub(crate) fn inode_change(change: &Change) -> InodeChange {
    InodeChange {
        permissions: change.permissions,
        uid: change.uid,
        gid: change.gid,
        modified: change.modified.map(Into::into),
        ..InodeChange::default()
    }
}

/// Returns the error for a file that the user may not read: the server has not sent its bytes.
fn hidden() -> Error {
    Error::new(ErrorKind::PermissionDenied, "read", "a file of a private store")
}

fn busy() -> Error {
    let source = Some("other clients change the file at the same time".into());
    Error { source, ..Error::new(ErrorKind::Busy, "change", "a file") }
}
