//! The views of a running batch, by which other processes see its names and sizes. The process of
//! the batch publishes a view when another process has requested it. docs/formats/batch.md
//! describes the files.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};

use quell_batch_service::{
    BatchRecord, Names, PrivateEntries, ROOT, TableDir, TableFiles, View, open_batch_of_copy,
};
use quell_posix::{Dir, PosixDir, WritableDir};
use quell_threads::{lock, read_lock, write_lock};
use quell_vfs::{Attributes, Error, ErrorKind, Rename, Result};
use rustix::process::geteuid;

use crate::file_system::BatchFs;
use crate::random::random_number;
use crate::remote::Remote;
use crate::store_dir::{NEW_VIEW, StoreDir, VIEW, VIEW_REQUEST, remove_if_present};
use crate::store_lock::LOCK;
use crate::subtree::{check_depth, dir_at, tree_below};

/// The largest view that is read, in bytes.
const VIEW_BYTES_MAX: usize = 4 << 20;
/// The number of times that a view is read because a newer view may have replaced it.
const ATTEMPTS: usize = 10;

/// The views that the process of a batch has published.
#[derive(Debug, Default)]
pub(crate) struct PublishedViews {
    number: u64,
    /// The last request that was answered.
    request: Option<u64>,
    /// The table that only the last view has.
    table: Option<u64>,
    /// Whether the directory of the batch is about to be removed.
    is_ended: bool,
}

impl PublishedViews {
    /// Makes sure that no view is published any more.
    pub(crate) fn end(&mut self) {
        self.is_ended = true;
    }

    /// Publishes a view if there is a request that was not answered yet, and returns whether it was
    /// published.
    ///
    /// # Errors
    /// The errors of files. The next call tries again.
    pub(crate) fn answer(
        &mut self,
        batch: u64,
        names: &RwLock<Names<PrivateEntries>>,
        tables: &TableDir,
        files: &PosixDir,
    ) -> Result<bool> {
        let request = read_request(files)?;
        if self.is_ended || request.is_none() || request == self.request {
            return Ok(false);
        }
        let number = self.number + 1;
        // The operations of the batch wait only for the copy of the changes in memory.
        let copied = read_lock(names).0.copy_changes();
        let (all, table) = copied.write(tables, number)?;
        let view = View { batch, number, request: request.unwrap_or_default(), tables: all };
        remove_if_present(files, NEW_VIEW)?;
        let file = files.create_file(NEW_VIEW, 0o600)?;
        file.write_at(&view.encode(), 0)?;
        drop(file); // closed, so that other nodes see the content
        files.rename(NEW_VIEW, files, VIEW, Rename::Replace)?;
        (self.number, self.request) = (number, request);
        match std::mem::replace(&mut self.table, table) {
            Some(old) => tables.remove(old).map(|()| true),
            None => Ok(true),
        }
    }
}

/// Returns the last request for a view.
fn read_request(files: &PosixDir) -> Result<Option<u64>> {
    let file = match files.open_file(VIEW_REQUEST) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = [0; 8];
    let length = file.read_at(&mut bytes, 0)?;
    Ok((length == bytes.len()).then_some(u64::from_le_bytes(bytes)))
}

/// The result of [`WatchedBatch::refresh`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refreshed {
    /// There is no newer view.
    Same,
    /// A newer view is shown.
    Newer,
    /// The batch was committed or aborted. The last view is still shown.
    Ended,
}

/// A request for a view, as [`WatchedBatch::request`] returns it.
#[derive(Debug, Clone, Copy)]
pub struct ViewRequest {
    /// The number of the view that existed before; 0 if there was none.
    existing: u64,
    /// The earlier request that this request has replaced. A view that answers the earlier request
    /// may be older than this request.
    replaced: Option<u64>,
}

/// The number of a view, and the request that it answers.
#[derive(Debug, Clone, Copy)]
struct Shown {
    number: u64,
    request: u64,
}

/// The entry at a name that a batch has created, changed or removed.
#[derive(Debug, Clone)]
pub struct WatchedName {
    /// The path in the store, which begins with a slash.
    pub path: Vec<u8>,
    /// The attributes; `None` if the batch has removed the name.
    pub attributes: Option<Attributes>,
}

/// A batch of another process, in the state of its newest view.
pub struct WatchedBatch {
    dir: StoreDir,
    record: BatchRecord,
    names: Arc<RwLock<Names<PrivateEntries>>>,
    /// The view that is shown; `None` for the snapshot.
    shown: Mutex<Option<Shown>>,
}

impl std::fmt::Debug for WatchedBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedBatch").field("store", &self.dir.path).field("record", &self.record).finish()
    }
}

