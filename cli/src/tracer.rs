//! Runs a program under strace, which needs no privilege, and measures the cost of tracing.
//!
//! At each traced call the kernel stops the program and wakes the tracer, then the tracer waits and
//! the kernel wakes the program. Each of the two may have to wake a sleeping processor, which on
//! virtual machines costs more than everything else. While a program is traced, a thread of the
//! lowest priority therefore keeps a processor awake (docs/decisions/0007-tracing.md has the
//! measurements).

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_profile::{SlowDown, TraceSummary, Tracing};
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use quell_supervisor::Fifo;

use crate::failure::Failure;
use crate::inputs::shown;
use crate::output::outln;

/// Number of calls that are timed to measure the cost of tracing: 0.2 s on the slowest machines
/// seen.
const CALIBRATION_CALLS: u32 = 2_000;
/// The approximate time between two file-system calls in the start of a Python program.
const WORK_BETWEEN_CALLS: Duration = Duration::from_micros(50);
const POLL: Duration = Duration::from_millis(20);
/// The largest pipe that Linux allows an ordinary user, in bytes.
const PIPE_BYTES: usize = 1 << 20;
/// A tracer that writes 20,000 lines per second fills the pipe in a third of a second.
const PIPE_POLL: Duration = Duration::from_millis(5);

/// A working strace.
#[derive(Debug)]
pub struct Tracer {
    program: PathBuf,
    pub version: String,
    /// Whether strace stops only at the requested calls, with a filter in the kernel (strace 5.3
    /// and later).
    filters: bool,
}

impl Tracer {
    pub fn find() -> Result<Tracer, Failure> {
        let missing = || {
            Failure::cannot(
                "strace is needed to trace a program and is not on PATH: install it (apt install strace), \
                 or read the trace of another machine with --import",
            )
        };
        let output = Command::new("strace").arg("-V").output().map_err(|_| missing())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.lines().next().and_then(|line| line.rsplit(' ').next()).unwrap_or("?").to_owned();
        let mut tracer = Tracer { program: "strace".into(), version, filters: true };
        // Older versions do not know the option, and some kernels refuse the filter.
        tracer.filters = tracer.works()?;
        Ok(tracer)
    }

    pub fn name(&self) -> String {
        let filter = if self.filters { " --seccomp-bpf" } else { "" };
        format!("strace {}{filter}", self.version)
    }

    /// Returns whether the filter works. It is an error if tracing does not work at all.
    fn works(&self) -> Result<bool, Failure> {
        let mut last = String::new();
        for filters in [true, false] {
            let tracer = Tracer { program: self.program.clone(), version: String::new(), filters };
            let output = tracer.command(Path::new("/dev/null")).arg("true").stdin(Stdio::null()).output();
            match output {
                Ok(output) if output.status.success() => return Ok(filters),
                Ok(output) => last = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "),
                Err(e) => last = e.to_string(),
            }
        }
        Err(Failure::cannot(format!(
            "strace cannot trace here: {last}; containers may need the capability SYS_PTRACE, and \
             /proc/sys/kernel/yama/ptrace_scope must be below 3"
        )))
    }

    /// Returns the strace command with the options of all traces. Structures and data buffers are
    /// not decoded, because data is private and decoding takes time.
    fn command(&self, output: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args([
            "-f",
            "-q",
            "-ttt",
            "-T",
            "-y",
            "-s",
            "0",
            "-e",
            "signal=none",
            "-e",
            "verbose=clone3,openat2",
        ]);
        if self.filters {
            command.arg("--seccomp-bpf");
        }
        // A `?` makes strace accept calls that this architecture or this version does not have.
        let calls: Vec<String> = quell_profile::TRACED.iter().map(|call| format!("?{call}")).collect();
        command.args(["-e", &format!("trace={}", calls.join(","))]).arg("-o").arg(output).arg("--");
        command
    }

