//! `quell run --batch`: executes a program that sees the files of a store for batches in a
//! directory, and publishes its changes when it has ended.
//!
//! A process of `quell mount` serves the files at a mount point in the runtime directory. The
//! program sees them in its directory, because it runs in a mount namespace of its own, where the
//! mount point is bound to the directory.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use quell_supervisor::{
    BatchMode, PlanSource, Waiting, batch_plan, discard_changes, enter_mount, mount, mount_target,
    runtime_directory,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::{BatchModeArg, EnterMountArgs, RunArgs};
use crate::commands::batch_background::connect_or_start;
use crate::commands::umount::{batch_of, unmount, unmount_and_commit};
use crate::failure::{Failure, NO};
use crate::inputs::{real_path, shown};
use crate::output::errln;
use crate::plans;
use crate::program::become_program;

/// Runs the program of `quell run --batch`, and returns its exit code.
pub fn run(args: &RunArgs, batch: &str, quiet: bool) -> Result<ExitCode, Failure> {
    let BatchArgument { store, directory, .. } = batch_argument(batch)?;
    let mode = plans::batch_mode(&args.batch_mode, BatchModeArg::Batch)?;
    let signals = watched_signals()?;
    let point = new_mount_point()?;
    let ended = run_at(args, store, mode, (&point, &directory), signals, quiet);
    // The removal fails if the batch is still mounted; the error of `run_at` is then more useful.
    let removed = std::fs::remove_dir(&point);
    let code = ended?;
    removed.map_err(|error| Failure::cannot(format!("{}: {error}", shown(&point))))?;
    Ok(code)
}

/// The parts of STORE[/PATH]=DIR.
pub struct BatchArgument<'a> {
    pub store: &'a Path,
    /// The directory as the user named it.
    pub named: &'a Path,
    /// The directory without symbolic links.
    pub directory: PathBuf,
}

/// Parses STORE[/PATH]=DIR.
pub fn batch_argument(text: &str) -> Result<BatchArgument<'_>, Failure> {
    let refused =
        || Failure::wrong_input(format!("--batch {}: it has the form STORE[/PATH]=DIR", shown(text)));
    let (store, named) = text.rsplit_once('=').ok_or_else(refused)?;
    if store.is_empty() || named.is_empty() {
        return Err(refused());
    }
    let (store, named) = (Path::new(store), Path::new(named));
    let directory = real_path(named)?;
    if !directory.is_dir() {
        return Err(Failure::wrong_input(format!("{} is not a directory", shown(&directory))));
    }
    Ok(BatchArgument { store, named, directory })
}

/// Returns the signals that must not end this process before it has ended the batch. SIGTERM and
/// SIGHUP are passed to the program; SIGINT and SIGQUIT of a terminal reach it without this
/// process.
pub fn watched_signals() -> Result<Signals, Failure> {
    Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::cannot(format!("cannot wait for signals: {error}")))
}

/// Returns the failure for a signal that arrived before the program was started.
pub fn interrupted(signal: i32) -> Failure {
    let message = "interrupted before the program was started".to_owned();
    Failure::with_code(u8::try_from(128 + signal).unwrap_or(u8::MAX), message)
}

/// Returns the exit code that follows from the end of the program and the end of its batch.
pub fn code_of(status: ExitStatus, ended: Result<u64, Failure>, strict: bool) -> Result<ExitCode, Failure> {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    let code = u8::try_from(code).unwrap_or(u8::MAX);
    match ended {
        Ok(conflicts) if conflicts > 0 && strict && code == 0 => Ok(ExitCode::from(NO)),
        Ok(_) => Ok(ExitCode::from(code)),
        Err(failure) if code == 0 => Err(failure),
        Err(failure) => {
            errln!("quell: {failure}");
            Ok(ExitCode::from(code))
        }
    }
}

