//! Export and import without a mount: copies a tree in the stores to plain files, and back. A file
//! gets its name after it is complete. Holes are preserved.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quell_posix::{Dir, OpenFile, Stat, WritableDir, WritableFile};
use quell_vfs::{
    Attributes, Change, Error, ErrorKind, File, FileSystem, Kind, New, NodeId, Open, Rename, Result, Time,
    Writable, errno,
};

use crate::container::container_dir::Container;
use crate::container::descriptors::Descriptors;
use crate::container::missing::missing;
use crate::format::extents::Piece;
use crate::format::meta::Summary;
use crate::format::naming::joined;
use crate::fs::file_system::LogFs;
use crate::session::log_file::{Choices, LogFile};
use crate::session::view::View;
use crate::stores::store_set::{Stores, number_name};
use crate::stores::tree::{Entry, StoredDir};
use crate::tools::crew::{self, Tally};
use crate::tools::report::view_of;

/// Size of a read, in bytes.
const PIECE_BYTES: usize = 4 << 20;
/// Larger files are copied by several threads in ranges of this size, in bytes.
const RANGE_BYTES: u64 = 128 << 20;
/// Granularity in which zeros are skipped on import, if the file has holes.
const HOLE_BYTES: usize = 64 << 10;
/// Prefix of the temporary names of incomplete files.
const TEMPORARY: &[u8] = b".quell-part-";
/// Permissions of files and directories while they are incomplete.
const OWN_FILE: u32 = 0o600;
const OWN_DIR: u32 = 0o700;

/// The content of a container at one moment.
pub struct Snapshot {
    file: LogFile,
    attributes: Attributes,
    summary: Summary,
    /// The resolved extents at the moment of the snapshot. They show which ranges are holes.
    view: View,
    is_short: bool,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Snapshot {
    pub fn take(container: Container, threads: usize) -> Result<Snapshot> {
        Snapshot::with(container, threads, &Arc::default())
    }

    fn with(container: Container, threads: usize, descriptors: &Arc<Descriptors>) -> Result<Snapshot> {
        let file = LogFile::new(container, None, Choices::default(), Arc::clone(descriptors));
        let (attributes, summary) = file.attributes_and_summary(NodeId(0))?;
        let view = view_of(file.container(), &summary, threads)?;
        let cut_epoch = summary.last_cut().filter(|cut| cut.size == 0).map_or(0, |cut| cut.order.epoch);
        let is_short = summary.closed.iter().filter(|closed| closed.last_epoch >= cut_epoch).any(|closed| {
            let log = view.logs().iter().find(|log| log.writer == closed.writer);
            log.is_none_or(|log| log.frames.place() < closed.data_bytes)
        });
        Ok(Snapshot { file, attributes, summary, view, is_short })
    }

    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    pub fn size_bytes(&self) -> u64 {
        self.view.size()
    }

    /// Returns true if a writer is open that is not known to be dead.
    pub fn is_being_written(&self) -> bool {
        let host = self.file.container().host();
        self.summary.is_being_written(&host.is_gone)
    }

    /// Returns true if a log is shorter than its `closed` name states. The missing ranges read as
    /// the previous content.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Returns the ranges from `start` to `end` that are not holes.
    pub fn stretches(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        let end = end.min(self.size_bytes());
        if start < end {
            self.view.pieces(start, end, &mut |piece| {
                let Piece::Data(extent) = piece else { return };
                match found.last_mut() {
                    Some((_, last)) if *last == extent.start => *last = extent.end(),
                    _ => found.push((extent.start, extent.end())),
                }
            })?;
        }
        Ok(found)
    }
}

impl File for Snapshot {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let end = offset.saturating_add(into.len() as u64).min(self.size_bytes());
        let length = end.saturating_sub(offset) as usize;
        self.file.read_at(&mut into[..length], offset)
    }
}

/// The options of an export or import.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub threads: usize,
    /// Existing files with the expected size and time are skipped; others are replaced.
    pub resume: bool,
    /// Every copied file is read again and compared.
    pub verify: bool,
    /// Owners and groups are preserved.
    pub owners: bool,
}