    /// Runs a program to its end and writes the trace to `output`. The first Ctrl-C is for the
    /// program.
    pub fn run(
        &self,
        command: &[OsString],
        output: &Path,
        interrupted: &AtomicBool,
    ) -> Result<(ExitStatus, Duration), Failure> {
        let pipe = Fifo::create("trace")?;
        // The maximum for an ordinary user; with a smaller pipe the tracer blocks more often.
        let _ = rustix::pipe::fcntl_setpipe_size(&pipe.reader, PIPE_BYTES);
        let mut options = std::fs::File::options();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(output)
            .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(output))))?;
        let _awake = Awake::start();
        let begun = Instant::now();
        let child = self
            .command(&pipe.path)
            .args(command)
            .spawn()
            .map_err(|e| Failure::cannot(format!("{}: {e}", shown(&self.program))))?;
        let ended = AtomicBool::new(false);
        let (status, copied) = std::thread::scope(|scope| {
            let copy = scope.spawn(|| copy(&pipe, &mut file, &ended));
            let status = wait(child, interrupted);
            ended.store(true, Ordering::Release);
            (status, copy.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let time = begun.elapsed();
        copied.map_err(|e| Failure::cannot(format!("{}: {e}; the trace is not complete", shown(output))))?;
        Ok((status?, time))
    }

    /// Returns the time that tracing adds to one call.
    pub fn call_cost(&self) -> Option<Duration> {
        let _awake = Awake::start();
        let own = std::env::current_exe().ok()?;
        let time = |mut command: Command| -> Option<u64> {
            let mut child = command
                .arg("calibrate")
                .arg(CALIBRATION_CALLS.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .ok()?;
            let mut text = String::new();
            child.stdout.take()?.read_to_string(&mut text).ok()?;
            child.wait().ok()?;
            text.trim().parse().ok()
        };
        let plain = time(Command::new(&own))?;
        let mut command = self.command(Path::new("/dev/null"));
        command.arg(&own);
        let traced = time(command)?;
        Some(Duration::from_nanos(traced.saturating_sub(plain) / u64::from(CALIBRATION_CALLS)))
    }
}

/// The result of a traced run.
#[derive(Debug)]
pub struct Traced {
    /// The exit code as shells report it.
    pub code: u8,
    pub exit_code: Option<i32>,
    pub tracer: String,
    pub time: Duration,
    /// The duration without tracing, if it was measured.
    pub untraced: Option<Duration>,
    /// The time that tracing adds to one call, if it was measured.
    pub call_cost: Option<Duration>,
}

/// If tracing takes more than this part of the duration, the duration without tracing is not
/// estimated: a small error of the cost of a call would have a large effect on it.
const TRACING_PART_MAX: f64 = 0.75;

impl Traced {
    /// Returns the cost of tracing.
    pub fn tracing(&self, summary: &TraceSummary) -> Tracing {
        // A measured comparison uses the wall times of both runs; an estimate excludes the start of
        // the tracer.
        let traced_s = if self.untraced.is_some() { self.time } else { summary.span }.as_secs_f64();
        let tracing_s = summary.tracing.as_secs_f64();
        let (direct_s, how) = match (self.untraced, self.call_cost) {
            (Some(untraced), _) => (untraced.as_secs_f64(), SlowDown::Measured),
            (None, Some(_)) if tracing_s <= traced_s * TRACING_PART_MAX => {
                (traced_s - tracing_s, SlowDown::Estimated)
            }
            (None, _) => (traced_s, SlowDown::Unknown),
        };
        Tracing {
            tracer: self.tracer.clone(),
            traced_s,
            direct_s,
            slow_down: if direct_s > 0.0 { traced_s / direct_s } else { 1.0 },
            how,
            exit_code: self.exit_code,
        }
    }
}

/// Copies the output of strace until all of it was read. strace writes each line separately; the
/// file, which may be on a shared file system, is written in large pieces. The pipe is polled at
/// intervals, so that not every line wakes this thread.
fn copy(from: &Fifo, file: &mut std::fs::File, ended: &AtomicBool) -> std::io::Result<()> {
    let mut piece = Vec::with_capacity(PIPE_BYTES);
    let mut result = Ok(());
    loop {
        // Loaded before the read, so that output written before the end is still read.
        let was_ended = ended.load(Ordering::Acquire);
        let read = rustix::io::read(&from.reader, spare_capacity(&mut piece));
        match read {
            Ok(0) | Err(Errno::AGAIN) if was_ended => break,
            Ok(0) | Err(Errno::AGAIN) => std::thread::sleep(PIPE_POLL),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        if piece.len() > PIPE_BYTES / 2 {
            // If the disk is full, the remaining output is read and dropped, so that the program
            // continues.
            result = result.and_then(|()| file.write_all(&piece));
            piece.clear();
        }
    }
    result.and_then(|()| file.write_all(&piece))
}

/// Runs a program without tracing.
pub fn run_untraced(
    command: &[OsString],
    interrupted: &AtomicBool,
) -> Result<(ExitStatus, Duration), Failure> {
    let (program, arguments) = command.split_first().expect("clap asks for one");
    let begun = Instant::now();
    let child = Command::new(program)
        .args(arguments)
        .spawn()
        .map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(program))))?;
    let status = wait(child, interrupted)?;
    Ok((status, begun.elapsed()))
}

