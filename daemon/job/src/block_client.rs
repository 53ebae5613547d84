//! The client through which the view of a node gets shared blocks from the job holder of the node.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use quell_transport::peer::{Client, ClientSettings, Endpoint, PoolKey, Role};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::job::{
    BLOCK_BYTES, BLOCK_REPLY_BYTES_MAX, Reply, Request, SharedBlockId, block_bytes, block_checksum,
};
use quell_wire::{decode, encode};

use crate::calls::printable;
use crate::shared_blocks::SharedBlocksLimits;

/// The time without a connection after which the job holder counts as lost.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(1);

/// The connection of a view to the job holder of its node.
pub struct BlockClient {
    socket: PathBuf,
    limits: SharedBlocksLimits,
    /// Made by the first read, because it needs a thread, and a process with threads cannot enter a
    /// user namespace. `None` if it cannot be made.
    client: OnceLock<Option<Client>>,
    /// Whether the job holder has refused or not answered a request. It gets no further requests.
    is_lost: AtomicBool,
    print: Box<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for BlockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockClient").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// The blocks of a file that one read needs.
struct BlockRead<'a> {
    index: u32,
    entry: u32,
    size_bytes: u64,
    offset: u64,
    into: &'a mut [u8],
}

impl BlockClient {
    /// Returns the client of the job holder with this socket. It connects later. `print`: prints a
    /// message for the user.
    pub fn new(
        socket: PathBuf,
        limits: SharedBlocksLimits,
        print: Box<dyn Fn(&str) + Send + Sync>,
    ) -> BlockClient {
        BlockClient { socket, limits, client: OnceLock::new(), is_lost: AtomicBool::new(false), print }
    }

    /// Reads from a file of an index, as [`quell_vfs::ReadAt::read_at`] does. `index`: the position
    /// of the index in the list of files of the job; `size_bytes`: the size of the file in the
    /// index. Returns `None` if the caller must open the file: the nodes do not share it, or the
    /// job holder does not answer. The content of `into` is then not defined.
    pub fn read_at(
        &self,
        index: u32,
        entry: u32,
        size_bytes: u64,
        into: &mut [u8],
        offset: u64,
    ) -> Option<usize> {
        let length = size_bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        if length == 0 {
            return Some(0);
        }
        if self.is_lost.load(Ordering::Relaxed) {
            return None;
        }
        let into = &mut into[..length];
        match self.read_blocks(BlockRead { index, entry, size_bytes, offset, into }) {
            Ok(true) => Some(length),
            Ok(false) => None,
            Err(error) => {
                let is_first = !self.is_lost.swap(true, Ordering::Relaxed);
                tracing::debug!(%error, "shared blocks are no longer requested");
                // A job holder refuses requests while it stops, after the programs have ended.
                if is_first && error.kind != ErrorKind::Unsupported {
                    (self.print)(&format!(
                        "cannot get blocks of files from the job holder: {error}; reading them from the file system"
                    ));
                }
                None
            }
        }
    }

    /// Returns `false` if the nodes do not share the file, or have waited too long for a block.
    fn read_blocks(&self, read: BlockRead<'_>) -> Result<bool> {
        let BlockRead { index, entry, size_bytes, offset, into } = read;
        let client = self.client.get_or_init(|| {
            let endpoint = Endpoint::Unix(self.socket.clone());
            // Over a Unix socket, the user takes the place of a key.
            let settings = ClientSettings {
                unreachable_after: UNREACHABLE_AFTER.min(self.limits.answer),
                ..ClientSettings::new(Role::Job, endpoint, PoolKey([0; 32]))
            };
            let started = Client::start(settings);
            started.inspect_err(|error| tracing::debug!(%error, "no connection to the job holder")).ok()
        });
        let failed = |kind, reason: &str| Error {
            source: Some(reason.into()),
            ..Error::new(kind, "read", "a shared block")
        };
        let client = client.as_ref().ok_or_else(|| failed(ErrorKind::Unavailable, "no thread"))?;
        let begun = Instant::now();
        let (sender, answers) = channel();
        let ask = |block: u64| {
            let sender = sender.clone();
            let done = Box::new(move |answer| {
                // The receiver may have ended.
                let _ = sender.send((block, answer));
            });
            let request = encode(&Request::SharedBlock(SharedBlockId { index, entry, block }));
            let until = Instant::now() + self.limits.answer;
            client.call(request, BLOCK_REPLY_BYTES_MAX as u32, until, done);
        };
        let end = offset + into.len() as u64;
        let (first, last) = (offset / BLOCK_BYTES as u64, (end - 1) / BLOCK_BYTES as u64);
        (first..=last).for_each(ask);
        let mut missing = last - first + 1;
        while missing > 0 {
            let (block, answer): (u64, Result<Vec<u8>>) =
                answers.recv().map_err(|_| failed(ErrorKind::Unavailable, "the connection has ended"))?;
            match decode::<Reply<'_>>(&answer?) {
                Ok(Reply::Block { checksum, bytes })
                    if bytes.len() == block_bytes(size_bytes, block) && block_checksum(bytes) == checksum =>
                {
                    let begin = block * BLOCK_BYTES as u64;
                    let (from, to) = (offset.max(begin), end.min(begin + bytes.len() as u64));
                    let piece = &bytes[(from - begin) as usize..(to - begin) as usize];
                    into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(piece);
                    missing -= 1;
                }
                Ok(Reply::Wait) if begun.elapsed() < self.limits.progress => ask(block),
                Ok(Reply::Wait | Reply::NotShared) => return Ok(false),
                Ok(Reply::Refused(reason)) => {
                    return Err(failed(ErrorKind::Unsupported, &printable(reason)));
                }
                Ok(_) | Err(_) => {
                    return Err(failed(ErrorKind::Damaged, "the job holder has sent a wrong message"));
                }
            }
        }
        Ok(true)
    }
}
