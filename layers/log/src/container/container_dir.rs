//! A container: the directory in a store that holds one file (PLFS, figure 1). This module creates,
//! opens, changes and removes containers; other modules read the logs. The format is described in
//! docs/formats/log.md.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use quell_posix::{OpenFile, Stat, WritableDir, WritableFile};
use quell_vfs::{Change, Error, ErrorKind, Kind, New, Rename, Result, errno};

use crate::container::log_dirs::Ticket;
use crate::container::missing::missing;
use crate::format::data_log;
use crate::format::flat::Flat;
use crate::format::heads::{BLOCK_BYTES, HEAD_BYTES, Head, HeadKind};
use crate::format::meta::{Closed, MetaName, Summary, boot_of};
use crate::stores::store_set::{Host, StoreNumber, Stores, is_name_of_store, number_name};

pub(crate) const RECORD: &[u8] = b"container";
pub(crate) const ACCESS: &[u8] = b"access";
pub(crate) const META: &[u8] = b"meta";
/// The name in `meta` of a file that was moved to another store, while the other names are being
/// deleted.
pub(crate) const MOVED: &[u8] = b"moved";
const EPOCH: &str = "epoch-";
const FLAT: &str = "flat-";
/// Log files can be read by every user who can reach them: the container's directory restricts
/// access.
pub(crate) const LOG_PERMISSIONS: u32 = 0o644;
/// Permissions of a file that is not complete.
const OWN_PERMISSIONS: u32 = 0o600;

/// Number of superseded names that may remain in `meta`.
const SUPERSEDED_KEPT: usize = 16;

/// Directories with up to this number of names are read with a single system call.
const NAMES_READ_AT_ONCE: usize = 100;

/// Users with write permission to a directory with this bit can remove and rename only their own
/// entries.
const STICKY: u32 = 0o1000;

/// The epoch of the container's creator, which needs no name.
pub(crate) const FIRST_EPOCH: u64 = 1;

/// Identifies a container by its store, and its device and inode number there.
pub type Identity = (StoreNumber, (u64, u64));

/// An open container. It remains usable after it was renamed or removed, like an open file.
pub struct Container {
    dir: Arc<dyn WritableDir>,
    identity: (u64, u64),
    head: Head,
    home: StoreNumber,
    stores: Arc<Stores>,
    meta: OnceLock<Arc<dyn WritableDir>>,
    /// Identifies the container's open log directories.
    ticket: Ticket,
    /// A sync of the record failed: it is rewritten before the next sync, which would succeed even
    /// if the data was lost.
    is_record_doubtful: AtomicBool,
}

impl std::fmt::Debug for Container {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Container").field("number", &self.head.container).finish_non_exhaustive()
    }
}

/// Returns the permissions of a container and its directories: users who may read or write the file
/// can search them, and users who may write can add logs. Entries of others belong to the file's
/// group.
pub fn dir_permissions(file: u32) -> u32 {
    let mut dir = 0o700;
    for shift in [0, 3] {
        let class = file >> shift & 0o7;
        let read = if class & 0o6 != 0 { 0o5 } else { 0 };
        dir |= (read | class & 0o2) << shift;
    }
    // Users who may write can add names, but must not remove or replace those of others, in
    // particular `access`.
    let sticky = if dir & 0o022 != 0 { STICKY } else { 0 };
    let group = if dir & 0o070 != 0 { 0o2000 } else { 0 };
    dir | group | sticky
}

impl Container {
    /// Creates a container for an empty file. It gets the name `name` in `parent`, a directory of
    /// store `home`, after it is complete.
    ///
    /// # Errors
    ///
    /// `Exists` if the name is in use.
    pub fn create(
        stores: &Arc<Stores>,
        home: StoreNumber,
        parent: &dyn WritableDir,
        name: &[u8],
        new: New,
    ) -> Result<Container> {
        let number = stores.random_number();
        let head = Head {
            kind: HeadKind::Container,
            block_bytes: BLOCK_BYTES,
            container: number,
            writer: 0,
            directories: stores.directories(),
        };
        let making = stores.making_new(home)?;
        let temporary = format!("{number:032x}").into_bytes();
        making.make_dir(&temporary, dir_permissions(new.permissions))?;
        let made = Self::furnish(stores, home, &*making, &temporary, head, new);
        let named = made.and_then(|container| {
            making.rename(&temporary, parent, name, Rename::Replace).map_err(exists)?;
            Ok(container)
        });
        if named.is_err() {
            // The incomplete container is not needed. If it cannot be removed now, `quell log fsck`
            // finds it.
            let _ = remove_tree(&*making, &temporary);
        }
        named
    }

