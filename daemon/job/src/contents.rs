//! The files of a node, in memory, and the requests of other nodes for blocks that are not there
//! yet.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_mount_spec::{MemoryFile, SharedFile};
use quell_threads::lock;
use quell_transport::peer;
use quell_vfs::{Error, ErrorKind, Result, Time};
use quell_wire::encode;
use quell_wire::job::{BLOCK_BYTES, CheckResult, FileAttributes, FileState, Reply, block_checksum};

/// A file of a node.
#[derive(Debug)]
pub struct Entry {
    pub state: FileState,
    /// `None` for a file that could not be opened.
    memory: Option<MemoryFile>,
}

/// The files of a node.
#[derive(Debug, Default)]
pub struct Contents {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until the files are known.
    files: Option<Arc<Vec<Entry>>>,
    /// For each file and block its checksum, if this node has the block.
    checksums: Vec<Vec<Option<u64>>>,
    /// Number of blocks that this node does not have.
    missing: u64,
    /// The results of the samples; `None` until they are known.
    samples: Option<Vec<Option<CheckResult>>>,
    /// Why this node serves no other nodes.
    refusal: Option<String>,
    waiting: Vec<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    since: Instant,
    item: ContentsRequest,
    reply: peer::Reply,
}

/// The subject of a request of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentsRequest {
    /// The list of files.
    Files,
    /// A block of a file.
    Block {
        /// The position of the file in the list.
        file: u32,
        /// The number of the block.
        block: u64,
    },
    /// The results of the samples.
    Samples,
}

/// A complete file of a node, which other processes of the user on the same machine can open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompleteFile {
    /// The file, as the reader has opened it.
    pub state: FileState,
    /// Its bytes; `None` for a file that could not be opened.
    pub shared: Option<SharedFile>,
}

