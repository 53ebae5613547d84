//! Histories of a file that several mounts have open and truncate in turn while the others write.
//!
//! Each mount writes to its own stripes and syncs every write, so the content is determined after
//! every operation, regardless of the order that an implementation gives to concurrent writes: a
//! truncation removes the data written before it, and no data written after it has returned. Some
//! operations are interrupted by a power failure.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_vfs::{Change, Context, ErrorKind, FileSystem, NewEntry, NodeId, OpenMode, WritableFile, errno};

use super::crash::CrashImplementation;
use super::operation::bytes_of;
use crate::{MemoryStore, Random};

const NAME: &[u8] = b"file";
const STRIPE_BYTES: usize = 64;
const STRIPES: usize = 24;
const OPERATIONS: usize = 60;

/// Runs one history with `mounts` mounts per seed and panics with a report if the content is wrong.
pub fn check(implementation: &CrashImplementation<'_>, mounts: usize, seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let stores: Vec<MemoryStore> = (0..implementation.stores).map(|_| MemoryStore::new()).collect();
        let mut history = History {
            implementation,
            mounts: Vec::new(),
            stores,
            restarts: 0,
            random: Random::new(seed),
            expected: Vec::new(),
            number: 0,
            log: String::new(),
        };
        let outcome = history.run(mounts);
        if let Err(wrong) = outcome {
            let History { number, log, .. } = &history;
            panic!(
                "{}: seed {seed}, {mounts} mounts: operation {number}: {wrong}\n{log}",
                implementation.name
            );
        }
    }
}

struct OpenMount {
    // The file is dropped before its mount.
    file: Option<Box<dyn WritableFile>>,
    fs: Arc<dyn FileSystem>,
}

struct History<'a> {
    implementation: &'a CrashImplementation<'a>,
    mounts: Vec<OpenMount>,
    stores: Vec<MemoryStore>,
    /// The number of restarts of the nodes.
    restarts: u64,
    random: Random,
    expected: Vec<u8>,
    number: usize,
    log: String,
}

/// The effect of an operation on the file.
enum Effect {
    Write(usize, Vec<u8>),
    /// Zeros from the first to the second offset, within the file.
    Zeros(usize, usize),
    Truncate(usize),
    Nothing,
}

type HistoryResult<T> = Result<T, String>;

fn succeeded<T>(what: &str, result: quell_vfs::Result<T>) -> HistoryResult<T> {
    result.map_err(|error| format!("{what}: {error}"))
}

