//! One copy: the thread that walks through the sources, and the threads that copy.

use std::sync::Arc;

use quell_posix::WritableDir;
use quell_vfs::{Error, ErrorKind, Kind};

use crate::context::Context;
use crate::directories::Directory;
use crate::file::{self, BUFFER_BYTES, FileCopy, Step};
use crate::links::copy_link;
use crate::options::{Options, Report, Source};
use crate::progress::Progress;
use crate::queue::{Queue, Work};
use crate::walk::{Entry, walk};

/// The stack of the thread that walks, in bytes: some KiB for each level of nested directories.
const WALK_STACK_BYTES: usize = 32 << 20;

type Waiting = Queue<Entry, (Arc<FileCopy>, Step)>;

/// Copies `sources` into the directory `target` and returns when all files are complete or have
/// failed. Failures are passed to `report` and counted in `progress`.
///
/// # Errors
/// `Os` if the thread of the walk cannot be started. Then nothing is copied.
///
/// # Panics
///
/// If `report` panics.
pub fn copy(
    sources: &[Source],
    target: &Arc<dyn WritableDir>,
    options: Options,
    progress: &Progress,
    report: &dyn Report,
) -> quell_vfs::Result<()> {
    let context = Context::new(options, progress, report);
    let queue = Waiting::new();
    let walk_all = || {
        let _end = EndOfWalk(&queue);
        for Source { dir, name } in sources {
            let top = Directory::top(Arc::clone(dir), Arc::clone(target));
            walk(&context, &top, name.as_deref(), &|entry| queue.push_entry(entry));
            top.end(&context);
        }
    };
    let work = || {
        let mut buffer = vec![0; BUFFER_BYTES];
        queue.run(|work| match work {
            Work::Entry(entry) => process(&context, &queue, entry, &mut buffer),
            Work::Range((file, step), index) => {
                if file.process(&context, step, index, &mut buffer)
                    && let Some(next) = end_step(&context, &file, step)
                {
                    queue.push_ranges((Arc::clone(&file), next), file.range_count());
                }
            }
        });
    };
    std::thread::scope(|scope| {
        let walker = std::thread::Builder::new().name("walk".into()).stack_size(WALK_STACK_BYTES);
        walker.spawn_scoped(scope, walk_all).map_err(|e| Error::from_io(e, "start a thread", ""))?;
        for _ in 1..options.threads.max(1) {
            // If a thread cannot be started, the other threads do its work.
            if std::thread::Builder::new().name("copy".into()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
        Ok(())
    })
}

/// Ends the walk, also after a panic; otherwise the other threads would wait forever.
struct EndOfWalk<'a>(&'a Waiting);

impl Drop for EndOfWalk<'_> {
    fn drop(&mut self) {
        self.0.end_walk();
    }
}

/// Copies an entry, or adds the ranges of a large file to the queue.
fn process(context: &Context<'_>, queue: &Waiting, entry: Entry, buffer: &mut [u8]) {
    let Entry { dir, name, kind } = entry;
    let result = context.check_stop().and_then(|()| match kind {
        Kind::File => process_file(context, queue, &dir, &name, buffer),
        Kind::Symlink => copy_link(context, &dir, &name).map(|is_copied| {
            match is_copied {
                true => context.progress.add_link(),
                false => context.progress.add_unchanged(),
            }
            dir.end(context);
        }),
        _ => Err(Error {
            source: Some("FIFOs, sockets and devices are not copied".into()),
            ..Error::new(ErrorKind::Unsupported, "copy", "")
        }),
    });
    if let Err(error) = result {
        context.fail(&dir.path_of(&name), &error);
        dir.end(context);
    }
}

/// Copies a file. Unless an error is returned, `end` of its directory was called, or the ranges of
/// the file are in the queue.
fn process_file(
    context: &Context<'_>,
    queue: &Waiting,
    dir: &Arc<Directory>,
    name: &[u8],
    buffer: &mut [u8],
) -> quell_vfs::Result<()> {
    let Some(file) = file::begin(context, dir, name, buffer)? else {
        dir.end(context);
        return Ok(());
    };
    let count = file.range_count();
    if count > 1 {
        queue.push_ranges((Arc::new(file), Step::Copy), count);
        return Ok(());
    }
    let mut step = Some(Step::Copy);
    while let Some(current) = step {
        file.process(context, current, 0, buffer);
        step = end_step(context, &file, current);
    }
    Ok(())
}

/// Returns the next step of a file. If there is none, calls `end` of its directory.
fn end_step(context: &Context<'_>, file: &FileCopy, step: Step) -> Option<Step> {
    let next = file.next_step(context, step);
    if next.is_none() {
        file.dir().end(context);
    }
    next
}