/// The result of an export or import.
#[derive(Debug, Default)]
pub struct Moved {
    pub files: u64,
    pub bytes: u64,
    pub dirs: u64,
    pub links: u64,
    /// Number of files that were skipped because they existed.
    pub skipped: u64,
    /// Files that were written by others during the copy.
    pub written: Vec<Vec<u8>>,
    /// Files whose logs are shorter than their writers had written them.
    pub short: Vec<Vec<u8>>,
    /// Objects that are not supported in a store: devices, sockets, FIFOs.
    pub special: Vec<Vec<u8>>,
    pub failed: Vec<(Vec<u8>, Error)>,
}

/// State that all threads share.
struct Work<'a> {
    how: How,
    tally: &'a Tally,
    moved: Mutex<Moved>,
    random: &'a (dyn Fn() -> u128 + Sync),
}

impl Work<'_> {
    fn note(&self, note: impl FnOnce(&mut Moved)) {
        note(&mut self.moved.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn failed(&self, path: &[u8], error: Error) {
        self.note(|moved| moved.failed.push((path.to_vec(), error)));
    }

    fn temporary(&self) -> Vec<u8> {
        [TEMPORARY, &number_name((self.random)())[..]].concat()
    }

    /// Returns an error if the work was stopped.
    fn go_on(&self) -> Result<()> {
        match self.tally.is_stopped() {
            true => Err(Error::new(ErrorKind::Os(errno::EINTR), "copy", b"")),
            false => Ok(()),
        }
    }

    fn end(self) -> Moved {
        self.moved.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the final attributes of an entry.
fn change_of(how: &How, permissions: Option<u32>, uid: u32, gid: u32, modified: Time) -> Change {
    let (uid, gid) = if how.owners { (Some(uid), Some(gid)) } else { (None, None) };
    Change { permissions, uid, gid, size_bytes: None, modified: Some(modified) }
}

fn change_from(how: &How, stat: &Stat, is_link: bool) -> Change {
    change_of(how, (!is_link).then_some(stat.mode & 0o7777), stat.uid, stat.gid, stat.modified)
}

/// Renames `from` to its final name. Not every file system supports renaming without replacing;
/// there the name is checked first.
fn settle(dir: &dyn WritableDir, from: &[u8], to: &[u8], resume: bool) -> Result<()> {
    if resume {
        return dir.rename(from, dir, to, Rename::Replace);
    }
    match dir.rename(from, dir, to, Rename::Keep) {
        Err(error) if error.kind == ErrorKind::Unsupported => match dir.stat(to) {
            Ok(_) => Err(Error::new(ErrorKind::Exists, "name", to)),
            Err(_) => dir.rename(from, dir, to, Rename::Replace),
        },
        renamed => renamed,
    }
}

/// A directory that is being exported. Its attributes are set after all of its entries.
struct OutDir<'a> {
    dir: Arc<dyn WritableDir>,
    path: Vec<u8>,
    change: Option<Change>,
    work: &'a Work<'a>,
    /// Keeps the parent from being completed before this directory.
    _parent: Option<Arc<OutDir<'a>>>,
}

impl Drop for OutDir<'_> {
    fn drop(&mut self) {
        if let Some(change) = &self.change
            && !self.work.tally.is_stopped()
            && let Err(error) = self.dir.change(b"", change)
        {
            self.work.failed(&self.path, error);
        }
    }
}

/// A file that is exported by several threads.
struct OutFile<'a> {
    snapshot: Snapshot,
    into: Box<dyn WritableFile>,
    temporary: Vec<u8>,
    name: Vec<u8>,
    dir: Arc<OutDir<'a>>,
    left: AtomicUsize,
    failure: Mutex<Option<Error>>,
}

