//! Nodes of a job in one process, with TCP connections on the loopback interface; and processes
//! that have the key of the job and do not keep to the protocol.

use std::fs::{self, File};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_job::{
    Advertisement, CompleteFile, Environment, JobNode, JobSettings, MeetingPoint, MeetingServer, OpenedFile,
    OwnLink, ReaderLink,
};
use quell_transport::peer::{
    Client, ClientHandler, ClientIdentity, ClientSettings, Endpoint, Handler, MemberId, PoolKey,
    Reply as Answer, Request as Asked, Role, Server, ServerSettings,
};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::job::{
    BLOCK_BYTES, CheckResult, FileAttributes, FileState, PROTOCOL, Placement, REPLY_BYTES_MAX, Reply,
    Request, block_checksum,
};
use quell_wire::{decode, encode};

#[path = "nodes/shared_blocks.rs"]
mod shared_blocks;

/// A time limit for operations that end by themselves.
const LONG: Duration = Duration::from_secs(120);

/// The directory of a job with one file.
struct Job {
    directory: tempfile::TempDir,
    file: PathBuf,
    bytes: Vec<u8>,
}

impl Job {
    fn new(blocks: usize) -> Job {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let bytes: Vec<u8> = (0..blocks * BLOCK_BYTES - 7).map(|i| (i * 31 / 257) as u8).collect();
        let file = directory.path().canonicalize().unwrap().join("file");
        fs::write(&file, &bytes).unwrap();
        Job { directory, file, bytes }
    }

    fn settings(&self, name: &str, limit: Duration) -> JobSettings {
        JobSettings {
            job: "job".into(),
            meeting: MeetingPoint::Directory(self.directory.path().into()),
            files: vec![self.file.clone()],
            name: name.into(),
            interface: Some("lo".into()),
            limit,
            progress_limit: LONG,
            shared_bytes_max: None,
        }
    }

    fn start(&self, name: &str, process: &Process) -> Result<JobNode> {
        JobNode::start(&self.settings(name, LONG), process)
    }

    fn point(&self) -> ReaderLink {
        ReaderLink::open(self.directory.path(), "job", std::slice::from_ref(&self.file)).unwrap()
    }

    fn advertisement(&self) -> Advertisement {
        Advertisement::decode(&self.point().read(&|| true).unwrap().unwrap()).unwrap()
    }

    /// Creates the link of a reader.
    fn advertise(&self, address: SocketAddr, key: [u8; 32]) {
        let text = Advertisement { addresses: vec![address], key: PoolKey(key) }.encode();
        assert!(self.point().create(&text, &|| true).unwrap());
    }

    #[track_caller]
    fn check(&self, node: &JobNode) {
        let [file] = &node.files[..] else { panic!("{:?}", node.files) };
        let mut read = Vec::new();
        let mut shared = file.shared.unwrap().open(std::process::id()).unwrap();
        std::io::Read::read_to_end(&mut shared, &mut read).unwrap();
        assert!(read == self.bytes, "other bytes");
        let FileState::Open(attributes) = &file.state else { panic!("{file:?}") };
        let found = fs::metadata(&self.file).unwrap();
        assert_eq!(
            (attributes.inode, attributes.uid, attributes.mode),
            (found.ino(), found.uid(), found.mode())
        );
        assert_eq!(attributes.path, self.file.as_os_str().as_bytes());
        assert!(shared.write_at(b"x", 0).is_err(), "the file is sealed");
    }
}

/// The environment of a node.
#[derive(Default)]
struct Process {
    opened: AtomicUsize,
    messages: Mutex<Vec<String>>,
    link: Mutex<Option<Arc<OwnLink>>>,
    /// Called before each block is read.
    before_block: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    /// The result of the sample of each file.
    sample: Option<CheckResult>,
    sampled: AtomicUsize,
    /// The memory for files, in bytes; without a limit if it is `None`.
    memory: Option<u64>,
}

