//! Histories that end with a loss of power, or with the processes killed, on an implementation whose stores are in memory: afterwards
//! another mount finds each byte as it may be, and works.
//!
//! What must be there after a loss of power: a file of which some handle was synced, under its name; what a handle wrote before its last
//! sync; sizes that were set before the last sync of any handle. After a kill: the same of what was published; sizes and names that
//! were set are there at once. Of all else any part may be there: a byte is one of those that were written to its place since the last
//! one that must be, or a zero where the file was shorter. That nothing is renamed or removed here is on purpose: what is there then, is
//! for each implementation to say.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use quell_fs::{Change, ErrorKind, FileSystem, New, NodeId, Open, WritableFile};

use super::operation::bytes_of;
use crate::{MemoryStore, Random};

const NAMES: usize = 3;
const SLOTS: usize = 5;
const FILE_BYTES: usize = 16_000;
/// Mounts that follow one another.
const MOUNTS: usize = 4;

/// How an implementation is mounted on stores in memory.
pub struct CrashWorld<'a> {
    pub name: &'a str,
    /// How many stores it is on.
    pub stores: usize,
    /// Mounts the stores, whatever an earlier mount has left there.
    pub make: &'a dyn Fn(&[MemoryStore]) -> Arc<dyn FileSystem>,
    pub uid: u32,
    pub gid: u32,
    /// A file of which nothing was ever synced may be damaged after a loss of power, so that it cannot be read; and of others the
    /// bytes that were written and not synced. Then it can be removed.
    pub unsynced_damage: bool,
}

impl std::fmt::Debug for CrashWorld<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CrashWorld").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Runs one history for each seed, and panics with a report where something is not as it may be.
pub fn check(world: &CrashWorld<'_>, seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        if let Err(report) = run(world, seed) {
            panic!("{}: {report}", world.name);
        }
    }
}

/// Runs the history of a seed; otherwise says what is wrong, and what led to it.
pub fn run(world: &CrashWorld<'_>, seed: u64) -> Result<(), String> {
    let mut history = History {
        random: Random::new(seed),
        new: New { permissions: 0o644, uid: world.uid, gid: world.gid },
        files: BTreeMap::new(),
        number: 0,
        said: String::new(),
    };
    let mut stores: Vec<MemoryStore> = (0..world.stores).map(|_| MemoryStore::new()).collect();
    let outcome = (0..MOUNTS).try_for_each(|_| history.one_mount(world, &mut stores));
    outcome.map_err(|wrong| format!("seed {seed}: {wrong}\nwhat happened until then:{}", history.said))
}

/// What a byte's place may hold: a byte, or nothing as the file ends before.
type Content = Option<u8>;

enum What {
    Write { offset: usize, bytes: Vec<u8> },
    Size(usize),
}

struct Done {
    what: What,
    /// Which open file it was written with; of sizes, none.
    handle: Option<usize>,
    published: bool,
    synced: bool,
}

impl Done {
    fn end(&self) -> usize {
        match &self.what {
            What::Write { offset, bytes } => offset + bytes.len(),
            What::Size(size) => *size,
        }
    }
}

/// What is known of a file.
#[derive(Default)]
struct Known {
    /// What it began with on this mount.
    base: Vec<u8>,
    done: Vec<Done>,
    name_synced: bool,
}

impl Known {
    /// What was written and not synced.
    fn unsynced(&self) -> impl Iterator<Item = Range<usize>> {
        self.done.iter().filter(|done| !done.synced).filter_map(|done| match &done.what {
            What::Write { offset, bytes } => Some(*offset..offset + bytes.len()),
            What::Size(_) => None,
        })
    }

