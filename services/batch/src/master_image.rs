//! The master image of a primary server that can assign partitions of large directories to
//! partition servers.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use quell_threads::{lock, read_lock, try_lock, write_lock};
use quell_vfs::{Error, ErrorKind, Kind, NewEntry, Rename, Result, Time};

use crate::change::InodeChange;
use crate::entries::Entries;
use crate::entry::{Inode, Timestamp};
use crate::image::Image;
use crate::limits::Quota;
use crate::name_space::NameSpace;
use crate::names::{FoundNode, Names, NewNode, Place, Removed, Renamed};
use crate::partition::{
    Assignment, DEPTH_MAX, NewAssignment, Obstacle, PartitionMap, ReturnedChanges, SlotPartitions,
};
use crate::usage::UsageChanges;

/// The largest number of directories whose creations are counted.
const COUNTED_DIRS_MAX: usize = 4096;
/// An operation is begun again this many times if a directory is divided again each time.
const REPETITIONS: usize = 100;

/// The partition servers of a store. A call executes the operation in the server, or, if its
/// process has ended, on the files of the server.
pub trait PartitionServers: Send + Sync {
    /// Returns the numbers of the servers that accept assignments.
    ///
    /// # Errors
    /// The errors of files.
    fn available(&self) -> Result<Vec<u32>>;

    /// Gives an assignment to its server.
    ///
    /// # Errors
    /// `Stale` if it was taken back before; the errors of the server.
    fn assign(&self, new: &NewAssignment) -> Result<()>;

    /// Ends an assignment, and returns the changes of its partitions.
    ///
    /// # Errors
    /// The errors of the server.
    fn give_back(&self, assignment: &Assignment) -> Result<ReturnedChanges>;

    /// Removes the files of an assignment that has ended.
    ///
    /// # Errors
    /// The errors of the server.
    fn forget(&self, assignment: &Assignment) -> Result<()>;

    /// Returns the time of the last change of names of an assignment.
    ///
    /// # Errors
    /// `Stale` if it has ended; the errors of the server.
    fn touched(&self, server: u32, dir: u64, number: u64) -> Result<Option<Timestamp>>;

    /// Waits until all changes of a server survive a power failure.
    ///
    /// # Errors
    /// The errors of the server.
    fn sync(&self, server: u32) -> Result<()>;
}

/// Counters of the divisions of directories since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartitionCounters {
    /// Divisions, including further divisions of divided directories.
    pub divided: u64,
    /// Directories whose partitions were taken back.
    pub taken_back: u64,
    /// Divisions that have failed.
    pub failed: u64,
}

/// The master image of a store.
#[derive(Clone)]
pub(crate) struct MasterImage {
    names: Arc<RwLock<Names<Image>>>,
    division: Option<Arc<Division>>,
    merges: Arc<Merges>,
}

/// The merges of tables.
struct Merges {
    /// Whether there are tables to merge.
    is_due: Arc<AtomicBool>,
    /// Held by the thread that merges tables.
    running: Mutex<()>,
    /// Whether operations leave merges to another thread.
    are_separate: AtomicBool,
}

/// The division of directories into partitions.
struct Division {
    servers: Box<dyn PartitionServers>,
    /// The number of creations in a directory after which it is divided. 0: never.
    divide_after: u64,
    /// The directories that are being divided, or whose partitions are being taken back.
    changing: Mutex<HashSet<u64>>,
    /// Held from the record of an assignment until its server has received it.
    assigning: Mutex<()>,
    /// A directory was removed from `changing`.
    changed: Condvar,
    /// The directories whose partitions could not be taken back, with the time of the failure.
    unreachable: Mutex<HashMap<u64, (Instant, Error)>>,
    /// The times of the last changes of names of assignments, with the times of the requests for
    /// them. A program that creates a file in a mount requests the attributes of the directory
    /// several times, so a request to each partition server for each of them would cost more than
    /// the creation.
    times: Mutex<HashMap<u64, (Instant, Option<Timestamp>)>>,
    /// The time for which these times are kept.
    times_kept: Duration,
    /// The creations in each directory since its last division, or since its partitions were taken
    /// back.
    created: Mutex<HashMap<u64, u64>>,
    divided: AtomicU64,
    taken_back: AtomicU64,
    failed: AtomicU64,
}

