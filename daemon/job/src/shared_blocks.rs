//! The blocks of files of the indexed trees that the nodes of a job share (`--share-data`). A node
//! answers requests of its views and of its children from memory, and requests other blocks from
//! its parent. A node without a parent reads them from the file system. Threads that serve
//! connections only answer from memory; the threads of this module send requests to the parent and
//! read files.

use std::fs::File;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use lru::LruCache;
use quell_threads::lock;
use quell_transport::peer::{self, PoolKey};
use quell_vfs::{Error, ErrorKind, FileState, Result, Time};
use quell_wire::job::{
    BLOCK_BYTES, BLOCK_REPLY_BYTES_MAX, FileState as JobFile, NodeNumber, Placement, Reply, Request,
    SharedBlockId, block_bytes, block_checksum,
};
use quell_wire::{decode, encode};
use rustix::fs::{AtFlags, StatxFlags, statx};
use serde::{Deserialize, Serialize};

use crate::block_cache::{BlockCache, BlockLookup, CachedBlock};
use crate::calls::{OtherNode, printable};

/// The number of threads that fetch blocks. Each of them reads at most one block at a time from
/// the file system.
const THREADS: usize = 8;
/// The largest number of files that a node keeps open to read blocks.
const OPEN_FILES_MAX: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// The indexed trees of a job.
pub trait SharedTrees: Send + Sync {
    /// Returns the size, in bytes, of a regular file in an index, without a request to the file
    /// system; `None` if the index has no such file. `index`: the position in the list of files.
    fn size_bytes(&self, index: u32, entry: u32) -> Option<u64>;

    /// Opens a file in its tree, and compares it with the index. Returns the state that was
    /// compared.
    ///
    /// # Errors
    /// `Stale` if the file differs; the errors of open(2).
    fn open(&self, index: u32, entry: u32) -> Result<(File, FileState)>;
}

/// The shared blocks of one node.
pub struct SharedBlocks {
    state: Mutex<State>,
    work: Sender<Work>,
    queue: Mutex<Receiver<Work>>,
    counters: Counters,
}

struct State {
    cache: BlockCache<peer::Reply>,
    /// `None` if this node reads from the file system.
    parent: Option<Arc<Parent>>,
    /// Why this node sends no blocks any more.
    refusal: Option<String>,
}

#[derive(Default)]
struct Counters {
    sent_blocks: AtomicU64,
    sent_bytes: AtomicU64,
    blocks_from_memory: AtomicU64,
    received_bytes: AtomicU64,
    read_bytes: AtomicU64,
}

/// The counters of the shared blocks of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedBlocksStatus {
    /// The blocks that this node sent to its views and to its children.
    pub sent_blocks: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// The blocks of them that were in the memory of this node when they were requested.
    pub blocks_from_memory: u64,
    /// The bytes of blocks that this node received from other nodes.
    pub received_bytes: u64,
    /// The bytes of blocks that it read from the file system.
    pub read_bytes: u64,
    /// The memory of its blocks, in bytes.
    pub memory_bytes: u64,
    /// The most memory that they may take.
    pub memory_bytes_max: u64,
}

/// A task for the threads.
enum Work {
    /// Fetches a block that was requested at this time.
    Fetch(SharedBlockId, Instant),
    /// Evaluates the answer of a parent.
    Answered(Answered),
    End,
}

/// The answer of a parent to a request for a block.
struct Answered {
    id: SharedBlockId,
    since: Instant,
    /// The length that the block has according to the index.
    length: usize,
    parent: NodeNumber,
    answer: Result<Vec<u8>>,
}

/// The node that gets the requests for blocks.
struct Parent {
    number: NodeNumber,
    address: SocketAddr,
    /// Made by the first request, so that a node that needs no blocks has no connection. `None` if
    /// it cannot be made.
    connection: OnceLock<Option<OtherNode>>,
}

impl Parent {
    fn new(number: NodeNumber, address: SocketAddr) -> Parent {
        Parent { number, address, connection: OnceLock::new() }
    }
}

