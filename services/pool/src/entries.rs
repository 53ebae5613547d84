//! Names and attributes of single nodes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::rc::Rc;

use quell_kv::Batch;
use quell_vfs::{Error, ErrorKind, NAME_BYTES_MAX, Result};
use quell_wire::pool::{Consistency, FILE_BYTES_MAX, FileId, NodeKind, PeerRequest, Reply, Settings, Stamp};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::creation::SET_GROUP_ID;
use crate::inode::{Inode, to_bytes};
use crate::keys;
use crate::lock_table::Lock;
use crate::member::Member;
use crate::replies::{node_of, unexpected};
use crate::results::Performed;
use crate::sessions::Origin;

const SET_USER_ID: u16 = 0o4000;
const GROUP_EXECUTE: u16 = 0o010;

impl Inode {
    /// Records a change of the data at this time, unless a later change is recorded. A time that a
    /// program has set after the change is therefore kept.
    pub(crate) fn touch(&mut self, time: Stamp) {
        if time > self.changed {
            (self.modified, self.changed) = (time, time);
        }
    }

    /// Records a change of the data by the clock of this member.
    pub(crate) fn write_at(&mut self, now: Stamp) {
        (self.modified, self.changed) = (now, now);
        self.is_modified_set = false;
    }

    pub(crate) fn drop_set_id(&mut self) {
        let group = if self.permissions & GROUP_EXECUTE != 0 { SET_GROUP_ID } else { 0 };
        self.permissions &= !(SET_USER_ID | group);
    }

    /// Returns an error if this is not a regular file.
    pub(crate) fn check_is_file(&self) -> Result<()> {
        match self.kind {
            NodeKind::File => Ok(()),
            NodeKind::Dir => Err(Error::new(ErrorKind::IsADirectory, "open", "")),
            NodeKind::Symlink => Err(Error::new(ErrorKind::InvalidInput, "open", "")),
        }
    }
}

