//! Log mounts: checks the options of `quell mount --log`, and runs the process that serves the
//! mount. Written files become logs in stores; see docs/techniques/log.md.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_fuse::Session;
use quell_log::{Choices, LogFs, is_own};
use quell_overlay::{Holder, Need};
use rustix::fs::{Access, AtFlags, CWD};

use crate::arguments::{IndexWay, LogArgs};
use crate::commands::holder::{answer, answer_ready, end_messages, message_log, say};
use crate::ending::{MountedAt, Signals};
use crate::failure::Failure;
use crate::inputs::shown;
use crate::mounts;
use crate::plan::{Answer, LogPlan, LogReport, Place, Plan, Refusal, Report};

/// Interval at which the process checks that its mount still exists.
const LOOKS: Duration = Duration::from_millis(250);
/// Logs of files that no process has open are closed if they were not read for this time, and after
/// twice this time at the latest.
const IDLE_FOR: Duration = Duration::from_secs(1);
const FLATTEN_THRESHOLD_BYTES: u64 = 64 << 20;
/// How long the kernel may take to end a session whose mount was removed. Meanwhile it still sends
/// requests for files that were closed just before. If these were lost, removed files would leave
/// remains in the store.
const SESSION_ENDS_FOR: Duration = Duration::from_secs(1);
/// How long an unmount waits for background flattening: less than `quell umount` waits for the
/// process.
const FLATTENS_FOR: Duration = Duration::from_secs(8);

/// Checks the options before anything is served, and returns the plan. `mountpoint` has no symbolic
/// links.
pub fn plan_of(stores: &[PathBuf], mountpoint: &Path, how: LogArgs, init: bool) -> Result<LogPlan, Failure> {
    let flattens = matches!(how.index_way, Some(IndexWay::Flatten | IndexWay::FlattenLater));
    if how.flatten_threshold.is_some() && !flattens {
        return Err(Failure::wrong_input("--flatten-threshold goes with --index flatten or flatten-later"));
    }
    let stores = stores.iter().map(|store| real_store(store)).collect::<Result<Vec<_>, _>>()?;
    for (place, store) in stores.iter().enumerate() {
        refuse_nested(store, mountpoint, &stores[..place])?;
        may_write(store)?;
    }
    if !init {
        stores.iter().try_for_each(|store| refuse_other_directory(store))?;
    }
    Ok(LogPlan {
        stores,
        buffer_bytes: how.buffer.map_or(Choices::default().buffer_bytes, |bytes| bytes as usize),
        index: how.index_way.unwrap_or(IndexWay::Parallel),
        flatten_threshold_bytes: how.flatten_threshold.unwrap_or(FLATTEN_THRESHOLD_BYTES),
    })
}

fn real_store(store: &Path) -> Result<PathBuf, Failure> {
    let name = shown(store);
    let found = store.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Failure::wrong_input(format!(
            "{name} does not exist; a store is an empty directory at first: mkdir {name}"
        )),
        _ => Failure::wrong_input(format!("{name}: {e}")),
    })?;
    match found.is_dir() {
        true => Ok(found),
        false => Err(Failure::wrong_input(format!("{name} is not a directory, as stores are"))),
    }
}

/// Refuses a store at, above or below the mount point: the mount would send requests to itself.
fn refuse_nested(store: &Path, mountpoint: &Path, others: &[PathBuf]) -> Result<(), Failure> {
    let (name, point) = (shown(store), shown(mountpoint));
    let wrong = |message: String| Err(Failure::wrong_input(message));
    if store == mountpoint {
        return wrong(format!("{name} is the mount point, too: name another directory to mount on"));
    }
    if store.starts_with(mountpoint) {
        return wrong(format!("the store {name} lies below the mount point {point}, which would hide it"));
    }
    if mountpoint.starts_with(store) {
        return wrong(format!("the mount point {point} lies in the store {name}: name one outside of it"));
    }
    let Some(other) = others.iter().find(|other| store.starts_with(other) || other.starts_with(store)) else {
        return Ok(());
    };
    match other == store {
        true => wrong(format!("the store {name} is named twice")),
        false => wrong(format!("of the stores {name} and {} one lies in the other", shown(other))),
    }
}

