//! A pool as a file system of the contract.

use std::borrow::Cow;
use std::sync::Arc;

use quell_threads::lock;
use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, Error, ErrorKind, File, FileSystem, Kind,
    NewEntry, NodeId, NodeRef, OpenMode, Rename, Result, SetXattr, Space, USER_XATTRS, Writable,
    WritableFile, XATTR_VALUE_BYTES_MAX, check_user_xattr, errno,
};
use quell_wire::pool::{
    FileId, Matching, NewKind, Node, NodeKind, Operation, RenameMode, Reply, Settings, Stamp, XattrMode,
};
use rustix::process::geteuid;

use crate::client::Client;
use crate::connection::Daemons;
use crate::daemon::{Daemon, done, node, space};
use crate::file::PoolFile;
use crate::nodes::KnownNode;

/// A pool, seen through the daemon of this node.
pub struct PoolFs {
    client: Arc<Client>,
    /// Whether the rest of a pool without copies can be used after a daemon has ended.
    serves_rest: bool,
}

impl std::fmt::Debug for PoolFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolFs").field("chunk_bytes", &self.client.chunk_bytes).finish_non_exhaustive()
    }
}

impl PoolFs {
    /// Returns the file system of a pool with chunks of this size, in bytes.
    pub fn new(daemon: Arc<dyn Daemon>, chunk_bytes: u32) -> PoolFs {
        PoolFs { client: Arc::new(Client::new(daemon, chunk_bytes)), serves_rest: false }
    }

    /// Connects to one of several daemons of a pool with copies and with chunks of this size, in
    /// bytes. When the daemon has ended, connects to another one. Operations wait for a daemon for
    /// at most [`Daemons::wait_limit`], and so does this function.
    ///
    /// # Errors
    ///
    /// The errors of [`Daemons::connect`].
    pub fn reconnecting(daemons: Box<dyn Daemons>, chunk_bytes: u32) -> Result<PoolFs> {
        Ok(PoolFs { client: Arc::new(Client::open(daemons, chunk_bytes)?), serves_rest: false })
    }

    /// Lets programs that copy a pool see as much of it as possible after a daemon has ended: a
    /// listing that fails because of it has first returned all entries of the other daemons, and
    /// the root directory has attributes.
    #[must_use]
    pub fn with_reachable_parts(self) -> PoolFs {
        PoolFs { client: self.client, serves_rest: true }
    }

    /// Returns whether an error means that a part of the pool cannot be reached, and the rest is to
    /// be used.
    fn is_partly_reachable(&self, error: &Error) -> bool {
        self.serves_rest && matches!(error.kind, ErrorKind::Unavailable | ErrorKind::TimedOut)
    }

    /// Returns a directory that is in use.
    fn dir(&self, node: NodeId) -> Result<FileId> {
        let found = self.client.node(node)?;
        match found.kind {
            NodeKind::Dir => Ok(found.id),
            _ => Err(Error::new(ErrorKind::NotADirectory, "look into", "")),
        }
    }

    /// Creates an entry, and adds `uses` uses of its node.
    fn make(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        (kind, new): (NewKind<'_>, NewEntry),
        uses: u64,
    ) -> Result<(Node, Arc<KnownNode>)> {
        let create = Operation::Create {
            dir: self.dir(dir)?,
            name,
            kind,
            permissions: (new.permissions & 0o7777) as u16,
            uid: new.uid,
            gid: new.gid,
        };
        let (created, generation) =
            self.client.requests.ask_until_free(context, &create, ("create", name), node)?;
        let known = self.client.held(&created, uses, generation)?;
        Ok((created, known))
    }

    /// Looks an entry up, and adds a use of its node.
    fn look_up(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
    ) -> Result<Option<(Node, NodeRef<'_>)>> {
        let lookup = Operation::Lookup { dir: self.dir(dir)?, name, holds: true };
        let read = |reply: Reply<'_>| match reply {
            Reply::Held(node) => Some(Some(node)),
            Reply::Found(None) => Some(None),
            _ => None,
        };
        let (found, generation) =
            self.client.requests.ask_for_reference(context.deadline, &lookup, ("look up", name), read)?;
        let Some(node) = found else { return Ok(None) };
        self.client.held(&node, 1, generation)?;
        let reference = NodeRef::counted(self, node.attributes());
        let node = self.client.with_own_writes(context, node)?;
        Ok(Some((node, reference.with_attributes(node.attributes()))))
    }