/// The position of a node in the tree.
pub struct Position {
    pub node: NodeNumber,
    /// The parent and its address; `None` for a node that reads from the file system.
    pub parent: Option<(NodeNumber, SocketAddr)>,
    /// The address of the reader; `None` for the reader itself.
    pub reader: Option<SocketAddr>,
    pub key: PoolKey,
    /// The files of the job, as this node has received or read them.
    pub files: Vec<JobFile>,
}

/// The time limits of a node.
#[derive(Debug, Clone, Copy)]
pub struct SharedBlocksLimits {
    /// The time without an answer after which a parent counts as lost.
    pub answer: Duration,
    /// The time after which a block for which the parent only sends `Wait` is read from the file
    /// system.
    pub progress: Duration,
}

/// The part of a node that its threads use.
struct BlockFetcher {
    blocks: Arc<SharedBlocks>,
    trees: Arc<dyn SharedTrees>,
    position: Position,
    limits: SharedBlocksLimits,
    /// The files that this node has opened, by index and entry.
    tree_files: Mutex<LruCache<(u32, u32), Arc<TreeFile>>>,
    print: Box<dyn Fn(&str) + Send + Sync>,
}

/// A file of a tree, with the state that was compared with the index, or the kind of the error of
/// its open. The first thread that needs the file opens it, and only threads that need the same
/// file wait for this.
type TreeFile = OnceLock<std::result::Result<(File, FileState), ErrorKind>>;

impl SharedBlocks {
    /// Returns the blocks of a node, which has none yet. `bytes_max`: the memory for blocks.
    /// Requests wait until [`begin`](Self::begin).
    pub fn new(bytes_max: u64) -> SharedBlocks {
        let (work, queue) = channel();
        let state = State { cache: BlockCache::new(bytes_max), parent: None, refusal: None };
        SharedBlocks {
            state: Mutex::new(state),
            work,
            queue: Mutex::new(queue),
            counters: Counters::default(),
        }
    }