/// Waits for the program. A Ctrl-C of the terminal has reached the program already. A signal to
/// this process alone is passed on to all traced processes: strace continues until the last of them
/// has ended, and does not end on signals itself.
fn wait(mut child: Child, interrupted: &AtomicBool) -> Result<ExitStatus, Failure> {
    let failed = |e: std::io::Error| Failure::cannot(format!("cannot wait for the program: {e}"));
    let mut was_signalled = false;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        if interrupted.load(Ordering::Relaxed) && !was_signalled {
            was_signalled = true;
            for pid in tracees_of(child.id()).into_iter().chain([child.id() as i32]) {
                let _ = Pid::from_raw(pid).map(|pid| rustix::process::kill_process(pid, Signal::TERM));
            }
        }
        std::thread::sleep(POLL);
    }
}

fn tracees_of(tracer: u32) -> Vec<i32> {
    let wanted = format!("TracerPid:\t{tracer}");
    let is_one = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status.is_ok_and(|status| status.lines().any(|line| line == wanted))
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_one).collect()
}

/// Returns the exit code of a program as shells report it.
pub fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => (128 + signal) as u8,
        (None, None) => crate::failure::CANNOT,
    }
}

/// Keeps one processor awake until this value is dropped. It uses a single thread, because a second
/// one would slow down a file system that is served on the same machine.
#[derive(Debug)]
struct Awake {
    stop: Arc<AtomicBool>,
}

impl Awake {
    fn start() -> Awake {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = stop.clone();
        // Without the thread, tracing is only slower.
        let _ = std::thread::Builder::new().name("quell-awake".into()).spawn(move || {
            // On Linux this sets the priority of the calling thread only.
            if rustix::process::setpriority_process(None, 19).is_err() {
                return;
            }
            while !is_stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Awake { stop }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Prints the nanoseconds that this number of calls take: a file is looked up, opened, its
/// attributes are read, and it is closed. Between two calls the process works for a while, as
/// programs do: without a pause the result would depend on the processors on which tracer and
/// program happen to run. The slowest and the fastest tenth of the calls are left out, so that the
/// result does not depend on other load of the machine.
pub fn calibrate(calls: u32) -> ExitCode {
    let Ok(own) = std::env::current_exe() else { return ExitCode::from(crate::failure::CANNOT) };
    let mut times: Vec<Duration> = Vec::new();
    let mut timed = |call: &mut dyn FnMut()| {
        let begin = Instant::now();
        call();
        times.push(begin.elapsed());
        let pause = Instant::now();
        while pause.elapsed() < WORK_BETWEEN_CALLS {
            std::hint::spin_loop();
        }
    };
    for _ in 0..calls / 4 {
        let mut file = None;
        timed(&mut || _ = rustix::fs::stat(&own));
        timed(&mut || file = rustix::fs::open(&own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok());
        timed(&mut || _ = file.as_ref().map(rustix::fs::fstat));
        timed(&mut || drop(file.take()));
    }
    outln!("{}", (trimmed_mean(times) * calls).as_nanos());
    ExitCode::SUCCESS
}

/// Returns the mean without the lowest and the highest tenth of the values; zero for no values.
fn trimmed_mean(mut times: Vec<Duration>) -> Duration {
    times.sort();
    let outliers = times.len() / 10;
    let kept = &times[outliers..times.len() - outliers];
    kept.iter().sum::<Duration>().checked_div(kept.len() as u32).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traced(span_ms: u64, tracing_ms: u64, call_cost: Option<Duration>) -> Tracing {
        let traced = Traced {
            code: 0,
            exit_code: Some(0),
            tracer: "strace".to_owned(),
            time: Duration::from_millis(span_ms + 10),
            untraced: None,
            call_cost,
        };
        let summary = TraceSummary {
            calls: 9,
            span: Duration::from_millis(span_ms),
            tracing: Duration::from_millis(tracing_ms),
        };
        traced.tracing(&summary)
    }

    #[test]
    fn an_estimate_that_leaves_little_time_is_unknown() {
        let cost = Some(Duration::from_micros(40));
        let estimated = traced(1000, 200, cost);
        assert_eq!(
            (estimated.how, estimated.direct_s, estimated.slow_down),
            (SlowDown::Estimated, 0.8, 1.25)
        );
        for unknown in [traced(1000, 950, cost), traced(1000, 0, None)] {
            assert_eq!((unknown.how, unknown.direct_s, unknown.slow_down), (SlowDown::Unknown, 1.0, 1.0));
        }
    }

    #[test]
    fn a_few_slow_calls_do_not_change_the_cost_of_a_call() {
        let micros = |n| Duration::from_micros(n);
        let usual: Vec<Duration> = (0..100).map(|_| micros(40)).collect();
        let mut disturbed = usual.clone();
        disturbed[..8].fill(micros(5_000));
        assert_eq!((trimmed_mean(usual), trimmed_mean(disturbed)), (micros(40), micros(40)));
        assert_eq!(trimmed_mean(Vec::new()), Duration::ZERO);
    }
}
