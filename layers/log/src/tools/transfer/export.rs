//! Export: copies files from the stores to a plain directory.

use std::ops::Range;
use std::sync::Arc;

use quell_posix::{WritableDir, WritableFile};
use quell_vfs::{Attributes, Change, Error, ErrorKind, Kind, Rename, Result};

use super::existing::{Action, FileState, decide_file, decide_link};
use super::snapshot::Snapshot;
use super::state::{
    DIR_PERMISSIONS, FILE_PERMISSIONS, Pending, READ_BYTES, RangeCopies, Transfer, TransferOptions,
    TransferResult, read_whole,
};
use crate::container::Descriptors;
use crate::format::{FileOffset, joined};
use crate::fs::{Entry, StoredDir};
use crate::not_found::none_if_not_found;
use crate::tools::progress::ToolProgress;

/// The source of an export.
#[derive(Debug)]
pub enum ExportSource {
    /// All entries of a directory.
    Dir(StoredDir),
    /// A file or link in a directory, and its name at the destination.
    Entry(StoredDir, Entry, Vec<u8>),
}

/// A directory at the destination. Its attributes are set after all of its entries are complete.
struct TargetDir {
    dir: Arc<dyn WritableDir>,
    path: Vec<u8>,
    attributes: Option<Change>,
    parent: Option<Arc<TargetDir>>,
    /// The unfinished entries, and the task that lists the directory.
    pending: Pending,
}

impl TargetDir {
    /// Ends an entry of this directory, and completes directories after their last entry.
    fn finish_entry(self: &Arc<TargetDir>, transfer: &Transfer<'_>) {
        let mut dir = self;
        while dir.pending.finish() {
            if let Some(attributes) = &dir.attributes
                && !transfer.progress.is_stopped()
                && let Err(error) = dir.dir.change(b"", attributes)
            {
                transfer.add_failure(dir.path.clone(), error);
            }
            match &dir.parent {
                Some(parent) => dir = parent,
                None => return,
            }
        }
    }
}

/// A file that is exported by several threads.
struct TargetFile {
    snapshot: Snapshot,
    file: Box<dyn WritableFile>,
    temporary: Vec<u8>,
    name: Vec<u8>,
    dir: Arc<TargetDir>,
    ranges: RangeCopies,
}

enum ExportTask {
    Dir(Arc<StoredDir>, Entry, Arc<TargetDir>),
    Entry(Arc<StoredDir>, Entry, Arc<TargetDir>, Vec<u8>),
    Range(Arc<TargetFile>, Range<FileOffset>),
}

/// Copies files from the stores to the directory `to`. Entries that fail are listed in the result,
/// and no file with their name is created. After a stop, no incomplete file is left.
pub fn export(
    source: ExportSource,
    to: Arc<dyn WritableDir>,
    options: TransferOptions,
    progress: &ToolProgress,
) -> Result<TransferResult> {
    let stores = Arc::clone(match &source {
        ExportSource::Dir(dir) | ExportSource::Entry(dir, ..) => dir.stores(),
    });
    let random_number = || stores.random_number();
    let export =
        Export { transfer: Transfer::new(options, progress, &random_number), descriptors: Arc::default() };
    let mut tasks = Vec::new();
    let top = |dir, attributes| {
        Arc::new(TargetDir { dir, path: Vec::new(), attributes, parent: None, pending: Pending::new(1) })
    };
    match source {
        ExportSource::Dir(dir) => {
            let top = top(to, Some(export.transfer.attributes_of(&dir.stat()?)));
            list(Arc::new(dir), &top, &mut tasks)?;
            top.finish_entry(&export.transfer);
        }
        ExportSource::Entry(dir, entry, name) => {
            tasks.push(ExportTask::Entry(Arc::new(dir), entry, top(to, None), name));
        }
    }
    quell_threads::run(options.threads, tasks, |task, queue| {
        let mut added = Vec::new();
        export.run_task(task, &mut added);
        queue.push(added);
    });
    Ok(export.transfer.into_result())
}

/// Adds a task for each entry of a directory.
fn list(from: Arc<StoredDir>, target: &Arc<TargetDir>, added: &mut Vec<ExportTask>) -> Result<()> {
    for entry in from.list()?.entries.into_iter().rev() {
        let (from, target, name) = (Arc::clone(&from), Arc::clone(target), entry.name.clone());
        target.pending.add();
        added.push(match entry.kind {
            Kind::Dir => ExportTask::Dir(from, entry, target),
            _ => ExportTask::Entry(from, entry, target, name),
        });
    }
    Ok(())
}