    /// Starts the threads, which fetch the blocks that were requested.
    ///
    /// # Errors
    /// The error of the system if it provides no thread.
    pub fn begin(
        self: &Arc<SharedBlocks>,
        trees: Arc<dyn SharedTrees>,
        position: Position,
        limits: SharedBlocksLimits,
        print: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<()> {
        let parent = position.parent.map(|(number, address)| Arc::new(Parent::new(number, address)));
        lock(&self.state).parent = parent;
        let tree_files = Mutex::new(LruCache::new(OPEN_FILES_MAX));
        let fetcher = BlockFetcher { blocks: self.clone(), trees, position, limits, tree_files, print };
        let fetcher = Arc::new(fetcher);
        let mut started = Ok(());
        for number in 0..THREADS {
            let fetcher = fetcher.clone();
            let spawned = std::thread::Builder::new().name("blocks".into()).spawn(move || fetcher.run());
            // One thread is sufficient.
            if let (0, Err(error)) = (number, spawned) {
                started = Err(Error::from_io(error, "start", "a thread"));
                break;
            }
        }
        started
    }

    /// Answers a request for a block, at once or when the block has arrived.
    pub fn answer(&self, id: SharedBlockId, reply: peer::Reply) {
        let mut state = lock(&self.state);
        if let Some(reason) = &state.refusal {
            let refusal = encode(&Reply::Refused(reason));
            drop(state);
            return reply.send(refusal);
        }
        let found = state.cache.request(id, reply, Instant::now());
        drop(state);
        match found {
            BlockLookup::Found(block, reply) => {
                self.counters.blocks_from_memory.fetch_add(1, Ordering::Relaxed);
                self.send(&block, reply);
            }
            BlockLookup::Missing => self.add(Work::Fetch(id, Instant::now())),
            BlockLookup::Pending => {}
        }
    }

    fn add(&self, work: Work) {
        // The receiver exists as long as this object.
        let _ = self.work.send(work);
    }

    fn send(&self, block: &CachedBlock, reply: peer::Reply) {
        self.counters.sent_blocks.fetch_add(1, Ordering::Relaxed);
        self.counters.sent_bytes.fetch_add(block.bytes.len() as u64, Ordering::Relaxed);
        reply.send(encode(&Reply::Block { checksum: block.checksum, bytes: &block.bytes }));
    }

    /// Answers the requests that wait for a block, and keeps the block. `None`: the file is not
    /// shared.
    fn complete(&self, id: SharedBlockId, block: Option<CachedBlock>) {
        let block = block.map(Arc::new);
        let waiting = lock(&self.state).cache.complete(id, block.as_ref());
        for reply in waiting {
            match &block {
                Some(block) => self.send(block, reply),
                None => reply.send(encode(&Reply::NotShared)),
            }
        }
    }

    /// Replies `Wait` to the requests that have waited for `limit`, so that the other nodes do not
    /// regard this one as lost.
    pub fn answer_late(&self, limit: Duration) {
        let late = lock(&self.state).cache.take_late(|since| since.elapsed() >= limit);
        for reply in late {
            reply.send(encode(&Reply::Wait));
        }
    }

    /// Refuses the requests that wait and all later ones, and ends the threads.
    pub fn refuse(&self, reason: &str) {
        let mut state = lock(&self.state);
        state.refusal.get_or_insert_with(|| reason.to_owned());
        let waiting = state.cache.take_late(|_| true);
        let parent = state.parent.take();
        drop(state);
        self.add(Work::End);
        for reply in waiting {
            reply.send(encode(&Reply::Refused(reason)));
        }
        if let Some(Some(connection)) = parent.as_ref().and_then(|parent| parent.connection.get()) {
            connection.leave();
        }
    }

    fn is_refused(&self) -> bool {
        lock(&self.state).refusal.is_some()
    }

    /// Returns the counters.
    pub fn status(&self) -> SharedBlocksStatus {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { sent_blocks, sent_bytes, blocks_from_memory, received_bytes, read_bytes } =
            &self.counters;
        let state = lock(&self.state);
        SharedBlocksStatus {
            sent_blocks: count(sent_blocks),
            sent_bytes: count(sent_bytes),
            blocks_from_memory: count(blocks_from_memory),
            received_bytes: count(received_bytes),
            read_bytes: count(read_bytes),
            memory_bytes: state.cache.bytes(),
            memory_bytes_max: state.cache.bytes_max(),
        }
    }
}

impl BlockFetcher {
    fn run(&self) {
        loop {
            // The lock is held while this thread waits. The other threads that wait for it also
            // only wait for work.
            let work = lock(&self.blocks.queue).recv();
            match work {
                Ok(Work::Fetch(id, since)) => self.fetch(id, since),
                Ok(Work::Answered(answered)) => self.evaluate(answered),
                // The next thread also needs this message.
                Ok(Work::End) => return self.blocks.add(Work::End),
                Err(_) => return,
            }
        }
    }

    /// Asks the parent for a block, or reads it.
    fn fetch(&self, id: SharedBlockId, since: Instant) {
        let size_bytes = self.trees.size_bytes(id.index, id.entry).unwrap_or(0);
        let length = block_bytes(size_bytes, id.block);
        if length == 0 {
            return self.blocks.complete(id, None);
        }
        let parent = lock(&self.blocks.state).parent.clone();
        let Some(parent) = parent.filter(|_| since.elapsed() < self.limits.progress) else {
            return self.read(id, length);
        };
        let connection = parent.connection.get_or_init(|| {
            let connected = OtherNode::connect(parent.address, &self.position.key);
            connected.inspect_err(|error| tracing::debug!(%error, "the parent is not asked")).ok()
        });
        let (work, number) = (self.blocks.work.clone(), parent.number);
        let done = move |answer| {
            // The receiver may have ended.
            let _ = work.send(Work::Answered(Answered { id, since, length, parent: number, answer }));
        };
        match connection {
            Some(connection) => connection.call_then(
                &Request::SharedBlock(id),
                BLOCK_REPLY_BYTES_MAX,
                self.limits.answer,
                Box::new(done),
            ),
            None => {
                let address = parent.address.to_string();
                done(Err(Error::new(ErrorKind::Unavailable, "connect to", address)));
            }
        }
    }

