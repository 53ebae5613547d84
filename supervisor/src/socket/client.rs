//! The client side of a holder's socket: joins a holder, or requests its report.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use quell_overlay::Namespaces;
use quell_vfs::{Error, ErrorKind, Result, errno};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FlockOperation;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::socket::connection::{
    ANSWER_TIMEOUT, Connection, RETRY_INTERVAL, call, connect, no_answer, timespec,
};
use crate::socket::lock::{lock, lock_key, remove_files, socket_path};
use crate::socket::request::{self, CoveredTree};

/// The result of joining a holder.
#[derive(Debug)]
pub struct Admission {
    pub namespaces: Namespaces,
    pub directory: ViewDirectory,
}

/// The caller's working directory as seen in the namespace.
#[derive(Debug)]
pub struct ViewDirectory {
    /// An error if the namespace has no such directory.
    pub opened: Result<OwnedFd>,
    /// The covered tree that contains it.
    pub tree: Option<CoveredTree>,
}

/// Joins the holder of `key`, or creates one with `make`, which must return once the holder's
/// socket exists. Of several concurrent callers one creates the holder and the others join it.
/// `make` gets the lock, so that the new process holds it too: if the caller is killed, no other
/// caller creates a second holder while the first is starting.
///
/// `request`: sends a request to the holder and waits for the answer until a deadline.
///
/// Errors: `TimedOut` if a holder does not answer within [`ANSWER_TIMEOUT`]; the subject names
/// the process.
pub fn join<T>(
    directory: &Path,
    key: &str,
    make: impl FnOnce(&File) -> Result<()>,
    request: impl Fn(&UnixStream, Instant) -> Result<T>,
) -> Result<T> {
    let mut make = Some(make);
    let mut deadline = None;
    loop {
        let lock = lock_key(directory, key)?;
        // The time that another caller takes to create the holder does not count towards the
        // timeout.
        let mut until = *deadline.get_or_insert_with(|| Instant::now() + ANSWER_TIMEOUT);
        let mut connection = connect(directory, key)?;
        if let Connection::None { is_left_behind } = connection {
            if is_left_behind {
                let _ = std::fs::remove_file(socket_path(directory, key));
            }
            if let Some(make) = make.take() {
                make(&lock)?;
                until = Instant::now() + ANSWER_TIMEOUT;
                deadline = Some(until);
                connection = connect(directory, key)?;
            }
        }
        drop(lock);
        match connection {
            Connection::Made(stream) => match request(&stream, until) {
                // The holder was killed before it answered; the next pass replaces it.
                Err(e) if [errno::ECONNRESET, errno::EPIPE].contains(&e.errno()) => {}
                answer => return answer,
            },
            Connection::None { .. } => return Err(Error::new(ErrorKind::NotFound, "join the holder", key)),
            // The holder accepts no connections from its queue.
            Connection::QueueFull if Instant::now() < until => std::thread::sleep(RETRY_INTERVAL),
            Connection::QueueFull => return Err(no_answer("a process whose queue is full")),
        }
    }
}

/// Returns a holder's report, or `None` if there is no such holder.
pub fn request_report(directory: &Path, key: &str) -> Result<Option<String>> {
    let Some(report) = call_holder(directory, key, request::REPORT_REQUEST)? else { return Ok(None) };
    let report = String::from_utf8(report)
        .map_err(|_| Error::new(ErrorKind::Damaged, "ask the holder", b"the report is not text"))?;
    Ok(Some(report))
}

/// Makes a holder discard the changes of its mount when it ends. Returns whether it will.
pub fn request_discard(directory: &Path, key: &str) -> Result<bool> {
    let answer = call_holder(directory, key, request::DISCARD_REQUEST)?;
    Ok(answer.is_some_and(|answer| answer == request::DISCARDS))
}

/// Sends a request to a holder, and returns the answer, or `None` if there is no such holder.
fn call_holder(directory: &Path, key: &str, request: &[u8]) -> Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    loop {
        match connect(directory, key)? {
            Connection::None { .. } => return Ok(None),
            Connection::Made(stream) => {
                let (answer, _) = call(&stream, request, deadline)?;
                return Ok(Some(answer));
            }
            Connection::QueueFull if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
            Connection::QueueFull => return Err(no_answer("a process whose queue is full")),
        }
    }
}

/// The process of a holder, whether it answers or not.
#[derive(Debug)]
pub struct HolderProcess {
    pub pid: i32,
    descriptor: OwnedFd,
}

impl HolderProcess {
    /// Waits until the process ends or for the timeout; returns whether it has ended.
    pub fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        loop {
            let mut watched = [PollFd::new(&self.descriptor, PollFlags::IN)];
            let left = timespec(until.saturating_duration_since(Instant::now()));
            match poll(&mut watched, Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                ready => return ready.is_ok_and(|ready| ready > 0),
            }
        }
    }
}

