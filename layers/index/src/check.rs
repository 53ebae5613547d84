//! Compares a whole tree with its index: every directory is listed and the metadata of every entry
//! is read, with several requests in flight. No smaller check is sufficient: an edit of a file in
//! place changes the file's own times, and not those of its directory.
//!
//! Only metadata is read, not data, link targets or extended attributes. A directory is listed
//! before the metadata of its entries is read, because file systems that send attributes with names
//! (NFS, CephFS, MooseFS, Lustre's statahead) then answer from their cache.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quell_posix::{Dir, Stat};
use quell_threads::{Tasks, into_inner, lock};
use quell_vfs::{Attributes, Error, ErrorKind, Kind, Result, same_status_change};

use crate::builder::BuildOptions;
use crate::compare::{Change, Difference, changed_attributes};
use crate::format::Field;
use crate::freshness::{OVERFLOW_ID, attributes_of};
use crate::image::{EntryId, Image, ROOT};
use crate::patterns::Patterns;

/// Number of names of one directory that a thread processes at a time.
const CHUNK_NAMES: usize = 256;

/// The result of [`check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Sorted by path; at most `differences_max`.
    pub differences: Vec<Difference>,
    /// Number of entries whose metadata was read.
    pub entries: u64,
    /// Whether the whole tree was compared: the check was not stopped, and no difference was left
    /// out.
    pub complete: bool,
}

/// Compares the tree below `root` with its index. Ends early after `differences_max` differences,
/// or when `stop` is set.
///
/// Entries whose metadata the caller has no permission to read count as unchanged, because the
/// index may have been built by a user with more permissions. An error of the root itself is
/// returned.
pub fn check(
    image: &Image,
    root: Arc<dyn Dir>,
    threads: usize,
    differences_max: usize,
    stop: &AtomicBool,
) -> Result<Checked> {
    check_and_visit(image, root, threads, differences_max, stop, &|_, _| {})
}

/// Does the same as [`check`], and calls `visit` with each directory before it is listed.
pub fn check_and_visit(
    image: &Image,
    root: Arc<dyn Dir>,
    threads: usize,
    differences_max: usize,
    stop: &AtomicBool,
    visit: &(dyn Fn(EntryId, &dyn Dir) + Sync),
) -> Result<Checked> {
    let options = BuildOptions::from_image(image)?;
    let stat = root.stat_self()?;
    let indexed = image.attributes(ROOT);
    let checker = Checker {
        image,
        exclude: Patterns::new("exclude", &options.exclude)?,
        problems: image.problems().map(|problem| problem.path).collect(),
        compares_ctime: stat.changed == indexed.changed && stat.modified == indexed.modified,
        differences_max,
        stop,
        visit,
        full: AtomicBool::new(false),
        entries: AtomicU64::new(1),
        found: Mutex::new(Findings::default()),
    };
    checker.compare(ROOT, &stat);
    quell_threads::run(threads, [Job::List(UncheckedDir::Open(root), ROOT)], |job, jobs| {
        checker.run_job(job, jobs)
    });
    let entries = checker.entries.load(Ordering::Relaxed);
    let is_full = checker.full.load(Ordering::Relaxed);
    let Findings { mut differences, failure } = into_inner(checker.found);
    if let Some(failure) = failure {
        return Err(failure);
    }
    differences.sort_by(|a, b| a.path.cmp(&b.path));
    let complete = !is_full && !stop.load(Ordering::Relaxed);
    tracing::debug!(entries, differences = differences.len(), complete, "compared the tree with its index");
    Ok(Checked { differences, entries, complete })
}

enum UncheckedDir {
    Open(Arc<dyn Dir>),
    Child(Arc<dyn Dir>, EntryId),
}

enum Job {
    List(UncheckedDir, EntryId),
    /// A range of the children of an open directory.
    Compare(Arc<dyn Dir>, Arc<Vec<EntryId>>, Range<usize>),
}

#[derive(Default)]
struct Findings {
    differences: Vec<Difference>,
    failure: Option<Error>,
}

struct Checker<'a> {
    image: &'a Image,
    exclude: Patterns,
    /// Paths that could not be read when the index was built: they exist in the tree and not in the
    /// index.
    problems: HashSet<Vec<u8>>,
    /// Whether the tree is on the file system where it was indexed; its root shows this. There, an
    /// edit that restores size and modification time still changes the status change time. A copy
    /// of the tree has other status change times.
    compares_ctime: bool,
    differences_max: usize,
    stop: &'a AtomicBool,
    visit: &'a (dyn Fn(EntryId, &dyn Dir) + Sync),
    /// Whether `differences_max` differences were found.
    full: AtomicBool,
    entries: AtomicU64,
    found: Mutex<Findings>,
}

