//! Reads a tree's metadata with many requests in flight: on a shared file system most of the time
//! is spent waiting for replies (the paper's script, with one request at a time, took 323 s for
//! 78,624 entries, section 6). The result does not depend on the number of threads.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use quell_posix::{Dir, Stat};
use quell_threads::{Tasks, into_inner, lock};
use quell_vfs::{Error, ErrorKind, Kind, Result, Time, errno, printable};

use crate::format::{TARGET_BYTES_MAX, XATTR_SET_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::image::{EntryId, Image, Problem, ROOT};
use crate::patterns::Patterns;
use crate::tree::{Listing, Special, Tree};

/// Number of names of one directory that a thread processes at a time.
const CHUNK_NAMES: usize = 256;
/// The largest number of times that a directory is read if it changes meanwhile.
const LISTING_TRIES: u32 = 3;
/// Number of files in each directory whose attributes are read with `Xattrs::Auto`, if nothing
/// suggests that they have any.
const XATTR_SAMPLE_FILES: usize = 2;

/// The extended attributes that are read. Reading the attributes of every file costs as much as the
/// rest of the build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Xattrs {
    /// Reads the attributes of every directory, of the first two files in each, and of every file
    /// whose status changed after its content (as setting an attribute does). If any of them has an
    /// attribute, the attributes of all entries are read.
    #[default]
    Auto,
    /// Reads the attributes of every entry.
    Always,
    /// Reads no attributes.
    Never,
}

impl Xattrs {
    /// Returns the name on the command line and in the index.
    pub fn name(self) -> &'static str {
        match self {
            Xattrs::Auto => "auto",
            Xattrs::Always => "always",
            Xattrs::Never => "never",
        }
    }
}

/// The options that affect the content of an index. They are stored in it, so that an update reads
/// the tree with the same options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildOptions {
    /// Names or paths that are left out. A pattern without `/` is matched against names, and a
    /// pattern with `/` against paths relative to the root.
    pub exclude: Vec<String>,
    /// Whether to include other file systems mounted below the root.
    pub cross_mounts: bool,
    /// Which extended attributes to read.
    pub xattrs: Xattrs,
}

impl BuildOptions {
    /// Returns the lines of the OPTIONS section.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.exclude.iter().map(|glob| format!("exclude {glob}")).collect();
        if self.cross_mounts {
            lines.push("cross-mounts".into());
        }
        if self.xattrs != Xattrs::Auto {
            lines.push(format!("xattrs {}", self.xattrs.name()));
        }
        lines
    }

    /// Returns the options that an index was built with.
    pub fn from_image(image: &Image) -> Result<BuildOptions> {
        let mut options = BuildOptions::default();
        for line in image.option_lines() {
            let text = std::str::from_utf8(line).unwrap_or_default();
            match text.split_once(' ').unwrap_or((text, "")) {
                ("exclude", glob) => options.exclude.push(glob.into()),
                ("cross-mounts", "") => options.cross_mounts = true,
                ("xattrs", "always") => options.xattrs = Xattrs::Always,
                ("xattrs", "never") => options.xattrs = Xattrs::Never,
                _ => return Err(Error::new(ErrorKind::Unsupported, "apply the option of the index", line)),
            }
        }
        Ok(options)
    }
}

/// An older index. The builder takes the children of directories with unchanged times from it,
/// instead of reading them.
#[derive(Debug, Clone, Copy)]
pub struct Trust<'a> {
    /// The older index.
    pub image: &'a Image,
    /// The time at which the build of that index began, minus the timestamp granularity of the file
    /// system: a directory that changed later may have changed again unnoticed.
    pub before: Time,
}

/// The progress of a build. A progress bar reads it, and `stop` ends the build.
#[derive(Debug, Default)]
pub struct BuildProgress {
    entries: AtomicU64,
    directories_done: AtomicU64,
    /// The parts of the tree that are done, in units of 2^-53. The root's part is the whole; each
    /// directory's part is divided evenly between its own listing and its child directories.
    share_done: AtomicU64,
    stop: AtomicBool,
}

/// The whole tree, in units of `BuildProgress::share_done`.
const WHOLE: f64 = (1u64 << 53) as f64;

