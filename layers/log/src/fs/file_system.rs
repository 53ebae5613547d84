//! The file system of a log mount: directories and symbolic links as in the stores, and a container
//! for each file.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, File, FileSystem, Kind, NewEntry, NodeId,
    NodeRef, OpenMode, Rename, Result, Space, Writable, WritableFile,
};

use crate::container::{Container, ContainerIdentity};
use crate::fs::files::{file, open_file, with_file};
use crate::fs::handle::{Handle, drop_set_id};
use crate::fs::listing::Listings;
use crate::fs::mount::{EntryName, Mount};
use crate::fs::nodes::ROOT;
use crate::fs::open_files::SharedFile;
use crate::fs::{attributes, create, lookup, remove, rename};
use crate::session::{Choices, Flattened, Share, flatten, flatten_shares, index_logs, read_share};
use crate::stores::Stores;

/// The time that `end` waits for cancelled flattening to remove its temporary file.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// The file system of a log mount.
pub struct LogFs {
    mount: Mount,
    listings: Listings,
}

impl std::fmt::Debug for LogFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFs").field("stores", &self.mount.stores).finish_non_exhaustive()
    }
}

impl LogFs {
    /// Returns the file system in these stores.
    pub fn new(stores: Stores, choices: Choices) -> LogFs {
        LogFs { mount: Mount::new(stores, choices), listings: Listings::new() }
    }

    /// Creates a flat index of the current content of a file's logs (Index Flatten, section IV-A).
    /// Writers can continue meanwhile.
    pub fn flatten(&self, node: NodeId) -> Result<Flattened> {
        let shared = file(&self.mount, node)?;
        flatten(shared.file.container(), self.mount.choices.index_threads)
    }

    /// Does the same as `flatten` with the shares of the file, so that the index logs are not read
    /// again.
    ///
    /// # Errors
    ///
    /// `Damaged` if the bytes are not a share of this file.
    pub fn flatten_shares(&self, node: NodeId, shares: Vec<Vec<u8>>) -> Result<Flattened> {
        let shared = file(&self.mount, node)?;
        let container = shared.file.container();
        flatten_shares(container, &decode_shares(shares, container)?, self.mount.choices.index_threads)
    }

    /// Returns the number of index logs that opening the file reads, and thus the largest useful
    /// number of shares: 0 if no process has published data, and 1 if there is a flat index.
    pub fn index_logs(&self, node: NodeId) -> Result<usize> {
        with_file(&self.mount, node, |shared| index_logs(shared.file.container()))
    }

    /// Reads share `number` of `shares` of a file's index logs (Parallel Index Read, section IV-B),
    /// as bytes for `open_with_shares`. A program with many processes opens a file in this way:
    /// each process reads its own share, all exchange their shares, and no index log is opened more
    /// than once. A single share is read from the flat index, if there is one.
    ///
    /// # Errors
    ///
    /// `EFBIG` if the share has more than 1 GiB.
    pub fn read_share(&self, node: NodeId, number: usize, shares: usize) -> Result<Vec<u8>> {
        let threads = self.mount.choices.index_threads;
        with_file(&self.mount, node, |shared| read_share(shared.file.container(), number, shares, threads))
    }

    /// Opens a file with its shares, in any order. Newer data is read from the logs, and so is the
    /// data of missing shares.
    ///
    /// # Errors
    ///
    /// `Damaged` if the bytes are not a share of this file.
    pub fn open_with_shares(
        &self,
        context: &Context<'_>,
        node: NodeId,
        mode: OpenMode,
        shares: Vec<Vec<u8>>,
    ) -> Result<Box<dyn WritableFile>> {
        let shares = decode_shares(shares, file(&self.mount, node)?.file.container())?;
        let opened = with_file(&self.mount, node, |shared| {
            shared.file.take_shares(&shares)?;
            Handle::open(shared, node, mode, context.process, self.mount.choices.flattens_later)
        });
        Ok(Box::new(opened?))
    }