/// Creates a directory for a mount.
fn new_mount_point() -> Result<PathBuf, Failure> {
    let path = runtime_directory()?.join(format!("batch-{}", std::process::id()));
    // A killed command with the same process number may have left the directory. A directory at
    // which a batch is still mounted is not removed.
    let _ = std::fs::remove_dir(&path);
    let created = DirBuilder::new().mode(0o700).create(&path);
    // The process that serves the mount reports the path without symbolic links.
    created
        .and_then(|()| path.canonicalize())
        .map_err(|error| Failure::cannot(format!("{}: {error}", shown(&path))))
}

fn run_at(
    args: &RunArgs,
    store: &Path,
    mode: BatchMode,
    (point, directory): (&Path, &Path),
    mut signals: Signals,
    quiet: bool,
) -> Result<ExitCode, Failure> {
    let target = mount_target(point, false)?;
    let is_batch = matches!(mode, BatchMode::Batch { .. } | BatchMode::Part { .. });
    let plan = batch_plan(store, mode, directory, &args.cover.trust_owner)?;
    // The connection keeps the server until the mount has its own.
    let connection = args.batch_mode.serve.then(|| connect_or_start(&plan)).transpose()?;
    mount(&plans::plan(target, PlanSource::Batch(plan), &args.cover, quiet))?;
    drop(connection);
    if let Some(signal) = signals.pending().next() {
        discard_and_unmount(point)?;
        return Err(interrupted(signal));
    }
    // The batch is determined before the program runs, because the process that serves the mount
    // may be killed meanwhile.
    let batch = batch_of(point);
    let executed = match &batch {
        None if is_batch => Err(Failure::cannot(format!(
            "{}: the process that serves the batch does not answer; the program was not started",
            shown(point)
        ))),
        _ => execute(args, point, directory, signals, quiet),
    };
    let status = match executed {
        Ok(status) => status,
        Err(failure) => {
            discard_and_unmount(point)?;
            return Err(failure);
        }
    };
    code_of(status, unmount_and_commit(point, batch.as_ref(), false, quiet), args.cover.strict)
}

/// Removes a mount that no program has used, and aborts its batch if it has one.
fn discard_and_unmount(point: &Path) -> Result<(), Failure> {
    // If the process that serves the mount does not answer, it commits the batch, which is empty.
    let discarded = discard_changes(point);
    unmount(point, true)?;
    discarded.map(drop)
}

/// Executes the program with the mount at the directory, and waits for its end.
fn execute(
    args: &RunArgs,
    point: &Path,
    directory: &Path,
    signals: Signals,
    quiet: bool,
) -> Result<ExitStatus, Failure> {
    let failed = |error: std::io::Error| Failure::cannot(format!("start the program: {error}"));
    let words = [OsStr::new("enter-mount"), point.as_os_str(), directory.as_os_str(), OsStr::new("--")];
    let mut command = Command::new("/proc/self/exe");
    command.args(quiet.then_some("--quiet")).args(words).args(&args.command);
    wait_for_program(command.spawn().map_err(failed)?, signals)
}

/// Waits for the end of the program, and passes signals to it.
pub fn wait_for_program(mut child: Child, mut signals: Signals) -> Result<ExitStatus, Failure> {
    let failed = |error: std::io::Error| Failure::cannot(format!("wait for the program: {error}"));
    let handle = signals.handle();
    let program = match pidfd_open(pid_of(&child), PidfdFlags::empty()) {
        Ok(program) => program,
        Err(error) => {
            // The caller ends the batch, which the program must not use any more.
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
            return Err(failed(error.into()));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for signal in signals.forever() {
                let signal = match signal {
                    SIGTERM => Signal::TERM,
                    SIGHUP => Signal::HUP,
                    _ => continue,
                };
                // The program may have ended.
                let _ = pidfd_send_signal(&program, signal);
            }
        });
        let status = child.wait().map_err(failed);
        handle.close();
        status
    })
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Executes a program in this process, which sees a mount at a directory.
pub fn enter(args: &EnterMountArgs, quiet: bool) -> Result<ExitCode, Failure> {
    enter_mount(&args.mount, &args.directory)?;
    let waiting = Waiting::of_command(None, quiet, |message| errln!("quell: {message}"));
    become_program(&args.command, None, &[], &waiting)
}