    /// Whether the file may have these bytes.
    fn check(&self, bytes: &[u8], killed: bool) -> Result<(), String> {
        let is_safe = |done: &Done| if killed { done.published } else { done.synced };
        // One more stands for all that lie beyond.
        let end =
            bytes.len().max(self.base.len()).max(self.done.iter().map(Done::end).max().unwrap_or(0)) + 1;
        let found: Vec<Content> = (0..end).map(|place| bytes.get(place).copied()).collect();
        let places = self.judged(0, &found, is_safe);
        let Some(place) = places.iter().position(|place| !place.right) else { return Ok(()) };
        let end = places[place..].iter().position(|place| place.right).map_or(found.len(), |n| place + n);
        let contents = std::iter::once(None).chain((0..=u8::MAX).map(Some));
        let may: Vec<_> = contents.filter(|c| self.judged(place, &[*c], is_safe)[0].right).collect();
        Err(format!(
            "has {:02x?} at {place}, where it may have {may:02x?} (None: it ends before that); so up to {end}",
            found[place]
        ))
    }

    /// For each place from `begin` on, whether what was found there may be there.
    fn judged(&self, begin: usize, found: &[Content], is_safe: impl Fn(&Done) -> bool) -> Vec<Place> {
        let base = |place: usize| self.base.get(place).copied();
        let begun = |(i, found): (usize, &Content)| Place {
            found: *found,
            right: *found == base(begin + i),
            may_end_before: base(begin + i).is_none(),
        };
        let mut places: Vec<Place> = found.iter().enumerate().map(begun).collect();
        let within = |from: usize, to: usize| {
            let clamp = |at: usize| at.clamp(begin, begin + found.len()) - begin;
            clamp(from)..clamp(to)
        };
        for done in &self.done {
            let safe = is_safe(done);
            match &done.what {
                What::Write { offset, bytes } => {
                    let end = offset + bytes.len();
                    places[within(0, *offset)].iter_mut().for_each(|place| place.reach(safe));
                    let range = within(*offset, end);
                    // What is longer may be so before its bytes are there.
                    places[range.clone()].iter_mut().for_each(|place| place.reach(false));
                    for i in range {
                        places[i].put(Some(bytes[begin + i - offset]), safe);
                    }
                }
                What::Size(size) => {
                    places[within(0, *size)].iter_mut().for_each(|place| place.reach(safe));
                    places[within(*size, usize::MAX)].iter_mut().for_each(|place| place.put(None, safe));
                }
            }
        }
        places
    }

    /// What is known when these bytes were found.
    fn after(mut self, bytes: Vec<u8>, killed: bool) -> Known {
        if !killed {
            return Known { base: bytes, done: Vec::new(), name_synced: true };
        }
        // Published by processes that nobody can ask for a sync any more: power that is lost may take it.
        let size = What::Size(bytes.len());
        for what in [What::Write { offset: 0, bytes }, size] {
            self.done.push(Done { what, handle: Some(usize::MAX), published: true, synced: false });
        }
        self
    }
}

/// A place of the file in what must and may have happened until some moment.
struct Place {
    found: Content,
    /// What was found is among what may be there.
    right: bool,
    may_end_before: bool,
}

impl Place {
    fn put(&mut self, content: Content, safe: bool) {
        let (right, ends) = (content == self.found, content.is_none());
        self.right = right || (self.right && !safe);
        self.may_end_before = ends || (self.may_end_before && !safe);
    }