impl Member {
    /// Returns the attributes of an entry of this member. If `holds` is set, makes a reference for
    /// `origin`. The node of an entry that was renamed may be on another member. Then the reply has
    /// only the identifier of the node.
    pub(crate) async fn lookup(
        self: &Rc<Member>,
        origin: Origin,
        dir: FileId,
        name: &[u8],
        holds: bool,
    ) -> Result<Reply<'static>> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "look up", name));
        }
        let _name = self.lock(Lock::Name(dir, name.to_vec())).await?;
        let Some(entry) = self.entry(dir, name)? else { return Ok(Reply::Found(None)) };
        if self.map.home(entry.id)? != self.id {
            return Ok(Reply::Elsewhere(entry.id));
        }
        let found = self.hold(entry.id, holds.then_some(origin))?;
        if holds { Ok(found) } else { Ok(Reply::Found(Some(node_of(&found)?))) }
    }

    /// Returns the attributes of a node, and makes a reference for `holder`.
    ///
    /// # Errors
    ///
    /// `Stale` if there is no such node, or if it is being removed.
    pub(crate) fn hold(&self, id: FileId, holder: Option<Origin>) -> Result<Reply<'static>> {
        let node = self.inode(id)?.node(id);
        let Some(holder) = holder else { return Ok(Reply::Node(node)) };
        if !node.is_named && !self.member_holds.borrow().is_held(id) && self.knows_references() {
            return Err(Error::new(ErrorKind::Stale, "node", id.0.to_string()));
        }
        self.add_hold(id, holder);
        Ok(Reply::Held(node))
    }

    /// Adds a reference, unless the sender has abandoned the request.
    pub(crate) fn add_hold(&self, id: FileId, holder: Origin) {
        if holder.member == self.id || self.sessions.borrow().is_waited_for(holder) {
            self.member_holds.borrow_mut().add(id, holder.member, holder.number);
            self.sessions.borrow_mut().lease(holder.member);
        }
    }

    pub(crate) fn name(&self, id: FileId) -> Result<Reply<'static>> {
        match self.inode(id)?.name {
            Some((dir, name)) => Ok(Reply::Name { dir, name: Cow::Owned(name) }),
            None => Err(Error::new(ErrorKind::NotFound, "name of a removed node", "")),
        }
    }

    /// Returns the directory above a node, unless the node is being moved.
    pub(crate) fn above(&self, id: FileId) -> Result<Reply<'static>> {
        match self.prepared.borrow().moves(id) {
            true => Err(Error::new(ErrorKind::Busy, "find the directory above", "")),
            false => self.name(id),
        }
    }

    pub(crate) fn read_link(&self, id: FileId) -> Result<Reply<'static>> {
        match self.inode(id)? {
            inode if inode.kind == NodeKind::Symlink => Ok(Reply::Bytes(Cow::Owned(inode.target))),
            _ => Err(Error::new(ErrorKind::InvalidInput, "read link", "")),
        }
    }

    pub(crate) async fn change(
        self: &Rc<Member>,
        origin: Origin,
        id: FileId,
        settings: Settings,
    ) -> Result<Reply<'static>> {
        if let Some(size_bytes) = settings.size_bytes {
            self.set_size(origin, id, size_bytes, settings.drops_set_id).await?;
            let others = Settings { size_bytes: None, drops_set_id: false, ..settings };
            if others == Settings::default() {
                return Ok(Reply::Node(self.inode(id)?.node(id)));
            }
        }
        if let Some(modified) = settings.modified {
            self.inode(id)?;
            // The time of the data on this member is part of the attributes.
            self.environment.chunks.set_modified(id, modified)?;
        }
        let access = |inode: &Inode| (inode.permissions, inode.uid, inode.gid);
        let group = |inode: &Inode| (inode.permissions & SET_GROUP_ID != 0).then_some(inode.gid);
        let mut inode = self.inode(id)?;
        let (known_access, passed_on) = (access(&inode), group(&inode));
        inode.permissions =
            settings.permissions.map_or(inode.permissions, |permissions| permissions & 0o7777);
        inode.uid = settings.uid.unwrap_or(inode.uid);
        inode.gid = settings.gid.unwrap_or(inode.gid);
        if settings.drops_set_id && settings.size_bytes.is_none() {
            inode.drop_set_id();
        }
        inode.changed = self.now().max(inode.changed);
        if let Some(modified) = settings.modified {
            inode.modified = modified;
            inode.is_modified_set = true;
        }
        if inode.kind == NodeKind::Dir {
            // A time that a client sets replaces the time of earlier changes.
            self.touched_dirs.borrow_mut().remove(&id);
        }
        let mut batch = Batch::new();
        batch.put(&keys::inode(id), &to_bytes(&inode));
        if settings.size_bytes.is_some() {
            // The truncation has freed space, and is not reported as failed.
            batch.allow_reserve();
        }
        self.put_result(origin, Performed::Change(id), &mut batch);
        self.environment.store.commit(batch)?;
        if inode.kind == NodeKind::Dir && group(&inode) != passed_on {
            self.send_to_all(&PeerRequest::SetDirGroup { dir: id, gid: group(&inode) }).await?;
        }
        if inode.kind == NodeKind::Dir && access(&inode) != known_access {
            self.send_to_all(&PeerRequest::ForgetDirs).await?;
        }
        Ok(Reply::Node(inode.node(id)))
    }

    /// Records that a file has at least this size, and was written now.
    pub(crate) async fn grow(self: &Rc<Member>, id: FileId, size_bytes_min: u64) -> Result<Reply<'static>> {
        if size_bytes_min > FILE_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "write", ""));
        }
        let _size = self.lock(Lock::Size(id)).await?;
        let mut inode = self.inode(id)?;
        inode.check_is_file()?;
        if inode.truncating_to_bytes.is_some() && size_bytes_min > inode.size_bytes {
            // To complete the truncation now could remove data that is written meanwhile.
            let source =
                Some("a truncation of the file is not complete, because a member cannot be reached".into());
            return Err(Error { source, ..Error::new(ErrorKind::Unavailable, "write", "") });
        }
        if inode.is_inline {
            self.move_to_chunks(id).await?;
            inode = self.inode(id)?;
        }
        inode.size_bytes = inode.size_bytes.max(size_bytes_min);
        inode.write_at(self.now());
        self.put_inode(id, &inode)?;
        Ok(Reply::Done)
    }

    /// Extends a file at its end, for an append.
    pub(crate) async fn reserve(
        self: &Rc<Member>,
        origin: Origin,
        id: FileId,
        bytes: u64,
    ) -> Result<Reply<'static>> {
        let _size = self.lock(Lock::Size(id)).await?;
        self.finish_truncation(id).await?;
        let mut inode = self.inode(id)?;
        inode.check_is_file()?;
        let offset = inode.size_bytes;
        match offset.checked_add(bytes) {
            Some(end) if end <= FILE_BYTES_MAX => inode.size_bytes = end,
            _ => return Err(Error::new(ErrorKind::InvalidInput, "append", "")),
        }
        inode.write_at(self.now());
        let mut batch = Batch::new();
        batch.put(&keys::inode(id), &to_bytes(&inode));
        self.put_result(origin, Performed::Extension(offset), &mut batch);
        self.environment.store.commit(batch)?;
        Ok(Reply::Offset(offset))
    }

    pub(crate) async fn sync(self: &Rc<Member>, id: FileId) -> Result<Reply<'static>> {
        let inode = self.inode(id)?;
        // The entries of a directory lie on all members.
        if inode.has_chunks || inode.kind == NodeKind::Dir {
            self.send_to_all(&PeerRequest::SyncChunks { id }).await?;
        }
        self.environment.store.sync()?;
        Ok(Reply::Done)
    }

    /// Sets the size of a file, and truncates its chunks.
    async fn set_size(
        self: &Rc<Member>,
        origin: Origin,
        id: FileId,
        size_bytes: u64,
        drops_set_id: bool,
    ) -> Result<()> {
        let _size = self.lock(Lock::Size(id)).await?;
        if self.has_set_size(origin) {
            return self.finish_truncation(id).await;
        }
        let mut inode = self.inode(id)?;
        if inode.kind != NodeKind::File || size_bytes > FILE_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "set size", ""));
        }
        if size_bytes > inode.size_bytes && inode.truncating_to_bytes.is_some() {
            self.finish_truncation(id).await?;
            inode = self.inode(id)?;
        }
        if drops_set_id {
            inode.drop_set_id();
        }
        // Without synchronous sizes, there may be data beyond the recorded size.
        let is_shorter = size_bytes < inode.size_bytes || self.map.consistency() == Consistency::Commit;
        let has_chunks = inode.has_chunks && !inode.is_inline;
        let truncates = has_chunks && is_shorter || inode.truncating_to_bytes.is_some();
        let mut batch = Batch::new();
        self.truncate_inline_data(id, &mut inode, size_bytes, &mut batch)?;
        inode.size_bytes = size_bytes;
        inode.truncating_to_bytes = truncates.then_some(size_bytes);
        inode.write_at(self.now());
        batch.put(&keys::inode(id), &to_bytes(&inode));
        if truncates {
            batch.put(&keys::unfinished(id), &[]);
            // The change frees space.
            batch.allow_reserve();
        }
        self.put_result(origin, Performed::Size, &mut batch);
        self.environment.store.commit(batch)?;
        if truncates {
            self.unfinished.borrow_mut().insert(id);
            self.untruncated.borrow_mut().insert(id);
            self.finish_truncation(id).await?;
        }
        Ok(())
    }

    /// Truncates the chunks of a file whose record has the new size, unless they were truncated
    /// before. The caller must have locked the size.
    pub(crate) async fn finish_truncation(self: &Rc<Member>, id: FileId) -> Result<()> {
        let Some(size_bytes) = self.inode(id)?.truncating_to_bytes else { return Ok(()) };
        self.truncate_own_chunks(id, size_bytes)?;
        self.send_to_others(&PeerRequest::TruncateChunks { id, size_bytes }).await?;
        let mut inode = self.inode(id)?;
        inode.truncating_to_bytes = None;
        let mut batch = Batch::new();
        batch.put(&keys::inode(id), &to_bytes(&inode));
        batch.allow_reserve();
        let is_finished = inode.name.is_some();
        if is_finished {
            batch.delete(&keys::unfinished(id));
        }
        self.environment.store.commit(batch)?;
        if is_finished {
            self.unfinished.borrow_mut().remove(&id);
        }
        Ok(())
    }

    /// Truncates the chunks of this member. This is done only once, because clients may write
    /// beyond the new end afterwards. The length of the local file is part of the size, so the
    /// chunks are truncated before other operations.
    fn truncate_own_chunks(&self, id: FileId, size_bytes: u64) -> Result<()> {
        if self.untruncated.borrow().contains(&id) {
            self.environment.chunks.truncate(id, size_bytes)?;
            self.untruncated.borrow_mut().remove(&id);
        }
        Ok(())
    }

    /// Truncates the chunks of this member for truncations that were interrupted by the end of the
    /// daemon.
    pub(crate) fn load_truncations(&self) -> Result<()> {
        let unfinished: Vec<FileId> = self.unfinished.borrow().iter().copied().collect();
        for id in unfinished {
            match self.inode(id) {
                Ok(Inode { truncating_to_bytes: Some(size_bytes), .. }) => {
                    self.environment.chunks.truncate(id, size_bytes)?;
                }
                Err(error) if error.kind != ErrorKind::Stale => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn own_space(&self) -> Result<Reply<'static>> {
        let space = self.environment.chunks.space()?;
        let device = space.device.to_le_bytes();
        Ok(Reply::Space {
            total_bytes: space.total_bytes,
            free_bytes: space.free_bytes,
            available_bytes: space.available_bytes,
            file_system: xxh3_64_with_seed(&device, self.environment.machine),
        })
    }

    /// Returns the space of all members. A file system that several members use is counted once.
    pub(crate) async fn space(self: &Rc<Member>) -> Result<Reply<'static>> {
        let (mut total, mut free, mut available) = (0_u64, 0_u64, 0_u64);
        let mut counted = HashSet::new();
        for reply in self.call_all(&PeerRequest::Space).await {
            let reply = reply?;
            let Reply::Space { total_bytes, free_bytes, available_bytes, file_system } = reply else {
                return Err(unexpected(&reply));
            };
            if counted.insert(file_system) {
                total = total.saturating_add(total_bytes);
                free = free.saturating_add(free_bytes);
                available = available.saturating_add(available_bytes);
            }
        }
        Ok(Reply::Space { total_bytes: total, free_bytes: free, available_bytes: available, file_system: 0 })
    }
}
