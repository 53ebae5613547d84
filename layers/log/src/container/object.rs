//! The object as which a file begins (docs/formats/log.md, Objects): opens it, and determines from
//! its size and its last frame the part of it that belongs to the file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quell_posix::{OpenFile, Stat, WritableDir, WritableFile};
use quell_vfs::{Change, ErrorKind, NewEntry, Rename, Result};

use crate::format::{
    BLOCK_BYTES, Closed, FileOffset, HEAD_BYTES, Head, HeadKind, Holder, LogDamage, LogPosition, OBJECT_END,
    OBJECT_FRAME_BYTES, OBJECT_FRAME_HEAD_BYTES, OBJECT_VERSION, ObjectProcess, ObjectRest, ObjectSize,
    Published, Running, boot_of, decode_object_frame_head, number_name,
};
use crate::locks::{Rank, RankedMutex};
use crate::not_found::none_if_not_found;
use crate::stores::Host;

/// The epoch of the container's creator, and of all frames of an object. It is taken without an
/// `epoch` name.
pub(crate) const FIRST_EPOCH: u64 = 1;

/// An open object.
pub(crate) struct Object {
    file: Arc<dyn OpenFile>,
    head: Head,
    /// The object for writing, in the process that has created it.
    writable: Option<Arc<dyn WritableFile>>,
    /// The object for its first writer, if this process has created it and no writer has it yet.
    unclaimed: RankedMutex<Option<Arc<dyn WritableFile>>>,
    /// This process has created the object, and no process has synced it.
    is_new: AtomicBool,
    write_back_state: RankedMutex<WriteBackState>,
    /// The size at which the object was found to end with a complete frame that is not full, or 0.
    /// The first writer appends nothing afterwards, so the content of an object of this size does
    /// not change.
    complete_bytes: AtomicU64,
}

/// The state of the write-back of a new object.
struct WriteBackState {
    /// The file server has the header.
    is_written_back: bool,
    /// The last attempt has failed. The system reports this once, so the header may be lost until
    /// it is written again.
    has_failed: bool,
    /// `write_back_new` has failed since the first writer last wrote back the object.
    is_unknown_to_writer: bool,
}

impl WriteBackState {
    fn new(is_written_back: bool) -> RankedMutex<WriteBackState> {
        let state = WriteBackState { is_written_back, has_failed: false, is_unknown_to_writer: false };
        RankedMutex::new(Rank::ObjectWriteBack, state)
    }
}

/// The part of an object that belongs to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectContent {
    /// Size of the file.
    pub file_bytes: u64,
    /// The end of the last complete frame in the object.
    pub log_end: u64,
    /// The first writer appends no more data.
    pub is_ended: bool,
}

impl Object {
    /// Creates an object. It gets the name `name` in `parent` after its header is written, so that
    /// an object lacks its header only after a power failure. If the process that creates it has
    /// opened it only for reading, it has no writer.
    ///
    /// # Errors
    ///
    /// `Exists` if the name is in use, and `Unsupported` if the file system cannot create an object
    /// safely.
    pub fn create(
        temporaries: &dyn WritableDir,
        (parent, name): (&dyn WritableDir, &[u8]),
        new: NewEntry,
        numbers: (u128, u64),
        host: &Host,
        has_writer: bool,
    ) -> Result<(Object, Stat)> {
        let (temporary, head) = (number_name(numbers.0), new_head(numbers, host));
        let file: Arc<dyn WritableFile> =
            Arc::from(temporaries.create_file_with_umask(&temporary, new.permissions)?);
        let begin = head.encode();
        let pieces: [&[u8]; 2] = [&begin, if has_writer { b"" } else { OBJECT_END }];
        let made = file.write_pieces_at(&pieces, 0).and_then(|()| {
            file.write_back()?;
            let stat = set_attributes(&*file, file.stat()?, new)?;
            name_new(temporaries, &temporary, parent, name)?;
            Ok(stat)
        });
        match made {
            Ok(stat) => Ok((Object::created(file, head, has_writer, true), stat)),
            Err(error) => {
                let _ = temporaries.remove(&temporary); // otherwise `quell log fsck` finds it
                Err(error)
            }
        }
    }

    /// Writes the header of an object to a new, empty file that has its final name. Only the only
    /// user of a store may call this. It needs fewer requests than [`create`](Self::create),
    /// because the file has one name only, and its header is passed to the file server together
    /// with the data. `set_attributes` gets the file and its attributes, sets the owner and the
    /// permissions, and returns the new attributes.
    ///
    /// Other processes may find the object without its header until
    /// [`write_back_new`](Self::write_back_new) is called, and after a crash.
    pub fn create_in_place(
        file: Arc<dyn WritableFile>,
        numbers: (u128, u64),
        host: &Host,
        set_attributes: &dyn Fn(&dyn WritableFile, Stat) -> Result<Stat>,
    ) -> Result<(Object, Stat)> {
        let head = new_head(numbers, host);
        // A network file system still knows the attributes of the new file. After the first write,
        // it would request them again.
        let stat = set_attributes(&*file, file.stat()?)?;
        file.write_at(&head.encode(), 0)?;
        Ok((Object::created(file, head, true, false), stat))
    }