fn may_write(store: &Path) -> Result<(), Failure> {
    let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(CWD, store, access, AtFlags::EACCESS).map_err(|e| {
        let what = match e {
            rustix::io::Errno::ROFS => "its file system is mounted read-only".to_owned(),
            rustix::io::Errno::ACCESS => {
                "you may not write to it; its owner can allow it, or name a store of yours".to_owned()
            }
            e => io::Error::from(e).to_string(),
        };
        Failure::cannot(format!("the store {}: {what}", shown(store)))
    })
}

/// Refuses a directory that contains other files, so that it does not become a store by mistake.
fn refuse_other_directory(store: &Path) -> Result<(), Failure> {
    if quell_mount_spec::is_store(store)? {
        return Ok(());
    }
    let failed = |e: io::Error| Failure::cannot(format!("the store {}: {e}", shown(store)));
    let mut names = std::fs::read_dir(store).map_err(failed)?.flatten().map(|entry| entry.file_name());
    // Another node may be turning this directory into a store at this moment; it creates Quell's
    // own directory first.
    let is_empty = names.all(|name| is_own(name.as_encoded_bytes()));
    if is_empty || quell_mount_spec::is_store(store)? {
        return Ok(());
    }
    Err(Failure::wrong_input(format!(
        "{} is not a store and is not empty: name a store or an empty directory; --init makes a store of it beside what it has",
        shown(store)
    )))
}

fn choices(plan: &LogPlan) -> Choices {
    let usual = Choices { buffer_bytes: plan.buffer_bytes, flatten_bytes: 0, ..Choices::default() };
    match plan.index {
        IndexWay::Original => Choices { index_threads: 1, ..usual },
        IndexWay::Flatten => Choices { flatten_bytes: plan.flatten_threshold_bytes, ..usual },
        IndexWay::FlattenLater => {
            Choices { flatten_bytes: plan.flatten_threshold_bytes, flattens_later: true, ..usual }
        }
        IndexWay::Parallel => usual,
    }
}

/// Runs the process that serves a log mount: answers, serves until the mount is removed, then ends
/// open writers.
pub fn hold(plan: &Plan, lock: File) -> Result<ExitCode, Failure> {
    match establish(plan) {
        Ok(served) => {
            if !answer_ready(plan) {
                served.abandon();
                return Ok(ExitCode::SUCCESS);
            }
            drop(lock);
            quell_overlay::sweep(&plan.directory);
            let served = served.serve(plan);
            end_messages(plan);
            served?;
        }
        Err(failure) => {
            answer(&Answer { refused: Some(Refusal::from(&failure)) });
        }
    }
    Ok(ExitCode::SUCCESS)
}

struct Served {
    holder: Holder,
    session: Session,
    fs: Arc<LogFs>,
    path: PathBuf,
    plan: LogPlan,
    signals: Signals,
    mounted: MountedAt,
}

fn establish(plan: &Plan) -> Result<Served, Failure> {
    let log = plan.log.as_ref().expect("asked before");
    let Place::Mountpoint { path, allow_other } = &plan.place else {
        return Err(Failure::wrong_input("stores are mounted, not run in"));
    };
    let signals = Signals::listen()?;
    // Another user may have mounted there since the command checked.
    super::mount::refuse_taken(path)?;
    let fs = Arc::new(quell_mount_spec::open_log_at(&log.stores, choices(log), path)?);
    let options = quell_fuse::Options {
        threads: plan.threads.into(),
        allow_other: *allow_other,
        source: mounts::source_of(Path::new(&joined(&log.stores))),
        ..quell_fuse::Options::default()
    };
    let session = quell_fuse::mount_at(Arc::clone(&fs) as _, path, &options)?;
    let mounted = MountedAt::of(path);
    let mut holder = Holder::bind(&plan.directory, &plan.key)?;
    signals.wake(&mut holder)?;
    mounted.wake(&mut holder)?;
    if !plan.quiet {
        say(&format!("what is written to {} goes to {}", shown(path), joined(&log.stores)));
    }
    Ok(Served { holder, session, fs, path: path.clone(), plan: log.clone(), signals, mounted })
}

/// Returns the paths of stores as text, separated by commas.
pub fn joined(stores: &[PathBuf]) -> String {
    stores.iter().map(shown).collect::<Vec<_>>().join(",")
}

impl Served {
    /// Removes the mount at once, because the command that requested it was killed.
    fn abandon(self) {
        self.session.stop();
        self.holder.abandon();
    }