struct Export<'a> {
    transfer: Transfer<'a>,
    descriptors: Arc<Descriptors>,
}

impl Export<'_> {
    /// Runs a task. After a stop it only ends the copy of a range, so that an incomplete file is
    /// removed.
    fn run_task(&self, task: ExportTask, added: &mut Vec<ExportTask>) {
        let is_stopped = self.transfer.progress.is_stopped();
        match task {
            ExportTask::Dir(from, entry, parent) => {
                if !is_stopped && let Err(error) = self.export_dir(&from, &entry, &parent, added) {
                    self.transfer.add_failure(joined(&parent.path, &entry.name), error);
                }
                parent.finish_entry(&self.transfer);
            }
            ExportTask::Entry(from, entry, dir, name) => {
                let path = joined(&dir.path, &name);
                let exported = match entry.kind {
                    _ if is_stopped => Ok(()),
                    Kind::Symlink => self.export_link(&from, &entry, &dir, &name),
                    _ => self.start_file(&from, &entry, &dir, name, added),
                };
                if let Err(error) = exported {
                    self.transfer.add_failure(path, error);
                }
                dir.finish_entry(&self.transfer);
            }
            ExportTask::Range(file, range) => self.export_range(&file, range),
        }
    }

    fn export_dir(
        &self,
        from: &StoredDir,
        entry: &Entry,
        parent: &Arc<TargetDir>,
        added: &mut Vec<ExportTask>,
    ) -> Result<()> {
        let options = &self.transfer.options;
        let from = from.enter(&entry.name)?;
        let stat = from.stat()?;
        match parent.dir.make_dir(&entry.name, DIR_PERMISSIONS) {
            Err(error) if error.kind == ErrorKind::Exists && options.resume => {}
            made => made?,
        }
        let dir = parent.dir.open_writable_dir(&entry.name)?;
        // The attributes are set at the end. They must not be applied to a directory that another
        // user created.
        if options.owners && ![0, stat.uid].contains(&dir.stat_self()?.uid) {
            return Err(Error {
                source: Some("another user owns the existing directory".into()),
                ..Error::new(ErrorKind::PermissionDenied, "export", &entry.name)
            });
        }
        self.transfer.update(|result| result.dirs += 1);
        parent.pending.add();
        let target = Arc::new(TargetDir {
            dir,
            path: joined(&parent.path, &entry.name),
            attributes: Some(self.transfer.attributes_of(&stat)),
            parent: Some(Arc::clone(parent)),
            pending: Pending::new(1),
        });
        let listed = list(Arc::new(from), &target, added);
        target.finish_entry(&self.transfer);
        listed
    }

    fn export_link(&self, from: &StoredDir, entry: &Entry, target: &TargetDir, name: &[u8]) -> Result<()> {
        let options = &self.transfer.options;
        let (link_target, stat) = from.link(entry)?;
        let existing = none_if_not_found(target.dir.stat(name))?.map(|found| found.kind());
        let is_same = existing == Some(Some(Kind::Symlink))
            && target.dir.read_link(name).is_ok_and(|found| found == link_target);
        match decide_link(existing, is_same, true, options.resume) {
            Action::Skip => {
                self.transfer.add_skipped();
                return Ok(());
            }
            Action::Refuse => return Err(Error::new(ErrorKind::Exists, "export", name)),
            Action::Copy => {}
        }
        let temporary = self.transfer.temporary_name();
        target.dir.make_symlink(&temporary, &link_target)?;
        // A symbolic link's attributes can be set by name only. In a directory where another user
        // could replace the link, its attributes are not changed. It then belongs to root, which
        // gives no access to its target.
        let parent = target.dir.stat_self()?;
        let is_safe =
            !options.owners || parent.uid == 0 && (parent.mode & 0o022 == 0 || parent.mode & 0o1000 != 0);
        let changed = match is_safe {
            true => target.dir.change(&temporary, &self.transfer.attributes_of_link(&stat)),
            false => Ok(()),
        };
        let renamed = changed.and_then(|()| rename_to_final(&*target.dir, &temporary, name, options.resume));
        if renamed.is_err() {
            let _ = target.dir.remove(&temporary);
        }
        renamed?;
        self.transfer.update(|result| result.links += 1);
        Ok(())
    }

    /// Creates the temporary file, copies its first range, and adds tasks for the others.
    fn start_file(
        &self,
        from: &StoredDir,
        entry: &Entry,
        dir: &Arc<TargetDir>,
        name: Vec<u8>,
        added: &mut Vec<ExportTask>,
    ) -> Result<()> {
        let options = &self.transfer.options;
        // A directory with the name of a container but without a record is not a file; a mount does
        // not show it.
        let Some(container) = none_if_not_found(from.open(entry))? else { return Ok(()) };
        let snapshot = Snapshot::take(container, options.threads, &self.descriptors)?;
        let existing = none_if_not_found(dir.dir.stat(&name))?.map(|found| {
            (found.kind(), FileState { size_bytes: found.size_bytes, modified: found.modified })
        });
        let size_bytes = snapshot.size_bytes();
        let source = FileState { size_bytes, modified: snapshot.attributes().modified };
        match decide_file(existing, source, snapshot.is_being_written(), options.resume) {
            Action::Skip => {
                self.transfer.add_skipped();
                return Ok(());
            }
            Action::Refuse => return Err(Error::new(ErrorKind::Exists, "export", &name)),
            Action::Copy => {}
        }
        self.transfer.update(|result| {
            if snapshot.is_being_written() {
                result.being_written.push(joined(&dir.path, &name));
            }
            if snapshot.is_short() {
                result.short.push(joined(&dir.path, &name));
            }
        });
        let temporary = self.transfer.temporary_name();
        let file = dir.dir.create_file(&temporary, FILE_PERMISSIONS)?;
        let ranges = self.transfer.ranges(size_bytes);
        dir.pending.add();
        let (dir, copies) = (Arc::clone(dir), RangeCopies::new(ranges.len()));
        let target = Arc::new(TargetFile { snapshot, file, temporary, name, dir, ranges: copies });
        for range in ranges.iter().skip(1).rev() {
            added.push(ExportTask::Range(Arc::clone(&target), range.clone()));
        }
        self.export_range(&target, ranges[0].clone());
        Ok(())
    }

    /// Copies a range. The thread that copies the last range completes the file, or removes it
    /// after a failure.
    fn export_range(&self, target: &TargetFile, range: Range<FileOffset>) {
        let copied = self.transfer.check_stop().and_then(|()| self.copy_range(target, range));
        let Some(copied) = target.ranges.finish(copied) else { return };
        match copied.and_then(|()| self.complete_file(target)) {
            Ok(()) => self.transfer.add_file(target.snapshot.size_bytes()),
            Err(error) => {
                let _ = target.dir.dir.remove(&target.temporary);
                self.transfer.add_failure(joined(&target.dir.path, &target.name), error);
            }
        }
        target.dir.finish_entry(&self.transfer);
    }

    fn copy_range(&self, target: &TargetFile, range: Range<FileOffset>) -> Result<()> {
        let mut buffer = vec![0; READ_BYTES.min((range.end - range.start) as usize)];
        for data in target.snapshot.data_ranges(range)? {
            let mut at = data.start;
            while at < data.end {
                self.transfer.check_stop()?;
                let part = &mut buffer[..READ_BYTES.min((data.end - at) as usize)];
                read_whole(&target.snapshot, &target.name, part, at.0)?;
                // The new file has zeros there already.
                if part.iter().any(|byte| *byte != 0) {
                    target.file.write_at(part, at.0)?;
                }
                at += part.len() as u64;
                self.transfer.progress.add_bytes(part.len() as u64);
            }
        }
        Ok(())
    }

    fn complete_file(&self, target: &TargetFile) -> Result<()> {
        let options = &self.transfer.options;
        let Attributes { permissions, uid, gid, modified, .. } = *target.snapshot.attributes();
        let size_bytes = target.snapshot.size_bytes();
        target.file.set_size(size_bytes)?;
        if options.verify {
            self.transfer.compare(&target.name, &target.snapshot, &*target.file, size_bytes)?;
        }
        // The file is synced before the rename, so that a file with its final name is complete even
        // after a power failure.
        target.file.sync()?;
        // The attributes are set on the open file, because other users may rename files in the
        // destination.
        target.file.change(&self.transfer.attributes(Some(permissions), uid, gid, modified))?;
        rename_to_final(&*target.dir.dir, &target.temporary, &target.name, options.resume)
    }
}

/// Renames a temporary name to its final name. Not every file system supports renaming without
/// replacing; there the name is checked first.
fn rename_to_final(dir: &dyn WritableDir, temporary: &[u8], name: &[u8], replace: bool) -> Result<()> {
    if replace {
        return dir.rename(temporary, dir, name, Rename::Replace);
    }
    match dir.rename(temporary, dir, name, Rename::Keep) {
        Err(error) if error.kind == ErrorKind::Unsupported => match dir.stat(name) {
            Ok(_) => Err(Error::new(ErrorKind::Exists, "export", name)),
            Err(_) => dir.rename(temporary, dir, name, Rename::Replace),
        },
        renamed => renamed,
    }
}
