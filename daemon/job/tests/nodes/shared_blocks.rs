//! Shared blocks of the files of a tree.

use std::sync::atomic::AtomicBool;

use quell_job::{BlockClient, SharedBlocksLimits, SharedBlocksStatus, SharedTrees};
use quell_vfs::Time;
use quell_wire::job::SharedBlockId;

use super::*;

const MIB: u64 = 1 << 20;
/// The memory that a block takes in addition to its content.
const BLOCK_OVERHEAD_BYTES: u64 = 256;

/// A tree with one file, whose entry in the index is 1.
struct Tree {
    file: PathBuf,
    indexed: fs::Metadata,
    bytes: Vec<u8>,
}

impl Tree {
    fn new(job: &Job, blocks: usize) -> Tree {
        let file = job.directory.path().join("shared");
        let bytes: Vec<u8> = (0..blocks * BLOCK_BYTES - 9).map(|i| (i * 37 / 253) as u8).collect();
        fs::write(&file, &bytes).unwrap();
        Tree { indexed: fs::metadata(&file).unwrap(), file, bytes }
    }

    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Writes to the last block, without a change of the size.
    fn change(&self) {
        let written = File::options().write(true).open(&self.file).unwrap();
        written.write_all_at(b"changed", self.length() - 7).unwrap();
        written.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
}

/// The tree as one node opens it.
struct OpenedTree {
    tree: Arc<Tree>,
    opened: AtomicUsize,
    /// The next open changes the file after its comparison.
    changes_after_comparison: AtomicBool,
    /// The next open fails with EMFILE.
    fails: AtomicBool,
}

impl SharedTrees for OpenedTree {
    fn size_bytes(&self, index: u32, entry: u32) -> Option<u64> {
        ((index, entry) == (0, 1)).then_some(self.tree.length())
    }

    fn open(&self, _: u32, _: u32) -> Result<(File, quell_vfs::FileState)> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        if self.fails.swap(false, Ordering::Relaxed) {
            return Err(Error::from_io(std::io::Error::from_raw_os_error(24), "open", "the file"));
        }
        let file = File::open(&self.tree.file).unwrap();
        let state = state_of(&file.metadata().unwrap());
        if !state_of(&self.tree.indexed).is_same(&state, true) {
            return Err(Error::new(ErrorKind::Stale, "open", "the file"));
        }
        if self.changes_after_comparison.swap(false, Ordering::Relaxed) {
            self.tree.change();
        }
        Ok((file, state))
    }
}

fn state_of(found: &fs::Metadata) -> quell_vfs::FileState {
    let time = |seconds, nanoseconds: i64| Time { seconds, nanoseconds: nanoseconds as u32 };
    quell_vfs::FileState {
        inode: found.ino(),
        nlink: found.nlink() as u32,
        size_bytes: found.len(),
        modified: time(found.mtime(), found.mtime_nsec()),
        changed: time(found.ctime(), found.ctime_nsec()),
    }
}

/// A node that shares blocks, and its view.
struct SharingNode {
    node: JobNode,
    opened: Arc<OpenedTree>,
    view: BlockClient,
    messages: Arc<Mutex<Vec<String>>>,
}

impl SharingNode {
    fn start(job: &Job, tree: &Arc<Tree>, name: &str, bytes_max: u64) -> SharingNode {
        let settings = JobSettings { shared_bytes_max: Some(bytes_max), ..job.settings(name, LONG) };
        SharingNode::start_with(job, tree, &settings)
    }

