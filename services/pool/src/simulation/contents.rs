//! Clients that write, read and truncate files, as `layers/pool` does: the data of a file is inline
//! until a write does not fit. The history of each byte is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use quell_testkit::linearizability::History;
use quell_vfs::{ErrorKind, Result};
use quell_wire::pool::{FileId, Operation, Reply, Settings};

use super::cluster::{CHUNK_BYTES, Cluster};
use super::contents_model::{Byte, ByteOperation, ByteResult};
use super::workload::Process;

/// The positions of the bytes that clients use: some can be inline, one is at the end of the first
/// chunk, and two are in other chunks.
const POSITIONS: [u64; 6] = [0, 20, 30, 60, 70, 200];
/// The number of the first positions, which can be inline.
const INLINE_POSITIONS: usize = 3;

impl Accesses {
    pub fn add(&mut self, other: Accesses) {
        self.inline_writes += other.inline_writes;
        self.inline_reads += other.inline_reads;
        self.chunk_writes += other.chunk_writes;
        self.chunk_reads += other.chunk_reads;
    }
}

/// The histories of the bytes of all files.
#[derive(Default)]
pub struct Contents {
    bytes: BTreeMap<(FileId, u64), History<Byte>>,
    /// The last value that was written to each file. No value is written twice.
    last_values: BTreeMap<FileId, u8>,
    pub accesses: Accesses,
}

/// The numbers of accesses to inline data and to chunks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Accesses {
    pub inline_writes: usize,
    pub inline_reads: usize,
    pub chunk_writes: usize,
    pub chunk_reads: usize,
}

impl Contents {
    fn byte(&mut self, id: FileId, position: u64) -> &mut History<Byte> {
        self.bytes.entry((id, position)).or_default()
    }

    fn next_value(&mut self, id: FileId) -> u8 {
        let value = self.last_values.entry(id).or_default();
        *value = value.checked_add(1).expect("a file is written less often");
        *value
    }

    /// Returns descriptions of the bytes whose history is not linearizable.
    pub fn violations(&self) -> Vec<String> {
        let wrong = self.bytes.iter().filter(|(_, history)| !history.is_linearizable());
        wrong
            .map(|((id, position), history)| {
                let history = history.describe();
                format!("no order explains the results for byte {position} of {id:?}:\n{history}")
            })
            .collect()
    }

    /// Returns the operations as text.
    pub fn describe(&self) -> String {
        let described = self.bytes.iter().map(|((id, position), history)| {
            let history = history.describe();
            format!("byte {position} of {id:?}:\n{history}")
        });
        described.collect::<Vec<_>>().join("\n")
    }
}

/// The result of a step of an operation: `Ok(None)` if the member of the client has ended.
type Step<T> = Result<Option<T>>;

