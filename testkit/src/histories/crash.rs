//! Histories that end with a power failure, or with killed processes, on an implementation whose
//! stores are in memory. Afterwards another mount must work and find permitted data in each byte.
//!
//! After a power failure the following must be present: a file of which any handle was synced,
//! under its name; the writes of a handle before its last sync; sizes set before the last sync of
//! any handle. After a kill: the same for publishing instead of syncing; sizes and names are
//! durable immediately. Everything else may be present in any part: a byte is one of the bytes
//! written at its offset since the last write that must be present, or zero where the file was
//! shorter. Histories do not rename or remove files, because each implementation defines the result
//! of that itself.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use quell_vfs::{Change, Context, ErrorKind, FileSystem, NewEntry, NodeId, OpenMode, WritableFile, errno};

use super::operation::bytes_of;
use crate::{MemoryStore, Random, Writeback};

const NAMES: usize = 3;
const SLOTS: usize = 5;
const FILE_BYTES: usize = 16_000;
/// The number of successive mounts.
const MOUNTS: usize = 4;

/// Mounts the stores on a node that was restarted this number of times.
pub type MountStores<'a> = dyn Fn(&[MemoryStore], u64) -> Arc<dyn FileSystem> + 'a;

/// An implementation mounted on stores in memory.
pub struct CrashImplementation<'a> {
    /// The name for messages.
    pub name: &'a str,
    /// The number of stores it uses.
    pub stores: usize,
    /// Mounts the stores in any state that an earlier mount left. The number is the number of
    /// restarts of the node.
    pub make: &'a MountStores<'a>,
    /// The owner of new files.
    pub uid: u32,
    /// The group of new files.
    pub gid: u32,
    /// Whether unsynced data may be damaged after a power failure, so that it cannot be read: a
    /// whole file that was never synced, and in other files the unsynced parts. A damaged file can
    /// be removed.
    pub unsynced_damage: bool,
}

impl std::fmt::Debug for CrashImplementation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CrashImplementation").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The kind of failure in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Each mount ends with a kill or with a power failure.
    KillOrPowerLoss,
    /// Each mount ends with a kill.
    Kill,
    /// Each mount ends with a power failure.
    PowerLoss,
    /// The stores are full for some time.
    NoSpace,
    /// The writeback of unsynced data fails, and most of it is lost.
    Writeback,
    /// No name can be created for some time.
    NoInodes,
}

impl Failure {
    /// The failures with a test of their own, and their names for a command line.
    pub const NAMED: [(&'static str, Failure); 5] = [
        ("kill", Failure::Kill),
        ("power-loss", Failure::PowerLoss),
        ("no-space", Failure::NoSpace),
        ("writeback", Failure::Writeback),
        ("no-inodes", Failure::NoInodes),
    ];

    /// Returns whether this failure can be the cause of `error`.
    fn explains(self, error: &quell_vfs::Error) -> bool {
        match self {
            Failure::KillOrPowerLoss | Failure::Kill | Failure::PowerLoss => false,
            Failure::NoSpace | Failure::NoInodes => error.kind == ErrorKind::NoSpace,
            Failure::Writeback => error.errno() == errno::EIO,
        }
    }
}

/// Runs one history per seed and panics with a report if data is wrong.
pub fn check(implementation: &CrashImplementation<'_>, seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        if let Err(report) = run(implementation, Failure::KillOrPowerLoss, seed) {
            panic!("{}: {report}", implementation.name);
        }
    }
}

/// Runs the history of a seed; the error describes the wrong data and the operations before it.
pub fn run(implementation: &CrashImplementation<'_>, failure: Failure, seed: u64) -> Result<(), String> {
    let mut history = History {
        failure,
        restarts: 0,
        random: Random::new(seed),
        new: NewEntry { permissions: 0o644, uid: implementation.uid, gid: implementation.gid },
        files: BTreeMap::new(),
        number: 0,
        log: String::new(),
    };
    let mut stores: Vec<MemoryStore> = (0..implementation.stores).map(|_| MemoryStore::new()).collect();
    let outcome = (0..MOUNTS).try_for_each(|_| history.one_mount(implementation, &mut stores));
    outcome.map_err(|wrong| format!("seed {seed}: {wrong}\noperations until then:{}", history.log))
}

