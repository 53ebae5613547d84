//! An open file of a pool.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use quell_vfs::{Attributes, Change, Error, ErrorKind, File, OpenMode, ReadAt, Result, WritableFile, errno};
use quell_wire::pool::{
    DATA_FILES_MAX, DirectAccess, FILE_BYTES_MAX, FIRST_DATA_FILE, INLINE_BYTES_MAX, ONLY_DATA_FILE,
    Operation, Reply, Settings, data_files, read_ahead, read_data_files,
};

use crate::client::Client;
use crate::daemon::{done, node};
use crate::nodes::KnownNode;

/// The number of writes of inline data through one open file. Each one is a request, and writes all
/// inline data of the file to the store again. A program that writes small pieces one after the
/// other uses the chunks after this number.
const INLINE_WRITES_MAX: u32 = 4;

/// An open file. It is a use of its node.
pub struct PoolFile {
    client: Arc<Client>,
    node: Arc<KnownNode>,
    mode: OpenMode,
    is_closed: AtomicBool,
    /// Whether the set-id bits were removed through this open file.
    has_dropped_set_id: AtomicBool,
    /// Whether the set-id bits must be removed again, because another client may have set them
    /// since.
    must_drop_set_id: AtomicBool,
    /// Whether the member of the attributes has recorded that the file may have data.
    has_noted_data: AtomicBool,
    /// The number of writes of inline data through this open file.
    inline_writes: AtomicU32,
    /// The local files with the chunks on this machine. They are opened when they are needed.
    local: [OnceLock<Box<dyn quell_posix::WritableFile>>; DATA_FILES_MAX],
}

/// A part of a range of a file.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// Consecutive chunks on this machine.
    Local { offset: u64, bytes: usize },
    /// A range within one chunk of another member.
    Remote { chunk: u64, offset_in_chunk: u32, bytes: usize },
}

impl Part {
    fn bytes(&self) -> usize {
        match self {
            Part::Local { bytes, .. } | Part::Remote { bytes, .. } => *bytes,
        }
    }
}

/// Divides a range of a file at the borders of its chunks, except between chunks on this machine.
fn parts(
    offset: u64,
    bytes: usize,
    chunk_bytes: u32,
    is_local: impl Fn(u64) -> bool,
) -> impl Iterator<Item = Part> {
    let end = offset + bytes as u64;
    let end_of = move |chunk: u64| (chunk + 1).saturating_mul(chunk_bytes.into()).min(end);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let (start, first) = (at, at / u64::from(chunk_bytes));
        at = end_of(first);
        if !is_local(first) {
            let offset_in_chunk = (start % u64::from(chunk_bytes)) as u32;
            return Some(Part::Remote { chunk: first, offset_in_chunk, bytes: (at - start) as usize });
        }
        while at < end && is_local(at / u64::from(chunk_bytes)) {
            at = end_of(at / u64::from(chunk_bytes));
        }
        Some(Part::Local { offset: start, bytes: (at - start) as usize })
    })
}

