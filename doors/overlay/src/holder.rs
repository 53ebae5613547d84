//! The holder: one process for each node, user and job that made the namespace. Others come in through
//! its socket; it stays until the last process of the namespace has gone. Ranks that share a namespace
//! can read one another's memory (MPI's cross-memory attach), ranks in namespaces of their own cannot.
//!
//! The protocol, on a Unix stream socket in a directory that only the user may enter: the caller sends
//! one byte, `J` to join or `S` to ask for a report; the holder answers with the length of a text (4
//! bytes, little endian) and the text. With the answer to `J` travel the descriptors of the mount namespace
//! and, where there is one, of the user namespace.

use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_fs::{Error, ErrorKind, Result, errno};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const REPORT_BYTES_MAX: usize = 1 << 20;
/// How long either side waits for the other's next bytes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The descriptors that lead into a holder's namespaces.
#[derive(Debug)]
pub struct Namespaces {
    mount: OwnedFd,
    user: Option<OwnedFd>,
}

impl Namespaces {
    /// Those of the calling process.
    pub fn of_caller(with_user: bool) -> Result<Namespaces> {
        let open = |kind: &str| {
            let path = format!("/proc/self/ns/{kind}");
            File::open(&path).map(OwnedFd::from).map_err(|e| Error::from_io(e, "open", path))
        };
        Ok(Namespaces { mount: open("mnt")?, user: with_user.then(|| open("user")).transpose()? })
    }

    /// Moves the calling process, which must have a single thread or threads that end, into them. Its root and working
    /// directory become the namespace's root.
    pub fn enter(&self) -> Result<()> {
        if let Some(user) = &self.user {
            crate::namespace::wait_until_alone();
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))
                .map_err(|e| Error::from_io(e.into(), "enter the user namespace", b""))?;
        }
        move_into_link_name_space(self.mount.as_fd(), Some(LinkNameSpaceType::Mount))
            .map_err(|e| Error::from_io(e.into(), "enter the mount namespace", b""))
    }
}

/// What a holder gives to a process that joins.
#[derive(Debug)]
pub struct Admission {
    pub report: String,
    pub namespaces: Namespaces,
}

fn socket_path(directory: &Path, key: &str) -> PathBuf {
    directory.join(format!("{key}.sock"))
}

/// Held while a process looks for a holder or makes one, and while a holder leaves: at most one of them
/// decides at a time.
fn lock(directory: &Path, key: &str, operation: FlockOperation) -> Result<Option<File>> {
    let path = directory.join(format!("{key}.lock"));
    let failed = |e| Error::from_io(e, "lock", path.as_os_str().as_bytes());
    loop {
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        match rustix::fs::flock(&file, operation) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(failed(e.into())),
        }
        // The file may have been removed by the one that held the lock before.
        let still = rustix::fs::stat(&path).ok();
        let ours = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
        if still.is_some_and(|still| (still.st_dev, still.st_ino) == (ours.st_dev, ours.st_ino)) {
            return Ok(Some(file));
        }
    }
}

/// Joins the holder of `key`, or makes one with `make`, which returns once its socket is there. Of several
/// callers at once one makes it and the others join.
pub fn join(directory: &Path, key: &str, make: impl FnOnce() -> Result<()>) -> Result<Admission> {
    let _lock = lock(directory, key, FlockOperation::LockExclusive)?;
    if let Some(stream) = connect(directory, key)? {
        match admitted(&stream) {
            // It was killed between the connection and the answer, and is as good as one that was killed before.
            Err(e) if [errno::ECONNRESET, errno::EPIPE].contains(&e.errno()) => {
                let _ = std::fs::remove_file(socket_path(directory, key));
            }
            answer => return answer,
        }
    }
    make()?;
    match connect(directory, key)? {
        Some(stream) => admitted(&stream),
        None => Err(Error::new(ErrorKind::NotFound, "join the holder", key)),
    }
}

/// A holder's report; `None` where there is no such holder.
pub fn ask(directory: &Path, key: &str) -> Result<Option<String>> {
    match connect(directory, key)? {
        None => Ok(None),
        Some(stream) => call(&stream, b'S').map(|(report, _)| Some(report)),
    }
}

