//! The walk through a tree that a new store adopts (docs/formats/batch.md).
//!
//! Several threads read directories, and the calling thread sorts the entries and writes them to
//! tables. The memory does not grow with the number of entries in general: each thread lists one
//! directory at a time. It grows by the name and a constant for each directory that waits to be
//! read (the siblings of the directories on the current paths), and by a constant for each file of
//! which not all names were found yet, even if the other names are outside of the tree.
//!
//! The tree may belong to another user, who may change it meanwhile. No entry is opened by its
//! path: each directory is opened relative to its parent, without following symbolic links.

use std::collections::HashMap;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use quell_batch_service::{
    ADOPTED_PATH_BYTES_MAX, Content, Entry, FIRST_INODE, InitialEntries, InitialTables, Inode, Key,
    MEMORY_BYTES, ROOT, TableDir, XATTRS_BYTES_MAX, Xattr,
};
use quell_posix::{Dir, PosixDir, Stat, WritableDir};
use quell_threads::{Tasks, lock};
use quell_vfs::{Error, ErrorKind, FileIdentity, Kind, Result, check_user_xattr};

use crate::adopted::{ADOPTED, adopted_file, check_no_mount_of_quell, encode};
use crate::store_dir::StoreDir;

/// The largest depth of a directory below the tree.
const DEPTH_MAX: u32 = 1000;
/// The largest length of the target of a symbolic link on Linux, in bytes.
const TARGET_BYTES_MAX: usize = 4095;
/// The number of entries that a thread collects before it passes them on.
const PART_ENTRIES: usize = 256;
/// The number of parts that may wait for the thread that writes them.
const PARTS_MAX: usize = 64;
const OPERATION: &str = "adopt";
/// The set-id bits of `st_mode`.
const SET_ID: u32 = 0o6000;

/// The counters of an adoption, and the request to end it early.
#[derive(Debug, Default)]
pub struct AdoptionProgress {
    dirs: AtomicU64,
    files: AtomicU64,
    links: AtomicU64,
    left_out: AtomicU64,
    must_stop: AtomicBool,
}

impl AdoptionProgress {
    /// The number of directories that were adopted, including the tree itself.
    pub fn dirs(&self) -> u64 {
        self.dirs.load(Ordering::Relaxed)
    }

    /// The number of names of files that were adopted.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// The number of symbolic links that were adopted.
    pub fn links(&self) -> u64 {
        self.links.load(Ordering::Relaxed)
    }

    /// The number of entries that were reported as not adopted, or not completely.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Requests the end of the adoption.
    pub fn stop(&self) {
        self.must_stop.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.must_stop.load(Ordering::Relaxed)
    }
}

/// The options of an adoption.
pub struct Adoption<'a> {
    /// The number of threads that read directories.
    pub threads: usize,
    /// The counters.
    pub progress: &'a AdoptionProgress,
    /// Receives the path below the tree of each entry that is not adopted, or not completely, and
    /// the reason.
    pub report: &'a (dyn Fn(&[u8], &Error) + Sync),
}

impl fmt::Debug for Adoption<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adoption").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// An entry that a thread has found.
enum FoundEntry {
    Entry(Key, Entry),
    /// A name of a file that has several, and the inode that the file gets if this is the first
    /// name that was found.
    Name {
        key: Key,
        original: u64,
        names: u32,
        inode: Inode,
    },
}

/// The path of a directory: its name, and the path of the parent directory. Directories share the
/// paths of their parents, so that many directories at a large depth need little memory.
struct Place {
    /// `None` for the tree.
    above: Option<Arc<Place>>,
    name: Vec<u8>,
}