impl Process {
    fn messages(&self) -> Vec<String> {
        self.messages.lock().unwrap().clone()
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Environment for Process {
    fn open(&self, path: &Path) -> std::result::Result<OpenedFile, String> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let file = File::open(path).map_err(|e| e.to_string())?;
        let found = file.metadata().unwrap();
        let attributes = FileAttributes {
            path: path.as_os_str().as_bytes().to_vec(),
            directory: None,
            size_bytes: found.len(),
            mode: found.mode(),
            uid: found.uid(),
            gid: found.gid(),
            has_acl: false,
            inode: found.ino(),
            modified_seconds: found.mtime(),
            modified_nanoseconds: found.mtime_nsec() as u32,
        };
        Ok(OpenedFile { file, attributes })
    }

    fn admit(&self, files: &[FileState]) -> Result<()> {
        let bytes = |state: &FileState| match state {
            FileState::Open(file) => file.size_bytes,
            FileState::Failed(_) => 0,
        };
        match self.memory.is_some_and(|memory| files.iter().map(bytes).sum::<u64>() > memory) {
            true => Err(Error::new(ErrorKind::Quota, "admit", "the files")),
            false => Ok(()),
        }
    }

    fn sample(&self, files: &[CompleteFile]) -> Vec<Option<CheckResult>> {
        self.sampled.fetch_add(1, Ordering::Relaxed);
        vec![self.sample.clone(); files.len()]
    }

    fn watch_read(&self, _: &Path, _: &File, operation: &mut dyn FnMut()) {
        operation();
    }

    fn is_needed(&self) -> bool {
        self.before_block.as_ref().is_none_or(|before| before())
    }

    fn link_created(&self, link: &Arc<OwnLink>) {
        *self.link.lock().unwrap() = Some(link.clone());
    }

    fn print(&self, message: &str) {
        self.messages.lock().unwrap().push(message.into());
    }
}

/// A process that asks nodes.
struct TestClient(Client);

impl TestClient {
    fn new(address: SocketAddr, key: PoolKey) -> TestClient {
        let settings = ClientSettings {
            unreachable_after: LONG,
            ..ClientSettings::new(Role::Job, Endpoint::Tcp(address), key)
        };
        TestClient(Client::start(settings).unwrap())
    }

    fn ask(&self, request: &Request<'_>) -> Result<Vec<u8>> {
        let (sender, receiver) = channel();
        let done = Box::new(move |result| drop(sender.send(result)));
        self.0.call(encode(request), REPLY_BYTES_MAX as u32, Instant::now() + LONG, done);
        receiver.recv().unwrap()
    }

    /// Adds a node to the tree.
    fn join(&self, address: SocketAddr) -> Placement {
        let reply = self.ask(&Request::Join { protocol: PROTOCOL, address, name: "other" }).unwrap();
        match decode::<Reply<'_>>(&reply).unwrap() {
            Reply::Placed(placement) => placement,
            other => panic!("{other:?}"),
        }
    }
}

/// Answers requests with a function; `None`: it does not answer.
struct Fake<F> {
    answer: F,
    /// The requests that get no answer.
    unanswered: Mutex<Vec<Answer>>,
}

impl<F: Fn(Request<'_>) -> Option<Vec<u8>> + Send + Sync> Handler for Fake<F> {
    fn handle(&self, asked: Asked, answer: Answer) {
        match (self.answer)(decode(&asked.bytes).unwrap()) {
            Some(reply) => answer.send(reply),
            None => self.unanswered.lock().unwrap().push(answer),
        }
    }
}

struct OneHandler(Arc<dyn Handler>);

impl ClientHandler for OneHandler {
    fn handler(&self, _: ClientIdentity<'_>) -> Option<Arc<dyn Handler>> {
        Some(self.0.clone())
    }

    fn ended(&self, _: MemberId) {}
}

