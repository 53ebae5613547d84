//! One node of a job: it reads the files for all nodes, or receives them from its parent, or reads
//! them itself if it cannot reach another node.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_threads::lock;
use quell_transport::peer::{PoolKey, Role, Server, ServerSettings};
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::decode;
use quell_wire::job::{
    CheckResult, NodeNumber, NodeState, PROTOCOL, Placement, RESULT_BYTES_MAX, Reply, Request,
    TEXT_BYTES_MAX, shortened,
};

use crate::addresses::{address_towards, own_addresses};
use crate::calls::{OtherNode, printable};
use crate::contents::{CompleteFile, Contents};
use crate::environment::Environment;
use crate::fetch::{Limits, fetch};
use crate::meeting::{Advertisement, MeetingPoint, OwnLink, ReaderLink, new_key};
use crate::read::read_files;
use crate::serve::{ServeNodes, Serving};
use crate::shared_blocks::{Position, SharedBlocks, SharedBlocksLimits, SharedBlocksStatus, SharedTrees};
use crate::tree::Tree;

/// The interval at which late requests are answered.
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);
/// The largest number of connected nodes. Each node is connected to the reader until it is
/// complete.
const CLIENTS_MAX: usize = 16 << 10;
/// How long a node without a connection is remembered.
const ABSENT_MAX: Duration = Duration::from_secs(1);
/// The time for the answers to the requests of other nodes at the end.
const STOP_LIMIT: Duration = Duration::from_millis(200);
/// The interval between two checks whether other nodes are still served.
const END_INTERVAL: Duration = Duration::from_millis(20);
/// The time that a status waits for the reader.
const STATUS_LIMIT: Duration = Duration::from_secs(2);

/// The settings of a node.
#[derive(Debug, Clone)]
pub struct JobSettings {
    /// The identifier of the job.
    pub job: String,
    /// The directory or the process of the meeting point.
    pub meeting: MeetingPoint,
    /// The files, by absolute path.
    pub files: Vec<PathBuf>,
    /// The name of this node, for reports.
    pub name: String,
    /// The network interface to use; any if it is `None`.
    pub interface: Option<String>,
    /// The time after which a node that gets no answer from another node stops waiting for it.
    pub limit: Duration,
    /// The time after which a node reads the files itself if the other nodes answer, but send no
    /// list and no block.
    pub progress_limit: Duration,
    /// The memory for blocks of the files of the indexed trees, in bytes, if the nodes share them.
    pub shared_bytes_max: Option<u64>,
}

/// A node that has all files, and serves other nodes.
pub struct JobNode {
    /// `None` if the node is not in a tree.
    part: Option<Part>,
    own: OwnPart,
    limits: SharedBlocksLimits,
    /// The files, in the order of the settings.
    pub files: Vec<CompleteFile>,
    /// For each file the result of the sample that the reader has made of its tree, or `None`;
    /// empty if the reader has sent none.
    pub samples: Vec<Option<CheckResult>>,
    // Declared after `files`, so that other processes can open the files as long as they are
    // listed.
    contents: Arc<Contents>,
}

/// The results of one node.
#[derive(Debug, Clone, Copy)]
struct OwnPart {
    node: NodeNumber,
    parent: Option<NodeNumber>,
    /// The address of the parent; `None` if it is the reader.
    parent_address: Option<SocketAddr>,
    received_bytes: u64,
    read_bytes: u64,
    milliseconds: u64,
}

/// The part of a node that serves other nodes, and its role in the tree.
struct Part {
    serving: Arc<Serving>,
    server: Server,
    key: PoolKey,
    role: PartRole,
    answering: Option<(Sender<()>, JoinHandle<()>)>,
}

enum PartRole {
    /// The node has created the link.
    Reader { link: Arc<OwnLink> },
    /// The node asks the reader at this address.
    Other { reader: SocketAddr },
}

/// The state of a node and of its tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobStatus {
    /// The number of this node; the reader is 0.
    pub node: NodeNumber,
    /// Its parent; `None` if it has read all files itself.
    pub parent: Option<NodeNumber>,
    /// The bytes that it received from other nodes.
    pub received_bytes: u64,
    /// The bytes that it read from the file system.
    pub read_bytes: u64,
    /// The milliseconds until it had all files.
    pub milliseconds: u64,
    /// The nodes as the reader knows them; empty if it does not answer.
    pub nodes: Vec<NodeState>,
    /// The shared blocks of this node, if it shares blocks.
    pub shared_blocks: Option<SharedBlocksStatus>,
}