impl std::fmt::Debug for MasterImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MasterImage").finish_non_exhaustive()
    }
}

impl MasterImage {
    pub(crate) fn new(image: Image) -> MasterImage {
        let is_due = image.compaction_due().clone();
        let merges = Merges { is_due, running: Mutex::default(), are_separate: AtomicBool::new(false) };
        let names = Arc::new(RwLock::new(Names(image)));
        MasterImage { names, division: None, merges: Arc::new(merges) }
    }

    /// Sets the partition servers. A directory is divided after `creations` creations in it; 0:
    /// never. Its times can be outdated by `times_kept`.
    pub(crate) fn with_servers(
        self,
        servers: Box<dyn PartitionServers>,
        creations: u64,
        times_kept: Duration,
    ) -> MasterImage {
        let division = Division {
            servers,
            divide_after: creations,
            changing: Mutex::default(),
            assigning: Mutex::default(),
            changed: Condvar::new(),
            unreachable: Mutex::default(),
            times: Mutex::default(),
            times_kept,
            created: Mutex::default(),
            divided: AtomicU64::new(0),
            taken_back: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        MasterImage { division: Some(Arc::new(division)), ..self }
    }

    /// Returns the image as it is shared with name spaces of users.
    pub(crate) fn shared(&self) -> &Arc<RwLock<Names<Image>>> {
        &self.names
    }

    /// Locks the image for reading. It may lack the changes of partitions.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Names<Image>> {
        read_lock(&self.names)
    }