/// The content at an offset: a byte, or `None` if the file ends before it.
type Content = Option<u8>;

enum Effect {
    Write { offset: usize, bytes: Vec<u8> },
    Size(usize),
}

struct Performed {
    effect: Effect,
    /// The open file of a write; `None` for changes of the size.
    handle: Option<usize>,
    /// Whether the operation succeeded, and no later close has reported that it was lost.
    acknowledged: bool,
    published: bool,
    synced: bool,
}

/// The writes that must be present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guarantee {
    /// The writes that are visible on the mount that made them.
    Acknowledged,
    /// The writes that survive a kill.
    Published,
    /// The writes that survive a power failure.
    Synced,
}

impl Guarantee {
    fn has(self, done: &Performed) -> bool {
        match self {
            Guarantee::Acknowledged => done.acknowledged,
            Guarantee::Published => done.published,
            Guarantee::Synced => done.synced,
        }
    }
}

impl Performed {
    fn end(&self) -> usize {
        match &self.effect {
            Effect::Write { offset, bytes } => offset + bytes.len(),
            Effect::Size(size) => *size,
        }
    }
}

/// The expected state of a file.
#[derive(Default)]
struct ExpectedFile {
    /// The data at the start of this mount.
    base: Vec<u8>,
    done: Vec<Performed>,
    name_synced: bool,
}

impl ExpectedFile {
    /// Returns the ranges written but not synced.
    fn unsynced(&self) -> impl Iterator<Item = Range<usize>> {
        self.done.iter().filter(|done| !done.synced).filter_map(|done| match &done.effect {
            Effect::Write { offset, bytes } => Some(*offset..offset + bytes.len()),
            Effect::Size(_) => None,
        })
    }

    /// Checks whether the file may have this content.
    fn check(&self, bytes: &[u8], safe: Guarantee) -> Result<(), String> {
        let is_safe = |done: &Performed| safe.has(done);
        // One additional offset represents all offsets beyond.
        let end =
            bytes.len().max(self.base.len()).max(self.done.iter().map(Performed::end).max().unwrap_or(0)) + 1;
        let found: Vec<Content> = (0..end).map(|offset| bytes.get(offset).copied()).collect();
        let states = self.evaluate(0, &found, is_safe);
        let Some(offset) = states.iter().position(|state| !state.permitted) else { return Ok(()) };
        let end =
            states[offset..].iter().position(|state| state.permitted).map_or(found.len(), |n| offset + n);
        let contents = std::iter::once(None).chain((0..=u8::MAX).map(Some));
        let may: Vec<_> = contents.filter(|c| self.evaluate(offset, &[*c], is_safe)[0].permitted).collect();
        Err(format!(
            "has {:02x?} at {offset}, where it may have {may:02x?} (None: it ends before that); so up to {end}",
            found[offset]
        ))
    }

    /// Returns, for each offset from `begin` on, whether the content found there is permitted.
    fn evaluate(
        &self,
        begin: usize,
        found: &[Content],
        is_safe: impl Fn(&Performed) -> bool,
    ) -> Vec<OffsetState> {
        let base = |offset: usize| self.base.get(offset).copied();
        let begun = |(i, found): (usize, &Content)| OffsetState {
            found: *found,
            permitted: *found == base(begin + i),
            may_end_before: base(begin + i).is_none(),
        };
        let mut states: Vec<OffsetState> = found.iter().enumerate().map(begun).collect();
        let within = |from: usize, to: usize| {
            let clamp = |at: usize| at.clamp(begin, begin + found.len()) - begin;
            clamp(from)..clamp(to)
        };
        for done in &self.done {
            let safe = is_safe(done);
            match &done.effect {
                Effect::Write { offset, bytes } => {
                    let end = offset + bytes.len();
                    states[within(0, *offset)].iter_mut().for_each(|state| state.reach(safe));
                    let range = within(*offset, end);
                    // A file may become longer before its data is written.
                    states[range.clone()].iter_mut().for_each(|state| state.reach(false));
                    for i in range {
                        states[i].put(Some(bytes[begin + i - offset]), safe);
                    }
                }
                Effect::Size(size) => {
                    states[within(0, *size)].iter_mut().for_each(|state| state.reach(safe));
                    states[within(*size, usize::MAX)].iter_mut().for_each(|state| state.put(None, safe));
                }
            }
        }
        states
    }