    /// Makes this process the only user of the store, or confirms that it still is. While it is, no
    /// other process changes names and attributes. Returns false if another process uses the
    /// store, if locks are not reliable in the store, and for several stores.
    ///
    /// The kernel may keep the data of files that are opened for reading before `until`, and before
    /// [`end_only_user_period`](Self::end_only_user_period) is called. The handles of these opens
    /// follow the changes of other processes afterwards. A result of false, or an error, does not
    /// end the period.
    pub fn be_only_user(&self, until: Instant) -> Result<bool> {
        self.mount.stores.be_only_user(until)
    }

    /// Ends the period in which this process is the only user of the store. Must be called after
    /// the frontend was told that the kernel keeps no data of files that are opened later, because
    /// the handles of later opens do not follow the changes of other processes.
    pub fn end_only_user_period(&self) {
        self.mount.stores.end_only_user_period();
    }

    /// Shares the store with other processes again. Must be called after
    /// [`end_only_user_period`](Self::end_only_user_period), and after all names and attributes
    /// that the kernel keeps have expired. Passes new files to the file server first. Returns false
    /// while a creation that began in the period has not ended; the call must then be repeated.
    pub fn share_stores(&self) -> bool {
        if self.mount.stores.is_creating_file() {
            return false;
        }
        for shared in self.mount.files.all() {
            // Each close and sync of the file tries again, and returns an error unless it succeeds.
            // Until then, other processes may find the file without its header.
            if let Err(error) = shared.file.write_back_new_object() {
                tracing::warn!(%error, "cannot pass a new file to the file server");
            }
        }
        self.mount.stores.share();
        true
    }

    /// Returns true if files are being flattened in the background, or are queued for it.
    pub fn is_flattening(&self) -> bool {
        !self.mount.files.flattening().is_idle()
    }

    /// Closes the logs of files without open handles that were not read since the last call. A
    /// mount is not notified if another mount removes or truncates a file, and an open log uses
    /// space in the store after it was unlinked.
    pub fn close_idle(&self) {
        let known = self.mount.files.all();
        let is_open = |shared: &&Arc<SharedFile>| shared.handles.load(Ordering::Relaxed) > 0;
        let in_use: HashSet<ContainerIdentity> =
            known.iter().filter(is_open).map(|shared| shared.file.container().identity()).collect();
        self.mount.descriptors.close_idle(|file| in_use.contains(file));
    }

    /// Ends all open files as if they had been closed: written data is published, and removed files
    /// are deleted. Used when the mount ends without waiting for processes with open files, or for
    /// background flattening. The file system must not be used afterwards.
    pub fn end(&self) -> Result<()> {
        let open = self.mount.files.all();
        let mut ended = Ok(());
        for shared in &open {
            ended = ended.and(shared.file.end());
        }
        self.mount.files.flattening().stop(CANCEL_TIMEOUT);
        for shared in open {
            ended = ended.and(shared.delete_if_removed());
        }
        ended
    }
}

fn decode_shares(shares: Vec<Vec<u8>>, container: &Container) -> Result<Vec<Share>> {
    shares.into_iter().map(|bytes| Share::decode(bytes, container.head())).collect()
}

impl Drop for LogFs {
    fn drop(&mut self) {
        self.mount.files.flattening().stop(Duration::ZERO);
    }
}

impl LogFs {
    /// Removes set-id bits before a truncation by a user other than root: if they cannot be
    /// removed, nothing is truncated.
    fn drop_set_id_before_truncation(&self, context: &Context<'_>, node: NodeId) -> Result<()> {
        if self.mount.keeps_set_id(context) || self.mount.node(node)?.kind != Kind::File {
            return Ok(());
        }
        drop_set_id(&file(&self.mount, node)?.file)
    }
}

impl FileSystem for LogFs {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn root(&self) -> NodeId {
        ROOT
    }

    fn lookup(&self, _: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        let found = lookup::lookup(&self.mount, EntryName { dir, name })?;
        Ok(found.map(|attributes| NodeRef::counted(self, attributes)))
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        attributes::attributes(&self.mount, node)
    }