impl PoolFile {
    /// Takes over one use of the node.
    pub fn new(client: Arc<Client>, node: Arc<KnownNode>, mode: OpenMode) -> PoolFile {
        PoolFile {
            client,
            node,
            mode,
            is_closed: AtomicBool::new(false),
            has_dropped_set_id: AtomicBool::new(false),
            must_drop_set_id: AtomicBool::new(false),
            has_noted_data: AtomicBool::new(false),
            inline_writes: AtomicU32::new(0),
            local: Default::default(),
        }
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Os(errno::EBADF), "use", b"a closed file"));
        }
        match self.node.is_gone() {
            true => Err(Error::new(ErrorKind::Stale, "use", b"a removed file")),
            false => Ok(()),
        }
    }

    fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        // The frontends do not write to a file that is open for reading.
        match self.mode.write {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::InvalidInput, "write", b"opened for reading")),
        }
    }

    /// Removes the set-id bits that another client may have set since the first write.
    fn drop_set_id_of_later_writes(&self) -> Result<()> {
        self.has_dropped_set_id.store(false, Ordering::Relaxed);
        match self.must_drop_set_id.swap(false, Ordering::Relaxed) {
            true => self.send_drop_set_id(),
            false => Ok(()),
        }
    }

    fn send_drop_set_id(&self) -> Result<()> {
        let settings = Settings { drops_set_id: true, ..Settings::default() };
        let change = Operation::Change { id: self.node.id, settings };
        let changed = self.client.requests.ask(None, &change, ("change", b""), node)?;
        self.node.note(&changed);
        Ok(())
    }

    /// Returns the current size, and records it.
    fn size_bytes(&self) -> Result<u64> {
        self.client.commit(&self.node)?;
        let node = self.client.requests.attributes(None, self.node.id)?;
        self.node.note(&node);
        Ok(node.size_bytes)
    }

    fn parts(&self, offset: u64, bytes: usize) -> impl Iterator<Item = Part> + '_ {
        let data = self.client.requests.local_data();
        parts(offset, bytes, self.client.chunk_bytes, move |chunk| {
            data.is_some_and(|data| data.partitions.has_chunk(self.node.id, chunk))
        })
    }

    /// Returns a local file, or `None` if there is none and `creates` is false.
    fn local(&self, number: usize, creates: bool) -> Result<Option<&dyn quell_posix::WritableFile>> {
        if let Some(file) = self.local[number].get() {
            return Ok(Some(&**file));
        }
        let Some(data) = self.client.requests.local_data() else { return Ok(None) };
        let name = self.node.id.data_name(number);
        while self.local[number].get().is_none() {
            let opened = match data.dir.open_writable_file(&name) {
                Err(error) if error.kind == ErrorKind::NotFound && !creates => return Ok(None),
                Err(error) if error.kind == ErrorKind::NotFound => {
                    if number > 0 {
                        self.announce_others()?;
                    }
                    data.dir.create_file(&name, ONLY_DATA_FILE)
                }
                opened => opened,
            };
            match opened {
                Ok(file) => {
                    file.expect_random_reads();
                    drop(self.local[number].set(file));
                }
                // The daemon or another client has created it.
                Err(error) if error.kind == ErrorKind::Exists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.local[number].get().map(|file| &**file))
    }

    /// Records in the first local file that there may be others.
    fn announce_others(&self) -> Result<()> {
        let Some(first) = self.local(0, true)? else { return Ok(()) };
        match first.stat()?.mode & 0o777 {
            FIRST_DATA_FILE => Ok(()),
            _ => first.change(&Change { permissions: Some(FIRST_DATA_FILE), ..Change::default() }),
        }
    }

    /// Makes the member of the attributes record that the file may have data.
    fn note_data(&self) -> Result<()> {
        if !self.has_noted_data.load(Ordering::Relaxed) {
            let note = Operation::NoteData { id: self.node.id };
            self.client.requests.ask(None, &note, ("write", b""), done)?;
            self.note_chunks();
        }
        Ok(())
    }

    /// Records that the data of the file is in chunks, and that this was noted.
    fn note_chunks(&self) {
        self.node.set_in_chunks();
        self.has_noted_data.store(true, Ordering::Relaxed);
    }

    /// Writes inline data. Returns false, and has written nothing, if the data of the file is in
    /// chunks.
    fn write_inline(&self, data: &[u8], offset: u64) -> Result<bool> {
        if self.node.is_in_chunks()
            || offset + data.len() as u64 > INLINE_BYTES_MAX as u64
            || self.inline_writes.fetch_add(1, Ordering::Relaxed) >= INLINE_WRITES_MAX
        {
            return Ok(false);
        }
        let write = Operation::WriteInline { id: self.node.id, offset, data };
        let is_written = self.client.requests.ask(None, &write, ("write", b""), |reply| match reply {
            Reply::Written(_) => Some(true),
            Reply::InChunks => Some(false),
            _ => None,
        })?;
        if !is_written {
            self.note_chunks();
        }
        Ok(is_written)
    }

    /// Reads inline data. Returns `None` if the data of the file is in chunks.
    fn read_inline(&self, into: &mut [u8], offset: u64) -> Result<Option<usize>> {
        if self.node.is_in_chunks() {
            return Ok(None);
        }
        let bytes = u32::try_from(into.len()).unwrap_or(u32::MAX);
        let read = Operation::ReadInline { id: self.node.id, offset, bytes };
        let found = self.client.requests.ask(None, &read, ("read", b""), |reply| match reply {
            Reply::Inline { data, size_bytes } if data.len() <= into.len() => {
                let left = size_bytes.saturating_sub(offset).min(into.len() as u64) as usize;
                into[..data.len()].copy_from_slice(&data);
                into[data.len()..left.max(data.len())].fill(0);
                Some(Some(left))
            }
            Reply::InChunks => Some(None),
            _ => None,
        })?;
        if found.is_none() {
            self.node.set_in_chunks();
        }
        Ok(found)
    }

    /// Writes a range. Returns whether the size at the member of the attributes includes all of it.
    fn write_range(&self, from: &[u8], offset: u64) -> Result<bool> {
        if self.write_inline(from, offset)? {
            return Ok(true);
        }
        self.note_data()?;
        let (mut is_known, mut rest) = (true, from);
        for part in self.parts(offset, from.len()) {
            let (data, after) = rest.split_at(part.bytes());
            rest = after;
            is_known &= match part {
                Part::Local { offset, .. } => self.write_locally(data, offset)?,
                Part::Remote { chunk, offset_in_chunk, .. } => {
                    let operation =
                        Operation::Write { id: self.node.id, chunk, offset: offset_in_chunk, data };
                    self.client.requests.ask(None, &operation, ("write", b""), |reply| match reply {
                        Reply::Written(is_known) => Some(is_known),
                        _ => None,
                    })?
                }
            };
        }
        Ok(is_known)
    }

    fn write_locally(&self, data: &[u8], offset: u64) -> Result<bool> {
        let missing = || Error::new(ErrorKind::Unavailable, "write", "");
        let mut rest = data;
        for (number, offset, bytes) in data_files(offset, data.len()) {
            let (part, after) = rest.split_at(bytes);
            self.local(number, true)?.ok_or_else(missing)?.write_at(part, offset)?;
            rest = after;
        }
        self.client.requests.count_direct(DirectAccess::Write, data.len() as u64);
        let data = self.client.requests.local_data();
        Ok(data.is_some_and(|data| data.partitions.has(self.node.id.partition())))
    }

    /// Reads a part of a range. Returns fewer bytes if the data ends before, or if a hole follows.
    fn read_part(&self, part: &Part, into: &mut [u8]) -> Result<usize> {
        match *part {
            Part::Local { offset, .. } => {
                let read = read_data_files(into, offset, |number, part, offset| {
                    match self.local(number, false)? {
                        Some(file) => {
                            if let Some(bytes) = read_ahead(offset, part.len()) {
                                file.will_read(offset, bytes);
                            }
                            file.read_at(part, offset)
                        }
                        None => Ok(0),
                    }
                })?;
                self.client.requests.count_direct(DirectAccess::Read, read as u64);
                Ok(read)
            }
            Part::Remote { chunk, offset_in_chunk, bytes } => {
                let operation =
                    Operation::Read { id: self.node.id, chunk, offset: offset_in_chunk, bytes: bytes as u32 };
                self.client.requests.ask(None, &operation, ("read", b""), |reply| match reply {
                    Reply::Bytes(data) if data.len() <= into.len() => {
                        into[..data.len()].copy_from_slice(&data);
                        Some(data.len())
                    }
                    _ => None,
                })
            }
        }
    }
}