    /// Returns the expected state after this content was found.
    fn after(mut self, bytes: Vec<u8>, killed: bool) -> ExpectedFile {
        if !killed {
            return ExpectedFile { base: bytes, done: Vec::new(), name_synced: true };
        }
        // The data was published by processes that no longer exist and cannot sync it, so a power
        // failure may still lose it.
        let size = Effect::Size(bytes.len());
        for effect in [Effect::Write { offset: 0, bytes }, size] {
            let handle = Some(usize::MAX);
            self.done.push(Performed { effect, handle, acknowledged: true, published: true, synced: false });
        }
        self
    }
}

/// The state of one offset after the operations considered so far.
struct OffsetState {
    found: Content,
    /// Whether the content found is among the permitted contents.
    permitted: bool,
    may_end_before: bool,
}

impl OffsetState {
    fn put(&mut self, content: Content, safe: bool) {
        let (permitted, ends) = (content == self.found, content.is_none());
        self.permitted = permitted || (self.permitted && !safe);
        self.may_end_before = ends || (self.may_end_before && !safe);
    }

    /// Records that the file extends beyond this offset: the byte is zero if nothing was written
    /// there.
    fn reach(&mut self, safe: bool) {
        if self.may_end_before {
            self.permitted = self.found == Some(0) || (self.permitted && !(safe && self.found.is_none()));
            self.may_end_before = !safe;
        }
    }
}

struct Slot {
    name: usize,
    handle: usize,
    node: NodeId,
    file: Box<dyn WritableFile>,
}

struct History {
    failure: Failure,
    restarts: u64,
    random: Random,
    new: NewEntry,
    files: BTreeMap<usize, ExpectedFile>,
    number: usize,
    log: String,
}

fn file_name(name: usize) -> String {
    format!("f{name}")
}

impl History {
    fn log(&mut self, what: std::fmt::Arguments<'_>) {
        write!(self.log, "\n{:6}  {what}", self.number).expect("text grows");
    }

    /// Checks the stores, performs operations, and ends with a failure.
    fn one_mount(
        &mut self,
        implementation: &CrashImplementation<'_>,
        stores: &mut Vec<MemoryStore>,
    ) -> Result<(), String> {
        let fs = (implementation.make)(stores, self.restarts);
        let mut slots: Vec<Option<Slot>> = (0..SLOTS).map(|_| None).collect();
        for _ in 0..5 + self.random.below(70) {
            self.number += 1;
            self.make_trouble(stores);
            match self.step(&*fs, &mut slots) {
                Err(e) if self.failure.explains(&e) => self.log(format_args!("failed: {e}")),
                done => done.map_err(|e| format!("operation {}: {e}", self.number))?,
            }
        }
        for store in stores.iter() {
            store.set_free_bytes(None);
            store.set_inodes(None);
        }
        self.number += 1;
        if !matches!(self.failure, Failure::KillOrPowerLoss | Failure::Kill | Failure::PowerLoss) {
            for (name, expected) in &self.files {
                self.check_file(&*fs, *name, expected, Guarantee::Acknowledged)
                    .map_err(|wrong| format!("on the same mount: {wrong}"))?;
            }
        }
        let (by_chance, seed) = (self.random.one_in(3), self.random.number());
        let killed = match self.failure {
            Failure::Kill => true,
            Failure::PowerLoss => false,
            _ => by_chance,
        };
        self.log(format_args!("-- {} --", if killed { "killed" } else { "power lost" }));
        let after = stores.iter().enumerate();
        let after =
            after.map(|(i, s)| if killed { s.kill() } else { s.crash(seed.wrapping_add(i as u64 * 8)) });
        *stores = after.collect();
        drop((slots, fs));
        self.restarts += u64::from(!killed);
        let fs = (implementation.make)(stores, self.restarts);
        for (name, expected) in std::mem::take(&mut self.files) {
            let unsynced = !killed && !expected.name_synced;
            let may_be_damaged =
                !killed && implementation.unsynced_damage || self.failure == Failure::Writeback;
            let safe = if killed { Guarantee::Published } else { Guarantee::Synced };
            match found_again(&*fs, name, &expected, killed) {
                Ok(Some(bytes)) => drop(self.files.insert(name, expected.after(bytes, killed))),
                Ok(None) => {}
                Err(Mismatch::Refused(wrong)) if may_be_damaged => {
                    if !unsynced {
                        self.check_file(&*fs, name, &expected, safe)?;
                    }
                    let verbs = fs.writable().expect("it may be changed");
                    let removed = verbs.remove(&Context::OWN, fs.root(), file_name(name).as_bytes());
                    // Without this sync, a later power failure may restore the removed file in
                    // place of a file that is created now.
                    let removed = removed.and_then(|()| verbs.sync_dir(&Context::OWN, fs.root()));
                    removed.map_err(|e| format!("{wrong}, and it cannot be removed: {e}"))?;
                }
                Err(Mismatch::Refused(wrong) | Mismatch::Bytes(wrong)) => return Err(wrong),
            }
        }
        Ok(())
    }