enum OutTask<'a> {
    Dir(Arc<StoredDir>, Entry, Arc<OutDir<'a>>),
    Entry(Arc<StoredDir>, Entry, Arc<OutDir<'a>>, Vec<u8>),
    Range(Arc<OutFile<'a>>, u64, u64),
}

/// The source of an export.
#[derive(Debug)]
pub enum Wanted {
    /// All entries of a directory.
    Dir(StoredDir),
    /// A file or link in a directory, and its name at the destination.
    Entry(StoredDir, Entry, Vec<u8>),
}

/// Copies files from the stores to `to`. Entries that fail are listed in the result, and no file
/// with their name is created.
pub fn export(wanted: Wanted, to: Arc<dyn WritableDir>, how: How, tally: &Tally) -> Result<Moved> {
    let stores = Arc::clone(match &wanted {
        Wanted::Dir(dir) | Wanted::Entry(dir, ..) => dir.stores(),
    });
    let random = || stores.random_number();
    let work = Work { how, tally, moved: Mutex::default(), random: &random };
    let out = |dir, change| OutDir { dir, path: Vec::new(), change, work: &work, _parent: None };
    let mut first = Vec::new();
    match wanted {
        Wanted::Dir(dir) => {
            let change = change_from(&how, &dir.stat()?, false);
            let out = Arc::new(out(to, Some(change)));
            list_into(Arc::new(dir), &out, &mut first)?;
        }
        Wanted::Entry(dir, entry, name) => {
            first.push(OutTask::Entry(Arc::new(dir), entry, Arc::new(out(to, None)), name));
        }
    }
    let descriptors: Arc<Descriptors> = Arc::default();
    crew::run(how.threads, first, tally, &|task, more| match task {
        OutTask::Dir(from, entry, parent) => {
            let path = joined(&parent.path, &entry.name);
            if let Err(error) = export_dir(&work, &from, &entry, parent, more) {
                work.failed(&path, error);
            }
        }
        OutTask::Entry(from, entry, dir, name) => {
            let path = joined(&dir.path, &name);
            let done = match entry.kind {
                Kind::Symlink => export_link(&work, &from, &entry, &dir, &name),
                _ => begin_file(&work, &from, &entry, dir, name, &descriptors, more),
            };
            if let Err(error) = done {
                work.failed(&path, error);
            }
        }
        OutTask::Range(file, start, end) => export_range(&work, &file, start, end),
    });
    Ok(work.end())
}

fn list_into<'a>(dir: Arc<StoredDir>, out: &Arc<OutDir<'a>>, more: &mut Vec<OutTask<'a>>) -> Result<()> {
    for entry in dir.list()?.entries.into_iter().rev() {
        let (dir, out, name) = (Arc::clone(&dir), Arc::clone(out), entry.name.clone());
        more.push(match entry.kind {
            Kind::Dir => OutTask::Dir(dir, entry, out),
            _ => OutTask::Entry(dir, entry, out, name),
        });
    }
    Ok(())
}

fn export_dir<'a>(
    work: &'a Work<'a>,
    from: &StoredDir,
    entry: &Entry,
    parent: Arc<OutDir<'a>>,
    more: &mut Vec<OutTask<'a>>,
) -> Result<()> {
    let dir = from.enter(&entry.name)?;
    let change = Some(change_from(&work.how, &dir.stat()?, false));
    match parent.dir.make_dir(&entry.name, OWN_DIR) {
        Err(error) if error.kind == ErrorKind::Exists && work.how.resume => {}
        made => made?,
    }
    let path = joined(&parent.path, &entry.name);
    let into = parent.dir.open_writable_dir(&entry.name)?;
    // The attributes are set at the end. They must not be applied to a directory that another user
    // created.
    let (found, stat) = (into.stat_self()?, dir.stat()?);
    if work.how.owners && ![0, stat.uid].contains(&found.uid) {
        return Err(Error {
            source: Some("a directory of another user has this name".into()),
            ..Error::new(ErrorKind::PermissionDenied, "export", &entry.name)
        });
    }
    let out = Arc::new(OutDir { dir: into, path, change, work, _parent: Some(parent) });
    work.note(|moved| moved.dirs += 1);
    list_into(Arc::new(dir), &out, more)
}