    /// Locks the image. It may lack the changes of partitions.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Names<Image>> {
        write_lock(&self.names)
    }

    /// Makes operations leave merges of tables to a thread that calls [`merge`](Self::merge) when
    /// [`needs_merge`](Self::needs_merge) returns true. Otherwise the operation that has added a
    /// table merges.
    pub(crate) fn merge_separately(&self) {
        self.merges.are_separate.store(true, Ordering::Relaxed);
    }

    /// Returns whether an operation has added a table, and tables can be merged.
    pub(crate) fn needs_merge(&self) -> bool {
        self.merges.is_due.load(Ordering::Relaxed)
    }

    /// Merges tables if there are many. Other operations continue meanwhile, and other threads that
    /// call this do not wait for the end.
    ///
    /// # Errors
    /// The errors of files and commits. Then the image is as before.
    pub(crate) fn merge(&self) -> Result<()> {
        let Some(_one) = try_lock(&self.merges.running) else { return Ok(()) };
        self.merges.is_due.store(false, Ordering::Relaxed);
        let begun = self.write().0.begin_compaction();
        let Some(compaction) = begun else { return Ok(()) };
        let merged = compaction.merge(&mut || {
            let image = &mut self.write().0;
            let number = image.reserve_tables(1)?;
            Ok((number, image.pin_tables([number])))
        });
        self.write().0.end_compaction(&compaction, merged)?;
        drop(compaction);
        let image = self.read();
        let (unused, files) = (image.0.unused_tables()?, image.0.files().clone());
        drop(image);
        // Tables of open batches, which can be written again, are not among them.
        unused.into_iter().try_for_each(|number| files.remove(number))
    }

    /// Merges tables if an operation of this process has added one. The operation was successful,
    /// so an error is not reported here: if there are too many tables, a later operation has to
    /// merge them, and reports it.
    pub(crate) fn merge_after_operation(&self) {
        if self.needs_merge() && !self.merges.are_separate.load(Ordering::Relaxed) {
            let _ = self.merge();
        }
    }

    /// Takes back all partitions, and locks the complete image.
    ///
    /// # Errors
    /// The errors of partition servers and of files.
    pub(crate) fn write_complete(&self) -> Result<RwLockWriteGuard<'_, Names<Image>>> {
        for _ in 0..REPETITIONS {
            let names = self.write();
            if names.0.assignments().is_empty() {
                return Ok(names);
            }
            drop(names);
            self.take_back_all()?;
        }
        Err(divided_again())
    }

    /// Takes back all partitions.
    ///
    /// # Errors
    /// As for [`write_complete`](Self::write_complete).
    pub(crate) fn take_back_all(&self) -> Result<()> {
        // The partitions of other servers are taken back also if one server cannot be reached.
        let taken_back = self.divided_dirs().into_iter().map(|dir| self.take_back(dir));
        taken_back.fold(Ok(()), Result::and)
    }

    /// Returns the directories that have partitions.
    pub(crate) fn divided_dirs(&self) -> Vec<u64> {
        let names = self.read();
        let dirs: BTreeSet<u64> = names.0.assignments().all().iter().map(|of| of.partitions.dir).collect();
        dirs.into_iter().collect()
    }

    /// Takes back the partitions of a directory, without the changes of the servers whose files are
    /// missing or damaged.
    ///
    /// # Errors
    /// The errors of other partition servers and of files.
    pub(crate) fn give_up(&self, dir: u64) -> Result<()> {
        let division = self.division()?;
        let _one = division.change(dir);
        let assignments = self.read().0.assignments().of_dir(dir).to_vec();
        for assignment in &assignments {
            let nothing =
                || ReturnedChanges { usage: Some(UsageChanges::default()), ..ReturnedChanges::default() };
            let returned = match division.servers.give_back(assignment) {
                Err(error) if is_lost(&error) => nothing(),
                returned => returned?,
            };
            let taken_back = self.write().0.take_back(assignment, &returned);
            match taken_back {
                Err(error) if is_lost(&error) => self.write().0.take_back(assignment, &nothing())?,
                taken_back => taken_back?,
            }
        }
        Ok(())
    }

    /// Takes back the partitions of a directory.
    ///
    /// # Errors
    /// As for [`write_complete`](Self::write_complete).
    pub(crate) fn take_back(&self, dir: u64) -> Result<()> {
        let (division, begun) = (self.division()?, Instant::now());
        let _one = division.change(dir);
        // Another thread has failed while this one has waited for it.
        if let Some((failed, error)) = lock(&division.unreachable).get(&dir)
            && *failed >= begun
        {
            return Err(copy_of(error));
        }
        let taken_back = self.take_back_of(division, dir);
        let unreachable = &mut lock(&division.unreachable);
        match &taken_back {
            Ok(()) => unreachable.remove(&dir),
            Err(error) => unreachable.insert(dir, (Instant::now(), copy_of(error))),
        };
        taken_back
    }

    /// Waits until a directory is not being divided, and its partitions are not being taken back.
    ///
    /// # Errors
    /// `Unavailable` if the image has no partition servers.
    pub(crate) fn await_division(&self, dir: u64) -> Result<()> {
        drop(self.division()?.change(dir));
        Ok(())
    }

    fn take_back_of(&self, division: &Division, dir: u64) -> Result<()> {
        let assignments = self.read().0.assignments().of_dir(dir).to_vec();
        if assignments.is_empty() {
            return Ok(());
        }
        for assignment in &assignments {
            let returned = division.servers.give_back(assignment)?;
            self.write().0.take_back(assignment, &returned)?;
            lock(&division.times).remove(&assignment.number);
            // The server removes files that remain when it gets the next assignment of the
            // directory.
            let _ = division.servers.forget(assignment);
        }
        lock(&division.created).remove(&dir);
        division.taken_back.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn division(&self) -> Result<&Division> {
        self.division.as_deref().ok_or_else(|| {
            let source = Some("partition servers execute operations on names of the store, and this process cannot use them".into());
            Error { source, ..Error::new(ErrorKind::Unavailable, "use the name space", "") }
        })
    }

    /// Returns the servers of a directory if another server executes the operations on this name.
    ///
    /// # Errors
    /// The errors of reads.
    pub(crate) fn servers_of(&self, dir: u64, name: &[u8]) -> Result<Option<PartitionMap>> {
        self.read().0.servers_of(dir, name)
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> PartitionCounters {
        let Some(division) = &self.division else { return PartitionCounters::default() };
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PartitionCounters {
            divided: value(&division.divided),
            taken_back: value(&division.taken_back),
            failed: value(&division.failed),
        }
    }

    /// Counts a creation, and divides the directory if the number of creations has reached the
    /// limit. The operation has succeeded already, so an error of the division is counted only: the
    /// directory is used as before, or its partitions are taken back with the next operation.
    fn note_creation(&self, dir: u64) {
        let Some(division) = self.division.as_deref().filter(|division| division.divide_after > 0) else {
            return;
        };
        {
            let mut created = lock(&division.created);
            if created.len() >= COUNTED_DIRS_MAX && !created.contains_key(&dir) {
                created.clear();
            }
            let count = created.entry(dir).or_default();
            *count += 1;
            if *count < division.divide_after {
                return;
            }
            *count = 0;
        }
        if self.divide(division, dir).is_err() {
            division.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Divides a directory into twice as many partitions, unless each server has one already.
    fn divide(&self, division: &Division, dir: u64) -> Result<()> {
        let Some(_one) = division.try_change(dir) else { return Ok(()) };
        let servers = division.servers.available()?;
        let before = self.read().0.assignments().map_of(dir);
        let slots_max = servers.len().saturating_add(1).min(1 << DEPTH_MAX);
        let depth = before.as_ref().map_or(0, |map| map.depth) + 1;
        if servers.is_empty() || before.is_some_and(|map| map.servers.len() >= slots_max) || depth > DEPTH_MAX
        {
            return Ok(());
        }
        self.take_back_of(division, dir)?;
        let slots = slots_max.min(1 << depth) as u16; // at most 256
        for slot in 1..slots {
            // The first server depends on the directory, so that directories are distributed over
            // the servers.
            let server = servers[(dir as usize % servers.len() + usize::from(slot)) % servers.len()];
            let partitions = SlotPartitions { dir, depth, slots, slot };
            // A server receives assignments in the order of their numbers.
            let assigning = lock(&division.assigning);
            let Some(new) = self.write().0.assign(partitions, server)? else { return Ok(()) };
            let assigned = division.servers.assign(&new);
            drop(assigning);
            if let Err(error) = assigned {
                // If the partitions cannot be taken back now, the next operation does it.
                let _ = self.take_back_of(division, dir);
                return Err(error);
            }
        }
        division.divided.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Executes an operation. If another server has a name that it needs, the partitions of the
    /// directory are taken back first.
    fn perform<T>(&self, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..REPETITIONS {
            match operation() {
                Err(error) => match Obstacle::of(&error) {
                    Some(Obstacle::AtOtherServer { dir }) => self.take_back(dir)?,
                    Some(Obstacle::NotAssigned) => {} // the division has ended
                    _ => return Err(error),
                },
                done => {
                    self.merge_after_operation();
                    return done;
                }
            }
        }
        Err(divided_again())
    }

    /// Finds a node. The times of a directory with partitions are those of the last change of its
    /// names by any server, as far as it was known [a short time](Division) before.
    fn find_with_times(
        &self,
        find: impl Fn(&Names<Image>) -> Result<Option<FoundNode>>,
    ) -> Result<Option<FoundNode>> {
        let mut has_waited = false;
        self.perform(|| {
            let names = self.read();
            let mut found = find(&names)?;
            let Some(FoundNode { inode, .. }) = &mut found else { return Ok(None) };
            let dir = inode.number;
            // As of the same moment as the inode.
            let assignments: Vec<(u32, u64)> = match inode.kind()? {
                Kind::Dir => {
                    let of_dir = names.0.assignments().of_dir(dir).iter();
                    of_dir.map(|assignment| (assignment.server, assignment.number)).collect()
                }
                _ => Vec::new(),
            };
            drop(names);
            for (server, number) in assignments {
                match self.division()?.touched(server, dir, number) {
                    Ok(touched) => touched.into_iter().for_each(|touched| inode.touch(touched)),
                    // The directory may be being divided.
                    Err(_) if !has_waited => {
                        has_waited = true;
                        self.await_division(dir)?;
                        return Err(Obstacle::NotAssigned.error());
                    }
                    // The server cannot be reached, so its partitions are taken back.
                    Err(_) => return Err(Obstacle::AtOtherServer { dir }.error()),
                }
            }
            Ok(found)
        })
    }
}

impl Division {
    /// Returns the time of the last change of names of an assignment, which may be outdated by
    /// `times_kept`.
    fn touched(&self, server: u32, dir: u64, number: u64) -> Result<Option<Timestamp>> {
        if let Some((asked, touched)) = lock(&self.times).get(&number)
            && asked.elapsed() < self.times_kept
        {
            return Ok(*touched);
        }
        let asked = Instant::now();
        let touched = self.servers.touched(server, dir, number)?;
        lock(&self.times).insert(number, (asked, touched));
        Ok(touched)
    }

    /// Waits until no other thread divides the directory or takes its partitions back, and makes
    /// other threads wait until the value is dropped.
    fn change(&self, dir: u64) -> ChangeGuard<'_> {
        let dirs = self.changed.wait_while(lock(&self.changing), |dirs| dirs.contains(&dir));
        dirs.unwrap_or_else(PoisonError::into_inner).insert(dir);
        ChangeGuard { division: self, dir }
    }

    /// As [`change`](Self::change). `None` if another thread changes the directory.
    fn try_change(&self, dir: u64) -> Option<ChangeGuard<'_>> {
        let is_new = lock(&self.changing).insert(dir);
        is_new.then(|| ChangeGuard { division: self, dir })
    }
}

/// A directory that this thread divides, or whose partitions it takes back.
struct ChangeGuard<'a> {
    division: &'a Division,
    dir: u64,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        lock(&self.division.changing).remove(&self.dir);
        self.division.changed.notify_all();
    }
}

