//! Operations on a file system that may not answer: after a few seconds the path is reported, and
//! after the time that the user has set, the process ends. A system call that waits for a file
//! server cannot be given a time limit, so another thread watches it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::display::shown;
use crate::failure::Failure;
use crate::socket::server::has_ended;

/// The time without an answer after which an operation is reported.
const REPORT_AFTER: Duration = Duration::from_secs(3);
/// The lowest expected rate of reading a whole file. The time for a large file is longer.
const READ_BYTES_PER_SECOND: u64 = 10 << 20;
/// The time between two checks whether the command still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A watchdog for operations on a file system that may not answer.
pub struct Waiting {
    limit: Option<Duration>,
    print: Box<dyn Fn(&str) + Send + Sync>,
    end: Box<dyn Fn(Option<Failure>) + Send + Sync>,
    creator: Creator,
    /// Whether this process was asked to end.
    is_to_end: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

/// The process that started this one and waits for it; if it ends, this one ends, too.
enum Creator {
    /// No process waits for this one, or the kernel gives no descriptor for it (Linux before 5.3).
    None,
    Running(OwnedFd),
    /// The process ended before this one could open a descriptor for it.
    Ended,
}

impl Creator {
    fn open(pid: i32) -> Creator {
        match Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(process)) => Creator::Running(process),
            Some(Err(Errno::SRCH)) => Creator::Ended,
            Some(Err(_)) | None => Creator::None,
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Creator::None => false,
            Creator::Running(process) => has_ended(process.as_fd()),
            Creator::Ended => true,
        }
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Waiting {
    /// Returns the watchdog of a command: it prints messages with `print`, and ends with an error
    /// after `limit`. With `quiet` it prints only the error.
    pub fn of_command(
        limit: Option<Duration>,
        quiet: bool,
        print: impl Fn(&str) + Send + Sync + 'static,
    ) -> Waiting {
        let print = std::sync::Arc::new(print);
        let end = {
            let print = print.clone();
            move |failure: Option<Failure>| {
                failure.iter().for_each(|failure| print(&failure.to_string()));
                std::process::exit(failure.map_or(Failure::CANNOT, |failure| failure.code()).into());
            }
        };
        let print_unless_quiet = move |message: &str| {
            if !quiet {
                print(message);
            }
        };
        Waiting {
            limit,
            print: Box::new(print_unless_quiet),
            end: Box::new(end),
            creator: Creator::None,
            is_to_end: None,
        }
    }

    /// Returns the watchdog of a process that serves the command `creator`. `end` must end this
    /// process; it gets no failure if the command has ended or this process was asked to end.
    pub fn for_creator(
        limit: Option<Duration>,
        creator: i32,
        print: impl Fn(&str) + Send + Sync + 'static,
        end: impl Fn(Option<Failure>) + Send + Sync + 'static,
    ) -> Waiting {
        Waiting {
            limit,
            print: Box::new(print),
            end: Box::new(end),
            creator: Creator::open(creator),
            is_to_end: None,
        }
    }

    /// Returns the same watchdog, which also ends this process, without a failure, if `is_to_end`
    /// returns `true` during an operation.
    pub fn or_if(self, is_to_end: impl Fn() -> bool + Send + Sync + 'static) -> Waiting {
        Waiting { is_to_end: Some(Box::new(is_to_end)), ..self }
    }

    /// Returns whether the command that this process serves has ended.
    pub fn creator_has_ended(&self) -> bool {
        self.creator.has_ended()
    }

    /// Performs an operation that accesses `path`. The watching thread has ended when this function
    /// returns.
    pub fn watch<T>(&self, path: &Path, operation: impl FnOnce() -> T) -> T {
        self.watch_for(path, Duration::ZERO, operation)
    }

    /// Does the same as `watch`, for an operation that reads a whole file: a large file may take
    /// longer.
    pub fn watch_read<T>(&self, file: &File, path: &Path, operation: impl FnOnce() -> T) -> T {
        // The size alone: a client of a shared file system requests the access time again after a
        // read.
        let size = || statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::SIZE);
        let bytes = self.watch(path, || size().map_or(0, |found| found.stx_size));
        self.watch_for(path, Duration::from_secs(bytes / READ_BYTES_PER_SECOND), operation)
    }