impl Place {
    /// Returns the path below the tree.
    fn path(&self) -> Vec<u8> {
        let (mut names, mut at) = (Vec::new(), self);
        while let Some(above) = &at.above {
            names.push(&at.name[..]);
            at = above;
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// A directory that waits to be read.
struct Waiting {
    above: Arc<dyn Dir>,
    place: Arc<Place>,
    depth: u32,
    /// The inode numbers of the parent directory and of this directory in the store.
    parent: u64,
    number: u64,
    stat: Stat,
}

impl Adoption<'_> {
    /// Writes the entries of the directory `tree`, a path without symbolic links, as tables of the
    /// new store in `dir`, and the path.
    pub(crate) fn run(&self, dir: &StoreDir, tree: &Path) -> Result<InitialTables> {
        let subject = tree.as_os_str().as_bytes();
        let top = PosixDir::open(tree)?;
        let stat = top.stat_self()?;
        check_no_mount_of_quell(tree, &stat)?;
        let store = dir.files()?.stat_self()?.identity();
        if stat.identity() == store {
            return Err(store_in_tree(subject));
        }
        let (sender, receiver) = sync_channel(PARTS_MAX);
        let walk = Walk {
            adoption: self,
            store,
            device: stat.device,
            next_inode: AtomicU64::new(FIRST_INODE),
            failure: Mutex::new(None),
        };
        let mut entries = InitialEntries::new(Arc::new(TableDir::new(dir.tables()?)), MEMORY_BYTES);
        let written = std::thread::scope(|scope| {
            let walk = &walk;
            let above = Arc::new(top);
            scope.spawn(move || {
                let first = Waiting {
                    above,
                    place: Arc::new(Place { above: None, name: Vec::new() }),
                    depth: 0,
                    parent: ROOT,
                    number: ROOT,
                    stat,
                };
                quell_threads::run(self.threads, [first], |dir, tasks| walk.read(dir, tasks, &sender));
            });
            write_all(receiver, &mut entries).inspect_err(|_| self.progress.stop())
        });
        written?;
        if let Some(error) = lock(&walk.failure).take() {
            return Err(error);
        }
        if self.progress.is_stopped() {
            return Err(Error::new(ErrorKind::Interrupted, OPERATION, subject));
        }
        let file = dir.files()?.create_file(ADOPTED, 0o600)?;
        file.write_at(&encode(stat.inode, tree), 0)?;
        file.sync()?;
        entries.finish(walk.next_inode.into_inner())
    }
}

/// Adds the entries that the threads have found. The names of one file are counted here.
fn write_all(receiver: Receiver<Vec<FoundEntry>>, entries: &mut InitialEntries) -> Result<()> {
    /// A file of which not all names were found yet.
    struct Named {
        number: u64,
        type_bits: u32,
        found: u32,
    }
    let mut named: HashMap<u64, Named> = HashMap::new();
    for found in receiver.into_iter().flatten() {
        let (key, original, names, inode) = match found {
            FoundEntry::Entry(key, entry) => {
                entries.add(&key, &entry)?;
                continue;
            }
            FoundEntry::Name { key, original, names, inode } => (key, original, names, inode),
        };
        let type_bits = inode.kind()?.mode_bits();
        let new = Named { number: inode.number, type_bits, found: 0 };
        let known = named.entry(original).or_insert(new);
        if known.type_bits != type_bits {
            // The file system has assigned the number to another file meanwhile.
            *known = Named { number: inode.number, type_bits, found: 0 };
        }
        known.found += 1;
        let (number, links) = (known.number, known.found);
        if links >= names {
            named.remove(&original);
        }
        entries.add(&key, &Entry::Link { inode: number, type_bits })?;
        // This inode replaces the one that was added with an earlier name.
        entries.add(&Key::of_linked(number), &Entry::Inode(Inode { number, links, ..inode }))?;
    }
    Ok(())
}

/// The state that all threads of an adoption share.
struct Walk<'a> {
    adoption: &'a Adoption<'a>,
    store: FileIdentity,
    device: u64,
    next_inode: AtomicU64,
    /// The error that ends the adoption.
    failure: Mutex<Option<Error>>,
}

/// The entries of a directory that were not passed on yet.
struct Part<'a> {
    found: Vec<FoundEntry>,
    sender: &'a SyncSender<Vec<FoundEntry>>,
}

impl Part<'_> {
    fn push(&mut self, found: FoundEntry) {
        self.found.push(found);
        if self.found.len() >= PART_ENTRIES {
            self.send();
        }
    }

    fn send(&mut self) {
        // `send` fails only after the receiving thread has stopped the walk.
        let _ = self.sender.send(std::mem::take(&mut self.found));
    }
}