impl Contents {
    /// Sets the list of files, and allocates their memory. The caller has checked the lengths.
    ///
    /// # Errors
    /// `Conflict` if another list was set before: the blocks of two versions of a file must not be
    /// mixed. The error of the system if there is no memory.
    pub fn set_files(&self, files: Vec<FileState>) -> Result<()> {
        if let Some(known) = self.files() {
            return match known.iter().map(|entry| &entry.state).eq(files.iter()) {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Conflict, "receive", "files that have changed meanwhile")),
            };
        }
        let entry = |state: FileState| {
            let memory = match &state {
                FileState::Open(file) => Some(MemoryFile::create(b"quell-job", file.size_bytes)?),
                FileState::Failed(_) => None,
            };
            Ok(Entry { state, memory })
        };
        let entries = files.into_iter().map(entry).collect::<Result<Vec<_>>>()?;
        let blocks = |entry: &Entry| attributes(entry).map_or(0, FileAttributes::blocks);
        let reply = encode(&Reply::Files(entries.iter().map(|entry| entry.state.clone()).collect()));
        let mut state = lock(&self.state);
        state.checksums = entries.iter().map(|entry| vec![None; blocks(entry) as usize]).collect();
        state.missing = entries.iter().map(blocks).sum();
        state.files = Some(Arc::new(entries));
        let waiting = state.take_waiting(|request| request.item == ContentsRequest::Files);
        drop(state);
        for request in waiting {
            request.reply.send(reply.clone());
        }
        Ok(())
    }

    /// Returns the list of files, if it is known.
    pub fn files(&self) -> Option<Arc<Vec<Entry>>> {
        lock(&self.state).files.clone()
    }

    /// Returns the files and numbers of the blocks that this node does not have, in order.
    pub fn missing(&self) -> Vec<(u32, u64)> {
        let state = lock(&self.state);
        let of_file = |(file, checksums): (usize, &Vec<Option<u64>>)| {
            let missing = checksums.iter().enumerate().filter(|(_, checksum)| checksum.is_none());
            missing.map(|(block, _)| (file as u32, block as u64)).collect::<Vec<_>>()
        };
        state.checksums.iter().enumerate().flat_map(of_file).collect()
    }

    /// Adds a block, and passes it to the nodes that wait for it. A block that this node already
    /// has stays as it is.
    ///
    /// # Errors
    /// `Damaged` if the bytes do not have the checksum, or not the length of the block.
    pub fn add(&self, file: u32, block: u64, checksum: u64, bytes: &[u8]) -> Result<()> {
        let damaged = || Error::new(ErrorKind::Damaged, "receive", format!("block {block} of file {file}"));
        let files = self.files().ok_or_else(damaged)?;
        let entry = files.get(file as usize).ok_or_else(damaged)?;
        let (Some(attributes), Some(memory)) = (attributes(entry), &entry.memory) else {
            return Err(damaged());
        };
        let is_right = block < attributes.blocks()
            && bytes.len() == attributes.block_bytes(block)
            && block_checksum(bytes) == checksum;
        if !is_right {
            return Err(damaged());
        }
        if self.checksum(file, block).is_some() {
            return Ok(());
        }
        memory.write(bytes, block * BLOCK_BYTES as u64)?;
        let mut state = lock(&self.state);
        if let Some(slot) = state.checksums[file as usize].get_mut(block as usize)
            && slot.replace(checksum).is_none()
        {
            state.missing -= 1;
        }
        let waiting = state.take_waiting(|request| request.item == ContentsRequest::Block { file, block });
        drop(state);
        if !waiting.is_empty() {
            let reply = encode(&Reply::Block { checksum, bytes });
            for request in waiting {
                request.reply.send(reply.clone());
            }
        }
        Ok(())
    }

    fn checksum(&self, file: u32, block: u64) -> Option<u64> {
        *lock(&self.state).checksums.get(file as usize)?.get(usize::try_from(block).ok()?)?
    }

    /// Answers a request of another node, at once or when the answer is known.
    pub fn answer(&self, item: ContentsRequest, reply: peer::Reply) {
        let mut state = lock(&self.state);
        if let Some(reason) = &state.refusal {
            let refusal = encode(&Reply::Refused(reason));
            drop(state);
            return reply.send(refusal);
        }
        let since = Instant::now();
        let Some(files) = state.files.clone() else {
            return state.waiting.push(WaitingRequest { since, item, reply });
        };
        let (file, block) = match item {
            ContentsRequest::Block { file, block } => (file, block),
            ContentsRequest::Files => {
                drop(state);
                let files = files.iter().map(|entry| entry.state.clone()).collect();
                return reply.send(encode(&Reply::Files(files)));
            }
            ContentsRequest::Samples => {
                let Some(samples) = state.samples.clone() else {
                    return state.waiting.push(WaitingRequest { since, item, reply });
                };
                drop(state);
                return reply.send(encode(&Reply::Samples(samples)));
            }
        };
        let slot = state.checksums.get(file as usize).and_then(|blocks| blocks.get(block as usize));
        let answer = match slot {
            None => Err("there is no such block".to_owned()),
            Some(None) => return state.waiting.push(WaitingRequest { since, item, reply }),
            Some(Some(checksum)) => Ok(*checksum),
        };
        drop(state);
        let bytes = answer.and_then(|checksum| {
            let bytes = block_of(&files[file as usize], block).map_err(|e| e.to_string())?;
            Ok(encode(&Reply::Block { checksum, bytes: &bytes }))
        });
        reply.send(bytes.unwrap_or_else(|reason| encode(&Reply::Refused(&reason))));
    }

    /// Sets the results of the samples, and passes them to the nodes that wait for them.
    pub fn set_samples(&self, samples: Vec<Option<CheckResult>>) {
        let reply = encode(&Reply::Samples(samples.clone()));
        let mut state = lock(&self.state);
        state.samples = Some(samples);
        let waiting = state.take_waiting(|request| request.item == ContentsRequest::Samples);
        drop(state);
        for request in waiting {
            request.reply.send(reply.clone());
        }
    }

    /// Answers the requests that have waited for `limit` with `Wait`, so that the other nodes know
    /// that this one runs.
    pub fn answer_late(&self, limit: Duration) {
        let late = lock(&self.state).take_waiting(|request| request.since.elapsed() >= limit);
        for request in late {
            request.reply.send(encode(&Reply::Wait));
        }
    }

    /// Refuses the requests of other nodes from now on, and those that wait.
    pub fn refuse(&self, reason: &str) {
        let mut state = lock(&self.state);
        state.refusal.get_or_insert_with(|| reason.to_owned());
        let waiting = state.take_waiting(|_| true);
        drop(state);
        for request in waiting {
            request.reply.send(encode(&Reply::Refused(reason)));
        }
    }

    /// Seals the complete files, so that other processes can open them.
    ///
    /// # Errors
    /// `Busy` if a block is missing; the errors of fcntl(2).
    pub fn seal(&self) -> Result<Vec<CompleteFile>> {
        let incomplete = || Error::new(ErrorKind::Busy, "seal", "files that are not complete");
        let files = self.files().filter(|_| lock(&self.state).missing == 0).ok_or_else(incomplete)?;
        let seal = |entry: &Entry| {
            let modified = attributes(entry)
                .map(|file| Time { seconds: file.modified_seconds, nanoseconds: file.modified_nanoseconds });
            let shared = entry.memory.as_ref().map(|memory| memory.seal_in_place(modified)).transpose()?;
            Ok(CompleteFile { state: entry.state.clone(), shared })
        };
        files.iter().map(seal).collect()
    }
}

impl State {
    fn take_waiting(&mut self, is_taken: impl Fn(&WaitingRequest) -> bool) -> Vec<WaitingRequest> {
        self.waiting.extract_if(.., |request| is_taken(request)).collect()
    }
}

fn attributes(entry: &Entry) -> Option<&FileAttributes> {
    match &entry.state {
        FileState::Open(file) => Some(file),
        FileState::Failed(_) => None,
    }
}

fn block_of(entry: &Entry, block: u64) -> Result<Vec<u8>> {
    let (Some(file), Some(memory)) = (attributes(entry), &entry.memory) else {
        return Err(Error::new(ErrorKind::NotFound, "read", "a file in memory"));
    };
    let mut bytes = vec![0; file.block_bytes(block)];
    memory.read(&mut bytes, block * BLOCK_BYTES as u64)?;
    Ok(bytes)
}