    fn evaluate(&self, answered: Answered) {
        let Answered { id, since, length, parent, answer } = answered;
        let failed = |kind, reason: String| Error {
            source: Some(reason.into()),
            ..Error::new(kind, "receive", "a block of another node")
        };
        let error = match answer.as_deref().map(decode::<Reply<'_>>) {
            Ok(Ok(Reply::Block { checksum, bytes }))
                if bytes.len() == length && block_checksum(bytes) == checksum =>
            {
                self.blocks.counters.received_bytes.fetch_add(length as u64, Ordering::Relaxed);
                let block = CachedBlock { bytes: bytes.to_vec(), checksum };
                return self.blocks.complete(id, Some(block));
            }
            Ok(Ok(Reply::Wait)) => return self.fetch(id, since),
            Ok(Ok(Reply::NotShared)) => return self.blocks.complete(id, None),
            Ok(Ok(Reply::Refused(reason))) => failed(ErrorKind::Unsupported, printable(reason)),
            Ok(_) => failed(ErrorKind::Damaged, "the other node has sent a wrong message".into()),
            Err(error) => failed(error.kind, error.to_string()),
        };
        // The block is read first, so the requests do not wait for the search for another parent.
        self.read(id, length);
        self.replace(parent, error);
    }

    /// Asks the reader for another parent after an error of the parent `lost`. Until it is known,
    /// this node reads blocks from the file system.
    fn replace(&self, lost: NodeNumber, error: Error) {
        let mut state = lock(&self.blocks.state);
        if state.parent.as_ref().is_none_or(|parent| parent.number != lost) {
            return;
        }
        let parent = state.parent.take();
        drop(state);
        // Ends the other calls.
        drop(parent);
        tracing::debug!(parent = lost, %error, "a parent of blocks is lost");
        if error.kind == ErrorKind::Damaged {
            (self.print)(&format!("node {lost} of the job has sent a damaged block: {error}"));
        }
        let is_stopping = error.kind == ErrorKind::Unsupported;
        match self.next_parent(lost, error) {
            Ok(parent) => {
                let mut state = lock(&self.blocks.state);
                if state.refusal.is_none() {
                    state.parent = Some(Arc::new(parent));
                }
            }
            // This process is stopping, or the reader is, because its program has ended.
            Err(_) if self.blocks.is_refused() || lost == 0 && is_stopping => {}
            Err(error) => (self.print)(&format!(
                "cannot receive blocks of files from another node of the job: {error}; reading them from the file system"
            )),
        }
    }

    /// Returns the next ancestor of this node.
    ///
    /// # Errors
    /// `error` if the reader itself is lost; the errors of the requests to the reader and to the
    /// ancestor; `Conflict` if the ancestor has other files.
    fn next_parent(&self, lost: NodeNumber, error: Error) -> Result<Parent> {
        let Position { node, reader: Some(reader), key, .. } = &self.position else { return Err(error) };
        if lost == 0 {
            return Err(error);
        }
        let connection = OtherNode::connect(*reader, key)?;
        let request = Request::Lost { node: *node, parent: lost };
        let asked = connection.ask(&request, self.limits.answer, &|| !self.blocks.is_refused());
        connection.leave();
        match decode::<Reply<'_>>(&asked?) {
            // The numbers of ancestors become smaller, so this ends.
            Ok(Reply::Placed(Placement { node: placed, parent, address }))
                if placed == *node && parent < lost =>
            {
                let address = address.unwrap_or(*reader);
                let connection = OtherNode::connect(address, key)?;
                let compared = self.compare_files(&connection);
                if compared.is_err() {
                    connection.leave();
                }
                compared?;
                Ok(Parent { number: parent, address, connection: OnceLock::from(Some(connection)) })
            }
            _ => Err(Error::new(ErrorKind::Damaged, "ask for another parent:", "the reader of the job")),
        }
    }