impl BuildProgress {
    /// Returns the number of entries read so far.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns the number of directories that are complete.
    pub fn directories_done(&self) -> u64 {
        self.directories_done.load(Ordering::Relaxed)
    }

    /// Returns the estimated part of the tree that was read, from 0 to 1, based on the part of the
    /// tree seen so far.
    pub fn share(&self) -> f64 {
        self.share_done.load(Ordering::Relaxed) as f64 / WHOLE
    }

    fn directory_done(&self, share: f64) {
        self.directories_done.fetch_add(1, Ordering::Relaxed);
        self.share_done.fetch_add((share * WHOLE) as u64, Ordering::Relaxed);
    }

    /// Makes the build fail soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Reads the tree below `root`. `root_path` is its absolute path, which is stored in the index.
pub fn build(
    root: Arc<dyn Dir>,
    root_path: &[u8],
    options: &BuildOptions,
    threads: usize,
    trust: Option<Trust<'_>>,
    progress: &BuildProgress,
) -> Result<Tree> {
    let _span = tracing::debug_span!("read_tree", root = %printable(root_path), threads).entered();
    let walk =
        |read_all_xattrs| walk(root.clone(), root_path, options, read_all_xattrs, threads, trust, progress);
    match walk(options.xattrs == Xattrs::Always)? {
        Some(tree) => Ok(tree),
        // An attribute was found in the sample, so the attributes of every file are read.
        None => {
            tracing::debug!(
                "a sampled entry has extended attributes: reading the tree and those of all entries"
            );
            progress.entries.store(0, Ordering::Relaxed);
            progress.directories_done.store(0, Ordering::Relaxed);
            progress.share_done.store(0, Ordering::Relaxed);
            Ok(walk(true)?.expect("only a sampling walk is given up"))
        }
    }
}

/// Reads the tree once. Returns `None` if it sampled attributes and found some.
fn walk(
    root: Arc<dyn Dir>,
    root_path: &[u8],
    options: &BuildOptions,
    read_all_xattrs: bool,
    threads: usize,
    trust: Option<Trust<'_>>,
    progress: &BuildProgress,
) -> Result<Option<Tree>> {
    let stat = root.stat_self()?;
    if stat.kind() != Some(Kind::Dir) {
        return Err(Error::new(ErrorKind::NotADirectory, "index", root_path));
    }
    let mut root_specials = vec![Special::Listing(0)];
    if options.xattrs != Xattrs::Never {
        let set = kept_xattrs(root.xattrs(b"")?)?;
        if !set.is_empty() {
            if !read_all_xattrs {
                return Ok(None);
            }
            root_specials.push(Special::Xattrs(set));
        }
    }
    let walker = Walker {
        root_device: stat.device,
        exclude: Patterns::new("exclude", &options.exclude)?,
        options,
        read_all_xattrs,
        trust,
        distrusted: trust.map(|trust| directories_with_problems(trust.image)).unwrap_or_default(),
        progress,
        found: Mutex::new(ListingResult {
            root: stat,
            listings: vec![Listing::default()],
            problems: Vec::new(),
            failure: None,
        }),
        attributes_found: AtomicBool::new(false),
    };
    let first = Job::List(ListTask {
        source: UnlistedDir::Open(root),
        listing: 0,
        parent_slot: None,
        path: Vec::new(),
        record: stat,
        old: trust.map(|_| ROOT),
        tries: LISTING_TRIES,
        share: 1.0,
    });
    quell_threads::run(threads, [first], |job, jobs| walker.run_job(job, jobs));
    let ListingResult { root, listings, mut problems, failure } = into_inner(walker.found);
    if let Some(failure) = failure {
        return Err(failure);
    }
    if walker.attributes_found.into_inner() {
        return Ok(None);
    }
    problems.sort();
    // If the update of a directory began with the old index and ended with reading, a problem may
    // be in the list twice.
    problems.dedup();
    tracing::debug!(
        entries = progress.entries(),
        directories = progress.directories_done(),
        problems = problems.len(),
        "read the tree"
    );
    Ok(Some(Tree {
        root_path: root_path.to_vec(),
        root,
        root_specials,
        listings,
        problems,
        options: options.lines(),
        xattrs_skipped: options.xattrs == Xattrs::Never,
    }))
}

struct ListingResult {
    root: Stat,
    listings: Vec<Listing>,
    problems: Vec<Problem>,
    failure: Option<Error>,
}

enum Job {
    List(ListTask),
    ReadChunk(Arc<Chunks>, usize),
}

enum UnlistedDir {
    Open(Arc<dyn Dir>),
    Child(Arc<dyn Dir>, Vec<u8>),
}

/// A directory that has to be listed.
struct ListTask {
    source: UnlistedDir,
    listing: u32,
    /// The directory's index in its parent's listing; `None` for the root.
    parent_slot: Option<(u32, u32)>,
    path: Vec<u8>,
    record: Stat,
    /// The same directory in the trusted index.
    old: Option<EntryId>,
    tries: u32,
    /// The directory's part of the tree, for `BuildProgress::share`.
    share: f64,
}

/// A directory whose entries are being read, one chunk of names at a time.
struct Chunks {
    dir: Arc<dyn Dir>,
    task: ListTask,
    before: Stat,
    names: Vec<Vec<u8>>,
    results: Mutex<Vec<Option<Vec<EntryResult>>>>,
    open_chunks: AtomicUsize,
}

/// The result of reading one entry.
enum EntryResult {
    /// An entry, with an error number if its extended attributes could not be read.
    Entry(Stat, Vec<Special>, Option<u32>),
    /// The name exists, but its metadata cannot be read.
    Refused(u32),
    /// The name was listed, and then removed.
    Vanished,
}

struct Walker<'a> {
    root_device: u64,
    exclude: Patterns,
    options: &'a BuildOptions,
    read_all_xattrs: bool,
    trust: Option<Trust<'a>>,
    /// Directories whose content the trusted index does not have completely. They are read again.
    distrusted: HashSet<Vec<u8>>,
    progress: &'a BuildProgress,
    found: Mutex<ListingResult>,
    attributes_found: AtomicBool,
}