    fn start_with(job: &Job, tree: &Arc<Tree>, settings: &JobSettings) -> SharingNode {
        let node = JobNode::start(settings, &Process::default()).unwrap();
        let opened = Arc::new(OpenedTree {
            tree: tree.clone(),
            opened: AtomicUsize::new(0),
            changes_after_comparison: AtomicBool::new(false),
            fails: AtomicBool::new(false),
        });
        let messages: Arc<Mutex<Vec<String>>> = Arc::default();
        let print = |messages: &Arc<Mutex<Vec<String>>>| {
            let messages = messages.clone();
            Box::new(move |message: &str| messages.lock().unwrap().push(message.into()))
        };
        let socket = job.directory.path().join(&settings.name);
        assert!(node.share(opened.clone(), &socket, print(&messages)).unwrap());
        let limits = SharedBlocksLimits { answer: LONG, progress: LONG };
        let view = BlockClient::new(socket, limits, print(&messages));
        SharingNode { node, opened, view, messages }
    }

    /// Reads a range of the file. Returns `None` if the view must open it.
    fn read(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let done = self.view.read_at(0, 1, self.opened.tree.length(), &mut bytes, offset)?;
        bytes.truncate(done);
        Some(bytes)
    }

    #[track_caller]
    fn check(&self, offset: u64, length: usize) {
        let bytes = &self.opened.tree.bytes;
        let begin = bytes.len().min(offset as usize);
        let expected = &bytes[begin..bytes.len().min(begin + length)];
        assert!(self.read(offset, length).unwrap() == expected, "{offset} {length}");
    }

    fn check_all(&self) {
        self.check(0, self.opened.tree.bytes.len() + 1);
    }

    fn opened(&self) -> usize {
        self.opened.opened.load(Ordering::Relaxed)
    }

    fn status(&self) -> SharedBlocksStatus {
        self.node.status().shared_blocks.unwrap()
    }

    fn messages(&self) -> Vec<String> {
        self.messages.lock().unwrap().clone()
    }

    fn end(self) {
        self.node.end(Duration::ZERO, || true);
    }
}

#[test]
fn one_node_reads_each_block_once_for_all_views() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 9));
    let start = |number: usize| SharingNode::start(&job, &tree, &format!("n{number}"), 256 * MIB);
    let nodes: Vec<SharingNode> = (0..4).map(start).collect();
    // Node 3 is a child of node 1. All views read at the same time, and the last one twice.
    std::thread::scope(|scope| {
        for node in nodes.iter().chain(nodes.last()) {
            scope.spawn(|| node.check_all());
        }
    });
    for (number, node) in nodes.iter().enumerate() {
        let status = node.status();
        let length = tree.length();
        let (read, received) = if number == 0 { (length, 0) } else { (0, length) };
        assert_eq!((status.read_bytes, status.received_bytes), (read, received), "{number}: {status:?}");
        let memory = length + 9 * BLOCK_OVERHEAD_BYTES;
        assert_eq!((status.memory_bytes, node.opened()), (memory, usize::from(number == 0)));
    }
    // The reader sends to its view, and to nodes 1 and 2; node 3 to its view only, twice.
    assert_eq!([0, 1, 3].map(|number| nodes[number].status().sent_blocks), [27, 18, 18]);
    let block = BLOCK_BYTES as u64;
    for (offset, length) in [
        (0, 0),
        (1, 1),
        (block - 1, 2),
        (block, BLOCK_BYTES),
        (2 * block + 5, 3 * BLOCK_BYTES),
        (tree.length() - 1, 4096),
        (tree.length(), 10),
        (u64::MAX, 10),
    ] {
        nodes[3].check(offset, length);
    }
    let from_memory = nodes[3].status().blocks_from_memory;
    assert!(from_memory >= 8, "{from_memory}");
    for node in nodes {
        assert_eq!(node.messages(), Vec::<String>::new());
        node.end();
    }
}

