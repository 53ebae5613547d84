//! Stores in memory for the unit tests of this crate, and files that are written as a mount writes
//! them.

use std::sync::{Arc, Condvar, Mutex};

use quell_posix::WritableDir;
use quell_testkit::{MemoryStore, Random};
use quell_vfs::{Context, FileSystem, Kind, NewEntry, OpenMode, Writable, WritableFile};

use crate::container::Container;
use crate::format::Holder;
use crate::fs::{LogFs, ResolvedPath, find};
use crate::session::Choices;
use crate::stores::{EXTENTS_MAX, Host, Role, Root, Scratch, Stores};

/// Processes with this number are dead.
pub const GONE: u32 = 666;
pub const NODE: &str = "boot.node1";

pub fn host(seed: u64, pid: u32) -> Host {
    let random = Mutex::new(Random::new(seed));
    Host {
        holder: Holder { pid, start: 1, node: NODE.to_owned() },
        uid: 1000,
        gid: 100,
        random: Box::new(move || random.lock().unwrap().number()),
        is_gone: Box::new(|holder| holder.pid == GONE),
        scratch: scratch(if seed.is_multiple_of(2) { EXTENTS_MAX } else { 10 }),
    }
}

/// Returns the host of a reader after a reboot of its node, so that a power failure is possible.
fn later(seed: u64) -> Host {
    let host = host(seed, 1);
    Host { holder: Holder { node: "later.node1".to_owned(), ..host.holder }, ..host }
}

/// Returns a scratch that keeps `extents_max` extents of an index as usual, and the other extents
/// in scratch files, which are in memory, too.
pub fn scratch(extents_max: usize) -> Scratch {
    let make = || MemoryStore::new().root().create_file(b"scratch", 0o600);
    Scratch { extents_max, ..Scratch::new(make) }
}

fn roots(stores: &[MemoryStore]) -> Vec<Arc<dyn WritableDir>> {
    stores.iter().map(|store| store.root() as Arc<dyn WritableDir>).collect()
}

pub fn opened(stores: &[MemoryStore], seed: u64) -> Stores {
    opened_by(stores, later(seed))
}

pub fn opened_by(stores: &[MemoryStore], host: Host) -> Stores {
    Stores::open(roots(stores), host, 4).unwrap()
}

/// Creates a placement map for stores that were used separately.
pub fn join(stores: &[MemoryStore]) {
    let keep = |dir| (Root { dir, path: Vec::new() }, Role::Keep);
    Stores::change(roots(stores).into_iter().map(keep).collect(), host(95, 1), 4, &mut || false).unwrap();
}

/// Returns a mount of process `pid`.
pub fn mount(stores: &[MemoryStore], seed: u64, pid: u32) -> LogFs {
    let choices = Choices {
        buffer_bytes: 40_000,
        index_threads: 1,
        flatten_bytes: 0,
        flattens_later: false,
        begins_as_object: false,
    };
    LogFs::new(Stores::open(roots(stores), host(seed, pid), 4).unwrap(), choices)
}

/// Returns a mount of process `pid` that is registered as a user of the stores, as
/// [`Stores::begin_use`] does.
pub fn mount_in_use(stores: &[MemoryStore], pid: u32, pause: &mut dyn FnMut() -> bool) -> LogFs {
    let stores = Stores::open(roots(stores), host(pid.into(), pid), 4).unwrap();
    LogFs::new(stores.begin_use(pause).unwrap(), Choices { index_threads: 1, ..Choices::default() })
}

pub fn make(fs: &LogFs, name: &str, process: u32) -> Box<dyn WritableFile> {
    let new = NewEntry { permissions: 0o640, uid: 1000, gid: 100 };
    let context = Context::for_process(process);
    fs.create(&context, fs.root(), name.as_bytes(), new, OpenMode::READ_WRITE).unwrap().1
}

/// Opens a file in the root again, for another process.
pub fn again(fs: &LogFs, name: &str, process: u32) -> Box<dyn WritableFile> {
    let node = fs.lookup(&Context::OWN, fs.root(), name.as_bytes()).unwrap().unwrap().into_attributes().node;
    fs.open_as(&Context::for_process(process), node, OpenMode::READ_WRITE).unwrap()
}

pub fn container(stores: &[MemoryStore], name: &str) -> Container {
    container_with(stores, name, EXTENTS_MAX)
}

/// Opens the container of a file. `extents_max` extents of its index are kept in memory.
pub fn container_with(stores: &[MemoryStore], name: &str, extents_max: usize) -> Container {
    let host = Host { scratch: scratch(extents_max), ..later(99) };
    let stores = Arc::new(Stores::open(roots(stores), host, 4).unwrap());
    match find(&stores, name.as_bytes()).unwrap() {
        ResolvedPath::Entry(dir, entry) if entry.kind == Kind::File => dir.open(&entry).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Blocks threads at some operation until a test opens the gate.
#[derive(Clone)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

struct GateState {
    is_open: bool,
    /// A thread has reached the gate since it was closed.
    is_reached: bool,
}

impl Gate {
    pub fn opened() -> Gate {
        Gate(Arc::new((Mutex::new(GateState { is_open: true, is_reached: false }), Condvar::new())))
    }

    pub fn closed() -> Gate {
        let gate = Gate::opened();
        gate.close();
        gate
    }

    /// Waits until the gate is open.
    pub fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.is_reached = true;
        changed.notify_all();
        drop(changed.wait_while(state, |state| !state.is_open).unwrap());
    }

    pub fn close(&self) {
        *self.0.0.lock().unwrap() = GateState { is_open: false, is_reached: false };
    }

    pub fn open(&self) {
        self.0.0.lock().unwrap().is_open = true;
        self.0.1.notify_all();
    }

    /// Waits until a thread has reached the gate.
    pub fn wait_for_thread(&self) {
        let (state, changed) = &*self.0;
        drop(changed.wait_while(state.lock().unwrap(), |state| !state.is_reached).unwrap());
    }

    /// Opens the gate when the result is dropped, so that a failed test ends.
    pub fn opened_at_end(&self) -> impl Drop {
        OpenedAtEnd(self.clone())
    }
}

struct OpenedAtEnd(Gate);

impl Drop for OpenedAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Returns `length` random bytes that depend on `seed`.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..length).map(|_| random.number() as u8).collect()
}

/// Returns a mount on a node that was rebooted since the stores were written.
pub fn mount_later(stores: &[MemoryStore], seed: u64) -> LogFs {
    let choices = Choices { index_threads: 1, ..Choices::default() };
    LogFs::new(Stores::open(roots(stores), later(seed), 4).unwrap(), choices)
}

/// Returns the content of a file as a new mount reads it.
pub fn content(stores: &[MemoryStore], name: &str) -> quell_vfs::Result<Vec<u8>> {
    let fs = mount_later(stores, 77);
    let attributes = fs.lookup(&Context::OWN, fs.root(), name.as_bytes())?.unwrap();
    let mut bytes = vec![0; attributes.size_bytes as usize];
    let n = fs.open(&Context::OWN, attributes.node)?.read_at(&mut bytes, 0)?;
    assert_eq!(n, bytes.len());
    Ok(bytes)
}

/// Visits everything below a directory of the real file system.
pub fn walk(dir: &std::path::Path, visit: &mut dyn FnMut(&std::path::Path)) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        visit(&path);
        if path.is_dir() && !path.is_symlink() {
            walk(&path, visit);
        }
    }
}