    fn remove_entry(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        matching: Matching,
    ) -> Result<()> {
        let remove = Operation::Remove { dir: self.dir(dir)?, name, matching };
        self.client.requests.ask_until_free(context, &remove, ("remove", name), done).map(|_| ())
    }

    fn opened(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<PoolFile> {
        match self.client.node(node)?.kind {
            NodeKind::File => {}
            NodeKind::Dir => return Err(Error::new(ErrorKind::IsADirectory, "open", "")),
            NodeKind::Symlink => return Err(Error::new(ErrorKind::InvalidInput, "open", "")),
        }
        self.client.check_deadline(context)?;
        if mode.truncate {
            self.change(context, node, &Change { size_bytes: Some(0), ..Change::default() })?;
        }
        let known = lock(&self.client.nodes).use_again(node)?;
        Ok(PoolFile::new(Arc::clone(&self.client), known, mode))
    }
}

impl FileSystem for PoolFs {
    fn capabilities(&self) -> Capabilities {
        Capabilities { deadlines: true, xattrs: true, ..Capabilities::default() }
    }

    fn root(&self) -> NodeId {
        NodeId(0)
    }

    fn lookup(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        Ok(self.look_up(context, dir, name)?.map(|(_, found)| found))
    }

    fn lookup_on_path(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let id = FileId::from(dir);
        // Before the look-up, so that a later change is noticed.
        let version = self.client.requests.dirs_version();
        let known = lock(&self.client.dirs).get(version, id, name);
        if let Some(known) = known
            // Another thread may have removed it from the cache, and its last use.
            && lock(&self.client.nodes).use_again(NodeId(known.id.0)).is_ok()
        {
            self.client.check_deadline(context)?;
            return Ok(Some(NodeRef::counted(self, known.attributes())));
        }
        let Some((node, found)) = self.look_up(context, dir, name)? else { return Ok(None) };
        if node.kind == NodeKind::Dir {
            lock(&self.client.nodes).use_again(found.node())?;
            let dropped = lock(&self.client.dirs).insert(version, id, name, node);
            for id in dropped {
                self.client.release(id, 1)?;
            }
        }
        Ok(Some(found))
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId) -> Result<Attributes> {
        let known = self.client.node(node)?;
        self.client.commit(&known)?;
        match self.client.requests.attributes(context.deadline, known.id) {
            Err(error) if known.id == FileId::ROOT && self.is_partly_reachable(&error) => {
                let root = Node {
                    id: FileId::ROOT,
                    kind: NodeKind::Dir,
                    permissions: 0o700,
                    uid: 0,
                    gid: 0,
                    is_named: true,
                    size_bytes: 0,
                    modified: Stamp::default(),
                    changed: Stamp::default(),
                    is_inline: false,
                };
                Ok(root.attributes())
            }
            found => Ok(found?.attributes()),
        }
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        let known = self.client.node(node)?;
        let name = Operation::Name { id: known.id };
        self.client.requests.ask(None, &name, ("find the directory of", b""), |reply| match reply {
            Reply::Name { dir, .. } => Some(NodeId(dir.0)),
            _ => None,
        })
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        let (mut names, mut at) = (Vec::new(), self.client.node(node)?.id);
        while at != FileId::ROOT {
            let name = Operation::Name { id: at };
            let (dir, name) =
                self.client.requests.ask(None, &name, ("find the name of", b""), |reply| match reply {
                    Reply::Name { dir, name } => Some((dir, name.into_owned())),
                    _ => None,
                })?;
            names.push(name);
            at = dir;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    fn list(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (dir, mut after) = (self.dir(dir)?, after.0);
        // The error because of which the entries of a part of the pool are missing.
        let mut missing = None;
        loop {
            // The visitor may use the connection, so it is called after the request has ended.
            let list = match &missing {
                None => Operation::List { dir, after },
                Some(_) => Operation::ListReachable { dir, after },
            };
            let part =
                self.client.requests.ask(context.deadline, &list, ("list", b""), |reply| match reply {
                    Reply::Entries(entries) => Some(entries.into_owned()),
                    _ => None,
                });
            let part = match part {
                Err(error) if missing.is_none() && self.is_partly_reachable(&error) => {
                    missing = Some(error);
                    continue;
                }
                part => part?,
            };
            for entry in &part.entries {
                let shown = DirEntry {
                    name: &entry.name,
                    next: Cursor(entry.cursor),
                    node: NodeId(entry.id.0),
                    kind: entry.kind.into(),
                    attributes: None,
                };
                if !visit(shown) {
                    return Ok(());
                }
                after = entry.cursor;
            }
            if !part.has_more || part.entries.is_empty() {
                return missing.map_or(Ok(()), Err);
            }
        }
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        let known = self.client.node(node)?;
        let read = Operation::ReadLink { id: known.id };
        self.client.requests.ask(context.deadline, &read, ("read link", b""), |reply| match reply {
            Reply::Bytes(target) => Some(target.into_owned()),
            _ => None,
        })
    }

    /// Only `user.` attributes can be set, so no request is sent for other attributes, which the
    /// kernel and programs such as ls(1) often read.
    fn xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        self.client.check_deadline(context)?;
        let known = self.client.node(node)?;
        if known.kind == NodeKind::Symlink || !name.starts_with(USER_XATTRS) {
            return Ok(None);
        }
        let read = Operation::Xattr { id: known.id, name };
        self.client.requests.ask(context.deadline, &read, ("read the extended attribute", name), |reply| {
            match reply {
                Reply::Value(value) => Some(value.map(Cow::into_owned)),
                _ => None,
            }
        })
    }

    fn xattr_names(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.client.check_deadline(context)?;
        let known = self.client.node(node)?;
        if known.kind == NodeKind::Symlink {
            return Ok(Vec::new());
        }
        let read = Operation::XattrNames { id: known.id };
        let described = ("list extended attributes", &b""[..]);
        self.client.requests.ask(context.deadline, &read, described, |reply| match reply {
            Reply::Bytes(names) => {
                let names = names.strip_suffix(&[0]).map(|names| names.split(|byte| *byte == 0));
                Some(names.into_iter().flatten().map(<[u8]>::to_vec).collect())
            }
            _ => None,
        })
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        Ok(Box::new(self.opened(context, node, OpenMode::READ)?))
    }

    fn forget(&self, node: NodeId, references: u64) {
        // The daemon releases the references of a client that ends, so a failure has no later
        // effect.
        let _ = self.client.release(FileId::from(node), references);
    }

    fn attributes_of_path(&self, context: &Context<'_>, path: &[u8]) -> Result<Option<Attributes>> {
        let last = match quell_vfs::resolve_parent(self, context, path) {
            Ok(Some(last)) if last.parent.kind == Kind::Dir => last,
            // The path does not end in a name, or the parent of this name is not a directory.
            Ok(_) => {
                return match quell_vfs::resolve(self, context, path) {
                    Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
                    found => Ok(Some(*found?)),
                };
            }
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let lookup = Operation::Lookup { dir: self.dir(last.parent.node())?, name: last.name, holds: false };
        let found =
            self.client.requests.ask(
                context.deadline,
                &lookup,
                ("look up", last.name),
                |reply| match reply {
                    Reply::Found(found) => Some(found),
                    _ => None,
                },
            )?;
        let found = found.map(|node| self.client.with_own_writes(context, node)).transpose()?;
        Ok(found.map(|node| node.attributes()))
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for PoolFs {
    fn create(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        // The reference is one use, and the open file is the other use.
        let (created, known) = self.make(context, dir, name, (NewKind::File, new), 2)?;
        let file = PoolFile::new(Arc::clone(&self.client), known, mode);
        Ok((NodeRef::counted(self, created.attributes()), Box::new(file)))
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let (created, _) = self.make(context, dir, name, (NewKind::Dir, new), 1)?;
        Ok(NodeRef::counted(self, created.attributes()))
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let (created, _) = self.make(context, dir, name, (NewKind::Symlink(target), new), 1)?;
        Ok(NodeRef::counted(self, created.attributes()))
    }

    fn remove(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        self.remove_entry(context, dir, name, Matching::NotDir)
    }

    fn remove_dir(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        self.remove_entry(context, dir, name, Matching::Dir)
    }

    fn rename(
        &self,
        context: &Context<'_>,
        from_dir: NodeId,
        from: &[u8],
        to_dir: NodeId,
        to: &[u8],
        mode: Rename,
    ) -> Result<()> {
        let mode = match mode {
            Rename::Replace => RenameMode::Replace,
            Rename::Keep => RenameMode::Keep,
            Rename::Exchange => RenameMode::Exchange,
        };
        let (from_dir, to_dir) = (self.dir(from_dir)?, self.dir(to_dir)?);
        let rename = Operation::Rename { from_dir, from, to_dir, to, mode };
        self.client.requests.ask_until_free(context, &rename, ("rename", from), done).map(|_| ())
    }

    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        let known = self.client.node(node)?;
        // Otherwise the size would be sent after the change, and replace the times that it sets.
        self.client.commit(&known)?;
        let settings = Settings {
            permissions: change.permissions.map(|permissions| (permissions & 0o7777) as u16),
            uid: change.uid,
            gid: change.gid,
            size_bytes: change.size_bytes,
            modified: change.modified.map(Into::into),
            drops_set_id: change.size_bytes.is_some() && !context.keeps_set_id(geteuid().as_raw()),
        };
        let operation = Operation::Change { id: known.id, settings };
        let changed =
            self.client.requests.ask(context.deadline, &operation, ("change", b""), crate::daemon::node)?;
        known.note(&changed);
        Ok(changed.attributes())
    }

    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        Ok(Box::new(self.opened(context, node, mode)?))
    }

    fn set_xattr(
        &self,
        context: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
    ) -> Result<()> {
        let known = self.client.node(node)?;
        check_user_xattr(known.kind.into(), name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Error::new(ErrorKind::Os(errno::E2BIG), "set the extended attribute", name));
        }
        let mode = match mode {
            SetXattr::Any => XattrMode::Any,
            SetXattr::Create => XattrMode::Create,
            SetXattr::Replace => XattrMode::Replace,
        };
        let set = Operation::SetXattr { id: known.id, name, value, mode };
        self.client.requests.ask(context.deadline, &set, ("set the extended attribute", name), done)
    }

    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        let known = self.client.node(node)?;
        check_user_xattr(known.kind.into(), name)?;
        let remove = Operation::RemoveXattr { id: known.id, name };
        self.client.requests.ask(context.deadline, &remove, ("remove the extended attribute", name), done)
    }

    fn sync_dir(&self, context: &Context<'_>, dir: NodeId) -> Result<()> {
        let id = self.dir(dir)?;
        self.client.requests.ask(context.deadline, &Operation::Sync { id }, ("sync", b""), done)
    }

    fn space(&self) -> Result<Space> {
        self.client.requests.ask(None, &Operation::Space, ("statfs", b""), space)
    }
}
