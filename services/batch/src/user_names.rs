//! The master image for one user, whose client is not trusted, or the private name space of a batch
//! for the user of the batch: each change is executed only if the permissions of the entries allow
//! it. The checks are the same as those of the kernel for system calls, except that the owner of a
//! file may always write to it. Every directory on the path is checked for each change.
//!
//! In a private store, names, attributes and contents are read only with the permissions of
//! [`readable`](crate::readable). In other stores they are read without checks: all members of the
//! group can read the tables in any case.

use std::sync::{Arc, RwLock, RwLockWriteGuard};

use quell_threads::{read_lock, write_lock};
use quell_vfs::{Error, ErrorKind, Kind, NewEntry, Rename, Result, Time, errno};

use crate::batch::{BatchCaller, BatchRecord};
use crate::change::{DataChange, InodeChange};
use crate::entries::Entries;
use crate::entry::{Content, DEPTH_MAX, FILES_OF_USERS, Inode, ROOT, damaged};
use crate::limits::Quota;
use crate::name_space::{NameSpace, request_dirs};
use crate::names::{FoundNode, Names, NewNode, Place, Removed, Renamed};
use crate::permissions::{READ, SET_GROUP_ID, WRITE};
use crate::readable::{ReadAccess, may_read, shown};

/// The largest difference between the present time at which a client sends a request, and the
/// present time that a program has read for the request before, in seconds.
const PRESENT_SECONDS: u64 = 60;

/// A name space for one user: changes are executed if the permissions of the entries allow them.
#[derive(Debug)]
pub struct UserNames<E> {
    names: Arc<RwLock<Names<E>>>,
    caller: BatchCaller,
    reads: ReadAccess,
    stated: Option<Time>,
    /// The number of the batch to which the data files of the user belong.
    data_files_of: u64,
}

impl<E: Entries> UserNames<E> {
    /// Returns the name space for a user. `stated` is the present time by the clock of the client
    /// for a change of an inode; without it, the client has the same clock as the caller of the
    /// operations.
    pub fn new(
        names: Arc<RwLock<Names<E>>>,
        caller: BatchCaller,
        reads: ReadAccess,
        stated: Option<Time>,
    ) -> UserNames<E> {
        let data_files_of = FILES_OF_USERS + u64::from(caller.uid);
        UserNames { names, caller, reads, stated, data_files_of }
    }

    /// Returns the private name space of a batch for the user of the batch. Its snapshot has no
    /// entry that the user may not read, or all users may read all entries.
    pub fn of_batch(names: Arc<RwLock<Names<E>>>, batch: &BatchRecord) -> UserNames<E> {
        let (caller, data_files_of) = (batch.caller.clone(), batch.number);
        UserNames { names, caller, reads: ReadAccess::All, stated: None, data_files_of }
    }

    fn check(&self, operation: &'static str) -> Check<'_> {
        Check { caller: &self.caller, operation }
    }

    /// Locks the name space from the check of an operation, which changes names of `dirs`, to its
    /// end.
    fn checked<'a>(
        &'a self,
        operation: &'static str,
        dirs: &[u64],
    ) -> Result<(RwLockWriteGuard<'a, Names<E>>, Check<'a>)> {
        request_dirs(&self.names, dirs)?;
        Ok((write_lock(&self.names), self.check(operation)))
    }

    /// Returns an inode without the bytes that the user may not read.
    fn shown(&self, inode: Inode) -> Inode {
        match self.reads {
            ReadAccess::All => inode,
            ReadAccess::Permitted => shown(inode, &self.caller),
        }
    }

    fn shown_node(&self, found: FoundNode) -> FoundNode {
        FoundNode { inode: self.shown(found.inode), ..found }
    }

    fn shown_removed(&self, removed: Removed) -> Removed {
        Removed { inode: self.shown(removed.inode), ..removed }
    }
}

/// Checks that the user may change the names of a directory of the image, as for a creation.
pub(crate) fn check_changes_names<E: Entries>(
    names: &Names<E>,
    caller: &BatchCaller,
    dir: u64,
    operation: &'static str,
) -> Result<()> {
    Check { caller, operation }.changeable_dir(names, dir).map(drop)
}

