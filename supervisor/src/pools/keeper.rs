//! The keeper of a pool: the process of the job that is the parent of the launchers of the daemons.
//! When it ends, for any reason, the standard input of the launchers is closed, and the daemons
//! end.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::Failure;
use crate::hang_up::is_hang_up_ignored;
use crate::pools::change::Keeper;
use crate::pools::control::listen;
use crate::pools::launch::start_pool;
use crate::pools::new_pool::NewPool;

/// The command of this program that calls [`run_pool_keeper`].
const KEEPER_COMMAND: &str = "pool-keeper";
/// How often the command checks for a signal while it waits for the keeper, and how often the
/// keeper checks for one while it waits for the end of the daemons.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
const KEEPING_INTERVAL: Duration = Duration::from_millis(100);
/// The largest plan, in bytes: 1,024 command lines.
const PLAN_BYTES_MAX: u64 = 16 << 20;

/// The answer of the keeper.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// All daemons serve.
    Serving,
    /// The start has failed, and all daemons have ended.
    Failed { code: u8, message: String },
}

/// Starts a keeper, which starts the daemons of a pool. Returns when all of them serve.
///
/// # Errors
///
/// The errors of [`start_pool`]. SIGINT, SIGTERM and SIGHUP interrupt the start.
pub fn start_kept_pool(new: &NewPool) -> Result<(), Failure> {
    let interrupted = signals()?;
    let failed = |e: std::io::Error| Failure::cannot(format!("cannot start the keeper of the pool: {e}"));
    let mut child = Command::new("/proc/self/exe")
        .arg0("quell")
        .arg(KEEPER_COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut input = child.stdin.take().expect("it is piped");
    let mut plan = serde_json::to_vec(new).map_err(|e| failed(e.into()))?;
    plan.push(b'\n');
    input.write_all(&plan).map_err(failed)?;
    let output = child.stdout.take().expect("it is piped");
    let (sender, answers) = channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(output).take(PLAN_BYTES_MAX).read_line(&mut line);
        // The receiver waits until it has the line.
        let _ = sender.send(read.map(|_| line));
    });
    let mut input = Some(input);
    let line = loop {
        match answers.recv_timeout(SIGNAL_INTERVAL) {
            Ok(line) => break line.map_err(failed)?,
            // The end of its input makes the keeper end the daemons, and then answer.
            Err(RecvTimeoutError::Timeout) if interrupted.load(Ordering::SeqCst) => drop(input.take()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(failed(std::io::ErrorKind::BrokenPipe.into())),
        }
    };
    match serde_json::from_str(&line) {
        Ok(Answer::Serving) => Ok(()),
        Ok(Answer::Failed { code, message }) => Err(Failure::with_code(code, message)),
        Err(_) => {
            let status = child.wait().map_err(failed)?;
            Err(Failure::cannot(format!("the keeper of the pool has ended: {status}")))
        }
    }
}

/// Returns a flag that SIGINT and SIGTERM set, and SIGHUP unless the caller of the program ignores
/// it, as nohup does.
fn signals() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let hangup = (!is_hang_up_ignored()).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(|e| Failure::cannot(format!("cannot handle signals: {e}")))?;
    }
    Ok(flag)
}

/// Runs the keeper: reads the plan from standard input, starts the daemons, answers, and waits
/// until all daemons have ended, or until a signal ends them.
///
/// # Errors
/// The errors of the start, which were also sent as the answer.
pub fn run_pool_keeper() -> Result<(), Failure> {
    let stopped = signals()?;
    let failed = |e: std::io::Error| Failure::cannot(format!("the keeper of a pool: {e}"));
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    (&mut input).take(PLAN_BYTES_MAX).read_line(&mut line).map_err(failed)?;
    let new: NewPool = serde_json::from_str(&line).map_err(|_| {
        Failure::wrong_input("the keeper of a pool is started by `quell pool up`, and is not for direct use")
    })?;
    // Until the answer, the end of the input means that the command was interrupted.
    let (abandoned, flag) = (Arc::new(AtomicBool::new(false)), Arc::clone(&stopped));
    let watched = Arc::clone(&abandoned);
    std::thread::spawn(move || {
        // Nothing follows the plan.
        let _ = input.read(&mut [0]);
        watched.store(true, Ordering::SeqCst);
    });
    let is_cancelled = || flag.load(Ordering::SeqCst) || abandoned.load(Ordering::SeqCst);
    std::env::set_current_dir("/").map_err(failed)?;
    if new.is_detached {
        // EPERM: the process is the leader of its group already.
        match rustix::process::setsid() {
            Ok(_) | Err(rustix::io::Errno::PERM) => {}
            Err(e) => return Err(failed(e.into())),
        }
    }
    let started = start_pool(&new, &is_cancelled);
    let started = started.and_then(|mut pool| match listen(&pool) {
        Ok(()) => Ok(pool),
        Err(failure) => {
            pool.end();
            Err(failure)
        }
    });
    let answer = match &started {
        Ok(_) => Answer::Serving,
        Err(failure) => Answer::Failed { code: failure.code(), message: failure.to_string() },
    };
    let mut text = serde_json::to_vec(&answer).expect("a number and a text");
    text.push(b'\n');
    let answered = std::io::stdout().lock().write_all(&text);
    let Ok(launched) = started else { return answered.map_err(failed) };
    let mut keeper = Keeper::new(launched);
    if answered.is_err() {
        // The command that started the keeper has not learned that the daemons serve.
        keeper.end();
        return answered.map_err(failed);
    }
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    let detached = dup2_stdin(&null).and(dup2_stdout(&null)).and(dup2_stderr(&null));
    if detached.is_ok() {
        keeper.keep(KEEPING_INTERVAL, &|| stopped.load(Ordering::SeqCst));
    }
    keeper.end();
    detached.map_err(|e| failed(e.into()))
}