impl ReadAt for PoolFile {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.check_open()?;
        if let Some(read) = self.read_inline(into, offset)? {
            return Ok(read);
        }
        let mut wanted = into.len();
        if offset.checked_add(wanted as u64).is_none_or(|end| end > self.node.known_bytes()) {
            wanted = (self.size_bytes()?.saturating_sub(offset)).min(wanted as u64) as usize;
        }
        let mut at = 0;
        for part in self.parts(offset, wanted) {
            let end = at + part.bytes();
            let found = self.read_part(&part, &mut into[at..end])?;
            if at + found < end {
                // The rest is a hole, or the file was truncated.
                into[at + found..end].fill(0);
                let size_bytes = self.size_bytes()?.saturating_sub(offset).min(wanted as u64) as usize;
                if size_bytes < end {
                    return Ok(size_bytes.max(at));
                }
            }
            at = end;
        }
        Ok(wanted)
    }
}

impl File for PoolFile {
    fn attributes(&self) -> Result<Attributes> {
        self.check_open()?;
        self.client.commit(&self.node)?;
        Ok(self.client.requests.attributes(None, self.node.id)?.attributes())
    }
}

impl WritableFile for PoolFile {
    fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let committed = self.client.commit(&self.node);
        let dropped = self.drop_set_id_of_later_writes();
        committed.and(dropped).and(self.client.release(self.node.id, 1))
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.check_writable()?;
        let end = offset.checked_add(from.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let Some(end) = end else {
            return Err(Error::new(ErrorKind::InvalidInput, "write", b"beyond the largest size"));
        };
        if from.is_empty() {
            return Ok(());
        }
        if !self.write_range(from, offset)? {
            self.client.grow(&self.node, end)?;
        }
        self.node.has_written_to(end);
        Ok(())
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        self.check_writable()?;
        self.client.commit(&self.node)?;
        let reserve = Operation::Reserve { id: self.node.id, bytes: from.len() as u64 };
        let offset = self.client.requests.ask(None, &reserve, ("append", b""), |reply| match reply {
            Reply::Offset(offset) => Some(offset),
            _ => None,
        })?;
        self.write_range(from, offset)?;
        self.node.has_written_to(offset + from.len() as u64);
        Ok(offset)
    }