    fn watch_for<T>(&self, path: &Path, expected: Duration, operation: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let (done, is_done) = channel();
            // If no thread can be started, the operation is not watched.
            let watcher = Builder::new().spawn_scoped(scope, move || self.report(path, expected, &is_done));
            let result = operation();
            drop(done);
            if let Ok(watcher) = watcher {
                let _ = watcher.join();
            }
            result
        })
    }

    fn report(&self, path: &Path, expected: Duration, is_done: &Receiver<()>) {
        let begun = Instant::now();
        let mut is_reported = false;
        while is_done.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if self.creator.has_ended() || self.is_to_end.as_ref().is_some_and(|is_to_end| is_to_end()) {
                (self.end)(None);
            }
            let waited = begun.elapsed();
            if waited >= expected + REPORT_AFTER && !is_reported {
                let seconds = waited.as_secs();
                (self.print)(&format!("waiting for {}: no answer for {seconds} s", shown(path)));
                is_reported = true;
            }
            if let Some(limit) = self.limit.filter(|limit| waited >= expected + *limit) {
                let failure = format!(
                    "{}: the file system has not answered for {} s, the limit of --answer-timeout",
                    shown(path),
                    limit.as_secs()
                );
                (self.end)(Some(Failure::cannot(failure).into_final()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use quell_threads::lock;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Log {
        fn waiting(&self, limit: Option<Duration>, creator: i32) -> Waiting {
            let (printed, ended) = (self.clone(), self.clone());
            let print = move |message: &str| lock(&printed.0).push(message.to_owned());
            let end = move |failure: Option<Failure>| {
                let cause = failure.map_or("the command has ended".into(), |failure| failure.to_string());
                lock(&ended.0).push(format!("end: {cause}"));
            };
            Waiting::for_creator(limit, creator, print, end)
        }

        fn lines(&self) -> Vec<String> {
            lock(&self.0).clone()
        }
    }

    fn own_pid() -> i32 {
        std::process::id().cast_signed()
    }

    /// Waits in an operation until a line is printed.
    fn until_line(log: &Log, words: &str) {
        while !log.lines().iter().any(|line| line.contains(words)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_path_without_an_answer_is_reported_once_and_the_process_ends_at_the_limit() {
        let log = Log::default();
        let waiting = log.waiting(Some(Duration::from_millis(3200)), own_pid());
        let path = Path::new("/shared/env");
        assert_eq!(
            waiting.watch(path, || {
                until_line(&log, "end: ");
                7
            }),
            7
        );
        let lines = log.lines();
        assert!(lines[0].starts_with("waiting for /shared/env: no answer for "), "{lines:?}");
        assert!(lines[1].starts_with("end: /shared/env: the file system has not answered"), "{lines:?}");
        assert_eq!(lines.iter().filter(|line| line.starts_with("waiting")).count(), 1);
    }

    #[test]
    fn a_process_ends_with_the_command_that_it_serves() {
        let mut command =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let log = Log::default();
        let waiting = log.waiting(None, command.id().cast_signed());
        waiting.watch(Path::new("/shared/env"), || {
            command.kill().unwrap();
            command.wait().unwrap();
            until_line(&log, "end: the command has ended");
        });
    }

    #[test]
    fn a_process_that_is_asked_to_end_does_not_wait_for_the_operation() {
        let log = Log::default();
        let waiting = log.waiting(None, own_pid()).or_if(|| true);
        waiting.watch(Path::new("/shared/env"), || until_line(&log, "end: the command has ended"));
    }

    #[test]
    fn a_process_ends_if_its_command_has_ended_before_it_looks() {
        let mut command = std::process::Command::new("true").spawn().unwrap();
        command.wait().unwrap();
        let log = Log::default();
        let waiting = log.waiting(Some(Duration::from_secs(5)), command.id().cast_signed());
        waiting.watch(Path::new("/shared/env"), || until_line(&log, "end: "));
        assert_eq!(log.lines()[0], "end: the command has ended");
    }
}