impl Walk<'_> {
    fn report(&self, path: &[u8], error: &Error) {
        self.adoption.progress.left_out.fetch_add(1, Ordering::Relaxed);
        (self.adoption.report)(path, error);
    }

    fn leave_out(&self, path: &[u8], reason: &str) {
        let source = Some(reason.to_owned().into());
        self.report(path, &Error { source, ..Error::new(ErrorKind::Unsupported, OPERATION, path) });
    }

    fn new_number(&self) -> u64 {
        self.next_inode.fetch_add(1, Ordering::Relaxed)
    }

    /// Reads a directory.
    fn read(&self, waiting: Waiting, tasks: &Tasks<Waiting>, sender: &SyncSender<Vec<FoundEntry>>) {
        if self.adoption.progress.is_stopped() || lock(&self.failure).is_some() {
            return;
        }
        let mut part = Part { found: Vec::with_capacity(PART_ENTRIES), sender };
        let mut subdirs = 0;
        let path = waiting.place.path();
        let name = &waiting.place.name;
        let is_top = waiting.number == ROOT;
        let opened = if is_top { Ok(waiting.above.clone()) } else { waiting.above.open_dir(name) };
        let listed = opened.and_then(|dir| {
            if dir.stat_self()?.identity() != waiting.stat.identity() {
                return Err(Error::new(ErrorKind::Stale, OPERATION, path.clone()));
            }
            dir.visit(&mut |name, _| {
                match self.entry(&dir, (&waiting, &path), name, tasks, &mut part) {
                    Ok(is_dir) => subdirs += u32::from(is_dir),
                    // The entry was removed meanwhile.
                    Err(error) if error.kind == ErrorKind::NotFound => {}
                    Err(error) => self.report(&joined(&path, name), &error),
                }
                !self.adoption.progress.is_stopped()
            })
        });
        // A directory gets the permissions to list and search it only if all its entries are known.
        let mode = match listed {
            Ok(()) => waiting.stat.mode,
            Err(error) => {
                self.report(&path, &error);
                Kind::Dir.mode_bits()
            }
        };
        let xattrs = self.xattrs(&*waiting.above, name, Kind::Dir, &path);
        let content = Content::Parent { dir: waiting.parent, name: name.clone() };
        let inode =
            Inode { mode, links: 2 + subdirs, ..inode(waiting.number, &waiting.stat, content, xattrs) };
        self.adoption.progress.dirs.fetch_add(1, Ordering::Relaxed);
        part.push(FoundEntry::Entry(Key::of_dir(waiting.number), Entry::Inode(inode)));
        part.send();
    }

    /// Adds an entry of a directory, and returns whether it is a directory.
    fn entry(
        &self,
        dir: &Arc<dyn Dir>,
        (waiting, dir_path): (&Waiting, &[u8]),
        name: &[u8],
        tasks: &Tasks<Waiting>,
        part: &mut Part<'_>,
    ) -> Result<bool> {
        let stat = dir.stat(name)?;
        let path = joined(dir_path, name);
        let progress = self.adoption.progress;
        if path.len() > ADOPTED_PATH_BYTES_MAX {
            self.leave_out(&path, "its path is longer than 16,384 bytes");
            return Ok(false);
        }
        let key = Key::of_name(waiting.number, name);
        let content = match stat.kind() {
            Some(Kind::Dir) => {
                if stat.identity() == self.store {
                    lock(&self.failure).get_or_insert(store_in_tree(&path));
                    progress.stop();
                    return Ok(false);
                }
                if stat.device != self.device {
                    self.leave_out(&path, "it is on another file system");
                    return Ok(false);
                }
                if waiting.depth >= DEPTH_MAX {
                    self.leave_out(&path, "it is below more than 1,000 directories");
                    return Ok(false);
                }
                let number = self.new_number();
                part.push(FoundEntry::Entry(key, Entry::Dir { inode: number }));
                tasks.push([Waiting {
                    above: dir.clone(),
                    place: Arc::new(Place { above: Some(waiting.place.clone()), name: name.to_vec() }),
                    depth: waiting.depth + 1,
                    parent: waiting.number,
                    number,
                    stat,
                }]);
                return Ok(true);
            }
            Some(Kind::File) if stat.size_bytes == 0 => Content::Empty,
            Some(Kind::File) => Content::Adopted(Box::new(adopted_file(path.clone(), &stat))),
            Some(Kind::Symlink) => {
                let target = dir.read_link(name)?;
                if target.is_empty() || target.len() > TARGET_BYTES_MAX {
                    self.leave_out(&path, "the length of its target is not permitted");
                    return Ok(false);
                }
                Content::Target(target)
            }
            _ => {
                self.leave_out(&path, "it is a FIFO, a socket or a device");
                return Ok(false);
            }
        };
        let kind = stat.kind().unwrap_or(Kind::File);
        let xattrs = if kind == Kind::File { self.xattrs(&**dir, name, kind, &path) } else { Vec::new() };
        let inode = inode(self.new_number(), &stat, content, xattrs);
        let counter = if kind == Kind::File { &progress.files } else { &progress.links };
        counter.fetch_add(1, Ordering::Relaxed);
        part.push(match stat.nlink {
            0 | 1 => FoundEntry::Entry(key, Entry::Inode(inode)),
            names => FoundEntry::Name { key, original: stat.inode, names, inode },
        });
        Ok(false)
    }

    /// Returns the extended attributes that a store can have.
    fn xattrs(&self, dir: &dyn Dir, name: &[u8], kind: Kind, path: &[u8]) -> Vec<Xattr> {
        let found = match dir.xattrs(name) {
            Ok(found) => found,
            Err(error) => {
                if error.kind != ErrorKind::NotFound {
                    self.report(path, &error);
                }
                return Vec::new();
            }
        };
        let xattrs: Vec<Xattr> = found
            .into_iter()
            .filter(|(name, _)| check_user_xattr(kind, name).is_ok())
            .map(|(name, value)| Xattr { name, value })
            .collect();
        let bytes: usize = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum();
        if bytes > XATTRS_BYTES_MAX {
            self.leave_out(path, "its extended attributes have more than 128 KiB, and are left out");
            return Vec::new();
        }
        xattrs
    }
}