#[test]
fn memory_is_bounded_and_removed_blocks_are_read_again() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 9));
    let nodes = ["n0", "n1"].map(|name| SharingNode::start(&job, &tree, name, 2 * BLOCK_BYTES as u64));
    for _ in 0..2 {
        nodes[1].check_all();
        for node in &nodes {
            let SharedBlocksStatus { memory_bytes, memory_bytes_max, .. } = node.status();
            assert!(memory_bytes <= memory_bytes_max && memory_bytes_max == 2 * BLOCK_BYTES as u64);
        }
    }
    let status = nodes[0].status();
    assert!(status.read_bytes > tree.length() && nodes[0].opened() == 1, "{status:?}");
    nodes.into_iter().for_each(SharingNode::end);
}

#[test]
fn a_changed_file_is_not_shared() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 3));
    let nodes = ["n0", "n1"].map(|name| SharingNode::start(&job, &tree, name, 256 * MIB));
    nodes[1].check(0, 10);
    assert!(nodes[0].status().memory_bytes > 0);
    // The size is the same. The reader has the file open.
    tree.change();
    assert_eq!(nodes[1].read(2 * BLOCK_BYTES as u64, 7), None);
    assert_eq!((nodes[0].status().memory_bytes, nodes[0].opened()), (0, 1));
    // The next open finds the difference, and further requests cause no further open.
    for _ in 0..2 {
        assert_eq!(nodes[1].read(BLOCK_BYTES as u64, 7), None);
        assert_eq!((nodes[0].opened(), nodes[1].opened()), (2, 0));
    }
    // This node has the indexed content of the first block.
    nodes[1].check(0, 10);
    nodes.into_iter().for_each(|node| {
        assert_eq!(node.messages(), Vec::<String>::new());
        node.end();
    });
}

#[test]
fn a_file_that_changes_during_its_open_is_not_shared() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 2));
    let node = SharingNode::start(&job, &tree, "node", 256 * MIB);
    node.opened.changes_after_comparison.store(true, Ordering::Relaxed);
    assert_eq!(node.read(BLOCK_BYTES as u64, 10), None);
    assert_eq!((node.opened(), node.status().memory_bytes), (1, 0));
    node.end();
}

#[test]
fn a_file_that_cannot_be_opened_is_not_opened_again_at_each_request() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 2));
    let node = SharingNode::start(&job, &tree, "node", 256 * MIB);
    node.opened.fails.store(true, Ordering::Relaxed);
    assert_eq!((node.read(0, 10), node.read(0, 10)), (None, None));
    assert_eq!(node.read(BLOCK_BYTES as u64, 10), None);
    assert_eq!(node.opened(), 1);
    node.end();
}