    /// Occasionally starts or ends a failure.
    fn make_trouble(&mut self, stores: &[MemoryStore]) {
        match self.failure {
            Failure::KillOrPowerLoss | Failure::Kill | Failure::PowerLoss => {}
            Failure::NoSpace | Failure::NoInodes => {
                if !self.random.one_in(8) {
                    return;
                }
                let left = (!self.random.one_in(3)).then(|| self.random.below(5) as u64);
                self.log(format_args!("space for {left:?} more"));
                for store in stores {
                    match self.failure {
                        Failure::NoSpace => store.set_free_bytes(left.map(|blocks| blocks * 4096)),
                        _ => store.set_inodes(left),
                    }
                }
            }
            Failure::Writeback => {
                if self.random.one_in(6) {
                    stores.iter().for_each(MemoryStore::evict);
                    self.log(format_args!("pages leave memory"));
                }
                if !self.random.one_in(8) {
                    return;
                }
                let (seed, all) = (self.random.number(), self.random.one_in(3));
                let after = *self.random.pick(&[Writeback::Dropped, Writeback::Kept]);
                let hit = |path: &[u8]| {
                    path.ends_with(b".data")
                        || all && [&b".index"[..], b"/container"].iter().any(|end| path.ends_with(end))
                };
                let count: usize = stores.iter().map(|store| store.fail_writeback(seed, after, hit)).sum();
                self.log(format_args!("writeback of {count} files fails ({after:?})"));
            }
        }
    }