/// The checks of one operation.
struct Check<'a> {
    caller: &'a BatchCaller,
    operation: &'static str,
}

impl Check<'_> {
    /// Returns the error of a missing permission.
    fn denied(&self) -> Error {
        Error::new(ErrorKind::PermissionDenied, self.operation, "")
    }

    /// Returns the error of an operation for which only the owner has the permission.
    fn not_permitted(&self) -> Error {
        Error::new(ErrorKind::Os(errno::EPERM), self.operation, "")
    }

    fn may_write(&self, inode: &Inode) -> bool {
        self.caller.owns(inode) || self.caller.has_access(inode, WRITE)
    }

    fn require(&self, is_permitted: bool) -> Result<()> {
        if is_permitted { Ok(()) } else { Err(self.denied()) }
    }

    fn require_ownership(&self, is_permitted: bool) -> Result<()> {
        if is_permitted { Ok(()) } else { Err(self.not_permitted()) }
    }

    /// Returns a directory. The user must have the right to search it and all directories above it.
    fn reachable_dir<E: Entries>(&self, names: &Names<E>, dir: u64) -> Result<Inode> {
        let inode = names.inode(&Place::Dir(dir))?;
        let mut at = inode.clone();
        for _ in 0..=DEPTH_MAX {
            self.require(self.caller.may_search(&at))?;
            if at.number == ROOT {
                return Ok(inode);
            }
            at = names.inode(&Place::Dir(at.above()?))?;
        }
        Err(damaged("the path of a directory"))
    }

    /// Returns a directory in which the user may create names. Errors: `NotFound` if it does not
    /// exist.
    fn changeable_dir<E: Entries>(&self, names: &Names<E>, dir: u64) -> Result<Inode> {
        let inode = self.reachable_dir(names, dir).map_err(|error| match error.kind {
            ErrorKind::Stale => Error::new(ErrorKind::NotFound, self.operation, ""),
            _ => error,
        })?;
        self.require(self.caller.may_change_names(&inode))?;
        Ok(inode)
    }

    /// Returns a node that the user can reach. `place` is the place where the client has found it.
    /// If the node has been renamed since, only its owner can continue to use it, because its new
    /// name is not known here.
    fn reachable<E: Entries>(&self, names: &Names<E>, (number, place): (u64, &Place)) -> Result<FoundNode> {
        match place {
            Place::Dir(_) => {
                let found = names.find(number, place)?;
                if let (Content::Parent { dir, .. }, false) = (&found.inode.content, number == ROOT) {
                    self.reachable_dir(names, *dir)?;
                }
                return Ok(found);
            }
            Place::Name { dir, name } => {
                let reached = self.reachable_dir(names, *dir);
                let found = names.lookup(*dir, name)?.filter(|found| found.inode.number == number);
                let is_of_caller = |found: &FoundNode| self.caller.owns(&found.inode);
                match (reached, found) {
                    (Ok(_), Some(found)) => return Ok(found),
                    (Err(error), Some(_)) => return Err(error),
                    // The user may not search the directory, so the error must not show whether
                    // the name exists.
                    (Err(error), None)
                        if !names.find(number, place).is_ok_and(|found| is_of_caller(&found)) =>
                    {
                        return Err(error);
                    }
                    _ => {}
                }
            }
            Place::Linked(_) => {}
        }
        let found = names.find(number, place)?;
        match self.caller.owns(&found.inode) {
            true => Ok(found),
            false => Err(Error::new(ErrorKind::Stale, self.operation, "")),
        }
    }

    /// Checks that the user may remove a name from a directory or rename it. Returns its inode if
    /// it exists.
    fn removable<E: Entries>(&self, names: &Names<E>, dir: &Inode, name: &[u8]) -> Result<Option<Inode>> {
        let Some(found) = names.lookup(dir.number, name)? else { return Ok(None) };
        self.require_ownership(self.caller.may_remove(dir, &found.inode))?;
        Ok(Some(found.inode))
    }

    /// Checks that a directory may be moved to another parent, which changes its entry `..`.
    fn movable(&self, inode: Option<&Inode>) -> Result<()> {
        match inode {
            Some(inode) if inode.kind()? == Kind::Dir => self.require(self.caller.has_access(inode, WRITE)),
            _ => Ok(()),
        }
    }

    /// Checks a change of an inode, and returns the change with the restrictions of the kernel: a
    /// write by a user other than the owner, or by an owner outside of the file's group, removes
    /// the set-id bits, and a file gets no set-group-ID bit for a group of which the user is not a
    /// member. A user other than the owner can set only the time `now`, which is `stated` by the
    /// clock of the client, and no extended attributes of a sticky directory. A new data file must
    /// belong to the batch with the number `data_files_of`.
    fn change(
        &self,
        before: &Inode,
        change: &InodeChange,
        (now, stated): (Time, Time),
        data_files_of: u64,
    ) -> Result<InodeChange> {
        let InodeChange { permissions, uid, gid, drops_set_id, modified, data, xattr } = change;
        let owns = self.caller.owns(before);
        let may_write = self.may_write(before);
        self.require_ownership(owns || (permissions.is_none() && uid.is_none() && gid.is_none()))?;
        self.require_ownership(uid.is_none_or(|uid| uid == before.uid))?;
        self.require_ownership(gid.is_none_or(|gid| gid == before.gid || self.caller.is_in_group(gid)))?;
        let is_write = *drops_set_id || modified.is_some() || data.is_some() || xattr.is_some();
        self.require(may_write || !is_write)?;
        self.require_ownership(xattr.is_none() || self.caller.may_change_xattrs(before))?;
        self.require_ownership(
            owns || data.is_some() || modified.is_none_or(|time| is_near(time.into(), stated)),
        )?;
        if let Some(DataChange::Replace { new: Content::File(file), .. } | DataChange::File(file, _)) = data {
            self.require(file.batch == data_files_of && file.inode == before.number)?;
        }
        let mut change = change.clone();
        if !owns {
            change.modified = modified.map(|_| now.into());
        }
        change.drops_set_id |= data.is_some() && !(owns && self.caller.is_in_group(before.gid));
        let gid = gid.unwrap_or(before.gid);
        if before.kind()? != Kind::Dir && !self.caller.is_in_group(gid) {
            change.permissions = change.permissions.map(|permissions| permissions & !SET_GROUP_ID);
        }
        Ok(change)
    }

    /// Checks the attributes of a new entry, and returns them as the kernel restricts them.
    fn new_entry(&self, parent: &Inode, node: &NewNode, new: NewEntry) -> Result<NewEntry> {
        self.require_ownership(new.uid == self.caller.uid)?;
        let inherits = parent.mode & SET_GROUP_ID != 0;
        self.require_ownership(inherits || self.caller.is_in_group(new.gid))?;
        let gid = if inherits { parent.gid } else { new.gid };
        let is_dir = matches!(node, NewNode::Dir);
        let dropped = if is_dir || self.caller.is_in_group(gid) { 0 } else { SET_GROUP_ID };
        Ok(NewEntry { permissions: new.permissions & !dropped, ..new })
    }
}