fn export_link(
    work: &Work<'_>,
    from: &StoredDir,
    entry: &Entry,
    out: &OutDir<'_>,
    name: &[u8],
) -> Result<()> {
    let (target, stat) = from.link(entry)?;
    if work.how.resume && out.dir.read_link(name).is_ok_and(|there| there == target) {
        work.note(|moved| moved.skipped += 1);
        return Ok(());
    }
    // `--resume` replaces only a symbolic link by a symbolic link.
    if work.how.resume && out.dir.stat(name).is_ok_and(|there| there.kind() != Some(Kind::Symlink)) {
        return Err(Error::new(ErrorKind::Exists, "export", name));
    }
    let temporary = work.temporary();
    out.dir.make_symlink(&temporary, &target)?;
    // A symbolic link's attributes can be set by name only. In a directory where another user could
    // exchange it, it stays owned by root, which gives no access to its target.
    let place = out.dir.stat_self()?;
    let is_safe = !work.how.owners || place.uid == 0 && (place.mode & 0o022 == 0 || place.mode & 0o1000 != 0);
    let dressed = match is_safe {
        true => out.dir.change(&temporary, &change_from(&work.how, &stat, true)),
        false => Ok(()),
    };
    let done = dressed.and_then(|()| settle(&*out.dir, &temporary, name, work.how.resume));
    if done.is_err() {
        let _ = out.dir.remove(&temporary);
    }
    done?;
    work.note(|moved| moved.links += 1);
    Ok(())
}

fn begin_file<'a>(
    work: &'a Work<'a>,
    from: &StoredDir,
    entry: &Entry,
    dir: Arc<OutDir<'a>>,
    name: Vec<u8>,
    descriptors: &Arc<Descriptors>,
    more: &mut Vec<OutTask<'a>>,
) -> Result<()> {
    // A directory with the name of a container but without a record is not a file; a mount does not
    // show it.
    let Some(container) = missing(from.open(entry))? else { return Ok(()) };
    let snapshot = Snapshot::with(container, work.how.threads, descriptors)?;
    if let Ok(there) = dir.dir.stat(&name) {
        let same = (there.kind(), there.size_bytes, there.modified)
            == (Some(Kind::File), snapshot.size_bytes(), snapshot.attributes.modified);
        // `--resume` replaces only regular files: a device or a link with this name is not from an
        // earlier export.
        if !work.how.resume || there.kind() != Some(Kind::File) {
            return Err(Error::new(ErrorKind::Exists, "export", &name));
        }
        if same && !snapshot.is_being_written() {
            work.note(|moved| moved.skipped += 1);
            return Ok(());
        }
    }
    if snapshot.is_being_written() {
        work.note(|moved| moved.written.push(joined(&dir.path, &name)));
    }
    if snapshot.is_short() {
        work.note(|moved| moved.short.push(joined(&dir.path, &name)));
    }
    let temporary = work.temporary();
    let into = dir.dir.create_file(&temporary, OWN_FILE)?;
    let size = snapshot.size_bytes();
    let step = if work.how.threads > 1 { RANGE_BYTES } else { u64::MAX };
    let ranges = size.div_ceil(step).max(1);
    let (left, failure) = (AtomicUsize::new(ranges as usize), Mutex::new(None));
    let file = Arc::new(OutFile { snapshot, into, temporary, name, dir, left, failure });
    for range in (1..ranges).rev() {
        more.push(OutTask::Range(
            Arc::clone(&file),
            range * step,
            (range + 1).saturating_mul(step).min(size),
        ));
    }
    export_range(work, &file, 0, step.min(size));
    Ok(())
}