#[test]
fn a_node_that_loses_its_parent_reads_and_then_asks_an_ancestor() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 5));
    let start = |number: usize| SharingNode::start(&job, &tree, &format!("n{number}"), 256 * MIB);
    let mut nodes: Vec<SharingNode> = (0..3).map(start).collect();
    // This node keeps no block in memory, so it requests a block at each read.
    let last = SharingNode::start(&job, &tree, "n3", BLOCK_OVERHEAD_BYTES);
    last.check(0, 10);
    assert_eq!((last.node.status().parent, last.opened()), (Some(1), 0));
    nodes.remove(1).end();
    let block = |number: u64| last.check(number * BLOCK_BYTES as u64, 10);
    block(1);
    assert_eq!(last.opened(), 1, "no read waits for another parent");
    let received = last.status().received_bytes;
    let begun = Instant::now();
    while last.status().received_bytes == received {
        assert!(begun.elapsed() < LONG, "no other parent");
        block(2);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(last.messages(), Vec::<String>::new());
    // No ancestor is left.
    nodes.remove(0).end();
    let read = last.status().read_bytes;
    block(3);
    assert!(last.status().read_bytes > read);
    // The message is printed after the read, by another thread.
    while last.messages().is_empty() {
        assert!(begun.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    block(4);
    let messages = last.messages();
    assert!(messages.len() == 1 && messages[0].contains("cannot receive blocks"), "{messages:?}");
    last.end();
    nodes.into_iter().for_each(SharingNode::end);
}

/// A reader, and a node whose parent is a fake node with the files of the job.
struct WithFakeParent {
    reader: SharingNode,
    fake: Server,
    node: SharingNode,
}

impl WithFakeParent {
    /// `answer`: the answer of the fake node to requests for shared blocks.
    fn start(
        job: &Job,
        tree: &Arc<Tree>,
        settings: &JobSettings,
        answer: impl Fn() -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> WithFakeParent {
        let reader = SharingNode::start(job, tree, "reader", 256 * MIB);
        let Advertisement { addresses, key } = job.advertisement();
        let (file, bytes) = (attributes(job), job.bytes.clone());
        let (fake, address) = fake_node(&key, move |request| match request {
            Request::Files => Some(encode(&Reply::Files(vec![FileState::Open(file.clone())]))),
            Request::Block { .. } => {
                Some(encode(&Reply::Block { checksum: block_checksum(&bytes), bytes: &bytes }))
            }
            _ => answer(),
        });
        let client = TestClient::new(addresses[0], key);
        // Nodes 1 and 2 are children of the reader; node 3 is the first child of node 1.
        client.join(address);
        client.join(address);
        let settings = JobSettings { shared_bytes_max: Some(256 * MIB), ..settings.clone() };
        let node = SharingNode::start_with(job, tree, &settings);
        assert_eq!(node.node.status().parent, Some(1));
        WithFakeParent { reader, fake, node }
    }

    fn end(self) {
        self.fake.stop(Duration::ZERO);
        self.node.end();
        self.reader.end();
    }
}

#[test]
fn wrong_blocks_are_not_used() {
    for damage in WRONG_REPLIES {
        let job = Job::new(1);
        let tree = Arc::new(Tree::new(&job, 2));
        let shared = tree.bytes[..BLOCK_BYTES].to_vec();
        let nodes =
            WithFakeParent::start(&job, &tree, &job.settings("child", LONG), move || Some(damage(&shared)));
        let node = &nodes.node;
        node.check_all();
        assert!(node.opened() == 1 && node.messages().len() <= 1);
        let begun = Instant::now();
        while node.messages().is_empty() {
            assert!(begun.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(node.messages()[0].contains("node 1 of the job has sent a damaged block"));
        nodes.end();
    }
}

#[test]
fn a_node_does_not_wait_for_ever_for_a_parent() {
    // The parent does not answer, or has nothing to send.
    for waits in [false, true] {
        let job = Job::new(1);
        let tree = Arc::new(Tree::new(&job, 2));
        // Also the limit of the join, which the other nodes answer at once.
        let short = Duration::from_secs(3);
        let settings = match waits {
            false => job.settings("child", short),
            true => JobSettings { progress_limit: short, ..job.settings("child", LONG) },
        };
        let answer = move || waits.then(|| encode(&Reply::Wait));
        let nodes = WithFakeParent::start(&job, &tree, &settings, answer);
        // One block: after it, the node can have another parent.
        nodes.node.check(0, 10);
        assert_eq!((nodes.node.opened(), nodes.node.status().read_bytes), (1, BLOCK_BYTES as u64));
        assert_eq!(nodes.node.messages(), Vec::<String>::new());
        nodes.end();
    }
}

#[test]
fn an_ancestor_with_another_version_of_the_files_gets_no_requests() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 3));
    let reader = SharingNode::start(&job, &tree, "reader", 256 * MIB);
    let Advertisement { addresses, key } = job.advertisement();
    let right = attributes(&job);
    let changed = FileAttributes { inode: right.inode + 1, ..right.clone() };
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let (ancestor, ancestor_address) = fake_node(&key, move |request| match request {
        Request::Files => Some(encode(&Reply::Files(vec![FileState::Open(changed.clone())]))),
        _ => {
            count.fetch_add(1, Ordering::Relaxed);
            Some(encode(&Reply::NotShared))
        }
    });
    let bytes = job.bytes.clone();
    let (parent, parent_address) = fake_node(&key, move |request| match request {
        Request::Files => Some(encode(&Reply::Files(vec![FileState::Open(right.clone())]))),
        Request::Block { .. } => {
            Some(encode(&Reply::Block { checksum: block_checksum(&bytes), bytes: &bytes }))
        }
        _ => Some(encode(&Reply::Refused("it ends"))),
    });
    let client = TestClient::new(addresses[0], key);
    // Node 3 is a child of node 1, and node 7 the first child of node 3.
    for number in 1..7 {
        client.join(if number == 3 { parent_address } else { ancestor_address });
    }
    let node = SharingNode::start(&job, &tree, "node", 256 * MIB);
    assert_eq!(node.node.status().parent, Some(3));
    let begun = Instant::now();
    node.check(0, 10);
    while node.messages().is_empty() {
        assert!(begun.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    node.check_all();
    let messages = node.messages();
    assert!(messages.len() == 1 && messages[0].contains("another version of the files"), "{messages:?}");
    assert_eq!((asked.load(Ordering::Relaxed), node.status().read_bytes), (0, tree.length()));
    ancestor.stop(Duration::ZERO);
    parent.stop(Duration::ZERO);
    node.end();
    reader.end();
}

#[test]
fn requests_for_other_files_get_no_block() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 2));
    let node = SharingNode::start(&job, &tree, "node", 256 * MIB);
    let Advertisement { addresses, key } = job.advertisement();
    let client = TestClient::new(addresses[0], key);
    let ask = |index, entry, block| {
        let request = Request::SharedBlock(SharedBlockId { index, entry, block });
        client.ask(&request).unwrap()
    };
    for (index, entry, block) in [(0, 1, 2), (0, 1, u64::MAX), (0, 0, 0), (0, u32::MAX, 0), (u32::MAX, 1, 0)]
    {
        assert_eq!(decode::<Reply<'_>>(&ask(index, entry, block)).unwrap(), Reply::NotShared);
    }
    assert_eq!(node.opened(), 0);
    assert!(
        matches!(decode(&ask(0, 1, 1)).unwrap(), Reply::Block { bytes, .. } if bytes == &tree.bytes[BLOCK_BYTES..])
    );
    node.end();
    // A node that shares no blocks.
    let process = Process::default();
    let plain = job.start("plain", &process).unwrap();
    let Advertisement { addresses, key } = job.advertisement();
    let client = TestClient::new(addresses[0], key);
    let request = Request::SharedBlock(SharedBlockId { index: 0, entry: 1, block: 0 });
    assert_eq!(decode::<Reply<'_>>(&client.ask(&request).unwrap()).unwrap(), Reply::NotShared);
    plain.end(Duration::ZERO, || true);
}

#[test]
fn a_view_without_a_job_holder_prints_one_message() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 2));
    let node = SharingNode::start(&job, &tree, "node", 256 * MIB);
    let (view, messages) = (node.view, node.messages);
    node.node.end(Duration::ZERO, || true);
    let mut bytes = [0; 10];
    for _ in 0..2 {
        assert_eq!(view.read_at(0, 1, tree.length(), &mut bytes, 0), None);
        let messages = messages.lock().unwrap();
        assert!(messages.len() == 1 && messages[0].contains("from the job holder"), "{messages:?}");
    }
}

#[test]
fn clients_of_shared_blocks_do_not_delay_the_end_of_a_node() {
    let job = Job::new(1);
    let tree = Arc::new(Tree::new(&job, 2));
    let nodes = ["n0", "n1"].map(|name| SharingNode::start(&job, &tree, name, 256 * MIB));
    nodes[1].check_all();
    let [reader, other] = nodes;
    let begun = Instant::now();
    reader.node.end(LONG, || begun.elapsed() > LONG / 2);
    assert!(begun.elapsed() < LONG / 2);
    other.end();
}