    /// The file goes beyond this place: where nothing was is a zero.
    fn reach(&mut self, safe: bool) {
        if self.may_end_before {
            self.right = self.found == Some(0) || (self.right && !(safe && self.found.is_none()));
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
    random: Random,
    new: New,
    files: BTreeMap<usize, Known>,
    number: usize,
    said: String,
}

fn file_name(name: usize) -> String {
    format!("f{name}")
}

impl History {
    fn say(&mut self, what: std::fmt::Arguments<'_>) {
        write!(self.said, "\n{:6}  {what}", self.number).expect("text grows");
    }

    /// Looks at what is there, goes on, and ends without warning.
    fn one_mount(&mut self, world: &CrashWorld<'_>, stores: &mut Vec<MemoryStore>) -> Result<(), String> {
        let fs = (world.make)(stores);
        let mut slots: Vec<Option<Slot>> = (0..SLOTS).map(|_| None).collect();
        for _ in 0..5 + self.random.below(70) {
            self.number += 1;
            self.step(&*fs, &mut slots).map_err(|e| format!("operation {}: {e}", self.number))?;
        }
        let (killed, seed) = (self.random.one_in(3), self.random.number());
        self.number += 1;
        self.say(format_args!("-- {} --", if killed { "killed" } else { "power lost" }));
        let after = stores.iter().enumerate();
        let after =
            after.map(|(i, s)| if killed { s.kill() } else { s.crash(seed.wrapping_add(i as u64 * 8)) });
        *stores = after.collect();
        drop((slots, fs));
        let fs = (world.make)(stores);
        for (name, known) in std::mem::take(&mut self.files) {
            let unsynced = !killed && !known.name_synced;
            let torn: Vec<Range<usize>> = known.unsynced().filter(|_| !killed).collect();
            match found_again(&*fs, name, known, killed) {
                Ok(Some(known)) => drop(self.files.insert(name, known)),
                Ok(None) => {}
                Err(Wrong::Refused(wrong))
                    if world.unsynced_damage && (unsynced || damaged_only_in(&*fs, name, &torn)) =>
                {
                    let verbs = fs.writable().expect("it may be changed");
                    let removed = verbs.remove(fs.root(), file_name(name).as_bytes());
                    removed.map_err(|e| format!("{wrong}, and it cannot be removed: {e}"))?;
                }
                Err(Wrong::Refused(wrong) | Wrong::Bytes(wrong)) => return Err(wrong),
            }
        }
        Ok(())
    }

    fn step(&mut self, fs: &dyn FileSystem, slots: &mut [Option<Slot>]) -> quell_fs::Result<()> {
        let verbs = fs.writable().expect("it may be changed");
        let number = self.random.below(SLOTS);
        let what = self.random.below(20);
        let Some(slot) = &slots[number] else {
            slots[number] = Some(self.open(fs, number)?);
            return Ok(());
        };
        let known = self.files.get_mut(&slot.name).expect("what is open is known");
        let name = file_name(slot.name);
        match what {
            0..11 => {
                let offset = self.random.below(FILE_BYTES);
                let most = if self.random.one_in(3) { 5000 } else { 300 };
                let count = 1 + self.random.below(most);
                let bytes = bytes_of(self.number, count);
                let appended = what < 3 && fs.attributes(slot.node)?.size_bytes < FILE_BYTES as u64;
                let offset = if appended { slot.file.append(&bytes)? as usize } else { offset };
                if !appended {
                    slot.file.write_at(&bytes, offset as u64)?;
                }
                let handle = Some(slot.handle);
                let what = What::Write { offset, bytes };
                known.done.push(Done { what, handle, published: false, synced: false });
                self.say(format_args!("slot {number}: write {name} {offset} .. {}", offset + count));
            }
            11..14 => {
                slot.file.publish()?;
                let handle = slot.handle;
                known.done.iter_mut().filter(|d| d.handle == Some(handle)).for_each(|d| d.published = true);
                self.say(format_args!("slot {number}: publish {name}"));
            }
            14..17 => {
                slot.file.sync()?;
                let handle = slot.handle;
                let of_it = |d: &&mut Done| d.handle.is_none() || d.handle == Some(handle);
                known.done.iter_mut().filter(of_it).for_each(|d| (d.published, d.synced) = (true, true));
                known.name_synced = true;
                self.say(format_args!("slot {number}: sync {name}"));
            }
            17 => {
                let size = self.random.below(FILE_BYTES);
                let change = Change { size_bytes: Some(size as u64), ..Change::default() };
                verbs.change(slot.node, &change)?;
                let what = What::Size(size);
                known.done.push(Done { what, handle: None, published: true, synced: false });
                self.say(format_args!("set the size of {name} to {size}"));
            }
            _ => {
                let Slot { handle, node, file, .. } = slots[number].take().expect("it is open");
                file.publish()?;
                known.done.iter_mut().filter(|d| d.handle == Some(handle)).for_each(|d| d.published = true);
                drop(file);
                verbs.forget(node, 1);
                self.say(format_args!("slot {number}: publish {name}, close"));
            }
        }
        Ok(())
    }

    /// Opens a file, made if it is not there.
    fn open(&mut self, fs: &dyn FileSystem, slot: usize) -> quell_fs::Result<Slot> {
        let name = self.random.below(NAMES);
        let how = Open { process: self.random.below(3) as u32, ..Open::READ_WRITE };
        let verbs = fs.writable().expect("it may be changed");
        let text = file_name(name);
        let found = fs.lookup(fs.root(), text.as_bytes());
        let is_damaged = found.as_ref().is_err_and(|error| error.kind == ErrorKind::Damaged);
        if !self.files.contains_key(&name) && (is_damaged || matches!(found, Ok(Some(_)))) {
            // One that was removed as it was damaged is back after another loss of power.
            verbs.remove(fs.root(), text.as_bytes())?;
        }
        let (node, file) = match fs.lookup(fs.root(), text.as_bytes())? {
            Some(found) => (found.node, verbs.open_as(found.node, how)?),
            None => {
                let (made, file) = verbs.create(fs.root(), text.as_bytes(), self.new, how)?;
                (made.node, file)
            }
        };
        self.files.entry(name).or_default();
        self.say(format_args!("slot {slot}: open {text} by process {}", how.process));
        Ok(Slot { name, handle: self.number, node, file })
    }
}

/// What is not as it may be.
enum Wrong {
    /// The file cannot be looked up, opened or read.
    Refused(String),
    Bytes(String),
}

/// Whether the file is there, and bytes that cannot be read are `torn` and damaged.
fn damaged_only_in(fs: &dyn FileSystem, name: usize, torn: &[Range<usize>]) -> bool {
    let Ok(Some(found)) = fs.lookup(fs.root(), file_name(name).as_bytes()) else { return false };
    let Ok(file) = fs.open(found.node) else { return false };
    (0..found.size_bytes as usize).all(|place| match file.read_at(&mut [0], place as u64) {
        Ok(count) => count == 1,
        Err(e) => e.kind == ErrorKind::Damaged && torn.iter().any(|range| range.contains(&place)),
    })
}

/// What another mount finds of a file; `None`: it is not there, and need not be.
fn found_again(fs: &dyn FileSystem, name: usize, known: Known, killed: bool) -> Result<Option<Known>, Wrong> {
    let text = file_name(name);
    let failed = |what: &str, e: quell_fs::Error| Wrong::Refused(format!("{what} {text}: {e}"));
    let Some(found) = fs.lookup(fs.root(), text.as_bytes()).map_err(|e| failed("look up", e))? else {
        let needed = killed || known.name_synced;
        return if needed { Err(Wrong::Bytes(format!("{text} is gone"))) } else { Ok(None) };
    };
    let file = fs.open(found.node).map_err(|e| failed("open", e))?;
    let mut bytes = vec![0xAA; FILE_BYTES * 2];
    let count = file.read_at(&mut bytes, 0).map_err(|e| failed("read", e))?;
    bytes.truncate(count);
    if found.size_bytes != count as u64 {
        let size = found.size_bytes;
        return Err(Wrong::Bytes(format!("{text} has {count} bytes, and stat says {size}")));
    }
    known.check(&bytes, killed).map_err(|wrong| Wrong::Bytes(format!("{text} {wrong}")))?;
    if let Some(verbs) = fs.writable() {
        verbs.forget(found.node, 1);
    }
    Ok(Some(known.after(bytes, killed)))
}
