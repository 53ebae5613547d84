//! A mount of a layer through which programs write: a log mount, or a mount of a pool, of blobs or
//! of a store for batches.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_fuse::{KernelCache, LockKeeper, Session};
use quell_vfs::{FileSystem, Result};

use crate::display::shown;
use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::holder::in_flight::report_on_signal;
use crate::holder::messages::Messages;
use crate::holder::own_mount::OwnMount;
use crate::holder::served::Served;
use crate::holder::signals::Signals;
use crate::mount_point::refuse_mounted;
use crate::mount_table::mount_source;
use crate::protocol::plan::Target;
use crate::protocol::report::HolderReport;
use crate::protocol::transfer::Address;
use crate::runtime::end_record::{self, EndRecord, MountedBatch};
use crate::socket::server::{Holder, Need, Service};

/// Interval at which the process checks that its mount still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long the kernel may take to end a session whose mount was removed. Meanwhile it still sends
/// requests for files that were closed just before. Without these requests, files that programs had
/// removed while they were open would remain as leftovers.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an unmount waits for background work: less than `quell umount` waits for the process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(8);

/// The layer behind a mount.
pub trait Content: Send + Sync {
    /// Returns the file system to mount.
    fn file_system(&self) -> Arc<dyn FileSystem>;

    /// Returns whether the file system changes only by requests of the mount.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Returns whether a write is published, and its errors are returned, before write(2) returns.
    fn publishes_writes(&self) -> bool {
        false
    }

    /// Returns whether programs cannot change the files.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Returns whether work continues in the background.
    fn is_busy(&self) -> bool;

    /// Ends all open files as if they had been closed. The file system is not used afterwards.
    fn end(&self) -> Result<()>;

    /// Ends a mount that no program has used, and discards its changes. The command that started
    /// the mount has requested this, or has not reported the mount as ready because it was
    /// interrupted or the mount failed.
    fn abandon(&self) -> Result<()> {
        self.end()
    }

    /// Returns the batch that the end of the mount commits, submits or closes, if there is one.
    fn batch(&self) -> Option<MountedBatch> {
        None
    }

    /// Adds the description of the layer to the report of the mount at `path`.
    fn describe(&self, path: &Path, counters: BTreeMap<String, u64>, report: &mut HolderReport);
}

/// How a layer is mounted.
pub struct MountOptions<'a> {
    /// The source in the kernel's table of mounts.
    pub source: &'a Path,
    /// Where locks are kept.
    pub locks: LockKeeper,
    /// The message of `--verbose`, without the mount point.
    pub description: String,
}

/// A mounted layer.
pub struct WritableMount {
    holder: Holder,
    session: Session,
    content: Arc<dyn Content>,
    path: PathBuf,
    signals: Signals,
    mount: OwnMount,
}

/// Returns the mount point of a plan. `usage`: the message of the failure if the plan has no mount
/// point.
pub fn mountpoint<'a>(context: &'a HolderContext, usage: &str) -> Result<&'a Path, Failure> {
    let Target::Mountpoint { path, .. } = &context.plan.target else {
        return Err(Failure::wrong_input(usage));
    };
    Ok(path)
}

impl WritableMount {
    /// Mounts a layer at the mount point of the plan. `open` opens the layer, when it is certain
    /// that nothing else is mounted there.
    pub fn create(
        context: &HolderContext,
        path: &Path,
        options: &MountOptions<'_>,
        open: impl FnOnce() -> Result<Arc<dyn Content>, Failure>,
    ) -> Result<WritableMount, Failure> {
        let signals = Signals::listen()?;
        // Another user may have mounted there since the command checked.
        refuse_mounted(path)?;
        let content = open()?;
        let allow_other = matches!(context.plan.target, Target::Mountpoint { allow_other: true, .. });
        let fuse = quell_fuse::Options {
            threads: context.plan.threads.into(),
            allow_other,
            exclusive: content.is_exclusive(),
            publishes_writes: content.publishes_writes(),
            read_only: content.is_read_only(),
            locks: options.locks,
            source: mount_source(options.source),
            ..quell_fuse::Options::default()
        };
        let mounted = quell_fuse::mount_at(content.file_system(), path, &fuse).map_err(Failure::from);
        let mounted = mounted.and_then(|session| {
            let mount = OwnMount::at(path);
            let bound = bind(context, &signals, &mount);
            match bound {
                Ok(holder) => Ok((session, mount, holder)),
                Err(failure) => {
                    session.stop();
                    Err(failure)
                }
            }
        });
        let (session, mount, holder) = mounted.inspect_err(|_| abandon(context, &*content, path))?;
        let batch = content.batch();
        let recorded = match batch {
            // There may be the record of an earlier mount at this mount point.
            None => {
                end_record::remove(&context.address);
                Ok(())
            }
            batch => EndRecord { process: std::process::id(), batch, failure: None }.begin(&context.address),
        };
        if let Err(e) = recorded {
            session.stop();
            abandon(context, &*content, path);
            return Err(Failure::cannot(format!("{}: {}", shown(path), not_written(&context.address, &e))));
        }
        if context.plan.verbose {
            context.print(&format!("{} mounted on {}", options.description, shown(path)));
        }
        Ok(WritableMount { holder, session, content, path: path.to_owned(), signals, mount })
    }