impl Walker<'_> {
    fn run_job(&self, job: Job, jobs: &Tasks<Job>) {
        let stop = self.progress.stop.load(Ordering::Relaxed);
        if stop {
            lock(&self.found)
                .failure
                .get_or_insert_with(|| Error::new(ErrorKind::Interrupted, "index", b"the tree"));
        }
        // When the result is not needed any more, the remaining jobs are dropped.
        if stop || self.attributes_found.load(Ordering::Relaxed) {
            return;
        }
        match job {
            Job::List(task) => self.list(task, jobs),
            Job::ReadChunk(chunks, number) => self.read_chunk(&chunks, number, jobs),
        }
    }

    fn problem(&self, path: Vec<u8>, errno: i32) {
        lock(&self.found).problems.push(Problem { path, errno: errno as u32 });
    }

    fn list(&self, task: ListTask, jobs: &Tasks<Job>) {
        let trusted = |trust: &Trust<'_>| trust.holds(&task) && !self.distrusted.contains(&task.path);
        if let Some(trust) = self.trust.filter(trusted) {
            return self.take_from_index(task, trust, jobs);
        }
        let dir = match self.open(&task.source) {
            Ok(dir) => dir,
            Err(e) => return self.cannot_list(&task, e),
        };
        self.list_open(dir, task, jobs);
    }

    fn open(&self, source: &UnlistedDir) -> Result<Arc<dyn Dir>> {
        match source {
            UnlistedDir::Open(dir) => Ok(dir.clone()),
            UnlistedDir::Child(parent, name) => parent.open_dir(name),
        }
    }

    /// Records a problem. The directory stays in the index, with unknown content.
    fn cannot_list(&self, task: &ListTask, error: Error) {
        tracing::debug!(path = %printable(&task.path), %error, "cannot list a directory");
        if task.path.is_empty() {
            lock(&self.found).failure.get_or_insert(error);
            return;
        }
        let errno = error.errno();
        let mut found = lock(&self.found);
        found.problems.push(Problem { path: task.path.clone(), errno: errno as u32 });
        found.listings[task.listing as usize].unknown = Some(errno as u32);
        drop(found);
        self.progress.directory_done(task.share);
    }

    fn list_open(&self, dir: Arc<dyn Dir>, task: ListTask, jobs: &Tasks<Job>) {
        let listed = dir.stat_self().and_then(|before| Ok((before, dir.names()?)));
        let (before, mut names) = match listed {
            Ok(listed) => listed,
            Err(e) => return self.cannot_list(&task, e),
        };
        names.retain(|name| !self.exclude.matches(&task.path, name));
        names.sort_unstable();
        names.dedup();
        let chunk_count = names.len().div_ceil(CHUNK_NAMES).max(1);
        let chunks = Arc::new(Chunks {
            dir,
            task,
            before,
            names,
            results: Mutex::new((0..chunk_count).map(|_| None).collect()),
            open_chunks: AtomicUsize::new(chunk_count),
        });
        // Other threads process the rest of a long directory while this one starts.
        jobs.push((1..chunk_count).map(|number| Job::ReadChunk(chunks.clone(), number)));
        self.read_chunk(&chunks, 0, jobs);
    }

    fn read_chunk(&self, chunks: &Arc<Chunks>, number: usize, jobs: &Tasks<Job>) {
        let start = number * CHUNK_NAMES;
        let end = (start + CHUNK_NAMES).min(chunks.names.len());
        let mut sampled_files = if number == 0 { 0 } else { XATTR_SAMPLE_FILES };
        let results: Vec<EntryResult> = chunks.names[start..end]
            .iter()
            .map(|name| {
                self.progress.entries.fetch_add(1, Ordering::Relaxed);
                match self.read_entry(&*chunks.dir, name, &mut sampled_files) {
                    Ok(result) => result,
                    Err(e) if e.kind == ErrorKind::NotFound => EntryResult::Vanished,
                    Err(e) => EntryResult::Refused(e.errno() as u32),
                }
            })
            .collect();
        lock(&chunks.results)[number] = Some(results);
        if chunks.open_chunks.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.complete(chunks, jobs);
        }
    }

    fn read_entry(&self, dir: &dyn Dir, name: &[u8], sampled_files: &mut usize) -> Result<EntryResult> {
        let stat = dir.stat(name)?;
        let Some(kind) = stat.kind() else { return Ok(EntryResult::Refused(errno::EIO as u32)) };
        let mut specials = Vec::new();
        if kind == Kind::Symlink {
            let target = dir.read_link(name)?;
            if target.is_empty() || target.len() > TARGET_BYTES_MAX {
                return Ok(EntryResult::Refused(errno::ENAMETOOLONG as u32));
            }
            specials.push(Special::Target(target));
        }
        if kind == Kind::Dir && self.is_boundary(&stat) {
            specials.push(Special::Boundary);
        }
        if self.reads_xattrs(kind, &stat, sampled_files) {
            let set = match dir.xattrs(name).and_then(kept_xattrs) {
                Ok(set) => set,
                Err(e) if e.kind == ErrorKind::NotFound => return Err(e),
                // A file without read permission still has a name and a size.
                Err(e) => return Ok(EntryResult::Entry(stat, specials, Some(e.errno() as u32))),
            };
            if !set.is_empty() {
                if !self.read_all_xattrs {
                    self.attributes_found.store(true, Ordering::Relaxed);
                }
                specials.push(Special::Xattrs(set));
            }
        }
        Ok(EntryResult::Entry(stat, specials, None))
    }

    fn is_boundary(&self, stat: &Stat) -> bool {
        !self.options.cross_mounts && (stat.mount_root || stat.device != self.root_device)
    }

    fn reads_xattrs(&self, kind: Kind, record: &Stat, sampled_files: &mut usize) -> bool {
        match self.options.xattrs {
            Xattrs::Never => false,
            _ if self.read_all_xattrs => true,
            _ if kind == Kind::Dir => true,
            _ if kind == Kind::Symlink => false,
            _ if record.changed != record.modified => true,
            _ => {
                *sampled_files += 1;
                *sampled_files <= XATTR_SAMPLE_FILES
            }
        }
    }

    /// Completes a directory after all of its entries were read.
    fn complete(&self, chunks: &Arc<Chunks>, jobs: &Tasks<Job>) {
        let task = &chunks.task;
        let results: Vec<EntryResult> = lock(&chunks.results).drain(..).flatten().flatten().collect();
        let vanished = results.iter().any(|result| matches!(result, EntryResult::Vanished));
        let after = chunks.dir.stat_self();
        let changed = vanished || after.as_ref().is_ok_and(|after| differs(&chunks.before, after));
        if changed && task.tries > 1 {
            tracing::debug!(
                path = %printable(&task.path),
                tries_left = task.tries - 1,
                "a directory changed while it was read: reading it again"
            );
            let again = ListTask {
                source: UnlistedDir::Open(chunks.dir.clone()),
                listing: task.listing,
                parent_slot: task.parent_slot,
                path: task.path.clone(),
                record: task.record,
                old: None,
                tries: task.tries - 1,
                share: task.share,
            };
            return self.list_open(chunks.dir.clone(), again, jobs);
        }
        if changed {
            // The directory changed during every try.
            self.problem(task.path.clone(), errno::EAGAIN);
        }
        if let Ok(after) = after {
            self.set_own_record(task, after);
        }
        let mut children = Children::default();
        for (name, result) in chunks.names.iter().zip(results) {
            match result {
                EntryResult::Entry(record, specials, xattr_errno) => {
                    if let Some(errno) = xattr_errno {
                        self.problem(join(&task.path, name), errno as i32);
                    }
                    children.push(name, record, specials);
                }
                EntryResult::Refused(errno) => self.problem(join(&task.path, name), errno as i32),
                EntryResult::Vanished => self.problem(join(&task.path, name), errno::ENOENT),
            }
        }
        let old = |name: &[u8]| self.trust.and_then(|trust| trust.image.lookup(task.old?, name));
        self.keep(task, Some(&chunks.dir), children, &old, jobs);
    }

    /// Stores the directory's record as of the time when its names were read, instead of an earlier
    /// record.
    fn set_own_record(&self, task: &ListTask, now: Stat) {
        if now == task.record {
            return;
        }
        let mut found = lock(&self.found);
        match task.parent_slot {
            Some((listing, child)) => found.listings[listing as usize].set_record(child, now),
            None => found.root = now,
        }
    }

    /// Stores a complete listing and queues its child directories.
    fn keep(
        &self,
        task: &ListTask,
        dir: Option<&Arc<dyn Dir>>,
        children: Children,
        old: &dyn Fn(&[u8]) -> Option<EntryId>,
        jobs: &Tasks<Job>,
    ) {
        let Children { mut listing, below } = children;
        let mut more = Vec::with_capacity(below.len());
        let share = task.share / (below.len() + 1) as f64;
        let mut found = lock(&self.found);
        for (child, name, record) in below {
            let dir = dir.expect("a directory with directories below it was opened").clone();
            let number = found.listings.len() as u32;
            found.listings.push(Listing::default());
            listing.push_special(child, Special::Listing(number));
            more.push(Job::List(ListTask {
                listing: number,
                parent_slot: Some((task.listing, child)),
                path: join(&task.path, &name),
                record,
                old: old(&name),
                source: UnlistedDir::Child(dir, name),
                tries: LISTING_TRIES,
                share,
            }));
        }
        listing.seal();
        found.listings[task.listing as usize] = listing;
        drop(found);
        self.progress.directory_done(share);
        jobs.push(more);
    }

    /// Takes the names and files of a directory with unchanged times from the older index. Its
    /// child directories are examined separately, because its times do not show changes of their
    /// content. Hard-linked files are read too, because their other names may be in directories
    /// that changed.
    fn take_from_index(&self, task: ListTask, trust: Trust<'_>, jobs: &Tasks<Job>) {
        let image = trust.image;
        let entry = task.old.expect("only a known directory is trusted");
        let children = image.children(entry).unwrap_or(0..0);
        let must_be_read = |e: &EntryId| image.kind(*e) == Kind::Dir || image.attributes(*e).nlink > 1;
        let dir = if children.clone().any(|e| must_be_read(&e)) {
            match self.open(&task.source) {
                Ok(dir) => Some(dir),
                Err(e) => return self.cannot_list(&task, e),
            }
        } else {
            None
        };
        let mut taken = Children::default();
        for child in children {
            let name = image.name(child);
            self.progress.entries.fetch_add(1, Ordering::Relaxed);
            let (record, specials) = match &dir {
                Some(dir) if must_be_read(&child) => match self.read_entry(&**dir, name, &mut 0) {
                    Ok(EntryResult::Entry(record, specials, xattr_errno)) => {
                        if let Some(errno) = xattr_errno {
                            self.problem(join(&task.path, name), errno as i32);
                        }
                        (record, specials)
                    }
                    Ok(EntryResult::Refused(errno)) => {
                        self.problem(join(&task.path, name), errno as i32);
                        continue;
                    }
                    // The directory changed between the two requests, so it is read.
                    Ok(EntryResult::Vanished) | Err(_) => return self.list_open(dir.clone(), task, jobs),
                },
                _ => from_index(image, child),
            };
            taken.push(name, record, specials);
        }
        let old = |name: &[u8]| image.lookup(entry, name);
        self.keep(&task, dir.as_ref(), taken, &old, jobs);
    }
}