/// Returns the process that listens on the socket of `key`, or `None` if there is no such holder.
pub fn process_of(directory: &Path, key: &str) -> Result<Option<HolderProcess>> {
    let Connection::Made(stream) = connect(directory, key)? else { return Ok(None) };
    let failed = |e: rustix::io::Errno| Error::from_io(e.into(), "find the holder", key);
    // The kernel reports the listening process, as of its call to listen(2).
    let pid = rustix::net::sockopt::socket_peercred(&stream).map_err(failed)?.pid;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => Ok(Some(HolderProcess { pid: pid.as_raw_nonzero().get(), descriptor })),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

/// Removes the files of holders that were killed.
pub fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let key = |name: String| Some(name.strip_suffix(".lock").or(name.strip_suffix(".sock"))?.to_owned());
    let keys: BTreeSet<String> = names.filter_map(key).collect();
    for key in keys {
        // A process that is about to use the files holds the lock.
        let Ok(Some(_lock)) = lock(directory, &key, FlockOperation::NonBlockingLockExclusive) else {
            continue;
        };
        if matches!(connect(directory, &key), Ok(Connection::None { .. })) {
            remove_files(directory, &key);
        }
    }
}

/// Requests to enter the holder's namespaces. `working_directory`: the directory that the caller
/// will use in them.
pub fn admitted(stream: &UnixStream, working_directory: &Path, deadline: Instant) -> Result<Admission> {
    let damaged = |what: &str| Error::new(ErrorKind::Damaged, "join the holder", what);
    let (answer, descriptors) = call(stream, &request::join_request(working_directory), deadline)?;
    let (number, tree) = answer.split_first_chunk().ok_or_else(|| damaged("the answer is too short"))?;
    let number = u32::from_le_bytes(*number);
    let mut descriptors = descriptors.into_iter();
    let mount = descriptors.next().ok_or_else(|| damaged("no namespace came"))?;
    let opened = match number {
        0 => Ok(descriptors.next().ok_or_else(|| damaged("no working directory came"))?),
        number => {
            let cause = std::io::Error::from_raw_os_error(number as i32);
            Err(Error::from_io(cause, "open in the view", working_directory.as_os_str().as_bytes()))
        }
    };
    let tree = CoveredTree::decode(tree);
    let namespaces = Namespaces::new(mount, descriptors.next());
    Ok(Admission { namespaces, directory: ViewDirectory { opened, tree } })
}

/// Requests the description of a holder's trees, for processes that serve them. Returns it with the
/// descriptor that keeps the holder running.
pub fn shared(stream: &UnixStream, deadline: Instant) -> Result<(Vec<u8>, OwnedFd)> {
    let (answer, descriptors) = call(stream, &request::join_request(Path::new("")), deadline)?;
    let missing = || Error::new(ErrorKind::Damaged, "join the holder", b"no descriptor came");
    Ok((answer, descriptors.into_iter().next().ok_or_else(missing)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    fn at_root(stream: &UnixStream, until: Instant) -> Result<Admission> {
        admitted(stream, Path::new("/"), until)
    }

    #[test]
    fn a_holder_that_dies_before_it_answers_is_replaced() {
        for reads_the_question in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(socket_path(directory.path(), "key")).unwrap();
            let dying = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                if reads_the_question {
                    stream.read_exact(&mut [0]).unwrap();
                }
            });
            let mut made = false;
            let make = |_: &File| {
                made = true;
                Err(Error::new(ErrorKind::Unsupported, "make", b"another"))
            };
            let joined = join(directory.path(), "key", make, at_root);
            dying.join().unwrap();
            assert!(made, "{:?}", joined.err());
        }
    }

    #[test]
    fn callers_wait_for_an_answer_together_and_without_the_lock() {
        const CALLERS: usize = 4;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let listener = UnixListener::bind(socket_path(path, "key")).unwrap();
        std::thread::scope(|scope| {
            let call = || join(path, "key", |_| panic!("there is a holder"), at_root);
            let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
            let mut streams: Vec<UnixStream> = (0..CALLERS).map(|_| listener.accept().unwrap().0).collect();
            drop(lock_key(path, "key").unwrap());
            // All of them still wait, without the lock, and each receives its answer.
            for stream in &mut streams {
                let damaged = [8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
                std::io::Write::write_all(stream, &damaged).unwrap();
            }
            for caller in callers {
                let error = caller.join().unwrap().unwrap_err();
                assert_eq!(error.kind, ErrorKind::Damaged, "{error}");
            }
        });
    }

    #[test]
    fn a_holder_that_does_not_answer_is_an_error_that_names_it_and_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let _listener = UnixListener::bind(socket_path(directory.path(), "key")).unwrap();
        let make = |_: &File| panic!("there is a holder");
        let error = join(directory.path(), "key", make, at_root).unwrap_err();
        assert_eq!(error.errno(), rustix::io::Errno::TIMEDOUT.raw_os_error(), "{error}");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    }
}