    fn furnish(
        stores: &Arc<Stores>,
        home: StoreNumber,
        making: &dyn WritableDir,
        temporary: &[u8],
        head: Head,
        new: New,
    ) -> Result<Container> {
        let dir = making.open_writable_dir(temporary)?;
        dir.create_file(RECORD, LOG_PERMISSIONS)?.write_at(&head.encode(), 0)?;
        let access = dir.create_file(ACCESS, new.permissions)?;
        dir.make_dir(META, dir_permissions(new.permissions))?;
        // If root serves a user, it creates entries with the rights of the directory's owner.
        let host = stores.host();
        let (uid, gid) = match host.uid {
            0 => dir.stat_self().map(|made| (made.uid, made.gid))?,
            _ => (host.uid, host.gid),
        };
        if (uid, gid) != (new.uid, new.gid) {
            let change = Change { uid: Some(new.uid), gid: Some(new.gid), ..Change::default() };
            access.change(&Change { permissions: Some(new.permissions), ..change })?;
            dir.change(META, &change)?;
            dir.change(b"", &change)?;
        }
        Container::new(dir, head, home, stores)
    }

    fn new(
        dir: Arc<dyn WritableDir>,
        head: Head,
        home: StoreNumber,
        stores: &Arc<Stores>,
    ) -> Result<Container> {
        let identity = dir.stat_self()?.identity();
        let (stores, meta) = (Arc::clone(stores), OnceLock::new());
        let ticket = stores.log_dirs().ticket();
        let is_record_doubtful = AtomicBool::new(false);
        Ok(Container { dir, identity, head, home, stores, meta, ticket, is_record_doubtful })
    }

    /// Identifies this container among all existing ones.
    pub fn identity(&self) -> Identity {
        (self.home, self.identity)
    }

    /// Opens the container `name` in `parent`.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for a directory that is not a container, and `Damaged`.
    pub fn open(
        stores: &Arc<Stores>,
        home: StoreNumber,
        parent: &dyn WritableDir,
        name: &[u8],
    ) -> Result<Container> {
        let dir = parent.open_writable_dir(name)?;
        let mut bytes = [0; HEAD_BYTES];
        let record = match dir.open_file(RECORD) {
            Err(error) if error.kind == ErrorKind::NotFound && is_what_is_left(&*dir)? => {
                return Err(Error {
                    source: Some("its record was lost before the file was synced".into()),
                    ..Error::new(ErrorKind::Damaged, "read", name)
                });
            }
            record => record?,
        };
        let length = record.read_at(&mut bytes, 0)?;
        let head = Head::decode(HeadKind::Container, &bytes[..length]).map_err(|damage| damage.of(name))?;
        Container::new(dir, head, home, stores)
    }

    pub fn number(&self) -> u128 {
        self.head.container
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    pub fn home(&self) -> StoreNumber {
        self.home
    }

    pub fn host(&self) -> &Host {
        self.stores.host()
    }

    pub fn stores(&self) -> &Arc<Stores> {
        &self.stores
    }

    pub(crate) fn dir_handle(&self) -> Arc<dyn WritableDir> {
        Arc::clone(&self.dir)
    }

    /// Returns the container's directory.
    pub fn dir(&self) -> &dyn WritableDir {
        &*self.dir
    }

    pub fn meta(&self) -> Result<&dyn WritableDir> {
        if self.meta.get().is_none() {
            let _ = self.meta.set(self.dir.open_writable_dir(META)?);
        }
        Ok(&**self.meta.get().expect("it was set"))
    }

    /// Returns the current content of `meta`.
    pub fn summary(&self) -> Result<Summary> {
        let meta = self.meta()?;
        let mut names = meta.names()?;
        // A name that is changed while a long directory is read may be missed both under its old
        // and its new name. A second listing contains it.
        if names.len() > NAMES_READ_AT_ONCE {
            names.extend(meta.names()?);
        }
        // The remaining names would describe a smaller file.
        if names.iter().any(|name| name == MOVED) || names.is_empty() && self.is_gone()? {
            return Err(Error::new(ErrorKind::NotFound, "look into", META));
        }
        Ok(Summary::of(names))
    }

    pub fn add_meta(&self, name: &MetaName) -> Result<()> {
        self.meta()?.create_file(name.encode().as_bytes(), LOG_PERMISSIONS).map(drop)
    }

    /// Removes the names of `summary` that `new` supersedes, if there are enough of them. Names
    /// that cannot be removed stay, because they have no effect.
    ///
    /// # Errors
    ///
    /// Those of the preceding sync of `meta`.
    pub fn tidy_meta(&self, summary: &Summary, new: &MetaName) -> Result<()> {
        let superseded = summary.superseded(new);
        // After a power failure the new name must not be lost while the others are gone, so `meta`
        // is synced first. Several names are removed at once to save syncs.
        if superseded.len() < SUPERSEDED_KEPT {
            return Ok(());
        }
        self.meta()?.sync()?;
        for name in superseded {
            let _ = self.remove_meta(&name);
        }
        Ok(())
    }

    pub fn rename_meta(&self, from: &MetaName, to: &MetaName) -> Result<()> {
        let meta = self.meta()?;
        meta.rename(from.encode().as_bytes(), meta, to.encode().as_bytes(), Rename::Replace)
    }

    pub fn remove_meta(&self, name: &MetaName) -> Result<()> {
        self.meta()?.remove(name.encode().as_bytes())
    }

    /// Returns the epochs that are taken, and the names of the flat indices.
    pub fn epochs_and_flats(&self) -> Result<(Vec<u64>, Vec<Vec<u8>>)> {
        let (mut epochs, mut flats) = (Vec::new(), Vec::new());
        for name in self.dir.names()? {
            let text = std::str::from_utf8(&name).unwrap_or("");
            if let Some(epoch) = text.strip_prefix(EPOCH).and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
                epochs.push(epoch);
            } else if text.starts_with(FLAT) {
                flats.push(name);
            }
        }
        epochs.sort_unstable();
        Ok((epochs, flats))
    }