impl History<'_> {
    fn run(&mut self, mounts: usize) -> HistoryResult<()> {
        self.mount(mounts);
        let CrashImplementation { uid, gid, .. } = *self.implementation;
        let fs = Arc::clone(&self.mounts[0].fs);
        let verbs = fs.writable().expect("it may be changed");
        let made = verbs.create(
            &Context::OWN,
            fs.root(),
            NAME,
            NewEntry { permissions: 0o644, uid, gid },
            OpenMode::READ_WRITE,
        );
        let (_, file) = succeeded("create", made)?;
        succeeded("sync", file.sync())?;
        succeeded("sync the directory", verbs.sync_dir(&Context::OWN, fs.root()))?;
        self.mounts[0].file = Some(file);
        for _ in 0..OPERATIONS {
            self.number += 1;
            let (number, what) = (self.random.below(mounts), self.random.below(20));
            if self.random.one_in(40) {
                if !self.lose_power(number, what, mounts)? {
                    return Ok(());
                }
            } else {
                let effect = self.step(number, what)?;
                self.expected = applied(&self.expected, &effect);
            }
            if self.random.one_in(3) {
                let fresh = (self.implementation.make)(&self.stores, self.restarts);
                let found = succeeded("read through another mount", content(&*fresh))?;
                self.same("another mount", &found)?;
            }
        }
        Ok(())
    }

    fn mount(&mut self, mounts: usize) {
        self.mounts = (0..mounts)
            .map(|_| OpenMount { file: None, fs: (self.implementation.make)(&self.stores, self.restarts) })
            .collect();
    }

    fn log(&mut self, what: std::fmt::Arguments<'_>) {
        writeln!(self.log, "{:6}  {what}", self.number).expect("text grows");
    }

    fn same(&self, reader: &str, found: &[u8]) -> HistoryResult<()> {
        if found == self.expected {
            return Ok(());
        }
        let place = found.iter().zip(&self.expected).position(|(a, b)| a != b);
        let (found, expected) = (found.len(), self.expected.len());
        Err(format!("{reader} reads {found} bytes of {expected}; the first other one is at {place:?}"))
    }

    /// Performs one operation of a mount and syncs it; returns its effect on the file.
    fn step(&mut self, mount: usize, what: usize) -> HistoryResult<Effect> {
        let stripe = self.random.below(STRIPES) * self.mounts.len() + mount;
        let from = self.random.below(STRIPE_BYTES);
        let bytes = bytes_of(self.number, 1 + self.random.below(STRIPE_BYTES - from));
        let size = if self.random.one_in(2) { 0 } else { self.random.below(STRIPES * STRIPE_BYTES) };
        let process = self.random.below(2) as u32;
        let fs = Arc::clone(&self.mounts[mount].fs);
        if self.mounts[mount].file.is_none() {
            let mode = OpenMode { truncate: what == 0, ..OpenMode::READ_WRITE };
            self.log(format_args!("mount {mount}: open, truncate: {}", mode.truncate));
            let node = succeeded("find", node(&*fs))?;
            let verbs = fs.writable().expect("it may be changed");
            let file = succeeded("open", verbs.open_as(&Context::for_process(process), node, mode))?;
            if mode.truncate {
                succeeded("sync", file.sync())?;
            }
            self.mounts[mount].file = Some(file);
            return Ok(if mode.truncate { Effect::Truncate(0) } else { Effect::Nothing });
        }
        let file = self.mounts[mount].file.as_ref().expect("it is open");
        match what {
            0 => {
                let offset = stripe * STRIPE_BYTES + from;
                let written = file.write_zeros(offset as u64, bytes.len() as u64).and_then(|()| file.sync());
                let end = offset + bytes.len();
                self.log(format_args!("mount {mount}: write zeros and sync {offset} .. {end}"));
                succeeded("write zeros and sync", written)?;
                Ok(Effect::Zeros(offset, end))
            }
            1..10 => {
                let offset = stripe * STRIPE_BYTES + from;
                let written = file.write_at(&bytes, offset as u64).and_then(|()| file.sync());
                self.log(format_args!("mount {mount}: write and sync {offset} .. {}", offset + bytes.len()));
                succeeded("write and sync", written)?;
                Ok(Effect::Write(offset, bytes))
            }
            10..15 => {
                let change = Change { size_bytes: Some(size as u64), ..Change::default() };
                let verbs = fs.writable().expect("it may be changed");
                let cut = node(&*fs)
                    .and_then(|node| verbs.change(&Context::OWN, node, &change))
                    .and_then(|_| file.sync());
                self.log(format_args!("mount {mount}: truncate to {size} and sync"));
                succeeded("truncate and sync", cut)?;
                Ok(Effect::Truncate(size))
            }
            15..18 => {
                let found = file.sync().and_then(|()| read(&**file));
                self.log(format_args!("mount {mount}: sync and read"));
                self.same(&format!("mount {mount}"), &succeeded("sync and read", found)?)?;
                Ok(Effect::Nothing)
            }
            _ => {
                let closed = file.publish();
                self.log(format_args!("mount {mount}: close"));
                self.mounts[mount].file = None;
                succeeded("close", closed)?;
                Ok(Effect::Nothing)
            }
        }
    }

    /// Performs an operation during which power fails; returns whether the file can be read
    /// afterwards.
    fn lose_power(&mut self, mount: usize, what: usize, mounts: usize) -> HistoryResult<bool> {
        // The operation attempted does not depend on the time of the failure.
        let left = Arc::new(AtomicU64::new(1 + self.random.below(25) as u64));
        for store in &self.stores {
            let left = Arc::clone(&left);
            store.fail(move |_| {
                let is_on = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                is_on.is_err().then_some(errno::EIO)
            });
        }
        let before = self.expected.clone();
        let stripe_writes = self.stripe_writes(mount, what);
        let attempted = self.step(mount, what);
        self.log(format_args!("power is lost: {:?}", attempted.as_ref().map(|_| ())));
        let seed = self.random.number();
        let after =
            self.stores.iter().enumerate().map(|(i, store)| store.crash(seed.wrapping_add(i as u64 * 8)));
        let after: Vec<MemoryStore> = after.collect();
        self.mounts.clear();
        self.stores = after;
        self.restarts += 1;
        self.mount(mounts);
        let found = match content(&*self.mounts[0].fs) {
            Ok(found) => found,
            // A block whose sync did not succeed may be damaged.
            Err(error) if error.kind == ErrorKind::Damaged && stripe_writes && attempted.is_err() => {
                return Ok(false);
            }
            Err(error) => return Err(format!("read after the loss of power: {error}")),
        };
        if let Ok(effect) = attempted {
            self.expected = applied(&before, &effect);
            self.same("after the loss of power, a mount", &found)?;
            return Ok(true);
        }
        // The data being written may be present in part; a truncation has happened or not.
        let may_be = |place: usize| {
            let is_own = (place / STRIPE_BYTES) % mounts == mount;
            found.get(place) == before.get(place)
                || stripe_writes && (is_own || before.get(place).is_none() && found.get(place) == Some(&0))
        };
        let is_longer = !stripe_writes && found.len() > before.len() && found.starts_with(&before);
        let is_cut = !stripe_writes && before.starts_with(&found);
        let is_right = is_cut
            || is_longer && found[before.len()..].iter().all(|byte| *byte == 0)
            || found.len() >= before.len() && (0..found.len()).all(may_be);
        self.expected = before;
        if !is_right {
            self.same("after the loss of power, a mount", &found)?;
        }
        self.expected = found;
        // The content found is the expected content from now on; the sync makes it survive the next
        // power failure.
        let fs = Arc::clone(&self.mounts[0].fs);
        let node = succeeded("find", node(&*fs))?;
        let file = succeeded(
            "open",
            fs.writable().expect("it may be changed").open_as(&Context::OWN, node, OpenMode::READ_WRITE),
        )?;
        succeeded("sync", file.sync())?;
        Ok(true)
    }

    /// Returns whether the operation writes data.
    fn stripe_writes(&self, mount: usize, what: usize) -> bool {
        self.mounts[mount].file.is_some() && what < 10
    }
}