    /// Returns the kernel's cache of the mount, or `None` if the tree is read-only.
    pub fn kernel_cache(&self) -> Option<KernelCache> {
        self.session.kernel_cache()
    }
}

/// Creates the socket of the process.
fn bind(context: &HolderContext, signals: &Signals, mount: &OwnMount) -> Result<Holder, Failure> {
    let mut holder = Holder::bind(&context.address.directory, &context.address.key)?;
    signals.wake(&mut holder)?;
    mount.wake(&mut holder)?;
    Ok(holder)
}

/// Ends a layer that no program has used.
fn abandon(context: &HolderContext, content: &dyn Content, path: &Path) {
    if let Err(e) = content.abandon() {
        context.print(&format!("{}: {e}", shown(path)));
    }
}

impl Served for WritableMount {
    fn report_start(&self) -> Result<(), Failure> {
        // Nothing is recorded.
        Ok(())
    }

    fn is_mounted(&self) -> bool {
        true
    }

    fn abandon(self, context: &HolderContext) {
        self.session.stop();
        abandon(context, &*self.content, &self.path);
        end_record::remove_own(&context.address);
        self.holder.abandon();
    }

    /// Serves until the mount is removed, then ends open files.
    fn serve(self, context: &HolderContext) -> Result<(), Failure> {
        let WritableMount { holder, session, content, path, signals, mount } = self;
        report_on_signal(vec![session.in_flight()], &context.messages)?;
        let mut served = ServedMount {
            context,
            session,
            content,
            path,
            signals,
            mount,
            unmounted: None,
            is_signalled: false,
            is_discarded: false,
        };
        let ended = holder.serve(None, CHECK_INTERVAL, &mut served);
        let ServedMount { session, content, path, is_signalled, is_discarded, .. } = served;
        if is_signalled {
            write_back(&path, &context.messages);
        }
        // Programs that still use the mount get errors from here on; data that they have written is
        // kept.
        session.stop();
        match if is_discarded { content.abandon() } else { content.end() } {
            Ok(()) => end_record::remove_own(&context.address),
            Err(e) => {
                let failure = format!("{}: some of the written data could not be saved: {e}", shown(&path));
                context.print(&failure);
                let record =
                    EndRecord { process: std::process::id(), batch: content.batch(), failure: Some(failure) };
                if let Err(e) = record.write(&context.address) {
                    context.print(&format!("{}: {}", shown(&path), not_written(&context.address, &e)));
                }
            }
        }
        ended?;
        Ok(())
    }
}

/// A mount while it is served.
struct ServedMount<'a> {
    context: &'a HolderContext,
    session: Session,
    content: Arc<dyn Content>,
    path: PathBuf,
    signals: Signals,
    mount: OwnMount,
    /// When the mount was first found to be removed.
    unmounted: Option<Instant>,
    /// Whether a signal ended the service.
    is_signalled: bool,
    /// Whether the end discards the changes.
    is_discarded: bool,
}

impl Service for ServedMount<'_> {
    fn report(&self) -> String {
        let pairs = self.session.counters().snapshot().pairs();
        let counters = pairs.map(|(name, value)| (name.to_owned(), value)).collect();
        let mut report = HolderReport {
            pid: std::process::id(),
            mountpoint: Some(self.path.clone()),
            messages: self.context.message_log(),
            ..HolderReport::default()
        };
        self.content.describe(&self.path, counters, &mut report);
        report.to_json()
    }

    fn discard(&mut self) -> bool {
        self.is_discarded = self.content.batch().is_some();
        self.is_discarded
    }

    fn need(&mut self) -> Need {
        if self.signals.requests() > 0 {
            self.is_signalled = true;
            return Need::Over;
        }
        if !self.session.is_over() && self.mount.exists() {
            return Need::Joinable;
        }
        // `quell umount` waits as long as this process exists. After a forced unmount the session
        // ends when the last program has closed its files; otherwise the kernel ends it a moment
        // later.
        let since: &Instant = self.unmounted.get_or_insert_with(Instant::now);
        while !self.session.is_over() && since.elapsed() < SESSION_END_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_needed = self.session.is_over() && self.content.is_busy() && since.elapsed() < BUSY_TIMEOUT;
        if is_needed { Need::Joinable } else { Need::Over }
    }

    /// Does nothing: `need`, which is called after each interval, checks the mount.
    fn tick(&mut self) {}

    /// Does nothing: a mount keeps no stream of its creator open.
    fn creator_ended(&mut self) {}
}

/// Makes the kernel write back dirty pages of mapped files.
fn write_back(mountpoint: &Path, messages: &Messages) {
    let synced = File::open(mountpoint).and_then(|root| Ok(rustix::fs::syncfs(&root)?));
    if let Err(e) = synced {
        messages.print(&format!(
            "{}: data that programs wrote to mapped files may be lost: {e}",
            shown(mountpoint)
        ));
    }
}

/// Describes that the end record of a mount could not be written.
fn not_written(address: &Address, cause: &std::io::Error) -> String {
    format!("cannot write {}, which `quell umount` reads: {cause}", shown(end_record::path_of(address)))
}