impl Process<'_> {
    /// Reads a byte of a file, writes it, or truncates the file. Returns false if the member of the
    /// client has ended.
    pub async fn use_contents(&mut self, cluster: &Rc<Cluster>, id: FileId) -> bool {
        let runtime = &cluster.runtime;
        let can_be_inline = !runtime.one_in(8);
        let positions = if can_be_inline { &POSITIONS[..INLINE_POSITIONS] } else { &POSITIONS };
        let position = runtime.pick(positions);
        match runtime.below(8) {
            0 => {
                let size_bytes = runtime.below(4 * CHUNK_BYTES as usize) as u64;
                self.truncate(id, size_bytes).await
            }
            1..5 => {
                let value = self.shared.contents.borrow_mut().next_value(id);
                let operation = ByteOperation::Write(value);
                let begun = self.shared.contents.borrow_mut().byte(id, position).begin(operation);
                let written = self.write_byte(id, position, value).await;
                if let Ok(Some(())) = written {
                    let mut contents = self.shared.contents.borrow_mut();
                    contents.byte(id, position).end(begun, ByteResult::Written);
                }
                !matches!(written, Ok(None))
            }
            _ => {
                let begun = self.shared.contents.borrow_mut().byte(id, position).begin(ByteOperation::Read);
                let read = self.read_byte(id, position).await;
                if let Ok(Some(value)) = read {
                    let mut contents = self.shared.contents.borrow_mut();
                    contents.byte(id, position).end(begun, ByteResult::Found(value));
                }
                !matches!(read, Ok(None))
            }
        }
    }

    async fn truncate(&mut self, id: FileId, size_bytes: u64) -> bool {
        let removed = || POSITIONS.into_iter().filter(|position| *position >= size_bytes);
        let begun: Vec<_> = {
            let mut contents = self.shared.contents.borrow_mut();
            let begin = |position| contents.byte(id, position).begin(ByteOperation::Write(0));
            removed().map(begin).collect()
        };
        let settings = Settings { size_bytes: Some(size_bytes), ..Settings::default() };
        let changed = self.perform(&Operation::Change { id, settings }).await;
        match &changed {
            Some(Ok(_)) => {
                let mut contents = self.shared.contents.borrow_mut();
                for (position, begun) in removed().zip(begun) {
                    contents.byte(id, position).end(begun, ByteResult::Written);
                }
            }
            Some(Err(error)) if error.kind == ErrorKind::Stale => self.lose_file(),
            _ => {}
        }
        changed.is_some()
    }

    async fn write_byte(&mut self, id: FileId, position: u64, value: u8) -> Step<()> {
        let data = &[value];
        if !self.in_chunks.contains(&id) {
            let write = Operation::WriteInline { id, offset: position, data };
            match self.perform(&write).await.transpose()? {
                Some(Reply::Written(true)) => {
                    self.shared.contents.borrow_mut().accesses.inline_writes += 1;
                    return Ok(Some(()));
                }
                Some(Reply::InChunks) => drop(self.in_chunks.insert(id)),
                Some(reply) => panic!("{reply:?}"),
                None => return Ok(None),
            }
        } else if self.perform(&Operation::NoteData { id }).await.transpose()?.is_none() {
            return Ok(None);
        }
        let (chunk, offset) = (position / u64::from(CHUNK_BYTES), (position % u64::from(CHUNK_BYTES)) as u32);
        let written = self.perform(&Operation::Write { id, chunk, offset, data }).await.transpose()?;
        self.shared.contents.borrow_mut().accesses.chunk_writes += 1;
        match written {
            Some(Reply::Written(true)) => Ok(Some(())),
            Some(_) => {
                let grow = Operation::Grow { id, size_bytes_min: position + 1 };
                // A write during an interrupted truncation is refused.
                Ok(self.client.perform(&grow).await.transpose()?.map(drop))
            }
            None => Ok(None),
        }
    }

    async fn read_byte(&mut self, id: FileId, position: u64) -> Step<u8> {
        if !self.in_chunks.contains(&id) {
            let read = Operation::ReadInline { id, offset: position, bytes: 1 };
            match self.perform(&read).await.transpose()? {
                Some(Reply::Inline { data, size_bytes }) => {
                    assert!(position + data.len() as u64 <= size_bytes.max(position));
                    self.shared.contents.borrow_mut().accesses.inline_reads += 1;
                    return Ok(Some(data.first().copied().unwrap_or(0)));
                }
                Some(Reply::InChunks) => drop(self.in_chunks.insert(id)),
                Some(reply) => panic!("{reply:?}"),
                None => return Ok(None),
            }
        }
        let found = self.perform(&Operation::Attributes { id }).await.transpose()?;
        let size_bytes = match found {
            Some(Reply::Node(node)) => node.size_bytes,
            Some(reply) => panic!("{reply:?}"),
            None => return Ok(None),
        };
        if position >= size_bytes {
            return Ok(Some(0));
        }
        let (chunk, offset) = (position / u64::from(CHUNK_BYTES), (position % u64::from(CHUNK_BYTES)) as u32);
        let read = Operation::Read { id, chunk, offset, bytes: 1 };
        match self.perform(&read).await.transpose()? {
            Some(Reply::Bytes(data)) => {
                self.shared.contents.borrow_mut().accesses.chunk_reads += 1;
                Ok(Some(data.first().copied().unwrap_or(0)))
            }
            Some(reply) => panic!("{reply:?}"),
            None => Ok(None),
        }
    }
}

/// The files whose data a client knows to be in chunks.
pub type InChunks = BTreeSet<FileId>;
