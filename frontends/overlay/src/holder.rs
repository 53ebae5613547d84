//! The holder: one process per node, user and job, which has created the namespace. Other processes
//! join through its socket; it stays until the last process of the namespace has ended. Ranks that
//! share a namespace can read each other's memory (MPI's cross-memory attach); ranks in separate
//! namespaces cannot.
//!
//! The protocol uses a Unix stream socket in a directory that only the user may enter. Numbers have
//! 4 bytes and are little endian.
//!
//! ```text
//! request for a report   "S"
//! answer                 length of the report, report
//!
//! request to join        "J", length of the path, path of the caller's working directory
//! answer                 length of the rest, error number, kind of tree, path of the tree
//!                        (kind: one byte; 0 outside all covered trees, 1 in a tree, 2 in a tree
//!                        indexed with the file systems mounted below it)
//! ```
//!
//! Descriptors sent with an answer to "J": the mount namespace; the working directory as seen in
//! the namespace, if the error number is 0; the user namespace, if there is one. Without privilege
//! a process cannot leave a namespace that it has entered, so a caller must learn before it enters
//! whether its working directory exists in the view.
//!
//! The lock file of a holder is locked while a process checks for a holder, while it creates one,
//! and while a holder leaves. No process waits for an answer with the lock held, so a holder that
//! does not answer delays all callers by one timeout together, not one after the other.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell_vfs::{Error, ErrorKind, Result, errno};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const REPORT_BYTES_MAX: usize = 1 << 20;
/// A longer path than PATH_MAX cannot be opened.
const PATH_BYTES_MAX: usize = 4096;
/// The total time that a caller waits for its answer, and a holder for a caller's request.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before retrying a lock or a connection to a full queue.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Descriptors of a holder's namespaces.
#[derive(Debug)]
pub struct Namespaces {
    mount: OwnedFd,
    user: Option<OwnedFd>,
}

impl Namespaces {
    /// Returns the namespaces of the calling process.
    pub fn of_caller(with_user: bool) -> Result<Namespaces> {
        let open = |kind: &str| {
            let path = format!("/proc/self/ns/{kind}");
            File::open(&path).map(OwnedFd::from).map_err(|e| Error::from_io(e, "open", path))
        };
        Ok(Namespaces { mount: open("mnt")?, user: with_user.then(|| open("user")).transpose()? })
    }

    /// Moves the calling process into the namespaces. It must have a single thread, or other
    /// threads that are about to end. Its root and working directory become the root of the
    /// namespace.
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

/// A directory that a view covers.
#[derive(Debug, Clone)]
pub struct CoveredTree {
    pub path: PathBuf,
    /// Whether file systems mounted below it were also indexed. If not, their mount points are
    /// empty in the view.
    pub crosses_mounts: bool,
}

fn socket_path(directory: &Path, key: &str) -> PathBuf {
    directory.join(format!("{key}.sock"))
}

/// Waits for the lock of `key`, which a caller holds while it creates the holder of a mount point.
/// Returns `None` after the timeout; the process should then end, because one of its threads still
/// waits for the lock.
pub fn lock_key_within(directory: &Path, key: &str, timeout: Duration) -> Result<Option<File>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let (directory, key) = (directory.to_owned(), key.to_owned());
    // flock(2) has no timeout.
    std::thread::spawn(move || sender.send(lock_key(&directory, &key)));
    receiver.recv_timeout(timeout).ok().transpose()
}

fn lock_key(directory: &Path, key: &str) -> Result<File> {
    loop {
        if let Some(file) = lock(directory, key, FlockOperation::LockExclusive)? {
            return Ok(file);
        }
    }
}

/// Locks the lock file of `key`. The lock is held while a process checks for a holder or creates
/// one, and while a holder leaves, so that only one process decides at a time.
fn lock(directory: &Path, key: &str, operation: FlockOperation) -> Result<Option<File>> {
    let path = directory.join(format!("{key}.lock"));
    let failed = |e| Error::from_io(e, "lock", path.as_os_str().as_bytes());
    loop {
        let file = File::options().create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
        match rustix::fs::flock(&file, operation) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(failed(e.into())),
        }
        // The previous owner of the lock may have removed the file.
        let still = rustix::fs::stat(&path).ok();
        let ours = rustix::fs::fstat(&file).map_err(|e| failed(e.into()))?;
        if still.is_some_and(|still| (still.st_dev, still.st_ino) == (ours.st_dev, ours.st_ino)) {
            return Ok(Some(file));
        }
    }
}