impl std::fmt::Debug for JobNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobNode").field("own", &self.own).finish_non_exhaustive()
    }
}

impl JobNode {
    /// Joins the job, and returns when all files are in memory.
    ///
    /// # Errors
    /// The errors of the meeting point and of the file system; `Conflict` if the files changed
    /// between two reads; `Interrupted` if they are no longer needed.
    pub fn start(settings: &JobSettings, environment: &dyn Environment) -> Result<JobNode> {
        let mut node = Starting {
            settings,
            environment,
            begun: Instant::now(),
            received_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            contents: Arc::new(Contents::default()),
        };
        node.run()
    }

    /// Returns the state of this node and of its tree. It waits at most 2 s.
    pub fn status(&self) -> JobStatus {
        let OwnPart { node, parent, received_bytes, read_bytes, milliseconds, .. } = self.own;
        let nodes = self.part.as_ref().map_or_else(Vec::new, Part::nodes);
        let blocks = self.part.as_ref().and_then(|part| part.serving.shared_blocks.as_ref());
        let shared_blocks = blocks.map(|blocks| blocks.status());
        JobStatus { node, parent, received_bytes, read_bytes, milliseconds, nodes, shared_blocks }
    }

    /// Starts to share blocks of the files of `trees`, if the settings say so and this node is in a
    /// tree. Views of this node send their requests to the Unix socket `socket`, which accepts
    /// connections of this user and of root. Returns whether blocks are shared. `print`: prints a
    /// message for the user.
    ///
    /// # Errors
    /// The error of the system if the socket or a thread cannot be created. The views then read the
    /// files themselves, and other nodes get no blocks from this one.
    pub fn share(
        &self,
        trees: Arc<dyn SharedTrees>,
        socket: &Path,
        print: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<bool> {
        let Some(part) = &self.part else { return Ok(false) };
        let Some(blocks) = &part.serving.shared_blocks else { return Ok(false) };
        let reader = match &part.role {
            PartRole::Reader { .. } => None,
            PartRole::Other { reader } => Some(*reader),
        };
        let OwnPart { node, parent, parent_address, .. } = self.own;
        let position = Position {
            node,
            parent: parent.and_then(|parent| Some((parent, parent_address.or(reader)?))),
            reader,
            key: part.key.clone(),
            files: self.files.iter().map(|file| file.state.clone()).collect(),
        };
        let started =
            blocks.begin(trees, position, self.limits, print).and_then(|()| part.server.listen_unix(socket));
        match started {
            Ok(()) => Ok(true),
            Err(error) => {
                blocks.refuse(&error.to_string());
                Err(error)
            }
        }
    }

    /// Returns whether this node is the reader of other nodes.
    pub fn is_reader(&self) -> bool {
        matches!(&self.part, Some(Part { role: PartRole::Reader { .. }, .. }))
    }

    /// Passes the result of a check of the whole tree of a file to the nodes that ask for it, if
    /// this node is the reader. A result that is too long is not passed on.
    pub fn publish_check(&self, file: u32, result: Vec<u8>) {
        if let Some(part) = self.part.as_ref().filter(|_| result.len() <= RESULT_BYTES_MAX) {
            lock(&part.serving.checked).insert(file, CheckResult(result));
        }
    }

    /// Asks the reader for the results of its checks of the trees of these files. It waits at most
    /// 2 s, and until `is_needed` returns `false`. Returns the results that the reader has.
    pub fn checked(&self, files: &[u32], is_needed: &dyn Fn() -> bool) -> Vec<(u32, Vec<u8>)> {
        let Some(Part { key, role: PartRole::Other { reader }, .. }) = &self.part else {
            return Vec::new();
        };
        let until = Instant::now() + STATUS_LIMIT;
        let Ok(reader) = OtherNode::connect(*reader, key) else { return Vec::new() };
        let mut results = Vec::new();
        for file in files {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(bytes) = reader.ask(&Request::Checked { file: *file }, left, is_needed) else { break };
            if let Ok(Reply::Checked(Some(CheckResult(result)))) = decode::<Reply<'_>>(&bytes)
                && result.len() <= RESULT_BYTES_MAX
            {
                results.push((*file, result));
            }
        }
        reader.leave();
        results
    }

    /// Removes the meeting point if this node is the reader, waits at most `limit` until no other
    /// node receives from this one, or until `is_urgent`, and ends the connections.
    pub fn end(mut self, limit: Duration, mut is_urgent: impl FnMut() -> bool) {
        let Some(mut part) = self.part.take() else { return };
        if let PartRole::Reader { link } = &part.role
            && let Err(error) = link.remove()
        {
            tracing::warn!(%error, "the meeting point of the job remains");
        }
        let begun = Instant::now();
        // Nodes that only request shared blocks are not waited for: they can ask another node.
        let receiving = |part: &Part| {
            let mut block_clients = lock(&part.serving.block_clients);
            // A request can be handled after its client has ended.
            block_clients.retain(|client| part.server.is_client(*client));
            part.server.clients().saturating_sub(block_clients.len())
        };
        while receiving(&part) > 0 && begun.elapsed() < limit && !is_urgent() {
            std::thread::sleep(END_INTERVAL);
        }
        self.contents.refuse("the node is stopping");
        if let Some(blocks) = &part.serving.shared_blocks {
            blocks.refuse("the node is stopping");
        }
        part.server.stop(STOP_LIMIT);
        if let Some((stop, thread)) = part.answering.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

impl Part {
    fn nodes(&self) -> Vec<NodeState> {
        let reader = match &self.role {
            PartRole::Reader { .. } => {
                return lock(&self.serving.tree).as_ref().map_or_else(Vec::new, Tree::states);
            }
            PartRole::Other { reader } => OtherNode::connect(*reader, &self.key),
        };
        let Ok(reader) = reader else { return Vec::new() };
        let reply = reader.ask(&Request::Tree, STATUS_LIMIT, &|| true);
        reader.leave();
        match reply.as_deref().map(decode::<Reply<'_>>) {
            Ok(Ok(Reply::Tree(nodes))) => nodes,
            _ => Vec::new(),
        }
    }
}

/// A node until it has all files.
struct Starting<'a> {
    settings: &'a JobSettings,
    environment: &'a dyn Environment,
    begun: Instant,
    received_bytes: AtomicU64,
    read_bytes: AtomicU64,
    contents: Arc<Contents>,
}

/// The connection of a node to the reader, and its position in the tree.
struct Joined {
    part: Part,
    reader: OtherNode,
    placement: Placement,
}

/// The result of an attempt to join the tree of a link.
enum Attempt {
    Joined(Box<Joined>),
    /// The process that created the link has ended.
    NoReader,
    /// A process accepts connections at an address of the link, but is not a reader, or does not
    /// answer.
    NoAnswer(Error),
    /// The reader cannot be used, for this reason.
    Failed(Error),
}

impl Starting<'_> {
    fn run(&mut self) -> Result<JobNode> {
        let JobSettings { job, meeting, files, limit, .. } = self.settings;
        let link = match meeting {
            MeetingPoint::Directory(directory) => ReaderLink::open(directory, job, files)?,
            MeetingPoint::Process(text) => ReaderLink::connect(text, job, files, *limit)?,
        };
        let environment = self.environment;
        let is_needed = || environment.is_needed();
        let mut found = link.read(&is_needed)?;
        // Each pass ends the attempt, or removes the link of a reader that has ended.
        for _ in 0..3 {
            let Some(text) = &found else {
                match self.become_reader(link)? {
                    Ok(node) => return Ok(node),
                    Err(again) => return self.join_after_race(again),
                }
            };
            match self.join(text) {
                Attempt::Joined(joined) => return self.receive(*joined),
                Attempt::Failed(error) => return self.read_without(&link, error),
                Attempt::NoReader => tracing::debug!(path = ?link.path, "the reader has ended"),
                Attempt::NoAnswer(error) => {
                    let error = of_link(&link, &error);
                    self.environment.print(&format!(
                        "cannot receive the files of the job from another node: {error}; replacing the link, and reading \
                         the files from the file system"
                    ));
                }
            }
            link.remove(text, &is_needed)?;
            found = None;
        }
        unreachable!("the second pass finds no link")
    }

    /// Joins the tree of another process, which has created the link since this one looked for it.
    fn join_after_race(&mut self, link: ReaderLink) -> Result<JobNode> {
        let gone = || Error::new(ErrorKind::Unavailable, "join", "the reader, which has ended");
        let text = link.read(&|| self.environment.is_needed())?;
        match text.map_or(Attempt::NoReader, |text| self.join(&text)) {
            Attempt::Joined(joined) => self.receive(*joined),
            Attempt::Failed(error) | Attempt::NoAnswer(error) => self.read_without(&link, error),
            Attempt::NoReader => self.read_alone(None, None, &gone()),
        }
    }

    /// Creates the link, reads the files, and serves them. Returns the meeting point if another
    /// process has created the link first.
    fn become_reader(&mut self, link: ReaderLink) -> Result<std::result::Result<JobNode, ReaderLink>> {
        let key = new_key()?;
        let addresses = own_addresses(self.settings.interface.as_deref())?;
        let tree = Tree::new(&self.settings.name);
        let (part, addresses) = self.serve(PoolKey(key), &addresses, Some(tree))?;
        let text = Advertisement { addresses, key: PoolKey(key) }.encode();
        if !link.create(&text, &|| self.environment.is_needed())? {
            part.server.stop(Duration::ZERO);
            return Ok(Err(link));
        }
        tracing::debug!(path = ?link.path, "reads the files of the job");
        let link = Arc::new(OwnLink { link, text });
        self.environment.link_created(&link);
        let part = part.with_role(PartRole::Reader { link });
        let read = self.read().and_then(|()| self.contents.seal());
        let files = match read {
            Ok(files) => files,
            Err(error) => {
                // Each other node then reads the files itself.
                self.contents.refuse(&error.to_string());
                let node = self.node(0, None, Some(part), Vec::new());
                node.end(Duration::ZERO, || true);
                return Err(error);
            }
        };
        let samples = self.environment.sample(&files);
        self.contents.set_samples(samples.clone());
        let node = JobNode { samples, ..self.node(0, None, Some(part), files) };
        if let Some(part) = &node.part
            && let Some(tree) = lock(&part.serving.tree).as_mut()
        {
            tree.complete(0, 0, node.own.read_bytes, node.own.milliseconds);
        }
        Ok(Ok(node))
    }

    /// Joins the tree of the reader that has created a link.
    fn join(&self, text: &[u8]) -> Attempt {
        let Some(Advertisement { addresses, key }) = Advertisement::decode(text) else {
            return Attempt::Failed(Error {
                source: Some("its text does not have the format of this version of quell".into()),
                ..Error::new(ErrorKind::Unsupported, "use", "the meeting point of the job")
            });
        };
        let address = match self.reachable(&addresses) {
            Ok(Some(address)) => address,
            Ok(None) => return Attempt::NoReader,
            Err(error) => return Attempt::Failed(error),
        };
        match self.join_at(address, key) {
            Ok(joined) => Attempt::Joined(Box::new(joined)),
            // Another process has the port of a reader that has ended.
            Err(e) if e.kind == ErrorKind::PermissionDenied => Attempt::NoReader,
            // Another service has the port, or the process is suspended. A reader that answers
            // later keeps its tree, and another node reads the files for the nodes that join from
            // now on.
            Err(e) if matches!(e.kind, ErrorKind::Unavailable | ErrorKind::TimedOut) => Attempt::NoAnswer(e),
            Err(e) => Attempt::Failed(e),
        }
    }

    /// Returns the first address at which a process listens; `None` if the process that created the
    /// link has ended: every address refuses connections, or an address of another node refuses
    /// them, and there is no route to the addresses that do not.
    ///
    /// # Errors
    /// The error of the first connection that failed for another reason: the reader may exist.
    fn reachable(&self, addresses: &[SocketAddr]) -> Result<Option<SocketAddr>> {
        let (mut failed, mut refused, mut has_route) = (None, Vec::new(), false);
        let until = Instant::now() + self.settings.limit;
        for address in addresses {
            if !self.environment.is_needed() {
                return Err(Error::new(ErrorKind::Interrupted, "connect to", address.to_string()));
            }
            // The limit is for all addresses together. Each address gets half of the remaining
            // time.
            let left = until.saturating_duration_since(Instant::now());
            let part = (left / 2).max(Duration::from_millis(1));
            match OtherNode::try_address(*address, if addresses.len() == 1 { left } else { part }) {
                Ok(()) => return Ok(Some(*address)),
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => refused.push(address.ip()),
                Err(e) => {
                    has_route |= !is_without_route(&e);
                    failed.get_or_insert(Error::from_io(e, "connect to", address.to_string()));
                }
            }
        }
        let Some(error) = failed else { return Ok(None) };
        let own = own_addresses(None).unwrap_or_default();
        if has_route || !is_another_node(&refused, &own) { Err(error) } else { Ok(None) }
    }

    fn join_at(&self, address: SocketAddr, key: PoolKey) -> Result<Joined> {
        let listen = match self.settings.interface.as_deref() {
            Some(name) => {
                let own = own_addresses(Some(name))?;
                let found = own.into_iter().find(|own| own.is_ipv4() == address.is_ipv4());
                found.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "find an address of", name))?
            }
            None => address_towards(address)?,
        };
        let (part, own_addresses) = self.serve(key.clone(), &[listen], None)?;
        let part = part.with_role(PartRole::Other { reader: address });
        let reader = OtherNode::connect(address, &key)?;
        let name = shortened(&self.settings.name, TEXT_BYTES_MAX);
        let request = Request::Join { protocol: PROTOCOL, address: own_addresses[0], name };
        let placed = self.ask_reader(&reader, &request);
        match placed {
            Ok(placement) => Ok(Joined { part, reader, placement }),
            Err(error) => {
                part.server.stop(Duration::ZERO);
                Err(error)
            }
        }
    }

    /// Asks the reader for a position in the tree.
    fn ask_reader(&self, reader: &OtherNode, request: &Request<'_>) -> Result<Placement> {
        let bytes = reader.ask(request, self.settings.limit, &|| self.environment.is_needed())?;
        let wrong = |reason: &str| Error {
            source: Some(reason.into()),
            ..Error::new(ErrorKind::Unsupported, "join", "the reader of the job")
        };
        match decode::<Reply<'_>>(&bytes) {
            Ok(Reply::Placed(placement)) => Ok(placement),
            Ok(Reply::Refused(reason)) => Err(wrong(&printable(reason))),
            _ => Err(wrong("it has sent a wrong message")),
        }
    }

    /// Receives the files from parents, or reads them if no parent is left.
    fn receive(&mut self, joined: Joined) -> Result<JobNode> {
        let Joined { part, reader, mut placement } = joined;
        let limit = self.settings.limit;
        let limits = Limits { answer: limit, progress: self.settings.progress_limit };
        let parent_left = loop {
            let connected = placement.address.map(|address| OtherNode::connect(address, &part.key));
            let parent = match connected.transpose() {
                Ok(parent) => parent,
                Err(error) => return self.leave(part, placement.node, &reader, error),
            };
            let from = parent.as_ref().unwrap_or(&reader);
            let count = self.settings.files.len();
            let fetched = fetch(from, &self.contents, self.environment, limits, count, &self.received_bytes);
            let error = match fetched {
                Ok(()) => break parent,
                Err(error) => error,
            };
            drop(parent);
            tracing::debug!(parent = placement.parent, %error, "a parent is lost");
            if error.kind == ErrorKind::Damaged {
                self.environment
                    .print(&format!("node {} of the job has sent damaged data: {error}", placement.parent));
            }
            // The whole chain of parents waits for the file system of the reader.
            if error.kind == ErrorKind::Busy {
                return self.read_alone(Some((part, placement.node)), Some(reader), &error);
            }
            let is_final = !matches!(
                error.kind,
                ErrorKind::TimedOut
                    | ErrorKind::Unavailable
                    | ErrorKind::PermissionDenied
                    | ErrorKind::Damaged
                    | ErrorKind::Unsupported
            );
            if is_final {
                return self.leave(part, placement.node, &reader, error);
            }
            let Placement { node, parent, .. } = placement;
            let replaced = match parent {
                0 => Err(error),
                _ => self.ask_reader(&reader, &Request::Lost { node, parent }),
            };
            match replaced {
                // The numbers of ancestors become smaller, so this ends.
                Ok(next) if next.parent < parent && next.node == node => placement = next,
                Ok(_) => {
                    let error = Error::new(ErrorKind::Damaged, "join", "the reader of the job");
                    return self.read_alone(Some((part, placement.node)), Some(reader), &error);
                }
                Err(error) => return self.read_alone(Some((part, placement.node)), Some(reader), &error),
            }
        };
        let files = match self.contents.seal() {
            Ok(files) => files,
            Err(error) => return self.leave(part, placement.node, &reader, error),
        };
        let samples = self.samples(&reader, files.len());
        let node = self.node(placement.node, Some(placement.parent), Some(part), files);
        let own = OwnPart { parent_address: placement.address, ..node.own };
        let node = JobNode { own, samples, ..node };
        report(reader, parent_left, node.own, limit);
        Ok(node)
    }

    /// Asks the reader for the results of its samples. Without them each node compares the trees
    /// itself.
    fn samples(&self, reader: &OtherNode, files: usize) -> Vec<Option<CheckResult>> {
        let until = Instant::now() + self.settings.limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Vec::new();
            }
            let asked = reader.ask(&Request::Samples, left, &|| self.environment.is_needed());
            let Ok(bytes) = asked else { return Vec::new() };
            match decode::<Reply<'_>>(&bytes) {
                Ok(Reply::Wait) => {}
                Ok(Reply::Samples(samples)) if samples.len() == files && are_bounded(&samples) => {
                    return samples;
                }
                _ => return Vec::new(),
            }
        }
    }

    /// Leaves the tree after an error that other nodes do not have. The children of this node get
    /// the reason, and ask the reader for another parent.
    fn leave(&self, part: Part, node: NodeNumber, reader: &OtherNode, error: Error) -> Result<JobNode> {
        self.contents.refuse(&error.to_string());
        reader.leave();
        self.node(node, None, Some(part), Vec::new()).end(Duration::ZERO, || true);
        Err(error)
    }

    /// Reads the files of a node that is not in a tree, unless it is no longer needed.
    fn read_without(&self, link: &ReaderLink, error: Error) -> Result<JobNode> {
        if error.kind == ErrorKind::Interrupted {
            return Err(error);
        }
        self.read_alone(None, None, &of_link(link, &error))
    }

    /// Reads the files that no other node provides, and prints the reason. `part`: the part that
    /// serves other nodes of the tree, and continues to do so.
    fn read_alone(
        &self,
        part: Option<(Part, NodeNumber)>,
        reader: Option<OtherNode>,
        error: &Error,
    ) -> Result<JobNode> {
        self.environment.print(&format!(
            "cannot receive the files of the job from another node: {error}; reading them from the file system"
        ));
        let (part, number) = part.map_or((None, 0), |(part, number)| (Some(part), number));
        let files = self.read().and_then(|()| self.contents.seal());
        let files = match files {
            Ok(files) => files,
            Err(error) => {
                self.contents.refuse(&error.to_string());
                self.node(number, None, part, Vec::new()).end(Duration::ZERO, || true);
                return Err(error);
            }
        };
        let node = self.node(number, None, part, files);
        if let Some(reader) = reader {
            report(reader, None, node.own, self.settings.limit);
        }
        Ok(node)
    }

    fn read(&self) -> Result<()> {
        read_files(&self.settings.files, &self.contents, self.environment, &self.read_bytes)
    }

    fn node(
        &self,
        node: NodeNumber,
        parent: Option<NodeNumber>,
        part: Option<Part>,
        files: Vec<CompleteFile>,
    ) -> JobNode {
        let own = OwnPart {
            node,
            parent,
            parent_address: None,
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            milliseconds: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let limits =
            SharedBlocksLimits { answer: self.settings.limit, progress: self.settings.progress_limit };
        JobNode { part, own, limits, files, samples: Vec::new(), contents: self.contents.clone() }
    }

    /// Starts to serve other nodes at the addresses of this node that can be used. Returns them
    /// with their ports: at least one.
    fn serve(
        &self,
        key: PoolKey,
        listen: &[IpAddr],
        tree: Option<Tree>,
    ) -> Result<(NewPart, Vec<SocketAddr>)> {
        let contents = self.contents.clone();
        let shared_blocks =
            self.settings.shared_bytes_max.map(|bytes_max| Arc::new(SharedBlocks::new(bytes_max)));
        let serving = Arc::new(Serving {
            contents: contents.clone(),
            tree: Mutex::new(tree),
            checked: Mutex::new(BTreeMap::new()),
            shared_blocks: shared_blocks.clone(),
            block_clients: Mutex::new(HashSet::new()),
        });
        let settings = ServerSettings {
            clients_max: CLIENTS_MAX,
            absent_max: ABSENT_MAX,
            ..ServerSettings::new(Role::Job, key.clone())
        };
        let server = Server::start(settings, Arc::new(ServeNodes(serving.clone())))?;
        let mut addresses = Vec::new();
        let mut failed = None;
        for address in listen {
            match server.listen_tcp(SocketAddr::new(*address, 0)) {
                Ok(address) => addresses.push(address),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed.filter(|_| addresses.is_empty()) {
            return Err(error);
        }
        let (stop, stopped) = channel::<()>();
        // The answers must arrive before the other nodes stop using this one.
        let late = self.settings.limit / 4;
        let interval = (self.settings.limit / 8).min(ANSWER_INTERVAL);
        let answering = std::thread::Builder::new().name("late".into()).spawn(move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                contents.answer_late(late);
                shared_blocks.iter().for_each(|blocks| blocks.answer_late(late));
            }
        });
        let thread = answering.map_err(|e| Error::from_io(e, "start", "a thread"))?;
        Ok((NewPart { serving, server, key, answering: (stop, thread) }, addresses))
    }
}