/// Copies a range. The thread that copies the last range completes the file.
fn export_range(work: &Work<'_>, file: &OutFile<'_>, start: u64, end: u64) {
    if let Err(error) = copy_range(work, file, start, end) {
        file.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
    if file.left.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    let failure = file.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    let done = match failure {
        Some(error) => Err(error),
        None => finish_file(work, file),
    };
    match done {
        Ok(()) => {
            work.tally.add_file();
            work.note(|moved| {
                (moved.files, moved.bytes) = (moved.files + 1, moved.bytes + file.snapshot.size_bytes())
            });
        }
        Err(error) => {
            let _ = file.dir.dir.remove(&file.temporary);
            if !work.tally.is_stopped() {
                work.failed(&joined(&file.dir.path, &file.name), error);
            }
        }
    }
}

impl Drop for OutFile<'_> {
    fn drop(&mut self) {
        // The work was stopped before all ranges were copied: the incomplete file is removed.
        if *self.left.get_mut() > 0 {
            let _ = self.dir.dir.remove(&self.temporary);
        }
    }
}

fn copy_range(work: &Work<'_>, file: &OutFile<'_>, start: u64, end: u64) -> Result<()> {
    let mut buffer = vec![0; PIECE_BYTES.min((end - start) as usize)];
    for (from, to) in file.snapshot.stretches(start, end)? {
        let mut at = from;
        while at < to {
            work.go_on()?;
            let part = &mut buffer[..PIECE_BYTES.min((to - at) as usize)];
            read_whole(&file.snapshot, part, at)?;
            file.into.write_at(part, at)?;
            at += part.len() as u64;
            work.tally.add_bytes(part.len() as u64);
        }
    }
    Ok(())
}

fn read_whole(file: &dyn File, into: &mut [u8], offset: u64) -> Result<()> {
    match file.read_at(into, offset)? == into.len() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Stale, "read", b"the file became shorter")),
    }
}

fn finish_file(work: &Work<'_>, file: &OutFile<'_>) -> Result<()> {
    let Attributes { permissions, uid, gid, modified, .. } = file.snapshot.attributes;
    let size = file.snapshot.size_bytes();
    file.into.set_size(size)?;
    if work.how.verify {
        compare(work, &file.snapshot, &*file.into, size)?;
    }
    // Synced before the rename, so that a file with its final name is complete even after a power
    // failure.
    file.into.sync()?;
    let dir = &*file.dir.dir;
    // Applied to the open file, because other users may rename files in the destination.
    file.into.change(&change_of(&work.how, Some(permissions), uid, gid, modified))?;
    settle(dir, &file.temporary, &file.name, work.how.resume)
}

/// Reads both files completely and compares them.
fn compare(work: &Work<'_>, one: &dyn File, other: &dyn File, size: u64) -> Result<()> {
    let (mut a, mut b) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let mut at = 0;
    while at < size {
        work.go_on()?;
        let n = PIECE_BYTES.min((size - at) as usize);
        read_whole(one, &mut a[..n], at)?;
        read_whole(other, &mut b[..n], at)?;
        if a[..n] != b[..n] {
            return Err(Error {
                source: Some("what was written reads back otherwise".into()),
                ..Error::new(ErrorKind::Damaged, "compare", b"")
            });
        }
        at += n as u64;
    }
    Ok(())
}

/// A directory that is being imported.
struct InDir<'a> {
    node: NodeId,
    from: Arc<dyn Dir>,
    path: Vec<u8>,
    change: Option<Change>,
    into: &'a LogFs,
    stores: &'a Stores,
    work: &'a Work<'a>,
    _parent: Option<Arc<InDir<'a>>>,
}

impl Drop for InDir<'_> {
    fn drop(&mut self) {
        if let Some(change) = &self.change
            && !self.work.tally.is_stopped()
            && let Err(error) = self.into.change(self.node, change)
        {
            self.work.failed(&self.path, error);
        }
        if self._parent.is_some() {
            self.into.forget(self.node, 1);
        }
    }
}