/// Returns the path of a tree that the store at `store` can adopt, without symbolic links.
pub(crate) fn tree_for(store: &Path, tree: &Path) -> Result<PathBuf> {
    let canonical = |path: &Path| {
        let failed = |cause| Error::from_io(cause, OPERATION, path.as_os_str().as_bytes());
        path.canonicalize().map_err(failed)
    };
    let tree = canonical(tree)?;
    // The store may not exist yet.
    let above = match store.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        None => store,
    };
    match canonical(above)?.starts_with(&tree) {
        true => Err(store_in_tree(tree.as_os_str().as_bytes())),
        false => Ok(tree),
    }
}

fn store_in_tree(subject: &[u8]) -> Error {
    let source = Some("the store is in the directory to be adopted; choose another place for it".into());
    Error { source, ..Error::new(ErrorKind::InvalidInput, OPERATION, subject) }
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// Returns the inode of an entry with one name.
fn inode(number: u64, stat: &Stat, content: Content, xattrs: Vec<Xattr>) -> Inode {
    let size_bytes = match &content {
        Content::Target(target) => target.len() as u64,
        Content::Adopted(file) => file.size_bytes,
        _ => 0,
    };
    // A program of another user must not become one that runs as the user of the store.
    let is_of_others = stat.uid != rustix::process::geteuid().as_raw();
    let removed = if is_of_others && stat.kind() == Some(Kind::File) { SET_ID } else { 0 };
    Inode {
        number,
        mode: stat.mode & !removed,
        uid: stat.uid,
        gid: stat.gid,
        links: 1,
        size_bytes,
        modified: stat.modified.into(),
        changed: stat.changed.into(),
        content,
        xattrs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_wait_share_the_places_above_them() {
        let top = Arc::new(Place { above: None, name: Vec::new() });
        let below =
            |above: &Arc<Place>, name: String| Place { above: Some(above.clone()), name: name.into() };
        let deep = (0..60).fold(top.clone(), |above, _| Arc::new(below(&above, "d".repeat(250))));
        let waiting: Vec<Place> = (0..1000).map(|number| below(&deep, number.to_string())).collect();
        assert_eq!(Arc::strong_count(&deep), 1001);
        assert_eq!(waiting[7].path().len(), 60 * 251 + 1);
        assert!(waiting[7].path().ends_with(b"d/7"));
        assert!(waiting.iter().all(|place| place.name.len() <= 3));
        assert_eq!(top.path(), b"");
    }
}
