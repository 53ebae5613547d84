//! Data of files, in chunks. The chunks of a file on one member are in local files, at the same
//! offsets as in the file of the pool. Clients on the machine of the member use these files without
//! requests (layers/pool/src/file.rs). The sizes and times of the local files on the member of the
//! attributes are therefore part of the attributes: they may be longer than the recorded size, and
//! may have been written later than the recorded times.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::join_all;
use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FILE_BYTES_MAX, FileId, MemberId, NodeKind, PeerRequest, Reply};

use crate::inode::{Inode, to_bytes};
use crate::keys;
use crate::lock_table::Lock;
use crate::member::Member;
use crate::replies::unexpected;

/// The largest number of files in one message.
const FILES_MAX: usize = 512;

impl Member {
    pub(crate) fn read(&self, id: FileId, chunk: u64, offset: u32, bytes: u32) -> Result<Reply<'static>> {
        let start = self.start_in_file(chunk, offset, bytes as usize)?;
        let mut data = vec![0; bytes as usize];
        let read = self.environment.chunks.read(id, &mut data, start)?;
        data.truncate(read);
        Ok(Reply::Bytes(Cow::Owned(data)))
    }

    /// Writes to a chunk of this member. If this is also the member of the attributes, this changes
    /// the size and times of the file.
    pub(crate) async fn write(
        self: &Rc<Member>,
        id: FileId,
        chunk: u64,
        offset: u32,
        data: &[u8],
    ) -> Result<Reply<'static>> {
        let start = self.start_in_file(chunk, offset, data.len())?;
        let is_home = self.map.home(id)? == self.id;
        match is_home {
            true => self.note_data(id).await?,
            false => self.note_local_file(id)?,
        }
        self.environment.chunks.write(id, data, start)?;
        Ok(Reply::Written(is_home))
    }

    /// Records a file of another member that gets its first chunk on this member. Otherwise the
    /// member of the attributes might never be informed of the chunk: the client can end before it
    /// sends the size, and the write can be later than the removal of the file.
    fn note_local_file(&self, id: FileId) -> Result<()> {
        if self.files_with_data.borrow_mut().get(&id).is_none() {
            if self.environment.chunks.state(id)?.is_none() {
                self.unreported_chunks.borrow_mut().insert(id);
            }
            self.files_with_data.borrow_mut().put(id, ());
        }
        Ok(())
    }

    /// Returns the offset in the file of a range of a chunk.
    fn start_in_file(&self, chunk: u64, offset: u32, bytes: usize) -> Result<u64> {
        let chunk_bytes = self.map.chunk_bytes();
        let fits = bytes <= chunk_bytes.saturating_sub(offset) as usize;
        let start = chunk.checked_mul(chunk_bytes.into()).and_then(|start| start.checked_add(offset.into()));
        let is_valid =
            |start: &u64| fits && start.checked_add(bytes as u64).is_some_and(|end| end <= FILE_BYTES_MAX);
        start
            .filter(is_valid)
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "use a chunk beyond its end", ""))
    }

    /// Records that a file of this member may have chunks, on any member. Inline data is moved to
    /// chunks.
    ///
    /// # Errors
    ///
    /// `Stale` if there is no such file, or if it is being removed.
    pub(crate) async fn note_data(self: &Rc<Member>, id: FileId) -> Result<()> {
        if self.files_with_data.borrow_mut().get(&id).is_none() {
            if self.written_inode(id)?.is_inline {
                let _size = self.lock(Lock::Size(id)).await?;
                self.move_to_chunks(id).await?;
            }
            self.files_with_data.borrow_mut().put(id, ());
        }
        Ok(())
    }

    /// Returns the record of a file that a client writes.
    ///
    /// # Errors
    ///
    /// The errors of [`note_data`](Member::note_data).
    pub(crate) fn written_inode(&self, id: FileId) -> Result<Inode> {
        let inode = self.inode(id)?;
        inode.check_is_file()?;
        match self.is_unused(id, &inode) {
            true => Err(Error::new(ErrorKind::Stale, "node", id.0.to_string())),
            false => Ok(inode),
        }
    }

    /// Adds all files with chunks on this member to the files that are reported to the members of
    /// their attributes. Must be called at each start.
    pub(crate) fn load_chunks(&self) -> Result<()> {
        let mut unreported = self.unreported_chunks.borrow_mut();
        self.environment.chunks.files(&mut |id| unreported.extend([id]))
    }

    /// Reports to the members of the attributes that this member has chunks of the files, and
    /// removes the chunks of files that do not exist.
    pub(crate) async fn report_chunks(self: &Rc<Member>) -> Result<()> {
        let mut by_home: BTreeMap<MemberId, Vec<FileId>> = BTreeMap::new();
        for id in self.unreported_chunks.take() {
            by_home.entry(self.map.home(id)?).or_default().push(id);
        }
        let reported =
            by_home.iter().flat_map(|(home, files)| files.chunks(FILES_MAX).map(move |f| (*home, f)));
        let reported = reported.map(async |(home, files)| {
            let reported = self.report_chunks_to(home, files).await;
            if reported.is_err() {
                self.unreported_chunks.borrow_mut().extend(files);
            }
            reported
        });
        join_all(reported).await.into_iter().collect()
    }

    async fn report_chunks_to(self: &Rc<Member>, home: MemberId, files: &[FileId]) -> Result<()> {
        match self.call(home, PeerRequest::NoteChunks { files: files.to_vec() }).await? {
            Reply::Missing(missing) => {
                missing.into_iter().try_for_each(|id| self.remove_chunks(id).map(drop))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Records that files of this member have chunks.
    pub(crate) fn note_chunks(&self, files: Vec<FileId>) -> Result<Reply<'static>> {
        let mut missing = Vec::new();
        let mut batch = Batch::new();
        for id in files {
            match self.inode(id) {
                // The sender may have removed the chunks already, before a late write.
                Ok(inode) if self.is_unused(id, &inode) => missing.push(id),
                Ok(inode) if inode.has_chunks => {}
                Ok(inode) => batch.put(&keys::inode(id), &to_bytes(&Inode { has_chunks: true, ..inode })),
                Err(error) if error.kind == ErrorKind::Stale => missing.push(id),
                Err(error) => return Err(error),
            }
        }
        self.environment.store.commit(batch)?;
        Ok(Reply::Missing(missing))
    }

    /// Performs `note_data` for a client, which may write without requests afterwards.
    pub(crate) async fn note_data_for_client(self: &Rc<Member>, id: FileId) -> Result<Reply<'static>> {
        self.note_data(id).await?;
        self.begin_writing(id)?;
        Ok(Reply::Done)
    }

    /// Adds the changes that clients have made to the local file without requests to `inode`. This
    /// member must have the attributes of the file.
    pub(crate) fn add_changes_of_data(&self, id: FileId, inode: &mut Inode) -> Result<()> {
        if inode.kind != NodeKind::File || !inode.has_chunks || inode.is_inline {
            return Ok(());
        }
        if let Some(data) = self.environment.chunks.state(id)? {
            inode.size_bytes = inode.size_bytes.max(data.end);
            if !inode.is_modified_set {
                inode.modified = inode.modified.max(data.modified);
            } else if data.modified != inode.modified {
                // The time was also set on the data, so a different time shows that the data was
                // written since.
                inode.modified = data.modified;
                inode.is_modified_set = false;
            }
            inode.changed = inode.changed.max(data.changed);
        }
        Ok(())
    }

    /// Removes the data of chunks beyond a size. The local file remains, because clients may have
    /// it open.
    pub(crate) fn truncate_chunks(&self, id: FileId, size_bytes: u64) -> Result<Reply<'static>> {
        self.environment.chunks.truncate(id, size_bytes)?;
        Ok(Reply::Done)
    }

    pub(crate) fn remove_chunks(&self, id: FileId) -> Result<Reply<'static>> {
        self.files_with_data.borrow_mut().pop(&id);
        self.environment.chunks.remove(id)?;
        Ok(Reply::Done)
    }

    pub(crate) fn sync_chunks(&self, id: FileId) -> Result<Reply<'static>> {
        self.environment.chunks.sync(id)?;
        self.environment.store.sync()?;
        Ok(Reply::Done)
    }
}