    fn created(file: Arc<dyn WritableFile>, head: Head, has_writer: bool, is_written_back: bool) -> Object {
        Object {
            head,
            unclaimed: RankedMutex::new(Rank::Leaf, has_writer.then(|| Arc::clone(&file))),
            writable: Some(Arc::clone(&file) as Arc<dyn WritableFile>),
            file,
            is_new: AtomicBool::new(true),
            write_back_state: WriteBackState::new(is_written_back),
            complete_bytes: AtomicU64::new(0),
        }
    }

    /// Reads the object `name` from an open file. `stat` has the attributes that this node has
    /// cached.
    ///
    /// # Errors
    ///
    /// `Damaged` if it is not an object.
    pub fn open(file: Arc<dyn OpenFile>, stat: &Stat, name: &[u8]) -> Result<Object> {
        // The header of the object, and the header of its only frame.
        let mut bytes = [0; HEAD_BYTES + OBJECT_FRAME_HEAD_BYTES];
        let mut length = file.read_at(&mut bytes, 0)?;
        // This node may have cached the size of the object before the header was written.
        if length < HEAD_BYTES && file.stat_from_server()?.size_bytes > length as u64 {
            length = file.read_at(&mut bytes, 0)?;
        }
        let head = Head::decode(HeadKind::Data, &bytes[..length.min(HEAD_BYTES)])
            .map_err(|damage| damage.in_file(name))?;
        if head.process.is_none() || head.block_bytes != BLOCK_BYTES || head.writer == 0 {
            let reason = "it is not the header of an object";
            return Err(LogDamage { object: "an object", offset: 0, reason }.in_file(name));
        }
        let is_complete = match ObjectSize::of(stat.size_bytes) {
            Some(ObjectSize { full: 0, rest: ObjectRest::Frame(payload) }) => {
                let frame = bytes[..length].get(HEAD_BYTES..).unwrap_or_default();
                decode_object_frame_head(frame, LogPosition::START, payload).is_some()
            }
            _ => false,
        };
        Ok(Object::opened(file, head, if is_complete { stat.size_bytes } else { 0 }))
    }

    /// Returns an object that is known to have this header, and to be complete.
    pub fn open_known(file: Arc<dyn OpenFile>, head: Head, stat: &Stat) -> Object {
        Object::opened(file, head, stat.size_bytes)
    }

    fn opened(file: Arc<dyn OpenFile>, head: Head, complete_bytes: u64) -> Object {
        Object {
            file,
            head,
            writable: None,
            unclaimed: RankedMutex::new(Rank::Leaf, None),
            is_new: AtomicBool::new(false),
            write_back_state: WriteBackState::new(true),
            complete_bytes: AtomicU64::new(complete_bytes),
        }
    }

    pub fn file(&self) -> &Arc<dyn OpenFile> {
        &self.file
    }