/// A part whose role is not known yet.
struct NewPart {
    serving: Arc<Serving>,
    server: Server,
    key: PoolKey,
    answering: (Sender<()>, JoinHandle<()>),
}

impl NewPart {
    fn with_role(self, role: PartRole) -> Part {
        let NewPart { serving, server, key, answering } = self;
        Part { serving, server, key, role, answering: Some(answering) }
    }
}

fn are_bounded(samples: &[Option<CheckResult>]) -> bool {
    samples.iter().flatten().all(|CheckResult(result)| result.len() <= RESULT_BYTES_MAX)
}

/// Returns the error of the reader of a link.
fn of_link(link: &ReaderLink, error: &Error) -> Error {
    let subject = link.path.as_os_str().as_encoded_bytes();
    Error {
        source: Some(error.to_string().into()),
        ..Error::new(error.kind, "use the reader of the link", subject)
    }
}

/// Returns whether an address belongs to another node. Several nodes can have the same address in
/// networks of their own, for example the address of a bridge for containers: a refusal by this
/// node says nothing about another one.
fn is_another_node(addresses: &[IpAddr], own: &[IpAddr]) -> bool {
    addresses.iter().any(|address| !address.is_loopback() && !own.contains(address))
}

fn is_without_route(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable)
}

/// Tells the reader that a node is complete, for its status, and leaves both nodes. The program
/// does not wait for this.
fn report(reader: OtherNode, parent: Option<OtherNode>, own: OwnPart, limit: Duration) {
    let OwnPart { node, received_bytes, read_bytes, milliseconds, .. } = own;
    let tell = move || {
        let request = Request::Complete { node, received_bytes, read_bytes, milliseconds };
        // If the message is lost, the status of the tree does not show the node as complete.
        if let Err(error) = reader.ask(&request, limit, &|| true) {
            tracing::debug!(%error, "the reader was not told");
        }
        parent.iter().for_each(OtherNode::leave);
        reader.leave();
    };
    if let Err(error) = std::thread::Builder::new().name("report".into()).spawn(tell) {
        tracing::debug!(%error, "the reader was not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_refusal_of_another_node_counts() {
        let of = |last| IpAddr::from([10, 0, 0, last]);
        let own = [of(1), of(2)];
        assert!(is_another_node(&[of(1), of(3)], &own));
        assert!(!is_another_node(&[of(1), of(2), [127, 0, 0, 1].into()], &own));
        assert!(!is_another_node(&[], &own));
        assert!(is_without_route(&rustix::io::Errno::NETUNREACH.into()));
        assert!(!is_without_route(&rustix::io::Errno::TIMEDOUT.into()));
    }
}