/// Starts a server with the key of the job.
fn fake_node(
    key: &PoolKey,
    answer: impl Fn(Request<'_>) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> (Server, SocketAddr) {
    let handler = Arc::new(OneHandler(Arc::new(Fake { answer, unanswered: Mutex::default() })));
    let server = Server::start(ServerSettings::new(Role::Job, key.clone()), handler).unwrap();
    let address = server.listen_tcp(([127, 0, 0, 1], 0).into()).unwrap();
    (server, address)
}

/// An address at which no process listens. The kernel gives this port to no other test.
fn refused_port() -> SocketAddr {
    ([127, 0, 0, 1], 1).into()
}

fn attributes(job: &Job) -> FileAttributes {
    Process::default().open(&job.file).unwrap().attributes
}

/// A reader, and a node in the tree whose first parent is a fake node. Returns the result of the
/// second node, and the messages that it printed.
fn start_with_fake_parent(
    job: &Job,
    answer: impl Fn(Request<'_>) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> (Result<JobNode>, Process) {
    let reading = Process::default();
    let reader = job.start("reader", &reading).unwrap();
    let Advertisement { addresses, key } = job.advertisement();
    let (fake, address) = fake_node(&key, answer);
    let client = TestClient::new(addresses[0], key);
    // Nodes 1 and 2 are children of the reader; node 3 is the first child of node 1.
    for node in [1, 2] {
        assert_eq!(client.join(address), Placement { node, parent: 0, address: None });
    }
    let process = Process::default();
    let node = job.start("child", &process);
    fake.stop(Duration::ZERO);
    reader.end(Duration::ZERO, || true);
    assert_eq!(process.opened(), 0, "it reads nothing itself");
    (node, process)
}

#[test]
fn one_node_reads_and_the_others_receive_the_same_bytes() {
    let job = Job::new(40);
    let processes: Vec<Process> = (0..6).map(|_| Process::default()).collect();
    let nodes: Vec<JobNode> = std::thread::scope(|scope| {
        let job_ref = &job;
        let start = |process| scope.spawn(move || job_ref.start("node", process).unwrap());
        let starting: Vec<_> = processes.iter().map(start).collect();
        starting.into_iter().map(|node| node.join().unwrap()).collect()
    });
    nodes.iter().for_each(|node| job.check(node));
    assert_eq!(processes.iter().map(Process::opened).sum::<usize>(), 1);
    assert!(processes.iter().all(|process| process.messages().is_empty()));
    let reader = nodes.iter().position(|node| node.status().node == 0).unwrap();
    let length = job.bytes.len() as u64;
    for (position, node) in nodes.iter().enumerate() {
        let status = node.status();
        let expected = if position == reader { (0, length) } else { (length, 0) };
        assert_eq!((status.received_bytes, status.read_bytes), expected);
        assert_eq!(status.nodes.len(), 6);
        let parents: Vec<Option<u32>> = status.nodes.iter().map(|node| node.parent).collect();
        assert_eq!(parents, [None, Some(0), Some(0), Some(1), Some(1), Some(2)]);
    }
    for node in nodes {
        node.end(LONG, || true);
    }
    assert_eq!(job.point().read(&|| true).unwrap(), None, "the link is gone");
}

#[test]
fn nodes_meet_at_a_process_and_use_the_comparisons_of_the_reader() {
    let job = Job::new(3);
    let server = MeetingServer::start(Some("lo")).unwrap();
    let settings = |name: &str| JobSettings {
        meeting: MeetingPoint::Process(server.text().to_owned()),
        ..job.settings(name, LONG)
    };
    let equal = Some(CheckResult(b"equal".to_vec()));
    let reading = Process { sample: equal.clone(), ..Process::default() };
    let reader = JobNode::start(&settings("reader"), &reading).unwrap();
    let others: Vec<(JobNode, Process)> = (0..3)
        .map(|_| {
            let process = Process::default();
            (JobNode::start(&settings("node"), &process).unwrap(), process)
        })
        .collect();
    for (node, process) in &others {
        job.check(node);
        let made = process.sampled.load(Ordering::Relaxed);
        assert_eq!((process.opened(), made, process.messages()), (0, 0, vec![]));
        assert_eq!((&node.samples, node.is_reader()), (&vec![equal.clone()], false));
    }
    assert_eq!((&reader.samples, reader.is_reader()), (&vec![equal], true));
    assert_eq!(fs::read_dir(job.directory.path()).unwrap().count(), 1, "only the file itself");

    // The check of the whole tree, which ends later.
    let (node, _) = &others[0];
    assert_eq!(node.checked(&[0], &|| true), []);
    reader.publish_check(0, b"whole".to_vec());
    assert_eq!(node.checked(&[0, 1], &|| true), [(0, b"whole".to_vec())]);

    // The next node reads the files, because the link of the reader is gone.
    reader.end(Duration::ZERO, || true);
    let process = Process::default();
    let next = JobNode::start(&settings("next"), &process).unwrap();
    assert_eq!((process.opened(), next.is_reader()), (1, true));
    for node in others.into_iter().map(|(node, _)| node).chain([next]) {
        node.end(Duration::ZERO, || true);
    }
    server.stop();
}

#[test]
fn a_node_whose_meeting_process_has_ended_fails_and_prints_nothing() {
    let job = Job::new(1);
    let server = MeetingServer::start(Some("lo")).unwrap();
    let text = server.text().to_owned();
    server.stop();
    for text in [text, "no address".into()] {
        let process = Process::default();
        let settings = JobSettings { meeting: MeetingPoint::Process(text), ..job.settings("node", LONG) };
        let error = JobNode::start(&settings, &process).unwrap_err();
        assert!(error.to_string().contains("the meeting point of the job"), "{error}");
        assert_eq!((process.opened(), process.messages()), (0, vec![]));
    }
}

/// Starts a proxy in front of a server that behaves like a suspended process: the connections are
/// accepted, and nothing is read from them, until there were `connections`. Then it passes on the
/// bytes of all of them.
fn suspended_until(connections: usize, server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut waiting = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            waiting.push(stream.unwrap());
            if number + 1 >= connections {
                waiting.drain(..).for_each(|stream| pass_on(&stream, server));
            }
        }
    });
    address
}