/// A file that is imported by several threads.
struct InFile<'a> {
    from: Box<dyn OpenFile>,
    stat: Stat,
    node: NodeId,
    temporary: Vec<u8>,
    name: Vec<u8>,
    dir: Arc<InDir<'a>>,
    /// Writers that no thread is using. There are as many as threads that worked on the file at the
    /// same time.
    idle: Mutex<Vec<Box<dyn quell_vfs::WritableFile>>>,
    writers: AtomicU32,
    left: AtomicUsize,
    failure: Mutex<Option<Error>>,
}

enum InTask<'a> {
    Entry(Arc<InDir<'a>>, Vec<u8>, Vec<u8>),
    Range(Arc<InFile<'a>>, u64, u64),
}

/// The source of an import: all entries of a directory, or one entry and its name at the
/// destination.
#[derive(Debug, Clone)]
pub enum Offered {
    All,
    Entry(Vec<u8>, Vec<u8>),
}

/// Copies plain files from `from` into the directory `path` of `fs`, the file system of `stores`.
/// The directory must exist. Each thread is a writer of its own, so a large file has several logs.
pub fn import(
    from: Arc<dyn Dir>,
    offered: Offered,
    fs: &LogFs,
    stores: &Stores,
    path: &[u8],
    how: How,
    tally: &Tally,
) -> Result<Moved> {
    let into = enter(fs, path)?;
    let random = || stores.random_number();
    let work = Work { how, tally, moved: Mutex::default(), random: &random };
    let change = match offered {
        // The attributes of a store's root are not changed.
        Offered::All if into != fs.root() => Some(change_from(&how, &from.stat_self()?, false)),
        _ => None,
    };
    let top =
        InDir { node: into, from, path: Vec::new(), change, into: fs, stores, work: &work, _parent: None };
    let top = Arc::new(top);
    let mut first = Vec::new();
    match offered {
        Offered::All => offer_all(&top, &mut first)?,
        Offered::Entry(name, named) => first.push(InTask::Entry(Arc::clone(&top), name, named)),
    }
    drop(top);
    crew::run(how.threads, first, tally, &|task, more| match task {
        InTask::Entry(dir, name, named) => {
            let path = joined(&dir.path, &named);
            if let Err(error) = import_entry(&work, dir, &name, named, more)
                && !tally.is_stopped()
            {
                work.failed(&path, error);
            }
        }
        InTask::Range(file, start, end) => import_range(&work, &file, start, end),
    });
    Ok(work.end())
}

/// Resolves the directory `path`. Its reference is kept until the end.
fn enter(fs: &LogFs, path: &[u8]) -> Result<NodeId> {
    let mut at = fs.root();
    for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
        let found = fs.lookup(at, name)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "find", path))?;
        if found.kind != Kind::Dir {
            return Err(Error::new(ErrorKind::NotADirectory, "find", path));
        }
        at = found.node;
    }
    Ok(at)
}

fn offer_all<'a>(dir: &Arc<InDir<'a>>, more: &mut Vec<InTask<'a>>) -> Result<()> {
    let mut names = dir.from.names()?;
    names.sort_unstable_by(|a, b| b.cmp(a));
    more.extend(names.into_iter().map(|name| InTask::Entry(Arc::clone(dir), name.clone(), name)));
    Ok(())
}

/// Returns the owner and group of an imported entry.
fn owners_of(how: &How, stat: &Stat, stores: &Stores) -> (u32, u32) {
    let host = stores.host();
    if how.owners { (stat.uid, stat.gid) } else { (host.uid, host.gid) }
}