impl WatchedBatch {
    /// Opens the snapshot of an open batch of this user. The call does not wait for a process that
    /// has the store open. The store may also belong to one of the users `trusted`; then its server
    /// returns the record of the batch.
    ///
    /// # Errors
    /// `NotFound` if there is no open batch of this number; `PermissionDenied` if it is one of
    /// another user; `Unavailable` if a store of another user has no server;
    /// the errors of the store and of files.
    pub fn open_of(store: &Path, trusted: &[u32], number: u64) -> Result<WatchedBatch> {
        let dir = StoreDir::open_of(store, trusted)?;
        dir.check_format()?;
        let (record, snapshot) = match dir.owner() {
            None => (open_batch_of_copy(&dir.image_tables()?, number)?, None),
            // The copy of the description has the batches of all users, so the owner alone can
            // read it.
            Some(_) => {
                let remote = Arc::new(Remote::connect(dir.duplicate()?)?);
                (remote.record(number)?, remote.snapshot_of(number))
            }
        };
        if record.caller.uid != geteuid().as_raw() {
            let source = Some("the batch is one of another user".into());
            let error = Error::new(ErrorKind::PermissionDenied, "watch batch", number.to_string());
            return Err(Error { source, ..error });
        }
        let batch = dir.batch(number)?;
        if record.part_of().is_some() && batch.has_certificate()? {
            let source = Some("this part of a batch is closed".into());
            let error = Error::new(ErrorKind::NotFound, "watch batch", number.to_string());
            return Err(Error { source, ..error });
        }
        let tables: Arc<dyn TableFiles> = Arc::new(batch.tables);
        let names = dir.private_names(&record, snapshot, tables, 0)?;
        let names = Arc::new(RwLock::new(Names(names.0.for_views())));
        Ok(WatchedBatch { dir, record, names, shown: Mutex::default() })
    }

    /// Returns the tree below the directory at a path of the store, as the view shows it. Changes
    /// of names and attributes fail with `ReadOnly`. Files must not be written to.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` if the snapshot has no such directory; the errors of files.
    pub fn file_system_at(&self, path: &[u8]) -> Result<BatchFs> {
        let top = dir_at(&*self.names, path)?;
        self.dir.file_system(tree_below(self.names.clone(), top), 0)
    }

    /// Opens the directory with the views.
    ///
    /// # Errors
    /// `NotFound` if the batch has ended; the errors of files.
    fn files(&self) -> Result<PosixDir> {
        let files = self.dir.batch(self.record.number)?.files;
        if self.dir.owner().is_some() {
            // The directory remains if it has data files.
            files.stat(LOCK)?;
        }
        Ok(files)
    }

    /// Requests a newer view from the process of the batch, which answers within about ten seconds.
    ///
    /// # Errors
    /// `NotFound` if the batch has ended; the errors of files.
    pub fn request(&self) -> Result<ViewRequest> {
        let files = self.files()?;
        let replaced = read_request(&files)?;
        let existing = read_view(&files)?.map_or(0, |view| view.number);
        let file = match files.create_file(VIEW_REQUEST, 0o600) {
            Err(error) if error.kind == ErrorKind::Exists => files.open_writable_file(VIEW_REQUEST)?,
            created => created?,
        };
        file.write_at(&(random_number() as u64).to_le_bytes(), 0)?;
        Ok(ViewRequest { existing, replaced })
    }

    /// Returns whether the view that is shown was made after the call that has made `request`. The
    /// view may also answer a later request of another process, which has replaced this one.
    pub fn shows_answer(&self, request: &ViewRequest) -> bool {
        lock(&self.shown)
            .is_some_and(|shown| shown.number > request.existing && Some(shown.request) != request.replaced)
    }