/// Copies the bytes of both directions between a connection and a server, until either is closed.
fn pass_on(client: &TcpStream, server: SocketAddr) {
    let server = TcpStream::connect(server).unwrap();
    for (from, to) in [(client, &server), (&server, client)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || {
            // The other side may have closed its connection.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

/// The settings of a node whose meeting process is behind `suspended_until`.
fn settings_through(job: &Job, server: &MeetingServer, connections: usize) -> JobSettings {
    let Advertisement { addresses, key } = Advertisement::decode(server.text().as_bytes()).unwrap();
    let addresses = vec![suspended_until(connections, addresses[0])];
    let text = Advertisement { addresses, key }.encode();
    JobSettings { meeting: MeetingPoint::Process(text), ..job.settings("node", LONG) }
}

#[test]
fn a_node_waits_for_a_meeting_process_that_is_suspended() {
    let job = Job::new(2);
    let server = MeetingServer::start(Some("lo")).unwrap();
    // The first two connections are the check of the address and the connection for calls. Each
    // further one follows a call that has failed.
    let process = Process::default();
    let node = JobNode::start(&settings_through(&job, &server, 5), &process).unwrap();
    job.check(&node);
    assert_eq!((node.is_reader(), process.messages()), (true, vec![]));
    node.end(Duration::ZERO, || true);
    server.stop();
}

#[test]
fn a_node_that_is_not_needed_does_not_wait_for_a_suspended_meeting_process() {
    let job = Job::new(2);
    let server = MeetingServer::start(Some("lo")).unwrap();
    let asked = AtomicUsize::new(0);
    let process = Process {
        // Some checks while the first call waits for a connection, and some after it has failed.
        before_block: Some(Box::new(move || asked.fetch_add(1, Ordering::Relaxed) < 30)),
        ..Process::default()
    };
    let error = JobNode::start(&settings_through(&job, &server, usize::MAX), &process).unwrap_err();
    assert_eq!((error.kind, process.opened()), (ErrorKind::Interrupted, 0), "{error}");
    server.stop();
}

#[test]
fn a_block_is_passed_on_before_the_next_one_is_read() {
    let job = Job::new(3);
    let (release, released) = channel::<()>();
    let (asked, released) = (AtomicUsize::new(0), Mutex::new(released));
    let before = move || {
        // Before the second block.
        if asked.fetch_add(1, Ordering::Relaxed) == 1 {
            released.lock().unwrap().recv().unwrap();
        }
        true
    };
    let process = Process { before_block: Some(Box::new(before)), ..Process::default() };
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| job.start("reader", &process).unwrap());
        while job.point().read(&|| true).unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let Advertisement { addresses, key } = job.advertisement();
        let client = TestClient::new(addresses[0], key);
        let block = |block| client.ask(&Request::Block { file: 0, block }).unwrap();
        let first = block(0);
        let bytes = &job.bytes[..BLOCK_BYTES];
        let right = Reply::Block { checksum: block_checksum(bytes), bytes };
        assert!(decode::<Reply<'_>>(&first).unwrap() == right);
        release.send(()).unwrap();
        assert!(matches!(decode(&block(2)).unwrap(), Reply::Block { .. }));
        assert!(matches!(decode(&block(3)).unwrap(), Reply::Refused(_)), "after the end");
        job.check(&reading.join().unwrap());
    });
}

#[test]
fn a_node_whose_parent_ends_receives_the_rest_from_an_ancestor() {
    let job = Job::new(9);
    let (file, first) = (attributes(&job), job.bytes[..BLOCK_BYTES].to_vec());
    let stop: Arc<Mutex<Option<Server>>> = Arc::default();
    let reading = Process::default();
    let reader = job.start("reader", &reading).unwrap();
    let Advertisement { addresses, key } = job.advertisement();
    let ending = stop.clone();
    let (fake, address) = fake_node(&key, move |request| match request {
        Request::Files => Some(encode(&Reply::Files(vec![FileState::Open(file.clone())]))),
        Request::Block { block: 0, .. } => {
            Some(encode(&Reply::Block { checksum: block_checksum(&first), bytes: &first }))
        }
        // The process ends: its port refuses connections.
        _ => {
            let server = ending.lock().unwrap().take();
            drop(std::thread::spawn(move || drop(server)));
            None
        }
    });
    *stop.lock().unwrap() = Some(fake);
    let client = TestClient::new(addresses[0], key);
    client.join(address);
    client.join(address);
    let process = Process::default();
    let node = job.start("child", &process).unwrap();
    job.check(&node);
    assert_eq!((node.status().parent, process.opened(), process.messages()), (Some(0), 0, Vec::new()));
    assert_eq!(node.status().received_bytes, job.bytes.len() as u64);
    // One report: the network of the child may be the cause.
    assert_eq!(client.join(address).parent, 1);
    node.end(Duration::ZERO, || true);
    reader.end(Duration::ZERO, || true);
}

/// Returns a wrong reply to a request for a block with these bytes.
type WrongReply = fn(&[u8]) -> Vec<u8>;

const WRONG_REPLIES: [WrongReply; 4] = [
    // The checksum belongs to other bytes.
    |right| encode(&Reply::Block { checksum: block_checksum(right) ^ 1, bytes: right }),
    // The right checksum of a block that is too short.
    |right| encode(&Reply::Block { checksum: block_checksum(&right[1..]), bytes: &right[1..] }),
    |_| encode(&Reply::Noted),
    |_| vec![0xff; 9],
];

#[test]
fn damaged_blocks_are_refused_and_reported_and_an_ancestor_sends_the_right_ones() {
    let job = Job::new(5);
    for damage in WRONG_REPLIES {
        let (file, bytes) = (attributes(&job), job.bytes[..BLOCK_BYTES].to_vec());
        let (node, process) = start_with_fake_parent(&job, move |request| match request {
            Request::Files => Some(encode(&Reply::Files(vec![FileState::Open(file.clone())]))),
            _ => Some(damage(&bytes)),
        });
        let node = node.unwrap();
        job.check(&node);
        assert_eq!(node.status().parent, Some(0));
        let messages = process.messages();
        assert!(
            messages.len() == 1 && messages[0].contains("node 1 of the job has sent damaged data"),
            "{messages:?}"
        );
        node.end(Duration::ZERO, || true);
    }
}

#[test]
fn a_list_with_another_number_of_files_is_refused() {
    let job = Job::new(2);
    for count in [0, 2] {
        let files = vec![FileState::Open(attributes(&job)); count];
        let (node, process) =
            start_with_fake_parent(&job, move |_| Some(encode(&Reply::Files(files.clone()))));
        let node = node.unwrap();
        job.check(&node);
        assert!(process.messages()[0].contains("damaged data"), "{:?}", process.messages());
        node.end(Duration::ZERO, || true);
    }
}

#[test]
fn lengths_out_of_bounds_are_refused_before_memory_is_allocated() {
    let job = Job::new(2);
    for size_bytes in [u64::MAX, quell_wire::job::FILE_BYTES_MAX + 1] {
        let file = FileAttributes { size_bytes, ..attributes(&job) };
        let (node, _) = start_with_fake_parent(&job, move |_| {
            Some(encode(&Reply::Files(vec![FileState::Open(file.clone())])))
        });
        let node = node.unwrap();
        job.check(&node);
        node.end(Duration::ZERO, || true);
    }
}

#[test]
fn two_versions_of_a_file_are_not_mixed() {
    let job = Job::new(3);
    let (other, bytes) =
        (FileAttributes { modified_nanoseconds: 1, ..attributes(&job) }, vec![0; BLOCK_BYTES]);
    let (node, _) = start_with_fake_parent(&job, move |request| match request {
        Request::Files => Some(encode(&Reply::Files(vec![FileState::Open(other.clone())]))),
        Request::Block { block: 0, .. } => {
            Some(encode(&Reply::Block { checksum: block_checksum(&bytes), bytes: &bytes }))
        }
        _ => Some(encode(&Reply::Refused("it is stopping"))),
    });
    assert_eq!(node.unwrap_err().kind, ErrorKind::Conflict);
}

#[test]
fn a_node_without_memory_leaves_the_tree() {
    let job = Job::new(2);
    let reading = Process::default();
    let reader = job.start("reader", &reading).unwrap();
    let process = Process { memory: Some(0), ..Process::default() };
    assert_eq!(job.start("small", &process).unwrap_err().kind, ErrorKind::Quota);
    reader.end(Duration::ZERO, || true);
    // Memory for each of two files, and not for both.
    let mut settings = job.settings("two", LONG);
    settings.files.push(job.file.clone());
    let small = Process { memory: Some(job.bytes.len() as u64), ..Process::default() };
    assert_eq!(JobNode::start(&settings, &small).unwrap_err().kind, ErrorKind::Quota);
    let reading = Process::default();
    let reader = JobNode::start(&settings, &reading).unwrap();
    assert_eq!(JobNode::start(&settings, &small).unwrap_err().kind, ErrorKind::Quota);
    reader.end(Duration::ZERO, || true);
}

#[test]
fn a_process_without_the_key_is_refused() {
    let job = Job::new(2);
    let process = Process::default();
    let reader = job.start("reader", &process).unwrap();
    let Advertisement { addresses, key } = job.advertisement();
    let mut wrong = key.clone();
    wrong.0[31] ^= 1;
    let settings = ClientSettings {
        unreachable_after: Duration::from_secs(1),
        ..ClientSettings::new(Role::Job, Endpoint::Tcp(addresses[0]), wrong)
    };
    let refused = TestClient(Client::start(settings).unwrap()).ask(&Request::Files).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{refused}");
    assert!(TestClient::new(addresses[0], key).ask(&Request::Files).is_ok());
    reader.end(Duration::ZERO, || true);
}

#[test]
fn a_reader_with_another_key_is_not_used_and_its_link_is_replaced() {
    let job = Job::new(2);
    let (fake, address) = fake_node(&PoolKey([1; 32]), |_| panic!("a request"));
    job.advertise(address, [2; 32]);
    let process = Process::default();
    let node = job.start("node", &process).unwrap();
    job.check(&node);
    assert_eq!((node.status().node, process.opened()), (0, 1));
    assert_ne!(job.advertisement().addresses, [address]);
    fake.stop(Duration::ZERO);
    node.end(Duration::ZERO, || true);
}

#[test]
fn the_link_of_a_process_that_has_ended_is_replaced_without_a_message() {
    let job = Job::new(2);
    job.advertise(refused_port(), [1; 32]);
    let process = Process::default();
    let node = job.start("node", &process).unwrap();
    job.check(&node);
    assert_eq!((node.status().node, process.opened(), process.messages()), (0, 1, Vec::new()));
    let second = Process::default();
    let other = job.start("second", &second).unwrap();
    assert_eq!((other.status().parent, second.opened()), (Some(0), 0));
    other.end(Duration::ZERO, || true);
    node.end(Duration::ZERO, || true);
}

#[test]
fn a_node_that_gets_no_answer_prints_one_message_and_becomes_the_reader() {
    let job = Job::new(2);
    // This service accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    job.advertise(address, [1; 32]);
    let process = Process::default();
    let settings = job.settings("node", Duration::from_millis(400));
    let node = JobNode::start(&settings, &process).unwrap();
    job.check(&node);
    let messages = process.messages();
    assert_eq!((process.opened(), messages.len()), (1, 1), "{messages:?}");
    assert!(messages[0].contains("replacing the link, and reading the files"), "{messages:?}");
    assert!(messages[0].contains(&address.to_string()), "{messages:?}");
    assert!(!messages[0].contains("member"), "{messages:?}");
    assert_ne!(job.advertisement().addresses, [address]);
    node.end(Duration::ZERO, || true);
    assert_eq!(job.point().read(&|| true).unwrap(), None);
}

#[test]
fn the_link_whose_port_another_service_has_is_replaced_and_later_nodes_use_the_new_one() {
    let job = Job::new(2);
    // This service answers each connection with a text, and closes it.
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        for stream in service.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
            let mut first = [0; 4];
            if std::io::Read::read_exact(&mut stream, &mut first).is_ok() && first == *b"stop" {
                return;
            }
        }
    });
    job.advertise(address, [1; 32]);
    let process = Process::default();
    let node = JobNode::start(&job.settings("node", Duration::from_millis(400)), &process).unwrap();
    assert_eq!((node.status().node, process.opened(), process.messages().len()), (0, 1, 1));
    let second = Process::default();
    let other = job.start("second", &second).unwrap();
    job.check(&other);
    assert_eq!((other.status().parent, second.opened(), second.messages()), (Some(0), 0, Vec::new()));
    other.end(Duration::ZERO, || true);
    node.end(Duration::ZERO, || true);
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut stream, b"stop").unwrap();
    serving.join().unwrap();
}

