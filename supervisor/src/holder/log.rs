//! A log mount. Written files become logs in stores; see docs/techniques/log.md.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quell_fuse::LockKeeper;
use quell_log::{Choices, LogFs};
use quell_mount_spec::NewFiles;
use quell_vfs::{FileSystem, Result};

use crate::display::shown_list;
use crate::failure::Failure;
use crate::holder::handshake::HolderContext;
use crate::holder::messages::Messages;
use crate::holder::only_user;
use crate::holder::writable_mount::{Content, MountOptions, WritableMount, mountpoint};
use crate::protocol::plan::{LocksMode, LogPlan};
use crate::protocol::report::{HolderReport, LogReport};

/// Logs of files that no process has open are closed if they were not read for this time, and after
/// twice this time at the latest.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Opens the stores and mounts them.
pub fn create(context: &HolderContext, plan: &LogPlan) -> Result<WritableMount, Failure> {
    let usage = "a log store needs a mount point: quell mount --log STORE MOUNTPOINT";
    let path = mountpoint(context, usage)?;
    let stores = shown_list(&plan.stores);
    let noun = if plan.stores.len() == 1 { "log store" } else { "log stores" };
    let options = MountOptions {
        source: Path::new(&stores),
        locks: lock_keeper(plan.locks),
        description: format!("{noun} {stores}"),
    };
    let is_only_user = Arc::new(OnceLock::new());
    let mut opened = None;
    let mount = WritableMount::create(context, path, &options, || {
        let fs = quell_mount_spec::open_log_at(&plan.stores, choices(plan), path).map_err(|error| {
            let failure = Failure::from(error);
            Failure::with_code(failure.code(), format!("the store {stores}: {failure}"))
        })?;
        let fs = Arc::new(fs);
        close_idle_logs(&fs, &context.messages);
        opened = Some(Arc::clone(&fs));
        Ok(Arc::new(Logs { fs, plan: plan.clone(), is_only_user: Arc::clone(&is_only_user) }))
    })?;
    if let Some(fs) = opened {
        let started = only_user::start(&fs, mount.kernel_cache(), plan.kernel_caching, &context.messages);
        is_only_user.get_or_init(|| started);
    }
    Ok(mount)
}

/// The logs of a mount.
struct Logs {
    fs: Arc<LogFs>,
    plan: LogPlan,
    /// Whether this mount is the only user of its store.
    is_only_user: Arc<OnceLock<Arc<AtomicBool>>>,
}

impl Content for Logs {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as _
    }

    fn is_busy(&self) -> bool {
        self.fs.is_flattening()
    }

    fn end(&self) -> Result<()> {
        self.fs.end()
    }

    fn describe(&self, path: &Path, counters: BTreeMap<String, u64>, report: &mut HolderReport) {
        report.log = Some(LogReport {
            path: path.to_owned(),
            stores: self.plan.stores.clone(),
            buffer_bytes: self.plan.buffer_bytes as u64,
            index: self.plan.index,
            locks: self.plan.locks,
            only_user: self.is_only_user.get().is_some_and(|is| is.load(Ordering::Relaxed)),
            counters,
        });
    }
}

fn choices(plan: &LogPlan) -> Choices {
    let begins_as_object = plan.new_files == NewFiles::Object;
    Choices { begins_as_object, ..plan.index.choices(plan.buffer_bytes, plan.flatten_threshold_bytes) }
}

fn lock_keeper(mode: LocksMode) -> LockKeeper {
    match mode {
        LocksMode::Store => LockKeeper::FileSystem,
        LocksMode::Node => LockKeeper::Kernel,
        LocksMode::None => LockKeeper::Nowhere,
    }
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

#[cfg(test)]
mod tests {
    use quell_mount_spec::IndexMode;

    use super::*;
    use crate::protocol::plan::KernelCaching;

    #[test]
    fn each_index_mode_sets_the_choices_of_the_layer() {
        let chosen = |index| {
            let (stores, buffer_bytes, locks) = (Vec::new(), 4096, LocksMode::Store);
            let Choices { buffer_bytes, index_threads, flatten_bytes, flattens_later, .. } =
                choices(&LogPlan {
                    stores,
                    buffer_bytes,
                    index,
                    flatten_threshold_bytes: 5,
                    locks,
                    kernel_caching: KernelCaching::Auto,
                    new_files: NewFiles::Container,
                });
            assert_eq!(buffer_bytes, 4096);
            (index_threads > 1, flatten_bytes, flattens_later)
        };
        assert_eq!(chosen(IndexMode::Flatten), (true, 5, false));
        assert_eq!(chosen(IndexMode::FlattenLater), (true, 5, true));
        assert_eq!(chosen(IndexMode::Parallel), (true, 0, false));
    }
}