    /// Takes `count` epochs that are larger than `seen` and all epochs that are taken, and returns
    /// the last of them. Other nodes may take the same epochs at the same time; these are then not
    /// ordered.
    ///
    /// The name is synced, so that a power failure cannot free the epochs, because data written in
    /// them may survive.
    pub fn take_epochs(&self, seen: u64, count: u64) -> Result<u64> {
        let (epochs, _) = self.epochs_and_flats()?;
        self.take_after(epochs, seen, count)
    }

    /// Returns the epoch for a writer whose name in `meta` is new: `known`, the last epoch of this
    /// node (0 for none), if no other node has taken a larger one; otherwise a new one that is
    /// larger than all others and `seen`.
    ///
    /// A truncation takes its epoch before it lists `meta`, and a writer calls this after its name
    /// exists. Therefore either the writer's epoch is later than the truncation, or the truncation
    /// finds the name.
    pub fn epoch_of_new_writer(&self, known: u64, seen: u64) -> Result<u64> {
        let (epochs, _) = self.epochs_and_flats()?;
        if known > 0 && epochs.last().is_none_or(|last| *last <= known) {
            return Ok(known);
        }
        self.take_after(epochs, seen.max(known), 1)
    }

    fn take_after(&self, epochs: Vec<u64>, seen: u64, count: u64) -> Result<u64> {
        let last = epochs.last().copied().unwrap_or(FIRST_EPOCH).max(seen);
        // Such an epoch cannot be reached: the name is forged.
        let epoch = last.checked_add(count).ok_or_else(|| Error {
            source: Some("no epoch is left".into()),
            ..Error::new(ErrorKind::Damaged, "take", epoch_name(last))
        })?;
        match self.dir.create_file(&epoch_name(epoch), LOG_PERMISSIONS) {
            Ok(_) => self.dir.sync()?,
            Err(error) if error.kind == ErrorKind::Exists => {}
            Err(error) => return Err(error),
        }
        for smaller in epochs {
            // Errors are ignored, because only the largest epoch counts, and others remove them at
            // the same time.
            let _ = self.dir.remove(&epoch_name(smaller));
        }
        Ok(epoch)
    }

    /// Returns the names of the flat indices, the newest last.
    pub fn flats(&self) -> Result<Vec<Vec<u8>>> {
        let (_, mut flats) = self.epochs_and_flats()?;
        // Epochs are hexadecimal without leading zeros, and the rest has a fixed length, so longer
        // names are later.
        flats.sort_by_key(|name| (name.len(), name.clone()));
        Ok(flats)
    }

    pub fn open_flat(&self, name: &[u8]) -> Result<Flat> {
        let file = self.dir.open_file(name)?;
        let found = file.stat()?;
        self.check_maker_of_flat(&found, name)?;
        Flat::open(file, found.size_bytes, &self.head, name)
    }