#[test]
fn a_node_that_is_not_needed_ends() {
    let job = Job::new(2);
    let (fake, address) = fake_node(&PoolKey([1; 32]), |request| {
        Some(match request {
            Request::Join { .. } => encode(&Reply::Placed(Placement { node: 1, parent: 0, address: None })),
            _ => encode(&Reply::Wait),
        })
    });
    job.advertise(address, [1; 32]);
    let asked = AtomicUsize::new(0);
    let process = Process {
        before_block: Some(Box::new(move || asked.fetch_add(1, Ordering::Relaxed) < 3)),
        ..Process::default()
    };
    assert_eq!(job.start("node", &process).unwrap_err().kind, ErrorKind::Interrupted);
    fake.stop(Duration::ZERO);
}

#[test]
fn a_file_that_the_reader_cannot_open_is_opened_by_each_other_node_itself() {
    let job = Job::new(2);
    fs::remove_file(&job.file).unwrap();
    let (reading, process) = (Process::default(), Process::default());
    let reader = job.start("reader", &reading).unwrap();
    let state = &reader.files[0].state;
    assert!(matches!(state, FileState::Failed(reason) if reason.contains("No such file")), "{state:?}");
    assert_eq!(reader.files[0].shared, None);
    // The node leaves the tree, and its `quell run` opens the files.
    let failed = job.start("node", &process).unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Conflict);
    assert!(failed.to_string().contains("No such file"), "{failed}");
    reader.end(Duration::ZERO, || true);
}