/// A directory's listing while it is built, and the children that must be listed in turn.
#[derive(Default)]
struct Children {
    listing: Listing,
    below: Vec<(u32, Vec<u8>, Stat)>,
}

impl Children {
    fn push(&mut self, name: &[u8], record: Stat, specials: Vec<Special>) {
        let child = self.listing.push(name, record);
        if record.kind() == Some(Kind::Dir) && !specials.contains(&Special::Boundary) {
            self.below.push((child, name.to_vec(), record));
        }
        for special in specials {
            self.listing.push_special(child, special);
        }
    }
}

impl Trust<'_> {
    /// Returns whether the directory's times equal those in the index, and are old enough to prove
    /// that its content is unchanged.
    fn holds(&self, task: &ListTask) -> bool {
        let Some(entry) = task.old else { return false };
        let old = self.image.attributes(entry);
        old.kind == Kind::Dir
            && self.image.inode(entry) == Some(task.record.inode)
            && old.modified == task.record.modified
            && old.changed == task.record.changed
            && old.changed < self.before
            && old.modified < self.before
            && self.image.extra(entry, crate::format::Field::Unknown).is_none()
            && self.image.extra(entry, crate::format::Field::Boundary).is_none()
    }
}

/// Returns the directories that have a problem, or an entry with a problem.
fn directories_with_problems(image: &Image) -> HashSet<Vec<u8>> {
    let above = |path: &[u8]| path.iter().rposition(|b| *b == b'/').unwrap_or(0);
    image
        .problems()
        .flat_map(|problem| [problem.path[..above(&problem.path)].to_vec(), problem.path])
        .collect()
}

