//! `quell log fsck`: checks all data in the stores, and repairs everything that can be repaired
//! without loss. Every header, name, frame and block is verified; no value is trusted, no symbolic
//! link is followed, and only names that belong to the stores are changed. Without a repair nothing
//! is written.
//!
//! Repaired are: index logs, which can be rebuilt from the data logs; torn ends of data logs of
//! ended writers; writers that ended without their `closed` name; remains of interrupted creations
//! and removals. Damaged bytes stay as they are, and reading them is an error.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Kind, Rename, Result, Time};

use crate::container::container_dir::{
    ACCESS, Container, FIRST_EPOCH, LOG_PERMISSIONS, data_name, epoch_name, index_name, remove_shallow,
};
use crate::container::missing::missing;
use crate::format::extents::Piece;
use crate::format::flat::Flat;
use crate::format::frames::{Frames, Order};
use crate::format::heads::{HEAD_BYTES, HeadKind};
use crate::format::index_log;
use crate::format::meta::{Closed, Holder, MetaName, Summary};
use crate::format::naming::{OWN, is_own};
use crate::format::runs::{Run, Runs};
use crate::session::scan;
use crate::session::view::View;
use crate::stores::store_set::{StoreNumber, Stores, number_name, owners_of};
use crate::stores::tree::{Entry, Found, Oddity, StoredDir, find};
use crate::tools::crew::{self, Tally};
use crate::tools::log_check::{self, LogFacts, Standing};
use crate::tools::problem::{Finding, Problem, RepairOutcome};
use crate::tools::report;

/// Number of frames in a batch of a rebuilt index log.
const BATCH_FRAMES: usize = 1 << 14;
/// Prefix of the temporary name of a rebuilt index log.
const NEW: &str = ".new-";
/// Number of attempts to check a file that changes during the check.
const TRIES: usize = 3;

/// The options of a check.
pub struct Checking<'a> {
    pub threads: usize,
    pub repair: bool,
    /// Nodes, or boots of nodes, that the user states to be dead: their writers are dead.
    pub dead: &'a [String],
    /// Writers that are to be retired even if they may be alive, at the user's request.
    pub ended: &'a [u64],
    /// The current time, and the minimum age in seconds of remains that are removed.
    pub now: Time,
    pub old_seconds: i64,
    /// Returns true if a process of this node has an open file below a name in a store's `.quell`
    /// directory.
    pub is_used: &'a (dyn Fn(StoreNumber, &[&[u8]]) -> bool + Sync),
}

impl fmt::Debug for Checking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checking").field("repair", &self.repair).finish_non_exhaustive()
    }
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct Checked {
    pub files: u64,
    pub bytes: u64,
    /// Number of open writers that are not known to be dead.
    pub open: u64,
    pub findings: Vec<Finding>,
    /// Numbers of the containers that were found.
    numbers: HashSet<u128>,
}

enum Task {
    Dir(Vec<u8>),
    File(Arc<StoredDir>, Entry, Vec<u8>),
}

struct Work<'a> {
    stores: &'a Arc<Stores>,
    how: &'a Checking<'a>,
    tally: &'a Tally,
    checked: Mutex<Checked>,
    /// Number of threads for the logs of one file. All threads if only one file is checked.
    each: usize,
}