    /// Refuses a flat index of another user. A flat index stands for all logs, and may hide data
    /// that is written later; any user with write permission to the file, now or earlier, may have
    /// added one. If it belongs neither to the file's owner nor to root nor to this process's user,
    /// it is treated as damaged, and readers use the logs.
    fn check_maker_of_flat(&self, found: &Stat, name: &[u8]) -> Result<()> {
        let trusted = [0, self.stores.acting_uid()];
        let is_owner = || Ok::<_, Error>(self.dir.stat_self()?.uid == found.uid);
        match found.nlink == 1 && (trusted.contains(&found.uid) || is_owner()?) {
            true => Ok(()),
            false => Err(Error {
                source: Some("it belongs to another user than the file".into()),
                ..Error::new(ErrorKind::Damaged, "open", name)
            }),
        }
    }

    /// Creates a flat index for the data up to `epoch`. It gets its name after `write` has
    /// succeeded; earlier flat indices are then removed. Returns the result of `write`.
    pub fn replace_flat<T>(
        &self,
        epoch: u64,
        write: impl FnOnce(&dyn WritableFile) -> Result<T>,
    ) -> Result<T> {
        let making = self.stores.making(self.home)?;
        let id = number_name(self.stores.random_number());
        let file = making.create_file(&id, LOG_PERMISSIONS)?;
        let before = self.flats()?;
        let name = [format!("{FLAT}{epoch:x}-").as_bytes(), &id].concat();
        let written = write(&*file)
            .and_then(|written| self.give_to_owner(&*file).map(|()| written))
            .and_then(|written| making.rename(&id, &*self.dir, &name, Rename::Replace).map(|()| written));
        if written.is_err() {
            let _ = making.remove(&id);
            return written;
        }
        for earlier in before {
            // Another process may have removed it; a reader that has it open can still read it.
            let _ = self.dir.remove(&earlier);
        }
        written
    }

    pub fn remove_flats(&self) -> Result<()> {
        self.flats()?.iter().try_for_each(|name| missing(self.dir.remove(name)).map(drop))
    }

    /// Returns the number of the log directory for the logs of `writer`.
    fn logs_number(&self, writer: u64) -> u32 {
        (writer % u64::from(self.head.directories)) as u32
    }

    /// Opens the directory for the logs of `writer`, and creates it if `make` is true.
    pub(crate) fn logs_of(&self, writer: u64, make: bool) -> Result<Arc<dyn WritableDir>> {
        let number = self.logs_number(writer);
        if let Some(dir) = self.stores.log_dirs().get(self.ticket, number) {
            return Ok(dir);
        }
        let dir = self.stores.open_logs(self, number, make)?;
        self.stores.log_dirs().put(self.ticket, number, Arc::clone(&dir));
        Ok(dir)
    }

    /// Returns the current permissions of the container's directory.
    pub(crate) fn permissions(&self) -> Result<u32> {
        Ok(self.dir.stat_self()?.mode & 0o7777)
    }

    /// Creates the data log of `writer`. If its header cannot be written, `begun` keeps the file
    /// for the next attempt. An existing file with its name is never used.
    pub fn create_data(
        &self,
        writer: u64,
        begun: &mut Option<Box<dyn WritableFile>>,
    ) -> Result<Box<dyn WritableFile>> {
        self.create_log(writer, &data_name(writer), HeadKind::Data, begun)
    }

    /// Creates the index log of `writer`, as `create_data` creates the data log.
    pub fn create_index(
        &self,
        writer: u64,
        begun: &mut Option<Box<dyn WritableFile>>,
    ) -> Result<Box<dyn WritableFile>> {
        self.create_log(writer, &index_name(writer), HeadKind::Index, begun)
    }

    fn create_log(
        &self,
        writer: u64,
        name: &[u8],
        kind: HeadKind,
        begun: &mut Option<Box<dyn WritableFile>>,
    ) -> Result<Box<dyn WritableFile>> {
        let file =
            match begun.take() {
                Some(file) => file,
                None => self.logs_of(writer, true)?.create_file(name, LOG_PERMISSIONS).map_err(|error| {
                    match error.kind {
                        ErrorKind::Exists => Error {
                            source: Some("a file that another process made has the name of a new log".into()),
                            ..Error::new(ErrorKind::Os(errno::EIO), "create", name)
                        },
                        _ => error,
                    }
                })?,
            };
        let head = self.head.of(kind, writer).encode();
        let made = self.give_to_owner(&*file).and_then(|()| file.write_at(&head, 0));
        match made {
            Ok(()) => Ok(file),
            Err(error) => {
                *begun = Some(file);
                Err(error)
            }
        }
    }

