//! Import: copies plain files into the stores. Each thread is a separate writer, so a large file
//! has several logs.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use quell_posix::{Dir, OpenFile, Stat};
use quell_threads::lock;
use quell_vfs::{
    Change, Context, Error, ErrorKind, FileSystem, Kind, NewEntry, NodeId, OpenMode, Rename, Result,
    Writable, WritableFile, resolve,
};

use super::existing::{Action, FileState, decide_file, decide_link};
use super::state::{
    DIR_PERMISSIONS, FILE_PERMISSIONS, Pending, READ_BYTES, RangeCopies, Transfer, TransferOptions,
    TransferResult, read_whole,
};
use crate::format::{FileOffset, joined};
use crate::fs::LogFs;
use crate::stores::Stores;
use crate::tools::progress::ToolProgress;

/// Granularity in which zeros are skipped on import, if the file has holes.
const HOLE_BYTES: usize = 64 << 10;

/// The source of an import.
#[derive(Debug, Clone)]
pub enum ImportSource {
    /// All entries of the directory.
    All,
    /// One entry of the directory, and its name at the destination.
    Entry(Vec<u8>, Vec<u8>),
}

/// A directory that is being imported. Its attributes are set after all of its entries are
/// complete.
struct SourceDir {
    from: Arc<dyn Dir>,
    path: Vec<u8>,
    /// The directory in the stores.
    node: NodeId,
    attributes: Option<Change>,
    parent: Option<Arc<SourceDir>>,
    /// The unfinished entries, and the task that lists the directory.
    pending: Pending,
}

/// A file that is imported by several threads.
struct SourceFile {
    from: Box<dyn OpenFile>,
    stat: Stat,
    node: NodeId,
    temporary: Vec<u8>,
    name: Vec<u8>,
    dir: Arc<SourceDir>,
    /// Writers that no thread is using. A thread that finds none opens another one.
    idle_writers: Mutex<Vec<Box<dyn WritableFile>>>,
    /// The process number of the next writer. The file system has one writer for each process
    /// number, so each thread here uses its own number.
    next_process: AtomicU32,
    ranges: RangeCopies,
}

impl SourceFile {
    fn take_writer(&self) -> Option<Box<dyn WritableFile>> {
        lock(&self.idle_writers).pop()
    }

    fn return_writer(&self, writer: Box<dyn WritableFile>) {
        lock(&self.idle_writers).push(writer);
    }

    fn close_writers(&self) -> Result<()> {
        let writers = std::mem::take(&mut *lock(&self.idle_writers));
        let mut closed = Ok(());
        for writer in writers {
            closed = closed.and(writer.close()); // all are closed, also after an error
        }
        closed
    }
}

enum ImportTask {
    Entry(Arc<SourceDir>, Vec<u8>, Vec<u8>),
    Range(Arc<SourceFile>, Range<FileOffset>),
}

/// Copies plain files from the directory `from` to the directory `path` of `fs`, the file system of
/// `stores`. The directory must exist. After a stop, no incomplete file is left.
pub fn import(
    from: Arc<dyn Dir>,
    source: ImportSource,
    fs: &LogFs,
    stores: &Stores,
    path: &[u8],
    options: TransferOptions,
    progress: &ToolProgress,
) -> Result<TransferResult> {
    // The reference is kept until the end.
    let target = resolve(fs, &Context::OWN, path)?;
    if target.kind != Kind::Dir {
        return Err(Error::new(ErrorKind::NotADirectory, "import into", path));
    }
    let node = target.node();
    let random_number = || stores.random_number();
    let import = Import { transfer: Transfer::new(options, progress, &random_number), fs, stores };
    let attributes = match source {
        // The attributes of a store's root are not changed.
        ImportSource::All if node != fs.root() => Some(import.transfer.attributes_of(&from.stat_self()?)),
        _ => None,
    };
    let pending = Pending::new(1);
    let top = Arc::new(SourceDir { from, path: Vec::new(), node, attributes, parent: None, pending });
    let mut tasks = Vec::new();
    match source {
        ImportSource::All => {
            list(&top, &mut tasks)?;
            import.finish_entry(&top);
        }
        ImportSource::Entry(name, target_name) => tasks.push(ImportTask::Entry(top, name, target_name)),
    }
    quell_threads::run(options.threads, tasks, |task, queue| {
        let mut added = Vec::new();
        import.run_task(task, &mut added);
        queue.push(added);
    });
    Ok(import.transfer.into_result())
}