/// Returns whether an error states that files are missing or damaged.
fn is_lost(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Damaged | ErrorKind::NotFound)
}

/// Returns an error of the same kind, with the same reason.
fn copy_of(error: &Error) -> Error {
    let source = error.source.as_ref().map(|source| source.to_string().into());
    Error { source, ..Error::new(error.kind, error.operation, &error.subject) }
}

fn divided_again() -> Error {
    let source = Some("other operations divide its directory repeatedly; repeat the operation".into());
    Error { source, ..Error::new(ErrorKind::Busy, "use a name", "") }
}

impl NameSpace for MasterImage {
    fn is_shared(&self) -> bool {
        Image::IS_SHARED
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        self.find_with_times(|names| names.lookup(dir, name))
    }

    fn lookup_on_path(&self, dir: u64, name: &[u8]) -> Result<Option<FoundNode>> {
        self.perform(|| self.read().lookup(dir, name))
    }

    fn find(&self, number: u64, place: &Place) -> Result<FoundNode> {
        let found = self.find_with_times(|names| names.find(number, place).map(Some))?;
        found.ok_or_else(|| Error::new(ErrorKind::Stale, "read the attributes of a file or directory", ""))
    }

    fn parent(&self, dir: u64) -> Result<(u64, Vec<u8>)> {
        self.read().parent(dir)
    }