    /// Gives a new file to the file's owner if root writes for other users, so that it counts for
    /// the owner's quota.
    pub(crate) fn give_to_owner(&self, file: &dyn WritableFile) -> Result<()> {
        if !self.stores.has_root_power() {
            return Ok(());
        }
        let (owner, now) = (self.dir.stat(ACCESS)?, file.stat()?);
        if (owner.uid, owner.gid) == (now.uid, now.gid) {
            return Ok(());
        }
        file.change(&Change { uid: Some(owner.uid), gid: Some(owner.gid), ..Change::default() })
    }

    /// Opens a log of `writer`. A log directory that is not found is looked up again, because it
    /// may have been moved to another store.
    pub(crate) fn open_log(&self, writer: u64, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        match self.logs_of(writer, false)?.open_file(name) {
            Err(error) if error.kind == ErrorKind::NotFound => {
                self.stores.log_dirs().forget(self.ticket, self.logs_number(writer));
                self.logs_of(writer, false)?.open_file(name)
            }
            opened => opened,
        }
    }

    /// Returns true if the container was removed, or moved to another store.
    pub fn is_gone(&self) -> Result<bool> {
        Ok(missing(self.dir.stat(RECORD))?.is_none())
    }

    /// Opens the data log of `writer` and verifies its header.
    pub fn open_data(&self, writer: u64) -> Result<Box<dyn OpenFile>> {
        let file = self.open_log(writer, &data_name(writer))?;
        let mut bytes = [0; HEAD_BYTES];
        let length = file.read_at(&mut bytes, 0)?;
        self.check_head(&bytes[..length], HeadKind::Data, writer)?;
        Ok(file)
    }

    /// Opens the data log of `writer` for a repair, and verifies the header through the descriptor
    /// that is written to.
    pub(crate) fn open_data_for_repair(&self, writer: u64) -> Result<Box<dyn WritableFile>> {
        let file = self.logs_of(writer, false)?.open_writable_file(&data_name(writer))?;
        let mut bytes = [0; HEAD_BYTES];
        let length = file.read_at(&mut bytes, 0)?;
        self.check_head(&bytes[..length], HeadKind::Data, writer)?;
        Ok(file)
    }

    /// Returns the attributes of the data log of `writer` without opening it: on some file systems,
    /// another process that opens a file takes the permission to buffer from its writer.
    pub fn stat_data(&self, writer: u64) -> Result<Stat> {
        self.logs_of(writer, false)?.stat(&data_name(writer))
    }

    /// Opens the index log of `writer`. The caller verifies the header with `check_head`, because
    /// it reads the header together with the batches.
    pub fn open_index(&self, writer: u64) -> Result<Box<dyn OpenFile>> {
        self.open_log(writer, &index_name(writer))
    }

    pub fn check_head(&self, bytes: &[u8], kind: HeadKind, writer: u64) -> Result<()> {
        let name = if kind == HeadKind::Data { data_name(writer) } else { index_name(writer) };
        match Head::decode(kind, bytes) {
            Ok(found) if found == self.head.of(kind, writer) => Ok(()),
            Ok(_) => Err(Error {
                source: Some("it belongs to another file".into()),
                ..Error::new(ErrorKind::Damaged, "read", name)
            }),
            Err(damage) => Err(damage.of(name)),
        }
    }

    /// Makes the names of `writer`'s logs survive a power failure.
    pub fn sync_logs(&self, writer: u64) -> Result<()> {
        self.logs_of(writer, false)?.sync()?;
        self.stores.sync_logs(self, self.logs_number(writer))?;
        // The log directory may be new; then its name must be synced, too.
        self.dir.sync()
    }

    /// Rewrites the header of `writer`'s data log, and its content from the given log and payload
    /// offset up to log offset `end`. Syncs the log and verifies the content of the storage.
    ///
    /// # Errors
    ///
    /// `Damaged` if a frame is incomplete or does not match its checksums.
    pub fn write_data_again(
        &self,
        data: &dyn WritableFile,
        writer: u64,
        from: (u64, u64),
        end: u64,
    ) -> Result<()> {
        data_log::write_again(data, from.0, end)?;
        data.write_at(&self.head.of(HeadKind::Data, writer).encode(), 0)?;
        data.sync()?;
        data_log::check(data, from, end, self.head.block_bytes.into())
            .map_err(|error| Error { subject: data_name(writer), ..error })
    }

