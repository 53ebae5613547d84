//! Data of files, in chunks. A record in the store names each chunk that this member has, so that
//! the chunks of a file are found without listing a directory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::join_all;
use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, MemberId, PeerRequest, Reply};

use crate::inode::{Inode, to_bytes};
use crate::keys;
use crate::member::Member;
use crate::replies::unexpected;

/// The largest number of files in one message.
const FILES_MAX: usize = 512;

impl Member {
    pub(crate) fn read(&self, id: FileId, chunk: u64, offset: u32, bytes: u32) -> Result<Reply<'static>> {
        self.check_range(offset, bytes as usize)?;
        let mut data = vec![0; bytes as usize];
        let read = self.environment.chunks.read(id, chunk, &mut data, offset)?;
        data.truncate(read);
        Ok(Reply::Bytes(Cow::Owned(data)))
    }

    /// Writes to a chunk of this member. If this is also the member of the file, the size is
    /// recorded with the same request.
    pub(crate) async fn write(
        self: &Rc<Member>,
        id: FileId,
        chunk: u64,
        offset: u32,
        data: &[u8],
        size_bytes_min: u64,
    ) -> Result<Reply<'static>> {
        self.check_range(offset, data.len())?;
        let key = keys::chunk(id, chunk);
        if !self.known_chunks.borrow().contains(&(id, chunk)) {
            if self.environment.store.get(&key)?.is_none() {
                // The record exists before the chunk, so that no chunk is ever without one.
                let mut batch = Batch::new();
                batch.put(&key, &[]);
                self.environment.store.commit(batch)?;
                // The member of the file may never learn of the chunk otherwise: the client can
                // end before it records the size, and the write can be later than the removal.
                self.untold_chunks.borrow_mut().insert(id);
            }
            self.known_chunks.borrow_mut().put((id, chunk), ());
        }
        self.environment.chunks.write(id, chunk, data, offset)?;
        let is_home = self.map.home(id)? == self.id;
        if is_home {
            self.grow(id, size_bytes_min).await?;
            self.untold_chunks.borrow_mut().remove(&id);
        }
        Ok(Reply::Written(is_home))
    }

    fn check_range(&self, offset: u32, bytes: usize) -> Result<()> {
        match usize::try_from(self.map.chunk_bytes() - offset.min(self.map.chunk_bytes())) {
            Ok(room) if bytes <= room => Ok(()),
            _ => Err(Error::new(ErrorKind::InvalidInput, "use a chunk beyond its end", "")),
        }
    }

    /// Notes the files of all chunks, of which their members may not know. Called at each start.
    pub(crate) fn load_chunks(&self) -> Result<()> {
        let mut untold = self.untold_chunks.borrow_mut();
        let mut first = keys::chunks_of(FileId(0));
        let end = keys::end_of(&first[..1]);
        loop {
            let mut found = None;
            self.environment.store.scan(&keys::range(&first, &end), &mut |key, _| {
                found = key.get(1..9).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
                false
            })?;
            let Some(id) = found else { return Ok(()) };
            untold.insert(FileId(id));
            // No file has the largest identifier.
            first = keys::chunks_of(FileId(id + 1));
        }
    }

    /// Tells the members of files that this member has chunks of them, and removes the chunks of
    /// files that do not exist.
    pub(crate) async fn tell_chunks(self: &Rc<Member>) -> Result<()> {
        let mut by_home: BTreeMap<MemberId, Vec<FileId>> = BTreeMap::new();
        for id in self.untold_chunks.take() {
            by_home.entry(self.map.home(id)?).or_default().push(id);
        }
        let told = by_home.iter().flat_map(|(home, files)| files.chunks(FILES_MAX).map(move |f| (*home, f)));
        let told = told.map(async |(home, files)| {
            let told = self.tell_chunks_of(home, files).await;
            if told.is_err() {
                self.untold_chunks.borrow_mut().extend(files);
            }
            told
        });
        join_all(told).await.into_iter().collect()
    }

    async fn tell_chunks_of(self: &Rc<Member>, home: MemberId, files: &[FileId]) -> Result<()> {
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
                Ok(inode) if inode.has_chunks => {}
                Ok(inode) => batch.put(&keys::inode(id), &to_bytes(&Inode { has_chunks: true, ..inode })),
                Err(error) if error.kind == ErrorKind::Stale => missing.push(id),
                Err(error) => return Err(error),
            }
        }
        self.environment.store.commit(batch)?;
        Ok(Reply::Missing(missing))
    }

    /// Returns the numbers of the chunks of a file on this member, from `first` on.
    fn chunks_from(&self, id: FileId, first: u64) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        let end = keys::end_of(&keys::chunks_of(id));
        self.environment.store.scan(&keys::range(&keys::chunk(id, first), &end), &mut |key, _| {
            numbers.extend(keys::parse_chunk(key));
            true
        })?;
        Ok(numbers)
    }

    /// Cuts the chunks beyond a size. They keep their files, which clients may have open.
    pub(crate) fn truncate_chunks(&self, id: FileId, size_bytes: u64) -> Result<Reply<'static>> {
        let chunk_bytes = u64::from(self.map.chunk_bytes());
        let first = size_bytes / chunk_bytes;
        for chunk in self.chunks_from(id, first)? {
            let rest = if chunk == first { size_bytes % chunk_bytes } else { 0 };
            self.environment.chunks.cut(id, chunk, rest as u32)?;
        }
        Ok(Reply::Done)
    }

    pub(crate) fn remove_chunks(&self, id: FileId) -> Result<Reply<'static>> {
        let mut batch = Batch::new();
        for chunk in self.chunks_from(id, 0)? {
            self.environment.chunks.remove(id, chunk)?;
            self.known_chunks.borrow_mut().pop(&(id, chunk));
            batch.delete(&keys::chunk(id, chunk));
        }
        self.environment.store.commit(batch)?;
        Ok(Reply::Done)
    }

    pub(crate) fn sync_chunks(&self, id: FileId) -> Result<Reply<'static>> {
        for chunk in self.chunks_from(id, 0)? {
            self.environment.chunks.sync(id, chunk)?;
        }
        self.environment.store.sync()?;
        Ok(Reply::Done)
    }
}
