//! A log mount. Written files become logs in stores; see docs/techniques/log.md.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_fuse::{LockKeeper, Session};
use quell_log::{Choices, LogFs};

use crate::display::{shown, shown_list};
use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::holder::in_flight::report_on_signal;
use crate::holder::messages::Messages;
use crate::holder::own_mount::OwnMount;
use crate::holder::served::Served;
use crate::holder::signals::Signals;
use crate::mount_point::refuse_mounted;
use crate::mount_table::mount_source;
use crate::protocol::plan::{LocksMode, LogPlan, Target};
use crate::protocol::report::{HolderReport, LogReport};
use crate::socket::server::{Holder, Need, Service};

/// Interval at which the process checks that its mount still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Logs of files that no process has open are closed if they were not read for this time, and after
/// twice this time at the latest.
const IDLE_TIME: Duration = Duration::from_secs(1);
/// How long the kernel may take to end a session whose mount was removed. Meanwhile it still sends
/// requests for files that were closed just before. Without these requests, files that programs had
/// removed while they were open would remain in the store as leftovers.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an unmount waits for background flattening: less than `quell umount` waits for the
/// process.
const FLATTEN_TIMEOUT: Duration = Duration::from_secs(8);

/// A mounted log file system.
pub struct LogMount {
    holder: Holder,
    session: Session,
    fs: Arc<LogFs>,
    path: PathBuf,
    plan: LogPlan,
    signals: Signals,
    mount: OwnMount,
}

impl LogMount {
    /// Opens the stores and mounts them.
    pub fn create(context: &HolderContext, plan: &LogPlan) -> Result<LogMount, Failure> {
        let Target::Mountpoint { path, allow_other } = &context.plan.target else {
            return Err(Failure::wrong_input(
                "a log store needs a mount point: quell mount --log STORE MOUNTPOINT",
            ));
        };
        let signals = Signals::listen()?;
        // Another user may have mounted there since the command checked.
        refuse_mounted(path)?;
        let stores = shown_list(&plan.stores);
        let fs = quell_mount_spec::open_log_at(&plan.stores, choices(plan), path).map_err(|error| {
            let failure = Failure::from(error);
            Failure::with_code(failure.code(), format!("the store {stores}: {failure}"))
        })?;
        let fs = Arc::new(fs);
        let options = quell_fuse::Options {
            threads: context.plan.threads.into(),
            allow_other: *allow_other,
            locks: lock_keeper(plan.locks),
            source: mount_source(Path::new(&stores)),
            ..quell_fuse::Options::default()
        };
        let session = quell_fuse::mount_at(Arc::clone(&fs) as _, path, &options)?;
        let mount = OwnMount::at(path);
        let mut holder = Holder::bind(&context.address.directory, &context.address.key)?;
        signals.wake(&mut holder)?;
        mount.wake(&mut holder)?;
        if context.plan.verbose {
            let noun = if plan.stores.len() == 1 { "log store" } else { "log stores" };
            context.print(&format!("{noun} {stores} mounted on {}", shown(path)));
        }
        Ok(LogMount { holder, session, fs, path: path.clone(), plan: plan.clone(), signals, mount })
    }
}

fn choices(plan: &LogPlan) -> Choices {
    plan.index.choices(plan.buffer_bytes, plan.flatten_threshold_bytes)
}

fn lock_keeper(mode: LocksMode) -> LockKeeper {
    match mode {
        LocksMode::Store => LockKeeper::FileSystem,
        LocksMode::Node => LockKeeper::Kernel,
        LocksMode::None => LockKeeper::Nowhere,
    }
}

impl Served for LogMount {
    fn report_start(&self) -> Result<(), Failure> {
        // A log mount records nothing.
        Ok(())
    }

    fn is_mounted(&self) -> bool {
        true
    }

    fn abandon(self, _context: &HolderContext) {
        self.session.stop();
        self.holder.abandon();
    }