/// Removes what holders left behind that were killed: sockets and locks that nobody answers or holds.
pub fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(key) = name.to_str().and_then(|name| name.strip_suffix(".lock")) else { continue };
        // Whoever is about to use it holds the lock.
        let Ok(Some(_lock)) = lock(directory, key, FlockOperation::NonBlockingLockExclusive) else {
            continue;
        };
        if matches!(connect(directory, key), Ok(None)) {
            let _ = std::fs::remove_file(directory.join(&name));
        }
    }
}

fn connect(directory: &Path, key: &str) -> Result<Option<UnixStream>> {
    let path = socket_path(directory, key);
    let failed = |e| Error::from_io(e, "connect to", path.as_os_str().as_bytes());
    match UnixStream::connect(&path) {
        Ok(stream) => {
            stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
            Ok(Some(stream))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        // The holder was killed; its socket is of no use to anybody.
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            let _ = std::fs::remove_file(&path);
            Ok(None)
        }
        Err(e) => Err(failed(e)),
    }
}

fn admitted(stream: &UnixStream) -> Result<Admission> {
    let (report, mut descriptors) = call(stream, b'J')?;
    let user = if descriptors.len() > 1 { descriptors.pop() } else { None };
    let mount = descriptors.pop();
    let mount =
        mount.ok_or_else(|| Error::new(ErrorKind::Damaged, "join the holder", b"no namespace came"))?;
    Ok(Admission { report, namespaces: Namespaces { mount, user } })
}

fn call(stream: &UnixStream, request: u8) -> Result<(String, Vec<OwnedFd>)> {
    let failed = |e: std::io::Error| Error::from_io(e, "ask the holder", b"");
    std::io::Write::write_all(&mut &*stream, &[request]).map_err(failed)?;
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let got = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut length)], &mut control, flags)
        .map_err(|e| failed(e.into()))?;
    if got.bytes == 0 {
        // Closed without a word, which the kernel says in either way.
        return Err(failed(std::io::Error::from_raw_os_error(errno::ECONNRESET)));
    }
    let length = u32::from_le_bytes(length) as usize;
    if got.bytes != 4 || length > REPORT_BYTES_MAX {
        return Err(Error::new(ErrorKind::Damaged, "ask the holder", b"no answer"));
    }
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        })
        .flatten()
        .collect();
    let mut report = vec![0; length];
    (&*stream).read_exact(&mut report).map_err(failed)?;
    let report = String::from_utf8(report)
        .map_err(|_| Error::new(ErrorKind::Damaged, "ask the holder", b"the report is not text"))?;
    Ok((report, descriptors))
}

/// Why a holder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderEnd {
    /// The last process of the namespace has gone.
    Deserted,
    /// `still_needed` said no.
    NotNeeded,
}

/// The holder's side.
#[derive(Debug)]
pub struct Holder {
    directory: PathBuf,
    key: String,
    listener: UnixListener,
    /// Processes of the namespace, by their descriptors.
    members: HashMap<i32, OwnedFd>,
}