    /// Checks that every readable byte is permitted, and that unreadable ones are damaged and were
    /// not synced: after a power failure, or after a failed writeback.
    fn check_file(
        &self,
        fs: &dyn FileSystem,
        name: usize,
        expected: &ExpectedFile,
        safe: Guarantee,
    ) -> Result<(), String> {
        let text = file_name(name);
        let is_lost = |e: &quell_vfs::Error| {
            let may_be = self.failure == Failure::Writeback || safe == Guarantee::Synced;
            may_be && e.errno() == errno::EIO
        };
        let torn: Vec<Range<usize>> = expected.unsynced().collect();
        let all_lost = |e: quell_vfs::Error| {
            // The lost bytes can no longer be identified.
            if self.failure == Failure::Writeback
                && is_lost(&e)
                && (!torn.is_empty() || !expected.name_synced)
            {
                Ok(())
            } else {
                Err(format!("{text}: {e}"))
            }
        };
        let found = match fs.lookup(&Context::OWN, fs.root(), text.as_bytes()) {
            Ok(Some(found)) => found,
            Ok(None) => return Err(format!("{text} is gone")),
            Err(e) => return all_lost(e),
        };
        let file = match fs.open(&Context::OWN, found.node) {
            Ok(file) => file,
            Err(e) => return all_lost(e),
        };
        let size = found.size_bytes as usize;
        let check = |offset: usize, found: &[Content]| {
            let states = expected.evaluate(offset, found, |done| safe.has(done));
            match states.iter().position(|state| !state.permitted) {
                Some(n) => Err(format!("{text} has {:02x?} at {}", found[n], offset + n)),
                None => Ok(()),
            }
        };
        check(size, &[None])?;
        // If the frame headers are lost, it is unknown which bytes the frames had, and none can be
        // read.
        let is_unreadable = |offset: usize| file.read_at(&mut [0], offset as u64).is_err_and(|e| is_lost(&e));
        let may_be_lost = self.failure == Failure::Writeback && size > 0 && !torn.is_empty();
        let all_is_lost = || may_be_lost && (0..32).all(|i| is_unreadable(i * size / 32));
        if all_is_lost() {
            return Ok(());
        }
        let mut ranges = Vec::new();
        ranges.push(0..size);
        while let Some(range) = ranges.pop().filter(|range| !range.is_empty()) {
            let mut bytes = vec![0xAA; range.len()];
            match file.read_at(&mut bytes, range.start as u64) {
                Ok(count) if count == range.len() => {
                    check(range.start, &bytes.into_iter().map(Some).collect::<Vec<_>>())?;
                }
                Ok(count) => {
                    return Err(format!("{text} ends at {}, and stat says {size}", range.start + count));
                }
                Err(e) if is_lost(&e) && range.len() == 1 => {
                    if !torn.iter().any(|torn| torn.contains(&range.start)) {
                        // The mount knew the positions of the data until it had to read the frame
                        // headers again.
                        if all_is_lost() {
                            return Ok(());
                        }
                        return Err(format!("{text}: {} was synced, and is lost: {e}", range.start));
                    }
                }
                Err(e) if is_lost(&e) => {
                    let middle = range.start + range.len() / 2;
                    ranges.extend([range.start..middle, middle..range.end]);
                }
                Err(e) => return Err(format!("{text} at {range:?}: {e}")),
            }
        }
        Ok(())
    }

    fn step(&mut self, fs: &dyn FileSystem, slots: &mut [Option<Slot>]) -> quell_vfs::Result<()> {
        let verbs = fs.writable().expect("it may be changed");
        let number = self.random.below(SLOTS);
        let what = self.random.below(20);
        let Some(slot) = &slots[number] else {
            slots[number] = Some(self.open(fs, number)?);
            return Ok(());
        };
        let expected = self.files.get_mut(&slot.name).expect("what is open is expected");
        let name = file_name(slot.name);
        match what {
            0..11 => {
                let offset = self.random.below(FILE_BYTES);
                let most = if self.random.one_in(3) { 5000 } else { 300 };
                let count = 1 + self.random.below(most);
                let bytes = bytes_of(self.number, count);
                let end = if what < 3 { slot.file.attributes()?.size_bytes as usize } else { FILE_BYTES };
                let appended = end < FILE_BYTES;
                let written = if appended {
                    slot.file.append(&bytes).map(|at| at as usize)
                } else {
                    slot.file.write_at(&bytes, offset as u64).map(|()| offset)
                };
                let offset = match &written {
                    Ok(offset) => *offset,
                    Err(_) if appended => end,
                    Err(_) => offset,
                };
                let handle = Some(slot.handle);
                let (effect, acknowledged) = (Effect::Write { offset, bytes }, written.is_ok());
                expected.done.push(Performed {
                    effect,
                    handle,
                    acknowledged,
                    published: false,
                    synced: false,
                });
                self.log(format_args!("slot {number}: write {name} {offset} .. {}", offset + count));
                written?;
                if appended && offset != end {
                    let subject = format!("{name}: at {offset}, and it ends at {end}");
                    return Err(quell_vfs::Error::new(ErrorKind::InvalidInput, "append", subject));
                }
            }
            11..14 => {
                slot.file.publish()?;
                let handle = slot.handle;
                let of_it = |d: &&mut Performed| d.handle == Some(handle) && d.acknowledged;
                expected.done.iter_mut().filter(of_it).for_each(|d| d.published = true);
                self.log(format_args!("slot {number}: publish {name}"));
            }
            14..17 => {
                slot.file.sync()?;
                let handle = slot.handle;
                let of_it =
                    |d: &&mut Performed| d.acknowledged && (d.handle.is_none() || d.handle == Some(handle));
                expected.done.iter_mut().filter(of_it).for_each(|d| (d.published, d.synced) = (true, true));
                expected.name_synced = true;
                self.log(format_args!("slot {number}: sync {name}"));
            }
            17 => {
                // Often 0, because logs of writers that have ended are then removed.
                let size = if self.random.one_in(2) { 0 } else { self.random.below(FILE_BYTES) };
                let change = Change { size_bytes: Some(size as u64), ..Change::default() };
                let changed = verbs.change(&Context::OWN, slot.node, &change);
                let (effect, done) = (Effect::Size(size), changed.is_ok());
                expected.done.push(Performed {
                    effect,
                    handle: None,
                    acknowledged: done,
                    published: done,
                    synced: false,
                });
                self.log(format_args!("set the size of {name} to {size}"));
                changed?;
            }
            _ => {
                let Slot { handle, node, file, .. } = slots[number].take().expect("it is open");
                let published = file.close();
                for done in expected.done.iter_mut().filter(|d| d.handle == Some(handle)) {
                    // Data that could not be published may be lost, and this close has reported
                    // that.
                    done.published |= published.is_ok() && done.acknowledged;
                    done.acknowledged &= done.published;
                }
                drop(file);
                verbs.forget(node, 1);
                self.log(format_args!("slot {number}: close {name}"));
                published?;
            }
        }
        Ok(())
    }

