//! The nodes that the callers of a mount have references to or have open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use quell_batch_service::{Inode, Place, ROOT};
use quell_threads::lock;
use quell_vfs::{Error, ErrorKind, Kind, NodeId, Result};

use crate::state::FileState;

/// A node that is in use. Its number is its inode number.
pub(crate) struct Node {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    position: Mutex<Position>,
    /// The state of a regular file.
    pub(crate) file: RwLock<FileState>,
}

/// The position of a node in the name space.
#[derive(Debug, Clone)]
pub(crate) enum Position {
    /// The node was found at this place. Another mount may have renamed it since, and a file may
    /// have other names.
    At(Place),
    /// This mount has removed the last name of the node. The name space does not have the inode any
    /// more.
    Removed(Box<Inode>),
}

impl Node {
    pub(crate) fn new(number: u64, kind: Kind, place: Place, file: FileState) -> Node {
        Node { number, kind, position: Mutex::new(Position::At(place)), file: RwLock::new(file) }
    }

    /// Calls `with` with the position.
    pub(crate) fn with_position<T>(&self, with: impl FnOnce(&mut Position) -> T) -> T {
        with(&mut lock(&self.position))
    }

    /// Returns the place. Errors: `Stale` if the node was removed.
    pub(crate) fn place(&self) -> Result<Place> {
        self.with_position(|position| match position {
            Position::At(place) => Ok(place.clone()),
            Position::Removed(_) => Err(Error::new(ErrorKind::Stale, "find the path", "")),
        })
    }

    /// Sets the name of a node other than a directory, whose place never changes.
    pub(crate) fn set_place(&self, new: Place) {
        if self.kind != Kind::Dir {
            self.with_position(|position| match position {
                Position::At(place) if *place != new => *place = new,
                _ => {}
            });
        }
    }
}

struct Used {
    node: Arc<Node>,
    /// The number of references and open files.
    uses: u64,
}

/// The nodes in use, by their numbers.
pub(crate) struct Nodes(HashMap<u64, Used>);

impl Nodes {
    pub(crate) fn new() -> Nodes {
        let root = Node::new(ROOT, Kind::Dir, Place::Dir(ROOT), FileState::default());
        Nodes(HashMap::from([(ROOT, Used { node: Arc::new(root), uses: 1 })]))
    }

    pub(crate) fn find(&self, number: u64) -> Option<&Arc<Node>> {
        Some(&self.0.get(&number)?.node)
    }

    /// Returns a node. Errors: `Stale` if it is not in use.
    pub(crate) fn get(&self, id: NodeId) -> Result<&Arc<Node>> {
        self.find(id.0).ok_or_else(|| Error::new(ErrorKind::Stale, "use", ""))
    }

    /// Adds uses to a node, which is created with `new` if it is not in use.
    pub(crate) fn hold(&mut self, number: u64, uses: u64, new: impl FnOnce() -> Node) -> &Arc<Node> {
        let used = self.0.entry(number).or_insert_with(|| Used { node: Arc::new(new()), uses: 0 });
        used.uses += uses;
        &used.node
    }

    /// Adds a use to a node. Errors: `Stale` if it is not in use.
    pub(crate) fn hold_again(&mut self, id: NodeId) -> Result<()> {
        let used = self.0.get_mut(&id.0).ok_or_else(|| Error::new(ErrorKind::Stale, "use", ""))?;
        used.uses += 1;
        Ok(())
    }

    /// Removes uses of a node. Returns the node if these were its last uses.
    pub(crate) fn release(&mut self, number: u64, uses: u64) -> Option<Arc<Node>> {
        let used = self.0.get_mut(&number).filter(|_| number != ROOT)?;
        used.uses = used.uses.saturating_sub(uses);
        match used.uses {
            0 => Some(self.0.remove(&number)?.node),
            _ => None,
        }
    }

    /// Returns all nodes.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        self.0.values().map(|used| used.node.clone()).collect()
    }
}