fn import_entry<'a>(
    work: &'a Work<'a>,
    dir: Arc<InDir<'a>>,
    name: &[u8],
    named: Vec<u8>,
    more: &mut Vec<InTask<'a>>,
) -> Result<()> {
    let stat = dir.from.stat(name)?;
    let (uid, gid) = owners_of(&work.how, &stat, dir.stores);
    match stat.kind() {
        Some(Kind::Dir) => {
            let from = dir.from.open_dir(name)?;
            let stat = from.stat_self()?;
            let (uid, gid) = owners_of(&work.how, &stat, dir.stores);
            let node = match dir.into.make_dir(dir.node, &named, New { permissions: OWN_DIR, uid, gid }) {
                Err(error) if error.kind == ErrorKind::Exists && work.how.resume => {
                    let there = dir.into.lookup(dir.node, &named)?;
                    match there {
                        Some(there) if there.kind == Kind::Dir => there.node,
                        _ => return Err(error),
                    }
                }
                made => made?.node,
            };
            work.note(|moved| moved.dirs += 1);
            let inner = InDir {
                node,
                from,
                path: joined(&dir.path, &named),
                change: Some(change_from(&work.how, &stat, false)),
                into: dir.into,
                stores: dir.stores,
                work,
                _parent: Some(dir),
            };
            offer_all(&Arc::new(inner), more)
        }
        Some(Kind::Symlink) => {
            let target = dir.from.read_link(name)?;
            if let Some(there) = dir.into.lookup(dir.node, &named)? {
                let same = there.kind == Kind::Symlink && dir.into.read_link(there.node)? == target;
                dir.into.forget(there.node, 1);
                if !(same && work.how.resume) {
                    return Err(Error::new(ErrorKind::Exists, "import", &named));
                }
                work.note(|moved| moved.skipped += 1);
                return Ok(());
            }
            let made =
                dir.into.make_symlink(dir.node, &named, &target, New { permissions: 0o777, uid, gid })?;
            let changed = dir.into.change(made.node, &change_from(&work.how, &stat, true));
            dir.into.forget(made.node, 1);
            changed?;
            work.note(|moved| moved.links += 1);
            Ok(())
        }
        Some(Kind::File) => import_file(work, dir, name, named, more),
        _ => {
            let path = joined(&dir.path, &named);
            work.note(|moved| moved.special.push(path));
            Ok(())
        }
    }
}

fn import_file<'a>(
    work: &'a Work<'a>,
    dir: Arc<InDir<'a>>,
    name: &[u8],
    named: Vec<u8>,
    more: &mut Vec<InTask<'a>>,
) -> Result<()> {
    // Attributes are read from the open file, because its name may be replaced meanwhile.
    let from = dir.from.open_file(name)?;
    let stat = from.stat()?;
    let (uid, gid) = owners_of(&work.how, &stat, dir.stores);
    if let Some(there) = dir.into.lookup(dir.node, &named)? {
        dir.into.forget(there.node, 1);
        if !work.how.resume || there.kind != Kind::File {
            return Err(Error::new(ErrorKind::Exists, "import", &named));
        }
        if (there.size_bytes, there.modified) == (stat.size_bytes, stat.modified) {
            work.note(|moved| moved.skipped += 1);
            return Ok(());
        }
    }
    let stores = dir.stores;
    // The temporary name is chosen so that its home is the home of the final name, and the file
    // need not be moved.
    let home = stores.home(&named);
    let temporary = loop {
        let temporary = work.temporary();
        if stores.home(&temporary) == home {
            break temporary;
        }
    };
    let new = New { permissions: OWN_FILE, uid, gid };
    let (made, first) =
        dir.into.create(dir.node, &temporary, new, Open { process: 1, ..Open::READ_WRITE })?;
    let step = if work.how.threads > 1 { RANGE_BYTES } else { u64::MAX };
    let ranges = stat.size_bytes.div_ceil(step).max(1);
    let file = InFile {
        from,
        stat,
        node: made.node,
        temporary,
        name: named,
        dir,
        idle: Mutex::new(vec![first]),
        writers: AtomicU32::new(2),
        left: AtomicUsize::new(ranges as usize),
        failure: Mutex::new(None),
    };
    let file = Arc::new(file);
    for range in (1..ranges).rev() {
        let end = (range + 1).saturating_mul(step).min(stat.size_bytes);
        more.push(InTask::Range(Arc::clone(&file), range * step, end));
    }
    import_range(work, &file, 0, step.min(stat.size_bytes));
    Ok(())
}