/// Checks the file or directory at `path`. For the root, the `.quell` directories of the stores are
/// checked, too.
pub fn check(stores: &Arc<Stores>, path: &[u8], how: &Checking<'_>, tally: &Tally) -> Result<Checked> {
    let (first, is_all, is_file) = match find(stores, path)? {
        Found::Dir(dir) => (Task::Dir(clean(path)), dir.is_root(), false),
        Found::Entry(dir, entry) if entry.kind == Kind::File => {
            (Task::File(Arc::new(dir), entry, clean(path)), false, true)
        }
        Found::Entry(..) => return Ok(Checked::default()),
    };
    let each = if is_file { how.threads } else { 1 };
    let work = Work { stores, how, tally, checked: Mutex::default(), each };
    crew::run(how.threads, vec![first], tally, &|task, more| match task {
        Task::Dir(path) => {
            if let Err(error) = work.dir(&path, more) {
                work.found(&path, Problem::not_checked(error), RepairOutcome::NotRepaired);
            }
        }
        Task::File(dir, entry, path) => work.file(&dir, &entry, &path),
    });
    if is_all && !tally.is_stopped() {
        // All containers must be known before log directories in `parts` are reported as orphaned.
        let stores = 0..stores.count();
        let areas = stores.clone().map(|store| work.own(store));
        for done in areas.chain(stores.map(|store| work.parts(store))) {
            if let Err(error) = done {
                work.found(b"", Problem::not_checked(error), RepairOutcome::NotRepaired);
            }
        }
    }
    let mut checked = work.checked.into_inner().unwrap_or_else(PoisonError::into_inner);
    checked.bytes = tally.bytes();
    checked.findings.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(checked)
}

/// Returns the path in the form in which it is shown.
fn clean(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.collect::<Vec<_>>().join(&b'/')
}