    /// Opens a file, and creates it if it does not exist.
    fn open(&mut self, fs: &dyn FileSystem, slot: usize) -> quell_vfs::Result<Slot> {
        let name = self.random.below(NAMES);
        let context = Context::for_process(self.random.below(3) as u32);
        let verbs = fs.writable().expect("it may be changed");
        let text = file_name(name);
        let found = fs.lookup(&context, fs.root(), text.as_bytes());
        let is_damaged = found.as_ref().is_err_and(|error| error.kind == ErrorKind::Damaged);
        if !self.files.contains_key(&name) && (is_damaged || matches!(found, Ok(Some(_)))) {
            // A file that was removed because it was damaged has been restored by another power
            // failure.
            verbs.remove(&context, fs.root(), text.as_bytes())?;
        }
        drop(found);
        let (found, file) = match fs.lookup(&context, fs.root(), text.as_bytes())? {
            Some(found) => {
                let file = verbs.open_as(&context, found.node(), OpenMode::READ_WRITE)?;
                (found, file)
            }
            None => verbs.create(&context, fs.root(), text.as_bytes(), self.new, OpenMode::READ_WRITE)?,
        };
        let node = found.into_attributes().node;
        self.files.entry(name).or_default();
        self.log(format_args!("slot {slot}: open {text} by process {}", context.process));
        Ok(Slot { name, handle: self.number, node, file })
    }
}

/// A wrong state.
enum Mismatch {
    /// The file cannot be looked up, opened or read.
    Refused(String),
    Bytes(String),
}

/// Returns the data of a file on another mount; `None` if it does not exist and need not.
fn found_again(
    fs: &dyn FileSystem,
    name: usize,
    expected: &ExpectedFile,
    killed: bool,
) -> Result<Option<Vec<u8>>, Mismatch> {
    let text = file_name(name);
    let failed = |what: &str, e: quell_vfs::Error| Mismatch::Refused(format!("{what} {text}: {e}"));
    let Some(found) =
        fs.lookup(&Context::OWN, fs.root(), text.as_bytes()).map_err(|e| failed("look up", e))?
    else {
        let needed = killed || expected.name_synced;
        return if needed { Err(Mismatch::Bytes(format!("{text} is gone"))) } else { Ok(None) };
    };
    let file = fs.open(&Context::OWN, found.node).map_err(|e| failed("open", e))?;
    let mut bytes = vec![0xAA; FILE_BYTES * 2];
    let count = file.read_at(&mut bytes, 0).map_err(|e| failed("read", e))?;
    bytes.truncate(count);
    if found.size_bytes != count as u64 {
        let size = found.size_bytes;
        return Err(Mismatch::Bytes(format!("{text} has {count} bytes, and stat says {size}")));
    }
    let safe = if killed { Guarantee::Published } else { Guarantee::Synced };
    expected.check(&bytes, safe).map_err(|wrong| Mismatch::Bytes(format!("{text} {wrong}")))?;
    Ok(Some(bytes))
}
