//! Inline data: the data of a small file in the key-value store, beside its attributes. The data of
//! a file is inline from its creation until the first write that does not fit. Then it is moved to
//! the first chunk, and stays in chunks for as long as the file exists, so that clients that know
//! this use the chunks without further requests.
//!
//! A move has two commits. The first one records that the file may have chunks; then the data is
//! written to the first chunk; the second one records that the data is not inline any more. Until
//! then the inline data is valid, and the chunks are not. A move that was interrupted leaves data
//! in the first chunk, which the next move removes before it writes.

use std::borrow::Cow;
use std::rc::Rc;

use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, INLINE_BYTES_MAX, Operation, PeerRequest, Reply};

use crate::inode::{Inode, to_bytes};
use crate::keys;
use crate::lock_table::Lock;
use crate::member::Member;
use crate::results::Performed;
use crate::sessions::Origin;

impl Member {
    /// Returns the largest length of inline data. This length fits in the first chunk.
    fn inline_bytes_max(&self) -> usize {
        self.environment.inline_bytes_max.min(INLINE_BYTES_MAX).min(self.map.chunk_bytes() as usize)
    }

    /// Returns the inline data of a file of this member.
    fn inline_data(&self, id: FileId, inode: &Inode) -> Result<Vec<u8>> {
        if inode.inline_bytes == 0 {
            return Ok(Vec::new());
        }
        match self.environment.store.get(&keys::inline_data(id))? {
            Some(data) if data.len() == inode.inline_bytes as usize => Ok(data.to_vec()),
            _ => Err(Error::new(ErrorKind::Damaged, "find the data of the file", id.0.to_string())),
        }
    }

    /// Reads inline data, unless the data of the file is in chunks.
    pub(crate) fn read_inline(&self, id: FileId, offset: u64, bytes: u32) -> Result<Reply<'static>> {
        let inode = self.inode(id)?;
        inode.check_is_file()?;
        if !inode.is_inline {
            return Ok(Reply::InChunks);
        }
        let mut data = match offset < u64::from(inode.inline_bytes) {
            true => self.inline_data(id, &inode)?.split_off(offset as usize),
            false => Vec::new(),
        };
        data.truncate(bytes as usize);
        Ok(Reply::Inline { data: Cow::Owned(data), size_bytes: inode.size_bytes })
    }

    /// Writes inline data. If the data does not fit, or if the data of the file is in chunks, the
    /// reply is `InChunks`, and the client may write the chunks without requests afterwards.
    pub(crate) async fn write_inline(
        self: &Rc<Member>,
        origin: Origin,
        id: FileId,
        offset: u64,
        data: &[u8],
    ) -> Result<Reply<'static>> {
        let bytes_max = self.inline_bytes_max() as u64;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= bytes_max);
        if let Some(end) = end
            && self.files_with_data.borrow_mut().get(&id).is_none()
        {
            let _size = self.lock(Lock::Size(id)).await?;
            let mut inode = self.written_inode(id)?;
            if inode.is_inline {
                let mut all = self.inline_data(id, &inode)?;
                let (start, end) = (offset as usize, end as usize);
                all.resize(all.len().max(end), 0);
                all[start..end].copy_from_slice(data);
                inode.inline_bytes = all.len() as u32;
                inode.size_bytes = inode.size_bytes.max(end as u64);
                inode.write_at(self.now());
                let mut batch = Batch::new();
                batch.put(&keys::inline_data(id), &all);
                batch.put(&keys::inode(id), &to_bytes(&inode));
                self.put_result(origin, Performed::Inline, &mut batch);
                self.environment.store.commit(batch)?;
                return Ok(Reply::Written(true));
            }
        }
        self.note_data_for_client(id).await?;
        Ok(Reply::InChunks)
    }

    /// Adds the removal of inline data from `end` on to a batch, which also writes the record of
    /// the file.
    pub(crate) fn truncate_inline_data(
        &self,
        id: FileId,
        inode: &mut Inode,
        end: u64,
        batch: &mut Batch,
    ) -> Result<()> {
        if end >= u64::from(inode.inline_bytes) {
            return Ok(());
        }
        let mut data = self.inline_data(id, inode)?;
        data.truncate(end as usize);
        match data.is_empty() {
            true => batch.delete(&keys::inline_data(id)),
            false => batch.put(&keys::inline_data(id), &data),
        }
        // The removal frees space.
        batch.allow_reserve();
        inode.inline_bytes = data.len() as u32;
        Ok(())
    }

    /// Moves the inline data of a file to its first chunk, unless it was moved before. The caller
    /// must have locked the size.
    ///
    /// # Errors
    ///
    /// The errors of [`note_data`](Member::note_data), and of the member of the chunk. After an
    /// error, the data is still inline.
    pub(crate) async fn move_to_chunks(self: &Rc<Member>, id: FileId) -> Result<()> {
        let mut inode = self.written_inode(id)?;
        if !inode.is_inline {
            return Ok(());
        }
        if inode.inline_bytes > 0 || inode.has_chunks {
            match inode.has_chunks {
                true => self.send_to_all(&PeerRequest::TruncateChunks { id, size_bytes: 0 }).await?,
                false => self.put_inode(id, &Inode { has_chunks: true, ..inode.clone() })?,
            }
            let data = self.inline_data(id, &inode)?;
            if !data.is_empty() {
                self.write_first_chunk(id, &data, &inode).await?;
            }
            // Attributes may have been changed meanwhile.
            inode = self.inode(id)?;
        }
        let mut batch = Batch::new();
        delete_inline_data(id, &inode, &mut batch);
        let moved = Inode { has_chunks: true, is_inline: false, inline_bytes: 0, ..inode };
        batch.put(&keys::inode(id), &to_bytes(&moved));
        self.environment.store.commit(batch)
    }

    async fn write_first_chunk(self: &Rc<Member>, id: FileId, data: &[u8], inode: &Inode) -> Result<()> {
        let owner = self.map.owner_of_chunk(id, 0);
        if owner != self.id {
            let write = Operation::Write { id, chunk: 0, offset: 0, data };
            return self.call(owner, PeerRequest::Perform(write)).await.map(drop);
        }
        self.environment.chunks.write(id, data, 0)?;
        // The time of the data on this member is part of the attributes.
        self.environment.chunks.set_modified(id, inode.modified)
    }
}

/// Adds the removal of the inline data of a file to a batch.
pub(crate) fn delete_inline_data(id: FileId, inode: &Inode, batch: &mut Batch) {
    if inode.inline_bytes > 0 {
        batch.delete(&keys::inline_data(id));
    }
}