    /// Compares the files of another node with those of this node, because the numbers in requests
    /// depend on the index. A node that has read the files itself can have a later index.
    ///
    /// # Errors
    /// `Conflict` if they differ; the errors of the request.
    fn compare_files(&self, other: &OtherNode) -> Result<()> {
        let asked = other.ask(&Request::Files, self.limits.answer, &|| !self.blocks.is_refused())?;
        let failed = |kind, reason: String| Error {
            source: Some(reason.into()),
            ..Error::new(kind, "use", "another node as parent")
        };
        match decode::<Reply<'_>>(&asked) {
            Ok(Reply::Files(files)) if files == self.position.files => Ok(()),
            Ok(Reply::Files(_)) => {
                Err(failed(ErrorKind::Conflict, "it has another version of the files".into()))
            }
            Ok(Reply::Refused(reason)) => Err(failed(ErrorKind::Unsupported, printable(reason))),
            Ok(Reply::Wait) => Err(failed(ErrorKind::Busy, "it has no files yet".into())),
            _ => Err(failed(ErrorKind::Damaged, "it has sent a wrong message".into())),
        }
    }

    /// Reads a block from the file system.
    fn read(&self, id: SharedBlockId, length: usize) {
        let block = match self.read_block(id, length) {
            Ok(bytes) => {
                self.blocks.counters.read_bytes.fetch_add(length as u64, Ordering::Relaxed);
                Some(CachedBlock { checksum: block_checksum(&bytes), bytes })
            }
            Err(error) => {
                tracing::debug!(?id, %error, "a file is not shared");
                None
            }
        };
        self.blocks.complete(id, block);
    }

    fn read_block(&self, id: SharedBlockId, length: usize) -> Result<Vec<u8>> {
        let SharedBlockId { index, entry, block } = id;
        let failed = |cause| Error::from_io(cause, "read a block of entry", entry.to_string());
        let source = self.tree_file(index, entry);
        let opened = source.get_or_init(|| {
            let opened = self.trees.open(index, entry);
            let opened = opened.inspect_err(|error| tracing::debug!(entry, %error, "a file is not opened"));
            opened.map_err(|error| error.kind)
        });
        let refused = |kind| Error::new(kind, "read a block of entry", entry.to_string());
        let (file, state) = match opened {
            Ok(opened) => opened,
            // Each request would repeat an open that fails. Without the block, the view of the node
            // that needs it opens the file itself.
            Err(kind) => return Err(refused(*kind)),
        };
        let mut bytes = vec![0; length];
        let read = file.read_exact_at(&mut bytes, block * BLOCK_BYTES as u64);
        // A file that changed can also be too short.
        if !state.is_same(&state_of(file).map_err(failed)?, true) {
            // The next open compares the file with the index.
            self.remove_tree_file(index, entry, &source);
            lock(&self.blocks.state).cache.remove_file(index, entry);
            return Err(refused(ErrorKind::Stale));
        }
        read.map_err(failed)?;
        Ok(bytes)
    }

    /// Returns the file of an entry, which is not opened yet if this is its first use.
    fn tree_file(&self, index: u32, entry: u32) -> Arc<TreeFile> {
        let mut tree_files = lock(&self.tree_files);
        if let Some(source) = tree_files.get(&(index, entry)) {
            return source.clone();
        }
        let source = Arc::<TreeFile>::default();
        let removed = tree_files.push((index, entry), source.clone());
        drop(tree_files);
        // Can close a file.
        drop(removed);
        source
    }

    /// Removes a file, unless another thread has replaced it.
    fn remove_tree_file(&self, index: u32, entry: u32, source: &Arc<TreeFile>) {
        let mut tree_files = lock(&self.tree_files);
        if tree_files.peek(&(index, entry)).is_some_and(|kept| Arc::ptr_eq(kept, source)) {
            // Closed by the caller, which has a reference.
            tree_files.pop(&(index, entry));
        }
    }
}

fn state_of(file: &File) -> std::io::Result<FileState> {
    // Not the access time, which a client of a shared file system requests again after a read.
    let wanted =
        StatxFlags::INO | StatxFlags::NLINK | StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
    let found = statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    let time = |time: rustix::fs::StatxTimestamp| Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
    Ok(FileState {
        inode: found.stx_ino,
        nlink: found.stx_nlink,
        size_bytes: found.stx_size,
        modified: time(found.stx_mtime),
        changed: time(found.stx_ctime),
    })
}