    /// Data is visible everywhere when a write returns; its size may not be.
    fn publish(&self) -> Result<()> {
        self.check_open()?;
        self.client.commit(&self.node)?;
        self.drop_set_id_of_later_writes()
    }

    fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.client.commit(&self.node)?;
        self.drop_set_id_of_later_writes()?;
        // The kernel reports the error of an earlier write to the descriptor of that write.
        for local in self.local.iter().filter_map(OnceLock::get) {
            local.sync()?;
        }
        self.client.requests.ask(None, &Operation::Sync { id: self.node.id }, ("sync", b""), done)
    }

    /// Another client may set the bits at any time. A request for each write would double its cost,
    /// so one request is sent for the first write, and one for all later writes before they are
    /// published.
    fn drop_set_id(&self) -> Result<()> {
        self.check_open()?;
        if self.has_dropped_set_id.swap(true, Ordering::Relaxed) && !self.node.has_set_id() {
            self.must_drop_set_id.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.send_drop_set_id()
    }
}

impl Drop for PoolFile {
    fn drop(&mut self) {
        // A frontend has called `close` before, and gets its errors. The daemon releases the
        // references of a client that ends.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(offset: u64, bytes: usize) -> Part {
        Part::Local { offset, bytes }
    }

    fn remote(chunk: u64, offset_in_chunk: u32, bytes: usize) -> Part {
        Part::Remote { chunk, offset_in_chunk, bytes }
    }

    #[test]
    fn a_range_is_divided_at_the_borders_of_chunks_of_other_nodes() {
        let found = |is_local: fn(u64) -> bool| parts(95, 30, 10, is_local).collect::<Vec<_>>();
        assert_eq!(
            found(|_| false),
            [remote(9, 5, 5), remote(10, 0, 10), remote(11, 0, 10), remote(12, 0, 5)]
        );
        assert_eq!(found(|_| true), [local(95, 30)]);
        assert_eq!(found(|chunk| chunk > 10), [remote(9, 5, 5), remote(10, 0, 10), local(110, 15)]);
        assert_eq!(found(|chunk| chunk != 11), [local(95, 15), remote(11, 0, 10), local(120, 5)]);
        assert_eq!(parts(7, 0, 10, |_| false).next(), None);
        let last = u64::MAX / 10 * 10;
        assert_eq!(parts(last, 3, 10, |_| false).collect::<Vec<_>>(), [remote(last / 10, 0, 3)]);
    }
}