/// Adds a task for each entry of a directory.
fn list(dir: &Arc<SourceDir>, added: &mut Vec<ImportTask>) -> Result<()> {
    let mut names = dir.from.names()?;
    names.sort_unstable_by(|a, b| b.cmp(a));
    for name in names {
        dir.pending.add();
        added.push(ImportTask::Entry(Arc::clone(dir), name.clone(), name));
    }
    Ok(())
}

struct Import<'a> {
    transfer: Transfer<'a>,
    fs: &'a LogFs,
    stores: &'a Stores,
}

impl Import<'_> {
    /// Runs a task. After a stop it only ends the copy of a range, so that an incomplete file is
    /// removed.
    fn run_task(&self, task: ImportTask, added: &mut Vec<ImportTask>) {
        match task {
            ImportTask::Entry(dir, name, target_name) => {
                let path = joined(&dir.path, &target_name);
                if !self.transfer.progress.is_stopped()
                    && let Err(error) = self.import_entry(&dir, &name, target_name, added)
                {
                    self.transfer.add_failure(path, error);
                }
                self.finish_entry(&dir);
            }
            ImportTask::Range(file, range) => self.import_range(&file, range),
        }
    }

    /// Ends an entry of a directory, and completes directories after their last entry.
    fn finish_entry(&self, dir: &Arc<SourceDir>) {
        let mut dir = dir;
        while dir.pending.finish() {
            if let Some(attributes) = &dir.attributes
                && !self.transfer.progress.is_stopped()
                && let Err(error) = self.fs.change(&Context::OWN, dir.node, attributes)
            {
                self.transfer.add_failure(dir.path.clone(), error);
            }
            let Some(parent) = &dir.parent else { return };
            self.fs.forget(dir.node, 1);
            dir = parent;
        }
    }

    /// Returns the owner and group of an imported entry.
    fn owners(&self, stat: &Stat) -> (u32, u32) {
        let host = self.stores.host();
        if self.transfer.options.owners { (stat.uid, stat.gid) } else { (host.uid, host.gid) }
    }

    fn import_entry(
        &self,
        dir: &Arc<SourceDir>,
        name: &[u8],
        target_name: Vec<u8>,
        added: &mut Vec<ImportTask>,
    ) -> Result<()> {
        let stat = dir.from.stat(name)?;
        match stat.kind() {
            Some(Kind::Dir) => self.import_dir(dir, name, &target_name, added),
            Some(Kind::Symlink) => self.import_link(dir, name, &target_name, &stat),
            Some(Kind::File) => self.start_file(dir, name, target_name, added),
            _ => {
                let path = joined(&dir.path, &target_name);
                self.transfer.update(|result| result.special.push(path));
                Ok(())
            }
        }
    }

    fn import_dir(
        &self,
        parent: &Arc<SourceDir>,
        name: &[u8],
        target_name: &[u8],
        added: &mut Vec<ImportTask>,
    ) -> Result<()> {
        let from = parent.from.open_dir(name)?;
        let stat = from.stat_self()?;
        let (uid, gid) = self.owners(&stat);
        let new = NewEntry { permissions: DIR_PERMISSIONS, uid, gid };
        let target = match self.fs.make_dir(&Context::OWN, parent.node, target_name, new) {
            Err(error) if error.kind == ErrorKind::Exists && self.transfer.options.resume => {
                match self.fs.lookup(&Context::OWN, parent.node, target_name)? {
                    Some(found) if found.kind == Kind::Dir => found,
                    _ => return Err(error),
                }
            }
            made => made?,
        };
        self.transfer.update(|result| result.dirs += 1);
        parent.pending.add();
        let dir = Arc::new(SourceDir {
            from,
            path: joined(&parent.path, target_name),
            node: target.into_attributes().node, // `finish_entry` returns the reference
            attributes: Some(self.transfer.attributes_of(&stat)),
            parent: Some(Arc::clone(parent)),
            pending: Pending::new(1),
        });
        let listed = list(&dir, added);
        self.finish_entry(&dir);
        listed
    }

    fn import_link(&self, dir: &SourceDir, name: &[u8], target_name: &[u8], stat: &Stat) -> Result<()> {
        let link_target = dir.from.read_link(name)?;
        let (mut existing, mut is_same) = (None, false);
        if let Some(found) = self.fs.lookup(&Context::OWN, dir.node, target_name)? {
            existing = Some(Some(found.kind));
            is_same =
                found.kind == Kind::Symlink && self.fs.read_link(&Context::OWN, found.node())? == link_target;
        }
        match decide_link(existing, is_same, false, self.transfer.options.resume) {
            Action::Skip => {
                self.transfer.add_skipped();
                return Ok(());
            }
            Action::Refuse => return Err(Error::new(ErrorKind::Exists, "import", target_name)),
            Action::Copy => {}
        }
        let (uid, gid) = self.owners(stat);
        let new = NewEntry { permissions: 0o777, uid, gid };
        let made = self.fs.make_symlink(&Context::OWN, dir.node, target_name, &link_target, new)?;
        self.fs.change(&Context::OWN, made.node(), &self.transfer.attributes_of_link(stat))?;
        self.transfer.update(|result| result.links += 1);
        Ok(())
    }

    /// Creates the file under a temporary name, copies its first range, and adds tasks for the
    /// others.
    fn start_file(
        &self,
        dir: &Arc<SourceDir>,
        name: &[u8],
        target_name: Vec<u8>,
        added: &mut Vec<ImportTask>,
    ) -> Result<()> {
        // Attributes are read from the open file, because its name may be replaced meanwhile.
        let from = dir.from.open_file(name)?;
        let stat = from.stat()?;
        let existing = self.fs.lookup(&Context::OWN, dir.node, &target_name)?.map(|found| {
            (Some(found.kind), FileState { size_bytes: found.size_bytes, modified: found.modified })
        });
        let source = FileState { size_bytes: stat.size_bytes, modified: stat.modified };
        match decide_file(existing, source, false, self.transfer.options.resume) {
            Action::Skip => {
                self.transfer.add_skipped();
                return Ok(());
            }
            Action::Refuse => return Err(Error::new(ErrorKind::Exists, "import", &target_name)),
            Action::Copy => {}
        }
        // The temporary name is chosen so that its home is the home of the final name, and the file
        // need not be moved.
        let home = self.stores.home(&target_name);
        let temporary = loop {
            let temporary = self.transfer.temporary_name();
            if self.stores.home(&temporary) == home {
                break temporary;
            }
        };
        let (uid, gid) = self.owners(&stat);
        let new = NewEntry { permissions: FILE_PERMISSIONS, uid, gid };
        let context = Context::for_process(1);
        let (made, writer) = self.fs.create(&context, dir.node, &temporary, new, OpenMode::READ_WRITE)?;
        let ranges = self.transfer.ranges(stat.size_bytes);
        dir.pending.add();
        let file = Arc::new(SourceFile {
            from,
            stat,
            node: made.into_attributes().node, // `import_range` returns the reference
            temporary,
            name: target_name,
            dir: Arc::clone(dir),
            idle_writers: Mutex::new(vec![writer]),
            next_process: AtomicU32::new(2),
            ranges: RangeCopies::new(ranges.len()),
        });
        for range in ranges.iter().skip(1).rev() {
            added.push(ImportTask::Range(Arc::clone(&file), range.clone()));
        }
        self.import_range(&file, ranges[0].clone());
        Ok(())
    }

    /// Copies a range. The thread that copies the last range completes the file, or removes it
    /// after a failure.
    fn import_range(&self, file: &SourceFile, range: Range<FileOffset>) {
        let copied = self.transfer.check_stop().and_then(|()| self.copy_range(file, range));
        let Some(copied) = file.ranges.finish(copied) else { return };
        let closed = file.close_writers();
        match copied.and(closed).and_then(|()| self.complete_file(file)) {
            Ok(()) => self.transfer.add_file(file.stat.size_bytes),
            Err(error) => {
                let _ = self.fs.remove(&Context::OWN, file.dir.node, &file.temporary);
                self.transfer.add_failure(joined(&file.dir.path, &file.name), error);
            }
        }
        self.fs.forget(file.node, 1);
        self.finish_entry(&file.dir);
    }

    fn copy_range(&self, file: &SourceFile, range: Range<FileOffset>) -> Result<()> {
        let writer = match file.take_writer() {
            Some(writer) => writer,
            None => {
                let process = file.next_process.fetch_add(1, Ordering::Relaxed);
                let context = Context::for_process(process);
                self.fs.open_as(&context, file.node, OpenMode::WRITE)?
            }
        };
        self.write_range(file, &*writer, range)?;
        file.return_writer(writer);
        Ok(())
    }

    fn write_range(
        &self,
        file: &SourceFile,
        into: &dyn WritableFile,
        range: Range<FileOffset>,
    ) -> Result<()> {
        let has_holes = file.stat.blocks.saturating_mul(512) < file.stat.size_bytes;
        let mut buffer = vec![0; READ_BYTES.min((range.end - range.start) as usize)];
        let mut at = range.start;
        while at < range.end {
            self.transfer.check_stop()?;
            let part = &mut buffer[..READ_BYTES.min((range.end - at) as usize)];
            read_whole(&*file.from, &file.name, part, at.0)?;
            if has_holes {
                let mut offset = at.0;
                for chunk in part.chunks(HOLE_BYTES) {
                    if chunk.iter().any(|byte| *byte != 0) {
                        into.write_at(chunk, offset)?;
                    }
                    offset += chunk.len() as u64;
                }
            } else {
                into.write_at(part, at.0)?;
            }
            at += part.len() as u64;
            self.transfer.progress.add_bytes(part.len() as u64);
        }
        // Synced, because the user may delete the original after the import.
        into.sync()
    }

    fn complete_file(&self, file: &SourceFile) -> Result<()> {
        let (fs, stat) = (self.fs, &file.stat);
        let now = file.from.stat()?;
        if (now.size_bytes, now.modified) != (stat.size_bytes, stat.modified) {
            return Err(Error {
                source: Some("it changed during the copy; run the command again with --resume".into()),
                ..Error::new(ErrorKind::Stale, "import", &file.name)
            });
        }
        if fs.attributes(&Context::OWN, file.node)?.size_bytes != stat.size_bytes {
            let change = Change { size_bytes: Some(stat.size_bytes), ..Change::default() };
            fs.change(&Context::OWN, file.node, &change)?;
        }
        if self.transfer.options.verify {
            let written = fs.open(&Context::OWN, file.node)?;
            self.transfer.compare(&file.name, &*file.from, &*written, stat.size_bytes)?;
        }
        fs.change(&Context::OWN, file.node, &self.transfer.attributes_of(stat))?;
        let replace = if self.transfer.options.resume { Rename::Replace } else { Rename::Keep };
        let dir = file.dir.node;
        fs.rename(&Context::OWN, dir, &file.temporary, dir, &file.name, replace)
    }
}
