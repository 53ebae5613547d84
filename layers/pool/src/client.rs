//! The state that a mount and its open files share.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use quell_threads::lock;
use quell_vfs::{Context, Error, ErrorKind, NodeId, Result};
use quell_wire::pool::{Consistency, FileId, Node, Operation};

use crate::connection::{Connections, Daemons};
use crate::daemon::{Daemon, done};
use crate::dir_cache::DirCache;
use crate::nodes::{KnownNode, Nodes, Released, Returned};
use crate::requests::Requests;

/// References of this number of nodes are returned to the daemon with one request.
const RETURNED_TOGETHER: usize = 32;

/// The state that a mount and its open files share.
pub struct Client {
    pub requests: Requests,
    pub chunk_bytes: u32,
    pub consistency: Consistency,
    pub nodes: Arc<Mutex<Nodes>>,
    pub dirs: Arc<Mutex<DirCache>>,
    returned: Mutex<ReturnedLater>,
}

/// References that are not needed any more.
#[derive(Default)]
struct ReturnedLater {
    /// The generation of the connection that has them.
    generation: u64,
    references: Vec<Returned>,
}

impl Client {
    /// Returns a client of one daemon.
    pub fn new(daemon: Arc<dyn Daemon>, chunk_bytes: u32) -> Client {
        Client::with(Requests::One(daemon), chunk_bytes, Arc::new(Mutex::new(Nodes::new())), Arc::default())
    }

    /// Returns a client of one of several daemons, which replace each other.
    pub fn open(daemons: Box<dyn Daemons>, chunk_bytes: u32) -> Result<Client> {
        let (nodes, dirs) = (Arc::new(Mutex::new(Nodes::new())), Arc::<Mutex<DirCache>>::default());
        let connections = Connections::open(daemons, Arc::clone(&nodes), Arc::clone(&dirs))?;
        Ok(Client::with(Requests::Several(connections), chunk_bytes, nodes, dirs))
    }

    fn with(
        requests: Requests,
        chunk_bytes: u32,
        nodes: Arc<Mutex<Nodes>>,
        dirs: Arc<Mutex<DirCache>>,
    ) -> Client {
        let consistency = requests.consistency();
        Client { requests, chunk_bytes, consistency, nodes, dirs, returned: Mutex::default() }
    }

    pub fn node(&self, node: NodeId) -> Result<Arc<KnownNode>> {
        lock(&self.nodes).get(node)
    }

    /// Returns an error if the deadline has passed, for an operation that sends no request.
    pub fn check_deadline(&self, context: &Context<'_>) -> Result<()> {
        match context.deadline {
            Some(deadline) if deadline <= Instant::now() => Err(Error::new(ErrorKind::TimedOut, "open", "")),
            _ => Ok(()),
        }
    }

    /// Records that a file was written up to `end`, which the member that has its attributes does
    /// not know. Sends the size at once, or when the file is closed or synced.
    pub fn grow(&self, node: &KnownNode, end: u64) -> Result<()> {
        match self.consistency {
            Consistency::Synchronous => self.send_end(node, end),
            Consistency::Commit => {
                node.add_unsent(end);
                Ok(())
            }
        }
    }

    fn send_end(&self, node: &KnownNode, end: u64) -> Result<()> {
        let grow = Operation::Grow { id: node.id, size_bytes_min: end };
        self.requests.ask(None, &grow, ("write", b""), done)
    }

    /// Sends the size of earlier writes to a file, so that other clients see it, and so that later
    /// replies of the daemon contain it. After an error, the next call repeats it.
    pub fn commit(&self, node: &KnownNode) -> Result<()> {
        let end = node.unsent_end();
        if end > 0 {
            self.send_end(node, end)?;
            node.sent(end);
        }
        Ok(())
    }

    /// Returns the attributes in a reply to a look-up. If this client has written to the file since
    /// its size was sent, sends the size and requests the attributes again.
    pub fn with_own_writes(&self, context: &Context<'_>, found: Node) -> Result<Node> {
        let Some(node) = lock(&self.nodes).with_unsent(found.id) else { return Ok(found) };
        self.commit(&node)?;
        self.requests.attributes(context.deadline, found.id)
    }

    /// Adds uses of a node to which the connection of `generation` got a reference.
    pub fn held(&self, node: &Node, uses: u64, generation: u64) -> Result<Arc<KnownNode>> {
        let (known, is_held) = lock(&self.nodes).held(node, uses, generation);
        if !is_held && let Err(error) = self.hold_again(&known) {
            self.release(node.id, uses)?;
            return Err(error);
        }
        Ok(known)
    }

    /// Makes a reference to a node in use. The connection with the reference was lost before the
    /// reply was read.
    fn hold_again(&self, node: &KnownNode) -> Result<()> {
        loop {
            let Some(generation) = self.requests.hold(node.id)? else {
                node.set_gone();
                return Ok(());
            };
            let mut nodes = lock(&self.nodes);
            if nodes.generation() == generation {
                let unused = nodes.held_again(&[node.id], &[], generation);
                drop(nodes);
                return match unused.is_empty() {
                    true => Ok(()),
                    false => self.requests.release(generation, unused),
                };
            }
        }
    }

    /// Removes uses of a node. After the last one, its references are returned to the daemon: at
    /// once for a file with chunks, so that the space of a removed file is free then, and otherwise
    /// together with those of other nodes.
    pub fn release(&self, id: FileId, uses: u64) -> Result<()> {
        let Some(Released { returned, generation, has_chunks }) = lock(&self.nodes).release(id, uses) else {
            return Ok(());
        };
        let mut waiting = lock(&self.returned);
        if waiting.generation < generation {
            // The other references have ended with their connection.
            *waiting = ReturnedLater { generation, references: Vec::new() };
        }
        if waiting.generation == generation && returned.1 > 0 {
            waiting.references.push(returned);
        }
        let is_enough = has_chunks || waiting.references.len() >= RETURNED_TOGETHER;
        drop(waiting);
        if is_enough { self.send_returned() } else { Ok(()) }
    }

    fn send_returned(&self) -> Result<()> {
        let (generation, references) = {
            let mut waiting = lock(&self.returned);
            (waiting.generation, std::mem::take(&mut waiting.references))
        };
        match references.is_empty() {
            true => Ok(()),
            false => self.requests.release(generation, references),
        }
    }
}