fn import_range(work: &Work<'_>, file: &InFile<'_>, start: u64, end: u64) {
    let idle = || file.idle.lock().unwrap_or_else(PoisonError::into_inner);
    let known = idle().pop();
    let writer = match known {
        Some(writer) => Ok(writer),
        // Writers are distinguished by process number; here each thread has its own number.
        None => {
            let process = file.writers.fetch_add(1, Ordering::Relaxed);
            file.dir.into.open_as(file.node, Open { process, ..Open::WRITE })
        }
    };
    let copied = writer.and_then(|into| {
        import_bytes(work, file, &*into, start, end)?;
        idle().push(into);
        Ok(())
    });
    imported(work, file, copied);
}

/// Records that a range was copied. The thread that copied the last range completes the file.
fn imported(work: &Work<'_>, file: &InFile<'_>, copied: Result<()>) {
    if let Err(error) = copied {
        file.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
    if file.left.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    let failure = file.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    let writers = std::mem::take(&mut *file.idle.lock().unwrap_or_else(PoisonError::into_inner));
    drop(writers);
    let fs = file.dir.into;
    let done = match failure {
        Some(error) => Err(error),
        None => settle_import(work, file),
    };
    match done {
        Ok(()) => {
            work.tally.add_file();
            work.note(|moved| {
                (moved.files, moved.bytes) = (moved.files + 1, moved.bytes + file.stat.size_bytes)
            });
        }
        Err(error) => {
            let _ = fs.remove(file.dir.node, &file.temporary);
            if !work.tally.is_stopped() {
                work.failed(&joined(&file.dir.path, &file.name), error);
            }
        }
    }
    fs.forget(file.node, 1);
}

impl Drop for InFile<'_> {
    fn drop(&mut self) {
        if *self.left.get_mut() > 0 {
            let _ = self.dir.into.remove(self.dir.node, &self.temporary);
            self.dir.into.forget(self.node, 1);
        }
    }
}

fn settle_import(work: &Work<'_>, file: &InFile<'_>) -> Result<()> {
    let (fs, stat) = (file.dir.into, &file.stat);
    let now = file.from.stat()?;
    if (now.size_bytes, now.modified) != (stat.size_bytes, stat.modified) {
        return Err(Error {
            source: Some("it changed while it was read".into()),
            ..Error::new(ErrorKind::Stale, "import", &file.name)
        });
    }
    if fs.attributes(file.node)?.size_bytes != stat.size_bytes {
        fs.change(file.node, &Change { size_bytes: Some(stat.size_bytes), ..Change::default() })?;
    }
    if work.how.verify {
        compare(work, &*file.from, &*fs.open(file.node)?, stat.size_bytes)?;
    }
    fs.change(file.node, &change_from(&work.how, stat, false))?;
    let keep = if work.how.resume { Rename::Replace } else { Rename::Keep };
    fs.rename(file.dir.node, &file.temporary, file.dir.node, &file.name, keep)
}

fn import_bytes(
    work: &Work<'_>,
    file: &InFile<'_>,
    into: &dyn quell_vfs::WritableFile,
    start: u64,
    end: u64,
) -> Result<()> {
    let has_holes = file.stat.blocks.saturating_mul(512) < file.stat.size_bytes;
    let mut buffer = vec![0; PIECE_BYTES.min((end - start) as usize)];
    let mut at = start;
    while at < end {
        work.go_on()?;
        let part = &mut buffer[..PIECE_BYTES.min((end - at) as usize)];
        read_whole(&*file.from, part, at)?;
        if has_holes {
            let mut offset = at;
            for stretch in part.chunks(HOLE_BYTES) {
                if stretch.iter().any(|byte| *byte != 0) {
                    into.write_at(stretch, offset)?;
                }
                offset += stretch.len() as u64;
            }
        } else {
            into.write_at(part, at)?;
        }
        at += part.len() as u64;
        work.tally.add_bytes(part.len() as u64);
    }
    // The user may delete the original after the import.
    into.sync()
}

#[cfg(test)]
#[path = "transfer_test.rs"]
mod tests;