    fn parent(&self, node: NodeId) -> Result<NodeId> {
        Ok(self.mount.node(node)?.parent)
    }

    fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        lookup::path(&self.mount, node)
    }

    fn list(
        &self,
        _: &Context<'_>,
        dir: NodeId,
        after: Cursor,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.listings.list(&self.mount, dir, after, visit)
    }

    fn read_link(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<u8>> {
        lookup::read_link(&self.mount, node)
    }

    fn xattr(&self, _: &Context<'_>, node: NodeId, _: &[u8]) -> Result<Option<Vec<u8>>> {
        self.mount.node(node).map(|_| None)
    }

    fn xattr_names(&self, _: &Context<'_>, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.mount.node(node).map(|_| Vec::new())
    }

    fn open(&self, context: &Context<'_>, node: NodeId) -> Result<Box<dyn File>> {
        let _acting = self.mount.assume_caller(context)?;
        Ok(Box::new(open_file(&self.mount, node, OpenMode::READ, context.process)?))
    }

    fn forget(&self, node: NodeId, references: u64) {
        self.mount.forget(node, references);
    }

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for LogFs {
    fn create(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
        mode: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        let _acting = self.mount.assume_caller(context)?;
        let at = EntryName { dir, name };
        let (attributes, handle) = create::create_file(&self.mount, at, new, mode, context.process)?;
        Ok((NodeRef::counted(self, attributes), Box::new(handle)))
    }

    fn make_dir(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let _acting = self.mount.assume_caller(context)?;
        let make = || create::make_dir(&self.mount, EntryName { dir, name }, new);
        let attributes = self.mount.missing_names.changes.during(make)?;
        Ok(NodeRef::counted(self, attributes))
    }

    fn make_symlink(
        &self,
        context: &Context<'_>,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
        new: NewEntry,
    ) -> Result<NodeRef<'_>> {
        let _acting = self.mount.assume_caller(context)?;
        let make = || create::make_symlink(&self.mount, EntryName { dir, name }, target, new);
        let attributes = self.mount.missing_names.changes.during(make)?;
        Ok(NodeRef::counted(self, attributes))
    }

    fn remove(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let _acting = self.mount.assume_caller(context)?;
        remove::remove(&self.mount, EntryName { dir, name })
    }

    fn remove_dir(&self, context: &Context<'_>, dir: NodeId, name: &[u8]) -> Result<()> {
        let _acting = self.mount.assume_caller(context)?;
        remove::remove_dir(&self.mount, EntryName { dir, name })
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
        let _acting = self.mount.assume_caller(context)?;
        let from = EntryName { dir: from_dir, name: from };
        let rename = || rename::rename(&self.mount, from, EntryName { dir: to_dir, name: to }, mode);
        self.mount.missing_names.changes.during(|| self.mount.renames.during(rename))
    }

    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        let _acting = self.mount.assume_caller(context)?;
        if change.size_bytes.is_some() {
            self.drop_set_id_before_truncation(context, node)?;
        }
        attributes::change(&self.mount, node, change)?;
        attributes::attributes(&self.mount, node)
    }

    fn open_as(&self, context: &Context<'_>, node: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        let _acting = self.mount.assume_caller(context)?;
        if mode.truncate {
            self.drop_set_id_before_truncation(context, node)?;
        }
        Ok(Box::new(open_file(&self.mount, node, mode, context.process)?))
    }

    /// Syncs with the permissions of this process, because the caller may not be permitted to open
    /// `trash`.
    fn sync_dir(&self, _: &Context<'_>, dir: NodeId) -> Result<()> {
        self.mount.open_dir(dir)?.iter().try_for_each(|dir| dir.sync())?;
        // Removing a file renames its container into `trash`. Some file systems make a rename
        // durable only after a sync of the directory with the new name.
        let stores = &self.mount.stores;
        (0..stores.count()).try_for_each(|store| stores.trash_dir(store)?.sync())
    }

    fn space(&self) -> Result<Space> {
        self.mount.stores.space()
    }
}