    fn serve(self, held: &Plan) -> Result<(), Failure> {
        let Served { holder, session, fs, path, plan, mut signals, mounted } = self;
        let messages = message_log(held);
        let mut report = || {
            let pairs = session.counters().snapshot().pairs();
            let log = LogReport {
                path: path.clone(),
                stores: plan.stores.clone(),
                buffer_bytes: plan.buffer_bytes as u64,
                index: plan.index,
                counters: pairs.map(|(name, value)| (name.to_owned(), value)).collect(),
            };
            let (pid, mountpoint) = (std::process::id(), Some(path.clone()));
            let messages = messages.clone();
            let report = Report { pid, mountpoint, trees: Vec::new(), log: Some(log), messages };
            serde_json::to_string(&report).unwrap_or_default()
        };
        close_idle_logs(&fs);
        let mut unmounted = None;
        let mut is_signalled = false;
        let mut need = || {
            if signals.requests() > 0 {
                is_signalled = true;
                return Need::Over;
            }
            if !session.is_over() && mounted.is_there() {
                return Need::Listed;
            }
            // `quell umount` waits as long as this process exists. After a forced unmount the
            // session ends when the last program has closed its files; otherwise the kernel ends it
            // a moment later.
            let since: &Instant = unmounted.get_or_insert_with(Instant::now);
            while !session.is_over() && since.elapsed() < SESSION_ENDS_FOR {
                std::thread::sleep(Duration::from_millis(1));
            }
            let is_needed = session.is_over() && fs.is_flattening() && since.elapsed() < FLATTENS_FOR;
            if is_needed { Need::Listed } else { Need::Over }
        };
        let served = holder.serve(None, LOOKS, &mut report, &mut need, &mut || (), &mut || ());
        if is_signalled {
            write_back(&path);
        }
        // Programs that still use the mount get errors from here on; data that they have written is
        // kept.
        session.stop();
        if let Err(e) = fs.end() {
            say(&format!("{}: not all that was written could be kept: {e}", shown(&path)));
        }
        served?;
        Ok(())
    }
}

/// Starts a thread that closes unused logs: of files that other mounts have removed, open logs use
/// space. The thread ends with the process, or with `fs`.
fn close_idle_logs(fs: &Arc<LogFs>) {
    let fs = Arc::downgrade(fs);
    let begun = std::thread::Builder::new().name("quell-idle".into()).spawn(move || {
        loop {
            std::thread::sleep(IDLE_FOR);
            let Some(fs) = fs.upgrade() else { return };
            fs.close_idle();
        }
    });
    if let Err(e) = begun {
        say(&format!(
            "cannot start the thread that closes unused logs: {e}; files that other nodes remove may keep their space"
        ));
    }
}

/// Makes the kernel write back dirty pages of mapped files.
fn write_back(mountpoint: &Path) {
    let synced = File::open(mountpoint).and_then(|root| Ok(rustix::fs::syncfs(&root)?));
    if let Err(e) = synced {
        say(&format!("{}: what programs wrote to mapped files may not be kept: {e}", shown(mountpoint)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_would_ask_itself_is_refused() {
        let refused = |store: &str, point: &str, others: &[&str]| {
            let others: Vec<PathBuf> = others.iter().map(PathBuf::from).collect();
            refuse_nested(Path::new(store), Path::new(point), &others).unwrap_err().to_string()
        };
        assert!(refused("/a", "/a", &[]).contains("another directory"));
        assert!(refused("/a/b", "/a", &[]).contains("hide"));
        assert!(refused("/a", "/a/b", &[]).contains("outside"));
        assert!(refused("/a", "/m", &["/b", "/a"]).contains("twice"));
        assert!(refused("/a", "/m", &["/a/b"]).contains("one lies in the other"));
        assert!(refuse_nested(Path::new("/ab"), Path::new("/a"), &["/abc".into()]).is_ok());
    }

    #[test]
    fn the_ways_to_an_index_are_what_the_layer_does() {
        let way = |index| {
            let (stores, buffer_bytes) = (Vec::new(), 4096);
            let Choices { buffer_bytes, index_threads, flatten_bytes, flattens_later } =
                choices(&LogPlan { stores, buffer_bytes, index, flatten_threshold_bytes: 5 });
            assert_eq!(buffer_bytes, 4096);
            (index_threads > 1, flatten_bytes, flattens_later)
        };
        assert_eq!(way(IndexWay::Original), (false, 0, false));
        assert_eq!(way(IndexWay::Flatten), (true, 5, false));
        assert_eq!(way(IndexWay::FlattenLater), (true, 5, true));
        assert_eq!(way(IndexWay::Parallel), (true, 0, false));
    }
}
