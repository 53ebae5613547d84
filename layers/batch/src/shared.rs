//! The parts of a mount that its open files use as well.

use std::sync::{Arc, Mutex, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use quell_batch_service::{Content, Inode, InodeChange, NameSpace, Place, Removed};
use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::{Attributes, Error, ErrorKind, Kind, Result, Time};

use crate::data::Data;
use crate::file_locks::FileLocks;
use crate::nodes::{Node, Nodes, Position};

/// The number of times that the list of a data file is set while other clients change its inode.
const ATTEMPTS: usize = 100;

/// A mount. The locks are taken in this order: the state of a file, `names`, `nodes`, the position
/// of a node.
pub(crate) struct Shared {
    pub(crate) name_space: Arc<dyn NameSpace>,
    pub(crate) data: Data,
    /// The locks of files; `None` if the frontend manages them.
    pub(crate) locks: Option<FileLocks>,
    pub(crate) nodes: Mutex<Nodes>,
    /// Held for writing while this mount removes, renames or links names and updates the positions
    /// of the nodes. Held for reading from the use of a position until the name space has answered.
    pub(crate) names: RwLock<()>,
}

impl Shared {
    /// Returns the inode of a node. Errors: `Stale` if another mount has removed it.
    pub(crate) fn inode(&self, node: &Node) -> Result<Inode> {
        let _names = read_lock(&self.names);
        match self.place_or_removed(node, |inode| inode.clone()) {
            Ok(place) => Ok(self.name_space.find(node.number, &place)?.inode),
            Err(removed) => Ok(removed),
        }
    }

    /// Changes the inode of a node, and returns the changed inode. In a private store, the users
    /// that can read its data file change with its owner, group and mode. Errors: as for
    /// [`inode`](Self::inode), and the errors of [`InodeChange::apply`]; EPERM if the data file
    /// belongs to another user, and users must lose access to it.
    pub(crate) fn change(&self, node: &Node, change: &InodeChange) -> Result<Inode> {
        let InodeChange { permissions, uid, gid, .. } = *change;
        let changes_readers = permissions.is_some() || uid.is_some() || gid.is_some();
        if self.data.private.is_none() || node.kind != Kind::File || !changes_readers {
            return self.change_inode(node, change);
        }
        let before = self.inode(node)?;
        let mut after = before.clone();
        InodeChange { permissions, uid, gid, ..InodeChange::default() }.apply(&mut after, now())?;
        self.data.restrict_readers(&before, &after)?;
        match self.change_inode(node, change) {
            Ok(inode) => {
                let present = self.set_readers(node, inode)?;
                // Another user can have replaced the data file before the change, with the readers
                // that the inode had then.
                let replaced = Inode { content: present.content.clone(), ..before };
                match replaced.content == after.content {
                    true => Ok(present),
                    false => self.data.restrict_readers(&replaced, &present).map(|()| present),
                }
            }
            // The server may execute the change later.
            Err(error) if matches!(error.kind, ErrorKind::Unavailable | ErrorKind::TimedOut) => Err(error),
            Err(error) => {
                // Users that have lost access get it again. The caller gets the first error.
                let _ = self.inode(node).and_then(|inode| self.set_readers(node, inode));
                Err(error)
            }
        }
    }

    /// Sets the users that can read the data file of a changed inode, and returns the present
    /// inode. Another client can change the inode at the same time, and set the earlier or the
    /// later list, so the inode is read again until it has not changed.
    pub(crate) fn set_readers(&self, node: &Node, mut inode: Inode) -> Result<Inode> {
        for _ in 0..ATTEMPTS {
            self.data.set_readers(&inode)?;
            let present = match self.inode(node) {
                // Another client has removed the file.
                Err(error) if error.kind == ErrorKind::Stale => return Ok(inode),
                present => present?,
            };
            if present.content == inode.content && self.data.have_equal_readers(&present, &inode) {
                return Ok(present);
            }
            inode = present;
        }
        let source = Some("other clients repeatedly changed the permissions of the file".into());
        Err(Error { source, ..Error::new(ErrorKind::Busy, "set the access control list of", "a data file") })
    }

    fn change_inode(&self, node: &Node, change: &InodeChange) -> Result<Inode> {
        let _names = read_lock(&self.names);
        let applied = |inode: &mut Inode| change.apply(inode, now()).map(|()| inode.clone());
        match self.place_or_removed(node, applied) {
            Ok(place) => self.name_space.change((node.number, &place), change, now()),
            Err(removed) => removed,
        }
    }

    /// Checks that the user may write to a node.
    pub(crate) fn check_write(&self, node: &Node) -> Result<()> {
        let _names = read_lock(&self.names);
        match self.place_or_removed(node, |_| ()) {
            Ok(place) => self.name_space.check_write((node.number, &place)),
            Err(()) => Ok(()),
        }
    }

    /// Returns the place of a node, or the result of `removed` for the inode of a removed node.
    fn place_or_removed<T>(&self, node: &Node, removed: impl FnOnce(&mut Inode) -> T) -> Result<Place, T> {
        node.with_position(|position| match position {
            Position::At(place) => Ok(place.clone()),
            Position::Removed(inode) => Err(removed(inode)),
        })
    }

    /// Returns the attributes of a node, with the writes that its inode does not have yet.
    pub(crate) fn attributes(&self, node: &Node) -> Result<Attributes> {
        if node.kind != Kind::File {
            return self.inode(node)?.attributes();
        }
        let mut state = write_lock(&node.file);
        let inode = self.inode(node)?;
        let attributes = state.with_unsent(inode.attributes()?);
        if state.open > 0 {
            state.note(inode);
        }
        Ok(attributes)
    }

    /// Records that a node has lost a name. Returns the content if the node is
    /// neither in the name space nor in use any more. The caller holds the lock `names`.
    pub(crate) fn lost_name(&self, (dir, name): (u64, &[u8]), removed: Removed) -> Option<Content> {
        let number = removed.inode.number;
        let Some(node) = lock(&self.nodes).find(number).cloned() else {
            return removed.place.is_none().then_some(removed.inode.content);
        };
        node.with_position(|position| match (&mut *position, removed.place) {
            (_, None) => *position = Position::Removed(Box::new(removed.inode)),
            (Position::At(at), Some(place)) if is_name(at, dir, name) => *at = place,
            _ => {}
        });
        None
    }

    /// Removes uses of a node, and removes its data file if it has no name and these were its last
    /// uses.
    pub(crate) fn release(&self, number: u64, uses: u64) -> Result<()> {
        let Some(last) = lock(&self.nodes).release(number, uses) else { return Ok(()) };
        self.remove_data_of(&last)
    }

    /// Removes the data file of a node without a name.
    pub(crate) fn remove_data_of(&self, node: &Node) -> Result<()> {
        let content = node.with_position(|position| match position {
            Position::At(_) => None,
            Position::Removed(inode) => Some(std::mem::replace(&mut inode.content, Content::Empty)),
        });
        content.map_or(Ok(()), |content| self.remove_data(&content))
    }

    /// Removes a data file. The caller holds no lock.
    pub(crate) fn remove_data(&self, content: &Content) -> Result<()> {
        match content {
            Content::File(file) => self.data.remove(*file),
            _ => Ok(()),
        }
    }
}

fn is_name(place: &Place, dir: u64, name: &[u8]) -> bool {
    matches!(place, Place::Name { dir: at, name: known } if *at == dir && known == name)
}

pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}