impl Checker<'_> {
    fn run_job(&self, job: Job, jobs: &Tasks<Job>) {
        // After the end of the check, the remaining jobs are dropped.
        if self.is_over() {
            return;
        }
        match job {
            Job::List(source, directory) => self.list(source, directory, jobs),
            Job::Compare(dir, children, range) => self.compare_children(&dir, &children[range], jobs),
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.full.load(Ordering::Relaxed)
    }

    fn report(&self, path: Vec<u8>, what: Change) {
        let mut found = lock(&self.found);
        if found.differences.len() < self.differences_max {
            found.differences.push(Difference { path, what });
        }
        if found.differences.len() >= self.differences_max {
            self.full.store(true, Ordering::Relaxed);
        }
    }

    fn list(&self, source: UncheckedDir, directory: EntryId, jobs: &Tasks<Job>) {
        let opened = match source {
            UncheckedDir::Open(dir) => Ok(dir),
            UncheckedDir::Child(parent, entry) => parent.open_dir(self.image.name(entry)),
        };
        let listed = opened.and_then(|dir| {
            (self.visit)(directory, &*dir);
            let names = dir.names()?;
            Ok((dir, names))
        });
        let (dir, names) = match listed {
            Ok(listed) => listed,
            // The metadata of the directory was read just before. A different result now means
            // that the tree is being changed.
            Err(e) if is_gone(&e) => return self.report(self.image.path(directory), Change::Removed),
            Err(e) => {
                if directory == ROOT {
                    lock(&self.found).failure = Some(e);
                }
                return;
            }
        };
        let path = self.image.path(directory);
        // Children stay in the order of the listing, because servers send attributes in advance in
        // this order.
        let mut children = Vec::with_capacity(names.len());
        for name in &names {
            match self.image.lookup(directory, name) {
                Some(entry) => children.push(entry),
                None if self.exclude.matches(&path, name) => {}
                None => {
                    let path = join(&path, name);
                    if !self.problems.contains(&path) {
                        self.report(path, Change::Added);
                    }
                }
            }
        }
        let expected = self.image.children(directory).unwrap_or(0..0);
        if children.len() < expected.len() {
            let seen: HashSet<EntryId> = children.iter().copied().collect();
            for entry in expected.filter(|entry| !seen.contains(entry)) {
                self.report(self.image.path(entry), Change::Removed);
            }
        }
        let children = Arc::new(children);
        let first = children.len().min(CHUNK_NAMES);
        // Other threads process the rest of a long directory while this one starts.
        jobs.push((first..children.len()).step_by(CHUNK_NAMES).map(|start| {
            let range = start..(start + CHUNK_NAMES).min(children.len());
            Job::Compare(dir.clone(), children.clone(), range)
        }));
        self.compare_children(&dir, &children[..first], jobs);
    }

    fn compare_children(&self, dir: &Arc<dyn Dir>, children: &[EntryId], jobs: &Tasks<Job>) {
        for &entry in children {
            if self.is_over() {
                return;
            }
            self.entries.fetch_add(1, Ordering::Relaxed);
            match dir.stat(self.image.name(entry)) {
                Ok(stat) => {
                    let is_dir = self.compare(entry, &stat);
                    let closed = |field| self.image.extra(entry, field).is_some();
                    if is_dir && !closed(Field::Unknown) && !closed(Field::Boundary) {
                        jobs.push([Job::List(UncheckedDir::Child(dir.clone(), entry), entry)]);
                    }
                }
                Err(e) if is_gone(&e) => self.report(self.image.path(entry), Change::Removed),
                // Other errors of the file system are not differences.
                Err(_) => {}
            }
        }
    }

    /// Compares an entry. Returns whether it is a directory, both in the index and in the tree.
    fn compare(&self, entry: EntryId, stat: &Stat) -> bool {
        let indexed = self.image.attributes(entry);
        let now = attributes_of(stat);
        let changed = changed(&indexed, &now, self.compares_ctime);
        if !changed.is_empty() {
            self.report(self.image.path(entry), Change::Changed(changed));
        }
        indexed.kind == Kind::Dir && now.kind == Kind::Dir
    }
}

/// Returns the names of the attributes that differ. Owners that show as the overflow user are not
/// compared. `compares_ctime`: `now` is from the file system where the tree was indexed, so the
/// status change times are compared.
fn changed(indexed: &Attributes, now: &Attributes, compares_ctime: bool) -> Vec<&'static str> {
    let mut changed = changed_attributes(indexed, now);
    if now.uid == OVERFLOW_ID || now.gid == OVERFLOW_ID {
        changed.retain(|what| *what != "owner");
    }
    // A directory's status change time depends on its entries, which are compared themselves.
    if changed.is_empty()
        && compares_ctime
        && now.kind != Kind::Dir
        && !same_status_change(indexed.changed, now.changed)
    {
        changed.push("ctime");
    }
    changed
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}
