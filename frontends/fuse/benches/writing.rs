//! Measures the cost of the FUSE server and the kernel when a checkpoint is written: the file
//! system behind the server discards all data. Prints MiB/s of the fastest of a few rounds, and the
//! requests other than writes and reads; then the time of an open and close. Opens for writing
//! include the lookup of the caller's process.
//!
//! `cargo bench -p quell-fuse --bench writing`

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use quell_fuse::{Options, Snapshot};
use quell_vfs::{
    Attributes, Capabilities, Change, Context, Cursor, DirEntry, Error, ErrorKind, FileSystem, Kind,
    NewEntry, NodeId, NodeRef, OpenMode, ReadAt, Rename, Result, Space, Time, Writable, WritableFile,
};

const ROOT: NodeId = NodeId(0);
const FILE: NodeId = NodeId(1);
const NAME: &str = "file";

/// The record length of MPI-IO benchmarks since PLFS. Records of this length are never aligned with
/// pages, except the first.
const RECORD_BYTES: usize = 47_008;
const ROUNDS: usize = 5;
const OPENS: u32 = 4000;

/// One file of zeros, as long as the end of the data written to it.
#[derive(Default)]
struct Discard {
    size: Arc<AtomicU64>,
}

struct Nothing {
    size: Arc<AtomicU64>,
}

fn attributes_of(node: NodeId, size: u64) -> Attributes {
    let (kind, permissions) = if node == ROOT { (Kind::Dir, 0o755) } else { (Kind::File, 0o644) };
    let time = Time { seconds: 1_700_000_000, nanoseconds: 0 };
    Attributes {
        node,
        kind,
        permissions,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        nlink: 1,
        rdev: 0,
        size_bytes: size,
        blocks: size.div_ceil(512),
        modified: time,
        changed: time,
    }
}

fn refused<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "ask", "the benchmark"))
}

impl Discard {
    fn opened(&self) -> Box<Nothing> {
        Box::new(Nothing { size: Arc::clone(&self.size) })
    }
}

impl FileSystem for Discard {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn root(&self) -> NodeId {
        ROOT
    }