    /// Returns the object for writing it again, if this process has created it.
    pub fn writable(&self) -> Option<&dyn WritableFile> {
        self.writable.as_deref()
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the first writer.
    pub fn writer(&self) -> u64 {
        self.head.writer
    }

    /// Returns the object for its first writer, once.
    pub fn claim(&self) -> Option<Arc<dyn WritableFile>> {
        self.unclaimed.lock().take()
    }

    /// Passes the object to the file server, unless this was done before. Must be called before
    /// other processes may use the store, and before anything refers to the object.
    pub fn write_back_new(&self) -> Result<()> {
        let mut state = self.write_back_state.lock();
        let Some(file) = self.writable.as_ref().filter(|_| !state.is_written_back) else { return Ok(()) };
        let written = match state.has_failed {
            true => file.write_at(&self.head.encode(), 0).and_then(|()| file.write_back()),
            false => file.write_back(),
        };
        state.is_written_back = written.is_ok();
        state.has_failed = written.is_err();
        state.is_unknown_to_writer |= written.is_err();
        written
    }

    /// Calls `write_back`, by which the first writer passes its data and the header to the file
    /// server. The parameter is true if `write_back_new` has failed since the last call: data may
    /// be lost although the system does not report this again, so the object must be written again.
    pub fn write_back_by(&self, write_back: impl FnOnce(bool) -> Result<()>) -> Result<()> {
        let mut state = self.write_back_state.lock();
        let written = write_back(std::mem::take(&mut state.is_unknown_to_writer));
        state.is_written_back |= written.is_ok();
        state.has_failed = written.is_err();
        written
    }

    /// Returns true if the file server has the header, and the last write-back has not failed.
    pub fn is_written_back(&self) -> bool {
        let state = self.write_back_state.lock();
        state.is_written_back && !state.has_failed
    }

    /// Returns true if a power failure may have kept the object, because it was synced.
    pub fn may_be_synced(&self) -> bool {
        !self.is_new.load(Ordering::Relaxed)
    }

    /// Records that the object was synced.
    pub fn set_synced(&self) {
        self.is_new.store(false, Ordering::Relaxed);
    }

    /// Records that the first writer has written a frame that is not full, and that the object ends
    /// at this size with this frame.
    pub fn set_complete(&self, size_bytes: u64) {
        self.complete_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// Returns the size at which the object was found to be complete.
    pub fn complete_bytes(&self) -> Option<u64> {
        Some(self.complete_bytes.load(Ordering::Relaxed)).filter(|size_bytes| *size_bytes > 0)
    }

    /// Returns the attributes of the object as the file server has them, because the size
    /// determines the part that belongs to the file.
    pub fn stat(&self) -> Result<Stat> {
        self.file.stat_from_server()
    }

    /// Returns true if the object still has a name after this process has removed one.
    pub fn has_name(&self) -> Result<bool> {
        match self.stat() {
            Ok(stat) => Ok(stat.nlink > 1 || stat.nlink == 1 && self.file.counts_removed_names()),
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Stale) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the part of an object with these attributes that belongs to the file. Reads the
    /// header of the last frame, because an object may end with a frame that was not written
    /// completely.
    pub fn content(&self, stat: &Stat) -> Result<ObjectContent> {
        let Some(size) = ObjectSize::of(stat.size_bytes) else {
            return Ok(ObjectContent { file_bytes: 0, log_end: HEAD_BYTES as u64, is_ended: false });
        };
        let start = size.full_end();
        let full = ObjectContent { file_bytes: start.payload.0, log_end: start.log_offset, is_ended: false };
        match size.rest {
            ObjectRest::Nothing | ObjectRest::Part => Ok(full),
            ObjectRest::End => {
                let mut end = [0; OBJECT_END.len()];
                self.file.read_at(&mut end, start.log_offset)?;
                Ok(ObjectContent { is_ended: end == *OBJECT_END, ..full })
            }
            ObjectRest::Frame(payload) => {
                let (file_bytes, log_end) = (size.file_bytes(), size.log_end());
                let complete = ObjectContent { file_bytes, log_end, is_ended: true };
                if self.complete_bytes.load(Ordering::Relaxed) == stat.size_bytes {
                    return Ok(complete);
                }
                let mut head = [0; OBJECT_FRAME_HEAD_BYTES];
                let length = self.file.read_at(&mut head, start.log_offset)?;
                if decode_object_frame_head(&head[..length], start, payload).is_none() {
                    return Ok(full);
                }
                self.set_complete(stat.size_bytes);
                Ok(complete)
            }
        }
    }

    /// Describes the first writer as a writer that has ended with this content.
    pub fn closed(&self, content: &ObjectContent, stat: &Stat, host: &Host) -> Closed {
        // The boot is known only for processes of this node.
        let is_here = self.holder(host).node == host.holder.node;
        Closed {
            writer: self.head.writer,
            first_epoch: FIRST_EPOCH,
            last_epoch: FIRST_EPOCH,
            end: FileOffset(content.file_bytes),
            data_bytes: content.log_end,
            time: stat.modified,
            is_synced: false,
            boot: if is_here { boot_of(&host.holder.node) } else { 0 },
        }
    }

    /// Returns the process that writes the object.
    fn holder(&self, host: &Host) -> Holder {
        self.head.process.expect("the header of an object has it").holder(&host.holder.node)
    }

    /// Describes the first writer as a writer that is open and has published this content.
    pub fn running(&self, content: &ObjectContent, stat: &Stat, host: &Host) -> Running {
        let published = Published {
            last_epoch: FIRST_EPOCH,
            end: FileOffset(content.file_bytes),
            data_bytes: content.log_end,
            time: stat.modified,
        };
        Running { published: Some(published), ..self.unpublished(host) }
    }

    /// Describes the first writer as a writer that has published no size, so that all of its
    /// complete frames are part of the file.
    pub fn unpublished(&self, host: &Host) -> Running {
        let (writer, holder) = (self.head.writer, self.holder(host));
        Running { writer, first_epoch: FIRST_EPOCH, holder, published: None }
    }
}

/// Returns the header of an object that this process creates. The numbers are those of its
/// container and of its first writer.
fn new_head((container, writer): (u128, u64), host: &Host) -> Head {
    Head {
        kind: HeadKind::Data,
        version: OBJECT_VERSION,
        block_bytes: BLOCK_BYTES,
        container,
        writer,
        directories: 0,
        process: Some(ObjectProcess::of(&host.holder)),
    }
}

/// Returns true if a file with these attributes has the owner, the group and the permissions of
/// `new`. Additional permissions are accepted, because another process that has opened the file may
/// have added them.
pub(crate) fn has_owner_and_permissions(stat: &Stat, new: NewEntry) -> bool {
    (stat.uid, stat.gid) == (new.uid, new.gid) && stat.mode & new.permissions == new.permissions
}

/// Gives a new file, which has the attributes `stat`, the owner, the group and the permissions of
/// `new`. Returns its new attributes.
pub(crate) fn set_attributes(file: &dyn WritableFile, stat: Stat, new: NewEntry) -> Result<Stat> {
    if has_owner_and_permissions(&stat, new) {
        return Ok(stat);
    }
    let owners = match (stat.uid, stat.gid) == (new.uid, new.gid) {
        true => Change::default(),
        false => Change { uid: Some(new.uid), gid: Some(new.gid), ..Change::default() },
    };
    file.change(&Change { permissions: Some(new.permissions), ..owners })?;
    file.stat()
}

/// Gives a file that this process has created in a directory of temporary names its name, which
/// must not exist (`Exists`).
pub(crate) fn name_new(
    temporaries: &dyn WritableDir,
    temporary: &[u8],
    dir: &dyn WritableDir,
    name: &[u8],
) -> Result<()> {
    match temporaries.rename(temporary, dir, name, Rename::Keep) {
        Err(error) if error.kind == ErrorKind::Unsupported => {
            temporaries.link(temporary, dir, name)?;
            let _ = temporaries.remove(temporary); // otherwise `quell log fsck` finds it
            Ok(())
        }
        renamed => renamed,
    }
}

/// Renames an object to a name that must not exist (`Exists`). If the file system cannot rename a
/// file without replacing another one, the object has both names for a moment, and keeps both if
/// the process is killed.
pub(crate) fn rename_object(
    from_dir: &dyn WritableDir,
    from: &[u8],
    to_dir: &dyn WritableDir,
    to: &[u8],
) -> Result<()> {
    match from_dir.rename(from, to_dir, to, Rename::Keep) {
        Err(error) if error.kind == ErrorKind::Unsupported => {
            from_dir.link(from, to_dir, to)?;
            let Err(error) = from_dir.remove(from) else { return Ok(()) };
            // If the old name was not found, another mount has either removed it, and the new name
            // is the only one, or has renamed the object as well. The new name is removed only if
            // the object has another one. This node may have cached an earlier link count.
            let found = none_if_not_found(to_dir.stat_from_server(to))?;
            let has_another_name = found.is_some_and(|stat| stat.nlink > 1);
            if has_another_name {
                none_if_not_found(to_dir.remove(to))?;
            }
            if has_another_name || error.kind != ErrorKind::NotFound { Err(error) } else { Ok(()) }
        }
        renamed => renamed,
    }
}

/// Returns true if a file with these permissions can be an object: only its owner may write to it,
/// as only the owner can create its container later; and it has no set-id bits.
pub(crate) fn begins_as_object(permissions: u32) -> bool {
    permissions & 0o6022 == 0 && permissions & 0o400 != 0
}

/// The largest number of bytes of a file that stays an object: one frame, because other mounts see
/// each complete frame, and must not see a part of a write.
pub(crate) const OBJECT_PAYLOAD_MAX: u64 = OBJECT_FRAME_BYTES;

#[cfg(test)]
mod tests {
    use quell_testkit::{MemoryStore, Writeback};
    use quell_vfs::errno;

    use super::*;
    use crate::test_stores::host;

    /// The second attempt would succeed without a write, because the system reports lost pages
    /// once.
    #[test]
    fn a_header_that_was_not_written_back_is_written_again() {
        let store = MemoryStore::new();
        let file: Arc<dyn WritableFile> = Arc::from(store.root().create_file(b"f", 0o600).unwrap());
        let (object, _) =
            Object::create_in_place(Arc::clone(&file), (7, 8), &host(1, 1), &|_, stat| Ok(stat)).unwrap();
        store.fail(|operation| (operation.verb == "write back").then_some(errno::EIO));
        assert_eq!(object.write_back_new().unwrap_err().errno(), errno::EIO);
        store.fail_nothing();
        assert_eq!(store.fail_writeback(8, Writeback::Dropped, |_| true), 1);
        object.write_back_new().unwrap();
        let mut head = [0; HEAD_BYTES];
        file.read_at(&mut head, 0).unwrap();
        assert_eq!(head, object.head().encode()[..]);
        let mut seen = Vec::new();
        for _ in 0..2 {
            object
                .write_back_by(|has_failed| {
                    seen.push(has_failed);
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(seen, [true, false], "the first writer writes its data again, once");
    }
}
