//! The virtual directories of this process.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use quell_batch::open_shared_names;
use quell_log::LogFs;
use quell_mount_spec::{
    CheckedIndex, NewFiles, OpenTree, View, ViewBatch, ViewLog, ViewPool, ViewTree, open_pool, shown,
};
use quell_threads::lock;
use quell_vfs::{Context, FileIdentity, FileSystem, NodeId};

use crate::counters::{self, Counter};
use crate::dispatch;
use crate::errno::{self, Errno, Outcome};
use crate::guard;
use crate::messages;
use crate::own_descriptors;
use crate::paths::{self, Relation};
use crate::process_id::process_id;
use crate::shared_memory::{self, NodesByInode};

/// The base of the device numbers that files of virtual directories show. Linux gives no device
/// with a major number of this size.
const DEVICE_BASE: u64 = 0xFFF_F000_0000;

/// Counts the forks that led to this process since the library was initialized. A child must not
/// use an object that its parent opened.
static GENERATION: AtomicU32 = AtomicU32::new(0);

static DIRS: OnceLock<Vec<VirtualDir>> = OnceLock::new();

/// A directory whose content a [`FileSystem`] provides.
pub struct VirtualDir {
    /// Absolute and plain.
    pub path: Vec<u8>,
    /// `path`, and the other paths that lead to the directory through symbolic links.
    pub paths: Paths,
    /// `st_dev` of its files.
    pub device: u64,
    /// The position in the list of virtual directories.
    pub number: usize,
    /// The position in the view: its logs, trees, pools and batches, in this order.
    position: usize,
    source: Source,
    /// The index of a tree was refused, or the tree could not be opened: the original is used.
    is_disabled: AtomicBool,
    /// The files of a tree that are in memory.
    pub nodes_by_inode: NodesByInode,
    opened: Mutex<Option<Opened>>,
}

/// The origin of the files of a virtual directory.
enum Source {
    Log(ViewLog),
    /// The index is read once, also for forked children.
    Tree(ViewTree, OnceLock<CheckedIndex>),
    Pool(ViewPool),
    Batch(ViewBatch),
}

#[derive(Clone, Copy)]
struct Opened {
    generation: u32,
    fs: &'static dyn FileSystem,
    log: Option<&'static LogFs>,
    tree: Option<&'static OpenTree>,
}

impl VirtualDir {
    /// Returns the file system, which is opened at first use, and again in a forked child.
    pub fn fs(&self) -> Outcome<&'static dyn FileSystem> {
        Ok(self.open()?.fs)
    }

    /// Returns the log layer of a log directory. Errors: ENOTSUP for another directory.
    pub fn log(&self) -> Outcome<&'static LogFs> {
        self.open()?.log.ok_or(Errno(libc::ENOTSUP))
    }

    fn open(&self) -> Outcome<Opened> {
        let generation = generation();
        let mut opened = lock(&self.opened);
        if let Some(known) = *opened
            && known.generation == generation
        {
            return Ok(known);
        }
        quell_posix::move_descriptors(own_descriptors::moved);
        let new = match &self.source {
            Source::Log(log) => {
                let log: &'static LogFs = Box::leak(Box::new(log.open(NewFiles::Object)?));
                Opened { generation, fs: log, log: Some(log), tree: None }
            }
            Source::Pool(pool) => {
                let fs = Box::leak(Box::new(open_pool(&pool.socket, pool.chunk_bytes)?));
                Opened { generation, fs, log: None, tree: None }
            }
            Source::Batch(ViewBatch { socket, store, batch, .. }) => {
                let fs = Box::leak(Box::new(open_shared_names(socket, store, *batch)?));
                Opened { generation, fs, log: None, tree: None }
            }
            Source::Tree(tree, index) => {
                let open = match index.get() {
                    Some(index) => tree.open(index)?,
                    None => {
                        let loaded = load(tree)?;
                        tree.open(index.get_or_init(|| loaded))?
                    }
                };
                open.shared.iter().for_each(|files| self.nodes_by_inode.set(files));
                let open: &'static OpenTree = Box::leak(Box::new(open));
                Opened { generation, fs: &*open.fs, log: None, tree: Some(open) }
            }
        };
        *opened = Some(new);
        Ok(new)
    }

    /// Opens a file of a tree that is in memory: for reading, with close-on-exec.
    pub fn open_from_memory(&self, node: NodeId) -> Option<OwnedFd> {
        self.open().ok()?.tree?.shared.as_ref()?.open(node)
    }

    /// Returns the file system if it is open in this process.
    pub fn opened_fs(&self) -> Option<&'static dyn FileSystem> {
        let opened = *lock(&self.opened);
        opened.filter(|known| known.generation == generation()).map(|known| known.fs)
    }

    /// Adds to a counter of the directory.
    pub fn count(&self, counter: Counter, amount: u64) {
        counters::add(self.position, counter, amount);
    }

    /// Returns whether this is an indexed tree: the files of the original directory, with indexed
    /// metadata.
    pub fn is_tree(&self) -> bool {
        matches!(self.source, Source::Tree(..))
    }

    /// Returns whether another process serves the names, so that each look-up is a request to it.
    pub fn has_remote_names(&self) -> bool {
        matches!(self.source, Source::Pool(_) | Source::Batch(_))
    }

    /// Returns whether paths into the directory are served. If a tree cannot be served, a message
    /// is printed and programs see the original directory. Other virtual directories are always
    /// served, because their files are elsewhere.
    pub fn is_served(&self) -> bool {
        if self.is_disabled.load(Ordering::Relaxed) {
            return false;
        }
        let Source::Tree(tree, index) = &self.source else { return true };
        if index.get().is_some() {
            return true;
        }
        let number = errno::get();
        let opened =
            guard::inside(|| match load(tree).and_then(|loaded| tree.open(index.get_or_init(|| loaded))) {
                Ok(_) => Ok(()),
                Err(error) => {
                    messages::warn(&format!("{error}: {} is not served from its index", shown(&tree.path)));
                    Err(Errno(error.errno()))
                }
            });
        errno::set(number);
        self.is_disabled.store(opened.is_err(), Ordering::Relaxed);
        opened.is_ok()
    }

    /// Returns `st_dev` and `st_ino` of a node.
    pub fn identity(&self, node: NodeId) -> FileIdentity {
        let tree = (*lock(&self.opened)).and_then(|known| known.tree);
        tree.and_then(|tree| tree.identity(node)).unwrap_or(FileIdentity {
            device: self.device,
            inode: node.0.wrapping_add(1), // as of a FUSE mount
        })
    }
}