    fn lookup(&self, context: &Context<'_>, _: NodeId, name: &[u8]) -> Result<Option<NodeRef<'_>>> {
        if name != NAME.as_bytes() {
            return Ok(None);
        }
        Ok(Some(NodeRef::permanent(self.attributes(context, FILE)?)))
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId) -> Result<Attributes> {
        Ok(attributes_of(node, if node == FILE { self.size.load(Relaxed) } else { 0 }))
    }

    fn parent(&self, _: NodeId) -> Result<NodeId> {
        Ok(ROOT)
    }

    fn path(&self, _: NodeId) -> Result<Vec<u8>> {
        refused()
    }

    fn list(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Cursor,
        _: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, _: &Context<'_>, _: NodeId) -> Result<Vec<u8>> {
        refused()
    }

    fn xattr(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn xattr_names(&self, _: &Context<'_>, _: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn open(&self, _: &Context<'_>, _: NodeId) -> Result<Box<dyn quell_vfs::File>> {
        Ok(self.opened())
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn writable(&self) -> Option<&dyn Writable> {
        Some(self)
    }
}

impl Writable for Discard {
    fn create(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: &[u8],
        _: NewEntry,
        _: OpenMode,
    ) -> Result<(NodeRef<'_>, Box<dyn WritableFile>)> {
        refused()
    }

    fn make_dir(&self, _: &Context<'_>, _: NodeId, _: &[u8], _: NewEntry) -> Result<NodeRef<'_>> {
        refused()
    }

    fn make_symlink(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: &[u8],
        _: &[u8],
        _: NewEntry,
    ) -> Result<NodeRef<'_>> {
        refused()
    }

    fn remove(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<()> {
        refused()
    }

    fn remove_dir(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<()> {
        refused()
    }

    fn rename(&self, _: &Context<'_>, _: NodeId, _: &[u8], _: NodeId, _: &[u8], _: Rename) -> Result<()> {
        refused()
    }

    fn change(&self, context: &Context<'_>, node: NodeId, change: &Change) -> Result<Attributes> {
        if let Some(size) = change.size_bytes {
            self.size.store(size, Relaxed);
        }
        self.attributes(context, node)
    }

    fn open_as(&self, _: &Context<'_>, _: NodeId, mode: OpenMode) -> Result<Box<dyn WritableFile>> {
        if mode.truncate {
            self.size.store(0, Relaxed);
        }
        Ok(self.opened())
    }

    fn sync_dir(&self, _: &Context<'_>, _: NodeId) -> Result<()> {
        Ok(())
    }

    fn space(&self) -> Result<Space> {
        Ok(Space::default())
    }
}

impl quell_vfs::File for Nothing {
    fn attributes(&self) -> Result<Attributes> {
        Ok(attributes_of(FILE, self.size.load(Relaxed)))
    }
}

impl ReadAt for Nothing {
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let left = self.size.load(Relaxed).saturating_sub(offset);
        let n = into.len().min(left as usize);
        into[..n].fill(0);
        Ok(n)
    }
}

impl WritableFile for Nothing {
    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn drop_set_id(&self) -> Result<()> {
        Ok(())
    }

    fn write_at(&self, from: &[u8], offset: u64) -> Result<()> {
        self.size.fetch_max(offset + from.len() as u64, Relaxed);
        Ok(())
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        Ok(self.size.fetch_add(from.len() as u64, Relaxed))
    }

    fn publish(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// A method to write or read a file.
struct Case {
    name: &'static str,
    bytes_each: usize,
    count: usize,
    clients: usize,
    operate: fn(&File, &mut [u8], u64),
}

fn write(file: &File, buffer: &mut [u8], offset: u64) {
    file.write_all_at(buffer, offset).unwrap();
}

fn read(file: &File, buffer: &mut [u8], offset: u64) {
    file.read_exact_at(buffer, offset).unwrap();
}

/// Returns MiB/s of `clients` threads, each with its own descriptor, which take turns along the
/// file.
fn time(path: &Path, case: &Case, writes: bool) -> f64 {
    let files: Vec<File> = (0..case.clients)
        .map(|_| OpenOptions::new().read(!writes).write(writes).open(path).unwrap())
        .collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (client, file) in files.iter().enumerate() {
            scope.spawn(move || {
                let mut buffer = vec![7; case.bytes_each];
                for number in (client..case.count).step_by(case.clients) {
                    (case.operate)(file, &mut buffer, (number * case.bytes_each) as u64);
                }
            });
        }
    });
    (case.count * case.bytes_each) as f64 / (1 << 20) as f64 / start.elapsed().as_secs_f64()
}

/// Returns the requests between two snapshots, by name.
fn describe_requests(before: Snapshot, after: Snapshot) -> String {
    let pairs = before.pairs().zip(after.pairs());
    let grown = pairs.filter(|((_, before), (_, after))| after > before);
    let words: Vec<String> = grown.map(|((name, b), (_, a))| format!("{name} {}", a - b)).collect();
    words.join(", ")
}

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let session =
        quell_fuse::mount_at(Arc::new(Discard::default()), dir.path(), &Options::default()).unwrap();
    let path = dir.path().join(NAME);
    let case = |name, bytes_each, count, clients, operate| Case { name, bytes_each, count, clients, operate };
    let cases = [
        case("write, 47,008 bytes", RECORD_BYTES, 8192, 1, write as fn(&File, &mut [u8], u64)),
        case("write, 47,008 bytes, 4 clients", RECORD_BYTES, 8192, 4, write),
        case("write, 4 KiB", 4 << 10, 16_384, 1, write),
        case("write, 8 KiB, 4 clients", 8 << 10, 32_768, 4, write),
        case("write, 1 MiB", 1 << 20, 1024, 1, write),
        case("write, 16 MiB", 16 << 20, 64, 1, write),
        case("read, 47,008 bytes", RECORD_BYTES, 8192, 1, read),
        case("read, 47,008 bytes, 4 clients", RECORD_BYTES, 8192, 4, read),
        case("read, 4 KiB", 4 << 10, 16_384, 1, read),
        case("read, 8 KiB, 4 clients", 8 << 10, 32_768, 4, read),
        case("read, 1 MiB", 1 << 20, 1024, 1, read),
        case("read, 16 MiB", 16 << 20, 64, 1, read),
    ];
    for case in &cases {
        let writes = case.name.starts_with("write");
        let mut best = 0f64;
        let mut seen = String::new();
        for _ in 0..ROUNDS {
            if writes {
                OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
            } else {
                let whole = (case.bytes_each * case.count) as u64;
                OpenOptions::new().write(true).open(&path).unwrap().set_len(whole).unwrap();
            }
            let before = session.counters().snapshot();
            let rate = time(&path, case, writes);
            if rate > best {
                best = rate;
                seen = describe_requests(before, session.counters().snapshot());
            }
        }
        println!("{:32}{best:9.0} MiB/s   {seen}", case.name);
    }
    for (name, write) in [("open for reading and close", false), ("open for writing and close", true)] {
        let mut best = f64::MAX;
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            for _ in 0..OPENS {
                OpenOptions::new().read(!write).write(write).open(&path).unwrap();
            }
            best = best.min(begin.elapsed().as_secs_f64() * 1e6 / f64::from(OPENS));
        }
        println!("{name:32}{best:9.1} us");
    }
}