    /// Records that a sync of `writer`'s data log failed: until the log is rewritten, missing data
    /// in it is damage.
    pub fn mark_failed(&self, writer: u64) -> Result<()> {
        match self.add_meta(&MetaName::Failed(writer)) {
            Err(error) if error.kind == ErrorKind::Exists => Ok(()),
            added => added,
        }
    }

    pub fn clear_failed(&self, writer: u64) -> Result<()> {
        missing(self.remove_meta(&MetaName::Failed(writer))).map(drop)
    }

    /// Makes the data of a writer that has ended survive a power failure. `has_failed` is true if a
    /// sync of it failed before.
    pub fn sync_ended(&self, closed: &Closed, has_failed: bool) -> Result<()> {
        let (writer, name) = (closed.writer, data_name(closed.writer));
        if has_failed {
            let data = self.logs_of(writer, false)?.open_writable_file(&name)?;
            self.write_data_again(&*data, writer, (HEAD_BYTES as u64, 0), closed.data_bytes)?;
        } else {
            match self.logs_of(writer, false).and_then(|logs| logs.open_file(&name)) {
                Ok(data) => data.sync().inspect_err(|_| {
                    // The next sync would succeed. If the name cannot be created, missing data
                    // still counts as damage on this boot.
                    let _ = self.mark_failed(writer);
                })?,
                // The log belongs to another user and cannot be synced by this one.
                Err(error) if error.kind == ErrorKind::PermissionDenied => return Ok(()),
                // Lost in a power failure before it was synced, or removed after the last
                // truncation.
                Err(error) if error.kind == ErrorKind::NotFound && !self.keeps(closed)? => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.sync_logs(writer)?;
        // On another boot, a part of it may have been lost in a power failure before: only the
        // existing part is synced.
        let boot = if closed.boot == self.boot() { closed.boot } else { 0 };
        let synced = Closed { is_synced: true, boot, ..*closed };
        // Another process has renamed it, or it belongs to another user; then the next sync syncs
        // it again.
        let renamed = self.rename_meta(&MetaName::Closed(*closed), &MetaName::Closed(synced));
        missing(unless_of_another(renamed))?;
        if has_failed {
            self.clear_failed(writer)?;
        }
        Ok(())
    }

    /// Returns true if an ended writer ran on this boot of this node, so that no power failure
    /// removed its data, and its logs are still part of the file.
    fn keeps(&self, closed: &Closed) -> Result<bool> {
        Ok(closed.boot == self.boot() && !self.is_dropped(closed.writer)?)
    }

    /// Returns true if `access` and `meta` exist.
    pub fn is_complete(&self) -> Result<bool> {
        for name in [ACCESS, META] {
            if missing(self.dir.stat(name))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the number of this node's boot, as names in `meta` contain it.
    pub fn boot(&self) -> u64 {
        boot_of(&self.host().holder.node)
    }

    /// Returns true if the logs of `writer` were removed, or may be removed, after a truncation to
    /// size 0.
    pub fn is_dropped(&self, writer: u64) -> Result<bool> {
        let summary = self.summary()?;
        let is_open = summary.open.iter().any(|running| running.writer == writer);
        let closed = summary.closed.iter().find(|closed| closed.writer == writer);
        Ok(!is_open && closed.is_none_or(|closed| summary.is_dead(closed)))
    }

    /// Makes the container itself and all names in `meta` survive a power failure.
    pub fn sync(&self) -> Result<()> {
        self.meta()?.sync()?;
        if self.is_record_doubtful.load(Ordering::Relaxed) {
            let record = self.dir.open_writable_file(RECORD)?;
            // Dropped from the cache for the reason given at `data_log::write_again`.
            record.drop_cache(0, NonZeroU64::new(1 << 20).expect("not zero"))?;
            record.write_at(&self.head.encode(), 0)?;
        }
        for name in [RECORD, ACCESS] {
            // Opened for reading, because the files often belong to another user, who may not have
            // synced them.
            match self.dir.open_file(name) {
                Ok(file) => file.sync().inspect_err(|_| {
                    self.is_record_doubtful.store(true, Ordering::Relaxed);
                })?,
                // For a user who may write to the file and not read it. `access` is empty, and its
                // name is synced with the directory.
                Err(error) if name == ACCESS && error.kind == ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        self.is_record_doubtful.store(false, Ordering::Relaxed);
        self.dir.sync()
    }

    /// Removes the logs of a writer.
    pub fn remove_logs(&self, writer: u64) -> Result<()> {
        let dir = self.logs_of(writer, false)?;
        let names = [data_name(writer), index_name(writer)];
        names.iter().try_for_each(|name| missing(dir.remove(name)).map(drop))
    }

    /// Changes the file's permissions or owners: those of `access`, then those of the directories.
    ///
    /// The container's directory, and its directories in other stores, control the access to all
    /// others. Permissions are removed there first, and granted there last.
    pub fn change(&self, change: &Change) -> Result<()> {
        if change.uid.is_some() || change.gid.is_some() {
            let owners = Change { uid: change.uid, gid: change.gid, ..Change::default() };
            match self.stores.has_root_power() {
                true => self.replace_access(&owners)?,
                false => self.dir.change(ACCESS, &owners)?,
            }
            self.change_below(&owners, &owners)?;
            // The container last: directories in `parts` belong to it only as long as their owner
            // is the container's owner or that of `access`.
            self.change_gates(&owners)?;
        }
        if let Some(permissions) = change.permissions {
            let as_permissions = |mode| Change { permissions: Some(mode), ..Change::default() };
            let (before, after) = (self.permissions()?, dir_permissions(permissions));
            // The permissions that are granted both before and afterwards.
            let between = (before | !0o777) & after;
            if before & 0o777 != between & 0o777 {
                self.change_gates(&as_permissions(between))?;
            }
            self.dir.change(ACCESS, &as_permissions(permissions))?;
            self.change_below(&as_permissions(after), &as_permissions(logs_permissions(after)))?;
            self.change_gates(&as_permissions(after))?;
        }
        Ok(())
    }

    /// Replaces `access` by a new file when root changes the owner. The old owner may have linked
    /// any of their files there, or may have it open for writing and could turn it into a set-id
    /// program of the new owner.
    fn replace_access(&self, owners: &Change) -> Result<()> {
        let now = self.dir.stat(ACCESS)?;
        if now.kind() != Some(Kind::File) {
            return Err(Error {
                source: Some("it is no regular file".into()),
                ..Error::new(ErrorKind::Damaged, "change", ACCESS)
            });
        }
        let (uid, gid) = (owners.uid.unwrap_or(now.uid), owners.gid.unwrap_or(now.gid));
        // As chown(2) clears the set-id bits.
        let set_id = if now.mode & 0o010 != 0 { 0o6000 } else { 0o4000 };
        let dressed = Change {
            uid: Some(uid),
            gid: Some(gid),
            permissions: Some(now.mode & 0o7777 & !set_id),
            size_bytes: None,
            modified: Some(now.modified),
        };
        let (making, temporary) = (self.stores.making(self.home)?, number_name(self.stores.random_number()));
        let file = making.create_file(&temporary, OWN_PERMISSIONS)?;
        let changed = file
            .change(&dressed)
            .and_then(|()| making.rename(&temporary, &*self.dir, ACCESS, Rename::Replace));
        if changed.is_err() {
            let _ = making.remove(&temporary); // otherwise `quell log fsck` finds it
        }
        changed
    }

    /// Changes the directories that control the access to all others.
    fn change_gates(&self, change: &Change) -> Result<()> {
        for (parts, name) in self.stores.parts_of(self)? {
            unless_of_another(parts.change(&name, change))?;
        }
        self.dir.change(b"", change)
    }

    fn change_below(&self, meta: &Change, logs: &Change) -> Result<()> {
        self.dir.change(META, meta)?;
        for number in 0..self.head.directories {
            let found = match self.stores.find_logs(self, number) {
                Err(error) if error.kind == ErrorKind::PermissionDenied => None,
                found => found?,
            };
            if let Some((dir, name)) = found {
                unless_of_another(dir.change(&name, logs))?;
            }
        }
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.stores.log_dirs().forget_all(self.ticket);
    }
}

/// Returns the permissions of log directories in a container with the permissions `container`. They
/// have no sticky bit: a user with write permission to the file may remove any log.
pub(crate) fn logs_permissions(container: u32) -> u32 {
    container & !STICKY
}

/// Ignores EPERM: a directory of another user stays as it is, because only that user can change it.
fn unless_of_another(changed: Result<()>) -> Result<()> {
    match changed {
        Err(error) if error.errno() == errno::EPERM => Ok(()),
        changed => changed,
    }
}

/// Returns true if a directory without a record was a container: it contains only names that
/// containers have.
fn is_what_is_left(dir: &dyn WritableDir) -> Result<bool> {
    let names = dir.names()?;
    let ours = |name: &Vec<u8>| {
        name == ACCESS
            || name == META
            || [EPOCH, FLAT, "logs-"].iter().any(|ours| name.starts_with(ours.as_bytes()))
    };
    Ok(!names.is_empty() && names.iter().all(ours))
}

pub(crate) fn epoch_name(epoch: u64) -> Vec<u8> {
    format!("{EPOCH}{epoch:x}").into_bytes()
}

pub(crate) fn data_name(writer: u64) -> Vec<u8> {
    format!("{writer:016x}.data").into_bytes()
}

pub(crate) fn index_name(writer: u64) -> Vec<u8> {
    format!("{writer:016x}.index").into_bytes()
}

/// A rename onto an existing container fails with NotEmpty, because containers are never empty.
fn exists(error: Error) -> Error {
    match error.kind {
        ErrorKind::NotEmpty => Error { kind: ErrorKind::Exists, ..error },
        _ => error,
    }
}

/// Depth of the directories below a container, as the log layer creates them.
const DEPTH_MAX: usize = 3;

/// Removes the directory `name` and its content, except for names that the format does not define
/// and directories deeper than the log layer creates. Symbolic links are not followed. If an entry
/// cannot be removed, the others are still removed, and the first error is returned.
pub(crate) fn remove_tree(parent: &dyn WritableDir, name: &[u8]) -> Result<()> {
    remove_down_to(parent, name, DEPTH_MAX)
}

/// Removes `name`, which may be of any kind, and its content down to the depth that leftovers of
/// the log layer have.
pub(crate) fn remove_shallow(parent: &dyn WritableDir, name: &[u8]) -> Result<()> {
    match parent.stat(name)?.kind() {
        Some(Kind::Dir) => remove_down_to(parent, name, DEPTH_MAX - 1),
        _ => parent.remove(name),
    }
}

/// Returns true if the format defines a name like this in a container, in `parts`, or in `.quell`.
fn is_defined(name: &[u8]) -> bool {
    [RECORD, ACCESS, META, MOVED].contains(&name)
        || is_name_of_store(name)
        || MetaName::decode(name).is_some()
        || [&b".data"[..], b".index"].iter().any(|end| name.ends_with(end))
        || [EPOCH, FLAT, "logs-", ".new-"].iter().any(|begin| name.starts_with(begin.as_bytes()))
}

/// Returns true for the name of an object under construction or in `trash`: a random number.
fn is_number(name: &[u8]) -> bool {
    name.len() == 32 && name.iter().all(u8::is_ascii_hexdigit)
}

/// Listings of a directory that is being removed before its removal fails with `NotEmpty`.
const LISTINGS_MAX: usize = 8;

/// Removes a directory down to a depth. A user may have moved a directory of a third user, or of
/// the caller, to this place; in such a directory only names that the log layer could have created
/// are removed.
///
/// Another mount that has a removed file open may rename or add names until its own directory is
/// removed: the end of a writer, or a flat index. Such names are in the next listing.
fn remove_down_to(parent: &dyn WritableDir, name: &[u8], depth: usize) -> Result<()> {
    let dir = parent.open_writable_dir(name)?;
    // Other programs use such numbers as names, too.
    let numbers_are_ours = dir.stat_self()?.uid == parent.stat_self()?.uid;
    let mut listings = 0;
    loop {
        let mut removed = Ok(());
        for child in dir.names()? {
            if !(is_defined(&child) || numbers_are_ours && is_number(&child)) {
                removed = removed.and(Err(Error {
                    source: Some("no log mount makes this name".into()),
                    ..Error::new(ErrorKind::PermissionDenied, "remove", &child)
                }));
                continue;
            }
            removed = removed.and(match dir.remove(&child) {
                Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
                // Linux returns EISDIR for a directory, other systems EPERM.
                Err(error) if depth > 0 => remove_down_to(&*dir, &child, depth - 1).map_err(|_| error),
                removed => removed,
            });
        }
        removed?;
        listings += 1;
        match parent.remove_dir(name) {
            Err(error) if error.kind == ErrorKind::NotEmpty && listings < LISTINGS_MAX => {}
            removed => return removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_let_in_who_may_use_the_file() {
        for (file, dir) in [
            (0o600, 0o700),
            (0o644, 0o2755),
            (0o640, 0o2750),
            (0o660, 0o3770),
            (0o666, 0o3777),
            (0o000, 0o700),
            (0o604, 0o705),
            (0o620, 0o3770),
            (0o755, 0o2755),
            (0o700, 0o700),
            (0o4755, 0o2755),
        ] {
            assert_eq!(dir_permissions(file), dir, "{file:o}");
        }
    }
}