    fn list(&self, dir: u64, after: &[u8], visit: &mut dyn FnMut(&[u8], u64, Kind) -> bool) -> Result<()> {
        // The first names are passed only if the directory is not divided.
        self.perform(|| self.read().list(dir, after, visit))
    }

    fn create(&self, dir: u64, name: &[u8], node: NewNode, new: NewEntry, now: Time) -> Result<FoundNode> {
        let created = self.perform(|| self.write().create(dir, name, node.clone(), new, now))?;
        self.note_creation(dir);
        Ok(created)
    }

    fn link(&self, node: (u64, &Place), dir: u64, name: &[u8], now: Time) -> Result<FoundNode> {
        self.perform(|| self.write().link(node, dir, name, now))
    }

    fn remove(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        self.perform(|| self.write().remove(dir, name, now))
    }

    fn remove_dir(&self, dir: u64, name: &[u8], now: Time) -> Result<Removed> {
        self.perform(|| self.write().remove_dir(dir, name, now))
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), mode: Rename, now: Time) -> Result<Renamed> {
        self.perform(|| self.write().rename(from, to, mode, now))
    }

    fn change(&self, node: (u64, &Place), change: &InodeChange, now: Time) -> Result<Inode> {
        self.perform(|| {
            let mut names = self.write();
            if let (number, Place::Dir(_)) = node {
                // The times of the directory become those of the change.
                names.0.check_undivided(number)?;
            }
            names.change(node, change, now)
        })
    }

    fn quota(&self) -> Result<Option<Quota>> {
        Ok(self.read().0.quota())
    }

    fn sync(&self) -> Result<()> {
        let assignments = self.read().0.assignments().all();
        let servers: BTreeSet<u32> = assignments.iter().map(|assignment| assignment.server).collect();
        let mut result = Ok(());
        for server in servers {
            if self.division()?.servers.sync(server).is_err() {
                // Changes that were taken back are durable.
                let of_server = assignments.iter().filter(|assignment| assignment.server == server);
                let mut dirs = of_server.map(|assignment| assignment.partitions.dir);
                result = result.and(dirs.try_for_each(|dir| self.take_back(dir)));
            }
        }
        // After the servers: changes that were taken back meanwhile are included.
        result.and(self.names.sync())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::sync::OnceLock;

    use quell_kv::MemoryStore;

    use super::*;
    use crate::entry::ROOT;
    use crate::files::TableFiles;
    use crate::table_dir::TableDir;

    /// The tables in a directory. For each new table, it records whether no thread has the lock of
    /// the image. The table of a merge can fail.
    struct ObservedFiles {
        dir: TableDir,
        image: OnceLock<MasterImage>,
        unlocked: Mutex<Vec<bool>>,
        merges_fail: AtomicBool,
    }

    impl TableFiles for ObservedFiles {
        fn create(&self, number: u64) -> Result<File> {
            let image = self.image.get().unwrap();
            lock(&self.unlocked).push(image.names.try_write().is_ok());
            self.dir.create(number)
        }

        fn sync_content(&self, number: u64, file: &File) -> Result<()> {
            match self.merges_fail.load(Ordering::Relaxed) && lock(&self.unlocked).last() == Some(&true) {
                true => Err(Error::new(ErrorKind::NoSpace, "write a table", "")),
                false => self.dir.sync_content(number, file),
            }
        }

        fn open(&self, number: u64) -> Result<File> {
            self.dir.open(number)
        }

        fn remove(&self, number: u64) -> Result<()> {
            self.dir.remove(number)
        }

        fn list(&self) -> Result<Vec<u64>> {
            self.dir.list()
        }

        fn sync(&self) -> Result<()> {
            self.dir.sync()
        }

        fn put_copy(&self, bytes: &[u8]) -> Result<()> {
            self.dir.put_copy(bytes)
        }

        fn copy(&self) -> Result<Option<Vec<u8>>> {
            self.dir.copy()
        }
    }

    #[test]
    fn tables_are_merged_without_the_lock_of_the_image() {
        const NOW: Time = Time { seconds: 100, nanoseconds: 0 };
        let new = || NewEntry { permissions: 0o755, uid: 1000, gid: 1000 };
        let temp = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::new());
        Image::create(&*store, 7, new(), NOW).unwrap();
        let files = Arc::new(ObservedFiles {
            dir: TableDir::new(OwnedFd::from(File::open(temp.path()).unwrap())),
            image: OnceLock::new(),
            unlocked: Mutex::default(),
            merges_fail: AtomicBool::new(true),
        });
        let image = MasterImage::new(Image::open(store, files.clone()).unwrap());
        assert!(files.image.set(image.clone()).is_ok());
        for number in 0..4 {
            let name = format!("file{number}");
            image.create(ROOT, name.as_bytes(), NewNode::File, new(), NOW).unwrap();
            image.write().0.snapshot().unwrap();
        }
        assert_eq!(std::mem::take(&mut *lock(&files.unlocked)), [false; 4]);
        // A look-up is the next operation, and is successful also if the merge fails.
        assert!(image.lookup(ROOT, b"file0").unwrap().is_some());
        assert_eq!(std::mem::take(&mut *lock(&files.unlocked)), [true]);
        assert_eq!((image.read().0.tables().len(), files.list().unwrap().len()), (4, 4));
        // The merge is repeated when there is another table.
        assert!(image.lookup(ROOT, b"file0").unwrap().is_some());
        assert_eq!(*lock(&files.unlocked), []);
        files.merges_fail.store(false, Ordering::Relaxed);
        image.create(ROOT, b"another", NewNode::File, new(), NOW).unwrap();
        image.write().0.snapshot().unwrap();
        assert!(image.lookup(ROOT, b"another").unwrap().is_some());
        assert_eq!(*lock(&files.unlocked), [false, true]);
        assert_eq!(image.read().0.tables().len(), 1);
        assert_eq!(files.list().unwrap().len(), 1);
        for number in 0..4 {
            assert!(image.lookup(ROOT, format!("file{number}").as_bytes()).unwrap().is_some());
        }
    }
}