#[test]
fn an_own_address_that_refuses_connections_says_nothing_about_the_reader() {
    let job = Job::new(2);
    let unreachable: SocketAddr = ([255, 255, 255, 255], 9).into();
    let addresses = vec![refused_port(), unreachable];
    let text = Advertisement { addresses: addresses.clone(), key: PoolKey([1; 32]) }.encode();
    assert!(job.point().create(&text, &|| true).unwrap());
    let process = Process::default();
    let node = job.start("node", &process).unwrap();
    job.check(&node);
    assert_eq!(job.advertisement().addresses, addresses, "the link is kept");
    node.end(Duration::ZERO, || true);
}

#[test]
fn the_link_of_a_reader_that_may_exist_is_kept() {
    let job = Job::new(2);
    // The kernel has no route for a connection to the broadcast address.
    let unreachable: SocketAddr = ([255, 255, 255, 255], 9).into();
    job.advertise(unreachable, [1; 32]);
    let process = Process::default();
    let node = job.start("node", &process).unwrap();
    job.check(&node);
    assert_eq!((process.opened(), process.messages().len()), (1, 1), "{:?}", process.messages());
    assert!(process.messages()[0].contains(&*job.point().path.to_string_lossy()), "the link is named");
    assert_eq!(job.advertisement().addresses, [unreachable]);
    node.end(Duration::ZERO, || true);
    assert_eq!(job.advertisement().addresses, [unreachable]);
}