/// Loads the index of a tree, from the memory of the node's holder process if there is one.
fn load(tree: &ViewTree) -> quell_vfs::Result<CheckedIndex> {
    match tree.load_shared(&shared_memory::map) {
        Some(index) => Ok(index),
        None => tree.load(),
    }
}

/// Set when the process has begun to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Records that the process ends, and returns whether this was recorded before.
pub fn begin_end() -> bool {
    IS_ENDING.swap(true, Ordering::Relaxed)
}

/// Returns whether the process has begun to end. From then on each write is published at once,
/// because no later function of the library is certain to be called.
pub fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Relaxed)
}

/// The ID of this process, or 0 if it is not known yet.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Returns the context of all operations: the permissions and the ID of this process.
pub fn context() -> Context<'static> {
    let known = PROCESS.load(Ordering::Relaxed);
    if known != 0 {
        return Context::for_process(known);
    }
    let process = process_id();
    PROCESS.store(process, Ordering::Relaxed);
    Context::for_process(process)
}

/// Returns the number of forks that led to this process.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Starts a new generation, in a forked child.
pub fn begin_generation() {
    PROCESS.store(0, Ordering::Relaxed);
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Returns the virtual directories. Without the variable there are none.
pub fn dirs() -> &'static [VirtualDir] {
    DIRS.get_or_init(|| match View::from_environment() {
        Ok(view) => view.map(virtual_dirs).unwrap_or_default(),
        Err(error) => messages::refuse_start(&error),
    })
}

/// Returns whether the process has virtual directories.
pub fn is_active() -> bool {
    match DIRS.get() {
        Some(dirs) => !dirs.is_empty(),
        // A library that is initialized before this one has called a function of libc.
        None => crate::guard::inside(|| Ok(!dirs().is_empty())).unwrap_or(false),
    }
}

/// Returns whether a path is certainly outside of the virtual directories, without a lock, a system
/// call or an allocation.
pub fn is_certainly_native(path: &[u8]) -> bool {
    let is_outside = |name: &Vec<u8>| {
        matches!(paths::compare(path, &name[1..]), Relation::Outside | Relation::Ancestor(_))
    };
    path.first() == Some(&b'/') && dirs().iter().flat_map(|dir| &dir.paths).all(is_outside)
}

/// The paths of one directory.
type Paths = Vec<Vec<u8>>;

fn virtual_dirs(view: View) -> Vec<VirtualDir> {
    let bytes = |path: &PathBuf| path.clone().into_os_string().into_vec();
    if view.dispatch {
        dispatch::request();
    }
    counters::use_file(view.counters.as_deref(), view.directories());
    if let Some(shared) = view.trees.iter().find_map(|tree| tree.shared) {
        shared_memory::expect(shared.table.device);
    }
    let logs = view.logs.into_iter().map(|log| (log.paths().map(bytes).collect(), Source::Log(log)));
    let trees = view.trees.into_iter();
    let trees = trees.map(|tree| (tree.paths().map(bytes).collect(), Source::Tree(tree, OnceLock::new())));
    let pools = view.pools.into_iter().map(|pool| (pool.paths().map(bytes).collect(), Source::Pool(pool)));
    let batches = view.batches.into_iter();
    let batches = batches.map(|batch| (batch.paths().map(bytes).collect(), Source::Batch(batch)));
    let mut sources: Vec<(usize, (Paths, Source))> =
        logs.chain(trees).chain(pools).chain(batches).enumerate().collect();
    // A directory inside another is found first.
    sources.sort_by_key(|(_, (paths, _))| std::cmp::Reverse(paths[0].split(|byte| *byte == b'/').count()));
    let numbered = sources.into_iter().enumerate();
    let dirs = numbered.map(|(number, (position, (paths, source)))| VirtualDir {
        path: paths[0].clone(),
        paths,
        device: DEVICE_BASE + number as u64,
        number,
        position,
        source,
        is_disabled: AtomicBool::new(false),
        nodes_by_inode: NodesByInode::default(),
        opened: Mutex::new(None),
    });
    dirs.collect()
}

/// Returns a path and the rest after it, with a slash between them.
pub fn joined(base: &[u8], rest: &[u8]) -> Vec<u8> {
    [base, b"/", rest].concat()
}

/// Returns the path with which programs name a file below a virtual directory.
pub fn absolute(dir: &VirtualDir, path: &[u8]) -> Vec<u8> {
    if path.is_empty() { dir.path.clone() } else { joined(&dir.path, path) }
}

/// The locks of the view, held during a fork.
pub struct ForkLocks {
    _opened: Vec<MutexGuard<'static, Option<Opened>>>,
}

/// Takes the locks of the view.
pub fn lock_for_fork() -> ForkLocks {
    ForkLocks { _opened: dirs().iter().map(|dir| lock(&dir.opened)).collect() }
}