    /// Serves until the mount is removed, then ends open writers.
    fn serve(self, context: &HolderContext) -> Result<(), Failure> {
        let LogMount { holder, session, fs, path, plan, signals, mount } = self;
        report_on_signal(vec![session.in_flight()], &context.messages)?;
        close_idle_logs(&fs, &context.messages);
        let mut served = ServedLog {
            context,
            session,
            fs,
            path,
            plan,
            signals,
            mount,
            unmounted: None,
            is_signalled: false,
        };
        let ended = holder.serve(None, CHECK_INTERVAL, &mut served);
        let ServedLog { session, fs, path, is_signalled, .. } = served;
        if is_signalled {
            write_back(&path, &context.messages);
        }
        // Programs that still use the mount get errors from here on; data that they have written is
        // kept.
        session.stop();
        if let Err(e) = fs.end() {
            context.print(&format!("{}: some of the written data could not be saved: {e}", shown(&path)));
        }
        ended?;
        Ok(())
    }
}

/// A log mount while it is served.
struct ServedLog<'a> {
    context: &'a HolderContext,
    session: Session,
    fs: Arc<LogFs>,
    path: PathBuf,
    plan: LogPlan,
    signals: Signals,
    mount: OwnMount,
    /// When the mount was first found to be removed.
    unmounted: Option<Instant>,
    /// Whether a signal ended the service.
    is_signalled: bool,
}

impl Service for ServedLog<'_> {
    fn report(&self) -> String {
        let pairs = self.session.counters().snapshot().pairs();
        let log = LogReport {
            path: self.path.clone(),
            stores: self.plan.stores.clone(),
            buffer_bytes: self.plan.buffer_bytes as u64,
            index: self.plan.index,
            locks: self.plan.locks,
            counters: pairs.map(|(name, value)| (name.to_owned(), value)).collect(),
        };
        HolderReport {
            pid: std::process::id(),
            mountpoint: Some(self.path.clone()),
            trees: Vec::new(),
            log: Some(log),
            messages: self.context.message_log(),
        }
        .to_json()
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
        let is_needed =
            self.session.is_over() && self.fs.is_flattening() && since.elapsed() < FLATTEN_TIMEOUT;
        if is_needed { Need::Joinable } else { Need::Over }
    }

    /// Does nothing: `need`, which is called after each interval, checks the mount.
    fn tick(&mut self) {}

    /// Does nothing: a log mount keeps no stream of its creator open.
    fn creator_ended(&mut self) {}
}

/// Starts a thread that closes unused logs. An open log of a file that another mount has removed
/// still takes space in the store. The thread ends with the process, or with `fs`.
fn close_idle_logs(fs: &Arc<LogFs>, messages: &Messages) {
    let fs = Arc::downgrade(fs);
    let started = std::thread::Builder::new().name("quell-idle".into()).spawn(move || {
        loop {
            std::thread::sleep(IDLE_TIME);
            let Some(fs) = fs.upgrade() else { return };
            fs.close_idle();
        }
    });
    if let Err(e) = started {
        messages.print(&format!(
            "cannot start the thread that closes unused logs: {e}; files that other nodes remove may keep their space"
        ));
    }
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

#[cfg(test)]
mod tests {
    use quell_mount_spec::IndexMode;

    use super::*;

    #[test]
    fn each_index_mode_sets_the_choices_of_the_layer() {
        let chosen = |index| {
            let (stores, buffer_bytes, locks) = (Vec::new(), 4096, LocksMode::Store);
            let Choices { buffer_bytes, index_threads, flatten_bytes, flattens_later } =
                choices(&LogPlan { stores, buffer_bytes, index, flatten_threshold_bytes: 5, locks });
            assert_eq!(buffer_bytes, 4096);
            (index_threads > 1, flatten_bytes, flattens_later)
        };
        assert_eq!(chosen(IndexMode::Flatten), (true, 5, false));
        assert_eq!(chosen(IndexMode::FlattenLater), (true, 5, true));
        assert_eq!(chosen(IndexMode::Parallel), (true, 0, false));
    }
}