impl Holder {
    /// Opens the socket. The caller of `join` that started this process holds the lock.
    pub fn bind(directory: &Path, key: &str) -> Result<Holder> {
        let path = socket_path(directory, key);
        let failed = |e| Error::from_io(e, "open socket", path.as_os_str().as_bytes());
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Holder { directory: directory.into(), key: key.into(), listener, members: HashMap::new() })
    }

    /// Stays at least as long as this process lives.
    pub fn wait_for(&mut self, pid: i32) {
        let Some(process) = Pid::from_raw(pid) else { return };
        if let Ok(descriptor) = pidfd_open(process, PidfdFlags::empty()) {
            self.members.insert(pid, descriptor);
        }
    }

    /// Answers callers until the namespace is deserted. `report` is asked whenever a caller is answered,
    /// `tick` about every `interval`; it answers how long the holder is needed although nobody is there.
    pub fn serve(
        mut self,
        namespaces: Option<&Namespaces>,
        interval: Duration,
        report: &mut dyn FnMut() -> String,
        still_needed: &mut dyn FnMut() -> bool,
        tick: &mut dyn FnMut(),
    ) -> Result<HolderEnd> {
        let mut next_tick = Instant::now() + interval;
        loop {
            self.wait(next_tick.saturating_duration_since(Instant::now()))?;
            while let Ok((stream, _)) = self.listener.accept() {
                // A caller that goes wrong harms only itself.
                let _ = self.answer(&stream, namespaces, report);
            }
            self.members.retain(|_, descriptor| !has_ended(descriptor.as_fd()));
            if Instant::now() >= next_tick {
                tick();
                next_tick = Instant::now() + interval;
                if !still_needed() && self.leave()? {
                    return Ok(HolderEnd::NotNeeded);
                }
            }
            if namespaces.is_some() && self.members.is_empty() {
                self.find_members();
                if self.members.is_empty() && self.leave()? {
                    return Ok(HolderEnd::Deserted);
                }
            }
        }
    }

    /// Until a caller comes, a member ends or the time is up.
    fn wait(&self, timeout: Duration) -> Result<()> {
        let mut watched: Vec<PollFd<'_>> = vec![PollFd::new(&self.listener, PollFlags::IN)];
        watched.extend(self.members.values().map(|m| PollFd::new(m, PollFlags::IN)));
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::from_io(e.into(), "wait", b"for the job's processes")),
        }
    }

    fn answer(
        &mut self,
        stream: &UnixStream,
        namespaces: Option<&Namespaces>,
        report: &mut dyn FnMut() -> String,
    ) -> std::io::Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(stream)?;
        // The directory keeps others out; should it ever not, so does this.
        if peer.uid != rustix::process::geteuid() {
            return Ok(());
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let mut request = [0];
        (&*stream).read_exact(&mut request)?;
        let text = report();
        let length = (text.len() as u32).to_le_bytes();
        let mut descriptors: Vec<BorrowedFd<'_>> = Vec::new();
        if let (b'J', Some(namespaces)) = (request[0], namespaces) {
            self.wait_for(peer.pid.as_raw_nonzero().get());
            descriptors.push(namespaces.mount.as_fd());
            descriptors.extend(namespaces.user.as_ref().map(AsFd::as_fd));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        rustix::net::sendmsg(stream, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
        std::io::Write::write_all(&mut &*stream, text.as_bytes())
    }

    /// Processes of the namespace that did not come through the socket: children that outlived theirs.
    fn find_members(&mut self) {
        let Ok(ours) = std::fs::read_link("/proc/self/ns/mnt") else { return };
        let own_pid = std::process::id() as i32;
        let Ok(processes) = std::fs::read_dir("/proc") else { return };
        for process in processes.flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let theirs = std::fs::read_link(process.path().join("ns/mnt"));
            if pid != own_pid && theirs.is_ok_and(|theirs| theirs == ours) {
                self.wait_for(pid);
            }
        }
        self.members.retain(|_, descriptor| !has_ended(descriptor.as_fd()));
    }

    /// Closes the door, unless somebody is just coming in.
    fn leave(&self) -> Result<bool> {
        let Some(_lock) = lock(&self.directory, &self.key, FlockOperation::NonBlockingLockExclusive)? else {
            // A caller holds it and will connect: do not spin until then.
            std::thread::sleep(Duration::from_millis(5));
            return Ok(false);
        };
        let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut waiting, Some(&now)).is_ok_and(|ready| ready > 0) {
            return Ok(false);
        }
        let _ = std::fs::remove_file(socket_path(&self.directory, &self.key));
        let _ = std::fs::remove_file(self.directory.join(format!("{}.lock", self.key)));
        Ok(true)
    }
}

/// Whether the process behind the descriptor has ended.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut watched, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let joined = join(directory.path(), "key", || {
                made = true;
                Err(Error::new(ErrorKind::Unsupported, "make", b"another"))
            });
            dying.join().unwrap();
            assert!(made, "{:?}", joined.err());
        }
    }
}