/// Returns whether a program can have read `time` as the present time for a request that its client
/// has sent at the time `stated`. Both are of one clock, which may differ from that of the server.
/// A client that states another time gets no more than the right to set the present time.
fn is_near(time: Time, stated: Time) -> bool {
    time.seconds.abs_diff(stated.seconds) <= PRESENT_SECONDS
}

impl<E: Entries + Send + Sync> NameSpace for UserNames<E> {
    fn is_shared(&self) -> bool {
        self.names.is_shared()
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        request_dirs(&self.names, &[dir])?;
        let names = read_lock(&self.names);
        if self.reads == ReadAccess::Permitted {
            match self.check("look up").reachable_dir(&names, dir) {
                Err(error) if error.kind == ErrorKind::Stale => return Ok(None),
                checked => checked?,
            };
        }
        Ok(names.lookup(dir, name)?.map(|found| self.shown_node(found)))
    }

    fn find(&self, number: u64, place: &Place) -> Result<FoundNode> {
        let names = read_lock(&self.names);
        match self.reads {
            ReadAccess::All => names.find(number, place),
            ReadAccess::Permitted => {
                let found = self.check("read the attributes of").reachable(&names, (number, place))?;
                Ok(self.shown_node(found))
            }
        }
    }

    fn parent(&self, dir: u64) -> Result<(u64, Vec<u8>)> {
        let names = read_lock(&self.names);
        if self.reads == ReadAccess::Permitted {
            self.check("find the path of").reachable(&names, (dir, &Place::Dir(dir)))?;
        }
        names.parent(dir)
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], u64, Kind) -> bool) -> Result<()> {
        request_dirs(&self.names, &[dir])?;
        let names = read_lock(&self.names);
        if self.reads == ReadAccess::Permitted {
            let check = self.check("list");
            let found = check.reachable(&names, (dir, &Place::Dir(dir)))?;
            check.require(self.caller.has_access(&found.inode, READ))?;
        }
        names.list(dir, after, visit)
    }

    fn create(&self, dir: u64, name: &[u8], node: NewNode, new: NewEntry, now: Time) -> Result<FoundNode> {
        let (mut names, check) = self.checked("create", &[dir])?;
        let parent = check.changeable_dir(&names, dir)?;
        let new = check.new_entry(&parent, &node, new)?;
        names.create(dir, name, node, new, now)
    }

    fn link(&self, node: (u64, &Place), dir: u64, name: &[u8], now: Time) -> Result<FoundNode> {
        let (mut names, check) = self.checked("link", &[dir])?;
        let FoundNode { place, inode } = check.reachable(&names, node)?;
        check.changeable_dir(&names, dir)?;
        check.require_ownership(check.caller.may_link(&inode))?;
        names.link((inode.number, &place), dir, name, now).map(|found| self.shown_node(found))
    }

    fn remove(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        let (mut names, check) = self.checked("remove", &[dir])?;
        let parent = check.changeable_dir(&names, dir)?;
        check.removable(&names, &parent, name)?;
        names.remove(dir, name, now).map(|removed| self.shown_removed(removed))
    }

    fn remove_dir(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        let (mut names, check) = self.checked("remove", &[dir])?;
        let parent = check.changeable_dir(&names, dir)?;
        check.removable(&names, &parent, name)?;
        names.remove_dir(dir, name, now).map(|removed| self.shown_removed(removed))
    }

    fn rename(
        &self,
        (from_dir, from): (u64, &[u8]),
        (to_dir, to): (u64, &[u8]),
        mode: Rename,
        now: Time,
    ) -> Result<Renamed> {
        let (mut names, check) = self.checked("rename", &[from_dir, to_dir])?;
        let old_parent = check.changeable_dir(&names, from_dir)?;
        let new_parent = check.changeable_dir(&names, to_dir)?;
        let moved = check.removable(&names, &old_parent, from)?;
        let target = check.removable(&names, &new_parent, to)?;
        if from_dir != to_dir {
            check.movable(moved.as_ref())?;
            if mode == Rename::Exchange {
                check.movable(target.as_ref())?;
            }
        }
        let renamed = names.rename((from_dir, from), (to_dir, to), mode, now)?;
        let replaced = renamed.replaced.map(|removed| self.shown_removed(removed));
        Ok(Renamed { replaced, ..renamed })
    }

    fn change(&self, node: (u64, &Place), change: &InodeChange, now: Time) -> Result<Inode> {
        let (mut names, check) = self.checked("change", &[])?;
        let FoundNode { place, inode } = check.reachable(&names, node)?;
        let times = (now, self.stated.unwrap_or(now));
        if self.reads == ReadAccess::Permitted
            && let Some(DataChange::Replace { expected: Content::Inline(_), .. }) = change.data
        {
            // The result would show whether the user has guessed the bytes.
            check.require(may_read(&inode, &self.caller))?;
        }
        let change = check.change(&inode, change, times, self.data_files_of)?;
        names.change((inode.number, &place), &change, now).map(|inode| self.shown(inode))
    }

    fn check_write(&self, node: (u64, &Place)) -> Result<()> {
        let names = read_lock(&self.names);
        let check = Check { caller: &self.caller, operation: "open" };
        let FoundNode { inode, .. } = check.reachable(&names, node)?;
        check.require(check.may_write(&inode))
    }

    fn quota(&self) -> Result<Option<Quota>> {
        self.names.quota()
    }

    fn sync(&self) -> Result<()> {
        self.names.sync()
    }
}

#[cfg(test)]
#[path = "user_names_test.rs"]
mod tests;