/// Joins the holder of `key`, or creates one with `make`, which must return once the holder's
/// socket exists. Of several concurrent callers one creates the holder and the others join it.
/// `make` gets the lock, so that the new process holds it too: if the caller is killed, no other
/// caller creates a second holder while the first is starting.
///
/// `working_directory`: the directory that the caller will use in the namespace.
///
/// Errors: `Os(ETIMEDOUT)` if a holder does not answer within [`ANSWER_TIMEOUT`]; the subject names
/// the process.
pub fn join(
    directory: &Path,
    key: &str,
    working_directory: &Path,
    make: impl FnOnce(&File) -> Result<()>,
) -> Result<Admission> {
    let mut make = Some(make);
    let mut deadline = None;
    loop {
        let lock = lock_key(directory, key)?;
        // The wait for a process that creates a holder does not count towards the timeout.
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
            Connection::Made(stream) => match admitted(&stream, working_directory, until) {
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

fn no_answer(holder: &str) -> Error {
    let cause = std::io::Error::from(rustix::io::Errno::TIMEDOUT);
    Error::from_io(cause, "wait for an answer of", holder)
}

/// Returns a holder's report, or `None` if there is no such holder.
pub fn ask(directory: &Path, key: &str) -> Result<Option<String>> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    loop {
        match connect(directory, key)? {
            Connection::None { .. } => return Ok(None),
            Connection::Made(stream) => {
                let (report, _) = call(&stream, b"S", deadline)?;
                let report = String::from_utf8(report).map_err(|_| {
                    Error::new(ErrorKind::Damaged, "ask the holder", b"the report is not text")
                })?;
                return Ok(Some(report));
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
    let keys: std::collections::BTreeSet<String> = names.filter_map(key).collect();
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

/// The suffixes of the files of a key. The lock file is removed last.
const SUFFIXES: [&str; 2] = ["sock", "lock"];

/// Removes the files of `key`. The caller must hold the lock.
fn remove_files(directory: &Path, key: &str) {
    for suffix in SUFFIXES {
        let _ = std::fs::remove_file(directory.join(format!("{key}.{suffix}")));
    }
}

#[derive(Debug)]
enum Connection {
    Made(UnixStream),
    /// The holder exists, but accepts no connections.
    QueueFull,
    /// No holder. If `is_left_behind`, the socket of a killed holder still exists; a caller that
    /// has the lock removes it.
    None {
        is_left_behind: bool,
    },
}

/// Connects to the holder of `key` without waiting.
fn connect(directory: &Path, key: &str) -> Result<Connection> {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
    let path = socket_path(directory, key);
    let failed = |e: Errno| Error::from_io(e.into(), "connect to", path.as_os_str().as_bytes());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    let address = SocketAddrUnix::new(&path).map_err(failed)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {
            rustix::io::ioctl_fionbio(&socket, false).map_err(failed)?;
            Ok(Connection::Made(socket.into()))
        }
        Err(Errno::AGAIN) => Ok(Connection::QueueFull),
        Err(Errno::NOENT) => Ok(Connection::None { is_left_behind: false }),
        Err(Errno::CONNREFUSED) => Ok(Connection::None { is_left_behind: true }),
        Err(e) => Err(failed(e)),
    }
}

fn admitted(stream: &UnixStream, working_directory: &Path, deadline: Instant) -> Result<Admission> {
    let damaged = |what: &str| Error::new(ErrorKind::Damaged, "join the holder", what);
    let path = working_directory.as_os_str().as_bytes();
    // A directory with so long a path cannot be opened, so the request has no path.
    let path = if path.len() > PATH_BYTES_MAX { b"" } else { path };
    let request = [b"J", &(path.len() as u32).to_le_bytes()[..], path].concat();
    let (answer, descriptors) = call(stream, &request, deadline)?;
    let (number, tree) = answer.split_first_chunk().ok_or_else(|| damaged("the answer is too short"))?;
    let number = u32::from_le_bytes(*number);
    let mut descriptors = descriptors.into_iter();
    let mount = descriptors.next().ok_or_else(|| damaged("no namespace came"))?;
    let opened = match number {
        0 => Ok(descriptors.next().ok_or_else(|| damaged("no working directory came"))?),
        number => {
            let cause = std::io::Error::from_raw_os_error(number as i32);
            Err(Error::from_io(cause, "open in the view", path))
        }
    };
    let tree = match tree.split_first() {
        None | Some((0, _)) => None,
        Some((kind, path)) => {
            Some(CoveredTree { path: OsStr::from_bytes(path).into(), crosses_mounts: *kind == 2 })
        }
    };
    let namespaces = Namespaces { mount, user: descriptors.next() };
    Ok(Admission { namespaces, directory: ViewDirectory { opened, tree } })
}

/// Sends a request and waits for the answer, both until the deadline.
fn call(stream: &UnixStream, request: &[u8], deadline: Instant) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let failed = |e: std::io::Error| match e.kind() {
        // The error of a socket timeout.
        std::io::ErrorKind::WouldBlock => match rustix::net::sockopt::socket_peercred(stream) {
            Ok(peer) => no_answer(&format!("process {}", peer.pid.as_raw_nonzero())),
            Err(_) => no_answer("the holder"),
        },
        _ => Error::from_io(e, "ask the holder", b""),
    };
    let wait = || {
        // A timeout of zero would mean no timeout.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream
            .set_read_timeout(Some(left))
            .and_then(|()| stream.set_write_timeout(Some(left)))
            .map_err(failed)
    };
    wait()?;
    std::io::Write::write_all(&mut &*stream, request).map_err(failed)?;
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let got = loop {
        wait()?;
        match rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut length)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got.map_err(|e| failed(e.into()))?,
        }
    };
    if got.bytes == 0 {
        // The connection was closed without an answer; the kernel may also report this as
        // ECONNRESET.
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
    let mut answer = vec![0; length];
    wait()?;
    (&*stream).read_exact(&mut answer).map_err(failed)?;
    Ok((answer, descriptors))
}

/// Why a holder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderEnd {
    /// The last process of the namespace has ended.
    Deserted,
    /// The callback `need` returned `Over`.
    NotNeeded,
}

/// Whether a holder is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The holder is needed and can be joined through its socket.
    Listed,
    /// The holder serves programs that still use its view; a new holder may take its key.
    Unlisted,
    Over,
}

/// A connected process whose request is not complete yet.
#[derive(Debug)]
struct Caller {
    stream: UnixStream,
    request: Vec<u8>,
    deadline: Instant,
}

/// The server side of the protocol.
#[derive(Debug)]
pub struct Holder {
    directory: PathBuf,
    key: String,
    listener: UnixListener,
    /// Processes of the namespace, by process number, each with its pidfd.
    members: HashMap<i32, OwnedFd>,
    callers: Vec<Caller>,
    trees: Vec<CoveredTree>,
    creator: Option<OwnedFd>,
    /// Descriptors whose events make `serve` call `need`.
    wakers: Vec<(OwnedFd, PollFlags)>,
    is_unlisted: bool,
}

impl Holder {
    /// Creates the socket. The caller of `join` that started this process holds the lock.
    pub fn bind(directory: &Path, key: &str) -> Result<Holder> {
        let path = socket_path(directory, key);
        let failed = |e| Error::from_io(e, "open socket", path.as_os_str().as_bytes());
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        // The mode of the directory already excludes other users.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Holder {
            directory: directory.into(),
            key: key.into(),
            listener,
            members: HashMap::new(),
            callers: Vec::new(),
            trees: Vec::new(),
            creator: None,
            wakers: Vec::new(),
            is_unlisted: false,
        })
    }

    /// Keeps the holder running at least until the process that requested the view has ended.
    pub fn wait_for_creator(&mut self, pid: i32) {
        self.wait_for(pid);
        self.creator = self.members.get(&pid).and_then(|descriptor| descriptor.try_clone().ok());
    }

    fn wait_for(&mut self, pid: i32) {
        let Some(process) = Pid::from_raw(pid) else { return };
        if let Ok(descriptor) = pidfd_open(process, PidfdFlags::empty()) {
            self.members.insert(pid, descriptor);
        }
    }

    /// Adds a tree that the view covers, for the answers to processes that join.
    pub fn covers(&mut self, tree: CoveredTree) {
        self.trees.push(tree);
    }

    /// Makes `serve` call `need` when the descriptor has one of the events.
    pub fn wake_on(&mut self, descriptor: OwnedFd, events: PollFlags) {
        self.wakers.push((descriptor, events));
    }

    /// Answers callers until the namespace has no other processes or `need` returns `Over`. Calls
    /// `report` for each report request, `tick` about every `interval`, `need` after each `tick`
    /// and when a descriptor of `wake_on` has an event, and `creator_ended` once.
    pub fn serve(
        mut self,
        namespaces: Option<&Namespaces>,
        interval: Duration,
        report: &mut dyn FnMut() -> String,
        need: &mut dyn FnMut() -> Need,
        tick: &mut dyn FnMut(),
        creator_ended: &mut dyn FnMut(),
    ) -> Result<HolderEnd> {
        let mut next_tick = Instant::now() + interval;
        let mut asks_need = true;
        loop {
            asks_need |= self.wait(match asks_need {
                true => Duration::ZERO,
                false => next_tick.saturating_duration_since(Instant::now()),
            })?;
            while let Ok((stream, _)) = self.listener.accept() {
                // An error or delay of one caller must not affect the others.
                if stream.set_nonblocking(true).is_ok() {
                    let deadline = Instant::now() + ANSWER_TIMEOUT;
                    self.callers.push(Caller { stream, request: Vec::new(), deadline });
                }
            }
            self.hear_callers(namespaces, report);
            if self.creator.as_ref().is_some_and(|creator| has_ended(creator.as_fd())) {
                self.creator = None;
                creator_ended();
            }
            self.members.retain(|_, descriptor| !has_ended(descriptor.as_fd()));
            if Instant::now() >= next_tick {
                tick();
                next_tick = Instant::now() + interval;
                asks_need = true;
            }
            if asks_need {
                asks_need = false;
                match need() {
                    Need::Listed => {}
                    Need::Unlisted if self.is_unlisted => {}
                    Need::Unlisted => {
                        self.is_unlisted = self.leave()?;
                        asks_need = !self.is_unlisted;
                    }
                    Need::Over if self.is_unlisted || self.leave()? => return Ok(HolderEnd::NotNeeded),
                    Need::Over => asks_need = true,
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

    /// Removes the socket, which no other process knows yet. The caller must hold the lock.
    pub fn abandon(self) {
        remove_files(&self.directory, &self.key);
    }

    /// Waits until a caller connects or sends data, a member ends, or the timeout. Returns whether
    /// a descriptor of `wake_on` has an event.
    fn wait(&self, timeout: Duration) -> Result<bool> {
        let mut watched: Vec<PollFd<'_>> =
            self.wakers.iter().map(|(waker, events)| PollFd::new(waker, *events)).collect();
        watched.push(PollFd::new(&self.listener, PollFlags::IN));
        watched.extend(self.members.values().map(|m| PollFd::new(m, PollFlags::IN)));
        watched.extend(self.creator.iter().map(|creator| PollFd::new(creator, PollFlags::IN)));
        watched.extend(self.callers.iter().map(|caller| PollFd::new(&caller.stream, PollFlags::IN)));
        let first_deadline = self.callers.iter().map(|caller| caller.deadline).min();
        let timeout = match first_deadline {
            Some(deadline) => timeout.min(deadline.saturating_duration_since(Instant::now())),
            None => timeout,
        };
        match poll(&mut watched, Some(&timespec(timeout))) {
            Ok(_) => {
                let wakers = &watched[..self.wakers.len()];
                Ok(wakers.iter().any(|waker| !waker.revents().is_empty()))
            }
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(Error::from_io(e.into(), "wait", b"for the job's processes")),
        }
    }

    /// Reads the available data of all callers without waiting, and answers complete requests.
    fn hear_callers(&mut self, namespaces: Option<&Namespaces>, report: &mut dyn FnMut() -> String) {
        let mut waiting = Vec::new();
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.hear() {
                // An error of one caller must not affect the others.
                Ok(Some(request)) => drop(self.answer(&caller.stream, request, namespaces, report)),
                Ok(None) if Instant::now() < caller.deadline => waiting.push(caller),
                Ok(None) | Err(_) => {}
            }
        }
        self.callers = waiting;
    }

    fn answer(
        &mut self,
        stream: &UnixStream,
        request: Request,
        namespaces: Option<&Namespaces>,
        report: &mut dyn FnMut() -> String,
    ) -> std::io::Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(stream)?;
        // The mode of the directory already excludes other users; this is a second check.
        if peer.uid != rustix::process::geteuid() {
            return Ok(());
        }
        // Most answers fit into the socket buffer, so writing them does not block.
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let (Request::Join(path), Some(namespaces)) = (&request, namespaces) else {
            return send_answer(stream, report().as_bytes(), &[]);
        };
        let opened = open_directory(path);
        let number = opened.as_ref().err().map_or(0, |e| e.raw_os_error()) as u32;
        let above = self.trees.iter().filter(|tree| path.starts_with(&tree.path));
        let tree = match above.max_by_key(|tree| tree.path.components().count()) {
            None => vec![0],
            Some(CoveredTree { path, crosses_mounts }) => {
                [&[1 + u8::from(*crosses_mounts)], path.as_os_str().as_bytes()].concat()
            }
        };
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![namespaces.mount.as_fd()];
        descriptors.extend(opened.as_ref().ok().map(AsFd::as_fd));
        descriptors.extend(namespaces.user.as_ref().map(AsFd::as_fd));
        // Recorded as a member before it can enter, so that the holder does not leave meanwhile.
        self.wait_for(peer.pid.as_raw_nonzero().get());
        send_answer(stream, &[&number.to_le_bytes()[..], &tree].concat(), &descriptors)
    }

    /// Finds processes of the namespace that did not join through the socket: children that
    /// outlived their parents.
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

    /// Removes the socket, unless a caller is connecting. Returns whether it was removed.
    fn leave(&self) -> Result<bool> {
        let Some(_lock) = lock(&self.directory, &self.key, FlockOperation::NonBlockingLockExclusive)? else {
            // Another process holds the lock and may connect.
            std::thread::sleep(RETRY_INTERVAL);
            return Ok(false);
        };
        let mut waiting = [PollFd::new(&self.listener, PollFlags::IN)];
        let now = timespec(Duration::ZERO);
        if !self.callers.is_empty() || poll(&mut waiting, Some(&now)).is_ok_and(|ready| ready > 0) {
            std::thread::sleep(RETRY_INTERVAL);
            return Ok(false);
        }
        remove_files(&self.directory, &self.key);
        Ok(true)
    }
}

/// A request of a caller.
#[derive(Debug)]
enum Request {
    Report,
    Join(PathBuf),
}

impl Caller {
    /// Reads the available data. `None`: the request is not complete.
    fn hear(&mut self) -> std::io::Result<Option<Request>> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(request) = self.request()? {
                return Ok(Some(request));
            }
            match (&self.stream).read(&mut bytes) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.request.extend(&bytes[..count]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn request(&self) -> std::io::Result<Option<Request>> {
        let Some((kind, rest)) = self.request.split_first() else { return Ok(None) };
        if *kind != b'J' {
            return Ok(Some(Request::Report));
        }
        let Some((length, path)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > PATH_BYTES_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        Ok(path.get(..length).map(|path| Request::Join(OsStr::from_bytes(path).into())))
    }
}

/// Opens the directory at exactly this path, without symbolic links, if it may be entered.
fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, readlinkat, statat};
    use std::os::fd::AsRawFd;
    if !path.is_absolute() {
        return Err(rustix::io::Errno::NOENT);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, path, flags, Mode::empty())?;
    let found = readlinkat(CWD, format!("/proc/self/fd/{}", directory.as_raw_fd()), Vec::new())?;
    if found.as_bytes() != path.as_os_str().as_bytes() {
        return Err(rustix::io::Errno::LOOP);
    }
    // Checks the search permission, as fchdir(2) will.
    statat(&directory, ".", AtFlags::empty())?;
    Ok(directory)
}

/// Sends an answer. The descriptors are sent with its length.
fn send_answer(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let length = (bytes.len() as u32).to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(stream, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
    std::io::Write::write_all(&mut &*stream, bytes)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// Returns whether the process of the pidfd has ended.
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
            let joined = join(directory.path(), "key", Path::new("/"), |_| {
                made = true;
                Err(Error::new(ErrorKind::Unsupported, "make", b"another"))
            });
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
            let call = || join(path, "key", Path::new("/"), |_| panic!("there is a holder"));
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
        let error = join(directory.path(), "key", Path::new("/"), make).unwrap_err();
        assert_eq!(error.errno(), rustix::io::Errno::TIMEDOUT.raw_os_error(), "{error}");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    }

    #[test]
    fn a_request_is_complete_with_its_last_byte_and_too_long_a_path_is_refused() {
        let (stream, mut peer) = UnixStream::pair().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut caller = Caller { stream, request: Vec::new(), deadline: Instant::now() };
        for byte in [&b"J"[..], &[4, 0, 0, 0], b"/ab"].concat() {
            std::io::Write::write_all(&mut peer, &[byte]).unwrap();
            assert!(caller.hear().unwrap().is_none());
        }
        std::io::Write::write_all(&mut peer, b"c").unwrap();
        assert!(matches!(caller.hear().unwrap(), Some(Request::Join(path)) if path == Path::new("/abc")));
        caller.request.clear();
        std::io::Write::write_all(&mut peer, &[&b"J"[..], &u32::MAX.to_le_bytes()].concat()).unwrap();
        assert!(caller.hear().is_err());
    }
}