    /// Shows the newest view. It never shows an earlier state than before.
    ///
    /// # Errors
    /// `Damaged`; the errors of files.
    pub fn refresh(&self) -> Result<Refreshed> {
        let mut shown = lock(&self.shown);
        for _ in 0..ATTEMPTS {
            let files = match self.files() {
                Err(error) if error.kind == ErrorKind::NotFound => return Ok(Refreshed::Ended),
                files => files?,
            };
            let view = match read_view(&files)? {
                Some(view) if shown.is_none_or(|shown| view.number > shown.number) => view,
                // The directory of a batch that has ended may remain on NFS while its files are
                // open on this node.
                None if shown.is_some() => return Ok(Refreshed::Ended),
                _ => return Ok(Refreshed::Same),
            };
            if view.batch != self.record.number {
                return Err(Error::new(ErrorKind::Damaged, "read the view of batch", view.batch.to_string()));
            }
            // Readers wait until the tables are open, because they cannot read the tables before.
            match write_lock(&self.names).0.show(&view) {
                Ok(()) => {
                    *shown = Some(Shown { number: view.number, request: view.request });
                    return Ok(Refreshed::Newer);
                }
                // A newer view has replaced this one, or the batch has ended.
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Refreshed::Same)
    }

    /// Passes each name that the batch has created, changed or removed to `visit`.
    ///
    /// # Errors
    /// The errors of the tables and of `visit`.
    pub fn changed_names(&self, visit: &mut dyn FnMut(WatchedName) -> Result<()>) -> Result<()> {
        let names = read_lock(&self.names);
        let mut paths = Paths::default();
        names.0.changed_names(&mut |dir, name, is_removed| {
            let attributes = match is_removed {
                true => None,
                false => names.lookup(dir, name)?.map(|found| found.inode.attributes()).transpose()?,
            };
            let path = [path_in(&names, dir, &mut paths)?, &b"/"[..], name].concat();
            visit(WatchedName { path, attributes })
        })
    }
}

/// A cache of the parents and names of directories, so that each is looked up once. A cache of
/// whole paths would need memory that grows with the square of the depth.
#[derive(Default)]
struct Paths {
    /// For each directory, the parent directory and the name there.
    places: HashMap<u64, (u64, Vec<u8>)>,
    /// The last directory, and its path.
    last: Option<(u64, Vec<u8>)>,
}

/// The largest number of directories in the cache.
const PLACES_MAX: usize = 1 << 16;

/// Returns the path of a directory. For a directory that the batch has removed, the name and the
/// parent of the snapshot are used. A path has at most as many names as `check_depth` permits.
fn path_in<'p>(names: &Names<PrivateEntries>, dir: u64, paths: &'p mut Paths) -> Result<&'p [u8]> {
    if paths.last.as_ref().is_none_or(|(last, _)| *last != dir) {
        let (mut parts, mut at) = (Vec::new(), dir);
        while at != ROOT {
            let (above, name) = match paths.places.get(&at) {
                Some(place) => place.clone(),
                None => {
                    let place = match names.parent(at) {
                        Err(error) if error.kind == ErrorKind::Stale => {
                            names.0.parent_in_snapshot(at)?.ok_or(error)?
                        }
                        found => found?,
                    };
                    if paths.places.len() >= PLACES_MAX {
                        paths.places.clear();
                    }
                    paths.places.insert(at, place.clone());
                    place
                }
            };
            parts.push([b"/", &name[..]].concat());
            // The tables of the batch may have been changed.
            check_depth(parts.len(), dir)?;
            at = above;
        }
        parts.reverse();
        paths.last = Some((dir, parts.concat()));
    }
    Ok(paths.last.as_ref().map_or(&[], |(_, path)| path))
}

fn read_view(files: &PosixDir) -> Result<Option<View>> {
    let file = match files.open_file(VIEW) {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = vec![0; VIEW_BYTES_MAX + 1];
    let length = file.read_at(&mut bytes, 0)?;
    match length <= VIEW_BYTES_MAX {
        true => View::decode(&bytes[..length]).map(Some),
        false => Err(Error::new(ErrorKind::Damaged, "read the view of a batch", VIEW)),
    }
}

#[cfg(test)]
mod tests {
    use quell_batch_service::{BatchCaller, BatchState, Content, Entries, Entry, Inode, Key, Timestamp};

    use super::*;

    #[test]
    fn a_directory_below_itself_has_no_path() {
        let temp = tempfile::tempdir().unwrap();
        let tables = Arc::new(TableDir::new(std::fs::File::open(temp.path()).unwrap().into()));
        let record = BatchRecord {
            number: 1,
            name: String::new(),
            caller: BatchCaller { uid: 0, gid: 0, groups: Vec::new() },
            inodes: 10..20,
            snapshot: Vec::new(),
            subtree: ROOT,
            is_atomic: false,
            state: BatchState::Open,
        };
        let mut names = PrivateEntries::open(&record, &*tables, tables.clone(), 1 << 20).unwrap();
        let dir = |number: u64, above: u64| {
            let time = Timestamp(0, 0);
            let inode = Inode {
                number,
                mode: 0o040_755,
                uid: 0,
                gid: 0,
                links: 2,
                size_bytes: 0,
                modified: time,
                changed: time,
                content: Content::Parent { dir: above, name: format!("to-{number}").into() },
                xattrs: Vec::new(),
            };
            (Key::of_dir(number), Some(Entry::Inode(inode)))
        };
        names.0.apply(vec![dir(10, ROOT), dir(11, 12), dir(12, 11)]).unwrap();
        let mut known = Paths::default();
        assert_eq!(path_in(&names, 10, &mut known).unwrap(), b"/to-10");
        // The cache has only the own name of each directory.
        names.0.apply((20..520).map(|number| dir(number, number - 1)).collect()).unwrap();
        names.0.apply(vec![dir(20, ROOT)]).unwrap();
        for number in [519, 300, 519] {
            let expected: String = (20..=number).map(|number| format!("/to-{number}")).collect();
            assert_eq!(path_in(&names, number, &mut known).unwrap(), expected.as_bytes());
        }
        assert_eq!(known.places.len(), 501);
        assert!(known.places.values().all(|(_, name)| name.len() <= 6));
        for number in [11, 12] {
            assert_eq!(path_in(&names, number, &mut known).unwrap_err().kind, ErrorKind::Damaged);
        }
        let names = RwLock::new(names);
        assert_eq!(crate::subtree::path_of(&names, 12).unwrap_err().kind, ErrorKind::Damaged);
    }
}