impl Work<'_> {
    fn note<T>(&self, note: impl FnOnce(&mut Checked) -> T) -> T {
        note(&mut self.checked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn found(&self, path: &[u8], problem: Problem, outcome: RepairOutcome) {
        self.note(|checked| checked.findings.push(Finding { path: path.to_vec(), problem, outcome }));
    }

    /// Records a problem as `found` does, after a repair if repairs were requested.
    fn mend(&self, path: &[u8], problem: Problem, repair: impl FnOnce() -> Result<()>) {
        let outcome = match self.how.repair.then(repair) {
            None => RepairOutcome::NotRepaired,
            Some(Ok(())) => RepairOutcome::Repaired,
            Some(Err(error)) => RepairOutcome::Failed(error.to_string()),
        };
        self.found(path, problem, outcome);
    }

    /// Returns the path of a store, for messages.
    fn store_text(&self, store: StoreNumber) -> String {
        match self.stores.paths().get(store).filter(|path| !path.is_empty()) {
            Some(path) => format!("the store {}", quell_vfs::printable(path)),
            None => format!("store {store}"),
        }
    }

    fn odd(&self, why: Oddity, store: StoreNumber) -> Problem {
        let text = self.store_text(store);
        match why {
            Oddity::Foreign => Problem::foreign_entry(&text),
            Oddity::SeveralStores => Problem::file_in_several_stores(&text),
            Oddity::FileAndOther => Problem::hidden_by_file(),
            Oddity::NotInFirst => Problem::not_in_first_store(&text, &self.store_text(0)),
            Oddity::Missing => Problem::directory_missing(&text),
        }
    }

    fn dir(&self, path: &[u8], more: &mut Vec<Task>) -> Result<()> {
        let Found::Dir(dir) = find(self.stores, path)? else { return Ok(()) };
        let listing = dir.list()?;
        let below = |name: &[u8]| if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
        for odd in listing.odd {
            self.found(&below(&odd.stored), self.odd(odd.why, odd.store), RepairOutcome::NotRepaired);
        }
        let dir = Arc::new(dir);
        for entry in listing.entries.into_iter().rev() {
            let path = below(&entry.name);
            match entry.kind {
                Kind::File => more.push(Task::File(Arc::clone(&dir), entry, path)),
                Kind::Dir => more.push(Task::Dir(path)),
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&self, dir: &StoredDir, entry: &Entry, path: &[u8]) {
        let container = match dir.open(entry) {
            Ok(container) => container,
            Err(error) if error.kind == ErrorKind::NotFound => {
                // Removed meanwhile, or never a container.
                if dir.lookup(&entry.name).is_ok_and(|now| now.as_ref() == Some(entry)) {
                    self.found(path, Problem::not_a_container(), RepairOutcome::NotRepaired);
                }
                return;
            }
            Err(error) => {
                return self.found(path, Problem::not_checked(error), RepairOutcome::NotRepaired);
            }
        };
        self.note(|checked| checked.numbers.insert(container.number()));
        for _ in 0..TRIES {
            let looked = self.look(&container);
            if self.tally.is_stopped() {
                return; // the check is incomplete, so nothing may be repaired
            }
            match looked {
                // A concurrent writer can cause apparent problems.
                Ok(looked) if looked.is_clean() || !looked.has_changed(&container) => {
                    self.note(|checked| {
                        checked.files += 1;
                        checked.open += looked.open;
                    });
                    self.tally.add_file();
                    return self.mend_file(&container, path, looked);
                }
                Err(error)
                    if error.kind != ErrorKind::NotFound
                        || dir.lookup(&entry.name).is_ok_and(|now| now.as_ref() == Some(entry)) =>
                {
                    return self.found(path, Problem::not_checked(error), RepairOutcome::NotRepaired);
                }
                Err(_) => return, // removed meanwhile
                Ok(_) => {}
            }
        }
        self.found(path, Problem::not_checked("it changes during every attempt"), RepairOutcome::NotRepaired);
    }

    fn is_gone(&self, holder: &Holder) -> bool {
        let name = holder.node.split_once('.').map_or("", |(_, name)| name);
        let is_dead = self.how.dead.iter().any(|node| *node == holder.node || node == name);
        is_dead || (self.stores.host().is_gone)(holder)
    }

    /// Checks one container completely. Writes nothing.
    fn look(&self, container: &Container) -> Result<Looked> {
        let names = sorted(container.meta()?.names()?);
        let summary = Summary::of(names.iter().cloned());
        let mut problems = Vec::new();
        for name in names.iter().filter(|name| MetaName::decode(name).is_none()) {
            problems.push(Problem::foreign_name(&format!("meta/{}", shown(name))));
        }
        container.dir().stat(ACCESS)?;
        let mut writers: BTreeMap<u64, Standing> = BTreeMap::new();
        let mut open = 0;
        for running in &summary.open {
            let is_gone = self.is_gone(&running.holder) || self.how.ended.contains(&running.writer);
            open += u64::from(!is_gone);
            writers.insert(running.writer, Standing::Open { running: running.clone(), is_gone });
        }
        for closed in &summary.closed {
            writers.insert(closed.writer, Standing::Closed(*closed));
        }
        let mut leftovers = Vec::new();
        self.names(container, &mut writers, &mut problems, &mut leftovers)?;
        let waiting: Vec<(u64, Standing)> = writers.into_iter().collect();
        let logs: Mutex<Vec<Result<LogFacts>>> = Mutex::default();
        crew::run(self.each, waiting, self.tally, &|(writer, standing), _| {
            let facts = log_check::look(container, writer, standing, &summary, self.tally);
            logs.lock().unwrap_or_else(PoisonError::into_inner).push(facts);
        });
        let logs = logs.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut logs = logs.into_iter().collect::<Result<Vec<_>>>()?;
        logs.sort_by_key(|log| log.writer);
        let (epochs, names_of_flats) = container.epochs_and_flats()?;
        let flats = flats(container, &summary, names_of_flats)?;
        let used = logs.iter().filter_map(|log| log.epochs).map(|(_, last)| last);
        let used = used.max().unwrap_or(0).max(summary.epoch());
        let taken = epochs.last().copied().unwrap_or(FIRST_EPOCH);
        let epoch_used = (used > taken).then_some(used);
        let damage = damage(container, &summary, &logs)?;
        Ok(Looked { names, summary, problems, leftovers, flats, logs, damage, epoch_used, open })
    }

    /// Checks the names in the container and its log directories, and collects the writers with
    /// logs.
    fn names(
        &self,
        container: &Container,
        writers: &mut BTreeMap<u64, Standing>,
        problems: &mut Vec<Problem>,
        leftovers: &mut Vec<(u32, Vec<u8>)>,
    ) -> Result<()> {
        for name in container.dir().names()? {
            let text = std::str::from_utf8(&name).unwrap_or("");
            let hex = |prefix| text.strip_prefix(prefix).and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let number = hex("logs-").and_then(|number| u32::try_from(number).ok());
            let number = number.filter(|number| {
                *number < container.head().directories && text == format!("logs-{number:x}")
            });
            let Some(number) = number else {
                let is_known = matches!(text, "container" | "access" | "meta")
                    || hex("epoch-").is_some()
                    || text.starts_with("flat-");
                if !is_known {
                    problems.push(Problem::foreign_name(&shown(&name)));
                }
                continue;
            };
            let logs = match container.stores().open_logs(container, number, false) {
                Ok(logs) => logs,
                Err(error) => {
                    problems.push(Problem::not_checked(format_args!("{text}: {error}")));
                    continue;
                }
            };
            for file in logs.names()? {
                let text = std::str::from_utf8(&file).unwrap_or("");
                let log = text.strip_suffix(".data").or(text.strip_suffix(".index"));
                let writer =
                    log.filter(|log| log.len() == 16).and_then(|log| u64::from_str_radix(log, 16).ok());
                match writer {
                    Some(writer)
                        if writer % u64::from(container.head().directories) == u64::from(number)
                            && (file == data_name(writer) || file == index_name(writer)) =>
                    {
                        writers.entry(writer).or_insert(Standing::Nobody);
                    }
                    _ if text.starts_with(NEW) => {
                        if self.is_old(&*logs, &file)? {
                            leftovers.push((number, file));
                        }
                    }
                    _ => problems.push(Problem::foreign_name(&format!("logs-{number:x}/{}", shown(&file)))),
                }
            }
        }
        Ok(())
    }

    /// Returns true if `name` did not change for so long that no process is using it.
    fn is_old(&self, dir: &dyn WritableDir, name: &[u8]) -> Result<bool> {
        let Some(stat) = missing(dir.stat(name))? else { return Ok(false) };
        let last = stat.changed.max(stat.modified).seconds;
        Ok(last <= self.how.now.seconds.saturating_sub(self.how.old_seconds))
    }

    fn mend_file(&self, container: &Container, path: &[u8], looked: Looked) {
        let Looked { summary, problems, leftovers, flats, logs, damage, epoch_used, .. } = looked;
        for problem in problems.into_iter().chain(damage) {
            self.found(path, problem, RepairOutcome::NotRepaired);
        }
        if let Some(epoch) = epoch_used {
            self.mend(path, Problem::untaken_epoch(epoch), || {
                match container.dir().create_file(&epoch_name(epoch), LOG_PERMISSIONS) {
                    Err(error) if error.kind != ErrorKind::Exists => Err(error),
                    _ => container.dir().sync(),
                }
            });
        }
        for (number, name) in leftovers {
            let text = format!("logs-{number:x}/{}", shown(&name));
            self.mend(path, Problem::leftover(&text, &self.store_text(container.home())), || {
                container.stores().open_logs(container, number, false)?.remove(&name)
            });
        }
        for (name, why) in flats {
            // Readers use the logs instead, and the flat index can be created again.
            self.mend(path, Problem::flat_index(&shown(&name), why), || container.dir().remove(&name));
        }
        for log in logs {
            self.mend_log(container, &summary, path, &log);
        }
    }

    fn mend_log(&self, container: &Container, summary: &Summary, path: &[u8], log: &LogFacts) {
        let writer = log.writer;
        for problem in &log.problems {
            self.found(path, problem.clone(), RepairOutcome::NotRepaired);
        }
        let mut is_sound = true;
        let mut mend = |problem, repair: &dyn Fn() -> Result<()>| {
            // After a failed repair nothing else of this log is changed.
            self.mend(path, problem, || match is_sound {
                true => repair().inspect_err(|_| is_sound = false),
                false => Err(Error::new(ErrorKind::Unsupported, "repair", b"what comes before failed")),
            });
        };
        // Read before the repair, which changes it.
        let modified = log_modified(container, writer);
        if let Some(bytes) = log.torn_bytes {
            mend(Problem::torn_end(writer, bytes), &|| {
                let data = container.open_data_for_repair(writer)?;
                data.set_size(log.good_place)?;
                data.sync()
            });
        }
        if let Some(why) = log.index_defect {
            match log.can_index {
                true => mend(Problem::index_log(writer, why), &|| {
                    // Flat indices may have been created from the damaged index log; readers do not
                    // depend on them.
                    container.flats()?.iter().try_for_each(|name| container.dir().remove(name))?;
                    self.index_anew(container, log)
                }),
                false => self.found(path, Problem::index_log(writer, why), RepairOutcome::NotRepaired),
            }
        }
        match &log.standing {
            Standing::Open { running, is_gone: true } => {
                let problem = Problem::dead_writer(writer, &running.holder);
                if !log.can_retire {
                    return self.found(path, problem, RepairOutcome::NotRepaired);
                }
                let open = MetaName::Open(running.clone());
                mend(problem, &|| self.retire(container, summary, log, &open, modified));
            }
            Standing::Closed(closed) if log.closed_is_wrong => {
                let problem = Problem::wrong_closed_name(writer);
                if !log.can_retire {
                    return self.found(path, problem, RepairOutcome::NotRepaired);
                }
                mend(problem, &|| {
                    let from = MetaName::Closed(*closed);
                    self.retire(container, summary, log, &from, Some(closed.time))
                });
            }
            Standing::Closed(closed) if log.is_dead => {
                mend(Problem::needless_closed_name(writer), &|| container.remove_meta(&MetaName::Closed(*closed)));
            }
            _ => {}
        }
    }

    /// Rebuilds the index log from the data log under a temporary name, and replaces the old one.
    fn index_anew(&self, container: &Container, log: &LogFacts) -> Result<()> {
        let writer = log.writer;
        let dir = container.logs_of(writer, false)?;
        let Some((data, _)) = scan::data(container, writer)? else {
            return Err(Error::new(ErrorKind::NotFound, "open", data_name(writer)));
        };
        // The new index log records that the data log was synced.
        container.open_data_for_repair(writer)?.sync()?;
        let temporary = [NEW.as_bytes(), &number_name(self.stores.random_number())[..]].concat();
        let index = dir.create_file(&temporary, LOG_PERMISSIONS)?;
        let write = || -> Result<()> {
            container.give_to_owner(&*index)?;
            index.write_at(&container.head().of(HeadKind::Index, writer).encode(), 0)?;
            let block_bytes = container.head().block_bytes.into();
            let mut batch = NewBatch::new(block_bytes, 0, HEAD_BYTES as u64);
            let mut place = HEAD_BYTES as u64;
            let mut append = |batch: &mut NewBatch| -> Result<()> {
                let bytes = batch.encoded();
                index.write_at(&bytes, place)?;
                place += bytes.len() as u64;
                Ok(())
            };
            let begin = (HEAD_BYTES as u64, 0);
            scan::frames(&*data, block_bytes, begin, &mut |place, head, runs| {
                if place >= log.good_place {
                    return Ok(false);
                }
                batch.push(head.bytes(), head.payload_bytes, head.epoch, head.sequence, &runs);
                if batch.count >= BATCH_FRAMES {
                    append(&mut batch)?;
                }
                Ok(true)
            })?;
            if batch.count > 0 {
                append(&mut batch)?;
            }
            if batch.position + batch.frames.position() != log.good_position {
                return Err(Error::new(ErrorKind::Stale, "read", data_name(writer)));
            }
            index.sync()?;
            dir.rename(&temporary, &*dir, &index_name(writer), Rename::Replace)?;
            dir.sync()
        };
        let written = write();
        if written.is_err() {
            let _ = dir.remove(&temporary);
        }
        written
    }

    /// Creates the `closed` name of a dead writer, or corrects it.
    fn retire(
        &self,
        container: &Container,
        summary: &Summary,
        log: &LogFacts,
        from: &MetaName,
        modified: Option<Time>,
    ) -> Result<()> {
        let writer = log.writer;
        let Some((first_epoch, last_epoch)) = log.epochs else {
            // The writer has no complete frame.
            missing(container.remove_logs(writer))?;
            return container.remove_meta(from);
        };
        let Some((data, _)) = scan::data(container, writer)? else {
            return Err(Error::new(ErrorKind::NotFound, "open", data_name(writer)));
        };
        container.open_data_for_repair(writer)?.sync()?;
        // Unsynced data that was lost is a hole; the file keeps its size.
        let mut end = log.lost_end;
        let block_bytes = container.head().block_bytes.into();
        scan::frames(&*data, block_bytes, (HEAD_BYTES as u64, 0), &mut |place, head, runs| {
            if place >= log.good_place {
                return Ok(false);
            }
            let order = Order { epoch: head.epoch, sequence: head.sequence, writer };
            let limit = summary.cuts.limit(order, place + head.bytes());
            end = runs.iter().map(|run| run.end().min(limit)).fold(end, u64::max);
            Ok(true)
        })?;
        let time = modified.unwrap_or_default();
        let data_bytes = log.good_place;
        let is_synced = true; // by the call above
        let closed = Closed { writer, first_epoch, last_epoch, end, data_bytes, time, is_synced, boot: 0 };
        container.rename_meta(from, &MetaName::Closed(closed))?;
        container.meta()?.sync()
    }

    /// Checks a store's `.quell` directory: containers under construction and removed containers.
    fn own(&self, store: StoreNumber) -> Result<()> {
        let root = &self.stores.roots()[store];
        for name in root.names()? {
            if is_own(&name) && name != OWN && self.is_old(&**root, &name)? {
                let problem = Problem::leftover(&shown(&name), &self.store_text(store));
                self.mend(b"", problem, || remove_shallow(&**root, &name));
            }
        }
        let own = root.open_writable_dir(OWN)?;
        for area in [&b"new"[..], b"trash"] {
            // A drained store has no `new`.
            let Some(dir) = missing(own.open_writable_dir(area))? else { continue };
            for name in dir.names()? {
                let container = Container::open(self.stores, store, &*dir, &name).ok();
                let number = container.as_ref().map(Container::number);
                // A copy that `quell log rebalance` has moved to `trash` has the number of a file
                // that is in use.
                let is_in_use = self.note(|checked| number.is_some_and(|n| !checked.numbers.insert(n)));
                if !self.is_old(&*dir, &name)? || (self.how.is_used)(store, &[area, &name]) {
                    continue;
                }
                let summary = container.as_ref().and_then(|container| container.summary().ok());
                if summary.is_some_and(|s| s.is_being_written(|holder| self.is_gone(holder))) {
                    continue; // a process may still write to it
                }
                let text = format!(".quell/{}/{}", shown(area), shown(&name));
                self.mend(b"", Problem::leftover(&text, &self.store_text(store)), || {
                    let owners = container.as_ref().map(|container| owners_of(container.dir()));
                    remove_shallow(&*dir, &name)?;
                    match (number, owners.transpose()?) {
                        (Some(number), Some(owners)) if !is_in_use => self.remove_parts(number, &owners),
                        _ => Ok(()),
                    }
                });
            }
        }
        Ok(())
    }

    /// Checks the log directories of containers in other stores.
    fn parts(&self, store: StoreNumber) -> Result<()> {
        let own = self.stores.roots()[store].open_writable_dir(OWN)?;
        for name in own.open_writable_dir(b"parts")?.names()? {
            let number = std::str::from_utf8(&name).ok().and_then(|hex| u128::from_str_radix(hex, 16).ok());
            let is_known = self.note(|checked| number.is_some_and(|n| checked.numbers.contains(&n)));
            if !is_known {
                let text = format!(".quell/parts/{}", shown(&name));
                // Never removed: the container may be in a store that was not given.
                self.found(b"", Problem::orphan_parts(&text, &self.store_text(store)), RepairOutcome::NotRepaired);
            }
        }
        Ok(())
    }

    fn remove_parts(&self, number: u128, owners: &[u32]) -> Result<()> {
        for root in self.stores.roots() {
            let parts = root.open_writable_dir(OWN)?.open_writable_dir(b"parts")?;
            if parts.stat(&number_name(number)).is_ok_and(|stat| !owners.contains(&stat.uid)) {
                continue; // owned by another user, so it does not belong to this container
            }
            missing(remove_shallow(&*parts, &number_name(number)))?;
        }
        Ok(())
    }
}

/// A batch that is built from frames.
struct NewBatch {
    frames: Frames,
    runs: Runs,
    position: u64,
    count: usize,
}

impl NewBatch {
    fn new(block_bytes: u64, position: u64, place: u64) -> NewBatch {
        NewBatch { frames: Frames::new(block_bytes, place), runs: Runs::default(), position, count: 0 }
    }

    fn push(&mut self, head: u64, payload: u64, epoch: u64, sequence: u64, runs: &[Run]) {
        self.frames.push(head, payload, epoch, sequence);
        for run in runs {
            (0..run.count).for_each(|i| self.runs.push(run.start_of(i), run.length));
        }
        // An extent never spans frames.
        self.runs.cut();
        self.count += 1;
    }

    /// Encodes the batch, whose part of the data log was synced, and begins the next one at its
    /// end.
    fn encoded(&mut self) -> Vec<u8> {
        let place = self.frames.groups()[0].place;
        let bytes = index_log::encode(&self.frames, self.runs.finish(), self.position, place, true);
        let position = self.position + self.frames.position();
        *self = NewBatch::new(self.frames.block_bytes(), position, self.frames.place());
        bytes
    }
}

/// The result of checking one container.
struct Looked {
    names: Vec<Vec<u8>>,
    summary: Summary,
    problems: Vec<Problem>,
    /// Temporary names of index logs whose rebuilding was interrupted.
    leftovers: Vec<(u32, Vec<u8>)>,
    /// Flat indices that cannot be used, and the reason.
    flats: Vec<(Vec<u8>, &'static str)>,
    logs: Vec<LogFacts>,
    damage: Vec<Problem>,
    epoch_used: Option<u64>,
    open: u64,
}

impl Looked {
    fn is_clean(&self) -> bool {
        self.problems.is_empty()
            && self.damage.is_empty()
            && self.flats.is_empty()
            && self.epoch_used.is_none()
            && self.logs.iter().all(LogFacts::is_clean)
    }

    /// Returns true if names in `meta` changed during the check.
    fn has_changed(&self, container: &Container) -> bool {
        match container.meta().and_then(|meta| meta.names()) {
            Ok(names) => sorted(names) != self.names,
            Err(_) => true,
        }
    }
}

fn sorted(mut names: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    names.sort_unstable();
    names
}

fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

fn log_modified(container: &Container, writer: u64) -> Option<Time> {
    let (file, _) = scan::data(container, writer).ok()??;
    Some(file.stat().ok()?.modified)
}

/// Returns the flat indices that are damaged or contradict the logs, and the reason.
fn flats(
    container: &Container,
    summary: &Summary,
    names: Vec<Vec<u8>>,
) -> Result<Vec<(Vec<u8>, &'static str)>> {
    let mut wrong = Vec::new();
    if names.is_empty() {
        return Ok(wrong);
    }
    let view = report::view_of(container, summary, 1)?;
    for name in names {
        let sound = match container.open_flat(&name) {
            // Readers ignore it.
            Ok(flat) if !flat.is_usable(&summary.cuts) => Ok(true),
            Ok(flat) => says_the_same(&flat, &view, summary),
            Err(error) => Err(error),
        };
        match sound {
            Ok(true) => {}
            Ok(false) => wrong.push((name, "differs from the logs")),
            Err(error) if error.kind == ErrorKind::Damaged => wrong.push((name, "is damaged")),
            Err(error) if error.kind == ErrorKind::NotFound => {} // replaced meanwhile
            Err(error) => return Err(error),
        }
    }
    Ok(wrong)
}

/// Returns true if the flat index agrees with the logs, apart from later changes.
fn says_the_same(flat: &Flat, view: &View, summary: &Summary) -> Result<bool> {
    let (logs, known) = (view.logs(), flat.logs());
    let (mut is_same, mut asked) = (true, Ok(()));
    flat.extents(0, u64::MAX, &mut |extent| {
        let log = &known[extent.log as usize];
        let frame = log.frames.frame(extent.position);
        let order = Order { epoch: frame.epoch, sequence: frame.sequence, writer: log.writer };
        let limit = summary.cuts.limit(order, frame.payload_place);
        let pieces = view.pieces(extent.start, extent.end(), &mut |piece| match piece {
            Piece::Data(now) => {
                let holder = &logs[now.log as usize];
                is_same &= now.start >= limit
                    || holder.order(now.position) > order
                    || holder.writer == log.writer
                        && now.position == extent.position + (now.start - extent.start);
            }
            Piece::Hole(start, _) => is_same &= limit <= start,
        });
        asked = std::mem::replace(&mut asked, Ok(())).and(pieces);
    })?;
    asked?;
    // The flat index must also contain all extents.
    let positions: HashMap<u64, u64> = known.iter().map(|log| (log.writer, log.frames.position())).collect();
    let mut lacks = Ok(false);
    view.pieces(0, view.size(), &mut |piece| {
        let Piece::Data(now) = piece else { return };
        let holder = &logs[now.log as usize];
        if !matches!(lacks, Ok(false)) || positions.get(&holder.writer).is_none_or(|end| now.position >= *end)
        {
            return;
        }
        let mut bytes = 0;
        let visited = flat.extents(now.start, now.end(), &mut |extent| bytes += u64::from(extent.length));
        lacks = visited.map(|()| bytes < u64::from(now.length));
    })?;
    Ok(is_same && !lacks?)
}

/// Returns the damaged ranges of the file, by whether the file still holds them.
fn damage(container: &Container, summary: &Summary, logs: &[LogFacts]) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    if logs.iter().all(|log| log.damaged.is_empty() && log.lost.is_empty()) {
        return Ok(problems);
    }
    let resolved = report::Resolved::with(container, summary.clone(), 1)?;
    for log in logs {
        let (mut held, mut lost, mut unused) = (Vec::new(), Vec::new(), Vec::new());
        for (bad, to) in [(&log.damaged, &mut held), (&log.lost, &mut lost)] {
            for (position, start, end) in bad {
                resolved.became(log.writer, *position, *start, end - start, &mut |wrote| {
                    let to = if wrote.fate == report::Fate::Held { &mut *to } else { &mut unused };
                    to.push((wrote.start, wrote.end));
                })?;
            }
        }
        if !lost.is_empty() {
            problems.push(Problem::lost_unsynced(log.writer, joined(lost)));
        }
        if !held.is_empty() {
            problems.push(Problem::damaged_ranges(log.writer, joined(held)));
        }
        if !unused.is_empty() {
            problems.push(Problem::damaged_unused_ranges(log.writer, joined(unused)));
        }
    }
    Ok(problems)
}

/// Sorts ranges and merges adjacent ones.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some((_, last)) if *last >= start => *last = end.max(*last),
            _ => joined.push((start, end)),
        }
    }
    joined
}

#[cfg(test)]
#[path = "check_test.rs"]
mod tests;