fn from_index(image: &Image, entry: EntryId) -> (Stat, Vec<Special>) {
    let a = image.attributes(entry);
    let record = Stat {
        mode: a.mode(),
        uid: a.uid,
        gid: a.gid,
        nlink: a.nlink,
        rdev: a.rdev,
        size_bytes: a.size_bytes,
        blocks: a.blocks,
        modified: a.modified,
        changed: a.changed,
        // Only files with several names need a device number, and these are read from the tree.
        device: u64::MAX,
        // `Trust::holds` returns false for an index without inode numbers.
        inode: image.inode(entry).unwrap_or(0),
        mount_root: false,
    };
    let mut specials = Vec::new();
    if let Some(target) = image.link_target(entry) {
        specials.push(Special::Target(target.to_vec()));
    }
    let set: Vec<_> = image.xattrs(entry).map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    if !set.is_empty() {
        specials.push(Special::Xattrs(set));
    }
    (record, specials)
}

/// Returns whether a directory's content may have changed between two stats.
fn differs(before: &Stat, after: &Stat) -> bool {
    (before.modified, before.changed, before.size_bytes) != (after.modified, after.changed, after.size_bytes)
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// The attribute that gives a program capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// Returns whether an attribute of this name is indexed and shown.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
        || name == CAPABILITY
}

/// Returns the attributes that are valid on a copy of the tree: `user.*`, access control lists,
/// file capabilities. The others belong to the file system or the machine (layouts, labels), and
/// would be wrong elsewhere.
fn kept_xattrs(mut set: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    set.retain(|(name, _)| is_kept(name));
    let total: usize = set.iter().map(|(name, value)| 6 + name.len() + value.len()).sum();
    let fits = total <= XATTR_SET_BYTES_MAX && set.iter().all(|(_, v)| v.len() <= XATTR_VALUE_BYTES_MAX);
    if fits { Ok(set) } else { Err(Error::new(ErrorKind::Os(errno::E2BIG), "keep attributes", b"")) }
}