fn applied(before: &[u8], effect: &Effect) -> Vec<u8> {
    let mut after = before.to_vec();
    match effect {
        Effect::Write(offset, bytes) => {
            let end = offset + bytes.len();
            after.resize(after.len().max(end), 0);
            after[*offset..end].copy_from_slice(bytes);
        }
        Effect::Zeros(start, end) => {
            let end = (*end).min(after.len());
            after[(*start).min(end)..end].fill(0);
        }
        Effect::Truncate(size) => after.resize(*size, 0),
        Effect::Nothing => {}
    }
    after
}

fn node(fs: &dyn FileSystem) -> quell_vfs::Result<NodeId> {
    let found = fs.lookup(&Context::OWN, fs.root(), NAME)?;
    found
        .map(|found| found.into_attributes().node)
        .ok_or_else(|| quell_vfs::Error::new(ErrorKind::NotFound, "find", NAME))
}

fn content(fs: &dyn FileSystem) -> quell_vfs::Result<Vec<u8>> {
    let node = node(fs)?;
    let file = fs.writable().expect("it may be changed").open_as(&Context::OWN, node, OpenMode::READ)?;
    let found = read(&*file)?;
    let size = fs.attributes(&Context::OWN, node)?.size_bytes;
    assert_eq!(found.len() as u64, size, "bytes that can be read, and the size");
    Ok(found)
}

/// Returns all data of the file.
fn read(file: &dyn WritableFile) -> quell_vfs::Result<Vec<u8>> {
    let mut bytes = vec![0xAA; 2 * STRIPES * STRIPE_BYTES * 4];
    let n = file.read_at(&mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}