#[test]
fn a_node_reads_the_files_itself_if_the_reader_waits_for_them_too_long() {
    let job = Job::new(3);
    for knows_files in [false, true] {
        let file = attributes(&job);
        let (fake, address) = fake_node(&PoolKey([1; 32]), move |request| {
            Some(encode(&match request {
                Request::Join { .. } => Reply::Placed(Placement { node: 1, parent: 0, address: None }),
                Request::Files if knows_files => Reply::Files(vec![FileState::Open(file.clone())]),
                Request::Complete { .. } => Reply::Noted,
                _ => Reply::Wait,
            }))
        });
        job.advertise(address, [1; 32]);
        let process = Process::default();
        let mut settings = job.settings("node", LONG);
        settings.progress_limit = Duration::from_millis(300);
        let node = JobNode::start(&settings, &process).unwrap();
        job.check(&node);
        assert_eq!((process.opened(), process.messages().len()), (1, 1), "{:?}", process.messages());
        node.end(Duration::ZERO, || true);
        fake.stop(Duration::ZERO);
        fs::remove_file(&job.point().path).unwrap();
    }
}

#[test]
fn a_node_that_is_not_needed_does_not_wait_for_a_reply() {
    let job = Job::new(2);
    // The fake node answers no request for files.
    let (fake, address) = fake_node(&PoolKey([1; 32]), |request| match request {
        Request::Join { .. } => Some(encode(&Reply::Placed(Placement { node: 1, parent: 0, address: None }))),
        _ => None,
    });
    job.advertise(address, [1; 32]);
    let asked = AtomicUsize::new(0);
    let process = Process {
        before_block: Some(Box::new(move || asked.fetch_add(1, Ordering::Relaxed) < 9)),
        ..Process::default()
    };
    assert_eq!(job.start("node", &process).unwrap_err().kind, ErrorKind::Interrupted);
    assert_eq!(process.opened(), 0);
    fake.stop(Duration::ZERO);
}

#[test]
fn a_node_serves_others_only_at_the_addresses_of_its_interface() {
    let job = Job::new(2);
    let process = Process::default();
    let node = job.start("node", &process).unwrap();
    for address in job.advertisement().addresses {
        std::net::TcpStream::connect(address).unwrap();
        // This address also belongs to the machine, and the interface does not list it.
        let other = SocketAddr::from(([127, 0, 0, 2], address.port()));
        let refused = std::net::TcpStream::connect(other).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    node.end(Duration::ZERO, || true);
}

#[test]
fn a_process_can_remove_its_own_link_before_the_node_has_started() {
    let job = Job::new(2);
    let process = Arc::new(Process::default());
    let node = job.start("node", &process).unwrap();
    let link = process.link.lock().unwrap().take().unwrap();
    link.remove().unwrap();
    assert_eq!(job.point().read(&|| true).unwrap(), None);
    job.advertise(refused_port(), [1; 32]);
    link.remove().unwrap();
    assert!(job.point().read(&|| true).unwrap().is_some(), "the link of another process stays");
    node.end(Duration::ZERO, || true);
}
